"""Section `peers`: what a user could pick instead of taskgate, on the same work.

    proxies of bytes   nginx, HAProxy, Envoy, Envoy with its filter for MCP; taskgate
    MCP gateways       FastMCP's proxy, mcp-proxy, ContextForge: each a server to its clients, and a client itself

How: the mix of relay's section, which only proxies of bytes can carry: its server opens no sessions. Then, through all
of them, calls of a tool of a real server (the Python SDK's) in sessions of its own, over several connections and over
one. The ways take turns, in short rounds whose order changes.

A peer runs as its documents say, with one process and without logs. CPU time and memory are the peer's own, the memory
after all rounds. Peers that are not installed are left out, and the table says so.
"""

from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final

from tests.bench import peer_programs, proc, relay, traffic
from tests.bench.httpclient import Client, request_body
from tests.bench.processes import BenchFailed, Child, Served, child, rig
from tests.bench.relay import Way
from tests.bench.report import Column, Options, Table, progress, spread_percent

CALLERS: Final = 8
SECONDS: Final = 5.0  # a call through the slowest took more than 1.5 s on a busy machine
CALLS: Final = f"{CALLERS} callers"
ONE: Final = "1 caller"
_ANSWER: Final = "released"  # by the tool that a call names, whatever the task
_UNKNOWN: Final = "00000000-0000-4000-8000-000000000000"


async def run(options: Options) -> list[Table]:
    async with rig(child("world")) as (stack, world, load):
        carriers = await _ways(stack, world)
        of_mix = partial(relay.measure_kind, load, traffic.MIX)
        await relay.in_rounds("peers: the mix", options.rounds, carriers, of_mix)
    async with rig(peer_programs.server()) as (stack, server, load):
        ways = await _ways(stack, server)
        await _add(stack, ways, peer_programs.GATEWAYS, server)
        await relay.in_rounds("peers: calls", options.rounds, ways, partial(_measure, load))
        memory = {way.name: proc.rss_bytes(way.pid) / 1e6 for way in ways if way.pid is not None}
    return [_costs(ways, carriers, memory, options.rounds)]


async def _ways(stack: AsyncExitStack, upstream: Served) -> list[Way]:
    found = await relay.ways(stack, upstream)
    await _add(stack, found, peer_programs.CARRIERS, upstream)
    return found


async def _add(stack: AsyncExitStack, ways: list[Way], peers: dict[str, peer_programs.Serving], server: Served) -> None:
    """Add those of the peers that are installed, in front of a server."""
    for name, serving in peers.items():
        if peer_programs.executable(name) is not None:
            progress(f"peers: {name} starts")
            served = await stack.enter_async_context(serving(proc.cores().measured, server.url))
            ways.append(Way(name, served.url, served.pid))


async def _caller(way: Way) -> Client:
    client = await Client.connect(way.url)
    await client.initialize()
    return client


def _call(way: Way) -> dict[str, Any]:
    """The parameters of the measured call; the tools' names may begin with a prefix."""
    return {"name": peer_programs.TOOL_PREFIXES.get(way.name, "") + "release", "arguments": {"taskId": _UNKNOWN}}


async def _measure(load: Child, way: Way) -> None:
    """One round of calls, over several connections, each with a session, and over one."""
    await _check(way)
    callers = [await _caller(way) for _ in range(CALLERS)]
    try:
        each = [[caller.request(request_body("tools/call", _call(way))).decode()] for caller in callers]
        await way.measure(load, CALLS, SECONDS, each)
        await way.measure(load, ONE, SECONDS, each[:1])
    finally:
        for caller in callers:
            caller.close()
    await _check(way)


async def _check(way: Way) -> None:
    """See that the measured call is answered by the server. A limit that refuses calls would look fast."""
    caller = await _caller(way)  # its own: a slow way's connections may have been idle for too long
    try:
        answer = await caller.ask("tools/call", _call(way))
    finally:
        caller.close()
    if answer.get("content") != [{"type": "text", "text": _ANSWER}]:
        raise BenchFailed(f"a call through {way.name} was answered {answer}")


def _costs(ways: list[Way], carriers: list[Way], memory: dict[str, float], rounds: int) -> Table:
    columns = [Column("the mix, requests/s"), Column("calls/s"), Column("calls x directly", 2)]
    columns += [
        Column("spread of rounds %"),
        Column("CPU us/call"),
        Column("added ms, 1 caller", 2),
        Column("memory MB"),
    ]
    title = f"The mix, {traffic.CONNECTIONS} connections; then calls of a tool of a real server, {CALLS}"
    table = Table(title, "way", columns)
    of_mix = {way.name: way.median(traffic.MIX.name, "per_second") for way in carriers}
    direct = ways[0]
    for way in ways:
        proxied = way.pid is not None
        table.add(
            way.name,
            of_mix.get(way.name),
            way.median(CALLS, "per_second"),
            way.times(direct, CALLS, "per_second"),
            spread_percent([one["per_second"] for one in way.rounds[CALLS]]),
            way.median(CALLS, "cpu_us") if proxied else None,
            (way.median(ONE, "median_us") - direct.median(ONE, "median_us")) / 1000 if proxied else None,
            memory.get(way.name),
        )
    wanted = (*peer_programs.CARRIERS, relay.ENVOY, relay.ENVOY_MCP, *peer_programs.GATEWAYS)
    if missing := [name for name in wanted if name not in memory]:
        table.notes.append(f"not installed, and left out: {', '.join(missing)}")
    table.notes += [
        f"median of {rounds} rounds; the server shares its core with the load, and bounds the calls of quick ways",
        f"{peer_programs.MCP_PROXY}'s server is on stdio, which the direct way's is not",
    ]
    return table
