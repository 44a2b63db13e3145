"""What is known of the tasks of one session: the index, what is marked, what is gone.

In: answers to the gateway's own `tasks/get` and `tasks/list`, each with a `Stamp`; what passes. Out: tasks, as of when
each is known, and which must be asked for again.
Always: only own answers write what the index says of a task; what passes writes marks, and renews ages (DESIGN 6.4).
Of two answers the one that was asked for after the other came is newer. If they overlap and differ, the task is marked,
and every query waits for the next answer; but a terminal state is final within one `createdAt`. A mark is settled by an
answer that was asked for after it. The caller gives the moments.
"""

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import Final

import msgspec

from gateway.mcp.task import NEVER, UNKNOWN, Instant, Moment, Stamp, Task, text_bytes
from gateway.owners.eviction import CountedIds
from gateway.tasks.index import Index

MARKS_MAX: Final = 10_000  # of a session; beyond them everything is in doubt
GONE_MAX: Final = 30_000  # tasks of a session, the newest ones: more than a query can name (`CRITERIA_BYTES_MAX`)
MARKED_ID_CHARS_MAX: Final = 256  # of an id that only a client names
_MARK_BYTES: Final = 250  # of a mark or of a gone task beside its id, at most (tests/rules/test_reconciliation.py)
_UNLISTED_BYTES: Final = 100  # of the place of an unlisted task
ORDERS_MIN: Final = 40_320.0  # in which tasks can stand, so that one order is no chance: those of eight
_ALL: Final = 0  # as `Mark.first`: every query waits


class Listing(Enum):
    """The order in which the upstream lists its tasks, as far as the last crawl saw it."""

    APPENDS = "appends"  # new tasks come last
    PREPENDS = "prepends"  # new tasks come first
    NEITHER = "neither"


class Mark(msgspec.Struct, gc=False):
    """A task must be asked for again: something else was said of it than the index says, or answers overlapped."""

    first: int  # queries that came from then on wait for it
    last: int  # an answer that was asked for later settles it
    seen: bool  # a success named the task: it is asked for though the index lacks it
    made: int = 0  # when a result made it: the first answer asked for later may show a new task under an old id
    method: str | None = None  # of the request that made it
    failed: int = 0  # own requests for it, as the index lacks it
    told: bool = False  # other replicas know that it is there
    denied: bool = False  # ... or did: something has denied it since
    found: bool = False  # nothing here names it but what answers have shown elsewhere (task_ids_seen_by_caller.py)


class Known(msgspec.Struct):
    """As of when an index is known. Moments `..._as_of` are requests': it shows something as of then, or later."""

    crawled: Stamp = Stamp(NEVER, 0, 0)  # promises every listed task, and which tasks are listed
    new_as_of: Moment = NEVER  # promises that every task made before is known; never earlier than `crawled`
    live_as_of: Moment = NEVER  # promises every task that was live then
    unlisted_as_of: Moment = NEVER  # promises every unlisted task
    doubted: int = 0  # when something passed unread: all that was known then may be old
    refused: int = 0  # when a request was refused last
    accepted: int = 0  # when the last `tasks/*` of the gateway's that has succeeded was asked for
    outgrown: str = ""  # what the session has more of than an index may hold, as far as is known: nothing is taken in
    outgrown_until: float = float("-inf")  # until then no crawl tries again
    has_listed: bool = False  # a `tasks/list` has succeeded
    asked_as: tuple[bytes, float] = (b"", 0.0)  # for what its caller was asked first, with success, and when (5.1)
    listing: Listing = Listing.NEITHER
    pages: int = 0  # of the last crawl
    cursors: list[str | None] = []  # of the last pages; the last one is at the end
    ends_empty: bool = False  # the last page of the last crawl names an empty cursor
    asks_by_id: bool = True  # else the upstream does not know `tasks/get`, as far as is known ...
    asks_again_at: float = 0.0  # ... until then

    def is_hidden(self, came: int) -> bool:
        """Whether a query that came then must ask first if the caller is still served (DESIGN 7.4)."""
        return self.refused > 0 and self.accepted <= min(self.refused, came)

    def accept(self, asked: int, lists: bool = False) -> None:
        """A `tasks/*` of the gateway's that was asked for then has succeeded; `lists`: it was a `tasks/list`."""
        self.has_listed |= lists
        self.accepted = max(self.accepted, asked)

    def fail_tail(self) -> None:
        """The page where new tasks appear cannot be found: only a crawl helps."""
        self.crawled = Stamp(NEVER, self.crawled.asked, self.crawled.came)


