"""Responses are read alike however they arrive: split anywhere, whole, or in chunks that llhttp never sees."""

from types import SimpleNamespace
from typing import Any

import httptools
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.http.message_reader import whole_body
from gateway.http.parsed_head_cache import ConnectionHeads, HeadCache
from gateway.http.response_parser import BadResponse, ResponseReader, may_vary
from gateway.transport.body_stream import Response

BYTES_MAX, FIELDS_MAX = 8000, 50
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def reader_of(source: Any = None) -> ResponseReader:
    """A reader for a connection; with `source` it finds the heads that came before on others."""
    return ResponseReader(BYTES_MAX, FIELDS_MAX, ConnectionHeads(source or SimpleNamespace(heads=HeadCache(may_vary))))


def read(pieces: list[bytes], method: bytes = b"GET", reader: ResponseReader | None = None) -> Any:
    """What a reader says of pieces: the heads, the body, its trailers, and how it ends."""
    reader = reader or reader_of()
    reader.begin()
    heads: list[Any] = []
    anything: Any = None
    body, final = b"", False
    for piece in pieces:
        reader.add(piece)
        try:
            while not final and reader.pending_bytes:
                if (head := reader.head()) is not None:
                    framing: Any = "none" if method == b"HEAD" else head.framing
                    response = Response(head, reader.values, reader.stated_bytes, framing, anything)
                    heads.append((head.status, head.reason, list(response.headers), framing, reader.stated_bytes))
                    heads.append((head.keeps_alive, head.authenticates, head.kind))
                    final = head.status >= 200
                    reader.expect_body(framing)
        except BadResponse as fault:
            return heads, str(fault)
        if final and not reader.is_whole and not reader.fault:
            part = reader.body()
            assert type(part) is bytes, "whoever keeps it relies on that it never changes"
            body += part
    return heads, body, reader.trailers, reader.is_whole, bool(reader.fault and not reader.is_whole)


class ByLlhttp:
    """A body in chunks as llhttp alone reads it."""

    def __init__(self, data: bytes) -> None:
        self.body, self.whole, self.behind = b"", False, False
        parser = httptools.HttpResponseParser(self)
        parser.feed_data(CHUNKED)
        try:
            parser.feed_data(data)
        except httptools.HttpParserError:
            self.behind = True

    def on_body(self, piece: bytes) -> None:
        self.body += piece

    def on_message_complete(self) -> None:
        self.whole = True


_parts = st.lists(
    st.binary(max_size=20).map(lambda data: b"%x\r\n%b\r\n" % (len(data), data))
    | st.sampled_from(
        [
            *(b"0\r\n\r\n", b"00\r\n\r\n", b"0\r\nX: a\r\n\r\n", b"2;x\r\nab\r\n", b"2 \r\nab\r\n", b"02\r\nab\r\n"),
            *(b"\r\n", b"2\nab\n", b"+2\r\nab\r\n", b"0x2\r\nab\r\n", b"2\r\nabc\r\n", b"-1\r\n", b"\xb2\r\nab\r\n"),
            *(b"A\r\n0123456789\r\n", b"2_0\r\n" + b"a" * 32 + b"\r\n", b"ffffffff\r\nab\r\n", b"F" * 17 + b"\r\n"),
        ]
    ),
    max_size=6,
)


@given(_parts, st.booleans())
@example([b"1\r\na\r\n"] * 70, True)
def test_chunks_that_are_read_without_llhttp_are_read_as_it_reads_them(parts: list[bytes], ends: bool) -> None:
    data = b"".join(parts) + b"0\r\n\r\n" * ends
    body, judge = whole_body(data, 0), ByLlhttp(data)
    assert body is None or (judge.body, judge.whole, judge.behind) == (body, True, False)
    if all(part[0] != 0x30 and part.partition(b"\r\n")[0].isalnum() for part in parts) and ends and len(parts) < 60:
        assert body is not None or not judge.whole or judge.behind, "a plain body was not read"


_names = st.sampled_from([b"Content-Length", b"Transfer-Encoding", b"Connection", b"Proxy-Connection", b"X"])
_values = st.sampled_from(
    [b"0", b"3", b"05", b"", b"chunked", b"gzip", b"gzip, chunked", b"close", b"keep-alive", b"a"]
)
_starts = st.sampled_from(
    [
        *(b"HTTP/1.1 200 OK", b"HTTP/1.0 200 OK", b"HTTP/1.1 204 ", b"HTTP/1.1 304 No"),
        *(b"HTTP/1.1 103 Hint", b"HTTP/1.1 101 No"),
    ]
)


@st.composite
def messages(draw: Any) -> bytes:
    """A head, and a body that may be its own."""
    lines = b"".join(b"%b: %b\r\n" % field for field in draw(st.lists(st.tuples(_names, _values), max_size=3)))
    body = draw(
        st.sampled_from([b"", b"abc", b"abcde", b"3\r\nabc\r\n0\r\n\r\n", b"3\r\nabc\r\n0\r\nX: a\r\n\r\n", b"\r\n"])
    )
    return b"%b\r\n%b\r\n%b" % (draw(_starts), lines, body)


@given(st.lists(messages(), min_size=1, max_size=3), st.lists(st.integers(0, 400), max_size=4), st.booleans())
def test_a_response_is_read_alike_wherever_it_is_split(sent: list[bytes], places: list[int], to_head: bool) -> None:
    data, method = b"".join(sent), b"HEAD" if to_head else b"GET"
    cuts = sorted(place for place in places if place < len(data))
    pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if a < b]
    assert read(pieces, method) == read([data], method)
    assert read([data[at : at + 1] for at in range(len(data))], method) == read([data], method)


# ---- heads that came before: test_generated_heads.py has what a reader says of them ----


NEVER = {
    "1xx": b"HTTP/1.1 103 Hint\r\nLink: a\r\n\r\n",
    "HTTP/1.0": b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n",
    "until the end": b"HTTP/1.1 200 OK\r\n\r\n",
    "the last": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    "that names a field": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: x\r\n\r\n",
    "that upgrades": b"HTTP/1.1 426 No\r\nContent-Length: 0\r\nUpgrade: h2c\r\n\r\n",
    "with trailers": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x\r\n\r\n",
    "that authenticates": b"HTTP/1.1 401 No\r\nContent-Length: 0\r\nWWW-Authenticate: NTLM\r\n\r\n",
    "large": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX: %b\r\n\r\n" % (b"x" * 4096),
    "a length in an odd way": b"HTTP/1.1 200 OK\r\nContent-Length: 00\r\n\r\n",
}


@pytest.mark.parametrize("head", NEVER.values(), ids=NEVER)
def test_a_head_that_is_never_remembered(head: bytes) -> None:
    source: Any = SimpleNamespace(heads=HeadCache(may_vary))
    for _ in range(3):
        read([head], reader=reader_of(source))
        assert not source.heads.entries
    for _ in range(3):
        read([b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"], reader=reader_of(source))
    assert len(source.heads.entries) == 1, "a plain one is remembered"
