"""The lives of tasks, as far as they were seen: what runs, of which tool, how it ended, how long it took.

In: what passes, and what the gateway's own requests bring. Out: counts by upstream, tool and status.
Always: one task is one, whoever sees it. A life begins with the result that made the task, or where it is first seen
live; it ends once. So of each tool: begun = live + ended. A late answer about one that has ended begins nothing. No
timestamp of a server's makes an age or a duration negative.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from time import time
from typing import Any, Final, TypeAlias

import msgspec

from gateway.identity import Key
from gateway.mcp import task
from gateway.mcp.jsonrpc import UNREADABLE, decoded
from gateway.mcp.observe import Observation
from gateway.mcp.task import EPOCH_UNIX_S, STATUSES, TERMINAL, Instant, Task, Wire, told_instant
from gateway.tasks.passing import Pending

LIVE_MAX: Final = 100_000  # that are known one by one: some 500 bytes each
ENDED_MAX: Final = 10_000  # the last ones that ended: some 150 bytes each
TOOLS_MAX: Final = 16  # of an upstream: each makes series, and clients choose them
UNSEEN_S: Final = 86_400.0  # after this a task is lost, whatever its `ttl`
NAMED_S: Final = 5.0  # a task may be listed before the result that made it is seen
OTHER: Final = "other"  # every further tool; every status that MCP does not know
LOST: Final = "lost"
DURATIONS: Final = (0.1, 0.5, 1, 5, 15, 60, 300, 900, 1800, 3600, 3 * 3600, 12 * 3600, 86_400, 3 * 86_400, 7 * 86_400)

_SECOND: Final = 10**9
_ENDS: Final = (*sorted(TERMINAL), LOST)
_LIVE: Final = {status: status for status in STATUSES}  # one string for all tasks

Tool: TypeAlias = tuple[str, str]
"""An upstream and a tool."""

Group: TypeAlias = tuple[str, str, str]
"""An upstream, a tool and a status."""


class _Answer(msgspec.Struct):
    result: Wire


_answer = msgspec.json.Decoder(_Answer)


class _Life(msgspec.Struct, gc=False):
    group: Group
    created: Instant
    began_s: float  # `createdAt` since 1970; when it was first seen if that is missing, before 2020 or to come
    seen_s: float
    lasts_s: float  # unseen for so long it is lost
    viewer: Key  # who saw it last: only he can find it gone


class Durations:
    """How many took how long: counts by bucket of DURATIONS, the last one for what is beyond; the sum in seconds."""

    def __init__(self) -> None:
        self.counts = [0] * (len(DURATIONS) + 1)
        self.seconds = 0.0


class Lives:
    """The tasks of all upstreams that are live, and counts of those that were."""

    def __init__(self, clock: Callable[[], float] = time) -> None:
        """`clock` gives seconds since 1970."""
        self._clock = clock
        self._live: dict[int, _Life] = {}  # by a hash of upstream, target and id, which may be long
        self._ended: dict[int, Instant] = {}
        self._unnamed: dict[int, float] = {}  # not counted yet: since when
        self._round: list[int] = []  # that `sweep` has yet to look at
        self._tools: defaultdict[str, set[str]] = defaultdict(set)
        self.groups: defaultdict[Group, dict[int, float]] = defaultdict(dict)
        """The live ones: when each began, in seconds since 1970."""
        self.started: defaultdict[Tool, int] = defaultdict(int)
        self.ended: defaultdict[Group, int] = defaultdict(int)
        self.durations: defaultdict[Group, Durations] = defaultdict(Durations)
        self.lookups_failed: defaultdict[str, int] = defaultdict(int)

    # ---- what passes ----

    def name(self, key: Key, pending: Pending, data: bytes, known: Task | None) -> None:
        """A success about one task, which was not read. `known`: the index has the task as it stands there."""
        if (task_id := pending.task_id) is None:
            return
        number, now = _number(key, task_id), self._clock()
        life = self._live.get(number)
        if not pending.shows_task:
            if life is not None:  # an error of the tool's is a task that failed (tasks specification, Result Retrieval)
                failed = b'"isError":true' in data or b'"isError": true' in data
                self._end(number, life, "failed" if failed else "completed")
        elif known is not None:
            self._told(key, number, life, known, now)
        elif (answer := decoded(_answer, data)) is not None and answer.result.taskId == task_id:
            self._see(key, number, life, answer.result, now)

    def hear(self, key: Key, said: Observation) -> None:
        """What a message says."""
        now = self._clock()
        for task_id, raw in said.shown:
            self._read(key, task_id, raw, now)
        if said.made is not None:
            self._read(key, said.made, said.made_raw, now, said.tool)
        if said.denied is not None:
            self.lookups_failed[key.upstream] += said.method == "tasks/get"
            self.gone(key, said.denied)

    def told(self, key: Key, tasks: Sequence[Task]) -> None:
        """What an answer to the gateway's own request says."""
        now = self._clock()
        for each in tasks:
            number = _number(key, each.id)
            self._told(key, number, self._live.get(number), each, now)

    def gone(self, key: Key, task_id: str) -> None:
        """The server says to a caller that a task is not there."""
        number = _number(key, task_id)
        if (life := self._live.get(number)) is not None and life.viewer == key:
            self._lose(number, life)

    def _told(self, key: Key, number: int, life: _Life | None, known: Task, now: float) -> None:
        if life is None and known.is_terminal:
            return
        if life is not None and life.group[2] == known.status:
            life.seen_s, life.viewer = now, key
        else:
            self._see(key, number, life, task.read(known.raw), now)

    def _read(self, key: Key, task_id: str, raw: bytes, now: float, tool: str | None = None) -> None:
        try:
            wire = task.read(raw)
        except UNREADABLE:
            return
        number = _number(key, task_id)
        self._see(key, number, self._live.get(number), wire, now, tool)

    def _see(self, key: Key, number: int, life: _Life | None, wire: Wire, now: float, tool: str | None = None) -> None:
        """A task is shown so. `tool` is None unless this is the result that made it."""
        status = _LIVE.get(wire.status, OTHER)
        if life is not None and tool is None and life.group[2] == status:
            life.seen_s, life.viewer = now, key
            return
        created = told_instant(wire.createdAt)
        if tool is not None and life is not None and life.created != created:
            self._lose(number, life)  # its id was given again
            life = None
        if life is None:
            if self._ended.get(number) == created or (tool is None and status in TERMINAL):
                return
            life = self._begin(key, number, created, wire.ttl, now, tool)
            if life is None:
                return
        if tool is not None and number in self._unnamed:
            label = self._label(key.upstream, tool)
            self._count(number, label)
            self._move(number, life, label, life.group[2])
        if status in TERMINAL:
            self._end(number, life, status, told_instant(wire.lastUpdatedAt) - created)
        else:
            life.seen_s, life.viewer = now, key
            self._move(number, life, life.group[1], status)

    def _begin(
        self, key: Key, number: int, created: Instant, ttl: float | None, now: float, tool: str | None
    ) -> _Life | None:
        if len(self._live) >= LIVE_MAX:
            if tool is not None:
                self.started[key.upstream, self._label(key.upstream, tool)] += 1
            return None
        began_s = EPOCH_UNIX_S + created / _SECOND
        began_s = began_s if EPOCH_UNIX_S <= began_s <= now else now
        lasts_s = ttl / 1000 if ttl is not None and 0 < ttl < UNSEEN_S * 1000 else UNSEEN_S
        life = self._live[number] = _Life((key.upstream, "", ""), created, began_s, now, lasts_s, key)
        self._unnamed[number] = now
        return life

    def _label(self, upstream: str, tool: str) -> str:
        tools = self._tools[upstream]
        if tool and tool not in tools:
            if len(tools) >= TOOLS_MAX:
                return OTHER
            tools.add(tool)
        return tool

    def _count(self, number: int, tool: str) -> None:
        """A life counts as begun, once."""
        if self._unnamed.pop(number, None) is not None:
            upstream = self._live[number].group[0]
            self.started[upstream, tool] += 1
            for status in _ENDS:
                self.ended[upstream, tool, status] += 0  # a counter that begins at 1 hides its first event from `rate`

    def _move(self, number: int, life: _Life, tool: str, status: str) -> None:
        """A life is of that tool now, and in that status, empty until one is known."""
        upstream, _, before = life.group
        if before:
            self.groups[life.group].pop(number, None)
        life.group = (upstream, tool, status)
        if status:
            self.groups[life.group][number] = life.began_s

    def _lose(self, number: int, life: _Life) -> None:
        """A task has gone, and nobody saw how it ended."""
        self._end(number, life, OTHER if life.group[2] == OTHER else LOST)

    def _end(self, number: int, life: _Life, status: str, took: int = -1) -> None:
        """A life ends. `took` is in nanoseconds; below 0 nobody knows."""
        upstream, tool, _ = life.group
        self._count(number, tool)
        del self._live[number]
        self._move(number, life, tool, "")
        self.ended[upstream, tool, status] += 1
        if took >= 0 and life.created >= 0:
            durations, seconds = self.durations[upstream, tool, status], took / _SECOND
            durations.counts[bisect_left(DURATIONS, seconds)] += 1
            durations.seconds += seconds
        self._ended.pop(number, None)
        self._ended[number] = life.created
        if len(self._ended) > ENDED_MAX:
            del self._ended[next(iter(self._ended))]

    def age_s(self, begun: dict[int, float]) -> float:
        """The age of the oldest of these, in seconds."""
        return max(0.0, self._clock() - min(begun.values()))

    def sweep(self) -> None:
        """Lose what was not seen for its time. To be called once a second: it looks at all within a minute."""
        now = self._clock()
        while self._unnamed and now - self._unnamed[number := next(iter(self._unnamed))] >= NAMED_S:
            self._count(number, self._live[number].group[1])
        self._round, some = self._round or list(self._live), 100 + len(self._live) // 60
        for number in self._round[-some:]:
            life = self._live.get(number)
            if life is not None and now - life.seen_s >= life.lasts_s:
                self._lose(number, life)
        del self._round[-some:]

    def keep(self, upstreams: Collection[str]) -> None:
        """Forget all other upstreams, and their counts."""
        for number in [number for number, life in self._live.items() if life.group[0] not in upstreams]:
            del self._live[number]
            self._unnamed.pop(number, None)
        tables: tuple[dict[Any, Any], ...] = (self.groups, self.started, self.ended, self.durations)
        for table in tables:
            for labels in [labels for labels in table if labels[0] not in upstreams]:
                del table[labels]
        for name in {*self.lookups_failed, *self._tools}.difference(upstreams):
            self.lookups_failed.pop(name, None)
            self._tools.pop(name, None)


def _number(key: Key, task_id: str) -> int:
    """Stands for a task: its id may be 16,384 characters."""
    return hash((key.upstream, key.target, task_id))
