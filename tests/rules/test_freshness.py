"""What must be asked of the upstream before a query is answered: enough for the promise of DESIGN 6, and no more."""

import ast
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.mcp import task
from gateway.mcp.task import TERMINAL, Task
from gateway.tasks import freshness
from gateway.tasks.criteria import Query
from gateway.tasks.freshness import Ages, Plan
from gateway.tasks.index import Index
from gateway.tasks.knowledge import Knowledge, Listing
from gateway.tasks.notes import NEVER, Notes
from tests.rules import plain

ROOT = Path(__file__).parents[2]
NOW = 1000.0
AGES = Ages(max_age_s=1.0, full_crawl_interval_s=60.0)
RECENT, OLD, ANCIENT = NOW - 0.5, NOW - 30, NOW - 61


def a_task(task_id: str, status: str = "working", ttl: object = None, method: str | None = None) -> Task:
    raw = msgspec.json.encode(
        {
            "taskId": task_id,
            "status": status,
            "createdAt": "1970-01-01T00:00:10Z",
            "lastUpdatedAt": "1970-01-01T00:00:10Z",
            "ttl": ttl,
        }
    )
    return task.parse(raw, method)


def an_index(*tasks: Task) -> Index:
    index = Index()
    for each in tasks:
        index.put(each)
    return index


LIVE = [a_task("l1"), a_task("l2", "input_required"), a_task("l3")]
DONE = [a_task("d1", "completed"), a_task("d2", "failed"), a_task("d3", "cancelled")]


class Hint(NamedTuple):
    """That a task may be gone: queries from `since` on wait, and a report asked for at `at` or later settles it."""

    since: float
    at: float


def noted(
    reported: Mapping[str, float] | None = None,
    unlisted: Mapping[str, float] | None = None,
    gone: Mapping[str, float] | None = None,
    hints: Mapping[str, Hint] | None = None,
    others: Collection[str] = (),
) -> Notes:
    """Notes of tasks that were reported alone, listed or unlisted; that were found gone; that hints have named.

    A task of `others`, which are not in the index, has no report; nor has a task that was found gone.
    """
    notes = Notes()
    for task_id, at in (unlisted or {}).items():
        notes.report(task_id, at, is_listed=False, as_of=NEVER)
    for task_id, at in (reported or {}).items():
        if task_id not in notes.unlisted:
            notes.report(task_id, at, is_listed=True, as_of=NEVER)
    for task_id, at in (gone or {}).items():
        notes.find_gone(task_id, at)
    for task_id, hint in (hints or {}).items():
        notes.hint(task_id, hint.since, hint.at, in_index=task_id not in others)
    return notes


def crawled(at: float, notes: Notes | None = None, **more: Any) -> Knowledge:
    """What is known after a crawl of ten pages from a server that appends."""
    instants = {"pages_as_of": at, "new_as_of": at, "live_as_of": at}
    return Knowledge(**{**instants, "listing": Listing.APPENDS, "pages": 10, "notes": notes or Notes(), **more})


@dataclass
class Case:
    known: Knowledge
    expected: tuple[bool, bool, set[str]]  # crawl, look, tasks
    tasks: list[Task] = field(default_factory=lambda: [*LIVE, *DONE])
    query: Query = field(default_factory=Query)
    ages: Ages = AGES


NONE: set[str] = set()
FRESH, CRAWL, LOOK = (False, False, NONE), (True, False, NONE), (False, True, NONE)

