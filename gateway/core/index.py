"""The tasks of one session, in both orders, so that a page costs what the page costs.

In: reports of tasks, as they are observed or crawled. Out: pages of a `Query`, with how many tasks match.
Always: one entry for a task id; never backwards (`Task.supersedes`); every group holds exactly the tasks of one
status and one method, in order of creation and of last update. So a query by status and method touches only the
groups that match, one range is counted with two look-ups in each, and a page is a merge of at most that many runs.
Where two ranges are asked for at once the narrower is walked and the other tested.
"""

import heapq
from collections.abc import Iterable, Iterator
from itertools import islice

import msgspec
from sortedcontainers import SortedList

from gateway.core.query import OPEN, Bounds, Query
from gateway.core.task import TERMINAL, TOP, UNKNOWN, Key, Task

TASK_OVERHEAD_BYTES = 470
"""What a task costs beside its raw JSON and its id, measured by `make bench`."""


class Page(msgspec.Struct):
    """Some tasks in order, how many match in all, and whether more follow."""

    tasks: list[Task]
    total: int
    more: bool


class _Group:
    """The tasks of one status and one method."""

    __slots__ = ("by_created", "by_updated")

    def __init__(self) -> None:
        self.by_created: SortedList[Key] = SortedList()
        self.by_updated: SortedList[Key] = SortedList()

    def order(self, by: str) -> "SortedList[Key]":
        return self.by_created if by == "createdAt" else self.by_updated


class Index:
    """The tasks of one session."""

    def __init__(self) -> None:
        self.default_method: str | None = None
        """The method of tasks that nobody saw being made (DESIGN 5.3)."""
        self._tasks: dict[str, Task] = {}
        self._groups: dict[tuple[str, str | None], _Group] = {}
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tasks)

    def get(self, task_id: str) -> Task | None:
        """The task of that id, if it is here."""
        return self._tasks.get(task_id)

    def put(self, report: Task) -> bool:
        """Take in a report of a task. False if what is here is newer, or the same."""
        known = self._tasks.get(report.id)
        if known is not None:
            latest = report if report.supersedes(known) else known
            method = report.method or known.method
            if latest.raw == known.raw and method == known.method:
                return False
            self.remove(known.id)
            report = msgspec.structs.replace(latest, method=method)
        self._add(report)
        return True

    def remove(self, task_id: str) -> bool:
        """Forget a task. False if it is not here."""
        task = self._tasks.pop(task_id, None)
        if task is None:
            return False
        group = self._groups[task.status, task.method]
        group.by_created.remove(task.created)
        group.by_updated.remove(task.updated)
        if not group.by_created:
            del self._groups[task.status, task.method]
        self.size_bytes -= _size_bytes(task)
        return True

    def live(self) -> Iterator[str]:
        """The ids of the tasks that may still change."""
        for (status, _), group in self._groups.items():
            if status not in TERMINAL:
                yield from (key.id for key in group.by_created)

    def select(self, query: Query, after: Key | None, limit: int) -> Page:
        """The first `limit` tasks that match, behind the place `after` if there is one."""
        if query.task_ids is not None:
            found = [t for i in query.task_ids if (t := self._tasks.get(i)) and query.matches(t, self.default_method)]
            return page_of(query, found, after, limit)
        groups = [
            group
            for (status, method), group in self._groups.items()
            if (query.status is None or status in query.status) and query.accepts_method(method or self.default_method)
        ]
        by_other = "lastUpdatedAt" if query.by == "createdAt" else "createdAt"
        bounds, other = (query.created, query.updated) if query.by == "createdAt" else (query.updated, query.created)
        counts = [_count(g.order(query.by), bounds) for g in groups]
        if other == OPEN:
            keys = _merge(groups, query, bounds, after)
            return self._page(keys, sum(counts), limit, query, after)
        other_counts = [_count(g.order(by_other), other) for g in groups]
        if bounds == OPEN and _walk_is_cheaper(sum(counts), sum(other_counts), limit):
            keys = (k for k in _merge(groups, query, bounds, after) if self._matches(query, k))
            return self._page(keys, sum(other_counts), limit, query, after)
        narrow, narrow_bounds = (query.by, bounds) if sum(counts) <= sum(other_counts) else (by_other, other)
        found = [
            self._tasks[key.id]
            for group in groups
            for key in _range(group.order(narrow), narrow_bounds)
            if self._matches(query, key)
        ]
        return page_of(query, found, after, limit)

    def _matches(self, query: Query, key: Key) -> bool:
        return query.matches(self._tasks[key.id], self.default_method)

    def _page(self, keys: Iterable[Key], total: int, limit: int, query: Query, after: Key | None) -> Page:
        tasks = [self._tasks[key.id] for key in islice(keys, limit + 1)]
        return Page(tasks[:limit], total, len(tasks) > limit)

    def _add(self, task: Task) -> None:
        self._tasks[task.id] = task
        group = self._groups.get((task.status, task.method))
        if group is None:
            group = self._groups[task.status, task.method] = _Group()
        group.by_created.add(task.created)
        group.by_updated.add(task.updated)
        self.size_bytes += _size_bytes(task)


