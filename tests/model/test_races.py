"""Random histories full of races (`history.raced`), held to the same promise as the usual ones of `test_model.py`.

The faults in `wilful.RACES` only show when answers overlap: these histories find them, and the usual ones hardly.
"""

import pytest

from tests.model.play import RaceWorld
from tests.model.search import broken, violated
from tests.model.wilful import RACES

HISTORIES = 200
_AT_ONCE = 50


@pytest.mark.parametrize("first", range(0, HISTORIES, _AT_ONCE))
def test_every_answer_keeps_the_promise_in_a_race(first: int) -> None:
    if violation := violated(range(first, first + _AT_ONCE), RaceWorld):
        pytest.fail(violation, pytrace=False)


@pytest.mark.parametrize("fault", RACES)
def test_a_fault_that_only_a_race_shows_is_found(fault: str) -> None:
    with RACES[fault]():
        assert any(broken(RaceWorld.drawn(seed), RaceWorld) for seed in range(HISTORIES))
