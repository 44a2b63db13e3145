"""A rush: clients in processes of their own send a whole request each, and leave at once.

Every client is a thread that blocks, as a command is; so the gateway, the clients and the upstream meet at any moment.
What comes whole is all that was sent (DESIGN 3.5). `python -m tests.soak.rush PORT SEED REQUESTS`: the clients alone.
"""

import asyncio
import contextlib
import random
import socket
import sys
import threading
import time
from typing import Final

from tests.peer import WAIT_S
from tests.relay.messages import LAST_CHUNK, call, chunk, dumps, request, response
from tests.soak import plan
from tests.soak.plan import Dice, Exchange
from tests.soak.upstream import Upstream

PROCESSES: Final = 2
THREADS: Final = 16  # in each
BODY_BYTES: Final = 200_000
_CHUNKS: Final = (1_000, 16_000, 64_000, BODY_BYTES)
_PAUSE_MAX_S: Final = 0.003  # behind the head, of half of them
_STAY: Final = 0.2  # of the clients, until they are answered: so connections to the upstream stay too
_KINDS: Final = (b"application/octet-stream", b"application/json")


def draw(seed: int) -> Exchange:
    """A request: octets, or JSON above `inspected_body_bytes_max`, in chunks or by its length."""
    dice = Dice(random.Random(seed), seed)
    kind = dice.random.choice(_KINDS)
    text = dice.random.randbytes(BODY_BYTES // 2).hex()
    body = text.encode() if kind == _KINDS[0] else dumps(call("tools/call", seed, name=text))
    fields = [*dice.own, b"Content-Type: " + kind]
    size = dice.random.choice(_CHUNKS)
    if dice.random.random() < 0.8:
        fields.append(b"Transfer-Encoding: chunked")
        pieces = [body[at : at + size] for at in range(0, len(body), size)]
        asked = request(b"POST", fields=fields) + b"".join(map(chunk, pieces)) + LAST_CHUNK
    else:
        asked = request(b"POST", fields=fields, body=body)
    return Exchange(seed, "left at once", dice.session, asked, plan.marked(response(b"ok"), seed))


async def play(port: int, upstream: Upstream, seed: int, requests: int) -> tuple[int, list[str]]:
    """Play a rush: how many requests came whole, and what was wrong."""
    upstream.faults.clear()
    upstream.expect(map(draw, range(seed, seed + requests)))
    before = upstream.came_whole
    share = requests // PROCESSES
    clients = [
        await asyncio.create_subprocess_exec(sys.executable, "-m", __name__, str(port), str(first), str(share))
        for first in range(seed, seed + share * PROCESSES, share)
    ]
    statuses = [await client.wait() for client in clients]
    await upstream.deserted()
    faults = [f"clients ended with {status}" for status in statuses if status]
    return upstream.came_whole - before, faults + upstream.faults


def _leave_at_once(port: int, seed: int) -> None:
    source, asked = random.Random(seed), draw(seed).asked
    head_end = asked.index(b"\r\n\r\n") + 4
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), WAIT_S) as client:
        client.sendall(asked[:head_end])
        if source.random() < 0.5:
            time.sleep(source.uniform(0, _PAUSE_MAX_S))
        client.sendall(asked[head_end:])
        if source.random() < _STAY:
            client.recv(1)


def main() -> None:
    """Run the clients."""
    port, seed, requests = map(int, sys.argv[1:])

    def some(first: int) -> None:
        for one in range(first, seed + requests, THREADS):
            _leave_at_once(port, one)

    threads = [threading.Thread(target=some, args=(seed + n,)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
