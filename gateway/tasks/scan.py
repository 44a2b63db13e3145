"""Scans: queries of a session that is larger than an index may be, answered by reading all pages (DESIGN 7.8).

In: the queries that wait. Out: their answers. Always: a session has one scan at a time, and no crawl beside it, unless
it was given up. All queries that waited when it began share it. It keeps only the tasks of their pages, and a hash of
each id that it read.
"""

import asyncio
import time
from collections.abc import Callable, Collection
from contextlib import aclosing

from gateway.config import IndexLimits
from gateway.errors import Overloaded, without_frames
from gateway.mcp.task import Task
from gateway.tasks.asks import Ask
from gateway.tasks.crawler import TASKS_AT_ONCE, Crawler
from gateway.tasks.cursor import Position
from gateway.tasks.index import size_of
from gateway.tasks.pages import QueryPage, cut, first
from gateway.tasks.sessions import Session


class Selection:
    """The page of one query, gathered while the tasks go by. `hold` is called with its size in bytes."""

    def __init__(
        self, position: Position, limits: IndexLimits, hold: Callable[[int], None], bytes_max: float | None = None
    ) -> None:
        self._position = position
        self._limit = limits.page_size
        self._bytes_max = limits.page_bytes_max if bytes_max is None else bytes_max
        self._hold = hold
        self._tasks: list[Task] = []  # of the page, and the one behind it: none behind that one may come onto the page
        self._page = QueryPage([], 0, False, 0)
        self._failed: Overloaded | None = None

    @property
    def page(self) -> QueryPage:
        """The page. Raises Overloaded if there was no room for it."""
        if self._failed is not None:
            raise self._failed
        return self._page

    def take(self, tasks: Collection[Task], default_method: str | None) -> None:
        """Take in further tasks, each for the first time."""
        matching = [task for task in tasks if self._position.query.matches(task, default_method)]
        if not matching or self._failed is not None:
            return
        limit, total = self._limit, self._page.total + len(matching)
        kept = first(self._position, self._tasks + matching, limit)
        self._page = cut(kept, total, limit, self._bytes_max)
        self._tasks = kept[: len(self._page.tasks) + 1]
        try:
            self._hold(sum(len(task.raw) for task in self._tasks))
        except Overloaded as error:
            self._failed, self._tasks, self._page = without_frames(error), [], QueryPage([], 0, False, 0)


class Scan(Ask):
    """One reading of all pages, and the queries that it serves."""

    def __init__(self, session: Session, limits: IndexLimits, clock: Callable[[], float]) -> None:
        super().__init__(session.asks, (), clock())
        self._session, self._limits, self._clock = session, limits, clock
        self.selections: list[Selection] = []
        self.began_unix_s: float | None = None  # None before all is read; stays so if an index may hold the session
        session.asks.next_scan = self

    def end(self) -> None:
        """No query may join it any more: its first page is about to go by."""
        super().end()
        if self._asks.next_scan is self:
            self._asks.next_scan = None

    async def run(self, crawler: Crawler) -> None:
        """Read all pages once nothing else reads them. Raises GatewayError."""
        try:
            while (reading := self._asks.get(None)) is not None:
                await reading.over()
            self.end()
            self.add([None])
            if self._session.oversize:
                await self._read(crawler)
        finally:
            self.end()

    async def _read(self, crawler: Crawler) -> None:
        session, limits, began_unix_s = self._session, self._limits, time.time()
        seen: set[int] = set()
        pages, list_bytes, size_bytes = 0, 0, 0
        async with aclosing(crawler.pages()) as reading:
            async for read in reading:
                unique = list({t.id: t for t in read.tasks if hash(t.id) not in seen}.values())
                seen.update(hash(task.id) for task in unique)
                await self._select(unique)
                pages += 1
                list_bytes += read.size_bytes
                size_bytes += sum(map(size_of, unique))
                if read.following is not None:
                    self.progress(len(seen))
        session.oversize = len(seen) > limits.tasks_max or size_bytes + session.size_bytes > limits.memory_bytes_max
        session.list_bytes = list_bytes
        session.known.end_scan(pages, self._clock())
        self.began_unix_s = began_unix_s

    async def _select(self, tasks: list[Task]) -> None:
        for start in range(0, len(tasks), TASKS_AT_ONCE):
            for selection in tuple(self.selections):
                if selection in self.selections:  # its requestor may have left meanwhile
                    selection.take(tasks[start : start + TASKS_AT_ONCE], self._session.index.default_method)
                await asyncio.sleep(0)
