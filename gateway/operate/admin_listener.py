"""The operator's listener, on an address of its own: `/healthz` (it lives), `/readyz` (it serves), `/metrics`, page."""

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler
from prometheus_client.aiohttp import make_aiohttp_handler

from gateway.config import Address, Config, StartError
from gateway.downstream.host_origin_check import HostCheck
from gateway.errors import Forbidden
from gateway.http.header_fields import Headers
from gateway.operate import status_page

log = logging.getLogger("taskgate.admin")
# aiohttp logs a request that it cannot read, or cannot name in a refusal, with what is in it (DESIGN 8.7).
_OF_CLIENTS: Final = (HttpProcessingError, UnicodeError)
log.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], _OF_CLIENTS)))


async def serve(
    key: str, address: Address, ending: AsyncExitStack, page: status_page.Page, config: Callable[[], Config]
) -> None:
    """Start the listener; `ending` ends it. Raises StartError, which names the key."""

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            HostCheck(address, config()).check(Headers(request.raw_headers))
        except Forbidden as error:
            return web.Response(text=f"{error}\n", status=403)
        try:
            return await handler(request)
        except web.HTTPClientError as error:  # a client that was given this address learns its own
            clients = " or ".join(str(each.get("address", "stdio")) for each in page.read().upstreams)
            error.text = f"{error.status}: this is taskgate's admin listener; clients use {clients}\n"
            raise

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        is_ready = page.read().draining is None
        return web.Response(text="ready\n") if is_ready else web.Response(text="draining\n", status=503)

    exposition = make_aiohttp_handler(page.metrics.registry)
    app = web.Application(middlewares=[guarded])
    own = web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", exposition)
    app.add_routes([*own, *status_page.routes(page)])
    runner = web.AppRunner(app, access_log=None, logger=log)
    ending.push_async_callback(runner.cleanup)
    await runner.setup()
    sampling = asyncio.create_task(page.sample())
    ending.callback(sampling.cancel)
    assert runner.server is not None
    server = await listen(key, address, runner.server)
    ending.callback(server.close)


async def listen(
    key: str, address: Address, protocol: Callable[[], asyncio.BaseProtocol], backlog: int = 128, serves: bool = True
) -> asyncio.Server:
    """A server at an address, which takes connections if it `serves`. Raises StartError, which names the key."""
    loop, path = asyncio.get_running_loop(), address.path
    try:
        if path:
            with socket.socket(socket.AF_UNIX) as probe:
                if probe.connect_ex(path) == 0:  # the loop would replace that socket, used or not
                    raise OSError(errno.EADDRINUSE, "")
            return await loop.create_unix_server(protocol, path, backlog=backlog, start_serving=serves)
        at: dict[str, Any] = {"host": address.host, "port": address.port}
        if address.host == "::":
            at = {"sock": socket.create_server(("::", address.port), family=socket.AF_INET6, dualstack_ipv6=True)}
        return await loop.create_server(protocol, **at, backlog=backlog, start_serving=serves)
    except OSError as error:
        raise StartError(why_not(key, address, error)) from None


def why_not(key: str, address: Address, error: OSError) -> str:
    """In words, why a process cannot listen, and what to do. `key` is that of the address."""
    words = os.strerror(error.errno) if error.errno else str(error)
    does = {
        errno.EADDRINUSE: "end the process that has it, or choose another",
        errno.EACCES: "below 1024 a port needs CAP_NET_BIND_SERVICE; choose one from 1024 on",
        errno.EADDRNOTAVAIL: "choose an address of this machine",
    }.get(error.errno or 0, "choose another")
    return f"cannot listen on {address}: {words}; {key}: {does}"
