"""The protocol's version, and what an old one may not do (RFC 9112, 2.3 and 6.1)."""

from typing import Final

from tests.attack.rows import CHUNKED, JSON, PING, Request, Seen, either, get, passes, raw, refused

_OTHERS: Final = [
    *(b"HTTP/2.0", b"HTTP/2", b"HTTP/3.0", b"HTTP/0.9", b"HTTP/1.2", b"HTTP/1.9", b"HTTP/0.0", b"HTTP/9.9"),
    *(b"HTTP/1", b"HTTP/1.", b"HTTP/.1", b"HTTP/1.1.1", b"HTTP/01.1", b"HTTP/1.01", b"HTTP/11.1", b"HTTP/1.10"),
    *(b"HTTP/1,1", b"HTTP/1.1x", b"HTTP/1.x", b"HTTP/x.1", b"HTTP/-1.1", b"HTTP/ 1.1", b"HTTP /1.1", b"HTTP1.1"),
    *(b"http/1.1", b"Http/1.1", b"HTTPS/1.1", b"RTSP/1.0", b"ICE/1.0", b"SIP/2.0", b"HTTP/1.1\xe9", b"HTTP"),
]
_OLD: Final = b" /mcp HTTP/1.0"
_LENGTH: Final = b"Content-Length: %d" % len(PING)
_CLOSES: Final = {
    "close": (b"Connection: close",),
    "close-of-a-proxy": (b"Proxy-Connection: close",),
    "close-among-others": (b"Connection: x, CLOSE ,y", b"Connection: keep-alive"),
}
_POSTED: Final = Seen(b"POST", body=PING)


def _old(name: str, data: bytes, *seen: Seen) -> Request:
    """A row whose connection ends behind it, as HTTP/1.0 has it."""
    return passes(name, data, *seen, whole=False)


ROWS: Final[list[Request]] = [
    *(refused(repr(v)[2:-1].replace("/", "-"), raw(b"GET /mcp " + v), 400, 505) for v in _OTHERS),
    refused("0.9-without-a-version", b"GET /mcp\r\n\r\n", 400, 505),
    refused("0.9-in-one-line", b"GET /mcp\r\n" + get(), 400, 505),
    _old("1.0", raw(b"GET" + _OLD)),
    _old("1.0-without-host", raw(b"GET" + _OLD, host=None)),
    _old("1.0-head", raw(b"HEAD" + _OLD), Seen(b"HEAD")),
    _old("1.0-post", raw(b"POST" + _OLD, JSON, _LENGTH, body=PING), _POSTED),
    _old("1.0-post-without-a-length", raw(b"POST" + _OLD, JSON), Seen(b"POST")),
    _old("1.0-absolute", raw(b"GET http://localhost/mcp HTTP/1.0", host=None)),
    _old("1.0-with-another-request-behind-it", raw(b"GET" + _OLD) + get(target=b"/smuggled")),
    _old("1.0-body-without-a-length", raw(b"POST" + _OLD, JSON, body=get(target=b"/smuggled")), Seen(b"POST")),
    _old("1.0-upgrade", raw(b"GET" + _OLD, b"Connection: Upgrade", b"Upgrade: h2c"), Seen(lacks=(b"upgrade",))),
    _old("1.0-expect", raw(b"POST" + _OLD, JSON, b"Expect: 100-continue", _LENGTH, body=PING), _POSTED),
    _old("1.0-keep-alive", raw(b"GET" + _OLD, b"Connection: keep-alive", b"Keep-Alive: timeout=5")),
    refused("1.0-chunked", raw(b"POST" + _OLD, JSON, CHUNKED, body=b"0\r\n\r\n")),
    refused("1.0-chunked-and-length", raw(b"POST" + _OLD, JSON, CHUNKED, b"Content-Length: 5", body=b"0\r\n\r\n")),
    refused("1.0-two-hosts", raw(b"GET" + _OLD, b"Host: localhost")),
    *(_old(f"1.1-{name}", get(*lines) + get(target=b"/smuggled")) for name, lines in _CLOSES.items()),
    either("1.1-keep-alive-and-close", get(b"Connection: keep-alive", b"Keep-Alive: timeout=0, max=0")),
]
