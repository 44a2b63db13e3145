"""The last requests, failures and queries, and why requests fail, for the page: a fixed number of rows."""

from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any, Final, NamedTuple, TypeAlias

from msgspec import Struct

Row: TypeAlias = dict[str, Any]

_ROWS: Final = 50
_OPEN_S: Final = 30.0  # so long after its last request the page counts as open: in the background it asks seldom
_QUIET_S: Final = 300.0  # a failure after so long is the first of a new run


class Reason(NamedTuple):
    """Why requests fail: at which upstream, what failed as the log has it, and whether clients could not help it."""

    upstream: str
    failure: str
    is_fault: bool


class Failures(Struct):
    """The failures of one reason: how many, the first and the last of the present run, in seconds since 1970."""

    count: int = 0
    since: float = float("-inf")
    last: float = float("-inf")
    why: str = ""

    def add(self, at: float, why: str) -> None:
        if at - self.last > _QUIET_S:
            self.since = at
        self.count, self.last, self.why = self.count + 1, at, why


class Recent:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._opened_at = float("-inf")
        self._numbers = count()
        self.is_watched = False
        self.requests: deque[Row] = deque(maxlen=_ROWS)
        self.failures: deque[Row] = deque(maxlen=_ROWS)
        self.queries: deque[Row] = deque(maxlen=_ROWS)
        self.reasons: dict[Reason, Failures] = {}

    def opened(self) -> None:
        """The page was asked for: it counts as open for a while."""
        self._opened_at, self.is_watched = self._clock(), True

    def request(self, reason: Reason | None, **row: Any) -> None:
        row["at"], row["n"] = self._clock(), next(self._numbers)
        if self.is_watched and row["at"] - self._opened_at > _OPEN_S:
            self.is_watched = False
            self.requests.clear()
        if self.is_watched:
            self.requests.appendleft(row)
        if reason is not None:
            self.failures.appendleft(row)
            self.reasons.setdefault(reason, Failures()).add(row["at"], row["why"])

    def query(self, **row: Any) -> None:
        self.queries.appendleft({"at": self._clock(), "n": next(self._numbers), **row})
