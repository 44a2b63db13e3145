#!/usr/bin/env bash
# Who: PyPI arcade-mcp-server 1.32.1 (server). Run first: 2026-11-28.
# What: the ttl of a task counts from its creation, and is a deadline: the first tasks/list or tasks/get behind it cancels
#       the tool that still works, and forgets the task. Whoever asks later, or not at all, lets the tool end.
# Rule: docs/design.md 6.7: a task whose ttl has passed is asked for only by a query that it may match.
set -euo pipefail
place=$(mktemp -d)
trap 'kill "$server" 2>/dev/null || true; rm -rf "$place"' EXIT
server=
cd "$place"
python3 -m venv venv || exit 2
venv/bin/pip install --quiet --disable-pip-version-check arcade-mcp-server==1.32.1 2>pip.log || { cat pip.log; exit 2; }

cat >server.py <<'PYTHON'
import asyncio
import sys
from typing import Annotated

from arcade_mcp_server import MCPApp, ToolExecution

app = MCPApp(name="finding", version="1.0.0")


@app.tool(execution=ToolExecution(taskSupport="optional"))
async def work(name: Annotated[str, "which"]) -> Annotated[str, "what"]:
    """Works for eight seconds."""
    try:
        await asyncio.sleep(8)
    except asyncio.CancelledError:
        said(f"{name}: cancelled")
        raise
    said(f"{name}: ended")
    return "done"


def said(text):
    with open("tools.txt", "a") as file:
        print(text, file=file)


app.run(transport="http", host="127.0.0.1", port=int(sys.argv[1]))
PYTHON

cat >client.py <<'PYTHON'
import json
import sys
import time
import urllib.error
import urllib.request

URL = f"http://127.0.0.1:{sys.argv[1]}/mcp"
CLIENT = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "finding", "version": "1"}}


def opened():
    """A session, as a function that asks in it."""
    fields = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}

    def ask(method, params):
        number = {} if method.startswith("notifications/") else {"id": 1}
        message = {"jsonrpc": "2.0", **number, "method": method, "params": params}
        request = urllib.request.Request(URL, json.dumps(message).encode(), fields)
        with urllib.request.urlopen(request, timeout=30) as response:
            session = response.headers.get("Mcp-Session-Id")
            fields.update({"Mcp-Session-Id": session} if session else {})
            text = response.read().decode()
        lines = [line[5:] for line in text.splitlines() if line.startswith("data:")]
        return json.loads(lines[-1] if lines else text or "null")

    ask("initialize", CLIENT)
    ask("notifications/initialized", {})
    return ask


for _ in range(300):
    try:
        asked, quiet = opened(), opened()
        break
    except (urllib.error.URLError, ConnectionError):
        time.sleep(0.2)
for ask, name in ((asked, "asked"), (quiet, "not asked")):
    ask("tools/call", {"name": "Finding_Work", "arguments": {"name": name}, "task": {"ttl": 2000}})
time.sleep(3)
listed = asked("tasks/list", {})["result"]["tasks"]
print(f"listed behind the ttl: {len(listed)} tasks", flush=True)
time.sleep(9)
PYTHON

port=$(python3 -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
venv/bin/python server.py "$port" >server.log 2>&1 &
server=$!
{ venv/bin/python client.py "$port"; sort tools.txt; } | tee seen.txt
diff - seen.txt <<'SEEN'
listed behind the ttl: 0 tasks
asked: cancelled
not asked: ended
SEEN
