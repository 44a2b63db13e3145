"""What is being asked of the upstream, and who waits for it.

In: queries that need the same. Out: the end of what they wait for, or the error that kept it from that.
Always: an `Ask` belongs to the queries that wait for it, and ends with the last of them (DESIGN 3.6); a message on its
streams goes to the first of them that is still there and reads what it gets (DESIGN 5.7).
"""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Protocol

import msgspec

from gateway.core.index import Page
from gateway.sessions import Session


class Outbox(Protocol):
    """Where one client is told what happens before its answer is there."""

    @property
    def is_full(self) -> bool:
        """Whether the client has yet to take so much that `drain` waits."""

    def forward(self, data: bytes) -> None:
        """A message arrived on a stream of the crawler's."""

    async def drain(self) -> None:
        """Wait until the client has taken enough."""

    def progress(self, tasks: int) -> None:
        """So many tasks have been read, and more follow."""


class Answer(msgspec.Struct):
    """A page, as of when (seconds since 1970), how it was come by, and the upstream requests made for it."""

    page: Page
    as_of_unix_s: float
    outcome: str
    reason: str
    requests: int


class Ask:
    """Something that is being asked of the upstream, and the queries that wait for it."""

    def __init__(self, session: Session, keys: Sequence[str | None], began_at: float) -> None:
        self._session = session
        self._keys: list[str | None] = []
        self.began_at = began_at
        self.outboxes: list[Outbox] = []
        self.task: asyncio.Task[None] | None = None
        self.add(keys)

    def add(self, keys: Sequence[str | None]) -> None:
        """It asks for these too: task ids, or None for pages."""
        self._keys += keys
        self._session.asks.update(dict.fromkeys(keys, self))

    def release(self, *keys: str | None) -> None:
        """It asks for these no more: who wants to know them anew need not wait for the rest."""
        for key in keys:
            if self._session.asks.get(key) is self:
                del self._session.asks[key]

    async def forward(self, data: bytes) -> None:
        """Pass on a message from one of the crawler's streams. Who reads nothing holds up nobody but himself."""
        if self.outboxes:
            box = next((box for box in self.outboxes if not box.is_full), self.outboxes[0])
            box.forward(data)
            if all(each.is_full for each in self.outboxes):
                await box.drain()

    def progress(self, tasks: int) -> None:
        """Tell everyone who waits how far it is."""
        for outbox in self.outboxes:
            outbox.progress(tasks)

    async def join(self, outbox: Outbox) -> None:
        """Wait for the end. Raises what the asking raised; the last one to stop waiting stops it.

        It also returns if the last one who waited before has stopped it just now: then it must be asked anew.
        """
        if (task := self.task) is None:
            return
        self.outboxes.append(outbox)
        try:
            await asyncio.wait({task})
            if not task.cancelled():
                task.result()
        finally:
            self.outboxes.remove(outbox)
            if not self.outboxes:
                self.end()
                task.cancel()
            del task  # an error leads to this frame, which must not lead back to who holds the error

    async def over(self) -> None:
        """Wait for the end, whatever it is."""
        if self.task is not None:
            await asyncio.wait({self.task})

    def end(self) -> None:
        """No query may join it any more."""
        self.release(*self._keys)


async def together(*works: Coroutine[None, None, None]) -> None:
    """Carry out several things at once. The first that fails ends the others, and its error is raised.

    As `asyncio.TaskGroup`, which in 3.11 leaves its errors, their frames and so a session's index in a cycle.
    """
    if not works:
        return
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        for task in (await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION))[0]:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        del task, tasks  # as in `Ask.join`
