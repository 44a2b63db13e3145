"""How a refresh of each kind ends, whatever happens while it asks."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from itertools import product
from typing import Final

import pytest

from gateway import config
from gateway.caller_identity import Key, ServerKey
from gateway.errors import TooLarge, UpstreamBroken, UpstreamFailed, UpstreamRefused
from gateway.mcp import jsonrpc, task
from gateway.mcp.jsonrpc import Message
from gateway.mcp.task import Stamp
from gateway.query.criteria import Query
from gateway.refresh.plan_execution import AccessCheck, Crawl, Delta, Refresh
from gateway.refresh.planning import Ages
from gateway.refresh.query_answer import Planner
from gateway.refresh.retrying_crawler import Crawler
from gateway.stdio.stdio_proxy import NoCounts
from gateway.tasks.capability_cache import CapabilityCache
from gateway.tasks.reconciliation import Listing
from gateway.tasks.session_indexes import FAILURES_MAX, Forgotten, Session, Sessions
from gateway.tasks.single_flight import InFlight
from tests.garbage import kept_garbage, left_in_cycles
from tests.rules import plain
from tests.seams import named
from tests.test_sessions import outbox

KEY: Final = Key(ServerKey("research"), b"/mcp", b"0f8c", b"who")
LIMITS: Final = config.IndexLimits(tasks_max=2)
CREATED: Final = "2026-01-01T00:00:00Z"
TASKS: Final = [plain.raw_task(f"t-{number}", "working", CREATED, None) for number in range(LIMITS.tasks_max + 1)]


class Place:
    filter = None
    is_served = True
    asks_first = b""
    proof = ""
    key = KEY

    def __init__(self, kind: str) -> None:
        loop = asyncio.get_running_loop()
        counts = NoCounts()
        self.sessions = Sessions(LIMITS, CapabilityCache(loop.time), loop.time)
        with self.sessions.using(KEY) as session:
            self.session: Session = session
        self.sessions.accept(session)
        began = self.sessions.now()
        self.session.end_crawl(Stamp(began, began.order, began.order), 1, [None], Listing.PREPENDS)
        self.single = InFlight(self.session.in_flight, ["t-0", None], began)
        self.server: Callable[[Place], Awaitable[bytes]] = all_is_there
        self.task = TASKS[0]  # that every `tasks/get` returns
        self.asked: list[str | None] = []
        crawler = Crawler(self, self, LIMITS, counts, self.sessions.now, partial(self.sessions.refuse, session))
        parts = self.session, self.sessions, crawler, self.single, Ages(1.0, 60.0)
        self.refresh: Refresh = KINDS[kind](*parts)

    def channel(self, *_: object, as_it_came: bool = False) -> "Place":
        """The way to the server."""
        return self

    def is_free(self, _message_id: int) -> bool:
        """Whether no request of the client's has this id."""
        return True

    async def ask(self, request: bytes, message_id: int) -> Message:
        """The server's answer."""
        asked = plain.parsed(request)
        self.asked.append(asked.method)
        said = await self.server(self)
        value = self.task if asked.method == "tasks/get" else said
        return plain.parsed(jsonrpc.result(b"%d" % message_id, value))

    async def run(self) -> BaseException | None:
        [error] = await asyncio.gather(self.refresh.run(), return_exceptions=True)
        return error


KINDS: Final[dict[str, Callable[..., Refresh]]] = {
    "knock": AccessCheck,
    "crawl": Crawl,
    "look": partial(Delta, _query=Query(), _reads_tail=True, _task_ids=[]),
    "single tasks": partial(Delta, _query=Query(), _reads_tail=False, _task_ids=["t-0"]),
}
LISTED: Final = b'{"tasks":[%b]}' % TASKS[0]

Event = Callable[[Place], Awaitable[bytes]]


async def all_is_there(_: Place) -> bytes:
    return LISTED


async def cleared(place: Place) -> bytes:
    place.session.clear()
    return LISTED


async def given_up(place: Place) -> bytes:
    place.single.is_given_up = True
    return LISTED


async def outgrown(_: Place) -> bytes:
    return b'{"tasks":[%b]}' % b",".join(TASKS)


def raising(error: BaseException) -> Event:
    async def fail(_: Place) -> bytes:
        raise error

    return fail


def refused(status: int) -> Event:
    return raising(UpstreamRefused(status, b"No", (), b"", 1))


