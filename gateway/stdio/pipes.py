"""Standard streams, read and written each in a thread of its own.

In: descriptors, whatever they are: pipes, sockets, terminals, files. Out: a source and a sink for the event loop.
Always: a descriptor's mode stays as it is: a non-blocking one would hold for every process that shares the stream, such
as the server, whose standard error may be the same terminal. Files have no events.
"""

import asyncio
import os
import select
import threading
from contextlib import suppress
from queue import SimpleQueue
from typing import Final

from gateway.transport.memory_budget import Buffers, Reservation

_PIECE_BYTES: Final = 64 * 1024
_AHEAD: Final = 2  # pieces that are read before they are asked for
_FULL_BYTES: Final = 256 * 1024  # that the other side has yet to take


class PipeSource:
    """Reads a descriptor to its end, and closes it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._pieces: asyncio.Queue[bytes] = asyncio.Queue()
        self._wanted = threading.Semaphore(_AHEAD)
        self._stopped = False
        self.pieces = 0  # how many `read` has returned
        threading.Thread(target=self._run, name="read", daemon=True).start()

    async def read(self) -> bytes:
        piece = await self._pieces.get()
        self._wanted.release()
        self.pieces += 1
        return b"" if self._stopped else piece

    def stop(self) -> None:
        """Read no more. The other side then finds the stream broken when it writes."""
        self._stopped = True
        self._pieces.put_nowait(b"")
        self._wanted.release()

    def _run(self) -> None:
        with suppress(RuntimeError):  # the loop is closed
            try:
                while piece := self._read():
                    self._loop.call_soon_threadsafe(self._pieces.put_nowait, piece)
            finally:
                os.close(self._descriptor)
            self._loop.call_soon_threadsafe(self._pieces.put_nowait, b"")

    def _read(self) -> bytes:
        """Some bytes, once they are wanted; none at the end."""
        self._wanted.acquire()
        while not self._stopped:
            try:
                return os.read(self._descriptor, _PIECE_BYTES)
            except BlockingIOError:  # the descriptor was non-blocking when it came here
                select.select([self._descriptor], [], [])
            except OSError:
                break
        return b""


class PipeSink:
    """Writes a descriptor, and closes it in the end."""

    def __init__(self, descriptor: int, buffers: Buffers) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self.buffers = buffers
        self._reservation = Reservation(buffers)
        self._queue: SimpleQueue[bytes] = SimpleQueue()
        self._room, self._closed = asyncio.Event(), asyncio.Event()
        self._room.set()
        self.broken = asyncio.Event()  # the other side takes no more
        threading.Thread(target=self._run, name="write", daemon=True).start()

    def write(self, data: bytes) -> None:
        """Send bytes, in order. Nothing happens if the other side takes no more."""
        if data and not self.broken.is_set():
            self._hold(len(data))
            self._queue.put(data)

    @property
    def is_full(self) -> bool:
        """Whether the other side has yet to take so much that `drain` waits."""
        return not self._room.is_set()

    async def drain(self) -> None:
        await self._room.wait()

    async def close(self) -> None:
        """Close the descriptor, once the other side has taken all."""
        self._queue.put(b"")
        await self._closed.wait()

    def _hold(self, more_bytes: int) -> None:
        self._reservation.set(self._reservation.held_bytes + more_bytes)
        if self._reservation.held_bytes > _FULL_BYTES:
            self._room.clear()
        else:
            self._room.set()

    def _run(self) -> None:
        with suppress(RuntimeError):  # the loop is closed
            while data := self._queue.get():
                if not self._write(data):
                    self._loop.call_soon_threadsafe(self.broken.set)
                self._loop.call_soon_threadsafe(self._hold, -len(data))
            os.close(self._descriptor)
            self._loop.call_soon_threadsafe(self._closed.set)

    def _write(self, data: bytes) -> bool:
        """Write all of it. False if the other side takes no more."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:
                select.select([], [self._descriptor], [])
            except OSError:
                return False
        return True
