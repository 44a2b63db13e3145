"""The same histories over stdio, held to the same oracle (`over_stdio.py`). A fault on purpose is found here too."""

import pytest

from tests.model.over_stdio import StdioWorld
from tests.model.search import broken, violated
from tests.model.wilful import FAULTS

HISTORIES = 200
_AT_ONCE = 100


@pytest.mark.parametrize("first", range(0, HISTORIES, _AT_ONCE))
def test_every_answer_keeps_the_promise_over_stdio(first: int) -> None:
    if violation := violated(range(first, first + _AT_ONCE), StdioWorld):
        pytest.fail(violation, pytrace=False)


@pytest.mark.parametrize(
    "fault",
    ["full_crawl_interval is ignored", "notifications mark nothing"],
)
def test_a_fault_on_purpose_is_found_over_stdio(fault: str) -> None:
    with FAULTS[fault]():
        assert any(broken(StdioWorld.drawn(seed), StdioWorld) for seed in range(HISTORIES))
