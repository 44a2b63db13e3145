"""The model finds the faults that `wilful.py` puts into the gateway. A test that cannot fail proves nothing."""

from itertools import chain

import pytest

from tests.model.history import drawn
from tests.model.search import broken
from tests.model.test_found import FOUND
from tests.model.test_model import HISTORIES
from tests.model.wilful import FAULTS


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault: str) -> None:
    with FAULTS[fault]():  # without it none of these histories breaks a rule: test_found.py, test_model.py
        found = any(map(broken, chain(FOUND.values(), map(drawn, range(HISTORIES)))))
    assert found, f"none of {HISTORIES} drawn histories, and of those that once broke a rule, breaks one"
