#!/usr/bin/env bash
# Who: PyPI mcp-haystack 2.1.1 beside mcp 2.3.0 (client). Run first: 2026-11-28.
# What: an error -32000 to tools/call is taken for a closed connection, whoever sent it: the client opens a session anew and
#       sends the call again, three times. Another code, here -32603, is raised at once.
# Rule: docs/design.md 5.8: no error of the gateway's own has a code that an SDK has for itself.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place"
python3 -m venv venv || exit 2
venv/bin/pip install --quiet --disable-pip-version-check mcp-haystack==2.1.1 mcp==2.3.0 2>pip.log || { cat pip.log; exit 2; }

cat >client.py <<'PYTHON'
import json
import logging
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from haystack_integrations.tools.mcp import MCPToolset, StreamableHttpServerInfo

logging.disable()
RESULTS = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "finding", "version": "1"},
    },
    "tools/list": {"tools": [{"name": "work", "inputSchema": {"type": "object"}}]},
    "ping": {},
}


class Server(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        said = {"jsonrpc": "2.0", "id": asked.get("id")}
        if "id" not in asked:
            return self.answer(202, None)
        self.server.asked[asked["method"]] += 1
        if asked["method"] in RESULTS:
            return self.answer(200, said | {"result": RESULTS[asked["method"]]})
        code = self.server.code if asked["method"] == "tools/call" else -32601
        self.answer(200, said | {"error": {"code": code, "message": "later"}})

    def do_GET(self):
        self.answer(405, None)

    def answer(self, status, message):
        body = json.dumps(message).encode() if message else b""
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


for code in (-32603, -32000):
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        server.code, server.asked = code, Counter()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        tools = MCPToolset(StreamableHttpServerInfo(url=f"http://127.0.0.1:{server.server_port}/mcp"), eager_connect=True)
        before = server.asked["initialize"]
        try:
            said = tools[0].invoke()
        except Exception as error:
            said = type(error).__name__
        calls, opened = server.asked["tools/call"], server.asked["initialize"] - before
        print(f"{code}: {calls} calls, {opened} more sessions, {said}", flush=True)
        tools.close()
        server.shutdown()
PYTHON

venv/bin/python -W ignore client.py | tee seen.txt
diff - seen.txt <<'SEEN'
-32603: 1 calls, 0 more sessions, ToolInvocationError
-32000: 4 calls, 3 more sessions, ToolInvocationError
SEEN
