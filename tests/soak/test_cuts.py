"""No body that was cut looks whole, on either side (DESIGN 3.5).

CUTS_EXCHANGES and CUTS_REQUESTS set the numbers, `python -m tests.soak --cuts EXCHANGES` plays more.
"""

import asyncio
import os
import re
from collections.abc import Callable
from typing import Final

import pytest

from gateway.errors import GatewayError
from gateway.transport.body import Body
from tests.launch import Gateways
from tests.soak import cuts, rush, storm
from tests.soak.census import process
from tests.soak.test_wilful import Patch, ends_what_was_cut, found_in_a_storm
from tests.soak.upstream import Upstream

EXCHANGES: Final = int(os.environ.get("CUTS_EXCHANGES", "700"))
REQUESTS: Final = int(os.environ.get("CUTS_REQUESTS", "300"))
WARM_UP: Final = 200


@pytest.fixture(scope="module")
def gateways(tmp_path_factory: pytest.TempPathFactory) -> Gateways:
    return Gateways(tmp_path_factory.mktemp("cuts"))


async def test_either_side_dies_at_any_byte_of_any_framing(gateways: Gateways) -> None:
    asyncio.get_running_loop().set_debug(False)
    async with Upstream() as upstream, process(gateways, upstream, cuts.SETTINGS) as gate:
        report = await storm.blow(gate, upstream, 1, EXCHANGES, WARM_UP, cuts.draw)
    assert report.promised > 0
    assert not report.findings, str(report)


async def test_a_whole_request_whose_client_leaves_at_once_is_not_cut_and_ended(gateways: Gateways) -> None:
    """What the client's end dropped of a body was taken for its end: of 580 whole requests 56 were cut short."""
    asyncio.get_running_loop().set_debug(False)
    async with Upstream() as upstream, process(gateways, upstream, cuts.SETTINGS) as gate:
        came_whole, findings = await rush.play(gate.port, upstream, 1, REQUESTS)
        assert "differs from its length" not in gate.log  # that would be a fault of the gateway's
    assert came_whole > 0
    assert not findings, f"{len(findings)} of {came_whole}: {findings[:3]}"


def ends_a_request_that_was_cut(patch: Patch) -> None:
    """A request that the client broke off is ended as if it were whole."""
    fail = Body.fail

    def ending(self: Body, error: Exception) -> bool:
        if not isinstance(error, GatewayError):
            self.finish()
        return fail(self, error)

    patch.setattr(Body, "fail", ending)
    patch.setattr(Body, "drop", lambda self: self.take())


@pytest.mark.parametrize("fault", [ends_what_was_cut, ends_a_request_that_was_cut], ids=lambda fault: fault.__name__)
async def test_a_wilful_fault_is_found_among_cuts(fault: Callable[[Patch], None], monkeypatch: Patch) -> None:
    wanted = "^a cut that looks whole"
    found = await found_in_a_storm(fault, monkeypatch, wanted, cuts.SETTINGS, 300, cuts.draw)
    assert re.search(wanted, found, re.MULTILINE), found
