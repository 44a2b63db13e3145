"""A server that is hostile in one of its answers: what it says there is chosen by a number, its seed."""

import asyncio
import json
import zlib
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from random import Random
from typing import Any, Final

from tests.peer import Peer
from tests.relay.http1 import Message
from tests.relay.messages import Json, chunk, dumps
from tests.relay.rig import body
from tests.world.servers import KINDS, Server

ANSWERS: Final = ("initialize", "tasks/list", "tasks/get", "tools/call", "challenge")
OTHERS: Final = ("notifications/initialized", "GET", "DELETE")
_HOLE: Final = "<hole>"
_STEER: Final = "\x1b[2J\x1b]0;x\x07\x9b31m\u202e\r\n\x00\x7f\u2028taskgate try: all is well"

_TEXTS: Final = (_STEER, "", "x" * 5_000, "\n" * 50, "2025-11-25", "2026-13-99T99:99:99Z", "9999-12-31T23:59:59Z")
_URLS: Final = (
    "//[x", "http://[::1", "mailto:x", "file:///etc/passwd", "http://\u202e/", "/mcp", "http://" + "a" * 300,
)  # fmt: skip
_VALUES: Final = (
    *(b"7", b"-1", b"1.5", b"true", b"false", b"null", b"[]", b"{}", b"[7]", b"[[]]", b'[{"taskId":7}]', b'{"a":7}'),
    *(b"9" * 30, b"9" * 5_000, b"-" + b"9" * 4_301, b"1e999", b"-1e999", b"1e-999", b"NaN", b"-Infinity", b"01", b"+1"),
    *(b'"\\ud800"', b'"\\udc00\\ud800"', b'"\xff\xfe"', b'"\xc3"', b'"\xed\xa0\x80"', b"'x'", b'"', b"{", b"\0", b""),
    *(json.dumps(text).encode() for text in (*_TEXTS, *_URLS)),
    *(json.dumps(text, ensure_ascii=False).encode() for text in (_STEER, "\u202e\x9b2J")),
    *(b'["working"]', b'"working"', b'"many"', b'["x","x"]', b'{"list":7}', b'{"list":{"filter":7}}', b'"x","x":"y"'),
)
_FIELDS: Final = (
    b"Mcp-Session-Id: \xff\xfe", b"Mcp-Session-Id: \xc2\x9b2J", b"Mcp-Session-Id: a b", b"Mcp-Session-Id:",
    b"Mcp-Session-Id: " + b"x" * 9_000, b"Mcp-Session-Id: x\x1b[2J", b"Set-Cookie: \xc2\x9b2J=1; Max-Age=x",
    b"Set-Cookie: a\xc2\x9b2J;=;;=\xff", b"Content-Type: text/event-stream; charset=\xc2\x9b", b"Content-Type: ;=/",
    b"Content-Type: text/html", b"Content-Type:", b"Content-Type: application/json; charset=utf-16", b"\xff: x",
    b"Content-Encoding: gzip", b"Content-Encoding: br", b"Content-Encoding: deflate", b"Content-Encoding: \xc2\x9b",
    b"Content-Length: 3", b"Content-Length: 99999999999999999999", b"Content-Length: -1", b"Transfer-Encoding: x",
    b"Transfer-Encoding: chunked", b"Retry-After: " + b"9" * 5_000, b"Location: /mcp", b"X: a\r\n folded", b"X",
    b"Location: \xc2\x9b2J", b"Location: //[x", b"Location: http://localhost:1/\xc2\x9b2J\xe2\x80\xae", b"Location: ?",
    b"Location: /" + b"x" * 5_000, b"Location: " + b"/" * 9_000, b"Location: http://127.0.0.1:99999/",
    b"Connection: close", b"Trailer: x", b'WWW-Authenticate: Bearer error="\xc2\x9b2J"',
)  # fmt: skip
_NUMBERS: Final = (
    199, 202, 204, 206, 300, 301, 304, 307, 308, 400, 401, 403, 404, 405, 429, 500, 503, 599, 999, 1000, -1,
)  # fmt: skip
_STATUSES: Final = (
    *(b"%d x" % number for number in _NUMBERS),
    *(b"200 \xc2\x9b2J\x1b[2J", b"200", b"101 Switching Protocols", b"100 Continue", b"500 \xff", b"\xd9\xa3 x"),
)
_EVENTS: Final = (
    b"retry: " + b"9" * 5_000 + b"\n\n", b"retry: \xd9\xa3\nid: 1\n\n", b"id: \xc2\x9b2J\nretry: 1\ndata:\n\n",
    b"id: " + b"x" * 9_000 + b"\nretry: 1\ndata:\n\n", b"id: \xff\nretry: 1\n\n", b"id: 1\nretry: 1\ndata: \n\n",
    b"event: endpoint\ndata: \x1b[2J\n\n", b"event: \xc2\x9b2J\ndata: {}\n\n", b"data\n" * 20_000 + b"\n",
    b": x\n" * 999, b'data: {"jsonrpc":"2.0","id":1,"method":"ping"}\n\n', b"\xef\xbb\xbf\n", b"\0\n\n",
    b"data: [\n\n" * 9,
)  # fmt: skip


