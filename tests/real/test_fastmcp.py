"""FastMCP 3.4, whose tasks/list is always empty: what only tasks/get knows belongs in an answer (DESIGN 5.3, 6)."""

import re
import shlex
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp import ClientSession, DummyCookieJar, web
from aiohttp.test_utils import TestServer
from mcp import types

from tests.forked import forked
from tests.launch import ROOT
from tests.real.conftest import (
    FILTER_CAPABILITY,
    Json,
    Place,
    Runner,
    Wire,
    bare_http,
    eventually,
    ids_of,
    instant,
)
from tests.redis_process import redis
from tests.trials import LISTS_NONE

METHODS = ["tools/call", "prompts/get", "resources/read"]


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


async def settled(wire: Wire, task_id: str, status: str) -> Json:
    async def probe() -> Json | None:
        task = (await wire.post("tasks/get", {"taskId": task_id})).result
        return task if task["status"] == status else None

    return await eventually(f"{task_id} to be {status}", probe)


async def test_initialize_gains_the_filter_capability_with_all_three_methods(
    fastmcp: Place, http: httpx.AsyncClient
) -> None:
    _, direct = await Wire(fastmcp.direct, http).initialize()
    _, through = await Wire(fastmcp.gateway, http).initialize()
    capability = through["capabilities"]["tasks"]["list"].pop("filter")
    assert capability == FILTER_CAPABILITY | {"methods": METHODS}
    assert through == direct


async def test_a_task_is_in_the_filtered_list_with_the_state_that_get_reports(wire: Wire) -> None:
    task_id = await work(wire, "followed")
    for name, status in ((None, "working"), ("followed", "completed")):
        if name is not None:
            await release(wire, name)
        known = await settled(wire, task_id, status)
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


@asynccontextmanager
async def renewing(cookie: str, server: Place) -> AsyncIterator[tuple[str, list[str]]]:
    """A balancer before a server: each answer sets a cookie to a new value. Yields its address, and what came up."""
    came: list[str] = []

    async def forward(request: web.Request) -> web.StreamResponse:
        came.append(request.headers.get("Cookie", ""))
        url, headers = f"{server.server.origin}{request.raw_path}", {**request.headers, "Accept-Encoding": "identity"}
        async with client.request(request.method, url, data=await request.read(), headers=headers) as answer:
            skipped = {"Content-Length", "Transfer-Encoding", "Connection", "Date", "Server"}
            fields = {name: value for name, value in answer.headers.items() if name.title() not in skipped}
            response = web.StreamResponse(status=answer.status, headers=fields)
            response.headers["Set-Cookie"] = f"{cookie}={len(came)}+/=; Path=/"
            await response.prepare(request)
            async for piece in answer.content.iter_any():
                await response.write(piece)
        return response

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", forward)
    async with ClientSession(cookie_jar=DummyCookieJar()) as client, TestServer(app, host="127.0.0.1") as balancer:
        yield f"http://127.0.0.1:{balancer.port}/mcp", came


@pytest.mark.parametrize("own_tasks", [False, True])
@pytest.mark.parametrize("cookie", ["AWSALB", "login"])
async def test_a_cookie_that_is_new_in_each_answer_hides_no_task(
    fastmcp: Place, runner: Runner, cookie: str, own_tasks: bool
) -> None:
    """Each request is of another caller otherwise. `login`: a framework renews what tells the caller (DESIGN 7.13)."""
    async with renewing(cookie, fastmcp) as (url, came), bare_http() as http:
        given: Json = {"upstreams": [{"name": "real", "url": url}], "guards": {"own_tasks": own_tasks}}
        with runner.configured(**given) as gateway:
            gateway.wait()
            wire, _ = await Wire(f"{gateway.origin}/mcp", http).initialize()
            name = f"{cookie} {own_tasks}"
            task_id, asked = await work(wire, name), len(came)
            for criteria in ({"status": ["working"]}, {"taskIds": [task_id]}, {"order": "asc"}) * 4:
                assert ids_of(await wire.tasks(criteria)) == [task_id]
                assert (await wire.post("ping")).status == 200
            assert len(came) - asked <= 12 + 6 or cookie == "login", "pings, and a few questions: not a crawl for each"
            assert (await wire.post("tasks/get", {"taskId": task_id})).result["status"] == "working"
            passed = [value for value in came if value]
            assert {*passed} == {f"{cookie}={n}+/=" for n in range(1, 99)} & {*passed} and len({*passed}) > 12
            await release(wire, name)
            await settled(wire, task_id, "completed")


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


@pytest.mark.parametrize(
    ("flags", "status", "words"),
    [
        (["--create", "reserch"], 2, "the server has no tool reserch. These make tasks: work(name: string), "),
        (["--create", "work"], 2, "--arguments: the tool work needs name. It takes: work(name: string)"),
    ],
)
async def test_a_misspelt_tool_or_argument_is_told_with_what_there_is(
    fastmcp: Place, flags: list[str], status: int, words: str
) -> None:
    """It was "made no task", and a success with an empty table."""
    ended = await forked("try", *flags, fastmcp.direct)
    assert ended.returncode == status and words in ended.stdout + ended.stderr, ended


async def test_a_session_at_the_servers_own_address_is_sent_to_the_gateway(fastmcp: Place, wire: Wire) -> None:
    """The server has the task, and lists none."""
    await work(wire, "elsewhere")
    ended = await forked("tasks", "--session", wire.headers["mcp-session-id"], fastmcp.direct)
    assert (ended.returncode, ended.stdout) == (0, f"{LISTS_NONE}\n")
    await release(wire, "elsewhere")


async def test_tasks_are_known_at_another_replica_and_after_a_restart(
    fastmcp: Place, runner: Runner, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """DESIGN 12.2: no list of the server's would tell."""
    async with redis(tmp_path) as store:
        given: Json = {"store": {"url": store.url}, "upstreams": [{"name": "real", "url": fastmcp.direct}]}
        with runner.configured(**given) as one, runner.configured(**given) as other:
            one.wait()
            other.wait()
            wire, _ = await Wire(f"{one.origin}/mcp", http).initialize()
            made = [
                await work(wire, "shared"),
                await make(wire, "prompts/get", {"name": "advice", "arguments": {"about": "it"}}),
            ]

            async def both() -> bool | None:
                return set(ids_of(await wire.at(f"{other.origin}/mcp").tasks({"order": "asc"}))) == set(made) or None

            await eventually("both tasks at the other replica", both)
            made.append(await work(wire, "shared"))
        with runner.configured(**given) as restarted:
            restarted.wait()
            wire = wire.at(f"{restarted.origin}/mcp")
            assert set(ids_of(await wire.tasks({"order": "asc"}))) == set(made)
            assert ids_of(await wire.tasks({"methods": ["prompts/get"]})) == [made[1]]
        await release(wire.at(fastmcp.direct), "shared")
