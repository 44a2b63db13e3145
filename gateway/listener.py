"""The client's side: connections that turn bytes into exchanges, one at a time and in order.

In: the bytes of HTTP/1.x requests, read by llhttp. Out: an `Exchange` for each, given to the handler in a task of its
own, which writes the response's bytes. Always: an exchange that ends without a whole response cuts the connection
(DESIGN 3.5); a client that leaves ends its handler at once (DESIGN 3.6); whatever a connection holds is bounded.

Why not aiohttp's server: it is half as fast here, and version 3.14.5 puts the last trailer of a chunked request in
front of the next request's headers, where it may pass for another user's (tests/test_listener.py has that case).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import httptools

from gateway.config import Limits
from gateway.core import jsonrpc
from gateway.core.headers import Headers
from gateway.wire import Body, Wire

log = logging.getLogger("taskgate.listener")

_LINGER_S: Final = 10.0
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class Exchange:
    """One request of a client, and the way to write its response.

    The response is what is passed to `write`, bytes of HTTP; `finish` says that it is whole.
    """

    __slots__ = (
        "body", "connection", "continued", "finished", "headers", "keep_alive", "method", "minor", "started", "target",
    )  # fmt: skip

    def __init__(self, connection: "Connection", method: bytes, target: bytes, minor: int, headers: Headers) -> None:
        self.connection = connection
        self.method = method
        self.target = target
        self.minor = minor  # of the HTTP version: 1, or 0 for a client that knows neither chunks nor 1xx
        self.headers = headers
        self.body = Body(connection)
        self.keep_alive = True
        self.started = False  # something of the final response was written
        self.continued = False  # the client was told to go on and send its body
        self.finished = False

    def write(self, data: bytes) -> None:
        """Send bytes of the response."""
        self.started = True
        self.connection.write(data)

    def write_informational(self, status: int, reason: bytes, headers: Headers) -> None:
        """Send a 1xx response, unless the client does not know them or was already told to go on."""
        if self.minor and not self.started and not (status == 100 and self.continued):
            self.continued |= status == 100
            self.connection.write(b"HTTP/1.1 %d %b\r\n%b\r\n" % (status, reason, headers.block()))

    async def drain(self) -> None:
        """Wait until the client has taken enough of what was written."""
        await self.connection.drain()

    def finish(self) -> None:
        """The response is whole."""
        self.finished = True

    def respond(self, status: int, reason: bytes, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """Send a whole response of the gateway's own."""
        fields = Headers(headers)
        if status != 204:
            fields = fields.with_value(b"content-length", b"%d" % len(body))
        if not self.keep_alive:
            fields.add(b"Connection", b"close")
        head = b"HTTP/1.1 %d %b\r\n%b\r\n" % (status, reason, fields.block())
        self.write(head if self.method == b"HEAD" else head + body)
        self.finish()

    async def read_body(self, bytes_max: int) -> tuple[bytes, bool]:
        """The body, and True; or its beginning, and False, if it is larger than `bytes_max`."""
        if not self.body.complete and not self.continued and self.minor and self.expects_continue:
            self.continued = True
            self.connection.write(CONTINUE)
        if self.body.complete:
            data = self.body.take()
            return data, len(data) <= bytes_max
        pieces, size = [], 0
        while piece := await self.body.read():
            pieces.append(piece)
            size += len(piece)
            if size > bytes_max:
                return b"".join(pieces), False
        return b"".join(pieces), True

    @property
    def expects_continue(self) -> bool:
        return b"100-continue" in self.headers.tokens(b"expect")


class ClientGone(Exception):
    """The client left before its request was whole."""


