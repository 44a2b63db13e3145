"""Several requests on one connection, and what tries to be one more (RFC 9112, 9.3.2 and 11.2)."""

from typing import Final

from tests.attack.rows import BAD, JSON, PING, Outcome, Request, Seen, get, held, passes, raw, refused, streamed

_SMUGGLED: Final = get(target=b"/smuggled")
_CHUNKED: Final = b"Transfer-Encoding: chunked"
_ABC: Final = b"3\r\nabc\r\n0\r\n\r\n"
_POSTED: Final = Seen(b"POST", body=PING)
_POST: Final = held(b"Content-Length: %d" % len(PING), body=PING)


def _gets(count: int) -> bytes:
    return b"".join(get(target=b"/%d" % n) for n in range(count))


def _then_refused(name: str, sent: bytes, *seen: Seen, statuses: frozenset[int] = BAD) -> Request:
    return Request(name, (sent,), (Outcome(seen, statuses),))


ROWS: Final[list[Request]] = [
    passes("two", _gets(2), Seen(target=b"/0"), Seen(target=b"/1")),
    passes("twenty", _gets(20), *(Seen(target=b"/%d" % n) for n in range(20))),
    passes(
        "every-framing",
        _POST + held(_CHUNKED, body=_ABC) + get() + _POST,
        _POSTED,
        Seen(b"POST", body=b"abc"),
        Seen(),
        _POSTED,
    ),
    passes("head-and-get", get(method=b"HEAD") + get(target=b"/b"), Seen(b"HEAD"), Seen(target=b"/b")),
    passes("streamed-and-held", streamed(_CHUNKED, body=_ABC) + _POST, Seen(b"PUT", body=b"abc"), _POSTED),
    passes("empty-line-between", get() + b"\r\n" + get(target=b"/b"), Seen(), Seen(target=b"/b")),
    passes("empty-line-behind-a-body", _POST + b"\r\n" + get(target=b"/b"), _POSTED, Seen(target=b"/b")),
    passes("in-two-pieces", (_POST[:-5], 0.002, _POST[-5:] + get(target=b"/b")), _POSTED, Seen(target=b"/b")),
    passes("the-same-twice", _POST + _POST, _POSTED, _POSTED),
    passes(
        "different-tokens",
        get(b"Authorization: a") + get(),
        Seen(has=((b"authorization", b"a"),)),
        Seen(lacks=(b"authorization",)),
    ),
    _then_refused("garbage-behind", get() + b"garbage\r\n\r\n", Seen()),
    _then_refused("bytes-behind-a-length", _POST + b"xyz\r\n\r\n", _POSTED),
    _then_refused(
        "bytes-behind-the-last-chunk", held(_CHUNKED, body=_ABC) + b"xyz\r\n\r\n", Seen(b"POST", body=b"abc")
    ),
    _then_refused("a-bad-head-behind", get() + get(b"X : a"), Seen()),
    _then_refused("two-lengths-behind", get() + held(b"Content-Length: 3", b"Content-Length: 4", body=b"abcd"), Seen()),
    _then_refused("length-and-chunks-behind", get() + held(_CHUNKED, b"Content-Length: 3", body=_ABC), Seen()),
    _then_refused("an-unknown-method-behind", get() + raw(b"BREW /mcp HTTP/1.1"), Seen()),
    _then_refused(
        "the-http-2-preface-behind",
        get() + b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        Seen(),
        statuses=frozenset({400, 405, 505}),
    ),
    _then_refused("an-http-0.9-line-behind", get() + b"GET /smuggled\r\n\r\n", Seen(), statuses=frozenset({400, 505})),
    _then_refused(
        "connect-behind",
        get() + raw(b"CONNECT evil:1 HTTP/1.1", host=b"evil:1"),
        Seen(),
        statuses=frozenset({400, 403, 405, 501}),
    ),
    Request(
        "named-authorization-behind",
        (get() + get(b"Authorization: x", b"Connection: authorization"),),
        (Outcome((Seen(),), BAD, keeps=True),),
    ),
    Request("good-between-bad", (get() + get(b"X : a") + _SMUGGLED,), (Outcome((Seen(),), BAD),)),
    refused("cl-te-g", raw(b"POST /mcp HTTP/1.1", JSON, b"Content-Length: 6", _CHUNKED, body=b"0\r\n\r\nG")),
    refused(
        "te-cl",
        raw(b"POST /mcp HTTP/1.1", JSON, _CHUNKED, b"Content-Length: 4", body=b"2c\r\n" + _SMUGGLED + b"\r\n0\r\n\r\n"),
    ),
    refused("te-cl-zero", raw(b"POST /mcp HTTP/1.1", JSON, _CHUNKED, b"Content-Length: 0", body=_ABC + _SMUGGLED)),
    refused(
        "cl-te-with-a-request",
        raw(b"POST /mcp HTTP/1.1", JSON, b"Content-Length: 5", _CHUNKED, body=b"0\r\n\r\n" + _SMUGGLED),
    ),
    refused("cl-cl", raw(b"POST /mcp HTTP/1.1", JSON, b"Content-Length: 0", b"Content-Length: 44", body=_SMUGGLED)),
    passes(
        "cl-0-of-get",
        raw(b"GET /mcp HTTP/1.1", b"Content-Length: %d" % len(_SMUGGLED), body=_SMUGGLED),
        Seen(body=_SMUGGLED),
    ),
    passes(
        "cl-0-of-head",
        raw(b"HEAD /mcp HTTP/1.1", b"Content-Length: %d" % len(_SMUGGLED), body=_SMUGGLED),
        Seen(b"HEAD", body=_SMUGGLED),
    ),
    passes(
        "pause-before-the-body",
        (raw(b"POST /mcp HTTP/1.1", b"Content-Length: %d" % len(_SMUGGLED)), 0.01, _SMUGGLED),
        Seen(b"POST", body=_SMUGGLED),
    ),
    passes(
        "pause-in-a-size-line",
        (streamed(_CHUNKED, body=b"3"), 0.002, b"\r", 0.002, b"\nabc\r", 0.002, b"\n0\r\n\r", 0.002, b"\n"),
        Seen(b"PUT", body=b"abc"),
    ),
    refused("smuggled-in-a-folded-line", get(b"X: a\r\n GET /smuggled HTTP/1.1")),
]
