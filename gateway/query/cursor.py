"""Opaque cursors: where the next page of a filtered list begins, and of which list.

    taskgate4.<base64url of JSON>.<checksum of all that is before it, in hexadecimal>

The JSON, compressed if it is large, is an array: the criteria by their names, the place of the last task. So a cursor
needs no memory here, outlives a restart and works on another replica (DESIGN 5.5). Its beginning tells that it is ours:
a string with another one may be the upstream's cursor, or one that a client spells (query_string.py). A cursor of ours
that was changed, cut or lengthened is an error (DESIGN 5.4). Limits come before work.

A cursor tells its holder only what the holder has asked for, and a forged one gets only what a new query gets. So a
checksum is enough, without a signature.
"""

import hashlib
import re
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any, Final, TypeAlias

import msgspec

from gateway.mcp.task import ID_CHARS_MAX, Place, Task, apart
from gateway.query import query_string
from gateway.query.criteria import CRITERIA, CRITERIA_BYTES_MAX, Query, defaults
from gateway.query.values import NotAllowed, PackedInstant, pack_instant, unpack_instant

ALLOWED: Final = "a nextCursor of this list, with the same criteria; else begin at the first page"

_PREFIX: Final = "taskgate4."
_OURS: Final = re.compile(r"taskgate(?:[0-9]+\.|:)")  # of any version, or spelled
# Unpacked: the criteria, an id in JSON of at most six bytes a character, the rest.
_BYTES_MAX: Final = CRITERIA_BYTES_MAX + 6 * ID_CHARS_MAX + 1024
_CHARS_MAX: Final = 4 * _BYTES_MAX // 3 + 1024  # of a cursor that does not compress at all

_SMALL_BYTES: Final = 256


class Position(msgspec.Struct, frozen=True):
    """A page of a list, behind the place `after`. One that `comes_again` is small, and remembered (answer.py)."""

    query: Query
    after: Place | None = None
    comes_again: bool = False
    header: str | None = None  # the criteria as they stood in the header, if they did


def following(position: Position, tasks: Sequence[Task]) -> Position:
    """The position behind the page at `position`; `tasks` are on that page."""
    return Position(position.query, position.query.place(tasks[-1]))


_After: TypeAlias = tuple[PackedInstant, Annotated[str, msgspec.Meta(max_length=ID_CHARS_MAX)]]


@cache
def _decoder() -> msgspec.json.Decoder[Any]:
    fields = [(name, criterion.kind.packed | None, None) for name, criterion in CRITERIA.items()]
    criteria = msgspec.defstruct("_Criteria", fields, forbid_unknown_fields=True)
    members = [("criteria", criteria), ("after", _After)]
    return msgspec.json.Decoder(msgspec.defstruct("_Cursor", members, array_like=True, forbid_unknown_fields=True))


_json = msgspec.json.Encoder(order="deterministic")


def encode(position: Position) -> str:
    """The cursor of any page but the first."""
    assert position.after is not None
    at, task_id = position.after
    usual = defaults()
    criteria = {
        name: value if (pack := CRITERIA[name].kind.pack) is None else pack(value)
        for name, value in position.query.values.items()
        if value != usual.get(name)
    }
    raw = _json.encode((criteria, (pack_instant(at), apart(task_id))))
    body = _PREFIX + urlsafe_b64encode(_packed(raw)).decode()
    return f"{body}.{_checksum(body)}"


def _packed(raw: bytes) -> bytes:
    """The JSON of a cursor. A small one stays as it is: compressing it would double the cost of a cursor."""
    return zlib.compress(raw, level=1) if len(raw) > _SMALL_BYTES else raw


def _unpacked(packed: bytes) -> bytes:
    """The JSON of a cursor, which is an array; no compressed data begins like one."""
    return packed if packed.startswith(b"[") else zlib.decompressobj().decompress(packed, _BYTES_MAX)


def _checksum(body: str) -> str:
    return hashlib.blake2b(body.encode(), digest_size=8).hexdigest()


def is_spelled(text: str) -> bool:
    """Whether a cursor spells criteria."""
    return text.startswith(query_string.BEGINNING)


def decode(text: str) -> Position | None:
    """The position that `text` stands for; None if it does not begin like a cursor of ours. Raises BadQuery."""
    if _OURS.match(text) is None:
        return None
    if is_spelled(text):
        return Position(query_string.read(text))
    if len(text) > _CHARS_MAX:
        query_string.refuse(f"a cursor of {len(text)} characters", f"one of no more than {_CHARS_MAX} characters")
    if not text.startswith(_PREFIX):
        query_string.refuse(text, "a nextCursor of this version of taskgate: begin at the first page")
    body, _, checksum = text.rpartition(".")
    if checksum != _checksum(body):
        query_string.refuse(text, f"unchanged, {ALLOWED}")
    try:
        return _position(_decoder().decode(_unpacked(urlsafe_b64decode(body[len(_PREFIX) :]))))
    except NotAllowed as refused:
        query_string.refuse(refused.given[0].decode(), refused.allowed)
    except (ValueError, zlib.error):  # msgspec's errors are ValueErrors
        query_string.refuse(text, ALLOWED)


def _position(said: Any) -> Position:
    given = {
        name: packed if (unpack := criterion.kind.unpack) is None else unpack(packed)
        for name, criterion in CRITERIA.items()
        if (packed := getattr(said.criteria, name)) is not None
    }
    instant, task_id = said.after
    return Position(Query(**given), (unpack_instant(instant), task_id))
