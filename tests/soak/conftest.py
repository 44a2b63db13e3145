"""Waits of the soak and the storm are long: many exchanges go on at once, and a machine may be busy."""

import pytest


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.peer.WAIT_S", 30.0)
