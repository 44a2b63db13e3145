"""Section `stdio`: what `taskgate stdio` adds to a server that a host starts.

How: a host starts the server, writes a ping, and takes the time until the first byte comes back; then it sends pings,
one after another, and a line of 100 MB. The server alone and through the gateway take turns. Two servers: `cat`, which
is up at once, and the TypeScript SDK's reference server, where it is installed, which starts while the gateway does.
"""

import asyncio
import os
import select
import shutil
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Final

from tests.bench.processes import BenchFailed
from tests.bench.report import Column, Goal, Options, Table, progress, ratio, spread_percent

PING: Final = b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n'
PINGS: Final = 300
LARGE_BYTES: Final = 100_000_000
START_MS_MAX: Final = 150
WAIT_S: Final = 30.0
_GATEWAY: Final = (sys.executable, "-m", "gateway", "stdio", "--")
_ROOT: Final = Path(__file__).parents[2]
_EVERYTHING: Final = _ROOT / "tests/node/node_modules/@modelcontextprotocol/server-everything/dist/index.js"


@dataclass
class Figures:
    """One way: milliseconds to the first byte, microseconds of a ping, megabytes per second."""

    start_ms: list[float]
    ping_us: list[float]
    large_mb_per_s: list[float]


def _servers() -> dict[str, list[str]]:
    servers = {"cat": ["cat"]}
    if (node := shutil.which("node")) and _EVERYTHING.exists():
        servers["server-everything"] = [node, str(_EVERYTHING), "stdio"]
    return servers


def _measure(command: list[str], large: bool, figures: Figures) -> None:
    """Start a server and talk to it."""
    began = perf_counter()
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=_ROOT, bufsize=0
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(PING)
        if not os.read(process.stdout.fileno(), 1 << 16):
            raise BenchFailed(f"{command} says nothing")
        figures.start_ms.append((perf_counter() - began) * 1000)
        took = []
        for _ in range(PINGS):
            began = perf_counter()
            process.stdin.write(PING)
            os.read(process.stdout.fileno(), 1 << 16)
            took.append((perf_counter() - began) * 1e6)
        figures.ping_us.append(statistics.median(took))
        if large:
            figures.large_mb_per_s.append(_large(process))
        process.stdin.close()
        process.wait(WAIT_S)


def _large(process: "subprocess.Popen[bytes]") -> float:
    """One line there and back, in megabytes per second."""
    assert process.stdin is not None and process.stdout is not None
    writer, reader = process.stdin.fileno(), process.stdout.fileno()
    os.set_blocking(writer, False)
    piece, sent, received = b"x" * 65536, 0, 0
    began = perf_counter()
    while received < LARGE_BYTES:
        readable, writable, _ = select.select([reader], [writer] if sent < LARGE_BYTES else [], [])
        if writable:
            sent += os.write(writer, piece[: LARGE_BYTES - sent - 1] or b"\n")
        if readable:
            received += len(os.read(reader, 1 << 20))
    return LARGE_BYTES / 1e6 / (perf_counter() - began)


async def run(options: Options) -> list[Table]:
    return [await asyncio.to_thread(_compare, name, server, options.rounds) for name, server in _servers().items()]


def _compare(name: str, server: list[str], rounds: int) -> Table:
    progress(f"stdio: {name}, {rounds} rounds")
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))  # of this thread, and of what it starts: as a host does
    alone, through = Figures([], [], []), Figures([], [], [])
    _measure([*_GATEWAY, *server], False, Figures([], [], []))  # compiles
    for _ in range(rounds):
        for command, figures in ((server, alone), ([*_GATEWAY, *server], through)):
            _measure(command, name == "cat", figures)
    table = Table(
        f"A server on stdio that a host starts: {name}",
        "way",
        [
            Column("first byte ms", 1),
            Column("added ms", 1),
            Column("ping us"),
            Column("added us"),
            Column("one line of 100 MB, MB/s"),
            Column("x alone", 2),
            Column("spread of starts %"),
        ],
    )
    base = [_median(alone.start_ms), _median(alone.ping_us), _median(alone.large_mb_per_s)]
    for label, figures in (("alone", alone), ("taskgate stdio", through)):
        start, ping, large = _median(figures.start_ms), _median(figures.ping_us), _median(figures.large_mb_per_s)
        table.add(
            label,
            *(start, start - base[0], ping, ping - base[1]),
            *((large, ratio(large, base[2])) if figures.large_mb_per_s else (None, None)),
            spread_percent(figures.start_ms),
        )
    added = _median(through.start_ms) - base[0]
    table.goals.append(Goal("start to the first passed byte, beyond the server's own", START_MS_MAX, "ms", added))
    return table


def _median(values: list[float]) -> float:
    return statistics.median(values) if values else 0.0
