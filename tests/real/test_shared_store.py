"""The TypeScript SDK's InMemoryTaskStore, shared by all sessions, as its own examples share it: before 1.32 and since.

A filtered list is what the criteria mean of the server's own list to that session: to 1.31 everybody's tasks, from 1.32
on the session's own (DESIGN 2.1).
"""

import asyncio
import json
from collections.abc import Iterator

import httpx
import pytest

from tests.forked import forked
from tests.real.conftest import PAGE_SIZE, SDKS, Json, Place, Runner, Wire, ids_of, selected

NOT_FOUND = -32602
CRITERIA: list[Json] = [
    {"status": ["working"]},
    {"status": ["completed"], "order": "asc"},
    {"methods": ["tools/call"], "orderBy": "createdAt"},
]


@pytest.fixture(scope="module", params=SDKS)
def shares(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "1.30")


@pytest.fixture(scope="module")
def place(runner: Runner, shares: bool) -> Iterator[Place]:
    with (
        runner.node_server("shared_store.mjs", sdk="1.30" if shares else "1.32") as server,
        runner.gateway(server, {"page_size": PAGE_SIZE}) as gateway,
    ):
        yield Place(f"{server.wait()}/mcp", f"{gateway.wait()}/mcp", server)


async def make(wire: Wire, count: int) -> list[str]:
    """The ids of tasks that this session makes, some of which are over."""
    calls = [{"name": "work", "arguments": {"ends": n % 3 == 0}, "task": {"ttl": 600_000}} for n in range(count)]
    return [(await wire.post("tools/call", call)).result["task"]["taskId"] for call in calls]


async def test_a_session_sees_through_the_gateway_what_the_server_shows_it(
    place: Place, http: httpx.AsyncClient, shares: bool
) -> None:
    anna, bert = [(await Wire(place.gateway, http).initialize())[0] for _ in range(2)]
    mine, his = await make(anna, 12), await make(bert, 3)
    new, _ = await Wire(place.gateway, http).initialize()
    for wire, own in ((anna, mine), (bert, his), (new, [])):
        there = await wire.at(place.direct).tasks({})
        assert set(ids_of(there)) == ({*mine, *his} if shares else set(own))
        assert await wire.tasks({}) == there
        asked = [*CRITERIA, {"taskIds": [*mine, *his]}]
        lists = await asyncio.gather(*(wire.tasks(criteria, message_id=1) for criteria in asked))
        assert [ids_of(tasks) for tasks in lists] == [selected(there, criteria) for criteria in asked]


async def test_the_task_of_another_session_is_got_or_not_as_the_server_says(
    place: Place, http: httpx.AsyncClient, shares: bool
) -> None:
    anna, bert = [(await Wire(place.gateway, http).initialize())[0] for _ in range(2)]
    [task_id, *_] = await make(anna, 2)
    assert task_id in ids_of(await anna.tasks({"status": ["completed"]}))
    for method in ("tasks/get", "tasks/result"):
        straight, through = [
            (await bert.at(url).post(method, {"taskId": task_id}, 1)).messages[-1]
            for url in (place.direct, place.gateway)
        ]
        assert straight == through
        assert through.get("error", {}).get("code") == (None if shares else NOT_FOUND)
    ended = await forked("try", "--json", "--session", anna.headers["mcp-session-id"], place.direct)
    assert json.loads(ended.stdout)["others_see"] == ("all" if shares else "none")
    # What he has asked for is in his list as little as before.
    assert (task_id in ids_of(await bert.tasks({"status": ["completed"]}))) == shares
