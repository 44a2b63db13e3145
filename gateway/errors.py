"""Everything that can go wrong for a client, as one tree; each class knows its HTTP status and JSON-RPC code.

    GatewayError                502, -32603
    ├── Ambiguous               400, -32600   it could be read in two ways
    ├── Forbidden               403, -32600   the door refuses it (DESIGN 7)
    ├── NoUpstream              404, -32600   no configured upstream is meant by it
    ├── Overloaded              503, -32603   a limit is reached; try again
    ├── UpstreamUnreachable     502, -32603   no connection
    ├── UpstreamBroken          502, -32603   the answer broke off or is none
    ├── UpstreamTimeout         504, -32603   no answer in time
    ├── UpstreamRefused         as upstream   a crawl was answered with a status of 400 or above
    └── UpstreamFailed          200, as upstream   a crawl was answered with a JSON-RPC error

One function (`proxy.Proxy._fail`) makes responses of them.
"""

from gateway.core import jsonrpc
from gateway.core.headers import Headers
from gateway.core.jsonrpc import INTERNAL_ERROR, INVALID_REQUEST


class GatewayError(Exception):
    """What the gateway has to tell a client instead of an answer."""

    status = 502
    reason = b"Bad Gateway"
    code = INTERNAL_ERROR

    @property
    def kind(self) -> str:
        """The failure's name in metrics and logs."""
        return type(self).__name__

    def message(self, raw_id: bytes) -> bytes:
        """The error as a JSON-RPC response to the request of that raw id, which is empty if it is not known."""
        return jsonrpc.error(raw_id, self.code, f"{self.reason.decode('latin-1')}: {self}")


class Ambiguous(GatewayError):
    status, reason, code = 400, b"Bad Request", INVALID_REQUEST


class Forbidden(GatewayError):
    status, reason, code = 403, b"Forbidden", INVALID_REQUEST


class NoUpstream(GatewayError):
    status, reason, code = 404, b"Not Found", INVALID_REQUEST


class Overloaded(GatewayError):
    status, reason = 503, b"Service Unavailable"


class UpstreamUnreachable(GatewayError):
    pass


class UpstreamBroken(GatewayError):
    pass


class UpstreamTimeout(GatewayError):
    status, reason = 504, b"Gateway Timeout"


class UpstreamRefused(GatewayError):
    """The upstream answered a request of the crawler's with an HTTP error, which the client gets (DESIGN 5.8)."""

    def __init__(self, status: int, reason: bytes, headers: Headers, body: bytes, crawl_id: bytes) -> None:
        super().__init__(f"the upstream answered {status}")
        self.status, self.reason, self.headers, self.body, self.crawl_id = status, reason, headers, body, crawl_id


class UpstreamFailed(GatewayError):
    """The upstream answered a request of the crawler's with a JSON-RPC error, which the client gets (DESIGN 5.8)."""

    status, reason = 200, b"OK"

    def __init__(self, error: bytes) -> None:
        super().__init__("the upstream answered with a JSON-RPC error")
        self.error = error

    def message(self, raw_id: bytes) -> bytes:
        return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (raw_id, self.error)