def page_of(query: Query, matching: list[Task], after: Key | None, limit: int) -> Page:
    """A page out of all tasks that match, in no order."""
    rest = [t for t in matching if after is None or _follows(query, query.place(t), after)]
    pick = heapq.nlargest if query.descending else heapq.nsmallest
    tasks = pick(limit + 1, rest, key=query.place)
    return Page(tasks[:limit], len(matching), len(tasks) > limit)


def _follows(query: Query, place: Key, after: Key) -> bool:
    return bool(place < after if query.descending else place > after)


def _size_bytes(task: Task) -> int:
    return len(task.raw) + len(task.id) + TASK_OVERHEAD_BYTES


def _walk_is_cheaper(all_count: int, matching_count: int, limit: int) -> bool:
    """Whether walking an order until `limit` match beats looking at every task that matches and sorting."""
    return all_count * limit < matching_count * matching_count


def _slices(keys: "SortedList[Key]", bounds: Bounds) -> tuple[tuple[int, int], tuple[int, int]]:
    """The positions of the keys inside `bounds`: those of unknown instant, which stand first, and the others."""
    low, high = bounds
    unknown = keys.bisect_left(Key(UNKNOWN, TOP)) if keys and keys[0].at == UNKNOWN else 0
    start = unknown if low is None else max(unknown, keys.bisect_left(Key(low, "")))
    stop = len(keys) if high is None else max(start, keys.bisect_left(Key(high, TOP)))
    return (0, unknown), (start, stop)


def _count(keys: "SortedList[Key]", bounds: Bounds) -> int:
    return sum(stop - start for start, stop in _slices(keys, bounds))


def _range(keys: "SortedList[Key]", bounds: Bounds) -> Iterator[Key]:
    for start, stop in _slices(keys, bounds):
        yield from keys.islice(start, stop)


def _merge(groups: list[_Group], query: Query, bounds: Bounds, after: Key | None) -> Iterator[Key]:
    """The keys of all groups inside `bounds` and behind `after`, in the query's order."""
    runs = [_run(g.order(query.by), query, bounds, after) for g in groups]
    return runs[0] if len(runs) == 1 else heapq.merge(*runs, reverse=query.descending)


def _run(keys: "SortedList[Key]", query: Query, bounds: Bounds, after: Key | None) -> Iterator[Key]:
    low, high = 0, len(keys)
    if after is not None:
        if query.descending:
            high = keys.bisect_left(after)
        else:
            low = keys.bisect_right(after)
    slices = _slices(keys, bounds)
    for start, stop in reversed(slices) if query.descending else slices:
        yield from keys.islice(max(start, low), max(start, low, min(stop, high)), reverse=query.descending)
