"""`python -m tests.soak --storm EXCHANGES [--seed SEED]`: a storm (storm.py) on the command as a process.

`--cuts` in place of `--storm`: one in which a side of every exchange dies at a byte of its message (cuts.py). The exit
status says whether anything was found.
"""

import argparse
import asyncio
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests import peer
from tests.launch import Gateways
from tests.soak import census, cuts, storm
from tests.soak.upstream import Upstream

WARM_UP: Final = 2000  # exchanges, after which all that is made once has been made
PATIENCE_S: Final = 20.0  # of a client: so many at once are slow on a busy machine


async def blow(seed: int, exchanges: int, directory: Path, of_cuts: bool) -> None:
    """Play a storm."""
    settings, draw = (cuts.SETTINGS, cuts.draw) if of_cuts else (census.SETTINGS, storm.draw)
    async with Upstream() as upstream, census.process(Gateways(directory), upstream, settings) as gate:
        blown = await storm.blow(gate, upstream, seed, exchanges, WARM_UP, draw)
    print(blown)
    assert not blown.findings, f"{len(blown.findings)} findings"


def main() -> None:
    """Run the command with the process's arguments."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("--storm", type=int, metavar="EXCHANGES", help="a storm of so many")
    parser.add_argument("--cuts", type=int, metavar="EXCHANGES", help="a storm of so many, each cut on one side")
    parser.add_argument("--seed", type=int, default=1, help="of the first conversation (1)")
    given = parser.parse_args()
    if (given.storm is None) is (given.cuts is None):
        parser.error("one of --storm EXCHANGES and --cuts EXCHANGES is needed")
    peer.WAIT_S = PATIENCE_S  # type: ignore[misc]
    try:
        with TemporaryDirectory(prefix="taskgate-storm-") as directory:
            asyncio.run(blow(given.seed, given.storm or given.cuts, Path(directory), given.cuts is not None))
    except AssertionError as found:
        sys.exit(str(found))


if __name__ == "__main__":
    main()
