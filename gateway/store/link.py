"""One connection to Redis or Valkey, by redis-py.

In: commands. Out: answers, and the errors that the store answers with. Always: a command that failed is never
repeated, and a connection that has ended is never replaced unseen: what the store has forgotten meanwhile would not be
told again. So redis-py's pool makes one connection, and serves for nothing else.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeAlias

from redis.asyncio import ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError

_DIAL_S: Final = 1.0  # for a new connection to be ready, and for an old one to close

Command: TypeAlias = tuple[Any, ...]


class Link:
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


@asynccontextmanager
async def connect(url: str) -> AsyncIterator[Link]:
    """A new connection, for as long as the context lasts."""
    pool = ConnectionPool.from_url(url, protocol=2, driver_info=None, retry=Retry(NoBackoff(), 0), socket_timeout=None)
    connection = pool.make_connection()  # type: ignore[no-untyped-call]
    try:
        async with asyncio.timeout(_DIAL_S):
            await connection.connect()
        yield Link(connection)
    finally:
        with suppress(Exception):
            async with asyncio.timeout(_DIAL_S):
                await connection.disconnect()


def errors(results: Iterable[Any]) -> list[ResponseError]:
    """The errors among the answers."""
    return [result for result in results if isinstance(result, ResponseError)]
