"""The indexes of all sessions: whose they are, how much they may hold, when they go.

In: keys of callers, observations of tasks. Out: `Session`s. Always: a session belongs to one upstream, one request
target, one `Mcp-Session-Id` and one identity, and is found by all four (DESIGN 7); together they hold no more than
`memory_bytes_max`, the least recently used going first; one that is idle for `idle_timeout` goes. Who is refused holds
nothing: a caller has a place, or a note of any kind, once the upstream has answered him with a status below 400 and
there is something to keep (`Life`). What `initialize` said of the server is no memory of tasks, which could be asked
for again: it is kept apart, for whoever has the session.

The request target counts because one origin may serve several MCP endpoints, each with its own tasks.
"""

import asyncio
import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from enum import Enum
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import WeakSet, WeakValueDictionary

from cachetools import TTLCache

from gateway import config
from gateway.core.capabilities import Server
from gateway.core.headers import Headers
from gateway.core.index import Index
from gateway.core.knowledge import NEVER, Knowledge, Record
from gateway.core.observe import Observation

if TYPE_CHECKING:
    from gateway.asks import Ask
    from gateway.scan import Scan

_SESSION_OVERHEAD_BYTES: Final = 4096
_SERVERS_MAX: Final = 100_000  # sessions of which is known what `initialize` said: 730 bytes each, 73 MB in all
_METHOD_CHARS_MAX: Final = 50  # of the one that is kept of each; twice as long as any that there is
_SERVERS_IDLE_S: Final = 24 * 3600.0
_LOST_KEPT_S: Final = 3600.0  # when an index went: longer than a response is on its way

# Fields that cannot carry an identity (DESIGN 7). Every other one counts: safe first.
_NO_IDENTITY: Final = frozenset(
    b"accept accept-charset accept-encoding accept-language content-type content-length content-encoding "
    b"content-language user-agent mcp-protocol-version mcp-session-id mcp-method mcp-name last-event-id "
    b"traceparent tracestate baggage b3 x-b3-traceid x-b3-spanid x-b3-parentspanid x-b3-sampled x-request-id "
    b"x-b3-flags x-amzn-trace-id x-cloud-trace-context sentry-trace uber-trace-id x-datadog-trace-id "
    b"x-datadog-parent-id x-datadog-sampling-priority x-correlation-id "
    b"connection keep-alive proxy-connection te trailer transfer-encoding upgrade expect "
    b"cache-control pragma date priority".split()
)


class Key(NamedTuple):
    """Whose index it is. Digests stand for what clients and servers make as long as they like."""

    upstream: str
    target: bytes
    session: bytes  # empty where there is no `Mcp-Session-Id`
    identity: bytes

    @classmethod
    def of(cls, upstream: str, target: bytes, session_id: bytes, identity: bytes) -> "Key":
        """The key of a caller of that identity, itself a digest."""
        return cls(upstream, _digest(target), session_id and _digest(session_id), identity)

    @property
    def of_all(self) -> tuple[str, bytes, bytes]:
        """The session's own, whoever asks."""
        return self[:3]


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def identity(headers: Headers, only: Iterable[str] | None) -> bytes:
    """A digest of the header fields that tell who is asking: those named in `only`, or all that could."""
    if only is not None:
        named = {name.lower().encode() for name in only}
        chosen = [(name.lower(), value) for name, value in headers if name.lower() in named]
    else:
        chosen = [(low, value) for name, value in headers if (low := name.lower()) not in _NO_IDENTITY]
    digest = hashlib.blake2b(digest_size=16)
    for name, value in sorted(chosen, key=itemgetter(0)):  # the order of repeated fields may matter
        digest.update(b"%d:%b%d:%b" % (len(name), name, len(value), value))
    return digest.digest()


class Life(Enum):
    """Where a session stands. What leads from one state to the next (`-`: cannot be; `Sessions` makes each step):

                    its caller asks   he is answered   no room, or idle   he is refused   nobody works with it
        (none)      PROVISIONAL       STORED           -                  (none)          -
        PROVISIONAL PROVISIONAL       STORED           -                  PROVISIONAL     (none)
        STORED      STORED            STORED           PARTING            PROVISIONAL     STORED
        PARTING     STORED            STORED           -                  PROVISIONAL     (none)

    Answered is who gets a status below 400 and something to keep with it; refused who gets 401, 403 or 404, which
    empties the session. Only what is stored has a place, and counts against the limits; the others are found as long
    as requests of their callers are under way. Of what was stored and has gone there is a note of when it went.
    """

    PROVISIONAL = "provisional"
    STORED = "stored"
    PARTING = "parting"


