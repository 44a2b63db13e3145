"""The part of section `fleet` that a store has: a relayed ping and a first query, with and without one, in turn.

Pings: 32 connections, each request of another session, so that the store has something to look up.
"""

import shutil
import statistics
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Final

from redis.asyncio import Redis

from tests.bench import proc
from tests.bench.httpclient import Client, request_body
from tests.bench.options import Options
from tests.bench.processes import Child, Served, child, free_address, gateway, program
from tests.bench.relay import Way
from tests.bench.report import Column, Goal, Table, progress
from tests.bench.sessions import WARM, filled
from tests.launch import eventually

CONNECTIONS: Final = 32
PING_SECONDS: Final = 1.0
SESSIONS: Final = 300
QUERIES: Final = 100
OPENED: Final = 2_000
TASKS: Final = 30
PAGE: Final = 10
PARAMS: Final = {"status": ["working"]}
PINGS: Final = "pings"
WITHOUT: Final = "no store"
WITH: Final = "a store"
QUERY_MS_GOAL: Final = 1


@asynccontextmanager
async def redis() -> AsyncIterator[str]:
    address = free_address()
    host, _, port = address.rpartition(":")
    line = ("redis-server", "--port", port, "--bind", host, "--save", "")
    async with program(proc.cores().others, "Redis", address, *line):
        yield f"redis://{address}"


async def run(options: Options) -> list[Table]:
    """Measure, and make the table; none without Redis."""
    if shutil.which("redis-server") is None:
        progress("fleet: redis-server is not installed, and the store is left out")
        return []
    queries: dict[str, list[float]] = {WITHOUT: [], WITH: []}
    core, others = proc.cores()
    async with (
        child(others, "upstream") as upstream,
        child(others, "load") as load,
        redis() as url,
        gateway(core, upstream.url) as one,
        gateway(core, upstream.url, store=url) as two,
    ):
        ways = [Way(WITHOUT, one.url, one.pid), Way(WITH, two.url, two.pid)]
        for number in range(options.rounds):
            progress(f"fleet: store, round {number + 1} of {options.rounds}")
            for way in ways:
                await way.measure(load, PINGS, PING_SECONDS, requests=await pings(way.url), connections=CONNECTIONS)
    async with (
        child(others, "legacy", str(PAGE)) as legacy,
        redis() as url,
        gateway(core, legacy.url, WARM) as one,
        gateway(core, legacy.url, WARM, store=url) as two,
    ):
        for _ in range(QUERIES):
            for name, served in ((WITHOUT, one), (WITH, two)):
                queries[name].append(await _query(legacy, served))
        session_bytes = await _session_bytes(url, two)
    table = _table(ways, queries)
    table.notes.append(f"Redis holds {session_bytes:.0f} bytes for a session that was opened")
    return [table]


async def pings(url: str) -> list[str]:
    client = await Client.connect(url)
    ids = [f"session-{number:04}" for number in range(SESSIONS)]
    requests = [client.request(request_body("ping", {}), Mcp_Session_Id=one).decode() for one in ids]
    client.close()
    return requests


async def _query(legacy: Child, way: Served) -> float:
    """Milliseconds of a session's first query; its `initialize` went past this gateway, as at a balancer."""
    client = await filled(legacy.url, legacy, TASKS)
    one = await client.another(way.url)
    began_at = perf_counter()
    await one.ask("tasks/list", PARAMS)
    taken_ms = (perf_counter() - began_at) * 1000
    one.close()
    client.close()
    return taken_ms


async def _session_bytes(url: str, way: Served) -> float:
    """What Redis holds of a session, once all that were opened are written."""
    async with Redis.from_url(url) as store:
        keys, used = await store.dbsize(), (await store.info("memory"))["used_memory"]
        client = await Client.connect(way.url)
        for _ in range(OPENED):
            await client.initialize()

        async def written() -> bool:
            size: int = await store.dbsize()
            return size >= keys + OPENED

        await eventually(written, f"{OPENED} sessions in the store")
        client.close()
        grown: int = (await store.info("memory"))["used_memory"] - used
    return grown / OPENED


def _table(ways: list[Way], queries: dict[str, list[float]]) -> Table:
    table = Table(
        f"A relayed ping on {CONNECTIONS} connections, and a session's first query of {TASKS} tasks, {PAGE} a page",
        "way",
        [Column("CPU us/ping", 1), Column("x", 2), Column("median us/ping"), Column("query, median ms", 2)],
    )
    for way in ways:
        cpu_us, median_us = (way.median(PINGS, figure) for figure in ("cpu_us", "median_us"))
        times = way.times(ways[0], PINGS, "cpu_us")
        table.add(way.name, cpu_us, times, median_us, statistics.median(queries[way.name]))
    more_ms = statistics.median(with_ - out for with_, out in zip(queries[WITH], queries[WITHOUT], strict=True))
    table.goals.append(Goal("a query, more with a store", QUERY_MS_GOAL, "ms", max(more_ms, 0.0)))
    return table
