"""The state of one upstream: not asked yet, up or down; since when, and why (DESIGN 8.12). Metrics, page and alerts say
what it says. Requests go up in every state.

What leads from one state to the next. The last two are both down, and differ in what ends that:

                   answered     no answer     check passes   check fails
    NOT_ASKED      UP           SILENT        UP             UNHEALTHY
    UP             UP           SILENT        UP             UNHEALTHY
    SILENT         UP           SILENT        UP             UNHEALTHY
    UNHEALTHY      UNHEALTHY    UNHEALTHY     UP             UNHEALTHY

"Answered": a whole response has come, whatever its status. "No answer": no connection, none in time, or it broke off.
Nothing is said of an idle connection that the server has closed, and of an answer for which the gateway has no room. A
check fails if its answer has a status of 500 or above.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Literal, TypeAlias

from gateway.transport.repeated_log_lines import LogLimit

log = logging.getLogger("taskgate.upstream")

UpstreamState: TypeAlias = Literal["NOT_ASKED", "UP", "SILENT", "UNHEALTHY"]


class UpstreamHealth:
    """The state of the upstream `upstream`. Times are of `clock`, in seconds since 1970. `said` writes the log."""

    def __init__(self, upstream: str, clock: Callable[[], float], said: LogLimit) -> None:
        self.now: UpstreamState = "NOT_ASKED"
        self.since = clock()  # of not asked yet, up, or down
        self.why = ""  # it is down, in words; empty while it is not
        self.went_down = asyncio.Event()  # set while it is down
        self._upstream = upstream
        self._clock = clock
        self._said = said

    @property
    def is_down(self) -> bool:
        return self.now in ("SILENT", "UNHEALTHY")

    @property
    def name(self) -> str:
        """The state as operators see it: "not asked yet", "up" or "down"."""
        return "down" if self.is_down else "up" if self.now == "UP" else "not asked yet"

    def answered(self) -> None:
        if self.now != "UNHEALTHY":
            self.passed()

    def silent(self, why: str) -> None:
        self._become(self.now if self.is_down else "SILENT", why)

    def passed(self) -> None:
        self._become("UP", "")

    def failed(self, why: str) -> None:
        self._become("UNHEALTHY", why)

    def _become(self, state: UpstreamState, why: str) -> None:
        """It is in this state from now on. What is down in one way and then in another stays down."""
        before, self.now, self.why = self.name, state, why
        if self.name == before:
            return
        since, self.since = self.since, self._clock()
        told = {"upstream": self._upstream, "before": before, "seconds": round(self.since - since, 3)}
        if self.is_down:
            self.went_down.set()
            level, message, told = logging.WARNING, "the upstream is down", {**told, "why": why}
        else:
            self.went_down.clear()
            level, message = logging.INFO, "the upstream is up"
        self._said.say(log, level, message, told, self._upstream, kind="the state of an upstream")
