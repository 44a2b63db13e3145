"""What the sessions of this replica tell others by a store, and hear from them (DESIGN 12). Only a store imports it.

In: what happens to sessions here; what the store has. Out: what the store is told; to a session, marks and methods.
Always: what is heard is told again only when everything is. Only a query waits for the store.

    a session's task                                      the store is told
    is there, and other replicas could not learn it       its id, and its method if that is known
    has gone                                              that it is gone
    is one of many that have gone at once                 that anything may have changed

A refusal is not told: another replica's caller may be accepted (12.4).
"""

import asyncio
from collections.abc import Iterable, Iterator
from typing import NamedTuple
from weakref import WeakKeyDictionary

import msgspec

from gateway.caller_identity import Key
from gateway.mcp.capabilities import Server
from gateway.mcp.jsonrpc import decoded
from gateway.store.redis_schema import DOUBT, Heard, RedisStore, entry_of, entry_of_gone, slices, updates_in
from gateway.store.shared_owners import SharedOwn
from gateway.tasks.reconciliation import MARKED_ID_CHARS_MAX, Record
from gateway.tasks.session_indexes import Said, Session, Sessions
from gateway.tasks.task_entry import Source, Stale, TaskEntry

_server = msgspec.json.Decoder(Server)
_FRESH = Stale(0, 0, Source.BY_ERROR)


class _Told(NamedTuple):
    """What the store is to have of a task."""

    there: bool = False
    method: str | None = None
    denied: int = 0  # when something has denied it
    made: int = 0  # when a result made it, perhaps under the id of one that is gone


def _told_of(entry: TaskEntry | None) -> _Told:
    if entry is None:
        return _Told()
    stale = entry.stale or _FRESH
    is_named = stale.source is Source.TO_CALLER and (not entry.raw or stale.method is not None)
    denied = int(entry.is_gone) if entry.stale is None else stale.denied
    method = entry.method if entry.is_unlisted else stale.method
    return _Told(entry.is_unlisted or is_named, method, denied, stale.made)


def entries_of(entries: Iterable[TaskEntry], with_methods: bool) -> Iterator[bytes]:
    """What the store is to have of these tasks; `with_methods`: servers do not tell them."""
    for entry in entries:
        told = _told_of(entry)
        if len(entry.id) > MARKED_ID_CHARS_MAX:
            continue
        if told.there or (with_methods and entry.method is not None):
            yield entry_of(entry.id, told.method or entry.method)
        if told.denied:
            yield entry_of_gone(entry.id)


class SharedTasks:
    """What the sessions of this replica tell others, and hear from them: their `replicas`."""

    def __init__(self, sessions: Sessions, store: RedisStore) -> None:
        self._sessions, self._store = sessions, store
        self._heard = WeakKeyDictionary[Record, Heard]()
        self._hears = False  # what others have told is not told again
        self._own = sessions.own_tasks if isinstance(sessions.own_tasks, SharedOwn) else None
        sessions.replicas, sessions.said.tell = self, self._opened
        sessions.stored.tell = lambda session: store.add(session.key, ())  # what the store has of it is kept

    def _opened(self, said: Said) -> None:
        self._store.put(Key(*said.key, b""), msgspec.json.encode(said.server))

    def changed(self, key: Key, before: TaskEntry | None, after: TaskEntry) -> None:
        """Tell the store what has changed of a task, if other replicas cannot learn it."""
        was, now, task_id = _told_of(before), _told_of(after), after.id
        if self._hears or len(task_id) > MARKED_ID_CHARS_MAX:
            return
        if now.denied not in (0, was.denied):
            old = {gone := entry_of_gone(task_id)}
            if before is not None and after.is_gone and after.told is not before.told:  # the server says so; else ...
                methods = {None, before.method, None if before.stale is None else before.stale.method}
                old |= {entry_of(task_id, method) for method in methods}  # ... it may be there: what tells so stays
            self._store.add(key, [gone], old, owed=before is not None and bool(before.raw or before.stale))
        elif now.there and (not was.there or was.denied or now.made > was.made or now.method not in (None, was.method)):
            self._store.add(key, [entry_of(task_id, now.method)], [entry_of_gone(task_id)])

    def lost(self, key: Key, task_id: str | None) -> None:
        if len(task_id or "") <= MARKED_ID_CHARS_MAX:
            lost = DOUBT if task_id is None else entry_of_gone(task_id)
            self._store.add(key, [lost], [lost], owed=task_id is None)

    def ended(self, keys: set[Key]) -> None:
        for key in keys:
            self._store.drop(key)

    async def learn(self, session: Session) -> None:
        """Learn what others have told of a session: a query must know what was told `max_age` ago."""
        if self._own is not None:
            await self._own.learn(session.owners)
        heard = self._heard.get(session.record, Heard())
        if self._sessions.now().at - heard.at >= self._sessions.limits.max_age / 2:
            await self.catch_up(session)

    async def catch_up(self, session: Session) -> None:
        """The same, whenever that was. Methods are believed; the server is asked for all else."""
        now, record, epoch = self._sessions.now(), session.record, self._store.epoch
        heard = self._heard.get(record, Heard())
        read = await self._store.read(session.key, heard)
        if read is None or session.record is not record:
            return
        self._hear_server(session, read.server)
        for some in slices(read.tasks):
            await asyncio.sleep(0)
            if session.record is not record:
                return
            self._hears = True
            try:
                for update in updates_in(some):
                    if update.id is None:
                        record.doubted = now.order
                    elif session.owns(update.id):  # else another caller's by now: nothing is asked in this one's name
                        record.observe_replica(update.id, update.method, update.gone, now)
            finally:
                self._hears = False
        self._heard[record] = Heard(epoch, read.place, now.at if read.complete else heard.at)
        self._sessions.keep(session)

    def _hear_server(self, session: Session, value: bytes | None) -> None:
        server = None if value is None else decoded(_server, value)
        if server is not None and self._sessions.server_of(session.key, is_use=False) is None:
            self._sessions.note_server(session.key, server)
        self._sessions.know_server(session)  # another query may have noted it meanwhile

    def tell_all(self) -> Iterator[None]:
        """Tell the store everything again that the servers cannot be asked for, piece by piece."""
        for some_said in slices(self._sessions.said.all()):
            for said in some_said:
                self._opened(said)
            yield
        yield from () if self._own is None else self._own.tell_all()
        for session in self._sessions.stored.all():
            index = session.record.index
            if self._heard.get(session.record, Heard()).place:
                self._store.add(session.key, ())  # others' entries are in use too
            for some in (some for part in index.parts() for some in slices(part)):
                if entries := list(entries_of(some, index.default_method is None)):
                    self._store.add(session.key, entries)
                yield
            yield
