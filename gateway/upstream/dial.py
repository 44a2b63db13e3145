"""Connecting to an upstream: its addresses by Happy Eyeballs (RFC 8305), a Unix socket, TLS.

What is slow or failed goes last for a while, and is never left out. One turn of the event loop begins few connections:
each takes it 0.1 ms, and 500 clients may come at once.
"""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from itertools import takewhile, zip_longest
from typing import Any, Final, TypeVar

from aiohappyeyeballs import AddrInfoType, start_connection

from gateway.config import Upstream, bracketed
from gateway.errors import without_frames
from gateway.transport.memory_budget import Capacity
from gateway.transport.tls_certificates import upstream_context

_BEGUN_AT_ONCE: Final = 20
_DELAY_S: Final = 0.25  # for one address, before the next is tried as well (RFC 8305, 5)
_FULL_S: Final = 0.05  # until a Unix socket with a full queue is tried again
_LOOK_UP_S: Final = 60.0  # for a name; the system takes 30 s where three name servers are silent
_LAST_S: Final = 60.0  # for so long what failed goes last

_Protocol = TypeVar("_Protocol", bound=asyncio.BaseProtocol)


class Dialer:
    """Makes connections to one upstream. To make one raises OSError if a file of its `tls` cannot be used."""

    def __init__(self, config: Upstream, loop: asyncio.AbstractEventLoop) -> None:
        self._config = config
        self.where = config.socket or f"{bracketed(config.url.host)}:{config.url.port}"
        self._loop = loop
        self._begun = Capacity(_BEGUN_AT_ONCE)  # connections, in this turn of the loop
        self._failed: dict[AddrInfoType, float] = {}  # when, of the addresses that the host has now
        self._found: asyncio.Future[Any] | None = None  # by the last look-up, which may be under way
        self.tls = upstream_context(config)
        self._server_name = (config.tls.server_name or config.url.host) if self.tls is not None else None

    async def connect(self, protocol: Callable[[], _Protocol]) -> _Protocol:
        """A connection. Raises OSError; TimeoutError after `connect_timeout`."""
        ends_at = self._loop.time() + self._config.connect_timeout
        async with asyncio.timeout_at(ends_at):
            addresses = await self._addresses() if self._config.socket is None else []
            await self._turn()
            while self._config.socket is not None:
                try:
                    return await self._open(protocol, self._loop.create_unix_connection, path=self._config.socket)
                except BlockingIOError:  # its queue is full: over TCP the system tries again, here it does not
                    await asyncio.sleep(_FULL_S)
            delay_s = min(_DELAY_S, self._config.connect_timeout / len(addresses) / 2)
            while len(addresses) > 1:
                sock, address = await self._race(addresses, delay_s)
                try:
                    async with asyncio.timeout_at((self._loop.time() + ends_at) / 2):  # half of what is left
                        await self._turn(sock)
                        return await self._open(protocol, self._loop.create_connection, sock=sock)
                except OSError:
                    self._failed[address] = self._loop.time()
                    addresses.remove(address)
            host = addresses[0][4][0]
            return await self._open(protocol, self._loop.create_connection, host=host, port=self._config.url.port)

    async def _turn(self, sock: socket.socket | None = None) -> None:
        """Wait for a turn of the loop that has begun few connections. If that is given up, the socket is closed."""
        if not self._begun.taken:
            self._loop.call_soon(self._next_turn)
        try:
            await self._begun.reserve(1)
        except BaseException:
            if sock is not None:
                sock.close()
            raise

    def _next_turn(self) -> None:
        self._begun.change(-self._begun.taken)
        if self._begun.taken:  # by those that waited
            self._loop.call_soon(self._next_turn)

    async def _addresses(self) -> list[AddrInfoType]:
        """The addresses of the upstream's host: the families in turn, each in the order of the system (RFC 8305, 4).

        One look-up for all who wait: libuv makes few at a time, for all hosts, and those that were given up as well.
        """
        if self._found is None or self._found.done():
            looking_up = self._loop.getaddrinfo(self._config.url.host, self._config.url.port, type=socket.SOCK_STREAM)
            self._found = asyncio.ensure_future(_found_by(looking_up))
        infos = await asyncio.shield(self._found)
        if isinstance(infos, Exception):
            raise type(infos)(*infos.args)  # each who waits has frames of its own (DESIGN 9.5)
        found = dict.fromkeys(infos)
        now = self._loop.time()
        self._failed = {a: at for a, at in self._failed.items() if a in found and now - at < _LAST_S}
        families = [[a for a in found if a[0] == family] for family in dict.fromkeys(a[0] for a in found)]
        return [address for each in zip_longest(*families) for address in each if address is not None]

    async def _race(self, addresses: list[AddrInfoType], delay_s: float) -> tuple[socket.socket, AddrInfoType]:
        """The first connection that comes about, and its address. Those begun before it are slow, or failed."""
        begun: dict[socket.socket, AddrInfoType] = {}

        def begin(address: AddrInfoType) -> socket.socket:
            sock = socket.socket(*address[:3])
            begun[sock] = address
            return sock

        addresses.sort(key=lambda address: self._failed.get(address, 0.0))  # what failed first may be well again first
        try:
            made = await start_connection(addresses, happy_eyeballs_delay=delay_s, interleave=0, socket_factory=begin)
        except OSError as error:
            raise OSError(error.errno, os.strerror(error.errno)) if error.errno else error from None
        now = self._loop.time()
        self._failed.update((begun[sock], now) for sock in takewhile(lambda sock: sock is not made, begun))
        return made, begun[made]

    async def _open(self, protocol: Callable[[], _Protocol], connect: Callable[..., Any], **to: Any) -> _Protocol:
        """A connection over a socket, which is closed if that fails (twice by uvloop before 0.23); or to an address."""
        made: _Protocol
        _, made = await connect(protocol, ssl=self.tls, server_hostname=self._server_name, **to)
        return made


async def _found_by(looking_up: Awaitable[Any]) -> Any:
    """What a look-up finds, or its error, without frames: those of Python 3.11 hold each other (DESIGN 9.5)."""
    try:
        async with asyncio.timeout(_LOOK_UP_S):
            return await looking_up
    except Exception as error:
        return without_frames(error)
