"""The tasks of one session: in sorted lists by status and method, by id, and in pages that may be asked for again.

In: tasks, as the gateway's own answers show them. Out: pages of a `Query`, with the number of tasks that match.
Always: one entry for a task id, the last that was put in. A group has exactly the tasks of one status and one method,
one more has all tasks: a query without a status or a method is answered from it. A group is two sorted lists of the
same tasks, by creation and by last update; ids decide between equal instants. Tasks of unreadable instant (UNKNOWN)
stand in front, and lie in every range.
"""

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import accumulate, chain, islice, takewhile
from operator import attrgetter
from typing import Any, Final, TypeAlias

import msgspec

from gateway.mcp.task import EARLIEST, LATEST, NO_END, TERMINAL, UNKNOWN, Place, Stamp, Task, text_bytes
from gateway.owners.eviction import CountedIds
from gateway.query.criteria import OPEN, PLACE, Bounds, OrderBy, Query, within
from gateway.query.cursor import Position

TASK_OVERHEAD_BYTES = 205
"""What a task takes beside its raw JSON and its id (tests/rules/test_index_memory.py, `make bench`)."""

GROUP_BYTES: Final = 700  # of a group beside its tasks
METHOD_CHARS_MAX: Final = 50  # twice the longest request method of MCP
METHODS_MAX: Final = 16  # of one index: each makes groups, and clients choose them

_NUMBER_BYTES: Final = 32  # of an instant of its own
_STAMP_BYTES: Final = 190  # of a stamp of its own
_NOTED_BYTES: Final = 40

AT_ONCE: Final = 1000  # tasks that are walked over, or freed, in one step
_SORTING: Final = 5  # to look at a task out of order costs as much as to walk over so many

UNLIMITED: Final = float("inf")
_PAGES_KEPT_MAX: Final = 4
_PAGE_BYTES: Final = 600  # of a kept page beside its places for tasks

_GroupKey: TypeAlias = tuple[str, str | None]  # a status and a method


class QueryPage(msgspec.Struct):
    """A page of a query: its tasks in order, how many match in all, and whether more follow."""

    tasks: list[Task]
    total: int
    more: bool
    size_bytes: int
    """Of its JSON, and of a comma behind each task."""
    following: str = ""
    """The cursor of the next page, once it has been asked for."""


def first(position: Position, tasks: list[Task], count: int) -> list[Task]:
    """The first `count` tasks behind a position, of tasks in any order."""
    place, descending, after = position.query.place, position.query.descending, position.after
    if after is not None:
        tasks = [task for task in tasks if (place(task) < after if descending else place(task) > after)]
    return (heapq.nlargest if descending else heapq.nsmallest)(count, tasks, key=place)


class Sorted:
    __slots__ = ("_at", "_is_created", "_place", "tasks")

    def __init__(self, by: OrderBy) -> None:
        self.tasks: list[Task] = []
        self._is_created = by == "createdAt"
        self._at, self._place = attrgetter("created" if self._is_created else "updated"), PLACE[by]

    def add(self, task: Task) -> None:
        insort(self.tasks, task, key=self._place)

    def remove(self, task: Task) -> None:
        del self.tasks[bisect_left(self.tasks, self._place(task), key=self._place)]

    def slices(self, bounds: Bounds) -> list[range]:
        """The offsets of the tasks in a range. Those of unknown instant are apart, if a lower bound is given."""
        tasks, at, (low, high) = self.tasks, self._at, bounds
        stop = len(tasks) if high == LATEST else bisect_right(tasks, high, key=at)
        if low == EARLIEST:
            return [range(stop)]
        unknown = bisect_right(tasks, UNKNOWN, key=at) if tasks and at(tasks[0]) == UNKNOWN else 0
        return [range(unknown), range(bisect_left(tasks, low, unknown, key=at), stop)]

    def behind(self, slices: list[range], after: Place | None, descending: bool) -> list[range]:
        if after is None:
            return slices
        if descending:
            edge = bisect_left(self.tasks, after, key=self._place)
            return [range(one.start, min(one.stop, edge)) for one in slices]
        edge = bisect_right(self.tasks, after, key=self._place)
        return [range(max(one.start, edge), one.stop) for one in slices]

    def walk(self, slices: list[range], descending: bool = False, step: int = 0) -> Iterator[list[Task]]:
        step = step or AT_ONCE
        for rest in reversed(slices) if descending else slices:
            while rest:
                part, rest = (rest[-step:], rest[:-step]) if descending else (rest[:step], rest[step:])
                some = self.tasks[part.start : part.stop]
                yield some[::-1] if descending else some

    def inside(self, tasks: list[Task], bounds: Bounds) -> list[Task]:
        low, high = bounds
        if self._is_created:
            return [task for task in tasks if low <= task.created <= high or task.created == UNKNOWN]
        return [task for task in tasks if low <= task.updated <= high or task.updated == UNKNOWN]


