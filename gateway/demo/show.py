"""What `taskgate demo` shows: a question, its answer, and what it costs by hand and through a gateway."""

import asyncio
import json
import os
import shutil
import socket
import sys
import time
import urllib.request
from collections.abc import Awaitable
from contextlib import AsyncExitStack, ExitStack, suppress
from typing import Any, Final, NamedTuple

from gateway import config
from gateway.app import App
from gateway.cli import table
from gateway.cli.exit_status import signalled
from gateway.cli.mcp_client import Client, Target
from gateway.demo.legacy import PAGE_SIZE, UNFINISHED, LegacyServer, LegacyTask, timestamp

CHANGE_EVERY_S: Final = 2.0
PORTS: Final = (8080, 9090)  # of the gateway and its admin listener, if they are free

_COLUMNS: Final = 80
_DAY_MS: Final = 86_400_000
_COST: Final = "  {:<45} {:>8} {:>8} {:>11}"


class Cost(NamedTuple):
    tasks: list[LegacyTask]
    requests: int
    received_bytes: int
    server_requests: int

    def row(self, way: str) -> str:
        return _COST.format(way, *(f"{count:,}" for count in self[1:]))


class Comparison:
    """One session with the server, by two ways: `direct`, and through the `gateway`."""

    def __init__(self, legacy: LegacyServer, direct: Client, gateway: Client) -> None:
        since = timestamp(time.time_ns() // 1_000_000 - _DAY_MS)
        self.params: dict[str, Any] = {"status": list(UNFINISHED), "createdAfter": since}
        self.gateway = gateway
        self.tasks = legacy.sessions[gateway.session_id]
        self._legacy = legacy
        self._direct = direct

    async def by_hand(self) -> Cost:
        return await self._measured(self._direct, self._pages())

    async def filtered(self) -> Cost:
        return await self._measured(self.gateway, self._answer())

    async def _measured(self, client: Client, work: Awaitable[list[LegacyTask]]) -> Cost:
        before = client.requests, client.received_bytes, self._legacy.counts.total()
        tasks = await work
        after = client.requests, client.received_bytes, self._legacy.counts.total()
        return Cost(tasks, *(now - then for now, then in zip(after, before, strict=True)))

    async def _pages(self) -> list[LegacyTask]:
        tasks = [task async for page in self._direct.pages({}) for task in page.tasks]
        # The server writes all timestamps in one format, so they can be compared as text.
        found = [t for t in tasks if t["status"] in UNFINISHED and t["createdAt"] >= self.params["createdAfter"]]
        return sorted(found, key=lambda t: (t["lastUpdatedAt"], t["taskId"]), reverse=True)

    async def _answer(self) -> list[LegacyTask]:
        return (await self.gateway.page(self.params)).tasks


async def demo(once: bool) -> int:
    """Start both servers and show the comparison. Returns the exit status. Raises NotAnswered, StartError."""
    async with AsyncExitStack() as stack:
        legacy = LegacyServer()
        stack.push_async_callback(legacy.stop)
        server_url = await legacy.start()
        listen, admin = (f"127.0.0.1:{port}" for port in _free_ports())
        settings = config.for_upstream(server_url, listen, admin)
        app = App(settings)
        stack.push_async_callback(app.stop)
        await app.start()
        client = await stack.enter_async_context(Client(Target(f"http://{listen}/mcp")))
        await client.initialize()
        direct = await stack.enter_async_context(Client(Target(server_url), client.session_id, client.revision))
        session = Comparison(legacy, direct, client)
        right = await show(session, legacy, settings.index.max_age)
        if once:
            _farewell(f"http://{admin}/")
        else:
            _invite(session, server_url, f"http://{admin}/")
            with suppress(asyncio.CancelledError):
                await legacy.keep_changing(CHANGE_EVERY_S)
            print("\nStopped.")
    return 0 if right else 1


async def show(session: Comparison, legacy: LegacyServer, max_age_s: float) -> bool:
    by_hand, first, second = await session.by_hand(), await session.filtered(), await session.filtered()
    print(
        f"\nAn MCP server has {len(session.tasks.all)} tasks. It lists {PAGE_SIZE} at a time, and cannot filter them.\n"
        "Which tasks of the last 24 hours are not finished? Ask taskgate in front of it:\n"
    )
    print(_request(session, indent="  "))
    print(f"\nThe answer has {len(first.tasks)} tasks, the latest change first:\n")
    for line in table.table(first.tasks, _COLUMNS):
        print(line)
    print("\nWhat it costs to know:\n")
    print(_COST.format("", "requests", "bytes", "requests"))
    print(_COST.format("", "you send", "you get", "server gets"))
    print(by_hand.row("by hand: list all pages and filter, each time"))
    print(first.row("with taskgate: the first time"))
    print(second.row(f"with taskgate: again within {max_age_s:g} s"))
    legacy.change(session.tasks, session.tasks.get(by_hand.tasks[0]["taskId"]))
    await asyncio.sleep(max_age_s)
    third = await session.filtered()
    print(third.row("with taskgate: later, after a change"))
    right = first.tasks == second.tasks == by_hand.tasks and third.tasks == (await session.by_hand()).tasks
    print(f"\n{'Checked' if right else 'WRONG'}: taskgate's answers are {'' if right else 'not '}those found by hand.")
    return right


def _request(session: Comparison, indent: str) -> str:
    message = {"jsonrpc": "2.0", "id": session.gateway.requests, "method": "tasks/list", "params": {}}
    head = json.dumps(message).removesuffix("}}")
    members = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in session.params.items()]
    return indent + head + f"\n{indent}  " + f",\n{indent}  ".join(members) + "}}"


def _farewell(page: str) -> None:
    print(
        f"\nWhile taskgate runs, {page} is the page for operators.\nTwo things to try:\n\n"
        f"  {_taskgate()} demo       the same, and it stays: open the page\n"
        f"  {_taskgate()} try URL    what it saves at a server of yours"
    )


def _invite(session: Comparison, server_url: str, page: str) -> None:
    gateway = session.gateway
    # curl asks a proxy of the environment even for a loopback address.
    direct = "--noproxy '*' " if urllib.request.getproxies() else ""
    print(
        f"\n  taskgate    {gateway.target.url}\n  the server  {server_url}\n  the page    {page}\n\n"
        f"A task changes every {CHANGE_EVERY_S:g} s. Two things to try in another terminal:\n\n"
        f"  {_taskgate()} tasks --watch --status {','.join(UNFINISHED)} \\\n"
        f"    --session {gateway.session_id} {gateway.target.url}\n\n"
        f"  curl -sS {gateway.target.url} -H 'Content-Type: application/json' \\\n"
        f"    {direct}-H 'Mcp-Session-Id: {gateway.session_id}' -d '\n"
        f"{_request(session, indent='    ')}' | python3 -m json.tool\n\n"
        "Ctrl-C ends it."
    )


def _taskgate() -> str:
    """The command as it can be typed here: `make run` leaves it out of the PATH."""
    return "taskgate" if shutil.which("taskgate") else os.path.relpath(f"{sys.prefix}/bin/taskgate")


def _free_ports() -> list[int]:
    with ExitStack() as opened:  # all at once, so that no two are the same
        found = []
        for port in PORTS:
            try:
                sock = socket.create_server(("127.0.0.1", port))
            except OSError:
                sock = socket.create_server(("127.0.0.1", 0))
            opened.callback(sock.close)
            found.append(int(sock.getsockname()[1]))
        return found


def run(once: bool) -> int:
    return signalled("demo", demo(once), failed=1, interrupted=1)
