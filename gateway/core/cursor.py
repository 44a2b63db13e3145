"""Opaque cursors: where the next page of a filtered list begins, and of which list.

In: a `Position` in the list of a query. Out: a string; and back.
Always: a cursor is self-contained, so it needs no memory here, outlives a restart and works on another replica
(DESIGN 5.5). It is recognised by how it begins: what begins otherwise may be the upstream's, and reads as None; what
begins like ours and was changed, cut or lengthened anywhere is an error (DESIGN 5.4). Limits come before work.

    taskgate2.<base64url of compressed JSON>.<checksum of all that is before it, in hexadecimal>

A cursor tells its holder nothing but what the holder asked for, and is worth no more than asking again; it is
therefore not signed, only checksummed. What it says is checked as what a stranger says.
"""

import hashlib
import re
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from fractions import Fraction
from typing import Annotated, Final, Literal, NoReturn, TypeAlias

import msgspec

from gateway.core.query import CRITERIA_BYTES_MAX, LIST_ITEMS_MAX, BadQuery, Query, fault
from gateway.core.runs import Bounds
from gateway.core.task import EARLIEST, FRACTION_DIGITS_MAX, ID_CHARS_MAX, LATEST, UNKNOWN, Instant, Key, Task, digest

ALLOWED: Final = "a nextCursor that this list gave out, with the criteria that it was given out for"

_PREFIX: Final = "taskgate2."
_OURS: Final = re.compile(r"taskgate[0-9]+\.")  # of any version
_SHOWN_MAX: Final = 8_000  # live tasks on earlier pages; beyond, one that changes may be met again
_NUMBER_DIGITS_MAX: Final = FRACTION_DIGITS_MAX + 20  # of a numerator and of a denominator
# Unpacked: the criteria, the digests in base64, an id in JSON of at most six bytes a character, five numbers, the rest.
_BYTES_MAX: Final = CRITERIA_BYTES_MAX + 11 * _SHOWN_MAX + 6 * ID_CHARS_MAX + 10 * _NUMBER_DIGITS_MAX + 1024
_CHARS_MAX: Final = 4 * _BYTES_MAX // 3 + 1024  # of the cursor, even if nothing of it can be compressed


class Position(msgspec.Struct, frozen=True):
    """A page of a list: the one behind the place `after`, if there is one, without the tasks in `shown`.

    In ascending order of last update a task that changes moves ahead, where whoever follows the cursors would meet it
    again: `shown` has the digests of those tasks on earlier pages that could still change then. How far the list
    reached at its beginning would not do for that: one task may be known as of later than another.
    """

    query: Query
    after: Key | None = None
    shown: frozenset[int] = frozenset()


def following(position: Position, tasks: Sequence[Task]) -> Position:
    """The position behind `tasks`, which are the page at `position`."""
    query, shown = position.query, position.shown
    if query.moves_ahead:
        shown |= {digest(task.id) for task in tasks if not task.is_terminal}
    return Position(query, query.place(tasks[-1]), shown if len(shown) <= _SHOWN_MAX else frozenset())


_Names: TypeAlias = Annotated[frozenset[str], msgspec.Meta(max_length=LIST_ITEMS_MAX)] | None


class _Wire(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    methods: _Names
    task_ids: _Names
    status: _Names
    bounds: tuple[str | None, str | None, str | None, str | None]
    by: Literal["createdAt", "lastUpdatedAt"]
    descending: bool
    after: tuple[str, Annotated[str, msgspec.Meta(max_length=ID_CHARS_MAX)]]
    shown: Annotated[bytes, msgspec.Meta(max_length=8 * _SHOWN_MAX)]  # digests of eight bytes


_wire = msgspec.json.Decoder(_Wire)
_json = msgspec.json.Encoder(order="deterministic")


def encode(position: Position) -> str:
    """The cursor of a page that is not the first one."""
    query, after = position.query, position.after
    assert after is not None
    low, high, first, last = (_pack(at) if at is not None else None for at in (*query.created, *query.updated))
    return _text(
        _Wire(
            query.methods,
            query.task_ids,
            query.status,
            (low, high, first, last),
            query.by,
            query.descending,
            (_pack(after.at), after.id),
            b"".join([one.to_bytes(8) for one in sorted(position.shown)]),
        )
    )


def _text(wire: _Wire) -> str:
    body = _PREFIX + urlsafe_b64encode(zlib.compress(_json.encode(wire), level=1)).decode()
    return f"{body}.{_checksum(body)}"


def _checksum(body: str) -> str:
    return hashlib.blake2b(body.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def decode(text: str) -> Position | None:
    """The position that `text` stands for; None if it does not begin like a cursor of ours. Raises BadQuery."""
    if _OURS.match(text) is None:
        return None
    if len(text) > _CHARS_MAX:
        _refuse(f"a cursor of {len(text)} characters", f"one of no more than {_CHARS_MAX} characters")
    if not text.startswith(_PREFIX):
        _refuse(text, ALLOWED + ", of this version")
    body, _, checksum = text.rpartition(".")
    if checksum != _checksum(body):
        _refuse(text, ALLOWED + ", unchanged")
    try:
        packed = urlsafe_b64decode(body.removeprefix(_PREFIX))
        wire = _wire.decode(zlib.decompressobj().decompress(packed, _BYTES_MAX))
    except (ValueError, zlib.error):  # msgspec's errors are of the former
        _refuse(text, ALLOWED)
    return _position(wire)


def _refuse(given: str, allowed: str) -> NoReturn:
    raise BadQuery([fault("cursor", given.encode("utf-8", "backslashreplace"), allowed)])


def _position(wire: _Wire) -> Position:
    """What a cursor says. Raises BadQuery."""
    query = Query(
        methods=wire.methods,
        task_ids=wire.task_ids,
        status=wire.status,
        created=_bounds(*wire.bounds[:2]),
        updated=_bounds(*wire.bounds[2:]),
        by=wire.by,
        descending=wire.descending,
    )
    at = UNKNOWN if wire.after[0] == _UNKNOWN else _unpack(wire.after[0])
    digests = range(0, len(wire.shown), 8)
    return Position(query, Key(at, wire.after[1]), frozenset(int.from_bytes(wire.shown[i : i + 8]) for i in digests))


def _bounds(low: str | None, high: str | None) -> Bounds:
    return _unpack(low) if low is not None else None, _unpack(high) if high is not None else None


_NUMBER: Final = re.compile(
    rf"(-?[0-9a-f]{{1,{_NUMBER_DIGITS_MAX}}})(?:/(0*[1-9a-f][0-9a-f]{{0,{_NUMBER_DIGITS_MAX - 1}}}))?"
)


def _pack(instant: Instant) -> str:
    if isinstance(instant, Fraction):
        return f"{instant.numerator:x}/{instant.denominator:x}"
    return f"{instant:x}"


_UNKNOWN: Final = _pack(UNKNOWN)


def _unpack(text: str) -> Instant:
    """The instant that a number stands for. Raises BadQuery if no timestamp has it, which nothing could reckon with."""
    number = _NUMBER.fullmatch(text)
    if number is None:
        _refuse(text, f"numbers of no more than {_NUMBER_DIGITS_MAX} hexadecimal digits")
    instant = int(number[1], 16) if number[2] is None else Fraction(int(number[1], 16), int(number[2], 16))
    if not EARLIEST <= instant <= LATEST:
        _refuse(text, "instants of the years 0000 to 9999")
    return instant
