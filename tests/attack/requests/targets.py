"""Request targets: bytes that must survive, bytes that must not, and the forms with an authority (RFC 9112, 3.2)."""

from typing import Final

from tests.attack.rows import Request, Seen, either, get, passes, raw, refused

_KEPT: Final = {
    "two-slashes": b"//mcp", "encoded-slash": b"/%2Fmcp%2f", "dots": b"/a/../mcp/./b",
    "encoded-dots": b"/a/%2e%2E/mcp", "encoded-nul": b"/mcp%00",
    "encoded-line": b"/mcp%0d%0aX:%20y%0d%0a%0d%0aGET%20/smuggled", "bad-percent": b"/mcp%zz%",
    "empty-query": b"/mcp?", "two-questions": b"/mcp?a?b", "url-in-query": b"/mcp?to=http://evil/%20HTTP/1.1",
    "version-in-path": b"/HTTP/1.1", "matrix": b"/mcp;a=b,c;d", "colon": b"/a:80/b", "at": b"//user@evil/mcp",
    "backslash": b"/\\evil\\mcp", "delimiters": b'/"<>[]^`{|}', "only-slash": b"/", "overlong-utf-8": b"/%c0%af%c0%ae",
    "starts-like-absolute": b"/http://evil/mcp", "thousand-segments": b"/a" * 1000,
}  # fmt: skip
_BAD: Final = {
    "relative": b"mcp", "only-query": b"?a", "dots-first": b"../mcp", "backslash-first": b"\\mcp",
    "authority": b"localhost:80", "authority-without-port": b"localhost", "utf-8": "/mcpé".encode(),
    "latin-1": b"/mcp\xe9", "utf-8-in-query": "/mcp?ü".encode(), "fullwidth-slash": "/\uff0e\uff0e\uff0fmcp".encode(),
    "only-fragment": b"#a", "scheme-only": b"http:", "scheme-one-slash": b"http:/mcp",
    "no-scheme": b"://localhost/mcp",
}  # fmt: skip
_LOCAL: Final = b"//localhost"
_ABSOLUTE: Final = {
    "absolute": (b"http://localhost/mcp", b"/mcp"),
    "absolute-https": (b"https://localhost/mcp", b"/mcp"),
    "absolute-upper-case": (b"HTTP://LOCALHOST/mcp", b"/mcp"),
    "absolute-port": (b"http://127.0.0.1:1/mcp?x", b"/mcp?x"),
    "absolute-ipv6": (b"http://[::1]/mcp", b"/mcp"),
    "absolute-no-path": (b"http://localhost", b"/"),
    "absolute-no-path-query": (b"http://localhost?q=/a://b", b"/?q=/a://b"),
    "absolute-two-slashes": (b"http://localhost//evil/mcp", b"//evil/mcp"),
    "absolute-at-in-path": (b"http://localhost/@evil/mcp", b"/@evil/mcp"),
}
_FOREIGN: Final = {
    "absolute-evil": b"http://evil/mcp", "absolute-evil-that-ends-well": b"http://evil.localhost.evil/mcp",
    "absolute-user": b"http://user@localhost/mcp", "absolute-user-is-the-host": b"http://localhost@evil/mcp",
    "absolute-user-and-password": b"http://localhost:80@evil/mcp",
    "absolute-encoded-slash": b"http://localhost%2f@evil/mcp", "absolute-backslash": b"http://localhost\\@evil/mcp",
    "absolute-no-host": b"http:///mcp", "absolute-only-port": b"http://:80/mcp",
    "absolute-bad-port": b"http://localhost:8o/mcp", "absolute-encoded-host": b"http://%6cocalhost/mcp",
    "absolute-two-hosts": b"http://localhost,evil/mcp", "absolute-open-bracket": b"http://[::1/mcp",
}  # fmt: skip

ROWS: Final[list[Request]] = [
    *(passes(name, get(target=target), Seen(target=target)) for name, target in _KEPT.items()),
    *(refused(name, get(target=target), 400, 403) for name, target in _BAD.items()),
    *(passes(name, get(target=given), Seen(target=kept)) for name, (given, kept) in _ABSOLUTE.items()),
    *(refused(name, get(target=target), 400, 403) for name, target in _FOREIGN.items()),
    either("fragment", get(target=b"/mcp#a"), Seen(target=b"/mcp#a")),
    either(
        "absolute-fragment", get(target=b"http://localhost#@evil/mcp"), Seen(target=b"/#@evil/mcp"), statuses=(400, 403)
    ),
    either("absolute-ftp", get(target=b"ftp:" + _LOCAL + b"/mcp"), statuses=(400, 403, 421)),
    either("absolute-websocket", get(target=b"ws:" + _LOCAL + b"/mcp"), statuses=(400, 403, 421)),
    passes("asterisk-of-options", get(target=b"*", method=b"OPTIONS"), Seen(b"OPTIONS", b"*")),
    passes("absolute-options", get(target=b"http://localhost", method=b"OPTIONS"), Seen(b"OPTIONS", b"*")),
    passes("absolute-options-slash", get(target=b"http://localhost/", method=b"OPTIONS"), Seen(b"OPTIONS", b"/")),
    either("asterisk-of-get", get(target=b"*"), Seen(target=b"*")),
    either("asterisk-and-more", get(target=b"*x", method=b"OPTIONS"), Seen(b"OPTIONS", b"*x")),
    either(
        "absolute-host-is-evil",
        raw(b"GET http://localhost/m HTTP/1.1", host=b"evil"),
        Seen(target=b"/m"),
        statuses=(400, 403),
    ),
    refused("absolute-without-host", raw(b"GET http://localhost/mcp HTTP/1.1", host=None)),
]
