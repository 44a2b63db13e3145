"""The indexes of all sessions: whose they are, how much they may hold, when they go.

In: keys of callers, what passes between them and their servers. Out: `Session`s.
Always: the key of a session is its upstream, request target, `Mcp-Session-Id` and identity (DESIGN 7). One origin may
serve several MCP endpoints, so the target counts. A session is stored once the upstream has answered its caller. One
that a query uses stays; one that was never accepted goes with its last query. All stored ones together hold
`memory_bytes_max` at most: the least recently used is evicted first. One that is idle for `idle_timeout` expires. No
result of `initialize` can be asked for again, so it is kept apart and longer (`CapabilityCache`).
"""

import asyncio
from collections.abc import Callable, Container, Hashable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Final

from cachetools import TTLCache
from msgspec.structs import replace

from gateway import config
from gateway.caller_identity import Key, ServerKey
from gateway.errors import TooLarge
from gateway.mcp.capabilities import Server
from gateway.mcp.task import Moment, Stamp, Task
from gateway.mcp.task_observations import Observation
from gateway.owners.eviction import Grouped, Space, Storable, Stored
from gateway.owners.task_ids_seen_by_caller import OwnerKey, Owners
from gateway.owners.task_owners import OwnTasks
from gateway.tasks.exchange_observer import Intercepted
from gateway.tasks.index import METHOD_CHARS_MAX
from gateway.tasks.lifecycle_counts import Lives
from gateway.tasks.reconciliation import MARKS_MAX, Listing, Record
from gateway.tasks.single_flight import InFlightRequests

_SESSION_OVERHEAD_BYTES: Final = 4096
CAPABILITIES_MAX: Final = 100_000  # results of `initialize`: 730 bytes each, 73 MB in all
CAPABILITIES_IDLE_S: Final = 24 * 3600.0
_FORGOTTEN_AT_ONCE: Final = 200
FAILURES_MAX: Final = 3  # of own requests, in a row, for a marked task that the index lacks


