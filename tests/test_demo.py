"""`taskgate demo`: its server over real sockets, and the command as a process."""

import asyncio
import re
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

import aiohttp
import pytest

from gateway.cli.mcp_client import Client, NotAnswered, Target
from gateway.demo.demo_run import PORTS
from gateway.demo.legacy_server import UNFINISHED, LegacyServer
from tests.forked import forked
from tests.launch import ROOT, command

DEMO_S = 60  # on a busy machine


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


async def post(url: str, body: bytes, session_id: str = "", method: str = "POST") -> tuple[int, str]:
    async with aiohttp.request(method, url, data=body, headers={"Mcp-Session-Id": session_id}) as response:
        return response.status, await response.text()


# The server


async def test_a_session_ends_with_delete() -> None:
    async with serving() as (_, client):
        assert await client.ask("ping", {}) == {}
        told = b'{"method":"notifications/initialized"}'
        assert (await post(client.target.url, told, client.session_id)) == (202, "")
        assert (await post(client.target.url, b"", client.session_id, "GET"))[0] == 405
        assert (await post(client.target.url + "/else", b""))[0] == 404
        assert (await post(client.target.url, b"", client.session_id, "DELETE"))[0] == 200
        assert (await post(client.target.url, b'{"id":1,"method":"ping"}', client.session_id))[0] == 404
        assert (await post(client.target.url, b"", client.session_id, "DELETE"))[0] == 404


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


async def test_a_failure_says_what_was_asked_and_answered() -> None:
    async with serving() as (server, client):
        with pytest.raises(NotAnswered, match=r"http://.* refuses tasks/get: tasks/get: not found \(-32602\)"):
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
    [(tasks, page)] = re.findall(r"has (\d+) tasks\. It lists (\d+) at a time", text)
    [(hand, hand_bytes)] = re.findall(r"^  by hand +(\d+) requests, ([\d,]+) bytes", text, re.M)
    through = re.findall(r"^  (\w+) +1 request, ([\d,]+) bytes, (\d+) tasks; the server gets (\d+) req", text, re.M)
    assert [(way, asked) for way, _, _, asked in through[:2]] == [("filtered", hand), ("again", "0")]
    assert "checked     taskgate's list is that by hand" in text and 0 < int(through[2][3]) < int(hand) == 24
    readme = (ROOT / "README.md").read_text()
    rows = [(hand, hand_bytes, hand), *(("1", size, asked) for _, size, _, asked in through)]
    assert rows == re.findall(r"^\| .*?: .*? \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|$", readme, re.M)
    assert f"A scripted server in `make run` has {tasks} tasks, {page} a page. {through[0][2]} are not:" in readme


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_it_serves_what_it_names_until_it_is_stopped(number: signal.Signals) -> None:
    async with command("demo") as process:
        text = await invitation(process)
        shown = re.search(r"tasks --watch (--status .*)$", text, re.M)
        assert shown is not None, text
        assert len((await forked("tasks", *shown[1].split())).stdout.splitlines()) > 3
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
        await asyncio.wait_for(process.stdout.readuntil(b"$ taskgate try"), DEMO_S)
        process.send_signal(signal.SIGINT)
        status, rest = await ended(process)
        assert status == 130
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
