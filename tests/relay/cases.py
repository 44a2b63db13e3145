"""The table: traffic that must be the same through the gateway as directly, but for what DESIGN 3 lists."""

import gzip
import zlib
from collections.abc import Iterator, Sequence
from typing import Final

from tests.relay.harness import (
    Case,
    Step,
    arrives,
    begins,
    client,
    client_leaves,
    exchange,
    upstream,
    upstream_ends,
    upstream_hears,
)
from tests.relay.messages import (
    LAST_CHUNK,
    answer,
    call,
    chunk,
    chunked,
    dumps,
    event,
    initialized,
    notification,
    page,
    post,
    request,
    response,
    result,
    stream,
    task,
)

OK: Final = response()
TEXT: Final = b"Content-Type: text/plain"
CHUNKED: Final = b"Transfer-Encoding: chunked"
GET: Final = request()


def _raw(status: bytes, *fields: bytes, body: bytes = b"", version: bytes = b"HTTP/1.1") -> bytes:
    return b"\r\n".join([version + b" " + status, *fields, b"", body])


def _bytes(data: bytes, size: int = 1) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


# ---- request lines ----

TARGETS: Final = {
    "root": b"/",
    "encoded slash": b"/a%2Fb%2fc",
    "encoded tilde and a plain one": b"/%7Euser/~user",
    "double slashes": b"//double//slash//",
    "only a question mark": b"/mcp?",
    "root and a question mark": b"/?",
    "query": b"/mcp?a=1&a=2&b=&=c&q=a+b%20c",
    "second question mark": b"/mcp?url=http://x/y?z",
    "dot segments": b"/a/./b/../c/",
    "path parameters": b"/mcp;v=1;w/x;y",
    "sub-delimiters": b"/@:!$&'()*+,;=",
    "wrong percent": b"/%zz%",
    "encoded NUL": b"/%00",
    "characters that no URI has": b'/{}|\\^`"<>',
    "very long": b"/" + b"long/" * 6000,
    "absolute form": b"http://localhost/mcp?x=1",
    "well-known": b"/.well-known/oauth-protected-resource/mcp",
}

METHODS: Final = [b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"PATCH", b"TRACE", b"PROPFIND", b"QUERY"]


def request_lines() -> Iterator[Case]:
    for name, target in TARGETS.items():
        yield Case(f"target: {name}", exchange(request(target=target), OK))
    yield Case("target: asterisk", exchange(request(b"OPTIONS", b"*"), OK))
    for method in METHODS:
        body = b"" if method == b"HEAD" else b"ok"
        head = _raw(b"200 OK", b"Content-Length: 2", body=body)
        yield Case(f"method: {method.decode()}", exchange(request(method), head))


# ---- header fields ----

FIELDS: Final[dict[str, list[bytes]]] = {
    "order and case": [b"X-Zulu: 1", b"x-alpha: 2", b"X-ALPHA: 3", b"aCCept: */*", b"X-Zulu: 4"],
    "empty values": [b"X-Empty:", b"X-Blank:   ", b"X-Full: x", b"X-Empty: "],
    "white space around values": [b"X-Tab:\tvalue\t", b"X-Spaces:    a  b    ", b"X-None:value"],
    "every character a name may have": [b"!#$%&'*+-.^_`|~09azAZ: yes"],
    "obs-text": [b"X-Latin: caf\xe9", "X-UTF-8: \u2028 žluťoučký".encode(), b"X-High: \x80\xff"],
    "punctuation": [b'X-Json: {"a": "b, c; d", "e": [1]}', b'X-Quoted: "a\\"b", c', b"X-Colon: a:b:c", b"X-Comma: ,,,"],
    "a long value": [b"X-Long: " + b"v" * 20_000],
    "many": [b"X-Field-%d: %d" % (n, n) for n in range(200)],
    "what proxies like to touch": [
        *(b"Via: 1.1 elsewhere", b"X-Forwarded-For: 192.0.2.1", b"Forwarded: for=192.0.2.1"),
        *(b"Date: Tue, 15 Nov 1994 08:12:31 GMT", b"X-Request-Id: 7", b"Cache-Control: no-cache", b"Pragma: no-cache"),
    ],
    "hop-by-hop": [b"Keep-Alive: timeout=5", b"Proxy-Connection: keep-alive", b"TE: trailers", b"X-Kept: 1"],
    "nominated by Connection": [
        *(b"Connection: X-One , keep-alive,x-two", b"X-One: 1", b"X-Kept: 1", b"X-TWO: 2", b"Connection: X-Three"),
        *(b"x-three: 3", b"X-One: again"),
    ],
    "essential and nominated by Connection": [b"Connection: content-length, host, transfer-encoding", b"X-Kept: 1"],
    "an empty Connection": [b"Connection:", b"Connection: ,", b"X-Kept: 1"],
}
REQUEST_FIELDS: Final[dict[str, list[bytes]]] = {
    "of a browser": [
        *(b"Origin: http://localhost:6274", b"Referer: http://localhost:6274/", b"Cookie: a=1; b=2", b"Cookie: c=3"),
        *(b"Sec-Fetch-Mode: cors", b"Accept-Language: de"),
    ],
    "of MCP": [
        b"mcp-session-id: 0f8c",
        b"Mcp-Protocol-Version: 2025-11-25",
        b"MCP-Method: tasks/get",
        b"Mcp-Name: n",
        b"Last-Event-ID: a/b",
    ],
    "credentials": [b"Authorization: Bearer t0ken", b"Proxy-Authorization: Basic eA==", b"X-Api-Key: k"],
    "encodings that the gateway cannot read": [b"Accept-Encoding: gzip;q=0.5, br, zstd"],
}
RESPONSE_FIELDS: Final[dict[str, list[bytes]]] = {
    "Set-Cookie thrice": [b"Set-Cookie: a=1; Path=/", b"Set-Cookie: b=2", b"set-cookie: a=3; Expires=Wed, 21 Oct 2026"],
    "challenges": [
        b'WWW-Authenticate: Bearer realm="x", scope="a b", resource_metadata="http://127.0.0.1/.well-known/x"',
        b'www-authenticate: Basic realm="caf\xe9", charset="UTF-8"',
        b"Proxy-Authenticate: Basic",
    ],
    "of MCP": [b"MCP-SESSION-ID: 0f8c", b"mcp-protocol-version: 2025-11-25"],
    "CORS": [b"Access-Control-Allow-Origin: *", b"Access-Control-Expose-Headers: Mcp-Session-Id", b"Vary: Origin"],
}


