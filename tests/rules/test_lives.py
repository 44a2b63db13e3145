"""The lives of tasks: what begins one, what ends one, and what a server's or a client's lies make of the counts."""

import json
from collections import Counter
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.caller_identity import Key
from gateway.mcp import jsonrpc
from gateway.mcp.observations import Observation
from gateway.mcp.task import TERMINAL, Moment, parse
from gateway.operate.metrics import Metrics
from gateway.operate.request_rates import quantile
from gateway.operate.task_metrics import SeenTasks
from gateway.tasks import lifecycles
from gateway.tasks.lifecycles import DURATIONS, ENDS, STARTED, TOOLS_MAX, Lives
from gateway.tasks.observer import begin

NOW_S: Final = 1_780_000_000.0  # 2026-05-28T20:26:40Z
CREATED: Final = "2026-05-28T20:00:00Z"  # 1,600 s before
ANN: Final = Key("up", b"/mcp", b"session", b"ann")
BOB: Final = Key("up", b"/mcp", b"another", b"bob")


class Play:
    """Lives on a clock of the test's, and what is told to them."""

    def __init__(self) -> None:
        self.now_s = NOW_S
        self.set_s = 0.0  # how far the time of day was set
        self.lives = Lives(lambda: self.now_s, lambda: self.now_s + self.set_s)
        self.lives.keep(["up", "other", "stays"])
        self.ends: list[tuple[str, str]] = []

    def made(self, task_id: str = "t", tool: str = "render", key: Key = ANN, **more: Any) -> None:
        said = Observation(made=task_id, made_raw=raw(task_id, **more), tool=tool)
        self.lives.take_in(key, said)

    def shown(self, status: str, task_id: str = "t", key: Key = ANN, to_all: bool = False, **more: Any) -> None:
        self.lives.take_in(key, Observation([(task_id, raw(task_id, status, **more))], is_told_to_all=to_all))

    def denied(self, task_id: str = "t", key: Key = ANN, asked_s: float | None = None) -> None:
        asked = Moment(0, self.now_s if asked_s is None else asked_s)
        self.lives.take_in(key, Observation(denied=task_id, method="tasks/get"), asked)

    def passes(self, seconds: float) -> None:
        """Time passes, and nothing is seen; the gateway sweeps once a second."""
        self.now_s += seconds
        self.lives.sweep()

    def is_so(self, *said: str) -> bool:
        """Whether the counts say this and no more: `render started 2`, `render working 1`, `render lost 1`."""
        told = [f"{tool} {status} {n}" for (_, tool, status), n in self.lives.counts.items() if n]
        told += [f"{tool} {status} {len(began)}" for (_, tool, status), began in self.lives.live.items() if began]
        assert sorted(told) == sorted(said)
        return True


@pytest.fixture
def play() -> Play:
    return Play()


def raw(
    task_id: str, status: str = "working", created: Any = CREATED, updated: Any = CREATED, ttl: Any = None
) -> bytes:
    given = {"taskId": task_id, "status": status, "createdAt": created, "lastUpdatedAt": updated, "ttl": ttl}
    return json.dumps({name: value for name, value in given.items() if value != "(none)"}).encode()


# ---- one life ----


def test_one_upstream_has_one_task_of_an_id(play: Play) -> None:
    """Some clients put a secret of their own into the target: `?key=1`, `?key=2`."""
    play.made()
    play.shown("working", key=ANN._replace(target=b"/mcp?key=2"))
    play.made(key=ANN._replace(upstream="other"))
    assert play.is_so(*["render started 1", "render working 1"] * 2)


def test_the_news_of_an_end_may_come_before_the_result_that_made_the_task(play: Play) -> None:
    """The TypeScript SDK notifies at once of a task that ends within its own call."""
    play.shown("failed", updated="2026-05-28T20:00:20Z")
    assert play.is_so()
    play.made()
    assert play.is_so("render started 1", "render failed 1")
    assert play.lives.durations["up", "render", "failed"][-1] == 20


