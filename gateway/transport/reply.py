"""The gateway's own response to a filtered `tasks/list`, on its way to the client.

In: messages. Out: the response as JSON; or as an event stream, if other messages came ahead of it (DESIGN 5.7): those
messages first, the result last. Always: the form is chosen when the first message goes out;
behind the response nothing is sent.
"""

from gateway.mcp import sse
from gateway.transport.caller import HttpCaller
from gateway.transport.exchange import Exchange
from gateway.transport.headers import EVENT_STREAM, Headers


class HttpReply:
    """The response to one filtered `tasks/list`: one JSON message, or a stream on which other messages come first."""

    def __init__(self, exchange: Exchange, caller: HttpCaller) -> None:
        self._exchange = exchange
        self._caller = caller

    @property
    def streaming(self) -> bool:
        return self._exchange.started

    @property
    def is_full(self) -> bool:
        """Whether the client has yet to take so much that sending more waits."""
        return self._exchange.connection.is_full

    def hold(self, size_bytes: int) -> None:
        """Hold room for a response of so many bytes. Raises Overloaded."""
        self._exchange.hold(size_bytes)

    def forward(self, data: bytes) -> None:
        """Send a message ahead of the response. After the response nothing happens."""
        if not self._exchange.finished:
            self._event(data)

    async def drain(self) -> None:
        """Wait until the client has taken enough of what was sent."""
        await self._exchange.connection.drain()

    def send(self, data: bytes) -> None:
        """Send the response message, which ends the reply. Room for a large one is held already."""
        if not self.streaming:
            self._exchange.respond(200, b"OK", [(b"Content-Type", b"application/json"), *self._caller.cors], data)
        else:
            self._event(data)
            self.end()

    def end(self) -> None:
        """End without a response, as a request that was cancelled does."""
        if not self.streaming:
            self._begin()
        self._exchange.end()

    def _event(self, data: bytes) -> None:
        if not self.streaming:
            self._begin()
        self._exchange.send(sse.event(data))
        self._exchange.flush()

    def _begin(self) -> None:
        fields = [(b"Content-Type", EVENT_STREAM), (b"Cache-Control", b"no-cache"), *self._caller.cors]
        self._exchange.begin(200, b"OK", Headers(fields), "chunked")
