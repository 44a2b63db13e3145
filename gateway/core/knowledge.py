"""What is known of the tasks of one session, and when it was learned.

In: what passed, what was asked for, the pages of a crawl; each with the time of the request that it answers, if it
answers one. Out: the index, and the times that `core/freshness.py` decides by. Always: pure; never backwards: a task
that was found to be gone stays so until something that was asked for later shows it, and an answer that was on its way
while a crawl went by is not believed until the task was asked for; nor is the later to come of two reports that no
timestamp tells apart, unless it was asked for once the other was here. Times are seconds of one monotonic clock.
"""

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Final

import msgspec

from gateway.core.index import Index
from gateway.core.observe import Observation
from gateway.core.task import UNKNOWN, Instant, Task

NEVER: Final = float("-inf")
_NOTE_BYTES: Final = 300  # what is noted of a single task beside the index
NOTED_ID_CHARS_MAX: Final = 256  # anybody may ask for a longer id, and nothing is noted of it


class Listing(Enum):
    """In which order the upstream lists its tasks, as far as the last crawl saw it."""

    APPENDS = "appends"  # new tasks come last
    PREPENDS = "prepends"  # new tasks come first
    NEITHER = "neither"


class Suspicion(msgspec.Struct):
    """A task may be gone, or be in another state than what is indexed."""

    since: float  # who asks from then on waits until it is settled
    at: float  # what was asked for then or later settles it


class Knowledge(msgspec.Struct):
    """When what is indexed was learned. A time is that of the request that it was learned by, or later."""

    believed_from: float = NEVER  # what was asked for earlier may be older than what was known then
    crawled_at: float = NEVER  # all pages were read
    looked_at: float = NEVER  # the page where new tasks appear was read
    live_at: float = NEVER  # every task that was live then was reported
    doubted_at: float = NEVER  # something passed that may have changed anything
    confirmed: dict[str, float] = {}  # single tasks were reported that a list has shown
    told: dict[str, float] = {}  # when reports of single live tasks came, not on pages
    listed_at: float = NEVER  # when the last page came
    gone: dict[str, float] = {}  # single tasks were found to be gone
    suspect: dict[str, Suspicion] = {}
    unlisted: dict[str, float] = {}  # others were reported: as no list has shown them, nothing else confirms them
    unlisted_at: float = NEVER  # all of those were reported
    listing: Listing = Listing.NEITHER
    pages: int = 0  # that a crawl takes
    cursors: list[str | None] = []  # of the last pages, the very last one at the end
    asks_by_id: bool = True  # the upstream knows `tasks/get`

    def confirm(self, task_id: str, at: float) -> None:
        """A task was reported."""
        reported = self.unlisted if task_id in self.unlisted else self.confirmed
        reported[task_id] = max(at, reported.get(task_id, NEVER))

    def reported_at(self, task_id: str) -> float:
        """When a task was last reported alone."""
        at = self.unlisted.get(task_id)
        return self.confirmed.get(task_id, NEVER) if at is None else at

    def speaks_for(self, task_id: str, began_at: float) -> bool:
        """Whether a task is there though a crawl begun at `began_at` does not list it: its own reports say so."""
        return self.reported_at(task_id) >= began_at or (self.asks_by_id and task_id in self.unlisted)

    def confirmed_at(self, task_id: str) -> float:
        """When a task was last reported, alone or by a crawl."""
        at = self.unlisted.get(task_id)
        return max(self.confirmed.get(task_id, NEVER), self.crawled_at) if at is None else at

    def suspects(self, task_id: str, since: float, now: float) -> None:
        """Something hints at a task's being gone, or in another state; who asked before `since` need not know."""
        before = self.suspect.get(task_id)
        self.suspect[task_id] = Suspicion(since if before is None else min(since, before.since), now)

    def is_unlisted_since(self, at: float) -> None:
        """A task that no list shows was last reported at `at`."""
        self.unlisted_at, self.live_at = min(self.unlisted_at, at), min(self.live_at, at)

    def settles(self, task_id: str, asked_at: float) -> None:
        """What was asked for at `asked_at` has come: if something has hinted at more since, who asked before has it."""
        suspicion = self.suspect.get(task_id)
        if suspicion is not None and suspicion.at <= asked_at:
            del self.suspect[task_id]
        elif suspicion is not None:
            suspicion.since = max(suspicion.since, asked_at)


