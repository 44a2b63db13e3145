"""One JSON-RPC message: what is one, its raw members, and edits that change the bytes they name and no other."""

import json
import random
import re
from typing import Any

import msgspec
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from gateway.mcp import jsonrpc
from tests.rules import documents, plain
from tests.rules.documents import Object, at, changed, inserted, pairs, paths

CALL = b'{"jsonrpc":"2.0","id":1,"method":"a","params":%b}'

NO_MESSAGE = {
    "empty": b"",
    "batch": b'[{"jsonrpc":"2.0","id":1,"method":"tasks/list"}]',
    "JSON-RPC 1.0": b'{"jsonrpc":"1.0","id":1,"method":"a"}',
    "version as a number": b'{"jsonrpc":2.0,"id":1,"method":"a"}',
    "method of another type": b'{"jsonrpc":"2.0","id":1,"method":1}',
    "NUL behind": b'{"jsonrpc":"2.0","method":"a"}\0',
    "UTF-16": '{"jsonrpc":"2.0","method":"a"}'.encode("utf-16"),
    "nan": CALL % b"nan",
    "NaN beside NaN": CALL % b"[NaN NaN]",
    "two byte order marks": b'\xef\xbb\xbf\xef\xbb\xbf{"jsonrpc":"2.0","method":"a"}',
    # Python 3.14 reads as deep as its stack of 8 MB allows: 200,000. Older ones know numbers: 1,000 and 10,000.
    "arrays 1,000,000 deep": CALL % (b"[" * 1_000_000 + b"]" * 1_000_000),
    "objects 1,000,000 deep": CALL % (b'{"a":' * 1_000_000 + b"1" + b"}" * 1_000_000),
    "opened 100,000 times in a result": b'{"jsonrpc":"2.0","id":1,"result":' + b'{"a":[' * 100_000,
}


NEARLY: dict[str, tuple[bytes, bytes]] = {  # params as they are written, and as they are read
    "high half": (rb'"\ud83d"', b'"~"'),
    "low half": (rb'"\uDE00"', b'"~"'),
    "high, high, low": (rb'"\ud83d\ud83d\ude00"', b'"~\xf0\x9f\x98\x80"'),
    "high, low, low": (rb'"\uD83D\ude00\ude00"', b'"\xf0\x9f\x98\x80~"'),
    "low, high": (rb'"\ude00\ud83d"', b'"~~"'),
    "halves behind backslashes": (rb'"\\ud83d\\\ud83d"', rb'"\\ud83d\\~"'),
    "half a pair in a name": (rb'{"\ud83d":1}', b'{"~":1}'),
    "half a pair in UTF-8": (b'"\xed\xa0\x80"', b'"~~~"'),
    "NaN": (b"[NaN, -Infinity,Infinity ,1e999]", b"[null,null,null,null]"),
    "NaN as text": (rb'{"NaN":NaN,"a\"Infinity":"-Infinity\\"}', rb'{"NaN":null,"a\"Infinity":"-Infinity\\"}'),
    "numbers beside NaN": (b"[NaN,12345678901234567890123,-0.50]", b"[null,12345678901234567890123,-0.5]"),
    "no UTF-8": (b'{"x":"\xe9\xc3\xa9\xf0\x9f\x98"}', b'{"x":"~\xc3\xa9~"}'),
    "no UTF-8 in a name": (b'{"\xff":1}', b'{"~":1}'),
    "a name twice": (b'{"x":NaN,"x":1}', b'{"x":1}'),
}


@pytest.mark.parametrize(("written", "read"), NEARLY.values(), ids=NEARLY.keys())
def test_what_is_nearly_json_is_read_and_written_anew(written: bytes, read: bytes) -> None:
    """A message with half an emoji was none: a list went up unfiltered, and one task's made every list fail."""
    message = plain.parsed(CALL % written)
    assert (message.is_strict, bytes(message.id), message.method) == (False, b"1", "a")
    assert bytes(message.params) == read.replace(b"~", jsonrpc.REPLACEMENT.encode())


@pytest.mark.parametrize("member", [b'"id":"\\udc00","method":"a"', b'"method":"\xff"', b'"id":NaN,"x":"\xc0\x80"'])
def test_so_are_a_byte_order_mark_and_every_member(member: bytes) -> None:
    written = jsonrpc.rewritten(b'\xef\xbb\xbf{"jsonrpc":"2.0",%b}' % member)
    assert written is not None and plain.parsed(written).is_strict


