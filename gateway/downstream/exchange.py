"""One exchange of a client: its request, its response, and what is noted of them on the way."""

from dataclasses import dataclass
from typing import Any

from gateway.downstream.client_request import ClientRequest
from gateway.downstream.client_response import ClientResponse
from gateway.http.header_fields import Headers
from gateway.http.request_parser import Head
from gateway.mcp import jsonrpc
from gateway.mcp.client_message import ClientMessage
from gateway.transport.base_connection import ClientWire
from gateway.transport.memory_budget import SMALL_BYTES_MAX


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
        """The exchange that a head begins."""
        request = ClientRequest(connection, head)
        return cls(connection, request, ClientResponse(request, connection, head.keep_alive))

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
        self.response.inform(status, reason, headers)