def test_what_is_told_before_the_result_that_made_the_task_has_its_tool_too(play: Play) -> None:
    """A server may notify of each step within the call."""
    play.shown("working", to_all=True)
    play.shown("completed", updated="2026-05-28T20:00:20Z", to_all=True)
    play.shown("working")
    assert play.is_so()
    play.made()
    assert play.is_so("render started 1", "render completed 1")
    assert play.lives.durations["up", "render", "completed"][-1] == 20
    play.shown("working", "b")
    play.shown("failed", "b")
    play.passes(6)
    play.made("b")
    assert play.is_so("render started 1", "render completed 1", " started 1", " failed 1")


def test_a_list_may_show_a_task_before_the_result_that_made_it(play: Play) -> None:
    play.shown("working", "a")
    play.shown("working", "b")
    play.passes(4)
    play.made("a")
    play.passes(2)
    assert play.is_so("render started 1", " started 1", "render working 1", " working 1")
    play.made("b")  # too late: it was counted
    assert play.is_so("render started 1", " started 1", "render working 1", " working 1")


def test_what_had_ended_when_it_was_first_seen_is_not_counted(play: Play) -> None:
    play.lives.take_in(ANN, Observation([("t", raw("t", "completed"))], is_listed=True))
    play.lives.told(ANN, [parse(raw("t", "failed"))])
    play.passes(60)
    assert play.is_so()


# ---- an id that is given again ----


def test_the_result_that_made_the_life_before_may_come_late(play: Play) -> None:
    """It ended the life that was live, and its ttl held for what was shown of that."""
    play.shown("cancelled", ttl=1000)
    play.made(created="2026-05-28T20:10:00Z")
    play.made(tool="train", ttl=1000)
    play.passes(60)
    assert play.is_so("render started 1", "render working 1")


def test_the_result_that_made_the_life_before_begins_nothing_once_the_next_has_ended(play: Play) -> None:
    """What was shown of the next one was counted as its end too."""
    following = "2026-05-28T20:10:00Z"
    play.made(created=following)
    play.shown("completed", created=following)
    play.made()
    play.shown("completed", created=following)
    assert play.is_so("render started 1", "render completed 1")


def test_an_end_that_lies_before_the_task_began_is_over_all_the_same(play: Play) -> None:
    """What was notified late of the task that had ended began another."""
    following = "2026-05-28T20:10:00Z"
    play.made()
    play.shown("completed", created=following, updated="2026-05-28T19:00:00Z")
    play.shown("working", created=following)
    play.passes(60)
    assert play.is_so("render started 1", "render completed 1")


def test_what_was_asked_before_a_life_was_first_seen_does_not_end_it(play: Play) -> None:
    """Its id was given again; what told late that the life before was gone, or had ended, was taken for its own end."""
    play.made()
    play.denied()
    play.passes(1)
    play.made(created="2026-05-28T20:10:00Z")
    play.denied(asked_s=NOW_S)
    play.lives.take_in(ANN, Observation(ended="t"), Moment(0, NOW_S))
    play.lives.gone(ANN, "t", Moment(0, NOW_S))
    fetches = b'{"jsonrpc":"2.0","id":1,"method":"tasks/result","params":{"taskId":"t"}}'
    request = jsonrpc.parse(fetches)
    assert request is not None
    play.lives.name(ANN, begin(request, Moment(0, NOW_S)), b'{"jsonrpc":"2.0","id":1,"result":{}}', None)
    assert play.is_so("render started 2", "render lost 1", "render working 1")
    play.denied()
    assert play.is_so("render started 2", "render lost 2")


def test_a_result_may_be_asked_for_before_a_task_is_first_seen(play: Play) -> None:
    """Another replica has made it, or this one before it was started again."""
    play.shown("working")
    play.shown("working", "later", created="2026-05-28T20:26:36Z")
    play.passes(6)
    for task_id in ("t", "later"):
        play.lives.take_in(ANN, Observation(ended=task_id), Moment(0, NOW_S - 5))
    assert play.is_so(" started 2", " completed 1", " working 1")


