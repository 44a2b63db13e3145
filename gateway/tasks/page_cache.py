"""Pages of a query: cut from the tasks that match, and kept until a task changes, for whoever asks for them again."""

from itertools import accumulate, takewhile
from typing import Final

import msgspec

from gateway.mcp.task import Task
from gateway.query.cursor import Position

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


class PageCache:
    """The pages of an index that may be asked for again, the last one first. `size_bytes` is their memory."""

    def __init__(self) -> None:
        self._kept: list[tuple[Position, tuple[object, ...], QueryPage]] = []
        self.size_bytes = 0

    def find(self, position: Position, of: tuple[object, ...]) -> QueryPage | None:
        return next((page for kept, its, page in self._kept if kept is position and its == of), None)

    def keep(self, position: Position, of: tuple[object, ...], page: QueryPage) -> None:
        self._kept = [(position, of, page), *self._kept[: _KEPT_MAX - 1]]
        self.size_bytes = sum(_KEPT_BYTES + 8 * len(page.tasks) for *_, page in self._kept)

    def clear(self) -> None:
        self._kept, self.size_bytes = [], 0


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
