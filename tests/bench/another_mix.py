"""Another mix of messages than that of traffic.py, by somebody who had not seen it: other clients, heads and lengths.

What it stands for, on 32 connections: hosts of five kinds that watch tasks on one server.

    Go (net/http)         10   canonical names, `Accept-Encoding: gzip` last; no token, or one of 1,100 bytes
    C# (SocketsHttp)       6   content's fields last; a token of 1,420 bytes; two of them trace: each request differs
    Java (java.net.http)   6   `Content-Length` first; an opaque token of 43 bytes
    Rust (reqwest)         6   names in lower case; a token of 1,100 bytes
    PHP (Guzzle)           4   curl's order; a token of 780 bytes

Each session has two connections. It polls one to six tasks, and runs tools between. The seed is fixed. `"method"` is a
message's first key and `"id"` its last, as world.py reads them.
"""

import random
import uuid
from collections.abc import Iterator
from itertools import count
from typing import Final
from urllib.parse import urlsplit

import orjson

REQUESTS: Final = 100  # of each connection, then again from the first
_SEED: Final = 20251125
_WORDS: Final = (
    *("find", "the", "last", "report", "of", "each", "region", "where", "cost", "is", "open", "zürich"),
    "北京",
)

# Of 100 messages. Clients ping little, and read resources; a list of tools follows a change of the server.
WEIGHTS: Final = {
    "tasks/get": 46,
    "tools/call": 29,
    "resources/read": 6,
    "tools/list": 5,
    "ping": 5,
    "notifications/progress": 5,
    "notifications/cancelled": 3,
    "prompts/get": 1,
}

_GO: Final = (
    "POST {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: Go-http-client/1.1\r\nContent-Length: {length}\r\n"
    "Accept: application/json, text/event-stream\r\n{token}Content-Type: application/json\r\n"
    "Mcp-Protocol-Version: 2025-11-25\r\nMcp-Session-Id: {session}\r\nAccept-Encoding: gzip\r\n\r\n"
)
_CSHARP: Final = (
    "POST {path} HTTP/1.1\r\nHost: {host}\r\nAccept: application/json, text/event-stream\r\n{token}"
    "Mcp-Session-Id: {session}\r\nMCP-Protocol-Version: 2025-11-25\r\n{trace}"
    "Content-Type: application/json; charset=utf-8\r\nContent-Length: {length}\r\n\r\n"
)
_JAVA: Final = (
    "POST {path} HTTP/1.1\r\nContent-Length: {length}\r\nHost: {host}\r\nUser-Agent: Java-http-client/21.0.5\r\n"
    "Accept: application/json, text/event-stream\r\n{token}Cache-Control: no-cache\r\n"
    "Content-Type: application/json\r\n"
    "MCP-Protocol-Version: 2025-11-25\r\nmcp-session-id: {session}\r\n\r\n"
)
_RUST: Final = (
    "POST {path} HTTP/1.1\r\naccept: text/event-stream, application/json\r\n{token}mcp-session-id: {session}\r\n"
    "mcp-protocol-version: 2025-11-25\r\ncontent-type: application/json\r\nhost: {host}\r\n"
    "content-length: {length}\r\n\r\n"
)
_PHP: Final = (
    "POST {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: GuzzleHttp/7\r\nContent-Type: application/json\r\n"
    "Accept: application/json, text/event-stream\r\nmcp-session-id: {session}\r\nmcp-protocol-version: 2025-11-25\r\n"
    "{token}Content-Length: {length}\r\n\r\n"
)
# A client: its head, the bytes of its token, whether it traces. Two connections each, of one session.
_CLIENTS: Final = (
    *((_GO, 0, False), (_GO, 0, False), (_GO, 1100, False), (_GO, 1100, False), (_GO, 1100, False)),
    *((_CSHARP, 1420, False), (_CSHARP, 1420, True), (_CSHARP, 0, False)),
    *((_JAVA, 43, False), (_JAVA, 43, False), (_JAVA, 43, False)),
    *((_RUST, 1100, False), (_RUST, 1100, False), (_RUST, 0, False)),
    *((_PHP, 780, False), (_PHP, 780, False)),
)


def requests(url: str) -> list[list[str]]:
    """For each of 32 connections the requests that it sends in turn, head and body."""
    chance = random.Random(_SEED)
    found = []
    for head, token_bytes, traces in _CLIENTS:
        numbers = count(chance.randrange(1, 500))
        tasks = [_id(chance) for _ in range(chance.randint(1, 6))]
        field = f"Authorization: Bearer {_token(chance, token_bytes)}\r\n" if token_bytes else ""
        if head is _RUST:
            field = field.replace("Authorization", "authorization")
        at = urlsplit(url)
        fields = {"path": at.path, "host": at.netloc, "session": _id(chance), "token": field}
        found += [list(_connection(chance, head, fields, tasks, numbers, traces)) for _ in range(2)]
    return found


def _connection(
    chance: random.Random, head: str, fields: dict[str, str], tasks: list[str], numbers: Iterator[int], traces: bool
) -> Iterator[str]:
    for method in chance.choices(list(WEIGHTS), list(WEIGHTS.values()), k=REQUESTS):
        body = _body(chance, method, tasks, numbers)
        trace = f"traceparent: 00-{chance.randbytes(16).hex()}-{chance.randbytes(8).hex()}-01\r\n" if traces else ""
        yield head.format(**fields, trace=trace, length=len(body)) + body.decode()


def _body(chance: random.Random, method: str, tasks: list[str], numbers: Iterator[int]) -> bytes:
    number = next(numbers)  # an odd id is answered as JSON, an even one as an event stream
    last = {} if method.startswith("notifications/") else {"id": number}
    message = {"method": method, "params": _params(chance, method, tasks, number), "jsonrpc": "2.0", **last}
    return orjson.dumps(message if message["params"] else {"method": method, "jsonrpc": "2.0", **last})


def _params(chance: random.Random, method: str, tasks: list[str], number: int) -> dict[str, object]:
    if method == "tasks/get":
        return {"taskId": chance.choice(tasks)}
    if method == "tools/call":
        words = chance.randint(150, 900) if chance.random() < 0.1 else chance.randint(2, 40)
        arguments = {"text": " ".join(chance.choices(_WORDS, k=words)), "limit": chance.randint(5, 200)}
        return {"_meta": {"progressToken": number}, "name": f"query_{chance.randrange(10)}", "arguments": arguments}
    if method == "resources/read":
        return {"uri": f"file:///srv/reports/{chance.randrange(2026)}/{chance.randbytes(6).hex()}.md"}
    if method == "prompts/get":
        return {"name": "summary", "arguments": {"of": chance.choice(_WORDS)}}
    if method == "notifications/progress":
        return {"progressToken": number - 1, "progress": chance.randrange(100), "total": 100}
    return {"requestId": number - 1, "reason": "user"} if method == "notifications/cancelled" else {}


def _id(chance: random.Random) -> str:
    return str(uuid.UUID(bytes=chance.randbytes(16), version=4))


def _token(chance: random.Random, size: int) -> str:
    return "".join(chance.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", k=size))
