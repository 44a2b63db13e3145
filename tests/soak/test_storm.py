"""A short storm; STORM_EXCHANGES sets its size, `python -m tests.soak --storm 50000` plays a long one."""

import asyncio
import os
import re
from collections.abc import Callable
from typing import Final

import pytest

from tests.garbage import kept_garbage, left_in_cycles
from tests.launch import Gateways
from tests.soak import storm
from tests.soak.census import in_process, process
from tests.soak.test_wilful import Patch, ends_what_was_cut, found_in_a_storm, serves_two_at_once
from tests.soak.upstream import Upstream

EXCHANGES: Final = int(os.environ.get("STORM_EXCHANGES", "1000"))
WARM_UP: Final = 400
# Each fault, and what is found. On a busy machine the client may leave before it reads what it should not get.
WILFUL: Final[dict[Callable[[Patch], None], str]] = {
    serves_two_at_once: "^foreign|before the last one was answered",
    ends_what_was_cut: "^a cut that looks whole",
}


async def test_a_storm_leaves_everything_as_it_was(tmp_path_factory: pytest.TempPathFactory) -> None:
    asyncio.get_running_loop().set_debug(False)
    gateways = Gateways(tmp_path_factory.mktemp("storm"))
    async with Upstream() as upstream, process(gateways, upstream, storm.STORM_SETTINGS) as gate:
        report = await storm.blow(gate, upstream, 1, EXCHANGES, WARM_UP)
    assert report.promised > EXCHANGES / 2
    assert not report.findings, str(report)


async def test_what_a_storm_leaves_is_in_no_cycle() -> None:
    """Exchanges of every kind, hostile ones among them, and each way to end. The collector is off meanwhile."""
    asyncio.get_running_loop().set_debug(False)
    async with Upstream() as upstream, in_process(upstream, storm.STORM_SETTINGS) as gate:
        played = storm.Storm(gate.port, upstream, gate.left)
        await played.play(1, WARM_UP // 10)
        with kept_garbage():
            report = await played.play(WARM_UP, EXCHANGES // 2)
            await upstream.deserted()
            await gate.count()
            assert not left_in_cycles()
    assert not report.findings, str(report)


@pytest.mark.parametrize("fault", WILFUL, ids=lambda fault: fault.__name__)
async def test_a_wilful_fault_is_found_in_a_storm(fault: Callable[[Patch], None], monkeypatch: Patch) -> None:
    found = await found_in_a_storm(fault, monkeypatch, WILFUL[fault], storm.STORM_SETTINGS, 120)
    assert re.search(WILFUL[fault], found, re.MULTILINE), found
