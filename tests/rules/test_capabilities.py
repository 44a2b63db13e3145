"""The one change to the result of `initialize` (DESIGN 4; SEP-1904, Server capabilities)."""

import json
from typing import Any

import pytest

from gateway.mcp import capabilities, jsonrpc
from gateway.mcp.capabilities import Server
from gateway.query import criteria
from tests.rules.documents import Object, at, changed, inserted, pairs

# SEP-1904, Server capabilities, to the letter; behind it what criteria of our own would add.
FILTER = """
          {
          "methods": ["tools/call"],
          "taskIds": true,
          "status": true,
          "createdAt": {
            "before": true,
            "after": true
          },
          "lastUpdatedAt": {
            "before": true,
            "after": true
          },
          "order": {
            "by": ["createdAt", "lastUpdatedAt"],
            "direction": ["asc", "desc"]
          }
        }
"""
PATH = ("result", "capabilities", "tasks", "list")


def advertised(data: bytes) -> tuple[bytes, Server | None]:
    """What a client sees of a response to `initialize`, as the gateway goes about it."""
    message = jsonrpc.parse(data)
    return (data, None) if message is None else capabilities.advertise(data, message, criteria.capability)


def response(tasks: object, **more: object) -> bytes:
    result = {"protocolVersion": "2025-11-25", "capabilities": {"tasks": tasks, **more}, "serverInfo": {"name": "a"}}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "result": result}).encode()


CALL: dict[str, Any] = {"tools": {"call": {}}}


# Of a name that stands twice the last one counts.
TWICE = b"""{"result": 1, "id": 1, "jsonrpc": "2.0", "r\\u0065sult": {"capabilities": {"tasks": {"list": {}}},
    "c\\u0061pabilities": {"tasks": {}, "tasks": {"requests": {"tools": {"call": {}}}, "list": {"x": 1},
    "l\\u0069st": {"list": {}, "y": [1e400, {"list": {}}]} , "tasks": {"list": {}}}, "result": {}}, "list": {}}}"""


@pytest.mark.parametrize("data", [response({"list": {}, "cancel": {}, "requests": CALL}, tools={"x": True}), TWICE])
def test_the_capability_is_the_one_of_the_draft(data: bytes) -> None:
    edited, server = advertised(data)
    assert server == Server(filtered_here=True, methods=("tools/call",))
    before = pairs(data)
    _, listing = at(before, PATH)
    assert pairs(edited) == changed(before, PATH, Object((("filter", pairs(FILTER.encode())), *listing.members)))
    assert inserted(data, edited)


METHODS: list[tuple[Any, tuple[str, ...], str | None]] = [
    (CALL, ("tools/call",), "tools/call"),
    ({"tools": {"call": {"x": 1}}}, ("tools/call",), "tools/call"),
    ({"tools": {"call": True}}, ("tools/call",), "tools/call"),
    (
        {"tools": {"call": {}}, "prompts": {"get": {}}, "resources": {"read": {}}},
        ("tools/call", "prompts/get", "resources/read"),
        None,
    ),
    ({"tools": {"call": {}, "list": {}}}, ("tools/call", "tools/list"), None),
    ({}, (), None),
    (None, (), None),
    ([], (), None),
    ("tools/call", (), None),
    ({"tools": {}}, (), None),
    ({"tools": None, "prompts": {"get": {}}}, ("prompts/get",), "prompts/get"),
    # `tasks.requests` is exhaustive, and says with booleans what is supported (tasks specification, Capabilities).
    # A method too many would hide tasks: it makes the method of no task sure, or the wrong one.
    *(({"tools": {"call": {}}, "prompts": {"get": no}}, ("tools/call",), "tools/call") for no in (None, False)),
    *(({"tools": {"call": no}}, (), None) for no in (None, False)),
]


