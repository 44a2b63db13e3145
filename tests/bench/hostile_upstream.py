"""The upstream of section `hostile`: it answers pings, is hostile where an attack says so, and stops half-way.

POST /mcp, GET /mcp   a JSON-RPC answer of 300 bytes
/attack?N             what the attack of that place answers (attacks.py); a `tasks/list` is answered with one page
/plain?N              N bytes with a Content-Length
/unread?N             the same
/event?N              an event stream: N bytes of an event, then nothing, until the client leaves
/result?N             N bytes of a JSON message that has one more, then nothing, until the client leaves
/list?KIND            pages of tasks (`LISTS`), each of which names the next as its cursor
/quiet                nothing
"""

import asyncio
import functools
from typing import Any, Final

import orjson

from tests.bench import attacks, child, upstream
from tests.bench.attacks import PIECE_BYTES, STREAM, in_chunks, pieces, response

_JSON: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
_TASK: Final = {"taskId": "1", "status": "working", "createdAt": "2026-01-01T00:00:00Z", "ttl": None}
_PAGE: Final = {"tasks": [{**_TASK, "lastUpdatedAt": "2026-01-01T00:00:00Z"}]}
# By kind: how many tasks, tasks a page, bytes of each one's message, and whether each has a status of its own.
LISTS: Final = {
    "small": (20_000, 1000, 10, False),
    "statuses": (20_000, 1000, 10, True),
    "large": (100, 1, 4_000_000, False),
}


@functools.cache
def _plain(size_bytes: int) -> bytes:
    return response(b"x" * size_bytes)


@functools.cache
def _event(size_bytes: int) -> bytes:
    return STREAM + in_chunks(b"data: ".ljust(size_bytes, b"x"))


@functools.cache
def _message(size_bytes: int) -> bytes:
    return _JSON % (size_bytes + 1) + b'{"jsonrpc":"2.0","id":1,"result":{"x":"'.ljust(size_bytes, b"x")


def _listed(kind: str, asked: dict[str, Any]) -> bytes:
    count, page, message_bytes, have_own_status = LISTS[kind]
    first = int(asked.get("params", {}).get("cursor", 0))
    tasks = []
    for number in range(first, first + page):
        status = f"s-{number}" if have_own_status else "working"
        one = {**_PAGE["tasks"][0], "taskId": str(number), "status": status, "statusMessage": "m" * message_bytes}
        tasks.append(one)
    rest = {"nextCursor": str(first + page)} if first + page < count else {}
    return orjson.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": {"tasks": tasks, **rest}})


class Upstream(upstream.Upstream):
    """One connection."""

    def __init__(self) -> None:
        super().__init__()
        self._body = bytearray()

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        path, _, number = self._url.partition(b"?")
        body = bytes(self._body)
        self._url = b""
        self._body.clear()
        if path == b"/attack":
            self._attacked(int(number), body)
        elif path in (b"/plain", b"/unread"):
            self._say(_plain(int(number)))
        elif path == b"/event":
            self._say(_event(int(number)))
        elif path == b"/result":
            self._say(_message(int(number)))
        elif path == b"/list":
            self._say(response(_listed(number.decode(), orjson.loads(body)), b"application/json"))
        elif path != b"/quiet":
            self.transport.write(response(upstream.BODY, b"application/json"))

    def _attacked(self, number: int, body: bytes) -> None:
        if b'"tasks/list"' in body:
            answer = {"jsonrpc": "2.0", "id": orjson.loads(body)["id"], "result": _PAGE}
            self.transport.write(response(orjson.dumps(answer), b"application/json"))
            return
        self._say(attacks.answered(number), attacks.ATTACKS[number].piece_bytes)

    def _say(self, data: bytes, piece_bytes: int = PIECE_BYTES) -> None:
        self._sending = asyncio.create_task(self._pieces(data, piece_bytes))

    async def _pieces(self, data: bytes, piece_bytes: int) -> None:
        for piece in pieces(data, piece_bytes):
            await self.writable.wait()
            self.transport.write(piece)
            await asyncio.sleep(0)  # else the loop writes small pieces as one


async def answer(command: dict[str, Any]) -> dict[str, Any]:
    attacks.answered(command["number"])
    return {}


if __name__ == "__main__":
    child.run(child.listen(Upstream, answer))
