"""A task: its instants are exact, its JSON stays unchanged, and of two reports the right one wins."""

import re
from datetime import date
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.mcp import task
from gateway.mcp.task import STATUSES, UNKNOWN, TaskError
from tests.rules import plain

EPOCH = date(1970, 1, 1).toordinal()


def seconds(year: int, month: int, day: int, second_of_day: int, fraction: str = "", offset_min: int = 0) -> Fraction:
    """Seconds since 1970, by exact arithmetic; year 0, which `date` does not have, lies 400 years before 400."""
    days = date(year or 400, month, day).toordinal() - EPOCH - (0 if year else 146_097)
    whole = days * 86400 + second_of_day - offset_min * 60
    return whole + (Fraction(int(fraction), 10 ** len(fraction)) if fraction else Fraction(0))


def read(text: str) -> Fraction:
    """The instant of a timestamp, in seconds since 1970, however `Instant` counts."""
    instant, epoch, next_second = (
        task.parse_instant(t) for t in (text, "1970-01-01T00:00:00Z", "1970-01-01T00:00:01Z")
    )
    assert instant is not None, text
    assert epoch is not None
    assert next_second is not None
    return Fraction(instant - epoch) / (next_second - epoch)


@st.composite
def timestamps(draw: st.DrawFn) -> tuple[str, Fraction]:
    """An RFC 3339 timestamp and its instant."""
    year = draw(st.integers(1, 9999) | st.sampled_from([0, 1, 4, 1600, 1900, 1970, 2000, 2025, 9999]))
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    month = draw(st.integers(1, 12))
    last = 29 if month == 2 and leap else (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)[month - 1]
    day = draw(st.integers(1, last) | st.just(last))
    second_of_day = draw(st.integers(0, 86399))
    fraction = draw(st.text("0123456789", max_size=40) | st.text("09", max_size=12))
    zone, offset_min = draw(st.sampled_from([("Z", 0), ("z", 0), ("-00:00", 0)])), 0
    if draw(st.booleans()):
        sign, hours, minutes = draw(st.tuples(st.sampled_from([1, -1]), st.integers(0, 23), st.integers(0, 59)))
        zone, offset_min = (f"{'+' if sign > 0 else '-'}{hours:02}:{minutes:02}", 0), sign * (hours * 60 + minutes)
    clock = f"{second_of_day // 3600:02}:{second_of_day // 60 % 60:02}:{second_of_day % 60:02}"
    text = f"{year:04}-{month:02}-{day:02}{draw(st.sampled_from('Tt'))}{clock}{'.' * bool(fraction)}{fraction}{zone[0]}"
    return text, seconds(year, month, day, second_of_day, fraction[:9], offset_min)


@given(timestamps())
def test_an_instant_is_exact_to_the_nanosecond(drawn: tuple[str, Fraction]) -> None:
    text, expected = drawn
    assert read(text) == expected


# Leap seconds (RFC 3339, 5.8 and appendix D), and the corners; all else is generated above.
INSTANTS = {
    "1990-12-31T23:59:60Z": seconds(1991, 1, 1, 0),
    "1990-12-31T15:59:60-08:00": seconds(1991, 1, 1, 0),
    "2017-01-01T05:29:60+05:30": seconds(2017, 1, 1, 0),
    "0000-01-01T00:00:00Z": Fraction(-62_167_219_200),
    "0000-02-29T00:00:00+23:59": seconds(0, 2, 29, 0, "", 1439),
    "0001-01-01T00:00:00+23:59": seconds(1, 1, 1, 0, "", 1439),
    "9999-12-31T23:59:59.999999999Z": seconds(9999, 12, 31, 86399, "999999999"),
    "9999-12-31T23:59:59-23:59": seconds(9999, 12, 31, 86399, "", -1439),
}


@pytest.mark.parametrize(("text", "expected"), INSTANTS.items())
def test_an_instant(text: str, expected: Fraction) -> None:
    assert read(text) == expected


@pytest.mark.parametrize("digits", [10, 100, 101, 4300, 4301, 1_000_000])
def test_further_digits_of_a_second_are_cut(digits: int) -> None:
    """Whatever their number: Python's own limit is on reading integers of more than 4300 digits."""
    text = "2025-11-25T10:30:00." + "9" * digits + "Z"
    cut = plain.instant("2025-11-25T10:30:00.999999999Z")
    found = task.parse(plain.raw_task("a", "working", text, text))
    assert (found.created, found.updated, task.parse_instant(text)) == (cut, cut, cut)


NO_INSTANT = [
    *("", "1764066600", "2025-11-25", "2025-11-25T10:30:00", "2025-11-25T10:30:00+0000", "2025-11-25T10:30:00+24:00"),
    *("2025-11-25T10:30:00-24:00", "2025-11-25T10:30:00+05:60", "2025-11-25T10:30:00-00:60"),
    # no such day, no such time
    *("2025-00-25T10:30:00Z", "2025-13-25T10:30:00Z", "2025-11-00T10:30:00Z", "2025-11-31T10:30:00Z"),
    *("2025-02-29T10:30:00Z", "1900-02-29T10:30:00Z", "2100-02-29T10:30:00Z", "2024-02-30T10:30:00Z"),
    *("2025-12-32T10:30:00Z", "0001-02-29T00:00:00Z", "2025-11-25T24:00:00Z", "2025-11-25T24:00:00+00:00"),
    *("2025-11-25T25:00:00Z", "2025-11-25T10:60:00Z", "2025-11-25T10:30:61Z", "2025-11-25T10:30:99Z"),
    # leap seconds that are none
    *("2025-11-25T10:30:60Z", "2025-11-25T00:00:60Z", "2025-11-25T23:58:60Z", "1990-12-31T23:59:60-08:00"),
    *("1990-12-31T23:59:60+00:01", "1990-12-31T23:59:61Z"),
    # other forms: the property below
]  # fmt: skip


