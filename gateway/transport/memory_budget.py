"""One count of all bytes that are held for clients and upstreams together, and its limit.

In: how much each holder holds: bodies on their way, inspected bodies and events, heads, requests that wait behind
others, bytes that a peer has yet to take. Out: whether there is room for more.
Always: at `limits.held_bytes_max` the gateway goes on serving (DESIGN 7.6). Small amounts (SMALL_BYTES_MAX) are still
held; a larger body waits for room, first come, first served, and gets 503 if none comes free; a body that would only be
inspected passes unread; every connection is read a little at a time.
"""

import asyncio
from collections import deque
from typing import Final

from gateway.errors import Overloaded
from gateway.transport.fair_reading import ReadScheduler

SMALL_BYTES_MAX: Final = 64 * 1024


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
    """The count for one gateway, in bytes. `turns` divides the reading."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__(bytes_max)
        self.read_scheduler = ReadScheduler()

    def gauges(self) -> dict[str, tuple[str, float]]:
        """What is held now, and its limit: name of the metric to (help, value)."""
        return {
            "held_bytes": ("Bytes held for clients and upstreams.", self.taken),
            "held_bytes_max": ("Limit of held_bytes.", self.limit),
        }

    def change(self, by: int) -> None:
        super().change(by)
        self.read_scheduler.limit(self.is_full)

    def overloaded(self) -> Overloaded:
        return Overloaded(f"{self.taken} bytes are held; limits.held_bytes_max is {self.limit}")


class Reservation:
    """The bytes of one holder. The holder must close it in the end."""

    __slots__ = ("_buffers", "held_bytes")

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers
        self.held_bytes = 0

    def set(self, size_bytes: int) -> None:
        """Hold `size_bytes` from now on, whatever the limit."""
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
