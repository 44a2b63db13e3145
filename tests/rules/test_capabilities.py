"""The one change to the result of `initialize` (DESIGN 4; SEP-1904, Server capabilities)."""

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.mcp import capabilities, jsonrpc, sse
from gateway.mcp.capabilities import Server
from gateway.query import criteria
from tests.rules import documents
from tests.rules.documents import Object, changed, inserted, pairs

# SEP-1904, Server capabilities, to the letter.
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


def test_the_capability_is_the_one_of_the_draft() -> None:
    data = response({"list": {}, "cancel": {}, "requests": CALL}, tools={"listChanged": True})
    edited, server = advertised(data)
    assert server == Server(filtered_here=True, methods=("tools/call",))
    before = pairs(data)
    assert pairs(edited) == changed(before, PATH, Object((("filter", pairs(FILTER.encode())),)))
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
]


@pytest.mark.parametrize(("requests", "methods", "default"), METHODS)
def test_the_methods_are_those_of_the_upstream(requests: Any, methods: tuple[str, ...], default: str | None) -> None:
    edited, server = advertised(response({"list": {}, "requests": requests}))
    assert server == Server(filtered_here=True, methods=methods)
    assert server.default_method == default
    assert json.loads(edited)["result"]["capabilities"]["tasks"]["list"]["filter"]["methods"] == list(methods)


def test_without_requests_the_methods_are_none() -> None:
    edited, server = advertised(response({"list": {}}))
    assert server == Server(filtered_here=True, methods=())
    assert json.loads(edited)["result"]["capabilities"]["tasks"]["list"]["filter"]["methods"] == []


@pytest.mark.parametrize("no", [None, False])
def test_a_request_that_is_not_supported_is_none_of_the_methods(no: object) -> None:
    """`tasks.requests` is exhaustive, and says with booleans what is supported (tasks specification, Capabilities).

    A method too many would hide tasks: it makes the method of no task sure, or the wrong one.
    """
    _, server = advertised(response({"list": {}, "requests": {"tools": {"call": {}}, "prompts": {"get": no}}}))
    assert server == Server(filtered_here=True, methods=("tools/call",))
    _, server = advertised(response({"list": {}, "requests": {"tools": {"call": no}}}))
    assert server == Server(filtered_here=True, methods=())


NATIVE = [{}, {"methods": ["tools/call"]}, True, json.loads(FILTER)]


@pytest.mark.parametrize("native", NATIVE)
def test_an_upstream_that_filters_natively_is_left_as_it_is(native: object) -> None:
    data = response({"list": {"filter": native}, "requests": CALL})
    assert advertised(data) == (data, Server(filtered_here=False, methods=("tools/call",)))


@pytest.mark.parametrize("unset", [None, False])
def test_a_filter_that_is_not_supported_is_replaced(unset: object) -> None:
    """Some servers write members that are not set as null."""
    edited, server = advertised(response({"list": {"filter": unset, "x": 1}, "requests": CALL}))
    assert server == Server(filtered_here=True, methods=("tools/call",))
    whole = response({"list": {"filter": json.loads(FILTER), "x": 1}, "requests": CALL})
    assert json.loads(edited) == json.loads(whole)


