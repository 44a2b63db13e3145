"""`taskgate try` and `taskgate tasks` at the real servers: all that they print is what a witness saw on the way."""

import asyncio
import json
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

from tests.certificates import signed
from tests.forked import forked
from tests.launch import run
from tests.real.conftest import Json, Place, Runner, Wire, free_port, ids_of, instant, selected
from tests.real.servers.login import SCOPE, token
from tests.real.servers.logins import KINDS
from tests.real.test_go_and_csharp import AZURE, kubernetes  # noqa: F401 (a fixture)
from tests.tools import NODE, localhost, node, npm
from tests.trials import (
    EMPTY,
    EMPTY_HERE,
    IS_TASKGATE,
    LIVE,
    MAKES,
    NO_LIST,
    ONE_PAGE,
    YOURS,
    facts_of,
    judged,
    learned,
    listed,
)
from tests.witness import Exchange, Witness, beside, on_the_way

RUNS = {"status": "working", "message": None}
TOKEN = token("try", [SCOPE], 2**33)


async def refused(*flags: str) -> str:
    ended = await forked("try", *flags)
    assert (ended.returncode, "Traceback" in ended.stderr) == (2, False), ended
    return ended.stderr


def introduced(facts: Json, said: Json, session: str) -> None:
    """What a server says of itself is what it said to another client. `session`: how the words about it begin."""
    assert facts["revision"] == said["protocolVersion"]
    assert facts["server"] == {name: said["serverInfo"][name] for name in ("name", "version")}
    assert facts["tasks"] == said["capabilities"].get("tasks")
    assert facts["session"].startswith(session)


async def compared(wire: Wire, said: Json, flags: list[str], pages: int, verdict: str, helps: bool = False) -> Json:
    """The facts of a list that another client reads too, before and after; and `taskgate tasks` of the same."""
    before = await wire.tasks({})
    async with on_the_way(wire.url) as witness:
        facts = await judged(witness, *flags, verdict=verdict, helps=helps)
        assert ids_of(await listed(witness, *flags)) == selected(before, {})
        some = await listed(witness, *flags, "--status", ",".join(LIVE), forms="JSON")
        assert ids_of(some) == selected(before, {"status": LIVE})
    introduced(facts, said, YOURS if "--session" in flags else "none")
    assert (facts["by_hand"]["requests"], facts["by_hand"]["tasks"]) == (pages, len(before))
    assert facts["statuses"] == Counter(task["status"] for task in before)
    created = [instant(task["createdAt"]) for task in before]
    assert facts["order"] == "oldest first" and created == sorted(created)
    assert facts["later"]["asked"] == min(
        pages, len(some) + 1
    )  # all pages, or the place of new tasks and each that runs
    assert (facts["change"], facts["may_be_cut"], facts["instants_move"], facts["filters"]) == (
        False,
        False,
        False,
        None,
    )
    assert await wire.tasks({}) == before
    return facts


# ---- servers with tasks ----


@pytest.mark.parametrize("options", [["--json"], [], ["--polling"], ["--chatty"]], ids=str)
async def test_the_python_sdks_server(runner: Runner, http: httpx.AsyncClient, options: list[str]) -> None:
    with runner.server("python_sdk", *options) as server:
        wire, said = await Wire(f"{server.wait()}/mcp", http).initialize()
        made = [await wire.work(until, until) for until in ("released", "released", "asked")]
        flags, verdict = ["--session", wire.headers["mcp-session-id"]], ONE_PAGE.format("3 tasks")
        if "--polling" in options:  # this client cannot fetch an answer; `try` can, and a witness sees it
            async with on_the_way(wire.url) as witness:
                facts = await judged(witness, *flags, verdict=verdict)
                assert sorted(ids_of(await listed(witness, *flags))) == sorted(made)
                make = ["--create", "work", "--arguments", '{"until":"now","label":"x"}']
                change = await judged(witness, *make, verdict=ONE_PAGE.format("1 task"), forms="JSON")
            assert (change["created"]["listed"], change["by_hand_later"]["tasks"]) == (True, 1)
        else:
            facts = await compared(wire, said, flags, 1, verdict)
        introduced(facts, said, YOURS)
        assert facts["server"] == {"name": "python-sdk", "version": "1"}
        assert (facts["others_see"], facts["get_agrees"]) == ("none", True)


