"""Section `index`: what a page of 100 out of 50,000 tasks costs, and what an index of them takes.

How: random queries of five kinds (questions.py), 200 of each, straight from the index in a process of its own
(index_worker.py). Each query is asked twice and the better time counts, so that the slowest is the slowest query and
not the moment when the machine was busy elsewhere.

Then rates, beside relayed pings: the kinds of queries, another each time; one query again and again; and a ping,
through a gateway of its own on the same core. Each goes over 32 connections in a closed loop; they take turns, in short
rounds. A figure is that of the median round, a ratio the median of the ratios of all rounds.

Last, how long the first list of a session takes, beside a client that pages by hand and filters; what it costs the
server is in the table of docs/clients.md (tests/world). Each page takes the server `SLOW_PAGE_MS`.
"""

import statistics
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from time import perf_counter
from typing import Any, Final

from tests.bench.httpclient import Client, request_body
from tests.bench.index_worker import PAGE, REPEATS
from tests.bench.legacy import WARM, filled
from tests.bench.processes import BenchFailed, child, gateway, rig
from tests.bench.questions import KINDS, PER_KIND, questions
from tests.bench.relay import Way, in_rounds
from tests.bench.report import Column, Goal, Options, Table, progress
from tests.bench.traffic import CONNECTIONS

TASKS: Final = 50_000  # index.tasks_max, unless it is configured
BYTES_GOAL: Final = 650
PAGE_US_GOAL: Final = 1_000
QUERY_US_GOAL: Final = 20_000
HOLD_US_GOAL: Final = 20_000
CRAWLED_PAGE: Final = 1_000
SECONDS: Final = 0.5
PING: Final = "a relayed ping"
ROUND: Final = "round"
SAME: Final = "the same list again"
SAME_GOAL: Final = 0.65  # of a ping's requests/s
OTHER_GOAL: Final = 0.3  # ... another list each time
FIRST_TASKS: Final = 10_000
FIRST_PAGE: Final = 10
SLOW_PAGE_MS: Final = 0.5
FIRST_GOAL: Final = 1.2  # times paging by hand


async def run(options: Options) -> list[Table]:
    progress("index: straight")
    straight = await _ask("queries")
    progress("index: memory")
    memory = await _ask("memory")
    return [_straight(straight, memory["bytes"]), await _rates(options), await _first(options)]


async def _ask(do: str) -> dict[str, Any]:
    async with child("index_worker", is_measured=True) as worker:
        return await worker.ask(do, tasks=TASKS)


def _straight(figures: dict[str, Any], task_bytes: float) -> Table:
    title = f"Straight from an index of {TASKS:,} tasks: {PER_KIND} random queries of each kind, and pages of a crawl"
    table = Table(title, f"a page of {PAGE} tasks", [Column("median us"), Column("slowest us")])
    for name, times in figures.items():
        table.add(name, times["median_us"], times["max_us"])
    read, put = figures["read it"], figures["put new tasks"]
    slowest_us = max(figures[kind]["max_us"] for kind in KINDS)
    table.goals += [
        Goal("slowest query", QUERY_US_GOAL, "us", slowest_us),
        Goal("to index a page, read included", PAGE_US_GOAL, "us", read["median_us"] + put["median_us"]),
        Goal("slowest turn that takes in a page", HOLD_US_GOAL, "us", put["max_us"]),
        Goal("memory per task", BYTES_GOAL, "bytes", task_bytes),
    ]
    table.notes.append(f"CPU time, of a query the better of {REPEATS}; every second query goes on behind a cursor")
    return table


