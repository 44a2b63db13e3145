"""The part of section `fleet` that a store has: a relayed ping and a first query, with and without one.

How: two gateways in front of one server, one of them with a Redis on this machine, take turns. Pings: 32 connections,
each request of another session, so that the store has something to look up. Queries: each the first of a session at
this gateway, which is when a store is read; one after the other, over one connection each, opened before.
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
from tests.bench.report import Column, Goal, Table, progress
from tests.launch import eventually

CONNECTIONS: Final = 32
PING_SECONDS: Final = 1.0
SESSIONS: Final = 300
QUERIES: Final = 100
OPENED: Final = 2_000
TASKS: Final = 30
PAGE: Final = 10
PARAMS: Final = {"status": ["working"]}
WITHOUT: Final = "no store"
WITH: Final = "a store"
KEPT: Final = {"max_age": "1h", "full_crawl_interval": "1h"}
QUERY_MS_GOAL: Final = 1


@asynccontextmanager
async def redis() -> AsyncIterator[str]:
    """A Redis that keeps nothing on disk; its URL."""
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
    pings: dict[str, list[dict[str, float]]] = {WITHOUT: [], WITH: []}
    queries: dict[str, list[float]] = {WITHOUT: [], WITH: []}
    core, others = proc.cores()
    async with (
        child(others, "upstream") as upstream,
        child(others, "load") as load,
        redis() as url,
        gateway(core, upstream.url, {}) as one,
        gateway(core, upstream.url, {}, store=url) as two,
    ):
        for number in range(options.rounds):
            progress(f"fleet: store, round {number + 1} of {options.rounds}")
            for name, way in ((WITHOUT, one), (WITH, two)):
                pings[name].append(await _pings(load, way))
    async with (
        child(others, "legacy", str(PAGE)) as legacy,
        redis() as url,
        gateway(core, legacy.url, KEPT) as one,
        gateway(core, legacy.url, KEPT, store=url) as two,
    ):
        for _ in range(QUERIES):
            for name, way in ((WITHOUT, one), (WITH, two)):
                queries[name].append(await _query(legacy, way))
        session_bytes = await _session_bytes(url, two)
    table = _table(pings, queries)
    table.notes.append(f"Redis holds {session_bytes:.0f} bytes for a session that was opened")
    return [table]


async def _pings(load: Child, way: Served) -> dict[str, float]:
    """Pings of many sessions: the gateway's CPU time and the median."""
    client = await Client.connect(way.url)
    requests = [of_session(client, number, request_body("ping", {})) for number in range(SESSIONS)]
    client.close()
    cpu_s = proc.cpu_seconds(way.pid)
    run = await load.ask("requests", url=way.url, requests=requests, connections=CONNECTIONS, seconds=PING_SECONDS)
    return {"cpu_us": (proc.cpu_seconds(way.pid) - cpu_s) / run["answered"] * 1e6, "median_us": run["median_us"]}


def of_session(client: Client, number: int, body: bytes) -> str:
    """A request with a session's id."""
    head, _, rest = client.request(body).decode().partition("\r\n")
    return f"{head}\r\nMcp-Session-Id: session-{number:04}\r\n{rest}"


async def _query(legacy: Child, way: Served) -> float:
    """Milliseconds of a session's first query; its `initialize` went past this gateway, as at a balancer."""
    client = await Client.connect(legacy.url)
    await client.initialize()
    await legacy.ask("load", tasks=TASKS)
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


def _table(pings: dict[str, list[dict[str, float]]], queries: dict[str, list[float]]) -> Table:
    table = Table(
        "fleet, store",
        f"A relayed ping on {CONNECTIONS} connections, and a session's first query of {TASKS} tasks, {PAGE} a page",
        "way",
        [Column("CPU us/ping", 1), Column("x", 2), Column("median us/ping"), Column("query, median ms", 2)],
    )
    for name, rounds in pings.items():
        times = statistics.median(r["cpu_us"] / b["cpu_us"] for r, b in zip(rounds, pings[WITHOUT], strict=True))
        cpu_us, median_us = (statistics.median(r[what] for r in rounds) for what in ("cpu_us", "median_us"))
        table.add(name, cpu_us, times, median_us, statistics.median(queries[name]))
    more_ms = statistics.median(with_ - out for with_, out in zip(queries[WITH], queries[WITHOUT], strict=True))
    table.goals.append(Goal("a query, more with a store", QUERY_MS_GOAL, "ms", max(more_ms, 0.0)))
    return table
