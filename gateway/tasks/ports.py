"""What `tasks/` needs of its surroundings: the caller, a channel to the server, a way back to the requestor, counts.

For HTTP they are in `transport/caller.py`, `transport/channel.py` and `transport/reply.py`; for stdio in
`transport/stdio.py`. The counts are `operate/metrics.py`.
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Protocol

from gateway.identity import Key
from gateway.mcp.jsonrpc import Message


class Channel(Protocol):
    """The way to the server, for requests of the gateway's own."""

    async def ask(self, request: bytes, raw_id: bytes) -> Message:
        """The response to one JSON-RPC request of that raw id. Raises GatewayError; a JSON-RPC error is a response."""


class Caller(Protocol):
    """The client that asks, for the time of one request."""

    @property
    def key(self) -> Key:
        """The key of the caller's session."""

    @property
    def asks_first(self) -> bool:
        """Whether the server may refuse the caller's request, but not the gateway's own, which differ (DESIGN 5.1)."""

    def channel(self, on_message: Callable[[bytes], Awaitable[None]], as_it_came: bool = False) -> Channel:
        """A channel in the caller's name. `on_message` gets every other message that comes with a response.

        `as_it_came`: its requests are like the caller's, so the server refuses them if it would refuse the caller's.
        """


class Reply(Protocol):
    """The way back to the requestor of one query, for messages; the last one is the response."""

    @property
    def streaming(self) -> bool:
        """Whether something has been sent."""

    @property
    def is_full(self) -> bool:
        """Whether `drain` waits: the requestor has too much yet to take."""

    async def drain(self) -> None:
        """Wait until the requestor has taken enough of what was sent."""

    def forward(self, data: bytes) -> None:
        """Send a message ahead of the response. After the response it does nothing."""

    def send(self, data: bytes) -> None:
        """Send the response message, which ends the reply. Raises Overloaded if there is no room to hold it."""

    def end(self) -> None:
        """End without a response: the request was cancelled."""


class Counts(Protocol):
    """What is counted for the operator."""

    def plan(self, upstream: str, reason: str) -> AbstractContextManager[None]:
        """A plan of a query is carried out while the context lasts."""

    def asking(self, upstream: str, method: str) -> AbstractContextManager[None]:
        """A request of a refresh goes to the upstream; it is under way while the context lasts."""

    def crawl_page(self, upstream: str) -> None:
        """A crawl has read a page."""

    def crawl(self, upstream: str, seconds: float) -> None:
        """A crawl has ended, well or not."""

    def query(
        self,
        upstream: str,
        outcome: str,
        spared_requests: int,
        spared_bytes: int,
        reason: str,
        requests: int = 0,
        tasks: int = 0,
        total: int = 0,
    ) -> None:
        """A query was answered, or failed. Paging by hand would have cost `spared_requests` and `spared_bytes` more.

        `reason` is that of the plan, or why the query failed. `requests` went up. `tasks` of `total` were shown.
        """
