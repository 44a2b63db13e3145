"""Lines of the log that are written once a second at most, with a count: whoever causes one may do so without end."""

import logging
from collections.abc import Callable
from typing import Any, Final, TypeAlias

_INTERVAL_S: Final = 1.0

_Cause: TypeAlias = tuple[str, object]  # a message, or a kind of them, and what tells its lines apart


class LogLimit:
    """Lines by message and cause. Times are of `clock`, in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._waiting: dict[_Cause, tuple[int, logging.Logger, int, str, dict[str, Any]]] = {}  # not written yet
        self._next_at: dict[_Cause, float] = {}

    def say(
        self, log: logging.Logger, level: int, message: str, extra: dict[str, Any], cause: object = None, kind: str = ""
    ) -> None:
        """It has happened once more. Causes come from a list that cannot grow. Of a `kind` the last message is told."""
        key = kind or message, cause
        self._waiting[key] = self._waiting.get(key, (0,))[0] + 1, log, level, message, extra
        self._write(key)

    def sweep(self) -> None:
        self._write(*self._waiting)

    def flush(self) -> None:
        self._next_at.clear()
        self.sweep()

    def _write(self, *causes: _Cause) -> None:
        for cause in causes:
            if self._clock() >= self._next_at.get(cause, 0.0):
                count, log, level, message, extra = self._waiting.pop(cause)
                self._next_at[cause] = self._clock() + _INTERVAL_S
                log.log(level, message, extra={**extra, "count": count})
