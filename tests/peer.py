"""One end of a connection, in raw bytes: it sends, and keeps what arrives, when, and how the other side left.

No task receives, since a task that is cancelled loses what it has just received. A subclass may act at once: on bytes
(`on_bytes`), on the other side's end (`on_end`), and on its own (`on_close`).
"""

import asyncio
import contextlib
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Self

from tests.relay.http1 import End, Message, Reader

WAIT_S: Final = 20.0  # for what must happen: long, because a machine may be busy; a test fails when it is over
GAP_S: Final = 0.001  # between two pieces of one sender, so that they arrive as two
RECEIVE_BYTES: Final = 1 << 18


def kernel_bytes_max() -> int:
    """What the kernel keeps at most of what goes through a gateway to a side that reads nothing: four buffers."""
    if not sys.platform.startswith("linux"):
        return 16 << 20
    limits = [Path(f"/proc/sys/net/ipv4/tcp_{name}").read_text().split()[2] for name in ("rmem", "wmem")]
    return 2 * sum(map(int, limits))


class NotInTime(AssertionError):
    """What had to happen did not, within WAIT_S."""


async def holds_in_time(condition: Callable[[], bool], changed: asyncio.Event, wait_s: float) -> bool:
    """Whether `condition` holds within `wait_s`. It is looked at now, and whenever `changed` is set."""
    if condition():
        return True
    try:
        async with asyncio.timeout(wait_s):
            while True:
                changed.clear()
                await changed.wait()
                if condition():
                    return True
    except TimeoutError:
        return False


