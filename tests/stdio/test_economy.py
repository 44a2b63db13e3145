"""What a filtered list costs over stdio: as over HTTP (docs/performance.md)."""

import asyncio
from collections import Counter

import pytest

from gateway.config import IndexLimits, StdioConfig
from tests.stdio.harness import Stage, call, line, through
from tests.world.servers import Kind, Server

TASKS, LIVE, PAGE = 1000, 10, 10


async def serve(stage: Stage, counts: "Counter[str]") -> None:
    """A server whose list has ten tasks a page."""
    server, number = Server(Kind(page_size=PAGE)), 0
    server.fill(TASKS, LIVE)
    while True:
        number += 1
        own = await stage.server.own(number)
        counts[own["method"]] += 1
        await stage.server.send(line(server.said(own)))


@pytest.mark.parametrize(("max_age", "then"), [(600.0, {}), (0.05, {"tasks/list": 1, "tasks/get": 10})])
async def test_a_thousand_tasks_cost_a_hundred_lists_then_nothing_then_what_can_have_changed(
    max_age: float, then: dict[str, int]
) -> None:
    counts: Counter[str] = Counter()
    index = IndexLimits(max_age=max_age, full_crawl_interval=600.0)
    async with through(StdioConfig(index=index)) as stage:
        await stage.initialize()
        serving = asyncio.create_task(serve(stage, counts))
        for message_id, cost in ((1, {"tasks/list": 100}), (2, then)):
            counts.clear()
            await stage.client.send(call(message_id, "tasks/list", status=["working"]))
            await stage.client.hears(b'"id":%d,' % message_id)
            answer = stage.client.messages()[-1]["result"]
            assert (len(answer["tasks"]), answer["_meta"]["taskgate/total"]) == (LIVE, LIVE)
            assert counts == cost
            await asyncio.sleep(max_age if then else 0)
        serving.cancel()