@pytest.mark.slow
@pytest.mark.parametrize("by", ["HTTP", "stdio"])
async def test_fastmcp_lists_nothing_and_taskgate_makes_the_list(runner: Runner, tmp_path: Path, by: str) -> None:
    make = ["--create", "work", "--arguments", '{"name": "x"}']
    async with AsyncExitStack() as stack:
        if by == "HTTP":
            url = f"{stack.enter_context(runner.server('fastmcp_tasks')).wait()}/mcp"
            witnesses = [await stack.enter_async_context(on_the_way(url)) for _ in range(3)]
        else:
            witnesses = [served(tmp_path, str(number), "fastmcp_tasks") for number in range(3)]
        forms = "JSON, text" if by == "HTTP" else "text"
        empty, rows, made = await asyncio.gather(
            judged(witnesses[0], verdict=EMPTY_HERE if by == "HTTP" else EMPTY, forms=forms),
            listed(witnesses[1], forms=forms),
            judged(witnesses[2], *make, verdict=MAKES, helps=True, forms=forms),
        )
        assert (empty["by_hand"]["tasks"], rows) == (0, [])
        assert (made["by_hand"]["tasks"], made["later"]["tasks"]) == (0, 1)
        assert made["created"] | {"id": ""} == {"id": "", "listed": False, "got": True} | RUNS


def served(folder: Path, name: str, server: str) -> Witness:
    return over_stdio(folder, name, sys.executable, "-m", f"tests.real.servers.{server}", "--stdio")


def over_stdio(folder: Path, name: str, *command: str) -> Witness:
    there = folder / name
    there.mkdir()
    return beside(there, command)


async def test_the_sdks_servers_on_stdio(tmp_path: Path) -> None:
    main = NODE / "node_modules/@modelcontextprotocol/server-everything/dist/index.js"
    research = ["--create", "simulate-research-query", "--arguments", '{"topic": "x"}']
    work = ["--create", "work", "--arguments", '{"until": "released", "label": "x"}']
    one = ONE_PAGE.format("1 task")
    everything, python, *rows = await asyncio.gather(
        judged(over_stdio(tmp_path, "1", node(), str(main), "stdio"), *research, verdict=one, forms="JSON"),
        judged(served(tmp_path, "2", "python_sdk"), *work, verdict=one, forms="text"),
        listed(over_stdio(tmp_path, "3", node(), str(main), "stdio"), forms="JSON"),
        listed(served(tmp_path, "4", "python_sdk"), forms="text"),
    )
    for facts, name in ((everything, "mcp-servers/everything"), (python, "python-sdk")):
        assert (facts["server"]["name"], facts["created"]["listed"], facts["statuses"]) == (name, True, {"working": 1})
        assert (facts["later"]["tasks"], facts["by_hand_later"]["tasks"], facts["get_agrees"]) == (1, 1, True)
        assert "others_see" not in facts
    assert rows == [[], []]


async def test_a_task_that_try_makes_is_listed(runner: Runner) -> None:
    with runner.everything() as server:
        asked = ("--create", "simulate-research-query", "--arguments", '{"topic": "tea"}')
        ended = await forked("try", f"{server.wait()}/mcp", *asked)
    assert ended.returncode == 1
    [made] = re.findall(r"(?m)^  created +([0-9a-f]{32}), listed$", ended.stdout)
    assert re.search(rf"(?m)^  {made[:8]}\w* +working ", ended.stdout)
    assert ONE_PAGE.format("1 task") in ended.stdout


# ---- servers without tasks, and the mistakes of the first minute ----


