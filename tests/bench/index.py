"""Section `index`: what a page out of many tasks costs, straight from the index and through the whole gateway.

How: random queries of five kinds (questions.py), 200 of each, for pages of 100 tasks. Straight from the index in a
process of its own (index_worker.py); through the gateway over one connection, its index warm after one crawl of a
legacy server that holds the same history, beside a relayed `ping` of the same gateway. Memory per task is measured as
the growth of a process and as what tracemalloc saw, beside the index's own estimate, which its limits go by. Times
straight from the index are CPU time, those through the gateway the clock's; each query is asked twice and the better
time counts, so that the slowest is the slowest query and not the moment when the machine was busy elsewhere.
"""

import asyncio
import statistics
from datetime import UTC, datetime
from typing import Any, Final

from tests.bench import index_rates, proc
from tests.bench.httpclient import Client, request_body
from tests.bench.index_worker import LIVE, PAGE, REPEATS, WARM_UP_TASKS
from tests.bench.options import Options
from tests.bench.processes import BenchFailed, Child, Served, child, gateway
from tests.bench.questions import KINDS, PER_KIND, questions
from tests.bench.report import Column, Goal, Table, progress, ratio

SIZES: Final = (1_000, 10_000, 100_000)
LARGE: Final = 1_000_000
TASKS_GROWN_MIN: Final = 50_000  # fewer are measured in several indexes: memory grows by arenas of 1 MiB
TASKS_TRACED_MIN: Final = 10_000
TASKS_TRACED_MAX: Final = 100_000  # tracing more takes minutes, and shows the same
CRAWLED_PAGE: Final = 100
WARM: Final = {"page_size": PAGE, "max_age": "1h", "full_crawl_interval": "1h"}
BYTES_GOAL: Final = 1_000
LARGE_BYTES_GOAL: Final = 700
LARGE_PAGE_US_GOAL: Final = 1_000
LARGE_QUERY_US_GOAL: Final = 10_000
LARGE_HOLD_US_GOAL: Final = 20_000
PINGS: Final = 100
IDLE_RUNS_MAX: Final = 100


async def run(options: Options) -> list[Table]:
    """Measure, and make the tables."""
    sizes = (*SIZES, LARGE) if options.large else SIZES
    straight, through, memory, unlisted = {}, {}, {}, {}
    for count in sizes:
        progress(f"index: {count:,} tasks, straight")
        straight[count] = await _ask(proc.cores().measured, "queries", tasks=count)
        progress(f"index: {count:,} tasks, through the gateway")
        through[count] = await _through(count)
        progress(f"index: {count:,} tasks that no list shows")
        unlisted[count] = await _ask(proc.cores().measured, "unlisted", tasks=count)
        progress(f"index: {count:,} tasks, memory")
        memory[count] = await _memory_of(count)
    return [
        _queries(straight, through),
        await index_rates.run(options),
        _pages(straight, through),
        _unlisted(unlisted),
        _memory(memory, through),
    ]


