"""The connections to one upstream: one of them, the exchanges on it, and the pool of all.

In: requests, whole or as they come. Out: the head of each response as soon as it is there, then its body. Always: a
connection serves one exchange at a time, and one only if the server authenticates its client there. It goes back to the
pool only when both messages are whole, and is closed at once when an exchange is left before that (DESIGN 3.6). One
that was idle for `idle_timeout` is not used again, because Node and uvicorn close theirs after 5 s (DESIGN 2.7). Bytes
that arrive before a request close it, and for a while each connection serves one exchange.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from time import perf_counter, time
from typing import Final, Protocol, Self

from gateway.caller_identity import ServerKey
from gateway.config import Limits, Upstream
from gateway.errors import GatewayError, Overloaded, UpstreamBroken, UpstreamTimeout, UpstreamUnreachable
from gateway.http.cors import Cors
from gateway.http.header_fields import EVENT_STREAM, NO_FIELDS, Headers
from gateway.http.parsed_head_cache import ConnectionHeads, HeadCache
from gateway.http.response_parser import BadResponse, Framing, ResponseHead, ResponseReader, ends_connection
from gateway.transport.base_connection import Links, Wire
from gateway.transport.body_stream import Body, Response
from gateway.transport.memory_budget import Buffers, Capacity, Reservation
from gateway.transport.repeated_log_lines import LogLimit
from gateway.transport.tls_certificates import unreachable
from gateway.upstream.caller_identity_drift import IdentityDrift
from gateway.upstream.dial import Dialer
from gateway.upstream.health import UpstreamHealth

log = logging.getLogger("taskgate.upstream")

_NEVER: Final = float("inf")
_INFORMED_BYTES: Final = 100  # that a 1xx response counts, besides its fields
# For so long after a server has sent what nobody asked for, none of its connections is used twice. The server may do so
# again, and the next client would take that for its answer; a new connection costs a fraction of a millisecond.
# The time ends, because some servers send 408 on an idle connection.
_DISTRUST_S: Final = 3600.0
_AGE_MAX_S: Final = 3600.0  # of a connection that serves again: its server's name may lead elsewhere by now
_numbers: Final = count()


class Requestor(Protocol):
    """For whom a request goes up."""

    authenticates: bool  # it is a part of the authentication of a connection, which then serves no other exchange
    waits_for_news: bool  # the response may take any time

    def inform(self, status: int, reason: bytes, headers: Headers) -> None:
        """A 1xx response."""


class UpstreamConnection(Wire):
    __slots__ = (
        "_asked", "_client", "_head", "_informed_bytes", "_method", "_reader",
        "_reservation", "_response", "answered", "authenticates", "deadline", "idle_since", "lost", "made_at", "moved",
        "pool", "reusable", "still_since", "timeout_s", "used",
    )  # fmt: skip

    def __init__(self, pool: "Pool") -> None:
        super().__init__(pool.loop, pool.buffers, limits := pool.limits)
        self.pool = pool
        self._reader = ResponseReader(limits.header_bytes_max, limits.header_fields_max, ConnectionHeads(pool))
        self._reservation = Reservation(pool.buffers)  # of a head that is not whole, or of a large one
        self.idle_since = 0.0
        self.made_at = self.loop.time()
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

    def head(self, timeout_s: float | None) -> asyncio.Future[Response]:
        """The response's head. Raises UpstreamBroken, or UpstreamTimeout within a second after `timeout_s`."""
        assert self._head is not None
        if timeout_s:
            self.deadline, self.timeout_s = self.loop.time() + timeout_s, timeout_s
        return self._head

    @property
    def is_whole(self) -> bool:
        """Whether a whole response has come in this exchange."""
        return self._response is not None and self._response.body.is_whole

    @property
    def is_inside(self) -> bool:
        """Whether a part of a message has come, and the rest must follow. An event stream may be quiet (DESIGN 3.4)."""
        if self._response is None:
            return self._reader.held_bytes > 0
        return not self._response.body.is_whole and self._response.head.kind != EVENT_STREAM

    def end(self) -> None:
        """The exchange is over: drop what nobody has read, and what refers back to the connection."""
        if self._response is not None:
            self._response.body.drop()
        self._reservation.close()
        self._head = self._response = self._client = None
        self._asked, self.used = False, True

    def is_stale(self) -> bool:
        """Whether the upstream has closed the connection, or sent what is unread: if it is idle, unasked."""
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
                self._hold(reader.held_bytes)
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
            self._response.body.finish(Headers.of(trailers) if trailers else NO_FIELDS)
            self.reusable = self._response.head.keeps_alive and not (trailers and ends_connection(trailers))
            if reader.is_followed:
                self._unasked()
        elif reader.fault:
            self._break(reader.fault)

    def _inform(self, head: ResponseHead) -> None:
        """Pass a 1xx response on. Those of one exchange are no larger than one head: each costs what a head costs."""
        self._informed_bytes += _INFORMED_BYTES + len(head.headers.block())
        if self._informed_bytes > self.limits.header_bytes_max:
            self._break(f"its 1xx responses are larger than {self.limits.header_bytes_max} bytes")
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
        unread = self.unread() if exc is not None and self._asked and not self.is_whole else b""
        super().connection_lost(exc)
        if unread:  # of the answer: a write that fails ends the connection in front of it
            self.data_received(unread)
        self.lost = True
        self._reader.close()
        if isinstance(exc, TimeoutError):  # the kernel's word (base_connection.py)
            self._fail(UpstreamTimeout(f"the upstream took nothing for {self.limits.stall_timeout:g} s"))
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


