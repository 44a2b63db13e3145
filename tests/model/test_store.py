"""The store and what sessions tell it, on a clock of its own, in whatever moment it fails (DESIGN 12)."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import wraps
from inspect import signature
from itertools import takewhile
from typing import Any, Final
from unittest.mock import ANY, patch

import pytest

from gateway import config
from gateway.caller_identity import Key, ServerKey
from gateway.mcp.ids_in_messages import Made
from gateway.mcp.task import Stamp
from gateway.mcp.task_observations import Observation
from gateway.store.redis_command_queue import READ_AT_ONCE
from gateway.store.redis_connection import StoreState
from gateway.store.redis_schema import DOUBT, RedisStore, entry_of, entry_of_gone
from gateway.store.shared_owners import SharedOwn
from gateway.store.shared_tasks import SharedTasks
from gateway.tasks.session_indexes import Session, Sessions
from tests.model.resp import STORE_PORT, Redis
from tests.model.virtual import WIRE_S, VirtualLoop

A: Final = ServerKey("a")
ADA: Final = Key(A, b"target", b"hers", b"ada", b"kin", True)
EVE: Final = Key(A, b"target", b"another", b"eve", b"kin", True)
KEY: Final = Key(A, b"target", b"session", b"identity")
SETTINGS: Final = config.StoreSettings(url=f"redis://127.0.0.1:{STORE_PORT}")
BACK_S: Final = 2.0
DAY_S: Final = 24 * 3600.0


class Rig:
    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.redis = Redis(loop)
        self.failures: list[str] = []
        self.index = config.IndexLimits()
        self.store = self.store_at(SETTINGS)
        self.sessions = Sessions(self.index, loop.time)
        self.shared = SharedTasks(self.sessions, self.store)

    def store_at(self, settings: config.StoreSettings) -> RedisStore:
        store = RedisStore(settings, self.failures.append)
        store.serves({A: upstream("a")}, DAY_S, self.index.idle_timeout)
        return store

    async def start(self, tell_all: Callable[[], Iterator[None]]) -> None:
        self.redis.state = ""
        await self.redis.become("well")
        await self.store.start(tell_all)
        await asyncio.sleep(1)

    async def outage(self, state: str, *during: Callable[[], object]) -> None:
        """The store fails, something happens, and it has had the time to learn it."""
        await self.redis.become(state)
        await asyncio.sleep(3)
        for happens in during:
            happens()
        await self.redis.become("well")
        await asyncio.sleep(BACK_S)
        assert self.store.is_up

    def entries(self) -> list[bytes]:
        [entries] = self.redis.sets.values()
        return sorted(entries, key=entries.__getitem__)

    def see(self, *task_ids: str, key: Key = KEY) -> None:
        for task_id in task_ids:
            self.sessions.observe(key, Observation(made=task_id, method="tools/call"))

    def own(self) -> SharedOwn:
        """The owners of tasks, at one more replica."""
        return SharedOwn(self.index, self.sessions.now, lambda *_: None, self.store)

    def lose(self, task_id: str) -> None:
        asked = self.sessions.now()
        self.session().answered(task_id, None, Stamp(asked, asked.order, asked.order), asked)

    def session(self, key: Key = KEY) -> Session:
        with self.sessions.using(key) as session:
            self.sessions.keep(session, is_accepted=True)
        return session

    def put(self, *entries: bytes) -> None:
        """Another replica has told of the session."""
        elsewhere = {entry: number for number, entry in enumerate(entries, 1)}
        name = self.store.name_of_entries(KEY)
        assert name is not None
        self.redis.sets[name.encode()] = elsewhere


def upstream(name: str) -> config.Upstream:
    return config.Upstream(name=name, url=config.Url("http", "127.0.0.1", 9, "/mcp"))


def there(task_id: str) -> bytes:
    return entry_of(task_id, "tools/call")


def play(scenario: Callable[[Rig], Awaitable[None]]) -> None:
    loop = VirtualLoop()

    async def run() -> None:
        rig = Rig(loop)
        await rig.start(rig.shared.tell_all)
        await scenario(rig)
        await rig.store.stop()

    with patch("time.time", loop.unix_time):
        loop.run_until_complete(run())
    assert not loop.unhandled
    loop.close()


def on_a_clock_of_its_own(scenario: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A test that plays a scenario; its parameters are those of the scenario, but for the rig."""

    @wraps(scenario)
    def test(**given: Any) -> None:
        play(lambda rig: scenario(rig, **given))

    asked = signature(scenario)
    test.__signature__ = asked.replace(parameters=list(asked.parameters.values())[1:])  # type: ignore[attr-defined]
    del test.__dict__["__wrapped__"]
    return test


# ---- what an outage must not lose ----


