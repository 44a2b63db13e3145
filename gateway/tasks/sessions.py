"""The indexes of all sessions: whose they are, how much they may hold, when they go.

In: keys of callers, observations of tasks. Out: `Session`s.
Always: the key of a session is its upstream, request target, `Mcp-Session-Id` and identity (DESIGN 7). One origin may
serve several MCP endpoints, so the target counts. All sessions together hold `memory_bytes_max` at most: the least
recently used is evicted first. A session that is idle for `idle_timeout` expires. A caller that the upstream refuses
holds nothing: a session is stored once the upstream has answered with a status below 400 and there is a task to
keep (`Life`). No result of `initialize` can be asked for again, so it is kept apart and longer (`Servers`). If there is
a store, it gets what the server cannot be asked for again, and a query learns from it what other replicas have told.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from enum import Enum
from typing import Final, TypeVar
from weakref import WeakSet, WeakValueDictionary

from cachetools import TTLCache

from gateway import config
from gateway.identity import Key
from gateway.mcp.capabilities import Server
from gateway.mcp.observe import Observation
from gateway.mcp.task import Task
from gateway.tasks import told
from gateway.tasks.asks import Asks
from gateway.tasks.ids import RequestIds
from gateway.tasks.index import METHOD_CHARS_MAX, Index
from gateway.tasks.knowledge import Knowledge, Record
from gateway.tasks.notes import NEVER, NoteState
from gateway.tasks.passing import Access, Heard, access_after
from gateway.tasks.ports import SharedStore
from gateway.tasks.stored import Stored

_SESSION_OVERHEAD_BYTES: Final = 4096
_SERVERS_MAX: Final = 100_000  # results of `initialize`: 730 bytes each, 73 MB in all
SERVERS_IDLE_S: Final = 24 * 3600.0
_LOST_KEPT_S: Final = 3600.0  # a response is seldom under way for so long
_TOLD_AGAIN: Final = 4  # times in the time for which the store keeps what is not used
_TOLD_AT_ONCE: Final = 200
_SESSIONS_AT_ONCE: Final = 20


class Life(Enum):
    """The state of a session. The table gives the next state (`-`: impossible). `Sessions` makes each step.

                     its caller asks  is answered  no room, or idle  too large  is refused   not in use
        (none)       PROVISIONAL      STORED       -                 -          (none)       -
        PROVISIONAL  PROVISIONAL      STORED       -                 PARTING    PROVISIONAL  (none)
        STORED       STORED           STORED       PARTING           PARTING    PROVISIONAL  STORED
        PARTING      STORED           STORED       -                 PARTING    PROVISIONAL  (none)

    Answered: a status below 400, and a task to keep. Refused: `Access.DROPPED`, which also clears the session. Too
    large: counted so; a parting session that stays so is left, and its caller gets another.
    Only stored sessions count against the limits. Lookups find the others as long as requests of their callers are
    under way. When a stored session goes, the time is noted.
    """

    PROVISIONAL = "provisional"
    STORED = "stored"
    PARTING = "parting"


class Session(Record):
    """The tasks of one session of one identity, and what is being asked for them."""

    def __init__(self, key: Key, store: SharedStore | None = None) -> None:
        super().__init__()
        self.key = key
        self._store = store
        self.heard_to = 0  # the place of the last entry of the store's that was taken in, in `heard_era`
        self.heard_era = 0
        self.heard_at = NEVER  # when the store was last asked
        self.told_at = NEVER  # when the store last heard that the session is in use
        self.life = Life.PROVISIONAL
        self.of_one: WeakSet[Session] | None = None  # the sessions of one `Mcp-Session-Id`, one for each identity
        self.oversize = False  # the upstream lists more than an index may hold
        self.asks = Asks()
        self.list_bytes = 0  # of JSON, in all pages of the last crawl

    @property
    def size_bytes(self) -> int:
        return super().size_bytes + _SESSION_OVERHEAD_BYTES

    @property
    def in_use(self) -> bool:
        """Whether a request uses it."""
        return self.asks.in_use

    def __del__(self) -> None:
        with suppress(RuntimeError):  # without an event loop nothing can be delayed
            _free(self.index)

    def clear(self, now: float) -> None:
        """Forget all tasks."""
        old, self.index, self.known = self.index, Index(), Knowledge(newcomers_from=now)
        self.index.default_method = old.default_method
        self.heard_to, self.heard_at = 0, NEVER
        _free(old)

    def take(self, observation: Observation, asked_at: float | None, now: float, since: Task | None = None) -> None:
        if self._store is None:
            super().take(observation, asked_at, now, since)
            return
        unlisted = self.known.notes.unlisted
        named = (*(task.id for task in observation.tasks), *observation.suspect, *observation.ended)
        before = {i: (self.index.get(i), observation.listed or i in unlisted) for i in named if told.may_be_told(i)}
        gone = [i for i in observation.gone if told.may_be_told(i) and self._knows(i)]
        old = [value for i in gone for value in self._told_of(i)]
        super().take(observation, asked_at, now, since)
        new = {i: value for i, was in before.items() if (value := self._news(i, *was)) is not None}
        if new:
            self._store.add(self.key, new.values(), map(told.of_gone, new))
        if gone:
            self._store.end(self.key, map(told.of_gone, gone), old)

    def _knows(self, task_id: str) -> bool:
        """Whether a task may be there, by all that was heard. Nobody need be told that another is gone."""
        note = self.known.notes.get(task_id)
        may_be = note is not None and (note.state is not NoteState.GONE or note.is_suspect)
        return may_be or self.index.get(task_id) is not None

    def _news(self, task_id: str, before: Task | None, was_told: bool) -> bytes | None:
        """The value to tell of a task that was named; None if other replicas know it, or can learn it by themselves."""
        notes, now = self.known.notes, self.index.get(task_id)
        if now is None:
            note = notes.get(task_id)
            return told.of_task(task_id, None) if note is not None and note.state is NoteState.HINTED else None
        gained = now.method is not None and (before is None or before.method is None)
        return told.of_task(task_id, now.method) if gained or (task_id in notes.unlisted and not was_told) else None

    def _told_of(self, task_id: str) -> list[bytes]:
        """The values by which replicas may have told that a task is there."""
        return [told.of_task(task_id, method) for method in {None, self.index.method_of(task_id)}]

    def tell_doubt(self) -> None:
        """Tell the other replicas that much has changed."""
        if self._store is not None:
            self._store.end(self.key, [told.DOUBT], [told.DOUBT])

    def tell_all(self) -> Iterator[None]:
        """Tell the other replicas everything again that the server cannot be asked for, piece by piece."""
        assert self._store is not None
        notes, index = self.known.notes, self.index
        if self.heard_to:
            self._store.add(self.key, ())  # others' entries are in use too
        for some in _slices(list(notes.unlisted)):
            self._store.add(self.key, told.of_tasks(filter(None, map(index.get, some))))
            yield
        for some in _slices([i for i in notes.hinted if told.may_be_told(i)]):
            self._store.add(self.key, [told.of_task(i, index.method_of(i)) for i in some])
            yield
        for some in _slices(notes.gone):
            self._store.add(self.key, map(told.of_gone, some))
            yield
        if index.default_method is None:
            seen = 0
            for tasks in (tasks for part in index.parts() for tasks in _slices(part)):
                if made := [task for task in tasks if task.method is not None]:
                    self._store.add(self.key, told.of_tasks(made))
                seen += len(tasks)
                if seen >= _TOLD_AT_ONCE:
                    seen = 0
                    yield


_Each = TypeVar("_Each")


def _slices(these: Sequence[_Each]) -> Iterator[Sequence[_Each]]:
    """A few at a time, so that others get their turn."""
    for start in range(0, len(these), _TOLD_AT_ONCE):
        yield these[start : start + _TOLD_AT_ONCE]


class Forgotten(Exception):
    """The session was cleared while a request for it was under way; or another refresh took the place of this one."""


class TooLarge(Exception):
    """The session has more tasks than an index may hold."""


def _free(index: Index) -> None:
    """Free an index in small steps: in one step it would hold up the event loop."""
    _free_some(asyncio.get_running_loop(), index.dismantle())


def _free_some(loop: asyncio.AbstractEventLoop, rest: Iterator[None]) -> None:
    if next(rest, rest) is None:
        loop.call_soon(_free_some, loop, rest)


class Servers:
    """What `initialize` said in each session. It outlives the session's indexes.

    The identity does not count: a token may be renewed in the middle of a session.
    """

    def __init__(self, clock: Callable[[], float], store: SharedStore | None = None) -> None:
        self._servers: TTLCache[tuple[str, bytes, bytes], Server] = TTLCache(_SERVERS_MAX, SERVERS_IDLE_S, timer=clock)
        self._store = store
        self._told: TTLCache[tuple[str, bytes, bytes], None]  # those that the store has heard of
        self._told = TTLCache(_SERVERS_MAX, SERVERS_IDLE_S / _TOLD_AGAIN, timer=clock)

    def note(self, key: Key, server: Server) -> None:
        """Note what `initialize` said in a session."""
        # The list of task methods may take 64 KiB. Only a single method is ever used.
        methods = server.methods if len(server.default_method or "") <= METHOD_CHARS_MAX else ()
        self._servers[key.of_all] = Server(server.filtered_here, methods if len(methods) == 1 else ())
        self._told.pop(key.of_all, None)
        self._tell(key)

    def _tell(self, key: Key) -> None:
        """Tell the store of a session, unless it has heard of it."""
        if self._store is not None and key.of_all not in self._told:
            self._told[key.of_all] = None
            self._store.put(key, told.of_server(self._servers[key.of_all]))

    def hear(self, key: Key, value: bytes | None) -> None:
        """Note what another replica saw `initialize` say."""
        server = told.server_in(value)
        if server is not None and key.of_all not in self._servers:
            self._servers[key.of_all] = server

    def end(self, key: Key) -> None:
        """The session has ended."""
        self._servers.pop(key.of_all, None)
        self._told.pop(key.of_all, None)
        if self._store is not None:
            self._store.drop_server(key)

    def tell_all(self) -> Iterator[None]:
        """Tell the store of all sessions again, piece by piece."""
        self._told.clear()
        for count, of_all in enumerate(list(self._servers)):
            if of_all in self._servers:
                self._tell(Key(*of_all, b""))
            if count % _TOLD_AT_ONCE == _TOLD_AT_ONCE - 1:
                yield

    def get(self, key: Key) -> Server | None:
        """The server of a session, None if its `initialize` was not seen. It counts as used now."""
        server = self.look_at(key)
        if server is not None:
            self._servers[key.of_all] = server
            self._tell(key)
        return server

    def look_at(self, key: Key) -> Server | None:
        """As `get`, but it does not count as used."""
        try:
            server: Server = self._servers[key.of_all]
        except KeyError:
            return None
        return server

    def filters_natively(self, key: Key) -> bool:
        """Whether the server of a session filters its lists by itself. The session counts as used now."""
        server = self.get(key)
        return server is not None and not server.filtered_here

    def forget(self, upstreams: Collection[str]) -> None:
        """Forget these upstreams: their names mean other servers now."""
        for key in [key for key in self._servers if key[0] in upstreams]:
            self._servers.pop(key, None)


class Sessions:
    """All sessions, by key."""

    def __init__(
        self, limits: config.IndexLimits, servers: Servers, clock: Callable[[], float], store: SharedStore | None = None
    ) -> None:
        self.servers = servers
        self.request_ids = RequestIds()
        self._shared = store
        self._limits = limits
        self._clock = clock
        self._sessions = self._stored(limits)
        self._lost: TTLCache[Key, float] = TTLCache(limits.sessions_max, _LOST_KEPT_S, timer=clock)
        """When stored sessions went."""
        self._in_use: WeakValueDictionary[Key, Session] = WeakValueDictionary()  # provisional or parting
        self._of_one: WeakValueDictionary[tuple[str, bytes, bytes], WeakSet[Session]] = WeakValueDictionary()
        """The sessions of one upstream, target and `Mcp-Session-Id`. They end together."""

    def _stored(self, limits: config.IndexLimits) -> Stored[Session]:
        return Stored(limits.memory_bytes_max, limits.sessions_max, limits.idle_timeout, self._retire)

    def _retire(self, session: Session) -> None:
        """Evict or expire a session. Requests that already use it keep it, and lookups find it, until they end."""
        self._lost[session.key] = self._clock()
        session.life = Life.PARTING
        if session.in_use:
            self._in_use[session.key] = session

    def take_over(self, limits: config.IndexLimits, changed: Collection[str]) -> None:
        """Take over other limits. The names in `changed` mean other servers from now on.

        All other indexes stay: what an exchange under way reports comes only once.
        """
        old, self._limits = self._sessions.all(), limits
        self._sessions = self._stored(limits)
        for session in (*self._in_use.values(), *(session for _, session in old)):
            if session.key.upstream in changed:
                self._lost[session.key] = self._clock()  # in every state: an answer of the old server may be under way
                self._in_use.pop(session.key, None)
                session.clear(self._clock())
        for _, session in [each for each in old if each[0].upstream not in changed]:
            self._store(session)

    def find(self, key: Key) -> Session | None:
        """The session of that key: stored, or still in use; None if there is neither."""
        self._sessions.expire(self._clock())  # sessions in use move to `_in_use`
        return self._sessions.get(key) or self._in_use.get(key)

    def open(self, key: Key) -> Session:
        """The session of that key; a provisional one if there is none. It counts as used now.

        A session that went while in use is stored again.
        """
        session = self._open(key)
        if session.life is not Life.PROVISIONAL:
            self._store(session)
        return session

    def _open(self, key: Key) -> Session:
        session = self.find(key)
        if session is None or self._is_left(session):
            session = self._begin(key)
        if (server := self.servers.look_at(key)) is not None:
            session.index.default_method = server.default_method
        return session

    def _is_left(self, session: Session) -> bool:
        """Whether a session that went cannot be stored again."""
        too_large = session.size_bytes > self._limits.memory_bytes_max
        return session.life is Life.PARTING and (too_large or not session.in_use)

    def _begin(self, key: Key) -> Session:
        session = self._in_use[key] = Session(key, self._shared)
        session.known = Knowledge(newcomers_from=self._lost.get(key, NEVER))
        session.of_one = self._of_one.setdefault(key.of_all, WeakSet())
        session.of_one.add(session)
        return session

    def hold(self, key: Key) -> Session | None:
        """A provisional session, for a request to hold until it is answered. It notes what passes meanwhile, such as a
        refusal: the answer may be older than that. None if the caller has a stored session, or needs none.
        """
        if key in self._sessions or self.servers.filters_natively(key):
            return None
        session = self.open(key)
        return session if session.life is Life.PROVISIONAL else None

    def admit(self, session: Session) -> None:
        """Store a session: the upstream has answered its caller, and there is a task to keep.

        Nothing happens if lookups find another session by now.
        """
        if self.find(session.key) is session:
            self._store(session)

    def _store(self, session: Session) -> None:
        """Store a session, as used now. Others may be evicted for it. If it is too large, it is evicted itself."""
        if self._sessions.use(session.key, session, self._clock()):
            if session.life is not Life.STORED:
                session.life = Life.STORED
                self._in_use.pop(session.key, None)
            self._tell_use(session)

    def keep(self, session: Session) -> None:
        """Count the size of a stored session anew, as used now. Others may be evicted for it."""
        if self._sessions.get(session.key) is session:
            self._store(session)

    def check(self, session: Session) -> None:
        """Raises TooLarge if the session is larger than an index may be."""
        if len(session.index) > self._limits.tasks_max or session.size_bytes > self._limits.memory_bytes_max:
            raise TooLarge

    def observe(self, key: Key, observation: Observation, asked_at: float | None = None) -> Session | None:
        """Take in what passed: the answer to a request made at `asked_at`, or a message that answers no request.

        Returns the session of a task that it names.
        """
        if self.servers.filters_natively(key):
            return None
        if not observation.names_a_task:
            if observation.doubt and (doubted := self.find(key)) is not None:
                doubted.known.doubt(self._clock())
            return None
        session = self._open(key)
        if session.oversize:
            self._store(session)
            session.known.doubt(self._clock())
            return session
        session.take(observation, asked_at, self._clock())
        try:
            self.check(session)
        except TooLarge:
            session.oversize = True
            session.clear(self._clock())
        self._store(session)
        return session

    def hear(self, key: Key, heard: Heard, opened: Key | None = None) -> None:
        """Take in what a message said. `opened`: the key of the session that `initialize` has opened with it."""
        if heard.server is not None:
            self.servers.note(opened or key, heard.server)
        session = None
        if heard.observation is not None:
            session = self.observe(key, heard.observation, heard.asked_at)
        if heard.succeeds and heard.asked_at is not None and (session := session or self.find(key)) is not None:
            session.known.accept(heard.asked_at)

    def refuse(self, key: Key, status: int, method: str | None) -> Access:
        """The upstream answered a request of a caller's with a status of 400 or above (DESIGN 7.4)."""
        access = access_after(status, method, bool(key.session))
        if access is Access.DROPPED:
            self.drop(key)
        elif access is Access.HIDDEN and (session := self.find(key)) is not None:
            session.known.refuse(self._clock())
        return access

    def drop(self, key: Key) -> None:
        """Clear a session: the upstream refused its caller, or does not know it. Its users keep it, empty."""
        if self._shared is not None:
            self._shared.drop(key)  # another replica may have told of it
        session = self.find(key)
        if session is None:
            return
        now = self._clock()
        if session.life is not Life.PROVISIONAL:
            self._lost[key] = now
            self._sessions.take_out(key)
            session.life = Life.PROVISIONAL
            if session.in_use:
                self._in_use[key] = session
        session.clear(now)

    def drop_all(self, key: Key) -> None:
        """A session was ended: drop what is known of it, for every identity."""
        self.servers.end(key)
        for each in {key, *(session.key for session in self._of_one.get(key.of_all, ()))}:
            self.drop(each)

    # ---- other replicas ----

    @property
    def are_shared(self) -> bool:
        """Whether there is a store."""
        return self._shared is not None

    def is_behind(self, session: Session) -> bool:
        """Whether a query of a session must first learn what other replicas have told."""
        # What was told `max_age` ago must be known.
        return self._shared is not None and self._clock() - session.heard_at >= self._limits.max_age / 2

    async def catch_up(self, session: Session) -> None:
        """Learn what other replicas have told of a session. For the store it waits for a bounded time."""
        assert self._shared is not None
        now, known, era = self._clock(), session.known, self._shared.era
        read = await self._shared.read(session.key, session.heard_to if session.heard_era == era else 0)
        if read is None or session.known is not known:
            return
        self.servers.hear(session.key, read.server)
        for number, some in enumerate(_slices(read.tasks)):
            if number > 0:
                await asyncio.sleep(0)
            if session.known is not known:
                return
            if not session.oversize:
                session.hear(told.tasks_in(some), now)
        session.heard_era, session.heard_to = era, read.place
        if read.complete:
            session.heard_at = now
        if read.tasks:
            self.keep(session)

    def _tell_use(self, session: Session) -> None:
        """Tell the store that a session is in use, so that it keeps what it has of it."""
        now = self._clock()
        if self._shared is not None and now - session.told_at > self._limits.idle_timeout / _TOLD_AGAIN:
            session.told_at = now
            self._shared.add(session.key, ())

    def tell_all(self) -> Iterator[None]:
        """Tell the store everything again that the servers cannot be asked for, piece by piece."""
        yield from self.servers.tell_all()
        for count, session in enumerate([*self._in_use.values(), *(session for _, session in self._sessions.all())]):
            if not session.oversize:
                yield from session.tell_all()
            if count % _SESSIONS_AT_ONCE == _SESSIONS_AT_ONCE - 1:
                yield

    def expire(self) -> None:
        """Take out the sessions that have been idle for `idle_timeout`."""
        self._sessions.expire(self._clock())

    def gauges(self) -> dict[str, tuple[str, float]]:
        """What is held now: metric name to (help, value)."""
        sessions = [session for _, session in self._sessions.all()]
        return {
            "index_sessions": ("Sessions that have an index.", len(sessions)),
            "index_tasks": ("Tasks in all indexes.", sum(len(s.index) for s in sessions)),
            "index_bytes": (
                "Bytes of all indexes, as they are counted against their limit.",
                self._sessions.size_bytes,
            ),
        }
