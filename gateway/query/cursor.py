"""The cursors of the gateway: opaque ones, and those in which clients spell criteria.

    taskgate4.<base64url of JSON>.<checksum of all that is before it, in hexadecimal>
    taskgate:?status=working,failed&createdAfter=2026-11-20T00:00:00Z

The JSON is an array: the criteria by their names, the place of the last task. So a cursor
needs no memory here, outlives a restart and works on another replica (DESIGN 5.5). A string with another beginning may
be the upstream's cursor. A cursor of ours that was changed, cut or lengthened is an error (DESIGN 5.4); limits come
before work. A checksum is enough, without a signature: a forged cursor gets only what a new query gets.

Typed SDKs drop unknown parameters, but send every cursor as it is: so their users can filter (DESIGN 5.1). A list is
split at commas; its name may also be repeated. Then names and values are percent-decoded; `+` is a plus.
"""

import hashlib
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import a2b_qp
from collections.abc import Sequence
from typing import Annotated, Any, Final, NoReturn, TypeAlias

import msgspec

from gateway.mcp.task import ID_CHARS_MAX, Place, Task, to_encode
from gateway.query import criteria

ALLOWED: Final = "a nextCursor of this list, with the same criteria; else begin at the first page"

_PREFIX: Final = "taskgate4."
_OURS: Final = re.compile(r"taskgate(?:[0-9]+\.|:)")  # of any version, or spelled
# Of the JSON: the criteria, an id in JSON of at most six bytes a character, the rest.
_BYTES_MAX: Final = criteria.CRITERIA_BYTES_MAX + 6 * ID_CHARS_MAX + 1024
_CHARS_MAX: Final = 4 * _BYTES_MAX // 3 + 1024  # of a cursor
_BEGINNING: Final = "taskgate:"
_SPELLED: Final = "criteria as a query string, such as `taskgate:?status=working,failed&order=asc`"
_VALUES_MAX: Final = 2 * criteria.LIST_ITEMS_MAX
_SINGLE_MAX: Final = 20  # values of criteria that are no lists: each may be a fault
_NO_ESCAPE: Final = re.compile("%(?![0-9A-Fa-f]{2})")


class Position(msgspec.Struct, frozen=True):
    """A page of a list, behind the place `after`. One that `comes_again` is small, and remembered (query_answer.py)."""

    query: criteria.Query
    after: Place | None = None
    comes_again: bool = False
    header: str | None = None  # the criteria as they stood in the header, if they did


def following(position: Position, tasks: Sequence[Task]) -> Position:
    """The position behind the page at `position`; `tasks` are on that page."""
    return Position(position.query, position.query.place(tasks[-1]))


_After: TypeAlias = tuple[criteria.PackedInstant, Annotated[str, msgspec.Meta(max_length=ID_CHARS_MAX)]]


_given = [(name, criterion.kind.packed | None, None) for name, criterion in criteria.CRITERIA.items()]
_members = [("criteria", msgspec.defstruct("_Criteria", _given, forbid_unknown_fields=True)), ("after", _After)]
_Cursor = msgspec.defstruct("_Cursor", _members, array_like=True, forbid_unknown_fields=True)
_decoder: Final = msgspec.json.Decoder[Any](_Cursor)
_json: Final = msgspec.json.Encoder(order="deterministic")


def encode(position: Position) -> str:
    """The cursor of any page but the first."""
    assert position.after is not None
    at, task_id = position.after
    values = ((name, v) for name, v in position.query.values.items() if v != criteria.DEFAULTS.get(name))
    given = {name: f"{value:x}" if isinstance(value, int) else value for name, value in values}
    raw = _json.encode((given, (f"{at:x}", to_encode(task_id))))
    body = _PREFIX + urlsafe_b64encode(raw).decode()
    return f"{body}.{_checksum(body)}"


def _checksum(body: str) -> str:
    return hashlib.blake2b(body.encode(), digest_size=8).hexdigest()


def is_spelled(text: str) -> bool:
    return text.startswith(_BEGINNING)