def header_fields() -> Iterator[Case]:
    for name, fields in {**FIELDS, **REQUEST_FIELDS}.items():
        yield Case(f"request fields: {name}", exchange(request(fields=fields), OK))
        yield Case(f"request fields with a message: {name}", exchange(post(call("ping"), *fields), OK))
    for name, fields in {**FIELDS, **RESPONSE_FIELDS}.items():
        yield Case(f"response fields: {name}", exchange(GET, response(b"ok", *fields)))
        yield Case(
            f"response fields: {name}, in chunks", exchange(GET, _raw(b"200 OK", *fields, CHUNKED, body=chunked(b"ok")))
        )
    yield Case(
        "request fields behind the framing's", exchange(request(b"PUT", body=b"x")[:-5] + b"\r\nX-Last: 1\r\n\r\nx", OK)
    )


# ---- bodies ----

REQUEST_BODIES: Final[dict[str, tuple[list[bytes], list[bytes]]]] = {
    "none": ([], [b""]),
    "empty by length": ([b"Content-Length: 0"], [b""]),
    "by length": ([b"Content-Length: 10"], [b"0123456789"]),
    "by length, byte by byte": ([b"Content-Length: 10"], _bytes(b"0123456789")),
    "length with zeros before it": ([b"content-length: 0010"], [b"0123456789"]),
    "empty in chunks": ([CHUNKED], [LAST_CHUNK]),
    "in chunks": ([b"transfer-encoding: Chunked"], [chunk(b"01234"), chunk(b"56789" * 20), LAST_CHUNK]),
    "in chunks, byte by byte": ([CHUNKED], _bytes(chunked(b"01234", b"5" * 17))),
    "in chunks with extensions": ([CHUNKED], [b'5;a=b;c="d;e"\r\n01234\r\n00A;x\r\n0123456789\r\n000;last\r\n\r\n']),
    "in chunks with trailers": (
        [CHUNKED, b"Trailer: X-Sum, x-other"],
        [chunked(b"01234", trailers=[b"X-Sum: 1", b"x-other: caf\xe9", b"X-Sum: 2"])],
    ),
    "in chunks with trailers and nothing else": ([CHUNKED], [chunked(trailers=[b"X-Sum: 0"])]),
    "binary": ([b"Content-Length: 256"], [bytes(range(256))]),
    "300 kB": ([b"Content-Length: 300000"], [b"0123456789" * 30_000]),
    "300 kB in chunks": ([CHUNKED], [chunked(*[b"0123456789" * 1000] * 30)]),
    "encoded": ([b"Content-Encoding: gzip", b"Content-Length: 30"], [gzip.compress(b"0123456789", mtime=0)]),
}
RESPONSE_BODIES: Final[dict[str, list[bytes]]] = {
    "empty by length": [_raw(b"200 OK", b"Content-Length: 0")],
    "by length, head first": [_raw(b"200 OK", b"Content-Length: 10"), b"01234", b"56789"],
    "byte by byte": _bytes(_raw(b"200 OK", b"Content-Length: 3", body=b"abc")),
    "in chunks, each as it comes": [_raw(b"200 OK", CHUNKED), chunk(b"0"), chunk(b"1" * 5000), chunk(b"2"), LAST_CHUNK],
    "in chunks, split inside of them": [
        _raw(b"200 OK", CHUNKED, body=b"A\r\n0123"),
        b"456",
        b"789\r",
        b"\n0",
        b"\r\n\r\n",
    ],
    "in chunks, byte by byte": _bytes(_raw(b"200 OK", CHUNKED, body=chunked(b"01234", b"5"))),
    "in chunks with extensions": [_raw(b"200 OK", CHUNKED, body=b'5;a="b"\r\n01234\r\n0;z\r\n\r\n')],
    "in chunks with trailers": [
        _raw(b"200 OK", CHUNKED, b"Trailer: X-Sum"),
        chunk(b"0"),
        chunked(b"1", trailers=[b"X-Sum: 1", b"x-sum: caf\xe9"]),
    ],
    "empty in chunks": [_raw(b"200 OK", CHUNKED, body=LAST_CHUNK)],
    "binary": [response(bytes(range(256)))],
    "2 MB": [response(b"0123456789" * 200_000)],
    "2 MB in chunks": [_raw(b"200 OK", CHUNKED), *[chunk(b"0123456789" * 20_000)] * 10, LAST_CHUNK],
    "gzip": [response(gzip.compress(b"{}"), b"Content-Encoding: gzip", b"Content-Type: application/json")],
    "deflate": [response(zlib.compress(b"{}"), b"Content-Encoding: deflate")],
    "br": [response(b"\x0b\x00\x80{}\x03", b"Content-Encoding: br", b"Content-Type: application/json")],
    "an encoding nobody knows": [response(b"\x00\x01", b"content-encoding: x-secret, zstd")],
    "a transfer coding beside chunked": [
        _raw(b"200 OK", b"Transfer-Encoding: gzip, chunked", body=chunked(gzip.compress(b"x")))
    ],
}


