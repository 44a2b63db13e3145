"""The gateway behind aiohttp's low-level server in place of its own listener: what that would cost at least."""

import asyncio
import sys
from typing import Final

from aiohttp import web
from aiohttp.http_writer import StreamWriter

from gateway import config as gateway_config
from gateway.app import App
from gateway.config import Config
from gateway.downstream.exchange import Exchange
from gateway.http import requests
from gateway.http.fields import Headers
from gateway.transport.base_connection import ClientWire
from gateway.transport.memory import Buffers
from tests.bench import child

_STALL_S: Final = 60.0


class _Side(ClientWire):
    """aiohttp's connection, as exchanges know it."""

    @property
    def is_ending(self) -> bool:
        return False

    def expect_body(self) -> None:
        """aiohttp has the whole body already."""


class _Written(web.StreamResponse):
    """A response that the gateway has written: nothing is left for aiohttp."""

    keep_alive = True

    async def prepare(self, request: web.BaseRequest) -> StreamWriter | None:
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        """The end is written."""


class Server:
    def __init__(self, config: Config) -> None:
        self._handle = App(config).handle
        self._buffers = Buffers(config.limits.held_bytes_max)
        self._sides: dict[object, _Side] = {}  # by connection; the bench has few

    def _side(self, request: web.BaseRequest) -> _Side:
        side = self._sides.get(request.protocol)
        if side is None:
            self._sides[request.protocol] = side = _Side(asyncio.get_running_loop(), self._buffers, _STALL_S, _STALL_S)
            assert request.transport is not None
            side.connection_made(request.transport)
        return side

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        headers = Headers(request.raw_headers)
        target = request.raw_path.encode("latin-1")
        body = await request.read() if request.body_exists else b""
        head = requests.Head(request.method.encode("ascii"), target, request.version.minor, headers, len(body))
        exchange = Exchange(self._side(request), head)
        if body:
            exchange.request.body.feed(body)
        exchange.request.body.finish()
        await self._handle(exchange)
        exchange.request.close()
        return _Written()


async def main() -> None:
    """Serve until stdin ends."""
    config = gateway_config.parse(f'{{"upstreams": [{{"name": "bench", "url": "{sys.argv[1]}/mcp"}}]}}', "bench.yaml")
    runner = web.ServerRunner(web.Server(Server(config).handle, handler_cancellation=True, access_log=None))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
    await child.serve({"url": f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"}, child.idle)


if __name__ == "__main__":
    child.run(main())
