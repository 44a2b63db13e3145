"""The lives of tasks: what begins one, what ends one, and what a server's or a client's lies make of the counts."""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.caller_identity import Key, ServerKey
from gateway.mcp import task
from gateway.mcp.task import TERMINAL, Moment, parse
from gateway.mcp.task_observations import Observation, Shown
from gateway.operate.metrics import Metrics, age_s
from gateway.operate.recent_rates import Rates, quantile
from gateway.tasks import lifecycle_counts
from gateway.tasks.lifecycle_counts import DURATIONS, ENDS, LAST_MAX, STARTED, TOOLS_MAX, UNHEARD, UNHEARD_S, Lives

NOW_S: Final = 1_780_000_000.0  # 2026-05-28T20:26:40Z
UP: Final = ServerKey("up")
ANN: Final = Key(UP, b"/mcp", b"session", b"ann")
BOB: Final = Key(UP, b"/mcp", b"another", b"bob")
AT_NEW: Final = ANN._replace(server=ServerKey("up", 1))
OTHER, STAYS, GONE = (ANN._replace(server=ServerKey(name)) for name in ("other", "stays", "gone"))


def at(seconds: int) -> str:
    """So many seconds after 20:00, which is 1,600 s before now."""
    return f"2026-05-28T20:{seconds // 60:02}:{seconds % 60:02}Z"


CREATED, LATER = at(0), at(600)


def seen_as(data: bytes) -> Shown:
    return task.read(data), data


class Play:
    """Lives on a clock of the test's, and what is told to them."""

    def __init__(self) -> None:
        self.now_s = NOW_S
        self.set_s = 0.0  # how far the time of day was set
        self.lives = Lives(lambda: self.now_s, lambda: self.now_s + self.set_s)
        self.lives.keep([UP, *map(ServerKey, ("other", "stays"))])

    def made(self, task_id: str = "t", tool: str = "render", key: Key = ANN, **more: Any) -> None:
        said = Observation(made=task_id, made_as=seen_as(raw(task_id, **more)), tool=tool)
        self.lives.observe(key, said)

    def shown(self, status: str, task_id: str = "t", key: Key = ANN, how: str = "", **more: Any) -> None:
        tasks = [seen_as(raw(task_id, status, **more))]
        said = Observation(tasks, is_listed=how == "listed", is_told_to_all=how == "to all")
        self.lives.observe(key, said)

    def told(self, status: str, key: Key = ANN) -> None:
        self.lives.told(key, [parse(raw("t", status))])

    def denied(
        self, task_id: str = "t", key: Key = ANN, asked_s: float | None = None, method: str = "tasks/get"
    ) -> None:
        asked = Moment(0, self.now_s if asked_s is None else asked_s)
        self.lives.observe(key, Observation(denied=task_id, method=method), asked)

    def ended(self, task_id: str, asked_s: float) -> None:
        self.lives.observe(ANN, Observation(ended=task_id), Moment(0, asked_s))

    def passes(self, seconds: float) -> None:
        """Time passes, and nothing is seen; the gateway sweeps once a second."""
        self.now_s += seconds
        self.lives.sweep()

    def counts(self, *said: str) -> None:
        """The counts say this and no more: `render started 2`, `render working 1`, `render lost 1`."""
        told = [f"{tool} {status} {n}" for (_, tool, status), n in self.lives.counts.items() if n]
        told += [f"{tool} {status} {len(began)}" for (_, tool, status), began in self.lives.live.items() if began]
        assert sorted(told) == sorted(said)

    def aged(self, status: str, seconds: float) -> None:
        assert age_s(self.lives, ("up", "render", status)) == seconds

    def lasted(self, status: str, seconds: float) -> None:
        assert self.lives.durations["up", "render", status][-1] == seconds


@pytest.fixture
def play() -> Play:
    return Play()


