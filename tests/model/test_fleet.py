"""A fleet in the model: its answers keep the promise of DESIGN 12, whatever happens to its store (`fleet.py`)."""

import asyncio

import pytest

from tests.model import history as h
from tests.model.fleet import FleetWorld
from tests.model.play import play
from tests.model.search import broken, smallest
from tests.model.virtual import WIRE_S
from tests.model.wilful import FLEET, RACES

HISTORIES = 10
TIMEOUT_S = 0.1
EXCHANGE_S = 8 * WIRE_S  # through the gateway and back, and an exchange or two with the upstream


def played_here() -> list[h.History]:
    """Histories about a task that goes, a caller who is refused at one replica, a task that another replica finds gone
    without having heard of it (before the store is back; by what cannot be read; after another could not cancel it),
    one that cannot be cancelled, two that slip past a crawl: of a replica that has not heard of the task, and of
    one that has; and one that has moved for one replica alone; and some that are drawn."""
    before = (h.Create(), h.Switch(), h.Wait(65), h.Query(), h.Update(), h.Wait(65), h.Query())
    goes = (*before, h.Switch(), h.Query(), h.Delete(), h.Get(), h.Wait(65), h.Switch(), h.Query())
    refused = (h.Create(), h.Wait(), h.Switch(), h.Fault(kind="401", method="tasks/get"), h.Get(), h.Wait(65))
    ended = (h.Create(), h.Wait(), h.Update(), h.Wait(65), h.Query(), h.Wait())
    unheard = (*ended, h.Delete(), h.Switch(), h.Get(), h.Wait(65), h.Switch(), h.Query())
    cancelled = (h.Get(method="tasks/cancel"), h.Switch(), h.Get())
    fixed = (goes, refused, unheard)
    listed = (h.Query(), h.Replace(), h.Create(), h.Create(), h.Query(ascending=True), h.Create(leave=4), h.Query())
    slips = (*listed, h.Query(), h.Wait(320), h.Switch(), h.Query(), h.Wait(32), h.Update())
    told_once = (h.Store("killed"), h.Query(), h.Wait(), h.Get(which=2), h.Delete(which=2), h.Switch(), h.Store())
    unread = (h.Delete(which=2), h.Query(), h.Wait(), h.Fault(kind="encoded"), h.Delete(which=1), h.Get(which=1))
    twice = (h.Get(which=1, method="tasks/cancel"), h.Wait(), h.Query(), h.Wait(), h.Switch(), h.Get(which=1))
    omitted = (h.Query(), h.Wait(130), h.Query(), h.Wait(3), h.Delete(), h.Wait(65))
    moved = (h.Query(), h.Wait(), h.Update(), h.Switch(), h.Query(pages=2), h.Blink(), h.Switch())
    return [
        h.History(h.Setting(page_bytes_max=500, tasks="www"), moved),
        *(h.History(h.Setting(order="nothing"), events) for events in fixed),
        h.History(h.Setting(order="nothing", tasks="x"), (h.Get(), h.Get(method="tasks/cancel"))),
        h.History(h.Setting(order="nothing", delays=((140, 70),), tasks="c"), cancelled),
        h.History(h.Setting(page_bytes_max=1, order="updated", delays=((16, 70),)), slips),
        h.History(h.Setting(tasks="wccff"), (*told_once, h.Wait(200))),
        h.History(h.Setting(tasks="ffwc"), (*unread, h.Switch(), h.Wait(64))),
        h.History(h.Setting(tasks="fcc"), (*twice, h.Delete(which=1), h.Wait(64))),
        h.History(
            h.Setting(cursors="offset", full_crawl_interval=0, per_page=1, delays=((2, 0),), tasks="ccc"), omitted
        ),
        *map(FleetWorld.drawn, range(HISTORIES)),
    ]


def test_every_answer_of_a_fleet_keeps_the_promise() -> None:
    for history in played_here():
        violation = broken(history, FleetWorld)
        if violation is not None:
            pytest.fail(str(smallest(history, violation.rule, FleetWorld)), pytrace=False)


@pytest.mark.parametrize("fault", [*FLEET, "a task that a crawl omits is gone"])
def test_a_fault_of_a_fleet_is_found(fault: str) -> None:
    with (FLEET | RACES)[fault]():  # without it none breaks a rule
        assert any(broken(history, FleetWorld) for history in played_here())


# ---- exact times ----


class Timed(FleetWorld):
    async def _play(self, _: tuple[h.Event, ...]) -> None:
        await self._clients[0].initialize()
        await self.by_the_clock()

    async def took(self, event: h.Event) -> float:
        began = self._loop.time()
        await self._clients[0].act(event)
        return self._loop.time() - began

    async def by_the_clock(self) -> None:
        raise NotImplementedError


class Waiting(Timed):
    async def by_the_clock(self) -> None:
        for state in ("stopped", "killed", "full", "well"):
            await self._redis.become(state)
            for _ in range(15):  # the store is found out, is tried again, and again
                assert await self.took(h.Get(which=h.NOBODY)) <= EXCHANGE_S
                assert await self.took(h.Create()) <= EXCHANGE_S
                assert await self.took(h.Query()) <= TIMEOUT_S + EXCHANGE_S
                await asyncio.sleep(0.11)


def test_a_query_waits_no_longer_than_the_timeout_and_a_relayed_message_not_at_all() -> None:
    play(h.History(h.Setting(max_age=0, order="nothing")), Waiting)
