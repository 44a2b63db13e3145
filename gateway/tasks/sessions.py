"""The indexes of all sessions: whose they are, how much they may hold, when they go.

In: keys of callers, observations of tasks. Out: `Session`s.
Always: the key of a session is its upstream, request target, `Mcp-Session-Id` and identity (DESIGN 7). One origin may
serve several MCP endpoints, so the target counts. All sessions together hold `memory_bytes_max` at most: the least
recently used is evicted first. A session that is idle for `idle_timeout` expires. A caller that the upstream refuses
holds nothing: a session is stored once the upstream has answered with a status below 400 and there is a task to
keep (`Life`). No result of `initialize` can be asked for again, so it is kept apart and longer (`Servers`).
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from typing import Final
from weakref import WeakSet, WeakValueDictionary

from cachetools import TTLCache

from gateway import config
from gateway.errors import TooLarge
from gateway.identity import Key
from gateway.mcp.capabilities import Server
from gateway.mcp.observe import Observation
from gateway.tasks.asks import Asks
from gateway.tasks.index import METHOD_CHARS_MAX, Index
from gateway.tasks.knowledge import Knowledge, Record
from gateway.tasks.notes import NEVER
from gateway.tasks.passing import Access, Heard, access_after

_SESSION_OVERHEAD_BYTES: Final = 4096
SERVERS_MAX: Final = 100_000  # results of `initialize`: 730 bytes each, 73 MB in all
SERVERS_IDLE_S: Final = 24 * 3600.0
_LOST_KEPT_S: Final = 3600.0  # a response is seldom under way for so long


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

    def __init__(self, key: Key) -> None:
        super().__init__()
        self.key = key
        self.life = Life.PROVISIONAL
        self.of_one: WeakSet[Session] | None = None  # the sessions of one `Mcp-Session-Id`, one for each identity
        self.asks = Asks()
        self.queries = 0  # that use it
        self.list_bytes = 0  # of JSON, in all pages of the last crawl
        self.stored_bytes = 0  # as `Stored` has counted it last
        self.used_at = 0.0  # while it is stored

    @property
    def size_bytes(self) -> int:
        return super().size_bytes + _SESSION_OVERHEAD_BYTES

    def __del__(self) -> None:
        with suppress(RuntimeError):  # without an event loop nothing can be delayed
            _free(self.index)

    def clear(self, now: float) -> None:
        """Forget all tasks."""
        old, self.index, self.known = self.index, Index(), Knowledge(newcomers_from=now)
        self.index.default_method = old.default_method
        _free(old)

    def lose_many(self) -> None:
        """Many tasks have gone at once, and most were not asked for."""


class Forgotten(Exception):
    """The session was cleared while a request for it was under way; or another refresh took the place of this one."""


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

    def __init__(self, clock: Callable[[], float]) -> None:
        self._servers: TTLCache[tuple[str, bytes, bytes], Server] = TTLCache(SERVERS_MAX, SERVERS_IDLE_S, timer=clock)

    def note(self, key: Key, server: Server) -> None:
        """Note what `initialize` said in a session."""
        # The list of task methods may take 64 KiB. Only a single method is ever used.
        methods = server.methods if len(server.default_method or "") <= METHOD_CHARS_MAX else ()
        self._servers[key.of_all] = Server(server.filtered_here, methods if len(methods) == 1 else ())

    def end(self, key: Key) -> None:
        """The session has ended."""
        self._servers.pop(key.of_all, None)

    def get(self, key: Key) -> Server | None:
        """The server of a session, None if its `initialize` was not seen. It counts as used now."""
        server = self.peek(key)
        if server is not None:
            self._servers[key.of_all] = server
        return server

    def peek(self, key: Key) -> Server | None:
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


class Stored:
    """The stored sessions, least recently used first, within limits of bytes, of number and of idle time.

    `size_bytes` is the sum of their sizes as last counted. `retire` gets each that is evicted, expires, or is too
    large; not one that is taken out. A use stands in the way of every answer to `tasks/get`, and costs the same however
    many there are.
    """

    def __init__(self, limits: config.IndexLimits, retire: Callable[[Session], None]) -> None:
        self.size_bytes = 0
        self.limits = limits
        self._retire = retire
        self._by_key: OrderedDict[Key, Session] = OrderedDict()

    def get(self, key: Key) -> Session | None:
        """The stored session of that key; it does not count as used."""
        return self._by_key.get(key)

    def all(self) -> list[Session]:
        """All of them, the least recently used first."""
        return list(self._by_key.values())

    def use(self, session: Session, now: float) -> bool:
        """Store it, or count its size anew, as used now. Others go for it. False if it is itself too large: it goes."""
        key = session.key
        if self._by_key.get(key) is not session:
            self.take_out(key)
            self._by_key[key] = session
        size_bytes = session.size_bytes
        self.size_bytes += size_bytes - session.stored_bytes
        session.stored_bytes, session.used_at = size_bytes, now
        self._by_key.move_to_end(key)
        if size_bytes > self.limits.memory_bytes_max:
            self._let_go(key)
            return False
        while self.size_bytes > self.limits.memory_bytes_max or len(self._by_key) > self.limits.sessions_max:
            self._let_go(next(iter(self._by_key)))
        return True

    def expire(self, now: float) -> None:
        """Take out what has been idle for too long."""
        while self._by_key and now - next(iter(self._by_key.values())).used_at >= self.limits.idle_timeout:
            self._let_go(next(iter(self._by_key)))

    def take_out(self, key: Key) -> Session | None:
        """Take out the session of that key."""
        session = self._by_key.pop(key, None)
        if session is not None:
            self.size_bytes -= session.stored_bytes
            session.stored_bytes = 0
        return session

    def _let_go(self, key: Key) -> None:
        session = self.take_out(key)
        assert session is not None
        self._retire(session)


class Sessions:
    """All sessions, by key."""

    def __init__(self, limits: config.IndexLimits, servers: Servers, clock: Callable[[], float]) -> None:
        self.servers = servers
        self._limits = limits
        self._clock = clock
        self._sessions = Stored(limits, self._retire)
        self._lost: TTLCache[Key, float] = TTLCache(limits.sessions_max, _LOST_KEPT_S, timer=clock)
        """When stored sessions went."""
        self._in_use: WeakValueDictionary[Key, Session] = WeakValueDictionary()  # provisional or parting
        self._of_one: WeakValueDictionary[tuple[str, bytes, bytes], WeakSet[Session]] = WeakValueDictionary()
        """The sessions of one upstream, target and `Mcp-Session-Id`. They end together."""

    def _retire(self, session: Session) -> None:
        """Evict or expire a session. Requests that already use it keep it, and lookups find it, until they end."""
        self._lost[session.key] = self._clock()
        session.life = Life.PARTING
        if session.queries:
            self._in_use[session.key] = session

    def take_over(self, limits: config.IndexLimits, changed: Collection[str]) -> None:
        """Take over other limits. The names in `changed` mean other servers from now on.

        All other indexes stay: what an exchange under way reports comes only once.
        """
        stored = self._sessions.all()
        for session in stored:
            self._sessions.take_out(session.key)
        self._limits = self._sessions.limits = limits
        for session in (*self._in_use.values(), *stored):
            session.known.outgrow(session.known.outgrown, NEVER)  # there may be more room now
            if session.key.upstream in changed:
                self._lost[session.key] = self._clock()  # in every state: an answer of the old server may be under way
                self._in_use.pop(session.key, None)
                session.clear(self._clock())
        for session in stored:
            if session.key.upstream not in changed:
                self._store(session)

    def find(self, key: Key) -> Session | None:
        """The session of that key: stored, or still in use; None if there is neither."""
        self._sessions.expire(self._clock())  # sessions in use move to `_in_use`
        return self._sessions.get(key) or self._in_use.get(key)

    @contextmanager
    def using(self, key: Key) -> Iterator[Session]:
        """The session of that key, which stays while a query uses it."""
        session = self.open(key)
        session.queries += 1
        try:
            yield session
        finally:
            session.queries -= 1

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
        self._know_server(session)
        return session

    def _know_server(self, session: Session) -> None:
        if (server := self.servers.peek(session.key)) is not None:
            session.index.default_method = server.default_method

    def _is_left(self, session: Session) -> bool:
        """Whether a session that went cannot be stored again."""
        too_large = session.size_bytes > self._limits.memory_bytes_max
        return session.life is Life.PARTING and (too_large or not session.queries)

    def _begin(self, key: Key) -> Session:
        session = self._in_use[key] = self._new(key)
        session.known = Knowledge(newcomers_from=self._lost.get(key, NEVER))
        session.of_one = self._of_one.setdefault(key.of_all, WeakSet())
        session.of_one.add(session)
        return session

    def _new(self, key: Key) -> Session:
        return Session(key)

    def claim(self, key: Key) -> Session | None:
        """A provisional session, for a request to hold until it is answered. It notes what passes meanwhile, such as a
        refusal: the answer may be older than that. None if the caller has a stored session, or needs none.
        """
        if self._sessions.get(key) is not None or self.servers.filters_natively(key):
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
        if self._sessions.use(session, self._clock()) and session.life is not Life.STORED:
            session.life = Life.STORED
            self._in_use.pop(session.key, None)

    def keep(self, session: Session) -> None:
        """Count the size of a stored session anew, as used now. Others may be evicted for it."""
        if self._sessions.get(session.key) is session:
            self._store(session)

    def check(self, session: Session, from_nothing: bool = False) -> None:
        """Raises TooLarge if the index of a session is larger than it may be. It is left empty. It remembers that if
        the index was read `from_nothing`: else it may have had many tasks that are gone.
        """
        limits = self._limits
        if len(session.index) > limits.tasks_max:
            what = f"more than {limits.tasks_max} tasks (index.tasks_max)"
        elif session.size_bytes > limits.memory_bytes_max:
            what = f"tasks of more than {limits.memory_bytes_max} bytes (index.memory_bytes_max)"
        else:
            return
        now = self._clock()
        session.clear(now)
        session.known.outgrow(what, now + limits.full_crawl_interval if from_nothing else NEVER)
        raise TooLarge(what)

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
        if session.known.outgrown:
            session.known.doubt(self._clock())
        else:
            session.take(observation, asked_at, self._clock())
            with suppress(TooLarge):
                self.check(session)
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
        session = self.find(key)
        if session is None:
            return
        now = self._clock()
        if session.life is not Life.PROVISIONAL:
            self._lost[key] = now
            self._sessions.take_out(key)
            session.life = Life.PROVISIONAL
            if session.queries:
                self._in_use[key] = session
        session.clear(now)

    def drop_all(self, key: Key) -> set[Key]:
        """A session was ended: drop what is known of it, for every identity. Returns the keys of all these."""
        self.servers.end(key)
        keys = {key, *(session.key for session in self._of_one.get(key.of_all, ()))}
        for each in keys:
            self.drop(each)
        return keys

    def expire(self) -> None:
        """Take out the sessions that have been idle for `idle_timeout`."""
        self._sessions.expire(self._clock())

    def gauges(self) -> dict[str, tuple[str, float]]:
        """What is held now, and its limits: name of the metric to (help, value)."""
        sessions = self._sessions.all()
        return {
            "index_sessions": ("Sessions that have an index.", len(sessions)),
            "index_sessions_max": ("Limit of index_sessions.", self._limits.sessions_max),
            "index_tasks": ("Tasks in all indexes.", sum(len(s.index) for s in sessions)),
            "index_bytes": (
                "Bytes of all indexes, as they are counted against their limit.",
                self._sessions.size_bytes,
            ),
            "index_bytes_max": ("Limit of index_bytes.", self._limits.memory_bytes_max),
        }
