"""One gateway: its parts put together, started, reloaded and ended.

In: a `Config`, and a way to read it again. Out: a process that serves until SIGTERM or SIGINT, exit status 0.
Always: SIGTERM drains (DESIGN 8); SIGHUP takes over a new configuration whole, or changes nothing and says why.
"""

import asyncio
import gc
import logging
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Collection
from contextlib import AsyncExitStack, suppress
from functools import partial
from time import monotonic_ns, time
from typing import TYPE_CHECKING, Any, NamedTuple

from gateway.config import Address, Config, ConfigError
from gateway.downstream import client_connection, host_origin_check
from gateway.downstream.tls_handshakes import TlsServer
from gateway.operate import admin_listener, log_format, observers, status_page
from gateway.operate.metrics import Gauge
from gateway.owners.task_owners import OwnTasks
from gateway.proxy import Proxy
from gateway.relay import routes
from gateway.tasks.rate_and_ttl_guards import guards_of
from gateway.tasks.session_indexes import CAPABILITIES_IDLE_S, Sessions
from gateway.transport import base_connection, memory_budget, repeated_log_lines, tls_certificates
from gateway.upstream.dial import Dialer
from gateway.upstream.upstream_set import Pools, dialers_of

if TYPE_CHECKING:
    from gateway.store.redis_schema import RedisStore
    from gateway.store.shared_tasks import SharedTasks

log = logging.getLogger("taskgate")

_SWEEP_S = 1.0
_BACKLOG = 1024  # connections that wait to be accepted


class _Built(NamedTuple):
    """What a configuration makes from its files, which were read once. To take it over cannot fail."""

    config: Config
    certificates: dict[str, tls_certificates.Validity]
    tls: ssl.SSLContext | None
    dialers: list[Dialer]


def _built(config: Config, before: Config) -> _Built:
    """Raises ConfigError. Nothing has changed then."""
    routes.check(config)
    config = tls_certificates.chosen(config, before)
    try:
        tls = None if config.tls is None else tls_certificates.listener_context(config.tls)
    except OSError as error:
        raise ConfigError(f"tls.{error}") from None
    return _Built(config, tls_certificates.validities(config), tls, dialers_of(config))


