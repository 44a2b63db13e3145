"""Random tasks and queries, and what a filtered list is by its plain definition (DESIGN 5.2, 5.3)."""

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import strategies as st

from gateway.mcp import jsonrpc, task
from gateway.mcp.client_message import ClientMessage
from gateway.mcp.jsonrpc import Message
from gateway.mcp.task import STATUSES, UNKNOWN, Instant, Task
from gateway.query import cursor, list_request
from gateway.query.criteria import BadQuery, Fault, Query
from gateway.query.cursor import Position
from gateway.query.list_request import ListRequest
from gateway.tasks.index import QueryPage, TaskEntry

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
    return None if found is None else msgspec.structs.replace(found, comes_again=False)


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


def _reported(report: tuple[str, str, Any, Any, int, str | None]) -> Task:
    *members, method = report
    return task.parse(raw_task(*members), method)


reports = _reports.map(_reported)


def some(items: list[str]) -> st.SearchStrategy[frozenset[str] | None]:
    return st.none() | st.frozensets(st.sampled_from(items), min_size=1, max_size=3)


_bound = st.none() | st.none() | instants
values: dict[str, st.SearchStrategy[Any]] = {
    "methods": some(["tools/call", "prompts/get", "resources/read"]),
    "taskIds": st.none() | st.none() | some([*IDS, "nobody"]),
    "status": some(list(STATUSES)),
    "createdAfter": _bound,
    "createdBefore": _bound,
    "lastUpdatedAfter": _bound,
    "lastUpdatedBefore": _bound,
    "orderBy": st.sampled_from(["createdAt", "lastUpdatedAt"]),
    "order": st.sampled_from(["asc", "desc"]),
}
"""Of each criterion."""

queries = st.builds(Query, **values)


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
        return all(
            (
                methods is None or method is None or method in methods,
                task_ids is None or candidate.id in task_ids,
                status is None or candidate.status in status,
                _inside(*created, candidate.created),
                _inside(*updated, candidate.updated),
            )
        )

    def place(candidate: Task) -> tuple[Instant, str]:
        return candidate.created if by == "createdAt" else candidate.updated, candidate.id

    return sorted(filter(holds, tasks), key=place, reverse=order == "desc")


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
