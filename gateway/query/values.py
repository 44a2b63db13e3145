"""The kinds of values that criteria have: how each is read from JSON, and how a cursor carries and checks it."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec

from gateway.mcp import task
from gateway.mcp.jsonrpc import decoded, text
from gateway.mcp.task import Instant

LIST_ITEMS_MAX: Final = 2_000  # of one criterion
FAULTS_MAX: Final = 10  # reported of one list, or of one cursor


_items = msgspec.json.Decoder(list[msgspec.Raw])


class NotAllowed(Exception):
    """A value is not allowed. `given` are its wrong parts; if empty, the whole value is wrong."""

    def __init__(self, allowed: str, given: Sequence[bytes] = ()) -> None:
        self.allowed, self.given = allowed, given


class Kind(msgspec.Struct, frozen=True):
    """A kind of value.

    `read` makes the value from raw JSON. It raises NotAllowed, and returns None for what is as good as absent.
    `packed` is the type of the value's JSON in a cursor. If that JSON is not the value itself, `pack` makes it from the
    value, and `unpack` makes the value from it or raises NotAllowed. `choices` are all values, if there are few.
    The raw JSON is an array of strings if `is_list`. Else it is a string, or what else `read` takes: cursors that spell
    criteria, and flags, have strings alone.
    """

    read: Callable[[bytes], Any]
    packed: Any
    pack: Callable[[Any], Any] | None = None
    unpack: Callable[[Any], Any] | None = None
    choices: tuple[str, ...] = ()
    is_list: bool = False


def strings(what: str, accept: Callable[[str], object]) -> Kind:
    """A list of strings, as a frozenset; one alone is a list of one (DESIGN 5.2). `what` describes `accept`."""

    def read(raw: bytes) -> frozenset[str] | None:
        items = [msgspec.Raw(raw)] if raw[:1] == b'"' else decoded(_items, raw)
        if items is None:
            raise NotAllowed(f"an array of {what}")
        if len(items) > LIST_ITEMS_MAX:
            raise NotAllowed(f"an array of no more than {LIST_ITEMS_MAX} {what}", [b"%d of them" % len(items)])
        texts = [text(item) for item in items]
        wrong = [bytes(item) for item, one in zip(items, texts, strict=True) if one is None or not accept(one)]
        if wrong:
            raise NotAllowed(f"an array of {what}", wrong[:FAULTS_MAX])
        return frozenset(one for one in texts if one is not None) or None

    packed = Annotated[tuple[str, ...], msgspec.Meta(max_length=LIST_ITEMS_MAX)]  # of a set one item would count once
    return Kind(read, packed, unpack=frozenset, is_list=True)


def choice(*choices: str) -> Kind:
    def read(raw: bytes) -> str:
        value = text(raw)
        if value not in choices:
            raise NotAllowed(" or ".join(f'"{one}"' for one in choices))
        return value

    return Kind(read, Literal[choices], choices=choices)


def _read_instant(raw: bytes) -> Instant:
    given = text(raw)
    instant = None if given is None else task.parse_instant(given)
    if instant is None:
        raise NotAllowed('an RFC 3339 timestamp with its offset, such as "2025-11-25T10:30:00Z"')
    return instant


PackedInstant: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A-?[0-9a-f]{1,21}\Z")]
"""An instant in hexadecimal: that of the year 9999 has 17 digits, UNKNOWN has 21."""


def pack_instant(instant: Instant) -> str:
    return f"{instant:x}"


def unpack_instant(text: str) -> Instant:
    return int(text, 16)


INSTANT: Final = Kind(_read_instant, PackedInstant, pack_instant, unpack_instant)