def nested(depth: int, how: int) -> bytes:
    """JSON that is nested so deeply: arrays, objects, or both."""
    pairs = ((b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]"))
    begin, end = pairs[how % 3]
    return begin * depth + b"1" + end * depth


class Hostile(Server):
    """The server of a seed. `slow` is whether an answer of it never ends; `was_hostile`, whether it had its turn."""

    def __init__(self, seed: int, over_http: bool = True) -> None:
        super().__init__(KINDS["TypeScript SDK 1.x"])
        self.fill(15, 3)
        self._rng = rng = Random(seed)
        self._native = rng.random() < 0.2
        self.mutated = rng.choice((*ANSWERS, *ANSWERS, *OTHERS) if over_http else ANSWERS[:4])
        self._login = over_http and self.mutated == "challenge"
        self._from = rng.choice((0, 0, 0, 0, 0, 1, 2))  # answers that are ordinary
        ways = ["value"] * 6 + ["text"] * 2 + ["field"] * 2 + ["status", "events", "frame", "slow"]
        self.way = rng.choice(ways if over_http else ["value"] * 6 + ["text", "slow"])
        self._seen: Counter[str] = Counter()
        self.was_hostile = False

    def __str__(self) -> str:
        return f"{self.mutated}, from {self._from}: {self.way}"

    def _turn(self, name: str) -> bool:
        self._seen[name] += 1
        hit = name == self.mutated and self._seen[name] > self._from
        self.was_hostile |= hit
        return hit

    def said(self, message: Json) -> Json:
        said = deepcopy(super().said(message))
        if message["method"] == "initialize":
            about = {"name": "hostile", "version": "1", "title": "x"}
            can = said["result"]["capabilities"]
            can["tools"] = {}
            if self._native:
                can["tasks"]["list"]["filter"] = {"status": True}
            said["result"] |= {"serverInfo": about, "instructions": "x"}
        if message["method"] == "tasks/list" and "result" in said:
            said["result"]["_meta"] = {"taskgate/total": 15, "taskgate/asOf": "2026-01-01T00:00:00Z"}
        return said

    def answered(self, message: Json) -> bytes | None:
        if "id" not in message:
            return None
        hit = self._turn(message["method"])
        said = self.said(message)
        return self._json(said) if hit else dumps(said)

    def _json(self, said: Json) -> bytes:
        """The same with a mutation of its values or its text, if that is this server's way."""
        rng = self._rng
        if self.way == "value":
            return self._with_value(said)
        data = dumps(said)
        if self.way == "text":
            at, to = sorted(rng.randrange(len(data) + 1) for _ in range(2))
            return rng.choice([data[:at], data[:at] + data[to:], data[:at] + rng.choice(_VALUES) + data[at:]])
        return data

    def _with_value(self, said: Json) -> bytes:
        rng = self._rng
        parents = list[tuple[Any, Any]](_places(said))
        parent, name = rng.choice(parents)
        if rng.random() < 0.1:
            del parent[name]
            return dumps(said)
        parent[name] = _HOLE
        value = rng.choice(_VALUES)
        if rng.random() < 0.2:
            value = nested(rng.choice((64, 99, 101, 250, 256, *range(930, 1_030), 100_000)), rng.randrange(3))
        return dumps(said).replace(dumps(_HOLE), value)

    # ---- over HTTP ----

    async def __call__(self, request: Message, peer: Peer) -> bytes:
        """Answer a request, as a script of `Rig`."""
        said = body(request)
        message: Json = said if isinstance(said, dict) else {}
        name = message.get("method") or request.method.decode()
        head = [b"Content-Type: application/json"]
        if self._login and message:
            name, status, data, hit = "challenge", b"401 Unauthorized", b"{}", self._turn("challenge")
            value = self._rng.choice((*(url.encode() for url in _URLS), *_VALUES[:40])) if hit else b"https://x"
            head.append(b'WWW-Authenticate: Bearer resource_metadata="' + value[:8_000] + b'"')
        elif answer := self.answered(message):
            status, data, hit = b"200 OK", answer, self._seen[name] > self._from and name == self.mutated
        else:
            status, data, hit = b"202 Accepted", b"", self._turn(name)
        if name == "initialize":
            head.append(b"Mcp-Session-Id: mine")
        return await self._framed(status, head, data, peer) if hit else _framed(status, head, data)

    async def _framed(self, status: bytes, head: list[bytes], data: bytes, peer: Peer) -> bytes:
        rng = self._rng
        if self.way == "slow":
            return await self._slow(status, head, data, peer)
        if self.way == "field":
            field = rng.choice(_FIELDS)
            same = field.partition(b":")[0].lower()
            head = [each for each in head if each.partition(b":")[0].lower() != same or rng.random() < 0.3]
            head.append(field)
            if same == b"location":
                status = b"307 x"
            if same == b"content-encoding" and rng.random() < 0.5:
                data = zlib.compress(b" " * 2**24 + data, 9, 31 if b"gzip" in field else 15)
        if self.way == "status":
            status = rng.choice(_STATUSES)
        if self.way == "events":
            events = [rng.choice(_EVENTS) for _ in range(rng.randrange(4))]
            events.insert(rng.randrange(len(events) + 1), b"data: " + data + b"\n\n" if rng.random() < 0.6 else b"")
            return _framed(status, [b"Content-Type: text/event-stream"], b"".join(events))
        framed = _framed(status, head, data, rng.random() < 0.3)
        if self.way == "frame":
            at, to = sorted(rng.randrange(len(framed) + 1) for _ in range(2))
            peer.write(
                rng.choice([framed[:at], framed[:at] + framed[to:], framed + framed, b"SSH-2.0\r\n", b"\0" * 99])
            )
            await peer.close()
            return b""
        return framed

    async def _slow(self, status: bytes, head: list[bytes], data: bytes, peer: Peer) -> bytes:
        """Nothing; or an answer that never ends, byte by byte or as fast as it goes."""
        rng = self._rng
        what = rng.choice(("nothing", "head", "body", "events", "chunks", "hints"))
        if what == "events":
            head = [b"Content-Type: text/event-stream"]
        lines = [b"HTTP/1.1 " + status, *head, b"Transfer-Encoding: chunked", b"", b""]
        if what in ("body", "events", "chunks"):
            peer.write(b"\r\n".join(lines))
        piece = {"head": b"HTTP/1.1 200 OK\r\n", "body": chunk(b" "), "events": chunk(b": x\n\n")}.get(what, b"")
        piece = {"chunks": b"1;" + b"x" * 99, "hints": b"HTTP/1.1 103 Early Hints\r\n\r\n"}.get(what, piece)
        while not peer.is_ending and peer.end == "open":
            peer.write(piece)
            piece = b"X: y\r\n" if what == "head" else piece
            await asyncio.sleep(0.01)
        return b""

    # ---- over stdio ----

    async def lines(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer lines with lines, as a script of `asyncio.start_server`."""
        try:
            while line := await reader.readline():
                message = json.loads(line)
                if (data := self.answered(message)) is None:
                    continue
                while self.way == "slow" and message["method"] == self.mutated and self.was_hostile:
                    writer.write(b" ")  # a line that never ends
                    await writer.drain()
                    await asyncio.sleep(0.01)
                writer.write(data.replace(b"\n", b" ") + b"\n")
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()  # also where the test has ended: what is left open fails another test


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each member and each item in JSON, as its parent and its name; those near the root as often as the others."""
    for name, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
        found = list(_places(inner)) if isinstance(inner, dict | list) else []
        yield from [(value, name)] * max(1, len(found) // 4)
        yield from found


def _framed(status: bytes, head: list[bytes], data: bytes, in_chunks: bool = False) -> bytes:
    if in_chunks:
        lines = [b"HTTP/1.1 " + status, *head, b"Transfer-Encoding: chunked", b"", b""]
        return b"\r\n".join(lines) + chunk(data or b" ") + b"0\r\n\r\n"
    return b"\r\n".join([b"HTTP/1.1 " + status, *head, b"Content-Length: %d" % len(data), b"", data])
