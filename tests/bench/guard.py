"""What each kind of relayed traffic costs: in this tree against a commit, and beside what is known of others.

Section `guard`: the commit's tree is checked out into a temporary folder.
Section `known` (DESIGN 7.9): five gateways of this tree know something first, of other callers than the traffic's.

How: all gateways of a section run on the same core, and are measured in turn with each kind of traffic.py, in short
rounds whose order changes. Always: a kind that costs `LIMIT` times as much as in the commit, or as where nothing else
is known, or more, fails the bench, and the error names it.
"""

import asyncio
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from tests.bench import traffic
from tests.bench.processes import BenchFailed, child, gateway, rig
from tests.bench.relay import Way, in_rounds, measure_kind
from tests.bench.report import Column, Options, Table, progress, spread_percent
from tests.bench.traffic import Kind
from tests.launch import ROOT
from tests.relay.wire import request
from tests.upstream import length_of

LIMIT: Final = 1.10  # times the CPU of the base
ROUNDS_MIN: Final = 9
CONNECTIONS: Final = 50  # that tell of others: each may add 50 heads
KNOWING: Final[dict[str, Any]] = {"index": {"sessions_max": 20_000}}
KINDS: Final = tuple(kind for kind in traffic.KINDS if kind.varies and len(kind.methods) == 1)  # beside what is known


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
    """Measure, and make the tables. Raises BenchFailed where a kind costs `LIMIT` times what it did, or more."""
    rounds = max(options.rounds, ROUNDS_MIN)
    async with rig(child("world")) as (stack, upstream, load):
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="taskgate-guard-")))
        await asyncio.to_thread(check_out, options.against, folder)
        before = await _way(stack, options.against, upstream.url, tree=folder)
        now = await _way(stack, "this tree", upstream.url)
        await in_rounds("guard", rounds, [before, now], *(partial(measure_kind, load, kind) for kind in traffic.KINDS))
    table = _compared(before, now)
    table.notes.append(f"median of {rounds} rounds; ratios are taken within a round; allowed: under {LIMIT}")
    _judge(table, traffic.KINDS, before, [now])
    return [table]


async def run_known(options: Options) -> list[Table]:
    """The same for `known`."""
    async with rig(child("world")) as (stack, upstream, load):
        ways = []
        for state in STATES:
            progress(f"known: {state.name}")
            ways.append(way := await _way(stack, state.name, upstream.url, KNOWING))
            await _tell(state, way)
            for _ in range(state.streams):
                await _open(way.url, stack)
        states = {state.name: state for state in STATES}

        async def tell_again(way: Way) -> None:
            if states[way.name].comes_again:
                await _tell(states[way.name], way)

        works = [partial(measure_kind, load, kind) for kind in KINDS]
        await in_rounds("known", options.rounds, ways, tell_again, *works)
    first, others = ways[0], ways[1:]
    columns = [Column(f"{first.name}, us", 1), *(Column(way.name, 2) for way in others)]
    table = Table("CPU time of the gateway for a message, beside what is known of others", "kind", columns)
    for kind in KINDS:
        ratios = [way.times(first, kind.name, "cpu_us") for way in others]
        table.add(kind.name, first.median(kind.name, "cpu_us"), *ratios)
    table.notes.append(f"times the first column, median of {options.rounds} rounds; allowed: under {LIMIT}")
    _judge(table, KINDS, first, others)
    return [table]


async def _way(
    stack: AsyncExitStack, name: str, upstream: str, keys: dict[str, Any] | None = None, tree: Path = ROOT
) -> Way:
    """The way through a gateway that has been asked to make the tasks of all kinds: they are the callers' own."""
    served = await stack.enter_async_context(gateway(upstream, keys, tree))
    await _answered(served.url, traffic.makings(served.url))
    return Way(name, served.url, served.pid)


async def _answered(url: str, requests: Iterable[str]) -> None:
    """Send requests in turn. Raises BenchFailed for an answer without a task."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    for one in requests:
        writer.write(one.encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if b'"taskId"' not in await reader.readexactly(length_of(head)):
            raise BenchFailed(f"no task in the answer: {head!r}")
    writer.close()
    await writer.wait_closed()


async def _tell(state: State, way: Way) -> None:
    requests = list(traffic.by_others(way.url, state.sessions, state.pages))
    await asyncio.gather(*(_answered(way.url, requests[at::CONNECTIONS]) for at in range(CONNECTIONS)))


async def _open(url: str, stack: AsyncExitStack) -> None:
    """Open a stream, and keep it open as long as the stack."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    stack.callback(writer.close)
    writer.write(request(fields=[b"Accept: text/event-stream"]))
    if not (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 "):
        raise BenchFailed("a stream was not opened")


def _judge(table: Table, kinds: Iterable[Kind], base: Way, others: Sequence[Way]) -> None:
    """Raises BenchFailed where a kind costs `LIMIT` times as much as on the way of `base`, or more."""
    ratios = {f"{kind.name}, {way.name}": way.times(base, kind.name, "cpu_us") for kind in kinds for way in others}
    if worse := [f"{what}: {ratio:.2f}" for what, ratio in ratios.items() if ratio >= LIMIT]:
        raise BenchFailed("\n".join([*table.lines(), f"more CPU than {base.name}: {'; '.join(worse)}"]))


def _compared(before: Way, now: Way) -> Table:
    title = f"CPU time of the gateway for a message, us, {traffic.CONNECTIONS} connections, against {before.name}"
    columns = [Column(before.name, 1), Column(now.name, 1), Column("ratio", 3), Column("spread of ratios %", 1)]
    table = Table(title, "kind", columns)
    for kind in traffic.KINDS:
        pairs = zip(now.rounds[kind.name], before.rounds[kind.name], strict=True)
        ratios = [one["cpu_us"] / other["cpu_us"] for one, other in pairs]
        ratio = now.times(before, kind.name, "cpu_us")
        table.add(kind.name, *(way.median(kind.name, "cpu_us") for way in (before, now)), ratio, spread_percent(ratios))
    return table


def check_out(commit: str, folder: Path) -> None:
    """Put the gateway of a commit into a folder. Raises BenchFailed."""
    archive = subprocess.run(["git", "archive", commit, "gateway"], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        raise BenchFailed(f"--against {commit}: {archive.stderr.decode(errors='replace').strip()}")
    subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