class Group:
    __slots__ = ("created", "updated")

    def __init__(self) -> None:
        self.created, self.updated = Sorted("createdAt"), Sorted("lastUpdatedAt")

    def __len__(self) -> int:
        return len(self.created.tasks)

    def add(self, task: Task) -> None:
        self.created.add(task)
        self.updated.add(task)

    def remove(self, task: Task) -> None:
        self.created.remove(task)
        self.updated.remove(task)

    def dismantle(self) -> Iterator[None]:
        """Free the memory bit by bit. Nothing else works afterwards."""
        for tasks in (self.created.tasks, self.updated.tasks):
            while tasks:
                del tasks[-AT_ONCE:]
                yield

    def select(self, position: Position, count: int) -> tuple[int, list[Task]]:
        """How many tasks lie in both ranges of a query, and the first `count` of them behind the position."""
        query, here, there = position.query, self.created, self.updated
        bounds, others_bounds = query.created, query.updated
        if query.by == "lastUpdatedAt":
            here, there, bounds, others_bounds = there, here, others_bounds, bounds
        slices, others = here.slices(bounds), there.slices(others_bounds)
        ahead = here.behind(slices, position.after, query.descending)
        if others_bounds == OPEN:
            return _size(slices), _take(count, here.walk(ahead, query.descending, count))
        if bounds == OPEN:
            total = _size(others)
        elif _size(others) < _size(slices):
            total = sum(len(here.inside(some, bounds)) for some in there.walk(others))
        else:
            total = sum(len(there.inside(some, others_bounds)) for some in here.walk(slices))
        if _SORTING * _size(others) < _size(ahead):
            found = [task for some in there.walk(others, query.descending) for task in here.inside(some, bounds)]
            return total, first(position, found, count)
        return total, _take(count, (there.inside(some, others_bounds) for some in here.walk(ahead, query.descending)))


def _size(slices: list[range]) -> int:
    return sum(map(len, slices))


def _take(count: int, parts: Iterable[list[Task]]) -> list[Task]:
    return list(islice(chain.from_iterable(parts), count))


