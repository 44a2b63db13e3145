"""1xx responses of all kinds, and what stands behind them (RFC 9110, 15.2)."""

from typing import Final

from tests.attack.requests.limits import FIELDS_MAX
from tests.attack.rows import BROKEN, CUT, OK, POISON, Got, Response, answer, ask, asked, gives, ok, raw
from tests.relay.messages import call

_FINAL: Final = ok(b"Content-Length: 2", body=b"ok")


def _hint(status: int = 103, *fields: bytes, body: bytes = b"") -> bytes:
    return answer(b"HTTP/1.1 %d Hint" % status, *fields, body=body)


def _before(name: str, data: bytes, *before: int) -> Response:
    return gives(name, data + _FINAL, Got(200, b"ok", before=before))


_OLD: Final = (raw(b"GET /hostile HTTP/1.0"),)

ROWS: Final[list[Response]] = [
    *(_before(f"{status}", _hint(status), status) for status in (102, 103, 104, 150, 199)),
    gives("100-unasked", _hint(100) + _FINAL, Got(200, b"ok", before=(100,)), Got(200, b"ok", before=())),
    gives("100-three-times", _hint(100) * 3 + _FINAL, OK),
    _before("103-fields", _hint(103, b"Link: </a>", b"Set-Cookie: a=b"), 103),
    _before("103-and-102", _hint(103) + _hint(102), 103, 102),
    _before("fifty", _hint() * 50, *[103] * 50),
    gives("two-thousand", _hint() * 2000 + _FINAL, BROKEN),
    gives("without-end", _hint(103, b"X: " + b"a" * 1000) * 500, BROKEN, CUT, then="fin"),
    gives("length", _hint(103, b"Content-Length: 6") + _FINAL, OK, BROKEN),
    gives("length-and-body", _hint(103, b"Content-Length: 6", body=b"POISON") + _FINAL, BROKEN, CUT),
    gives("chunked", _hint(103, b"Transfer-Encoding: chunked") + _FINAL, OK, BROKEN),
    gives("chunked-and-body", _hint(103, b"Transfer-Encoding: chunked", body=b"0\r\n\r\n") + _FINAL, BROKEN, CUT),
    gives("length-of-the-final-one", _hint(103, b"Content-Length: %d" % len(_FINAL)) + _FINAL, OK, BROKEN),
    gives("connection-close", _hint(103, b"Connection: close") + _FINAL, OK, BROKEN, CUT),
    gives("connection-upgrade", _hint(103, b"Connection: upgrade", b"Upgrade: h2c") + _FINAL, OK, BROKEN),
    gives("bad-field", _hint(103, b"X : a") + _FINAL, BROKEN),
    gives("nul-in-field", _hint(103, b"X: a\0") + _FINAL, BROKEN),
    gives("nul-in-reason", answer(b"HTTP/1.1 103 a\0b") + _FINAL, BROKEN),
    gives("too-large", _hint(103, b"X: " + b"a" * 9000) + _FINAL, BROKEN),
    _before("many-fields", _hint(103, *[b"X:"] * FIELDS_MAX), 103),
    gives("too-many-fields", _hint(103, *[b"X:"] * (FIELDS_MAX + 1)) + _FINAL, BROKEN),
    gives("another-protocol-behind", _hint() + answer(b"RTSP/1.0 200 OK", b"Content-Length: 2", body=b"ok"), BROKEN),
    gives("other-version", answer(b"HTTP/2.0 103 Hint") + _FINAL, BROKEN),
    gives("only-one", _hint(), BROKEN, CUT, then="fin"),
    gives("only-one-and-a-reset", _hint(), BROKEN, CUT, then="rst"),
    gives("and-garbage", _hint() + b"garbage\r\n\r\n", BROKEN, CUT),
    gives("and-half-a-head", _hint() + b"HTTP/1.1 200 OK\r\n", BROKEN, CUT, then="fin"),
    gives("101-behind-103", _hint() + _hint(101, b"Connection: upgrade", b"Upgrade: x"), BROKEN, CUT),
    gives("behind-the-final-one", _FINAL + _hint(), OK, BROKEN, CUT),
    gives("later-behind-the-final-one", (_FINAL, 0.003, _hint()), OK),
    gives("later-100-behind-the-final-one", (_FINAL, 0.003, _hint(100)), OK),
    gives("and-another-final-one", _hint() + _FINAL + POISON, OK, BROKEN, CUT),
    gives("to-1.0", _hint() + _FINAL, Got(200, b"ok", before=()), ask=_OLD),
    gives("to-head", _hint() + ok(b"Content-Length: 2"), Got(200, b"", before=(103,)), ask=asked(b"HEAD")),
    gives("to-a-post", _hint() + _FINAL, Got(200, b"ok", before=(103,)), ask=ask(call("tools/call"))),
    gives("before-204", _hint() + answer(b"HTTP/1.1 204 None"), Got(204, b"", before=(103,))),
    gives("before-until-the-end", _hint() + ok(body=b"ok"), Got(200, b"ok", before=(103,)), then="fin"),
    gives("slowly", (_hint()[:9], 0.002, _hint()[9:] + _FINAL[:9], 0.002, _FINAL[9:]), Got(200, b"ok", before=(103,))),
]