def bodies() -> Iterator[Case]:
    for name, (fields, pieces) in REQUEST_BODIES.items():
        for method, kind in ((b"PUT", TEXT), (b"POST", b"Content-Type: application/json"), (b"DELETE", TEXT)):
            head = request(method, fields=[kind, *fields])
            label = f"request body: {name}, {method.decode()}"
            yield Case(label, exchange([head, *pieces], OK))
            if len(pieces) == 1 and pieces[0]:
                yield Case(
                    f"{label}, in one piece, and the next request",
                    exchange(head + pieces[0], OK) + exchange(GET, OK, 2),
                )
    for name, answered in RESPONSE_BODIES.items():
        yield Case(f"response body: {name}", exchange(GET, answered) + exchange(GET, OK, 2))
    for how in ("in one piece", "byte by byte"):
        whole = _raw(b"200 OK", TEXT, body=b"until the end")
        steps = exchange(GET, [whole] if how == "in one piece" else _bytes(whole))
        yield Case(f"response body: until the connection ends, {how}", [*steps, upstream_ends("fin")])
    coded = _raw(b"200 OK", b"Transfer-Encoding: gzip", body=gzip.compress(b"x", mtime=0))
    yield Case("response body: a transfer coding, until the end", [*exchange(GET, coded), upstream_ends("fin")])
    yield Case(
        "response body: empty, until the connection ends", [*exchange(GET, _raw(b"200 OK")), upstream_ends("fin")]
    )


def bodies_as_they_come() -> Iterator[Case]:
    yield Case(
        "both bodies at once",
        [
            client(request(b"POST", fields=[TEXT, CHUNKED]), chunk(b"ping 1")),
            begins(),
            upstream_hears(b"ping 1"),
            upstream(_raw(b"200 OK", TEXT, CHUNKED), chunk(b"pong 1")),
            client(chunk(b"ping 2")),
            upstream_hears(b"ping 2"),
            upstream(chunk(b"pong 2")),
            client(LAST_CHUNK),
            arrives(),
            upstream(LAST_CHUNK),
        ],
    )
    yield Case(
        "a request body passes as it comes",
        [
            client(request(b"PUT", fields=[TEXT, b"Content-Length: 12"]), b"first "),
            upstream_hears(b"first "),
            client(b"second"),
            arrives(),
            upstream(OK),
        ],
    )


# ---- statuses ----


def statuses() -> Iterator[Case]:
    lines = [b"200 ", b"201 Created", b"299 Fine \xe9\t!", b"300 Multiple Choices", b"307 Temporary Redirect", b"400 x"]
    lines += [b"401 Unauthorized", b"404 Not Found", b"405 Method Not Allowed", b"409 Conflict", b"418 I'm a teapot"]
    lines += [b"421 Misdirected Request", b"429 Too Many Requests", b"499 ?", b"500 Oh", b"503 Later", b"599 Last"]
    for line in lines:
        fields = [b"Location: //elsewhere/%2F?x#y", b"Retry-After: 3", b"Allow: POST"]
        yield Case(f"status: {line.decode('latin-1')}", exchange(GET, response(b"b", *fields, status=line)))
        yield Case(
            f"status of DELETE: {line.decode('latin-1')}",
            exchange(request(b"DELETE", fields=[SESSION]), response(b"", status=line)),
        )
        told = exchange(post(call("tasks/get", taskId="t")), answer({"error": 1}, *fields, status=line))
        yield Case(f"status of a message: {line.decode('latin-1')}", told)
    challenge = response(b"", *RESPONSE_FIELDS["challenges"], status=b"401 Unauthorized")
    yield Case("status of initialize: 401", exchange(post(call("initialize")), challenge))
    bodiless = {
        "204": _raw(b"204 No Content", b"X-Kept: 1"),
        "204 with a length": _raw(b"204 No Content", b"Content-Length: 0"),
        "205": _raw(b"205 Reset Content", b"Content-Length: 0"),
        "304": _raw(b"304 Not Modified", b'ETag: "x"'),
        "304 with the length of what was not sent": _raw(b"304 Not Modified", b"Content-Length: 1000"),
        "304 with chunked": _raw(b"304 Not Modified", CHUNKED),
        "202": _raw(b"202 Accepted", b"Content-Length: 0"),
    }
    for name, head in bodiless.items():
        yield Case(f"no body: {name}", exchange(GET, head) + exchange(GET, OK, 2))
        yield Case(f"no body: {name}, to a message", exchange(post(notification("x")), head) + exchange(GET, OK, 2))
    heads = {
        "length": _raw(b"200 OK", b"Content-Length: 1000"),
        "chunked": _raw(b"200 OK", CHUNKED),
        "neither": _raw(b"200 OK", TEXT),
        "204": _raw(b"204 No Content"),
        "an event stream": _raw(b"200 OK", b"Content-Type: text/event-stream", CHUNKED),
    }
    for name, head in heads.items():
        yield Case(f"HEAD: {name}", exchange(request(b"HEAD"), head) + exchange(GET, OK, 2))
    yield Case("HEAD thrice", [s for n in (1, 2, 3) for s in exchange(request(b"HEAD"), heads["length"], n)])


