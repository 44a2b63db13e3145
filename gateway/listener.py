"""The client's side: connections that turn bytes into exchanges, one at a time and in order.

In: the bytes of requests, read by `core/http1.py`. Out: an `Exchange` for each, given to the handler in a task of its
own, which writes the response's bytes. Always: an exchange that ends without a whole response cuts the connection
(DESIGN 3.5); a client that leaves ends its handler at once (DESIGN 3.6); no reset destroys a response that was sent;
whatever a connection holds is bounded.

aiohttp's server is not used (DESIGN 10): its tasks, futures and readers for each request rule out what a relay saves,
and 3.14.5 makes a chunked request's last trailer a field of the next request.
"""

import asyncio
import enum
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Final

from gateway.buffers import SMALL_BYTES_MAX, Account, Buffers
from gateway.config import Limits
from gateway.core import http1, jsonrpc
from gateway.core.headers import Headers
from gateway.wire import Body, Wire

log = logging.getLogger("taskgate.listener")

_LINGER_S: Final = 10.0
_LINGER_BYTES_MAX: Final = 16 << 20
_QUEUED_BYTES: Final = 2048  # what a request that waits takes, beside its fields
TURNED_AWAY_MAX: Final = 100  # connections beyond `connections_max` that are told so; further ones are only closed
_COMPLAINT_INTERVAL_S: Final = 1.0
_NEVER: Final = float("inf")
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class Exchange:
    """One request of a client, and the way to write its response.

    The response is what is passed to `write`, bytes of HTTP; `finish` says that it is whole.
    """

    __slots__ = (
        "account", "authenticates", "body", "connection", "continued", "ends_with_connection", "finished", "headers",
        "keep_alive", "method", "minor", "started", "status", "taken", "target",
    )  # fmt: skip

    def __init__(self, connection: "Connection", head: http1.Head) -> None:
        self.connection = connection
        self.method = head.method
        self.target = head.target
        self.minor = head.minor  # of the HTTP version: 1, or 0 for a client that knows neither chunks nor 1xx
        self.headers = head.headers
        self.body = Body(connection)
        self.account: Account | None = None  # of a body that is read to be inspected, where that is large
        self.taken = b""  # what was read of the body before it goes up
        self.authenticates = False  # the request carries credentials that are for its connection (upstream.py)
        self.keep_alive = head.keep_alive
        self.started = False  # something of the final response was written
        self.continued = False  # the client was told to go on and send its body
        self.finished = False
        self.ends_with_connection = False  # nothing else tells the client where the response ends
        self.status = 0  # of the final response, once there is one

    def write(self, data: bytes) -> None:
        """Send bytes of the response."""
        if not self.started:
            self.started = True
            if not self.body.complete:
                self.connection.expect_body()
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

    def release(self) -> None:
        """What was read of the body has gone up, and is held no more."""
        if self.account is not None:
            self.account.close()

    def close(self) -> None:
        """Nobody handles it any more: it holds nothing."""
        self.body.end()
        self.release()

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

    async def read_body(self, bytes_max: int) -> bool:
        """Read the body into `taken`; False if that is only its beginning, larger than `bytes_max`. Raises Overloaded.

        Beyond `SMALL_BYTES_MAX` it is read once there is room for all of it: bodies that each wait for the others to
        make room would never end.
        """
        if not self.body.complete and not self.continued and self.minor and self.expects_continue:
            self.continued = True
            self.connection.expect_body()
            self.connection.write(CONTINUE)
        if self.body.complete:
            self.taken = self.body.take()
            if len(self.taken) > SMALL_BYTES_MAX:
                self.account = Account(self.connection.buffers)
                self.account.set(len(self.taken))
            return len(self.taken) <= bytes_max
        pieces, size = [], 0
        while piece := await self.body.read():
            pieces.append(piece)
            size += len(piece)
            if size > SMALL_BYTES_MAX and self.account is None and not self.body.complete:
                await self._reserve(max(size, min(bytes_max, int(self.headers.get(b"content-length") or bytes_max))))
            if size > bytes_max:
                break
        if self.account is not None:
            self.account.set(size)
        self.taken = b"".join(pieces)
        return size <= bytes_max

    def take(self) -> bytes:
        """What was read of the body, which is then the caller's."""
        data, self.taken = self.taken, b""
        return data

    async def _reserve(self, size_bytes: int) -> None:
        self.account = Account(self.connection.buffers)
        await self.account.reserve(size_bytes, self.connection.room_timeout_s)

    @property
    def waits(self) -> bool:
        """Whether the client may be waiting to be told to go on and send its body (RFC 9110, 10.1.1)."""
        return bool(self.minor) and self.expects_continue and not (self.continued or self.connection.body_began)

    @property
    def expects_continue(self) -> bool:
        return b"100-continue" in self.headers.tokens(b"expect")  # HTTP/1.0 is told nothing (RFC 9110, 10.1.1)


