"""The body of a message between its connection and its reader, in both directions (DESIGN 3.5)."""

import asyncio
import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Final, get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.transport.base_connection import Wire
from gateway.transport.body import Body, BodyState, Dropped
from gateway.transport.memory_budget import Buffers
from tests.states import Watch, changes, table, watched

LEFT: Final = ConnectionError("its sender has left")
FINISH, FAIL, DROP, READER = (
    "`finish`: what ends its framing has come", "`fail`: its sender has left, or errs",
    "`drop`: its exchange is over", "its reader gets",
)  # fmt: skip
TABLE: Final = table(Body.__doc__, "is held.\n\n")
EVENTS: Final[dict[str, Callable[[Body], object]]] = {
    FINISH: Body.finish,
    FAIL: lambda body: body.fail(LEFT),
    DROP: Body.drop,
}
WAYS: Final[dict[str, list[tuple[str, ...]]]] = {
    "ARRIVING": [()],
    "WHOLE": [(FINISH,), (FINISH, FAIL)],
    "FAILED": [(FAIL,), (FAIL, FINISH)],
    "DROPPED": [(DROP,), (FINISH, DROP), (FAIL, DROP)],
}
STEPS: Final = ("feed", "finish", "fail", "drop", "turn")


@pytest.fixture(autouse=True)
def watch() -> Iterator[Watch]:
    with watched(Body, "state") as one:
        yield one
    assert changes(one.steps) <= {(row, cells[event]) for row, cells in TABLE.items() for event in EVENTS}


def made(way: Iterable[str] = (), held: bytes = b"") -> Body:
    """A body to which all this has happened."""
    body = Body(Wire(asyncio.get_running_loop(), Buffers(1 << 20), 0))
    if held:
        body.feed(held)
    for event in way:
        EVENTS[event](body)
    return body


def test_the_table_names_every_state_and_event() -> None:
    assert list(TABLE) == list(WAYS) == list(get_args(BodyState))
    assert list(TABLE["WHOLE"]) == [*EVENTS, READER]


@pytest.mark.parametrize(("state", "event"), [*itertools.product(WAYS, EVENTS)])
async def test_the_table_is_what_happens(state: str, event: str) -> None:
    """Whatever is held, and whether somebody reads."""
    for way, held, waits in itertools.product(WAYS[state], (b"", b"a"), (False, True)):
        body = made(way, held)
        assert body.state == state
        reader = asyncio.ensure_future(body.read())
        if waits:
            await asyncio.sleep(0)
        EVENTS[event](body)
        assert body.state == TABLE[state][event]
        assert body.is_whole is (body.state == "WHOLE")
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)


@pytest.mark.parametrize("state", WAYS)
async def test_a_reader_gets_what_the_table_says_behind_what_is_held(state: str) -> None:
    for way, held in itertools.product(WAYS[state], (b"", b"a")):
        body = made(way, held)
        if held and state != "DROPPED":
            assert await body.read() == held
        for _ in range(2):
            assert await ends(body) == TABLE[state][READER]


async def ends(body: Body) -> str:
    reader = asyncio.ensure_future(body.read())
    for _ in range(3):
        await asyncio.sleep(0)
    if not reader.done():
        reader.cancel()
        return "nothing yet"
    error = reader.exception()
    if error is None:
        assert reader.result() == b""
        return "the end"
    return "the error" if error is LEFT else f"`{type(error).__name__}`"


async def played(steps: list[str]) -> tuple[bytes, bytes, str]:
    """What came of the body, what its reader got of it, and how the reading ended."""
    loop = asyncio.get_running_loop()
    body, got, came, has_ended = Body(Wire(loop, Buffers(1 << 20), 0)), bytearray(), bytearray(), False

    async def read() -> str:
        try:
            while piece := await body.read():
                got.extend(piece)
        except Dropped:
            return "dropped"
        except ConnectionError:
            return "failed"
        return "whole"

    reader = asyncio.create_task(read())
    for number, step in enumerate(steps):
        if step == "turn":  # others are served, the reader among them
            for _ in range(3):
                await asyncio.sleep(0)
        elif step == "drop":
            body.drop()
        elif not has_ended:  # a connection says nothing of a body behind its end
            if step == "feed":
                came += b"%d." % number
                body.feed(b"%d." % number)
            else:
                body.finish() if step == "finish" else body.fail(LEFT)
                has_ended = True
    for _ in range(3):
        await asyncio.sleep(0)
    if not reader.done():
        reader.cancel()
        with suppress(asyncio.CancelledError):
            await reader
        return bytes(came), bytes(got), "waits"
    return bytes(came), bytes(got), reader.result()


def check(steps: list[str]) -> None:
    came, got, how = asyncio.run(played(steps))
    ends = [step for step in steps if step in ("finish", "fail")]
    assert came.startswith(got)
    if how == "whole":
        assert ends[0] == "finish"
        assert got == came
    elif how == "failed":
        assert ends[0] == "fail"
        assert got == came
    if "drop" not in steps:
        assert how == ({"finish": "whole", "fail": "failed"}[ends[0]] if ends else "waits")


@given(st.lists(st.sampled_from(STEPS), max_size=12))
@example(["turn", "feed", "finish", "drop"])
def test_a_reader_gets_every_byte_before_the_end_or_no_end(steps: list[str]) -> None:
    """A reader that was woken once took it for the end that what it was woken for had been dropped."""
    check(steps)
