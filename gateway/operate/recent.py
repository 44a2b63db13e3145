"""The last requests, failures and queries, for the page.

In: what has ended. Out: rows, the newest first. Always: a fixed number of rows; no id of a session or a task, no token.
Successful requests are kept only while the page is open: without it, a relayed message costs nothing here.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeAlias

Row: TypeAlias = dict[str, Any]

_ROWS: Final = 50
_LOOKS_S: Final = 10.0  # so long after its last request the page counts as open


class Recent:
    """What the page shows as it happens."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._looked_at = float("-inf")
        self.is_watched = False
        self.requests: deque[Row] = deque(maxlen=_ROWS)
        self.failures: deque[Row] = deque(maxlen=_ROWS)
        self.queries: deque[Row] = deque(maxlen=_ROWS)

    def look(self) -> None:
        """The page was asked for: it counts as open for a while."""
        self._looked_at = self._clock()
        self.is_watched = True

    def request(self, failed: bool, **row: Any) -> None:
        """A request has ended."""
        row["at"] = self._clock()
        if self.is_watched and row["at"] - self._looked_at > _LOOKS_S:
            self.is_watched = False
            self.requests.clear()
        if self.is_watched:
            self.requests.appendleft(row)
        if failed:
            self.failures.appendleft(row)

    def query(self, **row: Any) -> None:
        """A query has been answered, or has failed."""
        self.queries.appendleft({"at": self._clock(), **row})
