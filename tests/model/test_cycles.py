"""No history leaves a reference cycle while the gateway runs, whatever fails in it, over HTTP and over stdio."""

from typing import Any

import pytest

from tests.garbage import kept_garbage, left_in_cycles
from tests.model import history as h
from tests.model.over_stdio import StdioWorld
from tests.model.play import World, play
from tests.model.truth import Violation

HISTORIES = 40


def checked(world: type[World]) -> type[World]:
    class Checked(world):  # type: ignore[misc, valid-type]
        async def stop(self) -> None:
            if left := left_in_cycles():
                raise Violation("cycle", f"{left}")
            await super().stop()

    return Checked


@pytest.mark.parametrize(
    ("world", "seldom"), [(World, h.Reload), (StdioWorld, h.Restart)], ids=["over HTTP", "over stdio"]
)
def test_no_history_leaves_a_cycle(world: type[World], seldom: Any) -> None:
    for seed in range(HISTORIES):
        history = world.drawn(seed)
        if not any(isinstance(event, seldom) for event in history.events):
            with kept_garbage():
                play(history, checked(world))
