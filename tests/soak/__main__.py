"""`python -m tests.soak SEED [TIMES]`: play again the round that a failure has named, on asyncio's loop.

`python -m tests.soak --storm EXCHANGES [--seed SEED]`: a storm (storm.py) on the command as a process. `--cuts` in
place of `--storm`: one in which a side of every exchange dies at a byte of its message (cuts.py). A round is played 20
times unless said, since what happens at once need not happen in the same order. The exit status says what was found.
"""

import argparse
import asyncio
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests import peer
from tests.launch import Gateways
from tests.soak import cuts, storm
from tests.soak.census import in_process, process
from tests.soak.plan import draw
from tests.soak.play import Player
from tests.soak.upstream import Upstream

WARM_UP: Final = 2000  # exchanges, after which all that is made once has been made
PATIENCE_S: Final = 20.0  # of a client: so many at once are slow on a busy machine


async def play(seed: int, times: int) -> None:
    print(draw(seed))
    async with Upstream() as upstream, in_process(upstream) as gate:
        await Player(gate.port, upstream, gate.left).play([seed] * times)
    print(f"{times} times without a fault")


async def blow(seed: int, exchanges: int, directory: Path, of_cuts: bool) -> None:
    """Play a storm."""
    settings, draw = (cuts.SETTINGS, cuts.draw) if of_cuts else (storm.STORM_SETTINGS, storm.draw)
    async with Upstream() as upstream, process(Gateways(directory), upstream, settings) as gate:
        blown = await storm.blow(gate, upstream, seed, exchanges, WARM_UP, draw)
    print(blown)
    assert not blown.findings, f"{len(blown.findings)} findings"


def main() -> None:
    """Run the command with the process's arguments."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("seed", type=int, nargs="?", help="of the round to play again")
    parser.add_argument("times", type=int, nargs="?", default=20)
    parser.add_argument("--storm", type=int, metavar="EXCHANGES", help="a storm of so many")
    parser.add_argument("--cuts", type=int, metavar="EXCHANGES", help="a storm of so many, each cut on one side")
    parser.add_argument("--seed", type=int, default=1, dest="first", help="of the storm's first conversation (1)")
    given = parser.parse_args()
    if [given.storm, given.cuts, given.seed].count(None) != 2:
        parser.error("one of SEED, --storm EXCHANGES and --cuts EXCHANGES is needed")
    try:
        if given.seed is not None:
            asyncio.run(play(given.seed, given.times))
            return
        peer.WAIT_S = PATIENCE_S  # type: ignore[misc]
        with TemporaryDirectory(prefix="taskgate-storm-") as directory:
            asyncio.run(blow(given.first, given.storm or given.cuts, Path(directory), given.cuts is not None))
    except AssertionError as found:
        sys.exit(str(found))


if __name__ == "__main__":
    main()
