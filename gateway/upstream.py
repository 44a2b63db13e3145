"""The upstream's side: the only owner of connections to a server.

In: the bytes of a request, whole or as they come. Out: the head of the response as soon as it is there, then its body
as it comes. Always: a connection serves one exchange at a time, goes back to the pool only when both messages are
whole, and is closed at once when an exchange is left before that (DESIGN 3.6); one that was idle for
`idle_timeout` is not used again, because Node and uvicorn close theirs after 5 s (DESIGN 2). A connection that a
server authenticates serves one client alone; a server that sends what nobody asked for serves one exchange with each.

An answer to nobody that arrives once the next request is out cannot be told from the answer to that request.
"""

import asyncio
import logging
import re
import select
import ssl
from types import TracebackType
from typing import Any, Final, Self

import httptools

from gateway.buffers import Buffers
from gateway.config import Limits, Upstream
from gateway.core.headers import Headers
from gateway.errors import GatewayError, Overloaded, UpstreamBroken, UpstreamTimeout, UpstreamUnreachable
from gateway.listener import Exchange
from gateway.wire import NO_TRAILERS, Body, Wire

log = logging.getLogger("taskgate.upstream")

_BODILESS: Final = (204, 304)
_NEVER: Final = float("inf")
_TURNS: Final = 2  # of the loop, within which it reads what has arrived
# No connection is used twice for so long after a server has sent what nobody asked for. It may do so again at any time,
# and the next client would take it for its answer; a new connection costs a fraction of a millisecond. It ends, because
# some servers send 408 to who is idle.
_DISTRUST_S: Final = 3600.0
# After so many 1xx responses of an exchange the upstream is not read for so long: one costs a hundred times its bytes.
_INFORMED_AT_ONCE: Final = 100
_INFORMED_REST_S: Final = 0.02
_PROTOCOL: Final = b"HTTP/1."
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: ([\t\x20-\x7e\x80-\xff]*))?\r\n")  # RFC 9112, 4
_HEAD_END: Final = b"\r\n\r\n"
_OF_CONNECTION: Final = (b"connection", b"proxy-connection")
_CODINGS: Final = frozenset({b"gzip", b"x-gzip", b"deflate", b"compress", b"x-compress"})  # RFC 9112, 7
# Schemes that authenticate a connection, and not a request (RFC 4559, 6), and where they are named.
_OF_CONNECTIONS: Final = (b"ntlm", b"negotiate")
_SCHEMES: Final = (b"authorization", b"www-authenticate", b"proxy-authorization", b"proxy-authenticate")
_PERSISTENT: Final = b"persistent-auth"  # MS-NTHT, 2.2.2
_TELLING: Final = frozenset({*_SCHEMES, _PERSISTENT})