class Marks(CountedIds[Mark]):
    """The marks of a session."""

    def add(self, task_id: str, at: int, seen: bool, first: int | None, method: str | None) -> Mark | None:
        """Mark a task, or mark it again. None if there are too many marks."""
        mark, first = self.get(task_id), at if first is None else first
        if mark is not None:
            mark.found = False
            mark.first, mark.last = min(mark.first, first), max(mark.last, at)
            mark.seen, mark.method = mark.seen or seen, method or mark.method
        elif len(self) < MARKS_MAX:
            mark = Mark(first, at, seen, method=method)
            self.put(task_id, mark)
        return mark

    def made(self, task_id: str, asked: int) -> Mark | None:
        """The mark that says that the task was made before an answer was asked for; None if none says so."""
        mark = self.get(task_id)
        return mark if mark is not None and 0 < mark.made < asked else None

    def settle(self, task_id: str, asked: int) -> None:
        """An answer that was asked for then was taken in. Later marks stay: it is enough for queries from before it."""
        mark = self.get(task_id)
        if mark is None:
            return
        if asked > mark.last:
            self.drop(task_id)
            return
        if mark.first == _ALL:  # answers overlapped: every query waits for one that was asked for since
            return
        mark.first = max(mark.first, asked)
        if asked > mark.made:
            mark.made, mark.method = 0, None


class Marking:
    """What passes, and what is marked for it."""

    index: Index
    known: Known
    marks: Marks
    gone: CountedIds[Stamp]

    def tell(self, task_id: str, raw: bytes, asked: Moment | None, now: Moment) -> None:
        """What passed shows a task in this state (empty: unknown), asked for then: renew its age, or mark it."""
        before = self.index.get(task_id)
        if before is not None and before.raw == raw:
            self.renew(before, asked, now)
        elif not self.mark_again(task_id, now):
            self.mark(task_id, now)

    def renew(self, task: Task, asked: Moment | None, now: Moment) -> None:
        """A client is told the same now. `asked`: when it asked for it. An own answer under way overlaps with that."""
        as_of = task.told.as_of if asked is None else max(asked, task.told.as_of)
        self.index.stamp(task, Stamp(as_of, task.told.asked, now.order, is_own=True))

    def end(self, task_id: str, now: Moment, has_failed: bool = False) -> None:
        """A task has ended. `has_failed`: an error says so, which says nothing of whether the task is there."""
        before = self.index.get(task_id)
        if (before is None and not has_failed) or (before is not None and not before.is_terminal):
            self.mark(task_id, now)

    def make(self, task_id: str, method: str | None, now: Moment) -> None:
        if (mark := self.mark(task_id, now, method=method)) is not None:
            mark.made = now.order

    def deny(self, task_id: str, now: Moment, is_asking: bool) -> None:
        """What passed may say that a task is not there. `is_asking`: an own answer under way may still bring it."""
        if self.index.get(task_id) is not None or (is_asking and len(task_id) <= MARKED_ID_CHARS_MAX):
            self.mark(task_id, now, seen=False)

    def doubt(self, now: Moment) -> None:
        """Something passed unread. It may have changed anything."""
        self.known.doubted = now.order

    def mark(
        self, task_id: str, now: Moment, seen: bool = True, first: int | None = None, method: str | None = None
    ) -> Mark | None:
        """A task must be asked for again. Queries from before `first` need not wait. None if there are too many."""
        mark = self.marks.add(task_id, now.order, seen, first, method)
        if mark is None:
            self.doubt(now)
        return mark

    def mark_again(self, task_id: str, now: Moment) -> bool:
        """A success names a task that is marked for another already: only when changes. False if more may change."""
        mark = self.marks.get(task_id)
        if mark is None or not mark.seen or mark.found or task_id in self.gone:
            return False
        mark.last = now.order
        return True

    def find(self, task_id: str, at: Moment) -> None:
        """A task was shown elsewhere then: it is asked for once. There is room for its mark."""
        found = (mark := self.marks.get(task_id)) is None or mark.found
        if (mark := self.marks.add(task_id, at.order, True, None, None)) is not None:
            mark.found = found

    def due(self, came: int) -> list[str]:
        """The ids of the marked tasks that a query from `came` waits for."""
        return [i for i, mark in self.marks.items() if mark.first <= came and (mark.seen or self.index.get(i))]

    def is_due(self, task_id: str, came: int) -> bool:
        mark = self.marks.get(task_id)
        return mark is not None and mark.first <= came


