"""Section `guard`: what each kind of relayed traffic costs in this tree, against a commit.

How: the commit's tree is checked out into a temporary folder. Both gateways run on the same core, and are measured in
turn with each kind of traffic.py, in short rounds whose order changes. Always: a kind that costs `LIMIT` times as much
as in the commit, or more, fails the bench, and the error names it.
"""

import asyncio
import subprocess
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from tests.bench import proc, traffic
from tests.bench.processes import BenchFailed, child, gateway
from tests.bench.relay import Way
from tests.bench.report import Column, Options, Table, progress, spread_percent
from tests.launch import ROOT

LIMIT: Final = 1.10  # times the CPU of the commit
ROUNDS_MIN: Final = 9


async def run(options: Options) -> list[Table]:
    """Measure, and make the table. Raises BenchFailed where a kind costs `LIMIT` times what it did, or more."""
    rounds = max(options.rounds, ROUNDS_MIN)
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="taskgate-guard-")))
        await asyncio.to_thread(check_out, options.against, folder)
        upstream = await stack.enter_async_context(child(proc.cores().others, "world"))
        load = await stack.enter_async_context(child(proc.cores().others, "load"))
        ways = []
        for name, tree in ((options.against, folder), ("this tree", ROOT)):
            served = await stack.enter_async_context(gateway(proc.cores().measured, upstream.url, tree=tree))
            ways.append(Way(name, served.url, served.pid))
        for number in range(rounds):
            progress(f"guard: round {number + 1} of {rounds}")
            for kind in traffic.KINDS:
                for way in ways if number % 2 else reversed(ways):
                    await way.measure_kind(load, kind)
    before, now = ways
    return [_judged(before, now, rounds)]


def _judged(before: Way, now: Way, rounds: int) -> Table:
    title = f"CPU time of the gateway for a message, us, {traffic.CONNECTIONS} connections, against {before.name}"
    columns = [Column(before.name, 1), Column(now.name, 1), Column("ratio", 3), Column("spread of ratios %", 1)]
    table, worse = Table(title, "kind", columns), list[str]()
    for kind in traffic.KINDS:
        pairs = zip(now.rounds[kind.name], before.rounds[kind.name], strict=True)
        ratios = [one["cpu_us"] / other["cpu_us"] for one, other in pairs]
        ratio = now.times(before, kind.name, "cpu_us")
        table.add(kind.name, *(way.median(kind.name, "cpu_us") for way in (before, now)), ratio, spread_percent(ratios))
        worse += [f"{kind.name}: {ratio:.2f}"] if ratio >= LIMIT else []
    table.notes.append(f"median of {rounds} rounds; ratios are taken within a round; allowed: under {LIMIT}")
    if worse:
        raise BenchFailed("\n".join([*table.lines(), f"more CPU than {before.name}: {', '.join(worse)}"]))
    return table


def check_out(commit: str, folder: Path) -> None:
    """Put the gateway of a commit into a folder. Raises BenchFailed."""
    archive = subprocess.run(["git", "archive", commit, "gateway"], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        raise BenchFailed(f"--against {commit}: {archive.stderr.decode(errors='replace').strip()}")
    subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
