"""Sessions larger than an index may hold: their queries are answered by reading all pages and keeping only theirs.

In: queries that wait. Out: their answers. Always: one scan of a session at a time, and none beside a crawl; all who
waited when it began share it; of the tasks nothing is kept but the pages that were asked for, and who was seen.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import aclosing
from typing import Final

from gateway.asks import Answer, Ask, Outbox
from gateway.config import Config
from gateway.core.cursor import Position
from gateway.core.index import Page, page_of, size_of
from gateway.core.task import Task
from gateway.crawler import TASKS_AT_ONCE, Caller, Crawler
from gateway.metrics import Metrics
from gateway.sessions import Session

_REASON: Final = "the session is larger than an index may be"


class Selection:
    """The page that one query asked for, as the tasks go by."""

    def __init__(self, position: Position, limit: int) -> None:
        self._position = position
        self._limit = limit
        self.page = Page([], 0, False)

    def take(self, tasks: Collection[Task], default_method: str | None) -> None:
        """Further tasks, none of which went by before."""
        query, after, shown = self._position.query, self._position.after, self._position.shown
        matching = [task for task in tasks if query.matches(task, default_method)]
        kept = page_of(query, self.page.tasks + matching, after, self._limit, shown)
        self.page = Page(kept.tasks, self.page.total + len(matching), self.page.more or kept.more)


class Scan(Ask):
    """One reading of all pages, and the queries that it serves."""

    def __init__(self, session: Session, began_at: float) -> None:
        super().__init__(session, (), began_at)
        self.selections: list[Selection] = []
        self.requests = 0  # that were made for it
        self.began_unix_s: float | None = None  # None too if an index may hold the session again
        session.next_scan = self

    def end(self) -> None:
        """No query may join it any more: who comes now may have missed a page."""
        super().end()
        if self._session.next_scan is self:
            self._session.next_scan = None


class Scanner:
    """Answers queries from scans. `on_message` takes what comes on the streams of the scan of a session."""

    def __init__(
        self,
        config: Config,
        metrics: Metrics,
        clock: Callable[[], float],
        on_message: Callable[[Session, Ask], Callable[[bytes], Awaitable[None]]],
    ) -> None:
        self._config = config
        self._metrics = metrics
        self._clock = clock
        self._on_message = on_message

    async def answer(self, session: Session, caller: Caller, outbox: Outbox, position: Position) -> Answer | None:
        """The answer to a query; None if by then an index may hold the session again. Raises GatewayError."""
        scan, begins = session.next_scan, session.next_scan is None
        if scan is None:
            scan = Scan(session, self._clock())
            scan.task = asyncio.create_task(self._run(session, caller, scan))
        selection = Selection(position, self._config.index.page_size)
        scan.selections.append(selection)
        await scan.join(outbox)
        if scan.began_unix_s is None:
            return None
        return Answer(selection.page, scan.began_unix_s, "scanned", _REASON, scan.requests if begins else 0)

    async def _run(self, session: Session, caller: Caller, scan: Scan) -> None:
        try:
            async with session.scanning:
                while (crawl := session.asks.get(None)) is not None:
                    await crawl.over()
                scan.end()
                if session.oversize:
                    await self._read(session, caller, scan)
        finally:
            scan.end()
            scan.task = None  # whose error, if it was cancelled, holds this frame

    async def _read(self, session: Session, caller: Caller, scan: Scan) -> None:
        crawler = Crawler(caller, self._config, self._metrics, self._on_message(session, scan))
        began_unix_s = time.time()
        seen: set[int] = set()
        pages, list_bytes, size_bytes = 0, 0, 0
        async with aclosing(crawler.pages()) as reading:
            async for read in reading:
                unique = list({t.id: t for t in read.tasks if hash(t.id) not in seen}.values())
                seen.update(hash(task.id) for task in unique)
                await self._select(session, scan, unique)
                pages += 1
                list_bytes += read.size_bytes
                size_bytes += sum(map(size_of, unique))
                if read.following is not None:
                    scan.progress(len(seen))
        limits = self._config.index
        session.oversize = len(seen) > limits.tasks_max or size_bytes + session.size_bytes > limits.memory_bytes_max
        session.known.pages, session.list_bytes = pages, list_bytes
        now = self._clock()
        session.known.doubted_at = session.known.believed_from = now  # what is known may be older than these answers
        scan.requests, scan.began_unix_s = crawler.requests, began_unix_s

    async def _select(self, session: Session, scan: Scan, tasks: list[Task]) -> None:
        for start in range(0, len(tasks), TASKS_AT_ONCE):
            for selection in scan.selections:
                selection.take(tasks[start : start + TASKS_AT_ONCE], session.index.default_method)
                await asyncio.sleep(0)
