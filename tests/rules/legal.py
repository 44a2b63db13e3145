"""What must hold of the notes of a session, whatever happened.

In: a `Record`. Out: what does not hold. Always: the rules are those that the head of `tasks/notes.py` states, and the
promises of the instants of `Knowledge`, as far as they can be told from the notes.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any, Final
from unittest.mock import patch

from gateway.tasks.knowledge import Record
from gateway.tasks.notes import NEVER, Note, NoteState

FOREVER = float("inf")


def faults(record: Record) -> Iterator[str]:
    """What is wrong with what is known."""
    known, notes = record.known, record.known.notes
    held = {task_id: note for task_id in notes if (note := notes.get(task_id)) is not None}
    for task_id, note in held.items():
        if not _is_legal(record, task_id, note):
            yield f"{task_id}: {note}, in the index: {record.index.get(task_id)}, crawl {record.crawl}"
    if known.new_as_of < known.pages_as_of:
        yield "the place of new tasks is known as of before the pages"
    if {i for i, note in held.items() if note.state is NoteState.UNLISTED} != set(notes.unlisted):
        yield "the unlisted tasks are not those whose notes say so"
    if {i for i, note in held.items() if note.is_suspect} != set(notes.suspects(FOREVER)):
        yield "the suspect tasks are not those whose notes say so"
    if (notes.size_bytes > 0) != bool(held):
        yield f"{len(held)} notes of {notes.size_bytes} bytes"


def _is_legal(record: Record, task_id: str, note: Note) -> bool:
    task, known = record.index.get(task_id), record.known
    match note.state:
        case NoteState.LISTED:
            return task is not None and note.says_something
        case NoteState.UNLISTED:
            if task is None or (record.crawl and task.crawl == record.crawl) or known.unlisted_as_of > note.at:
                return False
            return task.is_terminal or known.live_as_of <= note.at
        case NoteState.HINTED:
            return task is None and note.is_suspect and note.at == NEVER
        case NoteState.GONE:
            return task is None and note.at != NEVER and note.told_at == NEVER


_EVENTS: Final = ("take", "suspect", "forget", "listed", "confirm", "begin_crawl")


@contextmanager
def watched() -> Iterator[list[str]]:
    """The faults that are found in what is known, after each event."""
    found: list[str] = []

    def watching(event: str, happen: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(happen)
        def watch(record: Record, *given: Any) -> Any:
            found.extend(f"before {event}{given}: {fault}" for fault in faults(record))
            out = happen(record, *given)
            found.extend(f"after {event}{given}: {fault}" for fault in faults(record))
            return out

        return watch

    with ExitStack() as patches:
        for event in _EVENTS:
            patches.enter_context(patch.object(Record, event, watching(event, getattr(Record, event))))
        yield found
