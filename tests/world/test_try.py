"""`taskgate try` and `taskgate tasks` at every kind of server: each fact is what the server is like, and stays so."""

import asyncio
import json
import os
import re
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import urlsplit

import pytest
from aiohttp import web

from gateway.cli.mcp_client import Client, Target
from gateway.demo.legacy_server import LegacyServer
from gateway.query.criteria import CRITERIA
from tests.forked import fork_of, forked, ran
from tests.launch import COMMAND, NO_AUTHORITIES, ROOT, Gateways, Json, changes, command, eventually, held_port, port_of
from tests.peer import Peer
from tests.relay.http1 import Message
from tests.relay.messages import TASKS_CAPABILITY, answer, dumps, fault, response
from tests.relay.rig import Script, answers, body, own, replies, says
from tests.tools import open_terminal
from tests.trials import AGE, EMPTY, IS_TASKGATE, MAKES, NO_LIST, ONE_PAGE, SAVES, UNLISTED, judged, listed, text_of
from tests.world.servers import KINDS, UNFINISHED, Kind, Server, at, pages_by_hand, shown

TASKS: Final = 150
LIVE: Final = 5
LITTLE: Final = "taskgate brings you little here: this server"
BY_ITSELF: Final = "taskgate brings you nothing here: this server filters its tasks by itself, and says so."
HELPS: Final = "taskgate helps you here: one request in place of {}. The server gets as many as before."
IN_ONE_PAGE: Final = f"{LITTLE} lists all in one page. You get order, criteria and fewer bytes."
MAY_HELP: Final = "taskgate may help here: this server lists all in one page, and may cut it at"
VERDICTS: Final = {
    "TypeScript SDK 1.x": SAVES.format(6, 15),
    "Python SDK 1.30": IN_ONE_PAGE,
    "C# SDK 1.x": HELPS.format(2),
    "mcp-go": IN_ONE_PAGE,
    "mcp-go, pages of 50": HELPS.format(4),
    "any with the newest first, 50 a page": HELPS.format(3),
    "Rust SDK (rmcp) to 2.2": ONE_PAGE.format("5 tasks"),
    "any that filters and does not say so": f"{LITTLE} filters by status. You get the other criteria.",
    "any that cuts its list at 50 tasks": f"{MAY_HELP} 50 tasks.",
    "FastMCP 3.4": EMPTY,
}
YES: Final = ("taskgate saves requests", "taskgate helps", "taskgate may help", "taskgate makes")

each = pytest.mark.parametrize("name", KINDS)


def filled(kind: Kind = KINDS["TypeScript SDK 1.x"]) -> Server:
    server = Server(kind)
    server.fill(TASKS, LIVE)
    return server


class Changed(Server):
    """A server whose answers a function changes: of the message, and of the answer's result."""

    def __init__(self, name: str, change: Callable[[Json, Json], object]) -> None:
        super().__init__(KINDS[name])
        self._change = change

    def said(self, message: Json) -> Json:
        said = deepcopy(super().said(message))
        self._change(message, said.get("result", {}))
        return said


def saying(name: str, **members: object) -> Changed:
    """A server whose answer to `initialize` says that, too."""
    return Changed(name, lambda asked, said: asked["method"] == "initialize" and said.update(members))


async def said(*arguments: str) -> tuple[int, str]:
    """Exit status and output of the command."""
    ended = await forked(*arguments)
    return ended.returncode, ended.stdout + ended.stderr


async def tried(server: Server, *flags: str, verdict: str, forms: str = "JSON, text") -> Json:
    """The facts of `taskgate try`. It only reads, and leaves the server as it was, unless it was to make a task."""
    before = deepcopy(server.tasks)
    async with at(server) as url:
        facts = await judged(url, *flags, verdict=verdict, helps=verdict.startswith(YES), forms=forms)
    making = {"tools/call", "tools/list"} if "--create" in flags else set()
    assert server.asked.keys() <= {"initialize", "tasks/list", "tasks/get"} | making
    assert "--create" in flags or server.tasks == before
    return facts


