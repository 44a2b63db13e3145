"""Server-sent events: any split gives the same events, no byte is lost, and the events are those of the standard."""

import re
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from gateway.mcp import sse
from gateway.mcp.sse import Event, Parser

UNLIMITED = 1 << 20
BOM = b"\xef\xbb\xbf"


class Heard(NamedTuple):
    """What one block of a stream tells: its data, the last event id and the reconnection time it sets, its type."""

    data: bytes | None = None
    id: bytes | None = None
    retry_ms: int | None = None
    is_message: bool = True


def standard(stream: bytes) -> list[Heard]:
    """WHATWG HTML, 9.2.6, step by step, of a whole stream; None for a block's data where nothing is dispatched."""
    stream = stream.removeprefix(BOM)  # one leading byte order mark, of the stream and of nothing else
    *lines, _incomplete = stream.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    heard, data, event_id, retry_ms, event_type = [], b"", None, None, b""
    for line in lines:
        if line == b"":
            is_message = not data or event_type in (b"", b"message")
            heard.append(Heard(data[:-1] if data else None, event_id, retry_ms, is_message))
            data, event_id, retry_ms, event_type = b"", None, None, b""
            continue
        if line.startswith(b":"):
            continue
        name, value = line, b""
        if b":" in line:
            at = line.index(b":")
            name, value = line[:at], line[at + 1 :]
            if value.startswith(b" "):
                value = value[1:]
        if name == b"data":
            data += value + b"\n"
        elif name == b"event":
            event_type = value
        elif name == b"id":
            if b"\0" not in value:
                event_id = value
        elif name == b"retry" and value and all(digit in b"0123456789" for digit in value):
            retry_ms = int(value)
    return [h for h in heard if h != Heard()]


def told(event: Event) -> Heard:
    """What an event tells; one without data is not dispatched, and has no type."""
    return Heard(event.data, event.id, event.retry_ms, event.data is None or event.is_message)


def heard(events: list[Event]) -> list[Heard]:
    """What the events tell; those that tell nothing (a lone LF of a CR LF that was split) are left out."""
    return [h for e in events if (h := told(e)) != Heard()]


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(p % (len(stream) + 1) for p in places), len(stream)]
    return [stream[start:end] for start, end in pairwise(edges)]


def splits(stream: bytes, where: list[int]) -> list[list[bytes]]:
    return [[stream], cut(stream, where), [stream[i : i + 1] for i in range(len(stream))]]


def fed(pieces: list[bytes], event_bytes_max: int = UNLIMITED, takes_comments: bool = False) -> list[Event]:
    """The events of a stream that comes in these pieces; comments perhaps early. After each piece no event may be
    missing, and every byte has come once and in order.
    """
    parser = Parser(event_bytes_max)
    events: list[Event] = []
    so_far = out = b""
    for piece in pieces:
        came = parser.feed(piece)
        events += came
        out += b"".join(e.raw for e in came) + (parser.take_comments() if takes_comments else b"")
        so_far += piece
        assert out + parser.rest() == so_far
        assert len(parser.rest()) <= event_bytes_max + 3
    return events


LINES = [
    *(b"data: x", b"data:y", b"data", b"data:", b"data:  z", b"data: a:b", b"data : no", b"Data: no"),
    *(b" data: no", b"data\0: no", b"data: \xe2\x80\xa8\xc2\x85\x0b\x0c", b'data: {"jsonrpc":"2.0"}'),
    *(b"id: 1", b"id:", b"id", b"id: 2\0", b"id: \xc3\xa9", b"retry: 10", b"retry:0", b"retry: x1"),
    *(b"retry: -1", b"retry: 1.5", b"retry: ", b"retry:  7", b"retry: \xd9\xa3", b": comment", b":"),
    *(b":data: no", b"event: message", b"event: other", b"event:", b"event", b"event:  message", b"event: Message"),
    *(b"events: endpoint", b":event: no", b"unknown: 1", b"unknown", b"\xff", BOM + b"data: no", b"data: " + BOM),
]
ENDS = [b"\n", b"\r", b"\r\n"]

usual = [*(b"", b"", b"data: x", b"id: 1", b"data: y", b"event: message", b"event: endpoint")]
lines = st.sampled_from(LINES) | st.sampled_from(usual)
line_ends = st.sampled_from(ENDS)
places = st.lists(st.integers(0, 200), max_size=8)


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """A stream, with or without a byte order mark, whose lines end in one way or in all, and which may break off."""
    ends = draw(line_ends.map(st.just) | st.just(line_ends))
    body = b"".join(line + draw(ends) for line in draw(st.lists(lines, max_size=14)))
    return (
        draw(st.sampled_from([b"", b"", BOM])) + body + draw(st.sampled_from([b"", b"", b"\n\n", b"data: unfinished"]))
    )


