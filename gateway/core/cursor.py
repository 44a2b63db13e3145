"""Opaque cursors: where the next page of a filtered list begins, and of which list.

In: a `Query` and the place of the last task handed out. Out: a string; and back.
Always: a cursor is self-contained, so it needs no memory here, outlives a restart and works on another replica
(DESIGN 5.5). Whatever is not a cursor of ours, or was changed, reads as None: it may be the upstream's.

A cursor tells its holder nothing but what the holder asked for, and is worth no more than asking again; it is
therefore not signed, only checksummed.
"""

import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from fractions import Fraction
from typing import Any, Final

import msgspec
import orjson

from gateway.core.query import Query
from gateway.core.task import Instant, Key

_PREFIX: Final = "taskgate1."
_BYTES_MAX: Final = 16 << 20  # unpacked; as much as any list of task ids that a request may carry


def encode(query: Query, last: Key) -> str:
    """The cursor of the page of `query` that follows the task at `last`."""
    lists = [sorted(v) if v is not None else None for v in (query.methods, query.task_ids, query.status)]
    bounds = [_pack(bound) for pair in (query.created, query.updated) for bound in pair]
    body = zlib.compress(orjson.dumps([*lists, *bounds, query.by, query.descending, _pack(last.at), last.id]), level=1)
    return _PREFIX + urlsafe_b64encode(zlib.crc32(body).to_bytes(4, "big") + body).decode()


class _Cursor(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    methods: frozenset[str] | None
    task_ids: frozenset[str] | None
    status: frozenset[str] | None
    created_after: int | str | None
    created_before: int | str | None
    updated_after: int | str | None
    updated_before: int | str | None
    by: str
    descending: bool
    last_at: int | str
    last_id: str


def decode(text: str) -> tuple[Query, Key] | None:
    """The query and the last place that `text` stands for; None if it is no cursor of ours."""
    if not text.startswith(_PREFIX):
        return None
    try:
        packed = urlsafe_b64decode(text[len(_PREFIX) :])
        if zlib.crc32(packed[4:]).to_bytes(4, "big") != packed[:4]:
            return None
        inflate = zlib.decompressobj()
        wire = msgspec.json.decode(inflate.decompress(packed[4:], _BYTES_MAX), type=_Cursor)
        query = Query(
            methods=wire.methods,
            task_ids=wire.task_ids,
            status=wire.status,
            created=(_unpack(wire.created_after), _unpack(wire.created_before)),
            updated=(_unpack(wire.updated_after), _unpack(wire.updated_before)),
            by="createdAt" if wire.by == "createdAt" else "lastUpdatedAt",
            descending=wire.descending,
        )
        return query, Key(_unpack(wire.last_at), wire.last_id)
    except (ValueError, zlib.error, ZeroDivisionError):
        return None


def _pack(instant: Instant | None) -> Any:
    return str(instant) if isinstance(instant, Fraction) else instant


def _unpack(value: int | str | None) -> Any:
    return Fraction(value) if isinstance(value, str) else value
