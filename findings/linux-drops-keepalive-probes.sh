#!/usr/bin/env bash
# Who: Linux 6.18.44, with net.core.netdev_max_backlog at its default of 1000. Run first: 2026-11-29.
# What: it ends TCP connections whose peer is there. They have SO_KEEPALIVE with the same times, and fell quiet together, as
#       streams do behind an event for all. Their probes leave in one tick of the kernel; on a loopback what is beyond
#       1,001 packets is dropped, and so at each further probe of those that are left. Of 7,000 connections on one CPU
#       3,997 end with ETIMEDOUT after the third probe, or 994 if the tick's end divides them. With four times in turn
#       all stay.
# Rule: docs/design.md 7.9: each connection has its own times.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
[ "$(cat /proc/sys/net/core/netdev_max_backlog)" = 1000 ] || exit 2
[ "$(ulimit -Hn)" = unlimited ] || [ "$(ulimit -Hn)" -ge 15000 ] || exit 2
cat > "$folder/quiet.py" <<'PYTHON'
import collections
import errno
import os
import platform
import resource
import socket
import sys
import time

CONNECTIONS = 7000
PROBES, BETWEEN_S = 3, 6


def connections():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        for _ in range(CONNECTIONS):
            yield socket.create_connection(listening.getsockname()), listening.accept()[0]


def ended(first_s):
    """How many connections are open, and how many have which error, when all probes have had their time."""
    pairs = list(connections())
    for _, other in pairs:
        other.send(b"x")
    for number, (one, _) in enumerate(pairs):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, first_s[number % len(first_s)])
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, BETWEEN_S)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
    time.sleep(max(first_s) + PROBES * BETWEEN_S + 3)
    errors = [one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) for one, _ in pairs]
    for pair in pairs:
        for one in pair:
            one.close()
    return collections.Counter(errno.errorcode.get(error, "open") for error in errors)


os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
resource.setrlimit(resource.RLIMIT_NOFILE, (15000, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
print("Linux", platform.release())
together, apart = ended([10]), ended([10, 11, 12, 13])
print("the same times:", dict(together))
print("four times in turn:", dict(apart))
sys.exit(not (together["ETIMEDOUT"] and apart == {"open": CONNECTIONS}))
PYTHON
python3 "$folder/quiet.py"
