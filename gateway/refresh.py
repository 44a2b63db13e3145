"""Bringing a session up to date for a query: what `core/freshness.py` plans is asked, once for all who need it.

In: a session, a query with when it came, the caller that it is asked for, where messages for that caller go. Out: the
index is fresh enough for the query; or the error that kept it from that. Always: nothing is asked twice at once.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from itertools import chain
from typing import Final

import msgspec

from gateway import crawler as crawling
from gateway.asks import Answer, Ask, Outbox, together
from gateway.config import Config
from gateway.core import freshness, jsonrpc, observe
from gateway.core.cursor import Position
from gateway.core.freshness import Ages, Plan
from gateway.core.index import Page
from gateway.core.knowledge import NEVER, Knowledge, Listing, Order
from gateway.core.query import Query
from gateway.core.task import Task
from gateway.crawler import TASKS_AT_ONCE, Caller, Crawler
from gateway.errors import UpstreamBroken, UpstreamFailed, UpstreamRefused
from gateway.metrics import Metrics
from gateway.scan import Scanner
from gateway.sessions import Forgotten, Session, Sessions, TooLarge

_ASKED_AT_ONCE: Final = 8
_SUSPECTS_MAX: Final = 100  # of the tasks that a crawl no longer shows: of more not all may have to be asked for
_CURSORS_KEPT: Final = 4  # of the last pages, to look there for new tasks
_ROUNDS_MAX: Final = 100  # of planning for one query; each learns something


class Refresher:
    """Answers queries from sessions, as fresh as they must be."""

    def __init__(self, sessions: Sessions, config: Config, metrics: Metrics, clock: Callable[[], float]) -> None:
        self._sessions = sessions
        self._config = config
        self._metrics = metrics
        self._clock = clock
        self._ages = Ages(config.index.max_age, config.index.full_crawl_interval)
        self._scanner = Scanner(config, metrics, clock, self._on_message)

    def at_once(self, session: Session, position: Position) -> Answer | None:
        """The answer to a query that needs nothing of the upstream; None if it does."""
        query = position.query
        if session.oversize or not self._plan(session, query, self._clock()).nothing:
            return None
        page = self._select(session, position)
        if self._overdue(session, page):
            return None
        return Answer(page, self._as_of(session, query, self._clock()), "index", freshness.FRESH.reason, 0)

    def _select(self, session: Session, position: Position) -> Page:
        return session.index.select(position.query, position.after, self._config.index.page_size, position.shown)

    async def answer(self, session: Session, caller: Caller, outbox: Outbox, position: Position) -> Answer:
        """The answer to a query, once what it needs was asked. Raises GatewayError."""
        came_at = self._clock()
        while True:
            try:
                return await self._from_index(session, caller, outbox, position, came_at)
            except Forgotten:
                continue
            except TooLarge:
                scanned = await self._scanner.answer(session, caller, outbox, position)
                if scanned is not None:
                    return scanned

    async def _from_index(
        self, session: Session, caller: Caller, outbox: Outbox, position: Position, came_at: float
    ) -> Answer:
        query = position.query
        outcome, requests = "index", 0
        reasons: list[str] = []
        for _ in range(_ROUNDS_MAX):
            plan = self._plan(session, query, came_at)
            if session.oversize and plan.crawl:
                raise TooLarge
            if plan.nothing:
                page = self._select(session, position)
                overdue = self._overdue(session, page)
                if not overdue:
                    as_of = self._as_of(session, query, came_at)
                    return Answer(page, as_of, outcome, "; ".join(reasons) or plan.reason, requests)
                plan = Plan("the ttl of tasks to be shown has passed", tasks=overdue)
            made = await self._carry_out(session, caller, outbox, query, plan, came_at)
            if made is None:
                outcome = "coalesced" if outcome == "index" else outcome
            else:
                outcome = "refreshed"
                requests += made
                reasons.append(plan.reason)
        raise UpstreamBroken("the upstream's tasks change faster than they can be asked for")

    def _plan(self, session: Session, query: Query, came_at: float) -> Plan:
        return freshness.plan(session.known, session.index, query, came_at, self._ages)

    def _overdue(self, session: Session, page: Page) -> list[str]:
        return freshness.overdue(session.known, page.tasks, self._clock(), time.time())

    def _as_of(self, session: Session, query: Query, came_at: float) -> float:
        """The oldest instant that an answer may reflect, in seconds since 1970."""
        known = session.known
        as_of = min(max(known.looked_at, known.crawled_at), known.live_at)
        if not known.unlisted:
            as_of = max(as_of, known.crawled_at)
        return time.time() - (self._clock() - max(as_of, came_at - self._ages.max_age_s))

    # ---- asking ----

    async def _carry_out(
        self, session: Session, caller: Caller, outbox: Outbox, query: Query, plan: Plan, came_at: float
    ) -> int | None:
        """Ask what a plan says, or wait for those who do; the requests made, None if others made them all."""
        oldest = freshness.oldest_of(session.known, came_at, self._ages)
        reading = session.asks.get(None)
        if reading is not None and (plan.crawl or plan.look):
            await self._await(reading, outbox, oldest)
            return None
        asked = [i for i in plan.tasks if i in session.asks]
        waits = {session.asks[i] for i in asked}
        new = [i for i in plan.tasks if i not in session.asks]
        crawler: Crawler | None = None
        if plan.crawl or plan.look or new:
            keys: list[str | None] = [*new]
            if plan.crawl or plan.look:
                keys.append(None)
            ask = Ask(session, keys, self._clock())
            crawler = Crawler(caller, self._config, self._metrics, self._on_message(session, ask))
            work = (
                self._crawl(session, crawler, ask)
                if plan.crawl
                else self._delta(session, crawler, ask, query, plan.look, new)
            )
            ask.task = asyncio.create_task(self._run(session, ask, work))
            waits.add(ask)
        await together(*(self._await(wait, outbox, oldest) for wait in waits))
        return crawler.requests if crawler is not None else None

    async def _await(self, ask: Ask, outbox: Outbox, oldest: float) -> None:
        """Wait for an ask. One that began too early to be of use is only waited for."""
        await (ask.join(outbox) if ask.began_at >= oldest else ask.over())

    async def _run(self, session: Session, ask: Ask, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except TooLarge:
            session.oversize = True
            session.clear(self._clock())
            raise
        except UpstreamRefused as refused:
            if refused.status in (401, 403, 404):
                self._sessions.drop(session.key)
                session.clear(self._clock())
            raise
        finally:
            ask.end()
            ask.task = None  # whose error, if it was cancelled, holds this frame
            self._sessions.keep(session)

    def _on_message(self, session: Session, ask: Ask) -> Callable[[bytes], Awaitable[None]]:
        async def on_message(data: bytes) -> None:
            message = jsonrpc.parse(data)
            if message is not None and (observation := observe.of_notification(message)):
                self._sessions.observe(session.key, observation)
            await ask.forward(data)

        return on_message

    async def _crawl(self, session: Session, crawler: Crawler, ask: Ask) -> None:
        """Read every page into the index, and take out what no page shows."""
        began_at, known = self._clock(), session.known
        session.crawls(began_at)
        order = Order()
        cursors: list[str | None] = []
        pages = size_bytes = 0
        with self._metrics.crawl_seconds.labels(session.key.upstream).time():
            async with aclosing(crawler.pages()) as reading:
                async for page in reading:
                    if page.cursor is None:
                        order.restart()  # once more, because a cursor has gone: newer tasks may come first by now
                    order.note(await self._take_page(session, page, known))
                    cursors = [*cursors, page.cursor][-_CURSORS_KEPT:]
                    pages += 1
                    size_bytes += page.size_bytes
                    if page.following is not None:
                        ask.progress(order.count)
        await self._forget_unseen(session, crawler, ask, began_at)
        _check_same(session, known)
        session.crawled(began_at, self._clock(), pages, cursors, order.listing)
        session.list_bytes = size_bytes
        if known.unlisted:
            await self._recheck_unlisted(session, crawler, ask, began_at)

    async def _take_page(self, session: Session, page: crawling.Page, known: Knowledge) -> list[Task]:
        """Take in a page; returns the tasks that this crawl had not shown yet."""
        new = []
        _check_same(session, known)
        self._sessions.admit(session)
        for start in range(0, len(page.tasks), TASKS_AT_ONCE):
            if start:
                await asyncio.sleep(0)
            _check_same(session, known)
            new += session.listed(page.tasks[start : start + TASKS_AT_ONCE], page.asked_at, self._clock())
        self._sessions.check(session)
        self._sessions.keep(session)
        return new

    async def _forget_unseen(self, session: Session, crawler: Crawler, ask: Ask, began_at: float) -> None:
        """Take out the tasks that once were listed, and were neither listed nor reported since `began_at`.

        They are asked for first: a list whose cursors count places leaves out as many as vanish while it is read, one
        by last update those that change; but where they are many, and all of some have gone, so have the others.
        """
        known, unseen, live = session.known, list[str](), list[str]()
        for some in session.unseen(began_at):
            unseen += some
            live += [i for i in some if (task := session.index.get(i)) is not None and not task.is_terminal]
            await asyncio.sleep(0)
            _check_same(session, known)
        may_be_there = known.asks_by_id
        if known.asks_by_id and len(unseen) > _SUSPECTS_MAX:
            sample = unseen[:: -(-len(unseen) // _SUSPECTS_MAX)]
            await self._ask_along(session, crawler, ask, [*{*sample, *live[:_SUSPECTS_MAX]}], began_at)
            _check_same(session, known)
            may_be_there = any(session.index.get(i) is not None for i in sample)
        for start in range(0, len(unseen), TASKS_AT_ONCE):
            for task_id in unseen[start : start + TASKS_AT_ONCE]:
                if known.speaks_for(task_id, began_at):
                    continue  # something told of it meanwhile
                if not may_be_there:
                    session.forget(task_id, began_at)
                elif session.index.get(task_id) is not None:
                    known.suspects(task_id, NEVER, self._clock())
            await asyncio.sleep(0)
            _check_same(session, known)

    async def _recheck_unlisted(self, session: Session, crawler: Crawler, ask: Ask, began_at: float) -> None:
        """Ask for the tasks that no list shows, whenever all pages must be read to find what was deleted.

        But for those that were reported half as long ago: what was asked for before a failure is not asked for again.
        """
        known, interval_s = session.known, self._ages.full_crawl_interval_s
        if known.unlisted_at < max(began_at - interval_s, known.doubted_at):
            since = max(began_at - interval_s / 2, known.doubted_at)
            await self._ask_along(session, crawler, ask, list(known.unlisted), since)
            known.unlisted_at = min(known.unlisted.values(), default=began_at)

    async def _ask_along(
        self, session: Session, crawler: Crawler, ask: Ask, task_ids: Sequence[str], since: float
    ) -> None:
        """Ask for single tasks during a crawl, but for those that were reported since `since`."""
        for start in range(0, len(task_ids), TASKS_AT_ONCE):
            some = task_ids[start : start + TASKS_AT_ONCE]
            while asked := next((other for i in some if (other := session.asks.get(i)) not in (None, ask)), None):
                await asked.over()
            known = session.known
            due = [i for i in some if session.index.get(i) is not None and known.reported_at(i) < since]
            ask.add(due)
            await self._ask_for(session, crawler, ask, due)
            await asyncio.sleep(0)

    async def _delta(
        self, session: Session, crawler: Crawler, ask: Ask, query: Query, look: bool, task_ids: Sequence[str]
    ) -> None:
        """Look where new tasks appear, and ask for single ones, at once."""
        began_at = self._clock()
        asking = self._ask_for(session, crawler, ask, task_ids)
        await (together(self._look(session, crawler), asking) if look else asking)
        known = session.known
        if (look or known.live_at < began_at - self._ages.max_age_s) and _touches_every_live_task(query):
            live = chain.from_iterable(session.index.live(query))
            known.live_at = min(map(known.confirmed_at, live), default=began_at)

    async def _look(self, session: Session, crawler: Crawler) -> None:
        """Read the last page, and what has come behind it; or the first, down to what is known."""
        began_at, known = self._clock(), session.known
        prepends = known.listing is Listing.PREPENDS
        cursors: list[str | None] = [None] if prepends else list(known.cursors)
        pages: list[crawling.Page] = []
        while cursors:
            cursor = cursors[-1]
            page = await crawler.page(cursor)
            if page is None:
                cursors.pop()  # the task that the cursor names has gone; the page before may still be had
                continue
            pages.append(page)
            # A task that no page had shown before may stand in front of others that nobody here has heard of.
            old = [t for t in page.tasks if session.index.get(t.id) is not None and t.id not in known.unlisted]
            if page.following is None or (prepends and old):
                break
            if page.following in cursors:
                raise UpstreamBroken("the upstream's tasks/list repeats a cursor: its pages have no end")
            if len(pages) > known.pages:
                known.crawled_at = NEVER  # reading on costs no less than a crawl
                return
            cursors.append(page.following)
        else:
            known.crawled_at = NEVER  # there is no way back to where new tasks appear
            return
        for page in reversed(pages):  # only now, and from what is known on: a look that fails leaves no gap behind it
            await self._take_page(session, page, known)
            session.confirm(page.tasks, page.asked_at)
        known.looked_at = began_at
        known.cursors = cursors[-_CURSORS_KEPT:]

    async def _ask_for(self, session: Session, crawler: Crawler, ask: Ask, task_ids: Sequence[str]) -> None:
        """`tasks/get`, several at a time; what is not there is gone."""
        waiting = iter(task_ids)

        async def worker() -> None:
            for task_id in waiting:
                if session.known.asks_by_id:
                    await self._ask_for_one(session, crawler, task_id)
                ask.release(task_id)

        await together(*(worker() for _ in range(min(_ASKED_AT_ONCE, len(task_ids)))))

    async def _ask_for_one(self, session: Session, crawler: Crawler, task_id: str) -> None:
        asked_at = self._clock()
        params = msgspec.json.encode({"taskId": task_id})
        request = jsonrpc.Message("2.0", id=msgspec.Raw(b"0"), method="tasks/get", params=msgspec.Raw(params))
        since = session.index.get(task_id)
        response = await crawler.ask("tasks/get", {"taskId": task_id})
        if jsonrpc.error_code(response) == jsonrpc.METHOD_NOT_FOUND:
            session.asks_no_more_by_id(self._clock())
            return
        observation = observe.of_response(request, response)
        if observation is None:
            raise UpstreamFailed(bytes(response.error))
        if observation.doubt or any(task.id != task_id for task in observation.tasks):
            raise UpstreamBroken("the upstream's tasks/get does not return the task that was asked for")
        self._sessions.admit(session)
        session.take(observation, asked_at, self._clock(), since)
        self._sessions.check(session)


def _check_same(session: Session, known: Knowledge) -> None:
    """Raises Forgotten if all was forgotten since: what was read before that is no part of what is known now."""
    if session.known is not known:
        raise Forgotten


def _touches_every_live_task(query: Query) -> bool:
    return (
        query.methods is None and query.task_ids is None and query.created == (None, None) and query.updated[1] is None
    )