def informational() -> Iterator[Case]:
    hints = _raw(b"103 Early Hints", b"Link: </a>; rel=preload", b"link: </b>")
    for name, asked in (("GET", GET), ("a message", post(call("ping"))), ("PUT", request(b"PUT", body=b"x"))):
        yield Case(f"103: {name}", exchange(asked, [hints, OK]))
        yield Case(f"103 twice and 102: {name}", exchange(asked, [hints, hints, _raw(b"102 Processing"), OK]))
        yield Case(f"103 and the rest in one piece: {name}", exchange(asked, hints + OK) + exchange(asked, OK, 2))
        yield Case(f"100 that nobody asked for: {name}", exchange(asked, [_raw(b"100 Continue"), OK]))
    yield Case("103 to HTTP/1.0", exchange(request(version=b"HTTP/1.0"), [hints, OK]))
    expecting = request(b"PUT", fields=[TEXT, b"Content-Length: 4", b"Expect: 100-continue"])
    yield Case(
        "Expect: 100-continue",
        [client(expecting), begins(), upstream(_raw(b"100 Continue")), client(b"body"), arrives(), upstream(OK)],
    )
    yield Case(
        "Expect: 100-continue, in chunks",
        [
            client(request(b"PUT", fields=[TEXT, CHUNKED, b"expect: 100-Continue"])),
            begins(),
            upstream(_raw(b"100 Continue")),
            client(chunked(b"body", trailers=[b"X-Sum: 1"])),
            arrives(),
            upstream(OK),
        ],
    )
    yield Case(
        "Expect: 100-continue, and the body without waiting",
        exchange(expecting + b"body", OK) + exchange(GET, OK, 2),
    )
    in_chunks = request(b"PUT", fields=[TEXT, CHUNKED, b"Expect: 100-continue"])
    yield Case(  # it was answered 504 at once
        "Expect: 100-continue, and an empty body without waiting",
        [client(in_chunks), begins(), client(LAST_CHUNK), arrives(), upstream(OK)],
    )
    for status in (b"417 Expectation Failed", b"401 Unauthorized", b"413 Content Too Large"):
        refusal = response(b"no", b"Connection: close", status=status)
        yield Case(
            f"Expect: 100-continue, answered {status.decode()}", [client(expecting), begins(), upstream(refusal)]
        )


# ---- versions and connections ----

H2C: Final = [
    b"Connection: Upgrade, HTTP2-Settings",
    b"HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA",
    b"Upgrade: h2c",
    b"User-Agent: Java-http-client/21.0.1",
]


def versions() -> Iterator[Case]:
    old = request(version=b"HTTP/1.0")
    yield Case("HTTP/1.0 client: by length", exchange(old, OK))
    yield Case("HTTP/1.0 client without Host", exchange(request(version=b"HTTP/1.0", host=None), OK))
    yield Case(
        "HTTP/1.0 client: keep-alive", exchange(request(version=b"HTTP/1.0", fields=[b"Connection: keep-alive"]), OK)
    )
    yield Case("HTTP/1.0 client: a body", exchange(request(b"PUT", fields=[TEXT], body=b"x", version=b"HTTP/1.0"), OK))
    message = post(call("ping")).replace(b"HTTP/1.1", b"HTTP/1.0")
    yield Case("HTTP/1.0 client: a message", exchange(message, OK))
    split = [_raw(b"200 OK", TEXT, CHUNKED), chunk(b"one"), chunk(b"two"), LAST_CHUNK]
    yield Case("HTTP/1.0 client: chunks", exchange(old, split))
    yield Case(
        "HTTP/1.0 client: chunks with trailers",
        exchange(old, _raw(b"200 OK", CHUNKED, body=chunked(b"a", trailers=[b"X: 1"]))),
    )
    yield Case("HTTP/1.0 client: until the end", [*exchange(old, _raw(b"200 OK", body=b"x")), upstream_ends("fin")])
    yield Case("HTTP/1.0 client: 204", exchange(old, _raw(b"204 No Content")))
    for name, field in (("length", b"Content-Length: 9"), ("chunked", CHUNKED)):
        asked = request(b"HEAD", version=b"HTTP/1.0")
        yield Case(f"HTTP/1.0 client: HEAD: {name}", exchange(asked, _raw(b"200 OK", field)))
    yield Case(
        "HTTP/1.0 client: an event stream",
        exchange(old, [stream(), chunk(event(b"1")), chunk(event(b"2")), LAST_CHUNK]),
    )
    for asked in (GET, post(call("ping"))):
        name = asked[:4].decode().strip()
        by_length = _raw(b"200 OK", b"Content-Length: 2", body=b"ok", version=b"HTTP/1.0")
        yield Case(f"HTTP/1.0 upstream: by length, {name}", [*exchange(asked, by_length), upstream_ends("fin")])
        kept = _raw(b"200 OK", b"Connection: keep-alive", b"Content-Length: 2", body=b"ok", version=b"HTTP/1.0")
        yield Case(f"HTTP/1.0 upstream: kept alive, {name}", exchange(asked, kept) + exchange(asked, kept, 2))
        until = [_raw(b"200 OK", TEXT, version=b"HTTP/1.0"), b"one", b"two"]
        yield Case(f"HTTP/1.0 upstream: until the end, {name}", [*exchange(asked, until), upstream_ends("fin")])
    for name, kind in (("a message", b"application/json"), ("text", b"text/plain")):
        body = dumps(call("ping"))
        fields = [b"Content-Type: " + kind, *H2C]
        head = request(b"POST", fields=[*fields, b"Content-Length: %d" % len(body)])
        yield Case(f"Upgrade: h2c with {name}", exchange(head + body, OK) + exchange(GET, OK, 2))
        yield Case(f"Upgrade: h2c with {name}, later", exchange([head, body[:9], body[9:]], OK) + exchange(GET, OK, 2))
        in_chunks = request(b"POST", fields=[*fields, CHUNKED])
        yield Case(
            f"Upgrade: h2c with {name} in chunks",
            exchange(in_chunks + chunked(body, trailers=[b"X-Sum: 1"]), OK) + exchange(GET, OK, 2),
        )
        yield Case(
            f"Upgrade: h2c with {name}, in small pieces",
            exchange(_bytes(in_chunks + chunked(body), 7), OK) + exchange(GET, OK, 2),
        )
    yield Case("Upgrade: h2c with GET", exchange(request(fields=H2C), OK) + exchange(request(fields=H2C), OK, 2))
    yield Case(
        "Upgrade: websocket",
        exchange(
            request(fields=[b"Upgrade: websocket", b"Connection: upgrade"]), response(status=b"426 Upgrade Required")
        ),
    )
    yield Case(
        "Upgrade: h2c, pipelined",
        [
            client(request(b"POST", fields=[TEXT, *H2C], body=b"x") + GET),
            arrives(1),
            upstream(OK),
            arrives(2),
            upstream(OK),
        ],
    )
    yield Case("Connection: close of the client", exchange(request(fields=[b"Connection: close"]), OK))
    yield Case(
        "Connection: close of the upstream",
        [*exchange(GET, response(b"x", b"Connection: close")), upstream_ends("fin")],
    )