def authenticates_connection(headers: Headers) -> bool:
    """Whether a request or a response is part of the authentication of its connection."""
    for name, value in headers.named(_TELLING):
        told = value.lower()
        if name == _PERSISTENT:
            return True
        if b"ntlm" in told or b"negotiate" in told:
            members = [member.split(None, 1) for member in told.split(b",")]
            if any(member and member[0] in _OF_CONNECTIONS for member in members):
                return True
    return False


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
    """One connection to the upstream of `pool`."""

    def __init__(self, pool: "Pool", loop: asyncio.AbstractEventLoop, limits: Limits) -> None:
        super().__init__(loop, pool.buffers, limits.stall_timeout)
        self.pool = pool
        self._head_bytes_max = limits.header_bytes_max
        self.idle_since = 0.0
        self.used = False  # it has served an exchange before
        self.lost = False
        self.authenticates = False  # the server may know its client by it: it serves no other
        self._asked = False  # something of a request has gone out
        self._pieces: list[bytes] = []  # of the body, as the parser finds them in what it is given
        self.on_body = self._pieces.append
        self._parser_is_clean = False  # it has read a message to its end, and expects another
        self._poll: select.poll | None = None
        self._head: asyncio.Future[Response] | None = None
        self._response: Response | None = None
        self._parser: Any = None
        self._pacing: asyncio.Task[None] | None = None

    def begin(self, method: bytes, client: Exchange | None) -> None:
        """Be ready for the response to a request of `method`; `client` gets the 1xx responses before it."""
        self._method = method
        self._client = client
        if not self._parser_is_clean:
            self._parser = httptools.HttpResponseParser(self)
        self._parser_is_clean = False
        self._head = self.loop.create_future()
        self._response = None
        self.deadline = _NEVER
        self.answered = False  # some byte of a response has arrived
        self.reusable = False
        self._begun = b""  # of a head that is not whole yet
        self._headers: list[tuple[bytes, bytes, bytes]] = []
        self._trailers: list[tuple[bytes, bytes]] = []
        self._trailer_bytes = self._silent_bytes = self._informed = 0

    def write(self, data: bytes) -> None:
        """Send bytes of a request: what arrives from now on is the answer."""
        self._asked = True
        super().write(data)

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
        if self._pacing is not None:
            self._pacing.cancel()
        self._head = self._response = self._client = self._pacing = None
        self._asked = False
        self.used = True

    def pin(self, client: Exchange | None) -> None:
        """Serve the client of this exchange alone from now on, and as long as it stays."""
        self.authenticates = True
        if client is not None:
            client.connection.pin(self)

    def time_out(self) -> None:
        """The deadline for the response's head has passed."""
        self._fail(UpstreamTimeout(f"no answer from the upstream within {self._timeout_s:g} s"))
        self.abort()

    def is_stale(self) -> bool:
        """Whether the upstream has closed the connection, or sent what nobody asked for, since it was idle.

        The socket is asked: the loop may not have come round to what arrived there.
        """
        if self.lost or self.transport is None or self.transport.is_closing():
            return True
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN | select.POLLHUP)
        return bool(self._poll.poll(0))

    # ---- the transport ----

    def data_received(self, data: bytes) -> None:
        if not self._asked or (self._response is not None and self._response.body.complete):
            self._unasked()
            return
        self.answered = True
        try:
            if self._response is not None:
                self._read_on(data)
            elif self._read_heads(data) and not self.lost:
                self._unasked()
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._hand_over()
            if isinstance(error, httptools.HttpParserCallbackError):
                log.exception("a response could not be read")
            self._break(f"it is not HTTP: {error}")

    def _read_heads(self, data: bytes) -> bytes:
        """Read heads up to that of the response, and its body; returns what is behind a response that has none."""
        searched = max(0, len(self._begun) - len(_HEAD_END) + 1)
        data, self._begun, at = self._begun + data, b"", 0
        while at < len(data):
            end = data.find(_HEAD_END, max(at, searched)) + len(_HEAD_END)
            whole = end >= len(_HEAD_END)
            line = _STATUS_LINE.match(data, at)
            if (end if whole else len(data)) - at > self._head_bytes_max:
                self._break(f"its head is larger than {self._head_bytes_max} bytes")
                break
            if not whole and _may_begin(data[at:]):
                self._begun = data[at:]
                break
            if line is None or not whole:
                self._break("it is not HTTP/1.1")
                break
            self._minor, self._status, self._reason = line[1], int(line[2]), line[3] or b""
            self._bodiless = self._method == b"HEAD" or self._status in _BODILESS
            if self._status >= 200 and not self._bodiless:
                self._parser.feed_data(data[at:])
                self._hand_over()
                break
            self._parser.feed_data(data[at:end])
            at = end
            if self._response is not None or self.lost:
                return data[at:]
            self._informed += 1
            is_full = self._client is not None and self._client.connection.is_full
            if is_full or self._informed % _INFORMED_AT_ONCE == 0:
                self.hold_reading()
                self._pacing = self.loop.create_task(self._pace(data[at:]))
                break
        return b""

    async def _pace(self, behind: bytes) -> None:
        """Read on behind 1xx responses when the client has taken them: a flood of them is as fast as its reader."""
        try:
            if self._client is not None:
                await self._client.drain()
            await asyncio.sleep(_INFORMED_REST_S)
        finally:
            self.release_reading()
        self._pacing = None
        if behind and not self.lost:
            self.data_received(behind)

    def _read_on(self, data: bytes) -> None:
        self._heard = False
        self._parser.feed_data(data)
        self._hand_over()
        self._silent_bytes = 0 if self._heard else self._silent_bytes + len(data)
        if self._silent_bytes > self._head_bytes_max:  # one endless field of a trailer, or extension of a chunk
            self._break(f"its trailer is larger than {self._head_bytes_max} bytes")

    def _unasked(self) -> None:
        """Something arrived that nobody asked for: it cannot be told from the answer to the next request."""
        self.reusable = False
        self.lost = True
        self.pool.distrust()
        self._fail(UpstreamBroken("the upstream sent something before it was asked"))
        self.close()

    def _break(self, fault: str) -> None:
        """Give up the exchange: what the upstream answers cannot be passed on."""
        self._fail(UpstreamBroken(f"the upstream's answer cannot be passed on: {fault}"))
        self.reusable = False
        self.lost = True
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
            self._unasked()  # there is more behind it

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._response is None:
            self._headers.append((name.lower(), name, value))
            return
        self._heard = True
        self._trailers.append((name, value))
        self._trailer_bytes += len(name) + len(value) + 4
        if self._trailer_bytes > self._head_bytes_max:
            self._break(f"its trailer is larger than {self._head_bytes_max} bytes")

    def on_headers_complete(self) -> None:
        if self._response is not None:
            return
        status, reason = self._status, self._reason
        headers, self._headers = Headers.of(self._headers), []
        coding = _coding(headers) if b"transfer-encoding" in headers else ""
        if status == 101 or coding is None:
            self._break("it is 101" if status == 101 else "readers do not agree on its Transfer-Encoding")
            return
        if status < 200:
            if self._client is not None:
                passed = headers.end_to_end().without(b"content-length", b"transfer-encoding")  # RFC 9110, 8.6
                self._client.write_informational(status, reason, passed)
            return
        if authenticates_connection(headers):
            self.pin(self._client)
        framing = "none" if self._bodiless else coding or ("length" if b"content-length" in headers else "close")
        self._response = Response(status, reason, headers, framing, Body(self))
        self._keep = self._keeps_alive(framing, headers)
        if framing == "none":
            self._complete()  # the parser still waits for a body that the method or the status forbids
        assert self._head is not None
        self.deadline = _NEVER
        if not self._head.done():
            self._head.set_result(self._response)

    def _keeps_alive(self, framing: str, headers: Headers) -> bool:
        """Whether the upstream says that it will take another request."""
        faulty = framing == "chunked" and self._minor == b"0"  # RFC 9112, 6.1
        if faulty or b"close" in headers.tokens(b"connection"):
            return False
        if framing == "none":
            return self._minor == b"1"  # the parser may wait for a body
        return bool(self._parser.should_keep_alive())

    def _hand_over(self) -> None:
        """Give what has come of the body to its reader, in one piece: chunks may be of a byte each."""
        if not self._pieces:
            return
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._heard = True
        if self._response is not None and not self._response.body.complete:
            self._response.body.feed(data)

    def on_message_complete(self) -> None:
        self._hand_over()
        if self._response is not None and not self._response.body.complete and not self.lost:
            self._parser_is_clean = not self._trailers
            if self._trailers:  # what they say of the connection can end it, and never keep it
                told = any(name.lower() in _OF_CONNECTION for name, _ in self._trailers)
                self._keep = self._keep and not told and self._parser.should_keep_alive()
            self._complete()

    def _complete(self) -> None:
        assert self._response is not None
        self._response.body.finish(Headers(self._trailers) if self._trailers else NO_TRAILERS)
        self.reusable = self._keep


