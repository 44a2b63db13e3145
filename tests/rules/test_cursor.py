"""Opaque cursors: what goes in comes out, and nothing else; a changed cursor is an error."""

import base64
import hashlib
import re
import subprocess
import sys
import zlib
from itertools import product

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.mcp import task
from gateway.mcp.task import EARLIEST, LATEST, UNKNOWN, Instant
from gateway.query import criteria, cursor
from gateway.query.criteria import CRITERIA_BYTES_MAX, LIST_ITEMS_MAX, BadQuery, Fault, Query
from gateway.query.cursor import Position
from gateway.tasks.index import Index
from tests.rules import documents, plain
from tests.rules.plain import CHOICES, EXAMPLES, LISTS, TIMES

instants: st.SearchStrategy[Instant] = plain.instants | st.integers(EARLIEST, LATEST)
strings = st.none() | st.frozensets(st.text(max_size=4), min_size=1, max_size=3)
any_text = {name: strings for name in LISTS if name != "status"}
any_end = {name: st.none() | instants for name in TIMES if name.endswith("Before")}
queries = st.builds(Query, **{name: one.values for name, one in EXAMPLES.items()} | any_text | any_end)
places = st.tuples(instants | st.just(UNKNOWN), st.text(max_size=8))


def check_there_and_back(position: Position) -> None:
    assert position.after is not None
    assert cursor.decode(cursor.encode(position)) == position


def refused(text: str) -> Fault:
    """What is said of a cursor that begins like ours and cannot be read (DESIGN 5.4)."""
    with pytest.raises(BadQuery) as caught:
        cursor.decode(text)
    (fault,) = caught.value.faults
    assert fault.parameter == "cursor"
    assert len(fault.given) <= 203
    assert fault.allowed
    return fault


@given(st.builds(Position, queries, places))
def test_a_cursor_is_self_contained(position: Position) -> None:
    check_there_and_back(position)


