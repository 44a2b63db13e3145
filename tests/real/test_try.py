"""`taskgate try` and `taskgate tasks` at the real servers: what they print is what other clients see there."""

import asyncio
import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.certificates import signed
from tests.forked import forked
from tests.launch import eventually, run
from tests.real.conftest import Json, Place, Runner, Wire, free_port, ids_of, selected
from tests.real.servers.login import SCOPE, token
from tests.real.servers.logins import ALL
from tests.real.test_go_and_csharp import AZURE, kubernetes  # noqa: F401 (a fixture)
from tests.real.test_stdio import server
from tests.real.test_stdio_bridge import PACKAGES
from tests.tools import NODE, localhost, node, npm
from tests.trials import EMPTY, EMPTY_HERE, IS_TASKGATE, MAKES, NO_LIST, NO_TASKS_HERE, ONE_PAGE, SAVES, judged, listed
from tests.world.servers import UNFINISHED

GONE = (
    "taskgate brings you nothing here: the task just made is gone. Does a bridge start a process for each request? "
    "Let it keep one a session."
)
TOKEN = token("try", [SCOPE], 2**33)
WORK = ("--create", "work", "--arguments", '{"until": "asked", "label": "x"}')


async def refused(*flags: str) -> str:
    ended = await forked("try", *flags)
    assert (ended.returncode, "Traceback" in ended.stderr) == (2, False), ended
    return ended.stderr


def introduced(facts: Json, said: Json, session: str) -> None:
    """What a server says of itself is what it said to another client. `session`: how the words about it begin."""
    assert (facts["revision"], facts["tasks"]) == (said["protocolVersion"], said["capabilities"].get("tasks"))
    assert facts["server"] == {name: said["serverInfo"][name] for name in ("name", "version")}
    assert facts["session"].startswith(session)


# ---- servers with tasks ----


@pytest.mark.parametrize("mode", ["--json", "--polling"])
async def test_the_python_sdks_server(runner: Runner, http: httpx.AsyncClient, mode: str) -> None:
    with runner.server("python_sdk", mode) as process:
        wire, said = await Wire(f"{process.wait()}/mcp", http).initialize()
        made = [await wire.work(until, until) for until in ("released", "released", "asked")]
        flags = ["--session", wire.headers["mcp-session-id"]]
        facts = await judged(wire.url, *flags, verdict=ONE_PAGE.format("3 tasks"))
        introduced(facts, said, "yours, left as it is")
        assert (facts["by_hand"]["requests"], facts["by_hand"]["tasks"]) == (1, 3)
        assert (facts["change"], facts["may_be_cut"], facts["filters"]) == (False, False, None)
        assert (facts["others_see"], facts["gateway_agrees"]) == ("none", True)
        tasks = await listed(wire.url, *flags)
        assert sorted(ids_of(tasks)) == sorted(made)
        if mode == "--json":  # the client of these tests does not fetch an answer that is polled for
            assert ids_of(tasks) == selected(await wire.tasks({}), {})
            some = await listed(wire.url, *flags, "--status", ",".join(UNFINISHED), forms="JSON")
            assert ids_of(some) == selected(tasks, {"status": UNFINISHED})


@pytest.mark.slow
@pytest.mark.parametrize("by", ["HTTP", "stdio"])
async def test_fastmcp_lists_nothing_and_taskgate_makes_the_list(runner: Runner, by: str) -> None:
    with runner.server("fastmcp_tasks") as process:
        there = f"{process.wait()}/mcp" if by == "HTTP" else server("fastmcp_tasks")
        make = ["--create", "work", "--arguments", '{"name": "x"}']
        empty, rows, made = await asyncio.gather(
            judged(there, verdict=EMPTY_HERE if by == "HTTP" else EMPTY),
            listed(there, none=NO_TASKS_HERE) if by == "HTTP" else listed(there),
            judged(there, *make, "--seconds", "40", verdict=MAKES, helps=True, forms="JSON"),
        )
        assert (empty["by_hand"]["tasks"], rows) == (0, [])
        assert (made["by_hand"]["tasks"], made["later"]["tasks"]) == (0, 1)
        is_there = {"count": 1, "listed": False, "got": True, "status": "working", "message": None}
        assert made["created"] | {"id": ""} == {"id": ""} | is_there


