"""Random histories of the real gateway, every answer held to the promise of DESIGN 6 (`oracle.py` has the rules).

500 histories here, always the same ones where PYTHONHASHSEED is 0; `make fuzz` plays 20,000, and any number from any
seed. A violation names its rule and shows the smallest history that breaks it, which `test_found.py` then keeps.

That it can fail is proved by 23 faults put into the gateway on purpose (`wilful.py`), each found by one of these
histories or of those in `test_found.py`:

| fault | what it breaks most often |
|---|---|
| the page where new tasks appear is never looked at | late |
| of the live tasks only those that work are asked for | stale |
| what was found to be gone is not remembered as gone | failed |
| a report confirms a task from when it came, not from when it was asked for | backwards |
| a crawl confirms all tasks from when it ended, not from when it began | as of |
| full_crawl_interval is ignored | deleted |
| notifications are not observed | missing |
| a report replaces what is known, though it be older | backwards |
| of two reports of one instant the one that came last is believed | backwards |
| of two reports the one with the later timestamp is believed, though the other was asked for later | backwards |
| an older report replaces a final state | backwards |
| what several queries wait for ends with the first of them that leaves | failed |
| a session has a place before its caller was answered, and keeps it when he is refused | missing |
| the response to a request that was not read, or is unknown, says nothing | missing |
| a response with NaN is not read | missing |
| a task that passed with NaN is shown with null, and not asked for | content |
| a response that is no UTF-8 is not read | missing |
| a task that passed with bytes that are no UTF-8 is shown with U+FFFD, and not asked for | content |
| a response behind a byte order mark is not read | missing |
| a response that is no JSON puts nothing in doubt | backwards |
| a 403 drops the index, whatever was asked for | missing |
| a 403 hides nothing | refused |
| a 429 drops the index | missing |
"""

from typing import ClassVar

import pytest

from gateway.tasks.criteria import CRITERIA
from tests.model import history as h
from tests.model.play import World, play
from tests.model.search import violated

HISTORIES = 500
_AT_ONCE = 50


@pytest.mark.parametrize("first", range(0, HISTORIES, _AT_ONCE))
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