def by_hand(kind: Kind, **params: object) -> tuple[list[str], int, int]:
    """The ids of a list that is read by hand at such a server, and what it takes: requests, bytes."""
    twin = filled(kind)
    ids = [i for page in pages_by_hand(twin, **params) for i in shown(page)]
    return ids, twin.asked.total(), twin.sent_bytes


@each
async def test_every_fact_is_what_the_server_is_like(name: str) -> None:
    """The server counts how often it was asked."""
    kind = KINDS[name]
    server = filled(kind)
    ids, requests, sent_bytes = by_hand(kind)
    facts = await tried(server, verdict=VERDICTS[name])
    listed = [server.tasks[i] for i in ids]
    live = [task for task in listed if task["status"] in UNFINISHED]
    first_page = {server.tasks[i]["status"] for i in shown(next(pages_by_hand(deepcopy(server))))}
    later = server.asked.total() // 2 - 1 - 3 * requests - (len(first_page) > 1)  # 1: initialize
    whole = {"requests": requests, "bytes": sent_bytes, "tasks": len(ids), "whole": True}
    assert facts["by_hand"] == whole | {"page_size": kind.page_size if requests > 1 else None}
    assert [facts[way]["asked"] for way in ("first", "again", "later")] == [requests, 0, later]
    meta = {"taskgate/total": len(live), "taskgate/asOf": "2026-11-22T21:48:00.000Z"}
    cost = {"tasks": len(live), "bytes": len(dumps({"tasks": live, "_meta": meta}))}
    assert all(facts[way] == cost | {"asked": facts[way]["asked"]} for way in ("first", "again", "later"))
    assert (facts["revision"], facts["server"]) == ("2025-11-25", {"name": "", "version": ""})
    assert not {"created", "by_hand_later", "others_see"} & facts.keys()
    assert facts["statuses"] == Counter(task["status"] for task in listed)
    assert facts["tasks"] == TASKS_CAPABILITY and facts["session"].startswith("none")
    assert (facts["change"], facts["gateway_agrees"], facts["may_be_cut"]) == (False, True, kind.cut is not None)
    assert facts["filters"] == ("unsaid" if kind.filters else None)


@pytest.mark.parametrize("name", ["TypeScript SDK 1.x", "Rust SDK (rmcp) to 2.2", "FastMCP 3.4"])
async def test_a_task_that_it_makes_is_the_change(name: str) -> None:
    server = Server(KINDS[name])
    lists = name != "FastMCP 3.4"
    facts = await tried(server, "--create", "work", verdict=ONE_PAGE.format("1 task") if lists else MAKES, forms="JSON")
    [made] = server.tasks
    state = {"status": "working", "message": None}
    assert facts["created"] == {"id": made, "count": 1, "listed": lists, "got": True, **state}
    assert (facts["change"], facts["later"]["tasks"], facts["gateway_agrees"]) == (True, 1, None)
    after = facts["by_hand_later"] if lists else facts["by_hand"]
    sent_bytes = len(dumps(next(pages_by_hand(server))))
    assert after == {"requests": 1, "bytes": sent_bytes, "tasks": int(lists), "page_size": None, "whole": True}
    assert facts["statuses"] == ({"working": 1} if lists else {})
    assert server.asked["tools/call"] == 1
    async with at(server) as url:
        text = (await said("try", "--create", "work", url))[1]
    made = list(server.tasks)[-1]
    assert f"\n  created     {made}, {'listed' if lists else UNLISTED}\n" in text
    assert re.search(rf"\n  TASK .*\n(.*\n)?  {made} +working ", text)


async def test_where_the_two_lists_differ_nothing_is_said_to_be_saved() -> None:
    """It counted requests, and not the tasks that they had brought."""

    def forget(asked: Json, said: Json) -> None:
        if asked["method"] == "tasks/get" and said["status"] == "working":
            said["status"] = "failed"

    server = Changed("TypeScript SDK 1.x", forget)
    server.fill(TASKS, LIVE)
    verdict = "That cannot be told: taskgate's list is another than that by hand. Please report it."
    facts = await tried(server, verdict=verdict, forms="JSON")
    assert (facts["change"], facts["gateway_agrees"]) == (False, False)