class ClientGone(Exception):
    """The client left before its request was whole."""


class Listener:
    """All connections of clients."""

    def __init__(
        self,
        handle: Callable[[Exchange], Awaitable[None]],
        limits: Limits,
        buffers: Buffers,
        on_refused: Callable[[str], None],
    ) -> None:
        self.handle = handle
        self.limits = limits
        self.buffers = buffers
        self.connections_max = limits.connections_max  # that can be kept: file descriptors may be too few
        self._on_refused = on_refused
        self._next_complaint_at = -_NEVER
        self.connections: set[Connection] = set()
        self.turned_away: set[Connection] = set()  # those of them that came when there were too many
        self.draining = False
        self.one_lost = asyncio.Event()

    def connection(self) -> "Connection":
        """A protocol for one connection: the factory that the event loop's server calls."""
        return Connection(self, asyncio.get_running_loop())

    def refused(self, why: str) -> None:
        """Connections cannot be served: `why` is "connections_max", or "descriptors" where the system has none left."""
        self._on_refused(why)
        now = asyncio.get_running_loop().time()
        if now >= self._next_complaint_at:
            self._next_complaint_at = now + _COMPLAINT_INTERVAL_S
            extra = {"why": why, "connections": len(self.connections), "connections_max": self.connections_max}
            log.warning("connections of clients are refused", extra=extra)

    def sweep(self, now: float) -> None:
        """Close the connections that have been idle, or sending a request, for too long; notice who has left unread."""
        for connection in list(self.connections):
            if now > connection.deadline:
                connection.time_out()
            elif connection.is_held:
                connection.look_for_its_end()

    async def drain(self, timeout_s: float) -> None:
        """Let what has come be answered, and be read, for `timeout_s` at most; then close every connection."""
        self.draining = True
        for connection in list(self.connections):
            connection.close_when_idle()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while any(connection.is_busy for connection in self.connections):
                    self.one_lost.clear()
                    await self.one_lost.wait()
        for connection in list(self.connections):
            if connection.task is None or connection.streaming:
                connection.end()  # the others are cut as their tasks end, so that no answer looks whole
        tasks = [c.task for c in self.connections if c.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)
        for connection in list(self.connections):
            connection.close()


class State(enum.Enum):
    """The life of a client's connection.

    IDLE       waits for a request, or for the rest of its head
    SERVING    a handler runs; requests behind wait in the queue, or as bytes
    SKIPPING   the response is out and the request is not in: the rest of its body is dropped
    LINGERING  all has been said; what still comes is dropped, so that no reset destroys what was said
    CLOSED     the connection is lost

    IDLE      a request's head -> SERVING; refused or timed out -> LINGERING
    SERVING   response and request whole -> SERVING (the next in the queue) or IDLE; response whole, request not ->
              SKIPPING; the last response, or a cut -> LINGERING
    SKIPPING  the request's end -> SERVING or IDLE; refused, timed out or the last -> LINGERING
    any       connection lost -> CLOSED
    """

    IDLE = enum.auto()
    SERVING = enum.auto()
    SKIPPING = enum.auto()
    LINGERING = enum.auto()
    CLOSED = enum.auto()


