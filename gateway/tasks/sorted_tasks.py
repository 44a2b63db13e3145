"""The tasks of one group in two sorted lists: by creation, and by last update.

In: tasks to add and to remove; the position of a page. Out: how many tasks lie in both ranges of its query, and the
first ones behind the position. Always: both lists have the same tasks; ids decide between equal instants. Tasks of
unreadable instant (UNKNOWN) stand in front, and lie in every range.
"""

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from operator import attrgetter
from typing import Final

from gateway.mcp.task import EARLIEST, LATEST, UNKNOWN, Place, Task
from gateway.query.criteria import OPEN, PLACE, Bounds, OrderBy
from gateway.query.cursor import Position

AT_ONCE: Final = 1000  # tasks that are walked over, or freed, in one step
_SORTING: Final = 5  # to look at a task out of order costs as much as to walk over so many


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

    def created_in(self, bounds: Bounds) -> Iterator[list[Task]]:
        return self.created.walk(self.created.slices(bounds))

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