@dataclass(eq=False)
class Call:
    """One exchange with the upstream, as a context: leaving it before both messages are whole closes the connection.

    `client` is the exchange that is relayed; None for a request of the gateway's own. Of an answer to a health
    check the state is told by whoever checks: its status decides. Entering raises Overloaded, UpstreamUnreachable or
    UpstreamTimeout.
    """

    _pool: "Pool"
    _method: bytes
    _client: Requestor | None = None
    is_check: bool = False
    _sent: bool = False  # the request has gone out whole

    async def __aenter__(self) -> Self:
        slots = self._pool.context.slots
        if not slots.is_full:
            slots.change(1)  # as nearly always, without the cost of a coroutine
        else:
            try:
                await slots.reserve(1, self._pool.config.connect_timeout)
            except TimeoutError:
                raise Overloaded(f"{slots.limit} requests to the upstream are under way") from None
        try:
            self._begin(await self._pool.connection(self._client is not None and self._client.authenticates))
        except BaseException:
            slots.change(-1)
            raise
        return self

    def _begin(self, connection: UpstreamConnection) -> None:
        self.connection = connection
        connection.begin(self._method, self._client)
        self._began_at = perf_counter()  # uvloop's own clock ticks once a millisecond
        self._pool.active.add(connection)

    async def send(self, data: bytes, last: bool = False) -> None:
        """Send bytes of the request; `last` says that these are the last."""
        if self.connection.is_stale():  # an answer has come, and perhaps an end: it is read before a write fails
            await _arrivals()
        self.connection.write(data)
        self._sent = last
        if not last:
            await self.connection.drain()

    async def send_all(self, head: bytes, body: bytes, timeout_s: float | None, again: bool) -> Response:
        """Send a whole request, the bytes of `head` and `body`, and wait for the response's head.

        If the pooled connection turns out to be closed without a byte of an answer, a request that may be sent `again`
        goes out once more on a new one. Raises UpstreamBroken, UpstreamTimeout or UpstreamUnreachable.
        """
        while True:
            connection = self.connection
            connection.write(head)
            if body:
                connection.write(body)
            self._sent = True
            try:
                return self.came(await connection.head(timeout_s))
            except UpstreamBroken:
                if not again or connection.answered or not connection.used:
                    raise
            self._pool.active.discard(connection)
            connection.end()
            self._begin(await self._pool.connection(fresh=True))  # it was not used before

    def came(self, response: Response) -> Response:
        """The head of the response has come. How fast it came is told, unless it waits for news."""
        if self._client is None or not self._client.waits_for_news:
            self._pool.on_answer(perf_counter() - self._began_at)
        return response

    async def __aexit__(self, *_: object) -> None:
        pool, client, connection = self._pool, self._client, self.connection
        pool.context.slots.change(-1)
        pool.active.discard(connection)
        if pool.state.now != "UP" and connection.is_whole and not self.is_check:
            pool.state.answered()
        if not self._sent or not connection.reusable or connection.lost:
            connection.abort()
        elif connection.authenticates or (client is not None and client.authenticates):
            connection.close()
        else:
            pool.put(connection)
        connection.end()


