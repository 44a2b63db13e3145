"""Real servers and clients on stdio, each directly and through `taskgate stdio`: the same, but for `filter`."""

import asyncio
import json
import os
import re
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from mcp import ClientSession, McpError, StdioServerParameters, stdio_client, types

from tests.launch import ROOT
from tests.real.clients.conversation import Send
from tests.real.clients.mcp_1 import sent
from tests.real.conftest import EVERYTHING, FILTER_CAPABILITY, Json, blurred, ids_of, selected
from tests.tools import NODE, inspector, node

GATEWAY = [sys.executable, "-m", "gateway", "stdio", "--"]
SECONDS = 60.0
TRIES_MAX = 100  # of a result, a tenth of a second apart
Calls = list[tuple[str, Json]]

CALLS: dict[str, Calls] = {
    "everything": [
        ("simulate-research-query", {"topic": "python", "ambiguous": True}),
        ("simulate-research-query", {"topic": "other", "ambiguous": False}),
    ],
    "python_sdk": [("work", {"until": until, "label": until}) for until in ("now", "failed", "asked", "released")],
    "fastmcp_tasks": [
        ("fail", {"name": "a"}),
        ("fail", {"name": "b"}),
        ("ask", {"name": "c"}),
        ("work", {"name": "d"}),
    ],
}
"""What is asked of each server."""
METHODS = {"fastmcp_tasks": ["tools/call", "prompts/get", "resources/read"]}


def server(name: str) -> list[str]:
    if name == "everything":
        return [node(), str(NODE / EVERYTHING), "stdio"]
    return [sys.executable, "-m", f"tests.real.servers.{name}", "--stdio"]


# What a client says. In JavaScript: tests/node/stdio.mjs.


async def pages(send: Send, params: Json) -> list[Json]:
    found = [await send("tasks/list", params)]
    while (cursor := found[-1].get("nextCursor")) is not None:
        found.append(await send("tasks/list", {**params, "cursor": cursor}))
    return found


def lists(tasks: Sequence[Json]) -> list[Json]:
    created = sorted(task["createdAt"] for task in tasks)
    updated = sorted(task["lastUpdatedAt"] for task in tasks)
    return [
        {"order": "asc"},
        {"orderBy": "createdAt"},
        {"status": ["completed", "failed"]},
        {"filter": {"status": ["cancelled"]}},
        {"taskIds": [tasks[0]["taskId"], "nobody"]},
        {"methods": ["tools/call"], "orderBy": "createdAt", "order": "asc"},
        {"createdAfter": created[1]},
        {"createdBefore": created[1]},
        {"lastUpdatedAfter": updated[1], "lastUpdatedBefore": updated[-1]},
    ]


async def converse(send: Send, capabilities: Json, calls: Sequence[tuple[str, Json]], filtered: bool) -> Json:
    """The steps, the tasks as they were at last, and what each list has shown."""

    async def caught(method: str, params: Json) -> Json:
        try:
            return await send(method, params)
        except McpError as error:
            return error.error.model_dump()

    async def result(task_id: str) -> Json:
        """The result. FastMCP refuses it until the task has ended; the other servers wait."""
        for _ in range(TRIES_MAX):
            got = await caught("tasks/result", {"taskId": task_id})
            if "not completed yet" not in str(got.get("message")):
                break
            await asyncio.sleep(0.1)
        return got

    steps: list[Any] = [capabilities, await send("tools/list", {})]
    ids = []
    for name, arguments in calls:
        made = await send("tools/call", {"name": name, "arguments": arguments, "task": {"ttl": 60000}})
        ids.append(made["task"]["taskId"])
    steps.append(await send("tasks/cancel", {"taskId": ids[-1]}))
    steps += [await result(task_id) for task_id in ids[:-1]]
    tasks = [await send("tasks/get", {"taskId": task_id}) for task_id in ids]
    steps += [*tasks, *await pages(send, {})]
    steps += [await caught("tasks/get", {"taskId": "nobody"}), await caught("no/such", {})]
    found = []
    for params in lists(tasks) if filtered else ():
        shown = [task["taskId"] for page in await pages(send, params) for task in page["tasks"]]
        found.append({"params": params, "found": shown})
    return {"steps": steps, "tasks": tasks, "found": found}