TABLE: dict[str, Case] = {
    "nothing is known": Case(Knowledge(), CRAWL, tasks=[]),
    "something was seen in passing, nothing crawled": Case(
        Knowledge(notes=noted(reported={"l1": NOW})), CRAWL, tasks=LIVE[:1]
    ),
    "crawled just now": Case(crawled(NOW), FRESH),
    "crawled a moment ago": Case(crawled(RECENT), FRESH),
    "crawled exactly max_age ago": Case(crawled(NOW - 1), FRESH),
    "crawled longer ago, live tasks": Case(crawled(OLD), (False, True, {"l1", "l2", "l3"})),
    "crawled longer ago, no live tasks": Case(crawled(OLD), LOOK, tasks=DONE),
    "crawled longer ago, no tasks": Case(crawled(OLD), LOOK, tasks=[]),
    "crawled exactly full_crawl_interval ago": Case(crawled(NOW - 60), LOOK, tasks=DONE),
    "crawled too long ago": Case(crawled(ANCIENT), CRAWL),
    "crawled too long ago, though looked at since": Case(crawled(ANCIENT, new_as_of=NOW, live_as_of=NOW), CRAWL),
    "a server that prepends": Case(crawled(OLD, listing=Listing.PREPENDS), (False, True, {"l1", "l2", "l3"})),
    "a server that lists in no order": Case(crawled(OLD, listing=Listing.NEITHER), CRAWL),
    "a server without tasks/get": Case(crawled(OLD, asks_by_id=False), CRAWL),
    "one page": Case(crawled(OLD, pages=1), CRAWL, tasks=DONE),
    "as many requests as pages": Case(crawled(OLD, pages=4), CRAWL),
    "one request less than pages": Case(crawled(OLD, pages=5), (False, True, {"l1", "l2", "l3"})),
    "looked at and asked a moment ago": Case(crawled(OLD, new_as_of=RECENT, live_as_of=RECENT), FRESH),
    "looked at a moment ago, live tasks older": Case(
        crawled(OLD, new_as_of=RECENT), (False, False, {"l1", "l2", "l3"})
    ),
    "live tasks asked a moment ago, looked at before": Case(
        crawled(OLD, live_as_of=RECENT), (False, True, {"l1", "l2", "l3"})
    ),
    "some live tasks seen in passing": Case(
        crawled(OLD, noted(reported={"l1": RECENT, "l2": NOW - 2})), (False, True, {"l2", "l3"})
    ),
    "all live tasks seen in passing": Case(
        crawled(OLD, noted(reported=dict.fromkeys(("l1", "l2", "l3"), RECENT)), new_as_of=RECENT), FRESH
    ),
    "doubt since the crawl": Case(crawled(RECENT, doubted_at=NOW - 0.1), CRAWL),
    "doubt before the crawl": Case(crawled(RECENT, doubted_at=RECENT), FRESH),
    "a crawl at each refresh, crawled long ago": Case(crawled(NOW - 2), CRAWL, ages=Ages(1.0, 0.0)),
    "a crawl at each refresh, crawled a moment ago": Case(crawled(RECENT), FRESH, ages=Ages(1.0, 0.0)),
    "no age at all": Case(crawled(RECENT), (False, True, {"l1", "l2", "l3"}), ages=Ages(0.0, 60.0)),
    "no age at all, asked now": Case(crawled(NOW), FRESH, ages=Ages(0.0, 60.0)),
    "a task that may be gone": Case(crawled(RECENT, noted(hints={"d1": Hint(RECENT, RECENT)})), (False, False, {"d1"})),
    # No page tells for sure whether they are: DESIGN 6, everything that passed before the request came in.
    "more tasks may be gone than there are pages": Case(
        crawled(RECENT, pages=1, notes=noted(hints={"d1": Hint(RECENT, RECENT), "d2": Hint(OLD, OLD)})),
        (False, False, {"d1", "d2"}),
    ),
    "a task may be gone, and cannot be asked for": Case(
        crawled(RECENT, noted(hints={"d1": Hint(RECENT, RECENT)}), asks_by_id=False), CRAWL
    ),
    "a live task that no list shows": Case(
        crawled(RECENT, noted(unlisted={"l2": NEVER}), unlisted_as_of=RECENT, live_as_of=NEVER),
        (False, False, {"l2"}),
    ),
    "a live task that no list shows, seen a moment ago": Case(
        crawled(RECENT, noted(unlisted={"l2": RECENT}), unlisted_as_of=RECENT, live_as_of=NEVER), FRESH
    ),
    "finished tasks that no list shows, asked for exactly full_crawl_interval ago": Case(
        crawled(RECENT, noted(unlisted={"d1": NOW - 60}), unlisted_as_of=NOW - 60), FRESH
    ),
    "finished tasks that no list shows, asked for too long ago": Case(
        crawled(RECENT, noted(unlisted={"d1": ANCIENT}), unlisted_as_of=ANCIENT), CRAWL
    ),
    "finished tasks that no list shows, not asked for since a doubt": Case(
        crawled(NOW, noted(unlisted={"d1": NOW - 0.7}), unlisted_as_of=NOW - 0.7, doubted_at=RECENT), CRAWL
    ),
    # DESIGN 6: 0 makes every refresh a full crawl, and there is a refresh when max_age is over.
    "a crawl at each refresh, a task that no list shows, all asked a moment ago": Case(
        crawled(RECENT, noted(unlisted={"d1": RECENT}), unlisted_as_of=RECENT), FRESH, ages=Ages(1.0, 0.0)
    ),
    "a name that is longer than is noted": Case(
        Knowledge(), CRAWL, tasks=[], query=Query(taskIds=frozenset({"n" * 257}))
    ),
    "no task is named": Case(Knowledge(), FRESH, tasks=[], query=Query(taskIds=frozenset())),
    "a finished task is named": Case(crawled(OLD), FRESH, query=Query(taskIds=frozenset({"d1"}))),
    "a finished task is named that was crawled too long ago": Case(
        crawled(ANCIENT), (False, False, {"d1"}), query=Query(taskIds=frozenset({"d1"}))
    ),
    "a live task is named": Case(crawled(OLD), (False, False, {"l1"}), query=Query(taskIds=frozenset({"l1", "d1"}))),
    "a live task is named that was seen a moment ago": Case(
        crawled(OLD, noted(reported={"l1": RECENT})), FRESH, query=Query(taskIds=frozenset({"l1", "d1"}))
    ),
    "an unknown task is named": Case(crawled(OLD), (False, False, {"x"}), query=Query(taskIds=frozenset({"x"}))),
    "a task is named that is known to be gone": Case(
        crawled(OLD, noted(gone={"x": RECENT})), FRESH, query=Query(taskIds=frozenset({"x"}))
    ),
    "a task is named where nothing is known": Case(
        Knowledge(), (False, False, {"x"}), tasks=[], query=Query(taskIds=frozenset({"x"}))
    ),
    "a task is named that may be gone": Case(
        crawled(RECENT, noted(hints={"d1": Hint(RECENT, RECENT)})),
        (False, False, {"d1"}),
        query=Query(taskIds=frozenset({"d1"})),
    ),
    "another task is named than may be gone": Case(
        crawled(RECENT, noted(hints={"d1": Hint(RECENT, RECENT)})), FRESH, query=Query(taskIds=frozenset({"d2"}))
    ),
    "more tasks are named than there are pages": Case(
        crawled(OLD, pages=2), CRAWL, query=Query(taskIds=frozenset({"l1", "l2", "l3"}))
    ),
    "a server without tasks/get, tasks named": Case(
        crawled(OLD, asks_by_id=False), CRAWL, query=Query(taskIds=frozenset({"d1"}))
    ),
    "live tasks of another method": Case(
        crawled(OLD), LOOK, tasks=[a_task("l1", method="tools/call")], query=Query(methods=frozenset({"prompts/get"}))
    ),
    "live tasks that may get the status": Case(
        crawled(OLD), (False, True, {"l1"}), tasks=LIVE[:1], query=Query(status=frozenset({"completed"}))
    ),
    "live tasks beyond the range: the server's clock may be set back": Case(
        crawled(OLD),
        (False, True, {"l1"}),
        tasks=LIVE[:1],
        query=Query(lastUpdatedBefore=plain.instant("1970-01-01T00:00:09Z")),
    ),
    "live tasks that may leave the range": Case(
        crawled(OLD),
        (False, True, {"l1"}),
        tasks=LIVE[:1],
        query=Query(lastUpdatedBefore=plain.instant("1970-01-01T00:00:10Z")),
    ),
}


