"""Metrics of tasks in front of real servers: they agree with what the test made happen, to the task (DESIGN 8.15)."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, suppress
from typing import Final

import httpx
import pytest

from tests.launch import Gateway, Process, Samples, eventually
from tests.real.conftest import Json, Runner, Wire

Counts = Counter[tuple[str, str]]
"""How many, by tool and status."""

TOOLS: Final = ("render", "train", "index")
LIVE: Final = ("working", "input_required")


def before(runner: Runner, server: Process) -> AbstractContextManager[Gateway]:
    """A gateway before a server, whose metrics can be read."""
    return runner.gateways.process(int(server.wait().rpartition(":")[2]), index={"max_age": "100ms"})


def counts_of(samples: Samples, name: str) -> Counts:
    found: Counts = Counter()
    for (metric, labels), value in samples.items():
        if metric == name:
            named = dict(labels)
            found[named["tool"], named.get("status", "")] += int(value)
    return +found


async def agree(gateway: Gateway, tasks: Counts) -> None:
    """Return once the metrics, and the rows of the page, say the same as these tasks by tool and status."""
    started, live, ended = Counter(), Counter(), Counter()  # type: Counts, Counts, Counts
    for (tool, status), count in tasks.items():
        started[tool, ""] += count
        (live if status in LIVE else ended)[tool, status] += count
    wanted, seen = (started, live, ended), tuple[Counts, ...]()

    async def same() -> bool:
        nonlocal seen
        samples = await gateway.metrics()
        names = "taskgate_tasks_started_total", "taskgate_tasks", "taskgate_tasks_ended_total"
        seen = tuple(counts_of(samples, name) for name in names)
        return seen == wanted

    with suppress(AssertionError):
        await eventually(same, "the metrics agree")
    assert seen == wanted
    rows = json.loads(gateway.get("/page/status.json")[1])["upstreams"][0]["tasks"]
    assert Counter({(row["tool"], ""): row["started"]["all"] for row in rows}) == wanted[0]
    lives = {(row["tool"], status): of["count"] for row in rows for status, of in row["live"].items()}
    assert lives == wanted[1]
    assert {(row["tool"], status): n for row in rows for status, n in row["ended"]["all"].items()} == wanted[2]


async def each(task_ids: list[str], follow: Callable[[str], Awaitable[object]]) -> None:
    for start in range(0, len(task_ids), 10):
        await asyncio.gather(*map(follow, task_ids[start : start + 10]))


# ---- the TypeScript SDK ----


@pytest.mark.parametrize(("sdk", "how"), [("1.30", "get"), ("1.32", "list"), ("1.32", "notifications")])
async def test_typescript(runner: Runner, http: httpx.AsyncClient, sdk: str, how: str) -> None:
    """Three sessions make 90 tasks, of which some end at once, some later, some wait, and some are forgotten."""
    chance = random.Random(f"{sdk}{how}")
    with runner.node_server("seen_tasks.mjs", sdk=sdk) as server, before(runner, server) as gateway:
        wires = [(await Wire(f"http://127.0.0.1:{gateway.port}/mcp", http).initialize())[0] for _ in range(3)]
        listening = [asyncio.create_task(listen(wire)) for wire in wires if how == "notifications"]
        tasks: Counts = Counter()
        owners: dict[str, Wire] = {}
        for number in range(90):
            wire, tool = wires[number % 3], chance.choice(TOOLS)
            end = chance.choice(("", "", "completed", "failed"))
            call: Json = {"name": tool, "arguments": {"ends": end}, "task": {"ttl": 60_000}}
            task_id = (await wire.post("tools/call", call)).result["task"]["taskId"]
            owners[task_id] = wire
            to = end or chance.choice(("working", "input_required", "completed", "failed", "cancelled"))
            if to == "cancelled":
                await wire.post("tasks/cancel", {"taskId": task_id})
            elif not end and to != "working":
                await wire.post("tools/call", {"name": "move", "arguments": {"taskId": task_id, "to": to}})
            tasks[tool, to] += 1
        if how == "list":
            for wire in wires:
                assert await wire.tasks({"status": list(LIVE)})
        else:
            await each(list(owners), lambda task_id: owners[task_id].post("tasks/get", {"taskId": task_id}))
        await agree(gateway, tasks)
        for wire in wires:  # one task is one, though several sessions show it (1.30)
            await wire.tasks({})
            await wire.tasks({"order": "asc"})
        await agree(gateway, tasks)
        for task in listening:
            task.cancel()
        await asyncio.gather(*listening, return_exceptions=True)


async def listen(wire: Wire) -> None:
    """Hold the stream on which the server notifies of statuses."""
    fields = {**wire.headers, "Accept": "text/event-stream"}
    async with wire.http.stream("GET", wire.url, headers=fields) as stream:
        async for _ in stream.aiter_bytes():
            pass


# ---- the Python SDK and FastMCP ----


async def test_python(runner: Runner, http: httpx.AsyncClient) -> None:
    """Tasks that complete, fail, wait for input, are cancelled, are deleted; some ends only the gateway asks for."""
    asking: Json = {"elicitation": {}}
    with runner.server("python_sdk", "--json") as server, before(runner, server) as gateway:
        wire, _ = await Wire(f"http://127.0.0.1:{gateway.port}/mcp", http).initialize(asking)
        wanted: Counts = Counter()
        for until, ends in (("now", "completed"), ("failed", "failed"), ("asked", "input_required")) * 5:
            task_id = await wire.work(until, until)
            wanted["work", ends] += 1
            await wire.reaches(task_id, ends)
        for ends in ("cancelled", "lost", "completed", "working") * 5:
            task_id = await wire.work("released", ends)
            wanted["work", ends] += 1
            if ends == "cancelled":
                await wire.post("tasks/cancel", {"taskId": task_id})
            elif ends != "working":
                tool = "delete" if ends == "lost" else "release"
                await wire.post("tools/call", {"name": tool, "arguments": {"taskId": task_id}})

        async def settled() -> bool:
            return len(await wire.tasks({"status": ["working"]})) == 5

        await eventually(settled, "five tasks that work")
        await agree(gateway, wanted)


async def test_fastmcp(runner: Runner, http: httpx.AsyncClient) -> None:
    """Its list is always empty, and `lastUpdatedAt` the time of each answer. Prompts and resources make tasks too."""
    with runner.server("fastmcp_tasks") as server, before(runner, server) as gateway:
        wire, _ = await Wire(f"http://127.0.0.1:{gateway.port}/mcp", http).initialize()
        requests: list[tuple[str, Json, str, str]] = [
            *[("tools/call", {"name": "work", "arguments": {"name": "a"}}, "work", "completed")] * 4,
            *[("tools/call", {"name": "work", "arguments": {"name": "b"}}, "work", "working")] * 3,
            *[("tools/call", {"name": "fail", "arguments": {"name": "c"}}, "fail", "failed")] * 3,
            *[("prompts/get", {"name": "advice", "arguments": {"about": "it"}}, "prompts/get", "completed")] * 2,
            ("resources/read", {"uri": "notes://all"}, "resources/read", "completed"),
        ]
        wanted: Counts = Counter()
        made = []
        for method, params, tool, ends in requests:
            made.append((await wire.post(method, {**params, "task": {"ttl": 60_000}})).result["task"]["taskId"])
            wanted[tool, ends] += 1
        await wire.post("tools/call", {"name": "release", "arguments": {"name": "a"}})
        for task_id, (*_, ends) in zip(made, requests, strict=True):
            await wire.reaches(task_id, ends)
        await agree(gateway, wanted)