class Index:
    def __init__(self) -> None:
        self.default_method: str | None = None
        """The method of a task whose request did not pass here (DESIGN 5.3)."""
        self._noted = CountedIds[str](_NOTED_BYTES)  # methods of tasks that are not here
        self._methods: dict[str, str] = {}  # one string for all tasks
        self._tasks: dict[str, Task] = {}
        self._all = Group()
        self._groups: dict[_GroupKey, Group] = {}
        self._pages: dict[tuple[object, ...], tuple[Position, QueryPage]] = {}  # those that may be asked for again
        self._bytes = 0

    @property
    def size_bytes(self) -> int:
        pages_bytes = sum([_PAGE_BYTES + 8 * len(page.tasks) for _, page in self._pages.values()])
        return self._bytes + self._noted.size_bytes + pages_bytes

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tasks)

    def parts(self) -> Iterator[list[Task]]:
        """All tasks, some at a time. A task that is added meanwhile is missing."""
        ids = list(self._tasks)
        for start in range(0, len(ids), AT_ONCE):
            yield list(filter(None, map(self._tasks.get, ids[start : start + AT_ONCE])))

    def dismantle(self) -> Iterator[None]:
        """Free the memory bit by bit: many tasks at once delay all clients. Nothing else works afterwards."""
        for group in (self._all, *self._groups.values()):
            yield from group.dismantle()
        while self._tasks:
            for task_id in list(islice(self._tasks, AT_ONCE)):
                del self._tasks[task_id]
            yield

    def get(self, task_id: str) -> Task | None:
        return self._tasks.get(task_id)

    def note_method(self, task_id: str, method: str) -> None:
        before, shared = self._tasks.get(task_id), self._shared(method)
        if shared is None:
            return
        if before is not None:
            self.put(msgspec.structs.replace(before, method=before.method or shared))
        elif task_id not in self._noted:
            self._noted.put(task_id, shared)

    def method_of(self, task_id: str) -> str | None:
        before = self._tasks.get(task_id)
        return self._noted.get(task_id) if before is None else before.method

    def _shared(self, method: str | None) -> str | None:
        """The one string for a method. None, which is an unknown method, if it is long, or beyond METHODS_MAX."""
        if method is None or len(method) > METHOD_CHARS_MAX:
            return None
        if len(self._methods) < METHODS_MAX:
            return self._methods.setdefault(method, method)
        return self._methods.get(method)

    def _with_method(self, task: Task) -> Task:
        noted = self._noted.get(task.id)
        self._noted.drop(task.id)
        method = self._shared(task.method) or noted
        return task if method is task.method else msgspec.structs.replace(task, method=method)

    def put(self, shown: Task) -> None:
        task = self._with_method(shown) if self._noted or shown.method is not None else shown
        before = self._tasks.get(task.id)
        latest = task if before is None else _latest(before, task)
        if latest is before:
            return
        if before is not None:
            self._bytes -= size_of(before)
            self._take_out(before)
        self._bytes += size_of(latest)
        self._tasks[latest.id] = latest
        self._pages.clear()
        self._all.add(latest)
        key = latest.status, latest.method
        if key not in self._groups:
            self._groups[key] = Group()
            self._bytes += GROUP_BYTES
        self._groups[key].add(latest)

    def mark(self, task_id: str, crawl: int) -> bool:
        """Note that crawl number `crawl` has listed a task. False if it had already, or if the task is not here."""
        task = self._tasks.get(task_id)
        if task is None or task.crawl == crawl:
            return False
        task.crawl = crawl
        return True

    def stamp(self, task: Task, told: Stamp) -> None:
        self._bytes += _STAMP_BYTES * (told.is_own - task.told.is_own)
        task.told = told

    def remove(self, task_id: str) -> None:
        self._noted.drop(task_id)
        if (task := self._tasks.pop(task_id, None)) is not None:
            self._take_out(task)
            self._bytes -= size_of(task)

    def _take_out(self, task: Task) -> None:
        self._pages.clear()
        self._all.remove(task)
        key = (task.status, task.method)
        group = self._groups[key]
        group.remove(task)
        if not group:
            del self._groups[key]
            self._bytes -= GROUP_BYTES

    def live(self, query: Query, among: Collection[str] | None = None) -> Iterator[Task]:
        """The live tasks that match `query`, or may after a change. With `among`, only those.

        While a task is live, its id, method and creation stay. All else may change, its last update back as a clock.
        """
        groups = {
            (status, method): group
            for (status, method), group in self._groups.items()
            if status not in TERMINAL and _holds(query.method_test, method or self.default_method)
        }
        named = [ids for ids in (query.task_ids, among) if ids is not None]
        fewest = min(named, key=len, default=None)
        if fewest is not None and len(fewest) < sum(map(len, groups.values())):
            there = filter(None, map(self._tasks.get, fewest))
            live = (task for task in there if (task.status, task.method) in groups)
            parts: Iterable[list[Task]] = ([task] for task in live if within(query.created, task.created))
        else:
            by_creation = (group.created for group in groups.values())
            parts = (some for each in by_creation for some in each.walk(each.slices(query.created)))
        return (task for task in chain.from_iterable(parts) if all(task.id in ids for ids in named))

    def select(self, position: Position, limit: int, bytes_max: float = UNLIMITED) -> QueryPage:
        """The page at a position: `limit` tasks and `bytes_max` of JSON at most, but one if there is any."""
        of = (id(position), limit, bytes_max, self.default_method)  # the position is kept, so its number is its own
        if position.comes_again and (kept := self._pages.get(of)) is not None:
            return kept[1]
        total, tasks = self._first(position, limit + 1)
        page = _cut(tasks, total, limit, bytes_max)
        if position.comes_again:
            if len(self._pages) == _PAGES_KEPT_MAX:
                del self._pages[next(iter(self._pages))]
            self._pages[of] = position, page
        return page

    def _first(self, position: Position, count: int) -> tuple[int, list[Task]]:
        query = position.query
        if query.task_ids is not None:
            there = filter(None, map(self._tasks.get, query.task_ids))
            matching = [task for task in there if query.matches(task, self.default_method)]
            return len(matching), first(position, matching, count)
        found = [group.select(position, count) for group in self._matching_groups(query)]
        if len(found) == 1:
            return found[0]
        merged = heapq.merge(*(tasks for _, tasks in found), key=query.place, reverse=query.descending)
        return sum(total for total, _ in found), list(islice(merged, count))

    def _matching_groups(self, query: Query) -> list[Group]:
        """The groups that have the tasks of each status and method for which the criteria hold, and no others."""
        if query.status_test is None and query.method_test is None:
            return [self._all]
        return [
            group
            for (status, method), group in self._groups.items()
            if _holds(query.status_test, status) and _holds(query.method_test, method or self.default_method)
        ]


def _holds(test: Callable[[Any], bool] | None, of: str | None) -> bool:
    return test is None or test(of)


def _latest(before: Task, newer: Task) -> Task:
    method = newer.method or before.method
    if newer.raw == before.raw and method == before.method:
        return before
    return msgspec.structs.replace(newer, id=before.id, method=method, crawl=before.crawl, told=before.told)


def size_of(task: Task) -> int:
    instants = {task.created, task.updated} - {UNKNOWN}
    own_bytes = _NUMBER_BYTES * (len(instants) + (task.expires_unix_s != NO_END)) + _STAMP_BYTES * task.told.is_own
    return len(task.raw) + text_bytes(task.id) + TASK_OVERHEAD_BYTES + own_bytes


def _cut(tasks: list[Task], total: int, limit: int, bytes_max: float) -> QueryPage:
    """The page that begins with `tasks`: `limit` of them and `bytes_max` at most, but one if there is any."""
    count = min(len(tasks), limit)
    size_bytes = _json_bytes(tasks[:count])
    if size_bytes > bytes_max:
        ends = accumulate(len(task.raw) + 1 for task in tasks)
        count = max(1, sum(1 for _ in takewhile(bytes_max.__ge__, ends)))
        size_bytes = _json_bytes(tasks[:count])
    return QueryPage(tasks[:count], total, len(tasks) > count, size_bytes)


def _json_bytes(tasks: list[Task]) -> int:
    return sum([len(task.raw) for task in tasks]) + len(tasks)
