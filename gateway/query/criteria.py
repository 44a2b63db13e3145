"""The criteria of a `tasks/list`: declared once, in `CRITERIA`; reading, matching, cursors and capability follow it.

Other clients wait while a query is read and answered: the limits keep that to some milliseconds for the largest query.
Source: SEP-1904, Filter Parameters and Server capabilities; DESIGN 4.2, 5.1 to 5.4.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from itertools import islice
from operator import attrgetter
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
import orjson

from gateway.errors import shown
from gateway.mcp import jsonrpc, task
from gateway.mcp.jsonrpc import decoded, text
from gateway.mcp.task import EARLIEST, LATEST, UNKNOWN, Instant, Place, Task

CRITERIA_BYTES_MAX: Final = 128 * 1024  # of JSON, together: a cursor repeats them, and has a limit of its own
LIST_ITEMS_MAX: Final = 2_000  # of one criterion
FAULTS_MAX: Final = 10  # reported of one list, or of one cursor

_METHOD: Final = re.compile(r"[A-Za-z0-9_.$-]+(/[A-Za-z0-9_.$-]+)*")
_GIVEN_SHOWN_MAX: Final = 200  # characters of a wrong value that an error repeats
_NAME_SHOWN_MAX: Final = 64  # characters of an unknown name
_NEAR: Final = 0.75  # as difflib counts: an extension's `limit`, `type` or `state` is no criterion
_UNKNOWN_READ_MAX: Final = 1_000  # colons in unknown members: each member has at least one

_items = msgspec.json.Decoder(list[msgspec.Raw])


class NotAllowed(Exception):
    """A value is not allowed. `given` are its wrong parts; if empty, the whole value is wrong."""

    def __init__(self, allowed: str, given: Sequence[bytes] = ()) -> None:
        self.allowed, self.given = allowed, given


class Kind(msgspec.Struct, frozen=True):
    """A kind of value.

    `read` makes the value from raw JSON. It raises NotAllowed, and returns None for what is as good as absent.
    `packed` is the type of its JSON in a cursor, of which `unpack` makes the value. `choices` are all values, if few.
    The raw JSON is an array of strings if `is_list`. Else it is a string, or what else `read` takes: cursors that spell
    criteria, and flags, have strings alone. `what` are words for a value, or for the items of a list.
    """

    read: Callable[[bytes], Any]
    packed: Any
    unpack: Callable[[Any], Any] = str
    choices: tuple[str, ...] = ()
    is_list: bool = False
    what: str = ""


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
    return Kind(read, packed, frozenset, is_list=True, what=what)


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
INSTANT: Final = Kind(_read_instant, PackedInstant, partial(int, base=16), what="this instant included")


OrderBy: TypeAlias = Literal["createdAt", "lastUpdatedAt"]
PLACE: Final[dict[OrderBy, Callable[[Task], Place]]] = {
    "createdAt": attrgetter("created", "id"),
    "lastUpdatedAt": attrgetter("updated", "id"),
}
"""The place of a task in each order, ascending."""

Bounds: TypeAlias = tuple[Instant, Instant]
OPEN: Final[Bounds] = (EARLIEST, LATEST)


class Criterion(msgspec.Struct, frozen=True):
    """All that the gateway knows of one criterion.

    `capability` is the path of its member in `tasks.list.filter`. The value there is the list of choices, if it has
    choices; the methods of the server, for a criterion on the method; else true.
    """

    name: str
    kind: Kind
    capability: tuple[str, ...]
    aliases: tuple[str, ...] = ()
    default: Any = None


_METHODS: Final = strings('request methods, such as "tools/call"', _METHOD.fullmatch)
_STATUSES: Final = strings("statuses: " + ", ".join(task.STATUSES), task.STATUSES.__contains__)

CRITERIA: Final = {
    criterion.name: criterion
    for criterion in (
        # `requestTypes` is the name in an earlier draft.
        Criterion("methods", _METHODS, ("methods",), ("requestTypes",)),
        Criterion("taskIds", strings("task ids (strings)", lambda _: True), ("taskIds",)),
        Criterion("status", _STATUSES, ("status",)),
        Criterion("createdBefore", INSTANT, ("createdAt", "before")),
        Criterion("createdAfter", INSTANT, ("createdAt", "after")),
        Criterion("lastUpdatedBefore", INSTANT, ("lastUpdatedAt", "before")),
        Criterion("lastUpdatedAfter", INSTANT, ("lastUpdatedAt", "after")),
        Criterion("orderBy", choice("createdAt", "lastUpdatedAt"), ("order", "by"), default="lastUpdatedAt"),
        Criterion("order", choice("asc", "desc"), ("order", "direction"), default="desc"),
    )
}
_RANGES: Final = (("createdAfter", "createdBefore"), ("lastUpdatedAfter", "lastUpdatedBefore"))
NAMES: Final = {name: criterion for criterion in CRITERIA.values() for name in (criterion.name, *criterion.aliases)}
DEFAULTS: Final = {name: criterion.default for name, criterion in CRITERIA.items() if criterion.default is not None}


def capability(methods: tuple[str, ...]) -> bytes:
    """The raw value of `tasks.list.filter`, at a server whose `methods` make tasks (SEP-1904, Server capabilities)."""
    whole: dict[str, Any] = {}
    for criterion in CRITERIA.values():
        inner, (*path, last) = whole, criterion.capability
        for name in path:
            inner = inner.setdefault(name, {})
        inner[last] = methods if criterion.name == "methods" else criterion.kind.choices or True
    return orjson.dumps(whole)


def within(bounds: Bounds, at: Instant) -> bool:
    """Whether an instant lies in inclusive bounds. UNKNOWN lies in all bounds, so that no task is lost."""
    return bounds[0] <= at <= bounds[1] or at == UNKNOWN


class Query:
    """What a requestor asks for: the value of each criterion, by its name. It never changes.

    `methods`, `statuses` and `task_ids` are None if they are not given. `place` gives the place of a task in the order,
    ascending.
    """

    def __init__(self, **given: Any) -> None:
        """`given` are values by the names of their criteria. None stands for a criterion that is not given."""
        self.values = DEFAULTS | {name: value for name, value in given.items() if value is not None}
        value_of = self.values.get
        self.methods: frozenset[str] | None = value_of("methods")
        self.statuses: frozenset[str] | None = value_of("status")
        self.task_ids: frozenset[str] | None = value_of("taskIds")
        self.created: Bounds = (value_of("createdAfter", EARLIEST), value_of("createdBefore", LATEST))
        self.updated: Bounds = (value_of("lastUpdatedAfter", EARLIEST), value_of("lastUpdatedBefore", LATEST))
        self.by: OrderBy = self.values["orderBy"]
        self.place = PLACE[self.by]
        self.descending = self.values["order"] == "desc"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Query) and self.values == other.values

    def __repr__(self) -> str:
        return f"Query({', '.join(f'{name}={value!r}' for name, value in self.values.items())})"

    def has_method(self, method: str | None) -> bool:
        return self.methods is None or method is None or method in self.methods  # an unknown one matches (DESIGN 5.3)

    def matches(self, candidate: Task, default_method: str | None = None) -> bool:
        """Whether all criteria hold for a task. `default_method` stands in for an unknown method."""
        return (
            (self.task_ids is None or candidate.id in self.task_ids)
            and (self.statuses is None or candidate.status in self.statuses)
            and (self.methods is None or self.has_method(candidate.method or default_method))
            and within(self.created, candidate.created)
            and within(self.updated, candidate.updated)
        )


class Fault(msgspec.Struct):
    """One thing wrong with a request: where, what was given (its JSON, or words for it), what is allowed."""

    parameter: str
    given: str
    allowed: str

    def __str__(self) -> str:
        return f"{self.parameter}: given {self.given}, allowed is {self.allowed}"


class BadQuery(ValueError):
    """The parameters of a filtered `tasks/list` are wrong: JSON-RPC -32602, all faults in `data.errors`."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__("Invalid params: " + "; ".join(map(str, faults)))
        self.faults = faults