@pytest.mark.parametrize("filler", ["\x01", "\U0001f600", "x"])
def test_the_largest_cursor_that_can_be_handed_out_can_be_read(filler: str) -> None:
    """A cursor has a limited size, so everything that goes into one is limited."""
    fraction = "." + "7" * 100
    bounds = {name: f"2025-11-2{day}T10:30:00{fraction}Z" for day, name in enumerate(TIMES)}
    room = CRITERIA_BYTES_MAX - len(orjson.dumps([*bounds.values(), [""]]))
    width = len(orjson.dumps(filler)) - 2
    raw = orjson.dumps({**bounds, "taskIds": [filler * (room // width)], "order": "asc"})
    longest = criteria.read(criteria.params(raw))
    assert longest is not None
    last = (longest.updated[1], filler * task.ID_CHARS_MAX)
    check_there_and_back(Position(longest, last))


def test_criteria_that_no_cursor_could_repeat_are_refused_at_once() -> None:
    raw = orjson.dumps({"filter": {"taskIds": ["x" * CRITERIA_BYTES_MAX]}, "status": ["working"]})
    with pytest.raises(BadQuery) as caught:
        criteria.read(criteria.params(raw))
    (fault,) = caught.value.faults
    assert fault.parameter == "filter.taskIds"
    assert str(CRITERIA_BYTES_MAX) in fault.allowed


def test_a_cursor_of_more_ids_than_any_that_is_handed_out_is_refused() -> None:
    """16 MiB of task ids once took five seconds to read, and 110,000 ids 0.4 s."""
    names = sorted(f"{number:x}" for number in range(200_000))
    assert cursor.decode(like_ours((TASK_IDS, names[:LIST_ITEMS_MAX]))) is not None
    for too_many in (LIST_ITEMS_MAX + 1, 110_000, 200_000):
        refused(like_ours((TASK_IDS, names[:too_many])))
        refused(like_ours((TASK_IDS, ["the same"] * too_many)))


def test_a_cursor_that_is_longer_than_any_that_is_handed_out_is_not_read() -> None:
    """Limits come before work. The error says what was given and what is allowed."""
    fault = refused(CURSOR + "A" * 4_000_000)
    assert str(len(CURSOR) + 4_000_000) in fault.given
    assert re.search("no more than [0-9]+ characters", fault.allowed)


LAST = (plain.instant("2025-11-25T10:30:00.5Z"), "786512e2-9e0d-44bd-8f29-789f320fe840")
QUERY = Query(status=frozenset({"working", "failed"}), createdBefore=plain.instant("2026-01-01T00:00:00Z"), order="asc")
POSITION = Position(QUERY, LAST)
CURSOR = cursor.encode(POSITION)


def test_a_cursor_works_on_another_replica() -> None:
    """Another process, which orders sets in another way."""
    code = "from gateway.query import cursor; import sys; print(cursor.encode(cursor.decode(sys.argv[1])))"
    command = [sys.executable, "-c", code, CURSOR]
    done = subprocess.run(command, env={"PYTHONHASHSEED": "1"}, capture_output=True, check=True, text=True)
    assert done.stdout.strip() == CURSOR


def test_every_bit_of_a_cursor_counts() -> None:
    """Even one that a base64 decoder ignores: the last character before the padding has bits that some drop."""
    for last in ((LAST[0], LAST[1] + "x" * length) for length in range(3)):
        text = cursor.encode(Position(QUERY, last))
        for at in range(len("taskgate4."), len(text) + 1):
            other = chr(ord(text[at]) ^ 1) if at < len(text) else "0"
            for new in (*("", "=", "==", "!", "\n", " ", ".", "\u00e9", "A"), other):
                for changed in {text[:at] + new + text[at:], text[:at] + new + text[at + 1 :]} - {text}:
                    refused(changed)


FOREIGN = [
    *("", "0", "10", "null", "next-page-cursor", "786512e2-9e0d-44bd-8f29-789f320fe840"),
    *("eyJvZmZzZXQiOjEwfQ==", "taskgate", "taskgate.", "taskgate1", "taskgate-1.A", "my-taskgate4.AAAA"),
    *("\0", "A" * 1_000_000, " " + CURSOR, CURSOR.upper(), CURSOR.removeprefix("taskgate4."), "x" + CURSOR),
]


@pytest.mark.parametrize("text", FOREIGN, ids=lambda text: ascii(text[:20]))
def test_a_foreign_string_is_no_cursor_of_ours(text: str) -> None:
    assert cursor.decode(text) is None


UNREADABLE = [
    *("taskgate4.", "taskgate4..", "taskgate4.A", "taskgate4.AAAA", "taskgate4.AAAAAA==", "taskgate4.===="),
    *("taskgate4.\u00e9", "taskgate4." + "A" * 100_000, "taskgate1.AAAA", "taskgate0."),
    "taskgate12345678901234567890.x",
]


def packed(values: bytes) -> str:
    """A cursor with a right checksum, and any content. It is not signed, so anybody can make one."""
    body = "taskgate4." + base64.urlsafe_b64encode(values).decode()
    return f"{body}.{hashlib.blake2b(body.encode(), digest_size=8).hexdigest()}"


# The criteria; the place behind which the page begins.
CRITERIA, AFTER = range(2)
BOUNDS = [(CRITERIA, name) for name in TIMES]
METHODS, TASK_IDS, STATUS, ORDER_BY, ORDER = (
    (CRITERIA, name) for name in ("methods", "taskIds", "status", "orderBy", "order")
)
SAID: bytes = base64.urlsafe_b64decode(CURSOR.split(".")[1])


def values_with(*changed: tuple[tuple[int | str, ...], object]) -> bytes:
    values = orjson.loads(SAID)
    for path, value in changed:
        inner = values
        for at in path[:-1]:
            inner = inner[at]
        inner[path[-1]] = value
    return orjson.dumps(values)


def like_ours(*changed: tuple[tuple[int | str, ...], object]) -> str:
    return packed(values_with(*changed))


NUMBERS_AT: list[tuple[int | str, ...]] = [*BOUNDS, (AFTER, 0)]


# Numbers are hexadecimal. Reading 1e999999999 as others do would take all time and memory, and so would a number
# as long as the cursor may be.
NO_NUMBERS = [
    *("1E400", "-1E400", "1e+400", "1e-400", "1p400", "0x1", "1.5", "1/0", "1/3", "-1/-3", "nan", "inf", "-inf", ""),
    *("-", "/", "x", "+1", "--1", " 1", "1 ", "1\n", "1_0", "A", "\u0661", "\uff11", "1" * 22, "f" * 100_000),
    *(0, 5, -5, 1.5, 10**18, True, [], {}, ["1"], [None]),
]


@pytest.mark.parametrize("number", [EARLIEST, LATEST, 0, -1, UNKNOWN, UNKNOWN + 1, 16**21 - 1, 1 - 16**21])
def test_any_bound_that_can_be_read_leads_to_a_page(number: Instant) -> None:
    """Nothing that is made of a forged cursor raises, and its page has a next one."""
    index, text = Index(), f"{number:x}"
    for name, year in YEARS.items():
        index.set(plain.entry_for(task.parse(plain.raw_task(name, "working", f"{year}-01-01T00:00:00Z", None))))
    for by, descending in product(("createdAt", "lastUpdatedAt"), (True, False)):
        for path in NUMBERS_AT:
            position = cursor.decode(like_ours((path, text), (ORDER_BY, by), (ORDER, "desc" if descending else "asc")))
            assert position is not None
            page = index.select(position, 1)
            if page.tasks:
                check_there_and_back(cursor.following(position, page.tasks))


YEARS = {"a": "0000", "b": "2025", "c": "9999", "d": "what"}


FORGED: dict[tuple[int | str, ...], list[object]] = {
    (CRITERIA,): [None, [], "status"], (CRITERIA, "requestTypes"): [["a/b"]], (CRITERIA, "nonsense"): [None],
    ORDER_BY: ["status", ""], ORDER: [True, "up"], STATUS: [[None]], TASK_IDS: ["a"], METHODS: ["a/b", [1], {}],
    (AFTER,): [None, [], {}, "1", ["1"], ["1", "a", "b"]], (AFTER, 1): [None, 1, "x" * (task.ID_CHARS_MAX + 1)],
    **dict.fromkeys(NUMBERS_AT, NO_NUMBERS),
}  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        *UNREADABLE,
        *(like_ours((path, value)) for path, values in FORGED.items() for value in values),
        *(packed(SAID[:-1] + b",null]"), packed(SAID[:-1] + b",1]"), packed(orjson.dumps(orjson.loads(SAID)[:-1]))),
        packed(zlib.compress(SAID)),
        # nothing like it
        *(packed(b""), packed(b"x"), packed(b"[]"), packed(b"{}"), packed(b"null"), packed(b"[]" * 2)),
        *(packed(b"[" * 100_000), packed(b"[" * 100_000 + b"]" * 100_000), packed(SAID * 2), packed(b" " * (1 << 20))),
        *(packed(b"\xff"), packed(b'["\xff"]'), packed(b'["\\ud800"]')),
        *(packed(SAID.replace(b"working", odd)) for odd in (b"\xff", b"\\ud800")),
        packed(SAID.replace(b"working", b"w" * (1 << 20))),
    ],
    ids=lambda text: text[10:20],
)
def test_a_forged_cursor_is_refused(text: str) -> None:
    """What begins like ours is ours to refuse. Relayed, it would bring the whole list back, or an error."""
    refused(text)


@pytest.mark.parametrize(
    "text",
    [
        like_ours((STATUS, ["working", "failed"])),
        like_ours((STATUS, ["failed", "working", "failed"])),
        packed(SAID.replace(b",", b", ")),
        packed(SAID.replace(b"working", b"\\u0077orking")),
    ],
)
def test_a_cursor_that_says_the_same_in_another_way_says_the_same(text: str) -> None:
    assert cursor.decode(text) == POSITION


simple = st.none() | st.booleans() | documents.numbers | documents.strings | st.lists(documents.strings, max_size=2)
numbers = st.none() | st.text("0123456789abcdef/-", max_size=4)
texts = st.none() | st.lists(st.text(max_size=2), max_size=2)
nearly = st.tuples(
    st.fixed_dictionaries(
        {},
        optional={
            **dict.fromkeys((*LISTS, "nonsense"), texts),
            **dict.fromkeys(TIMES, numbers),
            **{name: st.sampled_from([*EXAMPLES[name].allowed, "status", None, 1]) for name in CHOICES},
        },
    ),
    st.tuples(numbers, st.text(max_size=2)),
)


@given(
    st.lists(documents.documents(simple), max_size=9).map(lambda v: b"[%b]" % b",".join(v)) | nearly.map(orjson.dumps)
)
def test_of_a_forged_cursor_comes_a_position_or_what_is_wrong_with_it(values: bytes) -> None:
    try:
        found = cursor.decode(packed(values))
    except BadQuery:
        return
    assert found is not None
    check_there_and_back(found)
