"""The Python SDK's client, through the gateway, to the Python SDK's server: every promise about tasks/list.

What the gateway answers is compared with what `selected` makes of all tasks, fetched without a filter. The servers
answer with JSON in one run and with event streams in the other.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from datetime import timedelta, timezone
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from mcp import ClientSession, McpError, types
from mcp.shared.context import RequestContext

from tests.real.conftest import (
    PAGE_SIZE,
    Client,
    Json,
    Place,
    Runner,
    Wire,
    at_both,
    connected,
    eventually,
    free_port,
    ids_of,
    instant,
    selected,
)

INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
SESSION_TERMINATED = 32600  # what the SDK's client makes of a 404


async def populate(client: Client, rounds: int = 3) -> list[Json]:
    """Four tasks a round, in every state but input_required; gives all of them when they rest."""
    for _ in range(rounds):
        done, failing = await client.work("now", "done"), await client.work("failed", "failing")
        await client.work("released", "lasting")
        cancelled = await client.work("released", "cancelled")
        await client.session.experimental.cancel_task(cancelled)
        await client.settled(done)
        await client.settled(failing, "failed")
    tasks = await client.tasks({})
    states = ["cancelled", "completed", "failed", "working"]
    assert sorted(task["status"] for task in tasks) == sorted(states * rounds)
    return tasks


def criteria_of(tasks: list[Json]) -> list[Json]:
    """Criteria of each kind, bounds that hit a task exactly, in another spelling too, and several together."""
    created = sorted((task["createdAt"] for task in tasks), key=instant)[5]
    updated = sorted((task["lastUpdatedAt"] for task in tasks), key=instant)[6]
    elsewhere = instant(created).astimezone(timezone(timedelta(hours=5, minutes=30))).isoformat()
    ids = ids_of(tasks)
    return [
        {"methods": ["sampling/createMessage", "tools/call"]},
        {"requestTypes": ["sampling/createMessage"]},
        {"taskIds": [ids[3], ids[1], "no-such-task"]},
        {"status": ["working", "failed"]},
        {"createdAfter": elsewhere, "createdBefore": created},
        {"lastUpdatedAfter": updated, "lastUpdatedBefore": updated},
        {"orderBy": "createdAt", "order": "asc"},
        {"status": ["completed", "cancelled"], "createdAfter": created, "orderBy": "createdAt", "order": "asc"},
        {"taskIds": ids[:8], "status": ["working", "completed"], "lastUpdatedBefore": updated},
    ]


# Criteria, order, pages


async def test_the_method_of_the_sdk_filters_by_a_cursor_that_spells_the_criteria(python_sdk: Place) -> None:
    """DESIGN 5.1: the SDK as it is, in one line, with cursors followed by the same method; and with parameters."""
    async with connected(python_sdk.gateway) as client:
        tasks = await populate(client)
        for criteria in criteria_of(tasks):
            spelled = {name: ",".join(map(quote, v)) if isinstance(v, list) else v for name, v in criteria.items()}
            cursor: str | None = "taskgate:?" + "&".join(f"{name}={value}" for name, value in spelled.items())
            found = []
            while cursor is not None:
                page = await client.session.experimental.list_tasks(cursor=cursor)
                found += [task.taskId for task in page.tasks]
                cursor = page.nextCursor
            assert found == selected(tasks, criteria)
            assert ids_of(await client.tasks({"filter": criteria})) == found


async def test_where_the_server_has_no_sessions_its_list_is_empty_and_the_gateway_makes_it(
    runner: Runner, http: httpx.AsyncClient
) -> None:
    """DESIGN 2.2, 6.8: `tasks/get` knows the tasks that were seen when they were made."""
    with runner.place("python_sdk", "--json", "--stateless") as place:
        wire, _ = await Wire(place.gateway, http).initialize()
        made = [await wire.work("released", f"task {number}") for number in range(7)]
        assert (await wire.at(place.direct).post("tasks/list", {})).result["tasks"] == []
        assert ids_of(await wire.tasks({"status": "working", "orderBy": "createdAt", "order": "asc"})) == made
        assert await wire.tasks({"status": "completed"}) == []


# What passed through is in the next answer


async def cancel(client: Client, task_id: str) -> None:
    assert (await client.session.experimental.cancel_task(task_id)).status == "cancelled"


async def fetch_result(client: Client, task_id: str) -> None:
    waiting = asyncio.create_task(client.text_of(task_id))
    await client.release(task_id)
    assert await waiting == "task: done"


async def be_notified(client: Client, task_id: str) -> None:
    async def notified() -> types.TaskStatusNotificationParams | None:
        return next((seen for seen in client.notified if seen.status == "completed"), None)

    await client.release(task_id)
    assert (await eventually("a notification", notified)).taskId == task_id


async def see_by_get(client: Client, task_id: str) -> None:
    await client.release(task_id)
    await client.settled(task_id)


@pytest.mark.parametrize(
    ("end", "status"),
    [(cancel, "cancelled"), (fetch_result, "completed"), (be_notified, "completed"), (see_by_get, "completed")],
)
async def test_a_task_whose_end_the_client_knows_has_ended_in_the_next_answer(
    python_sdk_stream: Place, end: Callable[[Client, str], Awaitable[None]], status: str
) -> None:
    async with connected(python_sdk_stream.gateway) as client:
        task_id = await client.work("released", "task")
        assert ids_of(await client.tasks({"status": ["working"]})) == [task_id]
        await end(client, task_id)
        assert ids_of(await client.tasks({"status": [status]})) == [task_id]
        assert await client.tasks({"status": ["working"]}) == []


# A session, a server that ends


async def test_an_ended_session_is_404_and_not_what_the_index_remembers(
    python_sdk: Place, http: httpx.AsyncClient
) -> None:
    async with connected(python_sdk.gateway) as client:
        await client.work("released", "task")
        assert len(await client.tasks({"status": ["working"]})) == 1
        wire = client.wire(python_sdk.gateway, http)
        ended = await http.delete(wire.url, headers=wire.headers)
        assert ended.status_code == 200

        through = await wire.post("tasks/list", {"status": ["working"]})
        direct = await wire.at(python_sdk.direct).post("tasks/list", {"status": ["working"]})
        assert (through.status, direct.status) == (404, 404)
        assert through.error == direct.error
        with pytest.raises(McpError) as raised:
            await client.page({"status": ["working"]})
        assert raised.value.error.code == SESSION_TERMINATED


async def test_a_session_and_its_cursors_outlive_a_restart_of_the_gateway(
    runner: Runner, python_sdk_stream: Place
) -> None:
    """The client's GET stream is open meanwhile: it is closed, and the old gateway ends with 0."""
    port = free_port()
    small: Json = {"page_size": PAGE_SIZE}
    async with AsyncExitStack() as life:
        with runner.gateway(python_sdk_stream.server, small, port) as gateway:
            client = await life.enter_async_context(connected(f"{gateway.wait()}/mcp"))
            tasks = await populate(client)
            criteria: Json = {"status": ["working", "cancelled"], "order": "asc"}
            first = await client.page(criteria)
        with runner.gateway(python_sdk_stream.server, small, port) as gateway:
            gateway.wait()
            second = await client.page(criteria, first["nextCursor"])
            assert ids_of(first["tasks"] + second["tasks"]) == selected(tasks, criteria)
            task_id = await client.work("released", "after the restart")
            assert task_id in ids_of(await client.tasks({"status": ["working"]}))
            await life.aclose()


