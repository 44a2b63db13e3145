"""What is known of the tasks of one session: one entry for each, in one dict. All else is derived from the entries.

In: entries. Out: pages of a `Query`, with the number of tasks that match; which tasks are stale, gone, unlisted.
Always: what is derived changes in `set` and `stamp` alone. A group has exactly the tasks of one status and one method:
it is two sorted lists, by creation and by last update; ids decide between equal instants. Tasks of unreadable instant
(UNKNOWN) stand in front, and lie in every range.
"""

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from itertools import accumulate, chain, islice
from operator import attrgetter
from typing import Final, TypeAlias, TypeVar

import msgspec

from gateway.mcp.task import TERMINAL, UNKNOWN, Place, Stamp
from gateway.query.criteria import OPEN, PLACE, Bounds, OrderBy, Query, within
from gateway.query.cursor import Position
from gateway.tasks.task_entry import STAMP_BYTES, UNLISTED, UNLISTED_BYTES, Changed, Stale, TaskEntry, absent, size_of

GROUP_BYTES: Final = 700  # of a group beside its tasks
METHOD_CHARS_MAX: Final = 50  # twice the longest request method of MCP
METHODS_MAX: Final = 16  # of one index: each makes groups, and clients choose them

GONE_MAX: Final = 30_000  # tasks of a session, the newest ones: more than a query can name (`CRITERIA_BYTES_MAX`)

_SCATTERED: Final = 4  # tasks lie in memory as they were created: to walk over them in another order takes that longer
AT_ONCE: Final = 1000  # tasks that are walked over, or freed, in one step
_SORTING: Final = 5  # to look at a task out of order costs as much as to walk over so many

UNLIMITED: Final = float("inf")
_PAGES_KEPT_MAX: Final = 4
_PAGE_BYTES: Final = 600  # of a kept page beside its places for tasks

_AT: Final = attrgetter("created"), attrgetter("updated")
_Each = TypeVar("_Each")
_GroupKey: TypeAlias = tuple[str, str | None]  # a status and a method


class QueryPage(msgspec.Struct):
    """A page of a query: its tasks in order, how many match in all, and whether more follow."""

    tasks: list[TaskEntry]
    total: int
    more: bool
    size_bytes: int  # of its JSON, and of a comma behind each task
    following: str = ""  # the cursor of the next page, once it has been asked for


def first(position: Position, tasks: list[TaskEntry], count: int) -> list[TaskEntry]:
    """The first `count` tasks behind a position, of tasks in any order."""
    place, descending, after = position.query.place, position.query.descending, position.after
    if after is not None:
        tasks = [task for task in tasks if (place(task) < after if descending else place(task) > after)]
    return (heapq.nlargest if descending else heapq.nsmallest)(count, tasks, key=place)


class Sorted:
    """Tasks in one order. `least` and `most`: how far behind the others' the instants of all that were here lie."""

    __slots__ = ("_at", "_at_other", "_is_created", "cost", "least", "most", "place", "tasks")

    def __init__(self, by: OrderBy) -> None:
        self.tasks: list[TaskEntry] = []
        self._is_created = by == "createdAt"
        self.cost = 1 if self._is_created else _SCATTERED
        (self._at, self._at_other), self.place = _AT if self._is_created else _AT[::-1], PLACE[by]
        self.least, self.most = -UNKNOWN, UNKNOWN

    def add(self, task: TaskEntry) -> None:
        insort(self.tasks, task, key=self.place)
        if (at := self._at(task)) != UNKNOWN:
            other = self._at_other(task)
            least, most = (UNKNOWN, -UNKNOWN) if other == UNKNOWN else (at - other, at - other)
            self.least, self.most = min(self.least, least), max(self.most, most)

    def slices(self, bounds: Bounds) -> list[range]:
        """The offsets of the tasks in a range: those of unknown instant, and the others."""
        if bounds == OPEN:
            return [range(0), range(len(self.tasks))]
        tasks, at, (low, high) = self.tasks, self._at, bounds
        unknown = bisect_right(tasks, UNKNOWN, key=at)
        start, stop = bisect_left(tasks, low, unknown, key=at), bisect_right(tasks, high, unknown, key=at)
        return [range(unknown), range(start, stop)]

    def in_both(self, bounds: Bounds, others: Bounds) -> tuple[list[range], list[range]]:
        """The offsets of the tasks in a range that may lie in one of the other order too, and of those that may not."""
        if others == OPEN:
            return self.slices(bounds), []
        (low, high), (lowest, highest) = bounds, others
        may = self.slices((max(low, lowest + self.least), min(high, highest + self.most)))
        sure = self.slices((max(low, lowest + self.most), min(high, highest + self.least)))[-1]
        return may, [may[0], range(may[1].start, sure.start), range(sure.stop, may[1].stop)] if sure else may

    def count(self, slices: list[range], doubtful: list[range], other: "Sorted", bounds: Bounds) -> int:
        """How many tasks lie in the range of the other order: the doubtful ones are looked at."""
        return _size(slices) - _size(doubtful) + sum(len(other.inside(some, bounds)) for some in self.walk(doubtful))

    def behind(self, slices: list[range], after: Place | None, descending: bool) -> list[range]:
        if after is None:
            return slices
        if descending:
            edge = bisect_left(self.tasks, after, key=self.place)
            return [range(one.start, min(one.stop, edge)) for one in slices]
        edge = bisect_right(self.tasks, after, key=self.place)
        return [range(max(one.start, edge), one.stop) for one in slices]

    def walk(self, slices: list[range], descending: bool = False, step: int = 0) -> Iterator[list[TaskEntry]]:
        step = step or AT_ONCE
        for rest in reversed(slices) if descending else slices:
            while rest:
                part, rest = (rest[-step:], rest[:-step]) if descending else (rest[:step], rest[step:])
                some = self.tasks[part.start : part.stop]
                yield some[::-1] if descending else some

    def inside(self, tasks: list[TaskEntry], bounds: Bounds) -> list[TaskEntry]:
        low, high = bounds
        if self._is_created:
            return [task for task in tasks if low <= task.created <= high or task.created == UNKNOWN]
        return [task for task in tasks if low <= task.updated <= high or task.updated == UNKNOWN]


