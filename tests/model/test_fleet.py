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
    without having heard of it, one that slips past a crawl, one that was denied as the store failed, or before it was
    wiped, one of the id of a denied one; and some that are drawn."""
    before = (h.Create(), h.Switch(), h.Wait(65), h.Query(), h.Update(), h.Wait(65), h.Query())
    goes = (*before, h.Switch(), h.Query(), h.Delete(), h.Get(), h.Wait(65), h.Switch(), h.Query())
    made_at_both = (h.Switch(), h.Create(), h.Wait(), h.Switch(), h.Create(), h.Wait(), h.Switch())
    refused = (*made_at_both, h.Fault(kind="401", method="tasks/get"), h.Get(), h.Wait(65), h.Query())
    ended = (h.Create(), h.Wait(), h.Update(), h.Wait(65), h.Query(), h.Wait())
    unheard = (*ended, h.Delete(), h.Switch(), h.Get(), h.Wait(65), h.Switch(), h.Query())
    fixed = [h.History(h.Setting(order="nothing"), events) for events in (goes, refused, unheard)]
    omits = h.Setting(cursors="offset", full_crawl_interval=0, per_page=1, delays=((2, 0),), tasks="ccc")
    fixed += [h.History(omits, (h.Query(), h.Wait(130), h.Query(), h.Wait(3), h.Delete(), h.Wait(65)))]
    denied = (h.Get(), h.Get(method="tasks/cancel"), h.Store("stopped"), h.Wait(130), h.Store(), h.Wait(200))
    fixed += [h.History(h.Setting(order="nothing", tasks="c"), denied)]
    queried, gone = (h.Query(), h.Wait(66), h.Switch()), (h.Delete(), h.Wait(), h.Get(), h.Wait(66))
    shared = (*queried, *queried, *gone)
    wiped = (h.Store("wiped"), h.Wait(20), h.Store(), h.Wait(230), h.Switch(), h.Query(), h.Wait(3))
    fixed += [h.History(h.Setting(order="nothing"), (h.Create(), h.Wait(66), h.Update(), h.Wait(66), *shared, *wiped))]
    again = (h.Switch(), h.Create(elsewhere=True), h.Wait(), h.Get(), h.Wait(150), h.Switch(), h.Query(), h.Wait(3))
    known = (h.Create(), h.Wait(66), *shared, h.Switch(), h.Query(), h.Wait(66))
    unknown = (h.Query(ids=(h.NOBODY,)), h.Wait(66), h.Switch(), h.Query(), h.Wait(66))
    heard = (h.Create(), h.Wait(66), *gone, *unknown)
    fixed += [h.History(h.Setting(order="nothing", ids_again=0), (*events, *again)) for events in (known, heard)]
    methods = h.Setting(methods=3, delays=((1, 16), (70, 70), (1, 140)), tasks="w", full_crawl_interval=640)
    made = (h.Create(), h.Query(), h.Create(form="bomb"), h.Create(form="coding"), h.Wait(63), h.Clock(by_s=-3600))
    told = (h.Switch(), h.Store("stopped"), h.Switch(), h.Wait(130), h.Store(), h.Wait(200), h.Query(methods=(1,)))
    fixed += [h.History(methods, (*made, *told, h.Switch()))]
    return [*fixed, *map(FleetWorld.drawn, range(HISTORIES))]


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


class Waiting(FleetWorld):
    async def _took(self, event: h.Event) -> float:
        began = self._loop.time()
        await self._clients[0].act(event)
        return self._loop.time() - began

    async def _play(self, events: tuple[h.Event, ...]) -> None:
        await self._clients[0].initialize()
        for state in ("stopped", "killed", "full", "well"):
            await self._redis.become(state)
            for _ in range(15):  # the store is found out, is tried again, and again
                assert await self._took(h.Get(which=h.NOBODY)) <= EXCHANGE_S
                assert await self._took(h.Create()) <= EXCHANGE_S
                assert await self._took(h.Query()) <= TIMEOUT_S + EXCHANGE_S
                await asyncio.sleep(0.11)


def test_a_query_waits_no_longer_than_the_timeout_and_a_relayed_message_not_at_all() -> None:
    play(h.History(h.Setting(max_age=0, order="nothing")), Waiting)
