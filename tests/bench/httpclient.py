"""A client of one session over one kept-alive connection, as lean as can be; an answer without a result is an error."""

import asyncio
from typing import Any, Final, Self
from urllib.parse import urlsplit

import orjson

from tests.bench.processes import BenchFailed
from tests.parsed import Parsed

PROTOCOL_VERSION: Final = "2025-11-25"
ANSWER_SECONDS: Final = 300.0


class Client(Parsed):
    """One session. Make it with `connect`."""

    def __init__(self, url: str) -> None:
        super().__init__()
        parts = urlsplit(url)
        self._target = parts.path + (f"?{parts.query}" if parts.query else "")
        self._fields = {
            "Host": parts.netloc,
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "Mcp-Protocol-Version": PROTOCOL_VERSION,
        }
        self.body_bytes = 0
        self._answer: asyncio.Future[bytes] | None = None
        self._body = bytearray()

    @classmethod
    async def connect(cls, url: str) -> Self:
        parts = urlsplit(url)
        _, client = await asyncio.get_running_loop().create_connection(
            lambda: cls(url), parts.hostname or "", parts.port or 80
        )
        return client

    async def another(self, url: str) -> Self:
        """Another connection of the same session, perhaps by another way to the same server."""
        other = await self.connect(url)
        other._fields |= {name: value for name, value in self._fields.items() if name != "Host"}
        return other

    @property
    def session(self) -> str:
        return self._fields["Mcp-Session-Id"]

    async def initialize(self) -> None:
        """Open a session."""
        client = {"name": "bench", "version": "1"}
        await self.ask("initialize", {"protocolVersion": PROTOCOL_VERSION, "capabilities": {}, "clientInfo": client})
        await self.post(orjson.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}))

    async def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """The result of a request."""
        message = orjson.loads(await self.post(request_body(method, params)))
        if "result" not in message:
            raise BenchFailed(f"{method} was answered {message}")
        result: dict[str, Any] = message["result"]
        return result

    async def post(self, body: bytes) -> bytes:
        status, answer = await self.exchange(body)
        if status not in (200, 202):
            raise BenchFailed(f"answered {status}: {answer.decode(errors='replace')}")
        self.body_bytes += len(answer)
        return answer

    async def exchange(self, body: bytes, **more: str) -> tuple[int, bytes]:
        """Status and body of the answer to a POST with some more header fields, `_` in their names for `-`."""
        self._answer = asyncio.get_running_loop().create_future()
        self.parser = self.reads(self)
        self._body.clear()
        self.transport.write(self.request(body, **more))
        answer = await asyncio.wait_for(self._answer, ANSWER_SECONDS)
        return self.parser.get_status_code(), answer

    def request(self, body: bytes, **more: str) -> bytes:
        given = self._fields | {name.replace("_", "-"): value for name, value in more.items()}
        fields = "".join(f"{name}: {value}\r\n" for name, value in given.items())
        head = f"POST {self._target} HTTP/1.1\r\n{fields}Content-Length: {len(body)}\r\n\r\n"
        return head.encode() + body

    def close(self) -> None:
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(BenchFailed("the connection was closed before the answer"))

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"mcp-session-id":
            self._fields["Mcp-Session-Id"] = value.decode()

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        assert self._answer is not None
        if not self._answer.done():
            self._answer.set_result(bytes(self._body))


def request_body(method: str, params: dict[str, Any]) -> bytes:
    return orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