Group: TypeAlias = tuple[Sorted, Sorted]  # the tasks of one status and one method: by creation, and by last update


def _select(group: Group, position: Position, count: int) -> tuple[int, Iterable[TaskEntry]]:
    """How many tasks lie in both ranges of a query, and `count` of them behind the position, or more, in order."""
    query, (here, there) = position.query, group
    bounds, others_bounds = query.created, query.updated
    if query.by == "lastUpdatedAt":
        here, there, bounds, others_bounds = there, here, others_bounds, bounds
    slices, doubtful = here.in_both(bounds, others_bounds)
    ahead = here.behind(slices, position.after, query.descending)
    if others_bounds == OPEN:
        return _size(slices), chain.from_iterable(here.walk(ahead, query.descending, count))
    others, others_doubtful = there.in_both(others_bounds, bounds)
    if there.cost * _size(others_doubtful) < here.cost * _size(doubtful):
        total = there.count(others, others_doubtful, here, bounds)
    else:
        total = here.count(slices, doubtful, there, others_bounds)
    if _SORTING * _size(others) < _size(ahead):
        found = [task for some in there.walk(others, query.descending) for task in here.inside(some, bounds)]
        return total, first(position, found, count)
    walked = (there.inside(some, others_bounds) for some in here.walk(ahead, query.descending, count))
    return total, chain.from_iterable(walked)


def _size(slices: list[range]) -> int:
    return sum(map(len, slices))


