"""The lives of tasks, as far as they were seen: what runs, of which tool, how it ended, how long it took.

In: what passes, and what the gateway's own requests bring. Out: counts by upstream, tool and status; each end.
Always: one task is one, whoever sees it. A life begins with the result that made the task, or where it is first seen
live; it ends once. So of each tool: started = live + ended. A late answer about one that has ended begins nothing, one
that was asked for before ends nothing. An id that is given again has another life (DESIGN 2.15): a later `createdAt`,
in a result that made it or after its end. No timestamp of a server's makes an age or a duration negative.
"""

import hashlib
from bisect import bisect_left
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import islice, takewhile
from typing import Any, Final, TypeAlias

import msgspec

from gateway.caller_identity import Key, ServerKey
from gateway.mcp import task
from gateway.mcp.task import EPOCH_UNIX_S, STATUSES, TERMINAL, UNKNOWN, Instant, Moment, Task, Written, told_instant
from gateway.mcp.task_observations import Observation

LIVE_MAX: Final = 100_000  # that are known one by one
ENDED_MAX: Final = 10_000  # the last ones that ended
TOOLS_MAX: Final = 16  # of an upstream: each makes series, and clients choose them
UNSEEN_S: Final = 86_400.0  # after this a task is lost, whatever its `ttl`
UNNAMED_S: Final = 5.0  # a task may be listed before the result that made it is seen
STARTED: Final = "started"
OTHER: Final = "other"  # every further tool; every status that MCP does not know
LOST: Final = "lost"
UNHEARD: Final = "unheard"  # of a live one nothing was heard for a while: nobody knows whether it still works
UNHEARD_S: Final = 300.0
LAST_MAX: Final = 200  # durations of a tool that are known exactly
ENDS: Final = (*sorted(TERMINAL), OTHER, LOST)
DURATIONS: Final = (
    0.1, 0.25, 0.5, 1, 2, 3, 5, 7, 10, 15, 20, 30, 45, 60, 90, 120, 180, 300, 450, 600, 900, 1200, 1800, 2700,
    *(3600 * hours for hours in (1, 1.5, 2, 3, 4, 6, 9, 12, 18, 24, 36, 48, 72, 120, 168)),
)  # fmt: skip

_NOTHING: Final = Observation()
_SECOND: Final = 10**9
_SWEPT_AT_ONCE: Final = 2000
_STATUS: Final = {status: status for status in STATUSES}  # one string for all tasks

Series: TypeAlias = tuple[str, str, str]
"""An upstream, a tool and a status."""


class _Life(msgspec.Struct, gc=False):
    series: Series  # the status is empty until the first is known
    created: Instant
    began_s: float  # `createdAt` since 1970; when it was first seen if that is missing, before 2020 or to come
    first_s: float  # when it was seen, by a clock that nobody sets
    seen_s: float
    lasts_s: float  # unseen for so long it is lost
    server: ServerKey
    viewer: Key | None  # whom an answer showed it last: only he can find it gone
    digest: str  # of its id; empty unless `on_end` is told
    is_made_here: bool = False  # the result that made it passed
    past: "_Past | None" = None  # it has ended, and waits for its tool


class _Past(msgspec.Struct, gc=False):
    """How a task has ended."""

    created: Instant
    until_s: float  # its `lastUpdatedAt` since 1970; when the gateway knew of the end if that is missing
    status: str
    took_s: float | None = None
    is_counted: bool = False  # else nobody has seen it live


