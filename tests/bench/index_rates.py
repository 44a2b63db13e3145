"""The part of section `index` that has rates: filtered pages from a warm index beside relayed pings.

How: the kinds of queries of questions.py, another each time; one query again and again; and a ping, through a gateway
of its own on the same core. Each goes over 32 connections in a closed loop; they take turns, in short rounds. A figure
is that of the median round, a ratio the median of the ratios of all rounds.
"""

from collections.abc import Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Final

from tests.bench import proc
from tests.bench.httpclient import Client, request_body
from tests.bench.options import Options
from tests.bench.processes import Served, child, gateway
from tests.bench.questions import KINDS, questions
from tests.bench.relay import Way, turned
from tests.bench.report import Column, Goal, Table, progress
from tests.bench.sessions import WARM, filled, indexed
from tests.bench.traffic import CONNECTIONS

TASKS: Final = 50_000
CRAWLED_PAGE: Final = 1_000
PAGE: Final = 100
SECONDS: Final = 0.5
PING: Final = "a relayed ping"
ROUND: Final = "round"
SAME: Final = "the same list again"
SAME_GOAL: Final = 0.65  # of a ping's requests/s
OTHER_GOAL: Final = 0.3  # ... another list each time


async def run(options: Options) -> Table:
    core, others = proc.cores()
    async with AsyncExitStack() as stack:
        load = await stack.enter_async_context(child(others, "load"))
        upstream = await stack.enter_async_context(child(others, "upstream"))
        legacy = await stack.enter_async_context(child(others, "legacy", str(CRAWLED_PAGE)))
        relaying = await stack.enter_async_context(gateway(core, upstream.url))
        answering = await stack.enter_async_context(gateway(core, legacy.url, {**WARM, "page_size": PAGE}))
        pinger = await Client.connect(relaying.url)
        await pinger.post(request_body("ping", {}))
        client = await filled(answering.url, legacy, TASKS)
        await indexed(client, TASKS)
        ways = [(Way(PING, relaying.url, relaying.pid), [request_body("ping", {})]), *_lists(answering)]
        for number in range(options.rounds):
            progress(f"index: rates, round {number + 1}")
            for way, bodies in turned(ways, number):
                requests = [(pinger if way.name == PING else client).request(body).decode() for body in bodies]
                await way.measure(load, ROUND, SECONDS, requests=requests, connections=CONNECTIONS)
        pinger.close()
        client.close()
    return _table([way for way, _ in ways])


def _lists(answering: Served) -> Iterator[tuple[Way, list[bytes]]]:
    until = datetime.now(UTC)
    for kind in KINDS:
        bodies = [request_body("tasks/list", question.params) for question in questions(kind, until)]
        yield Way(kind, answering.url, answering.pid), bodies
    yield Way(SAME, answering.url, answering.pid), [request_body("tasks/list", {"status": ["working"]})]


def _table(ways: list[Way]) -> Table:
    table = Table(
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
    ping, *lists = ways
    for way in ways:
        rate, cpu = (way.times(ping, ROUND, figure) for figure in ("per_second", "cpu_us"))
        per_second, median_us, cpu_us = (way.median(ROUND, f) for f in ("per_second", "median_us", "cpu_us"))
        table.add(way.name, per_second, rate, median_us / 1000, cpu_us, cpu)
    for way in lists:
        goal = SAME_GOAL if way.name == SAME else OTHER_GOAL
        reached = way.times(ping, ROUND, "per_second")
        table.goals.append(Goal(f"requests/s, {way.name}", goal, "of a ping's", reached, at_least=True))
    table.notes.append(f"median of {len(ping.rounds[ROUND])} rounds; ratios are taken within a round")
    return table
