"""What `tasks/` needs of its surroundings: the ways to the server and back, counts."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from gateway.mcp.jsonrpc import Message


class Channel(Protocol):
    """The way to the server, for requests of the gateway's own."""

    def is_free(self, message_id: int) -> bool:
        """Whether no request of the client's that this id could be mixed up with is under way."""

    async def ask(self, request: bytes, message_id: int) -> Message:
        """The response to one JSON-RPC request of that id. Raises GatewayError; a JSON-RPC error is a response."""


class Reply(Protocol):
    """The way back to the requestor of one query, for messages; the last one is the response."""

    def channel(self, on_message: Callable[[bytes], Awaitable[None]], as_it_came: bool = False) -> Channel:
        """A channel in the caller's name. `on_message` gets every other message that comes with a response.

        `as_it_came`: its requests are like the caller's, so the server refuses them if it would refuse the caller's.
        """

    def owe(self, requests: int) -> None:
        """So many requests of the gateway's are made for it: they count for its client (DESIGN 8.9)."""

    @property
    def streaming(self) -> bool:
        """Whether something has been sent."""

    @property
    def is_full(self) -> bool:
        """Whether `drain` waits: the requestor is too far behind."""

    async def drain(self) -> None:
        """Wait until the requestor has taken enough of what was sent."""

    def hold(self, size_bytes: int) -> None:
        """Hold room for a response of so many bytes until it is sent. Raises Overloaded if there is none."""

    def forward(self, data: bytes) -> None:
        """Send a message ahead of the response. After the response it does nothing."""

    def send(self, data: bytes, code: int | None = None) -> None:
        """Send the response, which ends the reply; an error with its code. `hold` has room for a large one."""


@dataclass(slots=True)
class EndedQuery:
    """What became of a query. Paging by hand would have cost `spared_requests` and `spared_bytes` more."""

    upstream: str
    outcome: str
    reason: str  # of the plan, or why the query failed
    requests: int = 0  # of the refresh
    spared_requests: int = 0
    spared_bytes: int = 0
    tasks: int = 0  # shown
    total: int = 0  # that match


class Counts(Protocol):
    def plan(self, upstream: str, reason: str) -> AbstractContextManager[None]:
        """A plan of a query is carried out while the context lasts."""

    def asking(self, upstream: str, method: str) -> AbstractContextManager[None]:
        """A request of a refresh goes to the upstream; it is under way while the context lasts."""

    def crawl_page(self, upstream: str) -> None:
        """A crawl has read a page."""

    def crawl(self, upstream: str, seconds: float) -> None:
        """A crawl has ended, well or not."""

    def query(self, ended: EndedQuery) -> None:
        """A query was answered, or failed."""
