"""Random histories of the real gateway, every answer held to the promise of DESIGN 6 (`oracle.py` has the rules).

500 histories, always the same ones where PYTHONHASHSEED is 0, the first 100 of them in `test_legal.py`; `make fuzz`
plays 20,000, and any number from any seed. A violation names its rule and shows the smallest history that breaks it,
which `test_found.py` then keeps.
"""

from typing import ClassVar

import pytest

from gateway.query.criteria import CRITERIA
from tests.model import history as h
from tests.model import test_legal
from tests.model.play import World, play
from tests.model.search import violated

HISTORIES = 500
_AT_ONCE = 50


@pytest.mark.parametrize("first", range(test_legal.HISTORIES, HISTORIES, _AT_ONCE))
def test_every_answer_keeps_the_promise(first: int) -> None:
    if violation := violated(range(first, first + _AT_ONCE)):
        pytest.fail(violation, pytrace=False)


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