class Lives:
    """The tasks of all upstreams that are live, the last ones that were, and counts since the start."""

    def __init__(self, clock: Callable[[], float], unix_time: Callable[[], float]) -> None:
        """`clock` is one that nobody sets, `unix_time` gives seconds since 1970."""
        self._clock, self.unix_time = clock, unix_time
        self.counts: defaultdict[Series, int] = defaultdict(int)  # of STARTED, and of each of ENDS
        self.live: defaultdict[Series, dict[int, float]] = defaultdict(dict)  # since when, in seconds since 1970
        self.last: dict[tuple[str, str], deque[float]] = defaultdict(partial(deque[float], maxlen=LAST_MAX))
        self.durations: defaultdict[Series, list[float]] = defaultdict(lambda: [0] * (len(DURATIONS) + 2))
        """How many took how long: by bucket, those beyond all buckets, and the sum in seconds."""
        self.lookups_failed: defaultdict[tuple[str], int] = defaultdict(int)  # by upstream
        self.on_end: Callable[[Key, str, str, str], None] | None = None
        """Is told of each end: who saw it last, the tool, the status, the digest of the id."""
        self._servers: frozenset[ServerKey] = frozenset()
        self._tools: defaultdict[tuple[str], set[str]] = defaultdict(set)  # by upstream
        self._lives: dict[int, _Life] = {}  # by what `_number` returns, as all that follow
        self._past: OrderedDict[int, _Past] = OrderedDict()
        self._unnamed: dict[int, float] = {}  # not counted yet: since when
        self._round: list[list[int]] = []  # that `sweep` has yet to look at

    def observe(self, key: Key, said: Observation, asked: Moment | None = None) -> None:
        for shown, raw in said.shown:
            if raw:  # else only its id was read
                self._see(key, shown, raw, None, said)
        if said.made_as is not None:
            self._see(key, *said.made_as, said.tool)
        if said.ended is not None:
            self._fetched(key, said.ended, said.has_failed, asked)
        if said.denied is not None and said.method == "tasks/get":  # one that has ended cannot be cancelled either
            if key.server in self._servers:
                self.lookups_failed[key.upstream,] += 1
            self.gone(key, said.denied, asked)

    def told(self, key: Key, tasks: Sequence[Task]) -> None:
        """What an answer to the gateway's own request says, or one that says the same."""
        now = self._clock()
        for each in tasks:
            life = self._lives.get(_number(key, each.id))
            if life is not None and life.series[2] == each.status:
                life.seen_s, life.viewer = now, key
            elif life is not None or not each.is_terminal:
                self._see(key, task.read(each.raw), each.raw)

    def gone(self, key: Key, task_id: str, asked: Moment | None) -> None:
        """The server says to a caller, who asked for it at `asked`, that a task is not there."""
        life = self._lives.get(number := _number(key, task_id))
        if life is not None and life.viewer == key and (asked is None or life.first_s <= asked.at):
            self._lose(number, life)

    def was_cancelled(self, key: Key, task_id: str) -> bool:
        past = self._past.get(_number(key, task_id))
        return past is not None and past.status == "cancelled"

    def _fetched(self, key: Key, task_id: str, has_failed: bool, asked: Moment | None) -> None:
        """The result of a task was fetched: so it has ended (tasks specification, Result Retrieval)."""
        life = self._lives.get(number := _number(key, task_id))
        if life is not None and _was_there(life, asked, self.unix_time() - self._clock()):
            life.viewer = key
            self._end(number, life, _Past(life.created, self.unix_time(), "failed" if has_failed else "completed"))

    def _see(self, key: Key, shown: Written, raw: bytes, tool: str | None = None, said: Observation = _NOTHING) -> None:
        """A task is shown so. `tool` is None unless this is the result that made it."""
        number, status = _number(key, shown.taskId), _STATUS.get(shown.status, OTHER)
        if (life := self._lives.get(number)) is not None:
            life.seen_s = self._clock()
            life.viewer = life.viewer if said.is_told_to_all else key
            if tool is None and (life.past is not None or life.series[2] == status):
                return
        created = told_instant(shown.createdAt)
        if life is not None and not _is_one(life.created, created):
            if created < life.created:
                if tool is None or number not in self._unnamed:  # it tells late of the life before
                    return
                life.created = created
            elif tool is not None:  # its id was given again
                self._lose(number, life)
                life = None
            else:  # some servers write the time of each answer (DESIGN 2.15)
                created = life.created
        past = _end_of(shown, raw, created, self.unix_time()) if status in TERMINAL else None
        if life is None:
            before = self._past.get(number)
            if before is not None and _is_late(before, created, tool is not None):
                return
            if before is not None and _is_one(before.created, created):
                past = before  # the result that made it comes after the news of its end
            elif tool is None and past is not None:
                if before is None and not said.is_listed:  # a page shows many that have long ended
                    self._note(number, past)
                return
            if (life := self._begin(key, number, created, shown, tool, said)) is None:
                return
        elif tool is not None:
            status = life.series[2]  # a stream that is resumed repeats the result that made it
        if tool is not None and number in self._unnamed:
            life.is_made_here = True
            self._move(number, life, self._label(key.upstream, tool), life.series[2])
            self._count(number, life)
        if (past := past or life.past) is None:
            self._move(number, life, life.series[1], status, _since_s(shown, life.began_s, self.unix_time()))
        else:
            self._end(number, life, past)

    def _begin(
        self, key: Key, number: int, created: Instant, shown: Written, tool: str | None, said: Observation
    ) -> _Life | None:
        """A new life, not counted yet. None if there is no room for it, or its server has gone in a reload."""
        if key.server not in self._servers:
            return None
        if len(self._lives) >= LIVE_MAX:
            self.counts[key.upstream, self._label(key.upstream, tool or ""), STARTED] += tool is not None
            return None
        seen_s, now, began_s = self._clock(), self.unix_time(), _unix_s(created)
        began_s = began_s if EPOCH_UNIX_S <= began_s <= now else now
        lasts_s = shown.ttl / 1000 if shown.ttl is not None and 0 < shown.ttl < UNSEEN_S * 1000 else UNSEEN_S
        digest, viewer = "" if self.on_end is None else digest_of(shown.taskId), None if said.is_told_to_all else key
        series = key.upstream, "", ""
        life = _Life(series, created, began_s, seen_s, seen_s, lasts_s, key.server, viewer, digest)
        self._lives[number] = life
        self._unnamed[number] = seen_s
        return life

    def _label(self, upstream: str, tool: str) -> str:
        tools = self._tools[upstream,]
        if tool and len(tools) < TOOLS_MAX:
            tools.add(tool)
        return tool if not tool or tool in tools else OTHER

    def _count(self, number: int, life: _Life) -> None:
        if self._unnamed.pop(number, None) is not None:
            upstream, tool, _ = life.series
            if (upstream, tool, LOST) not in self.counts:  # one that begins at 1 hides its first event from `rate`
                self.counts.update({(upstream, tool, status): 0 for status in ENDS})
            self.counts[upstream, tool, STARTED] += 1

    def _move(self, number: int, life: _Life, tool: str, status: str, since_s: float = 0.0) -> None:
        """A life is of that tool now, and in that status since then, empty while it is not live."""
        upstream, _, before = life.series
        kept_s = self.live[life.series].pop(number, since_s) if before else since_s
        life.series = (upstream, tool, status)
        if status:
            self.live[life.series][number] = kept_s if status == before else since_s

    def _lose(self, number: int, life: _Life) -> None:
        """A task has gone; or it has ended, and the result that made it did not come."""
        self._count(number, life)
        past = _Past(life.created, self.unix_time(), OTHER if life.series[2] == OTHER else LOST)
        self._end(number, life, life.past or past)

    def _end(self, number: int, life: _Life, past: _Past) -> None:
        upstream, tool, _ = life.series
        self._move(number, life, tool, "")
        if number in self._unnamed:
            life.past = life.past or past
            return
        del self._lives[number]
        self.counts[upstream, tool, past.status] += 1
        if past.took_s is not None:
            self.last[upstream, tool].append(past.took_s)
            spans = self.durations[upstream, tool, past.status]
            spans[bisect_left(DURATIONS, past.took_s)] += 1
            spans[-1] += past.took_s
        past.is_counted = True
        self._note(number, past)
        if self.on_end is not None:
            self.on_end(life.viewer or Key(life.server, b"", b"", b""), tool, past.status, life.digest)

    def _note(self, number: int, past: _Past) -> None:
        self._past[number] = past
        self._past.move_to_end(number)
        if len(self._past) > ENDED_MAX:
            self._past.popitem(last=False)

    def sweep(self) -> None:
        """Lose what was not seen for its time, set apart what was not for a while. It looks at all in 60 calls."""
        now = self._clock()
        unnamed = takewhile(lambda number: now - self._unnamed[number] >= UNNAMED_S, self._unnamed)
        for number in [*islice(unnamed, _SWEPT_AT_ONCE)]:
            self._count(number, nameless := self._lives[number])
            if nameless.past is not None:
                self._lose(number, nameless)
        if not self._round:
            numbers, parts = list(self._lives), 1 + len(self._lives) // _SWEPT_AT_ONCE
            self._round = [numbers[part::parts] for part in range(parts)]
        for number in self._lives.keys() & self._round.pop():
            life = self._lives[number]
            if (silent_s := now - life.seen_s) >= life.lasts_s:
                self._lose(number, life)
            elif silent_s >= UNHEARD_S and life.series[2] not in ("", UNHEARD):
                self._move(number, life, life.series[1], UNHEARD, self.unix_time() - silent_s)

    def keep(self, servers: Collection[ServerKey]) -> None:
        """These are the servers of all upstreams: nothing begins at others. Other upstreams are forgotten."""
        self._servers, upstreams = frozenset(servers), {server.upstream for server in servers}
        for number, life in [*self._lives.items()]:
            if life.series[0] not in upstreams:
                del self._lives[number]
                self._unnamed.pop(number, None)
            elif life.server not in self._servers:
                life.seen_s = float("-inf")  # lost within a minute, unless a request under way shows it
        tables: tuple[dict[Any, Any], ...] = self.live, self.counts, self.durations, self.last, self._tools
        for table in (*tables, self.lookups_failed):
            for labels in [labels for labels in table if labels[0] not in upstreams]:
                del table[labels]
        self.lookups_failed.update({(name,): self.lookups_failed[name,] for name in upstreams})


