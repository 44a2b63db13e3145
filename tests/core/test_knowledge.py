"""Which of two reports of a task is believed, where no timestamp tells which is the later one; and what a crawl that
does not show a task says of it (DESIGN 6)."""

import pytest

from gateway.core import task
from gateway.core.knowledge import NEVER, Listing, Record
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


def test_a_task_made_while_a_crawl_reads_is_looked_for_though_the_upstream_turns_out_not_to_know_tasks_get() -> None:
    record = Record()
    record.crawls(began_at=2)
    record.take(Observation(tasks=[reading("made")]), 1, 3)  # behind a page that was read by then
    record.asks_no_more_by_id(4)
    for task_id in [i for some in record.unseen(2) for i in some]:
        record.forget(task_id, 2)
    record.crawled(2, 5, 1, [None], Listing.NEITHER)
    assert record.known.suspect["t"].since == NEVER  # for whoever asks
    record.crawls(began_at=6)
    record.listed([reading("made")], 7, 8)
    record.crawled(6, 9, 1, [None], Listing.NEITHER)
    assert list(record.index) == ["t"]
    assert not record.known.suspect


def test_who_asked_before_something_hinted_at_a_task_does_not_wait_for_it() -> None:
    record = Record()
    record.listed([reading("1")], 1, 1)
    record.crawled(1, 1, 1, [None], Listing.APPENDS)
    for now in (3, 5):
        record.take(Observation(suspect=["t"]), None, now)
    assert [record.known.suspect["t"].since, record.known.suspect["t"].at] == [3, 5]
    record.take(Observation(tasks=[reading("1")]), 4, 6)  # for who asked at 3 or 4 that is enough
    assert record.known.suspect["t"].since == 4
    record.take(Observation(tasks=[reading("1")]), 5, 7)
    assert not record.known.suspect
