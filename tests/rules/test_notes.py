"""The states of a note: the table in the head of `tasks/notes.py` is what the code does; what a note takes."""

import gc
import re
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from uuid import uuid4

import pytest

from gateway.tasks import notes as noting
from gateway.tasks.notes import NEVER, Notes, NoteState
from tests.states import in_cell, table

RULES = Path(__file__).parents[2] / "docs/design.md"
EARLY, BEGAN, LATE, NOW = 1.0, 3.0, 4.0, 5.0
NO_NOTE = "(no note)"

Event = Callable[[Notes], object]

EVENTS: dict[str, list[Event]] = {
    "reported, and crawl listed": [lambda n: n.report("t", NOW, is_listed=True, as_of=NEVER)],
    "reported, and not listed": [lambda n: n.report("t", NOW, is_listed=False, as_of=NEVER)],
    "a hint names it": [
        lambda n: n.hint("t", NOW, NOW, in_index=True),
        lambda n: n.hint("t", NOW, NOW, in_index=False),
    ],
    "shown by a page": [lambda n: n.show("t")],
    "found gone": [lambda n: n.find_gone("t", NOW)],
    "end of a crawl": [lambda n: n.end_crawl(BEGAN, True), lambda n: n.end_crawl(BEGAN, False)],
}


def in_state(state: str) -> Iterator[Notes]:
    """Notes in which the task `t` is in that state, early or late, with a hint or without."""
    for at, hinted_at in product((EARLY, LATE), (None, EARLY, LATE)):
        notes = Notes()
        match state:
            case "LISTED":
                notes.report("t", at, is_listed=True, as_of=NEVER)
            case "UNLISTED":
                notes.report("t", at, is_listed=False, as_of=NEVER)
            case "GONE":
                notes.find_gone("t", at)
            case "HINTED":
                notes.hint("t", at, at, in_index=False)
        if hinted_at is not None and state != NO_NOTE:
            notes.hint("t", hinted_at, hinted_at, in_index=False)
        assert state_of(notes) == state
        yield notes


def state_of(notes: Notes) -> str:
    note = notes.get("t")
    return NO_NOTE if note is None else note.state.name


TABLE = table(noting.__doc__, "cannot be):\n\n")


def test_the_table_names_every_state() -> None:
    assert list(TABLE) == [NO_NOTE, *(state.name for state in NoteState)]
    assert list(TABLE[NO_NOTE]) == list(EVENTS)


@pytest.mark.parametrize(
    ("state", "event", "leads_to"),
    [(state, event, cell) for state, cells in TABLE.items() for event, cell in cells.items()],
)
def test_the_table_is_what_happens(state: str, event: str, leads_to: str) -> None:
    if leads_to == "-":
        assert state in ("HINTED", "GONE")  # a task that is not in the index has been listed by no crawl
        return
    found = set()
    for happen in EVENTS[event]:
        for notes in in_state(state):
            happen(notes)
            found.add(state_of(notes))
    assert found == in_cell(leads_to)


def test_the_picture_in_the_design_is_the_table() -> None:
    picture = RULES.read_text().split("What is noted of one task")[1].split("stateDiagram-v2\n")[1].split("```")[0]
    drawn = {(a.upper(), b.upper()) for a, b in re.findall(r"^ *(\S+) --> (\S+):", picture, re.MULTILINE)}
    edges = {(a, b) for a, cells in TABLE.items() for cell in cells.values() for b in in_cell(cell) if a != b}
    assert {tuple(NO_NOTE if end == "[*]" else end for end in edge) for edge in drawn} == edges


def test_of_an_id_that_is_too_long_nothing_is_noted() -> None:
    notes, long = Notes(), "x" * (noting.NOTED_ID_CHARS_MAX + 1)
    notes.report(long, EARLY, is_listed=False, as_of=NEVER)
    notes.find_gone(long, NOW)
    assert len(notes) == notes.size_bytes == 0


def test_a_task_that_is_found_gone_twice_is_gone_since_the_later_time() -> None:
    notes = Notes()
    for at in (LATE, EARLY):
        notes.find_gone("t", at)
    note = notes.get("t")
    assert note is not None
    assert note.at == LATE


@pytest.mark.parametrize("state", [state.name for state in NoteState])
def test_a_note_takes_no_more_than_is_counted(state: str) -> None:
    """Measured: a note, its two instants that no other note shares, its places in the maps; of an id also its text."""
    count = 20_000
    ids = [str(uuid4()) for _ in range(count)]
    notes = Notes()
    gc.collect()
    tracemalloc.start()
    try:
        for number, task_id in enumerate(ids):
            at = NOW + number
            match state:
                case "LISTED" | "UNLISTED":
                    notes.report(task_id, at, is_listed=state == "LISTED", as_of=NEVER)
                    notes.renew(task_id, at + 0.1)
                    notes.hint(task_id, at, at, in_index=True)
                case "GONE":
                    notes.find_gone("".join((task_id[:9], task_id[9:])), at)  # of a request: another str
                case "HINTED":
                    notes.hint("".join((task_id[:9], task_id[9:])), at, at + 0.1, in_index=False)
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert used <= notes.size_bytes <= 3 * used
