"""A process of the bench's own, seen from inside: it says hello, answers a command a line, and ends with its stdin."""

import asyncio
import gc
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeAlias

import orjson
import uvloop

COMMAND_BYTES_MAX: Final = 64 << 20

Answer: TypeAlias = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


async def serve(hello: dict[str, Any], answer: Answer) -> None:
    """Say hello, and answer commands until stdin ends."""
    reader = asyncio.StreamReader(limit=COMMAND_BYTES_MAX)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    _say(hello)
    while line := await reader.readline():
        _say(await answer(orjson.loads(line)))


async def listen(protocol: Callable[[], asyncio.Protocol], answer: Answer | None = None) -> None:
    """Serve a protocol on a port of its own until stdin ends, without collections of garbage."""
    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0, backlog=1024)
    without_gc()
    await serve({"url": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"}, answer or idle)


async def idle(_: dict[str, Any]) -> dict[str, Any]:
    """The answer of a process that only serves."""
    return {}


def run(main: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)


def without_gc() -> None:
    """For load and upstream: they are to cost the same for every request."""
    gc.freeze()
    gc.disable()


def _say(value: dict[str, Any]) -> None:
    sys.stdout.buffer.write(orjson.dumps(value) + b"\n")
    sys.stdout.buffer.flush()