def fault(parameter: str, raw: bytes, allowed: str) -> Fault:
    """The fault of a value. `raw` is its JSON, or words for it; if it is long, it is cut."""
    return Fault(parameter, shown(raw.decode("utf-8", "replace"), _GIVEN_SHOWN_MAX), allowed)


class Params(msgspec.Struct):
    """The params of a `tasks/list` as far as they are read, raw: these members, and one for each criterion."""

    filter: msgspec.Raw = jsonrpc.ABSENT
    cursor: msgspec.Raw = jsonrpc.ABSENT
    meta: msgspec.Raw = msgspec.field(default=jsonrpc.ABSENT, name="_meta")


@cache
def _decoder(base: type[msgspec.Struct], only: bool = False) -> msgspec.json.Decoder[Any]:
    """Reads the members of `base` and the criteria; `only`: and refuses others. Of one given twice the last counts."""
    fields = [(name, msgspec.Raw, jsonrpc.ABSENT) for name in NAMES]
    return msgspec.json.Decoder(msgspec.defstruct("_Read", fields, bases=(base,), forbid_unknown_fields=only))


def params(raw: msgspec.Raw | bytes) -> Params:
    """The params of a `tasks/list` as far as they are read; empty if they are no object."""
    found: Params | None = decoded(_decoder(Params), raw)
    return params(b"{}") if found is None else found


