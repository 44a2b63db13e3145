"""What becomes of answers and marks: which of two answers is newer, what a mark waits for, what a crawl says.

The rules are those of DESIGN 6.4, 6.5 and 6.9. A number is a place in the order of what happens.
"""

import gc
import sys
import tracemalloc

import pytest

from gateway.mcp import task
from gateway.mcp.task import Moment, Stamp, Task, text_bytes
from gateway.tasks import marks as recording
from gateway.tasks.marks import GONE_MAX, MARKS_MAX, Listing, Record
from tests.rules.legal import faults

FOREVER = 1_000_000


def a_task(status: str = "working", note: str = "", created: str = "30", task_id: str = "t") -> Task:
    fields = f'"taskId":"{task_id}","status":"{status}","createdAt":"2025-11-25T10:{created}:00Z","note":"{note}"'
    return task.parse(f"{{{fields}}}".encode())


def at(order: int) -> Moment:
    return Moment(order, float(order))


def stamp(asked: int, came: int) -> Stamp:
    return Stamp(at(asked), asked, came)


def told(record: Record, answer: Task | None, asked: int, came: int) -> None:
    """An own `tasks/get` was answered: with a task, or that it is not there."""
    if answer is None:
        record.miss("t", stamp(asked, came), at(came))
    else:
        record.take(answer, stamp(asked, came), at(came))


def state(record: Record) -> str:
    """What the index shows, and whether every query waits for the next answer."""
    found = record.index.get("t")
    assert not list(faults(record))
    waits = " and all wait" if record.is_due("t", 0) else ""
    return ("nothing" if found is None else f"{found.status}{(b'new' in found.raw and ' new') or ''}") + waits


NEW = a_task(note="new")
DONE, OTHER_LIFE = a_task("completed"), a_task(created="40")
# Each: the first answer, asked for at 10, came at 20; the second, when it was asked for; what is known then.
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
    "gone, though final": (DONE, None, 21, "nothing"),
    "back again": (None, a_task(), 21, "working"),
    "back again, says one that overlaps": (None, a_task(), 19, "working and all wait"),
}


@pytest.mark.parametrize("case", PAIRS.values(), ids=PAIRS.keys())
def test_which_of_two_answers_is_newer(case: tuple[Task | None, Task | None, int, str]) -> None:
    first, second, asked, then = case
    record = Record()
    told(record, first, 10, 20)
    told(record, second, asked, 30)
    assert state(record) == then
    told(record, NEW, 31, 40)  # an answer that overlaps with nothing settles it
    assert not record.due(FOREVER)


def test_an_answer_that_came_before_the_other_was_asked_for_is_older_though_it_is_read_later() -> None:
    record = Record()
    told(record, NEW, 10, 20)
    record.listed([a_task()], stamp(5, 9), at(30))
    assert state(record) == "working new"


# ---- marks ----


def test_a_query_waits_for_a_mark_that_began_before_it_until_an_answer_that_was_asked_for_after_it() -> None:
    record = Record()
    told(record, a_task(), 10, 20)
    record.tell("t", NEW.raw, at(25), at(30))
    assert (record.due(29), record.due(30)) == ([], ["t"])
    told(record, a_task(), 29, 40)  # it may be older than what passed
    assert record.due(30) == ["t"]
    told(record, NEW, 41, 50)
    assert not record.due(FOREVER)
    assert state(record) == "working new"


def test_an_answer_asked_for_after_a_query_is_enough_for_it_though_marks_go_on() -> None:
    record = Record()
    told(record, a_task(), 10, 20)
    record.tell("t", NEW.raw, None, at(30))
    record.tell("t", NEW.raw, None, at(50))
    told(record, a_task(), 40, 60)  # asked for by a query that came at 35
    assert (record.due(35), record.due(60)) == ([], ["t"])


def test_what_says_what_the_index_says_marks_nothing_and_renews_the_age() -> None:
    record = Record()
    told(record, a_task(), 10, 20)
    record.tell("t", a_task().raw, at(25), at(30))
    found = record.index.get("t")
    assert found is not None and not record.marks
    assert (found.told.as_of, found.told.asked, found.told.came) == (at(25), 10, 30)
    record.tell("t", a_task().raw, at(22), at(31))
    assert found.told.as_of == at(25)


@pytest.mark.parametrize("asked", [at(25), None])
def test_what_a_client_is_told_overlaps_with_an_own_answer_under_way(asked: Moment | None) -> None:
    """The state may have been another for a while, and be the old one again."""
    record = Record()
    told(record, a_task(), 10, 20)
    record.tell("t", a_task().raw, asked, at(30))
    record.listed([a_task()], stamp(21, 29), at(31))  # it came before, and is read only now
    told(record, NEW, 30, 32)
    assert state(record) == "working and all wait"


@pytest.mark.parametrize(("status", "is_marked"), [("working", True), ("completed", False)])
def test_a_result_says_that_its_task_has_ended(status: str, is_marked: bool) -> None:
    record = Record()
    told(record, a_task(status), 10, 20)
    record.end("t", at(30))
    assert bool(record.due(FOREVER)) is is_marked


@pytest.mark.parametrize(("task", "is_marked"), [(a_task(), True), (DONE, False), (None, False)])
def test_an_error_that_does_not_say_unknown_may_be_that_of_a_live_task(task: Task | None, is_marked: bool) -> None:
    record = Record()
    told(record, task, 10, 20)
    record.end("t", at(30), has_failed=True)
    assert bool(record.marks) is is_marked


