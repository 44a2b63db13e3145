#!/usr/bin/env bash
# Who: npm mcp-proxy 6.7.19, in front of PyPI mcp 1.30.0 (server). Run first: 2026-11-28.
# What: the proxy announces the tasks of the server behind it, and answers -32601 to each tasks/*. A call that asks for a
#       task is an error too, though the server has made the task.
# Rule: docs/design.md 4.1: a result of `initialize` that declares tasks/list gets `filter`, whether the list works or not.
set -euo pipefail
place=$(mktemp -d)
trap 'kill "$proxy" 2>/dev/null || true; rm -rf "$place"' EXIT
proxy=
cd "$place"
python3 -m venv venv || exit 2
venv/bin/pip install --quiet --disable-pip-version-check mcp==1.30.0 2>pip.log || { cat pip.log; exit 2; }
npm install --silent --no-audit --no-fund mcp-proxy@6.7.19 >npm.log || { cat npm.log; exit 2; }

cat >server.py <<'PYTHON'
import anyio
from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

server = Server("finding")
server.experimental.enable_tasks()


@server.list_tools()
async def tools():
    how = types.ToolExecution(taskSupport="required")
    return [types.Tool(name="work", inputSchema={"type": "object"}, execution=how)]


@server.call_tool()
async def call(name, arguments):
    async def work(task):
        with open("tools.txt", "a") as file:
            print("the tool runs", file=file)
        return types.CallToolResult(content=[types.TextContent(type="text", text="done")])

    return await server.request_context.experimental.run_task(work)


async def main():
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


anyio.run(main)
PYTHON

cat >client.py <<'PYTHON'
import json
import sys
import time
import urllib.error
import urllib.request

URL = f"http://127.0.0.1:{sys.argv[1]}/mcp"
FIELDS = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}


def ask(method, params):
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    request = urllib.request.Request(URL, json.dumps(message).encode(), FIELDS)
    with urllib.request.urlopen(request, timeout=30) as response:
        FIELDS.update({"Mcp-Session-Id": response.headers.get("Mcp-Session-Id") or FIELDS["Mcp-Session-Id"]})
        text = response.read().decode()
    lines = [line[5:] for line in text.splitlines() if line.startswith("data:")]
    return json.loads(lines[-1] if lines else text)


for _ in range(300):
    try:
        client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "finding", "version": "1"}}
        said = ask("initialize", client)["result"]["capabilities"]
        break
    except (urllib.error.URLError, ConnectionError):
        time.sleep(0.2)
print("announced:", ", ".join(sorted(said["tasks"])))
for method, params in (
    ("tools/call", {"name": "work", "arguments": {}, "task": {"ttl": 60000}}),
    ("tasks/list", {}),
    ("tasks/get", {"taskId": "any"}),
):
    print(f"{method}: {ask(method, params)['error']['code']}", flush=True)
time.sleep(2)
PYTHON

port=$(python3 -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
node_modules/.bin/mcp-proxy --host 127.0.0.1 --port "$port" -- venv/bin/python -W ignore server.py >proxy.log 2>&1 &
proxy=$!
{ venv/bin/python client.py "$port"; cat tools.txt; } | tee seen.txt
diff - seen.txt <<'SEEN'
announced: cancel, list, requests
tools/call: -32603
tasks/list: -32601
tasks/get: -32601
the tool runs
SEEN
