"""The operator's listener: `/healthz` (the process lives), `/readyz` (it takes requests), `/metrics`, the page at `/`.

In: GET requests. Out: short texts, the metrics as Prometheus reads them, the page (page.py).
Always: an address of its own, so that no path of an upstream's is taken.
"""

import errno
import os
import socket
from collections.abc import Callable, Iterable

from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.exposition import gzip_accepted

from gateway.config import Address
from gateway.errors import Forbidden
from gateway.operate import page
from gateway.operate.metrics import Metrics


async def serve(
    address: Address,
    metrics: Metrics,
    is_ready: Callable[[], bool],
    admit: Callable[[Iterable[tuple[bytes, bytes]]], None],
    facts: Callable[[], page.Facts],
) -> web.AppRunner:
    """Start the listener. `cleanup()` of the returned runner ends it. Raises OSError if the address cannot be taken.

    `admit` raises Forbidden for a request that is not for this door; `facts` is what the page asks for.
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

    async def exposition(request: web.Request) -> web.Response:
        response = web.Response(body=metrics.exposition(), headers={"Content-Type": CONTENT_TYPE_LATEST})
        if gzip_accepted(request.headers.get("Accept-Encoding", "")):
            response.enable_compression(web.ContentCoding.gzip)
        return response

    app = web.Application(middlewares=[guarded])
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", exposition)])
    shown = page.Page(metrics, facts)
    app.cleanup_ctx.append(shown.running)
    app.add_routes(page.routes(shown))
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await _site(runner, address).start()
    except OSError:
        await runner.cleanup()
        raise
    return runner


def why_not(key: str, address: Address, error: OSError) -> str:
    """In words, why a process cannot listen, and what to do. `key` is that of the address."""
    words = os.strerror(error.errno) if error.errno else str(error)
    does = {
        errno.EADDRINUSE: "end the process that has it, or choose another",
        errno.EACCES: "below 1024 a port needs CAP_NET_BIND_SERVICE; choose one from 1024 on",
        errno.EADDRNOTAVAIL: "choose an address of this machine",
    }.get(error.errno or 0, "choose another")
    return f"cannot listen on {address}: {words}; {key}: {does}"


def _site(runner: web.AppRunner, address: Address) -> web.BaseSite:
    """The socket on which the runner will listen. Raises OSError."""
    if address.path:
        return web.UnixSite(runner, address.path)
    if address.host == "::":
        both = socket.create_server(("::", address.port), family=socket.AF_INET6, dualstack_ipv6=True)
        return web.SockSite(runner, both)
    return web.TCPSite(runner, address.host, address.port)
