"""Whatever happens in the first 100 histories, what is known of a session is legal (`tests/rules/legal.py`)."""

import inspect
import re
from collections import Counter
from typing import Final
from unittest.mock import patch

import pytest

from gateway.tasks.refreshes import Refresh, RefreshState
from tests.model.history import drawn
from tests.model.play import play
from tests.model.test_found import FOUND
from tests.rules.legal import watched

HISTORIES: Final = 100
_AT_ONCE: Final = 25


@pytest.mark.parametrize("first", range(0, HISTORIES, _AT_ONCE))
def test_what_is_known_is_legal_in_every_history(first: int) -> None:
    for seed in range(first, first + _AT_ONCE):
        with watched() as found:
            play(drawn(seed))
        assert not found, f"seed {seed}"


def test_every_refresh_ends_in_a_state_that_its_table_names_and_each_of_them_is_met() -> None:
    run, ends = Refresh.run, Counter[RefreshState]()

    async def running(refresh: Refresh) -> None:
        try:
            await run(refresh)
        finally:
            ends[refresh.state] += 1

    every_end = set(RefreshState) - {RefreshState.ASKING}
    with patch.object(Refresh, "run", running):
        for history in (*FOUND.values(), *map(drawn, range(HISTORIES))):
            play(history)
            if set(ends) == every_end:
                break
    assert set(ends) == every_end
    docs = inspect.getdoc(RefreshState) or ""  # Python 3.13 takes its indent away
    assert re.findall(r"^([A-Z]+)  ", docs, re.MULTILINE) == [state.name for state in RefreshState]
