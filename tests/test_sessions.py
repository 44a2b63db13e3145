"""The life of a session: who gets a place, what is found when a session in use is evicted, and what is freed."""

import asyncio
import gc
import weakref
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from gateway import config
from gateway.caller_identity import Key, ServerKey, Who
from gateway.mcp import jsonrpc, task
from gateway.mcp.capabilities import Server
from gateway.mcp.ids_in_messages import Made
from gateway.mcp.task import NEVER, Moment, Stamp, Written
from gateway.mcp.task_observations import Observation
from gateway.owners.task_ids_seen_by_caller import Owners
from gateway.tasks.capability_cache import CapabilityCache
from gateway.tasks.exchange_observer import Pending, begin
from gateway.tasks.session_indexes import Session, Sessions
from gateway.tasks.single_flight import InFlight, Waiter
from tests.rules import plain
from tests.rules.test_linear import lines_run

KEY = Key(ServerKey("research"), b"/mcp", b"0f8c", b"who")
OTHER = Key(ServerKey("research"), b"/mcp", b"other", b"who")


class Clock:
    """Seconds, which pass with every reading if told to."""

    def __init__(self) -> None:
        self.now, self.step = 100.0, 0.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def told(*task_ids: str) -> Observation:
    return Observation([(Written(task_id, "", "", ""), b"") for task_id in task_ids])


def sessions(clock: Clock, **limits: Any) -> Sessions:
    return Sessions(config.IndexLimits(**limits), CapabilityCache(clock), clock)


def stored(store: Sessions, key: Key) -> Session:
    store.observe(key, told("t-1"))
    session = store.find(key)
    assert session is not None
    return session


def places(store: Sessions) -> float:
    return store.gauges()["index_sessions"][1]


async def test_a_reload_to_another_server_leaves_it_nothing_of_the_old_ones() -> None:
    """A query under way goes on with the old server, and brings the new one nothing; nor does a late refusal."""
    store = sessions(Clock())
    stored(store, KEY)
    at_new = KEY._replace(server=ServerKey("research", 1))
    with store.using(KEY) as old, store.using(at_new) as new:
        store.take_over(config.IndexLimits())
        assert (list(old.record.index.stale), list(new.record.index.stale), places(store)) == (["t-1"], [], 1)
        stored(store, at_new)
        store.refuse(old)
        came = store.now().order
        assert (old.record.known.is_hidden(came), new.record.known.is_hidden(came)) == (True, False)
        assert list(new.record.index.stale) == ["t-1"]
    store.forget({KEY.server})
    assert (store.find(KEY), store.find(at_new), places(store)) == (None, new, 1)


def test_what_is_known_of_a_refused_caller_is_kept_and_shown_once_he_is_accepted() -> None:
    store = sessions(Clock())
    session, before = stored(store, KEY), store.now().order
    store.refuse(session)
    came = store.now().order
    session.record.known.accept(before)
    assert session.record.known.is_hidden(came)
    assert list(session.record.index.stale) == ["t-1"]
    session.record.known.accept(store.now().order)
    assert not session.record.known.is_hidden(came)
    store.refuse(session)
    assert not session.record.known.is_hidden(came), "a query waits for no refusal that came after it"
    assert session.record.known.is_hidden(store.now().order)


async def test_a_session_that_a_query_uses_stays() -> None:
    clock = Clock()
    store = sessions(clock, sessions_max=1, idle_timeout=10.0)
    stored(store, KEY)
    with store.using(KEY) as session:
        store.observe(OTHER, told("t-1"))
        clock.now += 20
        store.expire()
        assert store.find(KEY) is session
    stored(store, OTHER)
    assert store.find(KEY) is None


async def test_an_index_is_freed_when_its_session_is_evicted() -> None:
    store = sessions(Clock(), sessions_max=1)
    index = weakref.ref(stored(store, KEY).record.index)
    gc.disable()
    try:
        stored(store, OTHER)
        for _ in range(10):
            await asyncio.sleep(0)
        assert index() is None
    finally:
        gc.enable()


