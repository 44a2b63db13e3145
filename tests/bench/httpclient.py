"""Clients over one kept-alive connection, as lean as can be: one that counts what comes, and one with a session."""

import asyncio
from typing import Any, Final, Self
from urllib.parse import urlsplit

import httptools
import orjson

from tests.bench.attacks import PIECE_BYTES, pieces
from tests.bench.processes import BenchFailed
from tests.parsed import Parsed

PROTOCOL_VERSION: Final = "2025-11-25"
ANSWER_SECONDS: Final = 300.0


class Connection(Parsed):
    """It counts what comes, and whole responses."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = asyncio.Event()
        self.sent_bytes = self.received_bytes = self.body_bytes = self.answered = self.refused = 0
        self.is_cut = False

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_cut = True
        self.writable.set()
        self.changed.set()

    def data_received(self, data: bytes) -> None:
        self.received_bytes += len(data)
        try:
            super().data_received(data)
        except httptools.HttpParserError:
            self.is_cut = True
        self.changed.set()

    def on_body(self, data: bytes) -> None:
        self.body_bytes += len(data)

    def on_message_complete(self) -> None:
        status = self.parser.get_status_code()
        self.answered += status >= 200
        self.refused += status >= 400

    async def send(self, data: bytes, piece_bytes: int = PIECE_BYTES) -> None:
        """Send bytes, no faster than they are taken; a connection that is cut takes none."""
        for piece in pieces(data, piece_bytes):
            await self.writable.wait()
            if self.is_cut:
                return
            self.transport.write(piece)
            self.sent_bytes += len(piece)
            await asyncio.sleep(0)  # else the loop writes small pieces as one

    async def answers(self, count: int) -> None:
        """Return when that many responses have come, or the connection has ended."""
        while self.answered < count and not self.is_cut:
            self.changed.clear()
            await self.changed.wait()

    async def begins(self) -> None:
        """Return when a part of a body has come, or the connection has ended."""
        while not self.body_bytes and not self.is_cut:
            self.changed.clear()
            await self.changed.wait()


class Client(Connection):
    """One session. Make it with `connect`. An answer without a result is an error."""

    def __init__(self, url: str) -> None:
        super().__init__()
        parts = urlsplit(url)
        self._path = parts.path
        self._fields = {
            "Host": parts.netloc,
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "Mcp-Protocol-Version": PROTOCOL_VERSION,
        }
        self._body = bytearray()

    @classmethod
    async def connect(cls, url: str) -> Self:
        parts, loop = urlsplit(url), asyncio.get_running_loop()
        _, client = await loop.create_connection(lambda: cls(url), parts.hostname or "", parts.port or 80)
        return client

    async def another(self, url: str) -> Self:
        """Another connection of the same session, perhaps by another way to the same server."""
        other = await self.connect(url)
        other._fields |= {name: value for name, value in self._fields.items() if name != "Host"}
        return other

    async def initialize(self) -> None:
        """Open a session."""
        client = {"name": "bench", "version": "1"}
        await self.ask("initialize", {"protocolVersion": PROTOCOL_VERSION, "capabilities": {}, "clientInfo": client})
        await self.post(orjson.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}))

    async def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """The result of a request, which may come as JSON or as an event stream."""
        body = await self.post(request_body(method, params))
        lines = [line.removeprefix(b"data:") for line in body.splitlines() if line.startswith(b"data:")]
        message = orjson.loads(lines[-1] if lines else body)
        if "result" not in message:
            raise BenchFailed(f"{method} was answered {message}")
        result: dict[str, Any] = message["result"]
        return result

    async def pages(self) -> list[dict[str, Any]]:
        """All tasks that a server lists."""
        page = await self.ask("tasks/list", {})
        found: list[dict[str, Any]] = page["tasks"]
        while "nextCursor" in page:
            page = await self.ask("tasks/list", {"cursor": page["nextCursor"]})
            found += page["tasks"]
        return found

    async def post(self, body: bytes) -> bytes:
        self._body.clear()
        wanted = self.answered + 1
        self.transport.write(self.request(body))
        await asyncio.wait_for(self.answers(wanted), ANSWER_SECONDS)
        if self.answered < wanted:
            raise BenchFailed("the connection was closed before the answer")
        if self.parser.get_status_code() not in (200, 202):
            raise BenchFailed(f"answered {self.parser.get_status_code()}: {self._body.decode(errors='replace')}")
        return bytes(self._body)

    def request(self, body: bytes) -> bytes:
        fields = "".join(f"{name}: {value}\r\n" for name, value in self._fields.items())
        return f"POST {self._path} HTTP/1.1\r\n{fields}Content-Length: {len(body)}\r\n\r\n".encode() + body

    def close(self) -> None:
        self.transport.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"mcp-session-id":
            self._fields["Mcp-Session-Id"] = value.decode()

    def on_body(self, data: bytes) -> None:
        self._body += data


def request_body(method: str, params: dict[str, Any]) -> bytes:
    return orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
