"""Connections that send much are read in turns (turns.py), whatever loop it is."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
import uvloop

from gateway.transport.base_connection import Wire
from gateway.transport.memory_budget import Buffers

CONNECTIONS: Final = 40
SENT_BYTES: Final = 1 << 20  # by each at most: what its socket takes
TURN_BYTES_MAX: Final = 1 << 20  # 320 KiB in turn, one read more, and a little of each connection
LOOPS: Final[dict[str, Callable[[], asyncio.AbstractEventLoop]]] = {
    "uvloop": uvloop.new_event_loop,
    "asyncio": asyncio.new_event_loop,
}


class Counting(Wire):
    def __init__(self, buffers: Buffers, made: "list[Counting]") -> None:
        super().__init__(asyncio.get_running_loop(), buffers, 60.0)
        self.received_bytes = 0
        made.append(self)

    def data_received(self, data: bytes) -> None:
        self.received_bytes += len(data)


@contextmanager
def senders(port: int) -> Iterator[list[tuple[socket.socket, int]]]:
    """Connections, and how many bytes each has sent, which nobody has read yet."""
    socks = [socket.create_connection(("127.0.0.1", port)) for _ in range(CONNECTIONS)]
    try:
        for sock in socks:
            sock.setblocking(False)
        yield [(sock, sock.send(b"x" * SENT_BYTES)) for sock in socks]
    finally:
        for sock in socks:
            sock.close()


async def received() -> tuple[list[int], int, int]:
    """What each turn has read, what has arrived in all, and what was sent."""
    loop = asyncio.get_running_loop()
    buffers, wires = Buffers(1 << 30), list[Counting]()
    server: Any = await loop.create_server(lambda: Counting(buffers, wires), "127.0.0.1", 0, backlog=CONNECTIONS)
    with senders(server.sockets[0].getsockname()[1]) as sent:
        total_bytes = sum(size for _, size in sent)
        turns, seen_bytes = list[int](), 0
        async with asyncio.timeout(20.0):
            while seen_bytes < total_bytes:
                await asyncio.sleep(0)  # one turn
                now_bytes = sum(wire.received_bytes for wire in wires)
                turns.append(now_bytes - seen_bytes)
                seen_bytes = now_bytes
        for wire in wires:
            wire.close()
        server.close()
        await server.wait_closed()
    return turns, seen_bytes, total_bytes


@pytest.mark.parametrize("loop", LOOPS)
def test_a_turn_of_the_loop_reads_no_more_than_its_share(loop: str) -> None:
    """uvloop read up to 2 MiB of each connection in one turn: 500 of them held the loop for half a second."""
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        turns, got_bytes, sent_bytes = runner.run(received())
    assert got_bytes == sent_bytes > 2 * TURN_BYTES_MAX
    assert max(turns) <= TURN_BYTES_MAX
