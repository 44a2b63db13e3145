"""Lines as bytes (line_splitter.py): nothing is lost, whatever the pieces; what a large line's ends say."""

import json
import re
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.mcp import jsonrpc
from gateway.stdio.line_splitter import Line, LineParser, Sight

MAX = 8


def parsed(data: bytes, cuts: list[int]) -> list[Line]:
    parser = LineParser(MAX)
    found: list[Line] = []
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for start, end in pairwise(places):
        found += parser.feed(data[start:end])
        assert len(parser.pending) <= MAX
    rest = parser.rest()
    return found if rest is None else [*found, rest]


streams = st.lists(st.sampled_from([b"\n", b"\r\n", b"\r", b"a", b"bcd", b"\xe2\x80\xa8", b"e" * 7, b"f" * 20])).map(
    b"".join
)


@given(streams, st.lists(st.integers(0, 1000)))
def test_no_byte_is_lost_and_a_line_is_whole_if_it_is_not_too_large_whatever_the_pieces(
    data: bytes, cuts: list[int]
) -> None:
    found = parsed(data, cuts)
    assert b"".join(line.raw for line in found) == data
    assert all(line.ended == line.raw.endswith(b"\n") for line in found)
    assert all(b"\n" not in line.raw[:-1] for line in found)
    small = [line for line in re.findall(rb"[^\n]*\n|[^\n]+", data) if len(line) <= MAX]
    assert [line.raw for line in found if line.sight is None] == small


values = st.recursive(
    st.none() | st.integers() | st.text(max_size=5) | st.sampled_from(['"id":7}', "\\", '{"id":8,']),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["id", "result", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)
ids = st.integers(-(10**20), 10**20) | st.text(max_size=8) | st.sampled_from(["taskgate-1", "\u00e9", '"', "\\"])
responses = st.fixed_dictionaries({"jsonrpc": st.just("2.0"), "id": ids}).flatmap(
    lambda head: st.tuples(st.just(head), st.sampled_from(["result", "error"]), values).flatmap(
        lambda parts: st.permutations([*parts[0].items(), (parts[1], parts[2])]).map(dict)
    )
)


@given(
    responses, st.sampled_from([None, (",", ":"), (" , ", " : ")]), st.booleans(), st.sampled_from(["\n", "\r\n", ""])
)
def test_an_id_that_is_told_is_the_id(message: dict[str, Any], separators: Any, ascii_only: bool, end: str) -> None:
    data = (json.dumps(message, separators=separators, ensure_ascii=ascii_only) + end).encode()
    right = jsonrpc.id_of(jsonrpc.member(data, "id"))
    for size in (1, 50, 5000):
        sight = Sight(data[:size] if size > 1 else data)
        if 1 < size < len(data):
            sight.feed(data[size:])
        assert sight.id in (right, None)
    order = list(message)
    simple = not str(message["id"]).strip("-abcdefghijklmnopqrstuvwxyz0123456789")
    if simple and order[-1] in ("result", "error", "id"):
        assert Sight(data).id == right


@given(values, st.sampled_from(["sampling/createMessage", "ping"]))
def test_a_request_is_no_response_whatever_its_ends(params: Any, method: str) -> None:
    ours = {"method": method, "params": params, "jsonrpc": "2.0", "id": 5}
    theirs = {"jsonrpc": "2.0", "id": 5, "method": method, "params": params}
    for message in (ours, theirs):
        sight = Sight(json.dumps(message).encode() + b"\n")
        assert (sight.may_be_response, sight.id, sight.request_id) == (False, None, b"5")
