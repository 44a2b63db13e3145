#!/usr/bin/env bash
# Who: PyPI uvloop 0.23.0. Run first: 2026-11-29.
# What: its look-ups of names take half of libuv's four threads, in turn for the whole process; one that was given up
#       stays in the queue. Behind four of a name that takes 3 s (its first name server is silent), each given up after
#       0.5 s, an address that needs no look-up waits 5.5 s. On asyncio's own loop, or with 32 threads, it waits for none.
# Rule: docs/design.md 12.5: a store that fails stops nobody, whatever its name takes.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place"
command -v cc >/dev/null || exit 2
python3 -m venv venv || exit 2
venv/bin/pip install --quiet --disable-pip-version-check uvloop==0.23.0 2>pip.log || { cat pip.log; exit 2; }

cat >slow.c <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <string.h>
#include <unistd.h>

typedef int look_up(const char *, const char *, const struct addrinfo *, struct addrinfo **);

int getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **found) {
    int is_slow = host && strcmp(host, "slow.test") == 0;
    if (is_slow)
        sleep(3);
    return ((look_up *)dlsym(RTLD_NEXT, "getaddrinfo"))(is_slow ? "127.0.0.1" : host, port, hints, found);
}
C
cc -shared -fPIC -o slow.so slow.c -ldl

cat >names.py <<'PYTHON'
import asyncio
import sys
import time

import uvloop


async def gives_up(loop):
    try:
        await asyncio.wait_for(loop.getaddrinfo("slow.test", 80), 0.5)
    except asyncio.TimeoutError:
        return True


async def waits():
    loop = asyncio.get_running_loop()
    assert all(await asyncio.gather(*(gives_up(loop) for _ in range(4))))
    began = time.monotonic()
    await loop.getaddrinfo("127.0.0.1", 80)
    return time.monotonic() - began


loop = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}[sys.argv[1]]()
seconds = loop.run_until_complete(waits())
print(*sys.argv[1:], f"{seconds:.1f} s")
sys.exit((seconds > 4) != (sys.argv[2:] == ["waits"]))
PYTHON
export LD_PRELOAD="$place/slow.so"
venv/bin/python names.py uvloop waits
UV_THREADPOOL_SIZE=32 venv/bin/python names.py uvloop
venv/bin/python names.py asyncio
