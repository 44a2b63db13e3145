"""Heads, bodies and lines at the gateway's limits, and beyond (DESIGN 7)."""

from typing import Final

from tests.attack.rows import WAYS, Request, Seen, either, get, held, passes, raw, refused, stops, streamed
from tests.relay.messages import chunked

HEAD_BYTES_MAX: Final = 8192
FIELDS_MAX: Final = 256  # by default
BODY_BYTES_MAX: Final = 16384
_TOO_LARGE: Final = (400, 413, 414, 431)


def _padded(size_bytes: int) -> bytes:
    empty = get(b"X: ")
    return get(b"X: " + b"a" * (size_bytes - len(empty)))


def _in_pieces(data: bytes) -> tuple[bytes, ...]:
    return tuple(data[at : at + 1000] for at in range(0, len(data), 1000))


def _of_fields(size_bytes: int) -> bytes:
    return get(*[b"X:a"] * ((size_bytes - len(get())) // 5))


def _post(size_bytes: int) -> tuple[bytes, bytes]:
    body = b'"' + b"x" * (size_bytes - 2) + b'"'
    return held(b"Content-Length: %d" % size_bytes, body=body), body


def _chunks(size_bytes: int, each: int) -> tuple[bytes, bytes]:
    body = b"x" * size_bytes
    pieces = (body[at : at + each] for at in range(0, size_bytes, each))
    return held(b"Transfer-Encoding: chunked", body=chunked(*pieces)), body


_TEXT: Final = b"Content-Type: text/plain"
_THREE: Final = b"Content-Length: 3"
_LONG: Final = b"/" + b"a" * 7000

ROWS: Final[list[Request]] = [
    passes("head-at-the-limit", _padded(HEAD_BYTES_MAX)),
    refused("head-beyond-the-limit", _padded(HEAD_BYTES_MAX + 1), 431),
    refused("head-beyond-the-limit-in-pieces", _in_pieces(_padded(HEAD_BYTES_MAX + 1)), 431),
    passes("many-fields", get(*[b"X:a"] * (FIELDS_MAX - 1))),
    refused("too-many-fields", get(*[b"X:a"] * FIELDS_MAX), 431),
    refused("many-more-fields", _of_fields(HEAD_BYTES_MAX), 431),
    refused("too-many-fields-and-bytes", _of_fields(HEAD_BYTES_MAX + 100), 431),
    refused("fields-without-end", b"GET /mcp HTTP/1.1\r\nHost: localhost\r\n" + b"X:a\r\n" * 300, 431),
    passes("name-of-7000-bytes", get(b"X" * 7000 + b": a"), Seen(has=((b"x" * 7000, b"a"),))),
    refused("name-of-9000-bytes", get(b"X" * 9000 + b": a"), 431),
    passes("target-of-7000-bytes", get(target=_LONG), Seen(target=_LONG)),
    passes("query-of-7000-bytes", get(target=b"/?" + _LONG), Seen(target=b"/?" + _LONG)),
    refused("target-of-9000-bytes", get(target=b"/" + b"a" * 9000), 414),
    refused("target-of-9000-bytes-in-pieces", _in_pieces(get(target=b"/" + b"a" * 9000)), 414),
    refused("method-without-end", raw(b"A" * 100_000), *_TOO_LARGE, 501),
    refused("line-without-end", b"GET /mcp HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100_000, 431),
    refused("spaces-without-end", b"GET /mcp HTTP/1.1\r\nHost: localhost\r\nX:" + b" " * 100_000, 431),
    refused("name-without-end", b"GET /mcp HTTP/1.1\r\nHost: localhost\r\n" + b"X" * 100_000, 400, 431),
    either("20000-empty-lines-in-front", b"\r\n" * 20_000 + get(), statuses=_TOO_LARGE),
    stops("only-empty-lines", b"\r\n" * 20_000),
    *(
        passes(f"held-{how}-{size}", sent, Seen(b"POST", body=body))
        for size in (BODY_BYTES_MAX - 1, BODY_BYTES_MAX, BODY_BYTES_MAX + 1, 300_000)
        for how, (sent, body) in {"length": _post(size), "chunks": _chunks(size, 1000)}.items()
    ),
    passes("5000-tiny-chunks", _chunks(5000, 1)[0], Seen(b"POST", body=b"x" * 5000)),
    passes(
        "streamed-300000", streamed(b"Content-Length: 300000", body=b"x" * 300_000), Seen(b"PUT", body=b"x" * 300_000)
    ),
    passes("held-encoded", held(b"Content-Encoding: gzip", _THREE, body=b"abc"), Seen(b"POST", body=b"abc")),
    passes("held-as-text", get(_TEXT, _THREE, method=b"POST", body=b"abc"), Seen(b"POST", body=b"abc")),
    *(
        stops(f"{way}-{name}-of-a-petabyte", send(line, body=body), cut=True)
        for way, (send, _) in WAYS.items()
        for name, line, body in (
            ("length", b"Content-Length: 1000000000000000", b"abc"),
            ("chunk", b"Transfer-Encoding: chunked", b"38d7ea4c68000\r\nabc"),
        )
    ),
]
