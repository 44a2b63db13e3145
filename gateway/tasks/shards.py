"""Tasks by id, in many small dicts.

In: tasks. Out: the same, by id. Always: every operation takes as long as in a small dict. One dict of a million entries
takes 50 ms to grow, and all clients wait meanwhile.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from gateway.mcp.task import SortKey, Task

_SHARDS: Final = 256  # a power of two
_WHOLE_MAX: Final = 16 * _SHARDS  # tasks in one dict: many dicts of few entries take more memory
_FREED_AT_ONCE: Final = 2


class Shards:
    """A mapping from ids to tasks."""

    __slots__ = ("_shards", "_size")

    def __init__(self) -> None:
        self._shards: list[dict[str, Task]] = [{}]  # only one, until there are many tasks
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[str]:
        for shard in self._shards:
            yield from shard

    def __getitem__(self, task_id: str) -> Task:
        shards = self._shards
        return shards[hash(task_id) & (len(shards) - 1)][task_id]

    def __setitem__(self, task_id: str, task: Task) -> None:
        """Replace the task of an id that is here."""
        shards = self._shards
        shards[hash(task_id) & (len(shards) - 1)][task_id] = task

    def add(self, task: Task) -> Task | None:
        """Add a task. If there is one of its id already, keep and return that one."""
        shards = self._shards
        shard = shards[hash(task.id) & (len(shards) - 1)]
        there = shard.get(task.id)
        if there is not None:
            return there
        shard[task.id] = task
        self._size += 1
        if self._size > _WHOLE_MAX and len(shards) == 1:
            self._part()
        return None

    def _part(self) -> None:
        whole, self._shards = self._shards[0], [{} for _ in range(_SHARDS)]
        for task_id, task in whole.items():
            self._shards[hash(task_id) & (_SHARDS - 1)][task_id] = task

    def get(self, task_id: str) -> Task | None:
        """The task of an id; None if there is none."""
        shards = self._shards
        return shards[hash(task_id) & (len(shards) - 1)].get(task_id)

    def all_of(self, keys: Iterable[SortKey]) -> list[Task]:
        """The tasks of keys that are here."""
        shards = self._shards
        mask = len(shards) - 1
        return [shards[hash(task_id) & mask][task_id] for task_id in [key.id for key in keys]]

    def created_of(self, task_id: str) -> SortKey:
        """The created key for an id that is here."""
        return self[task_id].created

    def pop(self, task_id: str) -> Task | None:
        """Remove and return the task of an id; None if there is none."""
        shards = self._shards
        task = shards[hash(task_id) & (len(shards) - 1)].pop(task_id, None)
        self._size -= task is not None
        return task

    def parts(self) -> Iterator[list[Task]]:
        """All tasks, some at a time. A task that is added meanwhile may be missing."""
        for shard in self._shards:
            yield list(shard.values())

    def dismantle(self) -> Iterator[None]:
        """Free the memory bit by bit. Nothing else works afterwards."""
        while self._shards:
            del self._shards[-_FREED_AT_ONCE:]
            yield
