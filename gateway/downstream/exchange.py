"""One exchange of a client: its request, its response, and what is noted of them on the way.

In: a head, with the body of the request as it comes; then a status, header fields and pieces of a body. Out: the
response's bytes. No other file writes one. Always: keep-alive, `Connection: close`, HTTP/1.0, HEAD and chunks are
decided in `begin`, for every response. A response without an `end` cuts the client's connection (DESIGN 3.5).
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import lru_cache
from time import time
from typing import Any, Final

from gateway.errors import GatewayError
from gateway.http.header_fields import DIGESTS, NO_FIELDS, Headers
from gateway.http.request_parser import Head, Refusal
from gateway.http.response_parser import Framing
from gateway.mcp import jsonrpc
from gateway.mcp.client_message import ClientMessage
from gateway.transport.base_connection import ClientWire
from gateway.transport.body_stream import Body, Response, chunk, last_chunk
from gateway.transport.memory_budget import SMALL_BYTES_MAX, Reservation

log = logging.getLogger("taskgate.relay")

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class ClientGone(Exception):
    """The client left before its request was whole."""


@dataclass(eq=False, slots=True)
class ClientRequest:
    connection: ClientWire
    head: Head
    body: Body = field(init=False)
    up_bytes: int = field(init=False)  # the length that goes up; below 0 for a body in chunks
    kept_bytes: int = field(init=False)  # of head and body, until the exchange ends, if they are many
    reservation: Reservation = field(init=False)  # of a large head, and of a large body that is read to be inspected
    taken: bytes = b""  # what was read of the body before it goes up
    is_cut: bool = False  # the client left before it was whole
    is_edited: bool = False  # other bytes go up than came
    refused_trailers: frozenset[bytes] = frozenset()  # names in lower case, besides those that never go up
    continued: bool = False  # the client was told to go on and send its body

    def __post_init__(self) -> None:
        self.body = Body(self.connection)
        self.up_bytes, self.kept_bytes = self.head.body_bytes, self.head.held_bytes
        self.reservation = Reservation(self.connection.buffers)
        if self.kept_bytes:
            self.reservation.set(self.kept_bytes)

    async def read_body(self, may_carry: bool, bytes_max: int) -> bytes:
        """The body that may be a message, which is read into `taken`. Empty if it is not read.

        It is read if it may carry one, of `bytes_max` at most; else `taken` is its beginning. Beyond `SMALL_BYTES_MAX`
        there must first be room for the whole body, because half-read bodies would wait for each other for ever. Raises
        Overloaded if no room comes free.
        """
        if self.kept_bytes:  # the head is large
            self.reservation.check(self.kept_bytes)
        if self.head.body_bytes > bytes_max or not may_carry:
            self.taken = self.body.take()
            return b""
        if not (is_whole := self.body.is_whole) and not self.continued and self.expects_continue:
            self.continued = True
            self.connection.expect_body()
            self.connection.write(_CONTINUE)
        self.taken = self.body.take() if is_whole else await self._read_as_it_comes(bytes_max)
        size = len(self.taken)
        if self.reservation.held_bytes or size > SMALL_BYTES_MAX:
            self.reservation.set(self.kept_bytes + size)
        return self.taken if size <= bytes_max else b""

    async def _read_as_it_comes(self, bytes_max: int) -> bytes:
        """The body as far as `bytes_max`, and the piece that goes beyond. Raises Overloaded."""
        pieces, size, has_room = list[bytes](), 0, False
        while piece := await self.body.read():
            pieces.append(piece)
            size += len(piece)
            if size > SMALL_BYTES_MAX and not has_room and not self.body.is_whole:
                has_room = True
                stated = self.head.body_bytes if self.head.body_bytes >= 0 else bytes_max
                whole = self.kept_bytes + max(size, min(bytes_max, stated))
                await self.reservation.reserve(whole, self.connection.limits.request_timeout)
            if size > bytes_max:
                break
        return b"".join(pieces)

    def replace_body(self, body: bytes) -> None:
        """Another body goes up than came, unless it is the same object; it states its own length."""
        if body is not self.taken:
            self.taken, self.is_edited = body, True
            self.up_bytes = len(body) if self.up_bytes >= 0 else self.up_bytes

    def upward(self, head: bytes) -> tuple[bytes, bytes]:
        """The bytes of a request that was read whole, behind `head`: in two parts if joining them would copy much."""
        body, self.taken = self.taken, b""
        if self.up_bytes < 0:
            return head + chunk(body) + self.last_chunk, b""
        self.check_length(len(body))
        return (head, body) if len(body) > SMALL_BYTES_MAX else (head + body, b"")

    @property
    def last_chunk(self) -> bytes:
        refused = self.refused_trailers | DIGESTS if self.is_edited else self.refused_trailers
        return last_chunk(self.body.trailers, refused)

    def check_length(self, sent_bytes: int) -> None:
        """Raise GatewayError for another length than the head says: the next client's request would lose the rest."""
        if sent_bytes != self.up_bytes:
            log.error("a body differs from its length", extra={"bytes": sent_bytes, "content_length": self.up_bytes})
            raise GatewayError(f"the body has {sent_bytes} bytes, its Content-Length says {self.up_bytes}")

    def release(self) -> None:
        """The part of the body that was read has gone up, and is no longer held but for `kept_bytes`."""
        if self.reservation.held_bytes:
            self.reservation.set(self.kept_bytes)

    def hold(self, size_bytes: int) -> None:
        """Hold so many bytes of an answer as well, until nobody handles the exchange any more. Raises Overloaded."""
        if self.connection.transport is not None:  # else the client has left, and the reservation is closed
            self.reservation.grow(len(self.taken) + size_bytes)

    def close(self) -> None:
        """Nobody handles the exchange any more: it holds nothing."""
        self.body.drop()
        self.reservation.close()

    @property
    def waits(self) -> bool:
        """Whether the client may be waiting to be told to go on and send its body (RFC 9110, 10.1.1)."""
        return not self.continued and not self.body.began and self.body.state == "ARRIVING" and self.expects_continue

    @property
    def expects_continue(self) -> bool:
        """Whether it says `Expect: 100-continue`. From HTTP/1.0 that does not count (RFC 9110, 10.1.1)."""
        headers = self.head.headers
        return b"expect" in headers.by_name and self.head.minor == 1 and b"100-continue" in headers.tokens(b"expect")


