"""`taskgate try` and `taskgate tasks` at the real servers: facts compared with what another client sees there.

In: servers as processes, with tasks that a client of the tests made. Out: what the command prints. Always: the list,
read by that client before and after, is the same; the real command, as a process.
"""

import asyncio
import json
import re
import shlex
import ssl
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.certificates import signed
from tests.forked import forked
from tests.launch import ROOT
from tests.real.conftest import NODE, Json, Place, Runner, Wire, eventually, free_port, ids_of, instant, node, selected
from tests.real.servers.login import SCOPE, token
from tests.real.servers.logins import KINDS
from tests.real.test_go_and_csharp import installed, kubernetes  # noqa: F401 (a fixture)
from tests.relay.messages import dumps

TOKEN = token("try", [SCOPE], 2**33)
LIVE = ["working", "input_required"]


async def tried(*flags: str) -> tuple[int, Json]:
    """Exit status and facts."""
    ended = await forked("try", "--json", *flags)
    assert ended.stdout, ended.stderr
    facts: Json = json.loads(ended.stdout)
    assert ended.returncode == (0 if facts["helps"] else 1)
    return ended.returncode, facts


async def refused(*flags: str) -> str:
    """What standard error says, where there is nothing to try."""
    ended = await forked("try", *flags)
    assert (ended.returncode, "Traceback" in ended.stderr) == (2, False), ended
    return ended.stderr


async def listed(*flags: str) -> list[Json]:
    """The tasks that `taskgate tasks` prints."""
    ended = await forked("tasks", "--json", *flags)
    assert ended.returncode == 0, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]


def introduced(facts: Json, said: Json, session: str) -> None:
    """What a server says of itself is what it said to another client. `session`: how the words about it begin."""
    assert facts["revision"] == said["protocolVersion"]
    assert facts["server"] == {name: said["serverInfo"][name] for name in ("name", "version")}
    assert facts["tasks"] == said["capabilities"].get("tasks")
    assert facts["lists"] == ("list" in said["capabilities"].get("tasks", {}))
    assert facts["session"].startswith(session)


