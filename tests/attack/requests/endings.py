"""Clients that end too early: at any place, by FIN or by RST (DESIGN 3.5 and 3.6)."""

from typing import Final

from tests.attack.rows import PING, Request, Seen, get, held, stops, streamed

_LENGTH: Final = held(b"Content-Length: %d" % len(PING), body=PING)
_CHUNKED: Final = held(b"Transfer-Encoding: chunked", body=b"5\r\nabcde\r\n0\r\n\r\n")
_UP: Final = streamed(b"Transfer-Encoding: chunked", body=b"5\r\nabcde\r\n0\r\n\r\n")
_UP_LENGTH: Final = streamed(b"Content-Length: 10", body=b"abcde")
_EXPECTS: Final = streamed(b"Expect: 100-continue", b"Content-Length: 3", body=b"")
_CUTS: Final = {
    "nothing": b"", "an-empty-line": b"\r\n", "in-the-method": b"GE", "in-the-target": b"GET /mc",
    "in-the-version": b"GET /mcp HTTP/1.", "behind-the-line": b"GET /mcp HTTP/1.1\r\n",
    "in-a-name": b"GET /mcp HTTP/1.1\r\nHo", "in-a-value": b"GET /mcp HTTP/1.1\r\nHost: localho",
    "before-the-empty-line": get()[:-2], "in-the-empty-line": get()[:-1], "behind-the-head": _LENGTH[: -len(PING)],
    "in-a-body": _LENGTH[:-1], "behind-a-chunked-head": _CHUNKED[: _CHUNKED.index(b"\r\n\r\n") + 4],
    "in-a-size": _CHUNKED[: _CHUNKED.index(b"\r\n\r\n") + 5], "in-a-chunk": _CHUNKED[:-9],
    "behind-a-chunk": _CHUNKED[:-5], "in-the-last-chunk": _CHUNKED[:-4], "before-the-last-line-end": _CHUNKED[:-2],
    "before-the-last-byte": _CHUNKED[:-1], "in-a-trailer": _CHUNKED[:-2] + b"X-T: 1",
    "behind-a-trailer": _CHUNKED[:-2] + b"X-T: 1\r\n",
}  # fmt: skip
_STREAMED: Final = {
    "streamed-head": _UP[: _UP.index(b"\r\n\r\n") + 4], "streamed-in-a-chunk": _UP[:-9],
    "streamed-behind-a-chunk": _UP[:-5], "streamed-before-the-last-byte": _UP[:-1],
    "streamed-in-a-trailer": _UP[:-2] + b"X-T: 1", "streamed-in-a-length": _UP_LENGTH,
    "streamed-before-it-may-go-on": _EXPECTS,
}  # fmt: skip

ROWS: Final[list[Request]] = [
    *(stops(f"{then}-{name}", data, then=then) for then in ("fin", "rst") for name, data in _CUTS.items()),
    *(
        stops(f"{then}-{name}", data, then=then, cut=True)
        for then in ("fin", "rst")
        for name, data in _STREAMED.items()
    ),
    *(stops(f"{then}-behind-a-request", get(), Seen(), then=then, cut=True) for then in ("fin", "rst")),
    *(
        stops(f"{then}-behind-a-post", _LENGTH, Seen(b"POST", body=PING), then=then, cut=True)
        for then in ("fin", "rst")
    ),
    *(stops(f"{then}-one-and-a-half", get() + _LENGTH[:-1], Seen(), then=then, cut=True) for then in ("fin", "rst")),
    *(stops(f"{then}-and-a-bad-head", get() + get(b"X : a"), Seen(), then=then, cut=True) for then in ("fin", "rst")),
]
