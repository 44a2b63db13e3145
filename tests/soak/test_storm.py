"""Storms: no whole answer is wrong, no body that was cut looks whole, on either side (DESIGN 3.5), and nothing is left.

STORM_EXCHANGES and CUTS_EXCHANGES set the numbers, STORM_SEED the first conversation.
"""

import os
import tracemalloc
from typing import Final

import pytest

from tests.garbage import kept_garbage, left_in_cycles
from tests.launch import Gateways
from tests.soak import cuts, storm
from tests.soak.census import in_process, process
from tests.soak.play import forget_sessions, settled
from tests.soak.upstream import Upstream

EXCHANGES: Final = int(os.environ.get("STORM_EXCHANGES", "800"))
CUT: Final = int(os.environ.get("CUTS_EXCHANGES", "500"))
SEED: Final = int(os.environ.get("STORM_SEED", "1"))
WARM_UP: Final = 400
WARM_UP_OF_CUTS: Final = 200
PLAYS_MAX: Final = 3  # a leak grows in each; a table that was grown only once, in one
EXCHANGE_BYTES_MAX: Final = 100  # of what the gateway's code has allocated: the last 10,000 ends of tasks


@pytest.fixture(scope="module")
def gateways(tmp_path_factory: pytest.TempPathFactory) -> Gateways:
    return Gateways(tmp_path_factory.mktemp("storm"))


async def test_a_storm_leaves_everything_as_it_was(gateways: Gateways) -> None:
    async with Upstream() as upstream, process(gateways, upstream) as gate:
        report = await storm.blow(gate, upstream, SEED, EXCHANGES, WARM_UP)
    assert report.promised > EXCHANGES / 3
    assert not report.findings, str(report)


@pytest.mark.slow
async def test_a_storm_on_the_loop_of_asyncio_leaves_no_object_no_byte_and_no_cycle() -> None:
    """Exchanges of every kind, hostile ones among them, and each way to end. The collector is off meanwhile."""
    async with Upstream() as upstream, in_process(upstream) as gate:
        played = storm.Storm(gate.port, upstream, gate.left)
        findings = (await played.play(1, WARM_UP)).findings
        tracemalloc.start()
        findings += (await played.play(WARM_UP, WARM_UP // 4)).findings
        growths_bytes = []
        for first in range(2, 2 + PLAYS_MAX):
            before = await storm.calm(gate, upstream)
            with kept_garbage():
                findings += (await played.play(first * WARM_UP, EXCHANGES // 4)).findings
                await upstream.deserted()
                left = left_in_cycles()
                assert not left, left
            after = await storm.calm(gate, upstream)
            after.check(before, storm.GROWTH_BYTES_MAX)
            growths_bytes.append(after.memory_bytes - before.memory_bytes)
            if growths_bytes[-1] <= EXCHANGE_BYTES_MAX * EXCHANGES // 4:
                break
        else:
            raise AssertionError(f"memory has grown by {growths_bytes} bytes")
    assert not findings, "\n".join(findings)


async def test_an_idle_connection_to_the_upstream_holds_nothing_of_its_last_exchange() -> None:
    async with Upstream() as upstream, in_process(upstream) as gate:
        await forget_sessions(gate.port, upstream)
        assert not await settled(upstream, gate.left)
        names = {name.rpartition(".")[2]: count for name, count in gate.objects().items()}
        assert names["UpstreamConnection"] == len(upstream.lines) > 0
        assert not {"Exchange", "ClientConnection"} & set(names)


async def test_either_side_dies_at_any_byte_of_any_framing(gateways: Gateways) -> None:
    async with Upstream() as upstream, process(gateways, upstream, cuts.SETTINGS) as gate:
        report = await storm.blow(gate, upstream, SEED, CUT, WARM_UP_OF_CUTS, cuts.draw)
    assert report.promised > 0
    assert not report.findings, str(report)
