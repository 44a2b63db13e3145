"""Bringing a session's index up to date: one refresh at a time, shared by all queries that it is fresh enough for.

In: a session, the caller whose query needs it fresh, where messages for that caller go. Out: the index holds every
task's state as of the refresh's beginning, or later; or the error that kept it from that.
Always: at most one refresh of a session is under way; it belongs to the queries that joined it, and ends with the last
of them (DESIGN 3.6); a message on its streams goes to the first of them that is still there (DESIGN 5.7).
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from gateway.config import Config
from gateway.core import freshness, jsonrpc, observe, task
from gateway.core.freshness import Need
from gateway.core.index import Page, page_of
from gateway.core.jsonrpc import INVALID_PARAMS
from gateway.core.query import Query
from gateway.core.task import Key as Place
from gateway.core.task import Task, TaskError
from gateway.crawler import Caller, Crawler
from gateway.errors import GatewayError, UpstreamBroken, UpstreamFailed, UpstreamRefused
from gateway.metrics import Metrics
from gateway.sessions import Session, Sessions, TooLarge

log = logging.getLogger("taskgate.refresh")

Outbox: TypeAlias = Callable[[bytes], Awaitable[None]]
"""Where messages for one client go that arrive on a stream of the crawler's."""

_ASKED_AT_ONCE: Final = 8  # tasks/get of tasks that no list shows


class Refresh:
    """A refresh that is under way, and the queries that wait for it."""

    def __init__(self, session: Session, began_at: float) -> None:
        self._session = session
        self.began_at = began_at
        self.outboxes: list[Outbox] = []
        self.task: asyncio.Task[None] | None = None
        self.requests = 0  # made upstream so far

    async def forward(self, data: bytes) -> None:
        """Pass on a message from one of the crawler's streams."""
        if self.outboxes:
            await self.outboxes[0](data)

    async def join(self, outbox: Outbox) -> None:
        """Wait for the end. Raises what the refresh raised; the last one to stop waiting stops it."""
        assert self.task is not None
        self.outboxes.append(outbox)
        try:
            await asyncio.wait({self.task})
        finally:
            self.outboxes.remove(outbox)
            if not self.outboxes:
                self.end()
                self.task.cancel()
        self.task.result()

    def end(self) -> None:
        """No query may join it any more."""
        if self._session.refresh is self:
            self._session.refresh = None