@given(streams(), places)
@example(BOM + BOM + b"data: a\n\n" + BOM + b"data: b\n\n", [])
@example("data: \u2028\u2029\u0085\x0b\x0c\x1c\x1e\n\n".encode(), [])
@example(b"id: 1\nid: 2\0\ndata: a\n\nid\ndata: b\n\n", [])
@example(b"retry: 0\n\nretry: 0000000000005000\n\nretry: 86400000000000\n\n", [])
@example(b":\r\ndata: x\r\n\r\n", [2])
@example(b":\r\n\r\n:\r\n", [2, 3, 4])
def test_any_split_gives_the_events_of_the_standard(stream: bytes, where: list[int]) -> None:
    expected = standard(stream)
    for pieces in splits(stream, where):
        assert heard(fed(pieces)) == heard(fed(pieces, takes_comments=True)) == expected


@given(streams(), places, st.lists(st.sampled_from([b"data: x", b"id", b":", b"y", BOM, b"hello"]), max_size=3))
def test_events_with_a_mark_are_read_and_the_others_pass_as_they_came(
    stream: bytes, where: list[int], marks: list[bytes]
) -> None:
    """For every split. Events without a mark come together, and none of their bytes is lost."""
    expected = [told(e) for e in fed([stream]) if any(mark in e.raw for mark in marks) and told(e) != Heard()]
    for pieces in splits(stream, where):
        parser, events = Parser(UNLIMITED, marks), list[Event]()
        for piece in pieces:
            events += parser.feed(piece)
        assert b"".join(e.raw for e in events) + parser.rest() == stream
        assert all(e.whole for e in events)
        assert heard([e for e in events if e.marked]) == expected
        assert not [e for e in events if not e.marked and any(mark in e.raw for mark in marks)]


@pytest.mark.parametrize("end", ENDS)
def test_an_event_comes_with_the_byte_that_completes_it(end: bytes) -> None:
    """It is there as soon as its blank line has come (DESIGN 3.4), and a comment with the end of its line."""
    parser = Parser(UNLIMITED)
    for piece, taken in [(b": a", b""), (end, b": a" + end), (b"data: x" + end + b":" + end, b"")]:
        assert parser.feed(piece) == []
        assert parser.take_comments() == taken
    assert [e.data for e in parser.feed(end)] == [b"x"]


def test_what_is_said_of_an_event() -> None:
    for before in (b"", BOM):
        (event,) = fed([before + b"data: {}\nretry: %b\n\n" % (b"9" * 10_000)])
        assert event.bom is (before == BOM)
        assert event.retry_ms is not None and event.retry_ms > 1_000_000_000
    (event,) = fed([b"event: a\nevent:b\nevent\n:event: c\n\n"])
    assert event.field(b"event") == [b"a", b"b", b""]
    assert event.field(b"data") == []


BLOCK = st.lists(
    st.sampled_from([b"data: x", b"id: 1", b": comment", b"data: " + b"y" * 20, b"retry: 5"]), min_size=1, max_size=4
)


@st.composite
def limited(draw: st.DrawFn) -> tuple[list[bytes], int]:
    """The events of a stream, each by its bytes, and a limit near the size of one of them."""
    end = draw(line_ends)
    blocks = [end.join([*block, b"", b""]) for block in draw(st.lists(BLOCK, min_size=1, max_size=5))]
    return blocks, max(1, len(draw(st.sampled_from(blocks))) + draw(st.integers(-4, 4)))


@given(limited(), places)
def test_an_event_over_the_limit_passes_unread_and_the_others_are_read(
    drawn: tuple[list[bytes], int], where: list[int]
) -> None:
    """What is over the limit does not depend on how the stream was split.

    But by one byte: an event is complete with the CR of its last line end, whether or not an LF will follow.
    """
    blocks, event_bytes_max = drawn
    stream = b"".join(blocks)
    assume(b"\r\n" not in stream or all(len(block) != event_bytes_max + 1 for block in blocks))
    expected = [h for block in blocks if len(block) <= event_bytes_max for h in standard(block)]
    for pieces in splits(stream, where):
        events = fed(pieces, event_bytes_max)
        assert heard(events) == expected
        assert all(heard([e]) == [] for e in events if not e.whole)