class Record(Marking):
    """The tasks of one session, as far as they are known."""

    def __init__(self) -> None:
        self.empty()

    def empty(self) -> None:
        self.index = Index()
        self.known = Known()
        self.crawl = 1  # the number of the last crawl; a task that no page has shown has 0
        self.marks = Marks(_MARK_BYTES)
        # Not in the index: an answer said that they are not there. Who asks for single tasks alone never crawls.
        self.gone = CountedIds[Stamp](_MARK_BYTES, GONE_MAX)
        self.unlisted: dict[str, None] = {}  # in the index: no page has shown them since the last crawl began

    @property
    def size_bytes(self) -> int:
        cursors_bytes = sum(text_bytes(cursor) for cursor in self.known.cursors if cursor is not None)
        ids_bytes = self.marks.size_bytes + self.gone.size_bytes + _UNLISTED_BYTES * len(self.unlisted)
        return self.index.size_bytes + ids_bytes + cursors_bytes

    @property
    def as_of(self) -> Moment:
        """The oldest moment that the index may reflect."""
        as_of = min(self.known.new_as_of, self.known.live_as_of)
        return as_of if self.unlisted else max(as_of, self.known.crawled.as_of)

    # ---- own answers ----

    def take(self, task: Task, told: Stamp, now: Moment) -> None:
        """Take in a task that the gateway's own `tasks/get` has brought."""
        before = self.index.get(task.id)
        is_clear = self._take(task, told, before)
        after = self.index.get(task.id)
        if after is not None and after.crawl != self.crawl and task.id not in self.unlisted:
            self.unlisted[task.id] = None
        if after is not None and task.id in self.unlisted:  # it may be older than what is promised of all of them
            as_of = after.told.as_of
            self.known.unlisted_as_of = min(self.known.unlisted_as_of, as_of)
            self.known.live_as_of = min(self.known.live_as_of, as_of)
        if not is_clear:
            self.mark(task.id, now, first=_ALL)

    def listed(self, tasks: Sequence[Task], told: Stamp, now: Moment) -> list[Task]:
        """Take in tasks of an own page. Returns those that are new in this crawl."""
        new = list[Task]()
        for task in tasks:
            before = self.index.get(task.id)
            if before is not None and before.raw == task.raw and task.id not in self.marks:
                self.index.stamp(before, _both(before.told, told))
            elif not self._take(task, told, before):
                self.mark(task.id, now, first=_ALL)
            after = self.index.get(task.id)
            is_one = after is not None and after.created == task.created  # else it shows a life before
            if is_one and self.index.mark(task.id, self.crawl):
                new.append(task)
                self.unlisted.pop(task.id, None)
        return new

    def _take(self, task: Task, told: Stamp, before: Task | None) -> bool:
        """Take in a task. False if it is not clear whether this answer is newer than what is known: its mark stays."""
        if before is None:
            # The later of the answers that it is not there: its own, or the last crawl's.
            absent = max(self.gone.get(task.id, self.known.crawled), self.known.crawled, key=lambda one: one.came)
            if told.came < absent.asked:
                return True
            self.gone.drop(task.id)
            made = self.marks.made(task.id, told.asked)
            self._put(task, told, None if made is None else made.method)
            if told.asked <= absent.came:
                return False
        elif told.came < before.told.asked:
            return True
        elif not self._take_again(task, told, before):
            return False
        self.marks.settle(task.id, told.asked)
        return True

    def _take_again(self, task: Task, told: Stamp, before: Task) -> bool:
        """Take in a task that the index has. False if it is not clear which answer is newer."""
        made = self.marks.made(task.id, told.asked)
        method = None if made is None else made.method
        was_made = made is not None and before.told.asked <= made.made  # since the answer that the index has
        if told.asked > before.told.came:
            ends = before.is_terminal and (task.status != before.status or method is not None)
            if before.created != task.created or (was_made and ends):  # another life: of it no page has shown anything
                self.index.remove(task.id)
                self._put(task, told, method)
            elif before.is_terminal and task.status != before.status:
                self.index.stamp(before, told)
            else:
                self._put(task, told, method)
            return True
        if before.raw == task.raw:
            self._put(task, _both(before.told, told), method)
            return True
        if before.created != task.created or not (before.is_terminal or task.is_terminal):
            return False
        if before.is_terminal:
            return not was_made  # else it may be of the life before
        self._put(task, told, method)
        return True

    def _put(self, task: Task, told: Stamp, method: str | None) -> None:
        if method is not None:
            task = msgspec.structs.replace(task, method=method)
        self.index.put(task)
        if (after := self.index.get(task.id)) is not None:
            self.index.stamp(after, told)

    def miss(self, task_id: str, told: Stamp, now: Moment) -> None:
        """The gateway's own `tasks/get` says that a task is not there."""
        before = self.index.get(task_id)
        if before is not None and told.asked <= before.told.came:
            if told.came > before.told.asked:
                self.mark(task_id, now, first=_ALL)
            return
        self.marks.settle(task_id, told.asked)
        self.forget(task_id)
        self.gone.put(task_id, told)

    def has_heard(self, task_id: str, order: int) -> bool:
        """Whether a task that was first seen then is known here, or was denied since."""
        gone = self.gone.get(task_id)
        return self.index.get(task_id) is not None or (gone is not None and gone.asked > order)

    def forget(self, task_id: str) -> None:
        self.index.remove(task_id)
        self.unlisted.pop(task_id, None)

    def stop_asking_by_id(self, now: Moment, interval_s: float) -> None:
        """The upstream seems not to know `tasks/get`: for that long only pages tell of tasks."""
        self.known.asks_by_id, self.known.asks_again_at = False, now.at + interval_s
        for task_id in self.unlisted:
            self.mark(task_id, now, first=_ALL)

    # ---- crawls ----

    def begin_crawl(self) -> None:
        self.crawl += 1
        self.known.outgrown = ""
        if self.known.listing is Listing.PREPENDS:
            self.known.listing = Listing.NEITHER  # else a tail read would stop at the tasks of a crawl that broke off

    def unseen(self, began: Moment) -> Iterator[list[str]]:
        """The ids of the tasks that the crawl begun at `began` should have listed and has not, some at a time."""
        if self.known.asks_by_id and len(self.unlisted) == len(self.index):
            return  # no page has shown a task here: some servers' lists are always empty (DESIGN 2.4)
        for tasks in self.index.parts():
            yield [task.id for task in tasks if self.is_unseen(task, began)]

    def is_unseen(self, task: Task | None, began: Moment) -> bool:
        """Whether neither the crawl begun at `began`, which should list it, nor a later answer has shown a task."""
        if task is None or task.crawl == self.crawl or task.told.asked > began.order:
            return False
        return not (self.known.asks_by_id and task.id in self.unlisted)

    def end_crawl(self, told: Stamp, pages: int, cursors: list[str | None], listing: Listing) -> None:
        """All pages were read: an answer that says of all other tasks that they are not there."""
        known, began = self.known, told.as_of
        known.crawled, known.new_as_of = told, began
        known.pages, known.cursors, known.listing = pages, cursors, listing
        if not self.unlisted:
            known.live_as_of = known.unlisted_as_of = began
        for task_id, mark in list(self.marks.items()):
            if not known.asks_by_id:
                self.marks.settle(task_id, told.asked)
            elif not mark.seen and self.index.get(task_id) is None:
                self.marks.drop(task_id)
        for task_id, gone in list(self.gone.items()):
            if gone.asked < told.asked:
                self.gone.drop(task_id)