def test_a_task_may_be_made_soon_after_another_of_its_id_was_first_seen(play: Play) -> None:
    """They were taken for one, and the end of the first was never counted."""
    play.shown("working")
    play.made(created="2026-05-28T20:10:00Z")
    play.shown("completed")
    play.passes(6)
    assert play.is_so(" started 1", " lost 1", "render started 1", "render working 1")


def test_an_id_may_be_given_again_before_the_news_of_an_end_has_come(play: Play) -> None:
    """Whatever was created before the gateway knew of an end was taken for late news of what had ended."""
    play.shown("completed", updated="2026-05-28T20:00:20Z")
    play.shown("working", created="2026-05-28T20:00:20Z")
    play.passes(6)
    assert play.is_so()
    play.shown("working", created="2026-05-28T20:00:21Z")
    play.passes(6)
    assert play.is_so(" started 1", " working 1")


def test_a_server_may_give_the_time_of_each_answer(play: Play) -> None:
    """As the Rust SDK does: it is one task all the same (DESIGN 2.15)."""
    play.made()
    for second in range(20):
        at = f"2026-05-28T20:00:{second:02}Z"
        play.shown("working", created=at, updated=at)
    play.shown("completed", created="2026-05-28T20:00:30Z", updated="2026-05-28T20:00:30Z")
    play.shown("completed", created="2026-05-28T20:00:40Z", updated="2026-05-28T20:00:40Z")
    assert play.is_so("render started 1", "render completed 1")
    assert play.lives.durations["up", "render", "completed"][-1] == 30


def test_such_a_server_may_list_a_task_before_the_result_that_made_it(play: Play) -> None:
    play.shown("working", created="2026-05-28T20:00:01Z")
    play.made()
    play.made()
    assert play.is_so("render started 1", "render working 1")


def test_a_late_answer_of_such_a_server_begins_nothing(play: Play) -> None:
    """It showed a task that works, of no tool, for a day."""
    play.made(created="2026-05-28T20:26:30Z")
    play.shown("completed", created="2026-05-28T20:26:39Z", updated="2026-05-28T20:26:39Z")
    play.shown("working", created="2026-05-28T20:26:38Z")
    play.shown("completed", created="2026-05-28T20:26:40Z")
    play.made(created="2026-05-28T20:26:30Z")
    assert play.is_so("render started 1", "render completed 1")


# ---- lost ----


@pytest.mark.parametrize("ttl, lasts_s", [(60_000, 60), (None, 86_400), (10**12, 86_400), (0, 86_400), (-5, 86_400)])
@pytest.mark.parametrize("status", ["working", "input_required"])
def test_a_task_is_lost_when_it_was_not_seen_for_its_ttl_or_a_day(
    play: Play, ttl: object, lasts_s: float, status: str
) -> None:
    play.made(ttl=ttl)
    play.passes(lasts_s - 1)
    play.shown(status, ttl=ttl)
    play.passes(lasts_s - 1)
    assert play.is_so("render started 1", f"render {status} 1")
    play.passes(1)
    assert play.is_so("render started 1", "render lost 1")
    play.shown("completed")
    assert play.is_so("render started 1", "render lost 1")


def test_only_who_saw_a_task_last_finds_it_gone(play: Play) -> None:
    """A stranger is told the same of every task. One that has ended cannot be cancelled either."""
    play.made()
    play.denied(key=BOB)
    play.lives.take_in(ANN, Observation(denied="t", method="tasks/cancel"))
    assert play.is_so("render started 1", "render working 1")
    play.denied()
    assert play.is_so("render started 1", "render lost 1")
    assert play.lives.lookups_failed["up"] == 2


