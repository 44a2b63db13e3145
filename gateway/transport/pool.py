"""The pool of connections to one upstream, and the exchanges on them.

In: requests. Out: responses. Always: a connection goes back to the pool only when both messages are whole. It is closed
at once when an exchange is left before that (DESIGN 3.6). One that was idle for `idle_timeout` is not used again,
because Node and uvicorn close theirs after 5 s (DESIGN 2.7). After a server has sent what nobody asked for, each of its
connections serves one exchange.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from time import perf_counter
from types import TracebackType
from typing import Final, Self

from gateway.config import Limits, Upstream
from gateway.errors import GatewayError, Overloaded, UpstreamBroken, UpstreamTimeout, UpstreamUnreachable
from gateway.transport.buffers import Buffers
from gateway.transport.dial import Dialer
from gateway.transport.exchange import Exchange
from gateway.transport.upstream import Response, UpstreamConnection
from gateway.transport.wire import Links

log = logging.getLogger("taskgate.upstream")

_TURNS: Final = 2  # of the event loop: in these it reads what has arrived
# For so long after a server has sent what nobody asked for, none of its connections is used twice. The server may do so
# again, and the next client would take that for its answer; a new connection costs a fraction of a millisecond.
# The time ends, because some servers send 408 on an idle connection.
_DISTRUST_S: Final = 3600.0


class Call:
    """One exchange with the upstream, as a context: leaving it before both messages are whole closes the connection.

    `client` is the client's exchange that is relayed; None for a request of the gateway's own.
    """

    def __init__(self, pool: "Pool", method: bytes, client: Exchange | None) -> None:
        self._pool = pool
        self._method = method
        self._client = client
        self._connection: UpstreamConnection | None = None
        self._sent = False  # the request has gone out whole
        self._began_at = 0.0

    async def __aenter__(self) -> Self:
        pool = self._pool
        if not pool.places.take():
            await pool.places.wait(pool.config.connect_timeout)
        try:
            await self._connect(fresh=False)
        except BaseException:
            pool.places.leave()
            raise
        return self

    async def _connect(self, fresh: bool) -> None:
        pool, client = self._pool, self._client
        connection = pinned = pool.pinned(client)
        if connection is None or fresh or connection.is_stale():
            serves_alone = pinned is not None or (client is not None and client.authenticates)
            connection = await pool.connection(fresh or serves_alone)
            if pinned is not None:
                connection.pin(client)
        connection.begin(self._method, client)
        self._began_at = perf_counter()  # uvloop's own clock ticks once a millisecond
        self._connection = connection
        pool.active.add(connection)

    @property
    def is_lost(self) -> bool:
        """Whether the upstream has closed the connection."""
        return self._connection is None or self._connection.lost

    async def send(self, data: bytes, last: bool = False) -> None:
        """Send bytes of the request; `last` says that these are the last."""
        connection = self._connection
        assert connection is not None
        connection.write(data)
        self._sent = last
        if not last:
            await connection.drain()

    async def send_all(self, head: bytes, body: bytes, timeout_s: float | None, again: bool) -> Response:
        """Send a whole request, the bytes of `head` and `body`, and wait for the response's head.

        If the pooled connection turns out to be closed without a byte of an answer, a request that may be sent `again`
        goes out once more on a new one. Raises UpstreamBroken, UpstreamTimeout or UpstreamUnreachable.
        """
        connection = self._connection
        assert connection is not None
        self._send_whole(head, body)
        try:
            return self._seen(await connection.head(timeout_s))
        except GatewayError as error:
            self._missed(error)
            if not again or connection.answered or not connection.used or not isinstance(error, UpstreamBroken):
                raise
        self._pool.active.discard(connection)
        connection.end()
        await self._connect(fresh=True)
        self._send_whole(head, body)
        return await self.head(timeout_s)

    def _send_whole(self, head: bytes, body: bytes) -> None:
        assert self._connection is not None
        self._connection.write(head)
        if body:
            self._connection.write(body)
        self._sent = True

    async def head(self, timeout_s: float | None) -> Response:
        """The response's head, once the request or enough of it has been sent."""
        assert self._connection is not None
        try:
            return self._seen(await self._connection.head(timeout_s))
        except GatewayError as error:
            self._missed(error)
            raise

    def _seen(self, response: Response) -> Response:
        """The upstream has answered. Tell `on_answer` how fast, unless the response waits for news."""
        pool = self._pool
        pool.up = True
        if self._client is None or not self._client.waits_for_news:
            pool.on_answer(perf_counter() - self._began_at)
        return response

    def _missed(self, error: GatewayError) -> None:
        """The upstream has not answered. A pooled connection that it closed in silence does not count."""
        connection = self._connection
        assert connection is not None
        if connection.answered or not connection.used or isinstance(error, UpstreamTimeout):
            self._pool.up = False

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pool, client, connection = self._pool, self._client, self._connection
        pool.places.leave()
        if connection is not None:
            self._connection = None
            pool.active.discard(connection)
            if not self._sent or not connection.reusable or connection.lost:
                connection.abort()
            elif not (connection.authenticates or (client is not None and client.authenticates)):
                pool.put(connection)
            elif client is None or client.connection.pinned is not connection or client.connection.transport is None:
                connection.close()  # otherwise the client's connection keeps it, and closes it in the end
            connection.end()


