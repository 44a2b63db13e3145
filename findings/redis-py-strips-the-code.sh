#!/usr/bin/env bash
# Who: PyPI redis 8.1.0. Run first: 2026-11-28.
# What: the text of an error lacks the word that a Redis server puts in front, where redis-py has a class for that word,
#       and keeps it elsewhere. So `"READONLY" in str(error)` misses the refusal of a replica.
# Rule: docs/design.md 12.5: a server that is no primary, or no longer, is left.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place"
python3 -m venv venv || exit 2
venv/bin/pip install --quiet --disable-pip-version-check redis==8.1.0 2>pip.log || { cat pip.log; exit 2; }

cat >errors.py <<'PYTHON'
import socket
import threading

import redis

SAID = (
    b"-READONLY You can't write against a read only replica.",
    b"-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    b"-WRONGTYPE Operation against a key holding the wrong kind of value",
)


def serve(listening, line):
    peer, _ = listening.accept()
    with peer:
        peer.recv(4096)
        peer.sendall(line + b"\r\n")


for line in SAID:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve, args=(listening, line), daemon=True).start()
        store = redis.Redis(port=listening.getsockname()[1], protocol=2, driver_info=None, retry=None)
        try:
            store.set("key", "value")
        except redis.RedisError as error:
            print(f"{type(error).__name__}: {str(error)[:27]}")
PYTHON

venv/bin/python errors.py | tee seen.txt
diff - seen.txt <<'SEEN'
ReadOnlyError: You can't write against a r
MasterDownError: Link with MASTER is down an
ResponseError: WRONGTYPE Operation against
SEEN
