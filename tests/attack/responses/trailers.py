"""Trailers of responses: those that a reader may obey are removed (RFC 9110, 6.5.1)."""

from typing import Final

from tests.attack.judge import NEVER_TRAILERS
from tests.attack.requests.limits import FIELDS_MAX
from tests.attack.requests.trailers import BAD, KEPT, PASSABLE, around, with_trailers
from tests.attack.rows import BROKEN, CHUNKED, CUT, Got, Response, gives, ok

_NOT_OF_RESPONSES: Final = (b"x-tenant",)  # it names who asks, in requests alone
_MAYBE: Final = (b"content-length", b"transfer-encoding")


def _never(name: bytes) -> Response:
    whole = Got(200, b"abc", trailers=KEPT)
    may = (whole, BROKEN, CUT) if name in _MAYBE else (whole,)
    return gives(f"never-{name.decode()}", ok(CHUNKED, b"Trailer: " + name, body=around(name)), *may)


ROWS: Final[list[Response]] = [
    *(_never(name) for name in NEVER_TRAILERS if name not in _NOT_OF_RESPONSES),
    *(
        gives(
            f"passes-{name}",
            ok(CHUNKED, body=with_trailers(*(key + b": " + value for key, value in pairs))),
            Got(200, b"abc", trailers=pairs),
        )
        for name, pairs in PASSABLE.items()
    ),
    *(gives(name, ok(CHUNKED, body=with_trailers(line)), BROKEN, CUT, then="fin") for name, line in BAD.items()),
    gives("too-large", ok(CHUNKED, body=with_trailers(b"X: " + b"a" * 20_000)), BROKEN, CUT),
    gives("too-many", ok(CHUNKED, body=with_trailers(*[b"X:"] * (FIELDS_MAX + 1))), BROKEN, CUT),
    gives("line-without-end", ok(CHUNKED, body=b"3\r\nabc\r\n0\r\nX: " + b"a" * 100_000), BROKEN, CUT),
    gives("without-end", ok(CHUNKED, body=b"3\r\nabc\r\n0\r\n" + b"X: a\r\n" * 5000), BROKEN, CUT),
]
