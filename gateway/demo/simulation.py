"""Tasks with a past and a future: what a session of the demo's legacy server holds, and how it moves.

In: a seeded `random.Random` and the time. Out: a history of tasks in all five statuses, and, step by step,
changes to a store.

Always: tasks move only along the paths of 2025-11-25 (Task Status Lifecycle), and the number of tasks stays
bounded: long-running tasks only go to and fro between working and input_required, short runs end and are
followed by new ones, whose ttl is short.
"""

import random
from collections.abc import Iterator
from typing import Final

from .store import TERMINAL, Status, StoreError, Task, TaskStore, now_ms, timestamp

HISTORY_DAYS: Final = 5
HISTORY_TTL_MS: Final = 14 * 86_400_000
RUNS: Final = 5  # short runs under way at any time, those that requestors started not counted
RUN_TTL_MS: Final = 600_000
LONG_RUNNING_MAX: Final = 1_000  # tasks; more of a loaded history stand still

_STATUSES: Final[tuple[Status, ...]] = ("working", "input_required", "completed", "failed", "cancelled")
_WEIGHTS: Final = (8, 5, 70, 10, 7)
_STAGES: Final[tuple[Status, ...]] = ("working", "input_required", "working")
_POLL_INTERVALS_MS: Final = (500, 1_000, 2_000, 5_000)
_MESSAGES: Final[dict[Status, tuple[str | None, ...]]] = {
    "working": (None, "Reading sources", "Comparing 14 papers", "Writing the summary"),
    "input_required": ("Which region?", "May I use the paid archive?", "Two topics match: which one?"),
    "completed": (None, "Report ready", "Report ready, 3 sources left out"),
    "failed": ("The archive did not answer", "Not enough sources"),
    "cancelled": ("The task was cancelled by request.",),
}


def history(rng: random.Random, count: int, until_ms: int) -> Iterator[Task]:
    """`count` tasks of the last `HISTORY_DAYS` days before `until_ms`, in creation order."""
    span_ms = HISTORY_DAYS * 86_400_000
    step_ms = span_ms / max(count, 1)
    for number in range(count):
        created_ms = until_ms - span_ms + int((number + rng.random()) * step_ms)
        status = rng.choices(_STATUSES, _WEIGHTS)[0]
        updated_ms = created_ms + int(rng.random() * (until_ms - created_ms) * 0.5)
        yield _task(rng, status, created_ms, updated_ms, HISTORY_TTL_MS)


def _task(rng: random.Random, status: Status, created_ms: int, updated_ms: int, ttl_ms: int) -> Task:
    task: Task = {
        "taskId": f"{rng.getrandbits(128):032x}",
        "status": status,
        "ttl": ttl_ms,
        "createdAt": timestamp(created_ms),
        "lastUpdatedAt": timestamp(updated_ms),
        "pollInterval": rng.choice(_POLL_INTERVALS_MS),
    }
    message = rng.choice(_MESSAGES[status])
    if message is not None:
        task["statusMessage"] = message
    return task


class Simulation:
    """Moves the tasks of one store. Whoever owns it calls `step` every few hundred milliseconds."""

    def __init__(self, store: TaskStore, rng: random.Random) -> None:
        self._store = store
        self._rng = rng
        self._long_running: list[str] = []
        self._runs: dict[str, int] = {}  # task id -> the stage that it has reached

    def load(self, count: int) -> None:
        """Give the store a history of `count` tasks; those of them that are not finished go on moving."""
        tasks = list(history(self._rng, count, now_ms()))
        self._store.load(tasks)
        unfinished = (task["taskId"] for task in tasks if task["status"] not in TERMINAL)
        self._long_running = [*self._long_running, *unfinished][:LONG_RUNNING_MAX]

    def adopt(self, task_id: str) -> None:
        """Take a task that a requestor has made through its life."""
        self._runs[task_id] = 0

    def step(self) -> None:
        """Move a few tasks by one stage each."""
        while len(self._runs) < RUNS:
            task = _task(self._rng, "working", created := now_ms(), created, RUN_TTL_MS)
            self._store.load([task])
            self.adopt(task["taskId"])
        if self._long_running and self._rng.random() < 0.3:
            self._turn(self._rng.choice(self._long_running))
        for task_id in self._rng.sample(list(self._runs), 1 + len(self._runs) // 8):
            self._advance(task_id)

    def _turn(self, task_id: str) -> None:
        try:
            waiting = self._store.get(task_id)["status"] == "input_required"
            self._move(task_id, "working" if waiting else "input_required")
        except StoreError:  # cancelled, or deleted behind our back
            self._long_running.remove(task_id)

    def _advance(self, task_id: str) -> None:
        stage = self._runs.pop(task_id) + 1
        try:
            if stage < len(_STAGES):
                self._move(task_id, _STAGES[stage])
                self._runs[task_id] = stage
            else:
                self._move(task_id, "failed" if self._rng.random() < 0.2 else "completed")
        except StoreError:
            return

    def _move(self, task_id: str, status: Status) -> None:
        # Always with a message: an update without one would leave that of the status before.
        self._store.update(task_id, status, self._rng.choice(_MESSAGES[status]) or f"Now {status}")
