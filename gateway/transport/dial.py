"""Connecting to an upstream: its addresses one after the other, a Unix socket, TLS.

In: where the upstream is. Out: a connection. Always: the next address is tried only where no connection came about, so
that no byte of a request has gone out; all of them share one time limit. One turn of the event loop begins few
connections: each takes it 0.1 ms, and 500 clients may come at once.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Callable
from typing import Final, TypeVar

from gateway.config import Upstream, bracketed
from gateway.transport.buffers import Room
from gateway.transport.certificates import upstream_context

_BEGUN_AT_ONCE: Final = 20

_Protocol = TypeVar("_Protocol", bound=asyncio.BaseProtocol)


class Dialer:
    """Makes connections to one upstream. The constructor raises OSError as `upstream_context` does."""

    def __init__(self, config: Upstream, loop: asyncio.AbstractEventLoop) -> None:
        self._host, self._port = config.url.host, config.url.port
        self._socket = config.socket
        self.where = config.socket or f"{bracketed(self._host)}:{self._port}"
        self._timeout_s = config.connect_timeout
        self._loop = loop
        self._begun = Room(_BEGUN_AT_ONCE)  # connections, in this turn of the loop
        self._tls = upstream_context(config)
        self._server_name = (config.tls.server_name or self._host) if self._tls is not None else None

    async def connect(self, protocol: Callable[[], _Protocol]) -> _Protocol:
        """A connection. Raises OSError; TimeoutError after `connect_timeout`."""
        async with asyncio.timeout(self._timeout_s):
            await self._turn()
            if self._socket is not None:
                _, made = await self._loop.create_unix_connection(
                    protocol, self._socket, ssl=self._tls, server_hostname=self._server_name
                )
                return made
            hosts = await self._addresses()
            for host in hosts[:-1]:
                try:
                    async with asyncio.timeout(self._timeout_s / len(hosts)):
                        return await self._connect_to(host, protocol)
                except (OSError, TimeoutError):
                    continue
            return await self._connect_to(hosts[-1], protocol)

    async def _turn(self) -> None:
        """Wait for a turn of the loop that has begun few connections."""
        if not self._begun.taken:
            self._loop.call_soon(self._next_turn)
        await self._begun.reserve(1)

    def _next_turn(self) -> None:
        self._begun.change(-self._begun.taken)
        if self._begun.taken:  # by those that waited
            self._loop.call_soon(self._next_turn)

    async def _connect_to(self, host: str, protocol: Callable[[], _Protocol]) -> _Protocol:
        _, made = await self._loop.create_connection(
            protocol, host, self._port, ssl=self._tls, server_hostname=self._server_name
        )
        return made

    async def _addresses(self) -> list[str]:
        """The addresses of the upstream's host, in the order of the system."""
        try:
            return [str(ipaddress.ip_address(self._host))]
        except ValueError:
            found = await self._loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(address[0]) for *_, address in found))
