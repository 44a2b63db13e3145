"""Section `crawl`: what a filtered query costs the upstream, beside a client that pages by hand and filters.

How: the demo's legacy server, ten tasks a page, counts requests. The same lean client pages by hand, or asks gateways:

    cold                    the first query of a session
    after max_age           a query of a gateway whose `max_age` is 0, so that what it has indexed is always too old

In the last one each page takes the server `SLOW_PAGE_MS`: the goal there is time, as a ratio to paging by hand. Every
answer must be what paging by hand finds, or nothing is reported.
"""

import statistics
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from time import perf_counter
from typing import Any, Final, NamedTuple, TypeAlias

from tests.bench import proc
from tests.bench.httpclient import Client
from tests.bench.options import Options
from tests.bench.processes import BenchFailed, Child, Served, child, gateway
from tests.bench.report import Column, Goal, Table, progress, ratio
from tests.bench.sessions import WARM, filled

PAGE: Final = 10
PAGES_MAX: Final = 20_000
SLOW_PAGE_MS: Final = 0.5

BY_HAND: Final = "by hand"
COLD: Final = "taskgate, cold"
AFTER: Final = "taskgate, after max_age"

_ONE_PAGE: Final = {**WARM, "page_size": 1_000_000, "page_bytes_max": "1GiB"}
_STALE: Final = {**_ONE_PAGE, "max_age": "0s"}

_Tasks: TypeAlias = list[Any]
_Params: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Scenario:
    """A session of `tasks`, `live` of them not finished, and what is asked of it, which may name some of its tasks.

    `goals`: a way, and how many requests it may cost the server; `time_goals`: how many times paging by hand it may
    take. `page_ms`: what the server waits before it answers with a page.
    """

    name: str
    tasks: int
    live: int
    params: Callable[[_Tasks], _Params]
    ways: tuple[str, ...]
    rounds_max: int
    goals: dict[str, int] = field(default_factory=dict)
    time_goals: dict[str, float] = field(default_factory=dict)
    page_ms: float = 0


def _working(_: _Tasks) -> _Params:
    return {"status": ["working"]}


def _since_yesterday(_: _Tasks) -> _Params:
    yesterday = datetime.now(UTC) - timedelta(days=1)
    return {"createdAfter": yesterday.isoformat(timespec="milliseconds")}


def _failed(_: _Tasks) -> _Params:
    return {"status": ["failed"]}


