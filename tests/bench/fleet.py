"""Section `fleet`: three replicas behind HAProxy, with its recipe of deploy/balancing/, beside one gateway alone.

How: the demo's legacy server, 300 sessions of 30 tasks, ten a page. Each session asks a filtered
query, four more, and then one after each loss:

    killed        a replica is killed with SIGKILL, and every session asks; a request that is not answered is lost
    back          the replica runs again, HAProxy has found it, and every session asks
    in turn       each replica gets SIGTERM and runs again, one after the other; every session asks at each step

Indexes never grow too old here, so that a crawl is one that the session's way to a replica has caused. CPU time is that
of all replicas; memory their growth during the first queries. The second table has the balancer too.
"""

import asyncio
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from tests.bench import proc
from tests.bench.httpclient import Client, request_body
from tests.bench.options import Options
from tests.bench.processes import BenchFailed, Child, child
from tests.bench.report import Column, Table, progress, ratio
from tests.bench.sessions import WARM, filled
from tests.deploy.balancers import running
from tests.deploy.replicas import Replica
from tests.launch import Gateways, Process, eventually, held_port, port_of, ports

REPLICAS: Final = 3
SESSIONS: Final = 300
AT_ONCE: Final = 20
TASKS: Final = 30
PAGE: Final = 10
MORE: Final = 4
CONNECTIONS: Final = 32
PING_SECONDS: Final = 3.0
STREAMS: Final = 600
PARAMS: Final = {"status": ["working"]}


class Fleet:
    """Replicas in front of one upstream, and HAProxy in front of them if there are several."""

    def __init__(self, upstream: str, count: int, stack: ExitStack) -> None:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="taskgate-bench-")))
        at, gateways = urlsplit(upstream), Gateways(folder)
        self.replicas = [Replica(gateways, at.port or 80, *stack.enter_context(ports())) for _ in range(count)]
        for number, replica in enumerate(self.replicas):
            stack.callback(replica.close)
            self._start(number)
        self.balancer: Process | None = None
        origin = self.replicas[0].gateway.running.origin
        if count > 1:
            listen = port_of(stack.enter_context(held_port()))
            behind = [replica.ports for replica in self.replicas]
            self.balancer = stack.enter_context(running("haproxy", folder, listen, behind))
            proc.pin(self.balancer.popen.pid, proc.cores().others)
            origin = self.balancer.wait()
        self.url = f"{origin}{at.path}"

    def _start(self, number: int) -> None:
        replica = self.replicas[number]
        replica.start(index=WARM, limits={"shutdown_delay": "1s"}, log={"level": "info"})
        replica.gateway.wait()
        proc.pin(replica.gateway.running.popen.pid, proc.cores().measured)

    async def drain(self, number: int) -> None:
        self.replicas[number].gateway.signal(signal.SIGTERM)
        await self.replicas[number].gateway.exits()

    async def start(self, number: int) -> None:
        """Run a replica again, until the balancer has found it."""
        self.replicas[number].close()
        before = self._found(number)
        self._start(number)

        async def found() -> bool:
            return self.balancer is None or self._found(number) > before

        await eventually(found, f"HAProxy finds replica {number} again")

    def _found(self, number: int) -> int:
        """How often HAProxy has found a replica to be up."""
        return self.balancer.log.read_text().count(f"taskgate-{number + 1} is UP") if self.balancer is not None else 0

    def rss_bytes(self) -> int:
        return sum(proc.rss_bytes(replica.gateway.running.popen.pid) for replica in self.replicas)

    def cpu_seconds(self) -> float:
        processes = [replica.gateway.running.popen for replica in self.replicas]
        return sum(proc.cpu_seconds(process.pid) for process in processes if process.poll() is None)

    async def sessions(self) -> list[int]:
        return [int((await replica.gateway.metrics())["taskgate_index_sessions", ()]) for replica in self.replicas]


@asynccontextmanager
async def _fleet(upstream: str, count: int) -> AsyncIterator[Fleet]:
    """A fleet that runs. Starting blocks; nothing else is under way then."""
    with ExitStack() as stack:
        yield Fleet(upstream, count, stack)


@dataclass
class Cost:
    """What the queries of one phase took."""

    queries: int = 0
    crawls: int = 0
    requests: int = 0
    lost: int = 0
    cpu_s: float = 0.0


class Crowd:
    """The sessions of one fleet, and what their queries cost."""

    def __init__(self, fleet: Fleet, legacy: Child) -> None:
        self.fleet = fleet
        self._legacy = legacy
        self._clients: list[Client] = []
        self.costs: dict[str, Cost] = {}

    async def arrive(self, count: int) -> None:
        """Open sessions, each with its tasks."""
        for _ in range(count):
            client = await filled(self.fleet.url, self._legacy, TASKS)
            self._clients.append(client)
            client.close()

    async def ask(self, phase: str, times: int = 1) -> None:
        """The query of every session, over connections of their own. Its cost is added to that of the phase."""
        before, cpu_s = await self._legacy.ask("counts"), self.fleet.cpu_seconds()
        places = asyncio.Semaphore(AT_ONCE)
        answered = await asyncio.gather(*(self._one(client, places) for client in self._clients * times))
        after = await self._legacy.ask("counts")
        cost = self.costs.setdefault(phase, Cost())
        cost.queries += len(answered)
        cost.crawls += after["lists"] - before["lists"]
        cost.requests += after["requests"] - before["requests"]
        cost.lost += answered.count(False)
        cost.cpu_s += self.fleet.cpu_seconds() - cpu_s

    async def _one(self, client: Client, places: asyncio.Semaphore) -> bool:
        """Whether a query was answered."""
        async with places:
            try:
                one = await client.another(self.fleet.url)
                await one.ask("tasks/list", PARAMS)
            except (BenchFailed, OSError):
                return False
            one.close()
            return True


