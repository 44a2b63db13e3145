"""The operator's listener: `/healthz` (the process lives), `/readyz` (it takes requests), `/metrics`, the page at `/`.

In: GET requests. Out: short texts, the metrics as Prometheus reads them, the page (page.py).
Always: an address of its own, so that no path of an upstream's is taken.
"""

import socket
from collections.abc import Callable, Iterable
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CONTENT_TYPE_LATEST

from gateway.config import Address
from gateway.errors import Forbidden
from gateway.operate import page
from gateway.operate.metrics import Metrics


async def serve(
    address: Address,
    metrics: Metrics,
    is_ready: Callable[[], bool],
    admit: Callable[[Iterable[tuple[bytes, bytes]]], None],
    status: Callable[[], dict[str, Any]],
) -> web.AppRunner:
    """Start the listener. `cleanup()` of the returned runner ends it. Raises OSError if the address cannot be taken.

    `admit` raises Forbidden for a request that is not for this door; `status` is what the page shows.
    """

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            admit(request.raw_headers)
        except Forbidden as error:
            return web.Response(text=f"{error}\n", status=403)
        return await handler(request)

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        return web.Response(text="ready\n") if is_ready() else web.Response(text="draining\n", status=503)

    async def exposition(_: web.Request) -> web.Response:
        return web.Response(body=metrics.exposition(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application(middlewares=[guarded])
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", exposition)])
    app.add_routes(page.routes(status))
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await _site(runner, address).start()
    except OSError:
        await runner.cleanup()
        raise
    return runner


def _site(runner: web.AppRunner, address: Address) -> web.BaseSite:
    """The socket on which the runner will listen. Raises OSError."""
    if address.path:
        return web.UnixSite(runner, address.path)
    if address.host == "::":
        both = socket.create_server(("::", address.port), family=socket.AF_INET6, dualstack_ipv6=True)
        return web.SockSite(runner, both)
    return web.TCPSite(runner, address.host, address.port)
