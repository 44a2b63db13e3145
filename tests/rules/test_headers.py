"""Header fields as they came (DESIGN 3.2, 3.3; RFC 9110)."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.http.content_codings import with_readable
from gateway.http.header_fields import Headers

Pairs = list[tuple[bytes, bytes]]


# RFC 9110, 7.6.1, but Transfer-Encoding: its leg is framed anew with it (DESIGN 3.2, "framing headers").
HOP_BY_HOP = {b"connection", b"keep-alive", b"proxy-connection", b"te", b"upgrade"}
FRAMES_OR_ADDRESSES = {b"host", b"content-length", b"transfer-encoding"}  # `Connection` cannot take it away


names = st.sampled_from(
    [
        *(b"A", b"a", b"X-B", b"x-b", b"Set-Cookie", b"Connection", b"connection", b"CONNECTION", b"Keep-Alive", b"TE"),
        *(b"te", b"Host", b"Upgrade", b"Proxy-Connection", b"Proxy-Authorization", b"Trailer", b"Transfer-Encoding"),
        *(b"Content-Length", b"mcp-session-id", b"X-\xe9"),
    ]
)
VALUES = [*(b"", b"1", b" x ", b"a", b"X-b, A", b"close", b"te", b"keep-alive,a", b",, \tx-B,", b"\xff\x80")]
VALUES += [b"host ,CONTENT-length, transfer-encoding, trailer"]
fields = st.lists(
    st.tuples(names, st.sampled_from(VALUES)),
    max_size=8,
)


ALL_GO_ON = [(b"Authorization", b"Bearer x"), (b"Proxy-Authorization", b"x"), (b"Proxy-Authenticate", b"x")]
ALL_GO_ON += [(b"Trailer", b"x"), (b"Set-Cookie", b"a=1"), (b"set-cookie", b""), (b"Last-Event-ID", b"  5  ")]
FRAMED = [(b"Host", b"a"), (b"Content-Length", b"5"), (b"Transfer-Encoding", b"chunked")]


@given(fields)
@example([*FRAMED, (b"Connection", b"host, content-length, transfer-encoding")])
@example([*ALL_GO_ON, (b"X-Hop", b"1"), (b"connection", b"close ,x-HOP"), (b"x-hop", b"4"), (b"X-Hop-2", b"5")])
@example([(name.upper(), b"x") for name in sorted(HOP_BY_HOP)])
def test_the_fields_that_go_on_are_some_of_those_that_came_in_their_order(pairs: Pairs) -> None:
    named = {t.strip().lower() for n, v in pairs if n.lower() == b"connection" for t in v.split(b",")}
    stays = [p for p in pairs if p[0].lower() not in (HOP_BY_HOP | named) - FRAMES_OR_ADDRESSES]
    headers = Headers(pairs)
    assert list(headers.end_to_end()) == stays
    assert list(headers) == pairs  # and nothing was done to these
    assert headers.end_to_end().block() == b"".join(n + b": " + v + b"\r\n" for n, v in stays)


@given(fields)
def test_fields_come_out_as_they_went_in(pairs: Pairs) -> None:
    headers = Headers(pairs)
    assert list(headers) == pairs
    assert bool(headers) is bool(pairs)
    assert headers.block() == b"".join(n + b": " + v + b"\r\n" for n, v in pairs)
    for name in {n.lower() for n, _ in pairs} | {b"absent"}:
        values = [v for n, v in pairs if n.lower() == name]
        assert headers.all(name) == values
        assert (name in headers) is bool(values)
        assert headers.get(name) == (values[0].strip() if values else None)
        assert headers.tokens(name) == [t.strip().lower() for v in values for t in v.split(b",") if t.strip()]
        assert list(headers.without(name)) == [p for p in pairs if p[0].lower() != name]


@given(fields)
def test_a_value_is_put_where_the_first_one_was(pairs: Pairs) -> None:
    headers = Headers(pairs)
    at = next((i for i, (n, _) in enumerate(pairs) if n.lower() == b"x-b"), None)
    changed = list(headers.with_value(b"x-b", b"new"))
    if at is None:
        assert changed == [*pairs, (b"X-B", b"new")]
    else:
        rest = [p for p in pairs[at + 1 :] if p[0].lower() != b"x-b"]
        assert changed == [*pairs[:at], (pairs[at][0], b"new"), *rest]
    assert list(longer := headers.with_field(b"X-B", b"2")) == [*pairs, (b"X-B", b"2")]
    assert longer.all(b"x-b") == [*headers.all(b"x-b"), b"2"]
    assert Headers(changed).get(b"x-b") == headers.with_value(b"x-b", b"new").get(b"x-b") == b"new"
    assert list(headers) == pairs


MEDIA_TYPES = {
    b"application/json": b"application/json",
    b"Application/JSON; charset=utf-8": b"application/json",
    b" text/event-stream ;x=y": b"text/event-stream",
    b'text/event-stream;charset="a;b"': b"text/event-stream",
    b"application/json-seq": b"application/json-seq",
    b"": b"",
    b";": b"",
}


def test_the_media_type() -> None:
    for value, media_type in MEDIA_TYPES.items():
        assert Headers([(b"content-TYPE", value)]).media_type() == media_type
    assert Headers().media_type() == b""


# What is asked for in `Accept-Encoding` fields, which are one list (RFC 9110, 5.3), and the codings that are left of
# it: None if nothing changes. As they came (DESIGN 3.2); an empty member of a list means nothing (5.6.1.2).
ASKED_FOR: list[tuple[list[bytes], list[bytes] | None]] = [
    ([b"gzip, deflate, br, zstd"], [b"gzip", b"deflate"]),
    ([b"br"], [b"identity"]),
    ([b"br;q=1.0, zstd;q=0.5"], [b"identity"]),
    ([b"*"], [b"identity"]),
    ([b"GZIP , BR"], [b"gzip"]),
    ([b"gzip;q=0.5, br;q=1, *;q=0"], [b"gzip;q=0.5"]),
    ([b"br;q=1, gzip;q=0.8, deflate; q=0.2"], [b"gzip;q=0.8", b"deflate; q=0.2"]),
    ([b"compress, x-gzip"], [b"x-gzip"]),
    ([b"gzipped"], [b"identity"]),
    ([b"gzip", b"br"], [b"gzip"]),
    ([b"br", b"gzip"], [b"gzip"]),
    ([b"br", b"zstd"], [b"identity"]),
    ([b"", b"br"], [b"identity"]),
    ([b"gzip", b"deflate"], None),
    *(([each], None) for each in (b"gzip, deflate", b"gzip ,\tdeflate;q=0.5", b"GZIP", b"identity", b"gzip;q=0")),
    *(([each], None) for each in (b"", b" ", b"gzip,", b"gzip,,deflate")),
    ([], None),
]


@pytest.mark.parametrize(("values", "left"), ASKED_FOR)
def test_what_cannot_be_read_is_not_asked_for(values: list[bytes], left: list[bytes] | None) -> None:
    pairs = [(b"A", b"1"), *((b"accept-Encoding", value) for value in values), (b"B", b"2")]
    narrowed = with_readable(Headers(pairs))
    if left is None:
        assert list(narrowed) == pairs
    else:
        assert narrowed.tokens(b"accept-encoding") == left
        assert [name for name, _ in narrowed if name in b"AB"] == [b"A", b"B"]
