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
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

import msgspec
from cachetools import TTLCache

from gateway import config
from gateway.caller_identity import Key, ServerKey
from gateway.mcp.capabilities import Server
from gateway.mcp.jsonrpc import decoded
from gateway.mcp.task import Moment, Stamp, Task
from gateway.mcp.task_observations import Observation
from gateway.owners.task_ids_seen_by_caller import Owners
from gateway.store.redis_schema import (
    DOUBT,
    RedisStore,
    ReplicaUpdate,
    entry_of,
    entry_of_gone,
    may_be_told,
    updates_in,
)
from gateway.store.shared_owners import SharedOwn
from gateway.tasks.index import METHOD_CHARS_MAX
from gateway.tasks.reconciliation import Mark
from gateway.tasks.session_indexes import CAPABILITIES_IDLE_S, CAPABILITIES_MAX, CapabilityCache, Session, Sessions

_TOLD_AGAIN: Final = 4  # times in the time for which the store keeps what is not used
_TOLD_AT_ONCE: Final = 200
NEVER: Final = float("-inf")
_SESSIONS_AT_ONCE: Final = 20

_Each = TypeVar("_Each")
_server = msgspec.json.Decoder(Server)


class SharedSession(Session):
    """A session that tells the store what its server cannot be asked for again."""

    def __init__(self, key: Key, seen: Owners, store: RedisStore) -> None:
        super().__init__(key, seen)
        self._store = store
        self.heard_to = 0  # the place of the last entry of the store's that was taken in, in `heard_epoch`
        self.heard_epoch = 0
        self.heard_at = NEVER  # when the store was last asked
        self._hears_all = False
        self.told_at = NEVER  # when the store last heard that the session is in use

    def clear(self) -> None:
        super().clear()
        self.heard_to, self.heard_at = 0, NEVER

    def take_in(self, said: Observation, asked: Moment | None, now: Moment) -> None:
        # Other replicas learn of listed tasks as this one does; what all are told need not be of this caller.
        self._hears_all = said.is_listed or said.is_told_to_all
        super().take_in(said, asked, now)
        self._hears_all = False

    def mark(
        self, task_id: str, now: Moment, seen: bool = True, first: int | None = None, method: str | None = None
    ) -> Mark | None:
        mark = super().mark(task_id, now, seen, first, method)
        if mark is not None and seen and not self._hears_all:
            is_new = mark.denied or not (mark.told or self.index.get(task_id) is not None)
            mark.told, mark.denied = True, False
            if is_new or method is not None:
                self._tell(task_id, method)
        return mark

    def mark_again(self, task_id: str, now: Moment) -> bool:
        mark = self.marks.get(task_id)
        return mark is not None and mark.told and not mark.denied and super().mark_again(task_id, now)

    def take(self, task: Task, told: Stamp, now: Moment) -> None:
        mark = self.marks.get(task.id)
        was_told = task.id in self.unlisted if mark is None else mark.told and not mark.denied
        super().take(task, told, now)
        if task.id in self.unlisted and not was_told:
            self._tell(task.id, self.index.method_of(task.id))

    def deny(self, task_id: str, now: Moment, is_asking: bool) -> None:
        is_known = self._is_known(task_id)
        if may_be_told(task_id) and (is_known or task_id not in self.gone):
            # It may be there: what tells so stays. It may have been told before, falsely: all are to hear it again.
            self._store.add(self.key, [gone := entry_of_gone(task_id)], [gone], owed=is_known)
        super().deny(task_id, now, is_asking)
        if (mark := self.marks.get(task_id)) is not None:
            mark.denied = is_known

    def miss(self, task_id: str, told: Stamp, now: Moment) -> None:
        owed, mark = self._is_known(task_id), self.marks.get(task_id)
        methods = {None, self.index.method_of(task_id), None if mark is None else mark.method}
        is_news = owed or task_id not in self.gone
        super().miss(task_id, told, now)
        if mark is not None and self.index.get(task_id) is None:
            mark.denied = mark.told
        if is_news and self.index.get(task_id) is None and may_be_told(task_id):
            was_told = [entry_of(task_id, method) for method in methods]
            self._store.add(self.key, [gone := entry_of_gone(task_id)], [gone, *was_told], owed)

    def _is_known(self, task_id: str) -> bool:
        """Whether anything is known of a task: of any other id a stranger can ask, which displaces nobody's entries."""
        return task_id in self.marks or self.index.get(task_id) is not None

    def _tell(self, task_id: str, method: str | None) -> None:
        """Tell that a task is there: other replicas cannot learn it."""
        if may_be_told(task_id):
            self._store.add(self.key, [entry_of(task_id, method)], [entry_of_gone(task_id)])

    def lose_many(self) -> None:
        self._store.add(self.key, [DOUBT], [DOUBT], owed=True)

    def take_updates(self, said: Iterable[ReplicaUpdate], now: Moment) -> None:
        """Take in what other replicas have told. Methods are believed; the server is asked for all else."""
        for each in said:
            if each.id is None:
                self.doubt(now)
                continue
            if not self.owns(each.id):
                continue  # another caller's by now: nothing is asked in this one's name
            if each.method is not None:
                self.index.note_method(each.id, each.method)
            if (self.index.get(each.id) is None) != each.gone:
                mark = Session.mark(self, each.id, now, first=0)
                if mark is not None:
                    mark.told, mark.denied = mark.told or not each.gone, mark.denied or each.gone
            elif each.gone and (mark := self.marks.get(each.id)) is not None:
                mark.denied = mark.told

    def tell_all(self) -> Iterator[None]:
        index = self.index
        if self.heard_to:
            self._store.add(self.key, ())  # others' entries are in use too
        for some in _slices(list(self.unlisted)):
            self._store.add(self.key, entries_of(filter(None, map(index.get, some))))
            yield
        marks = [(i, mark) for i, mark in self.marks.items() if (mark.told or mark.denied) and may_be_told(i)]
        there = [(i, mark) for i, mark in marks if mark.told and (index.get(i) is None or mark.method is not None)]
        for pairs in _slices(there):
            self._store.add(self.key, [entry_of(i, mark.method or index.method_of(i)) for i, mark in pairs])
            yield
        denied = [i for i, mark in marks if mark.denied]
        for some in _slices([*denied, *(i for i in self.gone if may_be_told(i))]):
            self._store.add(self.key, map(entry_of_gone, some))
            yield
        if index.default_method is None:
            seen = 0
            for tasks in (tasks for part in index.parts() for tasks in _slices(part)):
                if made := [task for task in tasks if task.method is not None]:
                    self._store.add(self.key, entries_of(made))
                seen += len(tasks)
                if seen >= _TOLD_AT_ONCE:
                    seen = 0
                    yield


