"""What must be asked of the upstream before a query is answered: enough for the promise of DESIGN 6, and no more."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.mcp import task
from gateway.mcp.task import NEVER, TERMINAL, Moment, Stamp, Task
from gateway.query.criteria import Query
from gateway.refresh import planning
from gateway.tasks.index import Index
from gateway.tasks.reconciliation import LastCrawl, Listing, Record
from gateway.tasks.task_entry import Source, Stale, absent
from tests.rules import plain

NOW = 1000.0
Ages = tuple[float, float]  # `max_age`, `full_crawl_interval`
AGES: Ages = 1.0, 60.0
OUT_OF_MIND = NEVER.at
RECENT, OLD, ANCIENT = NOW - 0.5, NOW - 30, NOW - 61


def a_task(task_id: str, status: str = "working", ttl: object = None) -> Task:
    instant = "1970-01-01T00:00:10Z"
    given = {"taskId": task_id, "status": status, "createdAt": instant, "lastUpdatedAt": instant, "ttl": ttl}
    return task.parse(msgspec.json.encode(given))


LIVE = [a_task("l1"), a_task("l2", "input_required"), a_task("l3")]
DONE = [a_task("d1", "completed"), a_task("d2", "failed"), a_task("d3", "cancelled")]


class Marked(NamedTuple):
    """Queries from `since` on wait for a task, and an answer that was asked for after `at` settles it."""

    since: float
    at: float


def moment(at: float) -> Moment:
    return NEVER if at == OUT_OF_MIND else Moment(round(at * 1000), at)


NOW_ORDER = moment(NOW).order


def stamp(at: float) -> Stamp:
    """Of an answer that came at once."""
    return Stamp(moment(at), moment(at).order, moment(at).order)


@dataclass
class Situation:
    """What is known after a crawl of ten pages from a server that appends, and as of when.

    Tasks that are told of alone, listed or not; that are gone; that are marked.
    """

    crawled: float = OUT_OF_MIND
    told: Mapping[str, float] = field(default_factory=dict)
    unlisted: Mapping[str, float] = field(default_factory=dict)
    gone: Mapping[str, float] = field(default_factory=dict)
    marks: Mapping[str, Marked] = field(default_factory=dict)
    new_as_of: float | None = None
    live_as_of: float | None = None
    unlisted_as_of: float = OUT_OF_MIND
    doubted_at: float = OUT_OF_MIND
    listing: Listing = Listing.APPENDS
    pages: int = 10
    asks_by_id: bool = True

    def record(self, tasks: Iterable[Task]) -> Record:
        index = Index()
        for each in tasks:
            is_listed = each.id not in self.unlisted
            at = max(self.told.get(each.id, OUT_OF_MIND), self.crawled) if is_listed else self.unlisted[each.id]
            index.set(plain.entry_for(each, stamp(at), int(is_listed)))
        for task_id, at in self.gone.items():
            index.set(absent(task_id, stamp(at)))
        for task_id, mark in self.marks.items():
            stale = Stale(moment(mark.since).order, moment(mark.at).order, Source.TO_CALLER)
            known = index.entries.get(task_id) or absent(task_id)
            index.set(msgspec.structs.replace(known, stale=stale))
        return Record(
            index,
            crawled=stamp(self.crawled),
            new_as_of=moment(self.crawled if self.new_as_of is None else self.new_as_of),
            live_as_of=moment(self.crawled if self.live_as_of is None else self.live_as_of),
            unlisted_as_of=moment(self.unlisted_as_of),
            doubted=moment(self.doubted_at).order,
            last_crawl=LastCrawl(pages=self.pages, listing=self.listing),
            asks_by_id=self.asks_by_id,
            accepted=1,
        )


def need_of(record: Record, ages: Ages = AGES) -> planning.Need:
    return planning.need_of(record, moment(NOW), *ages)


UNKNOWN = Situation(pages=0, listing=Listing.NEITHER)


Plan = tuple[bool, bool, set[str]]  # crawl, look, tasks


@dataclass
class Case:
    known: Situation
    expected: Plan
    tasks: list[Task] = field(default_factory=lambda: [*LIVE, *DONE])
    query: Query = field(default_factory=Query)
    ages: Ages = AGES


FRESH: Plan = (False, False, set())
CRAWL: Plan = (True, False, set())
LOOK: Plan = (False, True, set())
LOOK_AND_ASK: Plan = (False, True, {"l1", "l2", "l3"})
MAY_BE_GONE = {"d1": Marked(RECENT, RECENT)}
NEW = {"n1": Marked(RECENT, RECENT), "n2": Marked(RECENT, RECENT)}


def asks(*task_ids: str) -> Plan:
    return False, False, {*task_ids}


def named(*task_ids: str) -> Query:
    return Query(taskIds=frozenset(task_ids))


# The least that is enough.
TABLE: dict[str, Case] = {
    "crawled exactly max_age ago": Case(Situation(NOW - 1), FRESH),
    "as many unknown tasks are named as there are pages": Case(Situation(OLD, pages=2), CRAWL, query=named("n1", "n2")),
    "an unknown task is named beside an id that is too long to be asked for": Case(
        Situation(OLD), CRAWL, query=named("n1", "d1", "n" * 257)
    ),
    "crawled exactly full_crawl_interval ago": Case(Situation(NOW - 60), LOOK, tasks=DONE),
    "looked at and asked a moment ago": Case(Situation(OLD, new_as_of=RECENT, live_as_of=RECENT), FRESH),
    "as many requests as pages": Case(Situation(OLD, pages=4), CRAWL),
    "live tasks asked a moment ago, looked at before": Case(Situation(OLD, live_as_of=RECENT), LOOK_AND_ASK),
    "doubt since the crawl": Case(Situation(RECENT, doubted_at=NOW - 0.1), CRAWL),
    "a crawl at each refresh, crawled a moment ago": Case(Situation(RECENT), FRESH, ages=(1.0, 0.0)),
    "a task that may be gone": Case(Situation(RECENT, marks=MAY_BE_GONE), asks("d1")),
    "as many listed tasks are marked as there are pages": Case(
        Situation(RECENT, pages=2, marks={**MAY_BE_GONE, "d2": Marked(OLD, OLD)}), CRAWL
    ),
    "two tasks are marked that the index lacks": Case(
        Situation(RECENT, marks=dict.fromkeys(("n1", "n2"), Marked(RECENT, NOW))), LOOK
    ),
    "they are, looked for since": Case(
        Situation(OLD, new_as_of=NOW - 0.1, live_as_of=NOW, told=dict.fromkeys(("l1", "l2", "l3"), NOW), marks=NEW),
        asks("n1", "n2"),
    ),
    "a live task that no list shows": Case(
        Situation(RECENT, unlisted={"l2": OUT_OF_MIND}, unlisted_as_of=RECENT, live_as_of=OUT_OF_MIND), asks("l2")
    ),
    "finished tasks that no list shows, asked for exactly full_crawl_interval ago": Case(
        Situation(RECENT, unlisted={"d1": NOW - 60}, unlisted_as_of=NOW - 60), FRESH
    ),
    "finished tasks that no list shows, asked for too long ago": Case(
        Situation(RECENT, unlisted={"d1": ANCIENT}, unlisted_as_of=ANCIENT), CRAWL
    ),
    "finished tasks that no list shows, not asked for since a doubt": Case(
        Situation(NOW, unlisted={"d1": NOW - 0.7}, unlisted_as_of=NOW - 0.7, doubted_at=RECENT), CRAWL
    ),
    "a name that is longer than is noted": Case(UNKNOWN, CRAWL, tasks=[], query=named("n" * 257)),
    "a live task is named": Case(Situation(OLD), asks("l1"), query=named("l1", "d1")),
    "a task is named that is known to be gone": Case(Situation(OLD, gone={"x": RECENT}), FRESH, query=named("x")),
    "a task is named where nothing is known": Case(UNKNOWN, asks("x"), tasks=[], query=named("x")),
}


def test_the_reason_is_right_where_the_page_of_new_tasks_was_not_found() -> None:
    record = Situation(OLD).record(LIVE)
    record.fail_tail()
    assert planning.plan(record, Query(), need_of(record)).reason == "reading all pages costs no more"
    assert planning.plan(Record(), Query(), need_of(Record())).reason == "nothing is known yet"


@pytest.mark.parametrize("case", TABLE.values(), ids=TABLE.keys())
def test_what_is_asked(case: Case) -> None:
    record = case.known.record(case.tasks)
    plan = planning.plan(record, case.query, need_of(record, case.ages))
    assert (plan.crawl, plan.tail, set(plan.tasks)) == case.expected
    assert plan.nothing is (case.expected == FRESH)
    assert plan.reason


times = st.sampled_from([OUT_OF_MIND, NOW - 100, NOW - 60.1, NOW - 60, NOW - 30, NOW - 1.1, NOW - 1, NOW - 0.5, NOW])
ids = st.sampled_from(plain.IDS)
by_id = st.dictionaries(ids, times, max_size=4)
before = times.filter(lambda at: at < NOW)
marks = st.dictionaries(st.sampled_from([*plain.IDS, "nobody"]), st.builds(Marked, since=before, at=before), max_size=3)


@st.composite
def situations(draw: st.DrawFn) -> Record:
    """A record. Its tasks are listed or unlisted; only others are gone."""
    at, tasks = draw(times), {each.id: each for each in draw(st.lists(plain.reports, max_size=8))}
    return Situation(
        at,
        told=draw(by_id),
        unlisted=draw(st.just({}) | by_id),
        gone={i: gone for i, gone in draw(by_id).items() if i not in tasks},
        marks=draw(marks),
        new_as_of=max(at, draw(times)),
        live_as_of=draw(times),
        unlisted_as_of=draw(times),
        doubted_at=draw(st.just(OUT_OF_MIND) | times),
        listing=draw(st.sampled_from(Listing)),
        pages=draw(st.integers(1, 5)),
        asks_by_id=draw(st.booleans() | st.just(True)),
    ).record(tasks.values())


ages = st.sampled_from([AGES, (0.0, 60.0), (1.0, 0.0), (0.0, 0.0), (5.0, 60.0)])


@given(situations(), plain.queries, ages)
def test_an_answer_without_asking_keeps_the_promise(record: Record, query: Query, allowed: Ages) -> None:
    """DESIGN 6, held against what the fields of `Record` say that they mean."""
    index = record.index
    need = need_of(record, allowed)
    if not planning.plan(record, query, need).nothing:
        return
    for found in filter(None, map(index.get, index.entries)):
        # Where nobody can be asked for a task that no list shows, no plan helps: such a one must not be kept at all.
        can_be_asked = record.asks_by_id or found.id not in index.unlisted
        if not can_be_asked or not plain.may_match(found, query, *query.updated):
            continue
        if record.asks_by_id or query.task_ids is None:
            assert found.id not in record.due(moment(NOW).order)
        if found.status not in TERMINAL:
            assert need.met(max(found.told.as_of, record.live_as_of))
        elif found.id in record.index.unlisted:
            assert need.met_by_terminal(max(found.told.as_of, record.unlisted_as_of))
    if query.task_ids is None or not record.asks_by_id:
        assert need.met(record.new_as_of)
        assert need.met_by_terminal(record.crawled.as_of)
        if record.last_crawl.listing is Listing.NEITHER or not record.asks_by_id:
            assert need.met(record.crawled.as_of)
    else:
        for task_id in query.task_ids:
            if index.get(task_id) is None:
                read = need.met(record.new_as_of) and need.met_by_terminal(record.crawled.as_of)
                gone = record.index.gone.get(task_id)
                assert read or need.met(record.crawled.as_of) or (gone is not None and need.met(gone.told.as_of))


@given(situations(), plain.queries, ages)
def test_what_is_asked_can_be_asked_and_costs_no_more_than_reading_all_pages(
    record: Record, query: Query, allowed: Ages
) -> None:
    need = need_of(record, allowed)
    plan = planning.plan(record, query, need)
    assert len(plan.tasks) == len(set(plan.tasks))
    assert not plan.tasks or (record.asks_by_id and not plan.crawl)
    told = {i: record.index.get(i) for i in plan.tasks}
    due = {i for i, stale in record.index.stale.items() if stale.blocks_from <= NOW_ORDER}
    assert all(t is None or i in due or not need.met(t.told.as_of) for i, t in told.items())
    unlisted = [record.index.get(i) for i in record.index.unlisted]
    if need.met(record.crawled.as_of) and need.met_by_terminal(record.unlisted_as_of) and not record.index.stale:
        assert plan.nothing or not all(t is not None and need.met(t.told.as_of) for t in unlisted)
    if plan.tail:
        assert not plan.crawl
        assert record.crawled.as_of != NEVER
        assert record.last_crawl.listing is not Listing.NEITHER
    # What no list shows, and what is marked and not listed, no page can tell.
    told_by_pages = [i for i in plan.tasks if i not in record.index.unlisted and i not in record.index.stale]
    assert plan.tail + len(told_by_pages) <= record.last_crawl.pages


# Each: ttl in ms of a task made at 10 s since 1970; when it was last reported; what time it is then (both since 1970).
VANISHES = [(None, 11, 1000, False), (60_000, 11, 69, False), (60_000, 11, 70, True), (60_000, 11, 1000, True)]
VANISHES += [(60_000, 69, 71, True), (60_000, 71, 72, False), (60_000, 71, 1000, False), (0, 11, 12, False)]


@pytest.mark.parametrize(("ttl", "confirmed", "now", "expected"), VANISHES)
def test_a_task_may_vanish_when_its_ttl_has_passed(
    ttl: int | None, confirmed: float, now: float, expected: bool
) -> None:
    """A task that was reported after that moment is kept longer, and gone when a crawl says so."""
    boot = 5000.0  # the monotonic clock began then, of 1970
    record = Situation(confirmed - boot).record([a_task("a", "completed", ttl=ttl)])
    shown = list(record.index.entries.values())
    assert planning.overdue(record, shown, now - boot, now) == (["a"] if expected else [])
    record.asks_by_id = False
    assert planning.overdue(record, shown, now - boot, now) == []
    assert planning.overdue(
        Record(), [plain.entry_for(a_task("a", ttl=1000)), plain.entry_for(a_task("b"))], NOW, NOW
    ) == ["a"], "nobody confirmed it"