@pytest.mark.parametrize("case", TABLE.values(), ids=TABLE.keys())
def test_what_is_asked(case: Case) -> None:
    plan = freshness.plan(case.known, an_index(*case.tasks), case.query, NOW, case.ages)
    assert (plan.crawl, plan.look, set(plan.tasks)) == case.expected
    assert plan.nothing is (case.expected == FRESH)
    assert plan.reason


def test_the_picture_in_the_design_shows_every_plan() -> None:
    files = (ROOT / "gateway/tasks" / name for name in ("freshness.py", "planner.py"))
    calls = (node for file in files for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call))
    reasons = [ast.literal_eval(call.args[0]) for call in calls if ast.unparse(call.func) == "Plan"]
    picture = (ROOT / "docs/design.md").read_text().split("\n6.3. ")[1].split("\n6.4. ")[0]
    assert sorted(re.findall("<i>(.+?)</i>", picture)) == sorted(reasons)


def test_the_plans_that_ask_nothing() -> None:
    assert Plan("x").nothing
    assert not Plan("x", crawl=True).nothing
    assert not Plan("x", look=True).nothing
    assert not Plan("x", tasks=["a"]).nothing


times = st.sampled_from([NEVER, NOW - 100, NOW - 60.1, NOW - 60, NOW - 30, NOW - 1.1, NOW - 1, NOW - 0.5, NOW])
ids = st.sampled_from(plain.IDS)
by_id = st.dictionaries(ids, times, max_size=4)
before = times.filter(lambda at: at < NOW)
hints: st.SearchStrategy[dict[str, Hint]] = st.dictionaries(ids, st.builds(Hint, since=before, at=before), max_size=2)