async def _rates(options: Options) -> Table:
    async with rig(child("upstream")) as (stack, upstream, load):
        legacy = await stack.enter_async_context(child("legacy", str(CRAWLED_PAGE)))
        relaying = await stack.enter_async_context(gateway(upstream.url))
        answering = await stack.enter_async_context(gateway(legacy.url, {"index": {**WARM, "page_size": PAGE}}))
        pinger = await Client.connect(relaying.url)
        await pinger.post(request_body("ping", {}))
        client = await filled(answering.url, legacy, TASKS)
        known = (await client.ask("tasks/list", {"order": "desc"}))["_meta"]["taskgate/total"]
        if known != TASKS:
            raise BenchFailed(f"of {TASKS} tasks the gateway knows {known}")
        until = datetime.now(UTC)
        asked = {kind: [question.params for question in questions(kind, until)] for kind in KINDS}
        asked[SAME] = [{"status": ["working"]}]
        bodies = {name: [request_body("tasks/list", params) for params in every] for name, every in asked.items()}
        ping = Way(PING, relaying.url, relaying.pid)
        ways = [(ping, [pinger.request(request_body("ping", {})).decode()])]
        ways += [
            (Way(name, answering.url, answering.pid), [client.request(body).decode() for body in every])
            for name, every in bodies.items()
        ]

        async def measure(one: tuple[Way, list[str]]) -> None:
            way, requests = one
            turns = [requests[at % len(requests) :] + requests[: at % len(requests)] for at in range(CONNECTIONS)]
            await way.measure(load, ROUND, SECONDS, turns)

        await in_rounds("index: rates", options.rounds, ways, measure)
        pinger.close()
        client.close()
    return _table([way for way, _ in ways])


def _table(ways: list[Way]) -> Table:
    table = Table(
        f"A page of {PAGE} tasks out of {TASKS:,}, warm, {CONNECTIONS} keep-alive connections",
        "criteria",
        [Column("requests/s"), Column("x ping", 2), Column("gateway CPU us/request"), Column("CPU x ping", 2)],
    )
    ping = ways[0]
    for way in ways:
        rate, cpu = (way.times(ping, ROUND, figure) for figure in ("per_second", "cpu_us"))
        table.add(way.name, way.median(ROUND, "per_second"), rate, way.median(ROUND, "cpu_us"), cpu)
        if way is not ping:
            goal = SAME_GOAL if way.name == SAME else OTHER_GOAL
            table.goals.append(Goal(f"requests/s, {way.name}", goal, "of a ping's", rate, at_least=True))
    table.notes.append(f"median of {len(ping.rounds[ROUND])} rounds; ratios are taken within a round")
    return table


async def _first(options: Options) -> Table:
    index = {**WARM, "page_size": FIRST_TASKS, "page_bytes_max": "1GiB"}
    times_ms, ratios = list[float](), list[float]()
    async with AsyncExitStack() as stack:
        legacy = await stack.enter_async_context(child("legacy", str(FIRST_PAGE), str(SLOW_PAGE_MS)))
        served = await stack.enter_async_context(gateway(legacy.url, {"index": index}))
        for number in range(options.rounds):
            progress(f"index: a first list, round {number + 1}")
            client = await filled(served.url, legacy, FIRST_TASKS)
            direct, began_at = await client.another(legacy.url), perf_counter()
            by_hand = {task["taskId"] for task in await direct.pages() if task["status"] == "failed"}
            between_at = perf_counter()
            found = (await client.ask("tasks/list", {"status": ["failed"]}))["tasks"]
            times_ms.append((perf_counter() - between_at) * 1000)
            ratios.append(times_ms[-1] / (between_at - began_at) / 1000)
            if not by_hand or {task["taskId"] for task in found} != by_hand:
                raise BenchFailed(f"{len(found)} tasks are in the list, and not the {len(by_hand)} that match")
            client.close()
            direct.close()
    ratio = statistics.median(ratios)
    title = f"The first list of {FIRST_TASKS:,} tasks, status failed; {FIRST_PAGE} a page, {SLOW_PAGE_MS} ms each"
    table = Table(title, "way", [Column("ms"), Column("time x by hand", 2)])
    table.add("taskgate", statistics.median(times_ms), ratio)
    table.goals.append(Goal("time of a first list", FIRST_GOAL, "x by hand", ratio))
    return table
