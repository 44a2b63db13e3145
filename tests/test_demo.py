"""`taskgate demo`: its server over real sockets, and the command as a process."""

import asyncio
import json
import random
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import aiohttp
import pytest

from gateway.cli.mcp_client import Client, NotAnswered, Target
from gateway.demo.demo_run import PORTS, show
from gateway.demo.legacy_server import UNFINISHED, LegacyServer, history, timestamp
from tests.launch import ROOT, command
from tests.tools import tool

DEMO_S = 60  # on a busy machine
COLUMNS = 80


@asynccontextmanager
async def serving(tasks: int = 0) -> AsyncIterator[tuple[LegacyServer, Client]]:
    server = LegacyServer(tasks)
    url = await server.start()
    async with Client(Target(url)) as client:
        await client.ask("initialize", {})
        try:
            yield server, client
        finally:
            await server.stop()


async def post(url: str, body: bytes, session_id: str = "", method: str = "POST") -> tuple[int, Any]:
    async with aiohttp.request(method, url, data=body, headers={"Mcp-Session-Id": session_id}) as response:
        text = await response.text()
        return response.status, json.loads(text) if response.content_type == "application/json" else text


async def error_of(client: Client, method: str, **params: object) -> tuple[int, str]:
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    status, answer = await post(client.target.url, json.dumps(message).encode(), client.session_id)
    assert status == 200
    return answer["error"]["code"], answer["error"]["message"]


# The server


def test_a_history_has_tasks_of_five_days_in_all_statuses() -> None:
    until_ms = 1_763_000_000_999
    tasks = list(history(random.Random(1), 200, until_ms))
    assert {task["status"] for task in tasks} == {"working", "input_required", "completed", "failed", "cancelled"}
    created = [task["createdAt"] for task in tasks]
    assert created == sorted(created)
    assert timestamp(until_ms) == "2025-11-13T02:13:20.999Z", "as JavaScript writes it"
    assert timestamp(until_ms - 5 * 86_400_000) <= created[0] < timestamp(until_ms - 4 * 86_400_000)
    assert all(task["createdAt"] <= task["lastUpdatedAt"] <= timestamp(until_ms) for task in tasks)


@pytest.mark.parametrize("sizes", [[0], [10], [10, 10], [10, 10, 5]])
async def test_pages_are_of_ten_in_the_order_of_creation_whatever_criteria_are_given(sizes: list[int]) -> None:
    async with serving(sum(sizes)) as (server, client):
        pages = [await client.ask("tasks/list", {"status": ["failed"], "order": "desc"})]
        while "nextCursor" in pages[-1]:
            assert pages[-1]["nextCursor"] == pages[-1]["tasks"][-1]["taskId"]
            pages.append(await client.ask("tasks/list", {"cursor": pages[-1]["nextCursor"]}))
        assert [len(page["tasks"]) for page in pages] == sizes
        assert [task for page in pages for task in page["tasks"]] == server.sessions[client.session_id].all
        assert server.counts["tasks/list"] == len(sizes)


async def test_sessions_do_not_see_each_other() -> None:
    async with serving(20) as (server, client), Client(client.target) as other:
        initialized = await other.ask("initialize", {})
        assert initialized["capabilities"]["tasks"] == {"list": {}, "cancel": {}}, "there is no filter"
        mine, theirs = (server.sessions[one.session_id].all[9]["taskId"] for one in (client, other))
        assert (await client.ask("tasks/get", {"taskId": mine}))["taskId"] == mine
        assert (await error_of(client, "tasks/get", taskId=theirs))[0] == -32602
        assert (await error_of(client, "tasks/cancel", taskId=theirs))[0] == -32602
        assert (await error_of(client, "tasks/list", cursor=theirs))[0] == -32602


async def test_a_session_ends_with_delete_or_with_many_others() -> None:
    async with serving() as (server, client):
        assert (await post(client.target.url, b"", client.session_id, "DELETE"))[0] == 200
        assert (await post(client.target.url, b'{"id":1,"method":"ping"}', client.session_id))[0] == 404
        assert (await post(client.target.url, b"", client.session_id, "DELETE"))[0] == 404
        for _ in range(101):
            await post(client.target.url, b'{"id":1,"method":"initialize"}')
        assert len(server.sessions) == 100


