"""The request line: its method, its spaces, and what stands in front of it (RFC 9112, 2.2 and 3)."""

from typing import Final

from tests.attack.rows import Request, Seen, either, get, passes, raw, refused

_REST: Final = b" /mcp HTTP/1.1"
# llhttp knows these methods; MCP's clients send four of them, WebDAV and caches the others.
_REGISTERED: Final = [
    *(b"HEAD", b"OPTIONS", b"TRACE", b"DELETE", b"PATCH", b"PROPFIND", b"MKCALENDAR", b"M-SEARCH", b"PURGE", b"QUERY"),
    *(b"LINK", b"ACL"),
]
_NOT_REGISTERED: Final = [
    *(b"BREW", b"get", b"GETT", b"GE", b"Post", b"DESCRIBE", b"PLAY", b"X", b"G-T", b"GET,POST", b"G(T", b'"GET"'),
]
_SPACED: Final = {
    "two-spaces-before-target": b"GET  /mcp HTTP/1.1", "two-spaces-behind-target": b"GET /mcp  HTTP/1.1",
    "tab-before-target": b"GET\t/mcp HTTP/1.1", "tab-behind-target": b"GET /mcp\tHTTP/1.1",
    "space-in-target": b"GET /m cp HTTP/1.1", "space-at-the-end": b"GET /mcp HTTP/1.1 ",
    "tab-at-the-end": b"GET /mcp HTTP/1.1\t", "space-in-front": b" GET /mcp HTTP/1.1",
    "tab-in-front": b"\tGET /mcp HTTP/1.1", "no-space-before-version": b"GET /mcpHTTP/1.1",
    "no-space-before-target": b"GET/mcp HTTP/1.1", "nothing-but-method": b"GET", "no-target": b"GET HTTP/1.1",
    "empty-target": b"GET  HTTP/1.1", "no-method": b"/mcp HTTP/1.1", "nothing-but-spaces": b"   ",
    "two-targets": b"GET /a /b HTTP/1.1", "two-lines-in-one": b"GET /a HTTP/1.1 GET /b HTTP/1.1",
    "method-with-colon": b"GET: /mcp HTTP/1.1", "no-break-space": b"GET\xa0/mcp HTTP/1.1",
    "byte-order-mark": b"\xef\xbb\xbfGET /mcp HTTP/1.1",
}  # fmt: skip
# Other protocols that find their way to the port.
_FOREIGN: Final = {
    "tls-client-hello": b"\x16\x03\x01\x00\xc8\x01\x00\x00\xc4\x03\x03" + bytes(range(32)) + b"\r\n\r\n",
    "tls-client-hello-without-a-line": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(60),
    "ssh": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    "proxy-protocol-1": b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\n" + get(),
    "proxy-protocol-2": b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c" + bytes(12) + get(),
    "a-response": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "http-2-preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
    "redis": b"*1\r\n$4\r\nPING\r\n\r\n",
    "smtp": b"EHLO localhost\r\n\r\n",
    "jsonrpc-without-http": b'{"jsonrpc":"2.0","id":1,"method":"tasks/list"}\r\n\r\n',
}
_UNUSUAL: Final = frozenset({400, 405, 501, 505})

ROWS: Final[list[Request]] = [
    *(passes(f"method-{m.decode()}", get(method=m), Seen(m)) for m in _REGISTERED),
    *(refused(f"method-{m.decode()}", raw(m + _REST), 400, 501) for m in _NOT_REGISTERED),
    refused("method-of-8000-bytes", raw(b"G" * 8000 + _REST), 400, 501),
    either("method-SOURCE-of-ice", get(method=b"SOURCE"), Seen(b"SOURCE"), statuses=_UNUSUAL),
    refused("method-PRI", get(method=b"PRI"), *_UNUSUAL),
    *(refused(name, raw(start), 400, 505) for name, start in _SPACED.items()),
    *(refused(name, data, 400, 405, 501, 505) for name, data in _FOREIGN.items()),
    passes("one-empty-line-in-front", b"\r\n" + get()),
    either("ten-empty-lines-in-front", b"\r\n" * 10 + get()),
    # llhttp skips any line end in front of a request; every reader finds one request behind it.
    either("bare-lf-in-front", b"\n" + get()),
    either("bare-cr-in-front", b"\r" + get()),
    either("cr-cr-lf-in-front", b"\r\r\n" + get()),
    refused("a-field-in-front", b"X: y\r\n" + get()),
    refused("a-space-and-an-empty-line-in-front", b" \r\n" + get()),
    refused("all-lines-end-with-lf", get().replace(b"\r\n", b"\n")),
    refused("all-lines-end-with-cr", get().replace(b"\r\n", b"\r") + b"\r\n\r\n"),
    refused("request-line-ends-with-lf", get().replace(b"\r\n", b"\n", 1)),
    refused("request-line-ends-with-cr", get().replace(b"\r\n", b"\r", 1)),
    refused("request-line-ends-with-lf-cr", get().replace(b"\r\n", b"\n\r", 1)),
    refused("head-ends-with-lf", get()[:-2] + b"\n"),
    refused("head-ends-with-lf-lf", get()[:-4] + b"\n\n"),
    refused("head-ends-with-cr-lf-cr-x", get()[:-1] + b"x\r\n\r\n"),
]