def oldest(tasks: Iterable[Task | None], began: Moment) -> Moment:
    """As of when tasks are known, of which those that were due have been asked for since `began`."""
    return min((task.told.as_of for task in tasks if task is not None), default=began)


def _both(before: Stamp, told: Stamp) -> Stamp:
    """The stamp of two answers that say the same. A client may have been told so after this one came (`renew`)."""
    if told.asked <= before.asked:
        return before
    return told if told.came > before.came else Stamp(told.as_of, told.asked, before.came, is_own=True)


class ListingOrder:
    """The order of creation in which pages show their tasks."""

    def __init__(self) -> None:
        self.count = 0
        self._page_size: int | None = None  # of each page that names a next one
        self._is_even = True
        self.restart()

    def restart(self) -> None:
        self._last: Instant | None = None
        self._rises = self._falls = True
        self._length = self._run = 0  # of all instants; of the last ones, which are the same
        self._orders = 1.0

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
            self._length, self._run = self._length + 1, self._run + 1 if at == self._last else 1
            self._orders = min(self._orders * self._length / self._run, ORDERS_MIN)
            self._last = at

    def denies(self, listing: Listing) -> bool:
        """Whether these pages are in no such order."""
        return not (self._is_even and (self._rises if listing is Listing.APPENDS else self._falls))

    @property
    def listing(self) -> Listing:
        """Where new tasks will appear, unless that may be chance: one task tells nothing, nor do tasks of one instant.

        Servers that cut pages from everybody's tasks have pages that are empty or shorter, and name a next one.
        """
        if self._orders < ORDERS_MIN or not self._is_even:
            return Listing.NEITHER
        return Listing.APPENDS if self._rises else Listing.PREPENDS if self._falls else Listing.NEITHER
