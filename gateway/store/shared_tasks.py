"""Sessions that several replicas share by a store (DESIGN 12). It is imported only if a store is configured.

In: what happens to the sessions of this replica; what the store has. Out: what the store is told; to a session, marks
and methods that other replicas have told. Always: what is heard is told only when everything is. Only a query waits for
the store, and what was told `max_age` ago counts in its answer.

    a session's task                                      the store is told
    is there, and other replicas could not learn it       its id, and its method if that is known
    has gone                                              that it is gone
    is one of many that have gone at once                 that anything may have changed

    a session
    was opened by `initialize`                            what that said
    is used                                               so, at intervals
    is refused to its caller                              nothing: another replica's caller may be accepted (12.4)
    was ended by its client                               to forget all of it

    the store
    is new, has forgotten or refused something            everything again: `tell_all`
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

import msgspec

from gateway import config
from gateway.caller_identity import Key
from gateway.mcp.capabilities import Server
from gateway.mcp.jsonrpc import decoded
from gateway.mcp.task import Moment
from gateway.mcp.task_observations import Observation
from gateway.store.redis_schema import DOUBT, RedisStore, ReplicaUpdate, entry_of, entry_of_gone, slices, updates_in
from gateway.store.shared_owners import SharedOwn
from gateway.tasks.capability_cache import TOLD_AGAIN, CapabilityCache, OfAll
from gateway.tasks.index import METHOD_CHARS_MAX, Named, TaskEntry
from gateway.tasks.reconciliation import MARKED_ID_CHARS_MAX, Record
from gateway.tasks.session_indexes import Session, Sessions

_TOLD_AT_ONCE: Final = 200
NEVER: Final = float("-inf")
_SESSIONS_AT_ONCE: Final = 20

_server = msgspec.json.Decoder(Server)


class _Told(NamedTuple):
    """What the store is to have of a task."""

    there: bool = False
    method: str | None = None
    denied: int = 0  # when something has denied it
    made: int = 0  # when a result made it, perhaps under the id of one that is gone


def _told_of(entry: TaskEntry | None) -> _Told:
    if entry is None:
        return _Told()
    stale = entry.stale
    denied = int(entry.is_gone) if stale is None else stale.denied
    if entry.is_unlisted:
        return _Told(True, entry.method, denied, 0 if stale is None else stale.made)
    if stale is not None and stale.named is Named.TO_CALLER and (not entry.raw or stale.method is not None):
        return _Told(True, stale.method, denied, stale.made)
    return _Told(denied=denied)


def _may_be_told(task_id: str) -> bool:
    """Whether an id is short enough for replicas to tell each other of its task."""
    return len(task_id) <= MARKED_ID_CHARS_MAX


def entries_of(entries: Iterable[TaskEntry], with_methods: bool) -> Iterator[bytes]:
    """What the store is to have of these tasks; `with_methods`: servers do not tell them."""
    for entry in entries:
        told = _told_of(entry)
        if _may_be_told(entry.id) and (told.there or (with_methods and entry.method is not None)):
            yield entry_of(entry.id, told.method or entry.method)
        if _may_be_told(entry.id) and told.denied:
            yield entry_of_gone(entry.id)


class _Heard(msgspec.Struct):
    """What a replica has heard and told of a session, for as long as it has this record of it."""

    record: Record
    to: int = 0  # the place of the last entry of the store's that was taken in, in `epoch`
    epoch: int = 0
    at: float = NEVER  # when the store was last asked
    told_at: float = NEVER  # when the store last heard that the session is in use


class SharedSessions(Sessions):
    own: SharedOwn | None

    def __init__(
        self, limits: config.IndexLimits, clock: Callable[[], float], store: RedisStore, apart: bool = False
    ) -> None:
        self._shared = store
        self._heard = WeakKeyDictionary[Session, _Heard]()
        self._hears = False  # what others have told is not told again
        super().__init__(limits, CapabilityCache(clock, self._tell_server), clock, apart)
        self._stored.on_use = self._tell_use

    def _new_own(self, limits: config.IndexLimits) -> SharedOwn:
        return SharedOwn(limits, self.now, self._lose, self._shared)

    def _new(self, key: Key) -> Session:
        return Session(key, self._seen, partial(self._tell, key))

    def _tell(self, key: Key, before: TaskEntry | None, after: TaskEntry) -> None:
        """Tell the store what has changed of a task, if other replicas cannot learn it."""
        was, now, task_id = _told_of(before), _told_of(after), after.id
        if self._hears or not _may_be_told(task_id):
            return
        if now.denied not in (0, was.denied):
            old = {gone := entry_of_gone(task_id)}
            if before is not None and after.is_gone and after.told is not before.told:  # the server says so; else ...
                methods = {None, before.method, None if before.stale is None else before.stale.method}
                old |= {entry_of(task_id, method) for method in methods}  # ... it may be there: what tells so stays
            is_known = before is not None and (before.raw != b"" or before.stale is not None)
            self._shared.add(key, [gone], old, owed=is_known)
        elif now.there and (not was.there or was.denied or now.made > was.made or now.method not in (None, was.method)):
            self._shared.add(key, [entry_of(task_id, now.method)], [entry_of_gone(task_id)])

    def _tell_server(self, of_all: OfAll, server: Server) -> None:
        self._shared.put(Key(*of_all, b""), msgspec.json.encode(server))

    def _hear_server(self, key: Key, value: bytes | None) -> None:
        server = None if value is None else decoded(_server, value)
        if server is not None and len(server.methods) <= 1 and len(server.default_method or "") <= METHOD_CHARS_MAX:
            self.servers.hear(key, server)

    def lose_many(self, session: Session) -> None:
        self._shared.add(session.key, [DOUBT], [DOUBT], owed=True)

    def _heard_of(self, session: Session) -> _Heard:
        heard = self._heard.get(session)
        if heard is None or heard.record is not session.record:
            heard = self._heard[session] = _Heard(session.record)
        return heard

    def _tell_use(self, session: Session, now: float) -> None:
        """Tell the store that a session is in use, so that it keeps what it has of it."""
        heard = self._heard_of(session)
        if now - heard.told_at > self._limits.idle_timeout / TOLD_AGAIN:
            heard.told_at = now
            self._shared.add(session.key, ())

    def observe(self, key: Key, said: Observation, asked: Moment | None = None) -> None:
        entries = {} if (session := self.find(key)) is None else session.record.index.entries
        if (denied := said.denied) is not None and denied not in entries and _may_be_told(denied):
            self._shared.add(key, [gone := entry_of_gone(denied)], [gone])  # another replica may know it
        super().observe(key, said, asked)

    def drop_all(self, key: Key) -> set[Key]:
        keys = super().drop_all(key)
        for each in keys:
            self._shared.drop(each)  # another replica may have told of it
        return keys

    async def learn(self, session: Session) -> bool:
        if self.own is not None:
            await self.own.learn(session.owners)
        if self.is_behind(session):
            await self.catch_up(session)
        return True

    def is_behind(self, session: Session) -> bool:
        """Whether a query must first learn what other replicas have told: it must know what was told `max_age` ago."""
        return self._clock() - self._heard_of(session).at >= self._limits.max_age / 2

    async def catch_up(self, session: Session) -> None:
        """Learn what other replicas have told of a session. It waits for a bounded time."""
        now, heard, epoch = self.now(), self._heard_of(session), self._shared.epoch
        read = await self._shared.read(session.key, heard.to if heard.epoch == epoch else 0)
        if read is None or session.record is not heard.record:
            return
        self._hear_server(session.key, read.server)
        self._know_server(session)
        for some in slices(read.tasks):
            await asyncio.sleep(0)
            if session.record is not heard.record:
                return
            self._hear(session, updates_in(some), now)
        heard.epoch, heard.to = epoch, read.place
        if read.complete:
            heard.at = now.at
        if read.tasks:
            self.keep(session)

    def _hear(self, session: Session, said: Iterable[ReplicaUpdate], now: Moment) -> None:
        """Take in what other replicas have told. Methods are believed; the server is asked for all else."""
        self._hears = True
        try:
            for each in said:
                if each.id is None:
                    session.record.doubt(now)
                elif session.owns(each.id):  # else another caller's by now: nothing is asked in this one's name
                    session.record.hear(each.id, each.method, each.gone, now)
        finally:
            self._hears = False

    def tell_all(self) -> Iterator[None]:
        """Tell the store everything again that the servers cannot be asked for, piece by piece."""
        for count, (of_all, server) in enumerate(self.servers.all()):
            self._tell_server(of_all, server)
            if count % _TOLD_AT_ONCE == _TOLD_AT_ONCE - 1:
                yield
        yield from () if self.own is None else self.own.tell_all()
        for count, session in enumerate([*self._unaccepted.values(), *self._stored.all()]):
            index = session.record.index
            if self._heard_of(session).to:
                self._shared.add(session.key, ())  # others' entries are in use too
            for some in (some for part in index.parts() for some in slices(part)):
                if entries := list(entries_of(some, index.default_method is None)):
                    self._shared.add(session.key, entries)
                yield
            if count % _SESSIONS_AT_ONCE == _SESSIONS_AT_ONCE - 1:
                yield
