"""Status lines: protocols, versions, statuses and reasons (RFC 9112, 4)."""

from dataclasses import replace
from typing import Final

from tests.attack.rows import BROKEN, CHUNKED, CUT, OK, Got, Response, answer, gives

_TWO: Final = b"Content-Length: 2"
_ALONE: Final = replace(BROKEN, before=())
_OTHER_VERSIONS: Final = [
    *(b"HTTP/2.0", b"HTTP/2", b"HTTP/0.9", b"HTTP/3.0", b"HTTP/1.2", b"HTTP/1", b"HTTP/11.1", b"HTTP/1.1.1"),
    *(b"HTTP/01.1", b"http/1.1", b"HTTPS/1.1", b"ICY", b"RTSP/1.0", b"SIP/2.0", b"ICE/1.0", b"HTTP /1.1", b"HTTP"),
    b"\xef\xbb\xbfHTTP/1.1",
]
_BAD_STATUSES: Final = [
    *(b"000", b"099", b"600", b"700", b"999", b"2000", b"20", b"2", b"2OO", b"-20", b"+200", b"20.", b"0x1", b" 200"),
    *(b"2 0", b"\xb2\xb0\xb0", b"", b"OK", b"20000000000000000200"),
]
_ODD_STATUSES: Final = [b"299", b"399", b"499", b"599", b"418", b"451", b"511", b"300", b"305", b"308", b"402", b"505"]
_REASONS: Final = {
    "empty": b" ", "latin-1": b" \xe9\xff", "utf-8": " Où".encode(), "tab-inside": b" a\tb", "spaces-inside": b" a  b",
    "of-4000-bytes": b" " + b"a" * 4000, "looks-like-a-field": b" Content-Length: 9",
    "looks-like-a-response": b" HTTP/1.1 200 OK",
}  # fmt: skip
_SWITCHING: Final = b"HTTP/1.1 101 Switching Protocols"
_UPGRADE: Final = (b"Connection: upgrade", b"Upgrade: h2c")
_OLD: Final = b"HTTP/1.0 200 OK"
_CONTROLS: Final = (*range(9), 0x0B, 0x0C, *range(0x0E, 0x20), 0x7F)
# What other servers say, or what says nothing.
_FOREIGN: Final = {
    "nothing": b"", "line-ends": b"\r\n\r\n", "only-http": b"HTTP/1.1", "half-a-line": b"HTTP/1.1 200 OK\r\n",
    "a-page-of-0.9": b"<html>hello</html>\n", "tls-alert": b"\x15\x03\x03\x00\x02\x02\x28",
    "ssh": b"SSH-2.0-OpenSSH_9.6\r\n",
    "http-2-settings": b"\x00\x00\x12\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x80",
    "a-request": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "jsonrpc": b'{"jsonrpc":"2.0","id":1,"result":{}}\n',
    "garbage-in-front": b"garbage\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    "space-in-front": b" HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    "nul-in-front": b"\0HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    "a-field-in-front": b"X: y\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    "two-spaces": b"HTTP/1.1  200 OK\r\nContent-Length: 2\r\n\r\nok",
    "tab": b"HTTP/1.1\t200 OK\r\nContent-Length: 2\r\n\r\nok",
}  # fmt: skip


def _line(line: bytes, *fields: bytes) -> bytes:
    return answer(line, *fields, _TWO, body=b"ok")


ROWS: Final[list[Response]] = [
    *(gives(repr(v)[2:-1].replace("/", "-"), _line(v + b" 200 OK"), BROKEN, then="fin") for v in _OTHER_VERSIONS),
    *(
        gives(f"status-{s!r}"[9:-1] or "status-none", _line(b"HTTP/1.1 " + s + b" OK"), BROKEN, then="fin")
        for s in _BAD_STATUSES
    ),
    *(
        gives(f"status-{s.decode()}", _line(b"HTTP/1.1 " + s + b" Odd"), Got(int(s), b"ok", reason=b"Odd"))
        for s in _ODD_STATUSES
    ),
    *(
        gives(f"reason-{name}", _line(b"HTTP/1.1 200" + reason), Got(200, b"ok", reason=reason[1:]))
        for name, reason in _REASONS.items()
    ),
    gives("reason-nul-alone", _line(b"HTTP/1.1 200 \0"), BROKEN),
    gives("reason-nul-of-an-error", _line(b"HTTP/1.1 401 a\0"), BROKEN),
    gives("reason-cr", _line(b"HTTP/1.1 200 a\rb"), BROKEN),
    gives("reason-cr-and-a-field", _line(b"HTTP/1.1 200 a\rSet-Cookie: a=b"), BROKEN),
    gives("reason-lf-and-a-field", _line(b"HTTP/1.1 200 a\nSet-Cookie: a=b"), BROKEN),
    *(gives(f"reason-octet-{octet}", _line(b"HTTP/1.1 200 a%cb" % octet), BROKEN) for octet in _CONTROLS),
    gives("no-reason-no-space", _line(b"HTTP/1.1 200"), BROKEN, OK),
    gives("line-ends-with-lf", _line(b"HTTP/1.1 200 OK").replace(b"\r\n", b"\n", 1), BROKEN),
    gives("all-lines-end-with-lf", _line(b"HTTP/1.1 200 OK").replace(b"\r\n", b"\n"), BROKEN),
    gives("head-ends-with-lf", _line(b"HTTP/1.1 200 OK").replace(b"\r\n\r\n", b"\r\n\n") + b"\r\n\r\n", BROKEN),
    gives("line-ends-with-cr-cr-lf", _line(b"HTTP/1.1 200 OK\r"), BROKEN),
    gives("empty-line-in-front", b"\r\n" + _line(b"HTTP/1.1 200 OK"), BROKEN, OK),
    gives("line-of-100000-bytes", _line(b"HTTP/1.1 200 " + b"a" * 100_000), BROKEN),
    gives("101", answer(_SWITCHING, b"Connection: upgrade", b"Upgrade: x"), _ALONE),
    gives("101-h2c", answer(_SWITCHING, b"Connection: Upgrade", b"Upgrade: h2c") + bytes(20), _ALONE),
    gives("200-with-upgrade", _line(b"HTTP/1.1 200 OK", *_UPGRADE), Got(200, b"ok", lacks=(b"upgrade",))),
    gives("426", _line(b"HTTP/1.1 426 Upgrade Required", _UPGRADE[0], b"Upgrade: TLS/1.0"), Got(426, b"ok")),
    *(gives(name, data, BROKEN, then="fin") for name, data in _FOREIGN.items()),
    gives("1.0-with-a-length", _line(_OLD), OK),
    gives("1.0-with-a-length-and-keep-alive", answer(_OLD, _TWO, b"Connection: keep-alive", body=b"ok"), OK),
    gives("1.0-until-the-end", answer(_OLD, body=b"ok"), OK, then="fin"),
    gives("1.0-chunked", answer(_OLD, CHUNKED, body=b"2\r\nok\r\n0\r\n\r\n"), BROKEN, CUT, OK, then="fin"),
]
