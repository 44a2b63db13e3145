"""Requests of HTTP/1.x: every split gives the same events, and a second reader (tests/relay/http1.py) agrees."""

from collections.abc import Iterator
from itertools import pairwise
from time import process_time
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.header_fields import Headers
from gateway.http.request_parser import Head, Refusal, RequestEvent, RequestReader
from tests.attack.requests import ROWS
from tests.relay.http1 import Malformed, Reader

FIELDS_MAX = 20_000  # more than `limits.header_fields_max` has by default, so that bytes decide
Seen = list[tuple[object, ...]]


def events(reader: RequestReader, *pieces: bytes) -> Iterator[RequestEvent]:
    """What a reader gives of all that arrives."""
    for piece in pieces:
        reader.add(piece)
        while reader.pending_bytes:
            yield from reader.read()


def read(*pieces: bytes, head_bytes_max: int = 65536) -> Seen:
    """The events of a connection that delivers `pieces`, neighbouring pieces of a body joined."""
    seen: Seen = []
    for event in events(RequestReader(head_bytes_max, FIELDS_MAX), *pieces):
        if isinstance(event, Head):
            seen.append(("head", event.method, event.target, event.minor, tuple(event.headers)))
        elif isinstance(event, Headers):
            seen.append(("end", tuple(event)))
        elif isinstance(event, Refusal):
            seen.append(("refused", event.status))
        elif seen[-1][0] == "body":
            seen[-1] = ("body", cast(bytes, seen[-1][1]) + event)
        else:
            seen.append(("body", event))
    return seen


SEVERAL = (
    b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n"
    b"3;a=b\r\nabc\r\n1\r\nz\r\n0\r\nX-T: 1\r\nAuthorization: evil\r\n\r\n"
    b"\r\nPOST /b?%ff%2F//? HTTP/1.1\r\nhOST: y\r\nContent-Length: 5\r\nX:  a \t\r\nx:\xfe\r\n\r\nhello"
    b"MKCOL * HTTP/1.1\r\nHost: x\r\nA:\r\n\r\nGET //%2F HTTP/1.0\r\n\r\n"
)


@given(st.sets(st.integers(1, len(SEVERAL) - 1)))
def test_any_split_gives_the_same_events(cuts: set[int]) -> None:
    """Those that the second reader reads, too."""
    assert stripped(read(SEVERAL)) == second(SEVERAL)
    edges = [0, *sorted(cuts), len(SEVERAL)]
    assert read(*(SEVERAL[a:b] for a, b in pairwise(edges))) == read(SEVERAL)


CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("size", [1, 7])
def test_hostile_requests_are_read_alike_wherever_they_are_split(size: int) -> None:
    """What becomes of each is in the table, which tests/attack plays. Of two limits either may be met first."""
    for row in ROWS:
        data = b"".join(piece for piece in row.sent if isinstance(piece, bytes))
        if not row.id.startswith("limits/"):
            assert read(*(data[at : at + size] for at in range(0, len(data), size))) == read(data), row


def first(data: bytes) -> Seen | None:
    """What the gateway reads; None if it refuses some of it."""
    seen = read(data)
    return None if seen and seen[-1][0] == "refused" else seen


def second(data: bytes) -> Seen | None:
    """What the second reader reads, which forgives no more than the gateway may; None if it refuses some of it."""
    seen: Seen = []
    reader, whole = Reader(bare=True), True
    reader.feed(data)
    try:
        messages = reader.requests()
    except Malformed:
        messages, whole = reader.done, False
    for message in messages:
        headers, minor = Headers(message.fields), int(message.start[-1:])
        codings, lengths = headers.tokens(b"transfer-encoding"), headers.all(b"content-length")
        chunked = minor and codings[-1:] == [b"chunked"] and codings.count(b"chunked") == 1
        if message.method == b"CONNECT" or headers.repeats(b"host") or (minor and b"host" not in headers):
            return None
        if (b"transfer-encoding" in headers and not chunked) or any(len(length) > 18 for length in lengths):
            return None
        seen.append(("head", message.method, message.target, minor, message.fields))
        if message.body:
            seen.append(("body", message.body))
        if message.whole:
            seen.append(("end", message.trailers))
            if not minor or b"close" in headers.tokens(b"connection"):
                return seen
    return seen if whole else None


def stripped(seen: Seen) -> Seen:
    """The same, without white space around the values of fields: it is no part of them (RFC 9112, 5.1)."""

    def without(fields: object) -> object:
        return tuple((n, v.strip(b" \t")) for n, v in fields) if isinstance(fields, tuple) else fields

    return [(*event[:-1], without(event[-1])) for event in seen]


PIECES = st.sampled_from(
    [
        *(b"GET ", b"POST ", b"/", b"/a?b", b" HTTP/1.1", b"HTTP/1.0", b"\r\n", b"\r\n\r\n", b"\n", b"\r", b" ", b"\t"),
        *(b":", b",", b"\0", b"\xff", b"Host: x", b"X: y", b"Content-Length: 3", b"content-length:0", b"chunked"),
        *(b"Transfer-Encoding: chunked", b"Transfer-Encoding", b"3", b"abc", b"0", b"3\r\nabc\r\n", b"0\r\n\r\n"),
        *(b"0\r\nT: 1\r\n\r\n", b";x=y"),
    ]
)


