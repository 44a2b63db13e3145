"""What must be asked of the upstream before a query may be answered: enough for the promise of DESIGN 6, and little."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core import freshness, task
from gateway.core.freshness import Ages, Plan
from gateway.core.index import Index
from gateway.core.knowledge import NEVER, Knowledge, Listing, Suspicion
from gateway.core.query import Query
from gateway.core.task import TERMINAL, Key, Task
from tests.core import plain

thorough = settings(max_examples=100, deadline=None)

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


def crawled(at: float, **more: Any) -> Knowledge:
    """What is known after a crawl of ten pages from a server that appends."""
    return Knowledge(
        **{"crawled_at": at, "looked_at": at, "live_at": at, "listing": Listing.APPENDS, "pages": 10, **more}
    )


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
    "something was seen in passing, nothing crawled": Case(Knowledge(confirmed={"l1": NOW}), CRAWL, tasks=LIVE[:1]),
    "crawled just now": Case(crawled(NOW), FRESH),
    "crawled a moment ago": Case(crawled(RECENT), FRESH),
    "crawled exactly max_age ago": Case(crawled(NOW - 1), FRESH),
    "crawled longer ago, live tasks": Case(crawled(OLD), (False, True, {"l1", "l2", "l3"})),
    "crawled longer ago, no live tasks": Case(crawled(OLD), LOOK, tasks=DONE),
    "crawled longer ago, no tasks": Case(crawled(OLD), LOOK, tasks=[]),
    "crawled exactly full_crawl_interval ago": Case(crawled(NOW - 60), LOOK, tasks=DONE),
    "crawled too long ago": Case(crawled(ANCIENT), CRAWL),
    "crawled too long ago, though looked at since": Case(crawled(ANCIENT, looked_at=NOW, live_at=NOW), CRAWL),
    "a server that prepends": Case(crawled(OLD, listing=Listing.PREPENDS), (False, True, {"l1", "l2", "l3"})),
    "a server that lists in no order": Case(crawled(OLD, listing=Listing.NEITHER), CRAWL),
    "a server without tasks/get": Case(crawled(OLD, asks_by_id=False), CRAWL),
    "one page": Case(crawled(OLD, pages=1), CRAWL, tasks=DONE),
    "as many requests as pages": Case(crawled(OLD, pages=4), CRAWL),
    "one request less than pages": Case(crawled(OLD, pages=5), (False, True, {"l1", "l2", "l3"})),
    "looked at and asked a moment ago": Case(crawled(OLD, looked_at=RECENT, live_at=RECENT), FRESH),
    "looked at a moment ago, live tasks older": Case(
        crawled(OLD, looked_at=RECENT), (False, False, {"l1", "l2", "l3"})
    ),
    "live tasks asked a moment ago, looked at before": Case(
        crawled(OLD, live_at=RECENT), (False, True, {"l1", "l2", "l3"})
    ),
    "some live tasks seen in passing": Case(
        crawled(OLD, confirmed={"l1": RECENT, "l2": NOW - 2}), (False, True, {"l2", "l3"})
    ),
    "all live tasks seen in passing": Case(
        crawled(OLD, looked_at=RECENT, confirmed=dict.fromkeys(("l1", "l2", "l3"), RECENT)), FRESH
    ),
    "doubt since the crawl": Case(crawled(RECENT, doubted_at=NOW - 0.1), CRAWL),
    "doubt before the crawl": Case(crawled(RECENT, doubted_at=RECENT), FRESH),
    "a crawl at each refresh, crawled long ago": Case(crawled(NOW - 2), CRAWL, ages=Ages(1.0, 0.0)),
    "a crawl at each refresh, crawled a moment ago": Case(crawled(RECENT), FRESH, ages=Ages(1.0, 0.0)),
    "no age at all": Case(crawled(RECENT), (False, True, {"l1", "l2", "l3"}), ages=Ages(0.0, 60.0)),
    "no age at all, asked now": Case(crawled(NOW), FRESH, ages=Ages(0.0, 60.0)),
    "a task that may be gone": Case(crawled(RECENT, suspect={"d1": Suspicion(RECENT, RECENT)}), (False, False, {"d1"})),
    # No page tells for sure whether they are: DESIGN 6, everything that passed before the request came in.
    "more tasks may be gone than there are pages": Case(
        crawled(RECENT, pages=1, suspect={"d1": Suspicion(RECENT, RECENT), "d2": Suspicion(OLD, OLD)}),
        (False, False, {"d1", "d2"}),
    ),
    "a task may be gone, and cannot be asked for": Case(
        crawled(RECENT, suspect={"d1": Suspicion(RECENT, RECENT)}, asks_by_id=False), CRAWL
    ),
    "a live task that no list shows": Case(
        crawled(RECENT, unlisted={"l2": NEVER}, unlisted_at=RECENT, live_at=NEVER), (False, False, {"l2"})
    ),
    "a live task that no list shows, seen a moment ago": Case(
        crawled(RECENT, unlisted={"l2": RECENT}, unlisted_at=RECENT, live_at=NEVER), FRESH
    ),
    "finished tasks that no list shows, asked for exactly full_crawl_interval ago": Case(
        crawled(RECENT, unlisted={"d1": NOW - 60}, unlisted_at=NOW - 60), FRESH
    ),
    "finished tasks that no list shows, asked for too long ago": Case(
        crawled(RECENT, unlisted={"d1": ANCIENT}, unlisted_at=ANCIENT), CRAWL
    ),
    "finished tasks that no list shows, not asked for since a doubt": Case(
        crawled(NOW, unlisted={"d1": NOW - 0.7}, unlisted_at=NOW - 0.7, doubted_at=RECENT), CRAWL
    ),
    # DESIGN 6: 0 makes every refresh a full crawl, and there is a refresh when max_age is over.
    "a crawl at each refresh, a task that no list shows, all asked a moment ago": Case(
        crawled(RECENT, unlisted={"d1": RECENT}, unlisted_at=RECENT), FRESH, ages=Ages(1.0, 0.0)
    ),
    "a name that is longer than is noted": Case(
        Knowledge(), CRAWL, tasks=[], query=Query(task_ids=frozenset({"n" * 257}))
    ),
    "no task is named": Case(Knowledge(), FRESH, tasks=[], query=Query(task_ids=frozenset())),
    "a finished task is named": Case(crawled(OLD), FRESH, query=Query(task_ids=frozenset({"d1"}))),
    "a finished task is named that was crawled too long ago": Case(
        crawled(ANCIENT), (False, False, {"d1"}), query=Query(task_ids=frozenset({"d1"}))
    ),
    "a live task is named": Case(crawled(OLD), (False, False, {"l1"}), query=Query(task_ids=frozenset({"l1", "d1"}))),
    "a live task is named that was seen a moment ago": Case(
        crawled(OLD, confirmed={"l1": RECENT}), FRESH, query=Query(task_ids=frozenset({"l1", "d1"}))
    ),
    "an unknown task is named": Case(crawled(OLD), (False, False, {"x"}), query=Query(task_ids=frozenset({"x"}))),
    "a task is named that is known to be gone": Case(
        crawled(OLD, gone={"x": RECENT}), FRESH, query=Query(task_ids=frozenset({"x"}))
    ),
    "a task is named where nothing is known": Case(
        Knowledge(), (False, False, {"x"}), tasks=[], query=Query(task_ids=frozenset({"x"}))
    ),
    "a task is named that may be gone": Case(
        crawled(RECENT, suspect={"d1": Suspicion(RECENT, RECENT)}),
        (False, False, {"d1"}),
        query=Query(task_ids=frozenset({"d1"})),
    ),
    "another task is named than may be gone": Case(
        crawled(RECENT, suspect={"d1": Suspicion(RECENT, RECENT)}), FRESH, query=Query(task_ids=frozenset({"d2"}))
    ),
    "more tasks are named than there are pages": Case(
        crawled(OLD, pages=2), CRAWL, query=Query(task_ids=frozenset({"l1", "l2", "l3"}))
    ),
    "a server without tasks/get, tasks named": Case(
        crawled(OLD, asks_by_id=False), CRAWL, query=Query(task_ids=frozenset({"d1"}))
    ),
    "live tasks of another method": Case(
        crawled(OLD), LOOK, tasks=[a_task("l1", method="tools/call")], query=Query(methods=frozenset({"prompts/get"}))
    ),
    "live tasks that may get the status": Case(
        crawled(OLD), (False, True, {"l1"}), tasks=LIVE[:1], query=Query(status=frozenset({"completed"}))
    ),
    "live tasks that can only leave the range": Case(
        crawled(OLD), LOOK, tasks=LIVE, query=Query(updated=(None, plain.instant("1970-01-01T00:00:09Z")))
    ),
    "live tasks that may leave the range": Case(
        crawled(OLD),
        (False, True, {"l1"}),
        tasks=LIVE[:1],
        query=Query(updated=(None, plain.instant("1970-01-01T00:00:10Z"))),
    ),
}


@pytest.mark.parametrize("case", TABLE.values(), ids=TABLE.keys())
def test_what_is_asked(case: Case) -> None:
    plan = freshness.plan(case.known, an_index(*case.tasks), case.query, NOW, case.ages)
    assert (plan.crawl, plan.look, set(plan.tasks)) == case.expected
    assert plan.nothing is (case.expected == FRESH)
    assert plan.reason


def test_the_plans_that_ask_nothing() -> None:
    assert Plan("x").nothing
    assert not Plan("x", crawl=True).nothing
    assert not Plan("x", look=True).nothing
    assert not Plan("x", tasks=["a"]).nothing


times = st.sampled_from([NEVER, NOW - 100, NOW - 60.1, NOW - 60, NOW - 30, NOW - 1.1, NOW - 1, NOW - 0.5, NOW])
ids = st.sampled_from(plain.IDS)
by_id = st.dictionaries(ids, times, max_size=4)
before = times.filter(lambda at: at < NOW)
knowledge = st.builds(
    Knowledge,
    crawled_at=times,
    looked_at=times,
    live_at=times,
    doubted_at=st.just(NEVER) | times,
    confirmed=by_id,
    gone=st.dictionaries(st.sampled_from([*plain.IDS, "nobody"]), times, max_size=3),
    suspect=st.just({}) | st.dictionaries(ids, st.builds(Suspicion, since=before, at=before), max_size=2),
    unlisted=st.just({}) | st.dictionaries(ids, st.just(NEVER) | times, max_size=3),
    unlisted_at=times,
    listing=st.sampled_from(Listing),
    pages=st.integers(1, 5),
    asks_by_id=st.booleans() | st.just(True),
)
tasks = st.lists(plain.reports, max_size=8)
ages = st.sampled_from([AGES, Ages(0.0, 60.0), Ages(1.0, 0.0), Ages(0.0, 0.0), Ages(5.0, 60.0)])


def may_match(known: Task, query: Query) -> bool:
    """Whether a task, or any later report of it, matches."""
    updates = {
        known.updated.at,
        *(at for at in (query.updated[0], query.updated[1]) if at is not None and at >= known.updated.at),
    }
    statuses = {known.status} if known.status in TERMINAL else task.STATUSES
    futures = [msgspec.structs.replace(known, status=s, updated=Key(at, known.id)) for s in statuses for at in updates]
    return bool(plain.listed(futures, query, None))


@settings(thorough, max_examples=100)
@given(knowledge, tasks, plain.queries, ages)
def test_an_answer_without_asking_keeps_the_promise(
    known: Knowledge, reports: list[Task], query: Query, allowed: Ages
) -> None:
    """DESIGN 6, held against what the members of `Knowledge` say that they mean."""
    index = an_index(*reports)
    if not freshness.plan(known, index, query, NOW, allowed).nothing:
        return
    oldest = max(NOW - allowed.max_age_s, known.doubted_at)
    oldest_crawl = NOW - allowed.full_crawl_interval_s
    # Every task's state is fresh. A terminal one changes no more.
    for found in (t for i in index if (t := index.get(i)) is not None):
        # Where nobody can be asked for a task that no list shows, no plan helps: such a one must not be kept at all.
        can_be_known = known.asks_by_id or found.id not in known.unlisted
        if can_be_known and found.status not in TERMINAL and may_match(found, query):
            assert max(known.confirmed_at(found.id), known.live_at) >= oldest
        if found.id in known.suspect and known.asks_by_id and may_match(found, query):
            pytest.fail("a task is shown that may be gone")
        if found.status in TERMINAL and found.id in known.unlisted and may_match(found, query):
            terminal_since = max(min(oldest_crawl, oldest), known.doubted_at)
            assert max(known.confirmed_at(found.id), known.unlisted_at) >= terminal_since
    # What was made or deleted elsewhere is seen in time.
    if query.task_ids is None or not known.asks_by_id:
        assert max(known.looked_at, known.crawled_at) >= oldest
        assert known.crawled_at >= min(oldest_crawl, oldest)
        if known.listing is Listing.NEITHER or not known.asks_by_id:
            assert known.crawled_at >= oldest
    else:
        for task_id in query.task_ids:
            if index.get(task_id) is None:
                read = max(known.looked_at, known.crawled_at) >= oldest and known.crawled_at >= oldest_crawl
                assert read or max(known.gone.get(task_id, NEVER), known.crawled_at) >= oldest


def test_a_finished_task_that_no_list_shows_is_not_shown_for_longer_than_full_crawl_interval() -> None:
    """A crawl does not tell that it was deleted elsewhere; DESIGN 6 promises it within `full_crawl_interval`.

    It was reported, and asked for, 100 s ago; all pages were read 59 s ago, too early to ask for it again.
    """
    known = crawled(NOW - 59, looked_at=NOW, live_at=NOW, unlisted={"d1": NOW - 100}, unlisted_at=NOW - 100)
    plan = freshness.plan(known, an_index(DONE[0]), Query(), NOW, AGES)
    assert plan.crawl or "d1" in plan.tasks


@thorough
@given(knowledge, tasks, plain.queries, ages)
def test_what_is_asked_can_be_asked_and_costs_no_more_than_reading_all_pages(
    known: Knowledge, reports: list[Task], query: Query, allowed: Ages
) -> None:
    index = an_index(*reports)
    plan = freshness.plan(known, index, query, NOW, allowed)
    assert len(plan.tasks) == len(set(plan.tasks))
    if plan.crawl:
        assert not plan.look
        assert not plan.tasks
    if not known.asks_by_id:
        assert not plan.tasks
    if plan.look:
        assert known.crawled_at != NEVER
        assert known.listing is not Listing.NEITHER
    # What no list shows, and what may be gone, no page can tell.
    told_by_pages = [i for i in plan.tasks if i not in known.unlisted and i not in known.suspect]
    assert plan.look + len(told_by_pages) <= known.pages


@thorough
@given(knowledge, tasks, plain.queries, ages, st.sets(st.sampled_from([*plain.IDS, "nobody"])), st.booleans())
def test_what_is_asked_is_enough_to_answer(
    known: Knowledge, reports: list[Task], query: Query, allowed: Ages, gone: set[str], has_get: bool
) -> None:
    """Each round of asking learns something, and after a few there is nothing left to ask."""
    index = an_index(*reports)
    known = msgspec.structs.replace(known, doubted_at=min(known.doubted_at, NOW - 0.1))

    def ask_for(task_ids: Iterable[str]) -> None:
        for task_id in task_ids:
            if not has_get:
                known.asks_by_id = False
                return
            known.suspect.pop(task_id, None)
            if task_id in gone or index.get(task_id) is None:
                index.remove(task_id)
                known.gone[task_id] = NOW
                known.unlisted.pop(task_id, None)
            else:
                known.confirm(task_id, NOW)

    for _ in range(6):
        plan = freshness.plan(known, index, query, NOW, allowed)
        if plan.nothing:
            return
        if plan.crawl:
            known.crawled_at = known.looked_at = NOW
            for task_id in list(index):
                if task_id in gone and task_id not in known.unlisted:
                    index.remove(task_id)
            known.suspect = {i: s for i, s in known.suspect.items() if known.asks_by_id and i in known.unlisted}
            if known.unlisted_at < max(NOW - allowed.full_crawl_interval_s, known.doubted_at):
                ask_for([i for i in known.unlisted if (t := index.get(i)) is not None and t.is_terminal])
                known.unlisted_at = NOW
        if plan.look:
            known.looked_at = NOW
        ask_for(plan.tasks)
    pytest.fail("it never ends")


def test_knowledge_is_not_shared() -> None:
    first, second = Knowledge(), Knowledge()
    first.confirmed["a"] = NOW
    first.suspects("a", NOW, NOW)
    first.unlisted["a"] = NOW
    assert second == Knowledge()


def test_a_crawl_confirms_what_lists_show() -> None:
    known = crawled(OLD, confirmed={"a": RECENT, "b": ANCIENT}, unlisted={"c": ANCIENT, "d": NEVER})
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
    known = Knowledge(confirmed={"a": confirmed - boot})
    assert freshness.overdue(known, [shown], now - boot, now) == (["a"] if expected else [])
    known.asks_by_id = False
    assert freshness.overdue(known, [shown], now - boot, now) == []


def test_a_task_that_nobody_confirmed_is_overdue_when_its_ttl_has_passed() -> None:
    assert freshness.overdue(Knowledge(), [a_task("a", ttl=1000), a_task("b")], NOW, NOW) == ["a"]
