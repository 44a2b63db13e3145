"""The life of a session: who gets a place, what is found when a session in use is evicted, and what is freed.

In: the store of sessions, on a clock of the test's. Out: nothing. Always: no gateway and no socket: each test puts a
query under way by hand, as `answer.py` does.
"""

import asyncio
import gc
import weakref
from typing import Any

import pytest

from gateway import config
from gateway.identity import Key
from gateway.mcp import task
from gateway.mcp.capabilities import Server
from gateway.mcp.jsonrpc import Message
from gateway.mcp.observe import Observation
from gateway.tasks.asks import Ask, Outbox
from gateway.tasks.notes import NEVER
from gateway.tasks.sessions import Life, Servers, Session, Sessions
from tests.rules import plain

KEY = Key("research", b"/mcp", b"0f8c", b"who")
OTHER = Key("research", b"/mcp", b"other", b"who")


class Clock:
    """Seconds, which pass with every reading if told to."""

    def __init__(self) -> None:
        self.now, self.step = 100.0, 0.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def told(*task_ids: str) -> Observation:
    return Observation(tasks=[task.parse(plain.raw_task(i, "working", None, None)) for i in task_ids])


def sessions(clock: Clock, **limits: Any) -> Sessions:
    return Sessions(config.IndexLimits(**limits), Servers(clock), clock)


def stored(store: Sessions, key: Key) -> Session:
    """The session of a caller that the upstream has answered."""
    session = store.open(key)
    store.admit(session)
    return session


def places(store: Sessions) -> float:
    """How many sessions are stored."""
    return store.gauges()["index_sessions"][1]


def in_use(store: Sessions, key: Key) -> Session:
    """A session of one task, which a query works with."""
    store.observe(key, told("t-1"))
    session = store.open(key)
    session.queries = 1
    return session


@pytest.mark.parametrize("evicted", [False, True])
async def test_a_reload_to_another_server_leaves_it_nothing_of_the_old_ones(evicted: bool) -> None:
    store = sessions(Clock(), sessions_max=1)
    session = in_use(store, KEY)
    if evicted:
        stored(store, OTHER)
    store.take_over(config.IndexLimits(), {"research"})
    assert not list(session.index)
    assert store.open(KEY) is not session


async def test_a_session_that_ended_is_forgotten_where_it_was_evicted_too() -> None:
    store = sessions(Clock(), sessions_max=1)
    session = in_use(store, KEY)
    stored(store, OTHER)
    store.drop_all(KEY)
    assert not list(session.index)
    assert not list(store.open(KEY).index)


async def test_an_evicted_session_is_found_while_someone_works_with_it_and_freed_after() -> None:
    store = sessions(Clock(), sessions_max=1)
    session = in_use(store, KEY)
    stored(store, OTHER)
    assert store.open(KEY) is session
    stored(store, OTHER)
    index = weakref.ref(session.index)
    gc.disable()
    try:
        session.queries = 0
        del session
        for _ in range(10):
            await asyncio.sleep(0)
        assert index() is None
    finally:
        gc.enable()


async def test_a_session_that_outgrew_its_limit_unseen_is_known_to_have_gone() -> None:
    clock = Clock()
    store = sessions(clock, memory_bytes_max=2**20)
    stored(store, KEY).take(Observation(suspect=[str(number) for number in range(5000)]), None, 1.0)
    store.keep(store.open(KEY))
    assert store.open(KEY).known.newcomers_from == clock.now
    assert store.open(OTHER).known.newcomers_from == NEVER


async def test_a_session_that_expires_between_two_looks_at_the_clock_is_whole() -> None:
    for reading in range(20):  # the one at which its time is over
        clock = Clock()
        store = sessions(clock, idle_timeout=10.0)
        store.observe(KEY, told("t-1"))
        clock.now, clock.step = clock.now + 10 - 0.001 * reading, 0.001
        for number in range(2, 6):
            store.observe(KEY, told(f"t-{number}"))
            for _ in range(10):
                await asyncio.sleep(0)
        session = store.open(KEY)
        known_of = {*session.index, *session.known.notes.suspects(clock.now)}
        assert "t-5" in known_of  # if what was known has gone, the task is asked for


# ---- who is refused holds nothing ----


def strangers(count: int) -> list[Key]:
    """Unknown callers, each with an identity and a session of its own."""
    return [Key("research", b"/mcp", b"%d" % number, b"stranger-%d" % number) for number in range(count)]


async def test_a_caller_has_no_place_before_the_upstream_has_answered_him() -> None:
    store = sessions(Clock(), sessions_max=1)
    store.observe(KEY, told("t-1"))
    for stranger in strangers(3):
        asking = store.open(stranger)
        assert store.open(stranger) is asking is store.find(stranger)  # who asks at the same time asks once
        del asking
        assert store.find(stranger) is None
    assert list(store.open(KEY).index) == ["t-1"]
    assert places(store) == 1


async def test_a_refused_caller_leaves_no_note_in_place_of_anothers() -> None:
    """The time of a session's eviction is known, so an earlier request's answer is not believed unseen."""
    clock = Clock()
    store = sessions(clock, sessions_max=2)
    store.observe(KEY, told("t-1"))
    store.drop(KEY)
    lost_at = clock.now
    clock.now += 1
    for stranger in strangers(10):
        asking = store.open(stranger)
        asking.queries = 1
        store.drop(stranger)
        asking.queries = 0
        del asking
        store.drop(stranger)
        store.drop_all(stranger)
        assert store.open(stranger).known.newcomers_from == NEVER
    assert store.open(KEY).known.newcomers_from == lost_at