def entries_of(tasks: Iterable[Task]) -> list[bytes]:
    return [entry_of(task.id, task.method) for task in tasks if may_be_told(task.id)]


def _slices(these: Sequence[_Each]) -> Iterator[Sequence[_Each]]:
    """A few at a time, so that others get their turn."""
    for start in range(0, len(these), _TOLD_AT_ONCE):
        yield these[start : start + _TOLD_AT_ONCE]


class SharedCapabilityCache(CapabilityCache):
    """What `initialize` said, here or at another replica."""

    def __init__(self, clock: Callable[[], float], store: RedisStore) -> None:
        super().__init__(clock)
        self._store = store
        self._told: TTLCache[tuple[ServerKey, bytes, bytes], None]  # to the store
        self._told = TTLCache(CAPABILITIES_MAX, CAPABILITIES_IDLE_S / _TOLD_AGAIN, timer=clock)

    def note(self, key: Key, server: Server) -> None:
        super().note(key, server)
        self._told.pop(key.of_all, None)
        self._tell(key)

    def get(self, key: Key, is_use: bool = True) -> Server | None:
        server = super().get(key, is_use)
        if server is not None and is_use:
            self._tell(key)
        return server

    def end(self, key: Key) -> None:
        super().end(key)
        self._told.pop(key.of_all, None)

    def _tell(self, key: Key) -> None:
        """Tell the store of a session, unless it has heard of it."""
        if key.of_all not in self._told:
            self._told[key.of_all] = None
            self._store.put(key, msgspec.json.encode(self._servers[key.of_all]))

    def take_in(self, key: Key, value: bytes | None) -> None:
        server = None if value is None or key.of_all in self._servers else decoded(_server, value)
        if server is not None and len(server.methods) <= 1 and len(server.default_method or "") <= METHOD_CHARS_MAX:
            self._servers[key.of_all] = server

    def tell_all(self) -> Iterator[None]:
        self._told.clear()
        for count, of_all in enumerate(list(self._servers)):
            if of_all in self._servers:
                self._tell(Key(*of_all, b""))
            if count % _TOLD_AT_ONCE == _TOLD_AT_ONCE - 1:
                yield


class SharedSessions(Sessions):
    servers: SharedCapabilityCache
    own: SharedOwn | None

    def __init__(
        self, limits: config.IndexLimits, clock: Callable[[], float], store: RedisStore, apart: bool = False
    ) -> None:
        self._shared = store
        super().__init__(limits, SharedCapabilityCache(clock, store), clock, apart)
        self._stored.on_use = self._tell_use

    def _new_own(self, limits: config.IndexLimits) -> SharedOwn:
        return SharedOwn(limits, self.now, self._lose, self._shared)

    def _new(self, key: Key) -> Session:
        return SharedSession(key, self._seen, self._shared)

    def _tell_use(self, used: Session, now: float) -> None:
        """Tell the store that a session is in use, so that it keeps what it has of it."""
        session = _shared(used)
        if now - session.told_at > self._limits.idle_timeout / _TOLD_AGAIN:
            session.told_at = now
            self._shared.add(session.key, ())

    def observe(self, key: Key, said: Observation, asked: Moment | None = None) -> None:
        if (denied := said.denied) is not None and may_be_told(denied) and self.find(key) is None:
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
        return self._clock() - _shared(session).heard_at >= self._limits.max_age / 2

    async def catch_up(self, behind: Session) -> None:
        """Learn what other replicas have told of a session. It waits for a bounded time."""
        session = _shared(behind)
        now, known, epoch = self.now(), session.known, self._shared.epoch
        read = await self._shared.read(session.key, session.heard_to if session.heard_epoch == epoch else 0)
        if read is None or session.known is not known:
            return
        self.servers.take_in(session.key, read.server)
        self._know_server(session)
        for number, some in enumerate(_slices(read.tasks)):
            if number > 0:
                await asyncio.sleep(0)
            if session.known is not known:
                return
            session.take_updates(updates_in(some), now)
        session.heard_epoch, session.heard_to = epoch, read.place
        if read.complete:
            session.heard_at = now.at
        if read.tasks:
            self.keep(session)

    def tell_all(self) -> Iterator[None]:
        """Tell the store everything again that the servers cannot be asked for, piece by piece."""
        yield from self.servers.tell_all()
        yield from () if self.own is None else self.own.tell_all()
        for count, session in enumerate([*self._unaccepted.values(), *self._stored.all()]):
            yield from _shared(session).tell_all()
            if count % _SESSIONS_AT_ONCE == _SESSIONS_AT_ONCE - 1:
                yield


def _shared(session: Session) -> SharedSession:
    assert isinstance(session, SharedSession)
    return session
