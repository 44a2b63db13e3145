"""Random histories full of races (`history.raced`), held to the same promise as the usual ones of `test_model.py`.

200 histories; `make fuzz ARGS=--races` plays any number from any seed.
"""

import pytest

from tests.model.play import RaceWorld
from tests.model.search import violated

HISTORIES = 200
_AT_ONCE = 50


@pytest.mark.parametrize("first", range(0, HISTORIES, _AT_ONCE))
def test_every_answer_keeps_the_promise_in_a_race(first: int) -> None:
    if violation := violated(range(first, first + _AT_ONCE), RaceWorld):
        pytest.fail(violation, pytrace=False)