async def with_mcp(command: Sequence[str], calls: Calls, filtered: bool) -> Json:
    """The Python SDK's client."""
    asked: list[str] = []

    async def answer(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult | types.ErrorData:
        asked.append(params.message)
        return types.ElicitResult(action="accept", content={"interpretation": "snake", "answer": "yes", "value": "yes"})

    parameters = StdioServerParameters(command=command[0], args=list(command[1:]), env=dict(os.environ), cwd=ROOT)
    async with (
        stdio_client(parameters) as (read, write),
        ClientSession(read, write, elicitation_callback=answer) as session,
    ):
        said = (await session.initialize()).capabilities.model_dump(by_alias=True, mode="json", exclude_none=True)
        seen = await converse(partial(sent, session), said, calls, filtered)
    seen["steps"].append(asked)
    return seen


async def with_script(*line: str) -> list[Json]:
    """What a script in tests/node has seen, with all servers at once."""
    process = await asyncio.create_subprocess_exec(*line, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    async with asyncio.timeout(SECONDS):
        out, _ = await process.communicate()
    return [json.loads(each) for each in out.decode().split("\n") if each]


def check(name: str, direct: Json, through: Json) -> None:
    """Hold one transcript against the other, and each list against what it must show."""
    assert "error" not in direct and "error" not in through, (direct, through)
    assert direct["steps"][-1], "nothing was asked of the client"
    advertised = through["steps"][0]["tasks"]["list"].pop("filter")
    assert advertised == FILTER_CAPABILITY | {"methods": METHODS.get(name, ["tools/call"])}
    assert [plain(step) for step in direct["steps"]] == [plain(step) for step in through["steps"]]
    for listed in through["found"]:
        if name == "fastmcp_tasks" and "lastUpdatedAfter" in listed["params"]:
            assert {*listed["found"]} <= {*ids_of(through["tasks"])}  # it writes the time of each answer there (2.4)
            continue
        assert listed["found"] == [i for i in selected(through["tasks"], listed["params"]) if i != "nobody"], listed
    assert len(through["found"]) == 9
    assert {task["status"] for task in through["tasks"]} >= {"cancelled"}
    assert ids_of(through["tasks"])


def plain(step: Any) -> str:
    text = re.sub(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", "<task id>", blurred(step))
    return re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)", "<time>", text)


def jobs(*names: str) -> list[Json]:
    """Each server, directly and through."""
    return [
        {"command": [*GATEWAY * filtered, *server(name)], "calls": CALLS[name], "filtered": filtered}
        for name in names
        for filtered in (False, True)
    ]


async def test_the_typescript_sdks_client() -> None:
    names = ("everything", "python_sdk")
    seen = await with_script(node(), str(NODE / "stdio.mjs"), *map(json.dumps, jobs(*names)))
    for at, name in enumerate(names):
        check(name, *seen[2 * at : 2 * at + 2])


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
async def test_the_python_sdks_client(name: str) -> None:
    async with asyncio.timeout(SECONDS):
        check(name, *await asyncio.gather(*(with_mcp(**job) for job in jobs(name))))


@pytest.mark.slow
async def test_the_inspectors_command_line() -> None:
    line = server("everything")
    commands = map(json.dumps, (line, [*GATEWAY, *line]))
    direct, through = await with_script(inspector(), str(NODE / "inspector/stdio.mjs"), *commands)
    assert through["initialize"]["capabilities"]["tasks"]["list"].pop("filter") == FILTER_CAPABILITY
    assert through == direct
    assert "hello" in json.dumps(direct["tools/call"])
