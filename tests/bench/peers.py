"""Section `peers`: what a user could pick instead of taskgate, on the same work, and what passes through it at all.

    proxies of bytes   nginx, HAProxy, Envoy, Envoy with its filter for MCP; taskgate from its sources, and compiled
    MCP gateways       FastMCP's proxy, mcp-proxy, ContextForge: each a server to its clients, and a client itself

How: the mix of relay's section, which only proxies of bytes can carry: its server opens no sessions. Then, through all
of them, calls of a tool of a real server (the Python SDK's) in sessions of its own, over several connections and over
one. The ways take turns, in short rounds whose order changes. What passes is decided by requests through each.

A peer runs as its documents say, with one process and without logs. CPU time and memory are the peer's own, the memory
after all rounds. Peers that are not installed are left out, and the table says so.
"""

from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final

import orjson

from tests.bench import peer_programs, proc, relay, traffic
from tests.bench.httpclient import PROTOCOL_VERSION, Client, request_body
from tests.bench.options import Options
from tests.bench.processes import BenchFailed, Child, Served, child
from tests.bench.relay import Way
from tests.bench.report import Column, Table, progress, spread_percent
from tests.launch import eventually

CALLERS: Final = 8
SECONDS: Final = 5.0  # a call through the slowest took more than 1.5 s on a busy machine
CALLS: Final = f"{CALLERS} callers"
ONE: Final = "1 caller"
YES: Final = "yes"
NO: Final = "no"
UNFILTERED: Final = "unfiltered"
_ANSWER: Final = "released"  # by the tool that `_CALL` names, whatever the task
_UNKNOWN: Final = "00000000-0000-4000-8000-000000000000"


@dataclass
class Passed:
    """What passes through a peer: `YES`, `NO`, or in place of a filtered list `UNFILTERED`."""

    declared: str
    made: str
    got: str
    listed: str
    filtered: str


class Caller:
    """A session through a way; the tools' names there may begin with a prefix."""

    def __init__(self, client: Client, prefix: str) -> None:
        self.client = client
        self._prefix = prefix
        self.capabilities: dict[str, Any] = {}

    @classmethod
    async def opened(cls, way: Way) -> "Caller":
        caller = cls(await Client.connect(way.url), peer_programs.TOOL_PREFIXES.get(way.name, ""))
        client = {"name": "bench", "version": "1"}
        asked = {"protocolVersion": PROTOCOL_VERSION, "capabilities": {}, "clientInfo": client}
        caller.capabilities = (await caller.ask("initialize", asked))["result"]["capabilities"]
        await caller.client.post(orjson.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}))
        return caller

    async def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request, an error too; it may come as JSON or as an event stream."""
        body = await self.client.post(request_body(method, params))
        lines = [line.removeprefix(b"data:") for line in body.splitlines() if line.startswith(b"data:")]
        answer: dict[str, Any] = orjson.loads(lines[-1] if lines else body)
        return answer

    def call(self, tool: str, arguments: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {"name": self._prefix + tool, "arguments": arguments, **more}

    def request(self) -> str:
        return self.client.request(request_body("tools/call", self.call("release", {"taskId": _UNKNOWN}))).decode()

    async def make_task(self, until: str) -> str | None:
        """The id of a task that a call has made; None if it has made none."""
        call = self.call("work", {"until": until, "label": until}, task={"ttl": 600_000})
        task_id: str | None = (await self.ask("tools/call", call)).get("result", {}).get("task", {}).get("taskId")
        return task_id

    async def listed(self, params: dict[str, Any]) -> list[str] | None:
        """The ids of the tasks in a list, in its order; None if there is no list."""
        tasks = (await self.ask("tasks/list", params)).get("result", {}).get("tasks")
        return None if tasks is None else [task["taskId"] for task in tasks]

    async def status(self, task_id: str | None) -> str | None:
        """A task's status; None if it cannot be had."""
        task = (await self.ask("tasks/get", {"taskId": task_id or _UNKNOWN})).get("result", {})
        return task["status"] if task.get("taskId") == task_id is not None else None


async def passes(way: Way) -> Passed:
    """Try a way: make two tasks, one of which ends; read one, list both, and ask for those that work."""
    caller = await Caller.opened(way)

    async def over() -> bool:
        return await caller.status(ended) != "working"

    try:
        ended, works = await caller.make_task("now"), await caller.make_task("released")
        await eventually(over, f"a task of {way.name} ends")
        made = ended is not None and works is not None
        got = await caller.status(works) == "working" and await caller.status(ended) == "completed"
        plain, filtered = await caller.listed({}), await caller.listed({"status": ["working"]})
        if works is not None:
            await caller.ask("tools/call", caller.call("release", {"taskId": works}))
    finally:
        caller.client.close()
    both = made and plain is not None and {ended, works} <= set(plain)
    declared = "call" in caller.capabilities.get("tasks", {}).get("requests", {}).get("tools", {})
    verdict = YES if both and filtered == [works] else UNFILTERED if both and filtered == plain else NO
    return Passed(_word(declared), _word(made), _word(got), _word(both), verdict)


