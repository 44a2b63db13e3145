"""A task: the fields that queries need, and its raw JSON, which answers contain byte for byte (DESIGN 5.6)."""

import re
from datetime import UTC, datetime
from typing import Final, TypeAlias

import msgspec

from gateway.mcp.jsonrpc import ABSENT, UNREADABLE, decoded, text

STATUSES: Final = ("working", "input_required", "completed", "failed", "cancelled")
TERMINAL: Final = frozenset({"completed", "failed", "cancelled"})
OTHER: Final = "(other)"
"""Stands for every status that MCP does not know. No criterion can name one, and servers can have one for each task."""

Instant: TypeAlias = int
"""Nanoseconds since 2020-01-01T00:00:00Z. Further digits of a timestamp are cut."""

Place: TypeAlias = tuple[Instant, str]
"""The place of a task in an order: an instant, then the task's id, so that no two places are equal."""

ID_CHARS_MAX: Final = 16_384  # of a task id: cursors have it in them

UNKNOWN: Final = -(1 << 80)
"""The instant of an unreadable timestamp: before all others, and inside every range."""

NO_END: Final = float("inf")

_RFC3339: Final = re.compile(
    r"([0-9]{4})(-[0-9]{2}-[0-9]{2}T(?:[01][0-9]|2[0-3]):[0-5][0-9]:)([0-6][0-9])"
    r"(?:\.([0-9]+))?(Z|[+-][0-9]{2}:[0-5][0-9])",
)
_EPOCH: Final = datetime(2020, 1, 1, tzinfo=UTC)
EPOCH_UNIX_S: Final = 1_577_836_800  # of 2020-01-01T00:00:00Z
_SECOND: Final = 10**9
_DAY: Final = 24 * 60 * 60 * _SECOND
_GREGORIAN_CYCLE: Final = 146_097 * _DAY  # 400 years

EARLIEST: Final = (datetime.min.toordinal() - _EPOCH.toordinal() - 367) * _DAY
LATEST: Final = (datetime.max.toordinal() - _EPOCH.toordinal() + 2) * _DAY
"""All timestamps lie between these two: the years 0000 to 9999, and a day for offsets."""


class TaskError(ValueError):
    """Not a task: no object, no `taskId` or `status` in it, an id that is too long. Of a page: not a list of tasks."""


_ASCII_BYTES: Final = "".__sizeof__()  # of a string beside its characters; they depend on the version of Python
_WIDE_BYTES: Final = "é".__sizeof__() - 1


def text_bytes(text: str) -> int:
    """Bytes of memory that a string takes, as long as nothing keeps its UTF-8 with it (`to_encode`)."""
    if text.isascii():
        return _ASCII_BYTES + len(text)
    widest = max(text)
    return _WIDE_BYTES + len(text) * (1 if widest < "\u0100" else 2 if widest < "\U00010000" else 4)


def to_encode(text: str) -> str:
    """An equal string to be encoded: encoders keep the UTF-8 of a string that is not ASCII as long as the string."""
    return text if text.isascii() else text.encode().decode()


class Moment(msgspec.Struct, frozen=True, order=True, gc=False):
    """A place in the order of what happens, and its time: clocks tick too slowly to tell the order."""

    order: int
    at: float  # seconds of one monotonic clock


NEVER: Final = Moment(0, float("-inf"))


class Stamp(msgspec.Struct, frozen=True, gc=False):
    """When an answer of the upstream's to the gateway was asked for and came."""

    as_of: Moment  # when it was asked for, or when a client asked who was told the same: its age
    asked: int
    came: int
    is_alone: bool = False  # of one task; the tasks of a page share one


NO_STAMP: Final = Stamp(NEVER, 0, 0)


class Task(msgspec.Struct, gc=False):
    """A task as last told. `status` is MCP's, or OTHER; `method` made it, None if that is unknown (DESIGN 5.3)."""

    id: str
    status: str
    created: Instant
    updated: Instant
    raw: bytes
    method: str | None = None
    expires_unix_s: float = NO_END
    """`createdAt + ttl` in seconds since 1970: from then on the task may disappear."""

    @property
    def is_terminal(self) -> bool:
        """Whether the task never changes again. It can only disappear (tasks specification, Task Status Lifecycle)."""
        return self.status in TERMINAL