# What the server would refuse, it refuses (DESIGN 5.1), though the index is full

FILTERED: Json = {"status": ["working"]}
BOTH = "application/json, text/event-stream"
REFUSED = {
    "a revision that nobody knows": {"Mcp-Protocol-Version": "1999-01-01", "Accept": BOTH},
    "no revision at all": {"Mcp-Protocol-Version": "newest", "Accept": BOTH},
    "a client that accepts neither": {"Accept": "text/html"},
    "a client that accepts event streams alone": {"Accept": "text/event-stream"},
}


async def opened(place: Place, http: httpx.AsyncClient) -> tuple[Wire, str]:
    """A session through the gateway whose index is full, and the id of its one task."""
    wire, _ = await Wire(place.gateway, http).initialize()
    made = await wire.work("released", "task")
    assert ids_of(await wire.tasks(FILTERED)) == [made]
    return wire, made


@pytest.mark.parametrize("name", REFUSED)
async def test_what_the_server_would_refuse_it_refuses(
    python_sdk_json: Place, http: httpx.AsyncClient, name: str
) -> None:
    wire, _ = await opened(python_sdk_json, http)
    body = json.dumps({"jsonrpc": "2.0", "id": 7, "method": "tasks/list", "params": FILTERED}).encode()
    headers = {**{field.title(): value for field, value in wire.headers.items()}, **REFUSED[name]}
    direct, through = await at_both(http, python_sdk_json, body, headers)
    assert direct.status in (400, 406)
    assert (through.status, through.reason, through.body) == (direct.status, direct.reason, direct.body)
    # The index of who asks as before is still there.
    assert len(await wire.tasks(FILTERED)) == 1


@pytest.mark.parametrize(
    "fields",
    [
        *({"accept": accept} for accept in ("*/*", "application/json", "application/*;q=0.5")),
        {"mcp_protocol_version": "2025-06-18"},  # an older one that the server knows
    ],
)
async def test_what_the_server_would_accept_is_answered(
    python_sdk_json: Place, http: httpx.AsyncClient, fields: dict[str, str]
) -> None:
    wire, made = await opened(python_sdk_json, http)
    reply = await wire.at(**fields).post("tasks/list", FILTERED)
    assert ids_of(reply.result["tasks"]) == [made]
    assert reply.result["_meta"]["taskgate/total"] == 1


# Its streams: it may close one and be polled, and speak before it answers (DESIGN 5.7)


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
