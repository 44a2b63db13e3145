"""One connection to an upstream: the request's bytes go out, the response comes in.

In: the bytes of a request, whole or as they come. Out: the head of the response as soon as it is there, then its body.
Always: a connection serves one exchange at a time, and one only if the server authenticates its client there; bytes
that arrive before a request close it. Later ones nothing tells from the answer.
"""

import asyncio
import logging
import sys
from typing import Final, Protocol

from gateway.config import Limits
from gateway.errors import GatewayError, Overloaded, UpstreamBroken, UpstreamTimeout
from gateway.http.header_fields import EVENT_STREAM, Headers
from gateway.http.parsed_head_cache import ConnectionHeads, HeadCache
from gateway.http.response_parser import BadResponse, Framing, ResponseHead, ResponseReader, ends_connection
from gateway.transport.base_connection import Wire
from gateway.transport.body_stream import NO_TRAILERS, Body, Response
from gateway.transport.memory_budget import Buffers, Reservation
from gateway.upstream.health import UpstreamHealth

log = logging.getLogger("taskgate.upstream")

_NEVER: Final = float("inf")
_INFORMED_BYTES: Final = 100  # that a 1xx response counts, besides its fields


class Requestor(Protocol):
    """For whom a request goes up."""

    authenticates: bool  # it is a part of the authentication of a connection, which then serves no other exchange
    waits_for_news: bool  # the response may take any time

    def inform(self, status: int, reason: bytes, headers: Headers) -> None:
        """A 1xx response."""


class UpstreamOwner(Protocol):
    """The owner of the connection: the pool."""

    buffers: Buffers
    heads: HeadCache[ResponseHead]
    state: UpstreamHealth
    hint: str  # a question, where it closes a new connection without a word

    def distrust(self) -> None:
        """The upstream has sent what nobody asked for."""