@pytest.mark.parametrize("state", ["killed", "stopped", "full"])
@on_a_clock_of_its_own
async def test_what_ends_while_the_store_fails_is_told_when_it_is_back(rig: Rig, state: str) -> None:
    rig.see("t-1", "t-2")
    await asyncio.sleep(1)
    await rig.outage(state, lambda: rig.lose("t-1"), lambda: rig.shared.lost(KEY, None))
    assert sorted(rig.entries()) == sorted([there("t-2"), entry_of_gone("t-1"), DOUBT])
    await rig.outage(state, lambda: rig.sessions.drop_all(KEY))
    assert not rig.redis.sets


@on_a_clock_of_its_own
async def test_what_any_stranger_can_do_displaces_nothing_that_a_failing_store_must_hear_of(rig: Rig) -> None:
    """He can ask for any id, and end his sessions: 10,001 made it forget that another's tasks were in doubt."""

    def many() -> None:
        rig.shared.lost(KEY, None)
        stranger = KEY._replace(session=b"a stranger's")
        rig.session(stranger)
        for number in range(10_001):
            rig.sessions.observe(stranger, Observation(denied=f"never-{number}"))
            rig.sessions.drop_all(KEY._replace(session=b"stranger %d" % number))

    rig.see("t-1")
    await asyncio.sleep(1)
    await rig.outage("killed", many)
    name = rig.store.name_of_entries(KEY)
    assert name is not None and set(rig.redis.sets[name.encode()]) == {there("t-1"), DOUBT}


@on_a_clock_of_its_own
async def test_what_is_owed_goes_out_in_portions(rig: Rig) -> None:
    """10,000 ends were one batch, late again and again: the store stayed down."""
    keys = [KEY._replace(session=b"%d" % number) for number in range(10_000)]
    rig.redis.command_s = 0.0002
    await rig.redis.become("killed")
    for key in keys:
        rig.shared.lost(key, None)
    await rig.redis.become("well")
    await asyncio.sleep(5)
    assert rig.store.is_up
    assert list(rig.redis.sets.values()).count({DOUBT: ANY}) == len(keys)


@pytest.mark.parametrize("waiting", range(19_995, 20_001))
@on_a_clock_of_its_own
async def test_a_session_that_ends_while_too_much_waits_ends_at_the_other_replicas(rig: Rig, waiting: int) -> None:
    """Its entries were to be forgotten, and the others told: the first was owed, and undid the second."""
    one, other = rig.own(), rig.own()
    owners = one.owners_of(ADA)[:1]
    one.make(A, owners, Made("t-1", 60.0))
    await asyncio.sleep(1)
    assert await other.owns_now(owners, ["t-1"])
    rig.store.add(KEY, [b"%d" % number for number in range(waiting)])
    one.end_all(ADA)
    await asyncio.sleep(BACK_S)
    await other.learn(owners)
    assert not other.owns(owners, "t-1")


@on_a_clock_of_its_own
async def test_too_much_at_once_while_all_is_told_is_told_again(rig: Rig) -> None:
    numbers = list(range(30_000))
    tellings = 0

    def tell_all() -> Iterator[None]:
        nonlocal tellings
        tellings += 1
        rig.store.add(KEY, [b"first"])
        yield
        if tellings == 1:
            rig.store.add(KEY, [b"%d" % number for number in numbers])
        yield

    await rig.store.stop()
    rig.store = rig.store_at(SETTINGS)
    await rig.start(tell_all)
    await asyncio.sleep(BACK_S)
    assert rig.store.is_up
    assert tellings == 2
    assert rig.entries() == [b"first"]


@on_a_clock_of_its_own
async def test_a_store_that_is_emptied_as_it_gets_its_mark_is_told_again_when_it_is_emptied_once_more(rig: Rig) -> None:
    """No mark was the mark from then on, as behind the next emptying."""
    rig.see("t-1")
    await asyncio.sleep(1)
    with patch.object(rig.redis, "_set", lambda *_: None):
        rig.store.serves({A: upstream("a")}, DAY_S, 2 * rig.index.idle_timeout)  # everything is to be told again
        rig.redis.values.clear()
        await asyncio.sleep(0.1)
    await asyncio.sleep(1)
    for held in (rig.redis.values, rig.redis.sets):
        held.clear()
    await asyncio.sleep(BACK_S)
    assert rig.entries() == [there("t-1")]


@on_a_clock_of_its_own
async def test_entries_in_use_are_kept_for_as_long_as_a_reload_says(rig: Rig) -> None:
    rig.see("t-1")
    await asyncio.sleep(1)
    rig.store.serves({A: upstream("a")}, DAY_S, 2 * rig.index.idle_timeout)
    await asyncio.sleep(BACK_S)
    [expires_at] = [at for key, at in rig.redis._expires.items() if key in rig.redis.sets]
    assert expires_at - rig.loop.time() > rig.index.idle_timeout


