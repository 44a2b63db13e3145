"""Chunks, their sizes, extensions and ends (RFC 9112, 7.1)."""

from typing import Final

from tests.attack.rows import CHUNKED, WAYS, Request, Seen, either, passes, refused

_END: Final = b"0\r\n\r\n"
GOOD: Final = {
    "leading-zeros": b"0003\r\nabc\r\n" + _END, "several-zeros-at-the-end": b"3\r\nabc\r\n000\r\n\r\n",
    "one-byte-each": b"1\r\na\r\n1\r\nb\r\n1\r\nc\r\n" + _END, "extension": b"3;a=b\r\nabc\r\n" + _END,
    "extension-without-value": b"3;a\r\nabc\r\n" + _END, "extension-quoted": b'3;a="b c;d"\r\nabc\r\n' + _END,
    "extension-that-looks-like-a-size": b"3;5=5\r\nabc\r\n" + _END, "extensions": b"3;a=b;c=d\r\nabc\r\n" + _END,
    "extension-of-the-last": b"3\r\nabc\r\n0;a=b\r\n\r\n", "size-in-upper-case": b"A\r\n0123456789\r\n" + _END,
}  # fmt: skip
MAYBE: Final = {
    "space-before-extension": b"3 ;a=b\r\nabc\r\n" + _END,
    "tab-before-extension": b"3\t;a=b\r\nabc\r\n" + _END,
    "space-behind-semicolon": b"3; a=b\r\nabc\r\n" + _END,
    "extension-empty": b"3;\r\nabc\r\n" + _END,
    "extension-with-an-open-quote": b'3;a="b\r\nabc\r\n' + _END,
    "extension-with-an-escape": b'3;a="\\"\r\nabc\r\n' + _END,
    "extension-of-bad-characters": b"3;(a)\r\nabc\r\n" + _END,
    "extension-latin-1": b"3;\xe9=\xff\r\nabc\r\n" + _END,
    "extension-quoted-line-end": b'3;a="b\r\n";c\r\n' + _END,  # no quoted string goes over a line's end
    "twenty-zeros": b"3\r\nabc\r\n" + b"0" * 20 + b"\r\n\r\n",
    "eighteen-digits": b"0" * 17 + b"3\r\nabc\r\n" + _END,
    "thousand-extensions": b"3" + b";a" * 1000 + b"\r\nabc\r\n" + _END,
    "large-extension": b"3;" + b"a" * 3000 + b"\r\nabc\r\n" + _END,
}
BAD: Final = {
    "size-hexadecimal-prefix": b"0x3\r\nabc\r\n" + _END, "size-minus": b"-3\r\nabc\r\n" + _END,
    "size-plus": b"+3\r\nabc\r\n" + _END, "size-space-behind": b"3 \r\nabc\r\n" + _END,
    "size-space-before": b" 3\r\nabc\r\n" + _END, "size-tab-behind": b"3\t\r\nabc\r\n" + _END,
    "size-empty": b"\r\nabc\r\n" + _END, "size-letter": b"g\r\nabc\r\n" + _END,
    "size-letter-behind": b"3g\r\nabc\r\n" + _END, "size-quoted": b'"3"\r\nabc\r\n' + _END,
    "size-comma": b"3,\r\nabc\r\n" + _END, "size-underscore": b"0_3\r\nabc\r\n" + _END,
    "size-fullwidth": "\uff13".encode() + b"\r\nabc\r\n" + _END,
    "size-17-digits": b"10000000000000003\r\nabc\r\n" + _END, "size-20-digits": b"f" * 20 + b"\r\nabc\r\n" + _END,
    "size-32-bits-and-3": b"fffffffffffffffff00000003\r\nabc\r\n" + _END,
    "size-line-ends-with-lf": b"3\nabc\r\n" + _END, "size-line-ends-with-cr": b"3\rabc\r\n" + _END,
    "size-line-ends-with-cr-cr-lf": b"3\r\r\nabc\r\n" + _END, "size-nul": b"3\0\r\nabc\r\n" + _END,
    "size-vertical-tab": b"3\x0b\r\nabc\r\n" + _END, "chunk-too-long": b"3\r\nabcd\r\n" + _END,
    "chunk-too-short": b"4\r\nabc\r\n" + _END, "chunk-without-an-end": b"3\r\nabc" + _END,
    "chunk-ends-with-lf": b"3\r\nabc\n" + _END, "chunk-ends-with-cr": b"3\r\nabc\r" + _END,
    "chunk-ends-with-lf-cr": b"3\r\nabc\n\r" + _END, "chunk-ends-with-two-bytes": b"3\r\nabcxx" + _END,
    "empty-line-between": b"3\r\nabc\r\n\r\n" + _END, "extension-with-lf": b"3;a\nb\r\nabc\r\n" + _END,
    "extension-with-cr": b"3;a\rb\r\nabc\r\n" + _END, "extension-with-nul": b"3;a\0b\r\nabc\r\n" + _END,
    "extension-ends-with-lf": b"3;a\nabc\r\n" + _END, "last-chunk-ends-with-lf": b"3\r\nabc\r\n0\n\r\n",
    "last-chunk-and-end-are-lf": b"3\r\nabc\r\n0\n\n", "end-is-lf": b"3\r\nabc\r\n0\r\n\n\r\n\r\n",
    "end-is-cr": b"3\r\nabc\r\n0\r\n\rx\r\n\r\n", "last-chunk-minus-zero": b"3\r\nabc\r\n-0\r\n\r\n",
    "last-chunk-with-a-space": b"3\r\nabc\r\n0 \r\n\r\n", "no-chunk-at-all": b"xyz\r\n\r\n",
    "request-as-size": b"GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n",
}  # fmt: skip
_OTHER_BODIES: Final = {"size-in-upper-case": b"0123456789", "extension-quoted-line-end": b'";c'}
_ENDLESS: Final = b"3;" + b"a" * 40_000 + b"\r\nabc\r\n" + _END


def body_of(name: str) -> bytes:
    return _OTHER_BODIES.get(name, b"abc")


def _seen(method: bytes, name: str) -> Seen:
    return Seen(method, body=body_of(name))


ROWS: Final[list[Request]] = [
    row
    for way, (send, method) in WAYS.items()
    for row in (
        *(passes(f"{way}-{n}", send(CHUNKED, body=data), _seen(method, n)) for n, data in GOOD.items()),
        *(either(f"{way}-{n}", send(CHUNKED, body=data), _seen(method, n), cut=True) for n, data in MAYBE.items()),
        *(refused(f"{way}-{n}", send(CHUNKED, body=data), cut=way == "streamed") for n, data in BAD.items()),
        refused(f"{way}-extension-of-40000-bytes", send(CHUNKED, body=_ENDLESS), 400, 413, 431, cut=way == "streamed"),
    )
]
