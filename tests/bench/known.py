"""Section `known`: what a message costs beside what is known of others (DESIGN 7.9).

How: six gateways of this tree on one core, of which five know something first, of other callers than those of the
traffic. Each kind is measured in turn, in short rounds whose order changes; a ratio is that to the gateway that knows
nothing else. Always: a kind that costs `LIMIT` times as much, or more, fails the bench, and the error names it.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from tests.bench import guard, proc, traffic
from tests.bench.processes import BenchFailed, child, gateway
from tests.bench.relay import Way
from tests.bench.report import Column, Options, Table, progress

LIMIT: Final = 1.10
CONNECTIONS: Final = 50  # that fill: each may add 50 heads
KEYS: Final[dict[str, Any]] = {"index": {"sessions_max": 20_000}}
KINDS: Final = tuple(kind for kind in traffic.KINDS if kind.varies and len(kind.methods) == 1)


class State(NamedTuple):
    """What a gateway knows: so many sessions, pages of tasks in each, or one task; and open streams."""

    name: str
    sessions: int = 0
    pages: int = 0
    streams: int = 0
    comes_again: bool = False  # before each round: a head is forgotten after a minute


STATES: Final = (
    State("nothing else"),
    State("1,000 sessions", 1000),
    State("10,000 sessions", 10_000),
    State("100,000 ids", 10, 20),
    State("5,000 streams", streams=5000),
    State("2,000 heads", 2000, comes_again=True),
)


async def run(options: Options) -> list[Table]:
    """Measure, and make the table. Raises BenchFailed."""
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(child(proc.cores().others, "world"))
        load = await stack.enter_async_context(child(proc.cores().others, "load"))
        ways = []
        for state in STATES:
            progress(f"known: {state.name}")
            served = await stack.enter_async_context(gateway(proc.cores().measured, upstream.url, KEYS))
            ways.append(Way(state.name, served.url, served.pid))
            await guard.answered(served.url, traffic.makings(served.url))
            await _tell(state, served.url)
            for _ in range(state.streams):
                await _open(served.url, stack)
        for number in range(options.rounds):
            progress(f"known: round {number + 1} of {options.rounds}")
            for state, way in zip(STATES, ways, strict=True):
                if state.comes_again:
                    await _tell(state, way.url)
            for kind in KINDS:
                for way in ways if number % 2 else reversed(ways):
                    await way.measure_kind(load, kind)
    return [_judged(ways, options.rounds)]


async def _tell(state: State, url: str) -> None:
    requests = list(traffic.by_others(url, state.sessions, state.pages))
    await asyncio.gather(*(guard.answered(url, requests[at::CONNECTIONS]) for at in range(CONNECTIONS)))


async def _open(url: str, stack: AsyncExitStack) -> None:
    """Open a stream, and keep it open as long as the stack."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    stack.callback(writer.close)
    writer.write(b"GET /mcp HTTP/1.1\r\nHost: %b\r\nAccept: text/event-stream\r\n\r\n" % parts.netloc.encode())
    if not (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 "):
        raise BenchFailed("a stream was not opened")


def _judged(ways: Sequence[Way], rounds: int) -> Table:
    first, worse = ways[0], list[str]()
    columns = [Column(f"{first.name}, us", 1), *(Column(way.name, 2) for way in ways[1:])]
    table = Table("CPU time of the gateway for a message, beside what is known of others", "kind", columns)
    for kind in KINDS:
        ratios = [way.times(first, kind.name, "cpu_us") for way in ways[1:]]
        table.add(kind.name, first.median(kind.name, "cpu_us"), *ratios)
        worse += [f"{kind.name}, {way.name}" for way, ratio in zip(ways[1:], ratios, strict=True) if ratio >= LIMIT]
    table.notes.append(f"times the first column, median of {rounds} rounds; allowed: under {LIMIT}")
    if worse:
        raise BenchFailed("\n".join([*table.lines(), f"more than where nothing is known: {'; '.join(worse)}"]))
    return table
