"""The upstream's side: the only owner of connections to a server.

In: the bytes of a request, whole or as they come. Out: the head of the response as soon as it is there, then its body
as it comes. Always: a connection serves one exchange at a time, goes back to the pool only when both messages are
whole, and is closed at once when an exchange is left before that (DESIGN 3.6); one that was idle for
`idle_timeout` is not used again, because Node and uvicorn close theirs after 5 s (DESIGN 2).
"""

import asyncio
import logging
import select
import ssl
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

import httptools

from gateway.buffers import Buffers
from gateway.config import Limits, Upstream
from gateway.core.headers import Headers
from gateway.errors import GatewayError, Overloaded, UpstreamBroken, UpstreamTimeout, UpstreamUnreachable
from gateway.wire import Body, Wire

log = logging.getLogger("taskgate.upstream")

_BODILESS: Final = (204, 304)
_NEVER: Final = float("inf")
_FRESH_S: Final = 0.05  # a connection idle for less has had no time to be closed by a server that tires of it


class Response:
    """The head of an upstream's response, and its body as it comes.

    `framing` says what ends the body: "length", "chunked", "close" (the connection's end), or "none" (no body).
    """

    __slots__ = ("body", "framing", "headers", "reason", "status")

    def __init__(self, status: int, reason: bytes, headers: Headers, framing: str, body: Body) -> None:
        self.status = status
        self.reason = reason
        self.headers = headers
        self.framing = framing
        self.body = body