@given(st.lists(PIECES, min_size=1, max_size=14), st.booleans())
def test_what_is_taken_the_second_reader_takes_and_reads_the_same_way(pieces: list[bytes], sensible: bool) -> None:
    data = (b"POST /x HTTP/1.1\r\nHost: x\r\n" if sensible else b"") + b"".join(pieces) + b"\r\n\r\n"
    if not data.isascii():
        return  # a known difference: targets beyond ASCII
    ours, theirs = first(data), second(data)
    assert ours is None or stripped(ours) == theirs, (
        "the gateway takes what the second reader refuses, or reads it differently"
    )


def test_what_is_behind_a_body_does_not_count_as_its_own_head_or_extensions() -> None:
    """One read: a body larger than a head may be, and behind it a request in chunks of which only the head is there."""
    first_one = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9000\r\n\r\n" + b"a" * 9000
    seen = read(first_one + CHUNKED, b"3\r\nabc\r\n0\r\n\r\n" + CHUNKED[:40], CHUNKED[40:], head_bytes_max=1024)
    assert [kind for kind, *_ in seen] == ["head", "body", "end", "head", "body", "end", "head"]


def test_a_head_behind_another_may_be_as_large_as_the_first() -> None:
    """Its fields have no space behind the colon, and fill more than half of the limit."""
    head = b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a:\r\n" * 15_000 + b"\r\n"
    assert [kind for kind, *_ in read(head * 3)] == ["head", "end"] * 3


def test_one_read_of_many_small_chunks_costs_what_its_bytes_cost() -> None:
    """Each chunk once copied everything behind it. Eight times the bytes cost eight times the work, not sixty-four."""

    def seconds(chunks: int) -> float:
        data = b"1\r\nx\r\n" * chunks
        reader = RequestReader(65536, FIELDS_MAX)
        assert list(events(reader, b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"))
        began_at = process_time()
        assert list(events(reader, data))
        return process_time() - began_at

    assert min(seconds(160_000) for _ in range(3)) < 24 * min(seconds(20_000) for _ in range(5))


@pytest.mark.parametrize("line", [b"x: y\r\n", b"x:" + b"y" * 500, b"\r\n", b"X: " + b"y" * 70 + b"\r\n"])
def test_a_head_that_comes_byte_by_byte_costs_what_its_bytes_cost(line: bytes) -> None:
    """Eight times the bytes cost eight times the work. Nothing is kept of it but its bytes."""

    def seconds(size_bytes: int) -> float:
        data = (b"GET / HTTP/1.1\r\nHost: x\r\n" if line != b"\r\n" else b"") + line * (size_bytes // len(line))
        reader = RequestReader(1 << 20, 1 << 20)
        began_at = process_time()
        for at in range(len(data)):
            reader.add(data[at : at + 1])
            while reader.pending_bytes:
                assert reader.read() == []
        assert reader.held_bytes <= 1.2 * len(data) + 100
        return process_time() - began_at

    assert min(seconds(64_000) for _ in range(2)) < 24 * min(seconds(8_000) for _ in range(5))


BEHIND = (
    b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    b'18\r\n0\r\n\r\nGET /b HTTP/1.1\r\n\r\n\r\n0;e="GET"\r\nT: GET\r\n\r\n\r\n'
    b"GET /c HTTP/1.1\r\nHost: x\r\n\r\n"
)


def test_a_body_in_chunks_that_looks_like_its_own_end_ends_where_it_ends() -> None:
    expected: Seen = [("head", b"POST", b"/a"), ("body", b"0\r\n\r\nGET /b HTTP/1.1\r\n\r\n")]
    expected += [("end", ((b"T", b"GET"),)), ("head", b"GET", b"/c"), ("end", ())]
    for size in range(1, len(BEHIND) + 1):
        seen = read(*(BEHIND[at : at + size] for at in range(0, len(BEHIND), size)))
        assert [event[:3] for event in seen] == expected, size


def test_behind_a_body_full_of_such_places_a_request_in_the_same_piece_is_refused() -> None:
    """Each of them is read up to for itself, and that has a limit: the connection then ends, and nothing is misread."""
    body = b"\r\n\r\nA" * 12_000
    data = CHUNKED + b"%x\r\n%b\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n" % (len(body), body)
    seen = read(data)
    assert [event[0] for event in seen] == ["head", "body", "end", "refused"]
    assert seen[1] == ("body", body)


def test_of_what_was_refused_nothing_is_kept() -> None:
    reader = RequestReader(65536, 5)
    *_, last = events(reader, CHUNKED + b"0\r\n" + b"A: b\r\n" * 6 + b"\r\n")
    assert (type(last), reader.held_bytes) == (Refusal, 0)