async def test_the_sdks_servers_on_stdio() -> None:
    research = ["--create", "simulate-research-query", "--arguments", '{"topic": "x"}']
    one, typescript = ONE_PAGE.format("1 task"), server("everything")
    everything, python, *rows = await asyncio.gather(
        judged(typescript, *research, verdict=one, forms="JSON"),
        judged(server("python_sdk"), *WORK, verdict=one, forms="JSON"),
        listed(typescript, forms="JSON"),
        listed(server("python_sdk")),
    )
    # The one works; the other asks for input, which `try` cannot give, and fails.
    for facts, name, status in ((everything, "mcp-servers/everything", "working"), (python, "python-sdk", "failed")):
        assert (facts["server"]["name"], facts["created"]["listed"], facts["statuses"]) == (name, True, {status: 1})
        assert (facts["later"]["tasks"], facts["by_hand_later"]["tasks"]) == (int(status == "working"), 1)
        assert facts["session"] == "one process is one session" and "others_see" not in facts
    assert rows == [[], []]


# ---- the tool of --create ----


async def test_a_server_whose_tool_catches_nothing_lives_on(runner: Runner, http: httpx.AsyncClient) -> None:
    """Its session was deleted under it; what it stored then was thrown, Node ended, and everybody's tasks were gone."""
    with runner.node_server("lone_tool.mjs") as process:
        url = f"{process.wait()}/mcp"
        mine, _ = await Wire(url, http).initialize()

        async def have_ended() -> bool:
            said = (await mine.post("tools/call", {"name": "count", "arguments": {}})).result
            return bool(json.loads(said["content"][0]["text"])["ended"] >= 2)

        flags = ["--create", "delay", "--count", "2", "--arguments", '{"seconds": 3}']
        facts = await judged(url, *flags, verdict=ONE_PAGE.format("2 tasks"), forms="JSON")
        session = facts["session"].removesuffix(", which stays open: a tool may work in it")
        await eventually(have_ended, "both have ended")
        assert process.popen.poll() is None, process.tail()
        assert len(await listed(url, "--session", session, forms="JSON")) == 2


async def test_more_tasks_show_the_pages_of_a_real_server(runner: Runner) -> None:
    """The last one alone is new to "later": what a change costs. All of them at once cost as much as by hand."""
    with runner.node_server("lone_tool.mjs") as process:
        flags = ["--create", "delay", "--count", "25", "--arguments", '{"seconds": 0}']
        facts = await judged(f"{process.wait()}/mcp", *flags, verdict=SAVES.format(2, 3), helps=True, forms="JSON")
    assert (facts["created"]["count"], facts["by_hand_later"]["page_size"]) == (25, 10)


async def test_a_tool_that_cannot_be_called_so_is_answered_with_those_that_can(runner: Runner) -> None:
    with runner.node_server("lone_tool.mjs") as process:
        url, delay = f"{process.wait()}/mcp", "delay(seconds: number)"
        takes = f". It takes: {delay}"
        for flags, words in {
            "dely": f"the server has no tool dely. These make tasks: {delay}",
            "count": f"the tool count makes no task. These make tasks: {delay}",
            "delay": f"--arguments: the tool delay needs seconds{takes}",
            'delay --arguments {"seconds":"x"}': takes,
        }.items():
            said = await refused("--create", *flags.split(), url)
            assert words in said, said


