"""`taskgate try` and `taskgate tasks` at every kind of server: each fact is what the server is like, and it stays so.

In: a scripted server that knows all of itself, and how often it was asked. Out: the command's facts, as JSON.
Always: the real command, as a process; the server's tasks are the same before and after.
"""

import asyncio
import json
import os
import pty
import re
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from copy import deepcopy
from dataclasses import replace
from typing import Any, Final

import aiohttp
import pytest
from aiohttp import web

from gateway.client.link import Client
from gateway.demo.legacy import LegacyServer
from gateway.tasks.criteria import CRITERIA
from tests.forked import forked
from tests.launch import (
    COMMAND,
    NO_AUTHORITIES,
    ROOT,
    Gateway,
    Gateways,
    Json,
    changes,
    command,
    eventually,
    listening,
    port_of,
    run,
)
from tests.peer import Peer
from tests.relay.http1 import Message
from tests.relay.messages import (
    TASKS_CAPABILITY,
    answer,
    chunk,
    dumps,
    event,
    fault,
    page,
    response,
    result,
    stream,
)
from tests.relay.rig import Place, Script, body, own, rig_at
from tests.world.servers import KINDS, UNFINISHED, Kind, Server, pages_by_hand, shown

TASKS: Final = 150
LIVE: Final = 5
ORDERS: Final = {"oldest": "oldest first", "newest": "newest first", "id": "by id", "any": "another at each reading"}
INSTANTS: Final = ("createdAt", "lastUpdatedAt")
AS_OF: Final = "2026-11-22T21:48:00.000Z"
NO_TASKS: Final = "No such tasks. Many servers show a session its own tasks alone: --session ID"
READS: Final = {"initialize", "tasks/list", "tasks/get", "server/discover"}

each = pytest.mark.parametrize("name", KINDS)


@asynccontextmanager
async def at(server: Server) -> AsyncIterator[str]:
    """The server's address, while it serves."""
    with listening() as sock:
        async with rig_at(Place(Gateway(0, 0), sock)) as rig:
            rig.serve(server)
            yield f"http://127.0.0.1:{port_of(sock)}/mcp"


async def said(*arguments: str) -> tuple[int, str]:
    """Exit status and output of the command."""
    ended = await forked(*arguments)
    return ended.returncode, ended.stdout + ended.stderr


async def tried(server: Server, *flags: str) -> tuple[int | None, Json]:
    """Exit status and facts of `taskgate try`. The server is left as it was, unless it was to make a task."""
    before = deepcopy(server.tasks)
    async with at(server) as url:
        status, text = await said("try", "--json", *flags, url)
    if "--create" not in flags:
        assert server.tasks == before
        assert set(server.asked) <= READS
    facts: Json = json.loads(text)
    assert facts["url"] == url
    assert status == (0 if facts["helps"] else 1)
    return status, facts


def by_hand(kind: Kind, **params: object) -> tuple[list[str], int, int]:
    """The ids of a list that is read by hand at such a server, and what it takes: requests, bytes."""
    twin = Server(kind)
    twin.fill(TASKS, LIVE)
    ids = [i for page in pages_by_hand(twin, **params) for i in shown(page)]
    return ids, twin.asked.total(), twin.sent_bytes


def counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


