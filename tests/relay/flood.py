"""A flood of refused callers: a server that knows one token, and clients that guess.

The server must cost little: the gateway is to be the slow part.

In: whether the server lists its tasks, and the number of lists. Out: what a query of the known caller costs.
Always: raw bytes, keep-alive on both sides.
"""

import asyncio
import json
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from tests.relay.messages import answer, call, filtered, post
from tests.upstream import Cheap, length_of
from tests.world.servers import Kind, Server

TOKEN: Final = b"Authorization: Bearer victim"
SESSION: Final = b"Mcp-Session-Id: 0f8c"
REFUSED: Final = answer({"error": "invalid_token"}, b"WWW-Authenticate: Bearer", status=b"401 Unauthorized")
CONNECTIONS: Final = 16
TASKS: Final = 20


class Guarded:
    """A server of 20 tasks, all completed, for one token; everybody else gets 401.

    `lists` is whether its `tasks/list` shows them, two at a time in order of creation; FastMCP's is always empty.
    """

    def __init__(self, lists: bool = True) -> None:
        self.lists = lists
        self.asked: Counter[str] = Counter()  # by the one whom it knows, by method
        self.refused = 0
        self._server = Server(Kind(page_size=2, lists=lambda _: lists))
        for number in range(TASKS):
            self._server.add("completed", f"t-{number}")

    @asynccontextmanager
    async def on(self, sock: socket.socket) -> AsyncIterator[None]:
        """Serve on that socket."""
        server = await asyncio.get_running_loop().create_server(lambda: Cheap(self.answer), sock=sock)
        try:
            yield
        finally:
            server.close()

    def answer(self, head: bytes, body: bytes) -> bytes:
        """The response to a request."""
        if TOKEN not in head:
            self.refused += 1
            return REFUSED
        message = json.loads(body)
        self.asked[message["method"]] += 1
        return answer(self._server.said(message))


@dataclass
class Caller:
    """The known caller, on a connection to the gateway."""

    upstream: Guarded
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def learn(self) -> None:
        """Have the gateway hear of every task, as it passes."""
        for number in range(TASKS):
            await self._ask(call("tasks/get", taskId=f"t-{number}"))

    async def cost(self) -> int:
        """What a query for all tasks costs the upstream, in requests. Raises AssertionError if one is missing."""
        before = self.upstream.asked.total()
        answered = await self._ask(filtered(status=["completed"]))
        assert answered["result"]["_meta"]["taskgate/total"] == TASKS, answered
        return self.upstream.asked.total() - before

    async def _ask(self, message: object) -> dict[str, dict[str, dict[str, object]]]:
        self.writer.write(post(message, TOKEN, SESSION))
        told: dict[str, dict[str, dict[str, object]]] = json.loads(await _response(self.reader, b" 200 "))
        return told


@asynccontextmanager
async def caller(port: int, upstream: Guarded) -> AsyncIterator[Caller]:
    """The known caller, at the gateway on that port."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    yield Caller(upstream, reader, writer)
    writer.close()
    await writer.wait_closed()


async def flood(port: int, lists: int, first: int = 0) -> None:
    """Ask for that many filtered lists, each with an unknown token and an unknown session of its own."""
    numbers = iter(range(first, first + lists))

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number in numbers:
            guess = b"Authorization: Bearer guess-%d" % number, b"Mcp-Session-Id: guess-%d" % number
            writer.write(post(filtered(number), *guess))
            await _response(reader, b" 401 ")
        writer.close()
        await writer.wait_closed()

    await asyncio.gather(*(client() for _ in range(CONNECTIONS)))


async def _response(reader: asyncio.StreamReader, status: bytes) -> bytes:
    """The body of a response of that status."""
    head = await reader.readuntil(b"\r\n\r\n")
    body = await reader.readexactly(length_of(head))
    assert status in head.partition(b"\r\n")[0], (head, body)
    return body
