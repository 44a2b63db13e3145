"""What is noted of single tasks of a session, beside the index.

In: what happens to a task, and when. Out: the note of a task; the unlisted tasks; the suspect tasks.
Always: a task has one note at most, in one state, and only `Notes` changes it. Pure; times are seconds of one monotonic
clock. Most tasks of an index have no note: the last crawl listed them, and nothing was heard of them since.

The states, and what leads from one to the next (`-`: cannot be):

                reported, and   reported, and   a hint          shown              found   end of
                crawl listed    not listed      names it        by a page          gone    a crawl
    (no note)   LISTED          UNLISTED        LISTED/HINTED   (no note)          GONE    (no note)
    LISTED      LISTED          UNLISTED        LISTED          LISTED             GONE    LISTED/(no note)
    UNLISTED    UNLISTED        UNLISTED        UNLISTED        LISTED             GONE    UNLISTED
    HINTED      -               UNLISTED        HINTED          LISTED             GONE    HINTED/(no note)
    GONE        -               UNLISTED        GONE            LISTED/(no note)   GONE    GONE/HINTED/(no note)

"Crawl listed": the last crawl, or the crawl under way, has listed the task. A hint makes a task of the index LISTED,
another task HINTED. Reports and pages that were asked for before a task was found gone are ignored. The end of a crawl
removes from the notes of LISTED and GONE tasks what is older than the crawl. A note that then says nothing is removed.

What a note says in each state:

                in the index   `at`                                         `told_at`   suspect
    LISTED      yes            last report of the task alone, or NEVER      maybe       maybe
    UNLISTED    yes            last report, alone or by a crawl, or NEVER   maybe       maybe
    HINTED      no             NEVER                                        maybe       always
    GONE        no             when the task was found gone                 NEVER       maybe

A hint makes a task suspect until it is settled: by a report that was asked for after the hint, by finding the task gone
after it, or by a crawl that began after it. If the upstream knows `tasks/get`, a crawl settles only the hints of LISTED
tasks, because pages tell nothing of the others.
"""

from collections.abc import Collection, Iterator
from enum import Enum
from typing import Final

import msgspec

from gateway.mcp.task import text_bytes

NEVER: Final = float("-inf")
_NOBODY: Final = float("inf")  # as `suspect_from`: no query waits
NOTED_ID_CHARS_MAX: Final = 256  # of a task id; of a longer one that only clients name, nothing is noted
_NOTE_BYTES: Final = 250  # of a note beside its id, at most (tests/rules/test_notes.py)


class NoteState(Enum):
    """What a noted task is."""

    LISTED = "listed"  # in the index; a page has shown it
    UNLISTED = "unlisted"  # in the index; only reports have shown it
    HINTED = "hinted"  # not in the index; only hints name it
    GONE = "gone"  # not in the index; it was found gone (a tombstone)


_IN_INDEX: Final = (NoteState.LISTED, NoteState.UNLISTED)


class Note(msgspec.Struct, gc=False):
    """What is noted of one task. Only `Notes` changes it."""

    state: NoteState
    at: float = NEVER  # when the last report was asked for, or when the task was found gone
    told_at: float = NEVER  # when the last report of the task alone that was taken in came, if it was live or no answer
    suspect_from: float = _NOBODY  # queries from then on wait until the hint is settled
    hinted_at: float = NEVER  # answers to requests from then on settle the hint

    @property
    def is_suspect(self) -> bool:
        """Whether a hint is still to be settled."""
        return self.suspect_from != _NOBODY

    @property
    def says_something(self) -> bool:
        """Whether it says more than its state."""
        return self.at != NEVER or self.told_at != NEVER or self.is_suspect


