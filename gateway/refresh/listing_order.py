"""The order of creation in which the pages of a list show its tasks (DESIGN 6.6)."""

from collections.abc import Sequence
from typing import Final

from gateway.mcp.task import UNKNOWN, Instant, Task
from gateway.tasks.reconciliation import Listing

INSTANTS_MIN: Final = 8  # of creation: that tasks of so many stand in order is no chance


class ListingOrder:
    def __init__(self) -> None:
        self.count = 0
        self._page_size: int | None = None  # of each page that names a next one
        self._is_even = True
        self.restart()

    def restart(self) -> None:
        self._last: Instant | None = None
        self._rises = self._falls = True
        self._instants = 0

    def note(self, tasks: Sequence[Task], page_size: int, has_next: bool) -> None:
        """A page shows so many tasks, and these for the first time."""
        if has_next:
            self._is_even &= page_size > 0 and self._page_size in (None, page_size)
            self._page_size = page_size
        self.count += len(tasks)
        for task in tasks:
            at = task.created
            if at == UNKNOWN:
                self._rises = self._falls = False
            elif self._last is not None:
                self._rises &= at >= self._last
                self._falls &= at <= self._last
            self._instants += at != self._last
            self._last = at

    def denies(self, listing: Listing) -> bool:
        """Whether these pages are in no such order."""
        return not (self._is_even and (self._rises if listing is Listing.APPENDS else self._falls))

    @property
    def listing(self) -> Listing:
        """Where new tasks will appear, unless that may be chance: one task tells nothing, nor do tasks of one instant.

        Servers that cut pages from everybody's tasks have pages that are empty or shorter, and name a next one.
        """
        if self._instants < INSTANTS_MIN or not self._is_even:
            return Listing.NEITHER
        return Listing.APPENDS if self._rises else Listing.PREPENDS if self._falls else Listing.NEITHER
