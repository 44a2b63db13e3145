"""The client's side: connections that turn bytes into exchanges, one at a time and in order.

In: the bytes of requests, read by `core/http1.py`. Out: an `Exchange` for each, given to the handler in a task of its
own, which writes the response's bytes. Always: an exchange that ends without a whole response cuts the connection
(DESIGN 3.5); a client that leaves ends its handler at once (DESIGN 3.6); whatever a connection holds is bounded.

aiohttp's server is not used: measured here on one core it relays half as many requests, and keeps less of them.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from gateway.config import Limits
from gateway.core import http1, jsonrpc
from gateway.core.headers import Headers
from gateway.wire import Body, Wire

log = logging.getLogger("taskgate.listener")

_LINGER_S: Final = 10.0
_LINGER_BYTES_MAX: Final = 16 << 20
TURNED_AWAY_MAX: Final = 100  # connections beyond `connections_max` that are told so; further ones are only closed
_NEVER: Final = float("inf")
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class Exchange:
    """One request of a client, and the way to write its response.

    The response is what is passed to `write`, bytes of HTTP; `finish` says that it is whole.
    """

    __slots__ = (
        "body", "connection", "continued", "ends_with_connection", "finished", "headers", "keep_alive", "method",
        "minor", "started", "status", "target",
    )  # fmt: skip

    def __init__(self, connection: "Connection", head: http1.Head) -> None:
        self.connection = connection
        self.method = head.method
        self.target = head.target
        self.minor = head.minor  # of the HTTP version: 1, or 0 for a client that knows neither chunks nor 1xx
        self.headers = head.headers
        self.body = Body(connection)
        self.keep_alive = head.minor == 1 and b"close" not in head.headers.tokens(b"connection")
        self.started = False  # something of the final response was written
        self.continued = False  # the client was told to go on and send its body
        self.finished = False
        self.ends_with_connection = False  # nothing else tells the client where the response ends
        self.status = 0  # of the final response, once there is one

    def write(self, data: bytes) -> None:
        """Send bytes of the response."""
        self.started = True
        self.connection.write(data)

    def write_informational(self, status: int, reason: bytes, headers: Headers) -> None:
        """Send a 1xx response, unless the client does not know them or was already told to go on."""
        if self.minor and not self.started and not (status == 100 and self.continued):
            self.continued |= status == 100
            self.connection.expect_body()
            self.connection.write(b"HTTP/1.1 %d %b\r\n%b\r\n" % (status, reason, headers.block()))

    async def drain(self) -> None:
        """Wait until the client has taken enough of what was written."""
        await self.connection.drain()

    def finish(self) -> None:
        """The response is whole."""
        self.finished = True

    def respond(self, status: int, reason: bytes, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """Send a whole response of the gateway's own."""
        self.status = status
        self.keep_alive &= not self.connection.is_ending
        fields = Headers(headers)
        if status != 204:
            fields = fields.with_value(b"content-length", b"%d" % len(body))
        if not self.keep_alive:
            fields.add(b"Connection", b"close")
        head = b"HTTP/1.1 %d %b\r\n%b\r\n" % (status, reason, fields.block())
        self.write(head if self.method == b"HEAD" else head + body)
        self.finish()

    async def read_body(self, bytes_max: int) -> tuple[bytes, bool]:
        """The body, and True; or its beginning, and False, if it is larger than `bytes_max`."""
        if not self.body.complete and not self.continued and self.minor and self.expects_continue:
            self.continued = True
            self.connection.expect_body()
            self.connection.write(CONTINUE)
        if self.body.complete:
            data = self.body.take()
            return data, len(data) <= bytes_max
        pieces, size = [], 0
        while piece := await self.body.read():
            pieces.append(piece)
            size += len(piece)
            if size > bytes_max:
                return b"".join(pieces), False
        return b"".join(pieces), True

    @property
    def expects_continue(self) -> bool:
        return b"100-continue" in self.headers.tokens(b"expect")


class ClientGone(Exception):
    """The client left before its request was whole."""


