"""What an exchange tells of tasks, as a table: each kind of request, each kind of response, each status (DESIGN 6)."""

from itertools import product
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.mcp import jsonrpc, task, task_observations
from gateway.mcp.client_message import ClientMessage
from gateway.mcp.jsonrpc import LENIENT_BYTES_MAX
from gateway.mcp.task import Moment
from gateway.mcp.task_observations import Observation
from gateway.tasks.exchange_observer import PLAIN, RESUMED, UNMATCHED, Pending, begin
from tests.rules import documents, plain

ASKED: Final = Moment(5, 5.0)
TASK: Final = b'{"taskId":"a","status":"working","createdAt":"2025-12-01T00:00:00Z"%b}'
PLAIN_TASK: Final = TASK % b""
BOM: Final = b"\xef\xbb\xbf"


def request(method: str, params: bytes = b"{}") -> ClientMessage:
    return plain.asked(b'{"jsonrpc":"2.0","id":1,"method":"%b","params":%b}' % (method.encode(), params))


def result(value: bytes, message_id: bytes = b"1") -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (message_id, value)


def error(code: int) -> bytes:
    return b'{"jsonrpc":"2.0","id":1,"error":{"code":%d,"message":"no"}}' % code


def told(pending: Pending, data: bytes) -> str:
    """What a message says, in a few words."""
    heard = pending.read(data, jsonrpc.parse(data))
    said: Observation = heard.observation or Observation()
    words = [
        *(f"{task.taskId} shown" for task, _ in said.shown),
        *([f"{said.made} made by {said.method or 'unknown'}"] if said.made is not None else []),
        *([f"{said.ended} ended"] if said.ended is not None else []),
        *([f"{said.denied} denied"] if said.denied is not None else []),
        *([f"{said.failed} failed"] if said.failed is not None else []),
        *["doubt"] * said.doubt,
        *["serves"] * heard.succeeds,
        *["edited"] * (heard.seen != data),
    ]
    if (said.shown or said.ended is not None) and heard.response is not None:
        assert heard.asked == (pending.asked if bytes(heard.response.id) == b"1" else None)
    return ", ".join(words) or "nothing"


def of(method: str, params: bytes = b"{}") -> Pending:
    return begin(request(method, params), lambda: ASKED)


ID: Final = b'{"taskId":"a"}'
CALL: Final = of("tools/call", b'{"name":"x","task":{}}')
GET: Final = of("tasks/get", ID)
RESULT: Final = of("tasks/result", ID)
LIST: Final = of("tasks/list")
OTHER: Final = of("tools/call", b'{"name":"x"}')
INITIALIZE: Final = of("initialize")
NOT_READ: Final = Pending("UNREAD", None, ASKED)
CAPABLE: Final = b'{"capabilities":{"tasks":{"list":{},"requests":{"tools":{"call":{}}}}}}'
STATUS: Final = b'{"jsonrpc":"2.0","method":"notifications/tasks/status","params":%b}'
MADE: Final = result(b'{"task":%b}' % PLAIN_TASK)
LATIN: Final = TASK % b',"statusMessage":"caf\xe9"'
NO_CURSOR: Final = b'{"tasks":[],"nextCursor":5}'
PAGE: Final = result(b'{"tasks":[%b,%b]}' % (PLAIN_TASK, LATIN.replace(b'"a"', b'"b"')))

