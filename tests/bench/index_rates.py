"""The part of section `index` that has rates: filtered pages from a warm index beside relayed pings.

How: the kinds of queries of questions.py, another each time; one query again and again; and a ping. Each goes over 32
connections in a closed loop; they take turns, in short rounds. The ping goes through a gateway of its own, on the same
core, to the least of upstreams (upstream.py): it costs what section `relay` says. A figure is that of the median round,
a ratio the median of the ratios of all rounds.
"""

import statistics
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any, Final

from tests.bench import proc
from tests.bench.httpclient import Client, request_body
from tests.bench.options import Options
from tests.bench.processes import BenchFailed, Child, Served, child, gateway
from tests.bench.questions import KINDS, questions
from tests.bench.report import Column, Goal, Table, progress

TASKS: Final = 100_000
CRAWLED_PAGE: Final = 1_000
PAGE: Final = 100
CONNECTIONS: Final = 32
SECONDS: Final = 0.5
PING: Final = "a relayed ping"
SAME: Final = "the same list again"
SAME_GOAL: Final = 0.6  # of a ping's requests/s
OTHER_GOAL: Final = 0.35  # ... another list each time
_WARM: Final = {"page_size": PAGE, "max_age": "1h", "full_crawl_interval": "1h"}


async def run(options: Options) -> Table:
    """Measure, and make the table."""
    cores = proc.cores()
    async with AsyncExitStack() as stack:
        load = await stack.enter_async_context(child(cores.others, "load"))
        upstream = await stack.enter_async_context(child(cores.others, "upstream"))
        legacy = await stack.enter_async_context(child(cores.others, "legacy", str(CRAWLED_PAGE)))
        relaying = await stack.enter_async_context(gateway(cores.measured, upstream.url))
        answering = await stack.enter_async_context(gateway(cores.measured, legacy.url, _WARM))
        pinger = await Client.connect(relaying.url)
        ping = request_body("ping", {})
        await pinger.post(ping)
        client = await _indexed(answering, legacy)
        ways = {PING: (relaying, [pinger.request(ping).decode()])}
        until = datetime.now(UTC)
        for kind in KINDS:
            bodies = [request_body("tasks/list", question.params) for question in questions(kind, until)]
            ways[kind] = (answering, [client.request(body).decode() for body in bodies])
        ways[SAME] = (answering, [client.request(request_body("tasks/list", {"status": ["working"]})).decode()])
        rounds = [await _round(load, ways, number) for number in range(options.rounds)]
        pinger.close()
        client.close()
    return _table(rounds)


async def _indexed(answering: Served, legacy: Child) -> Client:
    """A client whose session is in the index."""
    client = await Client.connect(answering.url)
    await client.initialize()
    await legacy.ask("load", tasks=TASKS)
    answer = await client.ask("tasks/list", {"order": "desc"})
    if answer["_meta"]["taskgate/total"] != TASKS:
        raise BenchFailed(f"of {TASKS} tasks the gateway knows {answer['_meta']['taskgate/total']}")
    return client


async def _round(load: Child, ways: dict[str, tuple[Served, list[str]]], number: int) -> dict[str, dict[str, Any]]:
    """The figures of each way once, in an order that changes."""
    progress(f"index: rates, round {number + 1}")
    turn, names, figures = number % len(ways), list(ways), {}
    for name in names[turn:] + names[:turn]:
        served, requests = ways[name]
        cpu_s = proc.cpu_seconds(served.pid)
        run = await load.ask("requests", url=served.url, requests=requests, connections=CONNECTIONS, seconds=SECONDS)
        run["cpu_us"] = (proc.cpu_seconds(served.pid) - cpu_s) / run["answered"] * 1e6
        figures[name] = run
    return figures


def _table(rounds: list[dict[str, dict[str, Any]]]) -> Table:
    table = Table(
        "index, rates",
        f"A page of {PAGE} tasks out of {TASKS:,}, warm, {CONNECTIONS} keep-alive connections",
        "criteria",
        [
            Column("requests/s"),
            Column("x ping", 2),
            Column("median ms", 2),
            Column("gateway CPU us/request"),
            Column("CPU x ping", 2),
        ],
    )
    for name in rounds[0]:
        rate, cpu = (_ratio(rounds, name, figure) for figure in ("per_second", "cpu_us"))
        median = [
            statistics.median(r[name][figure] for r in rounds) for figure in ("per_second", "median_us", "cpu_us")
        ]
        table.add(name, median[0], rate, median[1] / 1000, median[2], cpu)
        if name != PING:
            goal = SAME_GOAL if name == SAME else OTHER_GOAL
            table.goals.append(Goal(f"requests/s, {name}", goal, "of a ping's", rate, at_least=True))
    table.notes.append(f"median of {len(rounds)} rounds; ratios are taken within a round")
    return table


def _ratio(rounds: list[dict[str, dict[str, Any]]], name: str, figure: str) -> float:
    return float(statistics.median(r[name][figure] / r[PING][figure] for r in rounds))
