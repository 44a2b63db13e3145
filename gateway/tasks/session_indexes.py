"""The indexes of all sessions: whose they are, how much they may hold, when they go.

In: keys of callers, what passes between them and their servers. Out: `Session`s.
Always: the key of a session is its upstream, request target, `Mcp-Session-Id` and identity (DESIGN 7). One origin may
serve several MCP endpoints, so the target counts. A session is stored once the upstream has answered its caller. One
that a query uses stays; one that was never accepted goes with its last query. All stored ones together hold
`memory_bytes_max` at most: the least recently used is evicted first. One that is idle for `idle_timeout` expires. What
`initialize` said cannot be asked for again, so it is kept longer.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain, count
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from gateway import config
from gateway.caller_identity import Key, ServerKey
from gateway.errors import TooLarge
from gateway.mcp.capabilities import Server
from gateway.mcp.task import Moment, Stamp, Task
from gateway.mcp.task_observations import Observation
from gateway.owners.eviction import Space, Storable, Stored
from gateway.owners.task_ids_seen_by_caller import OwnerKey, Owners
from gateway.owners.task_owners import Lost, OwnTasks
from gateway.tasks.exchange_observer import Intercepted
from gateway.tasks.index import METHOD_CHARS_MAX, Index
from gateway.tasks.lifecycle_counts import Lives
from gateway.tasks.reconciliation import MARKS_MAX, PUT_OFF, Record
from gateway.tasks.single_flight import InFlight
from gateway.tasks.task_entry import Changed, Source, Stale, TaskEntry, absent

_SESSION_OVERHEAD_BYTES: Final = 4096
_FORGOTTEN_AT_ONCE: Final = 200
CAPABILITIES_MAX: Final = 100_000  # results of `initialize`: 730 bytes each, 73 MB in all
CAPABILITIES_IDLE_S: Final = 24 * 3600.0
FAILURES_MAX: Final = 3  # of own requests, in a row, for a stale task that the index lacks


OfAll: TypeAlias = tuple[ServerKey, bytes, bytes]
"""A session, for every identity: a token may be renewed in the middle of one."""


class Said(Storable[OfAll]):
    """What `initialize` said in a session."""

    size_bytes = 0  # only their number is limited

    def __init__(self, key: OfAll, server: Server) -> None:
        self.key, self.server = key, server


class Session(Storable[Key]):
    """The tasks of one session of one identity, and what is being asked for them."""

    def __init__(self, key: Key, seen: Owners, changed: Changed | None = None) -> None:
        self.key = key
        self.record = Record(Index(changed))
        self._seen, self._changed = seen, changed
        self.owners = seen.owners_of(key)  # of the ids that the caller has seen
        self.in_flight: dict[str | None, InFlight] = {}  # what is being asked: a task under its id, pages under None
        self.under_way = self.begun = 0  # requests of the gateway's own, now and in all

    @property
    def size_bytes(self) -> int:
        return self.record.size_bytes + _SESSION_OVERHEAD_BYTES

    def __del__(self) -> None:
        with suppress(RuntimeError):  # without an event loop nothing can be delayed
            _free(self.record.index.dismantle())

    def clear(self) -> None:
        """Forget all tasks. An answer that was asked for before is void: `record` is another one from now on."""
        old = self.record.index
        self.record = Record(Index(self._changed))
        self.record.index.default_method = old.default_method
        _free(old.dismantle())

    def ask_by_id(self) -> None:
        """The upstream may know `tasks/get`: tasks that no page shows are looked for again."""
        if not self.record.asks_by_id:
            self.record.asks_by_id, self.record.seen_marked_to = True, {}

    def mark_seen(self, came: Moment) -> None:
        """Mark tasks that the caller was shown elsewhere before a query came, as far as there is room."""
        record = self.record
        if came.at >= record.asks_again_at:
            self.ask_by_id()
        for seen in self._seen.of(self.owners, came) if record.asks_by_id else ():
            last = record.seen_marked_to.get(seen.key, 0)
            for task_id, order in seen.since(last):
                if order > came.order or (len(record.index.stale) >= MARKS_MAX // 2 and order != last):
                    break  # the ids of a page have one order
                entry = record.index.entries.get(task_id)
                if entry is None or not (entry.raw or entry.told.asked > order):  # it is not there, nor denied since
                    record.mark(task_id, Stale(order, order, Source.ELSEWHERE))
                record.seen_marked_to[seen.key] = last = order

    def fail(self, task_id: str) -> bool:
        """An own `tasks/get` got no answer. True if an error fails no query: an answer elsewhere has shown the task.

        Where the index lacks the task, the third failure puts it off until the next crawl has ended.
        """
        stale = self.record.index.stale.get(task_id)
        if stale is None or stale.blocks_from == PUT_OFF or self.record.index.get(task_id) is not None:
            return False
        stale.failed += 1
        is_left_out = stale.source is Source.ELSEWHERE
        if stale.failed >= FAILURES_MAX:
            stale.blocks_from, stale.source, stale.failed = PUT_OFF, Source.ELSEWHERE, 0
        return is_left_out

    def answered(self, task_id: str, shown: Task | None, told: Stamp, now: Moment) -> None:
        """Take in what the gateway's own `tasks/get` says of a task; None: it is not there."""
        index = self.record.index
        if shown is not None and not self.owns(task_id):
            index.set(absent(task_id))
            return
        had_it = index.get(task_id) is not None
        self.record.answered(task_id, shown, told, now)
        has_it = index.get(task_id) is not None
        if shown is None and not has_it:
            self._seen.deny(self.owners, task_id, told.asked, had_it)
        elif shown is not None and has_it:
            self._seen.note(self.owners, (task_id,), now)

    def owns(self, task_id: str) -> bool:
        return self._seen.owns(self.owners, task_id)


