"""Refreshes: they ask the upstream what a plan says, and take the answers into the index.

In: a session, its crawler, the ask that queries wait for. Out: the index, as fresh as the plan made it; or an error.
Always: if the session is cleared meanwhile, the pages that were read for it do not count.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Final

from gateway.errors import UpstreamBroken, UpstreamFailed, UpstreamRefused, UpstreamTimeout
from gateway.mcp import jsonrpc
from gateway.mcp.task import Moment, Stamp, Task, TaskError, parse, to_encode
from gateway.query.criteria import Query
from gateway.refresh.listing_order import ListingOrder
from gateway.refresh.planning import may_match_all_live
from gateway.refresh.retrying_crawler import TASKS_AT_ONCE, Crawler, ListPage
from gateway.tasks.reconciliation import ALL, LastCrawl, Listing
from gateway.tasks.session_indexes import Forgotten, Session, Sessions
from gateway.tasks.single_flight import InFlight, together
from gateway.tasks.task_entry import Source, Stale, TaskEntry

_ASKED_AT_ONCE: Final = 8
_DOUBTED_TIMES: Final = 2  # answers that deny one task, or its method, until they are believed
_DENIALS: Final = (jsonrpc.INVALID_PARAMS, jsonrpc.NOT_FOUND)
_UNSEEN_MAX: Final = 100  # tasks that a crawl no longer shows; of more, a sample is asked for
_TAIL_BYTES_MAX: Final = 16 << 20  # of pages that a tail read takes before it takes them in
_CURSORS_KEPT: Final = 4  # of the last pages: a tail read begins there


@dataclass(eq=False)
class Refresh:
    """One refresh of a session, and what it works with. By itself it is an access check."""

    _session: Session
    _sessions: Sessions
    _crawler: Crawler
    _in_flight: InFlight
    _from_nothing = False  # the index has only what is read here

    async def run(self) -> None:
        """Ask for everything, and take it in. Raises GatewayError and Forgotten."""
        self._record = self._session.record
        try:
            await self._ask_all()
        finally:
            self._in_flight.end()
            self._sessions.keep(self._session)

    async def _ask_all(self) -> None:
        """Ask whether the upstream serves the caller: the answer itself is of no use."""
        asked = self._sessions.now()
        await self._crawler.page(None)
        self._accept(asked.order)

    def _check_same(self) -> None:
        """Raises Forgotten if the session has been cleared since the refresh began, or another may ask instead."""
        if not self._is_same:
            raise Forgotten

    @property
    def _is_same(self) -> bool:
        return self._session.record is self._record and not self._in_flight.has_ended

    def _accept(self, asked: int) -> None:
        """A `tasks/*` has succeeded. Raises Forgotten if the session has been cleared since it was asked for."""
        self._check_same()
        self._record.accept(asked)
        self._sessions.keep(self._session, is_accepted=True)

    async def _put_page(self, page: ListPage) -> list[Task]:
        """Put a page into the index. Returns the tasks that are new in this crawl."""
        new = []
        self._accept(page.told.asked)
        for start in range(0, len(page.tasks), TASKS_AT_ONCE):
            if start:
                await asyncio.sleep(0)
            self._check_same()
            some = page.tasks[start : start + TASKS_AT_ONCE]
            if self._sessions.own_tasks is not None:  # most of a page may be others': each is asked for, if it can be
                some = [t for t in some if self._session.owns(t.id) and not self._record.asks_by_id]
            new += self._record.page_answered(some, page.told, self._sessions.now())
            if self._sessions.lives is not None:
                self._sessions.lives.told(self._session.key, some)
        self._sessions.check(self._session, self._from_nothing)
        self._sessions.keep(self._session)
        return new

    async def _ask_for(self, task_ids: Sequence[str]) -> None:
        """Ask for each with `tasks/get`, several at a time. A task that is not there is gone."""
        waiting = iter(task_ids)

        async def worker() -> None:
            for task_id in waiting:
                if self._session.record.asks_by_id:
                    await self._ask_for_one(task_id)
                self._in_flight.release(task_id)

        await together(*(worker() for _ in range(min(_ASKED_AT_ONCE, len(task_ids)))))

    async def _ask_for_one(self, task_id: str) -> None:
        session, asked, limits = self._session, self._sessions.now(), self._crawler.limits
        response: jsonrpc.Message | None = None
        try:
            response = await self._answer_about(task_id)
        except (UpstreamBroken, UpstreamFailed, UpstreamRefused, UpstreamTimeout) as error:
            if self._is_same:
                says_nothing = isinstance(error, UpstreamRefused) and error.status in (401, 429)
                is_left_out = not says_nothing and session.fail(task_id)
                if not is_left_out or isinstance(error, UpstreamBroken | UpstreamTimeout):
                    raise
        self._check_same()
        if response is None:
            return  # to raise it in the handler would leave a cycle (9.5)
        now = self._sessions.now()
        told = Stamp(asked, asked.order, now.order, is_alone=True)
        if jsonrpc.code_of(response.error) == jsonrpc.METHOD_NOT_FOUND:
            self._record.stop_asking_by_id(now, max(limits.full_crawl_interval, limits.max_age))
            return
        self._accept(asked.order)
        found = None if bytes(response.error) else _task_in(response, task_id)
        if found is not None:
            self._sessions.know_get.add(session.key.server)
        elif not bytes(response.error) and self._record.index.get(task_id) is not None:
            raise UpstreamBroken("the upstream's tasks/get does not return the task that was asked for")
        session.answered(task_id, found, told, now)
        if (lives := self._sessions.lives) is not None:
            lives.gone(session.key, task_id, asked) if found is None else lives.told(session.key, [found])
        self._sessions.check(session)

    async def _answer_about(self, task_id: str) -> jsonrpc.Message:
        """The response to a `tasks/get`. Raises GatewayError if it does not say whether the task is there.

        No such method, or no such task where it is not known to be gone, must be said twice (DESIGN 6.12). That a
        server has no `tasks/get` is believed only if it has never answered one.
        """
        known = self._session.record.index.entries.get(task_id)
        may_be_there = known is None or known.raw or known.stale
        doubtful = {jsonrpc.METHOD_NOT_FOUND, *(_DENIALS if may_be_there else ())}
        times = Counter[bool]()
        while True:
            try:
                response = await self._crawler.ask("tasks/get", {"taskId": to_encode(task_id)})
            except UpstreamRefused as refused:
                if refused.status in (401, 403, 429) or (answer := refused.answer) is None:
                    raise
                response = answer
            code = jsonrpc.code_of(response.error)
            times[code in _DENIALS] += 1
            if code not in doubtful or times[code in _DENIALS] == _DOUBTED_TIMES:
                break
        is_known = code != jsonrpc.METHOD_NOT_FOUND or self._session.key.server in self._sessions.know_get
        if bytes(response.error) and is_known and code not in _DENIALS:
            raise UpstreamFailed(bytes(response.error))
        return response


def _oldest(entries: Iterable[TaskEntry], began: Moment) -> Moment:
    """As of when tasks are known, of which those that were due have been asked for since `began`."""
    return min((entry.told.as_of for entry in entries), default=began)


def _task_in(response: jsonrpc.Message, task_id: str) -> Task | None:
    with suppress(TaskError):
        found = parse(jsonrpc.without_meta(bytes(response.result)))
        if found.id == task_id:
            return found
    return None


class Crawl(Refresh):
    """Read all pages into the index, and take out the tasks that have gone (DESIGN 6.8)."""

    async def _ask_all(self) -> None:
        began = self._sessions.now()
        await self._read_pages(began)
        if self._record.index.unlisted:
            await self._recheck_unlisted(began)

    async def _read_pages(self, began: Moment) -> None:
        found, order = LastCrawl(), ListingOrder()
        self._from_nothing = bool(self._record.outgrown) or not len(self._record.index)
        self._record.begin_crawl()
        first_only = self._sessions.own_tasks is not None and self._record.asks_by_id  # it is an access check
        async with aclosing(self._crawler.pages(first_only)) as reading:
            async for page in reading:
                if page.cursor is None:
                    order.restart()  # the first page again, after a refused cursor: it may show newer tasks by now
                new = await self._put_page(page)
                if page.is_behind_end:
                    continue
                order.note(new, len(page.tasks), bool(page.following))
                found.cursors = [*found.cursors, page.cursor][-_CURSORS_KEPT:]
                found.pages += 1
                found.size_bytes += page.size_bytes
                if page.following is not None:
                    for waiter in self._in_flight.waiters:
                        waiter.progress(order.count)
        await self._forget_unseen(began)
        self._check_same()
        found.listing, found.ends_empty = order.listing, self._crawler.ends_empty
        self._record.end_crawl(Stamp(began, began.order, self._sessions.now().order), found)

    async def _forget_unseen(self, began: Moment) -> None:
        """The tasks that were listed earlier, and neither listed nor told of since `began`, become stale.

        If none of a sample of many is there, they are taken out (DESIGN 6.8). A list whose cursors count places omits
        tasks when others vanish while it is read; a list ordered by last update omits tasks that change.
        """
        record, index, may_be_there = self._record, self._record.index, self._record.asks_by_id
        if may_be_there and len(index.unlisted) == len(index):
            return  # no page has shown a task here: some servers' lists are always empty (DESIGN 2.4)
        unseen = list[TaskEntry]()
        for part in index.parts():
            unseen += [entry for entry in part if record.is_unseen(entry, began)]
            await asyncio.sleep(0)
            self._check_same()
        if may_be_there and len(unseen) > _UNSEEN_MAX:
            sample = unseen[:: -(-len(unseen) // _UNSEEN_MAX)]
            live = [entry for entry in unseen if not entry.is_terminal][:_UNSEEN_MAX]
            asked = dict.fromkeys(entry.id for entry in (*sample, *live))
            await self._ask_along([*asked], lambda told: told.order > began.order)
            self._check_same()
            may_be_there = any(index.get(entry.id) is not None for entry in sample)
            if not may_be_there and self._sessions.replicas is not None:
                self._sessions.replicas.lost(self._session.key, None)
        for start in range(0, len(unseen), TASKS_AT_ONCE):
            for entry in unseen[start : start + TASKS_AT_ONCE]:
                if not record.is_unseen(index.get(entry.id), began):
                    continue  # it was told of meanwhile
                if may_be_there:
                    record.mark(entry.id, Stale(ALL, self._sessions.now().order, Source.TO_ALL))
                else:
                    index.forget(entry.id)
                    if self._sessions.lives is not None:
                        self._sessions.lives.gone(self._session.key, entry.id, began)
            await asyncio.sleep(0)
            self._check_same()

    async def _recheck_unlisted(self, began: Moment) -> None:
        """Ask again for unlisted tasks where `full_crawl_interval` or a doubt demands it, but those told of lately."""
        record, interval_s = self._record, self._crawler.limits.full_crawl_interval
        doubted, oldest_s = record.doubted, began.at - interval_s
        if record.unlisted_as_of.at < oldest_s or record.unlisted_as_of.order <= doubted:
            recent_s = began.at - interval_s / 2
            await self._ask_along(
                list(record.index.unlisted), lambda told: told.at >= recent_s and told.order > doubted
            )
            record.unlisted_as_of = _oldest(record.index.unlisted.values(), began)

    async def _ask_along(self, task_ids: Sequence[str], is_recent: Callable[[Moment], bool]) -> None:
        """Ask for single tasks during a crawl, except those that are known as of then `is_recent`."""
        in_flight = self._session.in_flight
        for start in range(0, len(task_ids), TASKS_AT_ONCE):
            self._check_same()
            some = task_ids[start : start + TASKS_AT_ONCE]
            while asked := next((o for i in some if (o := in_flight.get(i)) not in (None, self._in_flight)), None):
                await asked.over()
            known = filter(None, map(self._record.index.get, some))
            due = [entry.id for entry in known if not is_recent(entry.told.as_of)]
            self._in_flight.add(due)
            await self._ask_for(due)
            await asyncio.sleep(0)


@dataclass(eq=False)
class Delta(Refresh):
    """Ask for single tasks; at the same time, if the plan says so, read the page where new tasks appear."""

    _query: Query
    _reads_tail: bool
    _task_ids: Sequence[str]

    async def _ask_all(self) -> None:
        began = self._sessions.now()
        asking = self._ask_for(self._task_ids)
        await (together(self._read_tail(), asking) if self._reads_tail else asking)
        record = self._record
        was_due = self._reads_tail or record.live_as_of.at < began.at - self._crawler.limits.max_age
        if was_due and may_match_all_live(self._query):
            record.live_as_of = _oldest(record.index.live(self._query), began)

    async def _read_tail(self) -> None:
        """Read the page where new tasks appear, and all pages behind it by now. If that fails, a crawl must do."""
        began, record, pages = self._sessions.now(), self._record, list[ListPage]()
        cursors = await self._read_to_end(pages)
        order = ListingOrder()
        for page in pages:
            order.note(page.tasks, len(page.tasks), page is not pages[-1])
        if cursors is None or order.denies(record.last_crawl.listing):
            record.fail_tail()
            return
        if record.last_crawl.listing is Listing.PREPENDS:
            pages.reverse()  # a failure leaves no gap
        for page in pages:
            await self._put_page(page)
        record.new_as_of, record.last_crawl.cursors = began, cursors[-_CURSORS_KEPT:]

    async def _read_to_end(self, pages: list[ListPage]) -> list[str | None] | None:
        """Read the last `pages`, or the first ones down to a known task. Returns their cursors; None if that fails."""
        last = self._record.last_crawl
        prepends = last.listing is Listing.PREPENDS
        cursors: list[str | None] = [None] if prepends else list(last.cursors)
        size_bytes = 0
        while size_bytes <= _TAIL_BYTES_MAX and len(pages) <= last.pages:  # else a crawl costs no more
            page = await self._crawler.page(cursors[-1])
            if page is None or not (pages or cursors[-1] is None or self._shows_listed(page)):
                if pages or len(cursors) == 1:
                    break
                cursors.pop()  # refused, or its place has moved; that of the page before may still be valid
                continue
            pages.append(page)
            size_bytes += page.size_bytes
            is_end = page.following is None or (last.ends_empty and not page.following)
            if is_end or (prepends and self._shows_listed(page)):
                return cursors
            if page.following in cursors:
                break
            cursors.append(page.following)
        return None

    def _shows_listed(self, page: ListPage) -> bool:
        """Whether a page shows a task, of the same incarnation, that a page showed before: no new tasks follow it."""
        known = ((task, self._record.index.get(task.id)) for task in page.tasks)
        return any(e is not None and not e.is_unlisted and e.created == task.created for task, e in known)
