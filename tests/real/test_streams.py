"""What a real server may do with its streams: close them and be polled, and speak before it answers (DESIGN 5.7)."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from mcp import ClientSession, types
from mcp.shared.context import RequestContext

from tests.real.conftest import Place, Runner, Wire, connected, ids_of


@pytest.fixture(scope="module")
def chatty(runner: Runner) -> Iterator[Place]:
    """A server whose tasks/list logs, and asks the client, before it answers."""
    with runner.place("python_sdk", "--chatty") as place:
        yield place


async def test_a_list_that_must_be_fetched_later_is_crawled(runner: Runner) -> None:
    """Its stream ends after the priming event, and is to be asked for again."""
    with runner.place("python_sdk", "--polling") as polling:
        async with connected(polling.gateway) as client:
            made = [await client.work("released", f"task {n}") for n in range(3)]
            assert ids_of(await client.tasks({"orderBy": "createdAt", "order": "asc"})) == made


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