@pytest.mark.slow
async def test_behind_a_bridge_that_starts_a_process_for_each_request(runner: Runner) -> None:
    """The verdict was no, and the advice to use the flag that had been given."""
    port, behind = free_port(), shlex.join(server("everything"))
    bridge = [node(), str(NODE / "node_modules" / PACKAGES["supergateway"]), "--outputTransport", "streamableHttp"]
    with runner.command("supergateway", [*bridge, "--stdio", behind, "--port", str(port)], port) as process:
        flags = ["--create", "simulate-research-query", "--arguments", '{"topic": "x"}']
        facts = await judged(f"{process.wait()}/mcp", *flags, verdict=GONE, forms="JSON")
    assert (facts["created"]["listed"], facts["created"]["got"]) == (False, False)


# ---- servers without tasks, and the mistakes of the first minute ----


async def test_servers_in_go_and_csharp_without_tasks(
    kubernetes: Place,  # noqa: F811
    http: httpx.AsyncClient,
) -> None:
    _, said = await Wire(kubernetes.direct, http).initialize()
    azure = [node(), npm("servers", AZURE), "server", "start"]
    in_go, in_csharp, ended, other = await asyncio.gather(
        judged(kubernetes.direct, verdict=NO_LIST),
        judged(azure, verdict=NO_LIST, forms="JSON"),
        forked("tasks", kubernetes.direct),
        forked("tasks", "--", *azure),
    )
    introduced(in_go, said, "opened, deleted")
    for facts, name in ((in_go, "kubernetes-mcp-server"), (in_csharp, "Azure MCP Server")):
        assert (facts["server"]["name"], facts["lists"], facts["tasks"]) == (name, False, None)
    for refusal in (ended, other):
        assert refusal.returncode == 2 and "cannot list tasks" in refusal.stderr


@pytest.fixture(scope="module")
def logins(runner: Runner) -> Iterator[dict[str, str]]:
    first = free_port(len(ALL))
    with runner.server("logins", port=first) as process:
        process.wait()
        yield {kind: f"http://127.0.0.1:{first + at}/mcp" for at, kind in enumerate(ALL)}


async def test_a_login_is_named_with_what_the_server_says_of_it(
    logins: dict[str, str], tmp_path: Path, http: httpx.AsyncClient
) -> None:
    bearer = tmp_path / "token"
    bearer.write_text(f"Authorization: Bearer {TOKEN}\n")

    async def with_and_without_a_token(kind: str, url: str) -> None:
        if kind in ("mounted", "localhost"):
            assert "redirects to /mcp/: put that into url" in await refused(url)
            url += "/"
        flags = [] if kind == "mounted" else ["--header-file", str(bearer)]
        if flags:
            said = await refused(url)
            assert "asks for a login (401): Bearer " in said and "Authorization: Bearer TOKEN" in said
        fields = {"authorization": f"Bearer {TOKEN}"}
        _, spoken = await Wire(url, http).at(**fields).initialize()
        facts = await judged(url, *flags, verdict=EMPTY_HERE, forms="JSON")
        introduced(facts, spoken, "opened, deleted")
        assert await listed(url, *flags, forms="JSON") == []

    await asyncio.gather(*(with_and_without_a_token(*each) for each in logins.items()))


async def test_a_certificate_that_is_named(runner: Runner, python_sdk_json: Place, tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    signed(cert, key)
    upstreams = [{"name": "real", "url": python_sdk_json.direct}]
    with runner.configured(tls={"certificate": str(cert), "key": str(key)}, upstreams=upstreams) as gateway:
        gateway.wait()
        https = gateway.origin.replace("http://127.0.0.1", f"https://{localhost()}") + "/mcp"
        assert "this port speaks TLS: use its address with https://" in await refused(f"{gateway.origin}/mcp")
        ended = await forked("try", https, SSL_CERT_FILE=str(cert))
        assert ended.returncode == 1 and ended.stdout.startswith(IS_TASKGATE), ended
        assert "SSL_CERT_FILE=FILE names its authority" in await refused(https)


def test_a_command_that_ends_at_once_ends_a_fresh_process_too() -> None:
    ended = run("try", "--", "true")
    assert (ended.returncode, ended.stdout, "the command has ended" in ended.stderr) == (2, "", True)
