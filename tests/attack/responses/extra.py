"""Unasked bytes and responses behind an answer, at once or later, and answers that come too early."""

from typing import Final

from tests.attack.rows import BROKEN, CUT, OK, POISON, Got, Pieces, Response, answer, ask, gives, ok, raw
from tests.relay.messages import call

_FIRSTS: Final = {
    "length": ok(b"Content-Length: 2", body=b"ok"),
    "chunked": ok(b"Transfer-Encoding: chunked", body=b"2\r\nok\r\n0\r\n\r\n"),
    "trailed": ok(b"Transfer-Encoding: chunked", body=b"2\r\nok\r\n0\r\nX: a\r\n\r\n"),
}
_BEHIND: Final = {
    "a-response": POISON, "three-responses": POISON * 3, "half-a-response": POISON[:-3],
    "half-a-head": POISON[:10], "garbage": b"POISON", "one-byte": b"P", "a-line-end": b"\r\n",
    "ten-line-ends": b"\r\n" * 10, "a-lf": b"\n", "a-nul": b"\0",
    "a-408": answer(b"HTTP/1.1 408 Request Timeout", b"Connection: close", b"Content-Length: 0"),
    "a-100": answer(b"HTTP/1.1 100 Continue"), "a-request": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a-chunk": b"6\r\nPOISON\r\n0\r\n\r\n",
}  # fmt: skip
_HEAD: Final = b"PUT /hostile HTTP/1.1\r\nHost: localhost\r\nContent-Length: 6\r\n\r\n"
_CHUNKED_HEAD: Final = raw(b"PUT /hostile HTTP/1.1", b"Transfer-Encoding: chunked")
_LATER: Final[Pieces] = (_HEAD, 0.01, b"abcdef")
_LATER_CHUNKED: Final[Pieces] = (_CHUNKED_HEAD, 0.01, b"3\r\nabc\r\n0\r\n\r\n")

ROWS: Final[list[Response]] = [
    *(
        gives(f"at-once-{name}", _FIRSTS["length"] + data, OK, BROKEN, CUT, alone=True)
        for name, data in _BEHIND.items()
    ),
    *(gives(f"later-{name}", (_FIRSTS["length"], 0.002, data), OK) for name, data in _BEHIND.items()),
    *(
        gives(f"at-once-behind-{name}", first + POISON, OK, BROKEN, CUT, alone=True)
        for name, first in list(_FIRSTS.items())[1:]
    ),
    *(gives(f"later-behind-{name}", (first, 0.002, POISON), OK) for name, first in list(_FIRSTS.items())[1:]),
    *(gives(f"{gap * 1000:g}-ms-later", (_FIRSTS["length"], gap, POISON), OK) for gap in (0.0005, 0.001, 0.003, 0.03)),
    gives(
        "behind-an-error",
        answer(b"HTTP/1.1 404 No", b"Content-Length: 2", body=b"no") + POISON,
        Got(404, b"no"),
        BROKEN,
        CUT,
    ),
    gives("behind-a-post", (_FIRSTS["length"], 0.002, POISON), OK, ask=ask(call("tools/call"))),
    gives("and-the-end", (_FIRSTS["length"], 0.002, POISON), OK, then="fin"),
    gives("and-a-reset", (_FIRSTS["length"], 0.002, POISON), OK, then="rst"),
    gives("only-the-end", _FIRSTS["length"], OK, then="fin"),
    gives("only-a-reset", (_FIRSTS["length"], 0.002), OK, then="rst"),
    gives("early", _FIRSTS["length"], OK, ask=_LATER, early=True),
    gives("early-and-another", (_FIRSTS["length"], 0.02, POISON), OK, ask=_LATER, early=True),
    gives("early-chunked", _FIRSTS["chunked"], OK, ask=_LATER_CHUNKED, early=True),
    gives(
        "early-413-and-the-end",
        answer(b"HTTP/1.1 413 No", b"Connection: close", b"Content-Length: 0"),
        Got(413, b""),
        BROKEN,
        CUT,
        ask=_LATER,
        then="fin",
        early=True,
    ),
    gives("early-401", answer(b"HTTP/1.1 401 No", b"Content-Length: 0"), Got(401, b""), ask=_LATER, early=True),
]
