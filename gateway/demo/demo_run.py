"""What `taskgate demo` shows: a question, its answer, and what it costs by hand and through a gateway."""

import asyncio
import json
import os
import shutil
import socket
import sys
import time
import urllib.request
from contextlib import AsyncExitStack, ExitStack, suppress
from typing import Final

from gateway import config
from gateway.app import App
from gateway.cli.mcp_client import Client, Target
from gateway.cli.task_table import Json, table
from gateway.demo.legacy_server import UNFINISHED, LegacyServer, timestamp

CHANGE_EVERY_S: Final = 2.0
PORTS: Final = (8080, 9090)  # of the gateway and its admin listener, if they are free
_COST: Final = "  {:<45} {:>8} {:>8} {:>11}"
# As it can be typed here: `make run` leaves it out of the PATH.
_TASKGATE: Final = "taskgate" if shutil.which("taskgate") else os.path.relpath(f"{sys.prefix}/bin/taskgate")


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
        criteria = {"status": list(UNFINISHED), "createdAfter": timestamp(time.time_ns() // 1_000_000 - 86_400_000)}
        right = await show(legacy, direct, client, criteria, settings.index.max_age)
        if once:
            print(
                f"\nWhile taskgate runs, http://{admin}/ is the page for operators.\nTwo things to try:\n\n"
                f"  {_TASKGATE} demo       the same, and it stays: open the page\n"
                f"  {_TASKGATE} try URL    what it saves at a server of yours"
            )
        else:
            url, session = client.target.url, client.session_id
            # curl asks a proxy of the environment even for a loopback address.
            around = "--noproxy '*' " if urllib.request.getproxies() else ""
            print(
                f"\n  taskgate    {url}\n  the server  {server_url}\n  the page    http://{admin}/\n\n"
                f"A task changes every {CHANGE_EVERY_S:g} s. Two things to try in another terminal:\n\n"
                f"  {_TASKGATE} tasks --watch --status {','.join(UNFINISHED)} \\\n    --session {session} {url}\n\n"
                f"  curl -sS {url} -H 'Content-Type: application/json' \\\n"
                f"    {around}-H 'Mcp-Session-Id: {session}' -d '\n"
                f"{_request(client, criteria, indent='    ')}' | python3 -m json.tool\n\nCtrl-C ends it."
            )
            with suppress(asyncio.CancelledError):
                await legacy.keep_changing(CHANGE_EVERY_S)
            print("\nStopped.")
    return 0 if right else 1


async def show(legacy: LegacyServer, direct: Client, gateway: Client, criteria: Json, max_age_s: float) -> bool:
    """Show one session with the server, by two ways. Returns whether both lead to the same tasks."""
    by_hand, hand_cost = await _by_hand(legacy, direct, criteria)
    first, first_cost = await _listed(legacy, gateway, criteria, "with taskgate: the first time")
    second, second_cost = await _listed(legacy, gateway, criteria, f"with taskgate: again within {max_age_s:g} s")
    tasks = legacy.sessions[gateway.session_id]
    print(
        f"\nAn MCP server has {len(tasks.all)} tasks. It lists {legacy.page_size} at a time, and cannot filter them.\n"
        "Which tasks of the last 24 hours are not finished? Ask taskgate in front of it:\n\n"
        f"{_request(gateway, criteria, indent='  ')}\n\n"
        f"The answer has {len(first)} tasks, the latest change first:\n",
        *table(first, 80),
        "\nWhat it costs to know:\n",
        _COST.format("", "requests", "bytes", "requests"),
        _COST.format("", "you send", "you get", "server gets"),
        *(hand_cost, first_cost, second_cost),
        sep="\n",
    )
    legacy.change(tasks, tasks.get(by_hand[0]["taskId"]))
    await asyncio.sleep(max_age_s)
    third, third_cost = await _listed(legacy, gateway, criteria, "with taskgate: later, after a change")
    print(third_cost)
    right = first == second == by_hand and third == (await _by_hand(legacy, direct, criteria))[0]
    print(f"\n{'Checked' if right else 'WRONG'}: taskgate's answers are {'' if right else 'not '}those found by hand.")
    return right


async def _by_hand(legacy: LegacyServer, direct: Client, criteria: Json) -> tuple[list[Json], str]:
    tasks, cost = await _listed(legacy, direct, {}, "by hand: list all pages and filter, each time")
    # The server writes all timestamps in one format, so they can be compared as text.
    found = [t for t in tasks if t["status"] in UNFINISHED and t["createdAt"] >= criteria["createdAfter"]]
    return sorted(found, key=lambda t: (t["lastUpdatedAt"], t["taskId"]), reverse=True), cost


async def _listed(legacy: LegacyServer, client: Client, params: Json, way: str) -> tuple[list[Json], str]:
    """A list, and the line that says what it costs."""
    before = client.requests, client.received_bytes, legacy.counts.total()
    tasks = [task async for page in client.pages(params) for task in page.tasks]
    after = client.requests, client.received_bytes, legacy.counts.total()
    return tasks, _COST.format(way, *(f"{now - then:,}" for now, then in zip(after, before, strict=True)))


def _request(gateway: Client, criteria: Json, indent: str) -> str:
    message = {"jsonrpc": "2.0", "id": gateway.requests, "method": "tasks/list", "params": {}}
    head = json.dumps(message).removesuffix("}}")
    members = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in criteria.items()]
    return indent + head + f"\n{indent}  " + f",\n{indent}  ".join(members) + "}}"


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