async def test_a_tool_that_makes_no_task_is_asked_about() -> None:
    async with at(Changed("mcp-go", lambda _, said: said.pop("task", None))) as url:
        status, text = await said("try", "--create", "work", url)
    assert (status, "answered at once. Does it make tasks? In FastMCP it needs task=True\n" in text) == (2, True), text


async def test_a_server_that_says_that_it_filters_needs_no_gateway() -> None:
    can = {"tasks": {"list": {"filter": {"status": True}}}}
    facts = await tried(saying("any that filters and does not say so", capabilities=can), verdict=BY_ITSELF)
    assert facts["filters"] == "declared"


@pytest.mark.parametrize("can", [{}, {"tasks": {"list": False}}], ids=["undeclared", "denied"])
async def test_a_list_is_asked_for_where_none_is_declared(can: Json) -> None:
    """jupyter-mcp-server 2.2.4 declares none and answers it. Some write `false` in place of leaving it out."""
    server = saying("TypeScript SDK 1.x", capabilities=can)
    server.fill(TASKS, LIVE)
    await tried(server, verdict=VERDICTS["TypeScript SDK 1.x"])
    async with at(server) as url:
        status, text = await said("tasks", "--status", "working", "--json", url)
    assert (status, len(text.splitlines())) == (0, LIVE)
    server.kind = replace(server.kind, has_list=False)
    await tried(server, verdict=NO_LIST)
    async with at(server) as url:
        status, text = await said("tasks", url)
    assert (status, "cannot list tasks" in text) == (2, True)


async def test_a_long_list_is_read_as_far_as_is_allowed() -> None:
    server = Server(replace(KINDS["TypeScript SDK 1.x"], page_size=1))
    server.fill(1_002, LIVE)
    facts = await tried(server, verdict="taskgate helps here: this server's list has more than 1,000 pages.")
    assert (facts["by_hand"]["requests"], facts["by_hand"]["whole"], "first" in facts) == (1_000, False, False)


@pytest.mark.parametrize("cursors", [["a"], ["a", "b"], ["a", "b", "", "c"]])
async def test_a_list_whose_cursors_come_again_is_no_long_list(cursors: list[str]) -> None:
    """It was said to have more pages than were read, and that taskgate helps: no filtered list can be had there."""

    def turn(asked: Json, said: Json) -> None:
        if asked["method"] == "tasks/list":
            before = asked["params"].get("cursor")
            following = cursors.index(before) + 1 if before is not None else 0
            said["nextCursor"] = cursors[following % len(cursors)]

    server = Changed("mcp-go", turn)
    server.fill(3, 1)
    async with at(server) as url:
        status, text = await said("try", url)
    assert (status, "repeats a cursor of tasks/list: its pages have no end" in text) == (2, True), text


async def test_what_a_server_sends_cannot_steer_a_terminal() -> None:
    server = Server(replace(KINDS["mcp-go"], ids="requests"))
    server.add("working", "\x1b[2J\u202e")
    server.tasks["\x1b[2J\u202e"]["statusMessage"] = "a\nb\x07\x9b"
    async with at(server) as url:
        for arguments in (("tasks", url), ("try", url)):
            status, text = await said(*arguments)
            assert not re.search(r"[^ -~\n]", text), text
    assert status == 2


# ---- taskgate tasks ----


@each
async def test_the_tasks_are_those_of_the_server(name: str) -> None:
    kind = KINDS[name]
    server = filled(kind)
    before = deepcopy(server.tasks)
    there = [server.tasks[i] for i in by_hand(kind)[0]]
    async with at(server) as url:
        tasks = await listed(url, "--order-by", "createdAt", "--order", "asc")
        some = await listed(url, "--status", "working,input_required", forms="JSON")
    assert server.tasks == before
    if kind.reads_now:
        assert sorted(ids_of(tasks)) == sorted(ids_of(there))
    else:
        assert tasks == sorted(there, key=lambda task: (task["createdAt"], task["taskId"]))
    assert sorted(ids_of(some)) == sorted(t["taskId"] for t in there if t["status"] in UNFINISHED)