class Session(Record, Storable[Key]):
    """The tasks of one session of one identity, and what is being asked for them."""

    def __init__(self, key: Key, seen: Owners) -> None:
        super().__init__()
        self.key = key
        self._seen = seen
        self.owners = seen.owners_of(key)  # of the ids that the caller has seen
        self._finds_all = False  # after the next crawl all ids that were seen are marked again
        self._found_to: dict[OwnerKey, int] = {}  # which of the ids that each owner has seen have been marked here
        self.in_flight = InFlightRequests()
        self.list_bytes = 0  # of JSON, in all pages of the last crawl

    @property
    def size_bytes(self) -> int:
        return super().size_bytes + _SESSION_OVERHEAD_BYTES

    def __del__(self) -> None:
        with suppress(RuntimeError):  # without an event loop nothing can be delayed
            _free(self.index.dismantle())

    def clear(self) -> None:
        """Forget all tasks. An answer that was asked for before is void: `known` is another one from now on."""
        old = self.index
        self.empty()
        self._found_to = {}
        self.index.default_method = old.default_method
        _free(old.dismantle())

    def take_in(self, said: Observation, asked: Moment | None, now: Moment) -> None:
        """Take in what passed: the answer to a request made at `asked`, or a message that answers no request."""
        for task_id, raw in said.shown:
            if not (said.is_told_to_all and task_id in self.gone):  # mcp-go tells every session of every task
                self.tell(task_id, raw, asked, now)
        if said.made is not None:
            self.make(said.made, said.method, now)
        if said.ended is not None:
            self.end(said.ended, now)
        if said.denied is not None:
            self.deny(said.denied, now, bool(self.in_flight))
        if said.failed is not None:
            self.end(said.failed, now, has_failed=True)
        if said.doubt:
            self.doubt(now)
        if not said.is_told_to_all and (names := said.shown_ids):
            is_there_again = any(task_id in self.gone for task_id in names)
            self._seen.note(self.owners, names, now, made=said.made is not None or is_there_again)

    def ask_by_id(self) -> None:
        """The upstream may know `tasks/get`: tasks that no page shows are looked for again."""
        if not self.known.asks_by_id:
            self.known.asks_by_id, self._found_to = True, {}

    def find_again(self, came: Moment) -> None:
        """Mark tasks that the caller was shown elsewhere before a query came, as far as there is room."""
        if came.at >= self.known.asks_again_at:
            self.ask_by_id()
        for seen in self._seen.of(self.owners, came) if self.known.asks_by_id else ():
            last = self._found_to.get(seen.key, 0)
            for task_id, order in seen.since(last):
                if order > came.order or (len(self.marks) >= MARKS_MAX // 2 and order != last):
                    break  # the ids of a page have one order
                if not self.has_heard(task_id, order):
                    self.find(task_id, Moment(order, came.at))
                self._found_to[seen.key] = last = order

    def put_off(self, task_id: str, asked: int) -> bool:
        """An own `tasks/get` got no answer. True if only an answer elsewhere has shown the task: no query fails for it.

        It is asked for again after the next crawl.
        """
        mark = self.marks.get(task_id)
        if mark is None or not mark.found:
            return False
        self.marks.settle(task_id, asked)
        self._finds_all = True
        return True

    def fail(self, task_id: str, asked: int) -> None:
        """An own `tasks/get` got no answer, and the query fails. In the end it is put off: only clients get some."""
        mark = self.marks.get(task_id)
        if mark is not None and self.index.get(task_id) is None:
            mark.failed += 1
            if mark.failed >= FAILURES_MAX:
                mark.found = True
                self.put_off(task_id, asked)

    def end_crawl(self, told: Stamp, pages: int, cursors: list[str | None], listing: Listing) -> None:
        super().end_crawl(told, pages, cursors, listing)
        if self._finds_all:
            self._found_to, self._finds_all = {}, False

    def take(self, task: Task, told: Stamp, now: Moment) -> None:
        if not self.owns(task.id):
            self.lose(task.id)
            return
        super().take(task, told, now)
        if self.index.get(task.id) is not None:
            self._seen.note(self.owners, (task.id,), now)
            if task.is_terminal:
                self._seen.end_task(self.owners, task.id)

    @property
    def apart(self) -> bool:
        """Whether the caller has his own tasks alone (task_owners.py)."""
        return self._seen.apart

    def owns(self, task_id: str) -> bool:
        return self._seen.owns(self.owners, task_id)

    def lose(self, task_id: str) -> None:
        """A task is another caller's now."""
        self.forget(task_id)
        self.marks.drop(task_id)

    def miss(self, task_id: str, told: Stamp, now: Moment) -> None:
        had_it = self.index.get(task_id) is not None
        super().miss(task_id, told, now)
        if self.index.get(task_id) is None:
            self._seen.deny(self.owners, task_id, told.asked, had_it)

    def lose_many(self) -> None:
        """Many tasks have gone at once, and most were not asked for."""


def _space_in(limits: config.IndexLimits) -> Space:
    return Space(limits.memory_bytes_max, limits.sessions_max, limits.idle_timeout)


def _groups_of(key: Key) -> tuple[Hashable, Hashable]:
    """All identities of one session, and all sessions of one identity: the beginnings of an `OwnerKey`."""
    return key.of_all, (*key[:2], b"", key.identity)


def _of_group(group: Hashable, *places: Grouped[Key, Session] | Stored[Key, Session]) -> list[Session]:
    return [session for place in places for session in place.of_group(group)]


class Forgotten(Exception):
    """The session was cleared while a request for it was under way; or another refresh took the place of this one."""


def _free(rest: Iterator[None]) -> None:
    """Free the rest of an index in small steps: in one step it would hold up the event loop."""
    if next(rest, rest) is None:
        asyncio.get_running_loop().call_soon(_free, rest)


class CapabilityCache:
    """What `initialize` said in each session, for every identity: a token may be renewed in the middle of one."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._servers: TTLCache[tuple[ServerKey, bytes, bytes], Server]
        self._servers = TTLCache(CAPABILITIES_MAX, CAPABILITIES_IDLE_S, timer=clock)
        self.may_filter = True  # else the gateway answers for those too that filter by themselves

    def note(self, key: Key, server: Server) -> None:
        # The list of task methods may take 64 KiB. Only a single method is ever used.
        methods = server.methods if len(server.default_method or "") <= METHOD_CHARS_MAX else ()
        self._servers[key.of_all] = replace(server, methods=methods if len(methods) == 1 else ())

    def end(self, key: Key) -> None:
        self._servers.pop(key.of_all, None)

    def get(self, key: Key, is_use: bool = True) -> Server | None:
        """The server of a session, None if its `initialize` was not seen. `is_use`: it counts as used now."""
        server = self._servers.get(key.of_all)
        if server is not None and is_use:
            self._servers[key.of_all] = server
        return server

    def native(self, key: Key) -> Server | None:
        """The server of a session, if it filters its lists by itself. The session counts as used now."""
        server = self.get(key)
        return server if self.may_filter and server is not None and not server.filtered_here else None

    def forget(self, servers: Container[ServerKey]) -> None:
        for key in [key for key in self._servers if key[0] in servers]:
            self._servers.pop(key, None)


class Sessions:
    def __init__(
        self, limits: config.IndexLimits, servers: CapabilityCache, clock: Callable[[], float], apart: bool = False
    ) -> None:
        """`apart`: each caller has his own tasks alone."""
        self.servers = servers
        self.servers.may_filter = not apart
        self.own = self._new_own(limits) if apart else None
        self.know_get = set[ServerKey]()
        """The upstreams that have answered a `tasks/get`: there -32601 is an error like others (DESIGN 6.12)."""
        self.lives: Lives | None = None
        """The lives of the tasks that are seen, unless metrics have none."""
        self._limits = limits
        self._clock = clock
        self._order = count(1)
        self._seen = self.own or Owners(limits)
        self._stored: Stored[Key, Session] = Stored(_space_in(limits), self._seen.stored, _groups_of)
        self._unaccepted: Grouped[Key, Session] = Grouped(_groups_of)  # that queries use

    def now(self) -> Moment:
        """This moment. No two are the same."""
        return Moment(next(self._order), self._clock())

    def take_over(self, limits: config.IndexLimits) -> None:
        """Take over other limits."""
        self._limits = limits
        self._stored.space = _space_in(limits)
        self._seen.take_over(limits)
        for session in (*self._unaccepted.values(), *self._stored.all()):
            session.known.outgrown_until = float("-inf")  # there may be more room now
            session.owners = self._seen.owners_of(session.key)
            self.keep(session)

    def forget(self, servers: set[ServerKey]) -> None:
        """Forget all of these servers: no request to them is left."""
        self.know_get -= servers
        _free(self._forget(servers))

    def _forget(self, servers: set[ServerKey]) -> Iterator[None]:
        """Forget them bit by bit: nobody asks for any of it."""
        keys = [session.key for session in self._stored.all() if session.key.server in servers]
        owners = [seen.key for seen in self._seen.stored.all() if seen.key[0] in servers]
        for number in range(max(len(keys), len(owners))):
            for key in keys[number : number + 1]:
                self._stored.take_out(key)
            for owner in owners[number : number + 1]:
                self._seen.stored.take_out(owner)
            if number % _FORGOTTEN_AT_ONCE == _FORGOTTEN_AT_ONCE - 1:
                yield
        self.servers.forget(servers)

    def find(self, key: Key) -> Session | None:
        self._stored.expire(self._clock())
        return self._stored.get(key) or self._unaccepted.get(key)

    @contextmanager
    def using(self, key: Key) -> Iterator[Session]:
        """The session of that key, which stays while a query uses it. One that was never accepted goes then."""
        session = self.find(key)
        if session is None:
            session = self._unaccepted[key] = self._new(key)
        self._know_server(session)
        session.queries += 1
        self.keep(session)
        try:
            yield session
        finally:
            session.queries -= 1
            if not session.queries and self._unaccepted.get(key) is session:
                self._unaccepted.take(key)
            self.keep(session)

    async def learn(self, session: Session) -> bool:
        """Learn what other replicas have told of a session. Returns whether there may be any."""
        return False

    def _know_server(self, session: Session) -> None:
        if (server := self.servers.get(session.key, is_use=False)) is not None:
            session.index.default_method = server.default_method

    def _new_own(self, limits: config.IndexLimits) -> OwnTasks:
        return OwnTasks(limits, self.now, self._lose)

    def _new(self, key: Key) -> Session:
        return Session(key, self._seen)

    def accept(self, session: Session) -> None:
        """The upstream has answered the caller of a session: it is stored from now on, unless there is another."""
        if self.find(session.key) is session:
            self._unaccepted.take(session.key)
            self._stored.use(session, self._clock())

    def keep(self, session: Session) -> None:
        """Count the size of a stored session anew, as used now. Others may be evicted for it."""
        if self._stored.get(session.key) is session:
            self._stored.use(session, self._clock())

    def check(self, session: Session, from_nothing: bool = False) -> None:
        """Raises TooLarge for an index that is too large, and empties it; one read `from_nothing` remembers that."""
        limits = self._limits
        if len(session.index) > limits.tasks_max:
            what = f"more than {limits.tasks_max} tasks (index.tasks_max)"
        elif session.size_bytes > limits.memory_bytes_max - self._seen.stored.size_bytes:
            what = f"tasks of more than {limits.memory_bytes_max} bytes (index.memory_bytes_max)"
        else:
            return
        session.clear()
        session.known.outgrown = what
        if from_nothing:
            session.known.outgrown_until = self._clock() + limits.full_crawl_interval
        raise TooLarge(what)

    def _lose(self, task_id: str, owners: list[OwnerKey]) -> None:
        for group in (owner[:3] if owner[-1] else owner[:4] for owner in owners):
            for session in _of_group(group, self._unaccepted, self._stored):
                if not session.owns(task_id):
                    session.lose(task_id)

    def observe(self, key: Key, said: Observation, asked: Moment | None = None) -> None:
        if self.servers.native(key):
            return
        session, shows = self.find(key), bool(said.shown_ids)
        if session is None:
            if not shows:
                return  # nothing is known that it may change
            session = self._unaccepted[key] = self._new(key)
            self._know_server(session)
        session.take_in(said, asked, self.now())
        if said.is_got:
            self.know_get.add(key.server)
            session.ask_by_id()
        (self.accept if shows else self.keep)(session)

    def take_in(self, key: Key, intercepted: Intercepted, opened: Key | None = None, is_unique: bool = False) -> None:
        """Take in what a message said. `opened`: the key of the session that `initialize` has opened with it.

        `is_unique`: its caller proves each request. No answer could show what is noted, so only the server is (5.9).
        """
        if intercepted.server is not None:
            self.servers.note(opened or key, intercepted.server)
        if intercepted.observation is not None and self.lives is not None:
            self.lives.take_in(key, intercepted.observation, intercepted.asked)
        if intercepted.observation is not None and not is_unique:
            self.observe(key, intercepted.observation, intercepted.asked)

    def refuse(self, session: Session | None) -> None:
        """The upstream has refused a request of a caller's: it is asked before anything is shown (DESIGN 7.4)."""
        if session is not None:
            session.known.refused = self.now().order

    def drop(self, key: Key) -> None:
        """Clear a session, which has ended. Its users keep it, empty."""
        session = self.find(key)
        if session is not None:
            session.clear()
            self._stored.take_out(key)
            if session.queries:
                self._unaccepted[key] = session

    def drop_all(self, key: Key) -> set[Key]:
        """A session was ended: drop what is known of it, for every identity. Returns the keys of all these."""
        self.servers.end(key)
        self._seen.end_all(key)
        keys = {key, *(one.key for one in _of_group(key.of_all, self._unaccepted, self._stored))}
        for each in keys:
            self.drop(each)
        return keys

    def expire(self) -> None:
        self._stored.expire(self._clock())
        if self.own is not None:
            self.own.sweep()

    def gauges(self) -> dict[str, tuple[str, float]]:
        """What is held now, and its limits: name of the metric to (help, value)."""
        sessions, size_bytes = self._stored.all(), self._stored.size_bytes + self._seen.stored.size_bytes
        return {
            "index_sessions": ("Sessions that have an index.", len(sessions)),
            "index_sessions_max": ("Limit of index_sessions.", self._limits.sessions_max),
            "index_tasks": ("Tasks in all indexes.", sum(len(s.index) for s in sessions)),
            "index_bytes": ("Bytes of all indexes, as they are counted against their limit.", size_bytes),
            "index_bytes_max": ("Limit of index_bytes.", self._limits.memory_bytes_max),
        }
