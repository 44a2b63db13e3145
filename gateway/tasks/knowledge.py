"""What is known of the tasks of one session, and as of when.

In: reports that pass, responses to the gateway's own requests, pages of a crawl. What answers a request comes with
the time of that request. Out: the index, and the instants that `tasks/freshness.py` decides by.
Always: pure; never backwards (DESIGN 6.9). A task that was found gone stays gone until a later request shows it. If the
last crawl did not list a task, a report of it from before the end of that crawl is no proof: the task is asked for
again. A report that was asked for after another came is newer. Else the timestamps decide; where they do not make the
second one newer, the task is asked for again. Times are seconds of one monotonic clock.

`Knowledge` has the instants of the session; `tasks/notes.py` has the states of single tasks. Both change by their own
methods only.
"""

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum

import msgspec

from gateway.mcp.observe import Observation
from gateway.mcp.task import UNKNOWN, Instant, Task, text_bytes
from gateway.tasks.index import Index
from gateway.tasks.notes import NEVER, NOTED_ID_CHARS_MAX, Notes, NoteState


class Listing(Enum):
    """The order in which the upstream lists its tasks, as far as the last crawl saw it."""

    APPENDS = "appends"  # new tasks come last
    PREPENDS = "prepends"  # new tasks come first
    NEITHER = "neither"