def ids_of(tasks: list[Json]) -> list[str]:
    return [task["taskId"] for task in tasks]


# ---- sessions, interrupts, and servers that are something else ----


@asynccontextmanager
async def running(server: LegacyServer) -> AsyncIterator[str]:
    """Its URL."""
    try:
        yield await server.start()
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
    async with running(Strict(60)) as url:
        status, text = await said("try", url)
    assert (status, "\n  filters     no\n" in text, "\n  others " in text) == (0, True, False), text


async def test_sessions_that_it_opened_are_deleted_and_others_are_left() -> None:
    server = LegacyServer(240)
    async with running(server) as url, Client(Target(url)) as mine:
        await mine.initialize()
        before = deepcopy(server.sessions[mine.session_id].all)
        for flags in ((), ("--session", mine.session_id)):
            forms = "JSON, text" if flags else "JSON"  # each session has tasks of its own
            status, text = await said("try", *flags, url)
            assert (status, "another session sees none of these tasks" in text) == (0, True), text
            assert len(await listed(url, *flags, forms=forms)) == 240
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
        await eventually(lambda: bool(server.asked["stuck"]), "the second page is asked for")
        process.send_signal(signal.SIGINT)
        output, _ = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == 130
    verdict = "Interrupted. Too little is known to say."
    known = {
        "revision": "2025-11-25", "server": {"name": "", "version": ""}, "tasks": TASKS_CAPABILITY,
        "session": "none: the server gives no session id", "lists": True, "filters": None,
    }  # fmt: skip
    if flags:
        said_last = {"url": url, "helps": None, "verdict": verdict, "stopped": "interrupted"}
        assert json.loads(output) == known | said_last
    else:
        assert output.decode().splitlines() == [verdict, "", *text_of(known)]
    async with at(server) as url:
        status, text = await said("try", "--seconds", "0.5", url)
        assert (status, "Stopped after 0.5 s." in text) == (2, True)
        lines, sent = await on_a_terminal("try", "--seconds", "0.5", url)
        assert "page 1, 10 tasks" in sent and not any("page" in line for line in lines)


async def on_a_terminal(*arguments: str, until: str = "", **environment: str) -> tuple[list[str], str]:
    """What stands on a terminal in the end, line by line, and all that was sent to it: up to the second `until`."""
    ours, theirs = open_terminal()
    process = fork_of([*COMMAND, *arguments], theirs, {**NO_AUTHORITIES, **environment}, ROOT)
    os.close(theirs)
    sent = b""
    with suppress(OSError):  # so a terminal ends
        while True:
            sent += await asyncio.to_thread(os.read, ours, 4096)
            if until and sent.count(until.encode()) >= 2:
                process.send_signal(signal.SIGINT)
                until = ""
    os.close(ours)
    await asyncio.to_thread(process.wait)
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
    """Each page is counted on a line of its own; the words are those of a pipe, in lines that fit."""
    async with at(filled()) as url:
        lines, text = await on_a_terminal("try", url)
        assert text.count("page 15, 150 tasks") == 2, "the list is read twice"
        assert "page 1, 10 tasks" in text
        _, piped = await said("try", url)
        assert lines[0].startswith("taskgate saves requests") and "\x1b" not in "".join(lines)
        assert " ".join(lines).split() == piped.split() and "page 1," not in piped
        assert max(map(len, lines)) <= 80 < max(map(len, piped.splitlines()))
        _, as_json = await on_a_terminal("try", "--json", url)
        assert "page 1," not in as_json and json.loads(as_json)["helps"]


def redirects(*fields: bytes) -> Script:
    return says(response(b"", *fields, status=b"307 Temporary Redirect"))