class Notes:
    """The notes of one session. `size_bytes` is their memory."""

    def __init__(self) -> None:
        self.size_bytes = 0
        # Two maps: there may be 100,000 unlisted tasks, and the end of a crawl need not look at them.
        self._unlisted: dict[str, Note] = {}
        self._others: dict[str, Note] = {}
        self._suspect: dict[str, Note] = {}  # those of both that are suspect

    def __len__(self) -> int:
        return len(self._unlisted) + len(self._others)

    def __iter__(self) -> Iterator[str]:
        yield from self._unlisted
        yield from self._others

    def get(self, task_id: str) -> Note | None:
        """The note of a task; None if it has none."""
        return self._unlisted.get(task_id) or self._others.get(task_id)

    @property
    def unlisted(self) -> Collection[str]:
        """The ids of the UNLISTED tasks."""
        return self._unlisted.keys()

    @property
    def hinted(self) -> list[str]:
        """The ids of the HINTED tasks."""
        return [task_id for task_id, note in self._suspect.items() if note.state is NoteState.HINTED]

    @property
    def gone(self) -> list[str]:
        """The ids of the GONE tasks."""
        return [task_id for task_id, note in self._others.items() if note.state is NoteState.GONE]

    def earliest_unlisted(self, default: float) -> float:
        """The earliest report of an UNLISTED task; `default` if there is no such task."""
        return min((note.at for note in self._unlisted.values()), default=default)

    def suspects(self, came_at: float) -> list[str]:
        """The ids of the suspect tasks that a query from `came_at` waits for."""
        return [task_id for task_id, note in self._suspect.items() if note.suspect_from <= came_at]

    def report(self, task_id: str, asked_at: float | None, is_listed: bool, as_of: float) -> Note | None:
        """A report was taken in. Returns the task's note, if it has one.

        `asked_at`: when its request was made; None if it answers none. `is_listed`: crawl listed the task (see above).
        `as_of`: when the task was last reported before.
        """
        note = self.get(task_id)
        if not is_listed and (note is None or note.state is not NoteState.UNLISTED):
            note = self._move(task_id, NoteState.UNLISTED)
            note.at = as_of
        if asked_at is not None:
            note = note or self._move(task_id, NoteState.LISTED)
            note.at = max(note.at, asked_at)
        return note

    def renew(self, task_id: str, now: float) -> None:
        """A report of this task alone was taken in, and the task is live."""
        note = self.get(task_id) or self._move(task_id, NoteState.LISTED)
        note.told_at = now

    def hint(self, task_id: str, suspect_from: float, now: float, in_index: bool) -> None:
        """A hint came that a task may be gone, or has changed. Queries from before `suspect_from` need not wait."""
        note = self.get(task_id) or self._move(task_id, NoteState.LISTED if in_index else NoteState.HINTED)
        note.suspect_from = min(note.suspect_from, suspect_from)
        note.hinted_at = max(note.hinted_at, now)
        self._suspect[task_id] = note

    def hint_unlisted(self, now: float) -> None:
        """A hint came that all UNLISTED tasks may be gone: every query waits."""
        for task_id in self._unlisted:
            self.hint(task_id, NEVER, now, in_index=True)

    def settle(self, task_id: str, asked_at: float) -> None:
        """The task's state as of `asked_at` is known: a later hint concerns only later queries."""
        note = self._suspect.get(task_id)
        if note is None:
            return
        if note.hinted_at <= asked_at:
            self._trust(task_id, note)
        else:
            note.suspect_from = max(note.suspect_from, asked_at)

    def show(self, task_id: str) -> None:
        """A page has shown the task. It is in the index from now on."""
        note = self.get(task_id)
        if note is not None and note.state is not NoteState.LISTED:
            self._drop_if_empty(task_id, self._move(task_id, NoteState.LISTED))

    def find_gone(self, task_id: str, now: float) -> None:
        """The task was found gone at `now`."""
        note = self.get(task_id)
        if note is not None and note.is_suspect and note.hinted_at < now:
            self._trust(task_id, note)
        if len(task_id) <= NOTED_ID_CHARS_MAX:
            was_gone = note is not None and note.state is NoteState.GONE
            note = self._move(task_id, NoteState.GONE)
            note.at = max(note.at, now) if was_gone else now
            note.told_at = NEVER
        elif note is not None:
            self._move(task_id, NoteState.HINTED)
            note.told_at = NEVER
            self._drop_if_empty(task_id, note)

    def end_crawl(self, began_at: float, asks_by_id: bool) -> None:
        """A crawl that began at `began_at` has ended. `asks_by_id`: the upstream knows `tasks/get`."""
        for task_id, note in list(self._suspect.items()):
            if note.hinted_at < began_at and (note.state is NoteState.LISTED or not asks_by_id):
                self._trust(task_id, note)
            elif note.suspect_from != NEVER and not asks_by_id:
                note.suspect_from = max(note.suspect_from, began_at)
        for task_id, note in list(self._others.items()):  # UNLISTED notes may keep what is older
            if note.told_at < began_at:
                note.told_at = NEVER
            if note.at < began_at:
                note.at = NEVER
                if note.state is NoteState.GONE:
                    note.state = NoteState.HINTED
                self._drop_if_empty(task_id, note)

    def _trust(self, task_id: str, note: Note) -> None:
        """The hints of a task are settled."""
        note.suspect_from, note.hinted_at = _NOBODY, NEVER
        del self._suspect[task_id]

    def _move(self, task_id: str, state: NoteState) -> Note:
        """The note of a task, from now on in `state`. It is new if the task had none."""
        note = self._unlisted.pop(task_id, None) or self._others.pop(task_id, None)
        if note is None:
            note = Note(state)
            self.size_bytes += _NOTE_BYTES + text_bytes(task_id)
        elif (note.state in _IN_INDEX) != (state in _IN_INDEX):
            note.at = NEVER
        note.state = state
        (self._unlisted if state is NoteState.UNLISTED else self._others)[task_id] = note
        return note

    def _drop_if_empty(self, task_id: str, note: Note) -> None:
        if not note.says_something:
            del self._others[task_id]
            self.size_bytes -= _NOTE_BYTES + text_bytes(task_id)