class Listener:
    """All connections of clients."""

    def __init__(self, handle: Callable[[Exchange], Awaitable[None]], limits: Limits) -> None:
        self.handle = handle
        self.limits = limits
        self.connections: set[Connection] = set()
        self.turned_away: set[Connection] = set()  # those of them that came when there were too many
        self.draining = False

    def connection(self) -> "Connection":
        """A protocol for one connection: the factory that the event loop's server calls."""
        return Connection(self, asyncio.get_running_loop())

    def sweep(self, now: float) -> None:
        """Close the connections that have been idle, or sending a request, for too long; notice who has left unread."""
        for connection in list(self.connections):
            if now > connection.deadline:
                connection.time_out()
            elif connection.is_held and connection.has_left():
                connection.abort()

    async def drain(self, timeout_s: float) -> None:
        """Let the answers in flight finish, for `timeout_s` at most, then close every connection."""
        self.draining = True
        for connection in list(self.connections):
            connection.close_when_idle()
        tasks = [c.task for c in self.connections if c.task is not None and not c.streaming]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)
        for connection in list(self.connections):
            if connection.task is None or connection.streaming:
                connection.close()  # the others are cut as their tasks end, so that no answer looks whole
        tasks = [c.task for c in self.connections if c.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)


class Connection(Wire):
    """One connection of a client."""

    def __init__(self, listener: Listener, loop: asyncio.AbstractEventLoop) -> None:
        self._listener = listener
        self._limits = listener.limits
        super().__init__(loop, self._limits.stall_timeout)
        self.deadline = loop.time() + listener.limits.request_timeout
        self.task: asyncio.Task[None] | None = None
        self.pinned: dict[object, Wire | None] = {}  # by pool, the upstream connection that serves this one alone
        self.streaming = False  # the response in flight is an event stream, which has no end to wait for
        self._queue: deque[Exchange] = deque()  # pipelined requests, of one read of the socket at most
        self._receiving: Exchange | None = None  # the request whose body is arriving
        self._body_began = False
        self._closing = False
        self._lingering = False
        self._parser = http1.RequestParser(listener.limits.header_bytes_max)
        self._in_head = False
        self._refused: http1.Refused | None = None  # what came behind the requests that are still to be answered
        self._dropped_bytes = 0

    # ---- the transport ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        connections, turned_away = self._listener.connections, self._listener.turned_away
        connections.add(self)
        if len(connections) - len(turned_away) > self._limits.connections_max:
            turned_away.add(self)
            if len(turned_away) > TURNED_AWAY_MAX:
                self.close()
                return
            message = f"more than {self._limits.connections_max} connections"
            self._refuse(http1.Refused(503, b"Service Unavailable", message))

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._listener.connections.discard(self)
        self._listener.turned_away.discard(self)
        if self._receiving is not None:
            self._receiving.body.fail(ClientGone())
            self._receiving = None
        if self.task is not None:
            self.task.cancel()
            self.task = None  # which may not have begun, and then never takes itself out
        self._queue.clear()
        for wire in filter(None, self.pinned.values()):
            wire.close()

    def eof_received(self) -> bool:
        # The end of what a client sends cannot be told from its leaving, which must end a stream at once.
        return False

    def data_received(self, data: bytes) -> None:
        if self._closing and self._receiving is None:
            self._drop(len(data))
            return
        for event in self._parser.feed(data):
            if isinstance(event, http1.Head):
                self._begin(event)
            elif isinstance(event, http1.End):
                self._complete(event)
            elif isinstance(event, http1.Refused):
                self._refuse(event)
            elif self._receiving is not None:
                self._body_began = True
                self._receiving.body.feed(event)
        if self._receiving is not None and not self._lingering:
            self.expect_body()
        if self._parser.in_head != self._in_head:
            self._in_head = self._parser.in_head
            if self._in_head and self.task is None and not self._lingering:
                self.deadline = self.loop.time() + self._limits.request_timeout

    def expect_body(self) -> None:
        """More of the request's body must come in time, unless the client waits to be told to go on."""
        exchange = self._receiving
        if exchange is not None:
            waits = exchange.expects_continue and not exchange.continued and not self._body_began
            self.deadline = _NEVER if waits else self.loop.time() + self.stall_timeout_s

    def time_out(self) -> None:
        """The deadline has passed: silently if the connection is idle, with a status if a request has begun."""
        if self._receiving is not None and not self._lingering:
            if self.is_held or (self._receiving.started and not self._receiving.finished):
                self.expect_body()  # who is not read cannot send, and who is being answered may wait for more of it
                return
            missing = f"nothing more of the request's body for {self.stall_timeout_s:g} s"
        elif self._parser.in_head:
            missing = f"no whole request head within {self._limits.request_timeout:g} s"
        else:
            self.close()
            return
        self._refuse(http1.Refused(408, b"Request Timeout", missing))

    @property
    def is_ending(self) -> bool:
        """Whether the connection closes behind the response in flight."""
        return self._closing and not self._queue and self._refused is None

    def close_when_idle(self) -> None:
        self._closing = True
        if self.task is None:
            self.close()

    # ---- exchanges ----

    def _begin(self, head: http1.Head) -> None:
        exchange = Exchange(self, head)
        self._receiving = exchange
        self._body_began = False
        if self.task is None and not self._lingering:
            self._start(exchange)
        else:
            self._queue.append(exchange)
            if len(self._queue) == 1:
                self.hold_reading()

    def _complete(self, end: http1.End) -> None:
        if self._receiving is not None:
            self._receiving.body.finish(end.trailers)
            self._receiving = None
        if self._lingering:
            self._lingering = False
            self._next()
        else:
            self.deadline = _NEVER

    def _start(self, exchange: Exchange) -> None:
        self.deadline = _NEVER
        if exchange is self._receiving:
            self.expect_body()
        self.task = self.loop.create_task(self._run(exchange))

    async def _run(self, exchange: Exchange) -> None:
        try:
            await self._listener.handle(exchange)
        except ClientGone as gone:
            gone.__traceback__ = None  # whose frames refer to who still refers to the error
            if self._refused is not None and not exchange.started:
                self.task = None
                exchange.body.end()
                self._send_refusal(self._refused)
                return
            self._cut(exchange)
        except asyncio.CancelledError:
            self._cut(exchange)
        except Exception:
            path = exchange.target.partition(b"?")[0]  # a query may hold a token
            log.exception("a request could not be handled", extra={"target": path.decode("latin-1")})
            self._cut(exchange)
        self.task = None
        self.streaming = False
        self.limit_stalls(True)
        exchange.body.end()  # what nobody read would hold up the next request
        self._end(exchange)

    def _end(self, exchange: Exchange) -> None:
        if self.transport is None:
            return
        if not exchange.finished:
            self._cut(exchange)
        elif not exchange.keep_alive or self.is_ending:
            self._close_gently(exchange)
        elif not exchange.body.complete and self._refused is not None:
            self.close()  # what is left of it is malformed
        elif not exchange.body.complete:
            self._linger()
        else:
            self._next()

    def _cut(self, exchange: Exchange) -> None:
        """End the connection without the rest of a response, which must not look whole; what came of it goes out.

        A reset would destroy what a slow client has yet to read, whole responses before this one included. So it is
        only for a response that nothing but the connection's end would end.
        """
        if exchange.started and exchange.ends_with_connection:
            self.abort()
        else:
            self.close()

    def _linger(self) -> None:
        """The response is out before the request was in: take in the rest, for a while, before the next one."""
        self._lingering = True
        self.deadline = self.loop.time() + _LINGER_S

    def _close_gently(self, exchange: Exchange) -> None:
        # Closing while the client still sends would reset the connection and lose the response on its way.
        if exchange.body.complete:
            self.close()
        else:
            exchange.keep_alive = True
            self._closing = True
            self._linger()

    def _next(self) -> None:
        if self._queue:
            if len(self._queue) == 1:
                self.release_reading()
            self._start(self._queue.popleft())
        elif self._refused is not None:
            self._send_refusal(self._refused)
        elif self._closing:
            self.close()
        else:
            self.deadline = self.loop.time() + self._limits.keepalive_timeout

    def _refuse(self, refused: http1.Refused) -> None:
        """Answer what is no request once those before it are answered, and close."""
        log.info("refused a request", extra={"status": refused.status})  # never why: that may quote a token
        if self._lingering:
            self.close()  # its response is out
            return
        self._closing = True
        self.deadline = _NEVER
        if self._receiving is not None:
            self._receiving.body.fail(ClientGone())  # it will never be whole
            self._receiving = None
        self._refused = refused
        if self.task is None:
            self._next()

    def _send_refusal(self, refused: http1.Refused) -> None:
        body = jsonrpc.error(b"", jsonrpc.INVALID_REQUEST, f"{refused.reason.decode()}: {refused}")
        fields = Headers(
            [(b"Content-Type", b"application/json"), (b"Content-Length", b"%d" % len(body)), (b"Connection", b"close")]
        )
        self.write(b"HTTP/1.1 %d %b\r\n%b\r\n%b" % (refused.status, refused.reason, fields.block(), body))
        # Closing while the client still sends would reset the connection and lose the refusal on its way.
        if self.transport is not None and self.transport.can_write_eof():
            self.transport.write_eof()
        self.deadline = self.loop.time() + min(_LINGER_S, self.stall_timeout_s)

    def _drop(self, size_bytes: int) -> None:
        """What comes behind a refusal is nothing to anybody; too much of it is not even taken."""
        self._dropped_bytes += size_bytes
        if self._dropped_bytes > _LINGER_BYTES_MAX and self.task is None:
            self.close()
