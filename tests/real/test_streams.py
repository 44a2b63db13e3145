"""What a real server may do with its connections: close and be polled, speak before it answers, close idle ones.

The gateway's own requests meet all of that, too. They must not fail by it, nor keep from the client what was meant for
it (DESIGN 5.7, and 2 and 6 on streams that are polled and idle connections).
"""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from mcp import ClientSession, types
from mcp.shared.context import RequestContext

from tests.real.conftest import Json, Place, Runner, Wire, connected, eventually, ids_of

KEEP_ALIVE_SECONDS = 5  # of uvicorn
WAITING_CLIENTS = 20


@pytest.fixture(scope="module")
def polling(runner: Runner) -> Iterator[Place]:
    """A server whose tasks/list ends its stream after the priming event, and is to be asked again."""
    with runner.place("python_sdk", "--polling") as place:
        yield place


@pytest.fixture(scope="module")
def chatty(runner: Runner) -> Iterator[Place]:
    """A server whose tasks/list logs, and asks the client, before it answers."""
    with runner.place("python_sdk", "--chatty") as place:
        yield place


async def test_a_list_that_must_be_fetched_later_is_crawled(polling: Place) -> None:
    async with connected(polling.gateway) as client:
        made = [await client.work("released", f"task {n}") for n in range(3)]
        assert ids_of(await client.tasks({"orderBy": "createdAt", "order": "asc"})) == made


async def test_a_client_fetches_such_a_list_itself_where_it_is_not_filtered(polling: Place) -> None:
    async with connected(polling.gateway) as client:
        made = [await client.work("released", f"task {n}") for n in range(3)]
        assert ids_of(await client.tasks({})) == made


async def test_what_the_server_says_while_it_is_crawled_comes_before_the_answer(
    chatty: Place, http: httpx.AsyncClient
) -> None:
    wire, _ = await Wire(chatty.gateway, http).initialize()
    task_id = await wire.work("released", "task")
    reply = await wire.post("tasks/list", {"status": ["working"]}, "its id")
    assert reply.headers["content-type"].startswith("text/event-stream")
    logged, answer = reply.messages
    assert (logged["method"], logged["params"]["data"]) == ("notifications/message", "listing")
    assert answer["id"] == "its id"
    assert ids_of(answer["result"]["tasks"]) == [task_id]


async def test_the_client_answers_what_the_server_asks_while_it_is_crawled(chatty: Place) -> None:
    asked: list[str] = []

    async def answer(
        context: RequestContext[ClientSession, Any], params: types.ElicitRequestParams
    ) -> types.ElicitResult:
        asked.append(params.message)
        return types.ElicitResult(action="accept", content={"answer": "yes"})

    async with connected(chatty.gateway, elicitation=answer) as client:
        task_id = await client.work("released", "task")
        assert ids_of(await client.tasks({"status": ["working"]})) == [task_id]
        assert (client.logged, asked) == (["listing"], ["May I list?"])


async def test_a_filtered_list_that_waits_for_its_client_can_be_cancelled(
    chatty: Place, http: httpx.AsyncClient
) -> None:
    wire, _ = await Wire(chatty.gateway, http).initialize({"elicitation": {}})
    message = {"jsonrpc": "2.0", "id": "its id", "method": "tasks/list", "params": {"status": ["working"]}}
    headers = {"Accept": "application/json, text/event-stream", **wire.headers}
    said: list[Json] = []
    async with http.stream("POST", wire.url, json=message, headers=headers) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                said.append(json.loads(line.removeprefix("data: ")))
                if said[-1].get("method") == "elicitation/create":
                    await wire.notify("notifications/cancelled", {"requestId": "its id"})
    assert [message.get("method") for message in said] == ["notifications/message", "elicitation/create"]


async def test_connections_that_idled_as_long_as_the_server_keeps_them_do_no_harm(
    python_sdk_stream: Place, http: httpx.AsyncClient
) -> None:
    """Requests at the very moments at which the server closes the connections that the first ones left."""
    wire = Wire(python_sdk_stream.gateway, http)
    opened = await asyncio.gather(*(wire.initialize() for _ in range(WAITING_CLIENTS)))
    clients = [client for client, _ in opened]
    await asyncio.gather(*(client.work("released", "before") for client in clients))

    async def come_back(n: int, client: Wire) -> None:
        # From 100 ms before to 100 ms after the server loses patience.
        await asyncio.sleep(KEEP_ALIVE_SECONDS - 0.1 + 0.2 * n / WAITING_CLIENTS)
        await client.work("released", "after")
        assert len(await client.tasks({"status": ["working"]})) == 2

    await asyncio.gather(*(come_back(n, client) for n, client in enumerate(clients)))


async def test_a_client_that_leaves_while_it_waits_for_a_result_harms_neither_task_nor_session(
    python_sdk_stream: Place, http: httpx.AsyncClient
) -> None:
    """In 2025-11-25 a closed connection cancels nothing."""
    wire, _ = await Wire(python_sdk_stream.gateway, http).initialize()
    task_id = await wire.work("released", "task")
    waiting = asyncio.create_task(wire.post("tasks/result", {"taskId": task_id}))
    assert ids_of(await wire.tasks({"status": ["working"]})) == [task_id]
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)

    await wire.post("tools/call", {"name": "release", "arguments": {"taskId": task_id}})

    async def completed() -> bool | None:
        return ids_of(await wire.tasks({"status": ["completed"]})) == [task_id] or None

    await eventually("the end of the task in an answer", completed)
    [content] = (await wire.post("tasks/result", {"taskId": task_id})).result["content"]
    assert content["text"] == "task: done"
