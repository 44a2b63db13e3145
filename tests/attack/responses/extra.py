"""Unasked bytes and responses behind an answer, at once or later, and answers that come too early."""

from typing import Final

from tests.attack.rows import BROKEN, CHUNKED, CUT, OK, POISON, Got, Pieces, Response, answer, ask, gives, ok, raw
from tests.relay.messages import call

_FIRST: Final = ok(b"Content-Length: 2", body=b"ok")
_FIRSTS: Final = {
    "chunked": ok(CHUNKED, body=b"2\r\nok\r\n0\r\n\r\n"),
    "trailed": ok(CHUNKED, body=b"2\r\nok\r\n0\r\nX: a\r\n\r\n"),
}
_BEHIND: Final = {
    "a-response": POISON, "three-responses": POISON * 3, "half-a-response": POISON[:-3],
    "half-a-head": POISON[:10], "garbage": b"POISON", "one-byte": b"P", "a-line-end": b"\r\n",
    "ten-line-ends": b"\r\n" * 10, "a-lf": b"\n", "a-nul": b"\0",
    "a-408": answer(b"HTTP/1.1 408 Request Timeout", b"Connection: close", b"Content-Length: 0"),
    "a-100": answer(b"HTTP/1.1 100 Continue"), "a-request": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a-chunk": b"6\r\nPOISON\r\n0\r\n\r\n",
}  # fmt: skip
_LATER: Final[Pieces] = (raw(b"PUT /hostile HTTP/1.1", b"Content-Length: 6"), 0.01, b"abcdef")
_LATER_CHUNKED: Final[Pieces] = (raw(b"PUT /hostile HTTP/1.1", CHUNKED), 0.01, b"3\r\nabc\r\n0\r\n\r\n")
_NOT_FOUND: Final = answer(b"HTTP/1.1 404 No", b"Content-Length: 2", body=b"no")
_TOO_LARGE: Final = answer(b"HTTP/1.1 413 No", b"Connection: close", b"Content-Length: 0")

ROWS: Final[list[Response]] = [
    *(gives(f"at-once-{name}", _FIRST + data, OK, BROKEN, CUT, alone=True) for name, data in _BEHIND.items()),
    *(gives(f"later-{name}", (_FIRST, 0.002, data), OK) for name, data in _BEHIND.items()),
    *(gives(f"at-once-behind-{n}", first + POISON, OK, BROKEN, CUT, alone=True) for n, first in _FIRSTS.items()),
    *(gives(f"later-behind-{name}", (first, 0.002, POISON), OK) for name, first in _FIRSTS.items()),
    *(gives(f"{gap * 1000:g}-ms-later", (_FIRST, gap, POISON), OK) for gap in (0.0005, 0.001, 0.003, 0.03)),
    gives("behind-an-error", _NOT_FOUND + POISON, Got(404, b"no"), BROKEN, CUT),
    gives("behind-a-post", (_FIRST, 0.002, POISON), OK, ask=ask(call("tools/call"))),
    gives("and-the-end", (_FIRST, 0.002, POISON), OK, then="fin"),
    gives("and-a-reset", (_FIRST, 0.002, POISON), OK, then="rst"),
    gives("only-the-end", _FIRST, OK, then="fin"),
    gives("only-a-reset", (_FIRST, 0.002), OK, then="rst"),
    gives("early", _FIRST, OK, ask=_LATER, early=True),
    gives("early-and-another", (_FIRST, 0.02, POISON), OK, ask=_LATER, early=True),
    gives("early-chunked", _FIRSTS["chunked"], OK, ask=_LATER_CHUNKED, early=True),
    gives("early-413-and-the-end", _TOO_LARGE, Got(413, b""), BROKEN, CUT, ask=_LATER, then="fin", early=True),
    gives("early-401", answer(b"HTTP/1.1 401 No", b"Content-Length: 0"), Got(401, b""), ask=_LATER, early=True),
]
