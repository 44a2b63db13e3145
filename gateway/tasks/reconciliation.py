"""What is known of the tasks of one session, and how it changes.

In: answers to the gateway's own `tasks/get` and `tasks/list`, each with a `Stamp`; what passes. Out: tasks, as of when
each is known, and which must be asked for again.
Always: only own answers write what the index says of a task; what passes makes tasks stale, and renews ages (DESIGN
6.4). What an own answer changes stands in `CHANGES`. A task is stale until an answer comes that was asked for
after what made it so. The caller gives the moments.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Final

import msgspec

from gateway.mcp.task import NEVER, Moment, Stamp, Task, text_bytes
from gateway.mcp.task_observations import Observation
from gateway.tasks.index import Index
from gateway.tasks.task_entry import UNLISTED, Source, Stale, TaskEntry, absent

MARKS_MAX: Final = 10_000  # stale tasks of a session; beyond them everything is in doubt
MARKED_ID_CHARS_MAX: Final = 256  # of an id that only a client names
ALL: Final = 0  # as `Stale.blocks_from`: answers overlapped, and every query waits for one asked for since
PUT_OFF: Final = 1 << 62  # likewise: no query waits for it before the next crawl has ended


class Listing(Enum):
    """The order in which the upstream lists its tasks."""

    APPENDS = "appends"  # new tasks come last
    PREPENDS = "prepends"  # new tasks come first
    NEITHER = "neither"


class LastCrawl(msgspec.Struct):
    """The upstream's list as the last crawl found it, and tail reads since."""

    pages: int = 0
    size_bytes: int = 0  # of JSON, in all of them
    cursors: list[str | None] = []  # of the last pages; the last one is at the end
    ends_empty: bool = False  # the last page names an empty cursor
    listing: Listing = Listing.NEITHER


class Change(Enum):
    """What becomes of an entry. *Ask*: every query waits for the next answer. An answer ends what made the entry stale,
    but for *ask* and *ignore*.
    """

    TAKE = "take"
    MERGE = "take, as of the later"
    RENEW = "keep, as of now"
    KEEP = "keep"
    REPLACE = "take, unlisted"
    GONE = "gone"
    ASK = "keep, ask"
    TAKE_AND_ASK = "take, ask"
    IGNORE = "it came before what is known was asked for"


CHANGES: Final = {
    "the same": (Change.TAKE, Change.MERGE),
    "live, and has changed": (Change.TAKE, Change.ASK),
    "has ended": (Change.TAKE, Change.TAKE),
    "ended, in the same status": (Change.TAKE, Change.KEEP),
    "ended, another status": (Change.RENEW, Change.KEEP),
    "another incarnation": (Change.REPLACE, Change.ASK),
    "there, and was not": (Change.TAKE, Change.TAKE_AND_ASK),
    "not there, and was": (Change.GONE, Change.ASK),
    "not there, as before": (Change.GONE, Change.GONE),
}
"""What an own answer says beside what is known: the change if it is newer, the change if it overlaps (DESIGN 6.9)."""


def _news(known: TaskEntry, shown: Task | None, asked: int) -> str:
    """What an answer says of a task, as `CHANGES` has it."""
    if shown is None:
        return "not there, and was" if known.raw else "not there, as before"
    if not known.raw:
        return "there, and was not"
    stale = known.stale
    was_made = stale is not None and known.told.asked <= stale.made < asked  # since the index was told of it
    differs = known.status != shown.status or (stale is not None and stale.method is not None)
    if known.created != shown.created or (was_made and known.is_terminal and differs):
        return "another incarnation"
    if known.raw == shown.raw:
        return "the same"
    if known.is_terminal:
        return "ended, in the same status" if known.status == shown.status else "ended, another status"
    return "has ended" if shown.is_terminal else "live, and has changed"