class _Connection(Wire):
    """One connection to the upstream."""

    def __init__(self, loop: asyncio.AbstractEventLoop, buffers: Buffers, limits: Limits) -> None:
        super().__init__(loop, buffers, limits.stall_timeout)
        self._head_bytes_max = limits.header_bytes_max
        self.idle_since = 0.0
        self.used = False  # it has served an exchange before
        self.lost = False
        self._parser_is_clean = False  # it has read a message to its end, and expects another
        self._poll: select.poll | None = None
        self._head: asyncio.Future[Response] | None = None
        self._response: Response | None = None
        self._parser: Any = None

    def begin(self, method: bytes, on_informational: Callable[[int, bytes, Headers], None] | None) -> None:
        """Be ready for the response to a request of `method`."""
        self._method = method
        self._on_informational = on_informational
        if not self._parser_is_clean:
            self._parser = httptools.HttpResponseParser(self)
        self._parser_is_clean = False
        self._head = self.loop.create_future()
        self._response = None
        self.deadline = _NEVER
        self.answered = False  # some byte of a response has arrived
        self.reusable = False
        self._reason = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._trailers: list[tuple[bytes, bytes]] = []
        self._head_bytes = self._unread_bytes = 0

    async def head(self, timeout_s: float | None) -> Response:
        """The response's head. Raises UpstreamBroken, or UpstreamTimeout within a second after `timeout_s`."""
        assert self._head is not None
        if timeout_s:
            self.deadline, self._timeout_s = self.loop.time() + timeout_s, timeout_s
        return await self._head

    def end(self) -> None:
        """The exchange is over. What nobody read of it holds nothing up, and nothing refers back to the connection."""
        if self._response is not None:
            self._response.body.end()
        self._head = self._response = self._on_informational = None

    def time_out(self) -> None:
        """The deadline for the response's head has passed."""
        self._fail(UpstreamTimeout(f"no answer from the upstream within {self._timeout_s:g} s"))
        self.abort()

    def is_stale(self, look: bool) -> bool:
        """Whether the upstream has closed the connection, or sent what nobody asked for, since it was idle.

        With `look` the socket is asked: the loop may not have come round to what arrived there.
        """
        if self.lost or self.transport is None or self.transport.is_closing():
            return True
        if not look:
            return False
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN | select.POLLHUP)
        return bool(self._poll.poll(0))

    # ---- the transport ----

    def data_received(self, data: bytes) -> None:
        if self._head is None or (self._response is not None and self._response.body.complete):
            self.reusable = False
            self.lost = True
            self.close()  # what nobody asked for cannot be told from the answer to the next request
            return
        self.answered = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if isinstance(error, httptools.HttpParserCallbackError):
                log.exception("a response could not be read")
            self._fail(UpstreamBroken(f"the upstream's answer is not HTTP: {error}"))
            self.abort()
            return
        if self._response is None:
            self._unread_bytes += len(data)
            if self._unread_bytes > 2 * self._head_bytes_max:  # one endless field
                self._break(f"its head is larger than {self._head_bytes_max} bytes")

    def _break(self, fault: str) -> None:
        """Give up the exchange: what the upstream answers cannot be passed on."""
        self._fail(UpstreamBroken(f"the upstream's answer cannot be passed on: {fault}"))
        self.reusable = False
        self.abort()

    def eof_received(self) -> bool:
        if self._response is not None and self._response.framing == "close":
            self._response.body.finish()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.lost = True
        self._parser = None  # which holds methods of this object
        if isinstance(exc, TimeoutError):  # the kernel's word (wire.py)
            self._fail(UpstreamTimeout(f"the upstream took nothing for {self.stall_timeout_s:g} s"))
        else:
            self._fail(UpstreamBroken("the upstream closed the connection" + (f": {exc}" if exc else "")))

    def _fail(self, error: GatewayError) -> None:
        if self._response is not None:
            self._response.body.fail(error)
        elif self._head is not None and not self._head.done():
            self._head.set_exception(error)
            self._head.exception()  # nobody may be left to ask

    # ---- the parser ----

    def on_message_begin(self) -> None:
        if self._response is not None and self._response.body.complete:
            self._break("there is more behind it")  # which must never answer the next request

    def on_status(self, reason: bytes) -> None:
        self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        (self._headers if self._response is None else self._trailers).append((name, value))
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > self._head_bytes_max:
            self._break(f"its head or trailer is larger than {self._head_bytes_max} bytes")

    def on_headers_complete(self) -> None:
        if self._response is not None:
            return
        status = self._parser.get_status_code()
        headers, self._headers = Headers(self._headers), []
        reason, self._reason = self._reason, b""
        if status == 101 or not self._parser.get_http_version().startswith("1."):
            self._break(f"it is of HTTP/{self._parser.get_http_version()}, with status {status}")
            return
        if status < 200:
            self._head_bytes = self._unread_bytes = 0
            if self._on_informational is not None:
                self._on_informational(status, reason, headers.end_to_end())
            return
        framing = self._framing(status, headers)
        self._head_bytes = 0
        self._response = Response(status, reason, headers, framing, Body(self))
        self._keep = self._parser.should_keep_alive()
        if framing == "none":
            # The parser still waits for a body that the method or the status forbids.
            version = self._parser.get_http_version()
            self._keep = version == "1.1" and b"close" not in headers.tokens(b"connection")
            self._complete()
        assert self._head is not None
        self.deadline = _NEVER
        if not self._head.done():
            self._head.set_result(self._response)

    def _framing(self, status: int, headers: Headers) -> str:
        if self._method == b"HEAD" or status in _BODILESS:
            return "none"
        if b"transfer-encoding" in headers:
            chunked = headers.tokens(b"transfer-encoding")[-1:] == [b"chunked"]
            return "chunked" if chunked else "close"
        return "length" if b"content-length" in headers else "close"

    def on_body(self, data: bytes) -> None:
        if self._response is None or self._response.framing == "none":
            self.reusable = False  # a body where there must be none
        elif not self._response.body.complete:
            self._response.body.feed(data)

    def on_message_complete(self) -> None:
        if self._response is not None and not self._response.body.complete:
            self._parser_is_clean = True
            self._complete()

    def _complete(self) -> None:
        assert self._response is not None
        self._response.body.finish(Headers(self._trailers))
        self.reusable = self._keep


