"""What a filtered list costs over stdio: as over HTTP (docs/performance.md)."""

import asyncio
from collections import Counter

import pytest

from gateway.config import IndexLimits, StdioConfig
from tests.stdio.harness import Stage, call, result, task, through

TASKS, LIVE, PAGE = 1000, 10, 10


async def serve(stage: Stage, counts: "Counter[str]") -> None:
    """A server whose list has ten tasks a page, the live ones first."""
    tasks = {f"t{n:03}": task(f"t{n:03}", "working" if n < LIVE else "completed") for n in range(TASKS)}
    for n, each in enumerate(tasks.values()):
        each["createdAt"] = f"2026-11-19T{n // 60:02}:{n % 60:02}:00Z"
    ids = list(tasks)
    number = 0
    while True:
        number += 1
        own = await stage.server.own(number)
        counts[own["method"]] += 1
        if own["method"] == "tasks/get":
            await stage.server.send(result(own["id"], tasks[own["params"]["taskId"]]))
            continue
        start = int(own["params"].get("cursor", 0))
        page = {"tasks": [tasks[i] for i in ids[start : start + PAGE]]}
        if start + PAGE < TASKS:
            page["nextCursor"] = str(start + PAGE)  # type: ignore[assignment]
        await stage.server.send(result(own["id"], page))


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
