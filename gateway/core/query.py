"""The criteria of a `tasks/list`: read from the request's parameters, checked, matched, ordered.

In: the raw `params` of a request. Out: a `Query`; or None where they name no criterion, and the request goes to the
upstream untouched; or `BadQuery`, with one entry for every fault (DESIGN 5.4).
Always: bounds are inclusive, an empty list or null is as good as absent, and all criteria must hold (DESIGN 5.2).
Members that are no criteria cost no more than their bytes. The limits are such that reading and answering the largest
query takes some milliseconds, since everybody else waits meanwhile.

Source: SEP-1904, Filter Parameters; DESIGN 5.1 to 5.4.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from gateway.core import jsonrpc, task
from gateway.core.plane import Order
from gateway.core.runs import OPEN, within
from gateway.core.task import Instant, Task

_METHOD: Final = re.compile(r"[A-Za-z0-9_.$-]+(/[A-Za-z0-9_.$-]+)*")
CRITERIA_BYTES_MAX: Final = 128 * 1024  # of JSON, together: a cursor repeats them, and is itself limited
LIST_ITEMS_MAX: Final = 2_000  # of one criterion
_FAULTS_MAX: Final = 10  # that are told of one list
_GIVEN_SHOWN_MAX: Final = 200  # characters of a wrong value that an error repeats


class Fault(msgspec.Struct):
    """One thing wrong with a request: where, what was given (as JSON), what is allowed."""

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


class Query(msgspec.Struct, frozen=True):
    """What a requestor asks for. None, or a bound of None, means that the criterion is not given."""

    methods: frozenset[str] | None = None
    task_ids: frozenset[str] | None = None
    status: frozenset[str] | None = None
    created: Any = OPEN  # Bounds
    updated: Any = OPEN  # Bounds
    by: Order = "lastUpdatedAt"
    descending: bool = True

    def accepts_method(self, method: str | None) -> bool:
        """Whether a task made by `method` may be shown: one of unknown method always (DESIGN 5.3)."""
        return self.methods is None or method is None or method in self.methods

    def matches(self, candidate: Task, default_method: str | None = None) -> bool:
        """Whether all criteria hold for a task; `default_method` stands in where its own is unknown."""
        return (
            (self.status is None or candidate.status in self.status)
            and (self.task_ids is None or candidate.id in self.task_ids)
            and self.accepts_method(candidate.method or default_method)
            and within(self.created, candidate.created.at)
            and within(self.updated, candidate.updated.at)
        )

    def may_match(self, candidate: Task, default_method: str | None = None) -> bool:
        """Whether a task may still change, and match then: its status, and its last update, which only grows."""
        return (
            not candidate.is_terminal
            and (self.task_ids is None or candidate.id in self.task_ids)
            and self.accepts_method(candidate.method or default_method)
            and within(self.created, candidate.created.at)
            and within((None, self.updated[1]), candidate.updated.at)
        )

    @property
    def moves_ahead(self) -> bool:
        """Whether a task that changes moves to where the list is still to be read."""
        return self.by == "lastUpdatedAt" and not self.descending

    def place(self, candidate: Task) -> task.Key:
        """The task's place in the order asked for, which a descending query walks backwards."""
        return candidate.created if self.by == "createdAt" else candidate.updated


class Criteria(msgspec.Struct):
    """The members of an object that are criteria, raw; of one that is given twice the last counts."""

    methods: msgspec.Raw = jsonrpc.ABSENT
    requestTypes: msgspec.Raw = jsonrpc.ABSENT
    taskIds: msgspec.Raw = jsonrpc.ABSENT
    status: msgspec.Raw = jsonrpc.ABSENT
    createdAfter: msgspec.Raw = jsonrpc.ABSENT
    createdBefore: msgspec.Raw = jsonrpc.ABSENT
    lastUpdatedAfter: msgspec.Raw = jsonrpc.ABSENT
    lastUpdatedBefore: msgspec.Raw = jsonrpc.ABSENT
    orderBy: msgspec.Raw = jsonrpc.ABSENT
    order: msgspec.Raw = jsonrpc.ABSENT

    def raw(self, name: str) -> bytes:
        """The criterion of that name; empty if it is absent or null."""
        value = bytes(getattr(self, name))
        return b"" if value == b"null" else value


class Params(Criteria):
    """The members of the `params` of a `tasks/list` that are read here, raw."""

    filter: msgspec.Raw = jsonrpc.ABSENT
    cursor: msgspec.Raw = jsonrpc.ABSENT
    meta: msgspec.Raw = msgspec.field(default=jsonrpc.ABSENT, name="_meta")


_params = msgspec.json.Decoder(Params)
_criteria = msgspec.json.Decoder(Criteria)


