"""The state of an upstream: the table in the head of `upstream/health.py` is what the code does; what else it says."""

import logging
from collections.abc import Callable
from itertools import product

import pytest

from gateway.upstream import health as states
from gateway.upstream.health import UpstreamHealth, UpstreamState
from tests.states import table

Event = Callable[[UpstreamHealth], None]

EVENTS: dict[str, Event] = {
    "answered": lambda s: s.answered(),
    "no connection": lambda s: s.unreachable("refused"),
    "no answer": lambda s: s.silent("too late"),
    "a probe connects": lambda s: s.connected(),
    "check passes": lambda s: s.passed(),
    "check fails": lambda s: s.failed("status 503"),
}
WAYS: dict[str, list[str]] = {
    "NOT_ASKED": [],
    "UP": ["answered"],
    "UNREACHABLE": ["no connection"],
    "SILENT": ["no answer"],
    "UNHEALTHY": ["check fails"],
}
NAMES = {"NOT_ASKED": "not asked yet", "UP": "up", "UNREACHABLE": "down", "SILENT": "down", "UNHEALTHY": "down"}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def in_state(begins: str, clock: Clock) -> UpstreamHealth:
    found = UpstreamHealth("up", clock)
    for event in WAYS[begins]:
        EVENTS[event](found)
    assert found.now.name == begins
    return found


TABLE = table(states.__doc__, "what ends that:\n\n")
TRANSITIONS = [(begins, event, leads_to) for begins, cells in TABLE.items() for event, leads_to in cells.items()]


def test_the_table_names_every_state() -> None:
    assert list(TABLE) == list(WAYS) == [begins.name for begins in UpstreamState]
    assert list(TABLE["UP"]) == list(EVENTS)


@pytest.mark.parametrize(("begins", "event", "leads_to"), TRANSITIONS)
def test_the_table_is_what_happens(begins: str, event: str, leads_to: str, caplog: pytest.LogCaptureFixture) -> None:
    if leads_to == "-":
        assert (begins, event) == ("NOT_ASKED", "a probe connects")  # only what is down is probed
        return
    clock = Clock()
    state = in_state(begins, clock)
    caplog.set_level(logging.INFO)
    caplog.clear()
    before, clock.now = state.since, 1060.0
    EVENTS[event](state)
    assert state.now.name == leads_to
    assert state.name == NAMES[leads_to]
    changed = NAMES[begins] != NAMES[leads_to]
    assert state.since == (1060.0 if changed else before)
    assert state.is_down == state.went_down.is_set() == (state.name == "down")
    said = [(r.getMessage(), r.__dict__["before"], r.__dict__["seconds"]) for r in caplog.records]
    assert said == ([(f"the upstream is {state.name}", NAMES[begins], 60.0)] if changed else [])


@pytest.mark.parametrize(("begins", "event"), [*product(WAYS, ("no connection", "no answer", "check fails"))])
def test_why_it_is_down_stands_in_words_until_it_is_up(begins: str, event: str) -> None:
    state = in_state(begins, Clock())
    EVENTS[event](state)
    assert state.why == {"no connection": "refused", "no answer": "too late", "check fails": "status 503"}[event]
    state.passed()
    assert state.why == ""