TABLE: Final[dict[str, tuple[Pending, bytes, str]]] = {
    "a task is made": (CALL, MADE, "a made by tools/call"),
    "a task is made, by a request that was not read": (NOT_READ, MADE, "a made by unknown"),
    "a request that makes no task": (OTHER, MADE, "nothing"),
    "the response to another request": (CALL, result(b'{"task":%b}' % PLAIN_TASK, b"2"), "a made by unknown"),
    "the id as a string": (CALL, result(b'{"task":%b}' % PLAIN_TASK, b'"1"'), "a made by unknown"),
    "a page for another request": (GET, result(b'{"tasks":[%b]}' % PLAIN_TASK, b"2"), "a shown"),
    "another request fails": (GET, error(-32602).replace(b'"id":1', b'"id":2'), "doubt"),
    "initialize of another id": (INITIALIZE, result(CAPABLE, b"2"), "doubt"),
    "an error of null": (CALL, MADE.replace(b'"result"', b'"error":null,"result"'), "a made by tools/call"),
    "an error beside a result of null": (GET, error(-32602).replace(b'"error"', b'"result":null,"error"'), "a denied"),
    "Infinity in a result": (GET, result(TASK % b',"x":[-Infinity,Infinity]'), "a shown, serves"),
    "a task is asked for, by a request that was not read": (NOT_READ, result(PLAIN_TASK), "a shown"),
    "a task may not be there": (NOT_READ, error(-32602), "doubt"),
    "another error": (NOT_READ, error(-32603), "nothing"),
    "the result of a task": (RESULT, result(b'{"content":[]}'), "a ended, serves"),
    "the result of a task, by a request that was not read": (
        NOT_READ,
        result(b'{"content":[],"_meta":{"io.modelcontextprotocol/related-task":%b}}' % ID),
        "a ended",
    ),
    "no task where one was asked for": (GET, result(b"{}"), "doubt, serves"),
    "a task that is no UTF-8, in a notification": (PLAIN, STATUS % LATIN, "a shown"),
    "no UTF-8 in one task of a page": (LIST, PAGE, "a shown, b shown, serves"),
    "no UTF-8 in an error": (GET, error(-32602).replace(b'"no"', b'"n\xf3"'), "a denied"),
    "no UTF-8 in the id of a task": (CALL, result(b'{"task":%b}' % LATIN.replace(b'"a"', b'"\xe9"')), "doubt"),
    "no UTF-8 in the id of the task that a result is of": (
        NOT_READ,
        result(b'{"x":"y","_meta":{"io.modelcontextprotocol/related-task":{"taskId":"caf\xe9"}}}'),
        "doubt",
    ),
    "half a pair in the id that was asked for": (of("tasks/result", b'{"taskId":"\\ud83d"}'), result(b"{}"), "doubt"),
    "no UTF-8, and large": (CALL, MADE[:-1] + b',"x":"\xe9%b"}' % (b" " * LENIENT_BYTES_MAX), "doubt"),
    "what is cut short, though nothing was awaited": (PLAIN, MADE[:-9], "doubt"),
    "a batch behind a byte order mark": (PLAIN, BOM + b" [%b]" % MADE, "doubt"),
    "UTF-16": (PLAIN, MADE.decode().encode("utf-16"), "doubt"),
    "what is no JSON at all": (PLAIN, b"Server listening on stdio", "nothing"),
    "a request of the server's": (CALL, b'{"jsonrpc":"2.0","id":1,"method":"ping"}', "nothing"),
    "initialize": (INITIALIZE, result(CAPABLE), "edited"),
    "initialize on a resumed stream": (RESUMED, result(CAPABLE), "doubt, edited"),
    "initialize that was not read": (NOT_READ, result(CAPABLE), "doubt"),
    "a task is made by a tool without a name": (of("tools/call", b'{"task":{}}'), MADE, "a made by tools/call"),
    "no task is made": (CALL, result(b'{"content":[]}'), "nothing"),
    "a call fails": (CALL, error(-32602), "nothing"),
    "an empty list, as Go writes it": (LIST, result(b'{"tasks":null}'), "serves"),
    "a task is not there, by the code of the Rust SDK": (GET, error(-32002), "a denied"),
    "tasks/get fails": (GET, error(-32603), "a failed"),
    "tasks/get with an odd id": (of("tasks/get", b'{"taskId":5}'), error(-32602), "nothing"),
    **{
        f"tasks/list: {value!r}": (LIST, result(value), "doubt, serves")
        for value in (b"[]", b'{"tasks":{}}', NO_CURSOR)
    },
    "a task that is none": (CALL, result(b'{"task":%b}' % ID), "doubt"),
    "a notification": (PLAIN, STATUS % (TASK % b',"_meta":{"x":1}'), "a shown"),
    "another notification": (PLAIN, STATUS.replace(b"/status", b"/status_changed") % PLAIN_TASK, "nothing"),
    "a request of that name": (PLAIN, STATUS.replace(b"{", b'{"id":5,', 1) % PLAIN_TASK, "nothing"),
    **{f"a notification: {value!r}": (PLAIN, STATUS % value, "doubt") for value in (b"null", ID)},
}


@pytest.mark.parametrize("row", TABLE.values(), ids=TABLE.keys())
def test_what_a_message_tells(row: tuple[Pending, bytes, str]) -> None:
    pending, data, says = row
    assert told(pending, data) == says


