"""Which of two answers is newer (DESIGN 6.5, 6.9); what is noted of tasks has bounds, and counts what it takes (7.7).

A number is a place in the order of what happens. What marks mean: tests/model.
"""

import gc
import sys
import tracemalloc
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.mcp import task
from gateway.mcp.task import Moment, Stamp, Task
from gateway.tasks.index import GONE_MAX, Named
from gateway.tasks.reconciliation import CHANGES, MARKS_MAX, Listing, News, Record
from tests.rules.legal import faults


def at(order: int) -> Moment:
    return Moment(order, float(order))


def stamp(asked: int, came: int) -> Stamp:
    return Stamp(at(asked), asked, came)


def a_task(status: str = "working", note: str = "", created: str = "30") -> Task:
    fields = f'"taskId":"t","status":"{status}","createdAt":"2025-11-25T10:{created}:00Z","note":"{note}"'
    return task.parse(f"{{{fields}}}".encode())


NEW, DONE, OTHER_LIFE = a_task(note="new"), a_task("completed"), a_task(created="40")
# Each: the first answer to a `tasks/get`, asked for at 10, came at 20, or that it is not there; the second, when it was
# asked for; what is known then.
PAIRS: dict[str, tuple[Task | None, Task | None, int, str]] = {
    "asked for after the other came": (a_task(), NEW, 21, "working new"),
    "overlap and differ": (a_task(), NEW, 19, "working and all wait"),
    "overlap and say the same": (a_task(), a_task(), 19, "working"),
    "the later one is final": (a_task(), DONE, 19, "completed"),
    "the earlier one is final": (DONE, a_task(), 19, "completed"),
    "one is final, of another life": (DONE, OTHER_LIFE, 19, "completed and all wait"),
    "a final state is final": (DONE, a_task(), 21, "completed"),
    "another life begins": (DONE, OTHER_LIFE, 21, "working"),
    "gone since": (a_task(), None, 21, "nothing"),
    "gone, says one that overlaps": (a_task(), None, 19, "working and all wait"),
    "back again": (None, a_task(), 21, "working"),
    "back again, says one that overlaps": (None, a_task(), 19, "working and all wait"),
}


@pytest.mark.parametrize("case", PAIRS.values(), ids=PAIRS.keys())
def test_which_of_two_answers_is_newer(case: tuple[Task | None, Task | None, int, str]) -> None:
    record, (first, second, asked, then) = Record(), case
    for answer, told in ((first, stamp(10, 20)), (second, stamp(asked, 30))):
        record.answered("t", answer, told, at(told.came))
        assert not list(faults(record))
    found = record.index.get("t")
    state = "nothing" if found is None else found.status + " new" * (found.raw == NEW.raw)
    assert state + " and all wait" * record.is_due("t", 0) == then
    record.answered("t", NEW, stamp(31, 40), at(40))
    assert not record.due(1_000_000), "an answer that overlaps with nothing settles it"


def test_the_table_of_the_design_is_what_the_code_does() -> None:
    text = (Path(__file__).parents[2] / "docs/design.md").read_text()
    rows = [line.strip("|").split("|") for line in text.split("| it says, ")[1].split("\n\n")[0].splitlines()[2:]]
    said = {cells[0].strip(): tuple(cell.strip() for cell in cells[1:]) for cells in rows}
    assert said == {news.value: tuple(change.value for change in changes) for news, changes in CHANGES.items()}
    assert {*CHANGES} == {*News}


def test_a_query_waits_for_a_mark_that_began_before_it() -> None:
    record = Record()
    record.answered("t", a_task(), stamp(10, 20), at(20))
    record.tell("t", NEW.raw, at(25), at(30))
    assert (record.due(29), record.due(30)) == ([], ["t"])


@pytest.mark.parametrize("before", ["nothing", "denied", "seen", "found", "gone"])
def test_a_task_that_is_marked_again_is_marked_as_it_would_be(before: str) -> None:
    once, again = Record(), Record()
    for record in (once, again):
        match before:
            case "denied":
                record.mark("a", at(1), Named.BY_ERROR)
            case "seen" | "gone":
                record.mark("a", at(1))
            case "found":
                record.find("a", at(1))
        if before == "gone":
            record.index.set(replace(record.index.entries["a"], told=stamp(1, 1)))
    once.mark("a", at(2))
    assert again.mark_again("a", at(2)) is (before == "seen"), "else more changes than when"
    if before == "seen":
        assert again.index.stale == once.index.stale


def test_too_many_marks_are_a_doubt() -> None:
    record = Record()
    for number in range(MARKS_MAX + 1):
        record.mark(f"t-{number}", at(number + 1))
    assert len(record.index.stale) == MARKS_MAX
    assert record.known.doubted == MARKS_MAX + 1


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
            record.answered(copy, None, stamp(number, number + 1), at(number))
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    counted = record.index.size_bytes
    assert taken <= counted <= 3 * taken
