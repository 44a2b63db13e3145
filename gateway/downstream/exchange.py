"""One exchange of a client: its request as it came, and its response. No other file writes a response.

In: a request's head and body; a status, header fields and pieces of a body. Out: the response's bytes.
Always: keep-alive, `Connection: close`, HTTP/1.0, HEAD and chunks are decided in `begin`, for every response. A
response without an `end` cuts the client's connection (DESIGN 3.5).
"""

from collections.abc import Awaitable, Container, Iterable
from email.utils import formatdate
from functools import lru_cache
from time import time
from typing import Any, Final

from gateway.http import requests
from gateway.http.fields import DIGESTS, Headers
from gateway.http.responses import Framing
from gateway.mcp import jsonrpc
from gateway.transport.body import NO_TRAILERS, Body, BodyState, chunk, last_chunk
from gateway.transport.memory import SMALL_BYTES_MAX, Reservation
from gateway.transport.wire import ClientWire

_ERROR: Final = b'"error"'
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class ClientGone(Exception):
    """The client left before its request was whole."""


class Exchange:
    __slots__ = (
        "_framing",
        "_unwritten",
        "authenticates",
        "body",
        "connection",
        "continued",
        "edits_down",
        "edits_up",
        "error_code",
        "finished",
        "head",
        "keep_alive",
        "kept_bytes",
        "location",
        "method",
        "minor",
        "refused_trailers",
        "reservation",
        "started",
        "status",
        "streams",
        "taken",
        "target",
        "task_id",
        "traceparent",
        "up_bytes",
        "waits_for_news",
        "way",
    )  # fmt: skip

    def __init__(self, connection: ClientWire, head: requests.Head) -> None:
        self.connection = connection
        self.method = head.method
        self.target = head.target
        self.minor = head.minor  # of the HTTP version: 1, or 0 for a client that knows neither chunks nor 1xx
        self.head = head
        # What follows from the head (caller.py). It is not kept in the head, which would be a cycle.
        self.way: Any = head.remembered
        self.body = Body(connection)
        self.reservation: Reservation | None = None  # of a large head, and of a large body that is read to be inspected
        self.taken = b""  # what was read of the body before it goes up
        self.up_bytes = head.body_bytes  # the length that goes up; below 0 for a body in chunks
        self.refused_trailers: Container[bytes] = ()  # names in lower case, besides those that never go up
        self.kept_bytes = head.held_bytes  # of head and body, until the exchange ends, if they are many
        if self.kept_bytes:
            self.reservation = Reservation(connection.buffers)
            self.reservation.set(self.kept_bytes)
        self.waits_for_news = False  # the response may take any time: a GET stream, `tasks/result`
        self.authenticates = False  # request or response is a part of the authentication of a connection
        self.edits_up = self.edits_down = False  # other bytes go on than came, or may: of the request, of the response
        self.keep_alive = head.keep_alive
        self.continued = False  # the client was told to go on and send its body
        self.status = 0  # of the final response, once there is one
        self.error_code: int | None = None  # of the JSON-RPC error in the response
        self.location = b""  # where the upstream redirects to, in its own words
        self.task_id: str | None = None  # of the task that the response created
        self.traceparent = ""  # of the message, if the message is not kept
        self.started = False  # something of the final response was written
        self.finished = False  # all of the final response was written
        self.streams = False  # the response is an event stream without an end to wait for
        self._framing: Framing = "none"
        self._unwritten = b""

    @property
    def headers(self) -> Headers:
        return self.head.headers

    # ---- the response ----

    @property
    def is_usual(self) -> bool:
        """Whether the client gets a response as most do."""
        is_plain = bool(self.minor) and self.method != b"HEAD" and not self.edits_down
        return is_plain and self.keep_alive and not self.connection.is_ending

    def begin_as(self, status: int, framing: Framing, written: bytes) -> None:
        """Prepare a head that `begin` has written before, for a client that `is_usual`."""
        self.status, self._framing, self._unwritten = status, framing, written

    def begin(self, status: int, reason: bytes, headers: Headers, framing: Framing) -> bytes:
        """Prepare the response's head, and return it; until something is written, another may take its place."""
        self.status = status
        if self.edits_down:
            headers = headers.without_digests()
        if not self.minor:  # HTTP/1.0 knows no Transfer-Encoding (RFC 9112, 6.1)
            framing = "close" if framing == "chunked" else framing
            headers = headers.without(b"transfer-encoding")
        elif framing == "chunked" and b"transfer-encoding" not in headers.by_name:
            headers = headers.with_field(b"Transfer-Encoding", b"chunked")
        self._framing = "none" if self.method == b"HEAD" else framing
        self.keep_alive &= framing != "close" and not self.connection.is_ending
        if not self.keep_alive:
            headers = headers.with_field(b"Connection", b"close")
        self._unwritten = _head(status, reason, headers)
        return self._unwritten

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
            if not self.body.is_whole:
                self.connection.expect_body()
        self.connection.write(self._unwritten)
        self._unwritten = b""

    def end(self, trailers: Headers = NO_TRAILERS) -> None:
        if self._framing == "chunked":
            self._unwritten += last_chunk(trailers, DIGESTS if self.edits_down else ())
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
        """Whether an unfinished response would look whole if the connection ended now without a reset."""
        return self._framing == "close" and self.started and not self.finished

    def inform(self, status: int, reason: bytes, headers: Headers) -> bool:
        """Send a 1xx response, unless the client knows none or was told to go on before. True if it is full."""
        if self.minor and not self.started and not (status == 100 and self.continued):
            self.continued |= status == 100
            self.connection.expect_body()
            self.connection.write(_head(status, reason, headers))
        return self.connection.is_full

    def drain(self) -> Awaitable[None]:
        """Return once the client takes more."""
        return self.connection.drain()

    # ---- the request ----

    async def read_body(self, bytes_max: int) -> bool:
        """Read the body into `taken`. False if it is larger than `bytes_max`: then `taken` is its beginning.

        Beyond `SMALL_BYTES_MAX` there must first be room for the whole body, because half-read bodies would wait for
        each other for ever. Raises Overloaded if no room comes free.
        """
        if not self.body.is_whole and not self.continued and self.minor and self.expects_continue:
            self.continued = True
            self.connection.expect_body()
            self.connection.write(CONTINUE)
        self.taken = self.body.take() if self.body.is_whole else await _read_as_it_comes(self, bytes_max)
        size = len(self.taken)
        if self.reservation is None and size > SMALL_BYTES_MAX:
            self.reservation = Reservation(self.connection.buffers)
        if self.reservation is not None:
            self.reservation.set(self.kept_bytes + size)
        return size <= bytes_max

    def glance(self, piece: bytes) -> bytes:
        """Return a piece of a JSON body as it is. If it is a whole small message, note its JSON-RPC error."""
        if _ERROR in piece and len(piece) <= SMALL_BYTES_MAX:
            message = jsonrpc.parse(piece)
            self.error_code = jsonrpc.error_code(message) if message is not None else None
        return piece

    def replace_body(self, body: bytes) -> None:
        """Another body goes up than came, unless it is the same object; it states its own length."""
        if body is not self.taken:
            self.taken, self.edits_up = body, True
            self.up_bytes = len(body) if self.up_bytes >= 0 else self.up_bytes

    def take(self) -> bytes:
        """The part of the body that was read. The exchange no longer keeps it."""
        data, self.taken = self.taken, b""
        return data

    def release(self) -> None:
        """The part of the body that was read has gone up, and is no longer held but for `kept_bytes`."""
        if self.reservation is not None:
            self.reservation.set(self.kept_bytes)

    def hold(self, size_bytes: int) -> None:
        """Hold so many bytes of an answer as well, until nobody handles the exchange any more. Raises Overloaded."""
        if self.connection.transport is None:
            return  # the client has left, and the reservation is closed
        if self.reservation is None:
            self.reservation = Reservation(self.connection.buffers)
        self.reservation.grow(len(self.taken) + size_bytes)

    def close(self) -> None:
        """Nobody handles the exchange any more: it holds nothing."""
        self.body.drop()
        if self.reservation is not None:
            self.reservation.close()

    @property
    def waits(self) -> bool:
        """Whether the client may be waiting to be told to go on and send its body (RFC 9110, 10.1.1)."""
        if self.continued or self.body.began or self.body.state is not BodyState.ARRIVING:
            return False
        return bool(self.minor) and self.expects_continue

    @property
    def expects_continue(self) -> bool:
        """Whether the request says `Expect: 100-continue`. From HTTP/1.0 that does not count (RFC 9110, 10.1.1)."""
        return b"expect" in self.headers.by_name and b"100-continue" in self.headers.tokens(b"expect")


