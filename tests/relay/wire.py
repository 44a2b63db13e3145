"""The bytes of HTTP and of event streams that clients and servers send in these tests, written short."""

import json
from collections.abc import Iterable
from typing import Final

LAST_CHUNK: Final = b"0\r\n\r\n"


def dumps(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def request(
    method: bytes = b"GET",
    target: bytes = b"/mcp",
    fields: Iterable[bytes] = (),
    body: bytes | None = None,
    version: bytes = b"HTTP/1.1",
    host: bytes | None = b"localhost",
) -> bytes:
    lines = [method + b" " + target + b" " + version]
    if host is not None:
        lines.append(b"Host: " + host)
    lines += fields
    if body is not None:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join([*lines, b"", body or b""])


def post(message: object, *fields: bytes, target: bytes = b"/mcp") -> bytes:
    body = message if isinstance(message, bytes) else dumps(message)
    named = [b"Content-Type: application/json", b"Accept: application/json, text/event-stream", *fields]
    return request(b"POST", target, named, body)


def response(body: bytes = b"ok", *fields: bytes, status: bytes = b"200 OK") -> bytes:
    return b"\r\n".join([b"HTTP/1.1 " + status, *fields, b"Content-Length: %d" % len(body), b"", body])


def answer(message: object, *fields: bytes, status: bytes = b"200 OK") -> bytes:
    body = message if isinstance(message, bytes) else dumps(message)
    return response(body, b"Content-Type: application/json", *fields, status=status)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def chunked(*pieces: bytes, trailers: Iterable[bytes] = ()) -> bytes:
    return b"".join(map(chunk, pieces)) + b"\r\n".join([b"0", *trailers, b"", b""])


def stream(*fields: bytes) -> bytes:
    lines = [b"HTTP/1.1 200 OK", b"Content-Type: text/event-stream", *fields, b"Transfer-Encoding: chunked", b"", b""]
    return b"\r\n".join(lines)


def event(message: object, *lines: bytes) -> bytes:
    data = message if isinstance(message, bytes) else dumps(message)
    return b"\n".join([*lines, b"data: " + data, b"", b""])