class Forgotten(Exception):
    """The session was cleared while a request for it was under way; or another refresh took the place of this one."""


def _free(rest: Iterator[None]) -> None:
    """Free the rest of an index in small steps: in one step it would hold up the event loop."""
    if next(rest, rest) is None:
        asyncio.get_running_loop().call_soon(_free, rest)


class Replicas(Protocol):
    """Other gateways of the same sessions: what they are told, and what they have told."""

    def changed(self, key: Key, before: TaskEntry | None, after: TaskEntry) -> None:
        """What is known of a task has changed."""

    def lost(self, key: Key, task_id: str | None) -> None:
        """What passed denies a task of which nothing is known here; None: many tasks have gone at once."""

    def ended(self, keys: set[Key]) -> None:
        """A session was ended: these are its keys. Others may know it by any of them."""

    async def learn(self, session: Session) -> None:
        """Learn what others have told of a session. It waits for a bounded time."""


class Sessions:
    def __init__(
        self,
        limits: config.IndexLimits,
        clock: Callable[[], float],
        make_own_tasks: Callable[[config.IndexLimits, Callable[[], Moment], Lost], OwnTasks] | None = None,
    ) -> None:
        """`make_own_tasks` makes the owners of tasks, if each caller has his own alone."""
        self.own_tasks = None if make_own_tasks is None else make_own_tasks(limits, self.now, self._lose)
        self.said: Stored[OfAll, Said] = Stored(Space(0, CAPABILITIES_MAX, CAPABILITIES_IDLE_S))
        self.know_get = set[ServerKey]()  # have answered a `tasks/get`: -32601 is an error like others (DESIGN 6.12)
        self.lives: Lives | None = None  # of the tasks that are seen, unless metrics have none
        self.replicas: Replicas | None = None
        self._clock = clock
        self._order = count(1)
        self._seen = self.own_tasks or Owners(limits)
        self.stored: Stored[Key, Session] = Stored(
            Space(0, 0, 0.0),
            self._seen.stored,
            # All identities of one session, and all sessions of one identity: the beginnings of an `OwnerKey`.
            lambda key: (key.of_all, (*key[:2], b"", key.identity)),
        )
        self.set_limits(limits)

    def now(self) -> Moment:
        """This moment. No two are the same."""
        return Moment(next(self._order), self._clock())

    def set_limits(self, limits: config.IndexLimits) -> None:
        """These are the limits from now on."""
        self.limits = limits
        self.stored.space = Space(limits.memory_bytes_max, limits.sessions_max, limits.idle_timeout)
        self._seen.set_limits(limits)
        for session in self.stored.all():
            session.record.outgrown_until = float("-inf")  # there may be more room now
            session.owners = self._seen.owners_of(session.key)
            self.keep(session)

    def forget(self, servers: set[ServerKey]) -> None:
        """Forget all of these servers: no request to them is left."""
        self.know_get -= servers
        _free(self._forget(servers))

    def _forget(self, servers: set[ServerKey]) -> Iterator[None]:
        """Forget them bit by bit: nobody asks for any of it."""
        places: tuple[Stored[Any, Any], ...] = self.stored, self._seen.stored, self.said
        theirs = [(place, one.key) for place in places for one in place.all() if one.key[0] in servers]
        for number, (place, key) in enumerate(theirs, 1):
            place.remove(key)
            if number % _FORGOTTEN_AT_ONCE == 0:
                yield

    def find(self, key: Key) -> Session | None:
        if (session := self.stored.get(key)) is None or self._clock() - session.used_at < self.limits.idle_timeout:
            return session
        self.stored.expire(self._clock())
        return self.stored.get(key)

    @contextmanager
    def using(self, key: Key) -> Iterator[Session]:
        """The session of that key, which stays while a query uses it. One that was never accepted goes then."""
        if (session := self.find(key)) is None:
            self.stored.hold(session := self._new(key))
        self.know_server(session)
        session.queries += 1
        self.keep(session)
        try:
            yield session
        finally:
            session.queries -= 1
            if not session.queries and session.stored_bytes is None and self.stored.get(key) is session:
                self.stored.remove(key)
            self.keep(session)

    def note_server(self, key: Key, server: Server) -> None:
        """`initialize` has described the server of a session."""
        # The list of task methods may take 64 KiB. Only a single method is ever used.
        methods = server.methods if len(server.default_method or "") <= METHOD_CHARS_MAX else ()
        server, now = msgspec.structs.replace(server, methods=methods if len(methods) == 1 else ()), self._clock()
        self.said.expire(now)
        self.said.remove(key.of_all)
        self.said.use(Said(key.of_all, server), now)

    def server_of(self, key: Key, is_use: bool = True) -> Server | None:
        """The server of a session, None if its `initialize` was not seen. `is_use`: it counts as used now."""
        said, now = self.said.get(key.of_all), self._clock()
        if said is None or now - said.used_at >= CAPABILITIES_IDLE_S:
            return None
        if is_use:
            self.said.touch(said, now)
        return said.server

    def native(self, key: Key) -> Server | None:
        """The server of a session, if it filters its lists, and not the gateway. The session counts as used now."""
        server = self.server_of(key)
        return server if self.own_tasks is None and server is not None and not server.filtered_here else None

    def know_server(self, session: Session) -> None:
        if (server := self.server_of(session.key, is_use=False)) is not None:
            session.record.index.default_method = server.default_method

    def _new(self, key: Key) -> Session:
        return Session(key, self._seen, None if self.replicas is None else partial(self.replicas.changed, key))

    def keep(self, session: Session, is_accepted: bool = False) -> None:
        """Count the size of a stored session anew, as used now. Others may be evicted for it.

        `is_accepted`: the upstream has answered its caller. It is stored from now on, unless there is another.
        """
        if session.stored_bytes is not None or (is_accepted and self.find(session.key) is session):
            self.stored.use(session, self._clock())

    def check(self, session: Session, from_nothing: bool = False) -> None:
        """Raises TooLarge for an index that is too large, and empties it; one read `from_nothing` remembers that."""
        limits = self.limits
        if len(session.record.index) > limits.tasks_max:
            what = f"more than {limits.tasks_max} tasks (index.tasks_max)"
        elif session.size_bytes > limits.memory_bytes_max - self._seen.stored.size_bytes:
            what = f"tasks of more than {limits.memory_bytes_max} bytes (index.memory_bytes_max)"
        else:
            return
        session.clear()
        session.record.outgrown = what
        if from_nothing:
            session.record.outgrown_until = self._clock() + limits.full_crawl_interval
        raise TooLarge(what)

    def _lose(self, task_id: str, owners: list[OwnerKey]) -> None:
        groups = (owner[:3] if owner[-1] else owner[:4] for owner in owners)
        for session in chain.from_iterable(map(self.stored.of_group, groups)):
            if not session.owns(task_id):
                session.record.index.set(absent(task_id))

    def observe(self, key: Key, said: Observation, asked: Moment | None = None) -> None:
        if self.native(key):
            return
        session, shown = self.find(key), said.shown_ids
        is_unknown = session is None or said.denied not in session.record.index.entries
        if self.replicas is not None and said.denied is not None and is_unknown:
            self.replicas.lost(key, said.denied)
        if session is None and not shown:
            return  # nothing is known that it may change
        session, now = session or self._new(key), self.now()
        index, is_stored = session.record.index, session.stored_bytes is not None
        before_bytes = index.entry_bytes
        session.record.observe(said, asked, now, bool(session.in_flight))
        if shown and not said.is_told_to_all:
            is_there_again = bool(index.gone) and not index.gone.keys().isdisjoint(shown)
            self._seen.note(session.owners, shown, now, made=said.made is not None or is_there_again)
        if said.is_got:
            self.know_get.add(key.server)
            session.ask_by_id()
        if is_stored and index.entry_bytes == before_bytes:
            self.stored.touch(session, now.at)  # nearly always: a poll says what is known
        elif shown or is_stored:
            self.stored.use(session, now.at)

    def note(self, key: Key, intercepted: Intercepted, opened: Key | None = None, is_unique: bool = False) -> None:
        """Take in what a message said. `opened`: the key of the session that `initialize` has opened with it.

        `is_unique`: its caller proves each request. No answer could show what is noted, so only the server is (5.9).
        """
        if intercepted.server is not None:
            self.note_server(opened or key, intercepted.server)
        if (said := intercepted.observation) is not None:
            if self.lives is not None:
                self.lives.observe(key, said, intercepted.asked)
            if not is_unique:
                self.observe(key, said, intercepted.asked)

    def refuse(self, session: Session | None) -> None:
        """The upstream has refused a request of a caller's: it is asked before anything is shown (DESIGN 7.4)."""
        if session is not None:
            session.record.refused = self.now().order

    def drop_all(self, key: Key) -> None:
        """A session was ended: drop what is known of it, for every identity. Its users keep it, empty."""
        self.said.remove(key.of_all)
        self._seen.end_all(key)
        sessions = self.stored.of_group(key.of_all)
        for session in sessions:
            session.clear()
            self.stored.remove(session.key)
            if session.queries:
                self.stored.hold(session)
        if self.replicas is not None:
            self.replicas.ended({key, *(session.key for session in sessions)})

    def expire(self) -> None:
        self.stored.expire(self._clock())
        if self.own_tasks is not None:
            self.own_tasks.sweep()

    def gauges(self) -> dict[str, tuple[str, float]]:
        """What is held now, and its limits: name of the metric to (help, value)."""
        tasks = sum(len(session.record.index) for session in self.stored.all())
        size_bytes = self.stored.size_bytes + self._seen.stored.size_bytes
        return {
            "index_sessions": ("Sessions that have an index.", self.stored.count),
            "index_sessions_max": ("Limit of index_sessions.", self.limits.sessions_max),
            "index_tasks": ("Tasks in all indexes.", tasks),
            "index_bytes": ("Bytes of all indexes, as they are counted against their limit.", size_bytes),
            "index_bytes_max": ("Limit of index_bytes.", self.limits.memory_bytes_max),
        }
