"""What `initialize` said in each session: it cannot be asked for again, so it is kept longer than an index."""

from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from gateway.caller_identity import Key, ServerKey
from gateway.mcp.capabilities import Server
from gateway.owners.eviction import Space, Storable, Stored
from gateway.tasks.index import METHOD_CHARS_MAX

CAPABILITIES_MAX: Final = 100_000  # results of `initialize`: 730 bytes each, 73 MB in all
CAPABILITIES_IDLE_S: Final = 24 * 3600.0

OfAll: TypeAlias = tuple[ServerKey, bytes, bytes]
"""A session, for every identity: a token may be renewed in the middle of one."""


class Said(Storable[OfAll]):
    size_bytes = 0  # only their number is limited

    def __init__(self, key: OfAll, server: Server) -> None:
        self.key, self.server = key, server


class CapabilityCache:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.said: Stored[OfAll, Said] = Stored(Space(0, CAPABILITIES_MAX, CAPABILITIES_IDLE_S))

    def note(self, key: Key, server: Server) -> None:
        # The list of task methods may take 64 KiB. Only a single method is ever used.
        methods = server.methods if len(server.default_method or "") <= METHOD_CHARS_MAX else ()
        server, now = msgspec.structs.replace(server, methods=methods if len(methods) == 1 else ()), self._clock()
        self.said.expire(now)
        self.said.remove(key.of_all)
        self.said.use(Said(key.of_all, server), now)

    def get(self, key: Key, is_use: bool = True) -> Server | None:
        """The server of a session, None if its `initialize` was not seen. `is_use`: it counts as used now."""
        said, now = self.said.get(key.of_all), self._clock()
        if said is None or now - said.used_at >= CAPABILITIES_IDLE_S:
            return None
        if is_use:
            self.said.touch(said, now)
        return said.server
