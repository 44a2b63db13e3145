"""Refreshes: they ask the upstream what a plan says, and take the answers into the index.

In: a session, its crawler, the ask that queries wait for. Out: the index, as fresh as the plan made it; or an error.
Always: if the session is cleared meanwhile, the pages that were read for it do not count.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import msgspec

from gateway.errors import UpstreamBroken, UpstreamFailed, UpstreamRefused
from gateway.mcp import jsonrpc, observe
from gateway.mcp.task import Task, apart
from gateway.tasks.asks import Ask, together
from gateway.tasks.crawler import TASKS_AT_ONCE, Crawler, ListPage
from gateway.tasks.criteria import Query
from gateway.tasks.freshness import Ages
from gateway.tasks.knowledge import Listing, ListingOrder
from gateway.tasks.passing import Access
from gateway.tasks.ports import Counts
from gateway.tasks.sessions import Forgotten, Session, Sessions

_ASKED_AT_ONCE: Final = 8
_SUSPECTS_MAX: Final = 100  # tasks that a crawl no longer shows; of more, a sample is asked for
_LOOK_BYTES_MAX: Final = 16 << 20  # of pages that a look reads before it takes them in
_CURSORS_KEPT: Final = 4  # of the last pages: a look for new tasks begins there


class RefreshState(Enum):
    """The state of a refresh, which runs once (`-`: cannot be). `Refresh.run` makes each step.

                all was asked   session cleared,   caller    another error, or
                and taken in    or ask given up    refused   last query left
    ASKING      DONE            CLEARED            REFUSED   FAILED
    DONE        -               -                  -         -
    CLEARED     -               -                  -         -
    REFUSED     -               -                  -         -
    FAILED      -               -                  -         -

    Its queries plan again behind DONE, begin again behind CLEARED, and get the error behind the others. REFUSED leaves
    the session empty.
    """

    ASKING = "asking"
    DONE = "done"
    CLEARED = "cleared"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(eq=False)
class Refresh(ABC):
    """One refresh of a session, and what it works with."""

    _session: Session
    _sessions: Sessions
    _crawler: Crawler
    _ask: Ask
    _ages: Ages
    _counts: Counts
    _clock: Callable[[], float]
    state: RefreshState = field(default=RefreshState.ASKING, init=False)
    _from_nothing: bool = field(default=False, init=False)  # the index has only what is read here

    @property
    def requests(self) -> int:
        """The number of requests that were made for it."""
        return self._crawler.requests

    async def run(self) -> None:
        """Ask for everything, and take it in. Raises GatewayError and Forgotten."""
        assert self.state is RefreshState.ASKING
        self._known, end = self._session.known, RefreshState.FAILED
        try:
            await self._ask_all()
            end = RefreshState.DONE
        except Forgotten:
            end = RefreshState.CLEARED
            raise
        except UpstreamRefused as refused:
            if self._sessions.refuse(self._session.key, refused.status, "tasks/list") is Access.DROPPED:
                end = RefreshState.REFUSED
            raise
        finally:
            self.state = end
            if end is RefreshState.REFUSED:
                self._session.clear(self._clock())
            self._ask.end()
            self._sessions.keep(self._session)

    @abstractmethod
    async def _ask_all(self) -> None:
        """Ask for everything, and take it in."""

    def _check_same(self) -> None:
        """Raises Forgotten if the session has been cleared since the refresh began, or the ask was given up."""
        if self._session.known is not self._known or self._ask.is_given_up:
            raise Forgotten

    async def _take_page(self, page: ListPage) -> list[Task]:
        """Take in a page. Returns the tasks that are new in this crawl."""
        new = []
        self._check_same()
        self._known.accept(page.asked_at, lists=True)
        self._sessions.admit(self._session)
        for start in range(0, len(page.tasks), TASKS_AT_ONCE):
            if start:
                await asyncio.sleep(0)
            self._check_same()
            new += self._session.listed(page.tasks[start : start + TASKS_AT_ONCE], page.asked_at, page.came_at)
        self._sessions.check(self._session, self._from_nothing)
        self._sessions.keep(self._session)
        return new

    async def _ask_for(self, task_ids: Sequence[str]) -> None:
        """Ask for each with `tasks/get`, several at a time. A task that is not there is gone."""
        waiting = iter(task_ids)

        async def worker() -> None:
            for task_id in waiting:
                if self._session.known.asks_by_id:
                    await self._ask_for_one(task_id)
                self._ask.release(task_id)

        await together(*(worker() for _ in range(min(_ASKED_AT_ONCE, len(task_ids)))))

    async def _ask_for_one(self, task_id: str) -> None:
        session, asked_at = self._session, self._clock()
        params = msgspec.json.encode({"taskId": apart(task_id)})
        request = jsonrpc.Message("2.0", id=msgspec.Raw(b"0"), method="tasks/get", params=msgspec.Raw(params))
        since = session.index.get(task_id)
        response = await self._crawler.ask("tasks/get", {"taskId": apart(task_id)})
        if jsonrpc.error_code(response) == jsonrpc.METHOD_NOT_FOUND:
            session.known.stop_asking_by_id(self._clock())
            return
        observation = observe.of_response(request, response)
        if observation is None:
            raise UpstreamFailed(bytes(response.error))
        if observation.doubt or any(task.id != task_id for task in observation.tasks):
            raise UpstreamBroken("the upstream's tasks/get does not return the task that was asked for")
        self._sessions.admit(session)
        session.known.accept(asked_at)
        session.take(observation, asked_at, self._clock(), since)
        self._sessions.check(session)


class Knock(Refresh):
    """Ask whether the upstream serves the caller: the answer itself is of no use."""

    async def _ask_all(self) -> None:
        asked_at = self._clock()
        await self._crawler.page(None)
        self._check_same()
        self._known.accept(asked_at, lists=True)
        self._sessions.admit(self._session)


class Crawl(Refresh):
    """Read all pages into the index, and take out the tasks that have gone (DESIGN 6.8)."""

    async def _ask_all(self) -> None:
        began_at = self._clock()
        await self._read_pages(began_at)
        if self._known.notes.unlisted:
            await self._recheck_unlisted(began_at)

    async def _read_pages(self, began_at: float) -> None:
        """Read every page, and take out what no page shows."""
        session, order = self._session, ListingOrder()
        cursors: list[str | None] = []
        pages = size_bytes = 0
        self._from_nothing = bool(self._known.outgrown) or not len(session.index)
        session.begin_crawl(began_at)
        try:
            async with aclosing(self._crawler.pages()) as reading:
                async for page in reading:
                    if page.cursor is None:
                        order.restart()  # the first page again, after a cursor expired: it may show newer tasks by now
                    order.note(await self._take_page(page))
                    cursors = [*cursors, page.cursor][-_CURSORS_KEPT:]
                    pages += 1
                    size_bytes += page.size_bytes
                    if page.following is not None:
                        self._ask.progress(order.count)
        finally:
            self._counts.crawl(session.key.upstream, self._clock() - began_at)
        await self._forget_unseen(began_at)
        self._check_same()
        self._known.end_crawl(began_at, self._clock(), pages, cursors, order.listing)
        session.list_bytes = size_bytes

    async def _forget_unseen(self, began_at: float) -> None:
        """Take out the tasks that were listed earlier, and neither listed nor reported since `began_at`.

        They are asked for first (DESIGN 6.8). A list whose cursors count places omits tasks when others vanish while
        it is read; a list ordered by last update omits tasks that change.
        """
        session, known = self._session, self._known
        unseen, live = await self._unseen(began_at)
        may_be_there = known.asks_by_id
        if known.asks_by_id and len(unseen) > _SUSPECTS_MAX:
            sample = unseen[:: -(-len(unseen) // _SUSPECTS_MAX)]
            await self._ask_along([*{*sample, *live[:_SUSPECTS_MAX]}], began_at)
            self._check_same()
            may_be_there = any(session.index.get(i) is not None for i in sample)
            if not may_be_there:
                session.lose_many()
        for start in range(0, len(unseen), TASKS_AT_ONCE):
            for task_id in unseen[start : start + TASKS_AT_ONCE]:
                if known.speaks_for(task_id, began_at):
                    continue  # it was reported meanwhile
                if not may_be_there:
                    session.forget(task_id, began_at)
                elif session.index.get(task_id) is not None:
                    session.suspect(task_id, self._clock())
            await asyncio.sleep(0)
            self._check_same()

    async def _unseen(self, began_at: float) -> tuple[list[str], list[str]]:
        """The ids of the tasks that this crawl should have listed and has not; and of these, the live ones."""
        unseen, live = list[str](), list[str]()
        for some in self._session.unseen(began_at):
            unseen += some
            live += [i for i in some if (task := self._session.index.get(i)) is not None and not task.is_terminal]
            await asyncio.sleep(0)
            self._check_same()
        return unseen, live

    async def _recheck_unlisted(self, began_at: float) -> None:
        """Ask for the unlisted tasks again, where `full_crawl_interval` or a doubt demands it.

        Tasks that were reported within half of that time are left out: if this fails, the next crawl goes on from here.
        """
        known, interval_s = self._known, self._ages.full_crawl_interval_s
        if known.unlisted_as_of < max(began_at - interval_s, known.doubted_at):
            since = max(began_at - interval_s / 2, known.doubted_at)
            await self._ask_along(list(known.notes.unlisted), since)
            known.end_unlisted(began_at)

    async def _ask_along(self, task_ids: Sequence[str], since: float) -> None:
        """Ask for single tasks during a crawl, except those that have been reported since `since`."""
        session = self._session
        for start in range(0, len(task_ids), TASKS_AT_ONCE):
            self._check_same()
            some = task_ids[start : start + TASKS_AT_ONCE]
            while asked := next((o for i in some if (o := session.asks.get(i)) not in (None, self._ask)), None):
                await asked.over()
            due = [i for i in some if session.index.get(i) is not None and session.known.reported_at(i) < since]
            self._ask.add(due)
            await self._ask_for(due)
            await asyncio.sleep(0)


@dataclass(eq=False)
class Delta(Refresh):
    """Ask for single tasks; at the same time, if the plan says so, look where new tasks appear."""

    _query: Query
    _looks: bool
    _task_ids: Sequence[str]

    async def _ask_all(self) -> None:
        began_at = self._clock()
        asking = self._ask_for(self._task_ids)
        await (together(self._look(), asking) if self._looks else asking)
        known = self._session.known
        was_due = self._looks or known.live_as_of < began_at - self._ages.max_age_s
        if was_due and self._query.may_match_all_live:
            known.end_live(self._session.index.live(self._query), began_at)

    async def _look(self) -> None:
        """Read the last page and all pages behind it by now; or the first pages, down to a known task."""
        began_at, known = self._clock(), self._known
        prepends = known.listing is Listing.PREPENDS
        cursors: list[str | None] = [None] if prepends else list(known.cursors)
        pages: list[ListPage] = []
        size_bytes = 0
        while cursors:
            page = await self._crawler.page(cursors[-1])
            if page is None:
                cursors.pop()  # the cursor has expired; that of the page before may still be valid
                continue
            pages.append(page)
            size_bytes += page.size_bytes
            if page.following is None or (prepends and self._shows_listed(page)):
                break
            if page.following in cursors:
                raise UpstreamBroken("the upstream's tasks/list repeats a cursor: its pages have no end")
            if len(pages) > known.pages or size_bytes > _LOOK_BYTES_MAX:
                known.fail_look()  # reading on costs no less than a crawl, or more memory
                return
            cursors.append(page.following)
        else:
            known.fail_look()
            return
        for page in reversed(pages):  # only now, and the oldest first: a look that fails leaves no gap
            await self._take_page(page)
            self._session.confirm(page.tasks, page.asked_at)
        known.end_look(began_at, cursors[-_CURSORS_KEPT:])

    def _shows_listed(self, page: ListPage) -> bool:
        """Whether a page shows a task that a page showed before: no new tasks follow such a task.

        An unlisted task does not count: new tasks may follow it.
        """
        unlisted = self._known.notes.unlisted
        return any(self._session.index.get(t.id) is not None and t.id not in unlisted for t in page.tasks)
