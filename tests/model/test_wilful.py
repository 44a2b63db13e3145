"""The model finds the faults that `wilful.py` puts into the gateway: a test that cannot fail proves nothing."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from tests.model.history import drawn
from tests.model.search import broken
from tests.model.wilful import FAULTS

_HISTORIES_MAX = 1000


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_found(fault: Callable[[], AbstractContextManager[Any]]) -> None:
    with fault():
        violations = (broken(drawn(seed)) for seed in range(_HISTORIES_MAX))
        found = any(violation is not None and violation.rule == FAULTS[fault] for violation in violations)
    assert found, f"none of {_HISTORIES_MAX} histories breaks the rule {FAULTS[fault]!r}"