class Connection(Wire):
    """One connection of a client."""

    def __init__(self, listener: Listener, loop: asyncio.AbstractEventLoop) -> None:
        self._listener = listener
        self._limits = listener.limits
        super().__init__(loop, listener.buffers, self._limits.stall_timeout)
        self.state = State.IDLE
        self.deadline = loop.time() + self._limits.request_timeout
        self.task: asyncio.Task[None] | None = None
        self._exchange: Exchange | None = None  # the one that `task` handles
        self.pinned: Wire | None = None  # the upstream connection that serves this one alone
        self.streaming = False  # the response in flight is an event stream, which has no end to wait for
        self._queue: deque[Exchange] = deque()  # pipelined requests; as long as there is one, nothing is read
        self._queued = Account(self.buffers)
        self._receiving: Exchange | None = None  # the request whose body is arriving
        self._body_began = False
        self._last = False  # nothing is served behind what came already
        self._refused: http1.Refused | None = None  # what came behind the requests that are still to be answered
        self._reader = http1.RequestReader(self._limits.header_bytes_max)
        self._reading = False  # events are being taken
        self._in_head = False
        self._dropped_bytes = 0

    # ---- the transport ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        connections, turned_away = self._listener.connections, self._listener.turned_away
        connections.add(self)
        if len(connections) - len(turned_away) > self._listener.connections_max:
            turned_away.add(self)
            self._listener.refused("connections_max")
            if len(turned_away) > TURNED_AWAY_MAX:
                self.close()
                return
            message = f"more than {self._listener.connections_max} connections"
            self._refuse(http1.Refused(503, b"Service Unavailable", message))

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.state = State.CLOSED
        self._listener.connections.discard(self)
        self._listener.turned_away.discard(self)
        self._listener.one_lost.set()
        if self._receiving is not None:
            self._receiving.body.fail(ClientGone())
            self._receiving = None
        if self.task is not None:
            self.task.cancel()
            self.task = None  # which may not have begun, and then never takes itself out
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None
        self._forget_queue()
        self._reader.close()
        if self.pinned is not None:
            self.pinned.close()

    def pin(self, wire: Wire) -> None:
        """Keep an upstream connection that serves this one alone, in place of the one before."""
        if self.pinned is not None and self.pinned is not wire:
            self.pinned.close()
        self.pinned = wire

    def _forget_queue(self) -> None:
        for exchange in self._queue:
            exchange.close()
        if self._queue:
            self._queue.clear()
            self.release_reading()
        self._queued.close()

    def eof_received(self) -> bool:
        # The end of what a client sends cannot be told from its leaving, which must end a stream at once.
        if self._nothing_else_ends_it():
            self.abort()  # or what came of the response would look whole
        return False

    def _nothing_else_ends_it(self) -> bool:
        """Whether a response is under way whose end is the connection's."""
        exchange = self._exchange
        return exchange is not None and exchange.started and exchange.ends_with_connection and not exchange.finished

    def data_received(self, data: bytes) -> None:
        if self.state is State.LINGERING:
            self._drop(len(data))
            return
        self._reader.add(data)
        self._read_on()

    def _read_on(self) -> None:
        """Read what has arrived, up to a request that must wait for its turn."""
        if self._reading:
            return  # an event that is being taken leads here: what comes behind it is read when all with it are taken
        self._reading, reader = True, self._reader
        try:
            while reader.pending_bytes and not self._queue and self.state is not State.LINGERING:
                for event in reader.read():
                    self._take(event)
        finally:
            self._reading = False
        if self._queue:
            heads = sum(exchange.headers.size_bytes() + _QUEUED_BYTES for exchange in self._queue)
            self._queued.set(heads + reader.pending_bytes)
        if self._receiving is not None and self.state is not State.SKIPPING:
            self.expect_body()
        in_head = reader.state is http1.State.HEAD
        if in_head != self._in_head:
            self._in_head = in_head
            if in_head and self.state is State.IDLE:
                self.deadline = self.loop.time() + self._limits.request_timeout

    def _take(self, event: http1.Event) -> None:
        if self.state is State.LINGERING:
            return  # an event before this one was the last
        if isinstance(event, http1.Head):
            self._begin(event)
        elif isinstance(event, http1.End):
            self._complete(event)
        elif isinstance(event, http1.Refused):
            self._refuse(event)
        elif self._receiving is not None:
            self._body_began = True
            self._receiving.body.feed(event)

    def expect_body(self) -> None:
        """More of the request's body must come in time, unless the client waits to be told to go on."""
        exchange = self._receiving
        if exchange is not None:
            waits = exchange.waits and not exchange.started
            self.deadline = _NEVER if waits else self.loop.time() + self.stall_timeout_s

    @property
    def body_began(self) -> bool:
        """Whether something of the body has come of the request whose body is arriving."""
        return self._body_began

    @property
    def room_timeout_s(self) -> float:
        """How long a request waits for room in the buffers."""
        return self._limits.request_timeout

    def time_out(self) -> None:
        """The deadline has passed: silently if the connection is idle, with a status if a request has begun."""
        if self._receiving is not None and self.state is State.SERVING:
            if self.is_held or (self._receiving.started and not self._receiving.finished):
                self.expect_body()  # who is not read cannot send, and who is being answered may wait for more of it
                return
            missing = f"nothing more of the request's body for {self.stall_timeout_s:g} s"
        elif self.state is State.IDLE and self._in_head:
            missing = f"no whole request head within {self._limits.request_timeout:g} s"
        else:
            if self.state is State.SKIPPING:
                self._hang_up()
            else:
                self.close()
            return
        self._refuse(http1.Refused(408, b"Request Timeout", missing))

    def look_for_its_end(self) -> None:
        """Notice that the client has left, which the loop does not see of a connection that is not read."""
        left = self.has_left()
        if left == "reset" or (left and self._nothing_else_ends_it()):
            self.abort()
        elif left:
            self._hang_up()
            if self.task is not None:
                self.task.cancel()

    @property
    def is_ending(self) -> bool:
        """Whether the connection closes behind the response in flight."""
        return self._last and not self._queue and self._refused is None

    @property
    def is_busy(self) -> bool:
        """Whether a drain waits for it: for the end of an answer, or for its reader, but for no end of a stream."""
        return self.state in (State.SERVING, State.SKIPPING, State.LINGERING) and not self.streaming

    def end(self) -> None:
        """End it now; a response whose end is the connection's must not look whole."""
        if self._nothing_else_ends_it():
            self.abort()
        else:
            self.close()

    def close_when_idle(self) -> None:
        """Serve what has come, then close."""
        self._last = True
        if self.state is State.IDLE:
            self.close()

    # ---- exchanges ----

    def _begin(self, head: http1.Head) -> None:
        exchange = Exchange(self, head)
        self._receiving = exchange
        self._body_began = False
        if self.state is State.IDLE:
            self._start(exchange)
        else:
            self._queue.append(exchange)
            if len(self._queue) == 1:
                self.hold_reading()

    def _complete(self, end: http1.End) -> None:
        if self._receiving is not None:
            self._receiving.body.finish(end.trailers)
            self._receiving = None
        if self.state is State.SKIPPING:
            self._next()
        else:
            self.deadline = _NEVER

    def _start(self, exchange: Exchange) -> None:
        self.state = State.SERVING
        self._exchange = exchange
        self.deadline = _NEVER
        if exchange is self._receiving:
            self.expect_body()
        self.task = self.loop.create_task(self._run(exchange))

    async def _run(self, exchange: Exchange) -> None:
        refused: http1.Refused | None = None
        try:
            await self._listener.handle(exchange)
        except ClientGone as gone:
            gone.__traceback__ = None  # whose frames refer to who still refers to the error
            refused = None if exchange.started else self._refused
        except asyncio.CancelledError:
            pass
        except Exception:
            path = exchange.target.partition(b"?")[0]  # a query may hold a token
            log.exception("a request could not be handled", extra={"target": path.decode("latin-1")})
        self.task = self._exchange = None
        self.streaming = False
        self.limit_stalls(True)
        exchange.close()  # what nobody read would hold up the next request
        if self.state is State.SERVING:
            self._end(exchange, refused)

    def _end(self, exchange: Exchange, refused: http1.Refused | None) -> None:
        if refused is not None:
            self._send_refusal(refused)
        elif not exchange.finished:
            self._cut(exchange)
        elif exchange.body.complete and exchange.keep_alive and not self.is_ending:
            self._next()
        elif exchange.body.complete or self._refused is not None:
            self._hang_up()  # what is left of the body, if anything is, is malformed
        else:
            self._last |= not exchange.keep_alive
            self.state = State.SKIPPING
            self.deadline = self.loop.time() + _LINGER_S

    def _cut(self, exchange: Exchange) -> None:
        """End the connection without the rest of a response, which must not look whole; what came of it goes out.

        A reset would destroy what a slow client has yet to read, whole responses before this one included. So it is
        only for a response that nothing but the connection's end would end.
        """
        if exchange.started and exchange.ends_with_connection:
            self.abort()
        else:
            self._hang_up()

    def _hang_up(self) -> None:
        """Say no more, and drop what still comes, until the client closes: a reset would destroy what was said.

        As nginx lingers. Behind TLS the transport itself waits for the client's close_notify.
        """
        self.state = State.LINGERING
        self._reader.close()
        self._forget_queue()
        for exchange in (self._receiving, self._exchange):
            if exchange is not None:
                exchange.body.end()  # which may hold up reading
        self._receiving = None
        if self.transport is None or self.transport.is_closing():
            return
        self.deadline = self.loop.time() + min(_LINGER_S, self.stall_timeout_s)
        try:
            self.transport.write_eof()
        except (NotImplementedError, OSError):  # TLS, or the client has left
            self.close()

    def _next(self) -> None:
        """Serve the request that waits, or what was refused behind them, or wait for one."""
        self.state = State.IDLE
        if self._queue:
            exchange = self._queue.popleft()
            if not self._queue:
                self._queued.close()
                self.release_reading()
            self._start(exchange)
            self._read_on()
        elif self._refused is not None:
            self._send_refusal(self._refused)
        elif self._last:
            self._hang_up()
        else:
            self.deadline = self.loop.time() + self._limits.keepalive_timeout
            self._read_on()

    def _refuse(self, refused: http1.Refused) -> None:
        """Answer what is no request once those before it are answered, and close."""
        log.info("refused a request", extra={"status": refused.status})  # never why: that may quote a token
        if self.state is State.SKIPPING:
            self._hang_up()  # its response is out
            return
        self._last = True
        self.deadline = _NEVER
        if self._receiving is not None:
            self._receiving.body.fail(ClientGone())  # it will never be whole
            self._receiving = None
        self._refused = refused
        if self.state is State.IDLE:
            self._send_refusal(refused)

    def _send_refusal(self, refused: http1.Refused) -> None:
        body = jsonrpc.error(b"", jsonrpc.INVALID_REQUEST, f"{refused.reason.decode()}: {refused}")
        fields = Headers(
            [(b"Content-Type", b"application/json"), (b"Content-Length", b"%d" % len(body)), (b"Connection", b"close")]
        )
        self.write(b"HTTP/1.1 %d %b\r\n%b\r\n%b" % (refused.status, refused.reason, fields.block(), body))
        self._hang_up()

    def _drop(self, size_bytes: int) -> None:
        """What comes behind all that was said is nothing to anybody; too much of it is not even taken."""
        self._dropped_bytes += size_bytes
        if self._dropped_bytes > _LINGER_BYTES_MAX:
            self.close()
