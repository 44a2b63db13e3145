"""The table and generated transcripts, directly and through the gateway (compare.py); STDIO_EXAMPLES, or 400."""

import asyncio
import os
from typing import Final

import pytest

from tests.edits import faults
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

    asyncio.run(play())


# ---- faults ----

FAULTS: Final = faults({
    "CRLF becomes LF": (
        r"return Line\(raw, ended, sight\)", r'return Line(raw.replace(b"\\r\\n", b"\\n"), ended, sight)'
    ),
    "a message of the gateway's own goes out wherever in a line the others are": (
        r"(?<=if )not self\.is_inside(?=:\n\s+self\.write\(line\))", "True"
    ),
    "what is no JSON is dropped": (
        r"(?=\bto\.pass_on\(line\))", "(line.sight is not None or jsonrpc.parse(line.raw) is not None) and "
    ),
    "a line without its end is lost": (r'(?<=return )self\._take\(b"", ended=False\)(?= if)', "None"),
    "what answers a request of the gateway's passes as well": (
        r"(?<=answer\(message_id, message\)\n)(\s+return) True", r"\1 False"
    ),
    "1 and its text are one id": (r"(?<=data = )bytes\(raw\)(?=\n\s+found = text\(data\))", r"bytes(raw).strip(b'\"')"),
    "large lines are cut": (r"return sight\.stays", "return sight.stays or not line.ended"),
    "messages are written anew": (
        r"(?<=\bto\.pass_on\()line(?=\))",
        r'line if line.sight is not None or jsonrpc.parse(line.raw) is None else Line(line.raw.rstrip() + b"\\n")',
    ),
})  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_on_purpose_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.stdio.harness.WAIT_S", 0.5)

    async def is_found() -> bool:
        for steps in (*TABLE.values(), *map(generated, range(_FOUND_WITHIN))):
            if await differences(steps):
                return True
        return False

    with FAULTS[fault]():
        assert asyncio.run(is_found())
