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
from fractions import Fraction
from typing import Final, Literal

import msgspec

from gateway.core.query import Query
from gateway.core.task import Instant, Key, Last

_PREFIX: Final = "taskgate1."
_BYTES_MAX: Final = 16 << 20  # unpacked; as much as any list of task ids that a request may carry


class Position(msgspec.Struct, frozen=True):
    """A page of a list: the one behind the place `after`, and not beyond `until`, where there are such places.

    In ascending order of last update a task that changes moves ahead; without `until`, the last places when the first
    page was handed out, whoever follows the cursors would meet it again.
    """

    query: Query
    after: Key | None = None
    until: Last | None = None


class _Wire(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    methods: list[str] | None
    task_ids: list[str] | None
    status: list[str] | None
    bounds: tuple[str | None, str | None, str | None, str | None]
    by: Literal["createdAt", "lastUpdatedAt"]
    descending: bool
    after: tuple[str, str]
    until: tuple[str, list[str]] | None


_wire = msgspec.json.Decoder(_Wire)


def encode(position: Position) -> str:
    """The cursor of a page that is not the first one."""
    query, after, until = position.query, position.after, position.until
    assert after is not None
    methods, task_ids, status = (
        sorted(names) if names is not None else None for names in (query.methods, query.task_ids, query.status)
    )
    low, high, first, last = (_pack(at) if at is not None else None for at in (*query.created, *query.updated))
    wire = _Wire(
        methods,
        task_ids,
        status,
        (low, high, first, last),
        query.by,
        query.descending,
        (_pack(after.at), after.id),
        (_pack(until.at), sorted(until.ids)) if until is not None else None,
    )
    body = zlib.compress(msgspec.json.encode(wire), level=1)
    return _PREFIX + urlsafe_b64encode(zlib.crc32(body).to_bytes(4, "big") + body).decode()


def decode(text: str) -> Position | None:
    """The position that `text` stands for; None if it is no cursor of ours."""
    if not text.startswith(_PREFIX) or not text.isascii():
        return None
    try:
        packed = urlsafe_b64decode(text[len(_PREFIX) :])
        if zlib.crc32(packed[4:]).to_bytes(4, "big") != packed[:4]:
            return None
        wire = _wire.decode(zlib.decompressobj().decompress(packed[4:], _BYTES_MAX))
        bounds = [_unpack(bound) if bound is not None else None for bound in wire.bounds]
        query = Query(
            methods=_names(wire.methods),
            task_ids=_names(wire.task_ids),
            status=_names(wire.status),
            created=(bounds[0], bounds[1]),
            updated=(bounds[2], bounds[3]),
            by=wire.by,
            descending=wire.descending,
        )
        until = Last(_unpack(wire.until[0]), frozenset(wire.until[1])) if wire.until is not None else None
        position = Position(query, Key(_unpack(wire.after[0]), wire.after[1]), until)
        return position if encode(position) == text else None
    except (ValueError, zlib.error, ZeroDivisionError):
        return None


def _names(names: list[str] | None) -> frozenset[str] | None:
    return frozenset(names) if names is not None else None


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
    return int(number[1], 16) if number[2] is None else Fraction(int(number[1], 16), int(number[2], 16))