@on_a_clock_of_its_own
async def test_an_upstream_that_a_reload_has_taken_away_has_no_part_in_the_store(rig: Rig) -> None:
    rig.see("t-1")
    rig.store.serves({ServerKey("renamed"): upstream("renamed")}, DAY_S, rig.index.idle_timeout)
    rig.see("t-2")
    rig.sessions.drop_all(KEY)
    assert await rig.store.read(KEY) is None
    await rig.outage("killed", lambda: rig.see("t-3"))


# ---- a store that is slow ----


@on_a_clock_of_its_own
async def test_nobody_waits_for_a_store_that_answers_late_again_and_again(rig: Rig) -> None:
    rig.redis.delay_s = 0.3
    waited = 0
    for _ in range(40):
        began = rig.loop.time()
        assert await rig.store.read(KEY) is None
        waited += rig.loop.time() > began
        await asyncio.sleep(0.37)
    rig.store.serves({A: upstream("a")}, DAY_S, 2 * rig.index.idle_timeout)  # everything is to be told again
    await asyncio.sleep(1)
    assert rig.store.state is StoreState.SLOW
    assert rig.failures == ["slow"] * waited
    assert waited < 5
    rig.store.add(KEY, [b"one"])
    await asyncio.sleep(1)
    assert rig.entries() == [b"one"], "it takes in what it is told"
    rig.redis.delay_s = 0
    await asyncio.sleep(1)
    assert rig.store.is_up
    assert await rig.store.read(KEY) is not None


@on_a_clock_of_its_own
async def test_nobody_waits_for_a_store_that_is_full_and_slow(rig: Rig) -> None:
    """It was full, and no longer slow, each second anew."""
    await rig.redis.become("full")
    rig.store.add(KEY, [b"one"])
    rig.redis.delay_s = 0.3
    for _ in range(40):
        assert await rig.store.read(KEY) is None
        await asyncio.sleep(0.37)
    assert rig.failures.count("slow") <= 3
    rig.redis.delay_s = 0
    await asyncio.sleep(1)
    assert await rig.store.read(KEY) is not None


@on_a_clock_of_its_own
async def test_others_get_their_turn_while_entries_are_taken_in(rig: Rig) -> None:
    async def turns(rig: Rig, entries: int) -> int:
        """How often others got theirs while so many entries were read and taken in."""
        rig.put(*(there(f"t-{number}") for number in range(entries)))
        session = rig.session()
        session.clear()
        with patch.object(rig.loop, "select", wraps=rig.loop.select) as select:
            await rig.shared.catch_up(session)
        assert len(session.record.index.stale) == entries
        return select.call_count

    few = await turns(rig, 1)
    assert await turns(rig, READ_AT_ONCE - 1) >= few + 5


@on_a_clock_of_its_own
async def test_others_get_their_turn_while_a_replica_learns_whose_tasks_are(rig: Rig) -> None:
    """An owner of 9,500 tasks took turns of 60 ms, and 57,000 commands."""
    one, other = rig.own(), rig.own()
    owners, names = one.owners_of(ADA), [f"t-{number}" for number in range(1000)]
    for number, name in enumerate(names):
        one.make(A, owners, Made(name, 60.0))
        if number % 100 == 0:
            await asyncio.sleep(0.1)
    await asyncio.sleep(1)
    before = rig.redis.commands
    with patch.object(rig.loop, "select", wraps=rig.loop.select) as select:
        await other.learn(owners)
    assert all(other.owns(owners, name) for name in names)
    assert select.call_count >= len(names) / 50
    assert rig.redis.commands - before <= 30, "each batch of questions has a command that reads the mark"


@pytest.mark.parametrize("for_nobody", [False, True])
@on_a_clock_of_its_own
async def test_a_task_that_is_made_again_while_the_store_is_asked_is_its_last_makers(
    rig: Rig, for_nobody: bool
) -> None:
    """The answer was of the time before: the earlier owner had the task again."""
    far, here = rig.own(), rig.own()
    adas, eves = far.owners_of(ADA), far.owners_of(EVE)
    far.make(A, adas, Made("same", 60.0))
    await asyncio.sleep(1)
    rig.redis.delay_s = 0.05
    asking = asyncio.ensure_future(here.owns_now(adas, ["same"]))
    await asyncio.sleep(0.02)
    here.make(A, () if for_nobody else eves, Made("same", 60.0))
    await asking
    assert not here.owns(adas, "same")
    assert here.owns(eves, "same") != for_nobody