FIRST: Final = "first query"
AGAIN: Final = f"{MORE} more"
KILLED: Final = "a replica is killed"
BACK: Final = "it is back"
TURN: Final = "all restarted in turn"


async def _live(crowd: Crowd) -> tuple[float, list[int]]:
    """All phases. Returns the bytes that a session took, and how many sessions each replica had."""
    fleet = crowd.fleet
    await crowd.arrive(SESSIONS)
    before_bytes = fleet.rss_bytes()
    await crowd.ask(FIRST)
    session_bytes = (fleet.rss_bytes() - before_bytes) / SESSIONS
    await crowd.ask(AGAIN, MORE)
    spread = await fleet.sessions()
    fleet.replicas[0].gateway.kill()
    if len(fleet.replicas) > 1:
        await crowd.ask(KILLED)
    await fleet.start(0)
    await crowd.ask(BACK)
    for number in range(len(fleet.replicas)):
        await fleet.drain(number)
        if len(fleet.replicas) > 1:
            await crowd.ask(TURN)
        await fleet.start(number)
        await crowd.ask(TURN)
    return session_bytes, spread


async def run(options: Options) -> list[Table]:
    if shutil.which("haproxy") is None:
        raise BenchFailed("haproxy is not installed: apt-get install haproxy")
    return [await _sessions(), await _balancer()]


async def _sessions() -> Table:
    table = Table(
        f"{SESSIONS} sessions of {TASKS} tasks, {PAGE} a page; x: times one gateway",
        "phase, way",
        [
            Column("queries"),
            Column("crawls"),
            Column("crawls/session", 2),
            Column("server requests"),
            Column("requests x", 2),
            Column("lost"),
            Column("CPU us/query"),
        ],
    )
    found: dict[str, dict[str, Cost]] = {}
    for name, size in (("one gateway", 1), ("three replicas", REPLICAS)):
        progress(f"fleet: {name}, {SESSIONS} sessions")
        async with child(proc.cores().others, "legacy", str(PAGE)) as legacy, _fleet(legacy.url, size) as fleet:
            crowd = Crowd(fleet, legacy)
            session_bytes, spread = await _live(crowd)
        found[name] = crowd.costs
        table.notes.append(f"{name}: {session_bytes / 1000:.1f} KB a session; sessions at each: {spread}")
    one = found["one gateway"]
    for phase in (FIRST, AGAIN, KILLED, BACK, TURN):
        for name, costs in found.items():
            if cost := costs.get(phase):
                times = ratio(cost.requests, one[phase].requests) if phase in one else None
                figures = (cost.queries, cost.crawls, cost.crawls / SESSIONS, cost.requests, times, cost.lost)
                table.add(f"{phase}, {name}", *figures, cost.cpu_s / cost.queries * 1e6)
    return table


async def _balancer() -> Table:
    """What HAProxy takes of a relayed ping and of an open stream, beside the replicas."""
    table = Table(
        f"A relayed ping on {CONNECTIONS} connections, and {STREAMS} open event streams",
        "process",
        [Column("CPU us/ping"), Column("KB/stream", 1)],
    )
    progress("fleet: balancer")
    others = proc.cores().others
    async with (
        child(others, "upstream") as upstream,
        child(others, "load") as load,
        _fleet(upstream.url, REPLICAS) as f,
    ):
        assert f.balancer is not None
        pid = f.balancer.popen.pid
        ping_us = await _each(f, pid, lambda: _pings(load, f.url), cpu=True)
        await load.ask("open", url=f.url, count=CONNECTIONS)
        stream_bytes = await _each(f, pid, lambda: _streams(load, f.url), cpu=False)
    for name, us, size in zip(("HAProxy", "the replicas"), ping_us, stream_bytes, strict=True):
        table.add(name, us * 1e6, size / 1000)
    return table


async def _each(fleet: Fleet, pid: int, act: Callable[[], Awaitable[int]], cpu: bool) -> tuple[float, float]:
    """What one of `act` takes of the balancer and of the replicas: seconds of CPU time, or bytes of memory."""

    def taken() -> tuple[float, float]:
        return (proc.cpu_seconds(pid), fleet.cpu_seconds()) if cpu else (proc.rss_bytes(pid), fleet.rss_bytes())

    before = taken()
    count = await act()
    after = taken()
    return (after[0] - before[0]) / count, (after[1] - before[1]) / count


async def _pings(load: Child, url: str) -> int:
    client = await Client.connect(url)
    ids = [f"session-{number:04}" for number in range(SESSIONS)]
    requests = [client.request(request_body("ping", {}), Mcp_Session_Id=one).decode() for one in ids]
    client.close()
    given = {"requests": requests, "connections": CONNECTIONS, "seconds": PING_SECONDS}
    answer = await load.ask("requests", url=url, **given)
    answered: int = answer["answered"]
    return answered


async def _streams(load: Child, url: str) -> int:
    await load.ask("open", url=url, count=STREAMS)
    return STREAMS