@pytest.mark.parametrize("size", [0, 500])
def test_beyond_so_many_marked_events_of_one_piece_the_rest_passes_unread(size: int) -> None:
    """Their content is in doubt, as that of a page of very many tasks. A piece that was packed is large, and costs its
    sender little: 4 MiB of it had 13,000 that were read.
    """
    stream = b"data:[%b\n\n" % (b" " * size) * 5000
    events = Parser(UNLIMITED, [b"data:["]).feed(stream)
    assert b"".join(e.raw for e in events) == stream
    assert [e.whole for e in events] == [True] * (250 if size else len(events) - 1) + [False]
    assert [e.whole for e in Parser(UNLIMITED, [b"data:["], reads_all=True).feed(stream)] == [True] * 5000
    messages = b'data: {"jsonrpc":"2.0","method":"notifications/tasks/status","params":%b}\n\n' % (b"1" * 450)
    assert all(e.whole for e in Parser(UNLIMITED, [b"tasks/status"]).feed(messages * 250))


def other_lines(raw: bytes) -> list[bytes]:
    """The lines of an event that are not its data, with their ends; a byte order mark apart."""
    found = re.findall(rb"[^\r\n]*(?:\r\n|\n|\r)", raw.removeprefix(BOM))
    return [line for line in found if not re.match(rb"data(:|[\r\n])", line)]


texts = st.lists(
    st.sampled_from([b"", b" ", b"{", b' "a": 1,', b"  \t", b"}", b"\xe2\x80\xa8", b":", b"data: x"]), max_size=4
)


@given(streams(), texts.map(b"\n".join))
@example(b"data: x\rdata: y", b"N")
@example(b"data: x\rid: 1\rdata: y", b"N")
@example(b"data: x\rdata: y\ndata: z", b"N")
@example(b"data: x\rid: 1\rdata: y\ndata: z", b"N")
@example(b"data: x\n" + BOM + b"data: no\ndata: y", b"")
def test_new_data_is_read_back_and_every_other_line_is_kept(stream: bytes, data: bytes) -> None:
    # Where a line ends with CR, one that begins with a byte order mark might become the stream's first: nobody writes
    # such a thing.
    assume(b"\r" not in stream or BOM not in stream[1:])
    events = fed([stream + b"\n\ndata: last\n\n"])
    for at, event in enumerate(events):
        if event.data is None:
            continue
        edited = event.with_data(data)
        assert other_lines(edited) == other_lines(event.raw)
        assert edited.startswith(BOM) is event.raw.startswith(BOM)
        before, behind = events[:at], events[at + 1 :]
        changed = b"".join([*(e.raw for e in before), edited, *(e.raw for e in behind)])
        expected = Heard(data, event.id, event.retry_ms, event.is_message)
        assert standard(changed) == heard(fed([changed])) == [*heard(before), expected, *heard(behind)]


@pytest.mark.parametrize("end", ENDS)
def test_an_event_of_our_own_has_all_of_json_in_several_lines(end: bytes) -> None:
    """A server may write JSON with line ends, and an answer has its tasks as they came. Only a first line got here."""
    (event,) = fed([sse.event(end.join([b"{", b'"a":1', b"", b"}"]))])
    assert event.data == b'{\n"a":1\n\n}'
    assert (event.field(b"event"), event.id, event.retry_ms) == ([b"message"], None, None)


FIELDS = [
    *(b"event: message", b"event: other", b"id: 7", b"id: ", b"data: {}", b"data: ", b"data:{}", b"data", b": c", b""),
]
written = st.lists(st.tuples(st.sampled_from(FIELDS), st.sampled_from((b"\n", b"\r\n", b"\r"))), max_size=6)


@given(written)
@example([(b"event: message", b"\r\n"), (b"data: {}", b"\r\n"), (b"", b"\r\n")])
@example([(b"id: 7", b"\n"), (b"data: {}", b"\n"), (b"", b"\n")])
def test_what_is_read_of_a_whole_stream_at_once_is_what_the_standard_reads(lines: list[tuple[bytes, bytes]]) -> None:
    stream = b"".join(line + end for line, end in lines)
    if (data := sse.only_data(stream)) is not None:
        (heard,) = standard(stream)
        assert (heard.data, heard.is_message) == (data, True)
    is_usual = len({end for _, end in lines}) == 1 and re.fullmatch(
        rb"(event: message\n)?(id: 7\n)?data: {}\n\n", stream.replace(b"\r\n", b"\n")
    )
    assert data == b"{}" or not is_usual, "as servers write it"
