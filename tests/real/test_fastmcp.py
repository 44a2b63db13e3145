"""FastMCP 3.4, whose tasks/list is always empty: what only tasks/get knows belongs in an answer (DESIGN 5.3, 6)."""

import re
import shlex
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from mcp import types

from tests.forked import forked
from tests.launch import ROOT
from tests.real.conftest import Json, Place, Runner, Wire, ids_of, instant
from tests.trials import LISTS_NONE


@pytest.fixture(scope="module")
def fastmcp(runner: Runner) -> Iterator[Place]:
    with runner.place("fastmcp_tasks") as place:
        yield place


@pytest.fixture
async def wire(fastmcp: Place, http: httpx.AsyncClient) -> Wire:
    opened, _ = await Wire(fastmcp.gateway, http).initialize()
    return opened


async def make(wire: Wire, method: str, params: Json) -> str:
    reply = await wire.post(method, {**params, "task": {"ttl": 60000}})
    task_id: str = reply.result["task"]["taskId"]
    return task_id


async def work(wire: Wire, name: str) -> str:
    return await make(wire, "tools/call", {"name": "work", "arguments": {"name": name}})


async def release(wire: Wire, name: str) -> None:
    await wire.post("tools/call", {"name": "release", "arguments": {"name": name}})


async def test_a_task_is_in_the_filtered_list_with_the_state_that_get_reports(wire: Wire) -> None:
    task_id = await work(wire, "followed")
    for name, status in ((None, "working"), ("followed", "completed")):
        if name is not None:
            await release(wire, name)
        known = await wire.reaches(task_id, status)
        [task] = await wire.tasks({"status": [status]})
        assert (task["taskId"], task["status"]) == (task_id, status)
        # FastMCP gives every answer the time of its making as lastUpdatedAt.
        assert task["createdAt"] == known["createdAt"]
        assert instant(task["lastUpdatedAt"]) >= instant(task["createdAt"])
    assert await wire.tasks({"status": ["working"]}) == []


async def test_the_method_of_a_task_is_the_request_that_made_it(wire: Wire) -> None:
    made = {
        "tools/call": await work(wire, "by method"),
        "prompts/get": await make(wire, "prompts/get", {"name": "advice", "arguments": {"about": "it"}}),
        "resources/read": await make(wire, "resources/read", {"uri": "notes://all"}),
    }
    for method, task_id in made.items():
        assert ids_of(await wire.tasks({"methods": [method]})) == [task_id]
    two = ["prompts/get", "resources/read"]
    assert set(ids_of(await wire.tasks({"filter": {"methods": two}}))) == {made[method] for method in two}
    assert await wire.tasks({"methods": ["sampling/createMessage"]}) == []
    assert ids_of(await wire.tasks({"orderBy": "createdAt", "order": "asc"})) == list(made.values())
    await release(wire, "by method")


async def test_the_client_of_fastmcp_works_with_tasks_as_ever(fastmcp: Place) -> None:
    from fastmcp import Client as FastMCPClient  # half a second, and no other test needs it

    async with FastMCPClient[Any](fastmcp.gateway) as client:
        task = await client.call_tool("work", {"name": "fastmcp"}, task=True)
        status = await task.status()
        assert isinstance(status, types.GetTaskResult)
        assert status.status == "working"
        failed = "taskgate:?status=failed"  # its own list falls back to the ids that it remembers: README warns of it
        assert len((await client.list_tasks(cursor=failed))["tasks"]) == 1
        assert (await client.session.experimental.list_tasks(cursor=failed)).tasks == []
        await client.call_tool("release", {"name": "fastmcp"})
        assert (await task.result()).data == "fastmcp is done"


async def test_the_readmes_command_lists_a_task_of_a_readers_own_server(fastmcp: Place) -> None:
    [line] = re.findall(r"(?m)^taskgate (try --create TOOL .*)$", (ROOT / "README.md").read_text())
    flags = shlex.split(line.replace("TOOL", "work").replace('"topic"', '"name"'))
    ended = await forked(*flags[:-1], "--seconds", "5", fastmcp.direct)  # the tool works on
    assert (ended.returncode, "taskgate makes the list" in ended.stdout) == (0, True), ended
    assert re.search(r"(?m)^ +[0-9a-f]{8}\S* +working ", ended.stdout)


async def test_a_session_at_the_servers_own_address_is_sent_to_the_gateway(fastmcp: Place, wire: Wire) -> None:
    """The server has the task, and lists none."""
    await work(wire, "elsewhere")
    ended = await forked("tasks", "--session", wire.headers["mcp-session-id"], fastmcp.direct)
    assert (ended.returncode, ended.stdout) == (0, f"{LISTS_NONE}\n")
    await release(wire, "elsewhere")
