"""Chunks of responses: what is malformed never looks whole (RFC 9112, 7.1; DESIGN 3.5)."""

from typing import Final

from tests.attack.requests.chunks import BAD, GOOD, MAYBE, body_of
from tests.attack.rows import BROKEN, CHUNKED, CUT, Got, Response, gives, ok

# A slow upstream: the fault comes when the head is out.
_LATE: Final = ("size-letter", "chunk-too-long", "chunk-without-an-end", "size-20-digits", "end-is-lf", "size-empty")

ROWS: Final[list[Response]] = [
    *(gives(name, ok(CHUNKED, body=data), Got(200, body_of(name))) for name, data in GOOD.items()),
    *(
        gives(name, ok(CHUNKED, body=data), Got(200, body_of(name)), BROKEN, CUT, then="fin")
        for name, data in MAYBE.items()
    ),
    *(gives(name, ok(CHUNKED, body=data), BROKEN, CUT, then="fin") for name, data in BAD.items()),
    gives("extension-without-end", ok(CHUNKED, body=b"3;" + b"a" * 100_000), BROKEN, CUT),
    *(gives(f"late-{name}", (ok(CHUNKED), 0.002, BAD[name]), BROKEN, CUT) for name in _LATE),
]