class Knowledge(msgspec.Struct):
    """As of when the index is known.

    An instant `..._as_of` is the time of a request. It promises that the index shows something as of then, or later.
    The other instants say what may be old.
    """

    pages_as_of: float = NEVER  # promises every listed task, and which tasks are listed
    new_as_of: float = NEVER  # promises that every task made before is known; never earlier than `pages_as_of`
    live_as_of: float = NEVER  # promises every task that was live then
    unlisted_as_of: float = NEVER  # promises every unlisted task
    doubted_at: float = NEVER  # something passed unread: all that was known then may be old
    newcomers_from: float = NEVER  # a task reported by an earlier request, if not in the index, may have gone
    page_came_at: float = NEVER  # a report asked for earlier may be older than the last page
    refused_at: float = NEVER  # a request got a 403: nothing is shown until a later `tasks/*` succeeds
    outgrown: str = ""  # what the session has more of than an index may hold, as far as is known: nothing is taken in
    outgrown_until: float = NEVER  # until then no crawl tries again
    has_listed: bool = False  # a `tasks/list` has succeeded
    listing: Listing = Listing.NEITHER
    pages: int = 0  # of the last crawl
    cursors: list[str | None] = []  # of the last pages; the last one is at the end
    cursors_bytes: int = 0  # their memory
    asks_by_id: bool = True  # the upstream knows `tasks/get`
    notes: Notes = msgspec.field(default_factory=Notes)

    # ---- what is known ----

    def reported_at(self, task_id: str) -> float:
        """When a task was last reported alone; for an unlisted task, alone or by a crawl."""
        note = self.notes.get(task_id)
        return NEVER if note is None or note.state is NoteState.GONE else note.at

    def confirmed_at(self, task_id: str) -> float:
        """When a task was last reported, alone or by a crawl."""
        note = self.notes.get(task_id)
        if note is not None and note.state is NoteState.UNLISTED:
            return note.at
        return max(self.reported_at(task_id), self.pages_as_of)

    def gone_at(self, task_id: str) -> float:
        """When a task was found gone; NEVER if it was not, or has come back."""
        note = self.notes.get(task_id)
        return note.at if note is not None and note.state is NoteState.GONE else NEVER

    @property
    def accepts(self) -> bool:
        """Whether the upstream has listed its tasks to this caller, and refused it nothing since."""
        return self.has_listed and self.refused_at == NEVER

    def speaks_for(self, task_id: str, began_at: float) -> bool:
        """Whether reports of its own say that a task is there, though the crawl begun at `began_at` did not list it."""
        return self.reported_at(task_id) >= began_at or (self.asks_by_id and task_id in self.notes.unlisted)

    def may_be_old(self, task_id: str, asked_at: float | None) -> bool:
        """Whether a report may be older than the last one of the task that was taken in, or than the last page."""
        note = self.notes.get(task_id)
        told_at = NEVER if note is None else note.told_at
        return asked_at is None or asked_at <= max(told_at, self.page_came_at)

    @property
    def as_of(self) -> float:
        """The oldest instant that the index may reflect."""
        as_of = min(self.new_as_of, self.live_as_of)
        return as_of if self.notes.unlisted else max(as_of, self.pages_as_of)

    # ---- what happens ----

    def doubt(self, now: float) -> None:
        """Something passed unread. It may have changed anything."""
        self.doubted_at = now

    def refuse(self, now: float) -> None:
        """A request of the caller's got a 403."""
        self.refused_at = now

    def accept(self, asked_at: float, lists: bool = False) -> None:
        """A `tasks/*` that was asked at `asked_at` has succeeded; `lists`: it was a `tasks/list`."""
        self.has_listed |= lists
        if asked_at > self.refused_at:
            self.refused_at = NEVER

    def report(self, task: Task, asked_at: float | None, is_listed: bool, as_of: float) -> None:
        """A report was taken in, as `Notes.report` says."""
        note = self.notes.report(task.id, asked_at, is_listed, as_of)
        if note is not None and note.state is NoteState.UNLISTED:
            self.unlisted_as_of = min(self.unlisted_as_of, note.at)
            self.live_as_of = min(self.live_as_of, note.at)

    def begin_crawl(self, began_at: float) -> None:
        """All pages are read from now on."""
        self.outgrown = ""
        if self.listing is Listing.PREPENDS:
            self.listing = Listing.NEITHER  # else a look would stop at the tasks of a crawl that broke off
        if not self.asks_by_id:
            self.newcomers_from = began_at  # a task made meanwhile may be on a page that was read before

    def end_crawl(
        self, began_at: float, ended_at: float, pages: int, cursors: list[str | None], listing: Listing
    ) -> None:
        """All pages were read, from `began_at` on."""
        self.newcomers_from = ended_at
        self.pages_as_of = self.new_as_of = began_at
        self.pages, self.listing = pages, listing
        self._keep_cursors(cursors)
        self.notes.end_crawl(began_at, self.asks_by_id)
        if not self.notes.unlisted:
            self.live_as_of = self.unlisted_as_of = began_at

    def end_look(self, began_at: float, cursors: list[str | None]) -> None:
        """The page where new tasks appear was read, from `began_at` on."""
        self.new_as_of = began_at
        self._keep_cursors(cursors)

    def _keep_cursors(self, cursors: list[str | None]) -> None:
        self.cursors = cursors
        self.cursors_bytes = sum(text_bytes(cursor) for cursor in cursors if cursor is not None)

    def fail_look(self) -> None:
        """The page where new tasks appear cannot be found: only a crawl helps."""
        self.pages_as_of = NEVER

    def outgrow(self, what: str, until: float) -> None:
        """The session is larger than an index may be, for having `what`."""
        self.outgrown, self.outgrown_until = what, until

    def stop_asking_by_id(self, now: float) -> None:
        """The upstream does not know `tasks/get`: only pages tell whether a task is there."""
        self.asks_by_id = False
        self.newcomers_from = max(self.newcomers_from, now)
        self.notes.hint_unlisted(now)

    def end_live(self, task_ids: Iterable[str], began_at: float) -> None:
        """These are all live tasks. Those that were due have been asked for since `began_at`."""
        self.live_as_of = min(map(self.confirmed_at, task_ids), default=began_at)

    def end_unlisted(self, began_at: float) -> None:
        """The unlisted tasks that were due have been asked for since `began_at`."""
        self.unlisted_as_of = self.notes.earliest_unlisted(began_at)


