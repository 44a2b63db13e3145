"""Upstreams that die anywhere: half an answer never looks whole, and no POST is delivered twice (DESIGN 3.5)."""

from typing import Final

from tests.attack.rows import BROKEN, CUT, Got, Pieces, Response, ask, asked, gives, ok
from tests.relay.messages import call, dumps, initialized, result

_JSON: Final = b"Content-Type: application/json"
_LENGTH: Final = ok(b"Content-Length: 6", body=b"abcdef")
_CHUNKED: Final = ok(b"Transfer-Encoding: chunked", body=b"3\r\nabc\r\n3\r\ndef\r\n0\r\nX: a\r\n\r\n")
_INITIALIZED: Final = dumps(result(1, initialized()))
_EDITED: Final = ok(_JSON, b"Content-Length: %d" % len(_INITIALIZED), body=_INITIALIZED)
_PLACES: Final = {
    "before-anything": b"", "in-the-status-line": _LENGTH[:9], "in-a-field": _LENGTH[:25],
    "in-the-empty-line": _LENGTH[:-7], "behind-the-head": _LENGTH[:-6], "in-a-body": _LENGTH[:-1],
    "behind-a-chunked-head": _CHUNKED[: _CHUNKED.index(b"\r\n\r\n") + 4],
    "in-a-chunk-size": _CHUNKED[: _CHUNKED.index(b"\r\n\r\n") + 5], "in-a-chunk": _CHUNKED[: _CHUNKED.index(b"bc")],
    "behind-a-chunk": _CHUNKED[: _CHUNKED.index(b"3\r\ndef")],
    "in-the-last-chunk": _CHUNKED[: _CHUNKED.index(b"\r\nX: a")], "in-a-trailer": _CHUNKED[:-5],
    "before-the-last-byte": _CHUNKED[:-1],
}  # fmt: skip
_ASKS: Final[dict[str, Pieces]] = {"get": asked(b"GET"), "post": ask(call("tools/call"))}

ROWS: Final[list[Response]] = [
    *(
        gives(f"{way}-{then}-{name}", data, BROKEN, CUT, ask=asks, then=then)
        for way, asks in _ASKS.items()
        for then in ("fin", "rst")
        for name, data in _PLACES.items()
    ),
    *(
        gives(f"initialize-{then}", _EDITED[:-1], BROKEN, CUT, ask=ask(call("initialize")), then=then)
        for then in ("fin", "rst")
    ),
    gives("initialize-whole-and-fin", _EDITED, Got(200), ask=ask(call("initialize")), then="fin"),
    gives(
        "slowly", tuple(x for n in range(0, len(_LENGTH), 9) for x in (_LENGTH[n : n + 9], 0.0005)), Got(200, b"abcdef")
    ),
    gives("large-and-a-reset", (ok(b"Content-Length: 300001", body=b"x" * 300_000), 0.01), CUT, BROKEN, then="rst"),
    gives("large", ok(b"Content-Length: 300000", body=b"x" * 300_000), Got(200, b"x" * 300_000)),
]