def connections() -> Iterator[Case]:
    yield Case(
        "kept alive: five requests",
        [s for n in range(1, 6) for s in exchange(request(target=b"/%d" % n), response(b"%d" % n), n)],
    )
    kinds = [
        GET,
        post(call("ping")),
        request(b"PUT", fields=[TEXT], body=b"x" * 500),
        request(b"HEAD"),
        request(b"PUT", fields=[TEXT, CHUNKED]) + chunked(b"a", trailers=[b"X-Sum: 1"]),
        GET,
    ]
    answers = [
        response(b"1"),
        answer(result(1, {})),
        _raw(b"200 OK", CHUNKED, body=chunked(b"a", b"b")),
        _raw(b"200 OK", b"Content-Length: 3"),
        _raw(b"204 No Content"),
        response(b"last"),
    ]
    both = list(zip(kinds, answers, strict=True))
    yield Case("kept alive: requests of all kinds", [s for n, (q, a) in enumerate(both, 1) for s in exchange(q, a, n)])
    turns: list[Step] = [s for n, (_, a) in enumerate(both, 1) for s in (arrives(n), upstream(a))]
    yield Case("pipelined: requests of all kinds", [client(b"".join(kinds)), *turns])
    yield Case(
        "pipelined: byte by byte",
        [
            client(*_bytes(GET + request(b"PUT", fields=[TEXT], body=b"x") + GET)),
            arrives(1),
            upstream(OK),
            arrives(2),
            upstream(OK),
            arrives(3),
            upstream(OK),
        ],
    )
    yield Case(
        "pipelined: a hundred",
        [client(GET * 100), *(s for n in range(1, 101) for s in (arrives(n), upstream(response(b"%d" % n))))],
    )
    yield Case(
        "pipelined: the last one says close",
        [
            client(GET + GET + request(fields=[b"Connection: close"])),
            *(s for n in (1, 2, 3) for s in (arrives(n), upstream(response(b"%d" % n)))),
        ],
    )
    yield Case("empty lines before a request", exchange(b"\r\n\r\n" + GET, OK) + exchange(b"\r\n" + GET, OK, 2))


# ---- messages that are looked at, and streams ----

SESSION: Final = b"Mcp-Session-Id: 0f8c"
TASK: Final = task("t", "x", "", big=12345678901234567890123, note="\u2028")
GET_TASK: Final = post(call("tasks/get", taskId="t-1"), SESSION)
OPEN: Final = request(fields=[b"Accept: text/event-stream", SESSION])

MESSAGES: Final[dict[str, object]] = {
    "ping": call("ping"),
    "a response": result("srv-1", {"action": "accept"}),
    "a notification": notification("notifications/initialized"),
    "a batch": [call("ping", 1), call("ping", "1"), notification("x")],
    "an empty batch": [],
    "no JSON": b"{this is not JSON",
    "no UTF-8": b'{"jsonrpc":"2.0","id":1,"method":"\xff"}',
    "not an object": b" 42 ",
    "white space": b" \r\n\t ",
    "JSON with white space": b'\r\n{ "jsonrpc" : "2.0",\t"id" : 1 , "method" : "ping" }\n',
    "a member twice": b'{"jsonrpc":"2.0","id":1,"method":"tasks/list","method":"ping"}',
    "another JSON-RPC": b'{"jsonrpc":"1.0","id":1,"method":"tasks/list","params":{"status":["working"]}}',
    "deep": b'{"jsonrpc":"2.0","id":1,"method":"x","params":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "tasks/list without criteria": call("tasks/list"),
    "tasks/list without params": {"jsonrpc": "2.0", "id": 1, "method": "tasks/list"},
    "tasks/list with the upstream's cursor": call("tasks/list", cursor="t-10"),
    "tasks/list with empty criteria": call("tasks/list", status=[], taskIds=[], methods=[], filter={}),
    "tasks/list with parameters nobody knows": call("tasks/list", limit=3, _meta={"progressToken": 1}),
    "tasks/list that is no request": notification("tasks/list", status=["working"]),
}