class Call:
    """One exchange with the upstream, as a context: leaving it before both messages are whole closes the connection."""

    def __init__(self, pool: "Pool", method: bytes, on_informational: Callable[[int, bytes, Headers], None] | None):
        self._pool = pool
        self._method = method
        self._on_informational = on_informational
        self._connection: _Connection | None = None
        self._sent = False  # the request has gone out whole

    async def __aenter__(self) -> Self:
        await self._pool.enter()
        try:
            await self._connect(fresh=False)
        except BaseException:
            self._pool.leave()
            raise
        return self

    async def _connect(self, fresh: bool) -> None:
        connection = await self._pool.connection(fresh)
        connection.begin(self._method, self._on_informational)
        self._connection = connection
        self._pool.active.add(connection)

    @property
    def is_lost(self) -> bool:
        """Whether the upstream has closed the connection."""
        return self._connection is None or self._connection.lost

    async def send(self, data: bytes, last: bool = False) -> None:
        """Send bytes of the request; `last` says that it is whole with them."""
        connection = self._connection
        assert connection is not None
        connection.write(data)
        self._sent = last
        if not last:
            await connection.drain()

    async def send_all(self, head: bytes, body: bytes, timeout_s: float | None, again: bool) -> Response:
        """Send a whole request, the bytes of `head` and `body`, and wait for the response's head.

        Where the pooled connection turns out to be closed without a byte of an answer, a request that may be sent
        `again` goes out once more on a new one. Raises UpstreamBroken, UpstreamTimeout or UpstreamUnreachable.
        """
        connection = self._connection
        assert connection is not None
        self._send_whole(head, body)
        try:
            return await connection.head(timeout_s)
        except UpstreamBroken:
            if not again or connection.answered or not connection.used:
                raise
        self._pool.active.discard(connection)
        connection.end()
        await self._connect(fresh=True)
        self._send_whole(head, body)
        assert self._connection is not None
        return await self._connection.head(timeout_s)

    def _send_whole(self, head: bytes, body: bytes) -> None:
        assert self._connection is not None
        self._connection.write(head)
        if body:
            self._connection.write(body)
        self._sent = True

    async def head(self, timeout_s: float | None) -> Response:
        """The response's head, once the request or enough of it has been sent."""
        assert self._connection is not None
        return await self._connection.head(timeout_s)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.leave()
        if self._connection is not None:
            connection, self._connection = self._connection, None
            self._pool.active.discard(connection)
            if self._sent and connection.reusable and not connection.lost:
                self._pool.put(connection)
            else:
                connection.abort()
            connection.end()


class Pool:
    """The connections to one upstream."""

    def __init__(self, config: Upstream, limits: Limits, buffers: Buffers) -> None:
        self.config = config
        self.buffers = buffers
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._idle: list[_Connection] = []
        self.active: set[_Connection] = set()
        self._slots = asyncio.Semaphore(config.requests_max)
        self._tls = ssl.create_default_context() if config.url.scheme == "https" else None

    def call(self, method: bytes, on_informational: Callable[[int, bytes, Headers], None] | None = None) -> Call:
        """An exchange, to be entered. Raises Overloaded or UpstreamUnreachable on entering."""
        return Call(self, method, on_informational)

    async def enter(self) -> None:
        """Take one of the `requests_max` places."""
        if not self._slots.locked():
            await self._slots.acquire()
            return
        try:
            async with asyncio.timeout(self.config.connect_timeout):
                await self._slots.acquire()
        except TimeoutError:
            raise Overloaded(f"{self.config.requests_max} requests to the upstream are under way") from None

    def leave(self) -> None:
        self._slots.release()

    @property
    def is_full(self) -> bool:
        """Whether all `requests_max` places are taken."""
        return self._slots.locked()

    async def connection(self, fresh: bool) -> _Connection:
        """A connection that nobody uses: the one idle for the shortest time, or a new one."""
        while self._idle and not fresh:
            connection = self._idle.pop()
            idle_s = self._loop.time() - connection.idle_since
            if idle_s < self.config.idle_timeout and not connection.is_stale(look=idle_s > _FRESH_S):
                return connection
            connection.close()
        url = self.config.url
        try:
            async with asyncio.timeout(self.config.connect_timeout):
                _, connection = await self._loop.create_connection(
                    lambda: _Connection(self._loop, self.buffers, self._limits), url.host, url.port, ssl=self._tls
                )
        except TimeoutError:
            raise UpstreamTimeout(f"no connection to the upstream within {self.config.connect_timeout:g} s") from None
        except OSError as error:
            raise UpstreamUnreachable(f"the upstream cannot be reached: {error.strerror or error}") from None
        return connection

    def put(self, connection: _Connection) -> None:
        """Take back a connection whose exchange is complete."""
        connection.used = True
        connection.idle_since = self._loop.time()
        self._idle.append(connection)

    def sweep(self, now: float) -> None:
        """Time out the exchanges that are past their deadline, and close connections that were idle for too long."""
        for connection in [c for c in self.active if now > c.deadline]:
            connection.time_out()
        while self._idle and (now - self._idle[0].idle_since >= self.config.idle_timeout or self._idle[0].lost):
            self._idle.pop(0).close()

    @property
    def is_empty(self) -> bool:
        """Whether it has no connection any more."""
        return not self.active and not self._idle

    def close(self) -> None:
        """Close the idle connections."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()
