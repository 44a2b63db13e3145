"""The operator's listener: `/healthz` (the process lives), `/readyz` (it takes requests), `/metrics`.

In: GET requests. Out: short texts, and the metrics as Prometheus reads them.
Always: on an address of its own, so that nothing of it is ever in the way of an upstream's paths.
"""

from collections.abc import Callable

from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CONTENT_TYPE_LATEST

from gateway.config import Address
from gateway.core.headers import Headers
from gateway.errors import Forbidden
from gateway.metrics import Metrics


async def serve(
    address: Address, metrics: Metrics, is_ready: Callable[[], bool], admit: Callable[[Headers], None]
) -> web.AppRunner:
    """Start the listener; `cleanup()` of what is returned ends it. Raises OSError if the address cannot be had.

    `admit` raises Forbidden for a request that is not for this door.
    """

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            admit(Headers(request.raw_headers))
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
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, address.host, address.port).start()
    except OSError:
        await runner.cleanup()
        raise
    return runner
