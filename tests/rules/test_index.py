"""The index of a session, held against a plain dict and against the plain definition of a filtered list."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.mcp import task
from gateway.mcp.task import TERMINAL, UNKNOWN, Task
from gateway.query.criteria import Query
from gateway.query.cursor import Position
from gateway.tasks import index as indexing
from gateway.tasks.index import GROUP_BYTES, Index, QueryPage, size_of
from tests.rules import plain


def selected(index: Index, limit: int) -> Callable[[Position], QueryPage]:
    return lambda position: index.select(position, limit)


def check_pages(found: list[QueryPage], expected: list[Task], limit: int) -> None:
    """The pages are those of the list that is expected, each full but the last, none empty but the only one."""
    assert [t for page in found for t in page.tasks] == expected
    assert all(page.total == len(expected) for page in found)
    assert all(len(page.tasks) == limit for page in found[:-1])
    assert len(found) == max(1, -(-len(expected) // limit))


def dict_put(model: dict[str, Task], report: Task) -> None:
    known = model.get(report.id, report)
    model[report.id] = msgspec.structs.replace(report, method=report.method or known.method)


def size_of_all(model: dict[str, Task]) -> int:
    """What an index of these tasks counts (tests/rules/test_index_memory.py holds it against what it takes)."""
    return sum(map(size_of, model.values())) + GROUP_BYTES * len({(t.status, t.method) for t in model.values()})


def check_same(index: Index, model: dict[str, Task]) -> None:
    assert len(index) == len(model)
    assert set(index) == set(model)
    assert {i: index.get(i) for i in plain.IDS} == {i: model.get(i) for i in plain.IDS}
    assert index.size_bytes == size_of_all(model)


# A step: a report to take in, or the id of a task to forget.
steps = st.lists(plain.reports | plain.reports | plain.reports | st.sampled_from(plain.IDS), max_size=18)


def filled(drawn: list[Task | str]) -> tuple[Index, dict[str, Task]]:
    """An index and a dict of what the steps leave, which is the same after each."""
    index, model = Index(), dict[str, Task]()
    for step in drawn:
        if isinstance(step, str):
            index.remove(step)
            model.pop(step, None)
        else:
            index.put(step)
            dict_put(model, step)
        check_same(index, model)
    return index, model


@settings(max_examples=200)
@given(steps, plain.queries, st.integers(1, 4) | st.just(100), st.sampled_from(plain.METHODS))
def test_a_filtered_list_is_the_plain_definition(
    drawn: list[Task | str], query: Query, limit: int, default_method: str | None
) -> None:
    """THE property: any reports, any criteria, any order, any page size, all cursors followed."""
    index, model = filled(drawn)
    index.default_method = default_method
    expected = plain.listed(list(model.values()), query, default_method)
    check_pages(plain.followed(selected(index, limit), query), expected, limit)
    assert sorted(expected, key=lambda t: t.raw) == [
        t for t in sorted(model.values(), key=lambda t: t.raw) if query.matches(t, default_method)
    ]


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
        if isinstance(step, str):
            index.remove(step)
        else:
            index.put(step)
        if at == len(drawn) // 2:
            index.default_method = default_method
    check()
    for task_id in list(index):
        index.remove(task_id)
    assert len(index._pages) <= 4
    index._pages.clear()
    assert index.size_bytes == 0


def test_the_same_page_is_made_once() -> None:
    index, again = Index(), Position(Query(), comes_again=True)
    index.put(report("a", "working", 1, 1))
    page = index.select(again, 10)
    assert index.select(again, 10) is page
    assert index.select(again, 11) is not page, "another size"
    assert index.select(Position(Query(), comes_again=True), 10) is not page, "another query"
    index.put(report("b", "working", 1, 1))
    assert index.select(again, 10).total == 2
    index.put(report("b", "failed", 1, 2))
    assert [t.status for t in index.select(again, 10).tasks] == ["failed", "working"]
    index.remove("b")
    assert index.select(again, 10).tasks == page.tasks
    by_method = Position(Query(methods=frozenset({"prompts/get"})), comes_again=True)
    for index.default_method, total in ((None, 1), ("tools/call", 0), (None, 1)):
        assert index.select(by_method, 10).total == total


anywhere = st.tuples(plain.instants, st.sampled_from([*plain.IDS, "nobody"]))


@given(steps, plain.queries, anywhere, st.integers(1, 4))
def test_a_page_begins_behind_any_place_even_where_no_task_is(
    drawn: list[Task | str], query: Query, after: tuple[Any, str], limit: int
) -> None:
    """The tasks that a cursor names may have moved or gone since."""
    index, model = filled(drawn)

    def follows(place: tuple[Any, str], other: tuple[Any, str]) -> bool:
        return place != other and (place > other) is not query.descending

    expected = plain.listed(list(model.values()), query, None)
    behind = [t for t in expected if follows(query.place(t), after)]
    page = index.select(Position(query, after), limit)
    assert page.tasks == behind[:limit]
    assert page.total == len(expected)
    assert page.more is (len(behind) > limit)


MANY = plain.many(6000, seed=1904)
ILLEGIBLE = plain.many(3000, seed=1904, unreadable=0.4)
SOME_INSTANTS = sorted({at for t in MANY[::500] for at in (t.created, t.updated)} - {UNKNOWN})


def a_query(rng: random.Random) -> Query:
    def pick(items: tuple[str, ...]) -> frozenset[str] | None:
        return frozenset(rng.sample(items, rng.randint(1, 2))) if rng.random() < 0.4 else None

    def bounds() -> tuple[Any, Any]:
        low, high = rng.choice([*SOME_INSTANTS, None, None]), rng.choice([*SOME_INSTANTS, None, None])
        return (low, high) if rng.random() < 0.6 else (None, None)

    (created_after, created_before), (updated_after, updated_before) = bounds(), bounds()
    return Query(
        methods=pick(("tools/call", "prompts/get")),
        status=pick(task.STATUSES),
        createdAfter=created_after,
        createdBefore=created_before,
        lastUpdatedAfter=updated_after,
        lastUpdatedBefore=updated_before,
        orderBy=rng.choice(("createdAt", "lastUpdatedAt")),
        order=rng.choice(("asc", "desc")),
    )


@pytest.fixture(scope="module", params=[(MANY, 1000), (MANY, 20), (ILLEGIBLE, 20)])
def large(request: pytest.FixtureRequest) -> Iterator[tuple[Index, list[Task]]]:
    """An index of some thousand tasks, put in at random, some twice, some forgotten; walked over in such steps."""
    tasks, step = request.param
    rng = random.Random(7)
    reports = []
    for report in rng.sample(tasks, len(tasks)):
        if rng.random() < 0.3:
            reports.append(msgspec.structs.replace(report, status="working", updated=report.created, raw=b"{}"))
        reports.append(report)
    index, model = Index(), dict[str, Task]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(indexing, "AT_ONCE", step)
        for report in reports:
            index.put(report)
            dict_put(model, report)
        for forgotten in rng.sample(tasks, 600):
            index.remove(forgotten.id)
            del model[forgotten.id]
        assert index.size_bytes == size_of_all(model)
        yield index, list(model.values())
        for task_id in rng.sample(list(model), len(model)):
            index.remove(task_id)
        assert len(index) == index.size_bytes == 0


@pytest.mark.parametrize("seed", range(8))
def test_a_filtered_list_of_thousands(large: tuple[Index, list[Task]], seed: int) -> None:
    index, tasks = large
    rng = random.Random(seed)
    for _ in range(3):
        query, limit = a_query(rng), rng.choice((100, 1000, 10_000))
        expected = plain.listed(tasks, query, None)
        check_pages(plain.followed(selected(index, limit), query), expected, limit)


def report(task_id: str, status: str, created: int, updated: int) -> Task:
    day = "2025-11-25T00:{:02}:{:02}Z".format
    return task.parse(plain.raw_task(task_id, status, day(*divmod(created, 60)), day(*divmod(updated, 60))))


@st.composite
def walks(draw: st.DrawFn) -> tuple[list[Task], list[list[Task | str]]]:
    """Tasks, and events between the pages: time goes on, tasks are made, updated and deleted for good."""
    count = draw(st.integers(2, 10))
    start = [report(f"t{n}", "working", n, draw(st.integers(n, 20))) for n in range(count)]
    created = {t.id: n for n, t in enumerate(start)}
    dead: set[str] = set()
    between: list[list[Task | str]] = []
    for now in range(30, 30 + draw(st.integers(1, 8))):
        events: list[Task | str] = []
        for _ in range(draw(st.integers(0, 3))):
            task_id = draw(st.sampled_from(sorted(created)))
            kind = draw(st.sampled_from(["update", "update", "delete", "make"]))
            if kind == "make":
                task_id = f"t{len(created)}"
                created[task_id] = now
            if task_id in dead:
                continue
            if kind == "delete":
                dead.add(task_id)
                events.append(task_id)
            else:
                events.append(
                    report(task_id, draw(st.sampled_from(["working", "input_required"])), created[task_id], now)
                )
        between.append(events)
    return start, between


def walked(start: list[Task], between: list[list[Task | str]], query: Query, limit: int) -> tuple[list[str], set[str]]:
    """The ids that cursors lead to while things happen, and those that matched and kept their place throughout."""
    index = Index()
    for made in start:
        index.put(made)
    places = {t.id: query.place(t) for t in plain.listed(start, query, None)}
    events = iter(between)

    def select(position: Position) -> QueryPage:
        if position.after is not None:
            for event in next(events, []):
                if isinstance(event, str):
                    index.remove(event)
                else:
                    index.put(event)
                for task_id in [
                    i
                    for i, place in places.items()
                    if (t := index.get(i)) is None or not query.matches(t) or query.place(t) != place
                ]:
                    del places[task_id]
        return selected(index, limit)(position)

    found = [t.id for page in plain.followed(select, query) for t in page.tasks]
    return found, set(places)


statuses = st.sampled_from([None, frozenset({"working"})])


@given(walks(), st.sampled_from(["createdAt", "lastUpdatedAt"]), st.booleans(), statuses, st.integers(1, 3))
def test_following_cursors_skips_no_task_that_kept_its_place_and_repeats_none_that_does_not_move_ahead(
    drawn: tuple[list[Task], list[list[Task | str]]],
    by: Any,
    descending: bool,
    status: frozenset[str] | None,
    limit: int,
) -> None:
    found, kept = walked(*drawn, Query(status=status, orderBy=by, order="desc" if descending else "asc"), limit)
    assert kept <= set(found)
    if (by, descending) != ("lastUpdatedAt", False):
        assert len(found) == len(set(found))


def test_a_task_that_moves_ahead_while_it_is_paged_comes_again() -> None:
    """By last update, ascending, a task that changes moves to where the pages still go (DESIGN 5.5)."""
    start = [report(f"t{n}", "working", n, n) for n in range(5)]
    between: list[list[Task | str]] = [[report("t0", "working", 0, 30)]]
    found, _ = walked(start, between, Query(orderBy="lastUpdatedAt", order="asc"), 2)
    assert found == ["t0", "t1", "t2", "t3", "t4", "t0"]


@given(steps, plain.queries, st.sampled_from(plain.METHODS), plain.instants, st.sets(st.sampled_from(plain.IDS)))
def test_the_live_tasks_of_a_query_are_those_that_may_come_to_match(
    drawn: list[Task | str], query: Query, default_method: str | None, later: Any, among: set[str]
) -> None:
    """None may be missing that is not terminal and that some later report would put into the list."""
    index, model = filled(drawn)
    index.default_method = default_method
    found = [task.id for task in index.live(query)]
    assert len(found) == len(set(found))
    assert sorted(task.id for task in index.live(query, among)) == sorted(among.intersection(found))
    assert all(model[i].status not in TERMINAL for i in found)
    for known in model.values():
        if known.status in TERMINAL:
            continue
        updates = {known.updated, later}
        futures = [
            msgspec.structs.replace(known, status=status, updated=at) for status in task.STATUSES for at in updates
        ]
        if plain.listed(futures, query, default_method):
            assert known.id in found