def test_an_error_about_what_the_index_lacks_counts_only_while_something_is_asked_and_until_a_crawl_ends() -> None:
    record = Record()
    record.deny("t", at(10), is_asking=False)
    assert not record.marks
    record.deny("t", at(10), is_asking=True)
    assert not record.due(FOREVER)  # nobody asks for it
    told(record, a_task(), 5, 20)  # what was asked for before it
    assert record.due(FOREVER) == ["t"]
    record.forget("t")
    record.begin_crawl()
    record.end_crawl(stamp(30, 40), 1, [None], Listing.APPENDS)
    assert not record.marks


def test_a_result_that_makes_a_task_begins_another_life_of_its_id() -> None:
    record = Record()
    told(record, DONE, 10, 20)
    record.make("t", "tools/call", at(30))
    told(record, a_task(), 25, 40)
    assert state(record) == "completed"  # it may be of the life before
    told(record, a_task(), 41, 50)
    found = record.index.get("t")
    assert found is not None and (found.status, found.method) == ("working", "tools/call")


@pytest.mark.parametrize("before", [a_task(), DONE])
def test_another_life_has_not_the_method_of_the_life_before(before: Task) -> None:
    record = Record()
    record.make("t", "tools/call", at(1))
    told(record, before, 2, 3)
    told(record, OTHER_LIFE, 4, 5)
    assert made(record) == ("working", None)


def made(record: Record) -> tuple[str, str | None]:
    """The task of which a result told, and the method of the request that made it."""
    found = record.index.get("t")
    assert found is not None
    return found.status, found.method


def test_the_first_answer_after_a_result_has_the_method_and_the_life_though_something_passed_since() -> None:
    record = Record()
    record.make("t", "tools/call", at(3))
    record.tell("t", b"", at(4), at(6))  # its maker polls it
    told(record, a_task(), 5, 7)  # asked for by a query that came at 4
    assert (made(record), record.due(4), record.due(6)) == (("working", "tools/call"), [], ["t"])
    record = Record()
    told(record, DONE, 1, 2)
    record.make("t", "tools/call", at(3))
    record.tell("t", b"", at(4), at(6))
    told(record, a_task(), 5, 7)
    assert made(record) == ("working", "tools/call")
    told(record, DONE, 8, 9)
    told(record, a_task(), 10, 11)  # the result told of one life, which is over
    assert made(record) == ("completed", "tools/call")


def test_a_result_that_made_a_task_is_remembered_while_answers_overlap() -> None:
    record = Record()
    record.make("t", "tools/call", at(3))
    record.listed([a_task()], stamp(2, 6), at(6))
    told(record, NEW, 4, 8)
    assert state(record) == "working and all wait"
    told(record, NEW, 9, 10)
    assert (made(record), state(record)) == (("working", "tools/call"), "working new")
    record = Record()
    record.make("t", "tools/call", at(3))
    record.listed([a_task()], stamp(2, 6), at(6))
    told(record, None, 4, 8)
    told(record, NEW, 9, 10)
    assert made(record) == ("working", "tools/call")


def test_a_final_state_of_an_answer_that_overlaps_may_be_of_the_life_before_a_result() -> None:
    record = Record()
    told(record, DONE, 1, 2)
    record.make("t", "tools/call", at(10))
    record.listed([DONE], stamp(9, 12), at(12))
    told(record, a_task(), 11, 13)
    assert state(record) == "completed and all wait"
    told(record, a_task(), 14, 15)
    assert (made(record), state(record)) == (("working", "tools/call"), "working")


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


# ---- crawls ----


def crawled(record: Record, began: int, tasks: list[Task]) -> None:
    record.begin_crawl()
    record.listed(tasks, stamp(began + 1, began + 2), at(began + 2))
    for task_id in [i for some in record.unseen(at(began)) for i in some]:
        record.mark(task_id, at(began + 3), first=0)
    record.end_crawl(stamp(began, began + 5), 1, [None], Listing.APPENDS)


def test_a_task_that_a_crawl_omits_makes_every_query_wait() -> None:
    record = Record()
    crawled(record, 10, [a_task()])
    assert state(record) == "working"
    crawled(record, 20, [])
    assert state(record) == "working and all wait"
    told(record, a_task(), 30, 31)
    assert (state(record), list(record.unlisted)) == ("working", ["t"])
    crawled(record, 40, [])  # pages tell nothing of it
    assert state(record) == "working"
    crawled(record, 50, [a_task()])
    assert not record.unlisted


def test_a_crawl_says_not_there_and_overlaps_with_what_was_asked_for_before_it_ended() -> None:
    record = Record()
    crawled(record, 10, [])
    told(record, a_task(), 9, 20)
    assert state(record) == "working and all wait"
    record = Record()
    crawled(record, 10, [])
    told(record, a_task(), 16, 20)
    assert state(record) == "working"


def test_a_page_settles_the_marks_of_the_tasks_on_it_and_a_crawl_those_of_others_only_without_tasks_get() -> None:
    record = Record()
    for one in ("t", "other"):
        record.mark(one, at(5))
    crawled(record, 10, [a_task()])
    assert record.due(FOREVER) == ["other"]
    record.stop_asking_by_id(at(20))
    crawled(record, 30, [a_task()])
    assert not record.due(FOREVER)


# ---- what it takes ----


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