def _may_begin(begun: bytes) -> bool:
    """Whether a head of HTTP/1.1 may begin so: without the end of a line that only some readers take for one."""
    return begun.startswith(_PROTOCOL[: len(begun)]) and begun.count(b"\n") == begun.count(b"\r\n")


def _coding(headers: Headers) -> str | None:
    """The framing that `Transfer-Encoding` says: "chunked" or "close"; None where readers could differ."""
    codings = [c.strip(b" ").lower() for value in headers.all(b"transfer-encoding") for c in value.split(b",")]
    if codings[-1] == b"chunked":
        return "chunked" if _CODINGS.issuperset(codings[:-1]) else None
    return "close" if _CODINGS.issuperset(codings) else None


class Call:
    """One exchange with the upstream, as a context: leaving it before both messages are whole closes the connection.

    `client` is the exchange that it is made for; None for one of the gateway's own.
    """

    def __init__(self, pool: "Pool", method: bytes, client: Exchange | None) -> None:
        self._pool = pool
        self._method = method
        self._client = client
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
        connection = pinned = self._pool.pinned(self._client)
        if connection is None or fresh or connection.is_stale():
            fresh = fresh or self._pool.knows_by_connection(self._client)
            connection = await self._pool.connection(fresh)
            if pinned is not None:
                connection.pin(self._client)
        connection.begin(self._method, self._client)
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
        return await self.head(timeout_s)

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
            connection, self._connection, client = self._connection, None, self._client
            self._pool.active.discard(connection)
            if not self._sent or not connection.reusable or connection.lost:
                connection.abort()
            elif not (connection.authenticates or (client is not None and client.authenticates)):
                self._pool.put(connection)
            elif client is None or client.connection.pinned is not connection or client.connection.transport is None:
                connection.close()  # else the client's connection keeps it, and closes it
            connection.end()


