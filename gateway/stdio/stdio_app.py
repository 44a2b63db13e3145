"""The process of `taskgate stdio`: it serves until the server has ended and the client has its lines (DESIGN 11.4)."""

import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from time import time
from typing import TYPE_CHECKING, Any, Final

from gateway.caller_identity import STDIO
from gateway.config import Address, Config, StdioConfig
from gateway.errors import printable
from gateway.operate import log_format
from gateway.stdio.child import Child, Streams
from gateway.stdio.pipes import Outlet, PipeSource
from gateway.stdio.stdio_proxy import NoCounts, StdioProxy
from gateway.transport.memory_budget import Buffers

if TYPE_CHECKING:
    from gateway.operate.access_log import AccessLog
    from gateway.operate.metrics import Metrics

log = logging.getLogger("taskgate.request")

_SWEEP_S: Final = 1.0
_SILENCE_S: Final = 0.5  # after the server's end: other processes may hold its output open


class StdioApp:
    """The gateway between two pairs of streams, until the server's process ends."""

    def __init__(
        self, streams: Streams, config: StdioConfig, counts: "Metrics | NoCounts", access_log: "AccessLog | NoCounts"
    ) -> None:
        buffers = Buffers(config.limits.held_bytes_max)
        self._drain_timeout_s = config.limits.drain_timeout
        self._failed = access_log.failed
        self._from_client, self._from_server = PipeSource(streams.from_client), PipeSource(streams.from_server)
        # If one side takes no more, the other one's writes fail, as they would without a gateway.
        self._client = Outlet(streams.to_client, buffers, self._from_server.stop)
        server = Outlet(streams.to_server, buffers, self._from_client.stop)
        self._proxy = StdioProxy(config, self._client, server, counts, access_log)
        self.gauges = self._proxy.gauges

    async def run(self, ended: "asyncio.Future[int]") -> int:
        """Serve until the server has ended and the client has all its lines. Returns how the server ended."""
        down = asyncio.create_task(self._proxy.serve_server(self._from_server))
        up = asyncio.create_task(self._proxy.serve_client(self._from_client))
        works: set[asyncio.Future[Any]] = {ended, down, up, asyncio.create_task(self._sweep())}
        while not ended.done():
            done, works = await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
            for work in done:
                work.result()  # raises: a fault in the gateway ends the gateway
        with suppress(TimeoutError):
            async with asyncio.timeout(self._drain_timeout_s):
                await self._rest(down)
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)
        self._failed.flush()
        return ended.result()

    async def _rest(self, down: "asyncio.Task[None]") -> None:
        """Wait until the client has all the server's lines. Stop if others hold its output open, and are silent."""
        pieces = -1
        while not down.done() and (self._client.is_full or pieces != self._from_server.pieces):
            pieces = self._from_server.pieces
            await asyncio.wait({down}, timeout=_SILENCE_S)
        self._from_server.stop()
        await asyncio.wait({down})

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            self._proxy.sessions.expire()
            if self._proxy.sessions.lives is not None:
                self._proxy.sessions.lives.sweep()
            self._failed.sweep()


def run(child: Child, config: StdioConfig, admin: Address | None) -> int:
    """Stand between the client and the server until the server ends. Returns how it ended. Raises StartError."""
    log_format.set_up(config.log)
    gc.set_threshold(300, 1_000_000, 1_000_000)  # as in app.run
    return asyncio.run(_serve(child, config, admin))


async def _serve(child: Child, config: StdioConfig, admin: Address | None) -> int:
    """Serve. What only an operator needs is imported here: that takes longer than all else together."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()

    def told(status: int) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(ended.set_result, status)

    child.on_end(told)
    if admin is None and config.traces is None and not log.isEnabledFor(logging.INFO):
        return await StdioApp(child.streams, config, NoCounts(), NoCounts()).run(ended)
    from gateway.operate.access_log import AccessLog
    from gateway.operate.metrics import Metrics
    from gateway.transport.log_rate_limit import LogLimit

    async with AsyncExitStack() as stack:
        metrics, failed = Metrics(), LogLimit(loop.time)
        make_log: Callable[..., AccessLog] = AccessLog
        if config.traces is not None:
            from gateway.operate.traces import Tracing

            tracing = Tracing(config.traces.endpoint)
            stack.push_async_callback(tracing.close)
            metrics, make_log = tracing.metrics(), tracing.access_log
        metrics.serves([STDIO.upstream], config.metrics.tasks)
        app = StdioApp(child.streams, config, metrics, make_log(metrics, config.log, failed))
        if admin is not None:
            stack.push_async_callback(await _shown(app, child.name, metrics, admin))
        return await app.run(ended)


async def _shown(app: StdioApp, name: str, metrics: "Metrics", address: Address) -> Callable[[], Awaitable[None]]:
    """Show it to operators. Returns what ends that. Raises StartError."""
    from gateway.operate import admin_listener, status_page

    metrics.gauges(app.gauges)
    server = {"name": STDIO.upstream, "url": printable(name), "state": "up", "since": time(), "why": ""}
    config = Config(upstreams=())
    runner = await admin_listener.serve(
        "--admin", address, metrics, lambda: config, lambda: status_page.Facts(app.gauges(), [server])
    )
    return runner.cleanup