def _word(passed: bool) -> str:
    return YES if passed else NO


async def run(options: Options) -> list[Table]:
    others = proc.cores().others
    async with AsyncExitStack() as stack:
        world = await stack.enter_async_context(child(others, "world"))
        load = await stack.enter_async_context(child(others, "load"))
        carriers = await _ways(stack, world)
        for number in range(options.rounds):
            progress(f"peers: the mix, round {number + 1} of {options.rounds}")
            for way in relay.turned(carriers, number):
                await way.measure_kind(load, traffic.MIX)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(peer_programs.server(others))
        load = await stack.enter_async_context(child(others, "load"))
        ways = await _ways(stack, server)
        missing = await _add_gateways(stack, ways, server)
        progress("peers: what passes through each")
        passed = {way.name: await passes(way) for way in ways}
        for number in range(options.rounds):
            progress(f"peers: calls, round {number + 1} of {options.rounds}")
            for way in relay.turned(ways, number):
                await _measure(way, load)
        memory = {way.name: proc.rss_bytes(way.pid) / 1e6 for way in ways if way.pid is not None}
    left_out = [f"not installed, and left out: {', '.join(missing)}"] if missing else []
    return [_passed(ways, passed, left_out), _costs(ways, carriers, memory, options.rounds, left_out)]


async def _ways(stack: AsyncExitStack, upstream: Served) -> list[Way]:
    direct, *found = await relay.ways(stack, upstream, plain=False)
    carriers = []
    for name, serving in peer_programs.CARRIERS.items():
        if peer_programs.executable(name) is not None:
            served = await stack.enter_async_context(serving(proc.cores().measured, upstream.url))
            carriers.append(Way(name, served.url, served.pid))
    return [direct, *carriers, *found]


async def _add_gateways(stack: AsyncExitStack, ways: list[Way], server: Served) -> list[str]:
    """Add the MCP gateways in front of a server. The names of all peers that are not installed."""
    for name, serving in peer_programs.GATEWAYS.items():
        if peer_programs.executable(name) is not None:
            progress(f"peers: {name} starts")
            served = await stack.enter_async_context(serving(proc.cores().measured, server.url))
            ways.append(Way(name, served.url, served.pid))
    present = {way.name for way in ways}
    wanted = (*peer_programs.CARRIERS, relay.ENVOY, relay.ENVOY_MCP, *peer_programs.GATEWAYS)
    return [name for name in wanted if name not in present]


async def _measure(way: Way, load: Child) -> None:
    """One round of calls, over several connections, each with a session, and over one."""
    await _check(way)
    callers = [await Caller.opened(way) for _ in range(CALLERS)]
    try:
        each = [[caller.request()] for caller in callers]
        for what, some in ((CALLS, each), (ONE, each[:1])):
            await way.measure(load, what, SECONDS, each=some, connections=len(some))
    finally:
        for caller in callers:
            caller.client.close()
    await _check(way)


async def _check(way: Way) -> None:
    """See that the measured call is answered by the server. A limit that refuses calls would look fast."""
    caller = await Caller.opened(way)  # its own: a slow way's connections may have been idle for too long
    try:
        answer = await caller.ask("tools/call", caller.call("release", {"taskId": _UNKNOWN}))
    finally:
        caller.client.close()
    if answer.get("result", {}).get("content") != [{"type": "text", "text": _ANSWER}]:
        raise BenchFailed(f"a call through {way.name} was answered {answer}")


def _passed(ways: list[Way], passed: dict[str, Passed], notes: list[str]) -> Table:
    columns = ["tasks declared", "a call makes a task", "tasks/get", "tasks/list", "filtered list"]
    title = "What passes: a server with tasks (Python SDK) behind each, tried with requests"
    table = Table(title, "way", [Column(name) for name in columns])
    for way in ways:
        found = passed[way.name]
        table.add(way.name, found.declared, found.made, found.got, found.listed, found.filtered)
    table.notes += ["unfiltered: the whole list comes, whatever was asked for", *notes]
    return table


def _costs(ways: list[Way], carriers: list[Way], memory: dict[str, float], rounds: int, notes: list[str]) -> Table:
    columns = [
        Column("the mix, requests/s"),
        Column("calls/s"),
        Column("calls x directly", 2),
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
    table.notes += [
        f"median of {rounds} rounds; the server shares its core with the load, and bounds the calls of quick ways",
        f"{peer_programs.MCP_PROXY}'s server is on stdio, which the direct way's is not",
        *notes,
    ]
    return table