def test_who_was_only_notified_of_a_task_does_not_find_it_gone(play: Play) -> None:
    """mcp-go notifies every session of every task (DESIGN 2.14)."""
    for task_id in "ab":
        if task_id == "a":
            play.made(task_id)
        play.lives.take_in(BOB, Observation([(task_id, raw(task_id, "input_required"))], is_told_to_all=True))
        play.lives.take_in(BOB, Observation(denied=task_id, method="tasks/get"))
    play.passes(10)
    assert play.is_so("render started 1", " started 1", "render input_required 1", " input_required 1")


def test_whoever_sets_the_clock_loses_no_task(play: Play) -> None:
    play.made(ttl=60_000)
    play.set_s = 86_400
    play.passes(10)
    assert play.is_so("render started 1", "render working 1")


def test_a_status_that_mcp_does_not_know_is_live_and_ends_as_other(play: Play) -> None:
    play.made()
    play.shown("paused")
    play.shown("stopped")
    assert play.is_so("render started 1", "render other 1")
    play.passes(90_000)
    assert play.is_so("render started 1", "render other 1")
    assert play.lives.counts["up", "render", "other"] == 1


# ---- clocks ----

GARBAGE: Final = ["(none)", None, 7, "", "soon", "0001-01-01T00:00:00Z", "2019-12-31T00:00:00Z", "2031-01-01T00:00:00Z"]


@pytest.mark.parametrize("created", GARBAGE)
def test_a_time_of_creation_that_cannot_be_right_is_when_the_task_was_first_seen(play: Play, created: object) -> None:
    play.made(created=created)
    assert play.lives.age_s(("up", "render", "working")) == 0
    play.now_s += 7
    assert play.lives.age_s(("up", "render", "working")) == 7
    play.set_s = -3600  # a clock may be set back
    assert play.lives.age_s(("up", "render", "working")) == 0


@pytest.mark.parametrize("updated", [*GARBAGE, "2026-05-28T19:59:59Z", "9999-12-31T23:59:59Z"])
def test_a_duration_that_cannot_be_right_is_left_out(play: Play, updated: object) -> None:
    """Without a time of the end it was one of 0 s."""
    play.made()
    play.shown("completed", updated=updated)
    assert play.is_so("render started 1", "render completed 1")
    assert not play.lives.durations


def test_an_age_is_that_of_the_oldest(play: Play) -> None:
    for number in range(5):
        play.made(f"{number}", created=f"2026-05-28T20:0{number}:00Z")
    play.shown("completed", "0")
    assert play.lives.age_s(("up", "render", "working")) == 1540


# ---- bounds ----


def test_the_first_tools_of_an_upstream_have_names(play: Play) -> None:
    for number in range(100):
        play.made(f"{number}", tool=f"tool {number % 50}")
        play.made(f"{number}", tool=f"tool {number}", key=ANN._replace(upstream="other"))
        play.made(f"other {number}", tool="other")
    named = {tool for upstream, tool, _ in play.lives.counts if upstream == "up"}
    assert len(named) == TOOLS_MAX
    assert "other" in named
    assert sum(n for series, n in play.lives.counts.items() if series[::2] == ("up", STARTED)) == 200


def test_more_live_tasks_than_are_known_one_by_one_are_counted(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycles, "LIVE_MAX", 1000)
    monkeypatch.setattr(lifecycles, "ENDED_MAX", 500)
    for number in range(1005):
        play.made(str(number))
    play.shown("working", "unmade")
    assert play.is_so("render started 1005", "render working 1000")
    for number in range(1005):
        play.shown("completed", str(number))
    assert play.is_so("render started 1005", "render completed 1000")
    for number in range(10):
        play.made(f"again {number}")
    for _ in range(60):
        play.passes(1)
    assert len(play.lives._past) + len(play.lives._lives) + len(play.lives._unnamed) <= 510


