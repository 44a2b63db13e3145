"""One exchange of a client: its request as it came, and its response. No other file writes a response.

In: a request's head and body; a status, header fields and pieces of a body. Out: the response's bytes.
Always: keep-alive, `Connection: close`, HTTP/1.0, HEAD and chunks are decided in `begin`, for every response. A
response without an `end` cuts the client's connection (DESIGN 3.5).

    begin    the head, which goes out with the next flush
    send     a piece of the body, likewise
    flush    write what was sent, now
    end      the response is whole
"""

from collections.abc import Iterable
from typing import Final

from gateway.mcp import jsonrpc
from gateway.transport import http1
from gateway.transport.body import NO_TRAILERS, Body, Framing, chunk, last_chunk
from gateway.transport.buffers import SMALL_BYTES_MAX, Account
from gateway.transport.headers import Headers
from gateway.transport.wire import ClientWire

_ERROR: Final = b'"error"'
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class ClientGone(Exception):
    """The client left before its request was whole."""


class Exchange:
    """One request of a client, and its response."""

    __slots__ = (
        "_framing", "_unwritten", "account", "authenticates", "body", "connection", "continued", "error_code",
        "finished", "headers", "keep_alive", "kept_bytes", "method", "minor", "started", "status", "streams", "taken",
        "target", "task_id", "waits_for_news",
    )  # fmt: skip

    def __init__(self, connection: ClientWire, head: http1.Head) -> None:
        self.connection = connection
        self.method = head.method
        self.target = head.target
        self.minor = head.minor  # of the HTTP version: 1, or 0 for a client that knows neither chunks nor 1xx
        self.headers = head.headers
        self.body = Body(connection)
        self.account: Account | None = None  # of a large body that is read to be inspected
        self.taken = b""  # what was read of the body before it goes up
        self.kept_bytes = 0  # of a large body, until the exchange ends, if they are many
        self.waits_for_news = False  # the response may take any time: a GET stream, `tasks/result`
        self.authenticates = False  # the request carries credentials that authenticate its connection (pool.py)
        self.keep_alive = head.keep_alive
        self.continued = False  # the client was told to go on and send its body
        self.status = 0  # of the final response, once there is one
        self.error_code: int | None = None  # of the JSON-RPC error in the response
        self.task_id: str | None = None  # of the task that the response created
        self.started = False  # something of the final response was written
        self.finished = False  # all of the final response was written
        self.streams = False  # the response is an event stream without an end to wait for
        self._framing: Framing = "none"
        self._unwritten = b""

    # ---- the response ----

    def begin(self, status: int, reason: bytes, headers: Headers, framing: Framing) -> None:
        """Prepare the response's head. With the framing "length" the headers state the length.

        As long as nothing was written, another head may take its place.
        """
        self.status = status
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

    def send(self, piece: bytes) -> None:
        """Add a piece to the body."""
        if self._framing == "chunked":
            self._unwritten += chunk(piece)
        elif self._framing != "none":
            self._unwritten += piece

    def flush(self) -> None:
        """Write what was sent."""
        if not self._unwritten:
            return
        if not self.started:
            self.started = True
            if not self.body.complete:
                self.connection.expect_body()
        self.connection.write(self._unwritten)
        self._unwritten = b""

    async def drain(self) -> None:
        """Wait until the client has taken enough of what was written."""
        await self.connection.drain()

    def end(self, trailers: Headers = NO_TRAILERS) -> None:
        """Write the rest of the response, which is then whole."""
        if self._framing == "chunked":
            self._unwritten += last_chunk(trailers)
        self.flush()
        self.finished = True

    def respond(self, status: int, reason: bytes, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """Send a whole response of the gateway's own."""
        fields = Headers(headers)
        if status != 204:
            fields = fields.with_value(b"content-length", b"%d" % len(body))
        self.begin(status, reason, fields, "none" if status == 204 else "length")
        self.send(body)
        self.end()

    @property
    def would_look_whole(self) -> bool:
        """Whether an unfinished response would look whole if the connection ended now without a reset."""
        return self._framing == "close" and self.started and not self.finished

    def write_informational(self, status: int, reason: bytes, headers: Headers) -> None:
        """Send a 1xx response, unless the client does not know 1xx responses or was already told to go on."""
        if self.minor and not self.started and not (status == 100 and self.continued):
            self.continued |= status == 100
            self.connection.expect_body()
            self.connection.write(_head(status, reason, headers))

    # ---- the request's body ----

    async def read_body(self, bytes_max: int) -> bool:
        """Read the body into `taken`. False if it is larger than `bytes_max`: then `taken` is its beginning.

        Beyond `SMALL_BYTES_MAX` there must first be room for the whole body, because half-read bodies would wait for
        each other for ever. Raises Overloaded if no room comes free.
        """
        if not self.body.complete and not self.continued and self.minor and self.expects_continue:
            self.continued = True
            self.connection.expect_body()
            self.connection.write(CONTINUE)
        self.taken = self.body.take() if self.body.complete else await self._read_as_it_comes(bytes_max)
        size = len(self.taken)
        if self.account is None and size > SMALL_BYTES_MAX:
            self.account = Account(self.connection.buffers)
        if self.account is not None:
            self.account.set(size)
        return size <= bytes_max

    async def _read_as_it_comes(self, bytes_max: int) -> bytes:
        pieces, size = list[bytes](), 0
        while piece := await self.body.read():
            pieces.append(piece)
            size += len(piece)
            if size > SMALL_BYTES_MAX and self.account is None and not self.body.complete:
                await self._reserve(max(size, min(bytes_max, int(self.headers.get(b"content-length") or bytes_max))))
            if size > bytes_max:
                break
        return b"".join(pieces)

    async def _reserve(self, size_bytes: int) -> None:
        self.account = Account(self.connection.buffers)
        await self.account.reserve(size_bytes, self.connection.room_timeout_s)

    def glance(self, piece: bytes) -> bytes:
        """Return a piece of a JSON body as it is. If it is a whole small message, note its JSON-RPC error."""
        if _ERROR in piece and len(piece) <= SMALL_BYTES_MAX:
            message = jsonrpc.parse(piece)
            self.error_code = jsonrpc.error_code(message) if message is not None else None
        return piece

    def take(self) -> bytes:
        """The part of the body that was read. The exchange no longer keeps it."""
        data, self.taken = self.taken, b""
        return data

    def release(self) -> None:
        """The part of the body that was read has gone up, and is no longer held but for `kept_bytes`."""
        if self.account is not None:
            self.account.set(self.kept_bytes)

    def close(self) -> None:
        """Nobody handles the exchange any more: it holds nothing."""
        self.body.end()
        if self.account is not None:
            self.account.close()

    @property
    def waits(self) -> bool:
        """Whether the client may be waiting to be told to go on and send its body (RFC 9110, 10.1.1)."""
        if self.continued or self.body.began or self.body.complete:
            return False
        return bool(self.minor) and self.expects_continue

    @property
    def expects_continue(self) -> bool:
        """Whether the request says `Expect: 100-continue`. From HTTP/1.0 that does not count (RFC 9110, 10.1.1)."""
        return b"expect" in self.headers.by_name and b"100-continue" in self.headers.tokens(b"expect")


def write_refusal(connection: ClientWire, refused: http1.Refusal) -> None:
    """Write the response to bytes that are no request."""
    exchange = Exchange(connection, http1.Head(b"", b"", 1, Headers()))  # stands in for the request
    exchange.keep_alive = False
    body = jsonrpc.error(b"", jsonrpc.INVALID_REQUEST, f"{refused.reason.decode()}: {refused}")
    exchange.respond(refused.status, refused.reason, [(b"Content-Type", b"application/json")], body)


def _head(status: int, reason: bytes, headers: Headers) -> bytes:
    return b"HTTP/1.1 %d %b\r\n%b\r\n" % (status, reason, headers.block())
