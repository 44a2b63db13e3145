"""An event loop on a virtual clock, which jumps to the next timer. Its connections are pairs of objects.

Runs repeat exactly, because nothing here asks the machine for anything. Bytes take `WIRE_S` from one end to the other,
in order. Times are exact multiples of a power of two, so that a bound that is just met differs from one just missed.
"""

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, TypeAlias

TICK_S: Final = 2**-6
WIRE_S: Final = 2**-20
START_S: Final = 1024.0
UNIX_AT_START_S: Final = 1_764_547_200.0  # 2025-12-01
_QUIET_FD: Final = os.eventfd(0) if hasattr(os, "eventfd") else os.pipe()[0]  # a descriptor on which nothing arrives


class Deadlock(Exception):
    """Everything waits, and no timer runs."""


# As much of a socket as is asked for: one that nothing ever arrives at unseen.
_SOCKET: Final = SimpleNamespace(family=socket.AF_INET, fileno=lambda: _QUIET_FD, setsockopt=lambda *_: None)


class Transport(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, loop: "VirtualLoop", protocol: asyncio.Protocol) -> None:
        super().__init__({"socket": _SOCKET, "peername": ("127.0.0.1", 1)})
        self._loop = loop
        self._protocol = protocol
        self._closing = self._lost = self._paused = self._ended = False
        self._on_its_way: deque[Callable[[], None]] = deque()  # from the peer, in order
        self.peer: Transport

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not (self._closing or self._ended):
            self.peer._send(partial(self.peer._protocol.data_received, bytes(data)))

    def close(self) -> None:
        if not self._closing:
            self.write_eof()
            self._closing = True
            self._loop.call_soon(self._lose, None)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._ended:
            self._ended = True
            self.peer._send(self.peer._end)

    def abort(self) -> None:
        if not self._lost:
            self._closing = True
            self.peer._send(partial(self.peer._lose, ConnectionResetError("Connection reset by peer")))
            self._loop.call_soon(self._lose, None)

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        for _ in self._on_its_way:
            self._loop.call_soon(self._arrive)

    def _send(self, arrival: Callable[[], None]) -> None:
        self._on_its_way.append(arrival)
        self._loop.call_later(WIRE_S, self._arrive)

    def _arrive(self) -> None:
        if self._on_its_way and not self._paused:
            arrival = self._on_its_way.popleft()
            if not self._lost:
                arrival()

    def _end(self) -> None:
        if not self._protocol.eof_received():
            self.close()

    def _lose(self, error: Exception | None) -> None:
        if not self._lost:
            self._closing = self._lost = True
            lost, self._protocol = self._protocol, asyncio.Protocol()  # as a real one: it holds no protocol any more
            lost.connection_lost(error)


_Factory: TypeAlias = Callable[[], asyncio.Protocol]


class VirtualLoop(asyncio.BaseEventLoop):
    """The loop. `time` is seconds of its own clock, `unix_time` the time of day that belongs to it."""

    def __init__(self) -> None:
        super().__init__()
        self._now = START_S
        self._selector = self  # BaseEventLoop waits there for events: here that moves the clock
        self._servers: dict[int, _Factory] = {}
        self.unhandled: list[dict[str, Any]] = []
        """What no one caught: never anything, unless the code under test has a fault."""
        self.set_exception_handler(lambda _, context: self.unhandled.append(context))

    def time(self) -> float:
        return self._now

    def unix_time(self) -> float:
        """Seconds since 1970."""
        return UNIX_AT_START_S + self._now - START_S

    def select(self, timeout: float | None) -> tuple[()]:
        """Called by BaseEventLoop: with a timeout above 0 when all that is left are timers."""
        if timeout is None:
            raise Deadlock
        self._now += timeout
        return ()

    def _process_events(self, _: object) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    async def create_server(self, protocol_factory: _Factory, port: int, **_: object) -> SimpleNamespace:  # type: ignore[override]
        self._servers[port] = protocol_factory
        return SimpleNamespace(sockets=[SimpleNamespace(getsockname=lambda: ("127.0.0.1", port))], close=lambda: None)

    def stop_listening(self, port: int) -> None:
        self._servers.pop(port, None)

    async def getaddrinfo(self, host: str, port: int, **_: object) -> list[tuple[int, int, int, str, tuple[str, int]]]:  # type: ignore[override]
        """Every name has one address, so the gateway opens no sockets to race them."""
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))]

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: _Factory, host: object = None, port: int = 0, **_: object
    ) -> tuple[Transport, asyncio.Protocol]:
        """Connect to a port of this loop's. Raises ConnectionRefusedError if nobody listens there."""
        if port not in self._servers:
            raise ConnectionRefusedError(port)
        ends = [Transport(self, factory()) for factory in (protocol_factory, self._servers[port])]
        ends[0].peer, ends[1].peer = ends[1], ends[0]
        for end in ends:
            end._protocol.connection_made(end)
        return ends[0], ends[0]._protocol
