"""All connections of clients: how many there may be, their deadlines, and their end.

In: connections. Out: their exchanges, to `handle`. Always: connections beyond `connections_max` are refused; a drain
waits for answers and for their readers, never for the end of a stream.

aiohttp's server is not used (DESIGN 10): 3.14.5 makes a chunked request's last trailer a field of the next request, and
its tasks, futures and readers for each request cost a third more CPU time (docs/performance.md).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from gateway.config import Limits
from gateway.transport import http1
from gateway.transport.buffers import Buffers
from gateway.transport.connection import ClientConnection
from gateway.transport.exchange import Exchange

log = logging.getLogger("taskgate.listener")

TURNED_AWAY_MAX: Final = 100  # connections that get a 503 at a time; further ones are only closed
_COMPLAINT_INTERVAL_S: Final = 1.0
_NEVER: Final = float("inf")


class Listener:
    """All connections of clients."""

    def __init__(
        self,
        handle: Callable[[Exchange], Awaitable[None]],
        limits: Limits,
        buffers: Buffers,
        on_refused: Callable[[str], None],
    ) -> None:
        self.handle = handle
        self.limits = limits
        self.buffers = buffers
        self.connections_max = limits.connections_max  # fewer if there are too few file descriptors
        self._on_refused = on_refused
        self._next_complaint_at = -_NEVER
        self.connections: set[ClientConnection] = set()
        self.turned_away: set[ClientConnection] = set()  # those of `connections` beyond `connections_max`
        self.draining = False
        self._one_lost = asyncio.Event()

    def connection(self) -> ClientConnection:
        """A protocol for one connection: the factory that the event loop's server calls."""
        return ClientConnection(self, asyncio.get_running_loop())

    def opened(self, connection: ClientConnection) -> http1.Refusal | None:
        """A connection has come. Connections beyond `connections_max` get a 503 that they can read."""
        self.connections.add(connection)
        if len(self.connections) - len(self.turned_away) <= self.connections_max:
            return None
        self.turned_away.add(connection)
        self.refused("connections_max")
        if len(self.turned_away) > TURNED_AWAY_MAX:
            connection.close()
            return None
        return http1.Refusal(503, b"Service Unavailable", f"more than {self.connections_max} connections")

    def lost(self, connection: ClientConnection) -> None:
        """A connection has gone."""
        self.connections.discard(connection)
        self.turned_away.discard(connection)
        self._one_lost.set()

    def refused(self, why: str) -> None:
        """A connection cannot be served. `why` is "connections_max", or "descriptors" if the system has none left."""
        self._on_refused(why)
        now = asyncio.get_running_loop().time()
        if now >= self._next_complaint_at:
            self._next_complaint_at = now + _COMPLAINT_INTERVAL_S
            extra = {"why": why, "connections": len(self.connections), "connections_max": self.connections_max}
            log.warning("connections of clients are refused", extra=extra)

    def sweep(self, now: float) -> None:
        """Time out the connections past their deadline. Notice which clients have left while they were not read."""
        for connection in list(self.connections):
            if now > connection.deadline:
                connection.time_out()
            elif connection.is_held:
                connection.look_for_its_end()

    async def drain(self, timeout_s: float) -> None:
        """Let requests be answered, and answers be read, for `timeout_s` at most; then close every connection."""
        self.draining = True
        for connection in list(self.connections):
            connection.close_when_idle()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while any(connection.is_busy for connection in self.connections):
                    self._one_lost.clear()
                    await self._one_lost.wait()
        tasks = [task for connection in list(self.connections) if (task := connection.end()) is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)
        for connection in list(self.connections):
            connection.close()
