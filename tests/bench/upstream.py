"""The upstream of pings, streams and hostile traffic: the least that HTTP/1.1 asks of a server, in prepared bytes.

    POST /mcp, PUT /sink     a JSON-RPC answer of 300 bytes, always the same one; the body may be of any size
    GET  /mcp                an event stream: one event, then nothing, until the client leaves
    GET  /bytes?N            N bytes with a Content-Length
    GET  /events?N           N bytes of event stream or a little more, in events of 10,000 bytes
         /attack?N           what the attack of that place answers (attacks.py); a `tasks/list` gets one page
         /event?N            an event stream: N bytes of an event, then nothing, until the client leaves
         /result?N           N bytes of a JSON message that has one more, then nothing, until the client leaves
         /quiet              nothing

`make` prepares what an attack answers, before anything is measured.
"""

import asyncio
import functools
from typing import Any, Final

import httptools
import orjson

from tests.bench import attacks, child
from tests.bench.attacks import PIECE_BYTES, in_chunks, pieces, response
from tests.parsed import Parsed
from tests.relay.wire import LAST_CHUNK, chunk

BODY_BYTES: Final = 300
EVENT_BYTES: Final = 10_000
LIST_BYTES_MAX: Final = 4096  # of a request of the gateway's own

_ANSWER: Final = orjson.dumps({"jsonrpc": "2.0", "id": 1, "result": {"_meta": {"padding": ""}}})
BODY: Final = _ANSWER.replace(b'""', b'"%b"' % (b"x" * (BODY_BYTES - len(_ANSWER))))

_OK: Final = (
    b"HTTP/1.1 200 OK\r\nDate: Tue, 25 Nov 2025 00:00:00 GMT\r\nMcp-Session-Id: 0123456789abcdef0123456789abcdef\r\n"
)
_JSON: Final = _OK + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
_WHOLE: Final = _JSON % (len(BODY), BODY)
_STREAM: Final = (
    _OK + b"Content-Type: text/event-stream\r\nCache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n"
)
_TASK: Final = {"taskId": "1", "status": "working", "createdAt": "2026-01-01T00:00:00Z", "ttl": None}
_PAGE: Final = {"tasks": [{**_TASK, "lastUpdatedAt": "2026-01-01T00:00:00Z"}]}


def event(size_bytes: int) -> bytes:
    frame = b'event: message\ndata: {"jsonrpc":"2.0","method":"notifications/message","params":{"data":"%b"}}\n\n'
    return frame % (b"x" * (size_bytes - len(frame % b"")))


@functools.cache
def _prepared(path: bytes, size: int) -> bytes:
    match path:
        case b"/bytes":
            return response(b"x" * size)
        case b"/events":
            return _STREAM + chunk(event(EVENT_BYTES)) * -(-size // EVENT_BYTES) + LAST_CHUNK
        case b"/event":
            return _STREAM + in_chunks(b"data: ".ljust(size, b"x"))
        case b"/result":
            return _JSON % (size + 1, b'{"jsonrpc":"2.0","id":1,"result":{"x":"'.ljust(size, b"x"))
        case b"/quiet":
            return b""
    return _STREAM + chunk(event(BODY_BYTES))


class Upstream(Parsed):
    """One connection."""

    reads = httptools.HttpRequestParser

    def __init__(self) -> None:
        super().__init__()
        self._url, self._body = b"", b""
        self._sending: asyncio.Task[None] | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        self.writable.set()
        if self._sending is not None:
            self._sending.cancel()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, data: bytes) -> None:
        if len(self._body) < LIST_BYTES_MAX:
            self._body += data

    def on_message_complete(self) -> None:
        (path, _, given), body = self._url.partition(b"?"), self._body
        self._url, self._body = b"", b""
        if path == b"/attack" and b'"tasks/list"' in body:
            listed = {"jsonrpc": "2.0", "id": orjson.loads(body)["id"], "result": _PAGE}
            self.transport.write(response(orjson.dumps(listed), b"application/json"))
        elif path == b"/attack":
            number = int(given)
            self._sending = asyncio.create_task(
                self._pump(attacks.answered(number), attacks.ATTACKS[number].piece_bytes)
            )
        elif path in (b"/mcp", b"/sink") and self.parser.get_method() != b"GET":
            self.transport.write(_WHOLE)
        else:
            self._sending = asyncio.create_task(self._pump(_prepared(path, int(given or 0))))

    async def _pump(self, data: bytes, piece_bytes: int = PIECE_BYTES) -> None:
        for piece in pieces(data, piece_bytes):
            await self.writable.wait()
            self.transport.write(piece)
            await asyncio.sleep(0)  # else the loop writes small pieces as one


async def answer(command: dict[str, Any]) -> dict[str, Any]:
    attacks.answered(command["number"])
    return {}


if __name__ == "__main__":
    child.run(child.listen(Upstream, answer))
