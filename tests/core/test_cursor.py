"""Opaque cursors: what goes in comes out, nothing else comes out, and nothing raises."""

import base64
import string
import subprocess
import sys
import zlib

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core import cursor, task
from gateway.core.query import Query
from gateway.core.task import UNKNOWN, Key
from tests.core import documents, plain

thorough = settings(max_examples=100, deadline=None)

instants = plain.instants | st.integers(-(10**21), 10**21) | st.fractions().map(lambda f: f + 1) | st.just(UNKNOWN)
bounds = st.tuples(st.none() | plain.instants, st.none() | instants)
strings = st.none() | st.frozensets(st.text(max_size=4), min_size=1, max_size=3)
queries = st.builds(
    Query,
    methods=strings,
    task_ids=strings,
    status=plain.some(list(task.STATUSES)),
    created=bounds,
    updated=bounds,
    by=st.sampled_from(["createdAt", "lastUpdatedAt"]),
    descending=st.booleans(),
)
keys = st.builds(Key, instants, st.text(max_size=8))


@thorough
@given(queries, keys)
def test_a_cursor_is_self_contained(query: Query, last: Key) -> None:
    assert cursor.decode(cursor.encode(query, last)) == (query, last)


@thorough
@given(plain.queries, plain.reports)
def test_every_task_may_be_the_last_of_a_page(query: Query, last: task.Task) -> None:
    """Whatever its timestamps are: RFC 3339 has the years 0000 to 9999, and some upstreams write none of it."""
    assert cursor.decode(cursor.encode(query, query.place(last))) == (query, query.place(last))


def test_a_task_whose_timestamp_nobody_can_read_may_be_the_last_of_a_page() -> None:
    last = task.parse(plain.raw_task("a", "working", "yesterday", "today"))
    assert cursor.decode(cursor.encode(Query(), last.updated)) == (Query(), last.updated)


@pytest.mark.parametrize(
    "bound",
    [
        "0000-01-01T00:00:00Z",
        "0001-01-01T00:00:00Z",
        "1677-09-21T00:12:43Z",
        "1900-01-01T00:00:00Z",
        "1970-01-01T00:00:00Z",
        "2262-04-11T23:47:17Z",
        "2500-01-01T00:00:00Z",
        "9999-12-31T23:59:59.999999999Z",
        "9999-12-31T23:59:59-23:59",
        "2025-11-25T10:30:00." + "1" * 100 + "Z",
        "2025-11-25T10:30:00." + "1" * 4280 + "Z",
    ],
    ids=lambda text: text[:40],
)
def test_every_instant_may_bound_a_query(bound: str) -> None:
    instant = plain.instant(bound)
    query = Query(created=(instant, None), updated=(None, instant))
    assert cursor.decode(cursor.encode(query, Key(instant, "a"))) == (query, Key(instant, "a"))


@pytest.mark.parametrize("digits", [4290, 4294, 4297, 4300, 4301, 10_000])
def test_an_instant_that_is_read_can_be_written(digits: int) -> None:
    """Python refuses to write integers of more than 4300 digits: nothing may be read that cannot be handed on."""
    instant = task.parse_instant("2025-11-25T10:30:00." + "7" * digits + "Z")
    if instant is not None:
        query = Query(created=(instant, None))
        assert cursor.decode(cursor.encode(query, Key(instant, "a"))) == (query, Key(instant, "a"))


def test_a_cursor_of_many_task_ids() -> None:
    query = Query(task_ids=frozenset(f"786512e2-9e0d-44bd-8f29-{number:012}" for number in range(20_000)))
    last = Key(plain.instant("2025-11-25T10:30:00Z"), "a")
    assert cursor.decode(cursor.encode(query, last)) == (query, last)


LAST = Key(plain.instant("2025-11-25T10:30:00.5Z"), "786512e2-9e0d-44bd-8f29-789f320fe840")
QUERY = Query(status=frozenset({"working", "failed"}), created=(None, plain.instant("2026-01-01T00:00:00Z")))
CURSOR = cursor.encode(QUERY, LAST)


