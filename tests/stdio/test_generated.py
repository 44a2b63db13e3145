"""The table and generated transcripts, directly and through the gateway (compare.py); STDIO_EXAMPLES, or 400."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final
from unittest.mock import patch

import pytest

from gateway.mcp import jsonrpc
from gateway.stdio.lines import Line, LineParser
from gateway.stdio.messages import LargeLine, Outlet
from gateway.stdio.proxy import StdioProxy
from tests.stdio.compare import TABLE, differences, generated

EXAMPLES: Final = int(os.environ.get("STDIO_EXAMPLES", "400"))
_AT_ONCE: Final = 100
_FOUND_WITHIN: Final = 100


@pytest.mark.parametrize("name", TABLE)
async def test_nothing_differs_in_the_table(name: str) -> None:
    assert not await differences(TABLE[name])


@pytest.mark.parametrize("first", range(0, EXAMPLES, _AT_ONCE))
def test_nothing_differs_in_generated_transcripts(first: int) -> None:
    async def play() -> None:
        for seed in range(first, first + _AT_ONCE):
            assert not await differences(generated(seed)), f"seed {seed}"

    asyncio.run(play())  # without the debug mode of other tests, which costs twice as much


# ---- faults ----


def ends_lines_its_own_way() -> AbstractContextManager[Any]:
    """CRLF becomes LF."""
    take = LineParser._take

    def taken(parser: LineParser, data: bytes, ended: bool) -> Line:
        line = take(parser, data, ended)
        return Line(line.raw.replace(b"\r\n", b"\n"), line.whole, line.ended)

    return patch.object(LineParser, "_take", taken)


def interrupts_lines() -> AbstractContextManager[Any]:
    """A message of the gateway's own goes out at once, wherever in a line the others are."""

    def insist(outlet: Outlet, message: bytes) -> None:
        outlet.sink.write(message + b"\n")

    return patch.object(Outlet, "insist", insist)


def drops_what_is_no_json() -> AbstractContextManager[Any]:
    """Only messages pass."""
    pass_on = Outlet.pass_on

    def passed(outlet: Outlet, line: Line) -> None:
        if not line.whole or jsonrpc.parse(line.raw) is not None:
            pass_on(outlet, line)

    return patch.object(Outlet, "pass_on", passed)


def loses_the_last_line() -> AbstractContextManager[Any]:
    """A line without its end is none."""
    return patch.object(LineParser, "rest", lambda _: None)


def shows_its_own_responses() -> AbstractContextManager[Any]:
    """What answers a request of the gateway's passes as well."""
    stays = StdioProxy._stays

    def shown(proxy: StdioProxy, line: Line) -> bool:
        stays(proxy, line)
        return False

    return patch.object(StdioProxy, "_stays", shown)


def takes_text_and_numbers_for_the_same() -> AbstractContextManager[Any]:
    """`1` and `"1"` are one id: so the response to `initialize` is looked for in the wrong place."""
    return patch.object(jsonrpc, "id_of", lambda raw: bytes(raw).strip(b'"'))


def cuts_large_lines() -> AbstractContextManager[Any]:
    def feed(large: LargeLine, line: Line) -> list[Line]:
        return [line] if line.ended else []

    return patch.object(LargeLine, "feed", feed)


@contextmanager
def writes_anew() -> Iterator[None]:
    pass_on = Outlet.pass_on

    def passed(outlet: Outlet, line: Line) -> None:
        if line.whole and jsonrpc.parse(line.raw) is not None:
            line = Line(line.raw.rstrip() + b"\n", line.whole, line.ended)
        pass_on(outlet, line)

    with patch.object(Outlet, "pass_on", passed):
        yield


FAULTS: Final = (
    *(ends_lines_its_own_way, interrupts_lines, drops_what_is_no_json, loses_the_last_line, shows_its_own_responses),
    *(takes_text_and_numbers_for_the_same, cuts_large_lines, writes_anew),
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_on_purpose_is_found(fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.stdio.harness.WAIT_S", 0.5)

    async def is_found() -> bool:
        for steps in (*TABLE.values(), *map(generated, range(_FOUND_WITHIN))):
            if await differences(steps):
                return True
        return False

    with fault():
        assert asyncio.run(is_found())
