"""All connections of clients: how many there may be, their deadlines, and their end.

In: connections. Out: their exchanges, to `handle`. Always: connections beyond `connections_max` are refused, and those
for which the system has no file descriptors; a drain waits for answers and for their readers, never for the end of a
stream.

aiohttp's server is not used (DESIGN 10): 3.14.5 makes a chunked request's last trailer a field of the next request.
"""

import asyncio
import logging
import os
import resource
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeAlias

from gateway.config import Limits
from gateway.downstream.client_connection import ClientConnection, Handle
from gateway.http.parsed_head_cache import HeadCache
from gateway.http.request_parser import Refusal
from gateway.transport.memory_budget import Buffers
from gateway.transport.repeated_log_lines import LogLimit

log = logging.getLogger("taskgate.listener")

TURNED_AWAY_MAX: Final = 100  # connections that get a 503 at a time; further ones are only closed
_OTHERS: Final = 64  # descriptors for listeners, the log, the admin listener, DNS
_RESERVED: Final = _OTHERS + TURNED_AWAY_MAX
_Count: TypeAlias = Callable[[str], None]


class Listener:
    """All connections of clients. Those that are not served, and handshakes that fail, are counted by reason."""

    def __init__(
        self, handle: Handle, limits: Limits, buffers: Buffers, heads: HeadCache[Any], refused: _Count, failed: _Count
    ) -> None:
        self.handle = handle
        self.limits = limits
        self.buffers = buffers
        self.heads = heads
        self.connections_max = limits.connections_max  # fewer if there are too few file descriptors
        self._count_refused, self._count_failed = refused, failed
        self._said = LogLimit(asyncio.get_running_loop().time)
        self.connections: set[ClientConnection] = set()
        self.turned_away: set[ClientConnection] = set()  # those of `connections` beyond `connections_max`
        self._check_again = asyncio.Event()

    @property
    def served(self) -> int:
        """How many connections there are, without those beyond `connections_max`."""
        return len(self.connections) - len(self.turned_away)

    def gauges(self) -> dict[str, tuple[str, float]]:
        """The connections that are there now, and their limit: name of the metric to (help, value)."""
        return {
            "connections": ("Connections of clients, without those that are refused.", self.served),
            "connections_max": ("Limit of connections: those that can be kept.", self.connections_max),
        }

    def connection(self) -> ClientConnection:
        """A protocol for one connection: the factory that the event loop's server calls."""
        return ClientConnection(self, asyncio.get_running_loop())

    def opened(self, connection: ClientConnection) -> Refusal | None:
        """A connection has come. Connections beyond `connections_max` get a 503 that they can read."""
        if connection in self.connections:
            return None  # it has counted since its handshake began
        self.connections.add(connection)
        if self.served <= self.connections_max:
            return None
        self.turned_away.add(connection)
        self.refused("connections_max")
        if len(self.turned_away) > TURNED_AWAY_MAX:
            connection.close()
            return None
        return Refusal(f"more than {self.connections_max} connections", 503, b"Service Unavailable")

    def lost(self, connection: ClientConnection) -> None:
        self.connections.discard(connection)
        self.turned_away.discard(connection)
        self._check_again.set()

    def refused(self, why: str) -> None:
        """A connection cannot be served. `why` is "connections_max", or "descriptors" if the system has none left."""
        self._count_refused(why)
        extra = {"why": why, "connections": len(self.connections), "connections_max": self.connections_max}
        self._said.say(log, logging.WARNING, "connections of clients are refused", extra)

    def unreadable(self, connection: ClientConnection, refused: Refusal) -> None:
        """What a client sent is refused."""
        extra = {"status": refused.status, "client": connection.address, "why": refused.why}
        self._said.say(log, logging.INFO, "refused a request", extra, refused.why)

    def handshake_failed(self, connection: ClientConnection, reason: str, said: str) -> None:
        """A TLS handshake has failed. `said` is OpenSSL's name of it, empty if it has none."""
        self._count_failed(reason)
        extra = {"client": connection.address, "reason": reason} | ({"openssl": said} if said else {})
        self._said.say(log, logging.INFO, "a TLS handshake failed", extra)

    def sweep(self, now: float) -> None:
        """Time out the connections past their deadline. Notice which clients have left while they were not read."""
        self._said.sweep()
        self._check_again.set()  # at what a drain waits for: an answer may have become a stream
        for connection in list(self.connections):
            if now > connection.deadline:
                connection.time_out()
            elif connection.is_paused:
                connection.check_end()

    async def drain(self, timeout_s: float) -> None:
        """Let requests be answered, and answers be read, for `timeout_s` at most; then close every connection."""
        for connection in list(self.connections):
            connection.close_when_idle()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while any(connection.is_busy for connection in self.connections):
                    self._check_again.clear()
                    await self._check_again.wait()
        tasks = [task for connection in list(self.connections) if (task := connection.end()) is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)
        for connection in list(self.connections):
            connection.close()
        self._said.flush()


def connections_kept(connections_max: int) -> int:
    """Raise the limit of descriptors, two for a client, as allowed. Returns how many clients can be connected."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * connections_max + _RESERVED
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections_max
    kept = max(1, (soft - _RESERVED) // 2)
    extra = {"connections_max": connections_max, "descriptors": soft, "kept": kept}
    too_few = "limits.connections_max cannot be kept: too few file descriptors (ulimit -n, LimitNOFILE)"
    level = logging.INFO if connections_max == Limits().connections_max else logging.WARNING  # nobody asked for it
    logging.getLogger("taskgate").log(level, too_few, extra=extra)
    return kept


def are_exhausted() -> bool:
    """Whether no descriptor is left, so that no connection can be accepted."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return True
    return False
