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

from gateway.core import cursor, jsonrpc, task
from gateway.core import query as criteria
from gateway.core.cursor import Position
from gateway.core.query import CRITERIA_BYTES_MAX, BadQuery, Query
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
shown = st.frozensets(st.integers(0, 2**64 - 1), max_size=3)


def check_there_and_back(position: Position) -> None:
    assert position.after is not None
    assert cursor.decode(cursor.encode(position)) == position


@thorough
@given(st.builds(Position, queries, keys, shown))
def test_a_cursor_is_self_contained(position: Position) -> None:
    check_there_and_back(position)


@thorough
@given(plain.queries, st.lists(plain.reports, min_size=1, max_size=3))
def test_every_task_may_be_the_last_of_a_page(query: Query, page: list[task.Task]) -> None:
    """Whatever its timestamps are: RFC 3339 has the years 0000 to 9999, and some upstreams write none of it."""
    check_there_and_back(cursor.following(Position(query), page))


def test_the_first_page_has_no_cursor() -> None:
    """It is asked for without one: a cursor of it would be a second name for the same list."""
    with pytest.raises(AssertionError):
        cursor.encode(Position(Query()))


def test_a_task_whose_timestamp_nobody_can_read_may_be_the_last_of_a_page() -> None:
    last = task.parse(plain.raw_task("a", "working", "yesterday", "today"))
    check_there_and_back(Position(Query(), last.updated))


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
        "2025-11-25T10:30:00." + "1" * 4000 + "Z",
        "2025-11-25T10:30:00." + "9" * 4000 + "Z",
        "0000-01-01T00:00:00." + "9" * 4000 + "+23:59",
        "9999-12-31T23:59:59." + "9" * 4000 + "-23:59",
    ],
    ids=lambda text: text[:40],
)
def test_every_instant_may_bound_a_query(bound: str) -> None:
    instant = plain.instant(bound)
    query = Query(created=(instant, None), updated=(None, instant))
    check_there_and_back(Position(query, Key(instant, "a")))


@pytest.mark.parametrize("digits", [3990, 3999, 4000, 4001, 4290, 4294, 4297, 4300, 4301, 10_000])
def test_an_instant_that_is_read_can_be_written(digits: int) -> None:
    """Python refuses to write integers of more than 4300 digits: nothing may be read that cannot be handed on."""
    instant = task.parse_instant("2025-11-25T10:30:00." + "7" * digits + "Z")
    assert (instant is not None) is (digits <= 4000)
    if instant is not None:
        check_there_and_back(Position(Query(created=(instant, None)), Key(instant, "a")))


def test_a_cursor_of_many_task_ids() -> None:
    query = Query(task_ids=frozenset(f"786512e2-9e0d-44bd-8f29-{number:012}" for number in range(13_000)))
    last = Key(plain.instant("2025-11-25T10:30:00Z"), "a")
    check_there_and_back(Position(query, last))


