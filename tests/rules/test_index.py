"""The index of a session, held against a plain dict and against the plain definition of a filtered list."""

import itertools
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.mcp import task
from gateway.mcp.task import TERMINAL, UNKNOWN, Task
from gateway.query.criteria import Query
from gateway.query.cursor import Position
from gateway.tasks import index as indexing
from gateway.tasks.index import GROUP_BYTES, Index
from gateway.tasks.task_entry import TaskEntry, absent, size_of
from tests.rules import plain


def paged(listed: list[TaskEntry], limit: int, bytes_max: int) -> list[list[TaskEntry]]:
    """The pages of a list: each takes the next task, if it has none, or if there is room for it and its comma."""
    pages: list[list[TaskEntry]] = [[]]
    for each in listed:
        size = sum(len(t.raw) + 1 for t in [*pages[-1], each])
        if pages[-1] and (len(pages[-1]) == limit or size > bytes_max):
            pages.append([])
        pages[-1].append(each)
    return pages


def check_same(index: Index, model: dict[str, TaskEntry]) -> None:
    assert len(index) == len(model)
    assert index.entries == model
    assert {i: index.get(i) for i in plain.IDS} == {i: model.get(i) for i in plain.IDS}
    # tests/rules/test_index_memory.py holds what is counted against what it takes.
    groups = {(each.status, each.method) for each in model.values()}
    assert index.size_bytes == sum(map(size_of, model.values())) + GROUP_BYTES * len(groups)


# A step: a report to take in, or the id of a task to forget.
steps = st.lists(plain.reports | plain.reports | plain.reports | st.sampled_from(plain.IDS), max_size=18)


def happen(index: Index, step: Task | str) -> None:
    index.set(absent(step) if isinstance(step, str) else plain.entry_for(step))


def filled(drawn: list[Task | str]) -> tuple[Index, dict[str, TaskEntry]]:
    """An index and a dict of what the steps leave, which is the same after each."""
    index, model = Index(), dict[str, TaskEntry]()
    for step in drawn:
        happen(index, step)
        if isinstance(step, str):
            model.pop(step, None)
        else:
            model[step.id] = plain.entry_for(step)
        check_same(index, model)
    return index, model


limits = st.tuples(st.integers(1, 4) | st.just(100), st.integers(1, 900) | st.just(10**6))


@settings(max_examples=200)
@given(steps, plain.queries, limits, st.sampled_from(plain.METHODS), st.sampled_from([1, 1000]))
def test_a_filtered_list_is_the_plain_definition(
    drawn: list[Task | str], query: Query, limits: tuple[int, int], default_method: str | None, at_once: int
) -> None:
    """THE property: any reports, any criteria, any order, any page size, all cursors followed."""
    index, model = filled(drawn)
    index.default_method = default_method
    expected = plain.listed(list(model.values()), query, default_method)
    with patch.object(indexing, "AT_ONCE", at_once):
        pages = plain.followed(lambda position: index.select(position, *limits), query)
    assert [page.tasks for page in pages] == paged(expected, *limits)
    assert all(page.total == len(expected) for page in pages)
    assert [page.size_bytes for page in pages] == [sum(len(t.raw) + 1 for t in page.tasks) for page in pages]
    assert sorted(expected, key=lambda t: t.raw) == [
        t for t in sorted(model.values(), key=lambda t: t.raw) if query.matches(t, default_method)
    ]


@pytest.mark.parametrize("unreadable", [None, "created", "updated"])
def test_all_ranges_of_a_small_group_hold(unreadable: str | None) -> None:
    """Where updates follow creations closely, few tasks are looked at one by one. One of unknown instant is in all."""
    seconds = [plain.instant(f"2025-11-25T00:00:0{second}Z") for second in range(6)]
    index, known = Index(), list[TaskEntry]()
    for number, later in enumerate((1, 0, 2, 1, 1)):
        known.append(TaskEntry(str(number), "working", seconds[number], seconds[number + later], b"%d" % number))
        if number == 2 and unreadable is not None:
            setattr(known[-1], unreadable, UNKNOWN)
        index.set(known[-1])
    for bounds in itertools.product([None, *seconds], repeat=4):
        for by, order in itertools.product(("createdAt", "lastUpdatedAt"), ("asc", "desc")):
            query = Query(**dict(zip(plain.TIMES, bounds, strict=True)), orderBy=by, order=order)
            page = index.select(Position(query), 3)
            expected = plain.listed(known, query, None)
            assert (page.tasks, page.total) == (expected[:3], len(expected))


@settings(max_examples=200)
@given(steps, st.lists(plain.queries, min_size=1, max_size=6), st.integers(1, 4), st.sampled_from(plain.METHODS))
def test_a_page_that_is_kept_is_the_one_that_would_be_made_anew(
    drawn: list[Task | str], queries: list[Query], limit: int, default_method: str | None
) -> None:
    """Whatever changes between two times that the same list is asked for."""
    index, again = Index(), [Position(query, comes_again=True) for query in queries]

    def check() -> None:
        for position in again:
            anew = index.select(Position(Query(**position.query.values)), limit)
            assert index.select(position, limit) == anew

    for at, step in enumerate(drawn):
        check()
        happen(index, step)
        if at == len(drawn) // 2:
            index.default_method = default_method
    check()
    for task_id in list(index.entries):
        index.set(absent(task_id))
    assert len(index._pages) <= 4
    index._pages.clear()
    assert index.size_bytes == 0


def test_the_same_page_is_made_once() -> None:
    index, again = Index(), Position(Query(), comes_again=True)
    index.set(plain.entry_for(task.parse(plain.raw_task("a", "working", None, None))))
    page = index.select(again, 10)
    assert index.select(again, 10) is page
    assert index.select(again, 11) is not page, "another size"
    assert index.select(Position(Query(), comes_again=True), 10) is not page, "another query"


anywhere = st.tuples(plain.instants, st.sampled_from([*plain.IDS, "nobody"]))


@given(steps, plain.queries, anywhere, st.integers(1, 4))
def test_a_page_begins_behind_any_place_even_where_no_task_is(
    drawn: list[Task | str], query: Query, after: tuple[Any, str], limit: int
) -> None:
    """The tasks that a cursor names may be where they were, or may have moved or gone since."""
    index, model = filled(drawn)

    def follows(place: tuple[Any, str], other: tuple[Any, str]) -> bool:
        return place != other and (place > other) is not query.descending

    expected = plain.listed(list(model.values()), query, None)
    for place in (after, *map(query.place, expected)):
        behind = [t for t in expected if follows(query.place(t), place)]
        page = index.select(Position(query, place), limit)
        assert page.tasks == behind[:limit]
        assert page.total == len(expected)
        assert page.more is (len(behind) > limit)


@given(steps, plain.queries, st.sampled_from(plain.METHODS), plain.instants)
def test_the_live_tasks_of_a_query_are_those_that_may_come_to_match(
    drawn: list[Task | str], query: Query, default_method: str | None, later: Any
) -> None:
    """None may be missing that is not terminal and that some later report would put into the list."""
    index, model = filled(drawn)
    index.default_method = default_method
    found = [task.id for task in index.live(query)]
    assert len(found) == len(set(found))
    assert all(model[i].status not in TERMINAL for i in found)
    for known in model.values():
        if known.status not in TERMINAL and plain.may_match(known, query, later, default_method=default_method):
            assert known.id in found
