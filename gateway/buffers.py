"""One count of all bytes that are held for clients and upstreams together, and its limit.

In: what is held, by who holds it: bodies on their way, bodies and events that are inspected, requests that wait behind
others, what peers have yet to take. Out: whether there is room for more.
Always: beyond `limits.held_bytes_max` nobody's service stops (DESIGN 7). What is small (SMALL_BYTES_MAX) is still held;
who needs more waits for room, first come, first served, and gets 503 where none comes free; what only would be looked
at passes unread; and every connection is read a little at a time. So the process holds at most the limit, and for each
connection SMALL_BYTES_MAX either way.
"""

import asyncio
from collections import deque
from typing import Final

from gateway.errors import Overloaded

SMALL_BYTES_MAX: Final = 64 * 1024
_UNLIMITED: Final = float("inf")
_READ_BYTES_MAX: Final = 64 * 1024
_READ_BYTES_MAX_WHEN_FULL: Final = 16 * 1024


class Buffers:
    """The count for one gateway. `bytes_max` may change while it runs.

    `to_read_into` is where the next read of a socket goes, before anything else is read.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.held_bytes = 0
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._scratch = memoryview(bytearray(_READ_BYTES_MAX))  # every read of a socket goes through it
        self.to_read_into = self._scratch

    @property
    def bytes_max(self) -> int:
        return self._bytes_max

    @bytes_max.setter
    def bytes_max(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.change(0)

    @property
    def is_full(self) -> bool:
        """Whether the limit is reached."""
        return self.held_bytes >= self._bytes_max

    def change(self, by_bytes: int) -> None:
        """So much more is held, or less."""
        self.held_bytes += by_bytes
        if by_bytes <= 0:
            self._admit()
        self.to_read_into = self._scratch[:_READ_BYTES_MAX_WHEN_FULL] if self.is_full else self._scratch

    def _admit(self) -> None:
        """Give room to those who wait, in their order, as far as there is some."""
        while self._waiters:
            size, room = self._waiters[0]
            if not room.done():
                if self.held_bytes + size > self._bytes_max:
                    break
                self.held_bytes += size
                room.set_result(None)
            self._waiters.popleft()

    async def reserve(self, size_bytes: int, timeout_s: float) -> None:
        """Wait for so much room, and take it. Raises Overloaded if none is there within `timeout_s`."""
        if not self._waiters and self.held_bytes + size_bytes <= self._bytes_max:
            self.change(size_bytes)
            return
        room = asyncio.get_running_loop().create_future()
        self._waiters.append((size_bytes, room))
        try:
            async with asyncio.timeout(timeout_s):
                await room
        except BaseException as error:
            came = room.done() and not room.cancelled()  # as the wait ended
            room.cancel()
            self.change(-size_bytes if came else 0)  # who waits behind may have room now
            if isinstance(error, TimeoutError):
                raise self._overloaded() from None
            raise

    def has_room(self, size_bytes: int) -> bool:
        """Whether so much may be held in all by a holder that does not wait."""
        return size_bytes <= SMALL_BYTES_MAX or not self.is_full

    def check(self, size_bytes: int) -> None:
        """Raises Overloaded if so much may not be held by a holder that does not wait."""
        if not self.has_room(size_bytes):
            raise self._overloaded()

    def _overloaded(self) -> Overloaded:
        return Overloaded(f"{self.held_bytes} bytes are held for others; limits.held_bytes_max is {self.bytes_max}")


class Account:
    """What one holder holds. It must be closed."""

    __slots__ = ("_buffers", "held_bytes")

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers
        self.held_bytes = 0

    def set(self, size_bytes: int) -> None:
        """So much is held now, whatever the limit."""
        self._buffers.change(size_bytes - self.held_bytes)
        self.held_bytes = size_bytes

    async def reserve(self, size_bytes: int, timeout_s: float) -> None:
        """Hold so much in all, as soon as there is room for it. Raises Overloaded."""
        if size_bytes > self.held_bytes:
            await self._buffers.reserve(size_bytes - self.held_bytes, timeout_s)
            self.held_bytes = size_bytes

    def has_room(self, size_bytes: int) -> bool:
        """Whether so much may be held in all by a holder that does not wait."""
        return self._buffers.has_room(size_bytes)

    @property
    def room_bytes(self) -> float:
        """How much may be held in all by a holder that does not wait."""
        return SMALL_BYTES_MAX if self._buffers.is_full else _UNLIMITED

    def hold(self, size_bytes: int) -> None:
        """Hold so much in all, at once. Raises Overloaded."""
        self._buffers.check(size_bytes)
        self.set(size_bytes)

    def close(self) -> None:
        """Nothing is held any more."""
        self.set(0)
