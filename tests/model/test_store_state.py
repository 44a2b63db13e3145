"""The states of the store: the table in `store/pipeline.py` is what the store does, in whatever order."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from itertools import product
from typing import Final

import pytest

from gateway.store import pipeline
from gateway.store.pipeline import Pipeline, StoreState
from tests.model.test_store import DAY_S, KEY, Rig, play, upstream
from tests.model.virtual import TICK_S
from tests.states import Watch, changes, in_cell, steps, table, watched

LATE_S: Final = 0.3  # until an answer comes: longer than `store.timeout`
QUICK_S: Final = 2**-5  # shorter than its half
BETWEEN_S: Final = 0.37  # two questions: neither comes while the batch before it is late
SEEN_S: Final = 0.7  # until a quiet connection was tried, or a question was asked and answered
AGAIN_S: Final = 1.5  # until everything is told again to a store that has refused something
HISTORIES: Final = 50
DEEDS: Final = 12  # of one history
TOGETHER: Final = 20  # entries: a batch is full

TABLE: Final = table(StoreState.__doc__, "changes it.\n\n")
STEPS: Final = steps(TABLE, ("DOWN",))


class ReplicaUpdate:
    """What a replica tells again: without an end as long as `goes_on`."""

    def __init__(self, rig: Rig) -> None:
        self.goes_on = False
        self._rig = rig

    def all(self) -> Iterator[None]:
        """Everything."""
        self._rig.store.add(KEY, [b"first"])
        while self.goes_on:
            self._rig.store.add(KEY, [b"%d" % number for number in range(TOGETHER)])
            yield


class Scene:
    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.told = ReplicaUpdate(rig)
        self._kept_s = DAY_S

    @property
    def state(self) -> str:
        return self.rig.store.state.name

    async def start(self) -> None:
        """It is tried for the first time."""
        await self.rig.redis.become("killed")
        await self.rig.store.start(self.told.all)

    async def serve(self) -> None:
        """There is a server that serves, at once, and is soon told everything."""
        self.told.goes_on, self.rig.redis.delay_s = False, 0
        await self.rig.redis.become("well")
        await asyncio.sleep(SEEN_S)

    async def tell(self) -> None:
        """There is a server, and telling it everything takes long: each batch its time."""
        self.told.goes_on, self.rig.redis.delay_s = True, QUICK_S
        await self.rig.redis.become("well")
        await asyncio.sleep(SEEN_S)

    async def end_telling(self) -> None:
        self.told.goes_on = False
        await asyncio.sleep(SEEN_S)

    async def lack(self) -> None:
        """A reload has changed how long entries are kept; or something was refused, and there is room again."""
        redis = self.rig.redis
        redis.delay_s = redis.delay_s or QUICK_S
        if redis.state == "full":
            await redis.become("well")
        self.not_told()
        await asyncio.sleep(AGAIN_S)

    def not_told(self) -> None:
        """Entries are to be kept for another time, and told again."""
        self.told.goes_on, self._kept_s = True, self._kept_s + 1
        self.rig.store.serves([upstream("a")], DAY_S, self._kept_s)

    async def fill(self) -> None:
        """It has no room."""
        await self.rig.redis.become("full")
        self.rig.store.add(KEY, [b"more"])
        await asyncio.sleep(SEEN_S)

    async def be_late(self) -> None:
        """Some questions have no answer in time."""
        self.rig.redis.delay_s = LATE_S
        for _ in range(12):
            await self.rig.store.read(KEY, 0)
            await asyncio.sleep(BETWEEN_S)

    async def be_quick(self) -> None:
        if self.rig.store.state is StoreState.SLOW:
            self.not_told()  # else it is up in the same moment
        self.rig.redis.delay_s = QUICK_S
        await self.rig.store.read(KEY, 0)
        await asyncio.sleep(SEEN_S)

    async def die(self) -> None:
        await self.rig.redis.become("killed")
        await asyncio.sleep(SEEN_S)

    async def freeze(self) -> None:
        """It says nothing more."""
        await self.rig.redis.become("stopped")
        async with asyncio.timeout(5):
            # Soon it is connected again, and again in vain.
            while self.rig.store.state is not StoreState.DOWN:  # noqa: ASYNC110  # the clock is virtual
                await asyncio.sleep(TICK_S)


Event = Callable[[Scene], Awaitable[None]]

EVENTS: Final[dict[str, list[Event]]] = {
    "a connection is ready": [Scene.tell],
    "everything is told": [Scene.end_telling],
    "something was not told": [Scene.lack],
    "a write is refused": [Scene.fill],
    "some answers are late": [Scene.be_late],
    "an answer is quick": [Scene.be_quick],
    "no connection, no answer": [Scene.die, Scene.freeze],
}
WAYS: Final[dict[str, list[list[Event]]]] = {
    "DOWN": [[Scene.start], [Scene.start, Scene.serve, Scene.die]],
    "TELLING": [[Scene.start, Scene.tell]],
    "UP": [[Scene.start, Scene.serve]],
    "SLOW": [[Scene.start, Scene.serve, Scene.be_late], [Scene.start, Scene.tell, Scene.be_late]],
    "REFUSED": [[Scene.start, Scene.serve, Scene.fill]],
}


@pytest.fixture(autouse=True)
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    monkeypatch.setattr(pipeline, "_TOGETHER", TOGETHER)
    with watched(Pipeline, "state") as one:
        yield one
    assert one.steps <= STEPS


def test_the_table_names_every_state_and_event() -> None:
    assert list(TABLE) == list(WAYS) == [state.name for state in StoreState]
    assert list(TABLE["UP"]) == list(EVENTS)


@pytest.mark.parametrize(("state", "event"), [(s, e) for s, e in product(WAYS, EVENTS) if TABLE[s][e] != "-"])
def test_the_table_is_what_happens(state: str, event: str) -> None:
    begun, found = set[str](), set[str]()

    def scenario(way: list[Event], happens: Event) -> Callable[[Rig], Awaitable[None]]:
        async def run(rig: Rig) -> None:
            scene = Scene(rig)
            for before in way:
                await before(scene)
            begun.add(scene.state)
            await happens(scene)
            found.add(scene.state)
            scene.told.goes_on = False

        return run

    for way, happens in product(WAYS[state], EVENTS[event]):
        play(scenario(way, happens))
    assert begun == {state}
    assert found == in_cell(TABLE[state][event])


def test_whatever_happens_in_whatever_order_leads_only_where_the_table_says(watch: Watch) -> None:
    happenings = [Scene.serve, *(event for events in EVENTS.values() for event in events if event is not Scene.freeze)]

    async def scenario(rig: Rig) -> None:
        scene = Scene(rig)
        await scene.start()
        for happens in chance.choices(happenings, k=DEEDS):
            await happens(scene)
        scene.told.goes_on = False

    for seed in range(HISTORIES):
        chance = random.Random(seed)
        play(scenario)
    assert changes(watch.steps) == changes(STEPS)
