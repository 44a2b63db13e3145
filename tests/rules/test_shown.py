"""What errors show of a peer's words: printable, short, and both ends of it; and tasks on a terminal."""

import json
import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cli.task_table import table
from gateway.errors import TEXT_CHARS_MAX, GatewayError, printable, shown

# Any text but one that the escapes could be taken for; halves of surrogate pairs too.
_texts = st.text(st.characters(exclude_characters='\\"'), max_size=50)


@given(_texts)
def test_it_is_printable_and_json_reads_it_back(text: str) -> None:
    assert printable(text).isprintable()
    assert json.loads(f'"{printable(text)}"') == json.loads(json.dumps(text))


@given(_texts.filter(bool), st.integers(1, 200), st.integers(2, 300))
def test_it_is_short_and_has_both_ends(unit: str, times: int, chars_max: int) -> None:
    text, told = unit * times, shown(unit * times, chars_max)
    assert told.isprintable() and len(told) <= chars_max + len("...")
    whole = printable(text)
    assert told == whole if len(whole) <= chars_max else told[: chars_max // 2] == whole[: chars_max // 2]
    assert told[-(chars_max // 2) :] == whole[-(chars_max // 2) :]


def test_an_error_is_short_whoever_makes_it() -> None:
    assert len(str(GatewayError("\x85" * 60_000))) == TEXT_CHARS_MAX + len("...")


# ---- tasks on a terminal ----


def _shown(*ids: str, columns: int | None = 80, message: str = "", created: str = "") -> list[str]:
    tasks = [{"taskId": i, "status": "working", "statusMessage": message, "createdAt": created} for i in ids]
    return [*table(tasks, columns)][1:]


def test_ids_are_short_from_where_they_differ_and_whole_in_a_pipe() -> None:
    random = ["7930953c0174a95ebe9eb54666ca2292", "7931a95ebe9eb54666ca229201740953"]
    numbered = ["task-2026-000000001", "task-2026-000000002"]
    for ids, columns, expected in (
        (random, 80, ["7930953c", "7931a95e"]),
        (numbered, 80, ["..00000001", "..00000002"]),
        (["prefix-" + i for i in random], 80, ["..0953c017", "..1a95ebe9"]),
        (["a" * 8 + "b" + "c" * 20, "a" * 8 + "d" + "c" * 20, "e" * 29], 80, ["aaaaaaaab", "aaaaaaaad", "eeeeeeeee"]),
        (["task-1"], 80, ["task-1"]),
        (numbered, None, numbered),
    ):
        assert [row.split()[0] for row in _shown(*ids, columns=columns)] == expected


def test_a_row_is_no_wider_than_its_terminal() -> None:
    [row] = _shown("1", message="x" * 100)
    assert len(row) == 80 and row.endswith("x>")
    [row] = _shown("1", message="漢" * 100)
    assert 78 <= len(row) + row.count("漢") <= 80


def test_an_age_is_in_its_largest_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    monkeypatch.setattr(time, "time", now.timestamp)

    def age(**ago: float) -> str:
        return _shown("1", created=(now - timedelta(**ago)).isoformat())[0].split()[2]

    ages = [age(minutes=-9), age(seconds=9.5), age(minutes=59.5), age(hours=23.5), age(days=400)]
    assert ages == ["0s", "9s", "59m", "23h", "400d"]
    assert _shown("1", created="yesterday")[0].split()[2] == "?"