class Session(Record):
    """What is known of the tasks of one session of one identity, and who is asking for what."""

    def __init__(self, key: Key) -> None:
        super().__init__()
        self.key = key
        self.life = Life.PROVISIONAL
        self.of_one: WeakSet[Session] | None = None  # those of one `Mcp-Session-Id`
        self.oversize = False  # the upstream lists more than an index may hold
        self.scanning = asyncio.Lock()
        self.next_scan: Scan | None = None  # that queries may still join
        self.asks: dict[str | None, Ask] = {}  # what is being asked of the upstream: a task by its id, or None: pages
        self.answering: dict[bytes, list[asyncio.Future[None]]] = {}  # by raw request id, to be cancelled
        self.list_bytes = 0  # of JSON, in all pages of the last crawl

    @property
    def size_bytes(self) -> int:
        return super().size_bytes + _SESSION_OVERHEAD_BYTES

    @property
    def in_use(self) -> bool:
        """Whether someone works with it."""
        return bool(self.asks or self.answering)

    def __del__(self) -> None:
        with suppress(RuntimeError):  # without a loop nothing can be held up
            _free(self.index)

    def clear(self, now: float) -> None:
        """Forget all tasks."""
        old, self.index, self.known = self.index, Index(), Knowledge(believed_from=now)
        self.index.default_method = old.default_method
        _free(old)


class Forgotten(Exception):
    """All that was known of a session was forgotten while more was being asked for it."""


class TooLarge(Exception):
    """A session has more tasks than an index may hold."""


def _free(index: Index) -> None:
    """Let an index go without holding up the event loop."""
    _free_some(asyncio.get_running_loop(), index.dismantle())


def _free_some(loop: asyncio.AbstractEventLoop, rest: Iterator[None]) -> None:
    if next(rest, rest) is None:
        loop.call_soon(_free_some, loop, rest)


class _Store(TTLCache[Key, Session]):
    """Sessions by use, by age and by size; one that has to go is retired."""

    def __init__(self, limits: config.Index, clock: Callable[[], float], retire: Callable[[Session], None]) -> None:
        self._retire = retire
        super().__init__(limits.memory_bytes_max, limits.idle_timeout, timer=clock, getsizeof=lambda s: s.size_bytes)

    def popitem(self) -> tuple[Key, Session]:
        key, session = super().popitem()
        self._retire(session)
        return key, session

    def expire(self, time: float | None = None) -> list[tuple[Key, Session]]:
        expired = list(super().expire(time))
        for _, session in expired:
            self._retire(session)
        return expired