def test_the_lenient_reader_has_limits() -> None:
    """700,000 halves of pairs took 0.25 s."""
    size = jsonrpc.LENIENT_BYTES_MAX - len(CALL % b"[NaN]")
    assert jsonrpc.parse(CALL % (b"[NaN%b]" % (b" " * size))) is not None
    for beyond in (b"NaN%b" % (b" " * (size + 1)), b"NaN," + b"9" * 4301):
        assert jsonrpc.parse(CALL % (b"[%b]" % beyond)) is None


@pytest.mark.parametrize("name", NO_MESSAGE)
def test_what_is_no_message(name: str) -> None:
    """`members` gets raw members of messages, and anything that came instead."""
    data = NO_MESSAGE[name]
    assert jsonrpc.parse(data) is None
    assert isinstance(jsonrpc.members(data), dict)


@pytest.mark.parametrize("raw", [b"", b"null", b"[]", b'"a"', b"1", b"[" * 100_000, b'{"a":"\\ud800"}', b'{"\xff":1}'])
def test_what_is_no_object_has_no_members(raw: bytes) -> None:
    assert jsonrpc.members(raw) == {}
    assert jsonrpc.members(msgspec.Raw(raw)) == {}


RESULT = b'{"jsonrpc":"2.0","id":1,"result":null}'
ERROR = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"no"}}'
MESSAGES = [
    *(RESULT, ERROR),
    b'{"jsonrpc":"2.0","id":"a","method":"tasks/list","params":{}}',
    b'{"jsonrpc":"2.0","method":"notifications/initialized"}',
    b'{"x":[1,{"method":"no"}],"jsonrpc":"2\\u002e0","\\u0069d":1,"m\\u0065thod":"a","y":1e400}',
    b' \r\n\t{ "jsonrpc" : "2.0" , "id" : 1 , "method" : "a" } \n',
]


@st.composite
def broken(draw: st.DrawFn) -> bytes:
    """A message with a few bytes changed, put in or taken out."""
    data = bytearray(draw(st.sampled_from(MESSAGES)))
    for _ in range(draw(st.integers(1, 3))):
        where = draw(st.integers(0, len(data)))
        size = draw(st.integers(0, 2))
        data[where : where + size] = draw(st.binary(max_size=2) | st.sampled_from([b"{", b"}", b'"', b"\\", b"\\u"]))
    return bytes(data)


@given(broken() | st.binary(max_size=40))
def test_bytes_are_a_message_only_if_they_are_json_that_says_so(data: bytes) -> None:
    message = jsonrpc.parse(data)
    if message is not None:
        said = data if message.is_strict else jsonrpc.rewritten(data) or b""
        value = json.loads(said.decode(), parse_constant=pytest.fail)
        assert value["jsonrpc"] == "2.0" and json.dumps(value, ensure_ascii=False).encode(), "no half of a pair"


simple = st.none() | documents.numbers | documents.strings | documents.objects(documents.numbers | documents.strings)
members = {"method": documents.strings, **dict.fromkeys(("id", "params", "result", "error"), simple)}
others = st.tuples(st.sampled_from(["id", "params", "result", "error", "a", "b", "}"]), simple)


@st.composite
def messages(draw: st.DrawFn) -> tuple[bytes, Object]:
    """A message whose members stand in any order, some twice, among others; and what it says."""
    own = draw(st.fixed_dictionaries({"jsonrpc": st.just("2.0")}, optional=members))
    value = Object(tuple(draw(st.permutations([*own.items(), *draw(st.lists(others, max_size=3))]))))
    return documents.text(value, random.Random(draw(st.integers(0, 2**32)))).encode(), value


@given(messages())
@example((RESULT, pairs(RESULT)))
@example((ERROR, pairs(ERROR)))
def test_the_members_of_a_message_are_the_bytes_that_came_and_say_its_kind(drawn: tuple[bytes, Object]) -> None:
    """JSON-RPC 2.0, 4 and 5."""
    data, value = drawn
    message, found = plain.parsed(data), set[str]()
    assert message.method == at(value, ("method",))[1]
    for name in ("id", "params", "result", "error"):
        raw = bytes(getattr(message, name))
        there, expected = at(value, (name,))
        there = there and (name, expected) != ("error", None)
        assert bool(raw) is there
        if there:
            found.add(name)
            assert raw == raw.strip()
            assert raw in data
            assert pairs(raw) == expected
    assert message.is_request is (message.method is not None and "id" in found)
    assert message.is_response is (message.method is None and found - {"params"} > {"id"})


