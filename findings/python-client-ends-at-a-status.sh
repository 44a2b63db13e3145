#!/usr/bin/env bash
# Who: PyPI mcp 1.30.0 (client). Run first: 2026-11-28.
# What: one response with a status of 400 or above, here 429 to a tasks/list, ends the client's session: the next request
#       fails too, though the server would answer it. A JSON-RPC error with status 200 is raised, and the session goes on.
# Rule: docs/design.md 5.8: the gateway's own errors have status 200.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place"
python3 -m venv venv || exit 2
venv/bin/pip install --quiet --disable-pip-version-check mcp==1.30.0 2>pip.log || { cat pip.log; exit 2; }

cat >client.py <<'PYTHON'
import asyncio
import json
import logging
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from httpx import HTTPStatusError
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

logging.disable()
ERROR = {"code": -32603, "message": "too many requests"}
RESULTS = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tasks": {"list": {}}},
        "serverInfo": {"name": "finding", "version": "1"},
    },
    "ping": {},
}


class Server(BaseHTTPRequestHandler):
    protocol_version, status = "HTTP/1.1", 0

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        said = {"jsonrpc": "2.0", "id": asked.get("id")}
        if "id" not in asked:
            return self.answer(202, None)
        if asked["method"] == "tasks/list":
            return self.answer(self.server.status, said | {"error": ERROR})
        self.answer(200, said | {"result": RESULTS[asked["method"]]})

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


async def told(request):
    try:
        await asyncio.wait_for(request, 20)
    except TimeoutError:
        return "no answer in 20 s"
    except Exception as error:
        return f"{type(error).__name__}: {error}".rstrip(": ")
    return "answered"


async def ask(status):
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        server.status = status
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/mcp"
        try:
            async with streamable_http_client(url) as (read, write, _), ClientSession(read, write) as session:
                await session.initialize()
                print(f"status {status}: {await told(session.experimental.list_tasks())}; ", end="")
                print(f"a ping: {await told(session.send_ping())}")
        except* HTTPStatusError as ended:
            print(f"status {status}: the session ends: {type(ended.exceptions[0]).__name__}")
        finally:
            server.shutdown()


for status in (200, 429):
    asyncio.run(ask(status))
PYTHON

venv/bin/python -W ignore client.py | tee seen.txt
diff - seen.txt <<'SEEN'
status 200: McpError: too many requests; a ping: answered
status 429: the session ends: HTTPStatusError
SEEN
