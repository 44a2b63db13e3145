"""Pages of a query: cut from the tasks that match, and kept for whoever asks for the same list again.

In: tasks that match, in order or not. Out: `QueryPage`. Always: a page has the tasks asked for and the bytes at most,
but one task if there is any. A kept page holds exactly as long as no group that it may show changes.
"""

import heapq
from itertools import accumulate, takewhile
from operator import gt, lt
from typing import Final, NamedTuple

import msgspec

from gateway.mcp.task import Task, digest
from gateway.tasks.cursor import Position
from gateway.tasks.plane import Plane

UNLIMITED: Final = float("inf")
_KEPT_MAX: Final = 4  # pages of an index
_KEPT_BYTES: Final = 600  # of one, beside its places for tasks


class QueryPage(msgspec.Struct):
    """A page of a query: its tasks in order, how many match in all, and whether more follow."""

    tasks: list[Task]
    total: int
    more: bool
    size_bytes: int
    """Of its JSON, and of a comma behind each task."""
    following: str = ""
    """The cursor of the next page, once it has been asked for."""


class _Kept(NamedTuple):
    position: Position
    limits: tuple[int, float]  # of tasks, and of bytes
    groups: list[Plane]
    page: QueryPage

    @property
    def size_bytes(self) -> int:
        return _KEPT_BYTES + 8 * len(self.page.tasks)


class KeptPages:
    """The pages of an index that may be asked for again, the last one first. What changes them returns bytes gained."""

    def __init__(self) -> None:
        self._kept: list[_Kept] = []

    def find(self, position: Position, limits: tuple[int, float], groups: list[Plane]) -> QueryPage | None:
        """The page at this very position, if it is kept, and was made of these groups."""
        for kept in self._kept:
            if kept.position is position and kept.groups == groups and kept.limits == limits:
                return kept.page
        return None

    def keep(self, position: Position, limits: tuple[int, float], groups: list[Plane], page: QueryPage) -> int:
        """Keep a page; the oldest of too many goes."""
        return self._become([_Kept(position, limits, groups, page), *self._kept[: _KEPT_MAX - 1]])

    def forget(self, group: Plane) -> int:
        """A group changes: its pages no longer hold."""
        return self._become([kept for kept in self._kept if group not in kept.groups]) if self._kept else 0

    def _become(self, kept: list[_Kept]) -> int:
        before, self._kept = self._kept, kept
        return sum(one.size_bytes for one in kept) - sum(one.size_bytes for one in before)


def page_of(position: Position, matching: list[Task], limit: int, bytes_max: float = UNLIMITED) -> QueryPage:
    """The page at a position, from all tasks that match, in any order."""
    return cut(first(position, matching, limit), len(matching), limit, bytes_max)


def first(position: Position, matching: list[Task], limit: int) -> list[Task]:
    """The tasks of a page in order, and one more, if there is one."""
    query, after, shown = position.query, position.after, position.shown
    pick, follows = (heapq.nlargest, lt) if query.descending else (heapq.nsmallest, gt)
    if after is not None:
        matching = [task for task in matching if follows(query.sort_key(task), after)]
    if shown:
        matching = [task for task in matching if digest(task.id) not in shown]
    return pick(limit + 1, matching, key=query.sort_key)


def cut(tasks: list[Task], total: int, limit: int, bytes_max: float) -> QueryPage:
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
