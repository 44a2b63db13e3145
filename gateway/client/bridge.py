"""A server that is started by a command; and a gateway in front of any server, in this process.

In: a command, or a client. Out: a `Target`, which HTTP reaches, or a client of the gateway, while a context lasts.
Always: nothing listens but Unix sockets in a folder that only this user can open; a server that was started here ends
with its context.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from tempfile import TemporaryDirectory
from typing import Any, Final

from aiohttp import web
from msgspec.structs import replace

from gateway import config
from gateway.app import App
from gateway.client.link import ANSWER_BYTES_MAX, Client, NotAnswered, Target
from gateway.transport.child import NotStarted

STOP_S: Final = 5.0
_LOCAL: Final = "http://localhost/mcp"


@asynccontextmanager
async def behind_gateway(client: Client, index: config.IndexLimits) -> AsyncIterator[tuple[Client, App]]:
    """The session of a client through a gateway, which works in this process. Raises ConfigError, StartError."""
    target = client.target
    with TemporaryDirectory(prefix="taskgate-") as folder:
        settings = config.for_upstream(target.url, f"unix:{folder}/gateway", None)
        upstream = replace(settings.upstreams[0], tls=config.UpstreamTls(ca=target.ca), socket=target.socket)
        app = App(replace(settings, admin=None, index=index, upstreams=(upstream,)))
        try:
            await app.start()
            front = Target(target.url, target.fields, socket=settings.listen.path)
            async with Client(front, client.session_id, client.revision) as through:
                yield through, app
        finally:
            await app.stop()


class _Bridge:
    """Requests over HTTP, as lines to a process and back: one session. Ids are numbered anew."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._count = 0
        self.reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        """Take the server's lines until it ends."""
        assert self._process.stdout is not None
        with suppress(ValueError):  # a line larger than the limit
            while line := await self._process.stdout.readline():
                with suppress(ValueError):
                    message = json.loads(line)
                    if isinstance(message, dict) and isinstance(number := message.get("id"), int):
                        waiting = None if "method" in message else self._waiting.pop(number, None)
                        if waiting is not None and not waiting.done():
                            waiting.set_result(message)

    async def post(self, request: web.Request) -> web.Response:
        """Answer one request."""
        message = await request.json()
        if "id" not in message:
            await self._write(message)
            return web.Response(status=202)
        if (answer := await self._asked(message)) is None:
            return web.Response(status=502, text="the command has ended, or writes no MCP")
        text = json.dumps({**answer, "id": message["id"]}, separators=(",", ":"), ensure_ascii=False)
        return web.Response(text=text, content_type="application/json")

    async def _asked(self, message: dict[str, Any]) -> dict[str, Any] | None:
        self._count += 1
        number = self._count
        answered = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            await self._write({**message, "id": number})
            await asyncio.wait({answered, self.reading}, return_when=asyncio.FIRST_COMPLETED)
            return answered.result() if answered.done() else None
        finally:
            self._waiting.pop(number, None)

    async def _write(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with suppress(ConnectionError):
            self._process.stdin.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
            await self._process.stdin.drain()


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
            yield Target(_LOCAL, socket=f"{folder}/server")
    finally:
        await runner.cleanup()
        assert process.stdin is not None
        process.stdin.close()  # a server on stdio ends with its input
        try:
            async with asyncio.timeout(STOP_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        bridge.reading.cancel()
