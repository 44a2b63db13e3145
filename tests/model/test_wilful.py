"""The model finds the faults that `wilful.py` puts into the gateway: a test that cannot fail proves nothing."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import chain
from typing import Any

import pytest

from tests.model.history import Create, Delete, Fault, History, Query, Setting, Update, Wait, drawn
from tests.model.search import broken
from tests.model.test_found import FOUND
from tests.model.wilful import FAULTS

_HISTORIES_MAX = 1000
_RARE = History(  # shows a report that counts from its arrival, as one of some thousand histories does
    Setting(cursors="offset", per_page=1, always_next=True,
            delays=((1, 5), (70, 70), (0, 140), (0, 16), (70, 1), (16, 0))),
    (Create(elsewhere=True), Create(), Query(), Query(ids=(0, 6, 9)), Fault(kind="expired"), Wait(64), Delete(),
     Wait(32), Wait(64), Wait(65), Delete(), Create(), Query(), Wait(2), Update()),
)  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_found(fault: Callable[[], AbstractContextManager[Any]]) -> None:
    with fault():
        histories = chain((_RARE, *FOUND.values()), map(drawn, range(_HISTORIES_MAX)))
        violations = map(broken, histories)
        found = any(violation is not None and violation.rule == FAULTS[fault] for violation in violations)
    assert found, f"none of {_HISTORIES_MAX} drawn histories breaks the rule {FAULTS[fault]!r}"
