"""Bodies that look like something else, and `Expect` (RFC 9110, 10.1.1)."""

from typing import Final

from tests.attack.rows import CHUNKED, WAYS, Pieces, Request, Seen, either, get, passes, raw, refused
from tests.relay.messages import chunked

_SMUGGLED: Final = get(target=b"/smuggled")
_CONTENTS: Final = {
    "a-request": _SMUGGLED, "a-response": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "a-last-chunk-and-a-request": b"0\r\n\r\n" + _SMUGGLED, "only-line-ends": b"\r\n" * 20,
    "every-byte": bytes(range(256)), "the-http-2-preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
}  # fmt: skip
_EXPECT: Final = b"Expect: 100-continue"
_LENGTH: Final = b"Content-Length: 3"
_EXPECTATIONS: Final = {
    "upper-case": (b"Expect: 100-CONTINUE",), "with-a-parameter": (b"Expect: 100-continue; x=y",),
    "among-others": (b"Expect: x, 100-continue",), "unknown": (b"Expect: x-unknown",), "200": (b"Expect: 200-ok",),
    "empty": (b"Expect:",), "twice": (_EXPECT, _EXPECT),
}  # fmt: skip


def _split(data: bytes, size: int) -> Pieces:
    """The bytes in pieces, each of which arrives alone."""
    pieces: list[bytes | float] = []
    for at in range(0, len(data), size):
        pieces += [data[at : at + size], 0.0005]
    return tuple(pieces)


_BOTH: Final = raw(b"POST /mcp HTTP/1.1", CHUNKED, body=chunked(b"abc")) + get(target=b"/b")

ROWS: Final[list[Request]] = [
    *(
        row
        for way, (send, method) in WAYS.items()
        for name, data in _CONTENTS.items()
        for row in (
            passes(f"{way}-length-{name}", send(b"Content-Length: %d" % len(data), body=data), Seen(method, body=data)),
            passes(f"{way}-chunked-{name}", send(CHUNKED, body=chunked(data)), Seen(method, body=data)),
        )
    ),
    *(
        passes(f"{way}-expect{name}", (send(_EXPECT, framing, body=b""), pause, body), Seen(method, body=b"abc"))
        for way, (send, method) in WAYS.items()
        for name, framing, pause, body in (
            ("", _LENGTH, 0.0, b"abc"),
            ("-later", _LENGTH, 0.01, b"abc"),
            ("-chunked", CHUNKED, 0.0, chunked(b"abc")),
        )
    ),
    *(
        either(f"expect-{name}", get(*lines, _LENGTH, method=b"PUT", body=b"abc"), Seen(b"PUT", body=b"abc"),
               statuses=(400, 417))
        for name, lines in _EXPECTATIONS.items()
    ),
    passes("expect-without-a-body", get(_EXPECT)),
    passes("byte-by-byte", _split(_BOTH, 1), Seen(b"POST", body=b"abc"), Seen(target=b"/b")),
    refused("bad-head-byte-by-byte", _split(get(b"X : a"), 1)),
]  # fmt: skip
