"""`Transfer-Encoding`: one field that every reader reads alike, and never beside a length (RFC 9112, 6.1 and 6.3).

Decided here: the members of its list are non-empty tokens; the last one, and only that, is `chunked`; none is
`identity`. Anything else is 400.
"""

from typing import Final

from tests.attack.rows import CHUNKED, WAYS, Request, Seen, either, get, passes, refused, streamed

BODY: Final = b"3\r\nabc\r\n0\r\n\r\n"
_SMUGGLED: Final = b"0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: localhost\r\nX: "
BAD: Final = {
    "empty": b"", "only-comma": b",", "comma-behind": b"chunked,", "comma-before": b",chunked",
    "comma-and-space-before": b", chunked", "commas-inside": b"gzip,,chunked", "twice": b"chunked, chunked",
    "twice-without-space": b"chunked,chunked", "identity": b"identity", "identity-before": b"identity, chunked",
    "identity-behind": b"chunked, identity", "gzip": b"gzip", "gzip-behind": b"chunked, gzip", "prefix": b"xchunked",
    "suffix": b"chunkedx", "half": b"chunk", "two-words": b"x chunked", "space-inside": b"chun ked",
    "parameter": b"chunked;q=1", "parameter-before": b";chunked", "double-quoted": b'"chunked"',
    "single-quoted": b"'chunked'", "brackets": b"[chunked]", "no-break-space-behind": b"chunked\xa0",
    "no-break-space-before": b"\xa0chunked", "soft-hyphen": b"chun\xadked", "kelvin-sign": "chun\u212aed".encode(),
    "vertical-tab-behind": b"chunked\x0b", "vertical-tab-before": b"\x0bchunked", "form-feed-behind": b"chunked\x0c",
    "form-feed-before": b"\x0cchunked", "nul-behind": b"chunked\0", "cr-behind": b"chunked\r",
    "backslash": b"chunked\\", "colon": b": chunked", "equals": b"=chunked", "trailers": b"trailers", "number": b"3",
    "gzip-twice-named": b"chunked, gzip, chunked", "bad-member": b"g(zip, chunked",
    "member-with-space": b"g zip, chunked",
}  # fmt: skip
LINES: Final = {
    "two-fields": (b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"),
    "two-fields-first-empty": (b"Transfer-Encoding:", b"Transfer-Encoding: chunked"),
    "two-fields-second-empty": (b"Transfer-Encoding: chunked", b"Transfer-Encoding:"),
    "two-fields-gzip-first": (b"Transfer-Encoding: gzip", b"Transfer-Encoding: chunked"),
    "two-fields-identity-first": (b"Transfer-Encoding: identity", b"Transfer-Encoding: chunked"),
    "two-fields-identity-second": (b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity"),
    "two-fields-second-unknown": (b"Transfer-Encoding: chunked", b"transfer-encoding: x"),
    "space-before-colon": (b"Transfer-Encoding : chunked",), "tab-before-colon": (b"Transfer-Encoding\t: chunked",),
    "nul-before-colon": (b"Transfer-Encoding\0: chunked",),
    "space-in-front": (b"X: a", b" Transfer-Encoding: chunked"),
    "tab-in-front": (b"X: a", b"\tTransfer-Encoding: chunked"),
    "behind-a-bare-lf": (b"X: a\nTransfer-Encoding: chunked",),
    "behind-a-bare-cr": (b"X: a\rTransfer-Encoding: chunked",), "space-in-name": (b"Transfer Encoding: chunked",),
    "colon-in-name": (b":Transfer-Encoding: chunked",), "folded": (b"Transfer-Encoding: chun", b" ked"),
    "folded-before": (b"Transfer-Encoding:", b" chunked"), "folded-empty": (b"Transfer-Encoding: chunked", b" "),
}  # fmt: skip
CONFLICTS: Final = {
    "length-first": (b"Content-Length: 6", b"Transfer-Encoding: chunked"),
    "length-behind": (b"Transfer-Encoding: chunked", b"Content-Length: 6"),
    "length-zero": (b"Content-Length: 0", b"Transfer-Encoding: chunked"),
    "length-of-the-whole": (b"Content-Length: %d" % len(BODY), b"Transfer-Encoding: chunked"),
    "length-empty": (b"Content-Length:", b"Transfer-Encoding: chunked"),
    "length-and-gzip-chunked": (b"Content-Length: 6", b"Transfer-Encoding: gzip, chunked"),
    "length-and-upper-case": (b"Content-Length: 6", b"TRANSFER-ENCODING: CHUNKED"),
    "length-named-by-connection": (b"Content-Length: 6", b"Transfer-Encoding: chunked", b"Connection: content-length"),
    "coding-named-by-connection": (b"Content-Length: 6", CHUNKED, b"Connection: transfer-encoding"),
}
_GOOD: Final = {"plain": b" chunked", "upper-case": b" CHUNKED", "mixed": b"  ChUnKeD", "no-space": b"chunked"}
_SEEN: Final = Seen(b"PUT", body=b"abc")

ROWS: Final[list[Request]] = [
    *(
        passes(f"{way}-{name}", send(b"Transfer-Encoding:" + value, body=BODY), Seen(method, body=b"abc"))
        for way, (send, method) in WAYS.items()
        for name, value in _GOOD.items()
    ),
    *(
        passes(f"chunked-{m.decode()}", get(b"Transfer-Encoding: chunked", method=m, body=BODY), Seen(m, body=b"abc"))
        for m in (b"GET", b"HEAD", b"DELETE", b"OPTIONS")
    ),
    passes("gzip-and-chunked", streamed(b"Transfer-Encoding: gzip, chunked", body=BODY), _SEEN, whole=False),
    *(refused(f"coding-{name}", streamed(b"Transfer-Encoding: " + value, body=BODY)) for name, value in BAD.items()),
    *(refused(name, streamed(*lines, body=BODY)) for name, lines in LINES.items()),
    *(refused(f"cl-te-{name}", streamed(*lines, body=_SMUGGLED)) for name, lines in CONFLICTS.items()),
    *(
        refused(f"te-te-{name}", streamed(b"Content-Length: 6", b"Transfer-Encoding: " + BAD[name], body=_SMUGGLED))
        for name in ("empty", "comma-before", "identity", "prefix", "double-quoted", "vertical-tab-before", "two-words")
    ),
    passes(
        "not-the-name",
        streamed(b"Content-Length: 3", b"Transfer_Encoding: chunked", b"X-Transfer-Encoding: chunked", body=b"abc"),
        _SEEN,
    ),
    *(
        either(f"space-{name}", streamed(b"Transfer-Encoding:" + value, body=BODY), _SEEN)
        for name, value in {"behind": b"chunked ", "tab-behind": b"chunked\t", "tab-before": b"\tchunked"}.items()
    ),
    passes("te-is-dropped", get(b"TE: trailers, chunked"), Seen(lacks=(b"te", b"transfer-encoding"))),
    passes("trailer-without-chunks", get(b"Trailer: X-T"), Seen()),
]