async def _memory_of(count: int) -> list[dict[str, Any]]:
    """What a process grows by and, unless they are too many, what tracemalloc sees; at once, since no clock runs."""
    cores = proc.cores()
    copies, traced = max(1, TASKS_GROWN_MIN // count), max(1, TASKS_TRACED_MIN // count)
    measurements = [_ask(cores.measured, "memory", tasks=count, copies=copies, traced=False)]
    if count <= TASKS_TRACED_MAX:
        measurements.append(_ask(cores.others, "memory", tasks=count, copies=traced, traced=True))
    return await asyncio.gather(*measurements)


async def _ask(core: int | None, do: str, **arguments: Any) -> dict[str, Any]:
    async with child(core, "index_worker") as worker:
        return await worker.ask(do, **arguments)


async def _through(count: int) -> dict[str, Any]:
    """The same queries through a gateway, after one crawl, and the cost of that crawl."""
    cores = proc.cores()
    async with (
        child(cores.others, "legacy", str(CRAWLED_PAGE)) as legacy,
        child(cores.others, "load") as load,
        gateway(cores.measured, legacy.url, WARM) as taskgate,
    ):
        # A small session first: what is loaded and allocated once is not the larger one's.
        await _indexed(await _session(taskgate, legacy, WARM_UP_TASKS), WARM_UP_TASKS)
        client = await _session(taskgate, legacy, count)
        before_bytes = proc.rss_bytes(taskgate.pid)
        crawling = asyncio.create_task(_indexed(client, count))
        pings_us = await _slowest_pings_us(load, taskgate, client, crawling)
        grown_bytes = proc.rss_bytes(taskgate.pid) - before_bytes
        figures: dict[str, Any] = {"slowest_pings_us": pings_us, "bytes": grown_bytes / count}
        until = datetime.now(UTC)
        for kind in KINDS:
            bodies = [request_body("tasks/list", question.params) for question in questions(kind, until)]
            figures[kind] = await _times(load, taskgate, client, bodies)
        figures["ping"] = await _times(load, taskgate, client, [request_body("ping", {})] * PER_KIND)
        client.close()
    return figures


async def _session(taskgate: Served, legacy: Child, count: int) -> Client:
    """A client whose session holds `count` tasks that the gateway does not know yet."""
    client = await Client.connect(taskgate.url)
    await client.initialize()
    await legacy.ask("load", tasks=count)
    return client


async def _indexed(client: Client, count: int) -> None:
    """Make the gateway crawl the session."""
    answer = await client.ask("tasks/list", {"order": "desc"})
    if answer["_meta"]["taskgate/total"] != count:
        raise BenchFailed(f"of {count} tasks the gateway knows {answer['_meta']['taskgate/total']}")


async def _slowest_pings_us(
    load: Child, taskgate: Served, client: Client, crawling: asyncio.Task[None]
) -> tuple[float, float]:
    """The slowest relayed ping while the gateway crawls, and the slowest of as many (within limits) when it does not.

    The first is as long as the gateway held its event loop, but for the machine's noise, which the second shows.
    """
    ping = client.request(request_body("ping", {})).decode()

    async def slowest_us() -> float:
        run = await load.ask("requests", url=taskgate.url, requests=[ping], connections=1, count=PINGS)
        return float(run["max_us"])

    busy = []
    while not crawling.done():
        busy.append(await slowest_us())
    await crawling
    idle = [await slowest_us() for _ in busy[:IDLE_RUNS_MAX]]
    return max(busy), max(idle)


async def _times(load: Child, taskgate: Served, client: Client, bodies: list[bytes]) -> dict[str, float]:
    if b'"result"' not in await client.post(bodies[0]):
        raise BenchFailed(f"an error for {bodies[0].decode()}")
    requests = [client.request(body).decode() for body in bodies]
    run = await load.ask("requests", url=taskgate.url, requests=requests, connections=1, count=len(requests) * REPEATS)
    rounds = [run["latencies_us"][at :: len(requests)] for at in range(len(requests))]
    best = [min(times) for times in rounds]
    return {"median_us": statistics.median(best), "max_us": max(best)}


def _queries(straight: dict[int, Any], through: dict[int, Any]) -> Table:
    table = Table(
        "index, queries",
        f"A page of {PAGE} tasks, {PER_KIND} random queries of each kind",
        "tasks, criteria",
        [
            Column("index median us"),
            Column("index slowest us"),
            Column("gateway median us"),
            Column("gateway slowest us"),
            Column("gateway median, x ping", 1),
        ],
    )
    for count, figures in straight.items():
        ping_us = through[count]["ping"]["median_us"]
        for kind in KINDS:
            inside, outside = figures["kinds"][kind], through[count][kind]
            median_us = outside["median_us"]
            table.add(
                f"{count:>9,}  {kind}",
                *(inside["median_us"], inside["max_us"], median_us, outside["max_us"]),
                ratio(median_us, ping_us),
            )
        table.add(f"{count:>9,}  (a relayed ping)", None, None, ping_us, through[count]["ping"]["max_us"], 1)
        if count == LARGE:
            slowest_us = max(figures["kinds"][kind]["max_us"] for kind in KINDS)
            table.goals.append(Goal("slowest query of 1,000,000 tasks", LARGE_QUERY_US_GOAL, "us", slowest_us))
    table.notes.append(
        f"the better of {REPEATS} times for each query; index: CPU time; every second query goes on behind a cursor"
    )
    return table


def _pages(straight: dict[int, Any], through: dict[int, Any]) -> Table:
    table = Table(
        "index, pages",
        f"us to take in a page of {PAGE} tasks, as a crawl does at its end; us that a relayed ping waits meanwhile",
        "tasks in the index",
        [
            Column("read it, median"),
            Column("put new tasks, median"),
            Column("slowest"),
            Column("change tasks, median"),
            Column("slowest of these"),
            Column("per new task", 2),
            Column("ping while crawled, slowest"),
            Column("ping otherwise, slowest"),
        ],
    )
    for count, figures in straight.items():
        read, put, change = (figures["pages"][what] for what in ("read", "put", "change"))
        table.add(
            f"{count:,}",
            *(read["median_us"], put["median_us"], put["max_us"], change["median_us"], change["max_us"]),
            *((read["median_us"] + put["median_us"]) / PAGE, *through[count]["slowest_pings_us"]),
        )
        if count == LARGE:
            goal_us = read["median_us"] + put["median_us"]
            table.goals.append(Goal("to index a page, read included", LARGE_PAGE_US_GOAL, "us", goal_us))
            hold_us, _ = through[count]["slowest_pings_us"]
            table.goals.append(Goal("slowest ping while it is crawled", LARGE_HOLD_US_GOAL, "us", hold_us))
    return table


def _unlisted(unlisted: dict[int, Any]) -> Table:
    table = Table(
        "index, unlisted",
        f"us of CPU where the upstream's list omits every task, as FastMCP's does; {LIVE} of them are live",
        "tasks in the index",
        [Column("plan of a query, median"), Column("end of a crawl, median")],
    )
    for count, figures in unlisted.items():
        table.add(f"{count:,}", figures["plan_us"], figures["crawled_us"])
    return table


def _memory(memory: dict[int, Any], through: dict[int, Any]) -> Table:
    table = Table(
        "index, memory",
        "Bytes of memory per indexed task",
        "tasks in the index",
        [
            Column("process growth"),
            Column("tracemalloc"),
            Column("gateway growth, crawl included"),
            Column("the index's estimate"),
            Column("growth / estimate", 2),
            Column("raw JSON and id"),
            Column("overhead measured"),
            Column("TASK_OVERHEAD_BYTES"),
        ],
    )
    for count, (grown, *traced) in memory.items():
        table.add(
            f"{count:,}",
            *(
                grown["bytes"],
                traced[0]["bytes"] if traced else None,
                through[count]["bytes"],
                grown["estimated_bytes"],
            ),
            ratio(grown["bytes"], grown["estimated_bytes"]),
            *(grown["own_bytes"], grown["bytes"] - grown["own_bytes"], grown["estimated_overhead_bytes"]),
        )
        limit = LARGE_BYTES_GOAL if count == LARGE else BYTES_GOAL
        table.goals.append(Goal(f"memory per task of {count:,}", limit, "bytes", grown["bytes"]))
    table.notes.append(
        f"small indexes are measured several at a time, {TASKS_GROWN_MIN:,} tasks ({TASKS_TRACED_MIN:,} traced) in all"
    )
    return table
