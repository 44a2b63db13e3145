"""Servers in Go and C#, without tasks: kubernetes-mcp-server over HTTP, @azure/mcp on stdio. Everything passes.

The cluster of the one is nowhere, and nobody has logged in to the cloud of the other: their tools fail as they do then.
"""

import asyncio
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.launch import ROOT
from tests.real.conftest import Json, Place, Runner, Wire, free_port
from tests.tools import node, npm

KUBERNETES: Final = "kubernetes-mcp-server-*/bin/kubernetes-mcp-server-*"
AZURE: Final = "@azure/mcp/index.js"
SECONDS: Final = 60.0
NOWHERE: Final = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "nowhere",
    "clusters": [{"name": "nowhere", "cluster": {"server": "https://127.0.0.1:1"}}],
    "users": [{"name": "nobody", "user": {}}],
    "contexts": [{"name": "nowhere", "context": {"cluster": "nowhere", "user": "nobody"}}],
}
INITIALIZE: Final[Json] = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "tests", "version": "1"},
}


@pytest.fixture(scope="module")
def kubernetes(runner: Runner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    file = tmp_path_factory.mktemp("kubernetes") / "config"
    file.write_text(json.dumps(NOWHERE))  # JSON is YAML
    port = free_port()
    options = ["--kubeconfig", str(file), "--bind-address", "127.0.0.1", "--port", str(port)]
    command = [npm("servers", KUBERNETES), *options]
    with runner.command("kubernetes", command, port) as server, runner.gateway(server) as gateway:
        yield Place(f"{server.wait()}/mcp", f"{gateway.wait()}/mcp", server)


async def conversation(url: str, http: httpx.AsyncClient) -> list[tuple[int, str | None, object]]:
    """What a client gets: statuses, media types, messages."""
    wire = Wire(url, http)
    opening = await wire.post("initialize", INITIALIZE, 1)
    wire = wire.at(mcp_session_id=opening.headers["mcp-session-id"], mcp_protocol_version="2025-11-25")
    await wire.notify("notifications/initialized")
    replies = [
        opening,
        await wire.post("ping", None, 2),
        await wire.post("tools/list", {}, "three \u2028"),
        await wire.post("prompts/list", {}, 4),
        await wire.post("tools/call", {"name": "configuration_view", "arguments": {}}, 5),
        await wire.post("tools/call", {"name": "pods_list", "arguments": {}}, 6),
        await wire.post("tools/call", {"name": "no such tool", "arguments": {}, "task": {"ttl": 1000}}, 7),
        await wire.post("tasks/list", {}, 8),
        await wire.post("tasks/list", {"status": "working"}, 8),
        await wire.post("no/such/method", {}, 9),
    ]
    seen: list[tuple[int, str | None, object]] = [
        (reply.status, reply.headers.get("content-type"), reply.messages or reply.body) for reply in replies
    ]
    for method in ("DELETE", "DELETE", "PUT"):
        ended = await http.request(method, url, headers=wire.headers)
        seen.append((ended.status_code, ended.headers.get("allow"), ended.content))
    return seen


async def test_a_go_server_sees_and_says_the_same_through_the_gateway(
    kubernetes: Place, http: httpx.AsyncClient
) -> None:
    direct, through = [await conversation(url, http) for url in (kubernetes.direct, kubernetes.gateway)]
    assert through == direct
    assert direct[0][0] == 200
    assert "filter" not in json.dumps(through[0][2])
    plain, filtered = direct[7:9]
    assert filtered == plain and plain[0] == 400, "this SDK answers so to every method that it does not know"


async def said(command: Sequence[str], home: Path) -> list[Json]:
    """What a server on stdio answers to each request, in the order of the requests."""
    calls: list[tuple[str, Json]] = [
        ("initialize", INITIALIZE),
        ("ping", {}),
        ("tools/list", {}),
        ("tools/call", {"name": "no such tool", "arguments": {}}),
        ("tasks/list", {}),
        ("no/such/method", {}),
    ]
    env = {**os.environ, "HOME": str(home), "AZURE_MCP_COLLECT_TELEMETRY": "false"}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, env=env, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL, limit=1 << 24
    )
    assert process.stdin is not None and process.stdout is not None
    answers: list[Json] = []
    try:
        async with asyncio.timeout(SECONDS):
            for number, (method, params) in enumerate(calls):
                message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
                process.stdin.write(json.dumps(message).encode() + b"\n")
                while (answer := json.loads(await process.stdout.readline())).get("id") != number:
                    pass  # a notification
                answers.append(answer)
                if method == "initialize":
                    process.stdin.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
            process.stdin.close()
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return answers


@pytest.mark.slow
async def test_a_csharp_server_sees_and_says_the_same_through_the_gateway(tmp_path: Path) -> None:
    command = [node(), npm("servers", AZURE), "server", "start"]
    direct = await said(command, tmp_path)
    through = await said([sys.executable, "-m", "gateway", "stdio", "--", *command], tmp_path)
    assert through == direct
    assert direct[0]["result"]["serverInfo"]["name"] == "Azure MCP Server"
