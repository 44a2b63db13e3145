"""Pages that end at a number of bytes (DESIGN 5.5), held against the plain definition."""

import random

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.mcp.task import Task
from gateway.query.criteria import Query
from gateway.query.cursor import Position
from gateway.tasks.index import Index, QueryPage
from tests.rules import plain

orders = st.sampled_from(
    [("createdAt", "asc"), ("createdAt", "desc"), ("lastUpdatedAt", "asc"), ("lastUpdatedAt", "desc")]
)


@st.composite
def some_tasks(draw: st.DrawFn) -> list[Task]:
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


@settings(max_examples=150)
@given(some_tasks(), orders, st.integers(1, 8) | st.just(100), st.integers(1, 900))
def test_a_page_ends_at_its_bytes_and_cursors_skip_and_repeat_nothing(
    tasks: list[Task], order: tuple[str, str], limit: int, bytes_max: int
) -> None:
    query, index = Query(orderBy=order[0], order=order[1]), Index()
    for one in tasks:
        index.put(one)
    by_id = Query(orderBy=order[0], order=order[1], taskIds=frozenset(t.id for t in tasks) or None)

    def selected(position: Position) -> QueryPage:
        return index.select(position, limit, bytes_max)

    for asked in (query, by_id):
        pages = plain.followed(selected, asked)
        assert [page.tasks for page in pages] == expected(plain.listed(tasks, query, None), limit, bytes_max)
        assert {page.total for page in pages} == {len(tasks)}
        assert all(page.size_bytes <= bytes_max or len(page.tasks) == 1 for page in pages)
