"""The states of a session: the table in `tasks/sessions.py` is what `Sessions` does, in whatever order.

In: sessions on a clock of the test's. Out: nothing. Always: a request uses a session as long as the test holds it.
"""

import random
from collections.abc import Callable, Iterator
from itertools import product
from typing import Final

import pytest

from gateway import config
from gateway.identity import Key
from gateway.mcp import task
from gateway.mcp.observe import Observation
from gateway.tasks.sessions import Life, Servers, Session, Sessions
from tests.rules import plain
from tests.states import NOTHING, Watch, changes, in_cell, steps, table, watched

KEY: Final = Key("research", b"/mcp", b"0f8c", b"who")
OTHERS: Final = [Key("research", b"/mcp", b"0f8c", b"another"), Key("research", b"/mcp", b"1", b"who")]
LIMITS: Final = config.IndexLimits(sessions_max=1, memory_bytes_max=2**16, idle_timeout=10.0)
TOO_MANY: Final = [str(number) for number in range(400)]  # suspects: more than the limit
HISTORIES: Final = 300
DEEDS: Final = 15  # of one history

TABLE: Final = table(Life.__doc__, "each step.\n\n")
STEPS: Final = steps(TABLE, ())


class Place:
    """Sessions with room for one, and what is held of that of `KEY`."""

    def __init__(self) -> None:
        self.now = 100.0
        self.sessions = Sessions(LIMITS, Servers(self._clock), self._clock)
        self.held: list[Session] = []

    def _clock(self) -> float:
        return self.now

    @property
    def state(self) -> str:
        """The state of the session that its caller would find."""
        found = self.sessions.find(KEY)
        return NOTHING if found is None else found.life.name

    def ask(self, key: Key = KEY) -> None:
        """A request comes, and is under way from now on."""
        session = self.sessions.open(key)
        session.queries += 1
        self.held.append(session)

    def answer(self, key: Key = KEY) -> None:
        """A caller is answered, with a task."""
        parsed = task.parse(plain.raw_task("t-1", "working", None, None))
        self.held.append(self.sessions.observe(key, Observation(tasks=[parsed]), self.now) or self.held[-1])

    def admit(self) -> None:
        """The caller is answered, and the session holds what was in the answer."""
        session = self.sessions.find(KEY)
        if session is None:
            self.answer()
        else:
            self.sessions.admit(session)

    def refuse(self, key: Key = KEY) -> None:
        self.sessions.refuse(key, 401, "tasks/list")

    def crowd(self) -> None:
        """Another session takes the only place."""
        self.answer(OTHERS[0])

    def ask_elsewhere(self) -> None:
        """A request comes of another session of the same caller."""
        self.ask(OTHERS[1])

    def idle(self) -> None:
        """Nothing happens for long."""
        self.now += LIMITS.idle_timeout
        self.sessions.expire()

    def outgrow(self) -> None:
        """What a session holds has become more than it may, and it is counted."""
        session = self.sessions.find(KEY)
        if session is not None:
            session.take(Observation(suspect=TOO_MANY), None, self.now)
            self.sessions.keep(session) if session.life is Life.STORED else self.sessions.admit(session)

    def leave(self) -> None:
        """All requests have ended."""
        for session in self.held:
            session.queries = 0
        self.held.clear()

    def reload(self) -> None:
        """The same limits once more."""
        self.sessions.take_over(LIMITS, ())

    def rename(self) -> None:
        """The upstream is another one."""
        self.sessions.take_over(LIMITS, {KEY.upstream})

    def end(self) -> None:
        """The session was ended."""
        self.sessions.drop_all(KEY)


Event = Callable[[Place], None]

EVENTS: Final[dict[str, list[Event]]] = {
    "its caller asks": [Place.ask],
    "is answered": [Place.answer, Place.admit],
    "no room, or idle": [Place.crowd, Place.idle],
    "too large": [Place.outgrow],
    "is refused": [Place.refuse, Place.end],
    "not in use": [Place.leave],
}
WAYS: Final[dict[str, list[list[Event]]]] = {
    NOTHING: [[], [Place.ask, Place.leave], [Place.answer, Place.refuse, Place.leave]],
    "PROVISIONAL": [[Place.ask], [Place.answer, Place.ask, Place.refuse]],
    "STORED": [[Place.answer, Place.ask], [Place.ask, Place.admit], [Place.answer, Place.ask, Place.reload]],
    "PARTING": [[Place.answer, Place.ask, Place.crowd], [Place.ask, Place.admit, Place.idle]],
}


@pytest.fixture(autouse=True)
def watch() -> Iterator[Watch]:
    """Every step of a session stands in the table."""
    with watched(Session, "life") as one:
        yield one
    assert one.steps <= STEPS


def test_the_table_names_every_state_and_event() -> None:
    assert list(TABLE) == list(WAYS) == [NOTHING, *(state.name for state in Life)]
    assert list(TABLE["STORED"]) == list(EVENTS)


@pytest.mark.parametrize(("state", "event"), [(s, e) for s, e in product(WAYS, EVENTS) if TABLE[s][e] != "-"])
async def test_the_table_is_what_happens(state: str, event: str) -> None:
    found = set()
    for way, happens in product(WAYS[state], EVENTS[event]):
        place = Place()
        for before in way:
            before(place)
        assert place.state == state
        happens(place)
        found.add(place.state)
    assert found == in_cell(TABLE[state][event])


async def test_a_parting_session_that_is_too_large_is_left_for_another() -> None:
    place = Place()
    for happens in (Place.answer, Place.ask, Place.outgrow):
        happens(place)
    left = place.held[-1]
    place.ask()
    assert left.life is Life.PARTING
    assert place.held[-1] is not left
    assert place.state == "PROVISIONAL"


async def test_whatever_happens_in_whatever_order_leads_only_where_the_table_says(watch: Watch) -> None:
    happenings = [event for events in EVENTS.values() for event in events] + [Place.reload, Place.rename]
    happenings += [Place.crowd, Place.ask_elsewhere]
    for seed in range(HISTORIES):
        chance, place = random.Random(seed), Place()
        for happens in chance.choices(happenings, k=DEEDS):
            happens(place)
            found = place.sessions.find(KEY)
            stored = place.sessions._sessions.all()
            assert all(session.life is Life.STORED for session in stored)
            assert found is None or (found.life is Life.STORED) == (found in stored)
    assert changes(watch.steps) == changes(STEPS)
