"""A raw client and a scripted server with the gateway, or nothing, between them: the twin of tests/relay/harness."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from gateway.config import StdioConfig
from gateway.stdio.child_process import Streams
from gateway.stdio.stdio_proxy import NoCounts, StdioApp
from tests.own_ids import is_own
from tests.peer import holds_in_time
from tests.relay import messages

Json: TypeAlias = dict[str, Any]

WAIT_S = 20.0  # for what must happen: long, because a machine may be busy
PIECE_BYTES: Final = 1 << 16


def line(message: Json | list[Json], end: bytes = b"\n") -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + end


def call(message_id: object, method: str, **params: Any) -> bytes:
    return line({"jsonrpc": "2.0", "id": message_id, "method": method, "params": params})


def notification(method: str, **params: Any) -> bytes:
    return line({"jsonrpc": "2.0", "method": method, "params": params})


def result(message_id: object, value: Json) -> bytes:
    """A response as a line, its id first as the Python SDK has it."""
    return line({"jsonrpc": "2.0", "id": message_id, "result": value})


def task(task_id: str, status: str = "working", second: int = 0) -> Json:
    return messages.task(task_id, status, f"2026-11-20T00:00:{second:02}Z")


INITIALIZE: Final = call(0, "initialize", protocolVersion="2025-11-25", capabilities={})
QUERY_ALL: Final = call("q", "tasks/list", order="asc")


def initialized(message_id: object = 0) -> bytes:
    return result(message_id, {"protocolVersion": "2025-11-25", "capabilities": {"tasks": messages.TASKS_CAPABILITY}})


class Side:
    def __init__(self, reads: int, writes: int) -> None:
        self._reads, self._writes = reads, writes
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self.received = bytearray()
        self.ended = False  # the other side writes no more
        os.set_blocking(reads, False)
        os.set_blocking(writes, False)
        self.resume()

    def resume(self) -> None:
        if not self.ended:
            self._loop.add_reader(self._reads, self._receive)

    def pause(self) -> None:
        self._loop.remove_reader(self._reads)

    def _receive(self) -> None:
        with suppress(BlockingIOError):
            piece = os.read(self._reads, PIECE_BYTES)
            self.received += piece
            if not piece:
                self.ended = True
                self.pause()
            self._changed.set()

    async def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            rest = memoryview(piece)
            async with asyncio.timeout(WAIT_S):
                while rest:
                    try:
                        rest = rest[os.write(self._writes, rest) :]
                    except BlockingIOError:
                        await asyncio.sleep(0.001)
            await asyncio.sleep(0)

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Return once `condition` holds, which is looked at whenever something arrives."""
        if not await holds_in_time(condition, self._changed, WAIT_S):
            raise AssertionError(f"{what}: not within {WAIT_S:g} s; received {bytes(self.received[-500:])!r}")

    async def hears(self, data: bytes, times: int = 1) -> None:
        """Return once `data` has arrived, so many times."""
        await self.until(lambda: self.received.count(data) >= times, f"{data[:200]!r}")

    async def ends(self) -> None:
        await self.until(lambda: self.ended, "the end")

    def lines(self) -> list[bytes]:
        """The lines that have arrived, the last perhaps without an end."""
        return bytes(self.received).splitlines(keepends=True)

    def messages(self) -> list[Any]:
        """What the whole lines that are JSON say."""
        found = []
        for each in self.lines():
            with suppress(ValueError):
                found.append(json.loads(each))
        return found

    async def own(self, number: int = 1) -> Json:
        """The request of the gateway's own of that number, at the server."""

        def all_own() -> list[Json]:
            return [m for m in self.messages() if isinstance(m, dict) and is_own(m.get("id"))]

        await self.until(lambda: len(all_own()) >= number, f"request {number} of the gateway's own")
        return all_own()[number - 1]

    def finish(self) -> None:
        if self._writes >= 0:
            os.close(self._writes)
            self._writes = -1

    def leave(self) -> None:
        if self._reads >= 0:
            self.pause()
            os.close(self._reads)
            self._reads = -1


@dataclass
class Stage:
    """Both sides. `exits` has the gateway told that the server's process has ended."""

    client: Side
    server: Side
    exits: "asyncio.Future[int]"
    gateway: StdioApp | None = None

    def gauge(self, name: str) -> object:
        assert self.gateway is not None
        return self.gateway.gauges()[name][1]

    async def initialize(self) -> None:
        """Say hello."""
        await self.client.send(INITIALIZE)
        await self.server.hears(b'"initialize"')
        await self.server.send(initialized())
        await self.client.hears(b'"filter"')

    async def answers(self, value: Json, number: int = 1) -> None:
        await self.server.send(result((await self.server.own(number))["id"], value))

    async def lists(self, *tasks: Json, number: int = 1) -> None:
        """The same, with a page of tasks."""
        await self.answers({"tasks": list(tasks)}, number)

    async def answered(self, *tasks: Json) -> None:
        await self.client.send(QUERY_ALL)
        await self.lists(*tasks)
        await self.client.hears(b'"id":"q"')

    def exit(self, status: int = 0) -> None:
        self.server.finish()
        self.server.leave()
        if not self.exits.done():
            self.exits.set_result(status)


@asynccontextmanager
async def through(config: StdioConfig | None = None) -> AsyncIterator[Stage]:
    """A stage with the gateway in the middle. It must end when the server does."""
    (from_client, client_writes), (client_reads, to_client) = os.pipe(), os.pipe()
    (from_server, server_writes), (server_reads, to_server) = os.pipe(), os.pipe()
    loop = asyncio.get_running_loop()
    wrapped = StdioApp(Streams(from_client, to_client, from_server, to_server), config or StdioConfig(), NoCounts())
    stage = Stage(Side(client_reads, client_writes), Side(server_reads, server_writes), loop.create_future(), wrapped)
    running = loop.create_task(wrapped.run(stage.exits))
    try:
        yield stage
    finally:
        stage.client.finish()
        stage.exit()
        async with asyncio.timeout(WAIT_S):
            await running
        stage.client.leave()


@asynccontextmanager
async def directly() -> AsyncIterator[Stage]:
    """A stage with nothing in the middle."""
    (server_reads, client_writes), (client_reads, server_writes) = os.pipe(), os.pipe()
    loop = asyncio.get_running_loop()
    stage = Stage(Side(client_reads, client_writes), Side(server_reads, server_writes), loop.create_future())
    try:
        yield stage
    finally:
        for side in (stage.client, stage.server):
            side.finish()
            side.leave()
