"""The task store of the demo's legacy server: what the SDKs' in-memory stores do, at any size.

In: tasks made by requestors, by the simulation, or by a test behind a gateway's back. Out: single tasks,
and pages of them in creation order.

Strategy: a dict holds the tasks, a list their order, a second dict the place of each in that list. A deleted
task leaves a hole in the list; holes are swept when they outnumber the tasks. So a page costs time in
proportion to the page, not to the store (the TypeScript SDK's store walks all its tasks for each page).

Always: a cursor is the id of the last task on the page before; a task whose id it is may be gone, and the
cursor with it. A terminal task never changes. A task is kept for its ttl, which starts again when it ends.
Every `Task` handed out is a copy.
"""

import asyncio
import heapq
import time
import uuid
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Final, Literal, NotRequired, TypedDict, cast

Status = Literal["working", "input_required", "completed", "failed", "cancelled"]

TERMINAL: Final[frozenset[Status]] = frozenset(("completed", "failed", "cancelled"))
PAGE_SIZE: Final = 10  # tasks; what both SDKs use
TTL_MS: Final = 3_600_000
POLL_INTERVAL_MS: Final = 1_000
HOLES_MIN: Final = 64  # entries; below this, sweeping the order is not worth its time


class Task(TypedDict):
    """A task as 2025-11-25 puts it on the wire; its members stand in the TypeScript SDK's order."""

    taskId: str
    status: Status
    ttl: int
    createdAt: str
    lastUpdatedAt: str
    pollInterval: int
    statusMessage: NotRequired[str]


class StoreError(Exception):
    """What a requestor asked for cannot be had. The server answers it with `-32602`."""


class UnknownTask(StoreError):
    """There is no task of this id: it never was, was deleted, or has expired."""


class InvalidCursor(StoreError):
    """The cursor names no task of this store."""


class TerminalTask(StoreError):
    """The task has ended and changes no more."""


def now_ms() -> int:
    """The time, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def timestamp(instant_ms: int) -> str:
    """The instant as JavaScript's `toISOString` writes it: three digits of a second, and `Z`."""
    # From whole seconds: a float of seconds and milliseconds can come out a millisecond short.
    seconds, ms = divmod(instant_ms, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC).isoformat()[:19]}.{ms:03d}Z"


