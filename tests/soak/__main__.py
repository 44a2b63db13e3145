"""`python -m tests.soak SEED [TIMES]`: play again the round that a failure has named, on asyncio's loop.

In: its seed, and how often (20 times unless said), since what happens at once need not happen in the same order. Out:
the round, and at the first failure what was wrong; the exit status says whether there was one.
"""

import asyncio
import sys

from tests.soak.census import in_process
from tests.soak.plan import draw
from tests.soak.play import Player
from tests.soak.upstream import Upstream


async def main(seed: int, times: int) -> None:
    """Play it."""
    print(draw(seed))
    async with Upstream() as upstream, in_process(upstream) as gate:
        await Player(gate.port, upstream, gate.left).play([seed] * times)
    print(f"{times} times without a fault")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    try:
        asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) == 3 else 20))
    except AssertionError as found:
        sys.exit(str(found))
