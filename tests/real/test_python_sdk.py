"""The Python SDK's client, through the gateway, to the Python SDK's server: what it lists. All else: tests/relay.

What the gateway answers is compared with what `selected` makes of all tasks, fetched without a filter. The servers
answer with JSON in one run and with event streams in the other.
"""

from contextlib import AsyncExitStack
from datetime import timedelta, timezone
from urllib.parse import quote

import httpx

from tests.launch import eventually
from tests.real.conftest import Client, Json, Place, Runner, Wire, connected, free_port, ids_of, instant, selected


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


async def test_a_task_whose_end_was_notified_has_ended_in_the_next_answer(
    python_sdk_stream: Place,
) -> None:
    async with connected(python_sdk_stream.gateway) as client:
        task_id = await client.work("released", "task")
        assert ids_of(await client.tasks({"status": ["working"]})) == [task_id]

        await client.release(task_id)
        await eventually(lambda: (task_id, "completed") in client.notified, "a notification")
        assert ids_of(await client.tasks({"status": ["completed"]})) == [task_id]
        assert await client.tasks({"status": ["working"]}) == []


async def test_a_session_and_its_cursors_outlive_a_restart_of_the_gateway(
    runner: Runner, python_sdk_stream: Place
) -> None:
    """The client's GET stream is open meanwhile: it is closed, and the old gateway ends with 0."""
    port = free_port()
    small: Json = {"page_size": 5}
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