async def test_a_caller_who_was_answered_and_is_refused_has_no_place_while_he_is_at_work() -> None:
    clock = Clock()
    store = sessions(clock)
    session = in_use(store, KEY)
    assert session.life is Life.STORED
    store.drop(KEY)
    assert (session.life, places(store), list(session.index)) == (Life.PROVISIONAL, 0, [])
    assert store.open(KEY) is session  # what he goes on with
    store.admit(session)
    assert (session.life, places(store)) == (Life.STORED, 1)
    store.drop(KEY)
    session.queries = 0
    del session
    assert store.find(KEY) is None
    assert store.open(KEY).known.newcomers_from == clock.now


async def test_an_evicted_session_gets_its_place_back_when_it_is_answered() -> None:
    store = sessions(Clock(), sessions_max=1)
    session = in_use(store, KEY)
    other = stored(store, OTHER)
    assert (session.life, other.life) == (Life.PARTING, Life.STORED)
    store.admit(session)
    assert session.life is Life.STORED
    assert store.find(OTHER) is None


async def test_a_session_that_another_has_replaced_gets_no_place() -> None:
    """As after a reload to another server: an earlier crawl brings tasks of the old one."""
    store = sessions(Clock())
    session = in_use(store, KEY)
    store.take_over(config.IndexLimits(), {"research"})
    other = store.open(KEY)
    store.admit(session)
    assert places(store) == 0
    assert store.find(KEY) is other


@pytest.mark.parametrize("how", ["refused", "ended", "unread"])
async def test_what_passes_before_the_first_answer_of_a_caller_is_not_lost_on_it(how: str) -> None:
    """An earlier request's answer is on its way. It is old when it comes, though the caller was unknown."""
    clock = Clock()
    store = sessions(clock)
    asked_at = clock.now
    held = store.claim(KEY)
    clock.now += 1
    match how:
        case "refused":
            store.drop(KEY)
        case "ended":
            store.drop_all(KEY)
        case "unread":
            store.observe(KEY, Observation(doubt=True))
    assert places(store) == 0
    store.observe(KEY, told("t-1"), asked_at)
    session = store.open(KEY)
    assert session is held
    if how == "unread":
        assert session.known.doubted_at == clock.now
    else:
        assert session.known.notes.suspects(clock.now) == ["t-1"]
    assert places(store) == 1


async def test_what_only_casts_doubt_opens_no_session() -> None:
    store = sessions(Clock())
    store.observe(KEY, Observation(doubt=True))
    assert store.find(KEY) is None


async def test_a_session_that_ended_goes_for_everyone_in_it_and_for_nobody_else() -> None:
    store = sessions(Clock())
    token, renewed = KEY, Key("research", b"/mcp", b"0f8c", b"renewed")
    others = [Key("other", b"/mcp", b"0f8c", b"who"), Key("research", b"/another", b"0f8c", b"who"), OTHER]
    for key in (token, renewed, *others):
        store.observe(key, told("t-1"))
    store.drop_all(KEY)
    assert [key for key in (token, renewed, *others) if store.find(key) is not None] == others


# ---- what is kept of each has a size ----


def test_a_key_is_short_however_long_what_it_tells_apart() -> None:
    long = b"x" * 60_000
    keys = [Key.of("research", target, session, b"who") for target in (b"/", long) for session in (b"", b"0f8c", long)]
    assert len(set(keys)) == len(keys)
    assert all(len(key.target) + len(key.session) <= 32 for key in keys)
    assert [key.session for key in keys if not key.session] == [b"", b""]


@pytest.mark.parametrize(
    ("methods", "kept"),
    [
        (("tools/call",), ("tools/call",)),
        (("tools/call", "sampling/createMessage"), ()),
        (tuple(f"a/{number}" for number in range(5000)), ()),
        (("a/" + "x" * 60_000,), ()),
    ],
)
def test_of_what_initialize_said_little_is_kept(methods: tuple[str, ...], kept: tuple[str, ...]) -> None:
    servers = Servers(Clock())
    servers.note(KEY, Server(True, methods))
    assert servers.get(KEY) == Server(True, kept)
    servers.note(KEY, Server(False, methods))
    assert servers.filters_natively(KEY)


class _Reader:
    """A client that accepts everything."""

    streaming = is_full = False

    def hold(self, size_bytes: int) -> None:
        pass

    def forward(self, data: bytes) -> None:
        pass

    async def drain(self) -> None:
        pass

    def send(self, data: bytes) -> None:
        pass

    def end(self) -> None:
        pass


def _outbox() -> Outbox:
    return Outbox(_Reader(), Message("2.0"), Clock())


async def test_who_joins_what_its_last_reader_has_just_given_up_asks_anew() -> None:
    """The cancelled request was once taken for a cancelled query, which got no answer."""
    ask = Ask(Session(KEY).asks, ["t-1"], 0.0)
    ask.begin(asyncio.sleep(60))
    task = ask._task
    leaving = asyncio.create_task(ask.join(_outbox()))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.sleep(0)
    await ask.join(_outbox())
    assert task is not None
    assert task.cancelled()
