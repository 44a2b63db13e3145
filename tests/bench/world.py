"""The upstream of the traffic (traffic.py): it answers each message as a server of the SDKs would.

    a GET                          an event stream that stays open, without an event
    an OPTIONS                     405: the gateway asks so whether a server that was down is there
    a notification                 202, without a body
    an id that is odd              JSON with a `Content-Length`
    an id that is even             an event stream of one event, in chunks, written at once
    `tasks/get`                    a working task, the same at each read
    `tasks/list`                   a page of 500 tasks, others in each request
    `tools/call`                   a text of 10 to 2,000 bytes
    `tools/list`                   ten tools
    `ping`                         an empty result

A request with an `x-request-id` is answered with another one. It parses no JSON, so that a round measures the proxy.
"""

import asyncio
import re
from email.utils import formatdate
from itertools import count
from time import time
from typing import Final

import orjson

from tests.bench import child, traffic

PAGE_TASKS: Final = 500
_HEAD_END: Final = b"\r\n\r\n"
_LENGTH: Final = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)
_METHOD: Final = re.compile(rb'^\{"method":"([a-z/]+)"')
_ID: Final = re.compile(rb'"id":(\d+)\}$')
_TASK_ID: Final = re.compile(rb'"taskId":"([^"]+)"')
_JSON: Final = (
    b"HTTP/1.1 200 OK\r\ndate: %b\r\nserver: uvicorn\r\ncontent-type: application/json\r\n"
    b"mcp-session-id: %b\r\ncontent-length: %d\r\n\r\n%b"
)
_STREAM: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache, no-transform\r\n"
    b"Connection: keep-alive\r\nmcp-session-id: %b\r\nDate: %b\r\nKeep-Alive: timeout=5\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n"
)
_OPENED: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_ACCEPTED: Final = (
    b"HTTP/1.1 202 Accepted\r\ndate: %b\r\nserver: uvicorn\r\ncontent-type: application/json\r\n"
    b"mcp-session-id: %b\r\ncontent-length: 0\r\n\r\n"
)
_NOT_ALLOWED: Final = b"HTTP/1.1 405 Method Not Allowed\r\nAllow: GET, POST, DELETE\r\nContent-Length: 0\r\n\r\n"
_SESSION: Final = re.compile(rb"\r\nmcp-session-id: ([^\r]+)\r\n", re.IGNORECASE)
_TASK: Final = (
    b'{"taskId":"%b","status":"working","ttl":3600000,"createdAt":"2026-11-22T08:00:00.000Z",'
    b'"lastUpdatedAt":"2026-11-22T08:00:05.000Z","pollInterval":1000}'
)
_SCHEMA: Final = {"type": "object", "properties": {"text": {"type": "string", "description": "what to look for"}}}
_TOOLS: Final = orjson.dumps(
    {"tools": [{"name": f"query_{n}", "description": "Looks for a text.", "inputSchema": _SCHEMA} for n in range(10)]}
)


def _result(method: bytes, body: bytes, number: int) -> bytes:
    if method == b"tasks/get":
        return _TASK % _TASK_ID.search(body)[1]  # type: ignore[index]
    if method == b"tasks/list":
        return b'{"tasks":[%b]}' % b",".join(_TASK % (b"%d-%d" % (number, at)) for at in range(PAGE_TASKS))
    if method == b"tools/call" and b'"task":{}' in body:
        return b'{"task":%b}' % (_TASK % _TASK_ID.search(body)[1])  # type: ignore[index]
    if method == b"tools/call":
        return b'{"content":[{"type":"text","text":"%b"}]}' % (b"y" * (10 + number * 7919 % 1991))
    return _TOOLS if method == b"tools/list" else b"{}"


class World(asyncio.Protocol):
    """One connection."""

    transport: asyncio.Transport
    date = b""
    ids = count(1)

    def __init__(self) -> None:
        self._begun = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # uvloop's are no asyncio.Transport

    def data_received(self, data: bytes) -> None:
        data = self._begun + data
        while (end := data.find(_HEAD_END)) >= 0:
            start = end + len(_HEAD_END)
            if data.startswith(b"GET "):
                self.transport.write(_OPENED)
                return
            if data.startswith(b"OPTIONS "):
                self.transport.write(_NOT_ALLOWED)
                data = data[start:]
                continue
            length = int(_LENGTH.search(data, 0, start)[1])  # type: ignore[index]
            if len(data) < start + length:
                break
            session = _SESSION.search(data, 0, start)[1]  # type: ignore[index]
            answer = self._answer(session, data[start : start + length])
            if data.find(traffic.NEW_ID, 0, start) >= 0:  # answered with an id of the server's own
                line, _, rest = answer.partition(b"\r\n")
                answer = b"%b%b%032x\r\n%b" % (line, traffic.NEW_ID, next(World.ids), rest)
            self.transport.write(answer)
            data = data[start + length :]
        self._begun = data

    def _answer(self, session: bytes, body: bytes) -> bytes:
        method = _METHOD.match(body)[1]  # type: ignore[index]
        found = _ID.search(body)
        if found is None:
            return _ACCEPTED % (World.date, session)
        number = int(found[1])
        message = b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (number, _result(method, body, number))
        if number % 2:
            return _JSON % (World.date, session, len(message), message)
        event = b"event: message\ndata: %b\n\n" % message
        return _STREAM % (session, World.date, len(event), event)


async def _keep_time() -> None:
    while True:
        World.date = formatdate(time(), usegmt=True).encode()
        await asyncio.sleep(1.0)


async def main() -> None:
    """Serve until stdin ends."""
    keeping = asyncio.create_task(_keep_time())
    await child.listen(World)
    keeping.cancel()


if __name__ == "__main__":
    child.run(main())