class Record:
    """The tasks of one session, as far as they are known."""

    def __init__(self) -> None:
        self.index = Index()
        self.known = Knowledge()
        self.crawl = 0  # the number of the last crawl

    @property
    def size_bytes(self) -> int:
        """The memory that it takes."""
        return self.index.size_bytes + self.known.notes.size_bytes + self.known.cursors_bytes

    def take(self, observation: Observation, asked_at: float | None, now: float, since: Task | None = None) -> None:
        """Take in what passed. `asked_at`: when its request was made; None if it answers none.

        `since`: for an answer to the gateway's own `tasks/get`, the task as it was known when it was asked for.
        """
        for task in observation.tasks:
            gone_at = self.known.gone_at(task.id)
            if gone_at == NEVER or (asked_at is not None and asked_at > gone_at):
                self._report(task, asked_at, now, since)
        for task_id in observation.unclear:
            self.suspect(task_id, now)
        for task_id in observation.gone:
            self.forget(task_id, now)
        for task_id in observation.suspect:
            if len(task_id) <= NOTED_ID_CHARS_MAX:
                self._hint(task_id, now, now)  # in the index or not: a page asked for earlier may still bring it
        for task_id in observation.ended:
            before = self.index.get(task_id)
            if len(task_id) <= NOTED_ID_CHARS_MAX and (before is None or not before.is_terminal):
                self._hint(task_id, now, now)
        if observation.doubt:
            self.known.doubt(now)

    def _report(self, task: Task, asked_at: float | None, now: float, since: Task | None) -> None:
        known, before = self.known, self.index.get(task.id)
        is_same = before is not None and before.raw == task.raw and task.method is None  # most polls say what is known
        if (
            not is_same
            and before is not None
            and (self._begins_anew(task, before, asked_at) or _is_another(task, before))
        ):
            self.index.remove(task.id)
            before = None
        came_between = not is_same and before is not since
        unclear = came_between and _contradicts(task, before) and known.may_be_old(task.id, asked_at)
        unseen = before is None and (asked_at is None or asked_at < known.newcomers_from)
        hidden = unseen and (known.newcomers_from != NEVER or not known.asks_by_id)
        if unclear or (hidden and asked_at is None):
            if task.method is not None:  # it holds for the task, whatever has become of it
                self.index.note_method(task.id, task.method)
            self._hint(task.id, now, now)
        else:
            is_listed = before is not None and before.crawl == self.crawl
            known.report(task, asked_at, is_listed, NEVER if before is None else known.confirmed_at(task.id))
            if not is_same:
                self.index.put(task)
            if asked_at is not None:
                if hidden:  # it may have gone before the last crawl ended
                    self._hint(task.id, asked_at, now)
                known.notes.settle(task.id, asked_at)
            if asked_at is None or not task.is_terminal:
                known.notes.renew(task.id, now)

    def _begins_anew(self, task: Task, before: Task, asked_at: float | None) -> bool:
        """Whether a report is that of a task which was made after another of its id had ended (DESIGN 6.9).

        Only the response that made a task has its method. The end of this task may have come before that response.
        """
        if task.method is None or asked_at is None or not before.is_terminal:
            return False
        note, is_listed = self.known.notes.get(task.id), before.crawl == self.crawl
        told_at = NEVER if note is None else note.told_at
        return asked_at > max(
            self.known.confirmed_at(task.id), told_at, self.known.page_came_at if is_listed else NEVER
        )

    def _hint(self, task_id: str, suspect_from: float, now: float) -> None:
        self.known.notes.hint(task_id, suspect_from, now, in_index=self.index.get(task_id) is not None)

    def suspect(self, task_id: str, now: float) -> None:
        """A task may be gone, or be other than it is known: every query waits."""
        self._hint(task_id, NEVER, now)

    def forget(self, task_id: str, now: float) -> None:
        """The task was found gone, at `now`."""
        self.index.remove(task_id)
        self.known.notes.find_gone(task_id, now)

    def listed(self, tasks: Sequence[Task], asked_at: float, came_at: float) -> list[Task]:
        """Take in tasks of a page that was asked for at `asked_at`. Returns those that are new in this crawl.

        A page that was asked for earlier was taken in before, or its tasks have notes.
        """
        self.known.page_came_at = max(self.known.page_came_at, came_at)
        there, clear = self._judge(tasks, asked_at, came_at) if len(self.known.notes) else (tasks, tasks)
        for task in clear:
            before = self.index.get(task.id)
            if before is not None and _is_another(task, before):
                self.index.remove(task.id)
        self.index.put_all(clear)
        return [task for task in there if self.index.mark(task.id, self.crawl)]

    def _judge(self, tasks: Sequence[Task], asked_at: float, came_at: float) -> tuple[list[Task], list[Task]]:
        """The tasks of a page that are not gone; and of these, the tasks whose latest report is this one."""
        notes, there, clear = self.known.notes, list[Task](), list[Task]()
        for task in tasks:
            note = notes.get(task.id)
            if note is None:
                there.append(task)
                clear.append(task)
            elif note.state is not NoteState.GONE or note.at < asked_at:
                there.append(task)
                before = self.index.get(task.id)
                unclear = note.told_at >= asked_at and _contradicts(task, before)
                if note.at <= came_at and not unclear:  # else the task was asked for when the page had come
                    clear.append(task)
                elif unclear and before is not None and before.updated == task.updated:
                    self._hint(task.id, NEVER, came_at)
                notes.show(task.id)
        return there, clear

    def confirm(self, tasks: Sequence[Task], asked_at: float) -> None:
        """A look has read these tasks on a page that was asked for at `asked_at`."""
        for task in tasks:
            if self.index.get(task.id) is not None:
                self.known.notes.report(task.id, asked_at, is_listed=True, as_of=NEVER)

    def begin_crawl(self, began_at: float) -> None:
        """All pages are read from now on."""
        self.crawl += 1
        self.known.begin_crawl(began_at)

    def unseen(self, began_at: float) -> Iterator[list[str]]:
        """The ids of the tasks that the crawl begun at `began_at` did not list, some at a time: they may be gone.

        Left out: tasks reported since then; and, if the upstream knows `tasks/get`, unlisted tasks.
        """
        known = self.known
        if known.asks_by_id and len(known.notes.unlisted) == len(self.index):
            return  # no task here was ever listed: some servers' lists are always empty (DESIGN 2.4)
        for tasks in self.index.parts():
            yield [task.id for task in tasks if task.crawl != self.crawl and not known.speaks_for(task.id, began_at)]


def _contradicts(report: Task, before: Task | None) -> bool:
    """Whether a report of a live task differs from another, and its timestamp is not later: the report is older, or the
    server's clock was set back, or counts whole seconds. Or it was created earlier: another task had the id before.
    """
    if before is None or before.raw == report.raw:
        return False
    if report.created < before.created:
        return True
    return before.updated >= report.updated and not (before.is_terminal or report.is_terminal)


def _is_another(report: Task, before: Task) -> bool:
    """Whether a report is that of a task which was created after another of its id had ended (DESIGN 6.9)."""
    has_ended = before.is_terminal and report.status != before.status
    return has_ended and report.created > max(before.created, before.updated)


class ListingOrder:
    """The order of creation in which the pages of a crawl show their tasks."""

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
            at = task.created
            if at == UNKNOWN:
                self._rises = self._falls = False
            elif self._last is not None:
                self._rises &= at >= self._last
                self._falls &= at <= self._last
            self._last = at

    @property
    def listing(self) -> Listing:
        """Where new tasks will appear. One task tells nothing, nor do tasks of one instant."""
        if self._rises == self._falls:
            return Listing.NEITHER
        return Listing.APPENDS if self._rises else Listing.PREPENDS