def test_a_cursor_is_plain_text() -> None:
    """It stands in JSON, in URLs and in logs."""
    assert set(CURSOR) <= set(string.ascii_letters + string.digits + "-_.=~")


@pytest.mark.parametrize("seed", ["1", "2"])
def test_a_cursor_works_on_another_replica(seed: str) -> None:
    """Another process, which orders sets in another way."""
    code = "from gateway.core import cursor; import sys; print(cursor.encode(*cursor.decode(sys.argv[1])))"
    command = [sys.executable, "-c", code, CURSOR]
    done = subprocess.run(command, env={"PYTHONHASHSEED": seed}, capture_output=True, check=True, text=True)
    assert done.stdout.strip() == CURSOR


@st.composite
def changes(draw: st.DrawFn) -> str:
    """The cursor with some characters changed, put in, taken out or moved."""
    text = CURSOR
    for _ in range(draw(st.integers(1, 2))):
        where = draw(st.integers(0, len(text)))
        new = draw(st.text(string.ascii_letters + string.digits + "-_=.+/ \n", max_size=3) | st.text(max_size=2))
        text = text[:where] + new + text[where + draw(st.integers(0, 3)) :]
    return draw(st.sampled_from([text, text, text[::-1], text.swapcase(), text * 2]))


@thorough
@given(changes())
def test_a_cursor_that_was_changed_is_never_misread(text: str) -> None:
    assert cursor.decode(text) in (None, (QUERY, LAST))


@thorough
@given(changes())
def test_a_cursor_that_was_changed_is_refused(text: str) -> None:
    if text != CURSOR:
        assert cursor.decode(text) is None


@pytest.mark.parametrize(
    "text",
    [
        CURSOR + "!",
        CURSOR + "\n",
        CURSOR + "=",
        CURSOR + "====",
        CURSOR + "AAAA",
        CURSOR + " ",
        " " + CURSOR,
        CURSOR[:20] + "\n" + CURSOR[20:],
        CURSOR[:20] + "!" + CURSOR[20:],
        CURSOR[:20] + "\u00e9" + CURSOR[20:],
        CURSOR.replace("taskgate1.", "taskgate2."),
        CURSOR.replace("taskgate1.", "TASKGATE1."),
        CURSOR.removeprefix("taskgate1."),
    ],
)
def test_what_was_added_to_or_cut_off_is_refused(text: str) -> None:
    assert cursor.decode(text) is None


def test_no_part_of_a_cursor_is_one() -> None:
    for at in range(1, len(CURSOR)):
        assert cursor.decode(CURSOR[:at]) is None
        assert cursor.decode(CURSOR[at:]) is None


def test_every_bit_of_a_cursor_counts() -> None:
    """The last character before the padding has bits that a careless decoder drops."""
    for last in (Key(LAST.at, LAST.id + "x" * length) for length in range(6)):
        text = cursor.encode(QUERY, last)
        for at in range(len(text)):
            for character in string.ascii_letters + string.digits + "-_":
                changed = text[:at] + character + text[at + 1 :]
                if changed != text:
                    assert cursor.decode(changed) is None, changed


FOREIGN = [
    "",
    "0",
    "10",
    "null",
    "next-page-cursor",
    "786512e2-9e0d-44bd-8f29-789f320fe840",
    "eyJvZmZzZXQiOjEwfQ==",
    "taskgate1",
    "taskgate1.",
    "taskgate1.A",
    "taskgate1.AAAA",
    "taskgate1.AAAAAA==",
    "taskgate1.====",
    "taskgate1.\u00e9",
    "taskgate1.\ud800",
    "\ud800",
    "\0",
    "taskgate1." + "A" * 100_000,
]


@pytest.mark.parametrize("text", FOREIGN)
def test_a_foreign_string_is_no_cursor_of_ours(text: str) -> None:
    assert cursor.decode(text) is None