@pytest.mark.parametrize("state", ["full", "killed"])
@pytest.mark.parametrize("for_nobody", [False, True])
@on_a_clock_of_its_own
async def test_a_task_that_is_made_again_while_the_store_fails_is_its_last_makers_ever_after(
    rig: Rig, state: str, for_nobody: bool
) -> None:
    """The store said whose it had been: he had another's task, here while the store failed, anywhere behind that."""
    await rig.store.stop()
    rig.store = rig.store_at(SETTINGS)
    here = rig.own()
    await rig.start(here.tell_all)
    far = SharedOwn(rig.index, rig.sessions.now, lambda *_: None, rig.store_at(SETTINGS))
    await far._store.start(far.tell_all)
    adas, eves = here.owners_of(ADA), here.owners_of(EVE)
    for makers in (eves, adas):
        here.make(A, makers, Made("same", 60.0))
        await asyncio.sleep(1)
    await far.learn(adas)
    await rig.redis.become(state)
    await asyncio.sleep(1)
    for makers in (adas, [] if for_nobody else eves):
        here.make(A, makers, Made("same", 60.0))
    for _ in range(2):
        await asyncio.sleep(0.2)
        if rig.store.state is StoreState.REFUSED:
            assert not await here.owns_now(adas, ["same"])
        here.sweep()
    await rig.redis.become("well")
    for _ in takewhile(lambda _: not rig.store.is_up, range(1000)):
        await asyncio.sleep(0.01)
    assert not await here.owns_now(adas, ["same"]), "at once, too"
    here.sweep()
    await asyncio.sleep(BACK_S + rig.index.max_age)
    for one in (here, far):
        assert not await one.owns_now(adas, ["same"])
        assert await one.owns_now(eves, ["same"]) != for_nobody
    await far._store.stop()


@on_a_clock_of_its_own
async def test_a_store_that_is_slow_is_told_once_that_a_task_was_made(rig: Rig) -> None:
    """It has that: told again, it is later than what another replica has made meanwhile."""
    here, far = rig.own(), rig.own()
    adas, eves = here.owners_of(ADA), here.owners_of(EVE)
    rig.redis.delay_s = 0.3
    for _ in range(9):
        await rig.store.read(KEY)
        await asyncio.sleep(0.37)
    assert rig.store.state is StoreState.SLOW
    for one, makers in ((here, eves), (far, adas)):
        one.make(A, makers, Made("same", 60.0))
        await asyncio.sleep(3)
    rig.redis.delay_s = 0
    await asyncio.sleep(BACK_S + rig.index.max_age)
    for one in (here, far):
        assert await one.owns_now(adas, ["same"])
        assert not await one.owns_now(eves, ["same"])


@on_a_clock_of_its_own
async def test_the_store_keeps_a_task_for_its_time_and_half_as_long_again(rig: Rig) -> None:
    """It kept each for two days: 42 MB for 26,500 tasks of a minute. No replica knows one for longer than the store."""
    one, other, kept_s = rig.own(), rig.own(), 3720.0
    owners = one.owners_of(ADA)
    one.make(A, owners, Made("t-1", 60.0))
    await asyncio.sleep(1)
    for left_s in (1.5 * kept_s, 0.2 * kept_s):
        for key in rig.redis.sets:
            assert 0.9 * left_s < rig.redis._expires[key] - rig.loop.time() <= left_s
            rig.redis._expires[key] = rig.loop.time() + 0.2 * kept_s
    assert await other.owns_now(owners, ["t-1"])
    [making] = other.makings.values()
    assert making.until - rig.loop.time() < 0.2 * kept_s
    other.note(owners, ["t-1"], rig.sessions.now())  # it is shown: the time begins anew
    await asyncio.sleep(1)
    assert 0.9 * kept_s < making.until - rig.loop.time() <= kept_s
    assert all(rig.redis._expires[key] - rig.loop.time() > 1.4 * kept_s for key in rig.redis.sets)


# ---- what counts ----


@on_a_clock_of_its_own
async def test_what_is_told_to_a_store_whose_clock_is_behind_is_heard(rig: Rig) -> None:
    session = rig.session()
    rig.put(*map(there, ("t-1", "t-2", "t-3")))
    await rig.shared.catch_up(session)
    await rig.outage("wiped")
    rig.put(there("t-4"))
    await rig.shared.catch_up(session)
    assert "t-4" in session.record.index.stale


@on_a_clock_of_its_own
async def test_a_value_that_comes_after_the_session_was_cleared_says_nothing(rig: Rig) -> None:
    name = rig.store.name_of_value(KEY)
    assert name is not None
    rig.redis.values[name.encode()] = b'{"filtered_here":false,"methods":[]}'
    session = rig.session()
    work = asyncio.ensure_future(rig.shared.catch_up(session))
    await asyncio.sleep(WIRE_S)
    session.clear()
    await work
    assert rig.sessions.server_of(KEY) is None
