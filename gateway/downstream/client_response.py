"""The response to a client. No other file writes one.

In: a status, header fields and pieces of a body. Out: the response's bytes.
Always: keep-alive, `Connection: close`, HTTP/1.0, HEAD and chunks are decided in `begin`, for every response. A
response without an `end` cuts the client's connection (DESIGN 3.5).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from email.utils import formatdate
from functools import lru_cache
from time import time

from gateway.downstream.client_request import ClientRequest
from gateway.http.header_fields import DIGESTS, Headers
from gateway.http.request_parser import Head, Refusal
from gateway.http.response_parser import Framing
from gateway.mcp import jsonrpc
from gateway.transport.base_connection import ClientWire
from gateway.transport.body_stream import NO_TRAILERS, Response, chunk, last_chunk


@dataclass(eq=False, slots=True)
class ClientResponse:
    _request: ClientRequest
    _connection: ClientWire
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
        is_usual &= bool(request.head.minor) and request.head.method != b"HEAD" and not self._connection.is_ending
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
        self.keep_alive &= framing != "close" and not self._connection.is_ending
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
                self._connection.expect_body()
        self._connection.write(self._unwritten)
        self._unwritten = b""

    def end(self, trailers: Headers = NO_TRAILERS) -> None:
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

    def inform(self, status: int, reason: bytes, headers: Headers) -> None:
        """Send a 1xx response, unless the client knows none or was told to go on before."""
        request = self._request
        if request.head.minor and not self.started and not (status == 100 and request.continued):
            request.continued |= status == 100
            self._connection.expect_body()
            self._connection.write(_head(status, reason, headers))


@lru_cache(maxsize=1)
def _date(unix_s: int) -> bytes:
    return formatdate(unix_s, usegmt=True).encode()


def write_refusal(connection: ClientWire, refused: Refusal) -> None:
    """Write the response to bytes that are no request."""
    request = ClientRequest(connection, Head(b"", b"", 1, Headers(), 0, 0, False))
    response = ClientResponse(request, connection, False)
    body = jsonrpc.error(b"", jsonrpc.INVALID_REQUEST, f"{refused.reason.decode()}: {refused}")
    response.respond(refused.status, refused.reason, [(b"Content-Type", b"application/json")], body)


def _head(status: int, reason: bytes, headers: Headers) -> bytes:
    return b"HTTP/1.1 %d %b\r\n%b\r\n" % (status, reason, headers.block())
