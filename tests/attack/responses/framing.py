"""What ends a body, and answers that say it twice (RFC 9112, 6.3)."""

from typing import Final

from tests.attack.requests import transfer
from tests.attack.requests.lengths import BAD, LINES
from tests.attack.rows import BROKEN, CHUNKED, CUT, OK, Got, Response, gives, ok

_BODY: Final = b"2\r\nok\r\n0\r\n\r\n"
_KNOWN: Final = {
    "upper-case": b"Chunked",
    "space-behind": b"chunked ",
    "gzip-before": b"gzip, chunked",
    "gzip-in-a-field-before": b"gzip\r\nTransfer-Encoding: chunked",
}

ROWS: Final[list[Response]] = [
    *(
        gives(f"length-{name}", ok(b"Content-Length: " + value, body=b"abc"), BROKEN, then="fin")
        for name, value in BAD.items()
        if name != "2-to-the-64-less-1"
    ),
    gives("length-2-to-the-64-less-1", ok(b"Content-Length: 18446744073709551615", body=b"abc"), CUT, then="fin"),
    *(gives(f"lengths-{name}", ok(*lines, body=b"abc"), BROKEN) for name, lines in LINES.items()),
    gives("length-leading-zeros", ok(b"Content-Length: 0002", body=b"ok"), BROKEN, OK),
    *(gives(f"cl-te-{name}", ok(*lines, body=transfer.BODY), BROKEN) for name, lines in transfer.CONFLICTS.items()),
    gives("cl-te-identity", ok(b"Content-Length: 12", b"Transfer-Encoding: identity", body=_BODY), BROKEN),
    *(
        gives(f"coding-{name}", ok(b"Transfer-Encoding: " + value, body=_BODY), BROKEN, then="fin")
        for name, value in transfer.BAD.items()
        if name != "gzip"
    ),
    gives("coding-gzip", ok(b"Transfer-Encoding: gzip", body=_BODY), Got(200, _BODY), then="fin"),
    *(
        gives(f"codings-{name}", ok(*lines, body=_BODY), BROKEN, then="fin")
        for name, lines in transfer.LINES.items()
        if name != "two-fields-gzip-first"
    ),
    *(gives(f"coding-{name}", ok(b"Transfer-Encoding: " + v, body=_BODY), OK) for name, v in _KNOWN.items()),
    gives("length-shorter-than-the-body", ok(b"Content-Length: 2", body=b"okPOISON"), OK, BROKEN, CUT),
    gives("length-longer-than-the-body", ok(b"Content-Length: 9", body=b"ok"), CUT, BROKEN, then="fin"),
    gives("length-zero-and-a-body", ok(b"Content-Length: 0", body=b"POISON"), Got(200, b""), BROKEN, CUT),
    gives("length-of-a-petabyte", ok(b"Content-Length: 1000000000000000", body=b"ok"), CUT, BROKEN, then="fin"),
    gives("until-the-end", ok(body=b"ok"), OK, then="fin"),
    gives("until-the-end-keep-alive", ok(b"Connection: keep-alive", body=b"ok"), OK, then="fin"),
    gives("until-the-end-looks-chunked", ok(body=_BODY), Got(200, _BODY), then="fin"),
    gives(
        "until-the-end-is-a-response", ok(body=ok(b"Content-Length: 0")), Got(200, ok(b"Content-Length: 0")), then="fin"
    ),
    gives("until-the-reset", ok(body=b"ok"), CUT, BROKEN, then="rst"),
    gives("close-with-a-length", ok(b"Content-Length: 2", b"Connection: close", body=b"ok"), OK),
    gives("close-chunked", ok(CHUNKED, b"Connection: close", body=_BODY), OK),
]
