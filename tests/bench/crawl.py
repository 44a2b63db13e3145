"""Section `crawl`: what a filtered query costs the upstream, beside a client that pages by hand and filters.

How: the demo's legacy server, ten tasks a page, with sessions of 1,000 and of 10,000 tasks, 10 of them not finished.
The question is which tasks are `working`. By hand, a client reads every page of the server directly and keeps what
matches; through the gateway it asks once, cold, then within `max_age`, then after it, then with 50 clients at once.
Both are the same lean client on the same session, and must come to the same tasks. Requests and the bytes of their
answers' bodies are counted at the server. `max_age` is set to a multiple of the time that paging by hand took: with
less than a crawl takes, no answer but the crawl's own is ever within it.
"""

import asyncio
import math
import statistics
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any, Final, NamedTuple, TypeAlias

from tests.bench import proc
from tests.bench.httpclient import Client
from tests.bench.options import Options
from tests.bench.processes import BenchFailed, Child, child, gateway
from tests.bench.report import Column, Table, progress, ratio

PAGE: Final = 10
SIZES: Final = (1_000, 10_000)
LIVE: Final = 10
STATUS: Final = "working"
CLIENTS: Final = 50
ROUNDS_MAX: Final = 3
PAGES_MAX: Final = 10_000
MAX_AGE_FACTOR: Final = 8  # of the time that paging by hand takes; a crawl on a busy machine takes longer
AFTER_SECONDS: Final = 0.1

BY_HAND: Final = "by hand"

Tasks: TypeAlias = list[dict[str, Any]]


class Cost(NamedTuple):
    """What one way to an answer took."""

    requests: float
    server_bytes: float
    seconds: float
    client_bytes: float


async def run(options: Options) -> list[Table]:
    """Measure, and make the table."""
    table = Table(
        "crawl",
        f'Which tasks have the status "{STATUS}"? {PAGE} tasks a page, {LIVE} not finished; x: times paging by hand',
        "tasks, way",
        [
            Column("requests"),
            Column("requests x", 3),
            Column("server bytes"),
            Column("server bytes x", 3),
            Column("ms", 1),
            Column("time x", 3),
            Column("client bytes"),
            Column("client bytes x", 4),
        ],
    )
    rounds = min(options.rounds, ROUNDS_MAX)
    for count in SIZES:
        max_age_s, costs = await _measure(count, rounds)
        base = costs[BY_HAND]
        for way, cost in costs.items():
            pairs = zip(cost, base, strict=True)
            requests, server_bytes, time, client_bytes = ((value, ratio(value, hand)) for value, hand in pairs)
            time = (time[0] * 1000, time[1])
            table.add(f"{count:>6,}  {way}", *requests, *server_bytes, *time, *client_bytes)
        table.notes.append(f"{count:,} tasks: max_age {max_age_s} s, median of {rounds} rounds")
    return [table]


async def _measure(count: int, rounds: int) -> tuple[int, dict[str, Cost]]:
    """The seconds of `max_age`, and the median cost of each way on new sessions of `count` tasks."""
    cores = proc.cores()
    async with child(cores.others, "legacy", str(PAGE)) as legacy:
        client = await _session(legacy.url, legacy, count)
        began_at = perf_counter()
        await _by_hand(client)
        max_age_s = math.ceil(MAX_AGE_FACTOR * (perf_counter() - began_at))
        client.close()
        found: dict[str, list[Cost]] = {}
        async with gateway(cores.measured, legacy.url, {"max_age": f"{max_age_s}s"}) as taskgate:
            for number in range(rounds):
                progress(f"crawl: {count:,} tasks, round {number + 1} of {rounds}")
                for way, cost in (await _round(legacy, taskgate, count, max_age_s)).items():
                    found.setdefault(way, []).append(cost)
    return max_age_s, {way: _median(costs) for way, costs in found.items()}


async def _round(legacy: Child, taskgate: Child, count: int, max_age_s: int) -> dict[str, Cost]:
    """All ways once, on a new session."""
    client = await _session(taskgate.url, legacy, count)
    direct = await client.another(legacy.url)
    expected = await _by_hand(direct)
    if not expected:
        raise BenchFailed(f"no task of {count} is {STATUS}: nothing to ask for")

    async def cost(clients: list[Client], ask: Callable[[Client], Awaitable[Tasks]]) -> Cost:
        before = await legacy.ask("counts")
        bytes_before = sum(c.body_bytes for c in clients)
        began_at = perf_counter()
        answers = await asyncio.gather(*map(ask, clients))
        seconds = perf_counter() - began_at
        if any(_by_id(answer) != _by_id(expected) for answer in answers):
            raise BenchFailed("the gateway's answer is not what paging by hand finds")
        after = await legacy.ask("counts")
        client_bytes = sum(c.body_bytes for c in clients) - bytes_before
        return Cost(after["requests"] - before["requests"], after["bytes"] - before["bytes"], seconds, client_bytes)

    costs = {BY_HAND: await cost([direct], _by_hand)}
    costs["taskgate, cold"] = await cost([client], _filtered)
    costs["taskgate, within max_age"] = await cost([client], _filtered)
    await asyncio.sleep(max_age_s + AFTER_SECONDS)
    costs["taskgate, after max_age"] = await cost([client], _filtered)
    many = [await client.another(taskgate.url) for _ in range(CLIENTS)]
    await asyncio.sleep(max_age_s + AFTER_SECONDS)
    costs[f"taskgate, after max_age, {CLIENTS} clients"] = await cost(many, _filtered)
    for each in (client, direct, *many):
        each.close()
    return costs


async def _session(url: str, legacy: Child, count: int) -> Client:
    """A client with a new session of `count` tasks."""
    client = await Client.connect(url)
    await client.initialize()
    await legacy.ask("load", tasks=count, live=LIVE)
    return client


async def _by_hand(client: Client) -> Tasks:
    """What matches, of every page."""
    found: Tasks = []
    params: dict[str, Any] = {}
    for _ in range(PAGES_MAX):
        page = await client.ask("tasks/list", params)
        found += [task for task in page["tasks"] if task["status"] == STATUS]
        if "nextCursor" not in page:
            return found
        params = {"cursor": page["nextCursor"]}
    raise BenchFailed(f"the list does not end after {PAGES_MAX} pages")


async def _filtered(client: Client) -> Tasks:
    """What the gateway says matches."""
    page = await client.ask("tasks/list", {"status": [STATUS]})
    tasks: Tasks = page["tasks"]
    return tasks


def _by_id(tasks: Tasks) -> dict[str, dict[str, Any]]:
    return {task["taskId"]: task for task in tasks}


def _median(costs: list[Cost]) -> Cost:
    return Cost(*(statistics.median(values) for values in zip(*costs, strict=True)))
