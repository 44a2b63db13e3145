"""Fields of responses: what no reader may see, and what each must (RFC 9112, 5)."""

from typing import Final

from tests.attack.requests.fields import BAD, FOLDED, GOOD
from tests.attack.requests.limits import FIELDS_MAX, HEAD_BYTES_MAX
from tests.attack.rows import BROKEN, OK, Got, Response, answer, gives, ok

_TWO: Final = b"Content-Length: 2"
_BAD: Final = BAD | {
    "a-status-line": b"HTTP/1.1 200 OK", "nul-in-name": b"X\0: a", "nul-in-value": b"X: a\0b",
    "nul-behind-value": b"X: a\0", "cr-in-value": b"X: a\rb", "soh-in-value": b"X: a\1b", "us-in-value": b"X: a\x1fb",
    "vt-in-value": b"X: a\x0bb", "vt-behind-value": b"X: a\x0b", "del-in-value": b"X: a\x7fb",
    "paren-in-name": b"X(: a", "slash-in-name": b"X/Y: a",
}  # fmt: skip
_MENDED: Final = FOLDED | {"first-is-folded": b" X: a", "lf-at-the-end": b"X: a\n"}
_GOOD: Final = GOOD | {
    "set-cookie-monster": (b"Set-Cookie: " + b"a" * 4000, (b"set-cookie", b"a" * 4000)),
    "challenge": (
        b'WWW-Authenticate: Bearer realm="a, b", Basic',
        (b"www-authenticate", b'Bearer realm="a, b", Basic'),
    ),
}
_HOP_BY_HOP: Final = {
    "connection": (b"Connection: x-a", b"X-A: 1"),
    "connection-twice": (b"Connection: keep-alive", b"Connection: X-A", b"X-A: 1"),
    "keep-alive": (b"Keep-Alive: timeout=5, max=100",),
    "proxy-connection": (b"Proxy-Connection: keep-alive",),
    "te": (b"TE: trailers",),
    "upgrade": (b"Upgrade: h2c",),
}
_NAMED: Final = [b"Content-Length", b"Content-Type", b"Host", b"Set-Cookie", b"close, close", b";", b""]
# Of logins that bind a connection.
_CHALLENGES: Final = {
    "NTLM": (b"WWW-Authenticate: NTLM",), "Negotiate": (b"WWW-Authenticate: negotiate YIIB",),
    "in-two-fields": (b"WWW-Authenticate: Bearer", b"WWW-Authenticate: NTLM TlRMTVNTUAACAAAA"),
    "in-a-list": (b"WWW-Authenticate: Basic, Negotiate",),
    "behind-parameters": (b'WWW-Authenticate: Basic realm="x", charset="UTF-8" ,\tNTLM, Digest a=b',),
    "of-a-proxy": (b"Proxy-Authenticate: Negotiate",), "that-is-said-to-last": (b"Persistent-Auth: true",),
}  # fmt: skip
_LACKS: Final = (b"x-a", b"keep-alive", b"proxy-connection", b"te", b"upgrade")


def _with(*lines: bytes) -> bytes:
    return ok(_TWO, *lines, body=b"ok")


def _challenge(*lines: bytes) -> bytes:
    return answer(b"HTTP/1.1 401 Unauthorized", *lines, _TWO, body=b"no")


_MANY: Final = _with(*[b"X:"] * (FIELDS_MAX - 1))

ROWS: Final[list[Response]] = [
    *(gives(name, _with(line), BROKEN) for name, line in _BAD.items()),
    *(gives(f"first-is-{name}", ok(line, _TWO, body=b"ok"), BROKEN) for name, line in list(_BAD.items())[:6]),
    *(gives(name, ok(line, _TWO, body=b"ok"), BROKEN, OK) for name, line in _MENDED.items()),
    *(gives(name, _with(line), Got(200, b"ok", has=(pair,))) for name, (line, pair) in _GOOD.items()),
    *(gives(f"hop-by-hop-{name}", _with(*lines), Got(200, b"ok", lacks=_LACKS)) for name, lines in _HOP_BY_HOP.items()),
    *(gives(f"connection-names-{n.decode()}", _with(b"Connection: " + n), OK, BROKEN) for n in _NAMED),
    gives("head-at-the-limit", _with(b"X: " + b"a" * (HEAD_BYTES_MAX - 100)), OK),
    gives("head-beyond-the-limit", _with(b"X: " + b"a" * HEAD_BYTES_MAX), BROKEN),
    gives("head-of-tiny-fields", _with(*[b"X: a"] * HEAD_BYTES_MAX), BROKEN),
    gives("many-fields-in-pieces", (_MANY[:-3], 0.001, _MANY[-3:]), OK),
    gives("too-many-fields", _with(*[b"X:"] * FIELDS_MAX), BROKEN),
    gives("line-without-end", ok()[:-2] + b"X: " + b"a" * 100_000, BROKEN),
    gives("name-without-end", ok()[:-2] + b"X" * 100_000, BROKEN),
    gives("head-without-end", b"HTTP/1.1 200 OK\r\n" + b"X: a\r\n" * 20_000, BROKEN),
    *(
        gives(f"challenge-{name}", _challenge(*lines), Got(401, b"no"), alone=True)
        for name, lines in _CHALLENGES.items()
    ),
    gives("challenge-Bearer", _challenge(b"WWW-Authenticate: Bearer"), Got(401, b"no")),
    gives("negotiate-succeeds", _with(b"WWW-Authenticate: Negotiate YIIB"), OK, alone=True),
]
