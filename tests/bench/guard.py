"""Section `guard`: what each kind of relayed traffic costs in this tree, against a commit; and with all guards on.

How: the commit's tree is checked out into a temporary folder. All gateways run on the same core, and are measured in
turn with each kind of traffic.py, in short rounds whose order changes. Always: a kind that costs `LIMIT` times as much
as in the commit, or more, fails the bench, and the error names it.
"""

import asyncio
import subprocess
import tempfile
from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from tests.bench import proc, traffic
from tests.bench.processes import BenchFailed, child, gateway
from tests.bench.relay import Way
from tests.bench.report import Column, Options, Table, progress, spread_percent
from tests.launch import ROOT

LIMIT: Final = 1.10  # times the CPU of the commit
ROUNDS_MIN: Final = 9
ALL_OFF: Final[dict[str, Any]] = {"metrics": {"tasks": False}}
ALL_ON: Final[dict[str, Any]] = {
    "guards": {"own_tasks": True, "task_operations_per_second": 100_000, "task_operations_burst": 1_000_000}
}


async def run(options: Options) -> list[Table]:
    """Measure, and make the tables. Raises BenchFailed where a kind costs `LIMIT` times what it did, or more."""
    rounds = max(options.rounds, ROUNDS_MIN)
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="taskgate-guard-")))
        await asyncio.to_thread(check_out, options.against, folder)
        upstream = await stack.enter_async_context(child(proc.cores().others, "world"))
        load = await stack.enter_async_context(child(proc.cores().others, "load"))
        ways = []
        for name, tree, keys in (
            (options.against, folder, None),
            ("this tree", ROOT, None),
            ("all off", ROOT, ALL_OFF),
            ("all on", ROOT, ALL_ON),
        ):
            served = await stack.enter_async_context(gateway(proc.cores().measured, upstream.url, tree=tree, keys=keys))
            ways.append(Way(name, served.url, served.pid))
            await answered(served.url, traffic.makings(served.url))  # so that they are the callers' own
        for number in range(rounds):
            progress(f"guard: round {number + 1} of {rounds}")
            for kind in traffic.KINDS:
                for way in ways if number % 2 else reversed(ways):
                    await way.measure_kind(load, kind)
    before, now, off, on = ways
    guarded = _table(f"with all guards, against none and no metrics of tasks, {rounds} rounds", off, on)
    return [_judged(before, now, rounds), guarded]


async def answered(url: str, requests: Iterable[str]) -> None:
    """Send requests in turn. Raises BenchFailed for an answer without a task."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    for request in requests:
        writer.write(request.encode())
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        if b'"taskId"' not in await reader.readexactly(length):
            raise BenchFailed(f"no task in the answer: {head!r}")
    writer.close()
    await writer.wait_closed()


def _judged(before: Way, now: Way, rounds: int) -> Table:
    table = _table(f"against {before.name}", before, now)
    table.notes.append(f"median of {rounds} rounds; ratios are taken within a round; allowed: under {LIMIT}")
    ratios = {kind.name: now.times(before, kind.name, "cpu_us") for kind in traffic.KINDS}
    if worse := [f"{name}: {ratio:.2f}" for name, ratio in ratios.items() if ratio >= LIMIT]:
        raise BenchFailed("\n".join([*table.lines(), f"more CPU than {before.name}: {', '.join(worse)}"]))
    return table


def _table(what: str, before: Way, now: Way) -> Table:
    title = f"CPU time of the gateway for a message, us, {traffic.CONNECTIONS} connections, {what}"
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
