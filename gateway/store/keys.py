"""The names of keys, and how long they are kept: none tells whose it is, and no two versions have one in common."""

from collections.abc import Iterable
from hashlib import blake2b
from importlib.metadata import version
from typing import Final

from gateway import config
from gateway.caller_identity import Key

_VERSION: Final = version("taskgate").encode()


class KeyNames:
    """The names of keys; how long the value and the entries of an unused session are kept."""

    def __init__(self) -> None:
        self.value_ms = self.entries_ms = 0
        self._servers: dict[str, bytes] = {}

    def serve(self, upstreams: Iterable[config.Upstream], value_s: float, entries_s: float) -> bool:
        """Take over what is in force from now on. Returns whether anything has changed."""
        before = self._servers, self.value_ms, self.entries_ms
        # A name may mean another server elsewhere, or after a reload.
        self._servers = {u.name: f"{u.name} {u.url} {u.socket}".encode() for u in upstreams}
        self.value_ms, self.entries_ms = int(value_s * 1000), int(entries_s * 1000)
        return before != (self._servers, self.value_ms, self.entries_ms)

    def of_value(self, key: Key) -> str | None:
        """The name of the value of a session; None if there is no such upstream, or no longer."""
        return self._name("server", *key.of_all)

    def of_entries(self, key: Key) -> str | None:
        """The name of the entries of a session of one identity; None if there is no such upstream, or no longer."""
        return self._name("tasks", *key.of_all, key.identity)

    def _name(self, kind: str, upstream: str, *parts: bytes) -> str | None:
        if upstream not in self._servers:
            return None
        digest = blake2b(digest_size=16)
        for part in (_VERSION, self._servers[upstream], *parts):
            digest.update(b"%d:%b" % (len(part), part))
        return f"taskgate:{digest.hexdigest()}:{kind}"
