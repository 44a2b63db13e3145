"""Section `guard`: what a relayed `ping` costs in this tree, against a given commit.

How: the commit's tree is checked out into a temporary folder. Both gateways run on the same core, and are measured in
turn, in short rounds whose order changes. Always: a change of `LIMIT` or more fails the bench, and says so.
"""

import asyncio
import statistics
import subprocess
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from tests.bench import proc
from tests.bench.options import Options
from tests.bench.processes import BenchFailed, child, gateway
from tests.bench.relay import CONNECTIONS, Way
from tests.bench.report import Column, Goal, Table, progress, spread_percent
from tests.bench.upstream import BODY_BYTES
from tests.launch import ROOT

LIMIT: Final = 1.10  # times the CPU of the commit
ROUNDS_MIN: Final = 9
SECONDS: Final = 1.0


async def run(options: Options) -> list[Table]:
    """Measure, and make the table. Raises BenchFailed where this tree costs `LIMIT` times the commit, or more."""
    rounds = max(options.rounds, ROUNDS_MIN)
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="taskgate-guard-")))
        await asyncio.to_thread(_check_out, options.against, folder)
        upstream = await stack.enter_async_context(child(proc.cores().others, "upstream"))
        load = await stack.enter_async_context(child(proc.cores().others, "load"))
        ways = []
        for name, tree in ((options.against, folder), ("this tree", ROOT)):
            served = await stack.enter_async_context(gateway(proc.cores().measured, upstream.url, tree=tree))
            ways.append(Way(name, served.url, served.pid))
        for way in ways:
            await way.check()
        for number in range(rounds):
            progress(f"guard: round {number + 1} of {rounds}")
            for way in ways if number % 2 else reversed(ways):
                await way.measure(load, CONNECTIONS, SECONDS)
    before, now = ([r["cpu_us"] for r in way.many] for way in ways)
    ratio = statistics.median(n / b for n, b in zip(now, before, strict=True))
    table = Table(
        "guard",
        f"Relayed ping, {BODY_BYTES}-byte answer, {CONNECTIONS} connections, against {options.against}",
        "tree",
        [Column("requests/s"), Column("CPU us/request", 1), Column("spread of rounds %")],
    )
    for way, cpu in zip(ways, (before, now), strict=True):
        speeds = [r["per_second"] for r in way.many]
        table.add(way.name, statistics.median(speeds), statistics.median(cpu), spread_percent(cpu))
    table.goals.append(Goal("CPU against the commit", LIMIT, "times", ratio))
    if ratio >= LIMIT:
        print("\n".join(table.lines()))
        raise BenchFailed(f"a relayed ping costs {ratio:.2f} times the CPU of {options.against}; allowed: {LIMIT}")
    return [table]


def _check_out(commit: str, folder: Path) -> None:
    archive = subprocess.run(["git", "archive", commit, "gateway"], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        raise BenchFailed(f"--against {commit}: {archive.stderr.decode(errors='replace').strip()}")
    subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