def _three(tasks: _Tasks) -> _Params:
    return {"taskIds": [tasks[at * (len(tasks) - 1) // 2]["taskId"] for at in range(3)]}


SCENARIOS: Final = (
    Scenario(
        *("1,000 tasks, 10 live, status working", 1_000, 10, _working),
        (COLD, AFTER),
        rounds_max=3,
        goals={COLD: 100, AFTER: 13},
    ),
    Scenario(
        *("10,000 tasks, 10 live, created since yesterday", 10_000, 10, _since_yesterday),
        (COLD, AFTER),
        rounds_max=2,
        goals={AFTER: 13},
    ),
    Scenario(*("10,000 tasks, none live, status failed", 10_000, 0, _failed), (AFTER,), rounds_max=2, goals={AFTER: 3}),
    Scenario(*("100,000 tasks, 10 live, 3 task ids", 100_000, 10, _three), (COLD,), rounds_max=1, goals={COLD: 3}),
    Scenario(
        *(f"10,000 tasks, 10 live, status failed, {SLOW_PAGE_MS} ms a page", 10_000, 10, _failed),
        (COLD,),
        rounds_max=5,
        goals={COLD: 1_000},
        time_goals={COLD: 1.2},
        page_ms=SLOW_PAGE_MS,
    ),
)


class Cost(NamedTuple):
    """What one way to an answer took."""

    requests: int
    seconds: float


class Gateways(NamedTuple):
    """The server, and gateways in front of it that differ in their configuration."""

    legacy: Child
    warm: Served
    stale: Served


@asynccontextmanager
async def _gateways(page_ms: float) -> AsyncIterator[Gateways]:
    core, others = proc.cores()
    async with (
        child(others, "legacy", str(PAGE), str(page_ms)) as legacy,
        gateway(core, legacy.url, _ONE_PAGE) as warm,
        gateway(core, legacy.url, _STALE) as stale,
    ):
        yield Gateways(legacy, warm, stale)


async def run(options: Options) -> list[Table]:
    tables = []
    for scenario in SCENARIOS:
        rounds: list[dict[str, Cost]] = []
        async with _gateways(scenario.page_ms) as gateways:
            for number in range(min(options.rounds, scenario.rounds_max)):
                progress(f"crawl: {scenario.name}, round {number + 1}")
                rounds.append(await _Round(gateways, scenario).run())
        tables.append(_table(scenario, rounds))
    return tables


def _table(scenario: Scenario, rounds: list[dict[str, Cost]]) -> Table:
    title = f"A filtered query on {scenario.name}; {PAGE} tasks a page; x: times paging by hand"
    columns = [Column("server requests"), Column("requests x", 4), Column("ms", 1), Column("time x", 4)]
    table = Table(title, "way", columns)
    of_ways = {way: [each[way] for each in rounds] for way in rounds[0]}
    for way, costs in of_ways.items():
        requests, seconds = (statistics.median(values) for values in zip(*costs, strict=True))
        by_hand = of_ways[BY_HAND]
        of_requests = ratio(requests, statistics.median(cost.requests for cost in by_hand))
        of_time = statistics.median(cost.seconds / hand.seconds for cost, hand in zip(costs, by_hand, strict=True))
        table.add(way, requests, of_requests, seconds * 1000, of_time)
        if way in scenario.goals:
            table.goals.append(Goal(way, scenario.goals[way], "server requests", requests, at_most=True))
        if way in scenario.time_goals:
            table.goals.append(Goal(f"{way}, time", scenario.time_goals[way], "x by hand", of_time, at_most=True))
    table.notes.append(f"median of {len(rounds)} rounds; ratios of times are taken within a round")
    return table


class _Round:
    """Every way of a scenario once, on new sessions."""

    def __init__(self, gateways: Gateways, scenario: Scenario) -> None:
        self._gateways = gateways
        self._scenario = scenario
        self._costs: dict[str, Cost] = {}

    async def run(self) -> dict[str, Cost]:
        ways = self._scenario.ways
        async with self._session(self._gateways.warm) as (client, direct):
            everything = await self._measured(BY_HAND, _pages(direct))
            if COLD in ways:
                await self._filtered(COLD, client, everything)
        if AFTER in ways:
            async with self._session(self._gateways.stale) as (client, direct):
                everything = await _pages(direct)
                await _answer(client, self._scenario.params(everything))  # its index is too old for the next
                await self._filtered(AFTER, client, everything)
        return self._costs

    @asynccontextmanager
    async def _session(self, way: Served) -> AsyncIterator[tuple[Client, Client]]:
        """A new session with its tasks: a client that reaches it by `way`, and one that does so directly."""
        client = await filled(way.url, self._gateways.legacy, self._scenario.tasks, self._scenario.live)
        direct = await client.another(self._gateways.legacy.url)
        yield client, direct
        client.close()
        direct.close()

    async def _filtered(self, way: str, client: Client, everything: _Tasks) -> None:
        """The query of a session, and its cost. The answer must be right."""
        params = self._scenario.params(everything)
        _agree(way, await self._measured(way, _answer(client, params)), everything, params)

    async def _measured(self, way: str, asking: Coroutine[Any, Any, _Tasks]) -> _Tasks:
        """What is answered. Its cost is noted under `way`."""
        before = await self._gateways.legacy.ask("counts")
        began_at = perf_counter()
        found = await asking
        seconds = perf_counter() - began_at
        after = await self._gateways.legacy.ask("counts")
        self._costs[way] = Cost(after["requests"] - before["requests"], seconds)
        return found


async def _pages(client: Client) -> _Tasks:
    found: _Tasks = []
    params: _Params = {}
    for _ in range(PAGES_MAX):
        page = await client.ask("tasks/list", params)
        found += page["tasks"]
        if "nextCursor" not in page:
            return found
        params = {"cursor": page["nextCursor"]}
    raise BenchFailed(f"the list does not end after {PAGES_MAX} pages")


async def _answer(client: Client, params: _Params) -> _Tasks:
    """What the gateway says matches."""
    page = await client.ask("tasks/list", params)
    tasks: _Tasks = page["tasks"]
    return tasks


def _agree(way: str, answered: _Tasks, everything: _Tasks, params: _Params) -> None:
    """Raises BenchFailed if an answer does not match its criteria."""
    right = {task["taskId"]: task for task in everything if _matches(task, params)}
    if not right or {task["taskId"]: task for task in answered} != right:
        raise BenchFailed(
            f"{way}: {len(answered)} tasks were answered for {params}, and not the {len(right)} that match"
        )


def _matches(task: dict[str, Any], params: _Params) -> bool:
    """Whether all criteria of a scenario hold."""
    return (
        task["taskId"] in params.get("taskIds", [task["taskId"]])
        and task["status"] in params.get("status", [task["status"]])
        and datetime.fromisoformat(task["createdAt"])
        >= datetime.fromisoformat(params.get("createdAfter", task["createdAt"]))
    )
