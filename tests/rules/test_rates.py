"""Rates of the last minutes (recent_rates.py), against their definition: the history, counted by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.operate.metrics import SECONDS, EndedRequest, Metrics
from gateway.operate.recent_failures import Reason, Recent
from gateway.operate.recent_rates import SLOT_S, Rates
from gateway.operate.status_page import Facts, Page

NAMES = ("a", "b", "")
EVENT = st.tuples(
    st.integers(0, 899), st.sampled_from(NAMES), st.sampled_from(["well", "fault", "client"]), st.sampled_from(SECONDS)
)


@given(st.lists(EVENT, max_size=60).map(sorted), st.integers(0, int(SLOT_S) - 1))
def test_a_window_has_what_ended_in_it(history: list[tuple[int, str, str, float]], after_s: int) -> None:
    now = 0.0
    metrics = Metrics()
    rates = Rates(metrics, lambda: now)
    pending = list(history)
    end = 900 + after_s
    for second in range(end):
        while pending and pending[0][0] == second:
            _, name, what, seconds = pending.pop(0)
            reason = None if what == "well" else Reason(name, what, what == "fault")
            metrics.request(EndedRequest(name, "relayed", "ping", 200, seconds, None, None, True))
            if reason is not None:
                metrics.recent.request(reason, why="")
        now = float(second + 1)
        if now % SLOT_S == 0 and now < end:
            rates.sample()
    every, each, reasons = rates.show()
    last = (math.ceil(end / SLOT_S) - 1) * SLOT_S  # the last sample
    for at, minutes in enumerate((1, 5)):
        start = last - minutes * 60
        if last + SLOT_S == end:  # the slot under way is whole
            assert end - start == minutes * 60 + SLOT_S
        inside = [event for event in history if event[0] >= start]
        assert every["rate"][at] == pytest.approx(len(inside) / (end - start))
        for name in NAMES:
            ours = [event for event in inside if event[1] == name]
            shown = each.get(name, {"rate": [0, 0], "failing": [None, None], "p95": [None, None]})
            assert shown["rate"][at] == pytest.approx(len(ours) / (end - start))
            faults = sum(event[2] == "fault" for event in ours)
            assert shown["failing"][at] == (pytest.approx(faults / len(ours)) if ours else None)
            assert reasons.get(Reason(name, "fault", True), [0, 0])[at] == faults
            if not ours:
                assert shown["p95"][at] is None
                continue
            exact = sorted(event[3] for event in ours)[math.ceil(0.95 * len(ours)) - 1]
            below = SECONDS[SECONDS.index(exact) - 1] if exact != SECONDS[0] else 0.0
            assert below < shown["p95"][at] <= exact, "in the bucket of the true one"


def test_a_curve_has_a_count_for_each_slot_of_five_minutes() -> None:
    metrics = Metrics()
    rates = Rates(metrics, lambda: 0.0)
    for slot in range(100):
        for _ in range(slot):
            metrics.request(EndedRequest("a", "relayed", "ping", 200, 0.1, None, None, True))
        rates.sample()
    _, each, _ = rates.show()
    assert each["a"]["curve"] == {"requests": list(range(40, 100)), "faults": [0] * 60}
    assert len(rates._samples) == 61, "bounded"


def test_a_reason_is_shown_though_the_clock_was_set_back() -> None:
    metrics, clock, reason = Metrics(), iter((1000.0, 900.0)), Reason("a", "UpstreamBroken", True)
    metrics.recent = Recent(lambda: next(clock))
    for _ in range(2):
        metrics.recent.request(reason, why="")
    [row] = Page(metrics, lambda: Facts({}, []))._reasons({reason: [2, 2]})
    assert row["last"] == 900.0