@each
async def test_every_fact_is_what_the_server_is_like(name: str) -> None:
    """As JSON, and as lines. The server counts how often it was asked; the docs' table says what the verdict is."""
    kind = KINDS[name]
    server = Server(kind)
    server.fill(TASKS, LIVE)
    ids, requests, sent_bytes = by_hand(kind)
    status, facts = await tried(server)
    listed = [server.tasks[i] for i in ids]
    live = [server.read(task) for task in listed if task["status"] in UNFINISHED]
    done = [task for task in listed if task["status"] not in UNFINISHED] or listed
    first_page = {server.tasks[i]["status"] for i in shown(next(pages_by_hand(deepcopy(server))))}
    samples = len({0, len(done) // 2, len(done) - 1}) if done else 0
    later = server.asked.total() - 1 - 3 * requests - (len(first_page) > 1) - samples  # 1: initialize
    filtered_bytes = len(dumps(page(live) | {"_meta": {"taskgate/total": len(live), "taskgate/asOf": AS_OF}}))
    statuses = Counter(task["status"] for task in listed)
    assert facts == {
        "url": facts["url"],
        "revision": "2025-11-25",
        "server": {"name": "", "version": ""},
        "tasks": TASKS_CAPABILITY,
        "lists": True,
        "session": "none: the server gives no session id",
        "by_hand": {
            "requests": requests,
            "bytes": sent_bytes,
            "tasks": len(ids),
            "page_size": kind.page_size if requests > 1 else None,
            "whole": True,
        },
        "statuses": statuses,
        "first": {"bytes": filtered_bytes, "tasks": len(live), "asked": requests},
        "again": {"bytes": filtered_bytes, "tasks": len(live), "asked": 0},
        "later": {"bytes": filtered_bytes, "tasks": len(live), "asked": later},
        "change": False,
        "order": ORDERS[kind.order] if ids else None,
        "may_be_cut": kind.cut is not None,
        "instants_move": kind.reads_now if ids else None,
        "get_agrees": True if ids else None,
        "filters": "unsaid" if kind.filters else None,
        "gateway_agrees": True,
        "helps": status == 0,
        "verdict": facts["verdict"],
    }
    check_verdict(kind, requests, later, status, facts["verdict"])

    def through(asked: int) -> str:
        costs = f"1 request, {filtered_bytes:,} bytes, {counted(len(live), 'task')}"
        return f"{costs}; the server gets {counted(asked, 'request')}"

    size = f", {kind.page_size} a page" if requests > 1 else ""
    moving = "move" if kind.reads_now else "stay"
    lines = {
        "revision": "2025-11-25",
        "server": "it has no name",
        "tasks": "list, cancel; made by tools/call",
        "session": "none: the server gives no session id",
        "by hand": f"{counted(requests, 'request')}, {sent_bytes:,} bytes, {counted(len(ids), 'task')}{size}",
        "statuses": ", ".join(f"{statuses[s]} {s}" for s in ("working", "completed") if statuses[s]) or "none",
        "filtered": through(requests),
        "again": through(0),
        "later": through(later),
        "change": "not seen",
        "order": facts["order"] or "not known: too few tasks",
        "cut": "perhaps: a round number, and no cursor" if kind.cut else "no sign of it",
        "timestamps": f"{moving} between two readings" if ids else "not known",
        "tasks/get": "agrees with the list" if ids else "not known",
        "filters": "by status, but does not say so" if kind.filters else "no",
        "checked": "taskgate's list is that by hand",
    }
    async with at(server) as url:
        _, text = await said("try", url)
    assert text == "".join(f"  {head:<11} {words}\n" for head, words in lines.items()) + f"\n{facts['verdict']}\n"


def check_verdict(kind: Kind, pages: int, later: int, status: int | None, words: str) -> None:
    """It is that of the docs' table (tests/world/costs.py), as far as one reading shows it."""
    assert ("one page" in words.lower()) == (pages == 1)
    if kind.filters:
        assert (status, "filters" in words) == (1, True)
    elif kind.cut:
        assert (status, "cut" in words) == (0, True)
    elif pages > 1:
        assert (status, "saves requests" in words) == (0, later < pages)
    else:
        assert status == 1


@each
async def test_a_task_that_it_makes_is_the_change(name: str) -> None:
    server = Server(KINDS[name])
    status, facts = await tried(server, "--create", "work")
    [made] = server.tasks
    listed = name != "FastMCP 3.4"
    assert facts["created"] == {"id": made, "listed": listed, "got": True}
    assert (facts["change"], facts["later"]["tasks"], facts["gateway_agrees"]) == (True, 1, None)
    after = facts["by_hand_later"] if listed else facts["by_hand"]
    assert after == {
        "requests": 1,
        "bytes": len(dumps(next(pages_by_hand(server)))),
        "tasks": int(listed),
        "page_size": None,
        "whole": True,
    }
    assert facts["statuses"] == ({"working": 1} if listed else {})
    assert ("makes the list" in facts["verdict"]) == (not listed)
    assert status == (1 if listed else 0)
    assert server.asked["tools/call"] == 1
    async with at(server) as url:
        _, text = await said("try", "--create", "work", url)
    _, table, verdict = text.split("\n\n")
    shown_ids = [line.split()[0] for line in table.splitlines()[1:]]
    assert set(shown_ids) == {i[:8] for i in server.tasks if listed or i != made}
    assert (len(verdict.splitlines()), "TASK " in table) == (1, True)


async def test_a_server_that_says_that_it_filters_needs_no_gateway() -> None:
    class Native(Server):
        def _answer(self, message: Json) -> Json:
            said = super()._answer(message)
            if message["method"] == "initialize":
                said["result"]["capabilities"] = {"tasks": {"list": {"filter": {"status": True}}}}
            return said

    server = Native(KINDS["any that filters and does not say so"])
    status, facts = await tried(server)
    assert (status, facts["filters"]) == (1, "declared")
    assert "by itself" in facts["verdict"]


async def test_a_long_list_is_read_as_far_as_is_allowed() -> None:
    server = Server(KINDS["TypeScript SDK 1.x"])
    server.fill(TASKS, LIVE)
    status, facts = await tried(server, "--pages", "3")
    assert (facts["by_hand"]["requests"], facts["by_hand"]["whole"], "first" in facts) == (3, False, False)
    assert (status, "more than 3 pages" in facts["verdict"]) == (0, True)


async def test_what_a_server_sends_cannot_steer_a_terminal() -> None:
    server = Server(replace(KINDS["mcp-go"], ids="requests"))
    server.add("working", "\x1b[2J\u202e")
    server.tasks["\x1b[2J\u202e"]["statusMessage"] = "a\nb\x07\x9b"
    async with at(server) as url:
        for arguments in (("tasks", url), ("try", url)):
            status, text = await said(*arguments)
            assert not re.search(r"[^ -~\n]", text), text
    assert status == 1


# ---- taskgate tasks ----


async def listed(server: Server, *flags: str) -> list[Json]:
    """The tasks that `taskgate tasks --json` prints."""
    before = deepcopy(server.tasks)
    async with at(server) as url:
        status, text = await said("tasks", "--json", *flags, url)
    assert status == 0, text
    assert server.tasks == before
    assert set(server.asked) <= READS
    return [json.loads(line) for line in text.splitlines()]


@each
async def test_the_tasks_are_those_of_the_server(name: str) -> None:
    kind = KINDS[name]
    server = Server(kind)
    server.fill(TASKS, LIVE)
    tasks = await listed(server, "--all", "--order-by", "createdAt", "--order", "asc")
    there = [server.tasks[i] for i in by_hand(kind)[0]]
    if kind.reads_now:
        assert sorted(t["taskId"] for t in tasks) == sorted(t["taskId"] for t in there)
    else:
        assert tasks == sorted(there, key=lambda task: (task["createdAt"], task["taskId"]))
        width = max([8, *(len(task["taskId"]) for task in tasks)])
        rows = [[t["taskId"], t["status"], *(t[n][5:16].replace("T", " ") for n in INSTANTS)] for t in tasks]
        table = [["TASK", "STATUS", "CREATED", "CHANGED"], *rows]
        lines = [f"  {i:<{width}} {s:<14} {c:<11}  {u:<11}".rstrip() for i, s, c, u in table]
        lines[0] += "      MESSAGE"
        async with at(server) as url:
            _, text = await said("tasks", "--all", "--order-by", "createdAt", "--order", "asc", url)
        assert text.splitlines() == (lines if tasks else [NO_TASKS])
    some: list[Any] = await listed(server, "--status", "working,input_required")
    assert sorted(t["taskId"] for t in some) == sorted(t["taskId"] for t in there if t["status"] in UNFINISHED)


# ---- sessions, interrupts, and servers that are something else ----


@asynccontextmanager
async def legacy(tasks: int) -> AsyncIterator[tuple[LegacyServer, str]]:
    """A server with sessions, each with tasks of its own."""
    server = LegacyServer(tasks)
    try:
        yield server, await server.start()
    finally:
        await server.stop()


class Strict(LegacyServer):
    """It refuses parameters that it does not know, and a second session."""

    async def handle(self, request: web.BaseRequest) -> web.Response:
        message = json.loads(await request.read() or b"{}")
        if message.get("method") == "initialize" and self.sessions:
            return web.Response(status=429)
        if set(message.get("params", {})) - {"cursor"} and message["method"] == "tasks/list":
            return web.json_response(fault(message["id"], -32602, "unknown parameter"))
        return await super().handle(request)


async def test_a_server_that_refuses_more_than_it_must_is_tried_to_the_end() -> None:
    """Its refusal of one question ended the trial, without a verdict."""
    server = Strict(60)
    url = await server.start()
    try:
        status, text = await said("try", "--json", url)
    finally:
        await server.stop()
    facts = json.loads(text)
    assert (status, facts["helps"], facts["filters"], facts["others_see"]) == (0, True, None, None)


async def test_sessions_that_it_opened_are_deleted_and_others_are_left() -> None:
    async with legacy(240) as (server, url), aiohttp.ClientSession() as http:
        mine = Client(http, url)
        await mine.initialize()
        before = deepcopy(server.sessions[mine.session_id].all)
        for flags in ((), ("--session", mine.session_id)):
            status, text = await said("try", "--json", *flags, url)
            facts = json.loads(text)
            assert (status, facts["by_hand"]["requests"], facts["others_see"]) == (0, 24, "none")
            assert list(server.sessions) == [mine.session_id]
        for flags in ((), ("--session", mine.session_id)):
            status, text = await said("tasks", "--all", "--json", *flags, url)
            assert (status, len(text.splitlines())) == (0, 240)
            status, text = await said("tasks", "--status", "cancelled", "--created-before", "400d", *flags, url)
            assert (status, "--session ID" in text) == (0, not flags)
            assert list(server.sessions) == [mine.session_id]
        assert server.sessions[mine.session_id].all == before


@pytest.mark.parametrize("flags", [(), ("--json",)])
async def test_an_interrupt_shows_what_is_known_by_then(flags: tuple[str, ...]) -> None:
    """The server's second page never comes."""

    class Stuck(Server):
        async def __call__(self, request: Message, peer: Peer) -> bytes:
            if b"cursor" in request.body:
                self.asked["stuck"] += 1
                await asyncio.Event().wait()
            return await super().__call__(request, peer)

    server = Stuck(KINDS["TypeScript SDK 1.x"])
    server.fill(TASKS, LIVE)
    async with at(server) as url, command("try", *flags, url) as process:
        await eventually(lambda: asyncio.sleep(0, bool(server.asked["stuck"])), "the second page is asked for")
        process.send_signal(signal.SIGINT)
        output, _ = await asyncio.wait_for(process.communicate(), 60)
        text = output.decode()
        assert (process.returncode, "Traceback" in text) == (130, False)
        if flags:
            facts = json.loads(text)
            assert (facts["stopped"], facts["revision"], "by_hand" in facts) == ("interrupted", "2025-11-25", False)
        else:
            assert "  revision    2025-11-25\n" in text and "\nInterrupted. Too little is known to say.\n" in text
    async with at(server) as url:
        status, text = await said("try", "--seconds", "0.5", url)
        assert (status, "Stopped after 0.5 s." in text) == (1, True)
        lines, sent = await on_a_terminal("try", "--seconds", "0.5", url)
        assert "page 1, 10 tasks" in sent and not any("page" in line for line in lines)


async def on_a_terminal(*arguments: str) -> tuple[list[str], str]:
    """What stands on a terminal in the end, line by line, and all that was sent to it."""
    ours, theirs = pty.openpty()
    try:
        process = await asyncio.create_subprocess_exec(
            *COMMAND, *arguments, cwd=ROOT, env={**os.environ, **NO_AUTHORITIES}, stdout=theirs, stderr=theirs
        )
    finally:
        os.close(theirs)
    sent = b""
    with suppress(OSError):  # so a terminal ends
        while True:
            sent += await asyncio.to_thread(os.read, ours, 4096)
    os.close(ours)
    await process.wait()
    lines, at = [""], 0
    for found in re.finditer(r"\r|\n|\x1b\[K|[^\r\n\x1b]+|\x1b", text := sent.decode()):
        match found[0]:
            case "\r":
                at = 0
            case "\n":
                lines.append("")
            case "\x1b[K":
                lines[-1] = lines[-1][:at]
            case words:
                lines[-1] = lines[-1][:at].ljust(at) + words + lines[-1][at + len(words) :]
                at += len(words)
    return lines, text


async def test_progress_on_a_terminal_is_gone_when_it_is_done() -> None:
    """Each page is counted on a line of its own; the facts are those of a pipe, with nothing left between them."""
    server = Server(KINDS["TypeScript SDK 1.x"])
    server.fill(TASKS, LIVE)
    async with at(server) as url:
        lines, text = await on_a_terminal("try", url)
        assert text.count("page 15, 150 tasks") == 2, "the list is read twice"
        assert "page 1, 10 tasks" in text
        _, piped = await said("try", url)
        assert lines == piped.split("\n") and "page 1," not in piped
        _, as_json = await on_a_terminal("try", "--json", url)
        assert "page 1," not in as_json and json.loads(as_json)["helps"]


async def answering(answer: Callable[[Message], bytes]) -> Script:
    """A script of a server that is something else."""

    async def script(request: Message, _: Peer) -> bytes:
        return answer(request)

    return script


def old(path: str, request: Message, kind: bytes = b"endpoint") -> bytes:
    """What a server of the old transport answers: a stream, which stays open, to a GET of its path alone."""
    if (request.method, request.target.decode()) != (b"GET", path):
        return response(b"", status=b"405 Method Not Allowed")
    return stream() + chunk(event(b"/messages?session_id=1", b": welcome", b"event: " + kind))


OTHERS: Final[dict[str, tuple[Callable[[Message], bytes], str]]] = {
    "a web page": (lambda _: response(b"<html>", b"Content-Type: text/html"), "This is not MCP over HTTP"),
    "nothing there": (lambda _: response(b"", status=b"404 Not Found"), "answered initialize with 404 Not Found"),
    "another host": (
        lambda _: response(b"", b"Location: http://localhost:1/mcp", status=b"307 Temporary Redirect"),
        "redirects to http://localhost:1/mcp, which is another origin: nothing was sent there",
    ),
    "an address that is none": (
        lambda _: response(b"", b"Location: mailto:x", status=b"307 Temporary Redirect"),
        "redirects to mailto:x, which is another origin",
    ),
    "a login at no address": (
        lambda _: response(b"", b'WWW-Authenticate: Bearer resource_metadata="//[x"', status=b"401 Unauthorized"),
        "does not say which server gives tokens",
    ),
    "a circle": (
        lambda _: response(b"", b"Location: /mcp", status=b"308 Permanent Redirect"),
        "redirects again and again",
    ),
    "HTTP+SSE": (lambda request: old("/mcp", request), "/mcp speaks HTTP+SSE of 2024-11-05, the old transport"),
    "HTTP+SSE at another path": (
        lambda request: old("/sse", request),
        "is not MCP, but /sse there speaks HTTP+SSE of 2024-11-05, the old transport",
    ),
    "other events": (lambda request: old("/mcp", request, b"hello"), "This is not MCP over HTTP"),
    "no words of HTTP": (lambda _: b"SSH-2.0-x\r\n\r\n", "does not answer in HTTP"),
    "a login without words": (lambda _: response(b"", status=b"401 Unauthorized"), "asks for a login (401)"),
    "2026-07-28 alone": (
        lambda request: answer(
            result(body(request)["id"], {"supportedVersions": ["2026-07-28"]})
            if body(request)["method"] == "server/discover"
            else fault(body(request)["id"], -32022, "Unsupported protocol version"),
            status=b"200 OK" if body(request)["method"] == "server/discover" else b"400 Bad Request",
        ),
        "speaks 2026-07-28 alone, which has no tasks/list",
    ),
    "a list that is none": (
        lambda request: answer(
            result(
                body(request).get("id"),
                {"protocolVersion": "2025-11-25", "capabilities": {"tasks": {"list": {}}}, "tasks": "none"},
            )
        ),
        "something other than a list of tasks",
    ),
}


@pytest.mark.parametrize("what", OTHERS)
async def test_what_is_no_such_server_is_told_in_words(what: str) -> None:
    """Exit status 2; the address is named. Header fields go nowhere else."""
    answered, words = OTHERS[what]
    with listening() as sock:
        async with rig_at(Place(Gateway(0, 0), sock)) as rig:
            rig.serve(await answering(answered))
            url = f"http://127.0.0.1:{port_of(sock)}/mcp"
            status, text = await said("try", "--header", "Authorization: Bearer x", url)
            assert status == 2 and "Traceback" not in text
            assert words in text and f"127.0.0.1:{port_of(sock)}" in text
            status, for_tasks = await said("tasks", "--header", "Authorization: Bearer x", url)
            assert status == 2
            if not text.startswith("  revision"):  # it said nothing before
                assert for_tasks == text.replace("taskgate try", "taskgate tasks")


async def test_in_front_of_a_gateway_a_list_is_one_request(gateways: Gateways) -> None:
    async with own(gateways, index={"full_crawl_interval": "1h"}) as rig:
        server = Server(KINDS["TypeScript SDK 1.x"])
        server.fill(TASKS, LIVE)
        rig.serve(server)
        url = f"http://127.0.0.1:{rig.gateway.port}/mcp"
        before = await rig.gateway.metrics()
        status, text = await said("tasks", "--session", "mine", "--status", "working", "--json", url)
        after = await rig.gateway.metrics()
        assert (status, len(text.splitlines())) == (0, LIVE)
        assert changes(before, after, "taskgate_requests_total") == 1


async def test_a_watched_list_marks_what_changed() -> None:
    server = Server(KINDS["mcp-go"])
    server.fill(3, 3)
    first = next(iter(server.tasks))
    async with at(server) as url, command("tasks", "--watch", url) as process:
        assert process.stdout is not None

        async def until(words: str) -> str:
            assert process.stdout is not None
            return (await asyncio.wait_for(process.stdout.readuntil(words.encode()), 60)).decode()

        assert "NEW" not in await until("TASK") + await until("\n\n")
        server.change(first, "completed")
        made = server.add()
        text = await until("CHANGED\n") + await until("NEW\n")
        assert first in text or made in text
        process.send_signal(signal.SIGINT)
        rest, _ = await asyncio.wait_for(process.communicate(), 60)
        assert (process.returncode, b"Traceback" in rest) == (130, False)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["tasks", "--status", "workin", "http://a/mcp"], "--status: given 'workin', allowed is an array of statuses"),
        (["tasks", "--created-after", "yesterday", "http://a/mcp"], "or how long ago, such as 3d or 2h"),
        (["tasks", "--order", "up", "http://a/mcp"], '"asc" or "desc"'),
        (["try"], "one server is needed"),
        (["try", "http://a/mcp", "--", "true"], "one server is needed"),
        (["try", "--header", "no colon", "http://a/mcp"], "expected 'Name: value'"),
        (["try", "--session", "x", "--", "true"], "go with a URL"),
        (["try", "--arguments", "{", "http://a/mcp"], "--arguments: given '{', allowed is a JSON object"),
        (["try", "--arguments", "[1]", "http://a/mcp"], "--arguments: given '[1]', allowed is a JSON object"),
        (["try", "--pages", "0", "http://a/mcp"], "--pages: given '0', allowed is a whole number of 1 or more"),
        (["try", "--pages", "x", "http://a/mcp"], "--pages: given 'x', allowed is a whole number of 1 or more"),
        (["try", "--seconds", "0", "http://a/mcp"], "--seconds: given '0', allowed is a number above 0"),
        (["try", "--seconds", "nan", "http://a/mcp"], "--seconds: given 'nan', allowed is a number above 0"),
        (["try", "not a url"], "http:// or https://"),
        (["tasks", "not a url"], "http:// or https://"),
    ],
)
async def test_wrong_flags_are_told_in_words(flags: list[str], words: str) -> None:
    status, text = await said(*flags)
    assert (status, "Traceback" in text) == (2, False)
    assert words in text


