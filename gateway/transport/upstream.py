"""One connection to an upstream: the request's bytes go out, the response comes in.

In: the bytes of a request, whole or as they come. Out: the head of the response as soon as it is there, then its body
as it comes. Always: a connection serves one exchange at a time; bytes that arrive before a request close it. A
connection on which the server authenticates its client serves that client alone.

Bytes that nobody asked for can arrive after the next request has gone out. Nothing tells them from its answer then.
"""

import asyncio
import logging
import re
from typing import Any, Final, Protocol

import httptools

from gateway.config import Limits
from gateway.errors import GatewayError, UpstreamBroken, UpstreamTimeout
from gateway.transport.body import NO_TRAILERS, Body, Framing
from gateway.transport.buffers import Buffers
from gateway.transport.exchange import Exchange
from gateway.transport.headers import Headers
from gateway.transport.wire import Wire

log = logging.getLogger("taskgate.upstream")

_BODILESS: Final = (204, 304)
_NEVER: Final = float("inf")
# After each `_INFORMED_AT_ONCE` 1xx responses the upstream is not read for a while: one costs a hundred times as
# much as its bytes would in a body.
_INFORMED_AT_ONCE: Final = 100
_INFORMED_REST_S: Final = 0.02
_PROTOCOL: Final = b"HTTP/1."
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: ([\t\x20-\x7e\x80-\xff]*))?\r\n")  # RFC 9112, 4
_HEAD_END: Final = b"\r\n\r\n"
_OF_CONNECTION: Final = (b"connection", b"proxy-connection")
_CODINGS: Final = frozenset({b"gzip", b"x-gzip", b"deflate", b"compress", b"x-compress"})  # RFC 9112, 7
# Schemes that authenticate a connection, and not a request (RFC 4559, 6), and where they are named.
_OF_CONNECTIONS: Final = re.compile(rb"(?:^|,)\s*+(?:ntlm|negotiate)(?=[\s,]|$)")
_SCHEMES: Final = (b"authorization", b"www-authenticate", b"proxy-authorization", b"proxy-authenticate")
_PERSISTENT: Final = b"persistent-auth"  # MS-NTHT, 2.2.2
_TELLING: Final = frozenset({*_SCHEMES, _PERSISTENT})


def authenticates_connection(headers: Headers) -> bool:
    """Whether a request or a response is part of the authentication of its connection."""
    for name, value in headers.named(_TELLING):
        told = value.lower()
        if name == _PERSISTENT:
            return True
        if (b"ntlm" in told or b"negotiate" in told) and _OF_CONNECTIONS.search(told):
            return True
    return False


class Response:
    """The head of an upstream's response, and its body as it comes.

    `framing` says what ends the body: "length", "chunked", "close" (the connection's end), or "none" (no body).
    """

    __slots__ = ("body", "framing", "headers", "reason", "status")

    def __init__(self, status: int, reason: bytes, headers: Headers, framing: Framing, body: Body) -> None:
        self.status = status
        self.reason = reason
        self.headers = headers
        self.framing = framing
        self.body = body


class UpstreamOwner(Protocol):
    """The owner of the connection: the pool."""

    buffers: Buffers

    def distrust(self) -> None:
        """The upstream has sent what nobody asked for."""