def raw(
    task_id: str, status: str = "working", created: Any = CREATED, updated: Any = CREATED, ttl: Any = None
) -> bytes:
    given = {"taskId": task_id, "status": status, "createdAt": created, "lastUpdatedAt": updated, "ttl": ttl}
    return json.dumps({name: value for name, value in given.items() if value != "(none)"}).encode()


Step = Callable[[Play], object]


def step(what: str) -> Callable[..., Step]:
    return lambda *given, **more: lambda play: getattr(play, what)(*given, **more)


made, shown, told, denied, ended = map(step, ("made", "shown", "told", "denied", "ended"))
passes, counts, aged, lasted = map(step, ("passes", "counts", "aged", "lasted"))

# What is told, in its order, and what the counts then say.
STORIES: Final[dict[str, tuple[Step, ...]]] = {
    "the news of an end may come before the result that made the task, as by the TypeScript SDK": (
        shown("failed", updated=at(20)), counts(), made(), counts("render started 1", "render failed 1"),
        lasted("failed", 20),
    ),
    "what is told before the result that made the task has its tool too": (
        shown("working", how="to all"), shown("completed", updated=at(20), how="to all"), shown("working"), counts(),
        made(), counts("render started 1", "render completed 1"), lasted("completed", 20),
        shown("working", "b"), shown("failed", "b"), passes(6), made("b"),
        counts("render started 1", "render completed 1", " started 1", " failed 1"),
    ),
    "a list may show a task before the result that made it, which may come too late": (
        shown("working", "a"), shown("working", "b"), passes(4), made("a"), passes(2), made("b"),
        counts("render started 1", " started 1", "render working 1", " working 1"),
    ),
    # An id that is given again.
    "the result that made the life before begins nothing once the next has ended: both had one end": (
        made(created=LATER), shown("completed", created=LATER), made(), shown("completed", created=LATER),
        counts("render started 1", "render completed 1"),
    ),
    "a result may be asked for before a task is first seen, which another replica has made": (
        shown("working"), shown("working", "later", created="2026-05-28T20:26:36Z"), passes(6),
        ended("t", NOW_S - 5), ended("later", NOW_S - 5), counts(" started 2", " completed 1", " working 1"),
    ),
    "a task may be made soon after another of its id was first seen: they were taken for one": (
        shown("working"), made(created=LATER), shown("completed"), passes(6),
        counts(" started 1", " lost 1", "render started 1", "render working 1"),
    ),
    "an id may be given again before the news of an end has come, which was taken for late news": (
        shown("completed", updated=at(20)), shown("working", created=at(20)), passes(6), counts(),
        shown("working", created=at(21)), passes(6), counts(" started 1", " working 1"),
    ),
    "a server may give the time of each answer, as the Rust SDK does: it is one task all the same (DESIGN 2.15)": (
        made(), *(shown("working", created=at(second), updated=at(second)) for second in range(20)),
        shown("completed", created=at(30), updated=at(30)), shown("completed", created=at(40), updated=at(40)),
        counts("render started 1", "render completed 1"), lasted("completed", 30),
    ),
    "such a server may list a task before the result that made it": (
        shown("working", created=at(1)), made(), made(), counts("render started 1", "render working 1"),
    ),
    "what was asked before a life was first seen does not end it: of the life before it tells late": (
        made(), denied(), passes(1), made(created=LATER), denied(asked_s=NOW_S), ended("t", NOW_S),
        lambda play: play.lives.gone(ANN, "t", Moment(0, NOW_S)),
        counts("render started 2", "render lost 1", "render working 1"), denied(),
        counts("render started 2", "render lost 2"),
    ),
    "a late answer of such a server begins nothing": (
        made(created="2026-05-28T20:26:30Z"), shown("completed", created=at(1599), updated=at(1599)),
        shown("working", created=at(1598)), shown("completed", created=at(1600)), made(created=at(1590)),
        counts("render started 1", "render completed 1"),
    ),
    # Lost.
    "only who saw a task last finds it gone, and one that has ended cannot be cancelled either": (
        made(), denied(key=BOB), denied(method="tasks/cancel"), counts("render started 1", "render working 1"),
        denied(), counts("render started 1", "render lost 1"), lambda play: play.lives.lookups_failed["up",] == 2,
    ),
    "who was only notified of a task does not find it gone: mcp-go notifies every session (DESIGN 2.14)": (
        made("a"), shown("input_required", "a", BOB, "to all"), denied("a", BOB),
        shown("input_required", "b", BOB, "to all"), denied("b", BOB), passes(10),
        counts("render started 1", " started 1", "render input_required 1", " input_required 1"),
    ),
    "whoever sets the clock loses no task": (
        made(ttl=60_000), lambda play: setattr(play, "set_s", 86_400), passes(10),
        counts("render started 1", "render working 1"),
    ),
    "a status that MCP does not know is live and ends as other": (
        made(), shown("paused"), shown("stopped"), counts("render started 1", "render other 1"), passes(90_000),
        counts("render started 1", "render other 1"), lambda play: play.lives.counts["up", "render", "other"] == 1,
    ),
    # Ages.
    "a task waits for input since it does, and not since it was made": (
        made(), shown("input_required", updated=at(1560)), aged("input_required", 40),
        shown("working", updated=at(1570)), aged("working", 1600),
    ),
    "an age is that of the oldest": (
        *(made(f"{n}", created=at(60 * n)) for n in range(5)), shown("completed", "0"), aged("working", 1540),
    ),
    # Upstreams that a reload has changed.
    "what comes late from an upstream that has gone makes no series": (
        made(key=GONE), denied(key=GONE), told("working", key=GONE), passes(10), counts(),
        lambda play: ("gone",) not in play.lives.lookups_failed,
    ),
    "the tasks of a server that is replaced are lost unless something under way there shows them, and none begins": (
        made("a"), made("b"), made("c"), made("a", key=STAYS),
        lambda play: play.lives.keep([AT_NEW.server, STAYS.server]), shown("working", "b"), made("d"),
        made("c", key=AT_NEW), passes(1), denied("c"), shown("completed", "c"),
        counts("render started 4", "render lost 2", "render working 2", "render started 1", "render working 1"),
    ),
    "an upstream that goes takes its series along": (
        made("a"), made("b"), shown("completed", "b", updated=at(1)), denied("x"), made("c", key=STAYS),
        lambda play: play.lives.keep([STAYS.server]), counts("render started 1", "render working 1"),
        lambda play: not play.lives.durations and play.lives.lookups_failed == {("stays",): 0},
        passes(100_000), counts("render started 1", "render lost 1"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES.keys())
def test_what_the_counts_say(play: Play, story: tuple[Step, ...]) -> None:
    for happens in story:
        assert happens(play) in (None, True)


@pytest.mark.parametrize("ttl, lasts_s", [(60_000, 60), (None, 86_400), (10**12, 86_400), (0, 86_400), (-5, 86_400)])
@pytest.mark.parametrize("status", ["working", "input_required"])
def test_a_task_is_lost_when_it_was_not_seen_for_its_ttl_or_a_day(
    play: Play, ttl: object, lasts_s: float, status: str
) -> None:
    play.made(ttl=ttl)
    play.passes(lasts_s - 1)
    play.shown(status, ttl=ttl)
    play.passes(lasts_s - 1)
    play.counts("render started 1", f"render {status if lasts_s < UNHEARD_S else UNHEARD} 1")
    play.passes(1)
    play.counts("render started 1", "render lost 1")
    play.shown("completed")
    play.counts("render started 1", "render lost 1")


@pytest.mark.parametrize("status", ["working", "input_required"])
def test_a_task_of_which_nothing_is_heard_is_counted_apart_until_it_is_heard_of(play: Play, status: str) -> None:
    """It was one that works, for a day, though its client had left and it had long ended."""
    play.made("heard")
    play.made()
    play.shown(status)
    play.passes(UNHEARD_S - 1)
    play.shown("working", "heard")
    both = Counter(["working", status])
    play.counts("render started 2", *(f"render {each} {n}" for each, n in both.items()))
    heard_s = NOW_S
    play.passes(1)
    play.counts("render started 2", "render working 1", "render unheard 1")
    assert [*play.lives.live["up", "render", UNHEARD].values()] == [heard_s]
    play.told(status)
    play.counts("render started 2", *(f"render {each} {n}" for each, n in both.items()))
    play.passes(UNHEARD_S)
    play.shown("completed")
    play.counts("render started 2", "render unheard 1", "render completed 1")


def test_the_last_durations_are_known_exactly(play: Play) -> None:
    for number in range(LAST_MAX + 50):
        play.made(f"{number}", created="2026-05-28T20:00:00Z")
        ended = f"2026-05-28T20:00:{number % 7:02}Z"
        play.shown("completed", f"{number}", created="2026-05-28T20:00:00Z", updated=ended)
    assert len(took := play.lives.last["up", "render"]) == LAST_MAX and set(took) == {*range(7)}


# ---- clocks ----

GARBAGE: Final = ["(none)", None, 7, "", "soon", "0001-01-01T00:00:00Z", "2019-12-31T00:00:00Z", "2031-01-01T00:00:00Z"]


@pytest.mark.parametrize("created", GARBAGE)
def test_a_time_of_creation_that_cannot_be_right_is_when_the_task_was_first_seen(play: Play, created: object) -> None:
    play.made(created=created)
    assert age_s(play.lives, ("up", "render", "working")) == 0
    play.now_s += 7
    assert age_s(play.lives, ("up", "render", "working")) == 7
    play.set_s = -3600  # a clock may be set back
    assert age_s(play.lives, ("up", "render", "working")) == 0


@pytest.mark.parametrize("updated", [*GARBAGE, "2026-05-28T19:59:59Z", "9999-12-31T23:59:59Z"])
def test_a_duration_that_cannot_be_right_is_left_out(play: Play, updated: object) -> None:
    """Without a time of the end it was one of 0 s."""
    play.made()
    play.shown("completed", updated=updated)
    play.counts("render started 1", "render completed 1")
    assert not play.lives.durations


# ---- bounds ----


def test_the_first_tools_of_an_upstream_have_names(play: Play) -> None:
    for number in range(100):
        play.made(f"{number}", tool=f"tool {number % 50}")
        play.made(f"{number}", tool=f"tool {number}", key=OTHER)
        play.made(f"other {number}", tool="other")
    named = {tool for upstream, tool, _ in play.lives.counts if upstream == "up"}
    assert len(named) == TOOLS_MAX
    assert "other" in named
    assert sum(n for series, n in play.lives.counts.items() if series[::2] == ("up", STARTED)) == 200


def test_more_live_tasks_than_are_known_one_by_one_are_counted(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle_counts, "LIVE_MAX", 1000)
    monkeypatch.setattr(lifecycle_counts, "ENDED_MAX", 500)
    for number in range(1005):
        play.made(str(number))
    play.shown("working", "unmade")
    play.counts("render started 1005", "render working 1000")
    for number in range(1005):
        play.shown("completed", str(number))
    play.counts("render started 1005", "render completed 1000")
    for number in range(10):
        play.made(f"again {number}")
    for _ in range(60):
        play.passes(1)
    assert len(play.lives._past) + len(play.lives._lives) + len(play.lives._unnamed) <= 510


def test_a_sweep_is_short_after_a_large_list(play: Play) -> None:
    """100,000 at once held up the event loop for 0.1 s."""
    for number in range(10_000):
        play.shown("working", str(number))
    play.passes(6)
    started = play.lives.counts["up", "", STARTED]
    assert 0 < started < 5000
    for _ in range(10):
        play.passes(1)
    play.counts(" started 10000", " working 10000")
    play.passes(90_000)
    for _ in range(61):  # all are looked at within a minute
        play.passes(1)
    play.counts(" started 10000", " lost 10000")


def test_what_a_reload_has_taken_away_did_not_happen_backwards() -> None:
    """The page showed `-3 created` for five minutes."""
    metrics = Metrics()
    seen = Rates(metrics)

    def happens(count: int) -> None:
        for number in range(count):
            for upstream in ("up", "stays"):
                said = Observation(made=f"{number}", made_as=seen_as(raw(f"{number}")), tool="render")
                metrics.lives.observe(ANN._replace(server=ServerKey(upstream)), said)  # type: ignore[union-attr]

    def created(upstream: str) -> list[int]:
        [row] = (seen.tasks() or {})[upstream]
        return [row["started"][span] for span in ("1m", "5m", "all")]

    metrics.serves([UP, STAYS.server], counts_tasks=True)
    happens(3)
    for _ in range(100):
        seen.sample()
    metrics.serves([STAYS.server], counts_tasks=True)
    metrics.serves([UP, STAYS.server], counts_tasks=True)
    happens(2)
    assert created("up") == [2, 2, 2]
    assert created("stays") == [0, 0, 3]


# ---- anything ----

STATUSES: Final = st.sampled_from(["working", "input_required", "completed", "failed", "cancelled", "paused", ""])
TIMES: Final = st.sampled_from([*GARBAGE, CREATED, "2026-05-28T20:10:00Z"])
TASKS: Final = st.tuples(st.sampled_from("abc"), STATUSES, TIMES, TIMES, st.sampled_from([None, 1000, "x", 1e300]))
TOLD: Final = st.sampled_from(["made", "shown", "listed", "told", "denied", "ended", "passes"])
STEPS: Final = st.tuples(TOLD, TASKS, st.sampled_from(["render", "other", ""]), st.sampled_from([ANN, BOB]))


@given(st.lists(STEPS, max_size=60))
def test_whatever_is_told_each_life_begins_once_and_ends_once(steps: list[Any]) -> None:
    play, ends = Play(), Counter[tuple[str, str, str]]()
    play.lives.on_end = lambda viewer, tool, status, _: ends.update([(viewer.upstream, tool, status)])
    lives = play.lives
    for what, fields, tool, key in steps:
        task_id, data = fields[0], raw(*fields)
        if what == "passes":
            play.passes(600)
        elif what == "told":
            lives.told(key, [parse(data)])
        elif what == "made":
            lives.observe(key, Observation(made=task_id, made_as=seen_as(data), tool=tool))
        elif what in ("shown", "listed"):
            lives.observe(key, Observation([seen_as(data)], is_listed=what == "listed"))
        elif what == "denied":
            lives.observe(key, Observation(denied=task_id, method="tasks/get"))
        else:
            lives.observe(key, Observation(ended=task_id))
        assert all(age_s(lives, series) >= 0 for series, began in lives.live.items() if began)
    play.passes(10)
    for tool in {tool for _, tool, _ in lives.counts}:
        started = lives.counts["up", tool, STARTED]
        ended = sum(lives.counts["up", tool, status] for status in ENDS)
        assert started == ended + sum(len(b) for series, b in lives.live.items() if series[1] == tool)
    assert not {series[2] for series, began in lives.live.items() if began} & TERMINAL
    assert +ends == Counter({series: n for series, n in lives.counts.items() if n and series[2] != STARTED})
    for spans in lives.durations.values():
        assert spans[-1] >= 0
        assert sum(spans[:-1]) <= sum(ends.values())
        assert (quantile(0.5, [int(n) for n in spans[:-1]], DURATIONS) or 0) >= 0
