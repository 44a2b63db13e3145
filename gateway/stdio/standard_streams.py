"""Standard streams, read and written each in a thread of its own.

In: descriptors, whatever they are: pipes, sockets, terminals, files. Out: their bytes, and an outlet for lines, for the
event loop. Always: a descriptor's mode stays as it is: a non-blocking one would hold for every process that shares the
stream, such as the server, whose standard error may be the same terminal. Files have no events.
"""

import asyncio
import os
import select
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Final

from gateway.stdio.line_splitter import Line
from gateway.transport.memory_budget import SMALL_BYTES_MAX, Buffers, Reservation

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


class Outlet:
    """Writes the lines of one side to a descriptor: those that pass, and the gateway's own between them. Closes it.

    from               when                       to
    between lines      pass a whole line          between lines
    between lines      pass a piece               inside a line
    inside a line      pass a piece               inside a line
    inside a line      pass the last piece        between lines; what waits goes out
    inside a line      insert                     inside a line; it waits
    """

    def __init__(self, descriptor: int, buffers: Buffers, on_broken: Callable[[], None]) -> None:
        self._descriptor = descriptor
        self._on_broken = on_broken
        self._loop = asyncio.get_running_loop()
        self.buffers = buffers
        self._reservation = Reservation(buffers)
        self._queue: SimpleQueue[bytes] = SimpleQueue()
        self.is_full = False  # the other side has yet to take so much that `drain` waits
        self._room, self._closed = asyncio.Event(), asyncio.Event()
        self._room.set()
        self._held = Reservation(buffers)
        self._waiting: list[bytes] = []
        self._few_wait = asyncio.Event()
        self._few_wait.set()
        self.is_inside = False  # a line that passes has not ended
        self._is_broken = False  # the other side takes no more: `on_broken` is called
        threading.Thread(target=self._run, name="write", daemon=True).start()

    def write(self, data: bytes) -> None:
        """Send bytes, in order. Nothing happens if the other side takes no more."""
        if data and not self._is_broken:
            self._hold(len(data))
            self._queue.put(data)

    async def drain(self) -> None:
        await self._room.wait()

    async def drain_own(self) -> None:
        """Wait until the other side has taken enough, and little waits for the end of a line."""
        await self._few_wait.wait()
        await self.drain()

    def pass_on(self, line: Line) -> None:
        self.write(line.raw)
        self.is_inside = not line.ended
        if line.ended and self._waiting:
            waiting, self._waiting = self._waiting, []
            self._held.close()
            self._few_wait.set()
            self.write(b"".join(waiting))

    def insert(self, message: bytes) -> None:
        """Send a message of the gateway's as a line of its own. Raises Overloaded where there is no room to hold it."""
        self._held.check(self._held.held_bytes + len(message) + 1)
        self.insist(message)

    def insist(self, message: bytes) -> None:
        """The same, room or not: for errors, whose senders wait for `drain_own` before they read on."""
        line = message + b"\n"
        if not self.is_inside:
            self.write(line)  # the sink counts what it holds
            return
        self._waiting.append(line)
        self._held.set(self._held.held_bytes + len(line))
        if self._held.held_bytes > SMALL_BYTES_MAX:
            self._few_wait.clear()

    async def close(self) -> None:
        """Close the descriptor, once the other side has taken all."""
        self._queue.put(b"")
        await self._closed.wait()

    def _break(self) -> None:
        self._is_broken = True
        self._on_broken()

    def _hold(self, more_bytes: int) -> None:
        self._reservation.set(self._reservation.held_bytes + more_bytes)
        self.is_full = self._reservation.held_bytes > _FULL_BYTES
        if self.is_full:
            self._room.clear()
        else:
            self._room.set()

    def _run(self) -> None:
        with suppress(RuntimeError):  # the loop is closed
            while data := self._queue.get():
                if not self._write(data):
                    self._loop.call_soon_threadsafe(self._break)
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