def test_a_request_about_tasks_is_observed_and_the_response_to_another_says_nothing() -> None:
    """A request without `task` in its params makes no task (tasks specification, Creating Tasks).

    And what is read of a stream must be what is read of a JSON body, which `is_observed` decides.
    """
    others = [request("tools/call", b'{"name":"task","arguments":{"task":{}}}')]
    others += map(request, ("tools/list", "ping", "initialize", "notifications/tasks/status"))
    for asked, value in product(others, (MADE, result(PLAIN_TASK), PAGE)):
        assert not asked.is_observed
        assert task_observations.of_response(asked, plain.parsed(jsonrpc.rewritten(value) or value)) is None
    for method in ("tasks/get", "tasks/cancel", "tasks/list"):
        assert request(method).is_observed
        assert not plain.asked(b'{"jsonrpc":"2.0","method":"%b"}' % method.encode()).is_observed


@pytest.mark.parametrize("count", [500, 501, 5000])
def test_of_a_page_of_any_size_every_task_is_told_or_all_are_in_doubt(count: int) -> None:
    tasks = [PLAIN_TASK.replace(b'"a"', b'"%d"' % number) for number in range(count)]
    said = told(LIST, result(b'{"tasks":[%b]}' % b",".join(tasks)))
    assert said.startswith("doubt") or said == ", ".join([*(f"{number} shown" for number in range(count)), "serves"])


@pytest.mark.parametrize("pending", [CALL, NOT_READ, UNMATCHED, RESUMED, GET, OTHER, INITIALIZE])
def test_what_cannot_be_read_is_a_doubt_and_of_initialize_a_warning(pending: Pending) -> None:
    heard = pending.unread()
    assert heard.observation is not None and heard.observation.doubt
    assert bool(heard.not_advertised) is (pending is INITIALIZE)


metas = documents.objects(documents.values).map(lambda o: documents.Object((*o.members, ("_meta", None), *o.members)))


@given(documents.documents(documents.objects(documents.values) | metas | documents.values))
def test_without_meta_every_other_member_keeps_its_value(data: bytes) -> None:
    before, after = documents.pairs(data), jsonrpc.without_meta(data)
    if isinstance(before, documents.Object) and before.last("_meta") is not None:
        expected = {name: value for name, value in before.members if name != "_meta"}
        assert dict(documents.pairs(after).members) == expected
    else:
        assert after == data


known = dict.fromkeys(("task", "tasks", "taskId", "nextCursor"), documents.values) | {"status": documents.strings}
anything = documents.documents(documents.values | st.fixed_dictionaries({}, optional=known).map(documents.of))


METHODS: Final = ("tasks/get", "tasks/cancel", "tasks/list", "tasks/result", "tools/call")


@given(st.sampled_from(METHODS), anything, anything, st.booleans())
def test_no_message_raises(method: str, params: bytes, result: bytes, is_error: bool) -> None:
    asked = plain.asked(b'{"jsonrpc":"2.0","id":1,"method":"%b","params":%b}' % (method.encode(), params))
    name = b"error" if is_error else b"result"
    answer = jsonrpc.parse(b'{"jsonrpc":"2.0","id":1,"%b":%b}' % (name, result))
    told = jsonrpc.parse(b'{"jsonrpc":"2.0","method":"notifications/tasks/status","params":%b}' % params)
    assert answer is not None
    assert told is not None
    assert asked.is_observed is not None
    task_observations.of_response(asked, answer)
    task_observations.of_notification(told)


def test_when_a_task_may_vanish() -> None:
    """At createdAt + ttl (DESIGN 6; tasks specification, TTL and Resource Management 5)."""
    for created, ttl, expires_unix_s in (
        ("2025-11-25T10:30:00Z", b"60000", 1764066660.0),
        ("2025-11-25T11:30:00.500+01:00", b"1500", 1764066602.0),
        ("2025-11-25T10:30:00Z", b"1.5e3", 1764066601.5),
        *(("2025-11-25T10:30:00Z", ttl, task.NO_END) for ttl in (b"null", b'"60000"', b"{}", b"1e999")),
        ("yesterday", b"60000", task.NO_END),
        ("0000-01-01T00:00:00Z", b"1000", -62_167_219_199.0),
        ("9999-12-31T23:59:59Z", b"1000", 253_402_300_800.0),
    ):
        raw = b'{"taskId":"a","status":"working","createdAt":"%b","ttl":%b}' % (created.encode(), ttl)
        assert task.parse(raw).expires_unix_s == expires_unix_s