class UpstreamConnection(Wire):
    __slots__ = (
        "_asked", "_client", "_head", "_head_bytes_max", "_informed_bytes", "_keep", "_method", "_reader",
        "_reservation", "_response", "answered", "authenticates", "deadline", "idle_since", "lost", "moved", "pool",
        "reusable", "still_since", "timeout_s", "used",
    )  # fmt: skip

    def __init__(self, pool: UpstreamOwner, loop: asyncio.AbstractEventLoop, limits: Limits) -> None:
        super().__init__(loop, pool.buffers, limits.stall_timeout)
        self.pool = pool
        self._head_bytes_max = limits.header_bytes_max
        self._reader = ResponseReader(limits.header_bytes_max, limits.header_fields_max, ConnectionHeads(pool))
        self._reservation = Reservation(pool.buffers)  # of a head that is not whole, or of a large one
        self.idle_since = 0.0
        self.used = False  # it has served an exchange before
        self.authenticates = False  # the server may know its client by this connection: it serves no other exchange
        self.lost = self.reusable = False
        self._asked = False  # something of a request has gone out
        self._head: asyncio.Future[Response] | None = None
        self._response: Response | None = None

    def begin(self, method: bytes, client: Requestor | None) -> None:
        """Be ready for the response to a request of `method`; `client` gets the 1xx responses that come first."""
        self._method, self._client = method, client
        self._reader.begin()
        self._head = self.loop.create_future()
        self.deadline = _NEVER
        self.answered = self.reusable = False  # answered: some byte of a response has arrived
        self.moved, self.still_since = True, 0.0  # moved: since the last sweep of the pool
        self._informed_bytes = 0

    def write(self, data: bytes) -> None:
        """Send bytes of a request: what arrives from now on is the answer."""
        self._asked = self.moved = True
        super().write(data)

    async def head(self, timeout_s: float | None) -> Response:
        """The response's head. Raises UpstreamBroken, or UpstreamTimeout within a second after `timeout_s`."""
        assert self._head is not None
        if timeout_s:
            self.deadline, self.timeout_s = self.loop.time() + timeout_s, timeout_s
        return await self._head

    @property
    def is_whole(self) -> bool:
        """Whether a whole response has come in this exchange."""
        return self._response is not None and self._response.body.is_whole

    def end(self) -> None:
        """The exchange is over: drop what nobody has read, and what refers back to the connection."""
        if self._response is not None:
            self._response.body.drop()
        self._hold(0)
        self._head = self._response = self._client = None
        self._asked, self.used = False, True

    def is_stale(self) -> bool:
        """Whether the upstream has closed the idle connection, or sent something on it that nobody asked for."""
        return self.lost or self.transport is None or self.transport.is_closing() or self.has_input()

    # ---- the transport ----

    def data_received(self, data: bytes) -> None:
        if not self._asked or self.is_whole:
            self._unasked()
            return
        self.answered = self.moved = True
        self._reader.add(data)
        self._read_on()

    def _read_on(self) -> None:
        """Read heads up to the response's, and its body."""
        reader = self._reader
        while self._response is None and reader.pending_bytes and not self.lost:
            try:
                head = reader.head()
            except BadResponse as fault:
                self._break(str(fault))
                return
            if head is None:
                self._hold(sys.getsizeof(reader.begun))
            elif head.status < 200:
                self._inform(head)
            else:
                self._begin(head)
        if self._response is None or self.lost:
            return
        if piece := reader.body():
            self._response.body.feed(piece)
        if reader.is_whole:
            trailers = reader.trailers
            self._response.body.finish(Headers.of(trailers) if trailers else NO_TRAILERS)
            self.reusable = self._keep and not (trailers and ends_connection(trailers))
            if reader.is_followed:
                self._unasked()
        elif reader.fault:
            self._break(reader.fault)

    def _inform(self, head: ResponseHead) -> None:
        """Pass a 1xx response on. Those of one exchange are no larger than one head: each costs what a head costs."""
        self._informed_bytes += _INFORMED_BYTES + head.headers.size_bytes()
        if self._informed_bytes > self._head_bytes_max:
            self._break(f"its 1xx responses are larger than {self._head_bytes_max} bytes")
        elif self._client is not None:
            fields = head.headers.end_to_end().without(b"content-length", b"transfer-encoding")  # RFC 9110, 8.6
            self._client.inform(head.status, head.reason, fields)

    def _begin(self, head: ResponseHead) -> None:
        if head.authenticates:
            self.authenticates = True
            if self._client is not None:
                self._client.authenticates = True
        self._hold(head.held_bytes)
        if self.lost:
            return
        framing: Framing = "none" if self._method == b"HEAD" else head.framing
        self._keep = head.keeps_alive
        self._reader.expect_body(framing)
        self._response = Response(head, self._reader.values, self._reader.stated_bytes, framing, Body(self))
        self.deadline = _NEVER
        if self._head is not None and not self._head.done():
            self._head.set_result(self._response)

    def _hold(self, size_bytes: int) -> None:
        """Count the memory of the head. Give up the exchange if there is no room for it."""
        if size_bytes != self._reservation.held_bytes:
            self._reservation.set(size_bytes)
            if not self._reservation.has_room(size_bytes):
                self.give_up(Overloaded("limits.held_bytes_max is reached: no room for the head of the answer"))

    def _break(self, fault: str) -> None:
        self.give_up(UpstreamBroken(f"the upstream's answer cannot be passed on: {fault}"))

    def give_up(self, error: GatewayError) -> None:
        """Cut the exchange."""
        self._fail(error)
        self.lost = True
        self.abort()

    def _unasked(self) -> None:
        """Something arrived that nobody asked for: it cannot be told from the answer to the next request."""
        self.lost = True
        self.pool.distrust()
        self._fail(UpstreamBroken("the upstream sent something before it was asked"))
        self.close()

    def eof_received(self) -> bool:
        if self._response is not None and self._response.framing == "close" and self.is_ended_by_peer():
            self._response.body.finish()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.lost = True
        self._reader.close()
        if isinstance(exc, TimeoutError):  # the kernel's word (base_connection.py)
            self._fail(UpstreamTimeout(f"the upstream took nothing for {self.stall_timeout_s:g} s"))
            return
        how = f": {exc}" if exc else ""
        if self._asked and not self.answered and not self.used:
            how = f" without an answer{self.pool.hint}"
        self._fail(UpstreamBroken(f"the upstream closed the connection{how}"))

    def _fail(self, error: GatewayError) -> None:
        if self._response is not None:
            failed = self._response.body.fail(error)
        elif failed := (head := self._head) is not None and not head.done():
            head.set_exception(error)
            head.exception()  # counts as retrieved: perhaps nobody awaits it
        is_idle_close = self.used and not self.answered and not isinstance(error, UpstreamTimeout)
        if failed and isinstance(error, UpstreamBroken | UpstreamTimeout) and not is_idle_close:  # no other is its own
            self.pool.state.silent(str(error))


def is_inside(connection: UpstreamConnection) -> bool:
    """Whether a part of a message has come, and the rest must follow. An event stream may be quiet (DESIGN 3.4)."""
    response = connection._response
    if response is None:
        return bool(connection._reader.begun)
    return not response.body.is_whole and response.head.kind != EVENT_STREAM
