"""What `initialize` said in each session: it cannot be asked for again, so it is kept longer than an index."""

from collections.abc import Callable, Container
from typing import Final, TypeAlias

import msgspec
from cachetools import TTLCache

from gateway.caller_identity import Key, ServerKey
from gateway.mcp.capabilities import Server
from gateway.tasks.index import METHOD_CHARS_MAX

CAPABILITIES_MAX: Final = 100_000  # results of `initialize`: 730 bytes each, 73 MB in all
CAPABILITIES_IDLE_S: Final = 24 * 3600.0
TOLD_AGAIN: Final = 4  # times in the time for which the store keeps what is not used

OfAll: TypeAlias = tuple[ServerKey, bytes, bytes]
"""A session, for every identity: a token may be renewed in the middle of one."""


class CapabilityCache:
    def __init__(self, clock: Callable[[], float], tell: Callable[[OfAll, Server], None] | None = None) -> None:
        """`tell` is told what `initialize` said, and again at intervals while the session is in use."""
        self._servers: TTLCache[OfAll, Server] = TTLCache(CAPABILITIES_MAX, CAPABILITIES_IDLE_S, timer=clock)
        self._told: TTLCache[OfAll, None] = TTLCache(CAPABILITIES_MAX, CAPABILITIES_IDLE_S / TOLD_AGAIN, timer=clock)
        self._tell = tell
        self.may_filter = True  # else the gateway answers for those too that filter by themselves

    def note(self, key: Key, server: Server) -> None:
        # The list of task methods may take 64 KiB. Only a single method is ever used.
        methods = server.methods if len(server.default_method or "") <= METHOD_CHARS_MAX else ()
        self._told.pop(key.of_all, None)
        self._use(key.of_all, msgspec.structs.replace(server, methods=methods if len(methods) == 1 else ()))

    def hear(self, key: Key, server: Server) -> None:
        """Another replica has told what `initialize` said."""
        self._servers.setdefault(key.of_all, server)

    def all(self) -> list[tuple[OfAll, Server]]:
        return list(self._servers.items())

    def end(self, key: Key) -> None:
        self._servers.pop(key.of_all, None)
        self._told.pop(key.of_all, None)

    def get(self, key: Key, is_use: bool = True) -> Server | None:
        """The server of a session, None if its `initialize` was not seen. `is_use`: it counts as used now."""
        server = self._servers.get(key.of_all)
        if server is not None and is_use:
            self._use(key.of_all, server)
        return server

    def _use(self, of_all: OfAll, server: Server) -> None:
        self._servers[of_all] = server
        if self._tell is not None and of_all not in self._told:
            self._told[of_all] = None
            self._tell(of_all, server)

    def native(self, key: Key) -> Server | None:
        """The server of a session, if it filters its lists by itself. The session counts as used now."""
        server = self.get(key)
        return server if self.may_filter and server is not None and not server.filtered_here else None

    def forget(self, servers: Container[ServerKey]) -> None:
        for key in [key for key in self._servers if key[0] in servers]:
            self._servers.pop(key, None)