class Record:
    """The tasks of one session, as far as they are known."""

    def __init__(self) -> None:
        self.index = Index()
        self.known = Knowledge()
        self.crawl = 0  # the number of the last crawl

    @property
    def size_bytes(self) -> int:
        """What all of it takes."""
        known = self.known
        noted = len(known.confirmed) + len(known.told) + len(known.gone) + len(known.suspect) + len(known.unlisted)
        return self.index.size_bytes + _NOTE_BYTES * noted

    def take(self, observation: Observation, asked_at: float | None, now: float, since: Task | None = None) -> None:
        """Take in what passed. What answers a request made at `asked_at` is a state of that time or later.

        `since` is what was known of the task then, where one was asked for.
        """
        for task in observation.tasks:
            gone_at = self.known.gone.get(task.id)
            if gone_at is None or (asked_at is not None and asked_at > gone_at):
                self._report(task, asked_at, now, since)
        for task_id in observation.gone:
            self.forget(task_id, now)
        for task_id in observation.suspect:
            if len(task_id) <= NOTED_ID_CHARS_MAX:
                self.known.suspects(task_id, now, now)  # known or not: a page on its way may yet bring it, as of before
        for task_id in observation.ended:
            known = self.index.get(task_id)
            if len(task_id) <= NOTED_ID_CHARS_MAX and (known is None or not known.is_terminal):
                self.known.suspects(task_id, now, now)
        if observation.doubt:
            self.known.doubted_at = now

    def _report(self, task: Task, asked_at: float | None, now: float, since: Task | None) -> None:
        known, before = self.known, self.index.get(task.id)
        unclear = (
            before is not since  # else nothing came between
            and _is_tie(before, task)
            and (asked_at is None or asked_at < max(known.told.get(task.id, NEVER), known.listed_at))
        )
        unseen = before is None and (asked_at is None or asked_at < known.believed_from)
        hidden = unseen and (known.believed_from != NEVER or not known.asks_by_id)
        if unclear or (hidden and asked_at is None):
            known.suspects(task.id, now, now)
        else:
            if before is None or before.crawl != self.crawl:
                # Until a page shows it.
                known.unlisted.setdefault(task.id, NEVER if before is None else known.confirmed_at(task.id))
                known.confirmed.pop(task.id, None)
            self.index.put(task)
            if asked_at is not None:
                known.confirm(task.id, asked_at)
                if hidden:  # a crawl has not shown it since, or one that cannot ask for it may not
                    known.suspects(task.id, asked_at, now)
                known.settles(task.id, asked_at)
            known.is_unlisted_since(known.unlisted.get(task.id, now))
        if not task.is_terminal:
            known.told[task.id] = now

    def forget(self, task_id: str, now: float) -> None:
        """The task was found to be gone, at `now`."""
        self.index.remove(task_id)
        self.known.unlisted.pop(task_id, None)
        if (suspicion := self.known.suspect.get(task_id)) is not None and suspicion.at < now:
            del self.known.suspect[task_id]
        self.known.confirmed.pop(task_id, None)
        self.known.told.pop(task_id, None)
        if len(task_id) <= NOTED_ID_CHARS_MAX:
            self.known.gone[task_id] = now

    def listed(self, tasks: Sequence[Task], asked_at: float, now: float) -> list[Task]:
        """Take in tasks of a page that was asked for at `asked_at`; returns those that this crawl had not shown yet."""
        known = self.known
        known.listed_at = now
        there = [task for task in tasks if known.gone.get(task.id, NEVER) < asked_at]
        told_since = [task for task in there if known.told.get(task.id, NEVER) > asked_at] if known.told else ()
        unclear = {task.id for task in told_since if _is_tie(self.index.get(task.id), task)}
        for task_id in unclear:
            known.suspects(task_id, NEVER, now)
        clear = [task for task in there if task.id not in unclear] if unclear else there
        self.index.put_all(clear)
        if known.unlisted:
            found = [task.id for task in there if task.id in known.unlisted]
            known.confirmed.update({task_id: known.unlisted.pop(task_id) for task_id in found})
        return [task for task in there if self.index.mark(task.id, self.crawl)]

    def confirm(self, tasks: Sequence[Task], asked_at: float) -> None:
        """These were listed by a page that no crawl asked for, at `asked_at`."""
        for task in tasks:
            self.known.confirm(task.id, asked_at)

    def crawls(self, began_at: float) -> None:
        """All pages are read from now on."""
        known = self.known
        self.crawl += 1
        if known.listing is Listing.PREPENDS:
            known.listing = Listing.NEITHER  # else what a crawl that breaks off has seen would hide what it has not
        if not known.asks_by_id:
            known.believed_from = began_at  # what is made meanwhile may be on pages that were read before

    def asks_no_more_by_id(self, now: float) -> None:
        """The upstream does not know `tasks/get`: what no page has shown is unknown until one may have."""
        self.known.asks_by_id = False
        self.known.believed_from = max(self.known.believed_from, now)
        for task_id in self.known.unlisted:
            self.known.suspects(task_id, NEVER, now)

    def unseen(self, began_at: float) -> Iterator[list[str]]:
        """The tasks that once were listed, and that the crawl begun at `began_at` did not list; some at a time.

        Without those that were reported since, and those that no list shows and that can be asked for by their ids.
        """
        known = self.known
        if known.asks_by_id and len(known.unlisted) == len(self.index):
            return  # as with a server whose list is always empty
        for tasks in self.index.parts():
            yield [task.id for task in tasks if task.crawl != self.crawl and not known.speaks_for(task.id, began_at)]

    def crawled(
        self, began_at: float, ended_at: float, pages: int, cursors: list[str | None], listing: Listing
    ) -> None:
        """All pages were read, from `began_at` on: what was noted of single tasks before that is of no use any more."""
        known = self.known
        known.believed_from = ended_at
        known.crawled_at = known.looked_at = began_at
        known.pages, known.cursors, known.listing = pages, cursors, listing
        known.confirmed = {i: at for i, at in known.confirmed.items() if at >= began_at}
        known.told = {i: at for i, at in known.told.items() if at >= began_at}
        known.gone = {i: at for i, at in known.gone.items() if at >= began_at}
        known.suspect = {i: s for i, s in known.suspect.items() if s.at >= began_at or self._is_told_by_id(i)}
        for suspicion in known.suspect.values():
            if suspicion.since != NEVER and not known.asks_by_id:
                suspicion.since = max(suspicion.since, began_at)
        if not known.unlisted:
            known.live_at = known.unlisted_at = began_at

    def _is_told_by_id(self, task_id: str) -> bool:
        """Whether only `tasks/get` tells of a task."""
        return self.known.asks_by_id and (task_id in self.known.unlisted or self.index.get(task_id) is None)


def _is_tie(before: Task | None, report: Task) -> bool:
    """Whether no timestamp tells which of two reports is the later one: some servers' clocks count whole seconds."""
    return (
        before is not None
        and before.updated.at == report.updated.at
        and before.raw != report.raw
        and not (before.is_terminal or report.is_terminal)
    )


class Order:
    """In which order of creation the pages of a crawl show their tasks."""

    def __init__(self) -> None:
        self.count = 0
        self.restart()

    def restart(self) -> None:
        """The pages are read from the first one on."""
        self._last: Instant | None = None
        self._rises = self._falls = True

    def note(self, tasks: Sequence[Task]) -> None:
        """Further tasks were shown, each for the first time."""
        self.count += len(tasks)
        for task in tasks:
            at = task.created.at
            if at == UNKNOWN:
                self._rises = self._falls = False
            elif self._last is not None:
                self._rises &= at >= self._last
                self._falls &= at <= self._last
            self._last = at

    @property
    def listing(self) -> Listing:
        """What they let one expect of new tasks; a single task tells nothing, nor do tasks of one instant."""
        if self._rises == self._falls:
            return Listing.NEITHER
        return Listing.APPENDS if self._rises else Listing.PREPENDS
