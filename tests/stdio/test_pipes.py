"""A descriptor that is read in a thread is closed whenever reading ends."""

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest

from gateway.stdio.standard_streams import PipeSource
from tests.launch import eventually


class Loop(asyncio.SelectorEventLoop):
    """A loop where something happens in the moment between a piece and the next."""

    between: Callable[[], None]

    def call_soon_threadsafe(self, callback: Any, *given: Any, context: Any = None) -> Any:  # type: ignore[override]
        """Called by the thread that reads."""
        handle = super().call_soon_threadsafe(callback, *given, context=context)
        self.between()
        return handle


@pytest.mark.parametrize("end", ["stop", "close"])
def test_it_is_closed_when_reading_ends_between_two_pieces(end: str) -> None:
    """By `stop`, or with its loop."""
    loop = Loop()
    reads, writes = os.pipe()

    async def source() -> PipeSource:
        return PipeSource(reads)

    def broken() -> bool:
        try:
            os.write(writes, b"x")
        except BrokenPipeError:
            return True
        return False

    loop.between = lambda: None
    made = loop.run_until_complete(source())
    loop.between = made.stop if end == "stop" else lambda: None
    if end == "close":
        loop.close()
    assert not broken()
    asyncio.run(eventually(broken, "the descriptor is closed"))
    loop.close()
