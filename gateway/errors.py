"""The errors of requests, as one tree. Each class has its HTTP status and JSON-RPC code.

    GatewayError                502, -32603
    ├── Ambiguous               400, -32600   `Connection` names a field that tells who asks (DESIGN 3.2)
    ├── Forbidden               403, -32600   `Host` or `Origin` is refused (DESIGN 7.10)
    ├── Internal                500, -32603   a fault of the gateway itself
    ├── Loop                    508, -32600   an upstream's address leads back to the gateway
    ├── NoUpstream              404, -32600   no upstream is configured for the host and path
    ├── RateLimited             429, -32600   too many task operations of one identity, with Retry-After
    ├── Overloaded              503, -32603   a limit is reached; a later try may succeed
    ├── UpstreamUnreachable     502, -32603   no connection
    ├── UpstreamBroken          502, -32603   the answer broke off, or is no valid answer
    ├── UpstreamTimeout         504, -32603   no answer in time
    ├── UpstreamRefused         as upstream   a request of the gateway's got a status of 300 or above
    └── UpstreamFailed          200, as upstream   a request of the gateway's got a JSON-RPC error

`proxy.Proxy._fail` makes HTTP responses of them. Requests that cannot be read get a `Refusal` of
`transport/http1.py` instead.
"""

from collections.abc import Iterable, Sequence
from typing import TypeVar

from gateway.mcp import jsonrpc
from gateway.mcp.jsonrpc import INTERNAL_ERROR, INVALID_REQUEST

_E = TypeVar("_E", bound=BaseException)


def without_frames(error: _E) -> _E:
    """A handled error that may be kept. The frames that it passed hold what holds it, in a cycle that stays (9.5)."""
    error.__traceback__ = error.__context__ = None
    return error


class GatewayError(Exception):
    """An error that a client gets in place of an answer."""

    status = 502
    reason = b"Bad Gateway"
    code = INTERNAL_ERROR
    refuses = False  # whether it says no to who asks, and so nothing has failed
    fields: Sequence[tuple[bytes, bytes]] = ()
    """Header fields of the response, beside the fields of every error."""

    @property
    def kind(self) -> str:
        """The failure's name in metrics and logs."""
        return type(self).__name__

    def message(self, raw_id: bytes) -> bytes:
        """The error as a JSON-RPC response. `raw_id` is the id of the request, empty if it is unknown."""
        return jsonrpc.error(raw_id, self.code, f"{self.reason.decode('latin-1')}: {self}")


class Ambiguous(GatewayError):
    status, reason, code = 400, b"Bad Request", INVALID_REQUEST


class Forbidden(GatewayError):
    status, reason, code = 403, b"Forbidden", INVALID_REQUEST


class Internal(GatewayError):
    """A fault of the gateway itself. Clients are not told which; the log has its traceback."""

    status, reason = 500, b"Internal Server Error"

    def __init__(self) -> None:
        super().__init__("a fault of taskgate itself; its log says more")


class NoUpstream(GatewayError):
    status, reason, code = 404, b"Not Found", INVALID_REQUEST


class Loop(GatewayError):
    status, reason, code = 508, b"Loop Detected", INVALID_REQUEST


class RateLimited(GatewayError):
    """Too many task operations of one client; `price` is how many this one counts for."""

    status, reason, code, refuses = 429, b"Too Many Requests", INVALID_REQUEST, True

    def __init__(self, retry_after_s: int, price: int) -> None:
        takes = f" (this one takes {price})" if price > 1 else ""
        super().__init__(f"too many task operations{takes}; try again in {retry_after_s} s")
        self.fields = [(b"Retry-After", b"%d" % retry_after_s)]


class Overloaded(GatewayError):
    status, reason = 503, b"Service Unavailable"


class UpstreamUnreachable(GatewayError):
    pass


class UpstreamBroken(GatewayError):
    pass


class UpstreamTimeout(GatewayError):
    status, reason = 504, b"Gateway Timeout"


class UpstreamRefused(GatewayError):
    """The upstream answered the crawler with an HTTP error or a redirect. The client gets it (DESIGN 5.8)."""

    def __init__(
        self, status: int, reason: bytes, headers: Iterable[tuple[bytes, bytes]], body: bytes, crawl_id: bytes
    ) -> None:
        super().__init__(f"the upstream answered {status}")
        self.status, self.reason, self.headers, self.body, self.crawl_id = status, reason, headers, body, crawl_id
        self.refuses = status in (401, 403, 404)  # no access, or no such session


class UpstreamFailed(GatewayError):
    """The upstream answered the crawler with a JSON-RPC error. The client gets that error (DESIGN 5.8)."""

    status, reason = 200, b"OK"

    def __init__(self, error: bytes) -> None:
        super().__init__("the upstream answered with a JSON-RPC error")
        self.error = error
        self.code = jsonrpc.code_of(error) or INTERNAL_ERROR
        self.refuses = self.code == jsonrpc.METHOD_NOT_FOUND  # a server without tasks

    def message(self, raw_id: bytes) -> bytes:
        return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (raw_id, self.error)
