"""The upstream of relay and streams: the least that HTTP/1.1 asks of a server, in a process of its own.

    POST /mcp                a JSON-RPC answer of 300 bytes, always the same one
    POST /sink               takes a body of any size, and answers like /mcp when it has come whole
    GET  /mcp                an event stream: one event, then nothing, until the client leaves
    GET  /bytes?N            N bytes with a Content-Length
    GET  /events?N           N bytes of event stream or a little more, in events of 10,000 bytes
    GET  /ticks?S,N,P,O      stream S: N events, one every P ms, the first after O ms; each says when it was sent

It answers from prepared bytes, so that a round measures the proxy.
"""

import asyncio
import itertools
from collections.abc import Iterator
from time import monotonic_ns  # one clock for all processes
from typing import Final

import orjson

from tests.bench import child
from tests.parsed import Serving

BODY_BYTES: Final = 300
PIECE_BYTES: Final = 64 * 1024
EVENT_BYTES: Final = 10_000

_ANSWER: Final = orjson.dumps({"jsonrpc": "2.0", "id": 1, "result": {"_meta": {"padding": ""}}})
BODY: Final = _ANSWER.replace(b'""', b'"%b"' % (b"x" * (BODY_BYTES - len(_ANSWER))))

_COMMON: Final = b"Date: Tue, 25 Nov 2025 00:00:00 GMT\r\nMcp-Session-Id: 0123456789abcdef0123456789abcdef\r\n"
_WHOLE: Final = b"HTTP/1.1 200 OK\r\n%bContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
    _COMMON,
    len(BODY),
    BODY,
)
_STREAM: Final = (
    b"HTTP/1.1 200 OK\r\n%bContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n" % _COMMON
)
_TICK: Final = (
    b'event: message\ndata: {"jsonrpc":"2.0","method":"notifications/progress","params":'
    b'{"progressToken":%d,"progress":%d,"sentNs":%d}}\n\n'
)
_LAST_CHUNK: Final = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(size_bytes: int) -> bytes:
    frame = b'event: message\ndata: {"jsonrpc":"2.0","method":"notifications/message","params":{"data":"%b"}}\n\n'
    return frame % (b"x" * (size_bytes - len(frame % b"")))


class Upstream(Serving):
    """One connection."""

    def __init__(self) -> None:
        super().__init__()
        self._url = b""
        self._sending: asyncio.Task[None] | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._sending is not None:
            self._sending.cancel()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_message_complete(self) -> None:
        url, self._url = self._url, b""
        if self.parser.get_method() == b"POST":
            self.transport.write(_WHOLE)
            return
        path, _, size = url.partition(b"?")
        if path == b"/bytes":
            head = b"HTTP/1.1 200 OK\r\n%bContent-Type: application/octet-stream\r\nContent-Length: %b\r\n\r\n"
            self._send(head % (_COMMON, size), _cut(b"x" * PIECE_BYTES, int(size)))
        elif path == b"/ticks":
            self._sending = asyncio.create_task(self._tick(*map(int, size.split(b","))))
        elif path == b"/events":
            events = itertools.repeat(chunk(event(EVENT_BYTES)), -(-int(size) // EVENT_BYTES))
            self._send(_STREAM, itertools.chain(events, [_LAST_CHUNK]))
        else:
            self.transport.write(_STREAM + chunk(event(BODY_BYTES)))

    def _send(self, head: bytes, pieces: Iterator[bytes]) -> None:
        self._sending = asyncio.create_task(self._pump(head, pieces))

    async def _pump(self, head: bytes, pieces: Iterator[bytes]) -> None:
        self.transport.write(head)
        for piece in pieces:
            await self.writable.wait()
            self.transport.write(piece)

    async def _tick(self, stream: int, events: int, period_ms: int, offset_ms: int) -> None:
        """Write an event at each of its times. A late event makes no other late."""
        loop = asyncio.get_running_loop()
        began_at = loop.time() + offset_ms / 1000
        self.transport.write(_STREAM)
        for number in range(events):
            await asyncio.sleep(began_at + number * period_ms / 1000 - loop.time())
            self.transport.write(chunk(_TICK % (stream, number, monotonic_ns())))
        self.transport.write(_LAST_CHUNK)


def _cut(piece: bytes, size: int) -> Iterator[bytes]:
    for at in range(0, size, len(piece)):
        yield piece[: size - at]


if __name__ == "__main__":
    child.run(child.listen(Upstream))
