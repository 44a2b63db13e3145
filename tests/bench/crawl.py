"""Section `crawl`: what a filtered query costs the upstream, beside a client that pages by hand and filters.

How: the demo's legacy server, ten tasks a page, counts requests. The same lean client pages by hand, or asks gateways:

    cold                    the first query of a session
    after max_age           a query of a gateway whose `max_age` is 0, so that what it has indexed is always too old

In the last one each page takes the server `SLOW_PAGE_MS`: the goal there is time, as a ratio to paging by hand. Every
answer must be what paging by hand finds, or nothing is reported.
"""

import statistics
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from time import perf_counter
from typing import Any, Final, NamedTuple, TypeAlias

from tests.bench import proc
from tests.bench.httpclient import Client
from tests.bench.legacy import WARM, filled
from tests.bench.processes import BenchFailed, Child, Served, child, gateway
from tests.bench.report import Column, Goal, Options, Table, progress

PAGE: Final = 10
SLOW_PAGE_MS: Final = 0.5
TIME_GOAL: Final = 1.2  # times paging by hand

BY_HAND: Final = "by hand"
COLD: Final = "taskgate, cold"
AFTER: Final = "taskgate, after max_age"

_ONE_PAGE: Final = {**WARM, "page_size": 1_000_000, "page_bytes_max": "1GiB"}
_CONFIGURED: Final = {COLD: {"index": _ONE_PAGE}, AFTER: {"index": {**_ONE_PAGE, "max_age": "0s"}}}

_Tasks: TypeAlias = list[dict[str, Any]]
_Params: TypeAlias = dict[str, Any]


class Scenario(NamedTuple):
    """A session of `tasks`, `live` of them not finished, and what is asked of it, which may name some of its tasks.

    `goals`: how many requests a way may cost the server, None: any number. `page_ms`: what it waits before a page.
    """

    name: str
    tasks: int
    live: int
    params: Callable[[_Tasks], _Params]
    goals: dict[str, int | None]
    rounds_max: int = 2
    page_ms: float = 0


def _since_yesterday(_: _Tasks) -> _Params:
    return {"createdAfter": (datetime.now(UTC) - timedelta(days=1)).isoformat(timespec="milliseconds")}


def _failed(_: _Tasks) -> _Params:
    return {"status": ["failed"]}


SCENARIOS: Final = (
    Scenario("1,000 tasks, 10 live, status working", 1_000, 10, lambda _: {"status": ["working"]},
             {COLD: 100, AFTER: 13}),
    Scenario("10,000 tasks, 10 live, created since yesterday", 10_000, 10, _since_yesterday, {COLD: None, AFTER: 13}),
    Scenario("10,000 tasks, none live, status failed", 10_000, 0, _failed, {AFTER: 3}),
    Scenario("100,000 tasks, 10 live, 3 task ids", 100_000, 10,
             lambda tasks: {"taskIds": [tasks[at * (len(tasks) - 1) // 2]["taskId"] for at in range(3)]}, {COLD: 3}, 1),
    Scenario(f"10,000 tasks, 10 live, status failed, {SLOW_PAGE_MS} ms a page", 10_000, 10, _failed, {COLD: 1_000}, 5,
             SLOW_PAGE_MS),
)  # fmt: skip


class Cost(NamedTuple):
    """What one way to an answer took."""

    requests: int
    seconds: float


async def run(options: Options) -> list[Table]:
    tables = []
    core, others = proc.cores()
    for scenario in SCENARIOS:
        rounds: list[dict[str, Cost]] = []
        async with AsyncExitStack() as stack:
            legacy = await stack.enter_async_context(child(others, "legacy", str(PAGE), str(scenario.page_ms)))
            ways = {
                way: await stack.enter_async_context(gateway(core, legacy.url, _CONFIGURED[way]))
                for way in scenario.goals
            }
            for number in range(min(options.rounds, scenario.rounds_max)):
                progress(f"crawl: {scenario.name}, round {number + 1}")
                rounds.append({})
                for way, served in ways.items():
                    rounds[-1] |= await _costs(scenario, legacy, way, served)
        tables.append(_table(scenario, rounds))
    return tables


async def _costs(scenario: Scenario, legacy: Child, way: str, served: Served) -> dict[str, Cost]:
    """Of a new session: the cost of paging by hand, and of a query by that way. Its answer must be right."""
    client = await filled(served.url, legacy, scenario.tasks, scenario.live)
    direct = await client.another(legacy.url)
    everything, by_hand = await _measured(legacy, _pages(direct))
    params = scenario.params(everything)
    if way == AFTER:
        await _answer(client, params)  # its index is too old for the next
    found, cost = await _measured(legacy, _answer(client, params))
    right = {task["taskId"]: task for task in everything if _matches(task, params)}
    if not right or {task["taskId"]: task for task in found} != right:
        raise BenchFailed(f"{way}: {len(found)} tasks were answered for {params}, and not the {len(right)} that match")
    client.close()
    direct.close()
    return {BY_HAND: by_hand, way: cost}


async def _measured(legacy: Child, asking: Coroutine[Any, Any, _Tasks]) -> tuple[_Tasks, Cost]:
    before, began_at = await legacy.ask("counts"), perf_counter()
    found = await asking
    seconds, after = perf_counter() - began_at, await legacy.ask("counts")
    return found, Cost(after["requests"] - before["requests"], seconds)


async def _pages(client: Client) -> _Tasks:
    page = await client.ask("tasks/list", {})
    found: _Tasks = page["tasks"]
    while "nextCursor" in page:
        page = await client.ask("tasks/list", {"cursor": page["nextCursor"]})
        found += page["tasks"]
    return found


async def _answer(client: Client, params: _Params) -> _Tasks:
    """What the gateway says matches."""
    tasks: _Tasks = (await client.ask("tasks/list", params))["tasks"]
    return tasks


def _matches(task: dict[str, Any], params: _Params) -> bool:
    """Whether all criteria of a scenario hold."""
    return (
        task["taskId"] in params.get("taskIds", [task["taskId"]])
        and task["status"] in params.get("status", [task["status"]])
        and datetime.fromisoformat(task["createdAt"])
        >= datetime.fromisoformat(params.get("createdAfter", task["createdAt"]))
    )


def _table(scenario: Scenario, rounds: list[dict[str, Cost]]) -> Table:
    title = f"A filtered query on {scenario.name}; {PAGE} tasks a page; x: times paging by hand"
    table = Table(title, "way", [Column("server requests"), Column("ms", 1), Column("time x", 4)])
    for way in rounds[0]:
        requests = statistics.median(each[way].requests for each in rounds)
        seconds = statistics.median(each[way].seconds for each in rounds)
        of_time = statistics.median(each[way].seconds / each[BY_HAND].seconds for each in rounds)
        table.add(way, requests, seconds * 1000, of_time)
        if (goal := scenario.goals.get(way)) is not None:
            table.goals.append(Goal(way, goal, "server requests", requests))
        if scenario.page_ms and way == COLD:
            table.goals.append(Goal(f"{way}, time", TIME_GOAL, "x by hand", of_time))
    table.notes.append(f"median of {len(rounds)} rounds; ratios of times are taken within a round")
    return table