@lru_cache(maxsize=1)
def _date(unix_s: int) -> bytes:
    return formatdate(unix_s, usegmt=True).encode()


async def _read_as_it_comes(exchange: Exchange, bytes_max: int) -> bytes:
    """The body of a request as far as `bytes_max`, and the piece that goes beyond. Raises Overloaded."""
    pieces, size, has_room = list[bytes](), 0, False
    while piece := await exchange.body.read():
        pieces.append(piece)
        size += len(piece)
        if size > SMALL_BYTES_MAX and not has_room and not exchange.body.is_whole:
            has_room = True
            stated = int(exchange.headers.get(b"content-length") or bytes_max)
            exchange.reservation = reservation = exchange.reservation or Reservation(exchange.connection.buffers)
            whole = exchange.kept_bytes + max(size, min(bytes_max, stated))
            await reservation.reserve(whole, exchange.connection.room_timeout_s)
        if size > bytes_max:
            break
    return b"".join(pieces)


def write_refusal(connection: ClientWire, refused: requests.Refusal) -> None:
    """Write the response to bytes that are no request."""
    exchange = Exchange(connection, requests.Head(b"", b"", 1, Headers()))  # stands in for the request
    exchange.keep_alive = False
    body = jsonrpc.error(b"", jsonrpc.INVALID_REQUEST, f"{refused.reason.decode()}: {refused}")
    exchange.respond(refused.status, refused.reason, [(b"Content-Type", b"application/json")], body)


def _head(status: int, reason: bytes, headers: Headers) -> bytes:
    return b"HTTP/1.1 %d %b\r\n%b\r\n" % (status, reason, headers.block())
