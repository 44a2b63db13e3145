"""Sessions that have to go while someone works with them: who finds what afterwards, and what is freed.

In: the store of sessions, on a clock of the test's. Out: nothing. Always: no gateway and no socket: each test puts a
query under way by hand, as `answer.py` does.
"""

import asyncio
import gc
import weakref
from typing import Any

import pytest

from gateway import config
from gateway.core import task
from gateway.core.knowledge import NEVER, Suspicion
from gateway.core.observe import Observation
from gateway.sessions import Key, Servers, Session, Sessions
from tests.core import plain

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
    return Sessions(config.Index(**limits), Servers(clock), clock)


def in_use(store: Sessions, key: Key) -> Session:
    """A session of one task, which a query works with."""
    store.observe(key, told("t-1"))
    session = store.open(key)
    session.answering[b"1"] = [asyncio.get_running_loop().create_future()]
    return session


@pytest.mark.parametrize("evicted", [False, True])
async def test_a_reload_to_another_server_leaves_it_nothing_of_the_old_ones(evicted: bool) -> None:
    store = sessions(Clock(), sessions_max=1)
    session = in_use(store, KEY)
    if evicted:
        store.open(OTHER)
    store.take_over(config.Index(), {"research"})
    assert not list(session.index)
    assert store.open(KEY) is not session


async def test_a_session_that_ended_is_forgotten_where_it_was_evicted_too() -> None:
    store = sessions(Clock(), sessions_max=1)
    session = in_use(store, KEY)
    store.open(OTHER)
    store.drop_all("research", b"0f8c")
    assert not list(session.index)
    assert not list(store.open(KEY).index)


async def test_an_evicted_session_is_found_while_someone_works_with_it_and_freed_after() -> None:
    store = sessions(Clock(), sessions_max=1)
    session = in_use(store, KEY)
    store.open(OTHER)
    assert store.open(KEY) is session
    store.open(OTHER)
    index = weakref.ref(session.index)
    gc.disable()
    try:
        session.answering.clear()
        del session
        for _ in range(10):
            await asyncio.sleep(0)
        assert index() is None
    finally:
        gc.enable()


async def test_a_session_that_outgrew_its_limit_unseen_is_known_to_have_gone() -> None:
    clock = Clock()
    store = sessions(clock, memory_bytes_max=2**20)
    store.open(KEY).known.suspect = {str(number): Suspicion(1.0, 1.0) for number in range(4000)}
    store.keep(store.open(KEY))
    assert store.open(KEY).known.believed_from == clock.now
    assert store.open(OTHER).known.believed_from == NEVER


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
        assert "t-5" in {*session.index, *session.known.suspect}  # or it is asked for, as what was known has gone
