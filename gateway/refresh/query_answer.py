"""The answer to one filtered `tasks/list`, start to end: plan, ask, and plan again, until the index is fresh enough.

A failure is an error, never an empty list (DESIGN 5.8, 6.10).
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, NamedTuple

import orjson

from gateway import errors
from gateway.caller_identity import Caller
from gateway.config import IndexLimits
from gateway.mcp import jsonrpc
from gateway.mcp.capabilities import LAST_REVISION
from gateway.mcp.task import Moment
from gateway.owners.task_owners import GUARD
from gateway.query import criteria, cursor
from gateway.query.criteria import BadQuery, Query
from gateway.query.cursor import Position
from gateway.query.list_request import SAME_BYTES_MAX, ListRequest
from gateway.refresh import planning
from gateway.refresh.plan_execution import Crawl, Delta, Refresh
from gateway.refresh.retrying_crawler import Crawler
from gateway.tasks.exchange_observer import PLAIN
from gateway.tasks.index import QueryPage
from gateway.tasks.session_indexes import Forgotten, Session, Sessions
from gateway.tasks.single_flight import InFlight, Waiter, together
from gateway.tasks.transport_interfaces import Counts, EndedQuery, Reply

log = logging.getLogger("taskgate.answer")

_ROUNDS_MAX: Final = 100  # of planning for one query; each round learns something
_LARGE_BYTES_MIN: Final = 256 * 1024
_NAMED_AGAIN_S: Final = 60.0
_SAME_MAX: Final = 256  # values of the header that are remembered as they were read


FILTER: Final = "Taskgate-Filter"
NO_FILTER: Final = (
    f"{FILTER} filters a tasks/list of revision {LAST_REVISION.decode()} or earlier over Streamable HTTP, at a server "
    "that does not filter by itself: leave the header out"
)

NO_LIST: Final = (
    f"{GUARD}: there is no tasks/list but of revision {LAST_REVISION.decode()} or earlier over Streamable HTTP"
)


@lru_cache(_SAME_MAX)
def small_filter(pairs: str) -> Position:
    return Position(cursor.read_pairs(pairs, FILTER), comes_again=True, header=pairs)


def filter_of(pairs: str) -> Position:
    """The first page of the list whose criteria a header field spells. Raises BadQuery."""
    if len(pairs) <= SAME_BYTES_MAX:
        return small_filter(pairs)
    return Position(cursor.read_pairs(pairs, FILTER), header=pairs)


class Passes(NamedTuple):
    """A message is not answered here. `misspelt` are names in a `tasks/list` that are nearly criteria."""

    misspelt: tuple[str, ...] = ()


PASSES: Final = Passes()


class Answer(NamedTuple):
    """A page; the oldest instant it may reflect, in seconds since 1970."""

    page: QueryPage
    as_of_unix_s: float


class Answerer:
    def __init__(self, sessions: Sessions, limits: IndexLimits, counts: Counts) -> None:
        self._sessions = sessions
        self._limits = limits  # a reload makes another answerer
        self._counts = counts
        self._large = asyncio.Lock()  # one large answer is made in a turn of the loop
        self._next_at: dict[str, float] = {}  # when a criterion may be named in the log again

    def position(self, caller: Caller, message: ListRequest) -> Position | BadQuery | Passes:
        """The page that a message asks for, or what is wrong. What is not filtered passes.

        So does a message of a later revision (DESIGN 3.9), one to a server that filters natively, and one whose id
        is no text: no answer could repeat it. The criteria in the header hold if the message has none; raises NoFilter
        where it would pass, unless another taskgate is behind this one.
        """
        is_no_text = not message.is_strict and jsonrpc.REPLACEMENT.encode() in message.id
        native = self._sessions.native(caller.key)
        passes = not caller.is_served or is_no_text or native is not None
        spelled_ = None if native is not None and native.is_taskgate else caller.filter
        if not passes and message.position is not None:
            return message.position
        if spelled_ is None and self._sessions.own_tasks is None:
            return PASSES if passes or message.is_later else self._passes(caller, message.misspelt)
        if passes or message.is_later:
            raise errors.NoTasks(NO_LIST) if spelled_ is None else errors.NoFilter(NO_FILTER)
        if message.cursor:
            allowed = cursor.ALLOWED if spelled_ is None else f"no cursor of the server's beside {FILTER}"
            return BadQuery([criteria.fault("cursor", message.cursor, allowed)])
        try:
            return Position(Query()) if spelled_ is None else filter_of(spelled_)
        except BadQuery as bad:
            return errors.without_frames(bad)

    def _passes(self, caller: Caller, misspelt: Mapping[str, str]) -> Passes:
        """A list passes that has names which are nearly criteria (DESIGN 5.4). The log has them too."""
        for given, near in misspelt.items():
            if (now := self._sessions.now().at) >= self._next_at.get(near, now):
                self._next_at[near] = now + _NAMED_AGAIN_S
                hint = f"did you mean {near}? The list is the server's, unfiltered"
                said = {"upstream": caller.key.upstream, "parameter": given, "hint": hint}
                log.warning("a misspelt criterion", extra=said)
        return Passes(tuple(misspelt))

    async def answer(self, reply: Reply, caller: Caller, message: ListRequest, position: Position | BadQuery) -> bool:
        """Answer with the page at `position`, or with what is wrong. False: other replicas know that it must pass.

        Raises GatewayError; a stream that has begun gets the error first.
        """
        with self._sessions.using(caller.key) as session:
            if self._sessions.replicas is not None and not caller.proof:
                await self._sessions.replicas.learn(session)
                if self.position(caller, message) == PASSES:
                    return False
            await self._answer(session, reply, caller, message, position)
            return True

    async def _answer(
        self, session: Session, reply: Reply, caller: Caller, message: ListRequest, position: Position | BadQuery
    ) -> None:
        try:
            if caller.proof:
                why = f"{caller.proof} proves one request, and a filtered list takes requests of taskgate's own"
                raise errors.CannotAnswer(f"{why}: ask for the list without criteria, and filter its pages")
            waiter = Waiter(reply, message.progress_token)
            await self._ask_first(session, caller.asks_first, waiter)
            if isinstance(position, BadQuery):  # the server's refusal of its caller goes first (DESIGN 5.4)
                await self._check_access(session, waiter)
                self._refuse(reply, message, position)
                return
            answer, ended = await self._fresh(session, waiter, position)
            page_bytes, rest = answer.page.size_bytes, _rest(answer, position, message.ignored)
            reply.hold(len(message.id) + page_bytes + len(rest))
        except Exception as error:
            failed = error if isinstance(error, errors.GatewayError) else errors.Internal()
            outcome = "refused" if failed.refuses else "failed"
            self._counts.query(EndedQuery(caller.key.upstream, outcome, str(failed)))
            if reply.streaming:
                reply.send(failed.message(message.id))
            raise
        self._counts.query(ended)
        if log.isEnabledFor(logging.DEBUG):
            said = asdict(ended)
            log.debug("query", extra={"upstream_requests": said.pop("requests"), **said})
        if page_bytes <= _LARGE_BYTES_MIN:
            reply.send(_response(message.id, answer, rest))
            return
        async with self._large:
            reply.send(_response(message.id, answer, rest))
            await asyncio.sleep(0)

    def _refuse(self, reply: Reply, message: ListRequest, bad: BadQuery) -> None:
        faults = [{"parameter": f.parameter, "given": f.given, "allowed": f.allowed} for f in bad.faults]
        said = jsonrpc.error(message.id, jsonrpc.INVALID_PARAMS, str(bad), {"errors": faults})
        reply.hold(len(said))
        reply.send(said, jsonrpc.INVALID_PARAMS)

    def _answer_or_plan(self, session: Session, position: Position, came: Moment) -> Answer | planning.Plan:
        """The answer to a query that came then; or what must be asked of the upstream first."""
        session.mark_seen(came)
        record, limits, now = session.record, self._limits, (self._sessions.now().at, time.time())
        plan = planning.plan(record, position.query, self._need(session, came), session.owns)
        if not plan.nothing:
            return plan
        page = record.index.select(position, limits.page_size, limits.page_bytes_max)
        if planning.overdue(record, page.tasks, *now):
            # All that a page may have: of large tasks only one may be shown, and there may be many.
            overdue = planning.overdue(record, record.index.select(position, limits.page_size).tasks, *now)
            return planning.Plan("the ttl of tasks to be shown has passed", tasks=overdue)
        oldest_s = max(record.as_of.at, came.at - limits.max_age)
        return Answer(page, now[1] - (now[0] - oldest_s))

    def _need(self, session: Session, came: Moment) -> planning.Need:
        return planning.need_of(session.record, came, self._limits.max_age, self._limits.full_crawl_interval)

    async def _ask_first(self, session: Session, asks: bytes, waiter: Waiter) -> None:
        """Ask the server once as the caller does, if it may refuse that alone (DESIGN 5.1). Raises GatewayError."""
        record, asked = session.record, self._sessions.now()
        asked_as, at = record.asked_as
        is_known = asked_as == asks and asked.at - at < self._limits.max_age
        if not asks or (is_known and not record.needs_access_check(asked.order)):
            return
        waiter.reply.owe(1)
        channel = waiter.reply.channel(self._on_message(session, waiter.forward), as_it_came=True)
        response = await Crawler(channel, self._limits, self._counts, self._sessions, session).ask("tasks/list", {})
        if bytes(response.error):
            raise errors.UpstreamFailed(bytes(response.error))
        record.asked_as = asks, asked.at
        record.accept(asked.order)  # not if the session was cleared meanwhile: then it is another one

    async def _check_access(self, session: Session, waiter: Waiter) -> None:
        """Ask the server whether it serves the caller, unless it has (DESIGN 5.4). Raises GatewayError."""
        came = self._sessions.now()
        while not session.record.accepted or session.record.needs_access_check(came.order):
            with suppress(Forgotten, errors.TooLarge):
                await self._carry_out(session, waiter, Query(), planning.ACCESS_CHECK, came)

    async def _fresh(self, session: Session, waiter: Waiter, position: Position) -> tuple[Answer, EndedQuery]:
        """The answer to a query, after the upstream was asked as planned. Raises GatewayError."""
        came, outcome, requests, reasons = self._sessions.now(), "index", 0, list[str]()
        was_too_large = False
        for _ in range(_ROUNDS_MAX):
            plan, record = self._answer_or_plan(session, position, came), session.record
            if isinstance(plan, Answer):
                page, reason = plan.page, "; ".join(reasons) or planning.FRESH.reason
                by_hand = record.last_crawl
                spared = max(0, by_hand.pages - requests), max(0, by_hand.size_bytes - page.size_bytes)
                name, shown = session.key.upstream, len(page.tasks)
                return plan, EndedQuery(name, outcome, reason, requests, *spared, shown, page.total)
            if plan.crawl and record.outgrown and came.at < record.outgrown_until:
                raise errors.TooLarge(record.outgrown)
            try:
                with self._counts.plan(session.key.upstream, plan.reason):
                    made = await self._carry_out(session, waiter, position.query, plan, came)
            except Forgotten:
                continue
            except errors.TooLarge:  # what the index had is forgotten, such as tasks that are gone
                if was_too_large:
                    raise
                was_too_large = True
                continue
            if made is not None:
                outcome, requests = "refreshed", requests + made
                reasons.append(plan.reason)
            elif outcome == "index":
                outcome = "coalesced"
        raise errors.UpstreamBroken("the upstream's tasks change faster than they can be asked for")

    async def _carry_out(
        self, session: Session, waiter: Waiter, query: Query, plan: planning.Plan, came: Moment
    ) -> int | None:
        """Ask what a plan says. Returns the number of requests; None if the asks of other queries had all of it."""
        need, in_flight = self._need(session, came), session.in_flight
        keys: list[str | None] = [*plan.tasks, None] if plan.reads else [*plan.tasks]
        if plan.reads and None in in_flight:
            keys = [None]  # pages that others read may tell of the tasks
        waits = {in_flight[key] for key in keys if key in in_flight}
        crawler: Crawler | None = None
        if new := [key for key in keys if key not in in_flight]:
            waiter.reply.owe(len(new))  # those that joined owe nothing: it is asked once
            ask = InFlight(in_flight, new, self._sessions.now())
            channel = waiter.reply.channel(self._on_message(session, ask.forward))
            crawler = Crawler(channel, self._limits, self._counts, self._sessions, session)
            parts = session, self._sessions, crawler, ask
            if plan.crawl or plan.check_access:
                refresh = Crawl(*parts) if plan.crawl else Refresh(*parts)
            else:
                refresh = Delta(*parts, query, plan.tail, [key for key in new if key is not None])
            ask.begin(refresh.run())
            waits.add(ask)
        # Of an ask that began too early to be of use the error is ignored.
        await together(*(ask.join(waiter) if need.met(ask.began) else ask.over() for ask in waits))
        return None if crawler is None else crawler.requests

    def _on_message(
        self, session: Session, forward: Callable[[bytes], Awaitable[None]]
    ) -> Callable[[bytes], Awaitable[None]]:
        async def on_message(data: bytes) -> None:
            message, own = jsonrpc.parse(data), self._sessions.own_tasks
            if own is None or own.may_pass(session.key.server, session.owners, data, message):
                self._sessions.note(session.key, PLAIN.read(data, message))
                await forward(data)

        return on_message


def _response(raw_id: bytes, answer: Answer, rest: bytes) -> bytes:
    tasks = b",".join([task.raw for task in answer.page.tasks])
    return jsonrpc.result(raw_id, b'{"tasks":[%b],%b}' % (tasks, rest))


def _rest(answer: Answer, position: Position, ignored: Sequence[str]) -> bytes:
    """The raw members of a `ListTasksResult` behind its tasks. `ignored`: names of unread parameters (DESIGN 5.4)."""
    page = answer.page
    as_of = datetime.fromtimestamp(answer.as_of_unix_s, UTC).isoformat(timespec="milliseconds")
    following = b""
    if page.more:
        page.following = page.following or cursor.encode(cursor.following(position, page.tasks))
        following = b'"nextCursor":%b,' % orjson.dumps(page.following)
    return b'%b"_meta":{"taskgate/total":%d,"taskgate/asOf":"%b"%b%b}' % (
        following,
        page.total,
        as_of.replace("+00:00", "Z").encode(),
        b',"taskgate/ignored":%b' % orjson.dumps(ignored) if ignored else b"",
        b',"taskgate/filter":%b' % orjson.dumps(position.header) if position.header is not None else b"",
    )
