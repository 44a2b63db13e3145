"""The order of creation in which the pages of a list show its tasks (DESIGN 6.6)."""

from collections.abc import Sequence
from itertools import islice
from operator import ge, le
from typing import Final

from gateway.mcp.task import UNKNOWN, Instant, Task
from gateway.tasks.reconciliation import Listing

INSTANTS_MIN: Final = 8  # of creation: that tasks of so many stand in order is no chance


class ListingOrder:
    def __init__(self) -> None:
        self.count = 0
        self._created = list[Instant]()
        self._page_sizes = set[int]()  # of pages that name a next one

    def restart(self) -> None:
        self._created = []

    def note(self, tasks: Sequence[Task], page_size: int, has_next: bool) -> None:
        """A page shows so many tasks, and these for the first time."""
        self.count += len(tasks)
        self._created += [task.created for task in tasks]
        if has_next:
            self._page_sizes.add(page_size)

    def denies(self, listing: Listing) -> bool:
        """Whether these pages are in no such order.

        Servers that cut pages from everybody's tasks have pages that are empty or shorter, and name a next one.
        """
        created, follows = self._created, le if listing is Listing.APPENDS else ge
        is_even = len(self._page_sizes) <= 1 and 0 not in self._page_sizes
        return not is_even or UNKNOWN in created or not all(map(follows, created, islice(created, 1, None)))

    @property
    def listing(self) -> Listing:
        """Where new tasks will appear, unless that may be chance: tasks of one instant tell nothing."""
        if len({*self._created}) < INSTANTS_MIN:
            return Listing.NEITHER
        return next((one for one in (Listing.APPENDS, Listing.PREPENDS) if not self.denies(one)), Listing.NEITHER)