def is_looked_for(name: str) -> bool:
    """Whether a name may be looked for: no name in MCP has a quote, a backslash or a control character."""
    return '"' not in name and "\\" not in name and not re.search("[\x00-\x1f]", name)


def lookable(value: Any) -> list[tuple[str, ...]]:
    return [path for path in paths(value) if path and all(map(is_looked_for, path))]


looked_for = documents.names.filter(is_looked_for)
anything = documents.documents(documents.objects(documents.values)).filter(lambda data: bool(lookable(pairs(data))))


NEW = "taskgate: new"


@given(anything, st.data())
def test_insert_puts_in_one_member_and_touches_nothing_else(data: bytes, drawn: st.DataObject) -> None:
    before = pairs(data)
    objects = [path for path in lookable(before) if isinstance(at(before, path)[1], Object)]
    assume(objects)
    path = drawn.draw(st.sampled_from(objects))
    new = drawn.draw(documents.documents())
    after = jsonrpc.insert(data, path, NEW, new)
    target = at(before, path)[1]
    assert pairs(after) == changed(before, path, Object(((NEW, pairs(new)), *target.members)))
    assert inserted(data, after)


@given(anything, st.data())
def test_replace_changes_one_value_and_touches_nothing_else(data: bytes, drawn: st.DataObject) -> None:
    before = pairs(data)
    path = drawn.draw(st.sampled_from(lookable(before)))
    new = drawn.draw(documents.documents())
    after = jsonrpc.replace(data, path, new)
    assert pairs(after) == changed(before, path, pairs(new))
    span = jsonrpc.find(data, *path)
    assert span is not None
    start, end = span
    assert after == data[:start] + new + data[end:]
    assert data[start:end] == data[start:end].strip()


@given(documents.documents(), st.lists(looked_for, min_size=1, max_size=2).map(tuple))
def test_an_edit_of_what_is_not_there_is_refused(data: bytes, path: tuple[str, ...]) -> None:
    there, value = at(pairs(data), path)
    assert (jsonrpc.find(data, *path) is not None) is there
    if not there:
        with pytest.raises(LookupError):
            jsonrpc.replace(data, path, b"1")
    if not isinstance(value, Object):
        with pytest.raises(LookupError):
            jsonrpc.insert(data, path, NEW, b"1")


@pytest.mark.parametrize("raw_id", [b"1", b'"1"', b"123456789012345678901234567890", b'"\\u00e9\\/"', b"null"])
def test_an_answer_carries_the_id_of_its_request_byte_for_byte(raw_id: bytes) -> None:
    answer = jsonrpc.result(raw_id, b'{"x":1.10e400}')
    assert bytes(plain.parsed(answer).id) == raw_id
    assert bytes(plain.parsed(answer).result) == b'{"x":1.10e400}'
    assert plain.parsed(answer).is_response
    error = jsonrpc.error(raw_id, jsonrpc.INVALID_PARAMS, 'no "x" \u2028', {"errors": []})
    assert bytes(plain.parsed(error).id) == raw_id
    assert json.loads(error)["error"] == {"code": -32602, "message": 'no "x" \u2028', "data": {"errors": []}}


def test_an_error_of_an_unknown_request_has_a_null_id_and_no_data() -> None:
    error = jsonrpc.error(b"", jsonrpc.INTERNAL_ERROR, "no")
    assert json.loads(error) == {"jsonrpc": "2.0", "id": None, "error": {"code": -32603, "message": "no"}}


CODES = {
    b'{"code":-32602,"message":"no"}': -32602,
    b'{"message":"no","data":{"code":1},"code":-32603}': -32603,
    b'{"code":-9223372036854775808}': -(2**63),
    **dict.fromkeys((b"{}", b"null", b'"no"', b'{"code":"-32602"}', b'{"code":null}', b'{"code":1e999}')),
    b'{"code":9223372036854775808}': None,  # no line of a log could have it
}


def test_the_code_of_an_error() -> None:
    for error, code in CODES.items():
        assert jsonrpc.code_of(plain.parsed(b'{"jsonrpc":"2.0","id":1,"error":%b}' % error).error) == code
