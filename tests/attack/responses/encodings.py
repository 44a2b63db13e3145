"""Bodies whose encoding is not the stated one: the bytes pass unchanged, or the stream is cut."""

import gzip
import zlib
from typing import Final

from tests.attack.rows import BROKEN, CUT, JSON, Got, Pieces, Response, ask, asked, gives, ok
from tests.relay.messages import call, dumps, event, initialized, result

_EVENTS: Final = b"Content-Type: text/event-stream"
_PLAIN: Final = dumps(result(1, {"tasks": []}))
_PACKED: Final = gzip.compress(_PLAIN, mtime=0)
_BODIES: Final = {
    "gzip-that-is-none": (b"gzip", _PLAIN), "gzip-empty": (b"gzip", b""), "gzip-cut": (b"gzip", _PACKED[:-6]),
    "gzip-bad-checksum": (b"gzip", _PACKED[:-8] + b"\0" * 8),
    "gzip-bad-inside": (b"gzip", _PACKED[:12] + b"\xff" * 10 + _PACKED[22:]),
    "gzip-and-garbage": (b"gzip", _PACKED + b"garbage"), "gzip-two-members": (b"gzip", _PACKED * 2),
    "gzip-of-gzip": (b"gzip", gzip.compress(_PACKED, mtime=0)),
    "gzip-twice-named": (b"gzip, gzip", gzip.compress(_PACKED, mtime=0)),
    "gzip-bomb": (b"gzip", gzip.compress(b" " * 10_000_000, mtime=0)),
    "bomb-of-members": (b"gzip", gzip.compress(b" " * 10_000, mtime=0) * 300),
    "empty-members": (b"gzip", gzip.compress(b"", mtime=0) * 1000),
    "deflate-raw": (b"deflate", zlib.compress(_PLAIN)[2:-4]),
    "deflate-bomb": (b"deflate", zlib.compress(b"[" * 5_000_000)), "br-that-is-none": (b"br", _PLAIN),
    "unknown": (b"x-unknown", _PLAIN), "identity": (b"identity", _PLAIN), "empty-name": (b"", _PLAIN),
    "long-name": (b"x" * 3000, _PLAIN),
}  # fmt: skip
_ASKS: Final[dict[str, Pieces]] = {
    "get": asked(b"GET"),
    "call": ask(call("tools/call")),
    "initialize": ask(call("initialize")),
    "list": ask(call("tasks/list")),
}
_STREAM: Final = event(result(1, initialized()))
_STREAMS: Final = {
    "stream-that-is-none": _STREAM,
    "stream-cut": gzip.compress(_STREAM, mtime=0)[:-6],
    "stream-bomb": gzip.compress(b"data: " + b"x" * 5_000_000 + b"\n\n", mtime=0),
    "stream-and-garbage": gzip.compress(_STREAM, mtime=0) + b"garbage",
}


def _body(kind: bytes, coding: bytes, body: bytes) -> bytes:
    return ok(kind, b"Content-Encoding: " + coding, b"Content-Length: %d" % len(body), body=body)


ROWS: Final[list[Response]] = [
    *(
        gives(f"{way}-{name}", _body(JSON, coding, body), Got(200, body), ask=asks)
        for way, asks in _ASKS.items()
        for name, (coding, body) in _BODIES.items()
        if way in ("initialize", "call") or name in ("gzip-that-is-none", "gzip-cut", "gzip-bomb")
    ),
    *(
        gives(f"{way}-{name}", _body(_EVENTS, b"gzip", body), Got(200, body), BROKEN, CUT, ask=asks)
        for way, asks in _ASKS.items()
        for name, body in _STREAMS.items()
        if way in ("get", "initialize")
    ),
]