LOGIN: Final = b'WWW-Authenticate: Bearer resource_metadata="//[x"'
WRONG: Final = {"protocolVersion": "2025-11-25", "capabilities": {"tasks": {"list": {}}}, "tasks": "none"}
OTHERS: Final[dict[str, tuple[Script, str]]] = {
    "a web page": (says(response(b"<html>", b"Content-Type: text/html")), "This is not MCP over HTTP"),
    "another host": (
        redirects(b"Location: http://localhost:1/mcp"),
        "redirects to http://localhost:1/mcp: put that into url",
    ),
    "another host, with a token": (
        redirects(b"Location: https://u:p@localhost/mcp?t=1#f"),
        "redirects to https://localhost/mcp: put that into url",
    ),
    "a redirect to nowhere": (redirects(), "answered initialize with 307 Temporary Redirect"),
    "an address that is none": (redirects(b"Location: mailto:x"), "answered initialize with 307 Temporary Redirect"),
    "a login": (
        says(response(b"", LOGIN, status=b"401 Unauthorized")),
        'asks for a login (401): Bearer resource_metadata="//[x". Bring a token: --header-file FILE',
    ),
    "a login without words": (
        says(response(b"", status=b"401 Unauthorized")),
        "asks for a login (401): it does not say which",
    ),
    "no words of HTTP": (says(b"SSH-2.0-x\r\n\r\n"), "does not answer in HTTP"),
    "2026-07-28 alone": (
        answers(lambda asked: answer(fault(body(asked)["id"], -32022, "Only 2026-07-28"), status=b"400 Bad Request")),
        "refuses initialize: Only 2026-07-28 (-32022)",
    ),
    "a list that is none": (
        replies(lambda message: WRONG if "id" in message else {"jsonrpc": "2.0"}),
        'a wrong result: Expected `array | null`, got `str` - at `$.tasks`; it began {"protocolVersion"',
    ),
}


@pytest.mark.parametrize("what", OTHERS)
async def test_what_is_no_such_server_is_told_in_words(what: str) -> None:
    """Exit status 2; the address is named. Header fields go nowhere else."""
    script, words = OTHERS[what]
    async with at(script) as url:
        status, text = await said("try", "--header", "Authorization: Bearer x", url)
        assert status == 2 and "Traceback" not in text
        assert words in text and urlsplit(url).netloc in text
        status, for_tasks = await said("tasks", "--header", "Authorization: Bearer x", url)
        assert status == 2
        if not text.startswith("  revision"):  # it said nothing before
            assert for_tasks == text.replace("taskgate try", "taskgate tasks")


async def test_in_front_of_a_gateway_a_list_is_one_request(gateways: Gateways) -> None:
    async with own(gateways, index={"full_crawl_interval": "1h"}) as rig:
        rig.serve(filled())
        url = f"http://127.0.0.1:{rig.gateway.port}/mcp"
        before = await rig.gateway.metrics()
        status, text = await said("tasks", "--session", "mine", "--status", "working", "--json", url)
        after = await rig.gateway.metrics()
        assert (status, len(text.splitlines())) == (0, LIVE)
        assert changes(before, after, "taskgate_requests_total") == 1
        assert f"{IS_TASKGATE}\n" in (await said("try", url))[1]


async def test_a_watched_list_is_drawn_over_the_one_before_and_is_no_higher_than_the_terminal() -> None:
    size = {"LINES": "12", "COLUMNS": "60"}
    async with at(filled()) as url:
        _, sent = await on_a_terminal("tasks", "--watch", url, until="\x1b[J", **size)
        _, once = await on_a_terminal("tasks", url, **size)
    first, second = sent.split("\x1b[J")[:2]
    assert first.startswith("\x1b[2J\x1b[H  TASK") and second.startswith("\x1b[H  TASK")
    lines = first.split("\r\n")
    assert lines[-2] == "  and 93 more lines\x1b[K" and len(lines) == 12, "the cursor stands on the last one"
    assert once.count("\r\n") == 103 and "100 of 150 tasks; --all shows them all" in once


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


