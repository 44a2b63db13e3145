"""What is noted of tasks has bounds, and counts what it takes (DESIGN 7.7). What it means: tests/model.

A number is a place in the order of what happens.
"""

import gc
import sys
import tracemalloc
from pathlib import Path

import pytest

from gateway.mcp.task import Moment, Stamp
from gateway.tasks.index import GONE_MAX
from gateway.tasks.reconciliation import CHANGES, MARKS_MAX, LastCrawl, Record
from gateway.tasks.task_entry import Stale


def at(order: int) -> Moment:
    return Moment(order, float(order))


def stamp(asked: int, came: int) -> Stamp:
    return Stamp(at(asked), asked, came)


def test_the_table_of_the_design_is_what_the_code_does() -> None:
    text = (Path(__file__).parents[2] / "docs/design.md").read_text()
    rows = [line.strip("|").split("|") for line in text.split("| it says, ")[1].split("\n\n")[0].splitlines()[2:]]
    said = {cells[0].strip(): tuple(cell.strip() for cell in cells[1:]) for cells in rows}
    assert said == {news: tuple(change.value for change in changes) for news, changes in CHANGES.items()}


def test_too_many_marks_are_a_doubt() -> None:
    record = Record()
    for number in range(MARKS_MAX + 1):
        record.mark(f"t-{number}", Stale(number + 1, number + 1))
    assert len(record.index.stale) == MARKS_MAX
    assert record.doubted == MARKS_MAX + 1


def test_of_the_tasks_that_are_gone_the_newest_are_kept() -> None:
    record = Record()
    for number in range(GONE_MAX):
        record.answered(f"t-{number}", None, stamp(1, 2), at(2))
    before = record.size_bytes
    record.answered("t-0", None, stamp(3, 4), at(4))
    record.answered("t-9", None, stamp(3, 4), at(4))
    assert (len(record.index.gone), record.size_bytes) == (GONE_MAX, before)
    record.answered("t-x", None, stamp(3, 4), at(4))
    assert (len(record.index.gone), record.size_bytes) == (GONE_MAX, before)
    assert "t-1" not in record.index.gone and {"t-0", "t-9", "t-x"} <= record.index.gone.keys()


def test_the_cursors_that_are_kept_count() -> None:
    record = Record()
    before = record.size_bytes
    cursors = ["c" * 1000, "é" * 1000, "語" * 1000, "😀" * 1000]
    record.end_crawl(stamp(1, 2), LastCrawl(cursors=[None, *cursors]))
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
            record.mark(copy, Stale(number, number))
        else:
            record.answered(copy, None, stamp(number, number + 1), at(number))
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    counted = record.index.size_bytes
    assert taken <= counted <= 3 * taken
