#!/usr/bin/env bash
# Who: PyPI fastmcp 4.2.3, its proxy, beside mcp 2.3.0. Run first: 2026-11-28.
# What: each request of one client session has a session of its own behind the proxy, which is deleted after it. A call that
#       asks for a task goes on without `task`, and its client is told nothing of that.
# Rule: docs/design.md 7.1: an index belongs to one session, so taskgate behind such a proxy has nothing to keep.
set -euo pipefail
place=$(mktemp -d)
trap 'kill "$proxy" 2>/dev/null || true; rm -rf "$place"' EXIT
proxy=
cd "$place"
python3 -m venv venv || exit 2
venv/bin/pip install --quiet --disable-pip-version-check fastmcp==4.2.3 mcp==2.3.0 2>pip.log || { cat pip.log; exit 2; }

cat >proxy.py <<'PYTHON'
import sys

from fastmcp.server import create_proxy

url = f"http://127.0.0.1:{sys.argv[2]}/mcp"
create_proxy(url).run(transport="http", host="127.0.0.1", port=int(sys.argv[1]), show_banner=False)
PYTHON

cat >client.py <<'PYTHON'
import itertools
import json
import sys
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TASKS = {"list": {}, "requests": {"tools": {"call": {}}}}
RESULTS = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}, "tasks": TASKS},
        "serverInfo": {"name": "finding", "version": "1"},
    },
    "tools/list": {
        "tools": [{"name": "work", "inputSchema": {"type": "object"}, "execution": {"taskSupport": "optional"}}]
    },
    "tools/call": {"content": []},
}
SESSIONS = map(str, itertools.count(1))
seen = []


class Server(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        session = self.headers["Mcp-Session-Id"] or next(SESSIONS)
        if asked["method"] == "tools/call":
            seen.append((session, "task" in asked["params"]))
        if "id" not in asked:
            return self.answer(202, b"", session)
        said = {"error": {"code": -32601, "message": "Method not found"}}
        if asked["method"] in RESULTS:
            said = {"result": RESULTS[asked["method"]]}
        self.answer(200, json.dumps({"jsonrpc": "2.0", "id": asked["id"]} | said).encode(), session)

    def do_GET(self):
        self.answer(405, b"", "")

    def do_DELETE(self):
        self.answer(200, b"", "")

    def answer(self, status, body, session):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if session:
            self.send_header("Mcp-Session-Id", session)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


proxy, upstream = map(int, sys.argv[1:])
threading.Thread(target=ThreadingHTTPServer(("127.0.0.1", upstream), Server).serve_forever, daemon=True).start()
FIELDS = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}


def ask(method, params):
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    request = urllib.request.Request(f"http://127.0.0.1:{proxy}/mcp", json.dumps(message).encode(), FIELDS)
    with urllib.request.urlopen(request, timeout=60) as response:
        FIELDS["Mcp-Session-Id"] = response.headers["Mcp-Session-Id"] or FIELDS["Mcp-Session-Id"]
        text = response.read().decode()
    lines = [line[5:] for line in text.splitlines() if line.startswith("data:")]
    return json.loads(lines[-1] if lines else text)


client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "finding", "version": "1"}}
for attempt in range(300):
    try:
        ask("initialize", client)
        break
    except (urllib.error.URLError, ConnectionError):
        assert attempt < 299
        time.sleep(0.2)
call = {"name": "work", "arguments": {}}
said = ask("tools/call", call | {"task": {"ttl": 60000}})["result"]
ask("tools/call", call)
print(f"calls behind: {len(seen)}, in sessions: {len({session for session, _ in seen})}, with task: {sum(t for _, t in seen)}")
print("told of a task or an error:", "task" in said or said["isError"])
PYTHON

mapfile -t ports < <(python3 -c 'import socket
for one in [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]: print(one.getsockname()[1])')
venv/bin/python -W ignore proxy.py "${ports[@]}" >proxy.log 2>&1 &
proxy=$!
python3 client.py "${ports[@]}" | tee seen.txt
diff - seen.txt <<'SEEN' || { tail -20 proxy.log; exit 1; }
calls behind: 2, in sessions: 2, with task: 0
told of a task or an error: False
SEEN
