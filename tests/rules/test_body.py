"""The body of a message between its connection and its reader, in both directions (DESIGN 3.5)."""

import asyncio
from contextlib import suppress
from typing import Final

from hypothesis import example, given
from hypothesis import strategies as st

from gateway.config import Limits
from gateway.transport.base_connection import Wire
from gateway.transport.body_stream import Body, Dropped
from gateway.transport.memory_budget import Buffers

STEPS: Final = ("feed", "finish", "fail", "drop", "turn")


async def played(steps: list[str]) -> tuple[bytes, bytes, str]:
    """What came of the body, what its reader got of it, and how the reading ended."""
    body, got, came = Body(Wire(asyncio.get_running_loop(), Buffers(1 << 20), Limits())), bytearray(), bytearray()

    async def read() -> str:
        try:
            while piece := await body.read():
                got.extend(piece)
        except Dropped:
            return "dropped"
        except ConnectionError:
            return "fail"
        return "finish"

    reader = asyncio.create_task(read())
    for number, step in enumerate([*steps, "turn"]):
        if step == "turn":  # others are served, the reader among them
            for _ in range(3):
                await asyncio.sleep(0)
        elif step == "feed":
            if {"finish", "fail"}.isdisjoint(steps[:number]):  # a connection has nothing behind the end of a body
                came += b"%d." % number
                body.feed(b"%d." % number)
        else:
            body.finish() if step == "finish" else body.drop() if step == "drop" else body.fail(ConnectionError())
    if not reader.done():
        reader.cancel()
        with suppress(asyncio.CancelledError):
            await reader
        return bytes(came), bytes(got), "waits"
    return bytes(came), bytes(got), reader.result()


@given(st.lists(st.sampled_from(STEPS), max_size=12))
@example(["turn", "feed", "finish", "drop"])
def test_a_reader_gets_every_byte_before_the_end_or_no_end(steps: list[str]) -> None:
    """A reader that was woken once took it for the end that what it was woken for had been dropped."""
    came, got, how = asyncio.run(played(steps))
    ends = [step for step in steps if step in ("finish", "fail")]
    assert came.startswith(got)
    if how in ("finish", "fail"):
        assert (ends[0], got) == (how, came)
    if "drop" not in steps:
        assert how == (ends[0] if ends else "waits")