def _left_stale(stale: Stale | None, asked: int) -> Stale | None:
    """What is left of a mark after an answer. One that came after `asked` holds up only the queries that came since."""
    if stale is None or asked > stale.invalidated:
        return None
    if stale.blocks_from == ALL:
        return stale
    blocks_from = asked if stale.blocks_from == PUT_OFF else max(stale.blocks_from, asked)
    left = msgspec.structs.replace(stale, blocks_from=blocks_from)
    if asked > stale.made:
        left.made, left.method = 0, None
    return left


def _both(before: Stamp, told: Stamp) -> Stamp:
    """The stamp of two answers that say the same. `before` may have come later: a client was shown the same."""
    if told.asked <= before.asked:
        return before
    return told if told.came > before.came else Stamp(told.as_of, told.asked, before.came, is_alone=True)


class Record(msgspec.Struct, eq=False, weakref=True):
    """How fresh the tasks of one session are known. `..._as_of` is when that was asked for."""

    index: Index = msgspec.field(default_factory=Index)
    crawl: int = 1  # the number of the crawl that began last
    crawled: Stamp = Stamp(NEVER, 0, 0)  # each listed task is known as of then, and which tasks are listed
    new_as_of: Moment = NEVER  # every task made before is known; never earlier than `crawled`
    live_as_of: Moment = NEVER  # each task that was live then is known as of then
    unlisted_as_of: Moment = NEVER  # so is each unlisted one
    doubted: int = 0  # when something passed unread: all that was known then may be old
    refused: int = 0  # when a request was refused last
    accepted: int = 0  # when the last `tasks/*` of the gateway's that has succeeded was asked for
    outgrown: str = ""  # why it is too large for an index: no crawl until then; tasks that a query names are asked for
    outgrown_until: float = float("-inf")
    asked_as: tuple[bytes, float] = (b"", 0.0)  # for what its caller was asked first, with success, and when (5.1)
    last_crawl: LastCrawl = msgspec.field(default_factory=LastCrawl)
    asks_by_id: bool = True  # else the upstream does not know `tasks/get`, as far as is known ...
    asks_again_at: float = 0.0  # ... until then
    seen_marked_to: dict[object, int] = {}  # which of the ids that each owner has seen have been marked here

    def needs_access_check(self, came: int) -> bool:
        """Whether a query that came then must ask first if the caller is still served (DESIGN 7.4)."""
        return self.refused > 0 and self.accepted <= min(self.refused, came)

    def accept(self, asked: int) -> None:
        """A `tasks/*` of the gateway's that was asked for then has succeeded."""
        self.accepted = max(self.accepted, asked)

    def fail_tail(self) -> None:
        """The page where new tasks appear cannot be found: only a crawl helps."""
        self.crawled = Stamp(NEVER, self.crawled.asked, self.crawled.came)

    @property
    def size_bytes(self) -> int:
        return self.index.size_bytes + sum([text_bytes(cursor) for cursor in self.last_crawl.cursors if cursor])

    @property
    def as_of(self) -> Moment:
        """The oldest moment that the index may reflect."""
        as_of = min(self.new_as_of, self.live_as_of)
        return as_of if self.index.unlisted else max(as_of, self.crawled.as_of)

    # ---- what passes ----

    def observe(self, said: Observation, asked: Moment | None, now: Moment, is_asking: bool) -> None:
        """Take in what passed: the answer to a request made at `asked`, or a message that answers no request.

        `is_asking`: an own answer under way may still bring what is denied.
        """
        index, order = self.index, now.order
        source = Source.TO_ALL if said.is_listed or said.is_told_to_all else Source.TO_CALLER
        for task, raw in said.shown:
            if said.is_told_to_all and task.taskId in index.gone:
                continue  # mcp-go tells all sessions of all tasks
            if (known := index.get(task.taskId)) is not None and known.raw == raw:
                # A client is told the same. An own answer under way overlaps with that.
                as_of = known.told.as_of if asked is None else max(asked, known.told.as_of)
                index.stamp(known, Stamp(as_of, known.told.asked, order, is_alone=True), known.listed)
            else:
                self.mark(task.taskId, Stale(order, order, source))
        if said.made is not None:
            self.mark(said.made, Stale(order, order, method=said.method, made=order))
        if (ended := said.failed if said.ended is None else said.ended) is not None:
            known = index.get(ended)  # of one that the index lacks an error does not say that it is there
            if (known is None and said.failed is None) or (known is not None and not known.is_terminal):
                self.mark(ended, Stale(order, order))
        if (denied := said.denied) is not None:
            is_known = (entry := index.entries.get(denied)) is not None and bool(entry.raw or entry.stale)
            if is_known or (is_asking and len(denied) <= MARKED_ID_CHARS_MAX):
                self.mark(denied, Stale(order, order, Source.BY_ERROR, denied=order if is_known else 0))
        if said.doubt:
            self.doubted = order

    def mark(self, task_id: str, stale: Stale) -> None:
        """A task is stale. Too many are a doubt."""
        entry = self.index.entries.get(task_id) or absent(task_id)
        if (before := entry.stale) is not None:
            if stale.blocks_from < before.blocks_from:
                before.blocks_from = stale.blocks_from
            if stale.invalidated > before.invalidated:
                before.invalidated = stale.invalidated
            if before.source >= stale.source and not (stale.method or stale.made or stale.denied or before.denied):
                return  # only since when has changed
            stale.blocks_from, stale.invalidated, stale.failed = before.blocks_from, before.invalidated, before.failed
            stale.method, stale.made = stale.method or before.method, stale.made or before.made
            if stale.source is Source.ELSEWHERE:
                stale.denied = stale.denied or before.denied  # a success says otherwise
            stale.source = max(before.source, stale.source)
        elif len(self.index.stale) >= MARKS_MAX:
            self.doubted = stale.invalidated
            return
        self.index.set(msgspec.structs.replace(entry, stale=stale))

    def observe_replica(self, task_id: str, method: str | None, is_gone: bool, now: Moment) -> None:
        """Another replica has told that a task is there, or gone. Its method is believed."""
        entry = self.index.entries.get(task_id) or absent(task_id)
        if entry.raw and entry.method is None and method is not None:
            self.index.set(msgspec.structs.replace(entry, method=method))
        denied = now.order if is_gone else 0 if entry.stale is None else entry.stale.denied
        if bool(entry.raw) is is_gone:
            self.mark(task_id, Stale(ALL, now.order, method=None if entry.raw else method, denied=denied))
        elif is_gone and entry.stale is not None:
            entry.stale.denied = denied

    def due(self, came: int) -> list[str]:
        """The ids of the stale tasks that a query from `came` waits for: without `tasks/get`, for the next crawl."""
        stale = self.index.stale.items()
        since = 0 if self.asks_by_id else self.crawled.asked
        return [
            i
            for i, one in stale
            if one.blocks_from <= came
            and (one.invalidated if one.blocks_from == ALL else min(one.invalidated, came)) > since
            and (one.source or self.index.get(i) is not None)
        ]

    # ---- own answers ----

    def answered(self, task_id: str, shown: Task | None, told: Stamp, now: Moment, page: int = UNLISTED) -> None:
        """Take in what an own answer says of a task; None: it is not there. `page`: the crawl whose page it is."""
        known = self.index.entries.get(task_id) or absent(task_id)
        # That it is not there says its own answer, or the last crawl.
        since = known.told if known.raw else max(known.told, self.crawled, key=lambda one: one.came)
        change = CHANGES[_news(known, shown, told.asked)][told.asked <= since.came]
        if told.came < since.asked:
            change = Change.IGNORE
        after, stale = msgspec.structs.replace(known), known.stale
        if shown is not None and change in (Change.TAKE, Change.MERGE, Change.REPLACE, Change.TAKE_AND_ASK):
            after = TaskEntry(*msgspec.structs.astuple(shown))
            after.told, after.stale = _both(known.told, told) if change is Change.MERGE else told, stale
            if stale is not None and stale.made < told.asked:
                after.method = stale.method
            if change is not Change.REPLACE:
                after.listed, after.method = known.listed, after.method or known.method
        elif change is Change.GONE:
            after = absent(task_id, told, stale)
        elif change is Change.RENEW:
            after.told = told
        if change not in (Change.IGNORE, Change.ASK, Change.TAKE_AND_ASK):
            after.stale = _left_stale(stale, told.asked)
        if change is Change.GONE and after.stale is not None:
            after.stale = msgspec.structs.replace(after.stale, denied=told.asked)
        if shown is not None and page and after.raw and after.created == shown.created:  # else of one before
            after.listed = page
        elif not page and after.listed != self.crawl:
            after.listed = UNLISTED
        self.index.set(after)
        if after.is_unlisted:  # it may be older than what is promised of all of them
            self.unlisted_as_of = min(self.unlisted_as_of, after.told.as_of)
            self.live_as_of = min(self.live_as_of, after.told.as_of)
        if change in (Change.ASK, Change.TAKE_AND_ASK):
            self.mark(task_id, Stale(ALL, now.order, Source.TO_ALL))

    def page_answered(self, tasks: Sequence[Task], told: Stamp, now: Moment) -> list[Task]:
        """Take in tasks of an own page. Returns those that are new in this crawl."""
        new, index = list[Task](), self.index
        for task in tasks:
            before = index.entries.get(task.id)
            is_new = before is None or before.listed != self.crawl
            if before is not None and before.raw == task.raw and before.stale is None:
                index.stamp(before, _both(before.told, told), self.crawl)
            else:
                self.answered(task.id, task, told, now, self.crawl)
            if is_new and (after := index.get(task.id)) is not None and after.listed == self.crawl:
                new.append(task)
        return new

    def stop_asking_by_id(self, now: Moment, interval_s: float) -> None:
        """The upstream seems not to know `tasks/get`: for that long only pages tell of tasks."""
        self.asks_by_id, self.asks_again_at = False, now.at + interval_s
        self.fail_tail()
        for task_id in list(self.index.unlisted):
            self.mark(task_id, Stale(ALL, now.order, Source.TO_ALL))

    # ---- crawls ----

    def begin_crawl(self) -> None:
        self.crawl += 1
        self.outgrown = ""
        if self.last_crawl.listing is Listing.PREPENDS:
            self.last_crawl.listing = Listing.NEITHER  # a tail read would stop at what a crawl that broke off has read

    def is_unseen(self, entry: TaskEntry | None, began: Moment) -> bool:
        """Whether neither the crawl begun at `began`, which should list it, nor a later answer has shown a task."""
        if entry is None or not entry.raw or entry.listed == self.crawl or entry.told.asked > began.order:
            return False
        return not (self.asks_by_id and entry.is_unlisted)

    def end_crawl(self, told: Stamp, found: LastCrawl) -> None:
        """The crawl is over: an answer that says of all other tasks that they are not there."""
        index, began = self.index, told.as_of
        self.crawled, self.new_as_of, self.last_crawl = told, began, found
        if not index.unlisted:
            self.live_as_of = self.unlisted_as_of = began
        for task_id, stale in list(index.stale.items()):
            if stale.blocks_from == PUT_OFF:
                stale.blocks_from = ALL
            if (entry := index.get(task_id)) is not None:
                if not self.asks_by_id:
                    index.set(msgspec.structs.replace(entry, stale=_left_stale(stale, told.asked)))
            elif stale.source is Source.BY_ERROR:
                index.set(msgspec.structs.replace(index.entries[task_id], stale=None))
        for entry in list(index.gone.values()):
            if entry.told.asked < told.asked:
                index.forget(entry.id)
