"""One gateway: its parts put together, started, reloaded and ended.

In: a `Config`, and the means to read it anew. Out: a process that serves until SIGTERM or SIGINT, exit status 0.
Always: SIGTERM drains (DESIGN 8); SIGHUP takes over a new configuration whole, or changes nothing and says why.
"""

import asyncio
import gc
import logging
import signal
import ssl
from collections.abc import Callable
from typing import Any

from aiohttp import web

from gateway import admin, logs
from gateway.buffers import Buffers
from gateway.config import Config, ConfigError, Tls
from gateway.core.headers import Headers
from gateway.descriptors import are_exhausted, connections_kept
from gateway.door import Door
from gateway.listener import Exchange, Listener
from gateway.metrics import Metrics
from gateway.proxy import Proxy
from gateway.sessions import Servers, Sessions
from gateway.upstream import Pool

log = logging.getLogger("taskgate")

_SWEEP_S = 1.0


class StartError(Exception):
    """The gateway cannot start with this configuration on this machine."""


class App:
    """A running gateway."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._metrics = Metrics()
        self._retired: list[Pool] = []
        self._servers = Servers(self._loop.time)
        self._sessions = Sessions(config.index, self._servers, self._loop.time)
        self._buffers = Buffers(config.limits.held_bytes_max)
        self._apply(config)
        self._listener = Listener(self._handle, config.limits, self._buffers, self._metrics.connection_refused)
        self._metrics.gauges(self._gauges)
        self._tls: ssl.SSLContext | None = None
        self._server: asyncio.Server | None = None
        self._admin: web.AppRunner | None = None
        self._raises_descriptors = False
        self._sweeper: asyncio.Task[None] | None = None

    def _apply(self, config: Config) -> None:
        """Make what depends on the configuration."""
        self._pools = {u.name: Pool(u, config.limits, self._buffers) for u in config.upstreams}
        self._proxy = Proxy(config, self._pools, self._sessions, self._metrics)
        self._config = config

    async def _handle(self, exchange: Exchange) -> None:
        await self._proxy.handle(exchange)

    def _gauges(self) -> dict[str, tuple[str, float]]:
        connections = ("Connections of clients.", float(len(self._listener.connections)))
        held = (
            "Bytes held for clients and upstreams, as counted against limits.held_bytes_max.",
            self._buffers.held_bytes,
        )
        return {**self._sessions.gauges(), "connections": connections, "held_bytes": held}

    async def start(self) -> None:
        """Listen. Raises StartError."""
        config = self._config
        try:
            self._tls = tls_context(config.tls) if config.tls is not None else None
            self._server = await self._loop.create_server(
                self._listener.connection,
                config.listen.host,
                config.listen.port,
                ssl=self._tls,
                ssl_handshake_timeout=config.limits.request_timeout or None if self._tls is not None else None,
                backlog=1024,
            )
        except OSError as error:
            raise StartError(f"cannot listen on {config.listen}: {error.strerror or error}") from None
        if config.admin is not None:
            try:
                self._admin = await admin.serve(config.admin.listen, self._metrics, self._is_ready, self._admit)
            except OSError as error:
                raise StartError(f"cannot listen on {config.admin.listen}: {error.strerror or error}") from None
        self._sweeper = asyncio.create_task(self._sweep())
        for upstream in config.upstreams:
            address = f"{'https' if config.tls else 'http'}://{config.listen}{upstream.url.path}"
            log.info("serving", extra={"address": address, "upstream": upstream.name})

    def _is_ready(self) -> bool:
        return not self._listener.draining

    def _admit(self, headers: Headers) -> None:
        """Let a request in at the admin listener. Raises Forbidden."""
        assert self._config.admin is not None
        Door(self._config.admin.listen, self._config).check(headers)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            now = self._loop.time()
            self._listener.sweep(now)
            self._sessions.expire()
            if are_exhausted():  # uvloop closes the connections that it cannot take without a word
                self._listener.refused("descriptors")
            self._retired = [pool for pool in self._retired if not pool.is_empty]
            for pool in (*self._pools.values(), *self._retired):
                pool.sweep(now)

    def reload(self, read: Callable[[], Config]) -> None:
        """Take over the configuration that `read` gives; a bad one changes nothing."""
        try:
            config = read()
            fixed = [n for n in ("listen", "admin", "tls") if getattr(config, n) != getattr(self._config, n)]
            if fixed:
                raise ConfigError(*(f"{name} cannot change while the gateway runs" for name in fixed))
            if config.tls is not None and self._tls is not None:
                tls_context(config.tls)  # what cannot be used must not be half taken over
                self._tls.load_cert_chain(config.tls.certificate, config.tls.key)  # renewed, under the same names
        except (ConfigError, StartError, OSError) as error:
            log.error("reload refused, nothing has changed", extra={"why": str(error)})
            return
        logs.set_up(config.log.level)
        for pool in self._pools.values():
            pool.close()
        self._retired += self._pools.values()  # until their requests in flight have ended
        self._servers.forget(_changed(self._config, config, "url"))
        self._sessions.take_over(config.index, _changed(self._config, config, "url", "identity_headers"))
        self._apply(config)
        self._listener.limits = config.limits
        self._listener.connections_max = config.limits.connections_max
        self._buffers.bytes_max = config.limits.held_bytes_max
        if self._raises_descriptors:
            self.raise_descriptors()
        log.info("reloaded", extra={"upstreams": [u.name for u in config.upstreams]})

    async def stop(self) -> None:
        """Take no new connections, let the answers in flight finish, close everything."""
        log.info("draining", extra={"connections": len(self._listener.connections)})
        if self._server is not None:
            self._server.close()
        await self._listener.drain(self._config.limits.drain_timeout)
        if self._sweeper is not None:
            self._sweeper.cancel()
        for pool in (*self._pools.values(), *self._retired):
            pool.close()
        if self._admin is not None:
            await self._admin.cleanup()
        log.info("stopped")

    def raise_descriptors(self) -> None:
        """Have the process open as many files as its connections need, now and after each reload."""
        self._raises_descriptors = True
        self._listener.connections_max = connections_kept(self._config.limits.connections_max)

    def not_caught(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What the event loop tells of what nobody caught."""
        if "socket.accept()" in context["message"]:
            self._listener.refused("descriptors")
        else:
            loop.default_exception_handler(context)


