"""Cursors that spell criteria: they mean what the same parameters mean, and are refused with the same words."""

import json
import re
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.query import criteria
from gateway.query.criteria import CRITERIA_BYTES_MAX, LIST_ITEMS_MAX, BadQuery, Fault, Query
from gateway.query.cursor import Position
from tests.rules import plain
from tests.rules.plain import EARLY, EXAMPLES, LATE, LISTS, position


def read(params: object) -> Position | None:
    return position(json.dumps(params).encode())


def spelled(text: str) -> Query:
    position = read({"cursor": text})
    assert position == Position(position.query if position else Query())
    return position.query


def faults(text: str, **beside: Any) -> list[Fault]:
    found = plain.faults({"cursor": text, **beside})
    for one in found:
        assert one.parameter.startswith("cursor")
        assert len(one.parameter) < 100 and len(one.given) <= 203 and one.allowed
    return found


def fault(text: str, **beside: Any) -> Fault:
    (only,) = faults(text, **beside)
    return only


def query_string(params: dict[str, Any], encoded: bool) -> str:
    """How parameters are spelled: each character percent-encoded, or as few as may be."""

    def written(text: str) -> str:
        return "".join(f"%{byte:02x}" for byte in text.encode()) if encoded else re.sub("[%&,]", quote_one, text)

    def quote_one(found: re.Match[str]) -> str:
        return quote(found[0])

    pairs = ((name, value if isinstance(value, list) else [value]) for name, value in params.items())
    return "taskgate:?" + "&".join(f"{written(name)}={','.join(map(written, values))}" for name, values in pairs)


@given(st.fixed_dictionaries({}, optional={name: one.params for name, one in EXAMPLES.items()}), st.booleans())
def test_what_is_spelled_is_what_the_parameters_are(given: dict[str, Any], encoded: bool) -> None:
    expected = criteria.read(criteria.params(json.dumps(given).encode())) or Query()
    assert spelled(query_string(given, encoded)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("taskgate:?", Query()),
        ("taskgate:?status=", Query()),
        ("taskgate:?status=failed,working", Query(status=frozenset({"failed", "working"}))),
        ("taskgate:?status=failed&status=working", Query(status=frozenset({"failed", "working"}))),
        ("taskgate:?status=failed&order=asc&status=failed&", Query(status=frozenset({"failed"}), order="asc")),
        ("taskgate:?st%61tus=f%61iled%2c", None),
        ("taskgate:?taskIds=a%2Cb,c%26d,e%3Df,%25", Query(taskIds=frozenset({"a,b", "c&d", "e=f", "%"}))),
        ("taskgate:?taskIds=g=h,%C3%A9,ü", Query(taskIds=frozenset({"g=h", "é", "ü"}))),
        ("taskgate:?taskIds=a+b", Query(taskIds=frozenset({"a+b"}))),
        ("taskgate:?taskIds=a,", Query(taskIds=frozenset({"a", ""}))),
        ("taskgate:?status=failed?", None),
    ],
)  # fmt: skip
def test_how_lists_and_escapes_are_read(text: str, expected: Query | None) -> None:
    if expected is None:
        faults(text)
    else:
        assert spelled(text) == expected


# Of a list each item is written alone.
WRONG = [(name, one) for name, each in EXAMPLES.items() for one in (each.wrong_items if name in LISTS else each.wrong)]
WORDS = [(name, one) for name, one in WRONG if one and isinstance(one, str)]


@pytest.mark.parametrize(("name", "value"), WORDS)
def test_a_wrong_value_is_refused_with_the_words_of_the_parameter(name: str, value: str) -> None:
    (expected,) = plain.faults({name: [value] if name in LISTS else value})
    found = fault(f"taskgate:?{name}={quote(value)}")
    assert (found.parameter, found.allowed) == (f"cursor.{expected.parameter}", expected.allowed)
    assert json.loads(found.given) == json.loads(expected.given), "it may be escaped differently"


def test_each_fault_has_an_entry() -> None:
    found = faults(f"taskgate:?staus=failed&status=done&createdAfter={LATE}&createdBefore={EARLY}&order=asc&order=desc")
    assert [one.parameter for one in found] == ["cursor.staus", "cursor.status", "cursor.order", "cursor.createdAfter"]
    assert "did you mean `status`?" in found[0].allowed
    assert found[0].given == '"failed"'
    assert found[2] == Fault("cursor.order", '"desc"', "the same value as the other `order`")


@pytest.mark.parametrize(
    "text",
    [
        *("taskgate:", "taskgate:status=failed", "taskgate:/?status=failed", "taskgate:x?status=failed"),
        *("taskgate://host/?status=failed", "taskgate:?status=fai%", "taskgate:?status=%zz", "taskgate:?taskIds=%ff"),
        *("taskgate:?%ff=a", "taskgate:?%=a", "taskgate:?filter=a", "taskgate:?cursor=a", "taskgate:?=failed"),
        *("taskgate:?failed", "taskgate:? status=failed", "taskgate:?Status=failed", "taskgate:?createdAfter="),
        "taskgate:?" + "&".join(f"x{n}=1" for n in range(1000)),
        "taskgate:?" + "x" * 1_000 + "=1",
        "taskgate:?taskIds=" + "a" * CRITERIA_BYTES_MAX,
        "taskgate:?taskIds=" + "a," * LIST_ITEMS_MAX,
        "taskgate:?taskIds=" + "," * 100_000,
        "taskgate:?" + "&" * 100_000,
        "taskgate:?" + "&taskIds=a" * (LIST_ITEMS_MAX + 1),
    ],
    ids=lambda text: text[:30],
)
def test_what_spells_nothing_is_refused(text: str) -> None:
    """It begins like a cursor of ours, so no server may get it."""
    faults(text)


@pytest.mark.parametrize("pair", ["&order=x", "&createdAfter=2026", "&lastUpdatedBefore=%22"])
def test_a_wrong_value_that_is_given_often_is_told_once(pair: str) -> None:
    """Each was a fault of its own: 32 KB of them took 28 ms, and made an answer of 540 KB."""
    assert len(faults("taskgate:?" + pair * 3_000)) == 1
    assert len(faults("taskgate:?" + pair * 5)) == 5


@pytest.mark.parametrize("text", ["taskgate", "taskgate?status=failed", "Taskgate:?status=failed", " taskgate:?", "x"])
def test_what_begins_otherwise_is_the_servers(text: str) -> None:
    assert read({"cursor": text}) is None


def test_criteria_beside_it_are_refused() -> None:
    for beside in ({"status": ["failed"]}, {"filter": {"order": "asc"}}, {"status": ["working"]}):
        found = fault("taskgate:?status=failed", **beside)
        assert (found.parameter, found.given) == ("cursor", '"taskgate:?status=failed"')
        assert "not both" in found.allowed


@given(st.text().map("taskgate:?".__add__) | st.text("status=,&%ord?:+", max_size=30).map("taskgate:?".__add__))
def test_any_text_is_a_query_or_told_to_be_wrong(text: str) -> None:
    try:
        assert read({"cursor": text}) is not None
    except BadQuery as bad:
        assert bad.faults