@pytest.mark.parametrize(
    ("method", "body", "status"),
    [
        ("POST", b"{", 400),
        ("POST", b"[]", 400),
        ("POST", b'{"id":1,"result":{}}', 400),
        ("POST", b'{"id":1,"method":"ping","params":1}', 400),
        ("POST", b'{"id":1,"method":"ping"}', 400),  # no session
        ("POST", b'{"method":"initialize","id":' + b"[" * 300 + b"]" * 300 + b"}", 400),
        ("GET", b"", 405),
    ],
)
async def test_what_is_no_request_is_refused(method: str, body: bytes, status: int) -> None:
    async with serving() as (_, client):
        assert (await post(client.target.url, body, method=method))[0] == status
        assert (await post(client.target.url + "/else", body, method=method))[0] == 404


async def test_errors_are_those_of_json_rpc() -> None:
    deep = b'{"id":1,"method":"tasks/get","params":{"taskId":' + b"[" * 1_000 + b"]" * 1_000 + b"}}"
    async with serving(100) as (server, client):
        assert await client.ask("ping", {}) == {}
        told = b'{"method":"notifications/initialized"}'
        assert (await post(client.target.url, told, client.session_id)) == (202, "")
        assert await error_of(client, "resources/list") == (-32601, "Method not found")
        assert await error_of(client, "tasks/list", cursor=[]) == (-32602, "Invalid cursor")
        assert await error_of(client, "tasks/get", taskId="nobody") == (-32602, "Task not found: nobody")
        status, said = await post(client.target.url, deep, client.session_id)
        assert (status, said["error"]["message"]) == (200, "Task not found")
        running = next(task for task in server.sessions[client.session_id].all if task["status"] == "working")
        cancelled = dict(await client.ask("tasks/cancel", {"taskId": running["taskId"]}))
        assert cancelled["status"] == "cancelled" and cancelled["lastUpdatedAt"] > cancelled["createdAt"]
        code, message = await error_of(client, "tasks/cancel", taskId=running["taskId"])
        assert (code, "terminal" in message) == (-32602, True), "it is cancelled once"


async def test_only_what_has_not_finished_keeps_changing() -> None:
    async with serving(50) as (server, client):
        tasks = server.sessions[client.session_id].all
        before = [dict(task) for task in tasks]
        changing = asyncio.create_task(server.keep_changing(0.001))
        try:
            for _ in range(1_000):
                await asyncio.sleep(0.01)
                if tasks != before:
                    break
        finally:
            changing.cancel()
        assert tasks != before
        assert all(now["status"] in UNFINISHED for now, then in zip(tasks, before, strict=True) if now != then)
        assert [t for t in before if t["status"] not in UNFINISHED] == [
            t for t in tasks if t["status"] not in UNFINISHED
        ]


# What is shown


async def test_answers_that_are_not_those_found_by_hand_are_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    """The server stands where the gateway should: it does not filter."""
    async with serving(240) as (server, client):
        assert not await show(server, client, client, {"createdAfter": ""}, 0.0)
    assert "WRONG: taskgate's answers are not those found by hand." in capsys.readouterr().out


async def test_a_failure_says_what_was_asked_and_answered() -> None:
    async with serving() as (server, client):
        with pytest.raises(NotAnswered, match=r"http://.* refuses tasks/get: Task not found: x \(-32602\)"):
            await client.ask("tasks/get", {"taskId": "x"})
        del server.sessions[client.session_id]
        with pytest.raises(NotAnswered, match=r"http://.* ping.*: this session does not exist"):
            await client.ask("ping", {})
        await server.stop()
        with pytest.raises(NotAnswered, match=r"cannot be reached: Connection refused|closed the connection"):
            await client.ask("ping", {})


# The command