BROKEN, FAILED = raising(UpstreamBroken("no answer")), raising(UpstreamFailed(b'{"code":-32603,"message":"oh no"}'))
EVENTS: Final[dict[str, list[tuple[Event, type[BaseException] | None]]]] = {
    "all was asked and taken in": [(all_is_there, None)],
    "session cleared, or ask given up": [(cleared, Forgotten), (given_up, Forgotten)],
    "caller refused": [(refused(status), UpstreamRefused) for status in (401, 403, 404)],
    "another error, or last query left": [
        *((refused(status), UpstreamRefused) for status in (302, 429, 503)),
        (BROKEN, UpstreamBroken),
        (FAILED, UpstreamFailed),
        (raising(asyncio.CancelledError()), asyncio.CancelledError),
        (raising(ZeroDivisionError()), ZeroDivisionError),
    ],
}


@pytest.mark.parametrize(("kind", "event"), [*product(KINDS, EVENTS)])
async def test_each_end_of_a_refresh(kind: str, event: str) -> None:
    for server, error in EVENTS[event]:
        place = Place(kind)
        place.server = server
        assert type(await place.run()) is (error if error is not None else type(None))
        assert not place.session.in_flight, "nobody joins it any more"
        if event == "caller refused":
            assert len(place.session.record.index) == 0


@pytest.mark.parametrize("status", [401, 403, 404])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_refusal_hides_the_index_though_the_ask_was_given_up(kind: str, status: int) -> None:
    place = Place(kind)
    asked = place.sessions.now()
    place.session.answered("t-1", task.parse(TASKS[1]), Stamp(asked, asked.order, place.sessions.now().order), asked)

    async def server(place: Place) -> bytes:
        place.single.is_given_up = True
        return await refused(status)(place)

    place.server = server
    assert isinstance(await place.run(), UpstreamRefused | Forgotten)
    assert place.session.record.known.is_hidden(place.sessions.now().order)
    assert len(place.session.record.index) == 1


@pytest.mark.parametrize("kind", ["crawl", "look"])
async def test_a_session_that_is_too_large_is_left_empty_and_remembers_it(kind: str) -> None:
    place = Place(kind)
    place.server = outgrown
    assert isinstance(await place.run(), TooLarge)
    assert len(place.session.record.index) == 0
    assert "index.tasks_max" in place.session.record.known.outgrown


NO_SUCH_TASK: Final = [b"{}", b'"t-0"', TASKS[1]]


@pytest.mark.parametrize("answer", NO_SUCH_TASK)
async def test_an_answer_that_has_another_task_or_none_says_that_an_unknown_one_is_not_there(answer: bytes) -> None:
    place = Place("single tasks")
    place.task = answer
    place.session.record.mark("t-0", place.sessions.now())
    assert await place.run() is None
    assert (list(place.session.record.index.stale), list(place.session.record.index.gone)) == ([], ["t-0"])


@pytest.mark.parametrize("answer", NO_SUCH_TASK)
async def test_an_answer_that_has_another_task_or_none_fails_the_query_if_the_task_is_known(answer: bytes) -> None:
    place = Place("single tasks")
    asked = place.sessions.now()
    place.session.answered("t-0", task.parse(TASKS[0]), Stamp(asked, asked.order, place.sessions.now().order), asked)
    place.task = answer
    assert isinstance(await place.run(), UpstreamBroken)
    assert list(place.session.record.index.entries) == ["t-0"]


@pytest.mark.parametrize("server", [BROKEN, FAILED])
async def test_an_unknown_task_that_cannot_be_asked_for_fails_a_few_queries_and_no_more(server: Event) -> None:
    place = Place("single tasks")
    place.server = server
    place.session.record.mark("t-0", place.sessions.now())
    for _ in range(FAILURES_MAX):
        assert await place.run() is not None
    assert not place.session.record.index.stale


async def test_an_answer_of_before_a_refusal_does_not_make_a_caller_accepted() -> None:
    place = Place("knock")
    place.asks_first = b"text/plain"
    planner = Planner(place.sessions, LIMITS, NoCounts(), asyncio.get_running_loop().time)
    place.server = cleared
    await planner.ask_first(place.session, place, outbox(place.channel))
    assert not place.session.record.known.has_listed
    place.server = all_is_there
    await planner.ask_first(place.session, place, outbox(place.channel))
    assert place.session.record.known.has_listed


@pytest.mark.parametrize("turns", range(1, 8))
async def test_what_is_cancelled_while_it_ends_what_has_failed_leaves_no_cycle(turns: int) -> None:
    async def fails() -> None:
        raise Forgotten

    async def lingers() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)

    with kept_garbage():
        all_of_them = asyncio.ensure_future(named("together")(fails(), fails(), lingers()))
        for _ in range(turns):
            await asyncio.sleep(0)
        all_of_them.cancel()
        with suppress(asyncio.CancelledError, Forgotten):
            await all_of_them
        del all_of_them
        await asyncio.sleep(0)  # the loop lets go of what it has just run
        assert not left_in_cycles()