class UpstreamContext:
    """What the gateway knows of an upstream and counts there. It outlives a reload, unless the upstream is another."""

    def __init__(self, name: str, said: LogLimit) -> None:
        self.server = ServerKey(name, next(_numbers))
        self.state = UpstreamHealth(name, time, said)
        self.distrusted_until = 0.0
        self.slots = Capacity(0)  # for requests at one time: `requests_max` of them
        self.cors = Cors()
        self.drift = IdentityDrift()


@dataclass(eq=False)
class Pool:
    """The connections to one upstream. `on_answer` gets the seconds from each request to the beginning of its response.

    `context` is that of the pool before a reload, where there is one.
    """

    config: Upstream
    limits: Limits
    buffers: Buffers
    links: Links  # shared by all pools
    on_answer: Callable[[float], None]
    heads: HeadCache[ResponseHead]  # of responses that came before
    context: UpstreamContext
    dialer: Dialer
    clients: int = 0  # requests of clients that have not ended
    _is_stopped: bool = False  # for good: a connection that is given back is closed

    def __post_init__(self) -> None:
        self.state = self.context.state
        self.context.slots.resize(self.config.requests_max)
        self.hint = "" if self.dialer.tls or self.config.socket else ": is it https?"
        self.active: set[UpstreamConnection] = set()
        self._idle: list[UpstreamConnection] = []
        self.loop = asyncio.get_running_loop()

    async def connection(self, fresh: bool) -> UpstreamConnection:
        """A connection that nobody uses: the one idle for the shortest time, or a new one."""
        while self._idle and not fresh:
            connection = self._idle.pop()
            idle_s = self.loop.time() - connection.idle_since
            if idle_s < self.config.idle_timeout and not connection.is_stale():
                return connection
            try:
                await _arrivals()  # unasked bytes may be among them: then `distrust` is called
            finally:
                connection.close()
        try:
            connection = await self.dialer.connect(lambda: UpstreamConnection(self))
        except TimeoutError:
            why = f"no connection to the upstream at {self.dialer.where} within {self.config.connect_timeout:g} s"
            self.state.silent(why)
            raise UpstreamTimeout(why) from None
        except OSError as error:
            why = f"the upstream at {self.dialer.where} cannot be reached: {unreachable(error, 'tls.ca')}"
            self.state.silent(why)
            raise UpstreamUnreachable(why) from None
        self.links.opened[connection.link] = connection
        return connection

    def put(self, connection: UpstreamConnection) -> None:
        connection.idle_since = self.loop.time()
        is_old = connection.idle_since - connection.made_at > _AGE_MAX_S
        if self._is_stopped or is_old or connection.idle_since < self.context.distrusted_until:
            connection.close()
        else:
            self._idle.append(connection)

    def distrust(self) -> None:
        """The upstream has sent what nobody asked for: for a while each connection to it serves one exchange."""
        now = self.loop.time()
        if now >= self.context.distrusted_until:
            log.warning("the upstream sent what nobody asked for", extra={"upstream": self.config.name})
        self.context.distrusted_until = now + _DISTRUST_S
        self.close()

    def sweep(self, now: float) -> None:
        """Time out exchanges that are late or stand still inside a message (DESIGN 7.9). Close idle connections."""
        for connection in list(self.active):
            if connection.moved or connection.is_paused:  # while it is not read, it cannot send
                connection.moved, connection.still_since = False, now
            if now > connection.deadline:
                connection.give_up(UpstreamTimeout(f"no answer from the upstream within {connection.timeout_s:g} s"))
            elif now - connection.still_since > self.limits.stall_timeout:
                connection.still_since = now
                if connection.is_inside:
                    why = f"nothing more of the upstream's answer for {self.limits.stall_timeout:g} s"
                    connection.give_up(UpstreamTimeout(why))
        while self._idle and (now - self._idle[0].idle_since >= self.config.idle_timeout or self._idle[0].lost):
            self._idle.pop(0).close()

    @property
    def is_empty(self) -> bool:
        """Whether it has no connection left, and no request that may yet need one: some wait (DESIGN 5.8)."""
        return not (self.clients or self.active or self._idle)

    def stop(self) -> None:
        """Close idle connections, as the process ends, without TLS's end; those in use close when they come back."""
        self._is_stopped = True
        for connection in self._idle:
            if connection.transport is not None and self.config.url.scheme == "https":
                connection.transport.abort()
        self.close()

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()


async def _arrivals() -> None:
    """What has arrived on any connection is read meanwhile: the event loop takes two turns for it."""
    for _ in range(2):
        await asyncio.sleep(0)
