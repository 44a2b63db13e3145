"""`python -m gateway.demo [--once]`: a filtered tasks/list, asked of the real gateway in front of a legacy server.

In: nothing but the flag. Out: a table of the tasks that were asked for, what it cost the server behind, and
addresses to try by hand, until Ctrl-C; with `--once` the table alone.

Always: the answer is judged (`question.py`) against the legacy server's own tasks, which stand still in the
meantime. The exit status is 0 only if it was exactly right.
"""

import argparse
import asyncio
import io
import os
import shlex
import signal
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final, TextIO

import aiohttp
import orjson

from .legacy import LegacyServer
from .process import Gateway, GatewayFailed, running
from .question import Question, failed_since, not_finished
from .store import PAGE_SIZE, Status, Task

PROTOCOL_VERSION: Final = "2025-11-25"
PAGES_MAX: Final = 100
DIFFERENCES_MAX: Final = 20  # lines
ANSWER_SECONDS: Final = 30.0

_COLOURS: Final[dict[Status, str]] = {
    "working": "\x1b[34m",
    "input_required": "\x1b[33m",
    "completed": "\x1b[32m",
    "failed": "\x1b[31m",
    "cancelled": "\x1b[2m",
}
_PLAIN: Final = "\x1b[0m"
_ROW: Final = "{:<10} {:<15} {:<21} {:<21} {}"


class DemoFailed(Exception):
    """The gateway did not do what the demo is to show. The message says what."""


