"""Section `page`: what the open page for operators costs the gateway, at 10,000 queries a minute.

How: two gateways in front of the same server, on one core, take turns; at one of them the page's status is asked for as
often as the page's script does so. With one upstream, and with 50. A figure is that of the median round.
"""

import asyncio
import statistics
from contextlib import AsyncExitStack
from time import perf_counter
from typing import Final

import aiohttp

from tests.bench import proc
from tests.bench.crawl import PAGE
from tests.bench.httpclient import Client
from tests.bench.options import Options
from tests.bench.processes import Child, Served, child, gateway
from tests.bench.report import Column, Goal, Table, progress
from tests.bench.sessions import WARM, filled

QUERIES_PER_MINUTE: Final = 10_000
ASKED_EVERY_S: Final = 1.0  # by page.js
SECONDS: Final = 6.0
CLIENTS: Final = 4
UPSTREAMS: Final = (1, 50)  # of a gateway; the first gets all requests
TASKS: Final = 1_000
LIVE: Final = 100
PERCENT_GOAL: Final = 0.5


async def run(options: Options) -> list[Table]:
    table = Table(
        f"{QUERIES_PER_MINUTE:,} filtered lists a minute, answered from the index",
        "the page",
        [Column("upstreams"), Column("% of a core", 2), Column("least", 2), Column("most", 2)],
    )
    for upstreams in UPSTREAMS:
        percents = await _percents(options, upstreams)
        for name, values in percents.items():
            table.add(name, upstreams, statistics.median(values), min(values), max(values))
        costs = [opened - closed for opened, closed in zip(percents["open"], percents["closed"], strict=True)]
        table.add("its cost", upstreams, statistics.median(costs), min(costs), max(costs))
        table.goals.append(
            Goal(f"the open page, upstreams: {upstreams}", PERCENT_GOAL, "% of a core", statistics.median(costs))
        )
    return [table]


async def _percents(options: Options, upstreams: int) -> dict[str, list[float]]:
    """How much of a core a gateway uses in each round, with the page closed and open."""
    cores = proc.cores()
    percents: dict[str, list[float]] = {"closed": [], "open": []}
    async with AsyncExitStack() as stack:
        legacy = await stack.enter_async_context(child(cores.others, "legacy", str(PAGE)))
        page = await stack.enter_async_context(aiohttp.ClientSession(raise_for_status=True))
        ways = []
        for name in percents:
            served = await stack.enter_async_context(gateway(cores.measured, legacy.url, WARM, upstreams=upstreams))
            clients = await _clients(legacy, served)
            stack.callback(_close, clients)
            ways.append((name, served, clients))
        for number in range(options.rounds):
            progress(f"page: upstreams: {upstreams}, round {number + 1} of {options.rounds}")
            for name, served, clients in ways if number % 2 else reversed(ways):
                percents[name].append(await _percent(served, clients, page if name == "open" else None))
    return percents


async def _clients(legacy: Child, served: Served) -> list[Client]:
    """Connections of one session, whose tasks are in the index."""
    first = await filled(served.url, legacy, TASKS, LIVE)
    await _ask(first)
    return [first, *[await first.another(served.url) for _ in range(CLIENTS - 1)]]


async def _ask(client: Client) -> None:
    await client.ask("tasks/list", {"status": ["working"]})


async def _percent(served: Served, clients: list[Client], page: aiohttp.ClientSession | None) -> float:
    """How much of a core a gateway uses, while it is asked at the rate, and its page is open or not."""
    looking = asyncio.create_task(_look(page, served.admin)) if page is not None else None
    await _steadily(clients, 1.0)
    before_s, began_at = proc.cpu_seconds(served.pid), perf_counter()
    await _steadily(clients, SECONDS)
    percent = 100 * (proc.cpu_seconds(served.pid) - before_s) / (perf_counter() - began_at)
    if looking is not None:
        if looking.done():
            looking.result()  # raises: it was not open
        looking.cancel()
        await asyncio.wait([looking])
    return percent


async def _steadily(clients: list[Client], seconds: float) -> None:
    """Ask at the rate, however long answers take."""
    period_s = CLIENTS * 60 / QUERIES_PER_MINUTE

    async def one(client: Client, first_s: float) -> None:
        began_at = perf_counter() + first_s
        for number in range(round(seconds / period_s)):
            await asyncio.sleep(began_at + number * period_s - perf_counter())
            await _ask(client)

    await asyncio.gather(*(one(client, at * period_s / CLIENTS) for at, client in enumerate(clients)))


async def _look(page: aiohttp.ClientSession, admin: str) -> None:
    while True:
        async with page.get(f"{admin}/page/status.json") as answer:
            await answer.read()
        await asyncio.sleep(ASKED_EVERY_S)


def _close(clients: list[Client]) -> None:
    for client in clients:
        client.close()