class Servers:
    """What `initialize` said in each session, whose indexes may go at any time while the session lives on.

    The identity does not count: a token is renewed in the middle of a session.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._servers: TTLCache[tuple[str, bytes, bytes], Server] = TTLCache(_SERVERS_MAX, _SERVERS_IDLE_S, timer=clock)

    def note(self, key: Key, server: Server) -> None:
        """Take in what `initialize` said in a session."""
        # the task methods can take 64 KiB, and all that is asked of them is whether it is one
        methods = server.methods if len(server.default_method or "") <= _METHOD_CHARS_MAX else ()
        self._servers[key.of_all] = Server(server.filtered_here, methods if len(methods) == 1 else ())

    def get(self, key: Key) -> Server | None:
        """The server of a session, which then counts as used now; None where its `initialize` was not seen."""
        server: Server | None = self._servers.get(key.of_all)
        if server is not None:
            self._servers[key.of_all] = server
        return server

    def filters_natively(self, key: Key) -> bool:
        """Whether the server of a session filters its lists itself."""
        server = self.get(key)
        return server is not None and not server.filtered_here

    def forget(self, upstreams: Collection[str]) -> None:
        """Other servers are behind these names now."""
        for key in [key for key in self._servers if key[0] in upstreams]:
            self._servers.pop(key, None)


class Sessions:
    """All sessions, by key."""

    def __init__(self, limits: config.Index, servers: Servers, clock: Callable[[], float]) -> None:
        self.servers = servers
        self._limits = limits
        self._clock = clock
        self._sessions = _Store(limits, clock, self._retire)
        self._lost: TTLCache[Key, float] = TTLCache(limits.sessions_max, _LOST_KEPT_S, timer=clock)
        """When what was known of sessions went, and it was something."""
        self._in_use: WeakValueDictionary[Key, Session] = WeakValueDictionary()  # provisional or parting
        self._of_one: WeakValueDictionary[tuple[str, bytes, bytes], WeakSet[Session]] = WeakValueDictionary()
        """Those of one upstream, one target and one `Mcp-Session-Id`, which end together."""

    def _retire(self, session: Session) -> None:
        """There is no room for the session. Who works with it keeps it, and it is found as long."""
        self._lost[session.key] = self._clock()
        session.life = Life.PARTING
        if session.in_use:
            self._in_use[session.key] = session

    def take_over(self, limits: config.Index, changed: Collection[str]) -> None:
        """Other limits hold from now on, and other servers are behind the names in `changed`.

        The other indexes stay: nobody would tell again what exchanges that are under way have told, or will.
        """
        old, self._limits = self._sessions, limits
        self._sessions = _Store(limits, self._clock, self._retire)
        for session in (*self._in_use.values(), *old.values()):
            if session.key.upstream in changed:
                self._lost[session.key] = self._clock()  # provisional or not: the old server may be about to answer
                self._in_use.pop(session.key, None)
                session.clear(self._clock())
        for session in [session for key, session in old.items() if key.upstream not in changed]:
            self._store(session)

    def find(self, key: Key) -> Session | None:
        """The session of that key, if there is one: stored, or still in use."""
        self._sessions.expire()  # into those in use
        return self._sessions.get(key) or self._in_use.get(key)

    def open(self, key: Key) -> Session:
        """The session of that key: provisional if there is none; one that had a place has it again, as used now."""
        with self._sessions.timer:
            session = self.find(key)
            if session is None or self._is_left(session):
                session = self._begin(key)
            elif session.life is not Life.PROVISIONAL:
                self._store(session)
        if (server := self.servers.get(key)) is not None:
            session.index.default_method = server.default_method
        return session

    def _is_left(self, session: Session) -> bool:
        """Whether a session that has lost its place cannot have it again."""
        too_large = session.size_bytes > self._limits.memory_bytes_max
        return session.life is Life.PARTING and (too_large or not session.in_use)

    def _begin(self, key: Key) -> Session:
        session = self._in_use[key] = Session(key)
        session.known.believed_from = self._lost.get(key, NEVER)
        session.of_one = self._of_one.setdefault(key.of_all, WeakSet())
        session.of_one.add(session)
        return session

    def hold(self, key: Key) -> Session | None:
        """The provisional session of a caller, if he has none else: for a request to refer to until it is answered.

        So what passes meanwhile, such as a refusal, is known when the answer comes, which may be older.
        """
        if key in self._sessions or self.servers.filters_natively(key):
            return None
        session = self.open(key)
        return session if session.life is Life.PROVISIONAL else None

    def admit(self, session: Session) -> None:
        """The upstream has answered the session's caller, and there is something to keep: it has a place from now on.

        But not one that is found no more: another has taken its place.
        """
        with self._sessions.timer:
            if self.find(session.key) is session:
                self._store(session)

    def _store(self, session: Session) -> None:
        """Give a session a place, as used now. Others may have to go for it; one that is too large goes itself."""
        while session.key not in self._sessions and len(self._sessions) >= self._limits.sessions_max:
            self._sessions.popitem()
        try:
            self._sessions[session.key] = session
        except ValueError:
            self._sessions.pop(session.key, None)
            self._retire(session)
        else:
            session.life = Life.STORED
            self._in_use.pop(session.key, None)

    def keep(self, session: Session) -> None:
        """Count a session's size anew, as used now, if it is stored. Others may have to go for it."""
        with self._sessions.timer:
            if self._sessions.get(session.key) is session:
                self._store(session)

    def check(self, session: Session) -> None:
        """Raises TooLarge if a session has outgrown what an index may hold."""
        if len(session.index) > self._limits.tasks_max or session.size_bytes > self._limits.memory_bytes_max:
            raise TooLarge

    def observe(self, key: Key, observation: Observation, asked_at: float | None = None) -> None:
        """Take in what passed in a session, in answer to a request made at `asked_at` or to none."""
        if self.servers.filters_natively(key):
            return
        if not observation.names_a_task:
            if observation.doubt and (doubted := self.find(key)) is not None:
                doubted.known.doubted_at = self._clock()
            return
        session = self.open(key)
        self.admit(session)
        if session.oversize:
            session.known.doubted_at = self._clock()
            return
        session.take(observation, asked_at, self._clock())
        try:
            self.check(session)
        except TooLarge:
            session.oversize = True
            session.clear(self._clock())
        self.keep(session)

    def drop(self, key: Key) -> None:
        """The upstream refused the caller, or knows the session no more. Who works with it goes on, nothing known."""
        session = self.find(key)
        if session is None:
            return
        now = self._clock()
        if session.life is not Life.PROVISIONAL:
            self._lost[key] = now
            self._sessions.pop(key, None)
            session.life = Life.PROVISIONAL
            if session.in_use:
                self._in_use[key] = session
        session.clear(now)

    def drop_all(self, key: Key) -> None:
        """A session was ended: all that is known of it, for whoever asked, goes."""
        for session in list(self._of_one.get(key.of_all, ())):
            self.drop(session.key)

    def expire(self) -> None:
        """Let the sessions go that nobody used for `idle_timeout`."""
        self._sessions.expire()

    def gauges(self) -> dict[str, tuple[str, float]]:
        """How much is held now."""
        sessions = list(self._sessions.values())
        return {
            "index_sessions": ("Sessions that have an index.", len(sessions)),
            "index_tasks": ("Tasks in all indexes.", sum(len(s.index) for s in sessions)),
            "index_bytes": ("Bytes of all indexes, as they are counted against their limit.", self._sessions.currsize),
        }
