"""The demo: its legacy server over real sockets, and the whole of `python -m gateway.demo`.

In: requests of an aiohttp client, and changes made behind its back. Out: what a server of the 2025-11-25 era
answers. The legacy server stands for the SDKs' servers in other tests and in the benchmarks, so what is
checked here is what those rely on.
"""

import asyncio
import io
import json
import random
import re
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, cast

import aiohttp
import pytest

from gateway.demo.__main__ import table, wants_colour
from gateway.demo.legacy import LegacyServer
from gateway.demo.question import Question, failed_since, not_finished
from gateway.demo.simulation import history
from gateway.demo.store import (
    TERMINAL,
    InvalidCursor,
    Status,
    Task,
    TaskStore,
    TerminalTask,
    UnknownTask,
    timestamp,
)

ACCEPT = "application/json, text/event-stream"
DEMO_SECONDS = 60  # how long the demo may take to show its table on a busy machine


class Requestor:
    """A client of one session, as plain as can be."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self.http = http
        self.url = url
        self.headers = {"Accept": ACCEPT}

    async def post(self, message: dict[str, Any]) -> tuple[int, str, bytes]:
        """HTTP status, media type and body."""
        async with self.http.post(self.url, json=message, headers=self.headers) as response:
            if "Mcp-Session-Id" in response.headers:
                self.headers["Mcp-Session-Id"] = response.headers["Mcp-Session-Id"]
            return response.status, response.content_type, await response.read()

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """The JSON-RPC response, whichever way it came."""
        message = {"jsonrpc": "2.0", "id": method, "method": method, "params": params}
        _, media_type, body = await self.post(message)
        if media_type == "text/event-stream":
            assert body.startswith(b"event: message\ndata: ")
            assert body.endswith(b"\n\n")
            body = body.removeprefix(b"event: message\ndata: ")
        answer = json.loads(body)
        assert isinstance(answer, dict)
        assert answer["id"] == method
        return answer

    async def result(self, method: str, **params: Any) -> Any:
        answer = await self.ask(method, **params)
        assert "result" in answer, answer
        return answer["result"]

    async def error(self, method: str, **params: Any) -> tuple[int, str]:
        error = (await self.ask(method, **params))["error"]
        return error["code"], error["message"]

    async def initialize(self) -> Any:
        return await self.result(
            "initialize",
            protocolVersion="2025-11-25",
            capabilities={},
            clientInfo={"name": "test", "version": "0"},
        )

    async def all_pages(self, **params: Any) -> list[list[Any]]:
        pages = []
        cursor: dict[str, str] = {}
        for _ in range(1_000):
            result = await self.result("tasks/list", **params, **cursor)
            pages.append(result["tasks"])
            if "nextCursor" not in result:
                return pages
            cursor = {"cursor": result["nextCursor"]}
        raise AssertionError("paging does not end")


Connect = Callable[[], Awaitable[Requestor]]


@asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[tuple[LegacyServer, Connect]]:
    """A legacy server, frozen and empty unless told otherwise, and what opens a session with it."""
    server = LegacyServer(**{"simulate": False, "initial_tasks": 0, **options})
    url = await server.start()
    async with aiohttp.ClientSession() as http:

        async def connect() -> Requestor:
            requestor = Requestor(http, url)
            await requestor.initialize()
            return requestor

        try:
            yield server, connect
        finally:
            await server.stop()


def ids(tasks: list[Any]) -> list[str]:
    return [task["taskId"] for task in tasks]


async def arrived(server: LegacyServer, method: str, count: int) -> None:
    """Wait until the server has `count` requests of the method."""
    for _ in range(500):
        if server.counts[method] >= count:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{count} {method} did not arrive")


# The store


def test_a_timestamp_is_written_as_in_javascript() -> None:
    assert timestamp(1_763_000_000_000) == "2025-11-13T02:13:20.000Z"
    assert timestamp(1_763_000_000_999) == "2025-11-13T02:13:20.999Z"


def test_store_pages_skip_the_deleted() -> None:
    store = TaskStore(page_size=3)
    names = [f"task-{number}" for number in range(10)]
    for name in names:
        store.add(task_id=name)
    for name in ("task-0", "task-3", "task-4", "task-9"):
        store.delete(name)
    first, cursor = store.page()
    assert ids(first) == ["task-1", "task-2", "task-5"]
    assert cursor == "task-5"
    assert (ids(store.page(cursor)[0]), store.page(cursor)[1]) == (["task-6", "task-7", "task-8"], None)


def test_store_keeps_its_order_when_holes_are_swept() -> None:
    store = TaskStore(page_size=50)
    for number in range(400):
        store.add(task_id=f"task-{number}")
    for number in range(400):
        if number % 10:
            store.delete(f"task-{number}")
    expected = [f"task-{number}" for number in range(0, 400, 10)]
    assert ids(store.all()) == expected
    assert ids(store.page("task-200")[0]) == expected[21:]
    assert len(store) == 40
    store.add(task_id="the last")
    assert ids(store.page("task-390")[0]) == ["the last"]


def test_store_refuses_what_it_does_not_know() -> None:
    store = TaskStore()
    store.add("completed", task_id="over")
    with pytest.raises(TerminalTask):
        store.update("over", "working")
    with pytest.raises(UnknownTask):
        store.update("nobody", "working")
    with pytest.raises(UnknownTask):
        store.delete("nobody")
    with pytest.raises(InvalidCursor):
        store.page("nobody")
    with pytest.raises(ValueError, match="already exists"):
        store.add(task_id="over")


async def test_a_task_is_gone_after_its_ttl_which_starts_again_when_it_ends() -> None:
    store = TaskStore()
    store.add(task_id="short", ttl_ms=1)
    store.add(task_id="long", ttl_ms=60_000)
    store.add(task_id="ended", ttl_ms=200)
    await asyncio.sleep(0.1)
    store.update("ended", "completed")
    await asyncio.sleep(0.15)
    assert ids(store.all()) == ["long", "ended"]
    await asyncio.sleep(0.1)
    assert ids(store.all()) == ["long"]


async def test_waiting_for_a_task_ends_when_it_expires() -> None:
    store = TaskStore()
    store.add(task_id="short", ttl_ms=50)
    with pytest.raises(UnknownTask):
        await asyncio.wait_for(store.terminal("short"), 5)


def test_what_the_store_hands_out_is_a_copy() -> None:
    store = TaskStore()
    store.add(task_id="one")["status"] = "failed"
    store.get("one")["status"] = "failed"
    store.all()[0]["status"] = "failed"
    store.page()[0][0]["status"] = "failed"
    assert store.get("one")["status"] == "working"


# The server


async def test_initialize_advertises_tasks_without_a_filter() -> None:
    async with serving() as (_, connect):
        requestor = await connect()
        assert requestor.headers["Mcp-Session-Id"]
        fresh = Requestor(requestor.http, requestor.url)
        assert (await fresh.initialize())["capabilities"]["tasks"] == {
            "list": {},
            "cancel": {},
            "requests": {"tools": {"call": {}}},
        }
        assert fresh.headers["Mcp-Session-Id"] != requestor.headers["Mcp-Session-Id"]
        assert await requestor.result("ping") == {}
        [tool] = (await requestor.result("tools/list"))["tools"]
        assert (tool["name"], tool["execution"]) == ("research", {"taskSupport": "optional"})
        assert (await requestor.error("resources/list"))[0] == -32601


async def test_pages_are_of_ten_in_creation_order() -> None:
    async with serving() as (server, connect):
        requestor = await connect()
        server.load(25)
        pages = await requestor.all_pages()
        assert [len(page) for page in pages] == [10, 10, 5]
        tasks = [task for page in pages for task in page]
        assert tasks == server.store().all()
        assert [task["createdAt"] for task in tasks] == sorted(task["createdAt"] for task in tasks)
        assert server.counts["tasks/list"] == 3


async def test_a_full_last_page_has_no_cursor() -> None:
    async with serving() as (server, connect):
        requestor = await connect()
        assert await requestor.result("tasks/list") == {"tasks": []}
        server.load(20)
        assert [len(page) for page in await requestor.all_pages()] == [10, 10]


async def test_the_cursor_is_the_last_tasks_id_and_goes_with_it() -> None:
    async with serving() as (server, connect):
        requestor = await connect()
        server.load(11)
        result = await requestor.result("tasks/list")
        cursor = result["nextCursor"]
        assert cursor == result["tasks"][-1]["taskId"]
        server.store().delete(cursor)
        assert await requestor.error("tasks/list", cursor=cursor) == (-32602, f"Invalid cursor: {cursor}")
        assert (await requestor.error("tasks/list", cursor=7))[0] == -32602


async def test_filter_parameters_are_ignored() -> None:
    async with serving() as (server, connect):
        requestor = await connect()
        server.load(30)
        plain = await requestor.result("tasks/list")
        assert await requestor.result("tasks/list", status=["failed"], order="desc") == plain
        assert await requestor.result("tasks/list", filter={"status": ["failed"]}) == plain


async def test_sessions_do_not_see_each_other() -> None:
    async with serving() as (server, connect):
        one, other = await connect(), await connect()
        mine, theirs = server.session_ids
        with pytest.raises(LookupError):
            server.store()
        task = server.store(mine).add()
        assert await one.result("tasks/get", taskId=task["taskId"]) == task
        assert (await other.error("tasks/get", taskId=task["taskId"]))[0] == -32602
        assert (await other.error("tasks/cancel", taskId=task["taskId"]))[0] == -32602
        assert (await other.error("tasks/list", cursor=task["taskId"]))[0] == -32602
        assert await other.result("tasks/list") == {"tasks": []}
        assert len(server.store(theirs)) == 0


async def test_without_sessions_all_share_one_set() -> None:
    async with serving(sessions=False) as (server, connect):
        server.load(3)
        one, other = await connect(), await connect()
        assert "Mcp-Session-Id" not in one.headers
        assert await one.result("tasks/list") == await other.result("tasks/list")
        assert len((await one.result("tasks/list"))["tasks"]) == 3
        async with one.http.delete(one.url) as response:
            assert (response.status, response.headers["Allow"]) == (405, "GET, POST")


async def test_a_session_that_ended_is_not_found() -> None:
    async with serving() as (server, connect):
        requestor = await connect()
        async with requestor.http.delete(requestor.url, headers=requestor.headers) as response:
            assert response.status == 200
        assert server.session_ids == []
        status, _, body = await requestor.post({"jsonrpc": "2.0", "id": 1, "method": "ping"})
        assert (status, json.loads(body)["error"]["code"]) == (404, -32001)
        async with requestor.http.get(requestor.url, headers=requestor.headers) as response:
            assert response.status == 404


async def test_http_refusals() -> None:
    async with serving(sessions_max=1) as (_, connect):
        requestor = await connect()
        http, url = requestor.http, requestor.url
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        cases: list[tuple[int, str, dict[str, Any]]] = [
            (400, "POST", {"json": ping, "headers": {"Accept": ACCEPT}}),  # no session
            (406, "POST", {"json": ping, "headers": {"Accept": "text/html"}}),
            (406, "GET", {"headers": {**requestor.headers, "Accept": "application/json"}}),
            (415, "POST", {"data": b"{}", "headers": {**requestor.headers, "Content-Type": "text/plain"}}),
            (400, "POST", {"json": [ping], "headers": requestor.headers}),
            (400, "POST", {"json": ping, "headers": {**requestor.headers, "Mcp-Protocol-Version": "1"}}),
            (400, "POST", {"json": {**ping, "method": "initialize"}, "headers": requestor.headers}),
            (503, "POST", {"json": {**ping, "method": "initialize"}, "headers": {"Accept": ACCEPT}}),
            (405, "PUT", {"json": ping, "headers": requestor.headers}),
        ]
        for status, method, options in cases:
            async with http.request(method, url, **options) as response:
                assert response.status == status, (status, method, options)
                assert "error" in await response.json()
        async with http.get(url + "/else") as response:
            assert response.status == 404


async def test_notifications_are_accepted_without_an_answer() -> None:
    async with serving() as (server, connect):
        requestor = await connect()
        status, _, body = await requestor.post({"jsonrpc": "2.0", "method": "notifications/initialized"})
        assert (status, body) == (202, b"")
        assert server.counts["notifications/initialized"] == 1
        status, _, body = await requestor.post({"jsonrpc": "2.0", "id": 7, "result": {}})
        assert (status, body) == (202, b"")


async def test_a_task_from_its_call_to_its_result() -> None:
    async with serving() as (server, connect):
        requestor = await connect()
        assert "content" in await requestor.result("tools/call", name="research", arguments={})
        created = await requestor.result("tools/call", name="research", task={"ttl": 60_000})
        task = created["task"]
        assert (task["status"], task["ttl"]) == ("working", 60_000)
        assert task["pollInterval"] > 0
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", task["createdAt"])
        assert await requestor.result("tasks/list") == {"tasks": [task]}

        waiting = asyncio.create_task(requestor.result("tasks/result", taskId=task["taskId"]))
        await arrived(server, "tasks/result", 1)
        server.store().update(task["taskId"], "input_required")
        await asyncio.sleep(0.05)
        assert not waiting.done()
        server.store().update(task["taskId"], "completed", "Found it")
        payload = await asyncio.wait_for(waiting, 5)
        assert payload["content"] == [{"type": "text", "text": "Found it"}]
        assert payload["_meta"] == {"io.modelcontextprotocol/related-task": {"taskId": task["taskId"]}}
        ended = await requestor.result("tasks/get", taskId=task["taskId"])
        assert ended["status"] == "completed"
        assert ended["lastUpdatedAt"] > task["lastUpdatedAt"]


async def test_cancelling_works_once() -> None:
    async with serving() as (server, connect):
        requestor = await connect()
        task_id = server.store().add()["taskId"]
        assert (await requestor.result("tasks/cancel", taskId=task_id))["status"] == "cancelled"
        code, message = await requestor.error("tasks/cancel", taskId=task_id)
        assert code == -32602
        assert "terminal" in message
        assert "error" in await requestor.ask("tasks/result", taskId=task_id)


@pytest.mark.parametrize("ttl", [-1, 0, "60000", 1.5, None, 2**60])
async def test_an_impossible_ttl_is_refused(ttl: object) -> None:
    async with serving() as (server, connect):
        requestor = await connect()
        assert (await requestor.error("tools/call", name="research", task={"ttl": ttl}))[0] == -32602
        assert len(server.store()) == 0


async def test_waiting_for_a_result_ends_with_the_task_or_the_session() -> None:
    async with serving() as (server, connect):
        requestor = await connect()
        tasks = [server.store().add()["taskId"] for _ in range(2)]
        waits = [asyncio.create_task(requestor.error("tasks/result", taskId=one)) for one in tasks]
        await arrived(server, "tasks/result", 2)
        server.store().delete(tasks[0])
        assert (await asyncio.wait_for(waits[0], 5))[0] == -32602
        async with requestor.http.delete(requestor.url, headers=requestor.headers):
            assert (await asyncio.wait_for(waits[1], 5))[0] == -32602


async def test_sse_answers_are_one_event() -> None:
    async with serving(sse=True) as (server, connect):
        requestor = await connect()
        server.load(12)
        status, media_type, body = await requestor.post({"jsonrpc": "2.0", "id": 1, "method": "ping"})
        assert (status, media_type) == (200, "text/event-stream")
        assert body == b'event: message\ndata: {"jsonrpc":"2.0","id":1,"result":{}}\n\n'
        assert [len(page) for page in await requestor.all_pages()] == [10, 2]
        assert (await requestor.error("tasks/list", cursor="x"))[0] == -32602
        requestor.headers["Accept"] = "application/json"
        assert (await requestor.post({"jsonrpc": "2.0", "id": 1, "method": "ping"}))[0] == 406


async def test_sse_answers_open_their_stream_before_they_are_known() -> None:
    async with serving(sse=True) as (server, connect):
        requestor = await connect()
        task_id = server.store().add()["taskId"]
        message = {"jsonrpc": "2.0", "id": 1, "method": "tasks/result", "params": {"taskId": task_id}}
        async with requestor.http.post(requestor.url, json=message, headers=requestor.headers) as response:
            assert response.status == 200
            server.store().update(task_id, "failed", "No luck")
            body = await asyncio.wait_for(response.read(), 5)
        assert b'"isError":true' in body


async def test_changes_are_told_on_the_get_stream_until_the_session_ends() -> None:
    async with serving() as (server, connect):
        requestor, other = await connect(), await connect()
        mine, theirs = server.session_ids
        task = server.store(mine).add()
        server.store(theirs).add(task_id="not mine")
        async with requestor.http.get(requestor.url, headers=requestor.headers) as stream:
            assert stream.content_type == "text/event-stream"
            async with requestor.http.get(requestor.url, headers=requestor.headers) as second:
                assert second.status == 409
            server.store(theirs).update("not mine", "completed")
            changed = server.store(mine).update(task["taskId"], "input_required", "Which one?")
            async with other.http.delete(other.url, headers=other.headers):
                pass
            async with requestor.http.delete(requestor.url, headers=requestor.headers):
                pass
            body = await asyncio.wait_for(stream.read(), 5)
        [event] = body.removesuffix(b"\n\n").split(b"\n\n")
        notification = json.loads(event.removeprefix(b"event: message\ndata: "))
        assert notification == {"jsonrpc": "2.0", "method": "notifications/tasks/status", "params": changed}


async def test_a_get_stream_that_was_left_makes_room_for_the_next() -> None:
    async with serving() as (_, connect):
        requestor = await connect()
        for _ in range(2):
            for _ in range(100):
                async with requestor.http.get(requestor.url, headers=requestor.headers) as stream:
                    if stream.status == 200:
                        break
                    await asyncio.sleep(0.02)
            assert stream.status == 200


async def test_without_notifications_there_is_no_get() -> None:
    async with serving(notify=False) as (_, connect):
        requestor = await connect()
        async with requestor.http.get(requestor.url, headers=requestor.headers) as response:
            assert (response.status, response.headers["Allow"]) == (405, "POST, DELETE")


async def test_counts_can_be_read() -> None:
    async with serving() as (_, connect):
        requestor = await connect()
        await requestor.result("ping")
        async with requestor.http.get(requestor.url.replace("/mcp", "/counts")) as response:
            assert await response.json() == {"initialize": 1, "ping": 1}


async def test_a_session_has_a_history_of_its_own_in_all_statuses() -> None:
    async with serving(initial_tasks=200) as (server, connect):
        await connect()
        await connect()
        one, other = (server.store(session_id).all() for session_id in server.session_ids)
        assert len(one) == len(other) == 200
        assert not {task["taskId"] for task in one} & {task["taskId"] for task in other}
        for tasks in (one, other):
            assert {task["status"] for task in tasks} == {"working", "input_required", *TERMINAL}
            created = [datetime.fromisoformat(task["createdAt"]) for task in tasks]
            assert (created[-1] - created[0]).days >= 4
            assert all(task["createdAt"] <= task["lastUpdatedAt"] for task in tasks)
            assert any("statusMessage" in task for task in tasks)
            assert all(task["ttl"] > 0 and task["pollInterval"] > 0 for task in tasks)


async def test_the_same_seed_gives_the_same_tasks() -> None:
    servers = [LegacyServer(sessions=False, initial_tasks=20, seed=seed) for seed in (1, 1, 2)]
    first, second, third = (ids(list(server.store().all())) for server in servers)
    assert first == second != third


async def test_the_simulation_moves_tasks_along_the_allowed_paths_and_can_be_stopped() -> None:
    async with serving(sessions=False, simulate=True, step_seconds=0.001, initial_tasks=50) as (
        server,
        connect,
    ):
        requestor = await connect()
        seen: dict[str, list[str]] = {}
        async with requestor.http.get(requestor.url, headers={"Accept": "text/event-stream"}) as stream:
            for _ in range(300):
                line = await asyncio.wait_for(stream.content.readline(), 5)
                if line.startswith(b"data: "):
                    task = json.loads(line.removeprefix(b"data: "))["params"]
                    seen.setdefault(task["taskId"], []).append(task["status"])
        assert all(not set(statuses[:-1]) & TERMINAL for statuses in seen.values())
        assert {status for statuses in seen.values() for status in statuses} >= {
            "working",
            "input_required",
            "completed",
        }
        server.simulate = False
        await asyncio.sleep(0.01)
        frozen = server.store().all()
        await asyncio.sleep(0.1)
        assert server.store().all() == frozen


async def test_many_tasks_are_loaded_and_paged_in_reasonable_time() -> None:
    async with serving(sessions=False) as (server, connect):
        loop = asyncio.get_running_loop()
        begin = loop.time()
        server.load(100_000)
        requestor = await connect()
        middle = server.store().all()[50_000]["taskId"]
        for _ in range(10):
            assert len((await requestor.result("tasks/list", cursor=middle))["tasks"]) == 10
        assert loop.time() - begin < 60, "a busy machine needs some 5 s"


# The judge


def asked() -> tuple[Question, list[Task]]:
    """A question, and tasks of which the second and third are right, in the order of creation."""
    store = TaskStore()
    for number, status in enumerate(("completed", "working", "input_required", "working")):
        instant = f"2025-11-2{number}T00:00:00.000Z"
        store.add(cast(Status, status), task_id=f"task-{number}", created_at=instant)
    bounds = {"createdAfter": "2025-11-20T01:00:00+01:00", "createdBefore": "2025-11-22T00:00:00Z"}
    return Question("", {"status": ["working", "input_required"], **bounds}), store.all()


def test_the_judge_finds_nothing_wrong_with_the_right_answer() -> None:
    question, tasks = asked()
    assert list(question.differences([tasks[2], tasks[1]], 2, tasks)) == []


@pytest.mark.parametrize(
    ("places", "total", "found"),
    [
        ([2], 2, "missing"),
        ([2, 1, 1], 2, "given 2 times"),
        ([2, 1, 0], 2, "does not match"),
        ([3, 2, 1], 2, "does not match"),
        ([1, 2], 2, "not ordered by lastUpdatedAt, desc"),
        ([2, 1], 3, "taskgate/total is 3, but 2 match"),
        ([2, 1], None, "taskgate/total is None"),
    ],
)
def test_the_judge_finds_what_is_wrong(places: list[int], total: int | None, found: str) -> None:
    question, tasks = asked()
    [difference] = question.differences([tasks[place] for place in places], total, tasks)
    assert difference.startswith(found)


def test_the_judge_compares_every_member() -> None:
    question, tasks = asked()
    answered = [tasks[2], cast(Task, {**tasks[1], "ttl": 1})]
    [difference] = question.differences(answered, 2, tasks)
    assert difference.startswith("not what the server says")


@pytest.mark.parametrize("hour", [0, 12, 23])
async def test_the_demos_questions_have_answers_at_any_hour(hour: int) -> None:
    midnight_ms = 1_763_683_200_000
    until_ms = midnight_ms + hour * 3_600_000 + 1
    now = datetime.fromtimestamp(until_ms / 1000, UTC)
    tasks = list(history(random.Random(1), 240, until_ms))
    for question in (not_finished(now), failed_since(now)):
        assert 0 < sum(map(question.matches, tasks)) < 40, question


@pytest.mark.parametrize(("tty", "no_color", "colour"), [(True, "", True), (True, "1", False), (False, "", False)])
def test_colour_is_for_terminals(monkeypatch: pytest.MonkeyPatch, tty: bool, no_color: str, colour: bool) -> None:
    class Stream(io.StringIO):
        def isatty(self) -> bool:
            return tty

    monkeypatch.setenv("NO_COLOR", no_color)
    assert wants_colour(Stream()) is colour
    assert ("\x1b" in "".join(table(asked()[1], colour))) is colour


# The demo as a whole


@asynccontextmanager
async def demo(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """`python -m gateway.demo`, ended in any case."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "gateway.demo",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await asyncio.wait_for(process.communicate(), DEMO_SECONDS)


