"""Random tasks and queries, and what a filtered list is by its plain definition (DESIGN 5.2, 5.3)."""

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
import pytest
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.mcp import jsonrpc, task
from gateway.mcp.client_message import ClientMessage
from gateway.mcp.jsonrpc import Message
from gateway.mcp.task import STATUSES, TERMINAL, UNKNOWN, Instant, Task
from gateway.query import cursor, list_request
from gateway.query.criteria import BadQuery, Fault, Query
from gateway.query.cursor import Position
from gateway.query.list_request import ListRequest
from gateway.tasks.index import QueryPage
from gateway.tasks.task_entry import TaskEntry

_Task = TypeVar("_Task", bound=Task)


def entry_for(task: Task, *told: Any, **more: Any) -> TaskEntry:
    return TaskEntry(*msgspec.structs.astuple(task), *told, **more)


# Times of one day: some equal though written differently, some finer than a microsecond or a nanosecond.
_TIMES = [
    "2025-11-25T00:00:00Z",
    "2025-11-25T01:00:00.000+01:00",
    "2025-11-24T16:00:00-08:00",
    "2025-11-25T00:00:00.000001Z",
    "2025-11-25T00:00:00.0000010000Z",
    "2025-11-25T00:00:00.0000011Z",
    "2025-11-25T00:00:00.00000100000000000001Z",
    "2025-11-25T00:00:00.000001000000000000010Z",
    "2025-11-25T00:00:00.000002Z",
    "2025-11-25T00:00:01Z",
    "2025-11-25T23:59:60Z",
    "2025-11-26T00:00:00Z",
    "0001-01-01T00:00:00Z",
    "9999-12-31T23:59:59Z",
]


def instant(text: str) -> Instant:
    """The instant of a timestamp, which tests/rules/test_task.py proves to be exact."""
    found = task.parse_instant(text)
    assert found is not None
    return found


def parsed(data: bytes) -> Message:
    message = jsonrpc.parse(data)
    assert message is not None, data[:200]
    return message


def asked(body: bytes, has_guards: bool = False, is_own: bool = False) -> ClientMessage:
    """What a client's message says."""
    message = read(body, has_guards, is_own)
    assert message is not None, body[:200]
    return message


def read(body: bytes, has_guards: bool = False, is_own: bool = False) -> ClientMessage | None:
    reading = list_request.read(body, has_guards, is_own)
    while True:
        try:
            reading.send(None)  # of a large one the turns follow each other
        except StopIteration as read:
            message: ClientMessage | None = read.value
            return message


def position(params: bytes) -> Position | None:
    """The page that a `tasks/list` asks for. Raises BadQuery."""
    message = asked(b'{"jsonrpc":"2.0","id":1,"method":"tasks/list","params":%b}' % params)
    assert isinstance(message, ListRequest)
    found = message.position
    if isinstance(found, BadQuery):
        raise BadQuery(found.faults)  # a new one: what is remembered would keep the frames that it passes
    return None if found is None else replace(found, comes_again=False)


def faults(params: object) -> list[Fault]:
    """What is wrong with the params of a `tasks/list`; the message names all that the entries name (DESIGN 5.4)."""
    with pytest.raises(BadQuery) as caught:
        position(json.dumps(params).encode())
    for one in caught.value.faults:
        assert all(told in str(caught.value) for told in (one.parameter, one.given, one.allowed))
    return caught.value.faults


UNREADABLE: list[Any] = ["", "yesterday", "2025-13-01T00:00:00Z", 5, None, {}]
METHODS = (None, "tools/call", "prompts/get")
IDS = ("a", "b", "c", "d", "B", "é", "", "10", "9")


def raw_task(task_id: str, status: str, created: Any, updated: Any, note: int = 0) -> bytes:
    """The JSON of a task, which differs in `note` from one that is otherwise the same."""
    members = {"taskId": task_id, "status": status, "createdAt": created, "lastUpdatedAt": updated, "note": note}
    return json.dumps(members, ensure_ascii=False).encode()


instants = st.sampled_from(sorted({i + difference for i in map(instant, _TIMES) for difference in (0, -1, 1)}))
_times = st.sampled_from(_TIMES)
# All that changes between two reports of one task: few values, so that they collide.
_reports = st.tuples(
    st.sampled_from(IDS),
    st.sampled_from([*STATUSES, "working", "submitted"]),
    _times | st.sampled_from(UNREADABLE),
    _times | st.sampled_from(UNREADABLE),
    st.integers(0, 1),
    st.sampled_from(METHODS),
)


reports = _reports.map(lambda report: task.parse(raw_task(*report[:-1]), report[-1]))


def some(items: list[str]) -> st.SearchStrategy[frozenset[str] | None]:
    return st.none() | st.frozensets(st.sampled_from(items), min_size=1, max_size=3)


# ---- the criteria ----

EARLY, LATE = "2025-11-25T10:30:00Z", "2025-11-25T10:30:01Z"
NO_LIST: list[Any] = [1, 1.5, True, False, {}, {"a": ["x"]}]
NO_STRING: list[Any] = [1, None, True, {}, [], ["tools/call"]]
NO_WORD: list[Any] = [0, True, {}, [], ["asc"], ["createdAt"], "", "status"]
NO_TIME: list[Any] = [
    *(0, 1764066600, True, {}, [], [EARLY], "", "now", "2025-11-25", "2025-11-25T10:30:00", "2025-11-25 10:30:00Z"),
    *("2025-02-29T00:00:00Z", "2025-11-25T10:30:00+0100", "1764066600", "\u0662025-11-25T10:30:00Z"),
]
NO_METHOD = [
    *("", "/", "tools/", "/call", "tools//call", "tools call", " tools/call", "tools/call\n", "tools/*"),
    *("\u00e4/b", "\0"),
]
NO_STATUS = ["done", "Working", "", "working ", "all", "*", "in_progress"]


