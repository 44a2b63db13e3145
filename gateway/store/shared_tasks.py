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
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

import msgspec

from gateway.caller_identity import Key
from gateway.mcp.capabilities import Server
from gateway.mcp.jsonrpc import decoded
from gateway.store.redis_schema import DOUBT, RedisStore, entry_of, entry_of_gone, slices, updates_in
from gateway.store.shared_owners import SharedOwn
from gateway.tasks.capability_cache import TOLD_AGAIN, OfAll
from gateway.tasks.index import METHOD_CHARS_MAX, Named, TaskEntry
from gateway.tasks.reconciliation import MARKED_ID_CHARS_MAX, Record
from gateway.tasks.session_indexes import Session, Sessions

_TOLD_AT_ONCE: Final = 200
_NEVER: Final = float("-inf")
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


class _Heard(msgspec.Struct):
    """What a replica has heard and told of a session, for as long as it has one record of it."""

    to: int = 0  # the place of the last entry of the store's that was taken in, in `epoch`
    epoch: int = 0
    at: float = _NEVER  # when the store was last asked
    told_at: float = _NEVER  # when the store last heard that the session is in use


class SharedTasks:
    """What the sessions of this replica tell others, and hear from them: their `replicas`."""

    def __init__(self, sessions: Sessions, store: RedisStore) -> None:
        self._sessions, self._store = sessions, store
        self._heard = WeakKeyDictionary[Record, _Heard]()
        self._hears = False  # what others have told is not told again
        self._own = sessions.own if isinstance(sessions.own, SharedOwn) else None
        sessions.replicas, sessions.servers.tell, sessions.stored.on_use = self, self._opened, self._used

    def _opened(self, of_all: OfAll, server: Server) -> None:
        self._store.put(Key(*of_all, b""), msgspec.json.encode(server))

    def _used(self, session: Session, now: float) -> None:
        """A session is in use: the store is to keep what it has of it."""
        heard = self._heard_of(session)
        if now - heard.told_at > self._sessions.limits.idle_timeout / TOLD_AGAIN:
            heard.told_at = now
            self._store.add(session.key, ())

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
            is_known = before is not None and (before.raw != b"" or before.stale is not None)
            self._store.add(key, [gone], old, owed=is_known)
        elif now.there and (not was.there or was.denied or now.made > was.made or now.method not in (None, was.method)):
            self._store.add(key, [entry_of(task_id, now.method)], [entry_of_gone(task_id)])

    def denied(self, key: Key, task_id: str) -> None:
        if len(task_id) <= MARKED_ID_CHARS_MAX:
            self._store.add(key, [gone := entry_of_gone(task_id)], [gone])

    def lost_many(self, key: Key) -> None:
        self._store.add(key, [DOUBT], [DOUBT], owed=True)

    def ended(self, keys: set[Key]) -> None:
        for key in keys:
            self._store.drop(key)

    async def learn(self, session: Session) -> None:
        """Learn what others have told of a session: a query must know what was told `max_age` ago."""
        if self._own is not None:
            await self._own.learn(session.owners)
        if self._sessions.now().at - self._heard_of(session).at >= self._sessions.limits.max_age / 2:
            await self.catch_up(session)

    def _heard_of(self, session: Session) -> _Heard:
        return self._heard.setdefault(session.record, _Heard())

    async def catch_up(self, session: Session) -> None:
        """Learn what other replicas have told of a session. It waits for a bounded time.

        Methods are believed; the server is asked for all else.
        """
        now, record, epoch = self._sessions.now(), session.record, self._store.epoch
        heard = self._heard_of(session)
        read = await self._store.read(session.key, heard.to if heard.epoch == epoch else 0)
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
                        record.known.doubted = now.order
                    elif session.owns(update.id):  # else another caller's by now: nothing is asked in this one's name
                        record.hear(update.id, update.method, update.gone, now)
            finally:
                self._hears = False
        heard.epoch, heard.to = epoch, read.place
        if read.complete:
            heard.at = now.at
        if read.tasks:
            self._sessions.keep(session)

    def _hear_server(self, session: Session, value: bytes | None) -> None:
        server = None if value is None else decoded(_server, value)
        if server is not None and len(server.methods) <= 1 and len(server.default_method or "") <= METHOD_CHARS_MAX:
            self._sessions.servers.hear(session.key, server)
            self._sessions.know_server(session)

    def tell_all(self) -> Iterator[None]:
        """Tell the store everything again that the servers cannot be asked for, piece by piece."""
        for count, (of_all, server) in enumerate(self._sessions.servers.all()):
            self._opened(of_all, server)
            if count % _TOLD_AT_ONCE == _TOLD_AT_ONCE - 1:
                yield
        yield from () if self._own is None else self._own.tell_all()
        for count, session in enumerate(self._sessions.stored.all()):
            index = session.record.index
            if self._heard_of(session).to:
                self._store.add(session.key, ())  # others' entries are in use too
            for some in (some for part in index.parts() for some in slices(part)):
                if entries := list(entries_of(some, index.default_method is None)):
                    self._store.add(session.key, entries)
                yield
            if count % _SESSIONS_AT_ONCE == _SESSIONS_AT_ONCE - 1:
                yield