async def ended(process: asyncio.subprocess.Process) -> tuple[int | None, str]:
    output, _ = await asyncio.wait_for(process.communicate(), DEMO_S)
    return process.returncode, output.decode("ascii")


async def invitation(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    text = await asyncio.wait_for(process.stdout.readuntil(b"Ctrl-C ends it.\n"), DEMO_S)
    return text.decode("ascii")


def ports(text: str) -> list[int]:
    """The ports of the addresses that the demo names: the gateway's, the server's, the admin listener's."""
    return [
        int(port) for port in re.findall(r"^  (?:taskgate|the server|the page) +http://127.0.0.1:(\d+)/", text, re.M)
    ]


async def test_once_shows_what_is_won_as_the_readme_has_it_and_ends() -> None:
    async with command("demo", "--once") as process:
        status, text = await ended(process)
    assert status == 0, text
    assert max(map(len, text.splitlines())) <= COLUMNS
    assert len(re.findall(r"^  [0-9a-f]{8} +(?:working|input_required) ", text, re.M)) >= 3
    shown = re.findall(r"^  ((?:by hand|with taskgate): .*?) +([\d,]+) +([\d,]+) +([\d,]+)$", text, re.M)
    costs = [[int(number.replace(",", "")) for number in row[1:]] for row in shown]
    (hand, hand_bytes, hand_asked), first, again, later = costs
    assert hand == hand_asked == 24
    assert (first[0], first[2]) == (1, 24)
    assert (again[0], again[2]) == (1, 0)
    assert later[0] == 1
    assert 0 < later[2] < 24
    assert 0 < first[1] == again[1] < hand_bytes / 10
    assert "Checked: taskgate's answers are those found by hand." in text
    assert re.search(r"http://127\.0\.0\.1:\d+/ is the page", text) and "Two things to try:" in text
    readme = (ROOT / "README.md").read_text()
    assert shown == re.findall(r"^\| (.*?: .*?) \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|$", readme, re.M)
    [found] = re.findall(r"The answer has (\d+) tasks", text)
    [(tasks, page)] = re.findall(r"has (\d+) tasks\. It lists (\d+) at a time", text)
    assert f"A scripted server in `make run` has {tasks} tasks, {page} a page. {found} are not:" in readme


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_it_serves_what_it_names_until_it_is_stopped(number: signal.Signals) -> None:
    tool("curl", "curl")
    async with command("demo") as process:
        text = await invitation(process)
        assert max(map(len, text.splitlines())) <= COLUMNS
        line = re.search(r"^  curl .*?json\.tool$", text, re.M | re.S)
        assert line is not None, text
        pasted = await asyncio.create_subprocess_shell(
            line[0].replace("python3", sys.executable), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        _, answer = await ended(pasted)
        assert json.loads(answer)["result"]["_meta"]["taskgate/total"] >= 3, answer
        names = ports(text)
        async with aiohttp.request("GET", f"http://127.0.0.1:{names[2]}/metrics") as metrics:
            assert "taskgate_" in await metrics.text()
        process.send_signal(number)
        status, rest = await ended(process)
        assert (status, rest) == (0, "\nStopped.\n")
        for port in names:
            with pytest.raises(OSError, match="refused"):
                socket.create_connection(("127.0.0.1", port)).close()


async def test_a_signal_before_there_is_anything_to_see_ends_it_quietly() -> None:
    async with command("demo") as process:
        assert process.stdout is not None
        await asyncio.wait_for(process.stdout.readuntil(b"server gets\n"), DEMO_S)
        process.send_signal(signal.SIGINT)
        status, rest = await ended(process)
        assert status == 1
        assert "Traceback" not in rest


async def test_ports_that_are_taken_are_left_alone() -> None:
    with ExitStack() as held:
        for port in PORTS:
            try:
                held.callback(socket.create_server(("127.0.0.1", port)).close)
            except OSError:
                continue  # somebody else has it, which does as well
        async with command("demo") as process:
            names = ports(await invitation(process))
            assert len(names) == 3
            assert not set(names) & set(PORTS)
            process.terminate()
            assert (await ended(process))[0] == 0
