"""The pool of connections to one upstream, and the exchanges on them.

In: requests. Out: responses. Always: a connection goes back to the pool only when both messages are whole. It is closed
at once when an exchange is left before that (DESIGN 3.6). One that was idle for `idle_timeout` is not used again,
because Node and uvicorn close theirs after 5 s (DESIGN 2.7). After a server has sent what nobody asked for, each of its
connections serves one exchange.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from time import perf_counter, time
from typing import Final, Self

from gateway.caller_identity import ServerKey
from gateway.config import Limits, Upstream
from gateway.errors import Overloaded, UpstreamBroken, UpstreamTimeout, UpstreamUnreachable
from gateway.http.cors import Cors
from gateway.http.parsed_head_cache import HeadCache
from gateway.http.response_parser import ResponseHead
from gateway.transport.base_connection import Links
from gateway.transport.body_stream import Response
from gateway.transport.memory_budget import Buffers, Capacity
from gateway.transport.repeated_log_lines import LogLimit
from gateway.transport.tls_certificates import unreachable
from gateway.upstream.caller_identity_drift import IdentityDrift
from gateway.upstream.dial import Dialer
from gateway.upstream.health import UP, UpstreamHealth
from gateway.upstream.server_connection import Requestor, UpstreamConnection, is_inside

log = logging.getLogger("taskgate.upstream")

_TURNS: Final = 2  # of the event loop: in these it reads what has arrived
# For so long after a server has sent what nobody asked for, none of its connections is used twice. The server may do so
# again, and the next client would take that for its answer; a new connection costs a fraction of a millisecond.
# The time ends, because some servers send 408 on an idle connection.
_DISTRUST_S: Final = 3600.0
_numbers: Final = count()


@dataclass(eq=False)
class Call:
    """One exchange with the upstream, as a context: leaving it before both messages are whole closes the connection.

    `client` is the exchange that is relayed; None for a request of the gateway's own. Of an answer to a health
    check the state is told by whoever checks: its status decides.
    """

    _pool: "Pool"
    _method: bytes
    _client: Requestor | None = None
    _is_check: bool = False
    _sent: bool = False  # the request has gone out whole

    async def __aenter__(self) -> Self:
        slots = self._pool.context.slots
        if not slots.is_full:
            slots.change(1)  # as nearly always, without the cost of a coroutine
        else:
            try:
                await slots.reserve(1, self._pool.config.connect_timeout)
            except TimeoutError:
                raise Overloaded(f"{slots.limit} requests to the upstream are under way") from None
        try:
            await self._connect(fresh=False)
        except BaseException:
            slots.change(-1)
            raise
        return self

    async def _connect(self, fresh: bool) -> None:
        pool, client = self._pool, self._client
        self._connection = await pool.connection(fresh or (client is not None and client.authenticates))
        self._connection.begin(self._method, client)
        self._began_at = perf_counter()  # uvloop's own clock ticks once a millisecond
        pool.active.add(self._connection)

    @property
    def is_lost(self) -> bool:
        return self._connection.lost

    async def send(self, data: bytes, last: bool = False) -> None:
        """Send bytes of the request; `last` says that these are the last."""
        self._connection.write(data)
        self._sent = last
        if not last:
            await self._connection.drain()

    async def send_all(self, head: bytes, body: bytes, timeout_s: float | None, again: bool) -> Response:
        """Send a whole request, the bytes of `head` and `body`, and wait for the response's head.

        If the pooled connection turns out to be closed without a byte of an answer, a request that may be sent `again`
        goes out once more on a new one. Raises UpstreamBroken, UpstreamTimeout or UpstreamUnreachable.
        """
        while True:
            connection = self._connection
            connection.write(head)
            if body:
                connection.write(body)
            self._sent = True
            try:
                return await self.head(timeout_s)
            except UpstreamBroken:
                if not again or connection.answered or not connection.used:
                    raise
            self._pool.active.discard(connection)
            connection.end()
            await self._connect(fresh=True)  # it was not used before

    async def head(self, timeout_s: float | None) -> Response:
        """The response's head, once enough of the request has been sent. How fast it came is told, unless it waits."""
        response, pool = await self._connection.head(timeout_s), self._pool
        if self._client is None or not self._client.waits_for_news:
            pool.on_answer(perf_counter() - self._began_at)
        return response

    async def __aexit__(self, *_: object) -> None:
        pool, client, connection = self._pool, self._client, self._connection
        pool.context.slots.change(-1)
        pool.active.discard(connection)
        if pool.state.now is not UP and connection.is_whole and not self._is_check:
            pool.state.answered()
        if not self._sent or not connection.reusable or connection.lost:
            connection.abort()
        elif connection.authenticates or (client is not None and client.authenticates):
            connection.close()
        else:
            pool.put(connection)
        connection.end()