class Index:
    def __init__(self, changed: Changed | None = None) -> None:
        self.default_method: str | None = None  # of a task whose request did not pass here (DESIGN 5.3)
        self.entries: dict[str, TaskEntry] = {}
        self.stale: dict[str, Stale] = {}
        self.gone: dict[str, TaskEntry] = {}  # the oldest first
        self.unlisted: dict[str, TaskEntry] = {}
        self._changed = changed
        self._groups: dict[_GroupKey, Group] = {}
        self._methods: dict[str, str] = {}  # one string for all tasks
        self._pages: dict[tuple[object, ...], tuple[Position, QueryPage]] = {}  # those that may be asked for again
        self.entry_bytes = 0

    @property
    def size_bytes(self) -> int:
        return self.entry_bytes + sum([_PAGE_BYTES + 8 * len(page.tasks) for _, page in self._pages.values()])

    def __len__(self) -> int:
        """How many tasks are there."""
        return sum([len(created.tasks) for created, _ in self._groups.values()])

    def get(self, task_id: str) -> TaskEntry | None:
        """A task that is there."""
        entry = self.entries.get(task_id)
        return entry if entry is not None and entry.raw else None

    def parts(self) -> Iterator[list[TaskEntry]]:
        """All entries, some at a time. One that is added meanwhile is missing."""
        ids = list(self.entries)
        for start in range(0, len(ids), AT_ONCE):
            yield list(filter(None, map(self.entries.get, ids[start : start + AT_ONCE])))

    def dismantle(self) -> Iterator[None]:
        """Free the memory bit by bit: many tasks at once delay all clients. Nothing else works afterwards."""
        self._groups.clear()
        while self.entries:
            for task_id in list(islice(self.entries, AT_ONCE)):
                del self.entries[task_id]
            yield

    def set(self, after: TaskEntry) -> None:
        """What is known of a task from now on. All that is derived from it changes here, and in `stamp`."""
        before = self.entries.get(after.id)
        if self._changed is not None:
            self._changed(before, after)
        after.method = self._shared(after.method)
        if before is not None:
            after.id = before.id  # one string
            self.entry_bytes -= size_of(before)
        if before is not None and before.raw == after.raw and before.method == after.method:
            before.told, before.listed, before.stale = after.told, after.listed, after.stale
            after = before  # its places are the same
        else:
            self._move(before, after)
        self.entry_bytes += size_of(after)
        _derive(self.stale, after.id, after.stale)
        _derive(self.unlisted, after.id, after if after.is_unlisted else None)
        self.gone.pop(after.id, None)  # the newest is the last
        _derive(self.gone, after.id, after if after.is_gone else None)
        if not (after.raw or after.is_gone or after.stale):
            del self.entries[after.id]
        if len(self.gone) > GONE_MAX:
            self.forget(next(iter(self.gone)))

    def forget(self, task_id: str) -> None:
        """A task is not there, as far as is known."""
        self.set(absent(task_id, stale=self.stale.get(task_id)))

    def stamp(self, entry: TaskEntry, told: Stamp, listed: int) -> None:
        """As `set`, where the same was said of a task that is there: nearly always."""
        self.entry_bytes += STAMP_BYTES * (told.is_alone - entry.told.is_alone)
        if entry.listed == UNLISTED != listed:
            self.entry_bytes -= UNLISTED_BYTES
            del self.unlisted[entry.id]
        entry.told, entry.listed = told, listed

    def _move(self, before: TaskEntry | None, after: TaskEntry) -> None:
        self.entries[after.id] = after
        if before is not None and before.raw:
            self._pages.clear()
            group = self._groups[before.status, before.method]
            for by in group:
                del by.tasks[bisect_left(by.tasks, by.place(before), key=by.place)]
            if not group[0].tasks:
                del self._groups[before.status, before.method]
                self.entry_bytes -= GROUP_BYTES
        if after.raw:
            self._pages.clear()
            key = after.status, after.method
            if key not in self._groups:
                self._groups[key] = Sorted("createdAt"), Sorted("lastUpdatedAt")
                self.entry_bytes += GROUP_BYTES
            for by in self._groups[key]:
                by.add(after)

    def _shared(self, method: str | None) -> str | None:
        """The one string for a method. None, which is an unknown method, if it is long, or beyond METHODS_MAX."""
        if method is None or len(method) > METHOD_CHARS_MAX:
            return None
        if len(self._methods) < METHODS_MAX:
            return self._methods.setdefault(method, method)
        return self._methods.get(method)

    def live(self, query: Query) -> Iterator[TaskEntry]:
        """The live tasks that match `query`, or may after a change.

        While a task is live, its id, method and creation stay. All else may change, its last update back as a clock.
        """
        groups = {
            (status, method): created
            for (status, method), (created, _) in self._groups.items()
            if status not in TERMINAL and query.has_method(method or self.default_method)
        }
        if query.task_ids is None:
            return chain.from_iterable(s for each in groups.values() for s in each.walk(each.slices(query.created)))
        there = filter(None, map(self.get, query.task_ids))
        return (task for task in there if (task.status, task.method) in groups and within(query.created, task.created))

    def select(self, position: Position, limit: int, bytes_max: float = UNLIMITED) -> QueryPage:
        """The page at a position: `limit` tasks and `bytes_max` of JSON at most, but one if there is any."""
        of = (id(position), limit, bytes_max, self.default_method)  # the position is kept, so its number is its own
        if position.comes_again and (kept := self._pages.get(of)) is not None:
            return kept[1]
        total, tasks = self._first(position, limit + 1)
        ends = list(accumulate([len(task.raw) + 1 for task in tasks[:limit]], initial=0))
        count = max(bisect_right(ends, bytes_max) - 1, min(1, len(tasks)))
        page = QueryPage(tasks[:count], total, len(tasks) > count, ends[count])
        if position.comes_again:
            if len(self._pages) == _PAGES_KEPT_MAX:
                del self._pages[next(iter(self._pages))]
            self._pages[of] = position, page
        return page

    def _first(self, position: Position, count: int) -> tuple[int, list[TaskEntry]]:
        query = position.query
        if query.task_ids is not None:
            there = filter(None, map(self.get, query.task_ids))
            matching = [task for task in there if query.matches(task, self.default_method)]
            return len(matching), first(position, matching, count)
        found = [
            _select(group, position, count)
            for (status, method), group in self._groups.items()
            if (query.statuses is None or status in query.statuses) and query.has_method(method or self.default_method)
        ]
        parts = [tasks for _, tasks in found]
        merged = heapq.merge(*parts, key=query.place, reverse=query.descending) if len(parts) != 1 else parts[0]
        return sum(total for total, _ in found), list(islice(merged, count))


def _derive(ids: dict[str, _Each], task_id: str, value: _Each | None) -> None:
    if value is not None:
        ids[task_id] = value  # at its place: what became stale first is asked for first
    else:
        ids.pop(task_id, None)
