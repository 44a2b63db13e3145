"""Section `crawl`: what a filtered query costs the upstream, beside a client that pages by hand and filters.

How: the demo's legacy server, ten tasks a page; it counts requests and the bytes of their answers' bodies. By hand, a
client reads every page of the server directly and keeps what matches. The same lean client asks gateways instead:

    cold                    the first query of a session
    within max_age          the next one
    after a change          one within max_age, after a task was cancelled through the gateway; that request not counted
    after max_age           a query of a gateway whose `max_age` is 0, so that what it has indexed is always too old
    always crawling         the same of a gateway whose `full_crawl_interval` is 0 too
    50 clients, cold        the first query of a session, by 50 clients at once

In the last scenario each page takes the server `SLOW_PAGE_MS`: the goal there is time, as a ratio to paging by hand. A
crawl reads and indexes a page while the server works at the next one.

A gateway's answer comes as one page. Every answer must be what paging by hand finds, or nothing is reported. (A client
that knows the ids it wants would ask for each with `tasks/get`: there the gateway can only be as good.)
"""

import asyncio
import statistics
from collections.abc import AsyncIterator, Callable
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

PAGE: Final = 10
PAGES_MAX: Final = 20_000
CLIENTS: Final = 50
SLOW_PAGE_MS: Final = 0.5

BY_HAND: Final = "by hand"
COLD: Final = "taskgate, cold"
WITHIN: Final = "taskgate, within max_age"
CHANGED: Final = "taskgate, after a change"
AFTER: Final = "taskgate, after max_age"
CRAWLING: Final = "taskgate, always crawling"
CROWD: Final = f"taskgate, {CLIENTS} clients, cold"

_WARM: Final = {"page_size": 1_000_000, "page_bytes_max": "1GiB", "max_age": "1h", "full_crawl_interval": "1h"}
_STALE: Final = {**_WARM, "max_age": "0s"}
_CRAWLING: Final = {**_STALE, "full_crawl_interval": "0s"}

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
        (COLD, WITHIN, CHANGED, AFTER, CRAWLING, CROWD),
        rounds_max=3,
        goals={COLD: 100, WITHIN: 0, CHANGED: 0, AFTER: 13, CROWD: 100},
    ),
    Scenario(
        *("10,000 tasks, 10 live, created since yesterday", 10_000, 10, _since_yesterday),
        (COLD, WITHIN, CHANGED, AFTER, CRAWLING),
        rounds_max=2,
        goals={WITHIN: 0, CHANGED: 0, AFTER: 13},
    ),
    Scenario(
        *("10,000 tasks, none live, status failed", 10_000, 0, _failed),
        (AFTER,),
        rounds_max=2,
        goals={AFTER: 3},
    ),
    Scenario(
        *("100,000 tasks, 10 live, 3 task ids", 100_000, 10, _three),
        (COLD,),
        rounds_max=1,
        goals={COLD: 3},
    ),
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

    requests: float
    server_bytes: float
    seconds: float
    client_bytes: float


class Gateways(NamedTuple):
    """The server, and gateways in front of it that differ in their configuration."""

    legacy: Child
    warm: Served
    stale: Served
    crawling: Served


@asynccontextmanager
async def _gateways(page_ms: float) -> AsyncIterator[Gateways]:
    cores = proc.cores()
    async with (
        child(cores.others, "legacy", str(PAGE), str(page_ms)) as legacy,
        gateway(cores.measured, legacy.url, _WARM) as warm,
        gateway(cores.measured, legacy.url, _STALE) as stale,
        gateway(cores.measured, legacy.url, _CRAWLING) as crawling,
    ):
        yield Gateways(legacy, warm, stale, crawling)


async def run(options: Options) -> list[Table]:
    """Measure, and make the tables."""
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
    table = Table(
        f"crawl, {scenario.name}",
        f"A filtered query on {scenario.name}; {PAGE} tasks a page; x: times paging by hand",
        "way",
        [
            Column("server requests"),
            Column("requests x", 4),
            Column("server bytes"),
            Column("server bytes x", 4),
            Column("ms", 1),
            Column("time x", 4),
            Column("client bytes"),
            Column("client bytes x", 4),
        ],
    )
    costs = {way: _median([each[way] for each in rounds]) for way in rounds[0]}
    base = costs[BY_HAND]
    for way, cost in costs.items():
        shown = cost._replace(seconds=cost.seconds * 1000)
        ratios = [ratio(value, by_hand) for value, by_hand in zip(cost, base, strict=True)]
        table.add(way, *(value for pair in zip(shown, ratios, strict=True) for value in pair))
    for way, limit in scenario.goals.items():
        table.goals.append(Goal(way, limit, "server requests", costs[way].requests, at_most=True))
    for way, most in scenario.time_goals.items():
        times = statistics.median([each[way].seconds / each[BY_HAND].seconds for each in rounds])
        table.goals.append(Goal(f"{way}, time", most, "x by hand", times, at_most=True))
    table.notes.append(f"median of {len(rounds)} rounds")
    return table


