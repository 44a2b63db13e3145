"""One connection to Redis or Valkey, by redis-py.

A command that failed is never repeated, and a connection that has ended is never replaced unseen: what the store has
forgotten meanwhile would not be told again.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeAlias

from aiohappyeyeballs import start_connection
from redis.asyncio import Connection, ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError

_DIAL_S: Final = 1.0  # for a new connection to be ready, and for an old one to close

_DELAY_S: Final = 0.1  # for one of several addresses, before the next is tried as well (RFC 8305, 5)

Command: TypeAlias = tuple[Any, ...]


class StoreConnection:
    """A connection. It raises what redis-py raises."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def exchange(self, commands: list[Command]) -> list[Any]:
        """The answers to these commands; some may be a ResponseError."""
        await self._connection.send_packed_command(self._connection.pack_commands(commands))
        results: list[Any] = []
        for _ in commands:
            try:
                results.append(await self._connection.read_response())
            except ResponseError as error:
                results.append(error)
        return results


class _Raced:
    """Put in front of a class of redis-py's: the first of the store's addresses that takes a connection counts."""

    _sock: socket.socket

    async def _connect(self: Any) -> None:
        loop = asyncio.get_running_loop()
        addresses = await loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        self._sock = await start_connection(addresses, happy_eyeballs_delay=_DELAY_S)
        await super()._connect()  # type: ignore[misc]

    def _connection_arguments(self: Any) -> dict[str, Any]:
        given = dict(super()._connection_arguments())  # type: ignore[misc]
        host, _ = given.pop("host"), given.pop("port")
        return given | {"sock": self._sock} | ({"server_hostname": host} if "ssl" in given else {})


@asynccontextmanager
async def connect(url: str) -> AsyncIterator[StoreConnection]:
    """A new connection, for as long as the context lasts."""
    pool = ConnectionPool.from_url(url, protocol=2, driver_info=None, retry=Retry(NoBackoff(), 0), socket_timeout=None)
    if issubclass(pool.connection_class, Connection):  # no Unix socket
        pool.connection_class = type("Raced", (_Raced, pool.connection_class), {})
    connection = pool.make_connection()  # type: ignore[no-untyped-call]
    try:
        async with asyncio.timeout(_DIAL_S):
            await connection.connect()
        yield StoreConnection(connection)
    finally:
        with suppress(Exception):
            async with asyncio.timeout(_DIAL_S):
                await connection.disconnect()


def errors(results: Iterable[Any]) -> list[ResponseError]:
    return [result for result in results if isinstance(result, ResponseError)]