@dataclass
class Drawn:
    """An index, and what is known of it. Tasks of the index are listed or unlisted; only others are gone."""

    known: Knowledge
    index: Index


@st.composite
def situations(draw: st.DrawFn) -> Drawn:
    index = an_index(*draw(st.lists(plain.reports, max_size=8)))
    reported, hinted = draw(by_id), draw(hints)
    unlisted = draw(st.just({}) | st.dictionaries(ids, st.just(NEVER) | times, max_size=3))
    gone = draw(st.dictionaries(st.sampled_from([*plain.IDS, "nobody"]), times, max_size=3))
    here = set(index)
    notes = noted(
        {i: at for i, at in reported.items() if i in here},
        {i: at for i, at in unlisted.items() if i in here},
        {i: at for i, at in gone.items() if i not in here},
        hinted,
        {i for i in hinted if i not in here},
    )
    pages_as_of = draw(times)
    known = Knowledge(
        pages_as_of=pages_as_of,
        new_as_of=max(pages_as_of, draw(times)),
        live_as_of=draw(times),
        unlisted_as_of=draw(times),
        doubted_at=draw(st.just(NEVER) | times),
        listing=draw(st.sampled_from(Listing)),
        pages=draw(st.integers(1, 5)),
        asks_by_id=draw(st.booleans() | st.just(True)),
        notes=notes,
    )
    return Drawn(known, index)


ages = st.sampled_from([AGES, Ages(0.0, 60.0), Ages(1.0, 0.0), Ages(0.0, 0.0), Ages(5.0, 60.0)])


def may_match(known: Task, query: Query) -> bool:
    """Whether a task, or any later report of it, matches."""
    updates = {known.updated, *query.updated}
    statuses = {known.status} if known.status in TERMINAL else task.STATUSES
    futures = [msgspec.structs.replace(known, status=s, updated=at) for s in statuses for at in updates]
    return bool(plain.listed(futures, query, None))


@given(situations(), plain.queries, ages)
def test_an_answer_without_asking_keeps_the_promise(drawn: Drawn, query: Query, allowed: Ages) -> None:
    """DESIGN 6, held against what the members of `Knowledge` say that they mean."""
    known, index = drawn.known, drawn.index
    if not freshness.plan(known, index, query, NOW, allowed).nothing:
        return
    oldest = max(NOW - allowed.max_age_s, known.doubted_at)
    oldest_crawl = NOW - allowed.full_crawl_interval_s
    # Every task's state is fresh. A terminal one changes no more.
    for found in (t for i in index if (t := index.get(i)) is not None):
        # Where nobody can be asked for a task that no list shows, no plan helps: such a one must not be kept at all.
        can_be_known = known.asks_by_id or found.id not in known.notes.unlisted
        if can_be_known and found.status not in TERMINAL and may_match(found, query):
            assert max(known.confirmed_at(found.id), known.live_as_of) >= oldest
        if found.id in known.notes.suspects(NOW) and known.asks_by_id and may_match(found, query):
            pytest.fail("a task is shown that may be gone")
        if found.status in TERMINAL and found.id in known.notes.unlisted and may_match(found, query):
            terminal_since = max(min(oldest_crawl, oldest), known.doubted_at)
            assert max(known.confirmed_at(found.id), known.unlisted_as_of) >= terminal_since
    # What was made or deleted elsewhere is seen in time.
    if query.task_ids is None or not known.asks_by_id:
        assert known.new_as_of >= oldest
        assert known.pages_as_of >= min(oldest_crawl, oldest)
        if known.listing is Listing.NEITHER or not known.asks_by_id:
            assert known.pages_as_of >= oldest
    else:
        for task_id in query.task_ids:
            if index.get(task_id) is None:
                read = known.new_as_of >= oldest and known.pages_as_of >= oldest_crawl
                assert read or max(known.gone_at(task_id), known.pages_as_of) >= oldest


def test_a_finished_task_that_no_list_shows_is_not_shown_for_longer_than_full_crawl_interval() -> None:
    """A crawl does not tell that it was deleted elsewhere; DESIGN 6 promises it within `full_crawl_interval`.

    It was reported, and asked for, 100 s ago; all pages were read 59 s ago, too early to ask for it again.
    """
    notes = noted(unlisted={"d1": NOW - 100})
    known = crawled(NOW - 59, notes, new_as_of=NOW, live_as_of=NOW, unlisted_as_of=NOW - 100)
    plan = freshness.plan(known, an_index(DONE[0]), Query(), NOW, AGES)
    assert plan.crawl or "d1" in plan.tasks


