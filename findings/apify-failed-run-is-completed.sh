#!/usr/bin/env bash
# Who: npm @apify/actors-mcp-server 0.16.0 (server), on Node.js 24.9.0, without an account. Run first: 2026-11-28.
# What: a task whose tool failed is `completed`, and its result has `isError`. A cursor that is none is an internal error,
#       -32603, not -32602.
# Rule: docs/design.md 5.6, 6.11: a task has the status that the server gave it, and any error for a cursor says that it is
#       stale.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place"
npm install --silent --no-audit --no-fund @apify/actors-mcp-server@0.16.0 node@24.9.0 >npm.log 2>&1 || { cat npm.log; exit 2; }

cat >client.py <<'PYTHON'
import itertools
import json
import os
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Api(BaseHTTPRequestHandler):
    """It knows no Actor."""

    def do_GET(self):
        body = b'{"error": {"type": "record-not-found", "message": "not found"}}'
        self.send_response(404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


api = ThreadingHTTPServer(("127.0.0.1", 0), Api)
threading.Thread(target=api.serve_forever, daemon=True).start()
given = {"APIFY_TOKEN": "none", "APIFY_API_BASE_URL": f"http://127.0.0.1:{api.server_port}"}
line = ["node_modules/.bin/node", "node_modules/@apify/actors-mcp-server/dist/stdio.js"]
line += ["--telemetry-enabled", "false", "--tools", "actors"]
with open("server.log", "wb") as log:
    server = subprocess.Popen(
        line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=os.environ | given
    )
threading.Timer(90, server.kill).start()
ids = itertools.count(1)


def send(message):
    server.stdin.write(json.dumps({"jsonrpc": "2.0"} | message) + "\n")
    server.stdin.flush()


def ask(method, params):
    asked = next(ids)
    send({"id": asked, "method": method, "params": params})
    while "method" in (said := json.loads(server.stdout.readline())) or said.get("id") != asked:
        pass
    return said


client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "finding", "version": "1"}}
ask("initialize", client)
send({"method": "notifications/initialized"})
print(f"a cursor that is none: {ask('tasks/list', {'cursor': 'any'})['error']['code']}", flush=True)
call = {"name": "call-actor", "arguments": {"actor": "no/such", "input": {}}, "task": {"ttl": 60000}}
task = ask("tools/call", call)["result"]["task"]
while task["status"] == "working":
    time.sleep(0.2)
    task = ask("tasks/get", {"taskId": task["taskId"]})["result"]
result = ask("tasks/result", {"taskId": task["taskId"]})["result"]
print(f"a call of an Actor that is not there: {task['status']}, isError {result['isError']}")
server.kill()
os._exit(0)
PYTHON

python3 -u client.py | tee seen.txt
diff - seen.txt <<'SEEN' || { tail -5 server.log; exit 1; }
a cursor that is none: -32603
a call of an Actor that is not there: completed, isError True
SEEN
