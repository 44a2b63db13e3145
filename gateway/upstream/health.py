"""The state of one upstream: not asked yet, up or down; since when, and why (DESIGN 8.12). Metrics, page and alerts say
what it says. Requests go up in every state.

What leads from one state to the next (`-`: cannot be). The last three are all down, and differ in what ends that:

                   answered     no connection   no answer     a probe connects  check passes   check fails
    NOT_ASKED      UP           UNREACHABLE     SILENT        -                 UP             UNHEALTHY
    UP             UP           UNREACHABLE     SILENT        UP                UP             UNHEALTHY
    UNREACHABLE    UP           UNREACHABLE     UNREACHABLE   UP                UP             UNHEALTHY
    SILENT         UP           SILENT          SILENT        SILENT            UP             UNHEALTHY
    UNHEALTHY      UNHEALTHY    UNHEALTHY       UNHEALTHY     UNHEALTHY         UP             UNHEALTHY

"Answered": the head of a response has come, whatever its status. "No answer": none in time, or it broke off. Nothing is
said of an idle connection that the server has closed, and of an answer for which the gateway has no room. A check fails
if its answer has a status of 500 or above.
"""

import asyncio
import logging
from collections.abc import Callable
from enum import Enum
from typing import Final

log = logging.getLogger("taskgate.upstream")


class UpstreamState(Enum):
    """What an upstream is, as the last event has shown."""

    NOT_ASKED = "not asked"
    UP = "up"
    UNREACHABLE = "unreachable"  # down, until there is a connection
    SILENT = "silent"  # down, until there is an answer
    UNHEALTHY = "unhealthy"  # down, until a health check passes


UP: Final = UpstreamState.UP  # to get a member from its class costs a call of a function
_ASKED_LITTLE: Final = (UpstreamState.NOT_ASKED, UP)


class UpstreamHealth:
    """The state of the upstream `upstream`. Times are of `clock`, in seconds since 1970."""

    def __init__(self, upstream: str, clock: Callable[[], float]) -> None:
        self.now = UpstreamState.NOT_ASKED
        self.since = clock()  # of not asked yet, up, or down
        self.why = ""  # it is down, in words; empty while it is not
        self.went_down = asyncio.Event()  # set while it is down
        self._upstream = upstream
        self._clock = clock

    @property
    def is_down(self) -> bool:
        return self.now not in _ASKED_LITTLE

    @property
    def name(self) -> str:
        """The state as operators see it: "not asked yet", "up" or "down"."""
        return "down" if self.is_down else "up" if self.now is UP else "not asked yet"

    def answered(self) -> None:
        if self.now is not UpstreamState.UNHEALTHY:
            self.passed()

    def unreachable(self, why: str) -> None:
        self._fall(UpstreamState.UNREACHABLE, why)

    def silent(self, why: str) -> None:
        self._fall(UpstreamState.SILENT, why)

    def connected(self) -> None:
        if self.now is UpstreamState.UNREACHABLE:
            self.passed()

    def failed(self, why: str) -> None:
        self._fall(UpstreamState.UNHEALTHY, why)
        self.now = UpstreamState.UNHEALTHY

    def passed(self) -> None:
        if self.now is not UP:
            self._change(UP, logging.INFO, {})
            self.why = ""
            self.went_down.clear()

    def _fall(self, to: UpstreamState, why: str) -> None:
        """It is down from now on, in this way; it stays down as it is."""
        self.why = why
        if not self.is_down:
            self._change(to, logging.WARNING, {"why": why})
            self.went_down.set()

    def _change(self, to: UpstreamState, level: int, extra: dict[str, object]) -> None:
        now, before, since = self._clock(), self.name, self.since
        self.now, self.since = to, now
        told = {"upstream": self._upstream, "before": before, "seconds": round(now - since, 3), **extra}
        log.log(level, f"the upstream is {self.name}", extra=told)