TASKS = b'{"tasks":{"list":{}}}'
UNCHANGED = {
    "no tasks": b'{"jsonrpc":"2.0","id":1,"result":{"capabilities":{"tools":{}}}}',
    "no capabilities": b'{"jsonrpc":"2.0","id":1,"result":{}}',
    "tasks without list": response({"cancel": {}, "requests": CALL}),
    "list is null": response({"list": None, "requests": CALL}),
    "tasks is null": response(None),
    "tasks is true": response(True),
    "tasks is a list": response([{"list": {}}]),
    "capabilities are null": b'{"jsonrpc":"2.0","id":1,"result":{"capabilities":null}}',
    "result is null": b'{"jsonrpc":"2.0","id":1,"result":null}',
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


# Whatever stands beside it is kept, and is no reason not to filter (DESIGN 4).
BESIDE = {
    "numbers beyond 64 bits": b'"x":123456789012345678901234567890',
    "a number of 5000 digits": b'"x":' + b"7" * 5000,
    "a number beyond a double": b'"x":1e400',
    "a negative one": b'"x":[-1E+999]',
    "a fraction as it is written": b'"x":1.10',
    "escapes": b'"\\u0078\\/":"\\ud83d\\ude00\\"}{"',
    "names of ours, deeper": b'"x":{"tasks":{"list":{"filter":{}}}}',
    "nesting": b'"x":' + b"[" * 100 + b"]" * 100,
    "U+2028": b'"x":"\xe2\x80\xa8"',
}
PLACES = {
    "message": b'{"jsonrpc":"2.0","id":1,%b,"result":{"capabilities":{"tasks":{"list":{}}}}}',
    "result": b'{"jsonrpc":"2.0","id":1,"result":{%b,"capabilities":{"tasks":{"list":{}}}}}',
    "capabilities": b'{"jsonrpc":"2.0","id":1,"result":{"capabilities":{"tasks":{"list":{}},%b}}}',
    "tasks": b'{"jsonrpc":"2.0","id":1,"result":{"capabilities":{"tasks":{%b,"list":{}}}}}',
    "list": b'{"jsonrpc":"2.0","id":1,"result":{"capabilities":{"tasks":{"list":{%b}}}}}',
    "requests": b'{"jsonrpc":"2.0","id":1,"result":{"capabilities":{"tasks":{"list":{},"requests":{%b}}}}}',
    "a request": b'{"jsonrpc":"2.0","id":1,"result":{"capabilities":{"tasks":{"list":{},"requests":{"a":{%b}}}}}}',
}


@pytest.mark.parametrize("form", PLACES.values(), ids=PLACES.keys())
@pytest.mark.parametrize("beside", BESIDE.values(), ids=BESIDE.keys())
def test_every_other_byte_is_kept(form: bytes, beside: bytes) -> None:
    data = form % beside
    edited, server = advertised(data)
    assert server is not None
    assert server.filtered_here
    assert inserted(data, edited)
    assert beside in edited


def some(own: st.SearchStrategy[Object], name: str) -> st.SearchStrategy[Object]:
    other = st.tuples(documents.names.filter(lambda n: n != name), documents.numbers | documents.strings)
    others = st.lists(other, max_size=2)
    return st.builds(lambda before, value, after: Object((*before, (name, value), *after)), others, own, others)


lists = documents.objects(documents.numbers | documents.strings)
results = some(some(some(lists, "list"), "tasks"), "capabilities")


@given(results, st.integers(0, 2**32))
def test_in_any_document_one_member_is_put_in(result: Object, seed: int) -> None:
    value = Object((("id", "a"), ("result", result), ("jsonrpc", "2.0")))
    data = documents.text(value, random.Random(seed)).encode()
    edited, server = advertised(data)
    assert server == Server(filtered_here=True, methods=())
    expected_filter = changed(pairs(FILTER.encode()), ("methods",), [])
    _, target = documents.at(value, PATH)
    assert pairs(edited) == changed(value, PATH, Object((("filter", expected_filter), *target.members)))
    assert inserted(data, edited)


def test_names_may_be_escaped() -> None:
    data = rb'{"jsonrpc":"2.0","id":1,"r\u0065sult":{"\u0063apabilities":{"t\u0061sks":{"l\u0069st" : { } }}}}'
    edited, server = advertised(data)
    assert server is not None
    assert inserted(data, edited)


def test_of_members_that_are_given_twice_the_last_is_edited() -> None:
    data = b'{"jsonrpc":"2.0","id":1,"result":{"capabilities":{"tasks":{"list":{"filter":1},"list":{"x":1}}}}}'
    edited, server = advertised(data)
    assert server == Server(filtered_here=True)
    assert edited.startswith(data[: data.index(b'"x"')])
    assert edited.endswith(data[data.index(b'"x"') :])


@pytest.mark.parametrize("name", ["result", "capabilities", "tasks", "list", "requests"])
def test_of_members_that_are_given_twice_only_the_last_counts(name: str) -> None:
    text = '{"jsonrpc":"2.0","id":1,"result":{"capabilities":{"tasks":{"list":{},"requests":{"tools":{"call":{}}}}}}}'
    data = text.replace(f'"{name}":', f'"{name}":0,"{name}":', 1).encode()
    edited, server = advertised(data)
    assert server == Server(filtered_here=True, methods=("tools/call",))
    assert inserted(data, edited)


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_in_a_stream_only_the_data_of_that_event_changes(end: str) -> None:
    text = response({"list": {}, "requests": CALL}).decode()
    lines = ["id: 7", "event: message", "retry: 5", f"data: {text}", ": comment", "unknown", "", ""]
    (event,) = sse.Parser(1 << 20).feed(end.join(lines).encode())
    assert event.data == text.encode()
    edited, _ = advertised(event.data)
    assert event.with_data(edited) == end.join(lines).encode().replace(text.encode(), edited)


@pytest.mark.parametrize("odd", [b'"x":NaN', b'"x":"\\ud83d"', b'"\xff":1'])
def test_what_is_only_nearly_json_is_not_edited_but_what_it_says_is_known(odd: bytes) -> None:
    form = b'{"jsonrpc":"2.0","id":1,"result":{"capabilities":{"tasks":{"list":{%b},%b}}}}'
    native = form % (b'"filter":{}', odd)
    assert advertised(native) == (native, Server(filtered_here=False))
    with pytest.raises(capabilities.NotAdvertised, match="only nearly JSON"):
        advertised(form % (b"", odd))