def ignored(raw: msgspec.Raw | bytes, read: Params) -> list[str]:
    """The names of unread members in the params of a `tasks/list`: some of them, then "..." if there are more."""
    if decoded(_decoder(Params, only=True), raw) is not None:
        return []
    some, more = _unknown(bytes(raw), read)
    return [*some, "..."] if more else list(some)


def misspelt(ignored: Iterable[str]) -> dict[str, str]:
    """Those of some names that are nearly criteria, each with the nearest one."""
    plain = {name.lower(): name for name in NAMES}
    given = {name: re.sub("[_-]", "", name.lower()) for name in ignored}
    near = {name: difflib.get_close_matches(text, plain, 1, _NEAR) for name, text in given.items()}
    return {name: plain[found[0]] for name, found in near.items() if found}


def _unknown(raw: bytes, read: msgspec.Struct) -> tuple[dict[str, bytes], bool]:
    """Some unknown members of a raw object, names cut, and whether there are more: to read them takes time."""
    colons = raw.count(b":") - sum(bytes(getattr(read, name)).count(b":") for name in read.__struct_fields__)
    if colons > _UNKNOWN_READ_MAX:
        return {}, True
    others = {name: value for name, value in jsonrpc.members(raw).items() if name not in read.__struct_encode_fields__}
    some = {shown(name, _NAME_SHOWN_MAX): bytes(value) for name, value in islice(others.items(), FAULTS_MAX)}
    return some, len(others) > FAULTS_MAX


Given: TypeAlias = tuple[str, Criterion, bytes]
"""A criterion as it was given: the name of its parameter, the criterion, its raw JSON."""


def read(top: Params) -> Query | None:
    """The query in the params of a `tasks/list`; None if they name no criterion. Raises BadQuery."""
    faults: list[Fault] = []
    return query_of([*_present("", top), *_in_filter(bytes(top.filter), faults)], faults)


def _present(prefix: str, members: msgspec.Struct) -> list[Given]:
    found = []
    for name, criterion in NAMES.items():
        raw = getattr(members, name)
        if raw is not jsonrpc.ABSENT and bytes(raw) != b"null":
            found.append((prefix + name, criterion, bytes(raw)))
    return found


def _in_filter(raw: bytes, faults: list[Fault]) -> list[Given]:
    if raw in (b"", b"null"):
        return []
    if (members := decoded(_decoder(msgspec.Struct, only=True), raw)) is not None:
        return _present("filter.", members)
    if (members := decoded(_decoder(msgspec.Struct), raw)) is None:
        faults.append(fault("filter", raw, "an object that holds criteria"))
        return []
    some, more = _unknown(raw, members)
    faults += [no_criterion("filter.", name, value) for name, value in some.items()]
    if more:
        faults.append(fault("filter", raw, "an object that holds criteria, and nothing else"))
    return _present("filter.", members)


def no_criterion(prefix: str, name: str, raw: bytes) -> Fault:
    """The fault of a member that is no criterion. It tells the nearest name."""
    name = shown(name, _NAME_SHOWN_MAX)
    near = difflib.get_close_matches(name, NAMES, 1)
    which = f"did you mean `{near[0]}`?" if near else "one of " + ", ".join(f"`{one}`" for one in NAMES)
    return fault(prefix + name, raw, f"the name of a criterion: {which}")


def query_of(given: list[Given], faults: list[Fault]) -> Query | None:
    """The query of some criteria; None if there are none. Raises BadQuery for their faults and those in `faults`."""
    if (total := sum(len(raw) for _, _, raw in given)) > CRITERIA_BYTES_MAX:
        largest, _, _ = max(given, key=lambda one: len(one[2]))
        allowed = f"no more than {CRITERIA_BYTES_MAX} bytes of criteria in one request"
        raise BadQuery([Fault(largest, f"{total} bytes of criteria", allowed)])
    values: dict[str, Any] = {}
    places: dict[str, tuple[str, bytes]] = {}
    for parameter, criterion, raw in given:
        try:
            value = criterion.kind.read(raw)
        except NotAllowed as refused:
            faults += [fault(parameter, one, refused.allowed) for one in refused.given or [raw]]
            continue
        if value is None:
            continue
        if values.setdefault(criterion.name, value) != value:
            faults.append(fault(parameter, raw, f"the same value as the other `{criterion.name}`"))
        values[criterion.name], places[criterion.name] = value, (parameter, raw)
    for low, high in _RANGES:
        if low in values and high in values and values[low] > values[high]:
            faults.append(fault(*places[low], f"an instant not later than `{high}`"))
    if faults:
        raise BadQuery(faults)
    return Query(**values) if values else None