def _end_of(shown: Written, raw: bytes, created: Instant, now: float) -> _Past:
    """It took None if its instants cannot be right: before 2020, in another order, or to come."""
    updated = told_instant(shown.lastUpdatedAt) if b'"lastUpdatedAt"' in raw else UNKNOWN
    until_s = now if updated == UNKNOWN else _unix_s(max(updated, told_instant(shown.createdAt)))
    is_right = 0 <= created <= updated <= (now + UNSEEN_S - EPOCH_UNIX_S) * _SECOND
    return _Past(created, until_s, shown.status, (updated - created) / _SECOND if is_right else None)


def _since_s(shown: Written, began_s: float, now: float) -> float:
    """Since when a task is in its status: at work since it was made."""
    waits = shown.status == "input_required"
    return min(max(began_s, _unix_s(told_instant(shown.lastUpdatedAt))), now) if waits else began_s


def _unix_s(instant: Instant) -> float:
    return EPOCH_UNIX_S + instant / _SECOND


def _was_there(life: _Life, asked: Moment | None, offset_s: float) -> bool:
    """Whether a life had begun when something was asked: before it was first seen unless it was made here."""
    return asked is None or life.first_s <= asked.at or (not life.is_made_here and life.began_s <= asked.at + offset_s)


def _is_one(one: Instant, other: Instant) -> bool:
    """Whether two tasks of one id are one task, by their `createdAt`."""
    return one == other or UNKNOWN in (one, other)


def _is_late(before: _Past, created: Instant, is_made: bool) -> bool:
    """Whether what tells of a task tells of one that is known to have ended, or of one before it."""
    if is_made:
        return before.is_counted and (created < before.created or _is_one(before.created, created))
    return created < before.created or _unix_s(created) <= before.until_s or _is_one(before.created, created)


def digest_of(task_id: str) -> str:
    """Stands for an id in the audit."""
    return hashlib.blake2b(task_id.encode(), digest_size=16).hexdigest()


def _number(key: Key, task_id: str) -> int:
    """Stands for a task: its id may be 16,384 characters. Some clients put a secret of their own into the target."""
    return hash((key.server, task_id))