class Example(NamedTuple):
    """What tests ask of a criterion: a value, what it is in a `Query`, and another value; words of its errors."""

    given: Any
    read: Any
    other: Any
    allowed: list[str]
    wrong: list[Any]
    values: st.SearchStrategy[Any]  # in a query
    params: st.SearchStrategy[Any]  # as a parameter that a cursor can spell
    wrong_items: Sequence[Any] = ()  # of a list


def _texts(
    given: list[str], *words: str, wrong: list[str], wrong_items: list[str], values: Any, params: Any
) -> Example:
    allowed, items = ["array", *words], [*NO_STRING, *wrong_items]
    return Example(given, frozenset(given), given[:1], allowed, [*NO_LIST, *wrong], values, params, items)


def _instant(params: st.SearchStrategy[str]) -> Example:
    bounds = st.none() | st.none() | instants
    return Example(EARLY, instant(EARLY), LATE, ["RFC 3339"], NO_TIME, bounds, params)


def _choice(one: str, other: str, *wrong: str) -> Example:
    either = st.sampled_from([one, other])
    return Example(one, one, other, [one, other], [*NO_WORD, *wrong], either, either)


_early, _late = st.just(EARLY), st.sampled_from([LATE, "2025-11-25T11:30:00.5+01:00"])
_any_ids = st.lists(st.text(st.characters(codec="utf-8"), max_size=6), min_size=1, max_size=3)
EXAMPLES = {
    "methods": _texts(
        ["tools/call", "prompts/get"], "tools/call",
        wrong=["", "tools call", "tools/call,prompts/get"], wrong_items=NO_METHOD,
        values=some(["tools/call", "prompts/get", "resources/read"]),
        params=st.lists(st.sampled_from(["tools/call", "prompts/get"]), min_size=1, max_size=2),
    ),
    "taskIds": _texts(
        ["a", "b", "a", ""], "string", wrong=[], wrong_items=[],
        values=st.none() | st.none() | some([*IDS, "nobody"]), params=_any_ids.filter(lambda items: items != [""]),
    ),
    "status": _texts(
        list(STATUSES), *STATUSES, wrong=["", "done", "tools/call", "working,failed"], wrong_items=NO_STATUS,
        values=some(list(STATUSES)), params=st.lists(st.sampled_from(STATUSES), min_size=1, max_size=3),
    ),
    "createdAfter": _instant(_early), "createdBefore": _instant(_late),
    "lastUpdatedAfter": _instant(_early), "lastUpdatedBefore": _instant(_late),
    "orderBy": _choice("createdAt", "lastUpdatedAt", "created", "createdat", " createdAt", "asc"),
    "order": _choice("asc", "desc", "ascending", "ASC", "desc ", "createdAt"),
}  # fmt: skip
"""Of each criterion: where one is added it has a row here, and a meaning in `listed`; other tests draw from these."""
LISTS = [name for name, one in EXAMPLES.items() if isinstance(one.read, frozenset)]
TIMES = [name for name, one in EXAMPLES.items() if one.given == EARLY]
CHOICES = [name for name in EXAMPLES if name not in (*LISTS, *TIMES)]

queries = st.builds(Query, **{name: one.values for name, one in EXAMPLES.items()})


def _inside(low: Instant | None, high: Instant | None, at: Instant) -> bool:
    if at == UNKNOWN:  # nobody can say that it is outside, and no task may be lost
        return True
    return (low is None or at >= low) and (high is None or at <= high)


def listed(tasks: Sequence[_Task], query: Query, default_method: str | None) -> list[_Task]:
    """The filtered list by its definition: the tasks for which all criteria hold, ordered by instant and id."""

    asked = dict(query.values)
    by, order = asked.pop("orderBy"), asked.pop("order")
    methods, task_ids, status = (asked.pop(name, None) for name in ("methods", "taskIds", "status"))
    created = asked.pop("createdAfter", None), asked.pop("createdBefore", None)
    updated = asked.pop("lastUpdatedAfter", None), asked.pop("lastUpdatedBefore", None)
    assert not asked, "criteria without a plain definition"

    def holds(candidate: Task) -> bool:
        method = candidate.method if candidate.method is not None else default_method
        return (
            (methods is None or method is None or method in methods)
            and (task_ids is None or candidate.id in task_ids)
            and (status is None or candidate.status in status)
            and _inside(*created, candidate.created)
            and _inside(*updated, candidate.updated)
        )

    def place(candidate: Task) -> tuple[Instant, str]:
        return candidate.created if by == "createdAt" else candidate.updated, candidate.id

    return sorted(filter(holds, tasks), key=place, reverse=order == "desc")


def may_match(known: Task, query: Query, *later: Instant, default_method: str | None = None) -> bool:
    """Whether a task, or any report of it that comes later, matches, which may be of these instants."""
    statuses = {known.status} if known.status in TERMINAL else STATUSES
    futures = [replace(known, status=status, updated=at) for status in statuses for at in (known.updated, *later)]
    return bool(listed(futures, query, default_method))


def followed(select: Callable[[Position], QueryPage], query: Query) -> list[QueryPage]:
    position, found = Position(query), list[QueryPage]()
    while True:
        found.append(select(position))
        if not found[-1].more:
            return found
        following = cursor.following(position, found[-1].tasks)
        decoded = cursor.decode(cursor.encode(following))
        assert decoded == following != position, "the page is the one before: it would go on for ever"
        position = decoded
