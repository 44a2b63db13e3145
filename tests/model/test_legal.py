"""Whatever happens in the first 100 histories, what is known of a session is legal (`tests/rules/legal.py`)."""

from typing import Final

import pytest

from tests.model.history import drawn
from tests.model.play import play
from tests.rules.legal import watched

HISTORIES: Final = 100
_AT_ONCE: Final = 25


@pytest.mark.parametrize("first", range(0, HISTORIES, _AT_ONCE))
def test_what_is_known_is_legal_in_every_history(first: int) -> None:
    for seed in range(first, first + _AT_ONCE):
        with watched() as found:
            play(drawn(seed))
        assert not found, f"seed {seed}"
