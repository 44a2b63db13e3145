"""`Host` and `Origin`: one `Host`, of one meaning, which the door admits (RFC 9112, 3.2; DESIGN 7)."""

from typing import Final

from tests.attack.rows import PING, Request, either, get, held, passes, raw, refused

_LINE: Final = b"GET /mcp HTTP/1.1"
_GOOD: Final = [
    *(b"localhost", b"LOCALHOST", b"localhost:1", b"localhost:", b"127.0.0.1", b"[::1]:80", b"127.9.9.9", b"[::1]"),
    *(b"127.0.0.1:65535", b"[0:0:0:0:0:0:0:1]"),
]
_EVIL: Final = [
    *(b"evil", b"evil:80", b"evil.localhost", b"localhost.evil", b"localhost, evil", b"evil, localhost"),
    *(b"localhost evil", b"10.0.0.1", b"192.168.1.1:80", b"127.0.0.1.", b"xn--localhost", b"[::ffff:10.0.0.1]"),
    *(b"[::]",),
    *(b"user@localhost", b"localhost@evil", b"localhost:80@evil", b"localhost/evil", b"localhost?x", b"localhost#x"),
    *(b"http://localhost", b"[::1", b"::1", b"[evil]", b"0.0.0.0", b"127.1", b"2130706433", b"0x7f.1", b"\xe9", b""),
    *(b"localhost:80x", b"localhost:-1", b"localhost\\evil", b"%6cocalhost", b'"localhost"', b"127.0.0.1.evil"),
]
_ORIGINS: Final = [
    *(b"http://evil", b"null", b"http://localhost.evil", b"http://localhost@evil", b"http://evil http://localhost"),
    *(b"//evil", b"evil", b"", b"http://[::1].evil", b"https://evil:443", b"http://127.0.0.1.evil", b"localhost"),
    *(b"http://evil/localhost", b"http://evil#localhost", b"http://localhost:80@evil", b"http://"),
    b"http://localhost, http://evil",
]
_GOOD_ORIGINS: Final = [b"http://localhost", b"http://localhost:6274", b"https://127.0.0.1:1", b"http://[::1]:3000"]
_EVIL_ORIGIN: Final = b"Origin: http://evil"

ROWS: Final[list[Request]] = [
    *(passes(f"good-{h.decode()}", raw(_LINE, host=h)) for h in _GOOD),
    *(refused(f"evil-{h.decode('latin-1')}", raw(_LINE, host=h), 400, 403) for h in _EVIL),
    either("mapped-ipv4", raw(_LINE, host=b"[::ffff:127.0.0.1]"), statuses=(400, 403)),
    either("port-too-large", raw(_LINE, host=b"localhost:99999"), statuses=(400, 403)),
    either("dot-at-the-end", raw(_LINE, host=b"localhost."), statuses=(400, 403)),
    passes("spaces-around", raw(_LINE, host=b" \t localhost \t ")),
    refused("none", raw(_LINE, host=None)),
    refused("twice-the-same", get(b"Host: localhost")),
    refused("good-and-evil", get(b"Host: evil")),
    refused("evil-and-good", raw(_LINE, b"Host: localhost", host=b"evil")),
    refused("twice-in-other-case", get(b"HOST: localhost")),
    refused("twice-one-empty", get(b"Host:")),
    refused("thrice", get(b"Host: localhost", b"hOsT: localhost")),
    refused("space-before-colon", raw(_LINE, b"Host : localhost", host=None)),
    refused("evil-with-a-space-before-colon", get(b"Host : evil")),
    refused("folded", raw(_LINE, b"Host:", b" localhost", host=None)),
    refused("folded-evil", get(b" evil")),
    refused("first-line-is-folded", b"GET /mcp HTTP/1.1\r\n Host: localhost\r\n\r\n"),
    passes("host-like-names", get(b"X-Host: evil", b"Host_: evil", b"Hosts: evil", b"Host-: evil")),
    *(refused(f"origin-{o.decode()}", get(b"Origin: " + o), 400, 403) for o in _ORIGINS),
    *(passes(f"origin-{o.decode()}", get(b"Origin: " + o)) for o in (*_GOOD_ORIGINS, b"HTTP://LOCALHOST")),
    refused("origin-of-a-message", held(_EVIL_ORIGIN, b"Content-Length: %d" % len(PING), body=PING), 403),
    refused("origin-of-a-preflight", get(_EVIL_ORIGIN, b"Access-Control-Request-Method: POST", method=b"OPTIONS"), 403),
    refused("origin-good-and-evil", get(b"Origin: http://localhost", b"Origin: http://evil"), 400, 403),
    refused("origin-evil-and-good", get(b"Origin: http://evil", b"Origin: http://localhost"), 400, 403),
]
