#!/usr/bin/env bash
# Who: npm mcp-remote 0.15.1. Run first: 2026-11-28.
# What: for one host it opens two sessions at the server, one before the host has said anything, and deletes neither.
# Rule: docs/design.md 7.6: sessions that nobody deletes are limited, and forgotten.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place"
npm install --silent --no-audit --no-fund mcp-remote@0.15.1 >npm.log 2>&1 || { cat npm.log; exit 2; }

cat >host.py <<'PYTHON'
import itertools
import json
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

RESULTS = {"initialize": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}, "tools/list": {"tools": []}}
RESULTS["initialize"]["serverInfo"] = {"name": "finding", "version": "1"}
SESSIONS = map(str, itertools.count(1))
seen = []


class Server(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        session = self.headers["Mcp-Session-Id"] or next(SESSIONS)
        who = asked.get("params", {}).get("clientInfo", {}).get("name", "")
        seen.append(f"session {session}: {asked['method']} {who}".rstrip())
        said = {"jsonrpc": "2.0", "id": asked.get("id"), "result": RESULTS.get(asked["method"])}
        self.answer(*((200, json.dumps(said).encode()) if "id" in asked else (202, b"")), session)

    def do_GET(self):
        self.answer(405 if self.path == "/mcp" else 404, b"", "")

    def do_DELETE(self):
        seen.append(f"session {self.headers['Mcp-Session-Id']}: deleted")
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


server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
line = ["node_modules/.bin/mcp-remote", f"http://127.0.0.1:{server.server_port}/mcp"]
with open("remote.log", "wb") as log:
    remote = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
threading.Timer(60, remote.kill).start()


def send(message):
    remote.stdin.write(json.dumps({"jsonrpc": "2.0"} | message) + "\n")
    remote.stdin.flush()
    if "id" in message:
        remote.stdout.readline()


client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "host", "version": "1"}}
send({"id": 1, "method": "initialize", "params": client})
send({"method": "notifications/initialized"})
send({"id": 2, "method": "tools/list"})
remote.stdin.close()
remote.wait()
print("\n".join(seen), flush=True)
print("ended")
PYTHON

MCP_REMOTE_CONFIG_DIR=$place/config timeout 100 python3 host.py | sed 's/ (via.*//' | tee seen.txt
diff - seen.txt <<'SEEN' || { cat remote.log; exit 1; }
session 1: initialize mcp-remote-fallback-test
session 1: notifications/initialized
session 2: initialize host
session 2: notifications/initialized
session 2: tools/list
ended
SEEN