def test_the_flags_of_tasks_are_the_criteria() -> None:
    text = run("tasks", "--help").stdout
    flags = {"--" + re.sub("[A-Z]", lambda found: f"-{found[0].lower()}", name) for name in CRITERIA}
    assert flags <= set(re.findall(r"--[a-z-]+", text))


class Researching(Server):
    """A server with a name: that of the docs."""

    def _answer(self, message: Json) -> Json:
        said = super()._answer(message)
        if message["method"] == "initialize":
            said["result"]["serverInfo"] = {"name": "research", "version": "1.0"}
        return said


@pytest.mark.parametrize("file", ["try.md", "tasks.md"])
async def test_the_output_in_the_docs_is_what_is_printed(file: str) -> None:
    """Each block that begins with `$ taskgate` and has the address of a server that the tests know."""
    text = (ROOT / "docs" / file).read_text()
    blocks = re.findall(r"```text\n\$ taskgate (.*) http://127\.0\.0\.1:3001/mcp\n(.*?)```", text, re.S)
    assert blocks
    server = Researching(KINDS["TypeScript SDK 1.x"])
    server.fill(240, 12)
    async with at(server) as url:
        for flags, shown_there in blocks:
            if "--create" not in flags:  # that one is a real server's (tests/real/test_try.py)
                _, output = await said(*flags.split(), url)
                assert output == shown_there