async def compared(wire: Wire, said: Json, flags: list[str], page_size: int | None) -> Json:
    """The facts of a list that another client reads too, before and after; and `taskgate tasks` of the same."""
    results = [(await wire.post("tasks/list", {})).result]
    while "nextCursor" in results[-1]:
        results.append((await wire.post("tasks/list", {"cursor": results[-1]["nextCursor"]})).result)
    before = [task for result in results for task in result["tasks"]]
    status, facts = await tried(*flags, wire.url)
    introduced(facts, said, "opened, deleted" if "mcp-session-id" in wire.headers else "none")
    live = [task for task in before if task["status"] in LIVE]
    pages = -(-len(before) // page_size) if page_size and before else 1
    assert facts["by_hand"] == {
        "requests": pages,
        "bytes": sum(len(dumps(result)) for result in results),
        "tasks": len(before),
        "page_size": page_size if pages > 1 else None,
        "whole": True,
    }
    assert facts["statuses"] == Counter(task["status"] for task in before)
    created = [instant(task["createdAt"]) for task in before]
    assert facts["order"] == ("oldest first" if len(before) > 1 and created == sorted(created) else None)
    meta = {"taskgate/total": len(live), "taskgate/asOf": "2026-11-22T21:48:00.000Z"}
    cost = {"bytes": len(dumps({"tasks": live, "_meta": meta})), "tasks": len(live)}
    later = min(pages, len(live) + 1)  # all pages, or the place of new tasks and each that runs
    assert [facts[name] for name in ("first", "again", "later")] == [cost | {"asked": n} for n in (pages, 0, later)]
    assert (facts["filters"], status) == (None, 0 if pages > 1 else 1)
    assert (facts["get_agrees"], facts["instants_move"]) == ((True, False) if before else (None, None))
    assert (facts["change"], facts["gateway_agrees"], facts["may_be_cut"]) == (False, True, False)
    assert ("one page" in facts["verdict"]) == (pages == 1)
    by_id = {task["taskId"]: task for task in before}
    assert [by_id[i] for i in selected(before, {})] == await listed(*flags, "--all", wire.url)
    assert ids_of(await listed(*flags, "--status", ",".join(LIVE), wire.url)) == selected(before, {"status": LIVE})
    assert await wire.tasks({}) == before
    return facts


# ---- servers with tasks ----


@pytest.mark.parametrize("options", [["--json"], [], ["--polling"], ["--chatty"]], ids=str)
async def test_the_python_sdks_server(runner: Runner, http: httpx.AsyncClient, options: list[str]) -> None:
    with runner.server("python_sdk", *options) as server:
        wire, said = await Wire(f"{server.wait()}/mcp", http).initialize()
        if "--polling" in options:  # this client cannot fetch an answer; `try` can
            status, facts = await tried("--create", "work", "--arguments", '{"until":"now","label":"x"}', wire.url)
            assert (status, facts["created"]["listed"], facts["by_hand_later"]["tasks"]) == (1, True, 1)
            return
        for until in ("released", "released", "asked"):
            await wire.work(until, until)
        facts = await compared(wire, said, ["--session", wire.headers["mcp-session-id"]], None)
        assert facts["server"] == {"name": "python-sdk", "version": "1"}
        assert facts["others_see"] == "none"


async def test_the_typescript_sdks_server(runner: Runner, http: httpx.AsyncClient) -> None:
    with runner.everything() as server:
        wire, said = await Wire(f"{server.wait()}/mcp", http).initialize()
        call = {"name": "simulate-research-query", "arguments": {"topic": "x"}, "task": {"ttl": 600_000}}
        for number in range(13):
            made = (await wire.post("tools/call", call)).result["task"]
            if number:
                await wire.post("tasks/cancel", {"taskId": made["taskId"]})

        async def rests() -> bool | None:
            return all(t["status"] in ("completed", "cancelled") for t in await wire.tasks({})) or None

        await eventually("the tasks to rest", rests)
        facts = await compared(wire, said, ["--session", wire.headers["mcp-session-id"]], 10)
        assert (facts["server"]["name"], facts["others_see"]) == ("mcp-servers/everything", "none")
        assert facts["verdict"].startswith("taskgate ")


@pytest.mark.parametrize("by", ["HTTP", "stdio"])
async def test_fastmcp_lists_nothing_and_taskgate_makes_the_list(
    runner: Runner, http: httpx.AsyncClient, by: str
) -> None:
    make = ["--create", "work", "--arguments", '{"name": "x"}']
    with ExitStack() as stack:
        command = ["--", sys.executable, "-m", "tests.real.servers.fastmcp_tasks", "--stdio"]
        here = command if by == "stdio" else [f"{stack.enter_context(runner.server('fastmcp_tasks')).wait()}/mcp"]
        status, facts = await tried(*here)
        assert (status, facts["by_hand"]["tasks"], "empty" in facts["verdict"]) == (1, 0, True)
        if by == "HTTP":
            introduced(facts, (await Wire(here[0], http).initialize())[1], "opened, deleted")
        assert await listed(*here) == []
        status, facts = await tried(*make, *here)
        assert (status, facts["by_hand"]["tasks"], facts["later"]["tasks"]) == (0, 0, 1)
        assert facts["created"] | {"id": ""} == {"id": "", "listed": False, "got": True}
        assert facts["verdict"].startswith("taskgate makes the list")


async def test_the_sdks_servers_on_stdio() -> None:
    main = NODE / "node_modules/@modelcontextprotocol/server-everything/dist/index.js"
    make = ["--create", "simulate-research-query", "--arguments", '{"topic": "x"}']
    for flags, name in (([*make, "--", node(), str(main), "stdio"], "mcp-servers/everything"),):
        status, facts = await tried(*flags)
        assert (status, facts["server"]["name"], facts["created"]["listed"]) == (1, name, True)
        assert (facts["later"]["tasks"], facts["by_hand_later"]["tasks"]) == (1, 1)
        assert "others_see" not in facts
    command = ["--", sys.executable, "-m", "tests.real.servers.python_sdk", "--stdio"]
    status, facts = await tried("--create", "work", "--arguments", '{"until": "released", "label": "x"}', *command)
    assert (status, facts["statuses"], facts["get_agrees"]) == (1, {"working": 1}, True)
    assert await listed(*command) == []


async def test_a_server_whose_users_are_told_by_a_header(
    runner: Runner, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    secret = tmp_path / "fields"
    secret.write_text("X-Api-Key: one\n\n")
    with runner.server("by_user") as server:
        wire, said = await Wire(f"{server.wait()}/mcp", http).at(x_api_key="one").initialize()
        for label in range(12):
            task_id = await wire.work("", str(label))
            if label % 6:
                await wire.post("tasks/cancel", {"taskId": task_id})
        facts = await compared(wire, said, ["--header-file", str(secret)], 3)
        assert facts["verdict"] == "taskgate saves requests here: 3 in place of 4; you send one."
        assert "others_see" not in facts and facts["session"].startswith("none")
        assert "does not say which server gives tokens" in await refused(wire.url)
        _, facts = await tried("--header", "X-Api-Key: two", wire.url)
        assert facts["by_hand"]["tasks"] == 0


async def test_a_server_of_batches_and_one_that_speaks_two_revisions(runner: Runner, http: httpx.AsyncClient) -> None:
    with runner.server("batches") as batches, runner.node_server("revision_2026_server") as two:
        for server, made in ((batches, 3), (two, 0)):
            wire, said = await Wire(f"{server.wait()}/mcp", http).initialize()
            for _ in range(made):
                await wire.post("tools/call", {"name": "work", "arguments": {}, "task": {}})
            before = await wire.tasks({})
            _, facts = await tried(wire.url)
            assert (facts["by_hand"]["tasks"], facts["by_hand"]["requests"]) == (3, 1) == (len(before), 1)
            introduced(facts, said, "none")
            assert facts["statuses"] == Counter(task["status"] for task in before)
            assert facts["gateway_agrees"]
            assert facts["get_agrees"] == (server is batches), "the second has no tasks/get for this revision"
            assert "one page" in facts["verdict"]
            assert ids_of(await listed("--all", wire.url)) == selected(before, {})
            assert await wire.tasks({}) == before


async def test_in_front_of_a_gateway_nothing_more_is_needed(python_sdk_json: Place, http: httpx.AsyncClient) -> None:
    wire, _ = await Wire(python_sdk_json.gateway, http).initialize()
    made = [await wire.work("released", "x") for _ in range(3)]
    status, facts = await tried(wire.url)
    assert (status, facts["filters"], "by itself" in facts["verdict"]) == (1, "declared", True)
    session = ["--session", wire.headers["mcp-session-id"]]
    assert sorted(ids_of(await listed(*session, wire.url))) == sorted(made)
    assert sorted(ids_of(await listed(*session, python_sdk_json.direct))) == sorted(made)
    small = await listed("--all", *session, python_sdk_json.small)
    assert sorted(ids_of(small)) == sorted(made)


async def test_the_output_in_the_docs_and_the_command_in_the_readme_are_those_of_the_reference_server(
    runner: Runner,
) -> None:
    """The docs show what a stranger sees first: a server with one task, which `try` makes."""
    with runner.everything() as server:
        url = f"{server.wait()}/mcp"
        there = (ROOT / "docs/try.md").read_text()
        [block] = re.findall(r"```text\n\$ taskgate (try --create .*?)```", there, re.S)
        line, _, output = block.partition("\n")
        assert sorted(shlex.split(line)) == sorted(
            shlex.split(*re.findall(r"(?m)^taskgate (try .* --create .*)$", (ROOT / "README.md").read_text()))
        )
        ended = await forked(*shlex.split(line)[:-1], url)
        assert ended.returncode == 1
        seen, there = (re.sub(r"\b[0-9a-f]{32}\b", "ID", text) for text in (ended.stdout, output))
        row = r"(?m)^  [0-9a-f]{8} working        \d\d-\d\d \d\d:\d\d  \d\d-\d\d \d\d:\d\d  \S.*$"
        assert (re.sub(row, "ROW", seen), seen.count("ROW")) == (re.sub(row, "ROW", there), 0)
        assert re.search(row, seen)


# ---- servers without tasks, and the mistakes of the first minute ----


async def test_servers_in_go_and_csharp_without_tasks(kubernetes: Place, http: httpx.AsyncClient) -> None:  # noqa: F811
    _, said = await Wire(kubernetes.direct, http).initialize()
    _, facts = await tried(kubernetes.direct)
    introduced(facts, said, "opened, deleted")
    azure = ["--", node(), installed("@azure/mcp/index.js"), "server", "start"]
    for here, name in (([kubernetes.direct], "kubernetes-mcp-server"), (azure, "Azure MCP Server")):
        status, facts = await tried(*here)
        assert (status, facts["server"]["name"], facts["lists"], facts["tasks"]) == (1, name, False, None)
        assert facts["verdict"] == "taskgate brings you nothing here: this server declares no tasks/list."
        ended = await forked("tasks", *here)
        assert ended.returncode == 2 and "cannot list tasks" in ended.stderr


async def test_http_and_sse_of_2024_is_told_apart(runner: Runner) -> None:
    with runner.everything("sse") as everything, runner.server("python_sdk") as python:
        words = " speaks HTTP+SSE of 2024-11-05, the old transport, and not Streamable HTTP: taskgate passes it on, and"
        assert f"{everything.wait()}/sse{words}" in await refused(f"{everything.origin}/sse")
        for path in ("", "/mcp"):
            assert f"is not MCP, but /sse there{words}" in await refused(f"{everything.origin}{path}")
        assert f"another path of it is: taskgate try {python.wait()}/mcp\n" in await refused(f"{python.origin}/sse")


async def test_another_path_is_tried_and_named(python_sdk_json: Place) -> None:
    origin = python_sdk_json.server.origin
    for path in ("", "/", "/wrong", "/mcp/wrong"):
        assert f"another path of it is: taskgate try {origin}/mcp\n" in await refused(f"{origin}{path}")


@pytest.fixture(scope="module")
def logins(runner: Runner) -> Iterator[dict[str, str]]:
    """The addresses of the servers with logins, by kind."""
    first = free_port(len(KINDS))
    with runner.server("logins", port=first) as server, runner.server("login") as login:
        server.wait()
        here = {kind: f"http://127.0.0.1:{first + at}/mcp" for at, kind in enumerate(KINDS)}
        yield {**here, "login": f"{login.wait()}/mcp"}


@pytest.fixture
async def bearer(tmp_path: Path) -> AsyncIterator[str]:
    """A file with a token."""
    file = tmp_path / "token"
    file.write_text(f"Authorization: Bearer {TOKEN}\n")
    yield str(file)


async def test_a_login_is_named_with_its_authorization_server(
    logins: dict[str, str], bearer: str, http: httpx.AsyncClient
) -> None:
    authorities = {kind: url.removesuffix("/mcp") for kind, url in logins.items()}
    authorities |= {
        "elsewhere": authorities["openid"],
        "localhost": authorities["localhost"].replace("127.0.0.1", "localhost"),
    }
    for kind, url in logins.items():
        if kind != "mounted":
            said = await refused(url)
            assert "asks for a login (401)" in said
            assert f"Its authorization server is {authorities[kind]}/." in said
            assert "Authorization: Bearer TOKEN" in said
        status, facts = await tried(*([] if kind == "mounted" else ["--header-file", bearer]), url)
        fields = {"authorization": f"Bearer {TOKEN}"}
        place = (await http.post(url, headers=fields)).headers.get("location", url)  # some redirect
        _, spoken = await Wire(str(httpx.URL(url).join(place)), http).at(**fields).initialize()
        introduced(facts, spoken, "opened, deleted")
        assert await listed(*([] if kind == "mounted" else ["--header-file", bearer]), url) == []
        assert (status, facts["by_hand"]["tasks"], facts["gateway_agrees"]) == (1, 0, True), kind
    quiet = logins["login"].replace("/mcp", "/quiet/mcp")
    assert f"Its authorization server is {authorities['login']}/." in await refused(quiet)


async def test_a_certificate_that_nobody_trusts_and_one_that_is_named(
    runner: Runner, python_sdk_json: Place, tmp_path: Path
) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    signed(cert, key)
    upstreams = [{"name": "real", "url": python_sdk_json.direct}]
    with runner.configured(tls={"certificate": str(cert), "key": str(key)}, upstreams=upstreams) as gateway:
        gateway.wait()
        https = gateway.origin.replace("http://127.0.0.1", "https://localhost") + "/mcp"
        assert "TLS: the certificate of localhost:" in await refused(https)
        assert "this port speaks TLS: use its address with https://" in await refused(f"{gateway.origin}/mcp")
        _, facts = await tried("--ca", str(cert), https)
        assert facts["filters"] == "declared"
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context) as silent:
        port = silent.sockets[0].getsockname()[1]
        words = "closed the connection without an answer; does it speak https?"
        assert words in await refused(f"http://127.0.0.1:{port}/mcp")
    plain = python_sdk_json.direct.replace("http:", "https:")
    assert "cannot be asked over https: wrong version number; does it speak http?" in await refused(plain)
    assert "cannot be used" in await refused("--ca", str(key), plain)


async def test_a_process_that_is_no_server() -> None:
    assert "cannot start 'no-such-command'" in await refused("--", "no-such-command")
    assert "the command has ended, or writes no MCP" in await refused("--", "true")
    assert "the command has ended" in await refused("--", "echo", "hello")