async def test_a_list_has_as_many_tasks_as_were_asked_for() -> None:
    """Those of one page, unless a flag says more or fewer. The last flag counts."""
    async with at(filled()) as url:
        counts = {"": 100, "--limit 1": 1, "--limit 120": 120, "--limit 999": 150, "--limit 1 --all": 150}
        for flags, count in counts.items():
            _, text = await said("tasks", "--json", *flags.split(), url)
            assert len(text.splitlines()) == count
        assert "3 of 150 tasks; --all shows them all" in (await said("tasks", "--limit", "3", url))[1]


async def test_the_last_change_has_a_column() -> None:
    server, changed = Server(KINDS["mcp-go"]), datetime.now(UTC) - timedelta(minutes=90)
    server.fill(1, 1)
    [(task_id, kept)] = server.tasks.items()
    kept |= {"createdAt": (changed - timedelta(days=2)).isoformat(), "lastUpdatedAt": changed.isoformat()}
    async with at(server) as url:
        assert (await said("tasks", url))[1].splitlines()[1].split()[:4] == [task_id, "working", "2d", "1h"]


async def test_a_gateway_on_a_terminal_says_in_words_where_it_is() -> None:
    """A pipe gets JSON alone."""
    with held_port() as listen, held_port() as admin:
        at = f"127.0.0.1:{port_of(listen)}", f"127.0.0.1:{port_of(admin)}"
        flags = "--upstream", "http://127.0.0.1:3001/mcp", "--listen", at[0], "--admin", at[1]
        words = f"taskgate: clients use http://{at[0]}/mcp; the page is http://{at[1]}/"
        lines, _ = await on_a_terminal(*flags, until="http://")
    assert words in lines and not [line for line in lines if line.startswith("{")]
    assert any(line.split()[1:3] == ["info", "serving"] for line in lines)


@pytest.mark.parametrize("flags", ["tasks", "tasks --json --all", "try"])
async def test_whoever_reads_no_more_ends_it_quietly_and_a_full_disk_is_one_line(flags: str) -> None:
    """`taskgate tasks --json | head -1` was said to be interrupted."""
    async with at(filled()) as url:
        for output, status in ((os.pipe(), 141), (None, 2)):
            if output is not None:
                os.close(output[0])
            out = output[1] if output is not None else os.open("/dev/full", os.O_WRONLY)
            process = await asyncio.create_subprocess_exec(
                *COMMAND, *flags.split(), url, cwd=ROOT, stdout=out, stderr=asyncio.subprocess.PIPE
            )
            os.close(out)
            _, said = await asyncio.wait_for(process.communicate(), 60)
            assert (process.returncode, said.count(b"\n"), b"Traceback" in said) == (status, status == 2, False), said


def test_the_flags_of_tasks_are_the_criteria() -> None:
    text = ran("tasks", "--help").stdout
    flags = {"--" + re.sub("[A-Z]", lambda found: f"-{found[0].lower()}", name) for name in CRITERIA}
    assert flags <= set(re.findall(r"--[a-z-]+", text))


async def test_the_output_in_the_docs_is_what_is_printed() -> None:
    """Each block that begins with `$ taskgate` and has the address of a server that the tests know."""
    text = (ROOT / "docs/choosing.md").read_text()
    blocks = re.findall(r"```text\n\$ taskgate ([^\n]*) http://127\.0\.0\.1:3001/mcp\n(.*?)```", text, re.S)
    assert [flags.split()[0] for flags, _ in blocks] == ["try", "tasks"]
    server = saying("TypeScript SDK 1.x", serverInfo={"name": "research", "version": "1.0"})
    server.fill(240, 12)
    async with at(server) as url:
        for flags, shown_there in blocks:
            _, output = await said(*flags.split(), url)
            output = output.replace(url, "http://127.0.0.1:3001/mcp")
            assert AGE.sub("", output) == AGE.sub("", shown_there)