@dataclass(eq=False, slots=True)
class ClientResponse:
    _request: ClientRequest
    keep_alive: bool
    status: int = 0  # of the final response, once there is one
    is_edited: bool = False  # other bytes go down than came, or may
    started: bool = False  # something of the final response was written
    finished: bool = False  # all of the final response was written
    streams: bool = False  # it is an event stream without an end to wait for
    _framing: Framing = "none"
    _unwritten: bytes = b""

    def pass_on(self, response: Response) -> None:
        """Prepare the head of an upstream's response: one that came before goes out as it did then."""
        head, request = response.head, self._request
        is_usual = not response.is_changed and not self.is_edited and self.keep_alive
        is_usual &= bool(request.head.minor) and request.head.method != b"HEAD" and not request.connection.is_ending
        passed = head.passed if is_usual else None
        if passed is not None and (before := passed.of(response.values)):
            self.status, self._framing, self._unwritten = head.status, response.framing, before
            return
        self.begin(head.status, head.reason, response.headers.end_to_end(), response.framing)
        if passed is not None:
            passed.learn(self._unwritten, response.values)

    def begin(self, status: int, reason: bytes, headers: Headers, framing: Framing) -> None:
        """Prepare the head; until something is written, another may take its place."""
        self.status = status
        if self.is_edited:
            headers = headers.without_digests()
        if not self._request.head.minor:  # HTTP/1.0 knows no Transfer-Encoding (RFC 9112, 6.1)
            framing = "close" if framing == "chunked" else framing
            headers = headers.without(b"transfer-encoding")
        elif framing == "chunked" and b"transfer-encoding" not in headers.by_name:
            headers = headers.with_field(b"Transfer-Encoding", b"chunked")
        self._framing = "none" if self._request.head.method == b"HEAD" else framing
        self.keep_alive &= framing != "close" and not self._request.connection.is_ending
        if not self.keep_alive:
            headers = headers.with_field(b"Connection", b"close")
        self._unwritten = _head(status, reason, headers)

    def send(self, piece: bytes) -> None:
        if self._framing == "chunked":
            self._unwritten += chunk(piece)
        elif self._framing != "none":
            self._unwritten += piece

    def flush(self) -> None:
        if not self._unwritten:
            return
        if not self.started:
            self.started = True
            if not self._request.body.is_whole:
                self._request.connection.expect_body()
        self._request.connection.write(self._unwritten)
        self._unwritten = b""

    def end(self, trailers: Headers = NO_FIELDS) -> None:
        if self._framing == "chunked":
            self._unwritten += last_chunk(trailers, DIGESTS if self.is_edited else ())
        self.flush()
        self.finished = True

    def begin_own(
        self, status: int, reason: bytes, headers: Iterable[tuple[bytes, bytes]], framing: Framing = "chunked"
    ) -> None:
        """As `begin`, for a response of the gateway's own: it says when it was made (RFC 9110, 6.6.1)."""
        self.begin(status, reason, Headers([*headers, (b"Date", _date(int(time())))]), framing)

    def respond(self, status: int, reason: bytes, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        self.begin_own(status, reason, [*headers, (b"Content-Length", b"%d" % len(body))], "length")
        self.send(body)
        self.end()

    @property
    def would_look_whole(self) -> bool:
        """Whether it is unfinished, and would look whole if the connection ended now without a reset."""
        return self._framing == "close" and self.started and not self.finished


@dataclass(eq=False, slots=True)
class Exchange:
    connection: ClientWire
    request: ClientRequest
    response: ClientResponse
    cost: Any = None  # what the request takes of its client's bucket (tasks/rate_and_ttl_guards.py)
    waits_for_news: bool = False  # the response may take any time: a GET stream, `tasks/result`
    authenticates: bool = False  # request or response is a part of the authentication of a connection
    error_code: int | None = None  # of the JSON-RPC error in the response
    location: bytes = b""  # where the upstream redirects to, in its own words
    task_id: str | None = None  # of the task that the response created

    @classmethod
    def of(cls, connection: ClientWire, head: Head) -> "Exchange":
        request = ClientRequest(connection, head)
        return cls(connection, request, ClientResponse(request, head.keep_alive))

    def method_of(self, message: ClientMessage | None) -> str:
        """The method of its message, which is None where nothing was read; else that of HTTP."""
        return (None if message is None else message.method) or self.request.head.method.decode()

    def relayed(self, message: ClientMessage | None) -> ClientMessage | None:
        """It is relayed: what is still needed of its message."""
        self.waits_for_news = self.request.head.method == b"GET" or (
            message is not None and message.method == "tasks/result"
        )
        if message is None:
            return None
        size_bytes = len(message.id) + len(message.method or "")
        self.request.kept_bytes += size_bytes if size_bytes > SMALL_BYTES_MAX else 0
        return message.passed()

    def note_error(self, piece: bytes) -> bytes:
        """Return a piece of a JSON body as it is. If it is a whole small message, note its JSON-RPC error."""
        if b'"error"' in piece and len(piece) <= SMALL_BYTES_MAX:
            message = jsonrpc.parse(piece)
            self.error_code = jsonrpc.code_of(message.error) if message is not None else None
        return piece

    def inform(self, status: int, reason: bytes, headers: Headers) -> None:
        """Send a 1xx response, unless the client knows none or was told to go on before."""
        request = self.request
        if request.head.minor and not self.response.started and not (status == 100 and request.continued):
            request.continued |= status == 100
            self.connection.expect_body()
            self.connection.write(_head(status, reason, headers))


@lru_cache(maxsize=1)
def _date(unix_s: int) -> bytes:
    return formatdate(unix_s, usegmt=True).encode()


def write_refusal(connection: ClientWire, refused: Refusal) -> None:
    """Write the response to bytes that are no request."""
    request = ClientRequest(connection, Head(b"", b"", 1, Headers(), 0, 0, False))
    response = ClientResponse(request, False)
    body = jsonrpc.error(b"", jsonrpc.INVALID_REQUEST, f"{refused.reason.decode()}: {refused}")
    response.respond(refused.status, refused.reason, [(b"Content-Type", b"application/json")], body)


def _head(status: int, reason: bytes, headers: Headers) -> bytes:
    return b"HTTP/1.1 %d %b\r\n%b\r\n" % (status, reason, headers.block())