class App:
    """Raises ConfigError if the configuration cannot be used."""

    def __init__(self, config: Config) -> None:
        self._config = config
        built = _built(config, config)
        self._loop = asyncio.get_running_loop()
        clock = self._loop.time
        self._ending = AsyncExitStack()  # what ends with the gateway, the last first
        self.metrics, self._make_log = observers(config, self._ending)
        self._store: RedisStore | None = None
        make_own_tasks: Callable[..., OwnTasks] | None = OwnTasks if config.guards.own_tasks else None
        if config.store is not None:  # imported only for one
            try:
                from gateway.store import redis_schema, shared_owners, shared_tasks
            except ImportError:
                raise ConfigError("store: its client is not installed; install taskgate with the extra redis") from None
            self._store = redis_schema.RedisStore(config.store, self.metrics.store_failed)
            make_own_tasks = make_own_tasks and partial(shared_owners.SharedOwn, store=self._store)
        self._sessions = Sessions(config.index, clock, make_own_tasks)
        self._shared: SharedTasks | None = None
        if self._store is not None:
            self._shared = shared_tasks.SharedTasks(self._sessions, self._store)
        self._links = base_connection.Links()
        self._buffers = memory_budget.Buffers(config.limits.held_bytes_max)
        self._failed = repeated_log_lines.LogLimit(clock)
        self._pools = Pools(self._buffers, self._links, self.metrics.responses, self._failed)
        self._guards = guards_of(config.guards, clock)
        self._server: asyncio.Server | TlsServer | None = None
        self._apply(built)
        serves = self._proxy.handle, config.limits, self._buffers, self._proxy.heads
        counts = self.metrics.connection_refused, self.metrics.handshake_failed
        self._listener = client_connection.Listener(*serves, *counts)
        self.metrics.gauges.append(self._gauges)
        self._listens_at = config.listen  # with the port really taken, once it listens
        self._draining: tuple[float, float] | None = None  # since when, and until when at most
        self._sweeper: asyncio.Task[None] | None = None

    def _apply(self, built: _Built) -> None:
        """Make the parts that depend on the configuration."""
        config, self._certificates, self._tls, dialers = built
        self._pools.serve(self._config, config, dialers)
        servers = self._pools.servers
        self.metrics.serves(servers, config.metrics.tasks)
        self._sessions.lives = self.metrics.lives
        if self._store is not None:
            self._store.serves(servers, CAPABILITIES_IDLE_S, config.index.idle_timeout)
        if config.guards != self._config.guards:
            self._guards = guards_of(config.guards, self._loop.time)
        logs = self._make_log(self.metrics, config.log, self._failed)
        self._proxy = Proxy(config, self._pools.of, self._links, self._sessions, self._guards, self.metrics, logs)
        self._config = config
        if isinstance(self._server, TlsServer) and self._tls is not None:
            self._server.context = self._tls

    def _gauges(self) -> dict[str, Gauge]:
        return {
            **({} if self._store is None else {"store_up": ("1 if the store serves.", float(self._store.is_up))}),
            **self._sessions.gauges(),
            **self._listener.gauges(),
            **self._buffers.gauges(),
            **self._pools.gauges(),
            "certificate_expiry_timestamp_seconds": (
                "When a certificate ends: one shown to an upstream, or the listener's, whose upstream is empty.",
                {name: valid.ends_at for name, valid in self._certificates.items()},
            ),
            "certificate_not_before_timestamp_seconds": (
                "When such a certificate begins to be valid.",
                {name: valid.begins_at for name, valid in self._certificates.items()},
            ),
        }

    async def start(self) -> str:
        """Listen. Returns in words where clients and operators find it. Raises StartError."""
        config, listen = self._config, self._config.listen
        if self._store is not None and self._shared is not None:
            self._ending.push_async_callback(self._store.stop)
            await self._store.start(self._shared.tell_all)
        protocol, is_plain = self._listener.connection, self._tls is None
        server = await admin_listener.listen("listen (--listen)", listen, protocol, _BACKLOG, is_plain)
        self._server = server if self._tls is None else TlsServer(server, self._tls, self._listener, _BACKLOG)
        if not listen.path:
            self._listens_at = Address(listen.host, server.sockets[0].getsockname()[1])
        if config.admin is not None:
            page, at = status_page.Page(self.metrics, self._facts), config.admin.listen
            await admin_listener.serve("admin.listen (--admin)", at, self._ending, page, lambda: self._config)
        self._sweeper = asyncio.create_task(self._sweep())
        self._ending.callback(self._sweeper.cancel)
        self._pools.probe()
        page_at = {} if config.admin is None else {"page": f"http://{config.admin.listen.here}/"}
        addresses = [routes.address(each, self._listens_at, config.tls is not None) for each in config.upstreams]
        for address, upstream in zip(addresses, config.upstreams, strict=True):
            hint = {"hint": "url has no path; most servers are at /mcp"} if upstream.url.path == "/" else {}
            log.info("serving", extra={"address": address, "upstream": upstream.name, **page_at, **hint})
        for why in host_origin_check.exposed(config):
            log.info("open to other machines", extra={"why": why})
        self._listener.connections_max = client_connection.connections_kept(config.limits.connections_max)
        return "; ".join([f"clients use {', '.join(addresses)}", *(f"the page is {page}" for page in page_at.values())])

    def _facts(self) -> status_page.Facts:
        upstreams = [
            {"name": u.name, "url": str(u.url), "state": state.name, "since": state.since, "why": state.why}
            | {"drifts_at": context.drift.at, "drifting": context.drift.names}
            | {"address": routes.address(u, self._listens_at, self._config.tls is not None)}
            for u in self._config.upstreams
            for context in (self._pools.of[u.name].context,)
            for state in (context.state,)
        ]
        fails = None if self._store is None else (self._store.since, self._store.why)
        known = self._gauges(), upstreams, self._certificates, self._config.guards, self._draining, fails
        return status_page.Facts(*known)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            now = self._loop.time()
            self._listener.sweep(now)
            self._proxy.heads.sweep(now)
            self._sweep_servers()
            self._sessions.expire()
            self._failed.sweep()
            if self.metrics.lives is not None:
                self.metrics.lives.sweep()
            if client_connection.are_exhausted():  # uvloop closes connections that it cannot take, and reports nothing
                self._listener.refused("descriptors")

    def _sweep_servers(self) -> None:
        """Forget servers that a reload has replaced, once nothing is under way there."""
        if gone := self._pools.sweep(self._loop.time()):
            self._sessions.forget(gone)

    def reload(self, read: Callable[[Config], Config]) -> None:
        """Take over the configuration that `read` returns; it gets the one in force. A bad one changes nothing."""
        try:
            built = _built(read(self._config), self._config)
        except ConfigError as error:
            self.metrics.reloaded(str(error))
            log.error("reload refused, nothing has changed", extra={"why": str(error)})
            return
        config = built.config
        log_format.set_up(config.log)
        self._sessions.set_limits(config.index)
        self._apply(built)
        self._sweep_servers()
        self._listener.heads.end()
        self._listener.handle, self._listener.heads = self._proxy.handle, self._proxy.heads
        self._listener.limits = config.limits
        self._listener.connections_max = client_connection.connections_kept(config.limits.connections_max)
        self._buffers.resize(config.limits.held_bytes_max)
        self._pools.probe()
        self.metrics.reloaded()
        log.info("reloaded", extra={"upstreams": [u.name for u in config.upstreams]})

    async def stop(self) -> None:
        """Be no longer ready, wait for `shutdown_delay`, take no new connections, let answers end, close all."""
        limits, now = self._config.limits, time()
        self._draining = (now, now + limits.shutdown_delay + limits.drain_timeout)
        if self._sweeper is not None:
            log.info("draining", extra={"connections": len(self._listener.connections)})
        if self._server is not None:
            await asyncio.sleep(limits.shutdown_delay)
            self._server.close()
        await self._listener.drain(limits.drain_timeout)
        self._pools.stop()
        await self._ending.aclose()
        self._failed.flush()
        if self._sweeper is not None:
            log.info("stopped")

    def not_caught(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if "socket.accept()" in context["message"]:
            self._listener.refused("descriptors")
        else:
            loop.default_exception_handler(context)


async def check(config: Config) -> None:
    """Build all that serves, and drop it. Raises ConfigError."""
    await App(config).stop()


def _notify(*state: str) -> None:
    """Tell systemd, where it wants to know (sd_notify(3))."""
    if name := os.environ.get("NOTIFY_SOCKET"):
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.connect(f"\0{name[1:]}" if name.startswith("@") else name)
            sock.send("\n".join(state).encode())


async def run(config: Config, read: Callable[[Config], Config] | None, hangups: Collection[int] = ()) -> None:
    """Serve to the end. SIGHUP reloads with `read`, if given; `hangups` came before. Raises ConfigError, StartError."""
    log_format.set_up(config.log)
    # A collection visits every list of an index: 23 ms for 400,000 tasks. So young objects are collected often, and
    # those that survive never are: an exchange leaves no reference cycle behind (DESIGN 9.5).
    gc.set_threshold(300, 1_000_000, 1_000_000)
    loop = asyncio.get_running_loop()
    app = App(config)
    loop.set_exception_handler(app.not_caught)
    ended, hung_up = asyncio.Event(), asyncio.Event()
    loop.add_signal_handler(signal.SIGHUP, hung_up.set)  # the loop hears late of what comes while it starts
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)

    def hang_up() -> None:
        if ended.is_set():
            return  # what ends begins nothing anew
        _notify("RELOADING=1", f"MONOTONIC_USEC={monotonic_ns() // 1000}")
        if read is None:
            log.info("SIGHUP does nothing: there is no configuration file to read again")
        else:
            app.reload(read)
        _notify("READY=1")

    try:
        where = await app.start()
        if sys.stderr.isatty():
            print(f"taskgate: {where}", file=sys.stderr)
        _notify("READY=1")
        loop.add_signal_handler(signal.SIGHUP, hang_up)
        if hangups or hung_up.is_set():
            hang_up()
        await ended.wait()
    finally:
        _notify("STOPPING=1")
        await app.stop()