class UpstreamConnection(Wire):
    """One connection to the upstream of `pool`."""

    __slots__ = (
        "_asked", "_begun", "_bodiless", "_client", "_head", "_head_bytes_max", "_headers", "_heard", "_informed",
        "_keep", "_method", "_minor", "_pacing", "_parser", "_parser_is_clean", "_pieces", "_reason", "_response",
        "_silent_bytes", "_status", "_timeout_s", "_trailer_bytes", "_trailers", "answered", "authenticates",
        "deadline", "idle_since", "lost", "on_body", "pool", "reusable", "used",
    )  # fmt: skip

    def __init__(self, pool: UpstreamOwner, loop: asyncio.AbstractEventLoop, limits: Limits) -> None:
        super().__init__(loop, pool.buffers, limits.stall_timeout)
        self.pool = pool
        self._head_bytes_max = limits.header_bytes_max
        self.idle_since = 0.0
        self.used = False  # it has served an exchange before
        self.lost = False
        self.authenticates = False  # the server may know its client by this connection, so it serves no other
        self._asked = False  # something of a request has gone out
        self._pieces: list[bytes] = []  # of the body, as the parser finds them in what it is given
        self.on_body = self._pieces.append
        self._parser_is_clean = False  # the parser has read a message to its end, and expects another
        self._head: asyncio.Future[Response] | None = None
        self._response: Response | None = None
        self._parser: Any = None
        self._pacing: asyncio.Task[None] | None = None

    def begin(self, method: bytes, client: Exchange | None) -> None:
        """Be ready for the response to a request of `method`; `client` gets the 1xx responses that come first."""
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
        """The exchange is over: drop what nobody has read, and what refers back to the connection."""
        if self._response is not None:
            self._response.body.end()
        if self._pacing is not None:
            self._pacing.cancel()
        self._head = self._response = self._client = self._pacing = None
        self._asked = False
        self.used = True

    def pin(self, client: Exchange | None) -> None:
        """From now on serve the client of this exchange alone, as long as that client stays."""
        self.authenticates = True
        if client is not None:
            client.connection.pin(self)

    def time_out(self) -> None:
        """The deadline for the response's head has passed."""
        self._fail(UpstreamTimeout(f"no answer from the upstream within {self._timeout_s:g} s"))
        self.abort()

    def is_stale(self) -> bool:
        """Whether the upstream has closed the idle connection, or sent something on it that nobody asked for."""
        return self.lost or self.transport is None or self.transport.is_closing() or self.has_input()

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
        """Read heads up to the response's, and its body; return what follows a response that has no body."""
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
        """Read on once the client has taken the 1xx responses so far: a flood is then only as fast as its reader."""
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
        if self._silent_bytes > self._head_bytes_max:  # an endless trailer field, or chunk extension
            self._break(f"its trailer is larger than {self._head_bytes_max} bytes")

    def _unasked(self) -> None:
        """Something arrived that nobody asked for: it cannot be told from the answer to the next request."""
        self.reusable = False
        self.lost = True
        self.pool.distrust()
        self._fail(UpstreamBroken("the upstream sent something before it was asked"))
        self.close()

    def _break(self, fault: str) -> None:
        """Give up the exchange: the upstream's answer cannot pass."""
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
        self._parser = None  # break the reference cycle: the parser holds methods of this object
        self._fail(_why_lost(exc, self.stall_timeout_s))

    def _fail(self, error: GatewayError) -> None:
        if self._response is not None:
            self._response.body.fail(error)
        elif self._head is not None and not self._head.done():
            self._head.set_exception(error)
            self._head.exception()  # counts as retrieved: perhaps nobody awaits it

    # ---- the parser ----

    def on_message_begin(self) -> None:
        if self._response is not None and self._response.body.complete:
            self._unasked()  # more follows the whole response

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
        coding = _coding(headers) if b"transfer-encoding" in headers.by_name else ""
        if status == 101 or coding is None:
            self._break("it is 101" if status == 101 else "readers do not agree on its Transfer-Encoding")
            return
        if status < 200:
            if self._client is not None:
                self._client.write_informational(status, reason, _of_informational(headers))
            return
        if authenticates_connection(headers):
            self.pin(self._client)
        framing = "none" if self._bodiless else coding or _without_coding(headers)
        self._response = Response(status, reason, headers, framing, Body(self))
        self._keep = _keeps_alive(framing, self._minor, headers, self._parser)
        if framing == "none":
            self._complete()  # the parser cannot say so: it waits for a body that the method or the status forbids
        assert self._head is not None
        self.deadline = _NEVER
        if not self._head.done():
            self._head.set_result(self._response)

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
            if self._trailers:  # they can end the connection, and never keep it open
                self._keep = self._keep and _keep_alive_too(self._trailers, self._parser)
            self._complete()

    def _complete(self) -> None:
        assert self._response is not None
        self._response.body.finish(Headers(self._trailers) if self._trailers else NO_TRAILERS)
        self.reusable = self._keep


def _of_informational(headers: Headers) -> Headers:
    """The fields of a 1xx response that pass (RFC 9110, 8.6)."""
    return headers.end_to_end().without(b"content-length", b"transfer-encoding")


def _why_lost(exc: Exception | None, stall_timeout_s: float) -> GatewayError:
    """The error for the reader of a lost connection."""
    if isinstance(exc, TimeoutError):  # the kernel's word (wire.py)
        return UpstreamTimeout(f"the upstream took nothing for {stall_timeout_s:g} s")
    return UpstreamBroken("the upstream closed the connection" + (f": {exc}" if exc else ""))


def _keeps_alive(framing: Framing, minor: bytes, headers: Headers, parser: Any) -> bool:
    """Whether the response's head lets its connection serve again. `parser` has read it."""
    faulty = framing == "chunked" and minor == b"0"  # RFC 9112, 6.1
    old = framing == "none" and minor == b"0"
    if faulty or old or (b"connection" in headers.by_name and b"close" in headers.tokens(b"connection")):
        return False
    return framing == "none" or bool(parser.should_keep_alive())


def _keep_alive_too(trailers: list[tuple[bytes, bytes]], parser: Any) -> bool:
    """Whether the trailers let their connection serve again. `parser` has read them."""
    told = any(name.lower() in _OF_CONNECTION for name, _ in trailers)
    return not told and bool(parser.should_keep_alive())


def _without_coding(headers: Headers) -> Framing:
    return "length" if b"content-length" in headers.by_name else "close"


def _may_begin(begun: bytes) -> bool:
    """Whether a head of HTTP/1.1 may begin like this. It has no bare LF: only some readers end a line there."""
    return begun.startswith(_PROTOCOL[: len(begun)]) and begun.count(b"\n") == begun.count(b"\r\n")


def _coding(headers: Headers) -> Framing | None:
    """The framing that `Transfer-Encoding` says: "chunked" or "close"; None where readers could differ."""
    codings = [c.strip(b" ").lower() for value in headers.all(b"transfer-encoding") for c in value.split(b",")]
    if codings[-1] == b"chunked":
        return "chunked" if _CODINGS.issuperset(codings[:-1]) else None
    return "close" if _CODINGS.issuperset(codings) else None