# ---- who is refused holds nothing ----


def strangers(count: int) -> list[Key]:
    """Unknown callers, each with an identity and a session of its own."""
    return [Key(ServerKey("research"), b"/mcp", b"%d" % number, b"stranger-%d" % number) for number in range(count)]


async def test_a_caller_has_no_place_before_the_upstream_has_answered_him() -> None:
    store = sessions(Clock(), sessions_max=1)
    known = stored(store, KEY)
    for stranger in strangers(3):
        with store.using(stranger) as one, store.using(stranger) as other:
            assert one is other  # who asks at the same time asks once
        assert store.find(stranger) is None
    assert store.find(KEY) is known
    assert places(store) == 1


async def test_a_caller_whose_session_has_ended_has_no_place_while_he_is_at_work() -> None:
    store = sessions(Clock())
    stored(store, KEY)
    with store.using(KEY) as session:
        before = session.record
        store.drop_all(KEY)
        assert (places(store), session.record.index.stale) == (0, {})
        assert session.record is not before  # what was asked for before is void
        with store.using(KEY) as other:
            assert other is session
        store.accept(session)
        assert places(store) == 1
        store.drop(KEY)
    assert store.find(KEY) is None


@pytest.mark.parametrize("said", [Observation(doubt=True), Observation(denied="t-1")])
async def test_what_only_casts_doubt_opens_no_session(said: Observation) -> None:
    store = sessions(Clock())
    store.observe(KEY, said)
    assert store.find(KEY) is None


async def test_what_passes_while_a_caller_is_new_is_not_lost() -> None:
    store = sessions(Clock())
    with store.using(KEY):
        store.observe(KEY, told("t-1"))
    session = store.find(KEY)
    assert session is not None and list(session.record.index.stale) == ["t-1"]


async def test_a_task_that_was_not_found_is_marked_by_an_answer_and_not_by_a_broadcast_until_a_crawl_ends() -> None:
    """mcp-go tells all sessions of all tasks."""
    store = sessions(Clock())
    session, asked = stored(store, KEY), store.now()
    session.answered("t-1", None, Stamp(asked, asked.order, store.now().order), store.now())
    store.observe(KEY, msgspec.structs.replace(told("t-1"), is_told_to_all=True))
    assert not session.record.index.stale
    store.observe(KEY, told("t-1"))
    assert list(session.record.index.stale) == ["t-1"]


def shown(session: Session, now: Moment, status: str = "working") -> bytes:
    """An own answer about a task; returns what a client is told of the same task."""
    found = task.parse(plain.raw_task("t-1", status, None, None))
    session.answered(found.id, found, Stamp(now, now.order, now.order), now)
    return found.raw


def asked_by_client(store: Sessions, method: str) -> Pending:
    return begin(plain.asked(jsonrpc.request(1, method, {"taskId": "t-1"})), store.now())


@pytest.mark.parametrize(("status", "is_marked"), [("working", True), ("completed", False)])
async def test_the_result_of_a_task_is_its_end_though_the_bytes_of_the_task_stand_in_it(
    status: str, is_marked: bool
) -> None:
    store = sessions(Clock())
    session = stored(store, KEY)
    raw, asked = shown(session, store.now(), status), asked_by_client(store, "tasks/result")
    said = b'{"jsonrpc":"2.0","id":1,"result":{"content":[],"structuredContent":%b}}' % raw
    store.take_in(KEY, asked.read(said, jsonrpc.parse(said)))
    assert bool(session.record.index.stale) is is_marked


async def test_a_poll_that_shows_what_the_index_has_is_a_use() -> None:
    clock = Clock()
    store = sessions(clock, sessions_max=2, idle_timeout=10.0)
    session = stored(store, KEY)
    said = b'{"jsonrpc":"2.0","id":1,"result":%b}' % shown(session, store.now())
    stored(store, OTHER)
    for _ in range(3):
        clock.now += 9
        store.take_in(KEY, asked_by_client(store, "tasks/get").read(said, jsonrpc.parse(said)))
    assert store.find(KEY) is session and store.find(OTHER) is None
    stored(store, OTHER)
    store.take_in(KEY, asked_by_client(store, "tasks/get").read(said, jsonrpc.parse(said)))
    stored(store, strangers(1)[0])
    assert store.find(KEY) is session and store.find(OTHER) is None