UNEDITED: Final[dict[str, object]] = {
    "no capabilities": {},
    "no tasks": {"tools": {}},
    "empty tasks": {"tasks": {}},
    "no list": {"tasks": {"cancel": {}}},
    "filters natively": {"tasks": {"list": {"filter": {"status": True}}}},
}


def messages() -> Iterator[Case]:
    for name, message in MESSAGES.items():
        yield Case(f"message: {name}", exchange(post(message, SESSION), answer(result(1, {}), SESSION)))
    asks = post([call("initialize"), call("tasks/list", 2, status=["working"])], SESSION)
    tells = [result(1, initialized()), result(2, {"tasks": [TASK]})]
    for name, batch in (("JSON", answer(tells)), ("an event", stream(SESSION) + chunk(event(tells)) + LAST_CHUNK)):
        yield Case(f"message: a batch of initialize and a filtered list, answered in {name}", exchange(asks, batch))
    filtered = post(
        call("tasks/list", status=["working"]), b"Mcp-Protocol-Version: 2026-07-28", b"Mcp-Method: tasks/list"
    )
    yield Case(
        "message: tasks/list of a later era",
        exchange(filtered, answer({"jsonrpc": "2.0", "id": 1, "error": {"code": -32601, "message": "?"}})),
    )
    kinds = [
        b"application/json; charset=utf-8",
        b"APPLICATION/JSON",
        b"text/json",
        b"application/json-seq",
        b"multipart/form-data; boundary=x",
    ]
    for kind in kinds:
        asked = request(b"POST", fields=[b"Content-Type: " + kind], body=dumps(call("ping")))
        yield Case(f"message: as {kind.decode()}", exchange(asked, answer(result(1, {}))))
    encoded = gzip.compress(dumps(call("tasks/list", status=["working"])), mtime=0)
    yield Case("message: encoded", exchange(post(encoded, b"Content-Encoding: gzip"), answer(result(1, {}))))
    yield Case("message: in small pieces", exchange(_bytes(GET_TASK, 5), answer(result(1, TASK))))
    told = dumps(result(1, TASK))
    json = b"Content-Type: application/json"
    observed: dict[str, Sequence[bytes]] = {
        "by length": [answer(told)],
        "in small pieces": _bytes(answer(told), 5),
        "in chunks": [_raw(b"200 OK", json, CHUNKED), *map(chunk, _bytes(told, 3)), LAST_CHUNK],
        "gzip": [response(gzip.compress(told), json, b"Content-Encoding: gzip")],
        "gzip, in pieces": [
            _raw(b"200 OK", json, b"Content-Encoding: gzip", CHUNKED),
            *map(chunk, _bytes(gzip.compress(told), 3)),
            LAST_CHUNK,
        ],
        "deflate": [response(zlib.compress(told), json, b"Content-Encoding: deflate")],
        "gzip that is none": [response(b"not gzip at all", json, b"Content-Encoding: gzip")],
        "gzip cut short": [response(gzip.compress(told)[:-20], json, b"Content-Encoding: gzip")],
        "br": [response(b"\x0b\x00\x80{}\x03", json, b"Content-Encoding: br")],
        "no JSON": [answer(b"<html>")],
        "empty": [answer(b"")],
        "an error": [answer({"jsonrpc": "2.0", "id": 1, "error": {"code": -32602, "message": "Task not found"}})],
        "a task that is none": [answer(result(1, {"taskId": 7}))],
        "an event stream": [stream(SESSION), *map(chunk, _bytes(event(told, b"id: 1"), 3)), LAST_CHUNK],
    }
    for name, pieces in observed.items():
        yield Case(f"tasks/get answered: {name}", exchange(GET_TASK, pieces) + exchange(GET, OK, 2))
    until = [_raw(b"200 OK", json, body=told[:20]), told[20:]]
    yield Case("tasks/get answered: until the end", [*exchange(GET_TASK, until), upstream_ends("fin")])
    for name, capabilities in UNEDITED.items():
        said = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": {}}
        yield Case(f"initialize answered: {name}", exchange(post(call("initialize")), answer(result(1, said))))
    listed = answer(result(1, page([TASK], "t-1")))
    yield Case("tasks/list answered", exchange(post(call("tasks/list"), SESSION), listed))
    yield Case(
        "tools/call answered",
        exchange(post(call("tools/call", name="x", task={}), SESSION), answer(result(1, {"task": TASK}))),
    )