class UpstreamContext:
    """What the gateway knows of an upstream and counts there. It outlives a reload, unless the upstream is another."""

    def __init__(self, name: str, said: LogLimit) -> None:
        self.server = ServerKey(name, next(_numbers))
        self.state = UpstreamHealth(name, time, said)
        self.distrusted_until = 0.0
        self.slots = Capacity(0)  # for requests at one time: `requests_max` of them
        self.cors = Cors()
        self.drift = IdentityDrift()


@dataclass(eq=False)
class Pool:
    """The connections to one upstream. `on_answer` gets the seconds from each request to the beginning of its response.

    `context` is that of the pool before a reload, where there is one.
    """

    config: Upstream
    limits: Limits
    buffers: Buffers
    links: Links  # shared by all pools
    on_answer: Callable[[float], None]
    heads: HeadCache[ResponseHead]  # of responses that came before
    context: UpstreamContext
    dialer: Dialer
    clients: int = 0  # requests of clients that have not ended
    _is_stopped: bool = False  # for good: a connection that is given back is closed

    def __post_init__(self) -> None:
        self.state = self.context.state
        self.context.slots.resize(self.config.requests_max)
        self.hint = "" if self.dialer.tls or self.config.socket else ": is it https?"
        self.active: set[UpstreamConnection] = set()
        self._idle: list[UpstreamConnection] = []
        self._loop = asyncio.get_running_loop()

    def call(self, method: bytes, client: Requestor | None = None, is_check: bool = False) -> Call:
        """An exchange, to be entered. Entering raises Overloaded, UpstreamUnreachable or UpstreamTimeout."""
        return Call(self, method, client, is_check)

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
            connection = await self.dialer.connect(lambda: UpstreamConnection(self, self._loop, self.limits))
        except TimeoutError:
            why = f"no connection to the upstream at {self.dialer.where} within {self.config.connect_timeout:g} s"
            self.state.silent(why)
            raise UpstreamTimeout(why) from None
        except OSError as error:
            why = f"the upstream at {self.dialer.where} cannot be reached: {unreachable(error, 'tls.ca')}"
            self.state.silent(why)
            raise UpstreamUnreachable(why) from None
        self.links.add(connection)
        return connection

    def put(self, connection: UpstreamConnection) -> None:
        connection.idle_since = self._loop.time()
        if self._is_stopped or connection.idle_since < self.context.distrusted_until:
            connection.close()
        else:
            self._idle.append(connection)

    def distrust(self) -> None:
        """The upstream has sent what nobody asked for: for a while each connection to it serves one exchange."""
        now = self._loop.time()
        if now >= self.context.distrusted_until:
            log.warning("the upstream sent what nobody asked for", extra={"upstream": self.config.name})
        self.context.distrusted_until = now + _DISTRUST_S
        self.close()

    def sweep(self, now: float) -> None:
        """Time out exchanges that are late or stand still inside a message (DESIGN 7.9). Close idle connections."""
        for connection in list(self.active):
            if connection.moved or connection.is_paused:  # while it is not read, it cannot send
                connection.moved, connection.still_since = False, now
            if now > connection.deadline:
                connection.give_up(UpstreamTimeout(f"no answer from the upstream within {connection.timeout_s:g} s"))
            elif now - connection.still_since > connection.stall_timeout_s:
                connection.still_since = now
                if is_inside(connection):
                    why = f"nothing more of the upstream's answer for {connection.stall_timeout_s:g} s"
                    connection.give_up(UpstreamTimeout(why))
        while self._idle and (now - self._idle[0].idle_since >= self.config.idle_timeout or self._idle[0].lost):
            self._idle.pop(0).close()

    @property
    def is_empty(self) -> bool:
        """Whether it has no connection left, and no request that may yet need one: some wait (DESIGN 5.8)."""
        return not (self.clients or self.active or self._idle)

    def stop(self) -> None:
        """Close idle connections, as the process ends, without TLS's end; those in use close when they come back."""
        self._is_stopped = True
        for connection in self._idle:
            if connection.transport is not None and self.config.url.scheme == "https":
                connection.transport.abort()
        self.close()

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()