def decode(text: str) -> Position | None:
    """The position that `text` stands for; None if it does not begin like a cursor of ours. Raises BadQuery."""
    if _OURS.match(text) is None:
        return None
    if is_spelled(text):
        return Position(read_spelled(text))
    if len(text) > _CHARS_MAX:
        refuse(f"a cursor of {len(text)} characters", f"one of no more than {_CHARS_MAX} characters")
    if not text.startswith(_PREFIX):
        refuse(text, "a nextCursor of this version of taskgate: begin at the first page")
    body, _, checksum = text.rpartition(".")
    if checksum != _checksum(body):
        refuse(text, f"unchanged, {ALLOWED}")
    try:
        said = _decoder.decode(urlsafe_b64decode(body[len(_PREFIX) :]))
    except ValueError:  # msgspec's errors are ValueErrors
        refuse(text, ALLOWED)
    packed = ((name, c.kind, getattr(said.criteria, name)) for name, c in criteria.CRITERIA.items())
    given = {name: kind.unpack(value) for name, kind, value in packed if value is not None}
    instant, task_id = said.after
    return Position(criteria.Query(**given), (int(instant, 16), task_id))


def read_spelled(text: str) -> criteria.Query:
    """The query that a cursor spells. Raises BadQuery."""
    beginning, mark, pairs = text.partition("?")
    if beginning + mark != _BEGINNING + "?":
        refuse(text, _SPELLED)
    return read_pairs(pairs, "cursor")


def read_pairs(pairs: str, where: str) -> criteria.Query:
    """The query that the pairs of a query string spell; `where` they stand. Raises BadQuery."""
    if len(pairs) > criteria.CRITERIA_BYTES_MAX:
        refuse(f"{len(pairs)} characters", f"no more than {criteria.CRITERIA_BYTES_MAX} characters", where)
    if (count := 1 + pairs.count("&") + pairs.count(",")) > _VALUES_MAX:
        refuse(f"{count} values", f"no more than {_VALUES_MAX} values", where)
    faults: list[criteria.Fault] = []
    single: list[criteria.Given] = []
    lists: dict[str, list[str]] = {}
    for pair in filter(None, pairs.split("&")):
        raw_name, _, value = pair.partition("=")
        name = _decoded(raw_name, where)
        criterion = criteria.NAMES.get(name)
        if criterion is None:
            faults.append(criteria.no_criterion(f"{where}.", name, msgspec.json.encode(_decoded(value, where))))
        elif criterion.kind.is_list:
            lists.setdefault(name, []).extend(_decoded(one, where) for one in (value.split(",") if value else ()))
        else:
            single.append((f"{where}.{name}", criterion, msgspec.json.encode(_decoded(value, where))))
        if len(faults) == criteria.FAULTS_MAX:
            raise criteria.BadQuery(faults)
        if len(single) > _SINGLE_MAX:
            refuse(pairs, f"no more than {_SINGLE_MAX} values of criteria that are no lists", where)
    listed = [(f"{where}.{name}", criteria.NAMES[name], msgspec.json.encode(items)) for name, items in lists.items()]
    return criteria.query_of([*listed, *single], faults) or criteria.Query()


def _decoded(text: str, where: str) -> str:
    if "%" not in text:
        return text
    allowed = "percent-encoded UTF-8, in which `%25` stands for a percent sign"
    if _NO_ESCAPE.search(text) is not None:
        refuse(text, allowed, where)
    try:
        # Quoted-printable, which is decoded in C: `unquote` takes ten times as long.
        return a2b_qp(text.replace("=", "=3D").replace("%", "=").encode()).decode()
    except UnicodeError:
        refuse(text, allowed, where)


def refuse(given: str, allowed: str, where: str = "cursor") -> NoReturn:
    """Raises BadQuery: a cursor, or a part of it, or words for it, is not what is allowed."""
    raise criteria.BadQuery([criteria.fault(where, given.encode("utf-8", "backslashreplace"), allowed)])
