"""Every client with every server at every place, with nothing but the address swapped.

The servers are those of tests/real/servers/logins.py, the clients those of tests/real/clients and tests/node/table.mjs.
The Inspector's command line (tests/node/inspector/table.mjs) has no method for lists, and refuses the tasks that these
servers make: it logs in, initializes and calls a tool. No gateway here has a `public_url`. Places: the `root`, a
`prefix`, by `host`, and a prefix behind `TLS`.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.certificates import signed
from tests.forked import fork_of
from tests.launch import Process, started
from tests.real.clients.conversation import SECONDS
from tests.real.conftest import Json, Runner, free_port, ids_of, selected
from tests.real.servers.logins import ALL, KINDS
from tests.tools import NODE, inspector, localhost, node, second

CLIENTS: dict[str, Callable[[], list[str]]] = {
    "mcp 1.30": lambda: [sys.executable, "-W", "ignore", "-m", "tests.real.clients.mcp_1"],
    "mcp 2.x": lambda: [second(), "-m", "tests.real.clients.mcp_2"],
    "fastmcp 3.4": lambda: [sys.executable, "-W", "ignore", "-m", "tests.real.clients.fastmcp_any"],
    "fastmcp 4.x": lambda: [second(), "-m", "tests.real.clients.fastmcp_any"],
    "sdk 1.x": lambda: [node(), str(NODE / "table.mjs"), "sdk"],
    "client 2.x": lambda: [node(), str(NODE / "table.mjs"), "client"],
    "Inspector": lambda: [inspector(), str(NODE / "inspector/table.mjs")],
}
# What these show of the capabilities is all that the server said.
SHOW_CAPABILITIES = {"mcp 1.30", "sdk 1.x", "client 2.x", "Inspector"}
# What these can do without a list: the result of their call.
NO_LIST: dict[str, Json] = {"Inspector": {"content": [{"type": "text", "text": "released"}], "isError": False}}

Cell = tuple[str, str, str]  # client, server, place


@dataclass(frozen=True)
class Stage:
    """All addresses, by server and place, and what makes clients trust the one certificate."""

    addresses: dict[tuple[str, str], str]
    authority: str  # the origin of `openid`, whose tokens `elsewhere` takes
    trust: dict[str, str]


@pytest.fixture(scope="module")
def stage(runner: Runner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    signed(certificate, key)
    first_port = free_port(len(ALL))
    urls = {kind: f"http://127.0.0.1:{first_port + ALL.index(kind)}/mcp" for kind in KINDS}
    with ExitStack() as stack:
        servers = stack.enter_context(runner.server("logins", port=first_port))

        def gateway(upstreams: list[Json], **more: Json) -> Process:
            return stack.enter_context(runner.configured(upstreams=upstreams, index={"page_size": 1}, **more))

        def upstream(kind: str, name: str, **match: str) -> Json:
            return {"name": name, "url": urls[kind], "match": match}

        matches: Json = {"root": {}, "prefix": {"prefix": "/research"}, "host": {"host": "localhost"}}
        gateways = {kind: gateway([upstream(kind, name, **match) for name, match in matches.items()]) for kind in KINDS}
        files = {"certificate": str(certificate), "key": str(key)}
        secure = gateway([upstream(kind, kind, prefix=f"/{kind}") for kind in KINDS], tls=files)
        servers.wait()
        addresses = {}
        for kind, process in gateways.items():
            origin = process.wait()
            addresses[kind, "root"] = f"{origin}/mcp"
            addresses[kind, "prefix"] = f"{origin}/research/mcp"
            addresses[kind, "host"] = f"{origin.replace('127.0.0.1', localhost())}/mcp"
            addresses[kind, "TLS"] = f"https://localhost:{secure.wait().rpartition(':')[2]}/{kind}/mcp"
        trust = {"SSL_CERT_FILE": str(certificate), "NODE_EXTRA_CA_CERTS": str(certificate)}
        yield Stage(addresses, urls["openid"].removesuffix("/mcp"), trust)


def conversations(stage: Stage, logs: Path) -> dict[Cell, Json]:
    """What each client saw of each server at each place; all clients at once."""
    urls = list(stage.addresses.values())
    seen = {}
    with ExitStack() as stack:
        running = {}
        for client, command in CLIENTS.items():
            log, line = logs / f"{client}.out", [*command(), *urls]
            running[client] = stack.enter_context(
                started(client, line, log, "", log.exists, stage.trust, start=fork_of)
            )
        for client, process in running.items():
            process.popen.wait(SECONDS + 20)
            lines = process.log.read_text().split("\n")
            by_url = {said["url"]: said for said in (json.loads(line) for line in lines if line.startswith('{"url"'))}
            for (kind, place), url in stage.addresses.items():
                seen[client, kind, place] = by_url.get(url, {"error": "the client ended before it"})
    return seen


def fault(cell: Cell, said: Json, stage: Stage) -> str:
    """What is wrong with what was seen; empty if nothing is."""
    client, kind, place = cell
    if "error" in said:
        return str(said["error"])
    if said["logged_in"] != (kind != "mounted"):
        return "no login, or one too many"
    if client in SHOW_CAPABILITIES and "filter" not in said["capabilities"]["tasks"]["list"]:
        return "not advertised"
    origin = stage.addresses[kind, place].removesuffix("/mcp").removesuffix("/research").removesuffix(f"/{kind}")
    may_ask = (f"{origin}/", f"{stage.authority}/") if kind == "elsewhere" else (f"{origin}/",)
    asked = [each.rpartition(" ")[2] for each in said.get("asked", [])]  # Python's clients name the method too
    past = [url for url in asked if not url.startswith((*may_ask, "http://127.0.0.1:1/"))]
    if past:
        return f"went past the gateway: {past}"
    if client in NO_LIST:
        return "" if said["called"] == NO_LIST[client] else f"a call gave {said['called']}"
    for listed in said["lists"]:
        expected = [i for i in selected(said["tasks"], listed["params"]) if i in ids_of(said["tasks"])]
        if listed["found"] != expected or listed["pages"] != max(1, len(expected)):
            return f"{listed} instead of {expected}"
    return ""


@pytest.mark.slow
def test_every_client_works_with_every_server_at_every_place(stage: Stage, tmp_path: Path) -> None:
    seen = conversations(stage, tmp_path)
    faults = {cell: fault(cell, said, stage) for cell, said in seen.items()}
    failed = {cell: why for cell, why in faults.items() if why}
    assert not failed, "\n\n".join(f"{' / '.join(cell)}: {why}" for cell, why in failed.items())
