"""Random histories of the real gateway, every answer held to the promise of DESIGN 6 (`oracle.py` has the rules).

100 of them over HTTP, 50 full of races (`history.raced`), 50 over stdio, or MODEL_TIMES as many: always the same ones
where PYTHONHASHSEED is 0. `make fuzz` plays 20,000, and any number from any seed. A violation names its rule and shows
the smallest history that breaks it, which `test_found.py` then keeps. The faults of `wilful.py` are found: a test that
cannot fail proves nothing.
"""

import os
from collections.abc import Iterator
from itertools import chain
from typing import Any, ClassVar, Final

import pytest

from gateway.query.criteria import CRITERIA
from tests.garbage import kept_garbage, left_in_cycles
from tests.model import history as h
from tests.model.over_stdio import StdioWorld
from tests.model.play import RaceWorld, World, play
from tests.model.search import broken, violated
from tests.model.test_found import FOUND, OVER_STDIO
from tests.model.truth import Violation
from tests.model.wilful import FAULTS, FINDERS, RACES, STDIO
from tests.rules.legal import watched

TIMES: Final = int(os.environ.get("MODEL_TIMES", "1"))
WORLDS: Final[dict[str, tuple[type[World], int]]] = {
    "over HTTP": (World, 100 * TIMES),
    "in races": (RaceWorld, 50 * TIMES),
    "over stdio": (StdioWorld, 50 * TIMES),
}
_AT_ONCE: Final = 25
_CYCLES: Final = 12
PARTS: Final = [(how, first) for how, (_, count) in WORLDS.items() for first in range(0, count, _AT_ONCE)]


@pytest.mark.parametrize(("how", "first"), PARTS)
def test_every_answer_keeps_the_promise(how: str, first: int) -> None:
    """And what is known of a session is legal, whatever happens."""
    with watched() as found:
        violation = violated(range(first, first + _AT_ONCE), WORLDS[how][0])
    if violation:
        pytest.fail(violation, pytrace=False)
    assert not found


# ---- faults on purpose ----


def histories(how: str, what: str) -> Iterator[h.History]:
    """Of a world, that which found the fault before first. Without the fault none of them breaks a rule."""
    world, count = WORLDS[how]
    by = FINDERS.get(what, next(iter(FOUND)))
    first = (FOUND | OVER_STDIO)[by] if isinstance(by, str) else world.drawn(by)
    return chain([first], FOUND.values() if world is World else (), map(world.drawn, range(count)))


@pytest.mark.parametrize(
    ("how", "what"),
    [
        *(("over HTTP", what) for what in FAULTS),
        *(("in races", what) for what in RACES),
        ("over stdio", "full_crawl_interval is ignored"),
        ("over stdio", "notifications mark nothing"),
        *(("over stdio", what) for what in STDIO),
    ],
)
def test_a_fault_on_purpose_is_found(how: str, what: str) -> None:
    with (FAULTS | RACES | STDIO)[what]():
        found = any(broken(history, WORLDS[how][0]) for history in histories(how, what))
    assert found, "no history finds it any more: give it another seed, or a history, in FINDERS (wilful.py)"


# ---- no history leaves a reference cycle while the gateway runs, whatever fails in it ----


def checked(world: type[World]) -> type[World]:
    class Checked(world):  # type: ignore[misc, valid-type]
        async def stop(self) -> None:
            if left := left_in_cycles():
                raise Violation("cycle", f"{left}")
            await super().stop()

    return Checked


@pytest.mark.parametrize(("how", "seldom"), [("over HTTP", h.Reload), ("over stdio", h.Restart)])
def test_no_history_leaves_a_cycle(how: str, seldom: Any) -> None:
    world, _ = WORLDS[how]
    for history in map(world.drawn, range(_CYCLES)):
        if not any(isinstance(event, seldom) for event in history.events):
            with kept_garbage():
                play(history, checked(world))


# ---- what the model asks for ----


class _Noting(World):
    """Notes the names of the criteria that its clients ask for."""

    asked: ClassVar[set[str]] = set()

    def _note(self, text: str, *values: object) -> None:
        super()._note(text, *values)
        for value in values if "asked for" in text else ():
            self.asked.update(value if isinstance(value, dict) else ())


def test_the_model_has_every_criterion() -> None:
    every = h.Query(status=(0,), ids=(0,), methods=(0,), created=(0, 0), updated=(0, 0), by="createdAt")
    play(h.History(h.Setting(tasks="w"), (every,)), _Noting)
    assert CRITERIA.keys() == _Noting.asked