@thorough
@given(
    st.text()
    | st.text().map("taskgate1.".__add__)
    | st.binary().map(lambda b: "taskgate1." + base64.b64encode(b).decode())
)
def test_no_string_raises(text: str) -> None:
    assert cursor.decode(text) is None


def forged(body: bytes) -> str:
    """A cursor whose checksum is right, which anybody can make: it is not signed."""
    return "taskgate1." + base64.urlsafe_b64encode(zlib.crc32(body).to_bytes(4, "big") + body).decode()


def like_ours(*changed: tuple[int, object]) -> str:
    """A cursor of ours, some of its values changed."""
    packed = base64.urlsafe_b64decode(CURSOR.removeprefix("taskgate1."))
    values = orjson.loads(zlib.decompress(packed[4:]))
    for at, value in changed:
        values[at] = value
    return forged(zlib.compress(orjson.dumps(values), level=1))


def test_these_tests_forge_well() -> None:
    assert cursor.decode(like_ours()) == (QUERY, LAST)


NUMBERS_AT = (3, 4, 5, 6, 9)


# A number with an exponent is never written by the gateway. Reading "1e999999999" would take all time and memory.
@pytest.mark.parametrize(
    "number", ["1e400", "1E400", "-1e400", "1e-400", "1/0", "0/0", "nan", "inf", "-inf", "", "x", "1/x"]
)
def test_a_number_that_the_gateway_does_not_write_is_refused(number: str) -> None:
    for at in NUMBERS_AT:
        assert cursor.decode(like_ours((at, number))) is None


@pytest.mark.parametrize(
    "text",
    [
        like_ours((7, "status")),
        like_ours((7, None)),
        like_ours((7, "")),
        like_ours((8, None)),
        like_ours((8, 1)),
        like_ours((9, None)),
        like_ours((9, 1.5)),
        like_ours((9, True)),
        like_ours((9, [])),
        like_ours((10, None)),
        like_ours((10, 1)),
        like_ours((0, "tools/call")),
        like_ours((0, [1])),
        like_ours((0, {})),
        like_ours((2, [None])),
        forged(b""),
        forged(b"x"),
        forged(zlib.compress(b"")),
        forged(zlib.compress(b"[]")),
        forged(zlib.compress(b"{}")),
        forged(zlib.compress(b"null")),
        forged(zlib.compress(b"[" * 100_000)),
        forged(zlib.compress(b"\xff")),
        forged(zlib.compress(b'["\xff"]')),
        forged(zlib.compress(b'["\\ud800"]')),
        forged(zlib.compress(b"[]" * 2)),
        forged(zlib.compress(b" " * (64 << 20), level=9)),
        forged(zlib.compress(b"x")[:-2]),
    ],
)
def test_a_forged_cursor_is_refused(text: str) -> None:
    assert cursor.decode(text) is None


simple = st.none() | st.booleans() | documents.numbers | documents.strings | st.lists(documents.strings, max_size=2)


@thorough
@given(st.lists(documents.documents(simple), max_size=12).map(b",".join))
def test_a_forged_cursor_does_not_raise_nor_does_what_is_made_of_it(values: bytes) -> None:
    found = cursor.decode(forged(zlib.compress(b"[%b]" % values)))
    if found is not None:
        assert cursor.decode(cursor.encode(*found)) == found


@pytest.mark.parametrize("power", [62, 63, 64, 100, 1000, 14_000])
def test_a_place_that_can_be_read_can_be_written(power: int) -> None:
    """A page that begins at a forged place has a next one."""
    for at in NUMBERS_AT:
        body = zlib.decompress(base64.urlsafe_b64decode(like_ours((at, "@")).removeprefix("taskgate1."))[4:])
        for number in (2**power, -(2**power) - 1):
            found = cursor.decode(forged(zlib.compress(body.replace(b'"@"', b"%d" % number))))
            if found is not None:
                assert cursor.decode(cursor.encode(*found)) == found
