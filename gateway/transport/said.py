"""A line of the log that is written once a second at most, with a count: whoever causes it may do so without end.

In: what has happened, each time. Out: the first at once; then the latest of a second, and how many there were. Always:
the counts of all lines add up; who says also sweeps once a second, and flushes in the end.
"""

import logging
from collections.abc import Callable
from typing import Any, Final

_INTERVAL_S: Final = 1.0


class Said:
    """One line: its level and message at a logger. Times are of `clock`, in seconds."""

    __slots__ = ("_clock", "_count", "_latest", "_level", "_log", "_message", "_next_at")

    def __init__(self, log: logging.Logger, level: int, message: str, clock: Callable[[], float]) -> None:
        self._log = log
        self._level = level
        self._message = message
        self._clock = clock
        self._count = 0
        self._latest: dict[str, Any] = {}
        self._next_at = float("-inf")

    def say(self, extra: dict[str, Any]) -> None:
        """It has happened once more."""
        self._count += 1
        self._latest = extra
        self.sweep()

    def sweep(self) -> None:
        """Write what is not written yet, if it is time."""
        if self._count and self._clock() >= self._next_at:
            self.flush()

    def flush(self) -> None:
        """Write what is not written yet."""
        if self._count:
            self._log.log(self._level, self._message, extra={**self._latest, "count": self._count})
            self._count, self._latest, self._next_at = 0, {}, self._clock() + _INTERVAL_S