class Refresher:
    """Refreshes sessions."""

    def __init__(self, sessions: Sessions, config: Config, metrics: Metrics, clock: Callable[[], float]) -> None:
        self._sessions = sessions
        self._config = config
        self._metrics = metrics
        self._clock = clock

    def is_fresh(self, session: Session) -> bool:
        """Whether a query that comes now can be answered from the index."""
        return self._need(session, self._clock()) is Need.NOTHING

    def _need(self, session: Session, came_at: float) -> Need:
        oldest = max(came_at - self._config.index.max_age, session.doubted_at)
        running = session.refresh
        return freshness.need(oldest, session.as_of, running.began_at if running is not None else None)

    async def refresh(self, session: Session, caller: Caller, outbox: Outbox) -> tuple[str, int]:
        """Make the index fresh enough for a query that comes now; returns how, and the upstream requests it took.

        Raises GatewayError, and TooLarge if the session is to be scanned instead.
        """
        came_at, outcome, requests = self._clock(), "coalesced", 0
        while True:
            if session.oversize:
                raise TooLarge
            running = session.refresh
            match self._need(session, came_at):
                case Need.NOTHING:
                    return outcome, requests
                case Need.REFRESH:
                    running, outcome = self._start(session, caller), "refreshed"
                    await running.join(outbox)
                    requests = running.requests
                case Need.JOIN:
                    assert running is not None
                    await running.join(outbox)
                    return outcome, requests
                case Need.WAIT:
                    assert running is not None and running.task is not None
                    await asyncio.wait({running.task})

    def _start(self, session: Session, caller: Caller) -> Refresh:
        refresh = session.refresh = Refresh(session, self._clock())
        refresh.task = asyncio.create_task(self._run(session, caller, refresh))
        return refresh

    async def _run(self, session: Session, caller: Caller, refresh: Refresh) -> None:
        wall = time.time()
        try:
            with self._metrics.crawl_seconds.labels(caller.upstream.name).time():
                await self._crawl(session, caller, refresh)
            session.as_of, session.as_of_unix = refresh.began_at, wall
        except TooLarge:
            session.oversize = True
            session.clear()
            raise
        except UpstreamRefused as refused:
            if refused.status in (401, 403, 404):
                self._sessions.drop(session.key)
                session.clear()
            raise
        finally:
            refresh.end()
            self._sessions.keep(session)

    async def _crawl(self, session: Session, caller: Caller, refresh: Refresh) -> None:
        """Read every page into the index, and take out what no page shows."""
        crawler = Crawler(caller, self._config, self._metrics, self._on_message(session, refresh))
        seen: set[str] = set()
        pages = size_bytes = 0
        session.gone_at.clear()
        session.observed_at.clear()
        async for page in crawler.pages():
            session.listed(page.tasks)
            seen.update(t.id for t in page.tasks)
            self._sessions.keep(session)
            self._sessions.check(session)
            pages += 1
            size_bytes += page.size_bytes
            refresh.requests += 1
        session.cors = crawler.cors
        session.list_pages, session.list_bytes = pages, size_bytes
        if len(seen) < len(session.index):
            await self._settle(session, crawler, refresh, [i for i in session.index if i not in seen])

    async def _settle(self, session: Session, crawler: Crawler, refresh: Refresh, missing: list[str]) -> None:
        """Of the tasks that the list did not show: those it once did are gone, the others are asked for by id."""
        ask = []
        for task_id in missing:
            if task_id in session.observed_at:
                continue  # seen in passing while the crawl was under way
            if task_id in session.unlisted:
                ask.append(task_id)
            else:
                session.forget(task_id)
        recheck_before = refresh.began_at - self._config.index.full_crawl_interval
        due = [i for i in ask if self._is_due(session, i, recheck_before)]
        for start in range(0, len(due), _ASKED_AT_ONCE):
            batch = due[start : start + _ASKED_AT_ONCE]
            try:
                async with asyncio.TaskGroup() as group:
                    reports = [group.create_task(self._get(crawler, task_id)) for task_id in batch]
            except* GatewayError as failures:
                raise failures.exceptions[0] from None
            refresh.requests += len(batch)
            for task_id, report in zip(batch, reports, strict=True):
                if (found := report.result()) is not None:
                    session.index.put(found)
                    session.unlisted[task_id] = refresh.began_at
                elif task_id not in session.observed_at:
                    session.forget(task_id)

    def _is_due(self, session: Session, task_id: str, recheck_before: float) -> bool:
        known = session.index.get(task_id)
        return known is not None and (not known.is_terminal or session.unlisted[task_id] <= recheck_before)

    async def _get(self, crawler: Crawler, task_id: str) -> Task | None:
        response = await crawler.ask("tasks/get", {"taskId": task_id})
        if bytes(response.error):
            if jsonrpc.error_code(response) == INVALID_PARAMS:
                return None
            raise UpstreamFailed(bytes(response.error))
        try:
            return task.parse(response.result)
        except TaskError as error:
            raise UpstreamBroken(f"the upstream's tasks/get is no task: {error}") from None

    def _on_message(self, session: Session, refresh: Refresh) -> Outbox:
        async def on_message(data: bytes) -> None:
            message = jsonrpc.parse(data)
            if message is not None and (observation := observe.of_notification(message)):
                self._sessions.observe(session.key, observation)
            await refresh.forward(data)

        return on_message

    async def scan(self, session: Session, caller: Caller, outbox: Outbox, query: Query, after: Place | None) -> Page:
        """The page of a query on a session that is larger than an index may hold: read through, and forgotten."""
        limit = self._config.index.page_size
        crawler = Crawler(caller, self._config, self._metrics, outbox)
        seen: set[int] = set()
        best: list[Task] = []
        total, more, began_at = 0, False, time.time()
        pages = size_bytes = 0
        async for page in crawler.pages():
            unique = {t.id: t for t in page.tasks if hash(t.id) not in seen}
            seen.update(map(hash, unique))
            matching = [t for t in unique.values() if query.matches(t, session.index.default_method)]
            total += len(matching)
            kept = page_of(query, best + matching, after, limit)
            best, more = kept.tasks, more or kept.more
            pages += 1
            size_bytes += page.size_bytes
        session.oversize = len(seen) > self._config.index.tasks_max or size_bytes > self._config.index.memory_bytes_max
        session.as_of_unix, session.list_pages, session.list_bytes = began_at, pages, size_bytes
        session.cors = crawler.cors
        return Page(best, total, more)