class Peer:
    """One end of a connection. It sends bytes, and records what arrives, when, and how the connection ended."""

    def __init__(self, sock: socket.socket, news: "Callable[[Peer], None] | None" = None) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.incoming = Reader()
        self.outgoing = Reader()
        self.arrivals: list[tuple[float, int]] = []  # monotonic time, bytes received by then
        self.end: End = "open"
        self.closed = False  # by us
        self.sock = sock
        self._descriptor = sock.fileno()  # what the loop watches: it asks the system for the addresses of a socket
        self._writes = False  # the loop watches for room
        self._news = news
        self._unsent = bytearray()
        self._last: Callable[[], None] | None = None  # what follows the last byte that is sent
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.resume()

    @property
    def received(self) -> bytearray:
        return self.incoming.data

    @property
    def sent(self) -> bytearray:
        return self.outgoing.data

    @property
    def is_ending(self) -> bool:
        """Whether this side sends no more."""
        return self.closed or self._last is not None

    # ---- what happens, for subclasses ----

    def on_bytes(self, data: bytes) -> None:
        """Bytes have arrived."""

    def on_end(self) -> None:
        """The other side has ended the connection."""

    def on_close(self) -> None:
        """This side has closed the connection; called on the next turn of the loop."""

    # ---- receiving ----

    def _receive(self) -> None:
        try:
            while not self.closed and (data := self.sock.recv(RECEIVE_BYTES)):
                self.incoming.feed(data)
                self.arrivals.append((time.monotonic(), len(self.received)))
                self.on_bytes(data)
                self._tell()
            if not self.closed:
                self._end("fin")
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self._end("rst")

    def _end(self, how: End) -> None:
        self.end = how
        self.pause()
        self.on_end()
        self._tell()

    def _tell(self) -> None:
        if self._news is not None:
            self._news(self)
        self._changed.set()

    # ---- sending ----

    def write(self, data: bytes) -> None:
        """Send bytes as soon as the other side takes them. A connection that either side has ended takes no more."""
        if not self.is_ending:
            self.outgoing.feed(data)
            self._unsent += data
            self._flush()

    def _flush(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self.sock.send(self._unsent)]
        except (BlockingIOError, InterruptedError):
            if not self._writes:
                self._writes = True
                self._loop.add_writer(self._descriptor, self._flush)
            return
        except OSError:  # the other side has cut the connection
            self._unsent.clear()
        self._watch_no_room()
        self._changed.set()
        if self._last is not None:
            self._last()

    def _watch_no_room(self) -> None:
        if self._writes:
            self._writes = False
            self._loop.remove_writer(self._descriptor)

    async def send(self, *pieces: bytes) -> None:
        """Send the pieces, one segment each, and return when the other side has taken them."""
        for at, piece in enumerate(pieces):
            if at:
                await asyncio.sleep(GAP_S)
            self.write(piece)
            if self._unsent:
                await self.until(lambda: not self._unsent, f"{len(piece)} bytes sent")

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Return once `condition` holds, which is looked at whenever something arrives or the connection ends."""
        if not await holds_in_time(condition, self._changed, WAIT_S):
            shown = bytes(self.received[-600:])
            raise NotInTime(f"{what}: not within {WAIT_S:g} s; connection {self.end}, received {shown!r}")

    async def within(self, wait_s: float, condition: Callable[[], bool]) -> bool:
        """Whether `condition`, which is looked at likewise, holds in that time."""
        return await holds_in_time(condition, self._changed, wait_s)

    async def play(self, pieces: Iterable[bytes | float], then: str = "open") -> None:
        """Send the pieces, each as a segment of its own, a number as a pause in seconds; and then FIN or RST."""
        for piece in pieces:
            if isinstance(piece, float):
                await asyncio.sleep(piece)
            else:
                self.write(piece)
        if then == "fin":
            self.finish()
        elif then == "rst":
            self.cut()

    async def hears(self, data: bytes, times: int = 1) -> None:
        await self.until(lambda: self.received.count(data) >= times, f"{data[:200]!r}")

    async def ends(self) -> End:
        """Return once the other side has left: how."""
        await self.until(lambda: self.end != "open", "the end of the connection")
        return self.end

    def pause(self) -> None:
        if not self.closed:
            self._loop.remove_reader(self._descriptor)

    def resume(self) -> None:
        if self.end == "open" and not self.closed:
            self._loop.add_reader(self._descriptor, self._receive)

    def finish(self) -> None:
        """Say that no more will be sent: FIN, behind all that was written."""
        self._then(self._shut)

    def leave(self) -> None:
        """Close the connection, behind all that was written, and read no more."""
        if not self.closed:
            self.pause()
            self._then(self._let_go)

    def _then(self, last: Callable[[], None]) -> None:
        self._last = last
        if not self._unsent:
            last()

    def _shut(self) -> None:
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Cut the connection: RST."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._let_go()

    def cut(self) -> None:
        """The same, unless it is closed; this counts as its end."""
        if not self.closed:
            self.reset()
            self.end = "rst" if self.end == "open" else self.end

    def stop(self, how: str) -> None:
        """Send no more: "fin", in order, or "rst", by a cut."""
        self.finish() if how == "fin" else self.reset()

    async def close(self) -> None:
        if not self.closed:
            self._let_go()

    def _let_go(self) -> None:
        # Else the loop still watches the descriptor, which may be another connection's by then.
        self.pause()
        self._watch_no_room()
        self.closed = True
        self.sock.close()
        self._unsent.clear()
        self._changed.set()
        self._loop.call_soon(self.on_close)


class Client(Peer):
    @classmethod
    async def connect(cls, port: int) -> Self:
        """A connection to 127.0.0.1."""
        sock = socket.socket()
        sock.setblocking(False)
        async with asyncio.timeout(WAIT_S):
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        return cls(sock)

    def responses(self) -> list[Message]:
        """The responses so far, 1xx included. The last one may not be whole."""
        return self.incoming.responses(self.outgoing.methods(), self.end)

    async def response(self, number: int = 1) -> Message:
        """The final response of that number, once it is whole or the connection has ended."""

        def finals() -> list[Message]:
            return [m for m in self.responses() if m.is_final]

        await self.until(
            lambda: self.end != "open" or (len(finals()) >= number and finals()[number - 1].whole),
            f"response {number}",
        )
        if len(finals()) < number:
            raise AssertionError(f"no response {number}; connection {self.end}, received {bytes(self.received)!r}")
        return finals()[number - 1]
