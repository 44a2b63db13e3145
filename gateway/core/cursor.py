"""Opaque cursors: where the next page of a filtered list begins, and of which list.

In: a `Position` in the list of a query. Out: a string; and back.
Always: a cursor is self-contained, so it needs no memory here, outlives a restart and works on another replica
(DESIGN 5.5). Whatever is not a cursor of ours, or was changed, reads as None: it may be the upstream's.

A cursor tells its holder nothing but what the holder asked for, and is worth no more than asking again; it is
therefore not signed, only checksummed.
"""

import re
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from fractions import Fraction
from itertools import islice
from operator import lt
from typing import Any, Final, Literal

import msgspec

from gateway.core.query import Query
from gateway.core.task import Instant, Key, Task, digest

_PREFIX: Final = "taskgate1."
_SHOWN_MAX: Final = 20_000  # live tasks on earlier pages; beyond, one that changes may be met again
# Unpacked. Every cursor that is handed out is smaller: criteria have CRITERIA_BYTES_MAX, the digests of those shown 320
# KB, an id ID_CHARS_MAX and at most six bytes for each, six numbers 7 KB each.
_BYTES_MAX: Final = 1 << 20


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


class _Wire(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    methods: list[str] | None
    task_ids: list[str] | None
    status: list[str] | None
    bounds: tuple[str | None, str | None, str | None, str | None]
    by: Literal["createdAt", "lastUpdatedAt"]
    descending: bool
    after: tuple[str, str]
    shown: str  # 16 hexadecimal digits each


_wire = msgspec.json.Decoder(_Wire)


def encode(position: Position) -> str:
    """The cursor of a page that is not the first one."""
    query, after = position.query, position.after
    assert after is not None
    methods, task_ids, status = (
        sorted(names) if names is not None else None for names in (query.methods, query.task_ids, query.status)
    )
    low, high, first, last = (_pack(at) if at is not None else None for at in (*query.created, *query.updated))
    return _text(
        _Wire(
            methods,
            task_ids,
            status,
            (low, high, first, last),
            query.by,
            query.descending,
            (_pack(after.at), after.id),
            "".join(f"{one:016x}" for one in sorted(position.shown)),
        )
    )


def _text(wire: _Wire) -> str:
    body = zlib.compress(msgspec.json.encode(wire), level=1)
    return _PREFIX + urlsafe_b64encode(zlib.crc32(body).to_bytes(4, "big") + body).decode()


def decode(text: str) -> Position | None:
    """The position that `text` stands for; None if it is no cursor of ours."""
    if not text.startswith(_PREFIX) or not text.isascii() or len(text) > 2 * _BYTES_MAX:
        return None
    try:
        packed = urlsafe_b64decode(text[len(_PREFIX) :])
        if zlib.crc32(packed[4:]).to_bytes(4, "big") != packed[:4]:
            return None
        wire = _wire.decode(zlib.decompressobj().decompress(packed[4:], _BYTES_MAX))
        position = _position(wire)
        return position if _text(wire) == text else None
    except (ValueError, zlib.error, ZeroDivisionError):
        return None


def _position(wire: _Wire) -> Position:
    """What a cursor says. Raises ValueError or ZeroDivisionError for what `encode` would have said in another way."""
    low, high, first, last = (_unpack(bound) if bound is not None else None for bound in wire.bounds)
    query = Query(
        methods=_names(wire.methods),
        task_ids=_names(wire.task_ids),
        status=_names(wire.status),
        created=(low, high),
        updated=(first, last),
        by=wire.by,
        descending=wire.descending,
    )
    digests = bytes.fromhex(wire.shown)
    shown = [int.from_bytes(digests[at : at + 8]) for at in range(0, len(digests), 8)]
    if not _rises(shown) or len(digests) % 8 or wire.shown != digests.hex():
        raise ValueError("shown")
    return Position(query, Key(_unpack(wire.after[0]), wire.after[1]), frozenset(shown))


def _rises(values: Sequence[Any]) -> bool:
    """Whether they are in order, and none is there twice: quicker seen than by sorting them anew."""
    return all(map(lt, values, islice(values, 1, None)))


def _names(names: list[str] | None) -> frozenset[str] | None:
    if names is None:
        return None
    if not _rises(names):
        raise ValueError("names")
    return frozenset(names)


# Hexadecimal, because numbers of any length can be written and read so at once; Python refuses long decimal ones.
_NUMBER: Final = re.compile(r"(-?[0-9a-f]{1,3500})(?:/([0-9a-f]{1,3500}))?")


def _pack(instant: Instant) -> str:
    if isinstance(instant, Fraction):
        return f"{instant.numerator:x}/{instant.denominator:x}"
    return f"{instant:x}"


def _unpack(text: str) -> Instant:
    number = _NUMBER.fullmatch(text)
    if number is None:
        raise ValueError(text)
    instant = int(number[1], 16) if number[2] is None else Fraction(int(number[1], 16), int(number[2], 16))
    if _pack(instant) != text:
        raise ValueError(text)
    return instant