def params(raw: msgspec.Raw | bytes) -> Params:
    """What is read of the params of a `tasks/list`; nothing if they are no object."""
    try:
        return _params.decode(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return Params()


def read(top: Params) -> Query | None:
    """The query in the params of a `tasks/list`; None if they name no criterion. Raises BadQuery."""
    faults: list[Fault] = []
    given = _collect(top, faults)
    if not given and not faults:
        return None
    for low, high in (("createdAfter", "createdBefore"), ("lastUpdatedAfter", "lastUpdatedBefore")):
        first, last = given.get(low), given.get(high)
        if first is not None and last is not None and first.value > last.value:
            faults.append(fault(first.parameter, first.raw, f"an instant not later than `{high}`"))
    if faults:
        raise BadQuery(faults)

    def value(name: str, default: Any = None) -> Any:
        return given[name].value if name in given else default

    return Query(
        methods=value("methods"),
        task_ids=value("taskIds"),
        status=value("status"),
        created=(value("createdAfter"), value("createdBefore")),
        updated=(value("lastUpdatedAfter"), value("lastUpdatedBefore")),
        by=value("orderBy", "lastUpdatedAt"),
        descending=value("order", "desc") == "desc",
    )


class _Given(msgspec.Struct):
    """A criterion as it was given: where, how, and what it says."""

    parameter: str
    raw: bytes
    value: Any


def _collect(top: Params, faults: list[Fault]) -> dict[str, _Given]:
    """Every criterion that is given, by its name; faults are added to `faults`."""
    given: dict[str, _Given] = {}
    nested = Criteria()
    if bytes(top.filter) not in (b"", b"null"):
        try:
            nested = _criteria.decode(top.filter)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            faults.append(fault("filter", bytes(top.filter), "an object that holds criteria"))
    _check_size(top, nested)
    for prefix, values in (("", top), ("filter.", nested)):
        for name, (criterion, read_value) in _CRITERIA.items():
            raw = values.raw(name)
            if not raw:
                continue
            try:
                value = read_value(raw)
            except _Refused as refused:
                faults += [fault(prefix + name, one, refused.allowed) for one in refused.given or [raw]]
                continue
            if value is None:
                continue
            if criterion in given and given[criterion].value != value:
                faults.append(fault(prefix + name, raw, f"the same value as the other `{criterion}`"))
            given[criterion] = _Given(prefix + name, raw, value)
    return given


def _check_size(top: Criteria, nested: Criteria) -> None:
    """Raises BadQuery for criteria whose list might have pages without a cursor that leads there."""
    sizes = {
        prefix + name: len(bytes(getattr(values, name)))
        for prefix, values in (("", top), ("filter.", nested))
        for name in _CRITERIA
    }
    if (total := sum(sizes.values())) > CRITERIA_BYTES_MAX:
        allowed = f"no more than {CRITERIA_BYTES_MAX} bytes of criteria in one request"
        raise BadQuery([Fault(max(sizes, key=sizes.__getitem__), f"{total} bytes of criteria", allowed)])


class _Refused(Exception):
    """A value that is not allowed; `given` is what of it is not, where that is not all of it."""

    def __init__(self, allowed: str, given: Sequence[bytes] = ()) -> None:
        self.allowed, self.given = allowed, given


def fault(parameter: str, raw: bytes, allowed: str) -> Fault:
    """What is wrong with a value, raw or in words, of which no more is told than may be read."""
    given = raw[: 4 * _GIVEN_SHOWN_MAX + 4].decode("utf-8", "replace")
    if len(given) > _GIVEN_SHOWN_MAX:
        given = given[:_GIVEN_SHOWN_MAX] + "..."
    return Fault(parameter, given, allowed)


def _strings(what: str, accept: Callable[[str], object]) -> Callable[[bytes], frozenset[str] | None]:
    """A reader of a list of strings, each of which `accept` must find true; None for an empty list."""

    def read_list(raw: bytes) -> frozenset[str] | None:
        try:
            items = msgspec.json.decode(raw, type=list[msgspec.Raw])
        except (msgspec.MsgspecError, RecursionError):
            raise _Refused(f"an array of {what}") from None
        if len(items) > LIST_ITEMS_MAX:
            raise _Refused(f"an array of no more than {LIST_ITEMS_MAX} {what}", [b"%d of them" % len(items)])
        texts = [_string(item) for item in items]
        wrong = [bytes(item) for item, text in zip(items, texts, strict=True) if text is None or not accept(text)]
        if wrong:
            raise _Refused(f"an array of {what}", wrong[:_FAULTS_MAX])
        return frozenset(text for text in texts if text is not None) or None

    return read_list


def _string(raw: msgspec.Raw | bytes) -> str | None:
    try:
        return msgspec.json.decode(raw, type=str)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _instant(raw: bytes) -> Instant:
    text = _string(raw)
    instant = None if text is None else task.parse_instant(text)
    if instant is None:
        what = 'an RFC 3339 timestamp with its offset, such as "2025-11-25T10:30:00Z"'
        raise _Refused(f"{what}, of no more than {task.FRACTION_DIGITS_MAX} digits behind the point")
    return instant


def _one_of(*allowed: str) -> Callable[[bytes], str]:
    def read_choice(raw: bytes) -> str:
        value = _string(raw)
        if value not in allowed:
            raise _Refused(" or ".join(f'"{a}"' for a in allowed))
        return value

    return read_choice


_BOUNDS: Final = ("createdAfter", "createdBefore", "lastUpdatedAfter", "lastUpdatedBefore")
_methods = _strings('request methods, such as "tools/call"', _METHOD.fullmatch)
_CRITERIA: Final[dict[str, tuple[str, Callable[[bytes], Any]]]] = {
    "methods": ("methods", _methods),
    "requestTypes": ("methods", _methods),  # the name in an earlier draft
    "taskIds": ("taskIds", _strings("task ids (strings)", lambda _: True)),
    "status": ("status", _strings("statuses: " + ", ".join(task.STATUSES), task.STATUSES.__contains__)),
    **{name: (name, _instant) for name in _BOUNDS},
    "orderBy": ("orderBy", _one_of("createdAt", "lastUpdatedAt")),
    "order": ("order", _one_of("asc", "desc")),
}
