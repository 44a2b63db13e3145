"""`Upgrade` and `CONNECT`: no protocol is switched, no tunnel opened, and bodies stay bodies (DESIGN 10)."""

from typing import Final

from tests.attack.rows import CHUNKED, PING, Request, Seen, bad_behind, forbidden, get, held, passes, refused, streamed

_LENGTH: Final = b"Content-Length: %d" % len(PING)
_IN_CHUNKS: Final = b"%x\r\n%b\r\n0\r\n\r\n" % (len(PING), PING)
# As Java's HttpClient asks.
_H2C: Final = (
    b"Connection: Upgrade, HTTP2-Settings",
    b"HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA",
    b"Upgrade: h2c",
)
_WEBSOCKET: Final = (b"Connection: Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")
_OTHERS: Final = {
    "websocket": _WEBSOCKET,
    "list": (b"Connection: upgrade", b"Upgrade: HTTP/2.0, SHTTP/1.3, IRC/6.9"),
    "not-named": (b"Upgrade: h2c",),
    "twice": (b"Connection: upgrade", b"Upgrade: h2c", b"Upgrade: websocket"),
    "empty": (b"Connection: upgrade", b"Upgrade:"),
    "named-but-absent": (b"Connection: upgrade",),
}
_LACKS: Final = (b"upgrade", b"http2-settings")
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_FRAME: Final = b"\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58\r\n\r\n"
_ORIGIN: Final = b"localhost:80"
_NO_TUNNEL: Final = (400, 403, 404, 405, 501)
# Every body that such a request can have; what is behind it must be a request of its own.
_BODIES: Final = {
    "get": (get(*_H2C), Seen(lacks=_LACKS)),
    "options": (get(*_H2C, method=b"OPTIONS"), Seen(b"OPTIONS", lacks=_LACKS)),
    "held": (held(*_H2C, _LENGTH, body=PING), Seen(b"POST", body=PING, lacks=_LACKS)),
    "held-chunked": (held(*_H2C, CHUNKED, body=_IN_CHUNKS), Seen(b"POST", body=PING, lacks=_LACKS)),
    "streamed": (streamed(*_H2C, _LENGTH, body=PING), Seen(b"PUT", body=PING, lacks=_LACKS)),
    "streamed-chunked": (streamed(*_H2C, CHUNKED, body=_IN_CHUNKS), Seen(b"PUT", body=PING, lacks=_LACKS)),
}

ROWS: Final[list[Request]] = [
    *(passes(f"h2c-{name}", data, seen) for name, (data, seen) in _BODIES.items()),
    *(
        passes(f"{name}-{m.decode()}", send(*lines, CHUNKED, body=_IN_CHUNKS), Seen(m, body=PING, lacks=_LACKS))
        for name, lines in _OTHERS.items()
        for send, m in ((held, b"POST"), (streamed, b"PUT"))
    ),
    passes("h2c-body-later", (held(*_H2C, _LENGTH, body=b""), 0.005, PING), Seen(b"POST", body=PING, lacks=_LACKS)),
    bad_behind("h2c-and-the-preface", get(*_H2C) + _PREFACE, Seen(lacks=_LACKS), statuses=(400, 405, 505)),
    bad_behind("websocket-and-a-frame", get(*_WEBSOCKET) + _FRAME, Seen(lacks=_LACKS)),
    refused("h2c-length-and-chunks", streamed(*_H2C, _LENGTH, CHUNKED, body=_IN_CHUNKS)),
    refused("h2c-bad-chunk", streamed(*_H2C, CHUNKED, body=b"x\r\nabc\r\n0\r\n\r\n"), cut=True),
    refused("h2c-bad-trailer", streamed(*_H2C, CHUNKED, body=b"0\r\nX : 1\r\n\r\n"), cut=True),
    forbidden("h2c-and-authorization", get(b"Connection: upgrade, authorization", *_H2C[2:], b"Authorization: x")),
    refused("connect", get(target=_ORIGIN, method=b"CONNECT"), *_NO_TUNNEL),
    refused("connect-a-path", get(method=b"CONNECT"), *_NO_TUNNEL),
    refused("connect-with-chunks", get(CHUNKED, target=_ORIGIN, method=b"CONNECT", body=_IN_CHUNKS), *_NO_TUNNEL),
    refused("connect-1.0", get(target=_ORIGIN, method=b"CONNECT").replace(b"HTTP/1.1", b"HTTP/1.0"), *_NO_TUNNEL),
]
