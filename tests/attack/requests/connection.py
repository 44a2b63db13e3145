"""`Connection` removes fields, but none that identify the caller or frame the message; connections with a login."""

from typing import Final

from tests.attack.rows import JSON, WAYS, Request, Seen, either, forbidden, get, held, passes, streamed

# Who asks, from where, and what for; `X-Tenant` is one of the gateway's `identity_headers`.
_REFUSED: Final = [
    *(b"Authorization", b"Proxy-Authorization", b"Cookie", b"Origin", b"Mcp-Session-Id", b"Mcp-Protocol-Version"),
    *(b"Mcp-Method", b"Mcp-Name", b"Mcp-Unheard-Of", b"X-Forwarded-For", b"X-Forwarded-Proto", b"X-Forwarded-Host"),
    *(b"X-Forwarded-Prefix", b"Forwarded", b"X-Tenant"),
]
_VALUES: Final = {b"Origin": b"http://localhost"}
_WRITTEN: Final = {
    "behind-close": b"Connection: close, Authorization", "upper-case": b"Connection: AUTHORIZATION",
    "lower-case": b"connection: authorization", "spaces": b"Connection: \t authorization \t ",
    "commas": b"Connection: ,,authorization,", "among-others": b"Connection: a,b,authorization,c",
    "tabs": b"Connection: x\t,\tAuthorization", "in-two-fields": b"Connection: keep-alive\r\nConnection: authorization",
}  # fmt: skip
_DROPPED: Final = [b"X-Foo", b"Accept", b"User-Agent", b"Accept-Language", b"Last-Event-ID", b"Traceparent", b"Range"]
_KEPT: Final = {"host": b"Host", "all": b"host, content-length, transfer-encoding"}

ROWS: Final[list[Request]] = [
    *(forbidden(f"names-{n.decode()}", get(n + b": " + _VALUES.get(n, b"x"), b"Connection: " + n)) for n in _REFUSED),
    *(
        forbidden(f"names-absent-{n.decode()}", get(b"Connection: " + n))
        for n in (b"Authorization", b"X-Tenant", b"Cookie")
    ),
    *(forbidden(f"written-{name}", get(b"Authorization: x", line)) for name, line in _WRITTEN.items()),
    forbidden("of-a-held-body", held(b"Cookie: x", b"Connection: cookie", b"Content-Length: 3", body=b"abc")),
    forbidden("of-a-streamed-body", streamed(b"Cookie: x", b"Connection: cookie", b"Content-Length: 3", body=b"abc")),
    *(
        passes(
            f"drops-{n.decode()}", get(n + b": x", n.lower() + b": y", b"Connection: " + n), Seen(lacks=(n.lower(),))
        )
        for n in _DROPPED
    ),
    passes("drops-several", get(b"X-A: 1", b"X-B: 2", b"Connection: x-a ,X-B"), Seen(lacks=(b"x-a", b"x-b"))),
    passes(
        "drops-content-type",
        held(b"Content-Length: 3", b"Connection: content-type", body=b"abc"),
        Seen(b"POST", body=b"abc", lacks=(b"content-type",)),
    ),
    passes("drops-keep-alive", get(b"Keep-Alive: timeout=5", b"Connection: keep-alive"), Seen(lacks=(b"keep-alive",))),
    passes(
        "proxy-connection-names-nothing",
        get(b"Authorization: x", b"Proxy-Connection: authorization"),
        Seen(has=((b"authorization", b"x"),), lacks=(b"proxy-connection",)),
    ),
    passes(
        "a-name-like-it", get(b"X-Authorization: x", b"Connection: x-authorization"), Seen(lacks=(b"x-authorization",))
    ),
    *(either(f"names-{name}-of-get", get(b"Connection: " + value)) for name, value in _KEPT.items()),
    *(
        either(f"names-{name}-{way}", send(*lines, body=body), Seen(method, body=b"abc"))
        for way, (send, method) in WAYS.items()
        for name, lines, body in (
            ("length", (b"Content-Length: 3", b"Connection: content-length"), b"abc"),
            ("coding", (b"Transfer-Encoding: chunked", b"Connection: transfer-encoding"), b"3\r\nabc\r\n0\r\n\r\n"),
        )
    ),
    either("of-bad-tokens", get(b"Connection: ;, a b, (x)")),
    either("empty", get(b"Connection:")),
    passes("of-2000-names", get(b"Connection: " + b"x," * 1999 + b"x")),
    forbidden("of-2001-names", get(b"Connection: " + b"x," * 2000 + b"x")),
    # Its connection serves no other request, or the same client's.
    passes("ntlm", get(b"Authorization: NTLM TlRMTVNTUAAB"), Seen(alone=True), whole=False),
    passes("negotiate", get(b"Authorization: Negotiate YIIB"), Seen(alone=True), whole=False),
    passes("ntlm-of-a-proxy", get(b"Proxy-Authorization: nTLM a"), Seen(alone=True), whole=False),
    passes("negotiate-in-lower-case", get(JSON, b"authorization: negotiate YIIB"), Seen(alone=True), whole=False),
]
