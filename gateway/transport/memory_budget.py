"""One count of all bytes that are held for clients and upstreams together, its limit, and the turns of reading.

In: how much each holder holds: bodies on their way, inspected bodies and events, heads, requests that wait behind
others, bytes that a peer has yet to take. Out: whether there is room for more.
Always: at `limits.held_bytes_max` the gateway goes on serving (DESIGN 7.6). Small amounts (SMALL_BYTES_MAX) are still
held; a larger body waits for room, first come, first served, and gets 503 if none comes free; a body that would only be
inspected passes unread; every connection is read a little at a time.

Connections that send much are read in turns: one turn of the event loop reads `_TURN_BYTES_MAX`, less when the buffers
are full, and then `READ_BYTES_MIN` of each further connection. Who sends more waits in order; a small message never
does. Else libuv reads up to 2 MB of each connection in one turn: 500 of them held the loop for half a second.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from gateway.errors import Overloaded

SMALL_BYTES_MAX: Final = 64 * 1024
_READ_BYTES_MAX: Final = 64 * 1024
_READ_BYTES_MAX_WHEN_FULL: Final = 16 * 1024
READ_BYTES_MIN: Final = 4 * 1024  # smaller reads do not count
_RECORD_BYTES_MAX: Final = 16 * 1024  # RFC 8446, 5.1
_TURN_BYTES_MAX: Final = 320 * 1024  # more than a body holds: a stream that is alone never waits
_TURN_BYTES_MAX_WHEN_FULL: Final = 128 * 1024


class Capacity:
    """A count with a limit. Who waits for room in it gets that in the order of coming; none is free meanwhile."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def is_full(self) -> bool:
        return self.taken >= self.limit

    def resize(self, limit: int) -> None:
        self.limit = limit
        self.change(0)

    def change(self, by: int) -> None:
        """Take `by` more, whatever the limit. Give back, if it is negative: to those who wait, while there is room."""
        self.taken += by
        while by <= 0 and self._waiting:
            size, room = self._waiting[0]
            if not room.done():
                if self.taken + size > self.limit:
                    break
                self.taken += size
                room.set_result(None)
            self._waiting.popleft()

    async def reserve(self, size: int, timeout_s: float | None = None) -> None:
        """Wait for room, and take it. Raises TimeoutError if it does not come free within `timeout_s`."""
        if not self._waiting and self.taken + size <= self.limit:
            self.change(size)
            return
        room = asyncio.get_running_loop().create_future()
        self._waiting.append((size, room))
        try:
            async with asyncio.timeout(timeout_s):
                await room
        except BaseException:
            came = room.done() and not room.cancelled()  # room came just as the wait ended
            room.cancel()
            self.change(-size if came else 0)  # the next in line may have room now
            raise


class Buffers(Capacity):
    """The count for one gateway, in bytes, and its turns. The next read of any socket overwrites `to_read_into`."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__(bytes_max)
        # Every read of a socket goes through it; the rest of a record of TLS, whose beginning filled it, too.
        self.scratch = memoryview(bytearray(_READ_BYTES_MAX + _RECORD_BYTES_MAX))
        self._usual = self.scratch[:_READ_BYTES_MAX]
        self._when_full = self.scratch[:_READ_BYTES_MAX_WHEN_FULL]
        self._least = self.scratch[:READ_BYTES_MIN]
        self.to_read_into = self._usual
        self._left_bytes = _TURN_BYTES_MAX
        self._has_begun = False
        self._to_read_on: deque[Callable[[], None]] = deque()

    def gauges(self) -> dict[str, tuple[str, float]]:
        """What is held now, and its limit: name of the metric to (help, value)."""
        return {
            "held_bytes": ("Bytes held for clients and upstreams.", self.taken),
            "held_bytes_max": ("Limit of held_bytes.", self.limit),
        }

    def change(self, by: int) -> None:
        super().change(by)
        self._choose()

    def overloaded(self) -> Overloaded:
        return Overloaded(f"{self.taken} bytes are held; limits.held_bytes_max is {self.limit}")

    def took(self, size_bytes: int, read_on: Callable[[], None]) -> bool:
        """Count a large read. True if others wait, or the turn is used up: then read no more until `read_on`."""
        if not self._has_begun:
            self._has_begun = True
            asyncio.get_running_loop().call_soon(self._next)
        self._left_bytes -= size_bytes
        if self._left_bytes > 0 and not self._to_read_on:
            return False
        self._to_read_on.append(read_on)
        self._choose()
        return True

    def _next(self) -> None:
        """Begin a turn with the connections that have waited longest."""
        self._left_bytes = turn_bytes_max = _TURN_BYTES_MAX_WHEN_FULL if self.is_full else _TURN_BYTES_MAX
        self._choose()
        count = min(len(self._to_read_on), turn_bytes_max // len(self.to_read_into))
        first = [self._to_read_on.popleft() for _ in range(count)]
        self._has_begun = bool(self._to_read_on)
        if self._has_begun:
            asyncio.get_running_loop().call_soon(self._next)
        for read_on in first:
            read_on()

    def _choose(self) -> None:
        if self._left_bytes <= 0:
            self.to_read_into = self._least
        else:
            self.to_read_into = self._when_full if self.taken >= self.limit else self._usual


class Reservation:
    """The bytes of one holder. The holder must close it in the end."""

    __slots__ = ("_buffers", "held_bytes")

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers
        self.held_bytes = 0

    def set(self, size_bytes: int) -> None:
        """Hold `size_bytes` from now on, whatever the limit."""
        if size_bytes != self.held_bytes:
            self._buffers.change(size_bytes - self.held_bytes)
            self.held_bytes = size_bytes

    async def reserve(self, size_bytes: int, timeout_s: float) -> None:
        """Hold `size_bytes` in all, once there is room. Raises Overloaded."""
        if size_bytes > self.held_bytes:
            try:
                await self._buffers.reserve(size_bytes - self.held_bytes, timeout_s)
            except TimeoutError:
                raise self._buffers.overloaded() from None
            self.held_bytes = size_bytes

    def has_room(self, size_bytes: int) -> bool:
        """Whether a holder that does not wait may hold `size_bytes` in all."""
        return size_bytes <= SMALL_BYTES_MAX or not self._buffers.is_full

    def check(self, size_bytes: int) -> None:
        """Raises Overloaded if a holder that does not wait may not hold `size_bytes` in all."""
        if not self.has_room(size_bytes):
            raise self._buffers.overloaded()

    def hold(self, size_bytes: int) -> None:
        """Hold `size_bytes` in all, at once. Raises Overloaded."""
        self.check(size_bytes)
        self.set(size_bytes)

    def grow(self, size_bytes: int) -> None:
        """Hold `size_bytes` in all. What is less than SMALL_BYTES_MAX more is not counted. Raises Overloaded."""
        if size_bytes > self.held_bytes + SMALL_BYTES_MAX:
            self.hold(size_bytes)

    def close(self) -> None:
        if self.held_bytes:
            self.set(0)