def test_all_live_tasks_are_looked_at_within_a_minute(play: Play) -> None:
    for number in range(20_000):
        play.made(str(number), ttl=1000)
    for _ in range(62):
        play.passes(1)
    assert play.is_so("render started 20000", "render lost 20000")


def test_a_sweep_is_short_after_a_large_list(play: Play) -> None:
    """100,000 at once held up the event loop for 0.1 s."""
    for number in range(10_000):
        play.shown("working", str(number))
    play.passes(6)
    started = play.lives.counts["up", "", STARTED]
    assert 0 < started < 5000
    for _ in range(10):
        play.passes(1)
    assert play.is_so(" started 10000", " working 10000")


def test_the_tasks_of_a_server_that_is_replaced_are_lost_unless_the_other_has_them_too(play: Play) -> None:
    """For a day they worked at another. It may be the same at another address."""
    for task_id in "abc":
        play.made(task_id)
    play.made("a", key=ANN._replace(upstream="stays"))
    play.lives.keep(["up", "stays"], changed=["up"])
    play.shown("working", "b")
    play.passes(1)
    assert play.is_so(
        *["render started 3", "render lost 2", "render working 1", "render started 1", "render working 1"]
    )


def test_what_comes_late_from_an_upstream_that_has_gone_makes_no_series(play: Play) -> None:
    gone = ANN._replace(upstream="gone")
    play.made(key=gone)
    play.denied(key=gone)
    play.lives.told(gone, [parse(raw("t"))])
    play.passes(10)
    assert play.is_so()
    assert "gone" not in play.lives.lookups_failed


def test_an_upstream_that_goes_takes_its_series_along(play: Play) -> None:
    play.made("a")
    play.made("b")
    play.shown("completed", "b", updated="2026-05-28T20:00:01Z")
    play.denied("x")
    play.made("c", key=ANN._replace(upstream="stays"))
    play.lives.keep(["stays"])
    assert play.is_so("render started 1", "render working 1")
    assert not play.lives.durations
    assert play.lives.lookups_failed == {"stays": 0}
    play.passes(100_000)
    assert play.is_so("render started 1", "render lost 1")


def test_what_a_reload_has_taken_away_did_not_happen_backwards() -> None:
    """The page showed `-3 created` for five minutes."""
    metrics = Metrics()
    seen = SeenTasks(metrics)

    def happens(count: int) -> None:
        for number in range(count):
            for upstream in ("up", "stays"):
                said = Observation(made=f"{number}", made_raw=raw(f"{number}"), tool="render")
                metrics.lives.take_in(ANN._replace(upstream=upstream), said)  # type: ignore[union-attr]

    def created(upstream: str) -> list[int]:
        [row] = (seen.show() or {})[upstream]
        return [row["started"][span] for span in ("1m", "5m", "all")]

    metrics.serves(["up", "stays"], counts_tasks=True)
    happens(3)
    for _ in range(100):
        seen.sample()
    metrics.serves(["stays"], counts_tasks=True)
    metrics.serves(["up", "stays"], counts_tasks=True)
    happens(2)
    assert created("up") == [2, 2, 2]
    seen.sample()
    happens(5)
    assert created("up") == [5, 5, 5]
    assert created("stays") == [2, 2, 5]
    for _ in range(100):
        seen.sample()
    metrics.serves(["up", "stays"], counts_tasks=False)
    seen.sample()
    metrics.serves(["up", "stays"], counts_tasks=True)
    happens(9)
    assert created("up") == [9, 9, 9]


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
            lives.take_in(key, Observation(made=task_id, made_raw=data, tool=tool))
        elif what in ("shown", "listed"):
            lives.take_in(key, Observation([(task_id, data)], is_listed=what == "listed"))
        elif what == "denied":
            lives.take_in(key, Observation(denied=task_id, method="tasks/get"))
        else:
            lives.take_in(key, Observation(ended=task_id))
        assert all(lives.age_s(series) >= 0 for series, began in lives.live.items() if began)
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