@given(situations(), plain.queries, ages)
def test_what_is_asked_can_be_asked_and_costs_no_more_than_reading_all_pages(
    drawn: Drawn, query: Query, allowed: Ages
) -> None:
    known, index = drawn.known, drawn.index
    plan = freshness.plan(known, index, query, NOW, allowed)
    assert len(plan.tasks) == len(set(plan.tasks))
    if plan.crawl:
        assert not plan.look
        assert not plan.tasks
    if not known.asks_by_id:
        assert not plan.tasks
    if plan.look:
        assert known.pages_as_of != NEVER
        assert known.listing is not Listing.NEITHER
    # What no list shows, and what may be gone, no page can tell.
    told_by_pages = [i for i in plan.tasks if i not in known.notes.unlisted and i not in known.notes.suspects(NOW)]
    assert plan.look + len(told_by_pages) <= known.pages


@given(situations(), plain.queries, ages, st.sets(st.sampled_from([*plain.IDS, "nobody"])), st.booleans())
def test_what_is_asked_is_enough_to_answer(
    drawn: Drawn, query: Query, allowed: Ages, gone: set[str], has_get: bool
) -> None:
    """Each round of asking learns something, and after a few there is nothing left to ask."""
    known, index = drawn.known, drawn.index
    known.doubted_at = min(known.doubted_at, NOW - 0.1)

    def ask_for(task_ids: Iterable[str]) -> None:
        for task_id in task_ids:
            if not has_get:
                known.asks_by_id = False
                return
            if task_id in gone or index.get(task_id) is None:
                index.remove(task_id)
                known.notes.find_gone(task_id, NOW)
            else:
                known.notes.report(task_id, NOW, is_listed=True, as_of=NEVER)
                known.notes.settle(task_id, NOW)

    for _ in range(6):
        plan = freshness.plan(known, index, query, NOW, allowed)
        if plan.nothing:
            return
        if plan.crawl:
            for task_id in list(index):
                if task_id in known.notes.unlisted and known.asks_by_id:
                    continue  # no page shows it, and it stays
                if task_id in gone:
                    index.remove(task_id)
                    known.notes.find_gone(task_id, NOW)
                else:
                    known.notes.show(task_id)
            known.end_crawl(NOW, NOW, known.pages, known.cursors, known.listing)
            if known.unlisted_as_of < max(NOW - allowed.full_crawl_interval_s, known.doubted_at):
                ask_for(list(known.notes.unlisted))
                known.end_unlisted(NOW)
        if plan.look:
            known.end_look(NOW, [])
        ask_for(plan.tasks)
    pytest.fail("it never ends")


def test_knowledge_is_not_shared() -> None:
    first, second = Knowledge(), Knowledge()
    first.notes.hint("a", NOW, NOW, in_index=True)
    assert not list(second.notes)


def test_a_crawl_confirms_what_lists_show() -> None:
    known = crawled(OLD, noted({"a": RECENT, "b": ANCIENT}, unlisted={"c": ANCIENT, "d": NEVER}))
    assert [known.confirmed_at(i) for i in "abcd"] == [RECENT, OLD, ANCIENT, NEVER]
    assert known.confirmed_at("e") == OLD


# Each: ttl in ms of a task made at 10 s since 1970; when it was last reported; what time it is then (both since 1970).
@pytest.mark.parametrize(
    ("ttl", "confirmed", "now", "expected"),
    [
        (None, 11, 1000, False),
        (60_000, 11, 69, False),
        (60_000, 11, 70, True),
        (60_000, 11, 1000, True),
        (60_000, 69, 71, True),
        (60_000, 71, 72, False),
        (60_000, 71, 1000, False),
        (0, 11, 12, False),
    ],
)
def test_a_task_may_vanish_when_its_ttl_has_passed(
    ttl: int | None, confirmed: float, now: float, expected: bool
) -> None:
    """A task that was reported after that moment is kept longer, and gone when a crawl says so."""
    boot = 5000.0  # the monotonic clock began then, of 1970
    shown = a_task("a", "completed", ttl=ttl)
    known = Knowledge(notes=noted({"a": confirmed - boot}))
    assert freshness.overdue(known, [shown], now - boot, now) == (["a"] if expected else [])
    known.asks_by_id = False
    assert freshness.overdue(known, [shown], now - boot, now) == []


def test_a_task_that_nobody_confirmed_is_overdue_when_its_ttl_has_passed() -> None:
    assert freshness.overdue(Knowledge(), [a_task("a", ttl=1000), a_task("b")], NOW, NOW) == ["a"]