async def test_a_session_that_ended_goes_for_everyone_in_it_and_for_nobody_else() -> None:
    store = sessions(Clock())
    token, renewed = KEY, KEY._replace(identity=b"renewed")
    others = [KEY._replace(server=ServerKey("other")), KEY._replace(target=b"/another"), OTHER]
    for key in (token, renewed, *others):
        stored(store, key)
    store.drop_all(KEY)
    assert [key for key in (token, renewed, *others) if store.find(key) is not None] == others


# ---- what is kept of each has a size ----


def test_a_key_is_short_however_long_what_it_tells_apart() -> None:
    long = b"x" * 60_000
    who, sessions = Who(b"who"), (b"", b"0f8c", long)
    keys = [Key.of(KEY.server, target, session, who) for target in (b"/", long) for session in sessions]
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
    servers = CapabilityCache(Clock())
    servers.note(KEY, Server(True, methods))
    assert servers.get(KEY) == Server(True, kept)
    servers.note(KEY, Server(False, methods))
    assert servers.native(KEY)


def outbox(channel: object = None) -> Waiter:
    reader: Any = SimpleNamespace(streaming=False, is_full=False, owe=int, channel=channel)  # it is asked nothing else
    return Waiter(reader, b"", Clock())


async def test_who_joins_what_its_last_reader_has_just_given_up_asks_anew() -> None:
    """The cancelled request was once taken for a cancelled query, which got no answer."""
    ask = InFlight(Session(KEY, Owners(config.IndexLimits())).in_flight, ["t-1"], NEVER)
    ask.begin(asyncio.sleep(60))
    task = ask._task
    leaving = asyncio.create_task(ask.join(outbox()))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.sleep(0)
    await ask.join(outbox())
    assert task is not None
    assert task.cancelled()


def test_what_initialize_said_stays_while_a_client_polls_a_task_that_no_query_has_asked_for() -> None:
    clock = Clock()
    store = sessions(clock)
    store.servers.note(KEY, Server(True, ("tools/call",)))
    request = plain.asked(b'{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"taskId":"t-1"}}')
    said = b'{"jsonrpc":"2.0","id":1,"result":{"taskId":"t-1","status":"working"}}'
    for _ in range(26 * 6):
        clock.now += 600
        store.take_in(KEY, begin(request, store.now()).read(said, jsonrpc.parse(said)))
    assert store.servers.get(KEY, is_use=False) is not None


@pytest.mark.parametrize(
    ("what", "apart"), [("a session ends", False), ("a session ends", True), ("an id is made again", True)]
)
async def test_an_end_costs_the_same_however_many_sessions_there_are(what: str, apart: bool) -> None:
    """A walk over 10,000 of them took a DELETE 31 ms of the loop, and an id that a server gives again 57."""

    def lines(others: int) -> int:
        clock = Clock()
        store = Sessions(config.IndexLimits(), CapabilityCache(clock), clock, apart)
        for number in range(others):
            key = Key(ServerKey("research"), b"/mcp", b"%d" % number, b"who-%d" % number, b"kin", True)
            stored(store, key)
        ended = Key(ServerKey("research"), b"/mcp", b"0f8c", b"me", b"kin", True)
        again = ended._replace(session=b"another", identity=b"you")
        for key in (ended, again):
            stored(store, key)
        if what == "a session ends":
            return lines_run(lambda: store.drop_all(ended))
        assert store.own is not None
        store.own.make(ended.server, store.own.owners_of(ended), Made("t-1", 0.0))
        own, owners = store.own, store.own.owners_of(again)
        return lines_run(lambda: own.make(ended.server, owners, Made("t-1", 0.0)))

    assert lines(400) <= lines(0) + 20
