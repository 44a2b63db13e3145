"""The state of an upstream: the table in the head of `upstream/health.py` is what the code does; what else it says."""

import logging
from collections.abc import Callable

import pytest

from gateway.transport.repeated_log_lines import LogLimit
from gateway.upstream import health as states
from gateway.upstream.health import UpstreamHealth
from tests.states import table

EVENTS: dict[str, Callable[[UpstreamHealth], None]] = {
    "answered": lambda s: s.answered(),
    "no answer": lambda s: s.silent("too late"),
    "check passes": lambda s: s.passed(),
    "check fails": lambda s: s.failed("status 503"),
}
WHY = {"no answer": "too late", "check fails": "status 503"}
BEGINS = {"NOT_ASKED": [], "UP": ["answered"], "SILENT": ["no answer"], "UNHEALTHY": ["check fails"]}
NAMES = {"NOT_ASKED": "not asked yet", "UP": "up", "SILENT": "down", "UNHEALTHY": "down"}
STEPS = [(*way, to) for way in table(states.__doc__, "what ends that:\n\n").items() for to in way[1].items()]


@pytest.mark.parametrize(("begins", "event", "leads_to"), [(b, e, to) for b, _, (e, to) in STEPS if to != "-"])
def test_the_table_is_what_happens(begins: str, event: str, leads_to: str, caplog: pytest.LogCaptureFixture) -> None:
    now = 1000.0
    state = UpstreamHealth("up", lambda: now, LogLimit(lambda: now))
    for before in BEGINS[begins]:
        EVENTS[before](state)
    assert state.now == begins
    caplog.set_level(logging.INFO)
    caplog.clear()
    now = 1060.0
    EVENTS[event](state)
    assert (state.now, state.name) == (leads_to, NAMES[leads_to])
    changed = NAMES[begins] != NAMES[leads_to]
    assert state.since == (1060.0 if changed else 1000.0)
    assert state.is_down == state.went_down.is_set() == bool(state.why) == (state.name == "down")
    assert state.why == WHY.get(event, state.why)
    said = [(r.getMessage(), r.__dict__["before"], r.__dict__["seconds"]) for r in caplog.records]
    assert said == ([(f"the upstream is {state.name}", NAMES[begins], 60.0)] if changed else [])


def test_a_state_that_flaps_is_told_once_a_second_with_a_count_and_the_last_line_is_true(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 1000.0
    said = LogLimit(lambda: now)
    state = UpstreamHealth("up", lambda: now, said)
    caplog.set_level(logging.INFO)
    for _ in range(100):
        now += 0.001
        state.answered()
        state.silent("too late")
    now += 1
    said.sweep()
    told = [(record.getMessage(), record.__dict__["count"]) for record in caplog.records]
    assert told == [("the upstream is up", 1), ("the upstream is down", 199)]
