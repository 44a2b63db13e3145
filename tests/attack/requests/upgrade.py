"""`Upgrade` and `CONNECT`: no protocol is switched, no tunnel opened, and bodies stay bodies (DESIGN 10)."""

from typing import Final

from tests.attack.rows import BAD, PING, Outcome, Request, Seen, forbidden, get, held, passes, raw, refused, streamed

_CHUNKED: Final = b"Transfer-Encoding: chunked"
_LENGTH: Final = b"Content-Length: %d" % len(PING)
_IN_CHUNKS: Final = b"%x\r\n%b\r\n0\r\n\r\n" % (len(PING), PING)
# As Java's HttpClient asks.
_H2C: Final = (
    b"Connection: Upgrade, HTTP2-Settings",
    b"HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA",
    b"Upgrade: h2c",
)
_PROTOCOLS: Final = {
    "h2c": _H2C,
    "websocket": (b"Connection: Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="),
    "tls": (b"Connection: Upgrade", b"Upgrade: TLS/1.0"),
    "list": (b"Connection: upgrade", b"Upgrade: HTTP/2.0, SHTTP/1.3, IRC/6.9"),
    "not-named": (b"Upgrade: h2c",),
    "twice": (b"Connection: upgrade", b"Upgrade: h2c", b"Upgrade: websocket"),
    "empty": (b"Connection: upgrade", b"Upgrade:"),
    "named-but-absent": (b"Connection: upgrade",),
}
_LACKS: Final = (b"upgrade", b"http2-settings")


def _framings(name: str, lines: tuple[bytes, ...]) -> list[Request]:
    """The request with every body that it can have; what is behind it must be a request of its own."""
    bodies = {
        "get": (get(*lines), Seen(lacks=_LACKS)),
        "options": (get(*lines, method=b"OPTIONS"), Seen(b"OPTIONS", lacks=_LACKS)),
        "held": (held(*lines, _LENGTH, body=PING), Seen(b"POST", body=PING, lacks=_LACKS)),
        "held-chunked": (held(*lines, _CHUNKED, body=_IN_CHUNKS), Seen(b"POST", body=PING, lacks=_LACKS)),
        "streamed": (streamed(*lines, _LENGTH, body=PING), Seen(b"PUT", body=PING, lacks=_LACKS)),
        "streamed-chunked": (streamed(*lines, _CHUNKED, body=_IN_CHUNKS), Seen(b"PUT", body=PING, lacks=_LACKS)),
    }
    kept = bodies if name == "h2c" else {key: bodies[key] for key in ("get", "held", "streamed-chunked")}
    return [passes(f"{name}-{key}", data, seen) for key, (data, seen) in kept.items()]


_TRAILED: Final = b"3\r\nabc\r\n0\r\nX-T: 1\r\n\r\n"
_NO_TUNNEL: Final = (400, 403, 404, 405, 501)

ROWS: Final[list[Request]] = [
    *(row for name, lines in _PROTOCOLS.items() for row in _framings(name, lines)),
    passes(
        "h2c-with-a-trailer",
        streamed(*_H2C, _CHUNKED, body=_TRAILED),
        Seen(b"PUT", body=b"abc", trailers=((b"x-t", b"1"),)),
    ),
    passes(
        "h2c-in-two-pieces",
        (held(*_H2C, _CHUNKED, body=_IN_CHUNKS[:-9]), 0.002, _IN_CHUNKS[-9:]),
        Seen(b"POST", body=PING, lacks=_LACKS),
    ),
    passes("h2c-body-later", (held(*_H2C, _LENGTH, body=b""), 0.005, PING), Seen(b"POST", body=PING, lacks=_LACKS)),
    passes(
        "h2c-expect", held(*_H2C, b"Expect: 100-continue", _LENGTH, body=PING), Seen(b"POST", body=PING, lacks=_LACKS)
    ),
    passes(
        "h2c-body-is-a-request",
        streamed(*_H2C, b"Content-Length: %d" % len(get(target=b"/s")), body=get(target=b"/s")),
        Seen(b"PUT", body=get(target=b"/s")),
    ),
    passes("h2c-twice", held(*_H2C, _LENGTH, body=PING) * 2, *[Seen(b"POST", body=PING, lacks=_LACKS)] * 2),
    passes(
        "h2c-chunked-and-a-get",
        held(*_H2C, _CHUNKED, body=_IN_CHUNKS) + get(target=b"/b"),
        Seen(b"POST", body=PING, lacks=_LACKS),
        Seen(target=b"/b"),
    ),
    passes(
        "h2c-large",
        streamed(*_H2C, b"Content-Length: 100000", body=b"x" * 100_000),
        Seen(b"PUT", body=b"x" * 100_000, lacks=_LACKS),
    ),
    Request(
        "h2c-and-the-preface",
        (get(*_H2C) + b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",),
        (Outcome((Seen(lacks=_LACKS),), frozenset({400, 405, 505})),),
    ),
    Request(
        "websocket-and-a-frame",
        (get(*_PROTOCOLS["websocket"]) + b"\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58\r\n\r\n",),
        (Outcome((Seen(lacks=_LACKS),), BAD),),
    ),
    refused("h2c-two-lengths", streamed(*_H2C, _LENGTH, _LENGTH, body=PING)),
    refused("h2c-length-and-chunks", streamed(*_H2C, _LENGTH, _CHUNKED, body=_IN_CHUNKS)),
    refused("h2c-bad-coding", streamed(*_H2C, b"Transfer-Encoding: identity, chunked", body=_IN_CHUNKS)),
    refused("h2c-bad-chunk", streamed(*_H2C, _CHUNKED, body=b"x\r\nabc\r\n0\r\n\r\n"), cut=True),
    refused("h2c-bad-chunk-held", held(*_H2C, _CHUNKED, body=b"3\r\nabcd\r\n0\r\n\r\n")),
    refused("h2c-bad-trailer", streamed(*_H2C, _CHUNKED, body=b"0\r\nX : 1\r\n\r\n"), cut=True),
    forbidden(
        "h2c-and-authorization", get(b"Connection: upgrade, authorization", b"Upgrade: h2c", b"Authorization: x")
    ),
    refused("connect", raw(b"CONNECT localhost:80 HTTP/1.1"), *_NO_TUNNEL),
    refused("connect-a-path", raw(b"CONNECT /mcp HTTP/1.1"), *_NO_TUNNEL),
    refused("connect-absolute", raw(b"CONNECT http://localhost/mcp HTTP/1.1"), *_NO_TUNNEL),
    refused(
        "connect-with-a-body", raw(b"CONNECT localhost:80 HTTP/1.1", b"Content-Length: 3", body=b"abc"), *_NO_TUNNEL
    ),
    refused("connect-with-chunks", raw(b"CONNECT localhost:80 HTTP/1.1", _CHUNKED, body=_IN_CHUNKS), *_NO_TUNNEL),
    refused("connect-1.0", raw(b"CONNECT localhost:80 HTTP/1.0"), *_NO_TUNNEL),
]