async def test_servers_in_go_and_csharp_without_tasks(
    kubernetes: Place,  # noqa: F811
    http: httpx.AsyncClient,
    tmp_path: Path,
) -> None:
    _, said = await Wire(kubernetes.direct, http).initialize()
    azure = [node(), npm("servers", AZURE), "server", "start"]
    async with on_the_way(kubernetes.direct) as witness:
        in_go, in_csharp, ended, other = await asyncio.gather(
            judged(witness, verdict=NO_LIST),
            judged(over_stdio(tmp_path, "azure", *azure), verdict=NO_LIST, forms="text"),
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
    first = free_port(len(KINDS))
    with runner.server("logins", port=first) as server, runner.server("login") as login:
        server.wait()
        here = {kind: f"http://127.0.0.1:{first + at}/mcp" for at, kind in enumerate(KINDS)}
        yield {**here, "login": f"{login.wait()}/mcp"}


@pytest.fixture
async def bearer(tmp_path: Path) -> AsyncIterator[str]:
    file = tmp_path / "token"
    file.write_text(f"Authorization: Bearer {TOKEN}\n")
    yield str(file)


async def test_a_login_is_named_with_its_authorization_server(
    logins: dict[str, str], bearer: str, http: httpx.AsyncClient
) -> None:
    authorities = {kind: url.removesuffix("/mcp") for kind, url in logins.items()}
    authorities |= {
        "elsewhere": authorities["openid"],
        "localhost": authorities["localhost"].replace("127.0.0.1", localhost()),
    }

    async def with_and_without_a_token(kind: str, url: str) -> None:
        flags = [] if kind == "mounted" else ["--header-file", bearer]
        if flags:
            said = await refused(url)
            assert "asks for a login (401)" in said
            assert f"Its authorization server is {authorities[kind]}/." in said
            assert "Authorization: Bearer TOKEN" in said
        fields = {"authorization": f"Bearer {TOKEN}"}
        place = (await http.post(url, headers=fields)).headers.get("location", url)  # some redirect
        _, spoken = await Wire(str(httpx.URL(url).join(place)), http).at(**fields).initialize()
        redirect = "" if place == url else f"redirects to {httpx.URL(place).path}: put that into url"
        async with on_the_way(url) as witness:
            facts = await judged(witness, *flags, verdict=EMPTY_HERE, forms="JSON", redirect=redirect)
            introduced(facts, spoken, "opened, deleted")
            assert await listed(witness, *flags, forms="JSON") == []

    await asyncio.gather(*(with_and_without_a_token(*each) for each in logins.items()))
    quiet = logins["login"].replace("/mcp", "/quiet/mcp")
    assert f"Its authorization server is {authorities['login']}/." in await refused(quiet)


async def test_a_certificate_that_is_named(
    runner: Runner, python_sdk_json: Place, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    signed(cert, key)
    upstreams = [{"name": "real", "url": python_sdk_json.direct}]
    with runner.configured(tls={"certificate": str(cert), "key": str(key)}, upstreams=upstreams) as gateway:
        gateway.wait()
        https = gateway.origin.replace("http://127.0.0.1", f"https://{localhost()}") + "/mcp"
        assert "this port speaks TLS: use its address with https://" in await refused(f"{gateway.origin}/mcp")
        ended = await forked("try", "--json", "--ca", str(cert), https)
        wire, said = await Wire(python_sdk_json.gateway, http).initialize()  # no witness reads TLS
        opening = Exchange(wire.headers["mcp-session-id"], "initialize", {}, json.dumps(said))
        assert json.loads(ended.stdout) == facts_of(learned([opening]), https, IS_TASKGATE, False)
    assert "cannot be used" in await refused("--ca", str(key), https)


@pytest.mark.parametrize("command", ["try", "tasks"])
def test_a_command_that_ends_at_once_ends_a_fresh_process_too(command: str) -> None:
    ended = run(command, "--", "true")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "the command has ended" in ended.stderr
