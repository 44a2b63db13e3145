"""Queries answered from sessions: plan, ask, and plan again, until the index is fresh enough (DESIGN 6.10)."""

import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import msgspec

from gateway.config import IndexLimits
from gateway.errors import TooLarge, UpstreamBroken, UpstreamFailed, UpstreamRefused
from gateway.mcp.task import Moment
from gateway.query.criteria import Query
from gateway.query.cursor import Position
from gateway.refresh import planning
from gateway.refresh.crawler import Crawler
from gateway.refresh.planning import ACCESS_CHECK, Ages, Need, Plan
from gateway.refresh.refreshes import AccessCheck, Crawl, Delta, Refresh
from gateway.tasks.in_flight import InFlight, Waiter, together
from gateway.tasks.index import QueryPage
from gateway.tasks.interfaces import Caller, Channel, Counts
from gateway.tasks.observer import PLAIN
from gateway.tasks.sessions import Forgotten, Session, Sessions

_ROUNDS_MAX: Final = 100  # of planning for one query; each round learns something


class Answer(msgspec.Struct):
    """A page; the oldest instant it may reflect, in seconds since 1970; its outcome, reason, cost in requests."""

    page: QueryPage
    as_of_unix_s: float
    outcome: str
    reason: str
    requests: int


class Planner:
    def __init__(self, sessions: Sessions, limits: IndexLimits, counts: Counts, clock: Callable[[], float]) -> None:
        self._sessions = sessions
        self._limits = limits
        self._counts = counts
        self._clock = clock
        self._ages = Ages(limits.max_age, limits.full_crawl_interval)

    def at_once(self, session: Session, position: Position) -> Answer | None:
        """The answer to a query, if nothing must be asked of the upstream for it; else None."""
        found = self._answer_or_plan(session, position, self._sessions.now())
        return found if isinstance(found, Answer) else None

    def _answer_or_plan(self, session: Session, position: Position, came: Moment) -> Answer | Plan:
        """The answer to a query that came then; or what must be asked of the upstream first."""
        session.find_again(came)
        plan = planning.plan(session, position.query, came, self._ages, session.owns)
        if not plan.nothing:
            return plan
        page = session.index.select(position, self._limits.page_size, self._limits.page_bytes_max)
        if self._overdue(session, page):
            # All that a page may have: of large tasks only one may be shown, and there may be many.
            overdue = self._overdue(session, session.index.select(position, self._limits.page_size))
            return Plan("the ttl of tasks to be shown has passed", tasks=overdue)
        oldest_s = max(session.as_of.at, came.at - self._ages.max_age_s)
        return Answer(page, time.time() - (self._clock() - oldest_s), "index", plan.reason, 0)

    async def ask_first(self, session: Session, caller: Caller, waiter: Waiter) -> None:
        """Ask the server once as the caller does, if it may refuse that alone (DESIGN 5.1). Raises GatewayError."""
        if not caller.asks_first:
            return
        if waiter.reply.cost is not None:
            waiter.reply.cost.owe(1)

        async def on_message(data: bytes) -> None:
            if self._may_pass(session, data):
                waiter.reply.forward(data)
                await waiter.reply.drain()

        channel, known = caller.channel(on_message, as_it_came=True), session.known
        asked, crawler = self._sessions.now(), self._crawler(caller, channel)
        try:
            response = await crawler.ask("tasks/list", {})
        except UpstreamRefused as refused:
            self._sessions.refuse(session.key, refused.status, "tasks/list")
            raise
        if bytes(response.error):
            raise UpstreamFailed(bytes(response.error))
        known.accept(asked.order, lists=True)  # not if the session was cleared meanwhile: then it is another one

    async def check_access(self, session: Session, caller: Caller, waiter: Waiter) -> None:
        """Ask the server whether it lists tasks to the caller, unless it has (DESIGN 5.4). Raises GatewayError."""
        came = self._sessions.now()
        while not session.known.accepts:
            with suppress(Forgotten, TooLarge):
                await self._carry_out(session, caller, waiter, Query(), ACCESS_CHECK, came)

    def _crawler(self, caller: Caller, channel: Channel) -> Crawler:
        return Crawler(caller, channel, self._limits, self._counts, self._sessions.now)

    async def answer(self, session: Session, caller: Caller, waiter: Waiter, position: Position) -> Answer:
        """The answer to a query, after the upstream was asked as planned. Raises GatewayError."""
        came, may_be_too_large = self._sessions.now(), True
        while True:
            try:
                return await self._from_index(session, caller, waiter, position, came)
            except Forgotten:
                continue
            except TooLarge:  # what the index had is forgotten, such as tasks that are gone
                if not may_be_too_large:
                    raise
                may_be_too_large = False

    async def _from_index(
        self, session: Session, caller: Caller, waiter: Waiter, position: Position, came: Moment
    ) -> Answer:
        outcome, requests = "index", 0
        reasons: list[str] = []
        for _ in range(_ROUNDS_MAX):
            plan = self._answer_or_plan(session, position, came)
            if isinstance(plan, Answer):
                return Answer(plan.page, plan.as_of_unix_s, outcome, "; ".join(reasons) or plan.reason, requests)
            if plan.crawl and session.known.outgrown and came.at < session.known.outgrown_until:
                raise TooLarge(session.known.outgrown)
            with self._counts.plan(session.key.upstream, plan.reason):
                made = await self._carry_out(session, caller, waiter, position.query, plan, came)
            if made is None:
                outcome = "coalesced" if outcome == "index" else outcome
            else:
                outcome = "refreshed"
                requests += made
                reasons.append(plan.reason)
        raise UpstreamBroken("the upstream's tasks change faster than they can be asked for")

    def _overdue(self, session: Session, page: QueryPage) -> list[str]:
        return planning.overdue(session, page.tasks, self._clock(), time.time())

    # ---- asking ----

    async def _carry_out(
        self, session: Session, caller: Caller, waiter: Waiter, query: Query, plan: Plan, came: Moment
    ) -> int | None:
        """Ask what a plan says. Returns the number of requests; None if the asks of other queries had all of it."""
        need = planning.need_of(session, came, self._ages)
        reading = session.in_flight.get(None)
        if reading is not None and plan.reads:
            await self._await(reading, waiter, need)
            return None
        new = [i for i in plan.tasks if i not in session.in_flight]
        waits = {session.in_flight[i] for i in plan.tasks if i in session.in_flight}
        crawler: Crawler | None = None
        if plan.reads or new:
            if waiter.reply.cost is not None:  # those that joined owe nothing: it is asked once
                waiter.reply.cost.owe(plan.reads + len(new))
            ask = InFlight(session.in_flight, [*new, None] if plan.reads else new, self._sessions.now())
            crawler = self._crawler(caller, caller.channel(self._on_message(session, ask)))
            parts = session, self._sessions, crawler, ask, self._ages
            if plan.check_access:
                refresh: Refresh = AccessCheck(*parts)
            else:
                refresh = Crawl(*parts) if plan.crawl else Delta(*parts, query, plan.tail, new)
            ask.begin(refresh.run())
            waits.add(ask)
        await together(*(self._await(wait, waiter, need) for wait in waits))
        return None if crawler is None else crawler.requests

    async def _await(self, ask: InFlight, waiter: Waiter, need: Need) -> None:
        """Wait for an ask. If it began too early to be of use, its error is ignored."""
        await (ask.join(waiter) if need.met(ask.began) else ask.over())

    def _may_pass(self, session: Session, data: bytes) -> bool:
        own = self._sessions.own
        return own is None or own.may_pass(session.owners, data)

    def _on_message(self, session: Session, ask: InFlight) -> Callable[[bytes], Awaitable[None]]:
        async def on_message(data: bytes) -> None:
            if self._may_pass(session, data):
                self._sessions.take_in(session.key, PLAIN.message(data))
                await ask.forward(data)

        return on_message