def _ignore(seconds: float) -> None:
    """For a pool whose times nobody counts."""


class _Places:
    """The places for requests at one upstream. A request that finds none free waits; the first to come is the first.

    `free` is 0 as long as one waits: a place that is left goes to the first in line.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.free = count
        self._waiting: deque[asyncio.Future[None]] = deque()

    def take(self) -> bool:
        """Take a place, if one is free."""
        if not self.free:
            return False
        self.free -= 1
        return True

    async def wait(self, timeout_s: float) -> None:
        """Wait for a place. Raises Overloaded if none comes free in time."""
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            async with asyncio.timeout(timeout_s):
                await place
        except BaseException as error:
            if place.done() and not place.cancelled():
                self.leave()  # it came just as the wait ended
            elif place in self._waiting:  # `leave` may have passed over it already
                self._waiting.remove(place)
            if isinstance(error, TimeoutError):
                raise Overloaded(f"{self.count} requests to the upstream are under way") from None
            raise

    def leave(self) -> None:
        """Give a place back."""
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return
        self.free += 1


class Pool:
    """The connections to one upstream.

    `on_answer` gets the seconds from each request to the beginning of its response.
    """

    def __init__(
        self,
        config: Upstream,
        limits: Limits,
        buffers: Buffers,
        links: Links | None = None,
        on_answer: Callable[[float], None] = _ignore,
    ) -> None:
        self.config = config
        self.on_answer = on_answer
        self.up = True  # the last exchange showed that the upstream answers, or there was none
        self.clients = 0  # requests of clients that have not ended
        self.buffers = buffers
        self._links = Links() if links is None else links  # shared by all pools
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._idle: list[UpstreamConnection] = []
        self._distrusted_until = 0.0
        self.active: set[UpstreamConnection] = set()
        self.places = _Places(config.requests_max)
        self._dialer = Dialer(config, self._loop)

    def call(self, method: bytes, client: Exchange | None = None) -> Call:
        """An exchange, to be entered. Entering raises Overloaded, UpstreamUnreachable or UpstreamTimeout."""
        return Call(self, method, client)

    @property
    def is_full(self) -> bool:
        """Whether all `requests_max` places are taken."""
        return not self.places.free

    def pinned(self, client: Exchange | None) -> UpstreamConnection | None:
        """The connection that serves a client alone, open or not."""
        if client is None or (wire := client.connection.pinned) is None:
            return None
        return wire if isinstance(wire, UpstreamConnection) and wire.pool is self else None

    def knows_by_connection(self, client: Exchange | None) -> bool:
        """Whether the server knows, or may know, a client by its connection: then no header field tells who asks."""
        return client is not None and (client.authenticates or self.pinned(client) is not None)

    async def connection(self, fresh: bool) -> UpstreamConnection:
        """A connection that nobody uses: the one idle for the shortest time, or a new one."""
        while self._idle and not fresh:
            connection = self._idle.pop()
            idle_s = self._loop.time() - connection.idle_since
            if idle_s < self.config.idle_timeout and not connection.is_stale():
                return connection
            try:
                for _ in range(_TURNS):  # unasked bytes may have arrived: once they are read, `distrust` is called
                    await asyncio.sleep(0)
            finally:
                connection.close()
        try:
            connection = await self._dialer.connect(lambda: UpstreamConnection(self, self._loop, self._limits))
        except TimeoutError:
            self.up = False
            raise UpstreamTimeout(f"no connection to the upstream within {self.config.connect_timeout:g} s") from None
        except OSError as error:
            self.up = False
            raise UpstreamUnreachable(f"the upstream cannot be reached: {error.strerror or error}") from None
        self._links.add(connection)
        return connection

    def put(self, connection: UpstreamConnection) -> None:
        """Take back a connection whose exchange is complete."""
        connection.idle_since = self._loop.time()
        if connection.idle_since < self._distrusted_until:
            connection.close()
        else:
            self._idle.append(connection)

    def distrust(self) -> None:
        """The upstream has sent what nobody asked for: for a while each connection to it serves one exchange."""
        now = self._loop.time()
        if now >= self._distrusted_until:
            log.warning("the upstream sent what nobody asked for", extra={"upstream": self.config.name})
        self._distrusted_until = now + _DISTRUST_S
        self.close()

    def sweep(self, now: float) -> None:
        """Time out the exchanges that are past their deadline, and close connections that were idle for too long."""
        for connection in [c for c in self.active if now > c.deadline]:
            connection.time_out()
        while self._idle and (now - self._idle[0].idle_since >= self.config.idle_timeout or self._idle[0].lost):
            self._idle.pop(0).close()

    @property
    def is_empty(self) -> bool:
        """Whether it has no connection left."""
        return not self.active and not self._idle

    def stop(self) -> None:
        """Close the idle connections as the process ends, without waiting for the server's end of TLS."""
        for connection in self._idle:
            if connection.transport is not None and self.config.url.scheme == "https":
                connection.transport.abort()
        self.close()

    def close(self) -> None:
        """Close the idle connections."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()
