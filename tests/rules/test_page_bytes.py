"""Pages that end at a number of bytes (DESIGN 5.5), of an index and of a scan, held against the plain definition."""

import random
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config import IndexLimits
from gateway.errors import Overloaded
from gateway.mcp.task import Task
from gateway.tasks.criteria import Query
from gateway.tasks.cursor import Position
from gateway.tasks.index import Index
from gateway.tasks.pages import QueryPage
from gateway.tasks.scan import Selection
from tests.rules import plain

Select = Callable[[Position], QueryPage]
orders = st.sampled_from(
    [("createdAt", "asc"), ("createdAt", "desc"), ("lastUpdatedAt", "asc"), ("lastUpdatedAt", "desc")]
)


@st.composite
def some_tasks(draw: st.DrawFn) -> list[Task]:
    """Tasks of most different sizes, in any order."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    sizes = draw(st.lists(st.integers(0, 30) | st.integers(0, 400), min_size=2, max_size=25))
    made = plain.many(len(sizes), rng.randrange(2**32))
    tasks = [msgspec.structs.replace(t, raw=b"x" * n) for t, n in zip(made, sizes, strict=True)]
    rng.shuffle(tasks)
    return tasks


def expected(listed: list[Task], limit: int, bytes_max: int) -> list[list[Task]]:
    """The pages of a list: each takes the next task, if it has none, or if there is room for it and its comma."""
    pages: list[list[Task]] = [[]]
    for task in listed:
        size = sum(len(t.raw) + 1 for t in [*pages[-1], task])
        if pages[-1] and (len(pages[-1]) == limit or size > bytes_max):
            pages.append([])
        pages[-1].append(task)
    return pages


def scanned(tasks: list[Task], limits: IndexLimits, at_once: int) -> Select:
    """The pages that a scan gathers, which reads so many tasks at once."""

    def select(position: Position) -> QueryPage:
        held = [0]
        selection = Selection(position, limits, held.append)
        for start in range(0, len(tasks), at_once):
            selection.take(tasks[start : start + at_once], None)
        largest = max((len(task.raw) for task in tasks), default=0)
        assert held[-1] >= sum(len(task.raw) for task in selection.page.tasks)
        assert max(held) <= limits.page_bytes_max + 2 * largest, "the page, and a task more"
        return selection.page

    return select


@settings(max_examples=150)
@given(some_tasks(), orders, st.integers(1, 8) | st.just(100), st.integers(1, 900), st.integers(1, 9))
def test_a_page_ends_at_its_bytes_and_cursors_skip_and_repeat_nothing(
    tasks: list[Task], order: tuple[str, str], limit: int, bytes_max: int, at_once: int
) -> None:
    """A scan sees the tasks in any order: one that was too large for the page bars those behind it."""
    query, index = Query(orderBy=order[0], order=order[1]), Index()
    index.put_all(tasks)
    by_id = Query(orderBy=order[0], order=order[1], taskIds=frozenset(t.id for t in tasks) or None)
    limits = IndexLimits(page_size=limit, page_bytes_max=bytes_max)

    def selected(position: Position) -> QueryPage:
        return index.select(position, limit, bytes_max)

    for select, asked in ((selected, query), (selected, by_id), (scanned(tasks, limits, at_once), query)):
        pages = plain.followed(select, asked)
        assert [page.tasks for page in pages] == expected(plain.listed(tasks, query, None), limit, bytes_max)
        assert {page.total for page in pages} == {len(tasks)}
        assert all(page.size_bytes <= bytes_max or len(page.tasks) == 1 for page in pages)


def test_a_scan_without_room_for_a_page_keeps_nothing_of_it_and_says_so() -> None:
    tasks = plain.many(50, 1)
    room, held = 10 * len(tasks[0].raw), list[int]()

    def hold(size_bytes: int) -> None:
        if size_bytes > room:
            raise Overloaded("no room")
        held.append(size_bytes)

    selection = Selection(Position(Query()), IndexLimits(), hold)
    for task in tasks:
        selection.take([task], None)
    assert 0 < len(held) < len(tasks)
    with pytest.raises(Overloaded):
        assert selection.page.tasks == []