class TaskStore:
    """The tasks of one session (or of all, on a server without sessions)."""

    def __init__(self, page_size: int = PAGE_SIZE) -> None:
        self.on_change: Callable[[Task], None] | None = None  # called with each task that `update` changed
        self.page_size = page_size
        self._tasks: dict[str, Task] = {}
        self._order: list[str | None] = []
        self._place: dict[str, int] = {}
        self._expires_ms: dict[str, int] = {}
        self._expiries: list[tuple[int, str]] = []  # a heap; an entry counts if _expires_ms still says so
        self._waiters: dict[str, set[asyncio.Event]] = {}

    def __len__(self) -> int:
        self._expire()
        return len(self._tasks)

    # Reading

    def get(self, task_id: str) -> Task:
        """The task, or `UnknownTask`."""
        self._expire()
        return self._copy(self._stored(task_id))

    def all(self) -> list[Task]:
        """All tasks, in creation order."""
        self._expire()
        return [self._copy(self._tasks[task_id]) for task_id in self._order if task_id is not None]

    def page(self, cursor: str | None = None) -> tuple[list[Task], str | None]:
        """The page after `cursor` (the first for None), and the cursor of the next if there is one."""
        self._expire()
        start = 0
        if cursor is not None:
            if cursor not in self._place:
                raise InvalidCursor(f"Invalid cursor: {cursor}")
            start = self._place[cursor] + 1
        found: list[str] = []
        for place in range(start, len(self._order)):
            task_id = self._order[place]
            if task_id is None:
                continue
            if len(found) == self.page_size:
                return [self._copy(self._tasks[one]) for one in found], found[-1]
            found.append(task_id)
        return [self._copy(self._tasks[one]) for one in found], None

    async def terminal(self, task_id: str) -> Task:
        """The task once it has ended; waits until then. `UnknownTask` if it goes away first."""
        while (task := self.get(task_id))["status"] not in TERMINAL:
            changed = asyncio.Event()
            waiters = self._waiters.setdefault(task_id, set())
            waiters.add(changed)
            try:
                # Expiry is lazy, as in the Python SDK, so somebody has to look when the task's time is up.
                async with asyncio.timeout(max(0, self._expires_ms[task_id] - now_ms() + 1) / 1000):
                    await changed.wait()
            except TimeoutError:
                continue
            finally:
                waiters.discard(changed)
                if not waiters:
                    self._waiters.pop(task_id, None)
        return task

    # Changing

    def add(
        self,
        status: Status = "working",
        *,
        task_id: str | None = None,
        created_at: str | None = None,
        last_updated_at: str | None = None,
        status_message: str | None = None,
        ttl_ms: int = TTL_MS,
        poll_interval_ms: int = POLL_INTERVAL_MS,
    ) -> Task:
        """Put a new task at the end of the list. What is not given is what a task made now would have."""
        created = created_at or timestamp(now_ms())
        task: Task = {
            "taskId": task_id or uuid.uuid4().hex,
            "status": status,
            "ttl": ttl_ms,
            "createdAt": created,
            "lastUpdatedAt": last_updated_at or created,
            "pollInterval": poll_interval_ms,
        }
        if status_message is not None:
            task["statusMessage"] = status_message
        self.load([task])
        return self._copy(task)

    def load(self, tasks: Iterable[Task]) -> None:
        """Put many tasks at the end of the list. Each is kept for its ttl, counted from now on."""
        now = now_ms()
        for task in tasks:
            task_id = task["taskId"]
            if task_id in self._tasks:
                raise ValueError(f"Task with ID {task_id} already exists")
            self._tasks[task_id] = task
            self._place[task_id] = len(self._order)
            self._order.append(task_id)
            self._keep_until(task_id, now + task["ttl"])

    def update(self, task_id: str, status: Status | None = None, status_message: str | None = None) -> Task:
        """Change a task, whose lastUpdatedAt becomes now. `UnknownTask` or `TerminalTask` if it cannot be."""
        self._expire()
        task = self._stored(task_id)
        if task["status"] in TERMINAL:
            raise TerminalTask(f"Cannot transition from terminal status '{task['status']}'")
        if status is not None:
            task["status"] = status
        if status_message is not None:
            task["statusMessage"] = status_message
        now = now_ms()
        task["lastUpdatedAt"] = max(timestamp(now), task["lastUpdatedAt"])
        if task["status"] in TERMINAL:
            self._keep_until(task_id, now + task["ttl"])
        self._wake(task_id)
        if self.on_change is not None:
            self.on_change(self._copy(task))
        return self._copy(task)

    def delete(self, task_id: str) -> None:
        """Forget the task, and with it every cursor that names it. `UnknownTask` if there is none."""
        self._stored(task_id)
        del self._tasks[task_id], self._expires_ms[task_id]
        self._order[self._place.pop(task_id)] = None
        self._wake(task_id)
        holes = len(self._order) - len(self._tasks)
        if holes > max(HOLES_MIN, len(self._tasks)):
            self._sweep()

    def clear(self) -> None:
        """Forget all tasks."""
        for task_id in list(self._tasks):
            self.delete(task_id)

    # Inside

    def _stored(self, task_id: str) -> Task:
        task = self._tasks.get(task_id)
        if task is None:
            raise UnknownTask(f"Task not found: {task_id}")
        return task

    @staticmethod
    def _copy(task: Task) -> Task:
        return cast(Task, dict(task))

    def _wake(self, task_id: str) -> None:
        for waiter in self._waiters.get(task_id, ()):
            waiter.set()

    def _keep_until(self, task_id: str, expires_ms: int) -> None:
        self._expires_ms[task_id] = expires_ms
        heapq.heappush(self._expiries, (expires_ms, task_id))

    def _expire(self) -> None:
        """Delete the tasks whose time is up."""
        now = now_ms()
        while self._expiries and self._expiries[0][0] <= now:
            expires_ms, task_id = heapq.heappop(self._expiries)
            if self._expires_ms.get(task_id) == expires_ms:
                self.delete(task_id)

    def _sweep(self) -> None:
        self._order = [task_id for task_id in self._order if task_id is not None]
        self._place = {task_id: place for place, task_id in enumerate(self._order) if task_id is not None}
        self._expiries = [(expires_ms, task_id) for task_id, expires_ms in self._expires_ms.items()]
        heapq.heapify(self._expiries)
