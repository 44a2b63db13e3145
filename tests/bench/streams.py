"""Section `streams`: memory per open event stream, and of bodies of 100 MB.

How: 20 streams are opened first, so that what a proxy loads and allocates once is there, then 200 more. Of bodies the
growth of the gateway's memory is told, at its peak over all rounds: up as JSON and as bytes, down as bytes and as an
event stream, every event of which the gateway looks at.
"""

import asyncio
from contextlib import AsyncExitStack
from typing import Final

from tests.bench import proc
from tests.bench.processes import BenchFailed, child, gateway, rig
from tests.bench.relay import GATEWAY, Way, ways
from tests.bench.report import Column, Goal, Options, Table, progress

STREAMS_WARM_UP: Final = 20
STREAMS: Final = 200
STREAM_BYTES_GOAL: Final = 40_000
SETTLE_SECONDS: Final = 0.5
SIZE_BYTES: Final = 100_000_000
GROWTH_MB_GOAL: Final = 5
ROUNDS_MAX: Final = 3

BODIES: Final = {
    "up, JSON": {"type": "application/json"},
    "up, bytes": {"type": "application/octet-stream"},
    "down, bytes": {"path": "/bytes"},
    "down, event stream": {"path": "/events"},
}


async def run(options: Options) -> list[Table]:
    bodies = await _bodies(min(options.rounds, ROUNDS_MAX))
    progress(f"streams: {STREAMS} open streams")
    held = await _open_streams()
    return [held, bodies]


async def _bodies(rounds: int) -> Table:
    table = Table(f"Bodies of {SIZE_BYTES / 1e6:.0f} MB", "body", [Column("growth of memory MB", 1)])
    async with rig(child("upstream")) as (stack, upstream, load):
        one = await stack.enter_async_context(gateway(upstream.url))
        for name, body in BODIES.items():
            progress(f"streams: bodies, {name}")
            grown_mb = 0.0
            for _ in range(rounds):
                proc.reset_peak(one.pid)
                before_bytes = proc.rss_bytes(one.pid)
                done = await load.ask("one", url=one.url, size=SIZE_BYTES, **body)
                if done["how"] != "whole" or done["refused"] or max(done["sent"], done["received"]) < SIZE_BYTES:
                    raise BenchFailed(f"{name}: {done}")
                grown_mb = max(grown_mb, (proc.peak_bytes(one.pid) - before_bytes) / 1e6)
            table.add(name, grown_mb)
            table.goals.append(Goal(f"growth, {name}", GROWTH_MB_GOAL, "MB", grown_mb))
    table.notes.append(f"the largest growth of {rounds} rounds")
    return table


async def _open_streams() -> Table:
    columns = [Column("before MB", 1), Column("after MB", 1), Column("KB per stream", 1)]
    table = Table(f"Memory of {STREAMS} open GET streams, each after its first event", "way", columns)
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(child("upstream"))
        for way in await ways(stack, upstream):
            if way.pid is None:
                continue
            before_bytes, after_bytes = await _grown(way, way.pid)
            per_stream = (after_bytes - before_bytes) / STREAMS
            table.add(way.name, before_bytes / 1e6, after_bytes / 1e6, per_stream / 1e3)
            if way.name == GATEWAY:
                table.goals.append(Goal("memory per open stream", STREAM_BYTES_GOAL, "bytes", per_stream))
    return table


async def _grown(way: Way, pid: int) -> tuple[int, int]:
    """The memory of a proxy with a few streams open, and with `STREAMS` more."""
    async with child("load") as load:
        await load.ask("hold", url=way.url, count=STREAMS_WARM_UP, streams=True)
        await asyncio.sleep(SETTLE_SECONDS)
        before_bytes = proc.rss_bytes(pid)
        still = await load.ask("hold", url=way.url, count=STREAMS, streams=True)
        await asyncio.sleep(SETTLE_SECONDS)
        after_bytes = proc.rss_bytes(pid)
        await load.ask("release")
    if still["open"] != STREAMS_WARM_UP + STREAMS:
        raise BenchFailed(f"of {STREAMS_WARM_UP + STREAMS} streams only {still['open']} stayed open")
    return before_bytes, after_bytes