@pytest.mark.parametrize("text", NO_INSTANT)
def test_what_is_no_timestamp_is_refused(text: str) -> None:
    assert task.parse_instant(text) is None


GRAMMAR = re.compile(
    r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
    r"[Tt]([01][0-9]|2[0-3]):[0-5][0-9]:([0-5][0-9]|60)(\.[0-9]+)?([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
)


def in_places(text: str) -> st.SearchStrategy[str]:
    """The text with a quarter of its characters changed, and none more or fewer. Bytes are drawn in one step."""
    others = "0123456789-:.,+TtZzW \u0663\u2212"
    return st.binary(min_size=len(text), max_size=len(text)).map(
        lambda drawn: "".join(
            letter if byte < 192 else others[byte % len(others)] for letter, byte in zip(text, drawn, strict=True)
        )
    )


@given(timestamps().flatmap(lambda drawn: in_places(drawn[0])) | st.text(max_size=30))
def test_nothing_but_the_grammar_is_read_and_nothing_raises(text: str) -> None:
    if task.parse_instant(text) is not None:
        assert GRAMMAR.fullmatch(text)


@settings(max_examples=500)
@given(
    in_places("2025-11-25T10:30:00.123Z")
    | in_places("2024-02-29T23:59:59.999999Z")
    | st.sampled_from(
        ["2025-W48-2T10:30:00.123Z", "2025-11-25T24:00:00.000Z", "2025-12-31T23:59:60.000Z", "0000-01-01T00:00:00.001Z"]
    )
)
def test_the_usual_way_to_write_an_instant_is_read_as_any_other(text: str) -> None:
    """It has a way of its own through the reader: with a digit more it has not."""
    longer = f"{text[:-1]}0{text[-1]}"
    assert task.parse_instant(text) == (task.parse_instant(longer) if GRAMMAR.fullmatch(text) else None)


RAW = (
    b' {"taskId" : "\\u0061",\r\n "x":1.10e400, "status":"wor\\u006bing","y":123456789012345678901234567890,\n'
    b'"createdAt":"2025-11-25T10:30:00.5+00:00","statusMessage":"\\ud83d\\ude00 \xf0\x9f\x98\x80","ttl":null,'
    b'"lastUpdatedAt":"2025-11-25T11:30:00.000001-01:00","z":{"taskId":"no"}}\t'
)


def test_a_task_is_read_and_its_json_kept_byte_for_byte() -> None:
    for given_raw in (RAW, msgspec.Raw(RAW)):
        found = task.parse(given_raw, method="tools/call")
        assert (found.id, found.status, found.method) == ("a", "working", "tools/call")
        assert found.created == task.parse_instant("2025-11-25T10:30:00.5Z")
        assert found.updated == task.parse_instant("2025-11-25T12:30:00.000001Z")
        assert found.raw == RAW
        assert not found.is_terminal


@pytest.mark.parametrize("status", [*STATUSES, "submitted", "", "Completed"])
def test_a_status_is_what_the_upstream_says(status: str) -> None:
    """One that MCP does not know can be anything: all of them are one to the index, and pass as they are."""
    raw = plain.raw_task("a", status, None, None)
    found = task.parse(raw)
    assert found.raw == raw
    assert found.status == (status if status in STATUSES else task.OTHER)
    assert found.is_terminal is (status in {"completed", "failed", "cancelled"})


UNREADABLE = [
    *(b"null", b"5", b"1764066600.25", b"true", b"{}", b"[]", b'["2025-11-25T10:30:00Z"]', b'""'),
    *(b'"yesterday"', b'"2025-13-25T10:30:00Z"', b'"2025-02-29T10:30:00Z"', b"1e999", b"9" * 5000),
    *(b"[1e999]", b"[" * 100 + b"]" * 100),
]


@pytest.mark.parametrize("value", UNREADABLE, ids=lambda raw: raw[:12].decode())
@pytest.mark.parametrize("name", [b"createdAt", b"lastUpdatedAt"])
def test_a_timestamp_that_nobody_can_read_loses_no_task(name: bytes, value: bytes) -> None:
    other = {b"createdAt": b"lastUpdatedAt", b"lastUpdatedAt": b"createdAt"}[name]
    found = task.parse(b'{"taskId":"a","status":"working","%b":"2025-11-25T10:30:00Z","%b":%b}' % (other, name, value))
    assert found.id == "a"
    instants = {b"createdAt": found.created, b"lastUpdatedAt": found.updated}
    assert instants[other] == task.parse_instant("2025-11-25T10:30:00Z")
    if value != b"null":
        assert instants[name] == UNKNOWN


NO_TASK = [
    *(b"", b"null", b'"a"', b"{}", b'[{"taskId":"a","status":"working"}]'),
    *(b'{"status":"working"}', b'{"taskId":"a"}', b'{"taskId":"a","status":"working"'),
    *(b'{"taskId":1,"status":"working"}', b'{"taskId":null,"status":"working"}', b'{"taskId":"a","status":null}'),
    *(b'{"taskId":"a","status":["working"]}', b'{"task":{"taskId":"a","status":"working"}}'),
    *(b'{"taskId":"\\ud800","status":"working"}', b'{"taskId":"\xff","status":"working"}'),
    b'{"taskId":"a","status":"working","deep":' + b"[" * 100_000,
    b'{"taskId":"a","status":"working","deep, and whole":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}",
]


@pytest.mark.parametrize("raw", NO_TASK, ids=lambda raw: ascii(raw[:50]))
def test_what_is_no_task(raw: bytes) -> None:
    with pytest.raises(TaskError):
        task.parse(raw)