@pytest.mark.parametrize("filler", ["\x01", "\U0001f600", "x"])
def test_the_largest_cursor_that_can_be_handed_out_can_be_read(filler: str) -> None:
    """A4: what a cursor unpacks to is limited, and so is everything that goes into it."""
    fraction = "." + "7" * 4000
    bounds = {name: f"2025-11-2{day}T10:30:00{fraction}Z" for day, name in enumerate(NAMES)}
    room = CRITERIA_BYTES_MAX - len(orjson.dumps([*bounds.values(), [""]]))
    width = len(orjson.dumps(filler)) - 2
    raw = orjson.dumps({**bounds, "taskIds": [filler * (room // width)], "order": "asc"})
    longest = criteria.read(jsonrpc.members(raw))
    assert longest is not None
    last = Key(longest.updated[1], filler * task.ID_CHARS_MAX)
    check_there_and_back(Position(longest, last, frozenset(range(20_000))))


NAMES = ["createdAfter", "createdBefore", "lastUpdatedAfter", "lastUpdatedBefore"]


def test_criteria_that_no_cursor_could_repeat_are_refused_at_once() -> None:
    raw = orjson.dumps({"filter": {"taskIds": ["x" * CRITERIA_BYTES_MAX]}, "status": ["working"]})
    with pytest.raises(BadQuery) as caught:
        criteria.read(jsonrpc.members(raw))
    assert caught.value.faults[0].parameter == "filter.taskIds"


def test_a_cursor_that_unpacks_to_more_than_any_that_is_handed_out_is_refused() -> None:
    """A4: sixteen MiB of task ids took five seconds to read."""
    names = sorted(f"{number:x}" for number in range(200_000))
    assert cursor.decode(like_ours(((TASK_IDS,), names[:1000]))) is not None
    assert cursor.decode(like_ours(((TASK_IDS,), names))) is None


def test_only_what_may_move_ahead_is_carried_along() -> None:
    """In ascending order of last update: the tasks of earlier pages that were not terminal; nowhere else any."""
    page = [task.parse(plain.raw_task(i, status, "2025-11-25T10:30:00Z", "2025-11-25T10:30:00Z"))
            for i, status in (("a", "working"), ("b", "completed"), ("c", "input_required"))]  # fmt: skip
    ahead = Query(by="lastUpdatedAt", descending=False)
    first = cursor.following(Position(ahead), page)
    assert first.shown == {task.digest("a"), task.digest("c")}
    assert cursor.following(first, page[:1]).shown == first.shown
    for query in (Query(), Query(by="createdAt", descending=False)):
        assert not cursor.following(Position(query), page).shown


def test_a_cursor_has_room_for_very_many_live_tasks_but_not_for_any_number() -> None:
    position = Position(Query(descending=False), LAST, frozenset(map(task.digest, map(str, range(20_000)))))
    check_there_and_back(position)
    live = task.parse(plain.raw_task("a", "working", "2025-11-25T10:30:00Z", "2025-11-25T10:30:00Z"))
    assert not cursor.following(position, [live]).shown


LAST = Key(plain.instant("2025-11-25T10:30:00.5Z"), "786512e2-9e0d-44bd-8f29-789f320fe840")
QUERY = Query(
    status=frozenset({"working", "failed"}), created=(None, plain.instant("2026-01-01T00:00:00Z")), descending=False
)
POSITION = Position(QUERY, LAST, frozenset({task.digest("a1b2c3d4-9e0d-44bd-8f29-789f320fe840")}))
CURSOR = cursor.encode(POSITION)


def test_a_cursor_is_plain_text() -> None:
    """It stands in JSON, in URLs and in logs."""
    assert set(CURSOR) <= set(string.ascii_letters + string.digits + "-_.=~")


@pytest.mark.parametrize("seed", ["1", "2"])
def test_a_cursor_works_on_another_replica(seed: str) -> None:
    """Another process, which orders sets in another way."""
    code = "from gateway.core import cursor; import sys; print(cursor.encode(cursor.decode(sys.argv[1])))"
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
    assert cursor.decode(text) in (None, POSITION)


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
        text = cursor.encode(Position(QUERY, last))
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


def packed(values: bytes) -> str:
    """A cursor that is ours in all but what it says."""
    return forged(zlib.compress(values, level=1))


# Methods, task ids, status; the four bounds; by, descending; the place behind which the page begins; what was shown.
METHODS, TASK_IDS, STATUS, BOUNDS, BY, DESCENDING, AFTER, SHOWN = range(8)
SAID: bytes = zlib.decompress(base64.urlsafe_b64decode(CURSOR.removeprefix("taskgate1."))[4:])


def values_with(*changed: tuple[tuple[int, ...], object]) -> bytes:
    """What the cursor says, some of its values changed."""
    values = orjson.loads(SAID)
    for path, value in changed:
        inner = values
        for at in path[:-1]:
            inner = inner[at]
        inner[path[-1]] = value
    return orjson.dumps(values)


def like_ours(*changed: tuple[tuple[int, ...], object]) -> str:
    """A cursor of ours, some of its values changed."""
    return packed(values_with(*changed))


def test_these_tests_forge_well() -> None:
    assert like_ours() == CURSOR
    assert cursor.decode(like_ours()) == POSITION
    assert cursor.decode(like_ours(((SHOWN,), ""))) == Position(QUERY, LAST)
    for path in NUMBERS_AT:
        assert cursor.decode(like_ours((path, "-7b"))) is not None
        assert cursor.decode(like_ours((path, "1/3"))) is not None


NUMBERS_AT = [*((BOUNDS, at) for at in range(4)), (AFTER, 0)]


# Numbers are hexadecimal, "n" or "n/d" in lowest terms. Reading 1e999999999 as others do would take all time and
# memory, and so would a number as long as the cursor may be.
@pytest.mark.parametrize(
    "number",
    [
        *("1E400", "-1E400", "1e+400", "1e-400", "1p400", "0x1", "1.5", "1/0", "0/0", "1/-3", "-1/-3", "2/4", "0/5"),
        *("nan", "inf", "-inf", "", "-", "/", "x", "1/x", "1/", "/3", "1/3/5", "+1", "--1", "-0", "00", "01", "1/03"),
        *(" 1", "1 ", "1\n", "1_0", "A", "\u0661", "\uff11", "1" * 3501, "1/" + "3" * 3501, "f" * 100_000),
    ],
    ids=lambda text: ascii(text[:12]),
)
def test_a_number_that_the_gateway_does_not_write_is_refused(number: str) -> None:
    for path in NUMBERS_AT:
        assert cursor.decode(like_ours((path, number))) is None


@pytest.mark.parametrize("number", [0, 5, -5, 1.5, 10**18, True, [], {}, ["1"]])
def test_a_number_that_is_no_text_is_refused(number: object) -> None:
    for path in NUMBERS_AT:
        assert cursor.decode(like_ours((path, number))) is None


@pytest.mark.parametrize(
    "text",
    [
        like_ours(((BY,), "status")),
        like_ours(((BY,), None)),
        like_ours(((BY,), "")),
        like_ours(((DESCENDING,), None)),
        like_ours(((DESCENDING,), 1)),
        like_ours(((AFTER,), None)),
        like_ours(((AFTER,), [])),
        like_ours(((AFTER,), {})),
        like_ours(((AFTER,), "1")),
        like_ours(((AFTER,), ["1"])),
        like_ours(((AFTER,), ["1", "a", "b"])),
        like_ours(((AFTER, 0), None)),
        like_ours(((AFTER, 1), None)),
        like_ours(((AFTER, 1), 1)),
        like_ours(((SHOWN,), [])),
        like_ours(((SHOWN,), {})),
        like_ours(((SHOWN,), False)),
        like_ours(((SHOWN,), None)),
        like_ours(((SHOWN,), "1")),
        like_ours(((SHOWN,), "0" * 15 + "g")),
        like_ours(((SHOWN,), "0" * 15 + "A")),
        like_ours(((SHOWN,), "0" * 15 + "2" + "0" * 15 + "1")),
        like_ours(((SHOWN,), "0" * 15 + "1" + "0" * 15 + "1")),
        like_ours(((SHOWN,), "-" + "0" * 14 + "1")),
        like_ours(((BOUNDS,), None)),
        like_ours(((BOUNDS,), [])),
        like_ours(((BOUNDS,), [None] * 3)),
        like_ours(((BOUNDS,), [None] * 5)),
        like_ours(((METHODS,), "tools/call")),
        like_ours(((METHODS,), [1])),
        like_ours(((METHODS,), {})),
        like_ours(((TASK_IDS,), "a")),
        like_ours(((STATUS,), [None])),
        # what `encode` would write in another way
        like_ours(((STATUS,), ["working", "failed"])),
        like_ours(((STATUS,), ["failed", "failed"])),
        like_ours(((TASK_IDS,), ["b", "a"])),
        packed(SAID.replace(b",", b", ")),
        packed(SAID + b" "),
        packed(SAID.replace(b"working", b"\\u0077orking")),
        packed(SAID[:-1] + b",null]"),
        packed(SAID[:-1] + b",1]"),
        packed(orjson.dumps(orjson.loads(SAID)[:-1])),
        forged(zlib.compress(SAID, level=0)),
        forged(zlib.compress(SAID, level=1) + b"x"),
        forged(zlib.compress(SAID, level=1)[:-2]),
        # nothing like it
        forged(b""),
        forged(b"x"),
        packed(b""),
        packed(b"[]"),
        packed(b"{}"),
        packed(b"null"),
        packed(b"[" * 100_000),
        packed(b"[" * 100_000 + b"]" * 100_000),
        packed(b"\xff"),
        packed(b'["\xff"]'),
        packed(b'["\\ud800"]'),
        packed(SAID.replace(b"working", b"\xff")),
        packed(SAID.replace(b"working", b"\\ud800")),
        packed(b"[]" * 2),
        packed(SAID * 2),
        packed(b" " * (64 << 20)),
        packed(SAID.replace(b"working", b"w" * (17 << 20))),
    ],
    ids=lambda text: text[10:20],
)
def test_a_forged_cursor_is_refused(text: str) -> None:
    assert cursor.decode(text) is None


simple = st.none() | st.booleans() | documents.numbers | documents.strings | st.lists(documents.strings, max_size=2)
numbers = st.none() | st.text("0123456789abcdef/-", max_size=4)
nearly = st.tuples(
    *[st.none() | st.lists(st.text(max_size=2), max_size=2)] * 3,
    st.lists(numbers, min_size=4, max_size=4),
    st.sampled_from(["createdAt", "lastUpdatedAt", "status"]),
    st.booleans(),
    st.tuples(numbers, st.text(max_size=2)),
    st.none() | st.tuples(numbers, st.text(max_size=2)),
)


@settings(thorough, max_examples=150)
@given(
    st.lists(documents.documents(simple), max_size=9).map(lambda v: b"[%b]" % b",".join(v)) | nearly.map(orjson.dumps)
)
def test_a_forged_cursor_does_not_raise_nor_does_what_is_made_of_it(values: bytes) -> None:
    text = packed(values)
    found = cursor.decode(text)
    if found is not None:
        assert cursor.encode(found) == text
        check_there_and_back(found)


@pytest.mark.parametrize("power", [62, 63, 64, 100, 1000, 13_000, 13_999, 14_000, 20_000])
def test_a_place_that_can_be_read_can_be_written(power: int) -> None:
    """A page that begins at a forged place has a next one."""
    for path in NUMBERS_AT:
        for number in (2**power, -(2**power) - 1):
            text = like_ours((path, f"{number:x}"))
            found = cursor.decode(text)
            assert (found is not None) is (power < 14_000)
            if found is not None:
                assert cursor.encode(found) == text
                check_there_and_back(found)
