"""Names and values of fields, and lines that are none (RFC 9110, 5; RFC 9112, 5)."""

from typing import Final

from tests.attack.rows import Request, Seen, get, passes, refused

_SMUGGLED: Final = b"GET /smuggled HTTP/1.1"
BAD: Final = {
    "space-before-colon": b"X : a", "tab-before-colon": b"X\t: a", "space-in-name": b"X Y: a", "empty-name": b": a",
    "only-a-colon": b":", "no-colon": b"X", "a-request-line": _SMUGGLED,
    "no-break-space-before-colon": b"X\xa0: a", "utf-8-name": "Xé: a".encode(), "latin-1-name": b"X\xe9: a",
    "cr-and-a-field": b"X: a\rContent-Length: 5", "cr-cr-and-a-request": b"X: a\r\r" + _SMUGGLED,
    "cr-cr-lf": b"X: a\r\r\nY: b", "nul-before-colon": b"Content-Length\0: 5", "nul-in-length": b"Content-Length: 5\0",
}  # fmt: skip
# RFC 9112, 5.2 has a proxy discard a response with these or mend it.
FOLDED: Final = {
    "only-spaces": b"  ",
    "folded-value": b"X: a\r\n b", "folded-by-tab": b"X: a\r\n\tb", "folded-by-nothing": b"X: a\r\n ",
    "folded-empty-value": b"X:\r\n a", "folded-twice": b"X: a\r\n b\r\n c",
    "folded-field": b"X: a\r\n Transfer-Encoding: chunked", "folded-length": b"Content-Length:\r\n 5",
    "folded-coding": b"Transfer-Encoding:\r\n\tchunked", "lf-and-a-field": b"X: a\nContent-Length: 5",
    "lf-lf-and-a-request": b"X: a\n\n" + _SMUGGLED, "lf-cr-lf": b"X: a\n\r\nY: b",
}  # fmt: skip
_DELIMITERS: Final = b'(),/;<=>?@[]{}"\\'
GOOD: Final = {
    "every-token-character": (b"!#$%&'*+-.^_`|~09azAZ: a", (b"!#$%&'*+-.^_`|~09azaz", b"a")),
    "empty-value": (b"X:", (b"x", b"")), "no-space": (b"X:a", (b"x", b"a")),
    "spaces-and-tabs-around": (b"X: \t a \t ", (b"x", b"a")), "tab-inside": (b"X: a\tb", (b"x", b"a\tb")),
    "latin-1": (b"X: \xe9\xff\x80", (b"x", b"\xe9\xff\x80")),
    "utf-8-line-separator": (b"X: a\xe2\x80\xa8b", (b"x", b"a\xe2\x80\xa8b")),
    "latin-1-next-line": (b"X: a\x85b", (b"x", b"a\x85b")),
    "request-in-value": (b"X: " + _SMUGGLED, (b"x", _SMUGGLED)),
    "encoded-line-end": (b"X: a%0d%0aY: b", (b"x", b"a%0d%0aY: b")),
    "escaped-line-end": (b"X: a\\r\\nY: b", (b"x", b"a\\r\\nY: b")), "colons": (b"X:: : a:", (b"x", b": : a:")),
    "quotes": (b'X: "a\\"', (b"x", b'"a\\"')), "every-delimiter": (b"X: " + _DELIMITERS, (b"x", _DELIMITERS)),
    "name-of-only-digits": (b"1: a", (b"1", b"a")),
    "underscores-for-dashes": (b"Content_Length: 5", (b"content_length", b"5")),
    "coding-with-underscores": (b"Transfer_Encoding: chunked", (b"transfer_encoding", b"chunked")),
    "length-like": (b"X-Content-Length: 5", (b"x-content-length", b"5")),
    "coding-like": (b"X-Transfer-Encoding: chunked", (b"x-transfer-encoding", b"chunked")),
    "length-with-a-dot": (b"Content-Length.: 5", (b"content-length.", b"5")),
    "overriding-method": (b"X-HTTP-Method-Override: DELETE", (b"x-http-method-override", b"DELETE")),
    "original-url": (b"X-Original-URL: /admin", (b"x-original-url", b"/admin")),
}  # fmt: skip

ROWS: Final[list[Request]] = [
    *(refused(name, get(line)) for name, line in (BAD | FOLDED).items()),
    *(
        refused(f"first-is-{name}", get(line).replace(b"Host: localhost\r\n" + line, line + b"\r\nHost: localhost"))
        for name, line in (BAD | FOLDED).items()
        if name in ("space-before-colon", "no-colon", "only-spaces", "a-request-line")
    ),
    *(refused(f"name-with-{chr(byte)}", get(b"X%cY: a" % byte)) for byte in _DELIMITERS),
    *(passes(name, get(line), Seen(has=(pair,))) for name, (line, pair) in GOOD.items()),
    passes("repeated", get(b"X: a", b"x: b", b"X: a"), Seen(has=((b"x", b"a"), (b"x", b"b")))),
    passes("authorization-twice", get(b"Authorization: a", b"Authorization: b"), Seen(has=((b"authorization", b"b"),))),
]
