"""Rounds. In each an upstream dies or a client leaves, at a random byte: no whole answer is wrong, nothing is left.

SOAK_FIRST and SOAK_ROUNDS choose others or more, `python -m tests.soak SEED` repeats one.
"""

import asyncio
import os
from typing import Final

import pytest

from tests.launch import Gateways
from tests.soak.census import in_process, process, traced
from tests.soak.play import Player
from tests.soak.upstream import Upstream

FIRST: Final = int(os.environ.get("SOAK_FIRST", "1"))
ROUNDS: Final = int(os.environ.get("SOAK_ROUNDS", "400"))
WARM_UP: Final = 200  # rounds, after which all that is made once has been made
TRACED_FROM: Final = ROUNDS * 3 // 4  # to be traced takes time
ROUND_BYTES_MAX: Final = 200  # of what the gateway's code has allocated, for each round: the last 10,000 ends of tasks
PROCESS_GROWTH_BYTES_MAX: Final = 4_000_000


@pytest.fixture(scope="session")
def gateways(tmp_path_factory: pytest.TempPathFactory) -> Gateways:
    return Gateways(tmp_path_factory.mktemp("soak"))


async def test_rounds_on_the_loop_of_asyncio() -> None:
    asyncio.get_running_loop().set_debug(False)
    async with Upstream() as upstream, in_process(upstream) as gate:
        player = Player(gate.port, upstream, gate.left)
        await player.play(range(FIRST, FIRST + WARM_UP))
        await player.forget_sessions()
        before = await gate.count()
        await player.play(range(FIRST + WARM_UP, FIRST + TRACED_FROM))
        early = await traced(player, gate, range(FIRST + TRACED_FROM, FIRST + TRACED_FROM + WARM_UP // 10))
        after = await traced(player, gate, range(FIRST + TRACED_FROM + WARM_UP // 10, FIRST + ROUNDS))
    after.check(early, ROUND_BYTES_MAX * (ROUNDS - TRACED_FROM))
    after.check(before, after.memory_bytes)


async def test_rounds_on_the_loop_of_the_process(gateways: Gateways) -> None:
    asyncio.get_running_loop().set_debug(False)
    async with Upstream() as upstream, process(gateways, upstream) as gate:
        player = Player(gate.port, upstream, gate.left)
        await player.play(range(FIRST, FIRST + WARM_UP))
        await player.forget_sessions()
        before = await gate.count()
        await player.play(range(FIRST + WARM_UP, FIRST + ROUNDS))
        await player.forget_sessions()
        after = await gate.count()
    after.check(before, PROCESS_GROWTH_BYTES_MAX)


async def test_an_idle_connection_to_the_upstream_holds_nothing_of_its_last_exchange() -> None:
    async with Upstream() as upstream, in_process(upstream) as gate:
        await Player(gate.port, upstream, gate.left).forget_sessions()
        objects = gate.objects()
        assert objects["gateway.upstream.server_connection.UpstreamConnection"] == len(upstream.lines) > 0
        of_clients = {"gateway.downstream.exchange.Exchange", "gateway.downstream.client_connection.ClientConnection"}
        assert not of_clients & set(objects)
