"""Connections that send much are read in turns, so that no turn of the event loop takes long.

In: how much was read of which connection. Out: the buffer for the next read; its size limits the read.
Always: one turn of the loop reads `_TURN_BYTES_MAX`, less when the buffers are full, and then `_READ_BYTES_MIN` of each
further connection. Who sends more waits in order; a small message never does. Without this libuv reads up to 32 times
`_READ_BYTES_MAX` of each connection in one turn: 500 of them held the loop for half a second.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

_READ_BYTES_MAX: Final = 64 * 1024
_READ_BYTES_MAX_WHEN_FULL: Final = 16 * 1024
_READ_BYTES_MIN: Final = 4 * 1024
_RECORD_BYTES_MAX: Final = 16 * 1024  # RFC 8446, 5.1
_TURN_BYTES_MAX: Final = 320 * 1024  # more than a body holds: a stream that is alone never waits
_TURN_BYTES_MAX_WHEN_FULL: Final = 128 * 1024
LARGE_BYTES_MIN: Final = _READ_BYTES_MIN  # smaller reads do not count


class ReadScheduler:
    """The turns of one gateway. The next read of any socket overwrites `to_read_into`."""

    def __init__(self) -> None:
        # Every read of a socket goes through it; the rest of a record of TLS, whose beginning filled it, too.
        self.scratch = memoryview(bytearray(_READ_BYTES_MAX + _RECORD_BYTES_MAX))
        self._usual = self.scratch[:_READ_BYTES_MAX]
        self._when_full = self.scratch[:_READ_BYTES_MAX_WHEN_FULL]
        self._least = self.scratch[:_READ_BYTES_MIN]
        self.to_read_into = self._usual
        self._is_full = False
        self._left_bytes = _TURN_BYTES_MAX
        self._has_begun = False
        self._waiting: deque[Callable[[], None]] = deque()

    def limit(self, is_full: bool) -> None:
        """Say whether `limits.held_bytes_max` is reached: then reads and turns are smaller."""
        self._is_full = is_full
        self._choose()

    def took(self, size_bytes: int, read_on: Callable[[], None]) -> bool:
        """Count a large read. True if others wait, or the turn is used up: then read no more until `read_on`."""
        if not self._has_begun:
            self._has_begun = True
            asyncio.get_running_loop().call_soon(self._next)
        self._left_bytes -= size_bytes
        if self._left_bytes > 0 and not self._waiting:
            return False
        self._waiting.append(read_on)
        self._choose()
        return True

    def _next(self) -> None:
        """Begin a turn with the connections that have waited longest."""
        self._left_bytes = turn_bytes_max = _TURN_BYTES_MAX_WHEN_FULL if self._is_full else _TURN_BYTES_MAX
        self._choose()
        count = min(len(self._waiting), turn_bytes_max // len(self.to_read_into))
        first = [self._waiting.popleft() for _ in range(count)]
        self._has_begun = bool(self._waiting)
        if self._has_begun:
            asyncio.get_running_loop().call_soon(self._next)
        for read_on in first:
            read_on()

    def _choose(self) -> None:
        if self._left_bytes <= 0:
            self.to_read_into = self._least
        else:
            self.to_read_into = self._when_full if self._is_full else self._usual