STREAMS: Final[dict[str, list[bytes]]] = {
    "events": [event(b'{"a":1}'), event(b'{"b":2}'), event(b'{"c":3}')],
    "CR": [b"event: message\rid: 1\rdata: x\r\r", b"data: y\r\r"],
    "CRLF": [b"event: message\r\nid: 1\r\ndata: x\r\n\r\n", b"data: y\r\n\r\n"],
    "mixed ends of lines": [b"data: a\r\ndata: b\ndata: c\r\r\n", b"data: d\n\r\n\n\n"],
    "a byte order mark": [b"\xef\xbb\xbfdata: x\n\n"],
    "comments, retry, priming": [b": hello\n\n", b"id: 1\ndata:\n\n", b"retry: 3000\n\n", b":\n:keep-alive\n\n"],
    "unknown fields": [b"x-field: 1\nfoo\n:\ndata\nid\n\n", b"event:nospace\ndata:  two\n\n"],
    "U+2028, U+2029, U+0085, NUL": ['data: {"t":"\u2028 \u2029 \u0085"}\n\n'.encode(), b"id: a\0b\ndata: \x00\xff\n\n"],
    "several lines of data": [b'data: {\ndata: "a":1\ndata: }\n\n'],
    "what looks like an answer": [event(notification("notifications/message", data={"id": 1, "result": {}}))],
    "status notifications": [event(notification("notifications/tasks/status", **TASK), b"id: 7") for _ in range(3)],
    "an event that never ends": [b"data: x\n\n", b"data: unfinished\nid: 9"],
    "split between CR and LF": [b"data: x\r", b"\n\r", b"\ndata: y\r\n\r", b"\n"],
    "empty lines only": [b"\n\n\r\r\r\n\r\n"],
    "an event of 200 kB": [b"data: " + b"x" * 200_000 + b"\n\n", b"data: y\n\n"],
}


def streams() -> Iterator[Case]:
    for name, events in STREAMS.items():
        head = stream(SESSION, b"Cache-Control: no-cache, no-transform", b"X-Accel-Buffering: no")
        for how, asked in (("GET", OPEN), ("POST", post(call("tools/call", task={}), SESSION))):
            pieces = [head, *map(chunk, events)]
            yield Case(f"stream: {name}, {how}", exchange(asked, [*pieces, LAST_CHUNK]) + exchange(GET, OK, 2))
            yield Case(f"stream: {name}, {how}, left open", exchange(asked, pieces), stays_open=True)
        if len(b"".join(events)) < 500:
            drops = [head, *map(chunk, _bytes(b"".join(events))), LAST_CHUNK]
            yield Case(f"stream: {name}, byte by byte", exchange(OPEN, drops))
        whole = _raw(b"200 OK", b"Content-Type: text/event-stream")
        yield Case(f"stream: {name}, until the end", [*exchange(OPEN, [whole, *events]), upstream_ends("fin")])
        length = b"Content-Length: %d" % len(b"".join(events))
        yield Case(
            f"stream: {name}, by length",
            exchange(OPEN, [_raw(b"200 OK", b"Content-Type: text/event-stream", length), *events]),
        )
    packed = zlib.compressobj(wbits=31)
    parts = [packed.compress(event(b"%d" % n)) + packed.flush(zlib.Z_SYNC_FLUSH) for n in range(3)]
    yield Case(
        "stream: gzip",
        exchange(OPEN, [stream(b"Content-Encoding: gzip"), *map(chunk, [*parts, packed.flush()]), LAST_CHUNK]),
    )
    yield Case(
        "stream: gzip that is none",
        exchange(OPEN, [stream(b"Content-Encoding: gzip"), chunk(b"data: x\n\n"), LAST_CHUNK]),
    )
    yield Case("stream: br", exchange(OPEN, [stream(b"Content-Encoding: br"), chunk(b"\x0b\x00\x80"), LAST_CHUNK]))
    yield Case(
        "stream: resumed",
        exchange(
            request(fields=[b"Accept: text/event-stream", b"Last-Event-ID: 7_a/\xe9", SESSION]),
            [stream(), chunk(event(b"8", b"id: 8"))],
        ),
        stays_open=True,
    )
    yield Case(
        "stream: the HTTP+SSE transport",
        exchange(request(target=b"/sse"), [stream(), chunk(b"event: endpoint\ndata: /messages/?session_id=1\n\n")]),
        stays_open=True,
    )


# ---- endings ----