class Requestor:
    """A client of the gateway with one session; it knows nothing of the server behind."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self.url = url
        self.headers = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
        }
        self._http = http
        self._last_id = 0

    async def initialize(self) -> dict[str, Any]:
        """Open the session; the server's capabilities."""
        client = {"name": "taskgate-demo", "version": "1"}
        params = {"protocolVersion": PROTOCOL_VERSION, "capabilities": {}, "clientInfo": client}
        result = await self.ask("initialize", params)
        self.headers["Mcp-Protocol-Version"] = result["protocolVersion"]
        await self._post({"jsonrpc": "2.0", "method": "notifications/initialized"})
        capabilities: dict[str, Any] = result["capabilities"]
        return capabilities

    async def list_tasks(self, criteria: dict[str, Any]) -> tuple[list[Task], object]:
        """All pages of a filtered list, and how many tasks the gateway says there are."""
        tasks: list[Task] = []
        params = dict(criteria)
        for _ in range(PAGES_MAX):
            result = await self.ask("tasks/list", params)
            tasks += result["tasks"]
            if "nextCursor" not in result:
                return tasks, result.get("_meta", {}).get("taskgate/total")
            params["cursor"] = result["nextCursor"]
        raise DemoFailed(f"the list does not end after {PAGES_MAX} pages")

    async def ask(self, method: str, params: dict[str, Any]) -> Any:
        """The result of a request."""
        self._last_id += 1
        body = await self._post({"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params})
        answer = orjson.loads(body)
        if "result" not in answer:
            raise DemoFailed(f"{method} was answered {body.decode()}")
        return answer["result"]

    async def _post(self, message: dict[str, Any]) -> bytes:
        async with self._http.post(self.url, data=orjson.dumps(message), headers=self.headers) as response:
            body = await response.read()
            if response.status not in (200, 202):
                raise DemoFailed(f"{message['method']} was answered {response.status}: {body.decode()}")
            if "Mcp-Session-Id" in response.headers:
                self.headers["Mcp-Session-Id"] = response.headers["Mcp-Session-Id"]
            return body


def table(tasks: list[Task], colour: bool) -> Iterator[str]:
    """The tasks as lines to read."""
    yield _ROW.format("TASK", "STATUS", "CREATED", "LAST UPDATED", "MESSAGE")
    for task in tasks:
        status = f"{task['status']:<15}"
        if colour:
            status = f"{_COLOURS[task['status']]}{status}{_PLAIN}"
        created, updated = (f"{text[:10]} {text[11:19]}Z" for text in (task["createdAt"], task["lastUpdatedAt"]))
        row = _ROW.format(f"{task['taskId'][:8]}…", status, created, updated, task.get("statusMessage", ""))
        yield row.rstrip()


def wants_colour(stream: TextIO) -> bool:
    """Colour is for a terminal whose user has not said no (no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR")


async def show(question: Question, requestor: Requestor, legacy: LegacyServer) -> bool:
    """Ask, print the answer and what it cost, and judge it; whether it was exactly right."""
    store = legacy.store(requestor.headers["Mcp-Session-Id"])
    before = Counter(legacy.counts)
    begin = asyncio.get_running_loop().time()
    tasks, total = await requestor.list_tasks(question.params)
    took_ms = (asyncio.get_running_loop().time() - begin) * 1000
    cost = legacy.counts - before

    print(f"\n{question.title}: {len(tasks)} of {len(store)}\n")
    for line in table(tasks, wants_colour(sys.stdout)):
        print(f"  {line}")
    pages = -(-len(store) // PAGE_SIZE)
    others = "".join(f", {method}: {count}" for method, count in cost.items() if method != "tasks/list")
    print(f"\nupstream tasks/list requests: {cost['tasks/list']}{others} ({took_ms:.0f} ms)")
    print(f"paging by hand: {pages} tasks/list requests each time, filtered by the requestor")

    differences = list(question.differences(tasks, total, store.all()))
    for line in differences[:DIFFERENCES_MAX]:
        print(f"WRONG: {line}")
    if len(differences) > DIFFERENCES_MAX:
        print(f"WRONG: and {len(differences) - DIFFERENCES_MAX} more")
    if not differences:
        print("checked against the server's own tasks: exactly right")
    return not differences


async def show_all(requestor: Requestor, legacy: LegacyServer) -> bool:
    """The whole performance; whether every answer was exactly right."""
    capabilities = await requestor.initialize()
    if "filter" not in capabilities.get("tasks", {}).get("list", {}):
        raise DemoFailed(f"initialize: no capability tasks.list.filter in {capabilities}")
    print("initialize: the gateway has added the capability tasks.list.filter")
    legacy.simulate = False
    try:
        now = datetime.now(UTC)
        right = await show(not_finished(now), requestor, legacy)
        print("\nAnother question, within max_age:")
        return await show(failed_since(now), requestor, legacy) and right
    finally:
        legacy.simulate = True


def curl(requestor: Requestor) -> str:
    """A line to paste that asks the same gateway, in the same session."""
    params = {"status": ["input_required"], "orderBy": "createdAt", "order": "asc"}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tasks/list", "params": params}
    # curl would ask a proxy for a loopback address, too.
    words = ["curl", "-sS", *(["--noproxy", "*"] if "http" in urllib.request.getproxies() else []), requestor.url]
    for name, value in requestor.headers.items():
        words += ["-H", f"{name}: {value}"]
    return shlex.join([*words, "-d", orjson.dumps(message).decode()])


def show_addresses(gateway: Gateway, legacy_url: str, requestor: Requestor) -> None:
    """What to try by hand."""
    print(f"\n  gateway        {requestor.url}")
    print(f"  metrics        {gateway.admin}/metrics")
    print(f"  legacy server  {legacy_url} (requests so far: {legacy_url.removesuffix('/mcp')}/counts)")
    print(f"\nThe tasks go on changing. Try:\n\n{curl(requestor)}\n\nCtrl-C ends it.")


async def demo(once: bool) -> int:
    """From the start of both servers to the exit status."""
    legacy = LegacyServer()
    legacy_url = await legacy.start()
    try:
        print(f"taskgate in front of an MCP server that lists {PAGE_SIZE} tasks a page and cannot filter them")
        async with (
            running(legacy_url) as gateway,
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS)) as http,
        ):
            requestor = Requestor(http, f"{gateway.origin}/mcp")
            try:
                right = await show_all(requestor, legacy)
            except (DemoFailed, aiohttp.ClientError, TimeoutError, orjson.JSONDecodeError) as error:
                raise gateway.failed(f"The demo failed: {error or type(error).__name__}") from error
            if not once:
                show_addresses(gateway, legacy_url, requestor)
                gateway.echo = True
                try:
                    raise await gateway.ended()
                except asyncio.CancelledError:
                    print("\nstopping")
            return 0 if right else 1
    finally:
        await legacy.stop()


async def until_signalled(once: bool) -> int:
    """`demo`, ended by SIGINT or SIGTERM. Only the first counts: the next must not interrupt the tidying up."""
    working = asyncio.create_task(demo(once))
    loop = asyncio.get_running_loop()
    signalled = asyncio.Event()

    def stop() -> None:
        if not signalled.is_set():
            signalled.set()
            working.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        return await working
    except asyncio.CancelledError:  # before there was a list to judge
        return 1 if once else 0
    except GatewayFailed as error:
        print(error, file=sys.stderr)
        return 1


def main() -> int:
    """The command line; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m gateway.demo",
        description="Starts an MCP server that cannot filter its tasks, taskgate in front of it, and asks for "
        "a filtered list. Then serves until Ctrl-C, with addresses to try by hand.",
        epilog="The exit status is 0 if the list was exactly right, judged against the server's own tasks, "
        "else 1. Everything runs on 127.0.0.1; ports 8080 and 9090 are used if they are free.",
    )
    parser.add_argument("--once", action="store_true", help="exit after the list has been shown")
    arguments = parser.parse_args()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True, errors="replace")
    return asyncio.run(until_signalled(arguments.once))


if __name__ == "__main__":
    sys.exit(main())
