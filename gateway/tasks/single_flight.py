"""What is being asked of the upstream, and the queries that wait for it.

In: queries that need the same from the upstream. Out: for each of them, the end of what one `InFlight` asks, or its
error (single flight). Always: it ends with the last query that waits for it (DESIGN 3.6). A message on its streams
goes to the first waiting query whose client keeps reading (DESIGN 5.7).
"""

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from gateway.mcp.task import Moment
from gateway.tasks.transport_interfaces import Reply

_PROGRESS_INTERVAL_S: Final = 0.2
_T = TypeVar("_T")
_TOKEN_STARTS: Final = tuple(b"%c" % c for c in b'"-0123456789')  # a progress token is a string or a number


class Waiter:
    """The way to one requestor for messages ahead of its answer."""

    def __init__(self, reply: Reply, progress_token: bytes) -> None:
        self.reply = reply
        self._progress_token = progress_token if progress_token[:1] in _TOKEN_STARTS else b""
        self._progress_due_at = 0.0
        self._progress = 0  # the number of tasks last told

    def progress(self, tasks: int) -> None:
        """Tell how many tasks have been read so far, at intervals, if the requestor asked for progress."""
        now = asyncio.get_running_loop().time()
        if not self._progress_token or now < self._progress_due_at or tasks <= self._progress or self.reply.is_full:
            return
        self._progress_due_at, self._progress = now + _PROGRESS_INTERVAL_S, tasks
        params = b'{"progressToken":%b,"progress":%d,"message":"tasks read"}' % (self._progress_token, tasks)
        self.reply.forward(b'{"jsonrpc":"2.0","method":"notifications/progress","params":%b}' % params)

    async def forward(self, data: bytes) -> None:
        """Pass on a message, no faster than the requestor takes it."""
        self.reply.forward(data)
        await self.reply.drain()


class InFlight:
    """Requests to the upstream that are under way, and the queries that wait for them."""

    def __init__(self, in_flight: "dict[str | None, InFlight]", keys: Sequence[str | None], began: Moment) -> None:
        self._in_flight_requests = in_flight
        self._keys: list[str | None] = []
        self.began = began
        self.waiters: list[Waiter] = []
        self._task: asyncio.Task[None] | None = None
        self._joined_or_left = asyncio.Event()
        self._is_stuck = asyncio.Event()  # no client takes its messages
        self.has_ended = False  # another may ask for the same: pages that this ask reads from now on do not count
        self.add(keys)

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """A task does the work. It is forgotten when it has ended: its error holds frames that hold this ask (9.5)."""
        self._task = begun(work)
        self._task.add_done_callback(self._ended)

    def _ended(self, _task: asyncio.Task[None]) -> None:
        self._task = None

    def add(self, keys: Sequence[str | None]) -> None:
        """Ask for these too: task ids, or None for pages."""
        self._keys += keys
        self._in_flight_requests.update(dict.fromkeys(keys, self))

    def release(self, *keys: str | None) -> None:
        """These are answered. Queries that need them again ask anew, and wait no longer for the rest."""
        for key in keys:
            if self._in_flight_requests.get(key) is self:
                del self._in_flight_requests[key]

    async def forward(self, data: bytes) -> None:
        """Pass on a message from one of the crawler's streams. Waits until one of the clients has room."""
        while self.waiters:
            free = next((box for box in self.waiters if not box.reply.is_full), None)
            self._is_stuck.clear()
            if free is not None:
                free.reply.forward(data)
                return
            self._joined_or_left.clear()
            self._is_stuck.set()
            await first_of(self._joined_or_left.wait(), *(box.reply.drain() for box in self.waiters))

    async def join(self, waiter: Waiter) -> None:
        """Wait for the end. Raises the error of the ask. When the last waiting query is cancelled, so is the ask.

        If the ask was cancelled just before, it returns early: the query then asks anew.
        """
        if (task := self._task) is None:
            return
        self.waiters.append(waiter)
        self._joined_or_left.set()
        try:
            await asyncio.wait({task})
            if not task.cancelled():
                task.result()
        finally:
            self.waiters.remove(waiter)
            self._joined_or_left.set()
            if not self.waiters:
                self.end()
                task.cancel()
            del task  # its error holds this frame (9.5)

    async def over(self) -> None:
        """Wait for the end, good or bad. An ask whose clients take no messages is given up instead."""
        if self._task is not None:
            await first_of(asyncio.wait({self._task}), self._is_stuck.wait())
            if self._is_stuck.is_set():
                self.end()

    def end(self) -> None:
        """Let no further query join."""
        self.has_ended = True
        self.release(*self._keys)


def begun(work: Coroutine[Any, Any, _T]) -> "asyncio.Task[_T]":
    """A task that keeps no error when it is cancelled (9.5): on Python 3.14 frames of `asyncio.wait` hold the task."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(_take_cancellation)
    return task


def _take_cancellation(task: "asyncio.Task[Any]") -> None:
    if task.cancelled():
        with suppress(asyncio.CancelledError):
            task.result()


async def first_of(*works: Coroutine[Any, Any, object]) -> None:
    """Run several coroutines at once until one of them ends, and end the others."""
    await _until(asyncio.FIRST_COMPLETED, works)


async def together(*works: Coroutine[None, None, None]) -> None:
    """Run several at once; the first error ends all, and is raised. `TaskGroup` would leave it in a cycle (9.5)."""
    ended = await _until(asyncio.FIRST_EXCEPTION, works) if works else set()
    while ended:
        ended.pop().result()  # a task that stays in this frame makes a cycle with its error


async def _until(event: str, works: Sequence[Coroutine[Any, Any, _T]]) -> "set[asyncio.Task[_T]]":
    """Run coroutines at once until one event. Returns those that have ended by then; the others are ended."""
    tasks = [begun(work) for work in works]
    try:
        return (await asyncio.wait(tasks, return_when=event))[0]
    finally:
        try:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:  # if it is cancelled here too
            del task, tasks  # as in `InFlight.join`