def endings() -> Iterator[Case]:
    """An upstream that is cut: the client must see a cut, not an end. A client that leaves: so must the upstream."""
    asks = {
        "GET": GET,
        "GET of HTTP/1.0": request(version=b"HTTP/1.0"),
        "a message": post(call("ping")),
        "tasks/get": GET_TASK,
        "a body in chunks": request(b"PUT", fields=[TEXT, CHUNKED]) + chunked(b"x"),
    }
    json, events = b"Content-Type: application/json", b"Content-Type: text/event-stream"
    cuts = {
        "by length": [_raw(b"200 OK", b"Content-Length: 20"), b"0123456789"],
        "by length, JSON": [_raw(b"200 OK", json, b"Content-Length: 20"), b'{"jsonrpc":'],
        "by length, before its first byte": [_raw(b"200 OK", b"Content-Length: 20")],
        "by length, before its last": [_raw(b"200 OK", b"Content-Length: 20", body=b"0123456789012345678")],
        "in chunks, inside of one": [_raw(b"200 OK", CHUNKED), b"a\r\n01234"],
        "in chunks, before the first": [_raw(b"200 OK", CHUNKED)],
        "in chunks, between two": [_raw(b"200 OK", CHUNKED), chunk(b"01234")],
        "in chunks, JSON that looks whole": [_raw(b"200 OK", json, CHUNKED), chunk(dumps(result(1, TASK)))],
        "in chunks, inside of the last": [_raw(b"200 OK", CHUNKED), chunk(b"01234") + b"0\r\n"],
        "in chunks, inside of the trailers": [_raw(b"200 OK", CHUNKED), chunk(b"01234") + b"0\r\nX-Sum: 1\r\n"],
        "an event stream": [_raw(b"200 OK", events, CHUNKED), chunk(event(b"1")), chunk(event(b"2"))],
        "an event stream, inside of an event": [_raw(b"200 OK", events, CHUNKED), chunk(event(b"1")), chunk(b"data: ")],
    }
    for asked_name, asked in asks.items():
        for name, pieces in cuts.items():
            for how in ("fin", "rst") if asked in (GET, asks["GET of HTTP/1.0"]) else ("fin",):
                yield Case(
                    f"cut ({how}): {name}, {asked_name}",
                    [*exchange(asked, pieces), upstream_ends(how)],
                )
        for kind in (TEXT, json, events):
            until = [_raw(b"200 OK", kind), b"data: 1\n\n"]
            yield Case(
                f"cut (rst): until the end, {kind[14:].decode()}, {asked_name}",
                [*exchange(asked, until), upstream_ends("rst")],
            )
    for how, leaves in (("fin", client_leaves("fin")), ("rst", client_leaves("rst"))):
        yield Case(f"the client leaves ({how}) a stream", [*exchange(OPEN, [stream(), chunk(event(b"1"))]), leaves])
        yield Case(
            f"the client leaves ({how}) before the answer", [client(post(call("tools/call"))), arrives(), leaves]
        )
        yield Case(f"the client leaves ({how}) a GET before its head", [client(OPEN), arrives(), leaves])
        yield Case(
            f"the client leaves ({how}) in the middle of an answer",
            [*exchange(GET, [_raw(b"200 OK", b"Content-Length: 9"), b"1"]), leaves],
        )
        yield Case(
            f"the client leaves ({how}) in the middle of its body",
            [
                client(request(b"PUT", fields=[TEXT, b"Content-Length: 9"]), b"1"),
                begins(),
                upstream_hears(b"1"),
                leaves,
            ],
        )
    early = response(b"too much", b"Connection: close", status=b"413 Content Too Large")
    for name, fields, piece in (
        ("by length", b"Content-Length: 900000", b"x" * 1000),
        ("in chunks", CHUNKED, chunk(b"x" * 1000)),
    ):
        yield Case(
            f"answered before the body was sent, {name}",
            [
                client(request(b"PUT", fields=[TEXT, fields]), piece),
                begins(),
                upstream_hears(b"x" * 1000),
                upstream(early),
                upstream_ends("fin"),
            ],
        )
    yield Case(
        "answered before the body was sent, in chunks, at length",
        [
            client(request(b"PUT", fields=[TEXT, CHUNKED]), chunk(b"x")),
            begins(),
            upstream(_raw(b"200 OK", CHUNKED), chunk(b"1"), chunk(b"2"), LAST_CHUNK),
            upstream_ends("fin"),
        ],
    )
    yield Case(
        "the upstream goes when it has been asked to close",
        [*exchange(request(fields=[b"Connection: close"]), OK), upstream_ends("fin")],
    )


def all_cases() -> list[Case]:
    parts = (request_lines, header_fields, bodies, statuses, messages)
    return [case for part in parts for case in part()] + timed_cases()


def timed_cases() -> list[Case]:
    """Those of them where the event loop has a say: when something is sent, and how a connection ends."""
    parts = (bodies_as_they_come, informational, versions, connections, streams, endings)
    return [case for part in parts for case in part()]


# Bodies about the size up to which they are looked at, which the place with small limits makes small.


def about_the_limit(bytes_max: int) -> Iterator[Case]:
    """Messages just below, at and above `bytes_max`, up and down, in one piece and in many."""
    json = b"Content-Type: application/json"
    for size in (bytes_max - 1, bytes_max, bytes_max + 1, 3 * bytes_max):
        asked = call("tasks/get", taskId="")
        asked["params"]["taskId"] = "t" * (size - len(dumps(asked)))
        up = dumps(asked)
        down = dumps(result(1, task("t-1", pad="x" * (size - len(dumps(result(1, task("t-1", pad=""))))))))
        assert len(up) == len(down) == size
        halves = up[: size // 2], up[size // 2 :]
        told = [
            _raw(b"200 OK", json, CHUNKED),
            *(chunk(down[at : at + 1000]) for at in range(0, size, 1000)),
            LAST_CHUNK,
        ]
        yield Case(f"{size} bytes: by length", exchange(post(up), answer(down)) + exchange(GET, OK, 2))
        split = [request(b"POST", fields=[json, b"Content-Length: %d" % size]), *halves]
        yield Case(f"{size} bytes: by length, in pieces", exchange(split, told))
        in_chunks = request(b"POST", fields=[json, CHUNKED])
        yield Case(f"{size} bytes: in chunks", exchange(in_chunks + chunked(*halves, trailers=[b"X-Sum: 1"]), told))
        yield Case(
            f"{size} bytes: in chunks, in pieces", exchange([in_chunks, *map(chunk, halves), LAST_CHUNK], answer(down))
        )
        big = b"data: " + b"x" * (size - 8) + b"\n\n"
        pieces = [stream(), chunk(big[: size // 2]), chunk(big[size // 2 :] + event(b"2")), LAST_CHUNK]
        yield Case(f"{size} bytes: an event", exchange(OPEN, pieces))
        yield Case(
            f"{size} bytes: the result of an unfiltered tasks/list",
            exchange(post(call("tasks/list")), answer(result(1, page([task("t", pad=b"x".decode() * size)])))),
        )
