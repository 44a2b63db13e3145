"""Which of two reports of a task is believed where timestamps do not tell; what a task's absence from a crawl means.

The rules are those of DESIGN 6.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gateway
from gateway.mcp import task
from gateway.mcp.observe import Observation
from gateway.mcp.task import Task
from gateway.tasks.knowledge import Listing, Record
from gateway.tasks.notes import NEVER
from tests.rules.legal import FOREVER, faults


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
        (reading("2"), reading("3", at="2025-11-25T10:29:59Z"), True),  # older, by its timestamp: a hint
    ],
)
def test_a_tie_is_asked_for_again_only_if_something_came_between(
    answer: Task, between: Task | None, is_suspect: bool
) -> None:
    record = Record()
    record.listed([reading("1")], 1, 1)
    asked(record, answer, between)
    assert record.known.notes.suspects(5) == (["t"] if is_suspect else [])


def test_the_cursors_that_are_kept_count() -> None:
    record = Record()
    before = record.size_bytes
    cursors = ["c" * 1000, "é" * 1000, "語" * 1000, "😀" * 1000]
    record.known.end_crawl(1, 2, 2, [None, *cursors], Listing.APPENDS)
    assert record.size_bytes - before == pytest.approx(sum(map(sys.getsizeof, cursors)), abs=16)


def test_a_task_made_while_a_crawl_reads_is_looked_for_though_the_upstream_turns_out_not_to_know_tasks_get() -> None:
    record = Record()
    record.begin_crawl(began_at=2)
    record.take(Observation(tasks=[reading("made")]), 1, 3)  # behind a page that was read by then
    record.known.stop_asking_by_id(4)
    for task_id in [i for some in record.unseen(2) for i in some]:
        record.forget(task_id, 2)
    record.known.end_crawl(2, 5, 1, [None], Listing.NEITHER)
    assert record.known.notes.suspects(NEVER) == ["t"]  # for whoever asks
    record.begin_crawl(began_at=6)
    record.listed([reading("made")], 7, 8)
    record.known.end_crawl(6, 9, 1, [None], Listing.NEITHER)
    assert list(record.index) == ["t"]
    assert not record.known.notes.suspects(FOREVER)


def test_who_asked_before_something_hinted_at_a_task_does_not_wait_for_it() -> None:
    record = Record()
    record.listed([reading("1")], 1, 1)
    record.known.end_crawl(1, 1, 1, [None], Listing.APPENDS)
    for now in (3, 5):
        record.take(Observation(suspect=["t"]), None, now)
    assert [record.known.notes.suspects(came_at) for came_at in (2, 3)] == [[], ["t"]]
    record.take(Observation(tasks=[reading("1")]), 4, 6)  # for who asked at 3 or 4 that is enough
    assert [record.known.notes.suspects(came_at) for came_at in (3, 4)] == [[], ["t"]]
    record.take(Observation(tasks=[reading("1")]), 5, 7)
    assert not record.known.notes.suspects(FOREVER)


def test_a_task_that_came_back_is_heard_again() -> None:
    """It was found gone, and a later page shows it: from then on its notifications count."""
    record = Record()
    record.listed([reading("1")], 1, 1)
    record.take(Observation(gone=["t"]), 1, 2)
    record.listed([reading("1")], 3, 4)
    assert list(record.index) == ["t"]
    record.take(Observation(tasks=[reading("2", "completed", "2025-11-25T10:30:01Z")]), None, 5)
    found = record.index.get("t")
    assert found is not None
    assert found.is_terminal


# ---- the server's clock ----

AHEAD, RIGHT = "2025-11-25T11:30:00Z", "2025-11-25T10:30:05Z"


def held(record: Record) -> bytes:
    found = record.index.get("t")
    assert found is not None
    return found.raw


def test_an_answer_that_was_asked_for_later_is_newer_whatever_its_timestamp_says() -> None:
    """A clock an hour ahead that is set right, or a notification that lies: DESIGN 6.9."""
    right = reading("2", at=RIGHT)
    for asked_at, is_held in ((3.5, True), (3, False), (2, False)):
        record = Record()
        record.listed([reading("0")], 1, 1)
        record.take(Observation(tasks=[reading("1", at=AHEAD)]), None, 3)
        record.take(Observation(tasks=[right]), asked_at, 4)
        assert (held(record) == right.raw) is is_held
        # Where the order is not known the timestamps decide, and the server is asked again.
        assert record.known.notes.suspects(FOREVER) == ([] if is_held else ["t"])


@pytest.mark.parametrize("asked_at", [3, 3.5])
def test_a_page_that_was_asked_for_later_is_newer_whatever_its_timestamp_says(asked_at: float) -> None:
    record = Record()
    record.listed([reading("0")], 1, 1)
    record.take(Observation(tasks=[reading("1", at=AHEAD)]), None, 3)
    right = reading("2", at=RIGHT)
    record.listed([right], asked_at, 4)
    assert (held(record) == right.raw) is (asked_at > 3)


def test_a_page_that_follows_a_page_is_newer_whatever_its_timestamp_says() -> None:
    record = Record()
    record.listed([reading("1", at=AHEAD)], 1, 2)
    right = reading("2", at=RIGHT)
    record.listed([right], 3, 4)
    assert held(record) == right.raw


def test_a_page_that_is_taken_in_late_is_older_than_what_was_asked_for_once_it_had_come() -> None:
    record = Record()
    record.listed([reading("0")], 1, 1)
    right = reading("2", at=RIGHT)
    record.take(Observation(tasks=[right]), 5, 6)
    record.listed([reading("1", at=AHEAD)], 3, 4)  # it came at 4: a look takes its pages in once it has all
    assert held(record) == right.raw
    assert not record.known.notes.suspects(FOREVER)


def test_a_notification_with_an_earlier_timestamp_is_a_hint() -> None:
    """It is late, or the clock was set back."""
    record = Record()
    record.listed([reading("1", at=AHEAD)], 1, 2)
    record.take(Observation(tasks=[reading("2", at=RIGHT)]), None, 3)
    assert held(record) == reading("1", at=AHEAD).raw
    assert record.known.notes.suspects(3) == ["t"]


def test_a_terminal_state_is_final_whoever_was_asked_later_and_its_timestamp_is_set_right() -> None:
    record = Record()
    record.listed([reading("1", "completed", AHEAD)], 1, 2)
    for asked_at, answer in ((3, reading("2", "working", RIGHT)), (5, reading("3", "failed", RIGHT))):
        record.take(Observation(tasks=[answer]), asked_at, asked_at + 1)
        assert held(record) == reading("1", "completed", AHEAD).raw
    right = reading("1", "completed", RIGHT)
    record.take(Observation(tasks=[right]), 7, 8)
    assert held(record) == right.raw


# ---- another life of an id (DESIGN 6.9, 2.15) ----


def made(number: str, at: str = "2025-11-25T10:30:00Z") -> Task:
    """The report in the response that made a task."""
    return task.parse(reading(number, at=at).raw, method="tools/call")


ENDED = reading("1", "completed")


@pytest.mark.parametrize("notified", [False, True])
def test_a_task_that_is_made_after_another_of_its_id_has_ended_is_a_new_one(notified: bool) -> None:
    """The Rust SDK takes ids from requests, and some hosts give all the id 1. The new task was missing for ever."""
    record = Record()
    record.take(Observation(tasks=[made("0")]), 1, 2)
    record.take(Observation(tasks=[ENDED]), None if notified else 3, 4)
    record.take(Observation(tasks=[made("2")]), 5, 6)
    assert held(record) == reading("2").raw
    record.take(Observation(tasks=[reading("3", "failed")]), 7, 8)
    assert held(record) == reading("3", "failed").raw


def test_a_task_that_a_page_showed_at_its_end_has_another_life_too() -> None:
    record = Record()
    record.begin_crawl(1)
    record.listed([ENDED], 1, 2)
    record.known.end_crawl(1, 2, 1, [None], Listing.NEITHER)
    record.take(Observation(tasks=[made("2")]), 3, 4)
    assert held(record) == reading("2").raw


@pytest.mark.parametrize("how", ["a notification", "an answer", "a page"])
def test_the_end_of_a_task_may_overtake_the_response_that_made_it(how: str) -> None:
    """It is the end of this life: a terminal state stays final."""
    record = Record()
    record.begin_crawl(0)
    record.known.end_crawl(0, 0.5, 1, [None], Listing.NEITHER)
    record.begin_crawl(1)
    match how:
        case "a notification":
            record.take(Observation(tasks=[reading("0")]), 0.6, 0.7)
            record.take(Observation(tasks=[ENDED]), None, 4)
        case "an answer":
            record.take(Observation(tasks=[ENDED]), 3, 4)
        case "a page":
            record.listed([ENDED], 3, 4)
    record.take(Observation(tasks=[made("0")]), 2, 5)
    assert held(record) == ENDED.raw


def test_a_task_that_was_created_after_its_id_had_ended_is_a_new_one_whoever_says_so() -> None:
    """The response that made it passed at another replica, or unread."""
    later = task.parse(reading("2").raw.replace(b"10:30:00Z", b"10:31:00Z"))
    for since, listed in ((None, True), (ENDED, False)):
        record = Record()
        record.take(Observation(tasks=[ENDED]), 1, 2)
        if listed:
            record.listed([later], 3, 4)
        else:
            record.take(Observation(tasks=[later]), 3, 4, since)
        assert held(record) == later.raw


# ---- what is known is legal, whatever happens ----

ids = st.sampled_from(["t", "u", "v", "x" * 300])
reports = st.builds(reading, st.sampled_from("123"), st.sampled_from(["working", "completed"]))
happenings = st.lists(
    st.one_of(
        st.tuples(st.just("reported"), reports, ids),
        st.tuples(st.just("gone"), ids),
        st.tuples(st.just("suspect"), ids),
        st.tuples(st.just("page"), st.lists(st.tuples(reports, ids), max_size=3)),
        st.tuples(st.just("looked"), st.lists(st.tuples(reports, ids), max_size=3)),
        st.tuples(st.sampled_from(["crawl begins", "crawl ends", "forget unseen", "no tasks/get"])),
    ),
    max_size=30,
)


def of(report: Task, task_id: str) -> Task:
    """The same report of another task."""
    return task.parse(report.raw.replace(b'"taskId":"t"', b'"taskId":"%b"' % task_id.encode()))


@settings(max_examples=200)
@given(happenings, st.lists(st.sampled_from([None, 0, 1, 3, 6]), min_size=30, max_size=30))
def test_what_is_known_is_legal_whatever_happens(events: list[tuple[Any, ...]], ages: list[int | None]) -> None:
    record, began_at = Record(), None
    for now, ((event, *given_), age) in enumerate(zip(events, ages, strict=False), 10):
        match event:
            case "reported":
                record.take(Observation(tasks=[of(*given_)]), None if age is None else now - age, now)
            case "gone":
                record.take(Observation(gone=given_), None, now)
            case "suspect":
                record.take(Observation(suspect=given_), None, now)
            case "page" | "looked":
                tasks = [of(*each) for each in given_[0]]
                asked_at = max(began_at or 0, now - (age or 0))
                record.listed(tasks, asked_at, now)
                if event == "looked" and began_at is None:
                    record.confirm(tasks, asked_at)
            case "crawl begins" if began_at is None:
                began_at = now
                record.begin_crawl(now)
            case "forget unseen" if began_at is not None:
                for task_id in [i for some in record.unseen(began_at) for i in some]:
                    record.forget(task_id, began_at)
            case "crawl ends" if began_at is not None:
                record.known.end_crawl(began_at, now, 1, [None], Listing.NEITHER)
                began_at = None
            case "no tasks/get":
                record.known.stop_asking_by_id(now)
        assert not list(faults(record))


# ---- it changes by its own methods only ----

KNOWING = ("knowledge", "notes")
EVENTS = {"report", "tell", "hint", "hint_unlisted", "settle", "show", "find_gone", "end_crawl"}
CHANGES = {"append", "clear", "extend", "insert", "pop", "popitem", "remove", "setdefault", "update", "add", "discard"}


def roots(target: ast.expr) -> Iterator[ast.expr]:
    """What an assignment to `target` changes: `a.b` where that is `a.b[c]`."""
    match target:
        case ast.Tuple(elts=targets):
            for each in targets:
                yield from roots(each)
        case ast.Subscript(value=value):
            yield from roots(value)
        case _:
            yield target


def changes(source: str) -> list[str]:
    """Where a text changes what is known, by an assignment or by a method of a list or a map, or touches a note."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Assign(targets=targets) | ast.Delete(targets=targets):
                pass
            case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
                targets = [target]
            case ast.Call(func=ast.Attribute(value=target, attr=method)) if method in CHANGES:
                targets = [target]
            case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="notes"), attr=method)) if method in EVENTS:
                found.append(ast.unparse(node))
                continue
            case _:
                continue
        texts = [ast.unparse(root) for each in targets for root in roots(each)]
        found += [text for text in texts if re.fullmatch(r"([\w.]+\.)?_?(known|notes?)\.[\w.]+", text)]
    return found


@pytest.mark.parametrize("file", sorted(Path(gateway.__file__).parent.rglob("*.py")), ids=lambda file: file.stem)
def test_what_is_known_changes_by_its_own_methods_only(file: Path) -> None:
    if file.stem not in KNOWING:
        assert not changes(file.read_text())


@pytest.mark.parametrize(
    "line",
    [
        *("session.known.pages = 3", "self._known.live_as_of, x = now, 2", "known.cursors[0] = None"),
        *("known.cursors.append(None)", "del known.cursors[0]"),
        *("session.known.notes.hint('t', 1, 1, True)", "note.at = now"),
    ],
)
def test_a_change_is_seen(line: str) -> None:
    assert changes(line)


def test_what_is_known_may_be_replaced_and_read() -> None:
    assert not changes("self.known = Knowledge()\nx = self.known.pages\nself.known.outgrow('x', 2)")
