"""What is noted of tasks has bounds, and counts what it takes (DESIGN 7.6, 7.7). What it means: tests/model."""

import gc
import sys
import tracemalloc

import pytest

from gateway.mcp.task import Moment, Stamp, text_bytes
from gateway.tasks import marks as recording
from gateway.tasks.marks import GONE_MAX, MARKS_MAX, Listing, Record


def at(order: int) -> Moment:
    return Moment(order, float(order))


def stamp(asked: int, came: int) -> Stamp:
    return Stamp(at(asked), asked, came)


def test_too_many_marks_are_a_doubt() -> None:
    record = Record()
    for number in range(MARKS_MAX + 1):
        record.mark(f"t-{number}", at(number + 1))
    assert len(record.marks) == MARKS_MAX
    assert record.known.doubted == MARKS_MAX + 1


def test_of_the_tasks_that_are_gone_the_newest_are_kept() -> None:
    record = Record()
    for number in range(GONE_MAX):
        record.miss(f"t-{number}", stamp(1, 2), at(2))
    before = record.size_bytes
    record.miss("t-0", stamp(3, 4), at(4))
    record.miss("t-9", stamp(3, 4), at(4))
    assert (len(record.gone), record.size_bytes) == (GONE_MAX, before)
    record.miss("t-x", stamp(3, 4), at(4))
    assert (len(record.gone), record.size_bytes) == (GONE_MAX, before)
    assert "t-1" not in record.gone and {"t-0", "t-9", "t-x"} <= record.gone.keys()


def test_the_cursors_that_are_kept_count() -> None:
    record = Record()
    before = record.size_bytes
    cursors = ["c" * 1000, "é" * 1000, "語" * 1000, "😀" * 1000]
    record.end_crawl(stamp(1, 2), 2, [None, *cursors], Listing.APPENDS)
    assert record.size_bytes - before == pytest.approx(sum(map(sys.getsizeof, cursors)), abs=16)


@pytest.mark.parametrize("kind", ["marked", "gone"])
def test_marks_and_gone_tasks_count_as_much_as_they_take(kind: str) -> None:
    count, record = 5000, Record()
    ids = [f"task-{number:06}" for number in range(count)]
    gc.collect()
    tracemalloc.start()
    for number, task_id in enumerate(ids, 1000):
        copy = task_id[:5] + task_id[5:]
        if kind == "marked":
            record.mark(copy, at(number))
        else:
            record.miss(copy, stamp(number, number + 1), at(number))
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    counted = count * (recording._MARK_BYTES + text_bytes(ids[0]))
    assert taken <= counted <= 3 * taken