class Pool:
    """The connections to one upstream."""

    def __init__(self, config: Upstream, limits: Limits, buffers: Buffers) -> None:
        self.config = config
        self.buffers = buffers
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._idle: list[_Connection] = []
        self._distrusted_until = 0.0
        self.active: set[_Connection] = set()
        self._slots = asyncio.Semaphore(config.requests_max)
        self._tls = ssl.create_default_context() if config.url.scheme == "https" else None

    def call(self, method: bytes, client: Exchange | None = None) -> Call:
        """An exchange, to be entered. Raises Overloaded or UpstreamUnreachable on entering."""
        return Call(self, method, client)

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

    def pinned(self, client: Exchange | None) -> _Connection | None:
        """The connection that serves a client alone, open or not."""
        wire = client.connection.pinned if client is not None else None
        return wire if isinstance(wire, _Connection) and wire.pool is self else None

    def knows_by_connection(self, client: Exchange | None) -> bool:
        """Whether the server knows a client by its connection, or may: header fields do not tell who asks."""
        return client is not None and (client.authenticates or self.pinned(client) is not None)

    async def connection(self, fresh: bool) -> _Connection:
        """A connection that nobody uses: the one idle for the shortest time, or a new one."""
        while self._idle and not fresh:
            connection = self._idle.pop()
            idle_s = self._loop.time() - connection.idle_since
            if idle_s < self.config.idle_timeout and not connection.is_stale():
                return connection
            try:
                for _ in range(_TURNS):  # what is there may be no end, but something that nobody asked for
                    await asyncio.sleep(0)
            finally:
                connection.close()
        url = self.config.url
        try:
            async with asyncio.timeout(self.config.connect_timeout):
                _, connection = await self._loop.create_connection(
                    lambda: _Connection(self, self._loop, self._limits), url.host, url.port, ssl=self._tls
                )
        except TimeoutError:
            raise UpstreamTimeout(f"no connection to the upstream within {self.config.connect_timeout:g} s") from None
        except OSError as error:
            raise UpstreamUnreachable(f"the upstream cannot be reached: {error.strerror or error}") from None
        return connection

    def put(self, connection: _Connection) -> None:
        """Take back a connection whose exchange is complete."""
        connection.idle_since = self._loop.time()
        if connection.idle_since < self._distrusted_until:
            connection.close()
        else:
            self._idle.append(connection)

    def distrust(self) -> None:
        """The upstream has sent what nobody asked for: no connection to it serves two exchanges for a while."""
        now = self._loop.time()
        if now >= self._distrusted_until:
            log.warning("the upstream sent what nobody asked for", extra={"upstream": self.config.name})
        self._distrusted_until = now + _DISTRUST_S
        self.close()

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
