"""The indexes of all sessions: whose they are, how much they may hold, when they go.

In: keys of callers, observations of tasks. Out: `Session`s. Always: a session belongs to one upstream, one request
target, one `Mcp-Session-Id` and one identity, and is found by all four (DESIGN 7); together they hold no more than
`memory_bytes_max`, the least recently used going first; one that is idle for `idle_timeout` goes.

The request target counts because one origin may serve several MCP endpoints, each with its own tasks.
"""

import asyncio
import hashlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from cachetools import TTLCache

from gateway import config
from gateway.core.capabilities import Server
from gateway.core.headers import Headers
from gateway.core.index import Index
from gateway.core.observe import Observation
from gateway.core.task import Task

if TYPE_CHECKING:
    from gateway.refresh import Refresh

_SESSION_OVERHEAD_BYTES: Final = 4096

# Fields that cannot carry an identity (DESIGN 7). Every other one counts: safe first.
_NO_IDENTITY: Final = frozenset(
    b"accept accept-charset accept-encoding accept-language content-type content-length content-encoding "
    b"content-language user-agent mcp-protocol-version mcp-session-id mcp-method mcp-name last-event-id "
    b"traceparent tracestate baggage b3 x-b3-traceid x-b3-spanid x-b3-parentspanid x-b3-sampled x-request-id "
    b"x-correlation-id connection keep-alive proxy-connection te trailer transfer-encoding upgrade expect "
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
    for name, value in sorted(chosen):
        digest.update(b"%d:%b%d:%b" % (len(name), name, len(value), value))
    return digest.digest()


class Session:
    """What is known of the tasks of one session of one identity. Times are seconds of the monotonic clock."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.index = Index()
        self.server: Server | None = None  # None where its `initialize` was not seen
        self.as_of: float | None = None  # every task's state in the index is of this time or later
        self.doubted_at = float("-inf")  # something passed then that may have changed any of them
        self.as_of_unix = 0.0  # the same, in seconds of the wall clock
        self.refresh: Refresh | None = None  # the one that is under way
        self.oversize = False  # the upstream lists more than an index may hold
        self.scanning = asyncio.Lock()
        self.answering: dict[bytes, list[asyncio.Future[None]]] = {}  # by raw request id, to be cancelled
        self.cors = Headers()  # what a browser wants to see on an answer, as the upstream last said it
        self.list_pages = 0  # what listing all tasks took last: pages, and bytes of JSON
        self.list_bytes = 0
        self.observed_at: dict[str, float] = {}  # tasks seen in passing since the last refresh began
        self.gone_at: dict[str, float] = {}  # tasks seen to be gone since then
        self.unlisted: dict[str, float] = {}  # tasks that no list has shown yet, and when each was last confirmed

    @property
    def filters_natively(self) -> bool:
        return self.server is not None and not self.server.filtered_here

    @property
    def size_bytes(self) -> int:
        return self.index.size_bytes + _SESSION_OVERHEAD_BYTES + 200 * (len(self.observed_at) + len(self.unlisted))

    def describe(self, server: Server) -> None:
        """Take in what `initialize` told about the server."""
        self.server = server
        self.index.default_method = server.default_method

    def take(self, observation: Observation, now: float) -> None:
        """Take in what passed: it holds from now on, whatever a crawl that began earlier still reports."""
        for task in observation.tasks:
            known = self.index.get(task.id)
            self.observed_at[task.id] = now
            self.gone_at.pop(task.id, None)
            if known is None:
                self.unlisted[task.id] = now
            self.index.put(task)
        for task_id in observation.gone:
            self.forget(task_id)
            self.gone_at[task_id] = now
        if observation.doubt:
            self.doubted_at = now

    def listed(self, tasks: list[Task]) -> None:
        """Take in tasks that the upstream lists."""
        for task in tasks:
            if task.id not in self.gone_at:
                self.index.put(task)
                self.unlisted.pop(task.id, None)

    def forget(self, task_id: str) -> None:
        """The task is gone."""
        self.index.remove(task_id)
        self.unlisted.pop(task_id, None)
        self.observed_at.pop(task_id, None)

    def clear(self) -> None:
        """Forget all tasks; they are more than an index may hold."""
        default_method = self.index.default_method
        self.index = Index()
        self.index.default_method = default_method
        self.as_of = None
        self.observed_at.clear()
        self.unlisted.clear()
        self.gone_at.clear()


class TooLarge(Exception):
    """A session has more tasks than an index may hold."""


class Sessions:
    """All sessions, by key."""

    def __init__(self, limits: config.Index, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._sessions: TTLCache[Key, Session] = TTLCache(
            limits.memory_bytes_max, limits.idle_timeout, timer=clock, getsizeof=lambda session: session.size_bytes
        )

    def get(self, key: Key) -> Session | None:
        """The session of that key, if there is one; it then counts as used now."""
        session: Session | None = self._sessions.get(key)
        if session is not None:
            self.keep(session)
        return session

    def open(self, key: Key) -> Session:
        """The session of that key, made if there is none."""
        session = self.get(key)
        if session is None:
            session = Session(key)
            while len(self._sessions) >= self._limits.sessions_max:
                self._sessions.popitem()
            self._sessions[key] = session
        return session

    def keep(self, session: Session) -> None:
        """Count a session's size anew, as used now, unless it was dropped. Others may have to go for it."""
        if self._sessions.get(session.key) is not session:
            return
        try:
            self._sessions[session.key] = session
        except ValueError:
            self._sessions.pop(session.key, None)

    def check(self, session: Session) -> None:
        """Raises TooLarge if a session has outgrown what an index may hold."""
        if len(session.index) > self._limits.tasks_max or session.size_bytes > self._limits.memory_bytes_max:
            raise TooLarge

    def observe(self, key: Key, observation: Observation) -> None:
        """Take in what passed in a session."""
        session = self.open(key)
        if session.oversize or session.filters_natively:
            return
        session.take(observation, self._clock())
        try:
            self.check(session)
        except TooLarge:
            session.oversize = True
            session.clear()
        self.keep(session)

    def drop(self, key: Key) -> None:
        """The upstream refused the session, or knows it no more."""
        self._sessions.pop(key, None)

    def drop_all(self, upstream: str, session: bytes) -> None:
        """A session was ended: all that is known of it, for whoever asked, goes."""
        for key in [k for k in self._sessions if k.upstream == upstream and k.session == session]:
            self._sessions.pop(key, None)

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