class Written(msgspec.Struct):
    """The fields of nearly all tasks, as they were written. `ttl` is in milliseconds, `meta` belongs to a message."""

    taskId: str
    status: str
    createdAt: str
    lastUpdatedAt: str
    ttl: float | None = None
    meta: msgspec.Raw = msgspec.field(default=ABSENT, name="_meta")


class _Any(msgspec.Struct):
    taskId: str
    status: str
    createdAt: msgspec.Raw = ABSENT
    lastUpdatedAt: msgspec.Raw = ABSENT
    ttl: msgspec.Raw = msgspec.Raw(b"null")
    meta: msgspec.Raw = msgspec.field(default=ABSENT, name="_meta")


_plain = msgspec.json.Decoder(Written)
_any = msgspec.json.Decoder(_Any)
_number: Final[msgspec.json.Decoder[float | None]] = msgspec.json.Decoder(float | None)


def parse(raw: bytes | msgspec.Raw, method: str | None = None) -> Task:
    """The task in `raw`. Raises TaskError, which says what is wrong."""
    try:
        wire = read(raw)
    except UNREADABLE as error:
        raise TaskError(str(error)) from None
    if len(wire.taskId) > ID_CHARS_MAX:
        raise TaskError(f"a `taskId` of more than {ID_CHARS_MAX} characters")
    created, updated = told_instant(wire.createdAt), told_instant(wire.lastUpdatedAt)
    ends = NO_END if wire.ttl is None or created == UNKNOWN else EPOCH_UNIX_S + created / _SECOND + wire.ttl / 1000
    status = _SHARED_STATUS.get(wire.status, OTHER)
    return Task(wire.taskId, status, created, created if updated == created else updated, bytes(raw), method, ends)


_SHARED_STATUS: Final = {status: status for status in STATUSES}  # one string for all tasks


def read(raw: bytes | msgspec.Raw) -> Written:
    """The fields of a task. A timestamp that is no string is ""; a missing `lastUpdatedAt` is `createdAt`.

    Raises one of `jsonrpc.UNREADABLE`.
    """
    try:
        return _plain.decode(raw)
    except msgspec.ValidationError:
        wire = _any.decode(raw)
        created = text(wire.createdAt) or ""
        updated = (text(wire.lastUpdatedAt) or "") if bytes(wire.lastUpdatedAt) else created
        return Written(wire.taskId, wire.status, created, updated, decoded(_number, wire.ttl), wire.meta)


def told_instant(text: str) -> Instant:
    """The instant of an upstream's RFC 3339 timestamp, in UTC if it has no offset; UNKNOWN if it is no timestamp."""
    for spelled in (text, text + "Z"):
        if (instant := parse_instant(spelled)) is not None:
            return instant
    return UNKNOWN


def parse_instant(text: str) -> Instant | None:
    """The instant of an RFC 3339 timestamp, None if it is none. A leap second counts as the second after it."""
    # The form that JavaScript and Python write. datetime reads it three times as fast; week dates and 24:00, which it
    # would read too, are left out.
    if len(text) in (24, 27) and text[10::9] == "T." and text[-1] == "Z" and text[5] != "W" and text[11:13] != "24":
        try:
            since = datetime.fromisoformat(text) - _EPOCH
            return ((since.days * 86400 + since.seconds) * 1_000_000 + since.microseconds) * 1000
        except ValueError:
            pass
    parts = _RFC3339.fullmatch(text.upper())
    if parts is None:
        return None
    year, between, second, fraction, offset = parts.groups()
    leaps, is_first = second == "60", year == "0000"
    try:
        # datetime has no year 0000. 400 years later the calendar is the same.
        whole = f"{'0400' if is_first else year}{between}{'59' if leaps else second}{offset}"
        since = datetime.fromisoformat(whole) - _EPOCH
    except ValueError:
        return None
    instant = (since.days * 86400 + since.seconds + leaps) * _SECOND - (_GREGORIAN_CYCLE if is_first else 0)
    if leaps and instant % _DAY:
        return None  # leap seconds come at the end of a UTC day
    return instant + int(fraction[:9].ljust(9, "0")) if fraction else instant
