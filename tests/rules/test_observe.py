"""What passing messages say about tasks, as transcripts: a request, its response, what is then known (DESIGN 6)."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.mcp import jsonrpc, observations, task
from gateway.mcp.jsonrpc import Message
from gateway.mcp.observations import Observation
from gateway.mcp.task import TaskError
from tests.rules import documents, plain


def message(**members: Any) -> Message:
    return plain.parsed(json.dumps({"jsonrpc": "2.0", **members}, ensure_ascii=False).encode())


def request(method: str, params: Any = None, message_id: Any = 1) -> Message:
    return message(id=message_id, method=method, params=params if params is not None else {})


def response(result: Any) -> Message:
    return message(id=1, result=result)


def refusal(code: int, text: str = "no", **data: Any) -> Message:
    return message(id=1, error={"code": code, "message": text, **data})


def a_task(task_id: str = "a", status: str = "working") -> dict[str, Any]:
    at = {"createdAt": "2025-11-25T10:30:00Z", "lastUpdatedAt": "2025-11-25T10:40:00Z"}
    return {"taskId": task_id, "status": status, **at, "ttl": 60000}


def said(found: Observation | None) -> str:
    """What an observation tells, in a few words."""
    if found is None:
        return ""
    words = [f"{i} {task.parse(raw).status}" for i, raw in found.shown]
    words += [f"{found.made} made by {found.method}"] if found.made is not None else []
    words += [f"{found.ended} ended"] if found.ended is not None else []
    words += [f"{found.denied} denied"] if found.denied is not None else []
    words += [f"{found.failed} failed"] if found.failed is not None else []
    return ", ".join([*words, *["doubt"] * found.doubt])


AUGMENTED = {"name": "x", "arguments": {}, "task": {"ttl": 60000}}
GET = {"taskId": "a"}

# Each: the request, the response to it, and what that says.
TRANSCRIPTS: dict[str, tuple[Message, Message, str]] = {
    "a task is made": (request("tools/call", AUGMENTED), response({"task": a_task()}), "a made by tools/call"),
    "without a ttl": (request("tools/call", {"task": {}}), response({"task": a_task()}), "a made by tools/call"),
    "by another method": (request("prompts/get", AUGMENTED), response({"task": a_task("b")}), "b made by prompts/get"),
    "the server did not make a task of it": (request("tools/call", AUGMENTED), response({"content": []}), ""),
    "nobody asked for a task": (request("tools/call", {"name": "x"}), response({"task": a_task()}), ""),
    "tasks/get": (request("tasks/get", GET), response(a_task()), "a working"),
    "tasks/get of a terminal one": (request("tasks/get", GET), response(a_task(status="failed")), "a failed"),
    "tasks/get with _meta": (request("tasks/get", GET), response({**a_task(), "_meta": {}}), "a working"),
    "tasks/cancel": (request("tasks/cancel", GET), response(a_task(status="cancelled")), "a cancelled"),
    "tasks/list": (
        request("tasks/list", {"cursor": "x"}),
        response({"tasks": [a_task(), a_task("b", "completed")], "nextCursor": "a"}),
        "a working, b completed",
    ),
    "tasks/list, empty": (request("tasks/list"), response({"tasks": []}), ""),
    "tasks/list, empty in Go": (request("tasks/list"), response({"tasks": None}), ""),
    "a task is not there": (request("tasks/get", GET), refusal(-32602, "Task not found"), "a denied"),
    "a task has expired": (request("tasks/get", GET), refusal(-32602, "Task has expired", data={"x": 1}), "a denied"),
    "a task is not there, by the code of the Rust SDK": (request("tasks/get", GET), refusal(-32002), "a denied"),
    "tasks/get fails otherwise": (request("tasks/get", GET), refusal(-32603), "a failed"),
    "tasks/get is not known": (request("tasks/get", GET), refusal(-32601), "a failed"),
    "tasks/get without an id": (request("tasks/get"), refusal(-32602), ""),
    "tasks/get with an odd id": (request("tasks/get", {"taskId": 5}), refusal(-32602), ""),
    "a terminal task cannot be cancelled": (request("tasks/cancel", GET), refusal(-32602), "a denied"),
    # Tasks specification, Result Retrieval: the receiver blocks until the task has a terminal status.
    "the result of a task": (request("tasks/result", GET), response({"content": []}), "a ended"),
    "the result of a task with an odd id": (request("tasks/result", {"taskId": 5}), response({}), ""),
    "the result of a task that failed with this": (request("tasks/result", GET), refusal(-32602), "a denied"),
    "the result of a task that failed with another": (request("tasks/result", GET), refusal(-32000), "a failed"),
    "a list with a cursor that expired": (request("tasks/list", {"cursor": "x"}), refusal(-32602), ""),
    "a call that fails": (request("tools/call", AUGMENTED), refusal(-32602), ""),
    "a call of a tool that has a taskId": (request("tools/call", {"name": "x", "taskId": "a"}), refusal(-32602), ""),
    "another request": (request("tools/list"), response({"tools": []}), ""),
    "ping": (request("ping"), response({}), ""),
}


@pytest.mark.parametrize(("asked", "answer", "says"), TRANSCRIPTS.values(), ids=TRANSCRIPTS.keys())
def test_a_transcript(asked: Message, answer: Message, says: str) -> None:
    assert said(observations.of_response(asked, answer)) == says


UNHEARD: list[tuple[str, Any]] = [("tools/call", {"name": "task", "arguments": {"task": {}}}), ("tools/list", {})]
UNHEARD += [("ping", {}), ("initialize", {}), ("notifications/tasks/status", {"taskId": "a"})]
RESULTS: list[Any] = [{"task": a_task()}, {"content": [], "task": a_task()}, a_task(), {"tasks": [a_task()]}]


def test_a_request_about_tasks_is_observed_and_the_response_to_another_says_nothing() -> None:
    """A request without `task` in its params makes no task (tasks specification, Creating Tasks).

    And what is read of a stream must be what is read of a JSON body, which `is_observed` decides.
    """
    for asked, _, says in TRANSCRIPTS.values():
        assert observations.is_observed(asked) or not says
    for method in ("tasks/get", "tasks/cancel", "tasks/list"):
        assert observations.is_observed(request(method))
        assert not observations.is_observed(message(method=method, params={}))  # a notification has no response
    for method, params in UNHEARD:
        assert not observations.is_observed(request(method, params))
        assert {said(observations.of_response(request(method, params), response(result))) for result in RESULTS} == {""}
    assert not observations.is_observed(response({"task": a_task()}))


metas = documents.objects(documents.values).map(lambda o: documents.Object((*o.members, ("_meta", None), *o.members)))


@given(documents.documents(documents.objects(documents.values) | metas | documents.values))
def test_without_meta_every_other_member_keeps_its_value(data: bytes) -> None:
    before, after = documents.pairs(data), jsonrpc.without_meta(data)
    if isinstance(before, documents.Object) and before.last("_meta") is not None:
        expected = {name: value for name, value in before.members if name != "_meta"}
        assert dict(documents.pairs(after).members) == expected
    else:
        assert after == data


BROKEN: dict[str, tuple[str, Any]] = {
    "tasks/get of nothing": ("tasks/get", {}),
    "tasks/get of null": ("tasks/get", None),
    "tasks/get of a list": ("tasks/get", [a_task()]),
    "tasks/get without a status": ("tasks/get", {"taskId": "a"}),
    "tasks/cancel of nothing": ("tasks/cancel", {}),
    "tasks/list of nothing": ("tasks/list", {}),
    "tasks/list of a list": ("tasks/list", [a_task()]),
    "tasks/list of null": ("tasks/list", None),
    "tasks/list with an object as tasks": ("tasks/list", {"tasks": {}}),
    "tasks/list with no task among tasks": ("tasks/list", {"tasks": [a_task(), {}]}),
    "tasks/list with a number as a cursor": ("tasks/list", {"tasks": [], "nextCursor": 5}),
    "a task that is none": ("tools/call", {"task": {"taskId": "a"}}),
    "a task that is a string": ("tools/call", {"task": "a"}),
}


@pytest.mark.parametrize(("method", "result"), BROKEN.values(), ids=BROKEN.keys())
def test_what_cannot_be_read_is_a_doubt_and_nothing_is_certain(method: str, result: Any) -> None:
    """It passed through, so an answer must reflect it (DESIGN 6). Only another request can tell what it said."""
    found = said(observations.of_response(request(method, {**AUGMENTED, "taskId": "a"}), response(result)))
    assert found == "doubt"


NOTIFIED = {
    "a change of status": (message(method="notifications/tasks/status", params=a_task("a", "failed")), "a failed"),
    "with _meta": (message(method="notifications/tasks/status", params={**a_task(), "_meta": {"x": 1}}), "a working"),
    "another notification": (message(method="notifications/progress", params=a_task()), ""),
    "the name of another draft": (message(method="notifications/tasks/status_changed", params=a_task()), ""),
    "a request of that name": (message(id=5, method="notifications/tasks/status", params=a_task()), ""),
    "a request of the server's": (message(id=5, method="elicitation/create", params={"task": a_task()}), ""),
    "a response": (message(id=5, result=a_task()), ""),
    "an error": (message(id=5, error={"code": -32602, "message": "no"}), ""),
    "nothing": (message(), ""),
}


@pytest.mark.parametrize(("passing", "says"), NOTIFIED.values(), ids=NOTIFIED.keys())
def test_a_message_that_is_no_response(passing: Message, says: str) -> None:
    assert said(observations.of_notification(passing)) == says


@pytest.mark.parametrize("params", [{}, [], None, {"taskId": "a"}, {"status": "working"}, {"task": a_task()}])
def test_a_notification_that_cannot_be_read_is_a_doubt(params: Any) -> None:
    found = observations.of_notification(message(method="notifications/tasks/status", params=params))
    assert said(found) == "doubt"


@pytest.mark.parametrize(
    "result", [{}, [], None, "", {"tasks": {}}, {"tasks": [], "nextCursor": 1}, {"tasks": [], "nextCursor": {}}]
)
def test_what_is_no_page(result: Any) -> None:
    with pytest.raises(TaskError):
        observations.parse_page(response(result))


@pytest.mark.parametrize("count", [1, 10, 499, 500, 501, 1000, 5000])
def test_of_a_page_of_any_size_every_task_is_told_or_all_are_in_doubt(count: int) -> None:
    page = response({"tasks": [a_task(f"t{n}") for n in range(count)]})
    found = said(observations.of_response(request("tasks/list"), page))
    assert found.endswith("doubt") or found == ", ".join(f"t{n} working" for n in range(count))


anything = documents.documents(
    documents.values
    | st.fixed_dictionaries(
        {},
        optional={
            "task": documents.values,
            "tasks": documents.values,
            "taskId": documents.values,
            "status": documents.strings,
            "nextCursor": documents.values,
        },
    ).map(documents.plain)
)


@given(
    st.sampled_from(["tasks/get", "tasks/cancel", "tasks/list", "tasks/result", "tools/call"]),
    anything,
    anything,
    st.booleans(),
)
def test_no_message_raises(method: str, params: bytes, result: bytes, is_error: bool) -> None:
    asked = jsonrpc.parse(b'{"jsonrpc":"2.0","id":1,"method":"%b","params":%b}' % (method.encode(), params))
    name = b"error" if is_error else b"result"
    answer = jsonrpc.parse(b'{"jsonrpc":"2.0","id":1,"%b":%b}' % (name, result))
    told = jsonrpc.parse(b'{"jsonrpc":"2.0","method":"notifications/tasks/status","params":%b}' % params)
    assert asked is not None
    assert answer is not None
    assert told is not None
    observations.is_observed(asked)
    observations.of_response(asked, answer)
    observations.of_notification(told)


# createdAt + ttl: when a task may vanish (DESIGN 6; tasks specification, TTL and Resource Management 5).
@pytest.mark.parametrize(
    ("created", "ttl", "expires_unix_s"),
    [
        ("2025-11-25T10:30:00Z", b"60000", 1764066660.0),
        ("2025-11-25T11:30:00.500+01:00", b"1500", 1764066602.0),
        ("1970-01-01T00:00:00Z", b"0", 0.0),
        ("2025-11-25T10:30:00Z", b"1.5e3", 1764066601.5),
        ("2025-11-25T10:30:00Z", b"null", task.NO_END),
        ("2025-11-25T10:30:00Z", b'"60000"', task.NO_END),
        ("2025-11-25T10:30:00Z", b"{}", task.NO_END),
        ("2025-11-25T10:30:00Z", b"1e999", task.NO_END),
        ("yesterday", b"60000", task.NO_END),
        ("0000-01-01T00:00:00Z", b"1000", -62_167_219_199.0),
        ("9999-12-31T23:59:59Z", b"1000", 253_402_300_800.0),
    ],
)
def test_when_a_task_may_vanish(created: str, ttl: bytes, expires_unix_s: float) -> None:
    raw = b'{"taskId":"a","status":"working","createdAt":"%b","ttl":%b}' % (created.encode(), ttl)
    assert task.parse(raw).expires_unix_s == expires_unix_s