async def test_once_shows_the_right_list_and_ends() -> None:
    async with demo("--once") as process:
        output, _ = await asyncio.wait_for(process.communicate(), DEMO_SECONDS)
    text = output.decode()
    assert process.returncode == 0, text
    assert "\x1b" not in text
    assert "STATUS" in text
    assert re.search(r"upstream tasks/list requests: [1-9]\d*", text), text
    assert re.search(r"paging by hand: [1-9]\d* ", text), text


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
async def test_it_serves_what_it_says_until_it_is_stopped(signal_number: signal.Signals) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    async with demo() as process:
        assert process.stdout is not None
        curl = b""
        printed = []
        async with asyncio.timeout(DEMO_SECONDS):
            async for line in process.stdout:
                printed.append(line)
                if line.strip().startswith(b"curl "):
                    curl = line.strip()
                if b"Ctrl-C" in line:
                    break
        assert curl, b"".join(printed).decode()
        pasted = await asyncio.create_subprocess_shell(
            curl.decode(), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        answer, trouble = await asyncio.wait_for(pasted.communicate(), 30)
        assert pasted.returncode == 0, trouble
        result = json.loads(answer)["result"]
        assert result["_meta"]["taskgate/total"] >= len(result["tasks"]) > 0
        process.send_signal(signal_number)
        rest, _ = await asyncio.wait_for(process.communicate(), DEMO_SECONDS)
        assert process.returncode == 0, rest.decode()