@pytest.mark.parametrize(("requests", "methods", "default"), METHODS)
def test_the_methods_are_those_of_the_upstream(requests: Any, methods: tuple[str, ...], default: str | None) -> None:
    edited, server = advertised(response({"list": {}, "requests": requests}))
    assert server == Server(filtered_here=True, methods=methods)
    assert server.default_method == default
    assert json.loads(edited)["result"]["capabilities"]["tasks"]["list"]["filter"]["methods"] == list(methods)


NATIVE = [{}, {"methods": ["tools/call"]}, True, json.loads(FILTER)]


def test_an_upstream_that_filters_natively_is_left_as_it_is_and_a_filter_that_is_not_supported_is_replaced() -> None:
    """Some servers write members that are not set as null."""
    for native in NATIVE:
        data = response({"list": {"filter": native}, "requests": CALL})
        assert advertised(data) == (data, Server(filtered_here=False, methods=("tools/call",)))
    for unset in (None, False):
        edited, server = advertised(response({"list": {"filter": unset, "x": 1}, "requests": CALL}))
        assert server == Server(filtered_here=True, methods=("tools/call",))
        whole = response({"list": {"filter": json.loads(FILTER), "x": 1}, "requests": CALL})
        assert json.loads(edited) == json.loads(whole)


UNCHANGED = {
    "no tasks": b'{"jsonrpc":"2.0","id":1,"result":{"capabilities":{"tools":{}}}}',
    "no capabilities": b'{"jsonrpc":"2.0","id":1,"result":{}}',
    "tasks without list": response({"cancel": {}, "requests": CALL}),
    "list is null": response({"list": None, "requests": CALL}),
    "tasks is null": response(None),
    "tasks is a list": response([{"list": {}}]),
    "result is a list": b'{"jsonrpc":"2.0","id":1,"result":[{"capabilities":{"tasks":{"list":{}}}}]}',
    "error": b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"data":{"capabilities":{"tasks":{"list":{}}}}}}',
    "a request": b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"capabilities":{"tasks":{"list":{}}}}}',
    "list elsewhere": response({}, experimental={"tasks": {"list": {}}}),
    "list one level up": response({}, list={}),
    "the last of two says no": b'{"jsonrpc":"2.0","id":1,"result":{"capabilities":{"tasks":{"list":{}},"tasks":{}}}}',
    "the last of two results": b'{"jsonrpc":"2.0","id":1,"result":{"capabilities":{"tasks":{"list":{}}}},"result":{}}',
    "no message": b'[{"jsonrpc":"2.0","id":1,"result":{"capabilities":{"tasks":{"list":{}}}}}]',
    "no JSON": b"<html>",
}


@pytest.mark.parametrize("data", UNCHANGED.values(), ids=UNCHANGED.keys())
def test_everything_else_is_left_as_it_is(data: bytes) -> None:
    assert advertised(data) == (data, None)


@pytest.mark.parametrize("odd", [b'"x":NaN', b'"x":"\\ud83d"', b'"\xff":1'])
def test_what_is_only_nearly_json_is_not_edited_but_what_it_says_is_known(odd: bytes) -> None:
    form = b'{"jsonrpc":"2.0","id":1,"result":{"capabilities":{"tasks":{"list":{%b},%b}}}}'
    native = form % (b'"filter":{}', odd)
    assert advertised(native) == (native, Server(filtered_here=False))
    with pytest.raises(capabilities.NotAdvertised, match="only nearly JSON"):
        advertised(form % (b"", odd))


def test_an_initialize_result_beyond_its_limit_is_not_edited_and_says_so() -> None:
    large, large_tasks = capabilities.RESPONSE_BYTES_MAX, capabilities.TASKS_BYTES_MAX
    for data, size in (
        (response({"list": {}}, x="a" * large), large),
        (response({"list": {"x": "a" * large_tasks}}), large_tasks),
    ):
        with pytest.raises(capabilities.NotAdvertised, match=f"no more than {size}"):
            advertised(data)
