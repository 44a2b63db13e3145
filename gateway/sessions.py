"""The indexes of all sessions: whose they are, how much they may hold, when they go.

In: keys of callers, observations of tasks. Out: `Session`s. Always: a session belongs to one upstream, one request
target, one `Mcp-Session-Id` and one identity, and is found by all four (DESIGN 7); together they hold no more than
`memory_bytes_max`, the least recently used going first; one that is idle for `idle_timeout` goes. What `initialize`
said of the server is no memory of tasks, which could be asked for again: it is kept apart, for whoever has the session.

The request target counts because one origin may serve several MCP endpoints, each with its own tasks.
"""

import asyncio
import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import WeakValueDictionary

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
_SERVERS_MAX: Final = 100_000  # sessions of which is known what `initialize` said: some 30 MB
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
    """Whose index it is."""

    upstream: str
    target: bytes
    session: bytes
    identity: bytes


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


class Session(Record):
    """What is known of the tasks of one session of one identity, and who is asking for what."""

    def __init__(self, key: Key) -> None:
        super().__init__()
        self.key = key
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
        self._servers[key[:3]] = server

    def get(self, key: Key) -> Server | None:
        """The server of a session, which then counts as used now; None where its `initialize` was not seen."""
        server: Server | None = self._servers.get(key[:3])
        if server is not None:
            self.note(key, server)
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
        self._lost: TTLCache[tuple[object, ...], float] = TTLCache(
            limits.sessions_max, _LOST_KEPT_S, timer=clock
        )  # when what was known of sessions went
        self._parting: WeakValueDictionary[Key, Session] = WeakValueDictionary()  # no longer stored, and in use

    def _retire(self, session: Session) -> None:
        """There is no room for the session. Who works with it keeps it, and it is found as long."""
        self._lost[session.key] = self._clock()
        if session.in_use:
            self._parting[session.key] = session

    def take_over(self, limits: config.Index, changed: Collection[str]) -> None:
        """Other limits hold from now on, and other servers are behind the names in `changed`.

        The other indexes stay: nobody would tell again what exchanges that are under way have told, or will.
        """
        old, self._limits = self._sessions, limits
        self._sessions = _Store(limits, self._clock, self._retire)
        for session in (*self._parting.values(), *old.values()):
            if session.key.upstream in changed:
                self._lost[session.key] = self._clock()
                self._parting.pop(session.key, None)
                session.clear(self._clock())
        for session in [session for key, session in old.items() if key.upstream not in changed]:
            if session.size_bytes > limits.memory_bytes_max:
                self._retire(session)
            else:
                self._sessions[session.key] = session
        while len(self._sessions) > limits.sessions_max:
            self._sessions.popitem()

    def find(self, key: Key) -> Session | None:
        """The session of that key, if there is one: stored, or still in use."""
        self._sessions.expire()  # into those in use
        return self._sessions.get(key) or self._parting.get(key)

    def get(self, key: Key) -> Session | None:
        """The session of that key, if it is stored; it then counts as used now."""
        with self._sessions.timer:
            session: Session | None = self._sessions.get(key)
            if session is not None:
                self.keep(session)
        return session

    def open(self, key: Key) -> Session:
        """The session of that key, made if there is none."""
        session = self.get(key)
        if session is None:
            self._sessions.expire()
            session = self._parting.pop(key, None)
            if session is None or not session.in_use or session.size_bytes > self._limits.memory_bytes_max:
                session = Session(key)
                lost_at = max(self._lost.get(key, NEVER), self._lost.get((key.upstream, key.session), NEVER))
                session.known.believed_from = lost_at
            while len(self._sessions) >= self._limits.sessions_max:
                self._sessions.popitem()
            self._sessions[key] = session
        if (server := self.servers.get(key)) is not None:
            session.index.default_method = server.default_method
        return session

    def keep(self, session: Session) -> None:
        """Count a session's size anew, as used now, if it is stored. Others may have to go for it."""
        with self._sessions.timer:
            if self._sessions.get(session.key) is not session:
                return
            try:
                self._sessions[session.key] = session
            except ValueError:
                self._retire(self._sessions.pop(session.key))

    def check(self, session: Session) -> None:
        """Raises TooLarge if a session has outgrown what an index may hold."""
        if len(session.index) > self._limits.tasks_max or session.size_bytes > self._limits.memory_bytes_max:
            raise TooLarge

    def observe(self, key: Key, observation: Observation, asked_at: float | None = None) -> None:
        """Take in what passed in a session, in answer to a request made at `asked_at` or to none."""
        if self.servers.filters_natively(key):
            return
        session = self.open(key)
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
        """The upstream refused the session, or knows it no more. Who works with it goes on with nothing known."""
        now = self._lost[key] = self._clock()
        session = self.find(key)
        if session is None:
            return
        session.clear(now)
        if session.in_use:
            self.keep(session)
        else:
            self._sessions.pop(key, None)

    def drop_all(self, upstream: str, session: bytes) -> None:
        """A session was ended: all that is known of it, for whoever asked, goes."""
        self._lost[upstream, session] = self._clock()
        for key in [k for k in (*self._sessions, *self._parting) if k.upstream == upstream and k.session == session]:
            self.drop(key)

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
