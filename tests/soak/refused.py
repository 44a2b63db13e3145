"""`python -m tests.soak.refused [LISTS]`: filtered lists of refused callers; 100,000 by default.

In: the number of lists. Out: what a query of the one known caller costs the upstream, before and after, with a server
that lists its tasks and with one whose list is always empty; the memory of the gateway's process (RSS), and the number
of its indexes. The exit status is 1 if a query costs more than before, a task is missing, or memory has grown by more
than `GROWTH_BYTES_MAX`. Always: the command as a process with its defaults, except `max_age`; kept connections, on
127.0.0.1.
"""

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.launch import Gateway, Gateways, listening, port_of
from tests.relay.flood import Guarded, caller, flood

LISTS: Final = 100_000
WARM_UP: Final = 2000  # what the first requests take is not given back
GROWTH_BYTES_MAX: Final = 4 * 2**20
_INDEX: Final = {"max_age": 0, "full_crawl_interval": "1h"}


def _rss(gateway: Gateway) -> int:
    """The bytes of the process in memory."""
    status = Path("/proc", str(gateway.running.popen.pid), "status").read_text().splitlines()
    [rss] = [int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS:")]
    return rss


async def _indexes(gateway: Gateway) -> int:
    return int((await gateway.metrics())["taskgate_index_sessions", ()])


async def siege(gateways: Gateways, upstream: Guarded, lists: int) -> bool:
    """Whether the one caller who is known saw nothing of so many refused lists."""
    with listening() as sock, gateways.process(port_of(sock), index=_INDEX, log={"level": "error"}) as gateway:
        async with upstream.on(sock), caller(gateway.port, upstream) as known:
            if not upstream.lists:
                await known.learn()
            first = await known.cost()
            usual = await known.cost()
            await flood(gateway.port, WARM_UP)
            rss, indexes, began_at = _rss(gateway), await _indexes(gateway), time.monotonic()
            await flood(gateway.port, lists, WARM_UP)
            took_s, rss_after, indexes_after = time.monotonic() - began_at, _rss(gateway), await _indexes(gateway)
            after = await known.cost()
    print(f"a server whose list {'shows its tasks' if upstream.lists else 'is always empty'}")
    print(f"  {lists:,} lists refused in {took_s:.0f} s; the upstream refused {upstream.refused - WARM_UP:,} requests")
    print(f"  upstream requests for a query: {first} the first time, {usual} then, {after} after them")
    print(f"  indexes {indexes} before, {indexes_after} after; RSS {rss / 2**20:.1f} MiB, then {rss_after / 2**20:.1f}")
    return after == usual and indexes_after == indexes and rss_after - rss <= GROWTH_BYTES_MAX


async def main(lists: int) -> int:
    """The command; returns its exit status."""
    with tempfile.TemporaryDirectory() as directory:
        gateways = Gateways(Path(directory))
        unseen = [await siege(gateways, Guarded(lists=shows), lists) for shows in (True, False)]
    return 0 if all(unseen) else 1


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.exit(__doc__)
    sys.exit(asyncio.run(main(int(sys.argv[1]) if len(sys.argv) == 2 else LISTS)))
