"""The life of a session: who gets a place, what is found when a session in use is evicted, and what is freed."""

from typing import Any

import pytest

from gateway import config
from gateway.caller_identity import Key, ServerKey, Who
from gateway.mcp import jsonrpc, task
from gateway.mcp.capabilities import Server
from gateway.mcp.ids_in_messages import Made
from gateway.mcp.task import Moment, Stamp, Written
from gateway.mcp.task_observations import Observation
from gateway.owners.task_owners import OwnTasks
from gateway.tasks.exchange_observer import Pending, begin
from gateway.tasks.session_indexes import Session, Sessions
from tests.rules import plain
from tests.rules.test_linear import lines_run

KEY = Key(ServerKey("research"), b"/mcp", b"0f8c", b"who")
OTHER = Key(ServerKey("research"), b"/mcp", b"other", b"who")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def told(*task_ids: str) -> Observation:
    return Observation([(Written(task_id, "", "", ""), b"") for task_id in task_ids])


def sessions(clock: Clock, **limits: Any) -> Sessions:
    return Sessions(config.IndexLimits(**limits), clock)


def stored(store: Sessions, key: Key) -> Session:
    store.observe(key, told("t-1"))
    session = store.find(key)
    assert session is not None
    return session


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


def shown(session: Session, now: Moment, status: str = "working") -> bytes:
    """An own answer about a task; returns what a client is told of the same task."""
    found = task.parse(plain.raw_task("t-1", status, None, None))
    session.answered(found.id, found, Stamp(now, now.order, now.order), now)
    return found.raw


def asked_by_client(store: Sessions, method: str) -> Pending:
    return begin(plain.asked(jsonrpc.request(1, method, {"taskId": "t-1"})), store.now)


async def test_a_poll_that_shows_what_the_index_has_is_a_use() -> None:
    clock = Clock()
    store = sessions(clock, sessions_max=2, idle_timeout=10.0)
    session = stored(store, KEY)
    said = b'{"jsonrpc":"2.0","id":1,"result":%b}' % shown(session, store.now())
    stored(store, OTHER)
    for _ in range(3):
        clock.now += 9
        store.note(KEY, asked_by_client(store, "tasks/get").read(said, jsonrpc.parse(said)))
    assert store.find(KEY) is session and store.find(OTHER) is None
    stored(store, OTHER)
    store.note(KEY, asked_by_client(store, "tasks/get").read(said, jsonrpc.parse(said)))
    stored(store, KEY._replace(session=b"a third", identity=b"stranger"))
    assert store.find(KEY) is session and store.find(OTHER) is None


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
    store = sessions(Clock())
    store.note_server(KEY, Server(True, methods))
    assert store.server_of(KEY) == Server(True, kept)
    store.note_server(KEY, Server(False, methods))
    assert store.native(KEY)


def test_what_initialize_said_stays_while_a_client_polls_a_task_that_no_query_has_asked_for() -> None:
    clock = Clock()
    store = sessions(clock)
    store.note_server(KEY, Server(True, ("tools/call",)))
    request = plain.asked(b'{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"taskId":"t-1"}}')
    said = b'{"jsonrpc":"2.0","id":1,"result":{"taskId":"t-1","status":"working"}}'
    for _ in range(26 * 6):
        clock.now += 600
        store.note(KEY, begin(request, store.now).read(said, jsonrpc.parse(said)))
    assert store.server_of(KEY, is_use=False) is not None


@pytest.mark.parametrize(
    ("what", "apart"), [("a session ends", False), ("a session ends", True), ("an id is made again", True)]
)
async def test_an_end_costs_the_same_however_many_sessions_there_are(what: str, apart: bool) -> None:
    """A walk over 10,000 of them took a DELETE 31 ms of the loop, and an id that a server gives again 57."""

    def lines(others: int) -> int:
        clock = Clock()
        store = Sessions(config.IndexLimits(), clock, OwnTasks if apart else None)
        for number in range(others):
            key = Key(ServerKey("research"), b"/mcp", b"%d" % number, b"who-%d" % number, b"kin", True)
            stored(store, key)
        ended = Key(ServerKey("research"), b"/mcp", b"0f8c", b"me", b"kin", True)
        again = ended._replace(session=b"another", identity=b"you")
        for key in (ended, again):
            stored(store, key)
        if what == "a session ends":
            return lines_run(lambda: store.drop_all(ended))
        assert store.own_tasks is not None
        store.own_tasks.make(ended.server, store.own_tasks.owners_of(ended), Made("t-1", 0.0))
        own, owners = store.own_tasks, store.own_tasks.owners_of(again)
        return lines_run(lambda: own.make(ended.server, owners, Made("t-1", 0.0)))

    assert lines(400) <= lines(0) + 20
