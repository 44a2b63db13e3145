"""Section `streams`: memory per open event stream, delay of events on 500 and 5,000 at once, bodies of 100 MB.

How: 20 streams are opened first, so that what a proxy loads and allocates once is there, then 200 more. Of bodies the
growth of the gateway's memory is told, at its peak over all rounds: up as JSON and as bytes, down as bytes and as an
event stream, every event of which the gateway looks at.

500 streams are held open for a minute, and 5,000 for 20 s, each way in turn, each with an event a second. A delay is
the time from the upstream's writing an event to the client's reading it, three processes and one clock. An event that
is lost, repeated, late by its order or on another stream ends the bench.
"""

import asyncio
import statistics
from contextlib import AsyncExitStack
from typing import Any, Final, NamedTuple

from tests.bench import proc
from tests.bench.options import Options
from tests.bench.processes import BenchFailed, Child, Served, child, gateway
from tests.bench.relay import DIRECT, GATEWAY, PLAIN, Way, ways
from tests.bench.report import Column, Goal, Table, progress, ratio

STREAMS_WARM_UP: Final = 20
STREAMS: Final = 200
STREAM_BYTES_GOAL: Final = 40_000
TICKING: Final = ((500, 60), (5000, 20))  # how many streams, for how many seconds
PERIOD_MS: Final = 1000
DELAY_MS_GOAL: Final = 5
SETTLE_SECONDS: Final = 0.5
SIZE_BYTES: Final = 100_000_000
GROWTH_MB_GOAL: Final = 5
ROUNDS_MAX: Final = 3


class Kind(NamedTuple):
    """A body of `SIZE_BYTES`: its path, and its media type if it goes up."""

    name: str
    path: str
    type: str | None


KINDS: Final = (
    Kind("up, JSON", "/sink", "application/json"),
    Kind("up, bytes", "/sink", "application/octet-stream"),
    Kind("down, bytes", "/bytes", None),
    Kind("down, event stream", "/events", None),
)


async def run(options: Options) -> list[Table]:
    bodies = await _bodies(min(options.rounds, ROUNDS_MAX))
    progress(f"streams: {STREAMS} open streams")
    held = await _open_streams()
    return [held, *[await _ticks(count, ticks) for count, ticks in TICKING], bodies]


async def _bodies(rounds: int) -> Table:
    table = Table(f"Bodies of {SIZE_BYTES / 1e6:.0f} MB", "body", [Column("MB/s"), Column("growth of memory MB", 1)])
    core, others = proc.cores()
    async with child(others, "upstream") as upstream, child(others, "load") as load, gateway(core, upstream.url) as one:
        for kind in KINDS:
            progress(f"streams: bodies, {kind.name}")
            figures = [await _transfer(load, one, kind) for _ in range(rounds)]
            rate, grown_mb = statistics.median(rate for rate, _ in figures), max(grown for _, grown in figures)
            table.add(kind.name, rate, grown_mb)
            table.goals.append(Goal(f"growth, {kind.name}", GROWTH_MB_GOAL, "MB", grown_mb))
    table.notes.append(f"{rounds} rounds: the median rate, and the largest growth")
    return table


async def _transfer(load: Child, one: Served, kind: Kind) -> tuple[float, float]:
    """One body: its megabytes a second, and the gateway's peak memory above that before."""
    proc.reset_peak(one.pid)
    before_bytes = proc.rss_bytes(one.pid)
    url = one.url.removesuffix("/mcp") + kind.path
    done = await load.ask("transfer", url=url, size=SIZE_BYTES, type=kind.type)
    return SIZE_BYTES / 1e6 / done["seconds"], (proc.peak_bytes(one.pid) - before_bytes) / 1e6


async def _open_streams() -> Table:
    table = Table(
        f"Memory of {STREAMS} open GET streams, each after its first event",
        "way",
        [Column("before MB", 1), Column("after MB", 1), Column("KB per stream", 1), Column("x plain", 2)],
    )
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(child(proc.cores().others, "upstream"))
        all_ways = await ways(stack, upstream)
        grown = {way.name: await _grown(way) for way in all_ways if way.pid is not None}
    per_stream = {name: (figures["after"] - figures["before"]) / STREAMS for name, figures in grown.items()}
    for name, figures in grown.items():
        table.add(
            name,
            *(figures["before"] / 1e6, figures["after"] / 1e6, per_stream[name] / 1e3),
            ratio(per_stream[name], per_stream[PLAIN]),
        )
    table.goals.append(Goal("memory per open stream", STREAM_BYTES_GOAL, "bytes", per_stream[GATEWAY]))
    return table


async def _grown(way: Way) -> dict[str, Any]:
    """The memory of a proxy with a few streams open, and with `STREAMS` more."""
    assert way.pid is not None
    async with child(proc.cores().others, "load") as load:
        await load.ask("open", url=way.url, count=STREAMS_WARM_UP)
        await asyncio.sleep(SETTLE_SECONDS)
        before_bytes = proc.rss_bytes(way.pid)
        still = await load.ask("open", url=way.url, count=STREAMS)
        await asyncio.sleep(SETTLE_SECONDS)
        after_bytes = proc.rss_bytes(way.pid)
        await load.ask("close")
    if still["open"] != STREAMS_WARM_UP + STREAMS:
        raise BenchFailed(f"of {STREAMS_WARM_UP + STREAMS} streams only {still['open']} stayed open")
    return {"before": before_bytes, "after": after_bytes}


async def _ticks(count: int, ticks: int) -> Table:
    table = Table(
        f"{count:,} open streams for {ticks} s, each with an event a second, spread over the second",
        "way",
        [
            Column("events"),
            *(Column("median ms", 2), Column("p99 ms", 2), Column("max ms", 2)),
            *(Column("proxy CPU %", 1), Column("CPU us/event", 1), Column("KB per stream", 1)),
        ],
    )
    median_ms = {}
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(child(proc.cores().others, "upstream"))
        load = await stack.enter_async_context(child(proc.cores().others, "load"))
        for way in [w for w in await ways(stack, upstream) if w.name != PLAIN]:
            progress(f"streams: {count} streams with an event a second for {ticks} s, {way.name}")
            cpu_s, peak_bytes = _spent(way.pid)
            came = await load.ask("listen", url=way.url, count=count, events=ticks, period_ms=PERIOD_MS)
            cpu_s, peak_bytes = (
                after - before for after, before in zip(_spent(way.pid), (cpu_s, peak_bytes), strict=True)
            )
            median_ms[way.name] = came["median_us"] / 1e3
            figures = [came[name] / 1e3 for name in ("median_us", "p99_us", "max_us")]
            spent = (cpu_s / ticks * 100, cpu_s / came["events"] * 1e6, peak_bytes / count / 1e3)
            table.add(way.name, came["events"], *figures, *(spent if way.pid is not None else [None] * 3))
    more_ms = median_ms[GATEWAY] - median_ms[DIRECT]
    table.goals.append(Goal("median delay beyond that directly", DELAY_MS_GOAL, "ms", more_ms))
    table.notes.append("every event came once and in order on its stream")
    return table


def _spent(pid: int | None) -> tuple[float, float]:
    return (0.0, 0.0) if pid is None else (proc.cpu_seconds(pid), proc.peak_bytes(pid))