class Listener:
    """All connections of clients."""

    def __init__(self, handle: Callable[[Exchange], Awaitable[None]], limits: Limits) -> None:
        self.handle = handle
        self.limits = limits
        self.connections: set[Connection] = set()
        self.draining = False

    def connection(self) -> "Connection":
        """A protocol for one connection: the factory that the event loop's server calls."""
        return Connection(self, asyncio.get_running_loop())

    def sweep(self, now: float) -> None:
        """Close the connections that have been idle, or sending a request's head, for too long."""
        for connection in list(self.connections):
            if now > connection.deadline:
                connection.time_out()

    async def drain(self, timeout_s: float) -> None:
        """Let the answers in flight finish, for `timeout_s` at most, then close every connection."""
        self.draining = True
        for connection in list(self.connections):
            connection.close_when_idle()
        tasks = [c.task for c in self.connections if c.task is not None and not c.streaming]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)
        for connection in list(self.connections):
            connection.close()
        tasks = [c.task for c in self.connections if c.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)


class Connection(Wire):
    """One connection of a client."""

    def __init__(self, listener: Listener, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._listener = listener
        self._limits = listener.limits
        self.deadline = loop.time() + listener.limits.request_timeout
        self.task: asyncio.Task[None] | None = None
        self.streaming = False  # the response in flight is an event stream, which has no end to wait for
        self._queue: deque[Exchange] = deque()  # pipelined requests, of one read of the socket at most
        self._receiving: Exchange | None = None  # the request whose body is arriving
        self._closing = False
        self._lingering = False
        self._new_parser()
        self._in_head = False

    # ---- the transport ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._listener.connections.add(self)
        if len(self._listener.connections) > self._limits.connections_max:
            self._refuse(503, b"Service Unavailable", f"more than {self._limits.connections_max} connections")

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._listener.connections.discard(self)
        if self._receiving is not None:
            self._receiving.body.fail(ClientGone())
        if self.task is not None:
            self.task.cancel()
        self._queue.clear()

    def eof_received(self) -> bool:
        # The end of what a client sends cannot be told from its leaving, which must end a stream at once.
        return False

    def data_received(self, data: bytes) -> None:
        if self._closing and self._receiving is None:
            return
        try:
            self._feed(data)
        except httptools.HttpParserCallbackError:
            log.exception("a request could not be read")
            self.abort()
            return
        except httptools.HttpParserError as error:
            self._refuse(400, b"Bad Request", f"malformed HTTP: {error}")
            return
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > self._limits.header_bytes_max:
                self._refuse_head()

    def time_out(self) -> None:
        """The deadline has passed: silently if the connection is idle, with a status if a request has begun."""
        if self._in_head:
            self._refuse(408, b"Request Timeout", f"no whole request head within {self._limits.request_timeout:g} s")
        else:
            self.close()

    def close_when_idle(self) -> None:
        self._closing = True
        if self.task is None:
            self.close()

    # ---- the parser ----

    def _new_parser(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._resuming = False
        self._upgrade = False
        self._head_bytes = 0

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # llhttp takes what follows for another protocol; here it is the request's body (a gateway that removes
            # `Upgrade`, RFC 9110, 7.8). A new parser is told of the framing alone, and goes on from there.
            exchange = self._receiving
            assert exchange is not None
            self._new_parser()
            self._resuming = True
            framing = [f for f in exchange.headers if f[0].lower() in (b"content-length", b"transfer-encoding")]
            self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % Headers(framing).block())
            if rest := data[upgrade.args[0] :]:
                self._feed(rest)

    def on_message_begin(self) -> None:
        if not self._resuming:
            self._in_head = True
            self._target = b""
            self._headers: list[tuple[bytes, bytes]] = []
            self._trailers: list[tuple[bytes, bytes]] = []
            if self.task is None and not self._lingering:
                self.deadline = self.loop.time() + self._limits.request_timeout

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            self._headers.append((name, value))
        else:
            self._trailers.append((name, value))

    def on_headers_complete(self) -> None:
        if self._resuming:
            self._trailers.clear()
            return
        self._in_head = False
        self._head_bytes = 0
        headers = Headers(self._headers)
        if headers.size_bytes() + len(self._target) > self._limits.header_bytes_max:
            self._refuse_head()
            return
        version = self._parser.get_http_version()
        if version not in ("1.1", "1.0"):
            self._refuse(505, b"HTTP Version Not Supported", f"HTTP/{version}; HTTP/1.1 and HTTP/1.0 are")
            return
        method = self._parser.get_method()
        self._upgrade = self._parser.should_upgrade()
        if method == b"CONNECT":
            self._refuse(501, b"Not Implemented", "CONNECT")
            return
        exchange = Exchange(self, method, self._target, 1 if version == "1.1" else 0, headers)
        exchange.keep_alive = exchange.minor == 1 and b"close" not in headers.tokens(b"connection")
        self._receiving = exchange
        if self.task is None and not self._lingering:
            self._start(exchange)
        else:
            self._queue.append(exchange)
            if len(self._queue) == 1:
                self.hold_reading()

    def on_body(self, data: bytes) -> None:
        if self._receiving is not None:
            self._receiving.body.feed(data)

    def on_message_complete(self) -> None:
        if self._upgrade:
            return  # the head is complete; see _feed
        self._resuming = False
        if self._receiving is not None:
            self._receiving.body.finish(self._trailers)
            self._receiving = None
        if self._lingering:
            self._lingering = False
            self._next()

    # ---- exchanges ----

    def _start(self, exchange: Exchange) -> None:
        self.deadline = float("inf")
        self.task = self.loop.create_task(self._run(exchange))

    async def _run(self, exchange: Exchange) -> None:
        try:
            await self._listener.handle(exchange)
        except ClientGone:
            self.abort()
        except asyncio.CancelledError:
            self.abort()
        except Exception:
            log.exception("a request could not be handled", extra={"target": exchange.target.decode("latin-1")})
            self.abort()
        self.task = None
        self.streaming = False
        self._end(exchange)

    def _end(self, exchange: Exchange) -> None:
        if self.transport is None:
            return
        if not exchange.finished:
            self.abort()
        elif not exchange.keep_alive or (self._closing and not self._queue):
            self._close_gently(exchange)
        elif not exchange.body.complete:
            self._linger(exchange)
        else:
            self._next()

    def _linger(self, exchange: Exchange) -> None:
        """The response is out before the request was in: take in the rest, for a while, before the next one."""
        exchange.body.discard()
        self._lingering = True
        self.deadline = self.loop.time() + _LINGER_S

    def _close_gently(self, exchange: Exchange) -> None:
        # Closing while the client still sends would reset the connection and lose the response on its way.
        if exchange.body.complete:
            self.close()
        else:
            exchange.keep_alive = True
            self._closing = True
            self._linger(exchange)

    def _next(self) -> None:
        if self._queue:
            if len(self._queue) == 1:
                self.release_reading()
            self._start(self._queue.popleft())
        elif self._closing:
            self.close()
        else:
            self.deadline = self.loop.time() + self._limits.keepalive_timeout

    def _refuse_head(self) -> None:
        if len(self._target) > self._limits.header_bytes_max // 2:
            self._refuse(414, b"URI Too Long", f"a request head of more than {self._limits.header_bytes_max} bytes")
        else:
            self._refuse(
                431,
                b"Request Header Fields Too Large",
                f"a request head of more than {self._limits.header_bytes_max} bytes",
            )

    def _refuse(self, status: int, reason: bytes, message: str) -> None:
        """Answer what is no request, and close. What came before it on this connection is cut off with it."""
        body = jsonrpc.error(b"", jsonrpc.INVALID_REQUEST, f"{reason.decode()}: {message}")
        if self.task is None:
            self.write(
                b"HTTP/1.1 %d %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b"
                % (status, reason, len(body), body)
            )
            self.close()
        else:
            self.abort()
        self._closing = True
        self._receiving = None
        log.info("refused a request", extra={"status": status, "why": message})
