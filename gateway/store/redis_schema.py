"""The store in Redis or Valkey, as a replica has it: what it tells goes out in batches, and its questions get answers.

In: what this replica tells, and its questions. Out: answers within `timeout`, None if need be. Always: nobody waits for
what is written. While the store is down or slow, questions get None at once. It never raises (DESIGN 12). The name of a
key does not tell whose it is, and no two versions have one in common.

An entry of a session is a `ReplicaUpdate`: what the server cannot be asked for again.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from hashlib import blake2b
from importlib.metadata import version
from typing import Annotated, Final, NamedTuple, TypeVar

import msgspec

from gateway import config
from gateway.caller_identity import Key, ServerKey
from gateway.mcp.jsonrpc import decoded
from gateway.mcp.task import to_encode
from gateway.store.redis_command_queue import Command, Ending, Read, asking_lasts, read_in, reading
from gateway.store.redis_connection import Pipeline, StoreState
from gateway.tasks.index import METHOD_CHARS_MAX
from gateway.tasks.reconciliation import MARKED_ID_CHARS_MAX

_ENTRIES_MAX: Final = 100_000  # of one key; the oldest go first
_AT_ONCE: Final = 200  # entries, between two turns of others
_VERSION: Final = version("taskgate").encode()
_Each = TypeVar("_Each")


class ReplicaUpdate(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a replica has seen of one task: that it is there, and its method if that is known; or that it is gone.

    The id None stands for all tasks: anything may have changed.
    """

    id: Annotated[str, msgspec.Meta(max_length=MARKED_ID_CHARS_MAX)] | None
    method: Annotated[str, msgspec.Meta(max_length=METHOD_CHARS_MAX)] | None = None
    gone: bool = False


_update = msgspec.json.Decoder(ReplicaUpdate)
DOUBT: Final = msgspec.json.encode(ReplicaUpdate(None))


def entry_of(task_id: str, method: str | None) -> bytes:
    short = method if len(method or "") <= METHOD_CHARS_MAX else None
    return msgspec.json.encode(ReplicaUpdate(to_encode(task_id), short))


def entry_of_gone(task_id: str) -> bytes:
    return msgspec.json.encode(ReplicaUpdate(to_encode(task_id), gone=True))


def updates_in(entries: Iterable[bytes]) -> Iterator[ReplicaUpdate]:
    return (update for entry in entries if (update := decoded(_update, entry)) is not None)


def slices(these: Sequence[_Each]) -> Iterator[Sequence[_Each]]:
    """A few at a time, so that others get their turn."""
    for start in range(0, len(these), _AT_ONCE):
        yield these[start : start + _AT_ONCE]


class Heard(NamedTuple):
    """Up to which place the entries of a key were read, in which `epoch` of the store, and when."""

    epoch: int = 0
    place: int = 0
    at: float = float("-inf")


class RedisStore(Pipeline):
    """An entry stands once, however often it is added.

    If a write is lost, everything is told again; one of `drop`, or of what is `owed`, is repeated itself.
    """

    def __init__(self, settings: config.StoreSettings, failed: Callable[[str], None]) -> None:
        super().__init__(settings, failed)
        self._servers: dict[ServerKey, bytes] = {}

    @property
    def is_up(self) -> bool:
        """Whether it answers in time, and has taken in all that this replica told."""
        return self.state is StoreState.UP

    def serves(self, servers: Mapping[ServerKey, config.Upstream], server_s: float, entries_s: float) -> None:
        """The servers from now on; how long the value and the entries of an unused session are kept."""
        before = self._servers, self.value_ms, self.entries_ms
        # A name may mean another server elsewhere. Nothing is told, or asked, of one that a reload has replaced.
        self._servers = {key: f"{u.name} {u.url} {u.socket}".encode() for key, u in servers.items()}
        self.value_ms, self.entries_ms = int(server_s * 1000), int(entries_s * 1000)
        if before != (self._servers, self.value_ms, self.entries_ms):
            self._lacks = True
            self.now()

    def name_of_value(self, key: Key) -> str | None:
        """The name of the value of a session; None if its server is no longer the upstream's."""
        return self._name("server", *key.of_all)

    def name_of_entries(self, key: Key) -> str | None:
        """The name of the entries of a session of one identity; None as for the value."""
        return self._name("tasks", *key.of_all, key.identity)

    def _name(self, kind: str, server: ServerKey, *parts: bytes) -> str | None:
        if server not in self._servers:
            return None
        digest = blake2b(digest_size=16)
        for part in (_VERSION, self._servers[server], *parts):
            digest.update(b"%d:%b" % (len(part), part))
        return f"taskgate:{{1}}:{digest.hexdigest()}:{kind}"  # one slot of a cluster: scripts name several keys

    def put(self, key: Key, server: bytes) -> None:
        """Keep the value of a session. The identity does not count."""
        if (name := self.name_of_value(key)) is not None:
            self.waiting.put(name, server)
            self.soon()

    def add(
        self,
        key: Key,
        new: Iterable[bytes],
        old: Iterable[bytes] = (),
        owed: bool = False,
        kept_s: float = 0.0,
        most: int = _ENTRIES_MAX,
    ) -> None:
        """Take the entries in `old` out, then add those in `new`; keep `most`. What is `owed` is not told again.

        They are kept for `kept_s` at least, or as those of a session.
        """
        if (name := self.name_of_entries(key)) is not None:
            kept_ms = int(kept_s * 1000) or self.entries_ms
            if owed:
                self.waiting.end(Ending(name, tuple(new), tuple(old), kept_ms, most))
            else:
                self.waiting.add(name, list(new), list(old), kept_ms, most)
            self.soon()

    def drop(self, key: Key) -> None:
        """Forget the value of a session, for every identity, and all entries."""
        for name in filter(None, (self.name_of_value(key), self.name_of_entries(key))):
            self.waiting.end(Ending(name))
            self.soon()

    async def lasts(self, sets: Iterable[Key], entries: Iterable[bytes], others: Iterable[Key]) -> list[bytes] | None:
        """As of `asking_lasts`, in lines; None if the store does not say it within `timeout`."""
        names, other_names = ([name for key in keys if (name := self.name_of_entries(key))] for keys in (sets, others))
        async with self._in_time():
            return await self._ask(asking_lasts(names, entries, other_names)) if names else None
        return None

    async def read(self, key: Key, heard: Heard | None = None) -> Read | None:
        """What the store has that was not heard; None if it does not say so within `timeout`."""
        value, entries = self.name_of_value(key), self.name_of_entries(key)
        found: Read | None = None
        after = heard.place if heard is not None and heard.epoch == self.epoch else 0
        async with self._in_time():
            while value is not None and entries is not None and (found is None or not found.complete):
                if (lines := await self._ask(reading(value, entries, after))) is None:
                    break
                part = read_in(lines, after)
                found = part if found is None else part._replace(tasks=found.tasks + part.tasks)
                after = part.place
        return found

    @asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        """What takes longer than `timeout` ends."""
        try:
            async with asyncio.timeout(self._timeout_s):
                yield
        except TimeoutError:
            self.note_late()

    async def _ask(self, question: Command) -> list[bytes] | None:
        if self.answers_late:
            return None
        asked = self.waiting.ask(question)
        self.now()
        found: list[bytes] | None = await asyncio.shield(asked)
        return found