def _median(costs: list[Cost]) -> Cost:
    return Cost(*(statistics.median(values) for values in zip(*costs, strict=True)))


class _Round:
    """Every way of a scenario once, on new sessions."""

    def __init__(self, gateways: Gateways, scenario: Scenario) -> None:
        self._gateways = gateways
        self._scenario = scenario
        self._costs: dict[str, Cost] = {}

    async def run(self) -> dict[str, Cost]:
        """The cost of each way."""
        wanted = self._scenario.ways
        await self._one_session()
        for way, gateway_url in ((AFTER, self._gateways.stale.url), (CRAWLING, self._gateways.crawling.url)):
            if way in wanted:
                await self._refreshed(way, gateway_url)
        if CROWD in wanted:
            await self._crowd()
        return self._costs

    async def _one_session(self) -> None:
        """By hand, cold, within max_age, after a change: one after the other on one session."""
        wanted = self._scenario.ways
        client, direct = await self._session(self._gateways.warm.url)
        everything = await self._measured(BY_HAND, [direct], lambda: _pages(direct))
        params = self._scenario.params(everything)
        for way in (COLD, WITHIN):
            if way in wanted:
                tasks = await self._measured(way, [client], lambda: _filtered(client, params))
                _agree(way, tasks, everything, params)
        if CHANGED in wanted:
            live = next(task for task in everything if task["status"] == "working")
            await client.ask("tasks/cancel", {"taskId": live["taskId"]})
            tasks = await self._measured(CHANGED, [client], lambda: _filtered(client, params))
            _agree(CHANGED, tasks, await _pages(direct), params)
        _close(client, direct)

    async def _refreshed(self, way: str, url: str) -> None:
        """The second query of a session, whose index is too old by then."""
        client, direct = await self._session(url)
        everything = await _pages(direct)
        params = self._scenario.params(everything)
        await _filtered(client, params)
        tasks = await self._measured(way, [client], lambda: _filtered(client, params))
        _agree(way, tasks, everything, params)
        _close(client, direct)

    async def _crowd(self) -> None:
        """The first query of a session, by many clients at once."""
        client, direct = await self._session(self._gateways.warm.url)
        clients = [await client.another(self._gateways.warm.url) for _ in range(CLIENTS)]
        everything = await _pages(direct)
        params = self._scenario.params(everything)

        async def ask() -> _Tasks:
            return await asyncio.gather(*(_filtered(each, params) for each in clients))

        for tasks in await self._measured(CROWD, clients, ask):
            _agree(CROWD, tasks, everything, params)
        _close(client, direct, *clients)

    async def _session(self, url: str) -> tuple[Client, Client]:
        """A new session with its tasks: a client that reaches it by `url`, and one that does so directly."""
        client = await Client.connect(url)
        await client.initialize()
        await self._gateways.legacy.ask("load", tasks=self._scenario.tasks, live=self._scenario.live)
        return client, await client.another(self._gateways.legacy.url)

    async def _measured(self, way: str, clients: list[Client], ask: Callable[[], Any]) -> _Tasks:
        """The answer to `ask`. Its cost is noted under `way`."""
        before = await self._gateways.legacy.ask("counts")
        client_bytes = sum(client.body_bytes for client in clients)
        began_at = perf_counter()
        found: _Tasks = await ask()
        seconds = perf_counter() - began_at
        client_bytes = sum(client.body_bytes for client in clients) - client_bytes
        after = await self._gateways.legacy.ask("counts")
        requests, server_bytes = (after[what] - before[what] for what in ("requests", "bytes"))
        self._costs[way] = Cost(requests, server_bytes, seconds, client_bytes)
        return found


async def _pages(client: Client) -> _Tasks:
    """All tasks, page by page."""
    found: _Tasks = []
    params: _Params = {}
    for _ in range(PAGES_MAX):
        page = await client.ask("tasks/list", params)
        found += page["tasks"]
        if "nextCursor" not in page:
            return found
        params = {"cursor": page["nextCursor"]}
    raise BenchFailed(f"the list does not end after {PAGES_MAX} pages")


async def _filtered(client: Client, params: _Params) -> _Tasks:
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


def _close(*clients: Client) -> None:
    for client in clients:
        client.close()
