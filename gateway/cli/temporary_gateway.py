"""A server that a command starts, or a gateway in front of any server, on Unix sockets that only this user can open."""

import asyncio
import os
import shlex
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from tempfile import TemporaryDirectory
from typing import Final

from aiohttp import web
from msgspec.structs import replace

from gateway import config
from gateway.app import App
from gateway.cli.mcp_client import ANSWER_BYTES_MAX, Client, NotAnswered, Target
from gateway.mcp import jsonrpc
from gateway.stdio.child_process import NotStarted

STOP_S: Final = 5.0


@asynccontextmanager
async def behind_gateway(client: Client, index: config.IndexLimits) -> AsyncIterator[tuple[Client, App]]:
    """The session of a client through a gateway, which works in this process. Raises ConfigError, StartError."""
    target = client.target
    with TemporaryDirectory(prefix="taskgate-") as folder:
        settings = config.for_upstream(target.url, f"unix:{folder}/gateway", None)
        upstream = replace(settings.upstreams[0], socket=target.socket)
        app = App(replace(settings, admin=None, index=index, upstreams=(upstream,)))
        try:
            await app.start()
            front = target._replace(socket=settings.listen.path)
            async with Client(front, client.session_id, client.revision) as through:
                yield through, app
        finally:
            await app.stop()


class _Bridge:
    """Requests over HTTP, as lines to a process and back: one session. An unreadable line answers whoever waits."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._process, self._stdin, self._stdout = process, process.stdin, process.stdout
        self._waiting: dict[bytes, asyncio.Future[bytes]] = {}  # by id: no two requests of this process share one
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        with suppress(ValueError):  # a line larger than the limit
            while line := await self._stdout.readline():
                message = jsonrpc.parse(line)
                ids = [bytes(message.id)] if message is not None and message.is_response else []
                for one in ids if message is not None or b'"jsonrpc"' not in line else list(self._waiting):
                    if waiting := self._waiting.pop(one, None):
                        waiting.set_result(line)

    async def post(self, request: web.Request) -> web.Response:
        body = await request.read()  # one line: the client and the gateway write no other
        message = jsonrpc.parse(body)
        if message is None or not message.is_request:
            await self._write(body)
            return web.Response(status=202)
        answered = self._waiting[bytes(message.id)] = asyncio.get_running_loop().create_future()
        try:
            await self._write(body)
            await asyncio.wait({answered, self._reading}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._waiting.pop(bytes(message.id), None)
        if not answered.done():
            return web.Response(status=502, text="the command has ended, or writes no MCP")
        return web.Response(body=answered.result(), content_type="application/json")

    async def _write(self, line: bytes) -> None:
        with suppress(ConnectionError):
            self._stdin.write(line + b"\n")
            await self._stdin.drain()

    async def end(self) -> None:
        """End the process, which ends with its input; kill it, and what it started, where that takes long."""
        self._reading.cancel()
        await asyncio.wait({self._reading})
        self._stdin.close()
        try:
            await asyncio.wait_for(self._ended(), STOP_S)
        except TimeoutError:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            with suppress(TimeoutError):  # what has left the group may hold the pipe
                await asyncio.wait_for(self._ended(), STOP_S)

    async def _ended(self) -> None:
        while await self._stdout.read(2**18):  # behind a pipe that is full asyncio sees no end
            pass
        await self._process.wait()


@asynccontextmanager
async def started(command: Sequence[str]) -> AsyncIterator[Target]:
    """A server on standard input and output, its lines reached by HTTP. Raises NotAnswered if it cannot be started."""
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, limit=ANSWER_BYTES_MAX, start_new_session=True
        )
    except OSError as error:
        raise NotAnswered(str(NotStarted(command[0], error))) from None
    bridge = _Bridge(process)
    app = web.Application(client_max_size=ANSWER_BYTES_MAX)
    app.router.add_post("/mcp", bridge.post)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0)
    try:
        with TemporaryDirectory(prefix="taskgate-") as folder:
            await runner.setup()
            await web.UnixSite(runner, f"{folder}/server").start()
            yield Target("http://localhost/mcp", socket=f"{folder}/server", command=shlex.join(command))
    finally:
        await runner.cleanup()
        await bridge.end()
