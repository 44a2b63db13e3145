"""Work in proportion to bytes: counts of executed lines of Python and allocated bytes, the same on every machine."""

import gc
import gzip
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

import pytest

from gateway.http.address_rewriting import DOCUMENT_BYTES_MAX, Addresses
from gateway.http.content_codings import Unreadable, decoder
from gateway.http.header_fields import Headers
from gateway.mcp import capabilities, jsonrpc, sse, task_observations
from gateway.mcp.client_message import ClientMessage
from gateway.mcp.task import TaskError
from gateway.query import criteria, cursor, list_request
from gateway.query.criteria import LIST_ITEMS_MAX, BadQuery, Query
from gateway.relay.body_pump import EventTap, Inspector
from gateway.task_ownership_guard import MAY_NAME
from gateway.transport.memory_budget import Buffers, Reservation
from tests.rules import plain

SIZE = 64 * 1024
MANY = b",".join(b'"m%05d":1' % number for number in range(SIZE // 11))
NESTED = b",".join([b'"x":[[],{},[{}]]'] * (SIZE // 17))
MARKS = (b"tasks/status", b"\\u", b"\\/", b"data: [", b"data:[", b'"result"', b'"error"')


def lines_run(work: Callable[[], object]) -> int:
    count = 0

    def trace(_frame: FrameType, event: str, _arg: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    gc.disable()  # else what other tests have left may be finalized meanwhile, in Python
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
        gc.enable()
    return count


@contextmanager
def bytes_taken_at_most(bytes_max: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] <= bytes_max
    finally:
        tracemalloc.stop()


def call(method: str, params: bytes) -> ClientMessage:
    return plain.asked(b'{"jsonrpc":"2.0","id":1,"method":"%b","params":%b}' % (method.encode(), params))


def test_unknown_members_of_a_list_s_params_cost_their_bytes() -> None:
    """350,000 of them took 0.9 s, and a dict of all of them, several times."""
    params = b'{"status":["working"],%b}' % MANY
    with bytes_taken_at_most(4 * len(params)):
        assert criteria.read(criteria.params(params)) == Query(status=frozenset({"working"}))
        assert criteria.ignored(params, criteria.params(params)) == ["..."]


def test_unknown_members_of_a_filter_cost_their_bytes() -> None:
    params = b'{"filter":{%b,"status":["working"]}}' % MANY
    with bytes_taken_at_most(4 * len(params)), pytest.raises(BadQuery) as caught:
        criteria.read(criteria.params(params))
    (fault,) = caught.value.faults
    assert (fault.parameter, fault.allowed) == ("filter", "an object that holds criteria, and nothing else")


def test_unknown_members_of_what_passes_cost_their_bytes() -> None:
    task = b'{"taskId":"a","status":"working",%b,"_meta":{}}' % MANY
    answer = plain.parsed(b'{"jsonrpc":"2.0","id":1,"result":%b}' % task)
    made = plain.parsed(b'{"jsonrpc":"2.0","id":1,"result":{"task":%b}}' % task)
    told = plain.parsed(b'{"jsonrpc":"2.0","method":"notifications/tasks/status","params":%b}' % task)
    get, tool = call("tasks/get", b'{"taskId":"a"}'), call("tools/call", b'{%b,"task":{}}' % MANY)
    with bytes_taken_at_most(10 * len(task)):
        assert tool.is_observed
        for found in (
            task_observations.of_response(get, answer),
            task_observations.of_response(tool, made),
            task_observations.of_notification(told),
        ):
            assert found is not None
            assert found.shown_ids == ["a"]


INITIALIZED = {
    "in the result": b'{"jsonrpc":"2.0","id":1,"result":{%b,"capabilities":{"tasks":{"list":{}}}}}',
    "in capabilities": b'{"jsonrpc":"2.0","id":1,"result":{"capabilities":{%b,"tasks":{},"tasks":{"list":{}}}}}',
    "in tasks": b'{"jsonrpc":"2.0","id":1,"result":{"capabilities":{"tasks":{"list":{},"list":{},%b}}}}',
}


@pytest.mark.parametrize("form", INITIALIZED.values(), ids=INITIALIZED.keys())
@pytest.mark.parametrize("tokens", [MANY[:50_000], NESTED[:50_000]], ids=["members", "brackets"])
def test_the_tokens_of_an_initialize_result_cost_their_bytes(form: bytes, tokens: bytes) -> None:
    """4 MB of them took 2 to 6 s."""
    data = form % tokens.rpartition(b',"')[0]
    edited: list[bytes] = []

    def work() -> None:
        edited.append(capabilities.advertise(data, plain.parsed(data), criteria.capability)[0])

    assert lines_run(work) < 1000
    filtering = jsonrpc.find(edited[0], "result", "capabilities", "tasks", "list", "filter")
    assert filtering is not None
    start, end = filtering
    assert edited[0][: start - len(b'"filter":')] + edited[0][end:] == data


STREAMS = [
    *(b"\n", b"\r", b"\r\n", b":\n\n", b"a\n\n", b"data:\n\n", b"data:[\n\n", b"data:\\u\n\n", b":\r\n\r\n"),
    *(b"data:[\r\r", b"a\n\ra\r\n\na\r\r"),
]


@pytest.mark.parametrize("unit", STREAMS)
def test_events_that_are_looked_at_cost_their_bytes_however_small_they_are(unit: bytes) -> None:
    """20 MB of newlines once took 25 s. Of events with a mark as many are read as there could be messages."""
    data = unit * (SIZE // len(unit))
    parser, events = sse.Parser(1 << 20, MARKS), list[sse.Event]()
    assert lines_run(lambda: events.extend(parser.feed(data))) < 15_000
    assert len(events) < 300
    assert b"".join(event.raw for event in events) + parser.rest() == data


@pytest.mark.parametrize("line", [b"a\n", b"data\n", b":\r", b"data:\r\n"])
def test_an_event_of_more_lines_than_anybody_writes_passes_unread(line: bytes) -> None:
    """4 MB of short lines took 1.5 s. The end of the event is found, and the next one is read."""
    for count in (sse.LINES_MAX - 3, sse.LINES_MAX + 1):
        data = b"data: first\n" + line * count + b"\n\n"
        for size in (4096, len(data)):
            parser, events = sse.Parser(1 << 20), list[sse.Event]()
            stream = data + b"data: next\n\n"
            for start in range(0, len(stream), size):
                events += parser.feed(stream[start : start + size])
            assert [event.whole for event in events] == [count < sse.LINES_MAX, True]
            assert b"".join(event.raw for event in events) == stream
            assert events[-1].data == b"next"


def test_an_event_of_too_many_lines_is_not_held() -> None:
    """4 MiB of short lines were held until their end, and then held the loop."""
    parser, events = sse.Parser(4 << 20), list[sse.Event]()
    for _ in range(64):
        events += parser.feed(b"data:\n" * 10_000)
        assert parser.pending_bytes <= 6 * 20_000
    events += parser.feed(b"\ndata: next\n\n")
    assert not any(event.whole for event in events[:-1]) and events[-1].data == b"next"


@pytest.mark.parametrize("marks", [MARKS, (), sse.EVERY])
def test_an_event_that_grows_is_looked_through_once(marks: tuple[bytes, ...]) -> None:
    """An event in pieces costs no more than that many pieces."""
    parser = sse.Parser(1 << 20, marks)
    piece = b"%b\n" % (b"a" * 4095)
    few = lines_run(lambda: [parser.feed(piece) for _ in range(8)])
    many = lines_run(lambda: [parser.feed(piece) for _ in range(64)])
    assert many < 9 * few


class _Searched(bytearray):
    """Bytes that count how many of them are searched for a byte."""

    searched = 0

    def __contains__(self, what: object) -> bool:
        self.searched += len(self)
        return super().__contains__(what)  # type: ignore[operator]


@pytest.mark.parametrize("line", [b"data:%b" % (b"a" * 251), b"data:%b\n" % (b"a" * 250), b"data:%b\r" % (b"a" * 250)])
def test_an_event_that_grows_is_searched_for_cr_once(line: bytes) -> None:
    """All of it was at each piece: an event of 4 MB in pieces of 256 bytes took a second."""
    parser = sse.Parser(1 << 20)
    parser._pending = pending = _Searched()
    for _ in range(1000):
        assert parser.feed(line) == []
    assert pending.searched <= len(pending)
    (event,) = parser.feed(b"\n\n")
    assert event.raw == line * 1000 + b"\n\n"


BAD_PAGES = [b"0,", b"{},", b'{"taskId":"a","status":"working"},0,', b'{"taskId":""},']


@pytest.mark.parametrize("item", BAD_PAGES)
def test_a_page_of_what_is_no_task_is_refused_before_it_is_taken_apart(item: bytes) -> None:
    """4 MiB of zeros took 150 MB and 128 ms."""
    data = b'{"jsonrpc":"2.0","id":1,"result":{"tasks":[%b]}}' % (item * ((4 << 20) // len(item)))[:-1]
    answer = plain.parsed(data)
    with bytes_taken_at_most(4 * len(data)), pytest.raises(TaskError):
        task_observations.parse_page(answer)
    assert task_observations.of_response(call("tasks/list", b"{}"), answer) == task_observations.Observation(doubt=True)


@pytest.mark.parametrize("line", [b":\n", b"\n", b"\r", b": a\r\n"])
def test_comments_cost_their_bytes(line: bytes) -> None:
    """A plain repeated group takes up to 260 bytes for each."""
    data = line * (16 * SIZE // len(line))
    parser = sse.Parser(1 << 22)
    with bytes_taken_at_most(5 * len(data)):
        taken = b"".join(event.raw for event in parser.feed(data + b": unfinished")) + parser.take_comments()
    assert taken == data
    assert parser.rest() == b": unfinished"


GZIP = Headers([(b"Content-Encoding", b"gzip")])


def unpacked(packed: bytes, piece_bytes: int, bytes_max: int) -> int:
    """The number of bytes that a stream unpacks to, until it is refused or ends."""
    decode, total = decoder(GZIP, bytes_max), 0
    try:
        for start in range(0, len(packed), piece_bytes):
            total += len(decode(packed[start : start + piece_bytes]))
    except Unreadable:
        pass
    return total


@pytest.mark.parametrize("piece_bytes", [1, 100, 1024, 65536])
def test_a_stream_unpacks_to_so_many_bytes_for_each_of_its_own(piece_bytes: int) -> None:
    """The limit was on each piece: 100 KB in many pieces were 100 MB."""
    bomb = gzip.compress(bytes(20 << 20))
    assert unpacked(bomb, piece_bytes, 1 << 20) <= (1 << 20) + 32 * len(bomb)
    members = b"".join(gzip.compress(bytes(100_000)) for _ in range(100))
    assert unpacked(members, piece_bytes, 1 << 20) <= (1 << 20) + 32 * len(members)


def test_a_stream_without_end_is_unpacked_as_long_as_it_says_something() -> None:
    messages = b"".join(b'data: {"jsonrpc":"2.0","method":"a","params":{"n":%d}}\n\n' % n for n in range(200_000))
    assert unpacked(gzip.compress(messages), 1000, 1 << 16) == len(messages)


@pytest.mark.parametrize("unit", [b"\\n", b"\\/", b"\\\\", b"\\\\\\/", b'\\"', b"\\u0041", b'"\\u0041"', b"\\"])
def test_the_escapes_of_a_document_cost_their_bytes(unit: bytes) -> None:
    """Each was a call of its own: 250 ms for 1 MiB. Of strings that never end each quote began a search: minutes."""
    gateway = Headers([(b"host", b"gw.example")])
    move = Addresses("http", "127.0.0.1:3001", None, None, "").move(gateway, gateway, is_tls=False)
    assert move is not None
    many = unit * (DOCUMENT_BYTES_MAX // len(unit))
    for document in (b'{"resource":"\\u0041%b"}' % many, b'"\\u0041' + many):
        assert move.document(document) is document
        assert b"u" in unit or lines_run(partial(move.document, document)) < 50


def test_a_host_that_is_new_costs_no_pattern_of_its_own() -> None:
    """With `host: preserve` each new one compiled a regular expression: 1 ms for 250 bytes."""
    addresses = Addresses("http", "127.0.0.1:3001", None, None, "")
    for number in range(3):
        gateway = Headers([(b"host", b"h%d.%b" % (number, b"a" * 240))])
        moved: list[bytes] = []

        def work(host: Headers = gateway, moved: list[bytes] = moved) -> None:
            move = addresses.move(host, host, is_tls=False)
            assert move is not None
            moved.append(move.text(b"http://127.0.0.1:3001/x http://%b/y" % (host.get(b"host") or b"")))

        assert lines_run(work) < 100
        assert moved == [b"http://%b/x http://%b/y" % ((gateway.get(b"host") or b"",) * 2)]


@pytest.mark.parametrize("pair", ["taskIds=%C3%A9%41%41%41%41", "taskIds=" + "%41," * 8, "%74askIds=%3D=%3d%25"])
def test_the_escapes_of_a_spelled_cursor_cost_their_bytes(pair: str) -> None:
    """100 KB of them took 42 ms: a line of Python for each, and more."""
    count = 2 * LIST_ITEMS_MAX // (1 + pair.count(",")) // 4
    text = "taskgate:?" + "&".join([pair] * count)
    assert lines_run(lambda: cursor.read_spelled(text)) < 40 * count * (1 + pair.count(","))
    one = "taskgate:?taskIds=" + "%41" * 30_000
    assert lines_run(lambda: cursor.read_spelled(one)) < 500
    assert cursor.read_spelled(one) == Query(taskIds=frozenset({"A" * 30_000}))


# ---- turns of the loop ----


def parts_of(body: bytes, is_guarded: bool) -> list[int]:
    """How often JSON is read of a message, in each turn of the loop."""
    parts, reads = [], 0

    def trace(_frame: FrameType, event: str, arg: Any) -> None:
        nonlocal reads
        if event == "c_call" and arg.__name__ in ("decode", "loads"):
            reads += 1

    reading = list_request.read(body, is_guarded, is_guarded)
    sys.setprofile(trace)
    try:
        while True:
            reading.send(None)
            parts.append(reads)
            reads = 0
    except StopIteration:
        return [*parts, reads]
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("is_guarded", [False, True])
def test_a_large_list_is_read_in_turns(is_guarded: bool) -> None:
    """Its params were read five times in one turn: 4 MiB held the loop 84 ms."""
    members = b",".join(b'"m%06d":1' % number for number in range(60_000))
    body = b'{"jsonrpc":"2.0","id":1,"method":"tasks/list","params":{%b}}' % members
    turns = parts_of(body, is_guarded)
    assert len(turns) == (8 if is_guarded else 6)
    assert turns[:2] == [0, 1], "the message alone, and not where its last bytes come"
    assert turns[-1] == 0, "nor where it is passed on"


@pytest.mark.parametrize("beside", [b"", b',"\\u0061":1', b',"io.modelcontextprotocol/related-task":1'])
@pytest.mark.parametrize("values", [b"1", b'"%x":1'])
def test_what_names_a_task_is_found_without_reading_many_values(values: bytes, beside: bytes) -> None:
    """With `guards.own_tasks` one message of 4 MiB held the loop for 0.3 to 1.1 s."""
    several = b",".join([values % n if b"%" in values else values for n in range(200_000)])
    arguments = b"{%b}" % several if values.startswith(b'"') else b"[%b]" % several
    body = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":%b%b}}' % (
        arguments,
        beside,
    )
    with bytes_taken_at_most(6 * len(body)):
        message = plain.asked(body, True, True)
    assert message.doubts == frozenset()
    assert message.related == (None if beside else []), "what cannot be read may be another's"


def test_a_piece_of_many_events_that_are_all_read_is_read_in_parts() -> None:
    """100,000 tiny events in 1.2 kB of gzip took 1.1 s of one turn."""
    read = list[bytes]()

    def seen(data: bytes) -> bytes:
        read.append(data)
        return data

    inspector = Inspector(seen, lambda _: None, MAY_NAME, edits=True, reads_all=True)
    tap = EventTap(inspector, bytes, SIZE, Reservation(Buffers(2**30)))
    harmless = b"data:{}\n\n" * 50_000
    assert tap.through(harmless) + b"".join(iter(tap.more, None)) == harmless
    assert not read, "what can name no task is not looked at"
    events = b'data:{"TASK":1}\n\n' * 10_000
    out = tap.through(events)
    most = before = len(read)
    while (part := tap.more()) is not None:
        out, most, before = out + part, max(most, len(read) - before), len(read)
    assert (out, len(read)) == (events, 10_000)
    assert most < 1000
