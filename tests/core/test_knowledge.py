"""Which of two reports of a task is believed, where no timestamp tells which is the later one (DESIGN 6)."""

import pytest

from gateway.core import task
from gateway.core.knowledge import Record
from gateway.core.observe import Observation
from gateway.core.task import Task


def reading(note: str, status: str = "working", at: str = "2025-11-25T10:30:00Z") -> Task:
    """A report of one task, of one instant unless another is given."""
    fields = f'"taskId":"t","status":"{status}","createdAt":"2025-11-25T10:30:00Z","lastUpdatedAt":"{at}"'
    return task.parse(f'{{{fields},"note":"{note}"}}'.encode())


def asked(record: Record, answer: Task, between: Task | None) -> None:
    """`tasks/get` at 2, another page at 3, perhaps a notification at 4, the answer at 5."""
    since = record.index.get("t")
    record.listed([], 3, 3)
    if between is not None:
        record.take(Observation(tasks=[between]), None, 4)
    record.take(Observation(tasks=[answer]), 2, 5, since)


@pytest.mark.parametrize(
    ("answer", "between", "is_suspect"),
    [
        (reading("2"), None, False),  # differs at every reading, and nothing came between
        (reading("2"), reading("3"), True),
        (reading("2"), reading("1"), False),  # the same as before
        (reading("2"), reading("3", at="2025-11-25T10:29:59Z"), False),  # older, by its timestamp
    ],
)
def test_a_tie_is_asked_for_again_only_if_something_came_between(
    answer: Task, between: Task | None, is_suspect: bool
) -> None:
    record = Record()
    record.listed([reading("1")], 1, 1)
    asked(record, answer, between)
    assert ("t" in record.known.suspect) is is_suspect