def tls_context(tls: Tls) -> ssl.SSLContext:
    """The context of the listener's certificate and key. Raises StartError that names the file."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(tls.certificate, tls.key)
    except (OSError, ssl.SSLError) as error:
        raise StartError(f"tls: {tls.certificate} and {tls.key} cannot be used: {error}") from None
    return context


def _changed(before: Config, after: Config, *attributes: str) -> set[str]:
    """The names of upstreams that are there no more, or of which one of some attributes is another."""
    kept = {(u.name, *(getattr(u, a) for a in attributes)) for u in after.upstreams}
    return {u.name for u in before.upstreams if (u.name, *(getattr(u, a) for a in attributes)) not in kept}


async def run(config: Config, read: Callable[[], Config] | None) -> None:
    """Serve until SIGTERM or SIGINT; SIGHUP reloads with `read`. Raises StartError."""
    logs.set_up(config.log.level)
    # A collection walks through every list of an index that it meets: 150 ms for a million tasks in a full one, 60 in
    # one of what has come since the last. So what is young is collected often, what has outlived that never: what an
    # exchange leaves behind is in no cycle (tests/relay/test_cycles.py).
    gc.set_threshold(300, 1_000_000, 1_000_000)
    loop = asyncio.get_running_loop()
    app = App(config)
    loop.set_exception_handler(app.not_caught)
    app.raise_descriptors()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    if read is not None:
        loop.add_signal_handler(signal.SIGHUP, app.reload, read)
    try:
        await app.start()
        await ended.wait()
    finally:
        await app.stop()
