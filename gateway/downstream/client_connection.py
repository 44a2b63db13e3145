"""The connections of clients: bytes become exchanges, handled one at a time and in order.

In: the bytes of requests. Out: an `Exchange` for each, given to the handler in a task of its own.
Always: an exchange that ends without a whole response cuts the connection (DESIGN 3.5); a client that leaves ends its
handler at once (DESIGN 3.6); no reset destroys a response that was sent; whatever a connection holds is bounded.
Connections beyond `connections_max` are refused, and those for which the system has no file descriptors. A drain waits
for answers and for their readers, never for the end of a stream.

Each state of a connection has a deadline; beyond it the connection is late (`time_out`).

HANDSHAKE  its TLS handshake is under way (tls_handshakes.py)
IDLE       nothing has come of the next request
HEAD       a part of the next request's head has come
SERVING    a handler runs; what comes behind its request waits as bytes
SKIPPING   the response is out and the request is not in: the rest of its body is dropped
LINGERING  all answers are written; what still comes is dropped, so that no reset destroys them
CLOSED     the connection is lost; nothing leads from here

A connection begins as HANDSHAKE behind TLS, else as IDLE. What leads from one state to the next (`-`: cannot be):

                             HANDSHAKE       IDLE            HEAD       SERVING              SKIPPING   LINGERING
the handshake is done        IDLE/LINGERING  -               -          -                    -          -
the handshake fails          CLOSED          -               -          -                    -          -
a part of a head comes       -               HEAD            HEAD       SERVING              -          LINGERING
a head is whole              -               SERVING         SERVING    SERVING              -          LINGERING
what comes is refused        -               LINGERING       LINGERING  SERVING/LINGERING    LINGERING  LINGERING
the rest of a request comes  -               -               -          SERVING              (next)     LINGERING
the response is whole        -               -               -          (next)/SKIPPING      -          -
the response is cut          -               -               -          LINGERING/CLOSED     -          -
it is late                   CLOSED          CLOSED          LINGERING  SERVING/LINGERING    LINGERING  CLOSED
a drain begins               CLOSED          CLOSED          CLOSED     SERVING              SKIPPING   LINGERING
a drain ends                 CLOSED          CLOSED          CLOSED     CLOSED               CLOSED     CLOSED
the client leaves            CLOSED          CLOSED          CLOSED     CLOSED               CLOSED     CLOSED

(next): what waits is read, so SERVING, HEAD, or LINGERING if it is refused; LINGERING if the connection ends here;
else IDLE. A connection that is not served at all (`connections_max`) is refused as soon as it can be. A request that is
refused, or late, while it is served fails in its handler. A response is cut by a reset where the client could take it
for whole, and then nothing lingers.
"""

import asyncio
import logging
import os
import resource
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, Literal, TypeAlias

from gateway.config import Limits
from gateway.downstream.exchange import ClientGone, Exchange, write_refusal
from gateway.errors import without_frames
from gateway.http.parsed_head_cache import ConnectionHeads, HeadCache
from gateway.http.request_parser import Head, Refusal, RequestEvent, RequestReader
from gateway.transport.base_connection import ClientWire
from gateway.transport.memory_budget import Buffers, Reservation
from gateway.transport.repeated_log_lines import LogLimit

log = logging.getLogger("taskgate.listener")

TURNED_AWAY_MAX: Final = 100  # connections that get a 503 at a time; further ones are only closed
_OTHERS: Final = 64  # descriptors for listeners, the log, the admin listener, DNS
_RESERVED: Final = _OTHERS + TURNED_AWAY_MAX
_LINGER_S: Final = 10.0
_WAITING_BYTES_MAX: Final = 4096  # behind a request: then no more is read
_NEVER: Final = float("inf")
_LATE: Final = (408, b"Request Timeout")

Handle: TypeAlias = Callable[[Exchange], Awaitable[None]]
_Count: TypeAlias = Callable[[str], None]
State: TypeAlias = Literal["HANDSHAKE", "IDLE", "HEAD", "SERVING", "SKIPPING", "LINGERING", "CLOSED"]


class ClientConnection(ClientWire):
    def __init__(self, owner: "Listener", loop: asyncio.AbstractEventLoop, begins: State = "IDLE") -> None:
        super().__init__(loop, owner.buffers, owner.limits)
        self._owner = owner
        self._enter(begins, self.loop.time() + self.limits.request_timeout)
        self._exchange: Exchange | None = None  # that is served, and the task of its handler
        self._task: asyncio.Task[None] | None = None
        self._receiving: Exchange | None = None  # the one whose body is arriving
        self._held = Reservation(owner.buffers)  # for a head that has begun, and for what waits behind a request
        self._has_paused = False  # so much waits
        self._refused: Refusal | None = None  # to be answered in place of the request that is served, or behind it
        self._is_last = False  # the connection ends once all requests that came are answered
        self.cached_heads = ConnectionHeads(owner)
        self._reader = RequestReader(owner.limits.header_bytes_max, owner.limits.header_fields_max, self.cached_heads)

    def _enter(self, state: State, deadline: float = _NEVER) -> None:
        """Be in that state. Nothing else enters one."""
        self.state, self.deadline = state, deadline

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.name_client(transport.get_extra_info("peername"))
        if (refused := self._owner.opened(self)) is not None:
            self._refuse(refused)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._enter("CLOSED")
        self._owner.lost(self)
        self._break_off()
        if self._exchange is not None and self._task is not None:
            self._task.cancel()
            self._exchange.request.close()
            self._exchange = self._task = None  # a task that has not begun never clears them itself
        self._held.close()
        self._reader.close()

    def eof_received(self) -> None:
        # A half-close looks as if the client left, and a client that leaves must end its stream at once.
        if self._would_look_whole:
            self.abort()

    # ---- what arrives ----

    def data_received(self, data: bytes) -> None:
        self._reader.add(data)
        self._read_on()

    def _read_on(self) -> None:
        """Read what has arrived, but nothing behind a request that is served."""
        reader = self._reader
        while reader.pending_bytes and self.state != "LINGERING" and (self._receiving or not self._exchange):
            for event in reader.read():
                self._take(event)
        self._count()
        if not self._held.has_room(reader.held_bytes):
            reader.close()
            self._refuse(Refusal("limits.held_bytes_max is reached", 503, b"Service Unavailable"))
        if self._receiving is not None and self.state != "SKIPPING":
            self.expect_body()
        if self.state == "IDLE" and reader.state == "HEAD":
            self._enter("HEAD", self.loop.time() + self.limits.request_timeout)
        if self._is_last and self.state in ("IDLE", "HEAD"):
            self._hang_up()

    def _count(self) -> None:
        """Count the memory of a head that has begun, and of what waits; of that only little is read."""
        waiting_bytes = 0 if self._receiving else self._reader.pending_bytes
        self._held.set(self._reader.held_bytes + waiting_bytes)
        if (waiting_bytes >= _WAITING_BYTES_MAX) != self._has_paused:
            self._has_paused = not self._has_paused
            self.pause_reading() if self._has_paused else self.resume_reading()

    def _take(self, event: RequestEvent) -> None:
        if self.state == "LINGERING":
            return  # an event before this one was the last
        if isinstance(event, Head):
            self._receiving = exchange = Exchange.of(self, event)
            self._enter("SERVING")
            self._exchange, self._task = exchange, self.loop.create_task(_run(self, self._owner.handle, exchange))
        elif isinstance(event, bytes):
            if self._receiving is not None:
                self._receiving.request.body.feed(event)
        elif isinstance(event, Refusal):
            self._refuse(event)
        elif self._receiving is not None:
            self._receiving.request.body.finish(event)
            self._receiving = None
            if self.state != "SKIPPING":
                self.deadline = _NEVER
            elif self._is_last:
                self._hang_up()
            else:
                self._enter("IDLE", self.loop.time() + self.limits.keepalive_timeout)

    def _break_off(self) -> None:
        """Fail the request that is arriving: it will never be whole."""
        if self._receiving is not None:
            self._receiving.request.is_cut = self._receiving.request.body.fail(ClientGone())
            self._receiving = None

    def expect_body(self) -> None:
        if self._receiving is not None:
            waits = self._receiving.request.waits and not self._receiving.response.started
            self.deadline = _NEVER if waits else self.loop.time() + self.limits.stall_timeout

    def _refuse(self, refused: Refusal) -> None:
        """Send a refusal, once the request that is served has failed, and close."""
        self._owner.unreadable(self, refused)
        if self.state == "SKIPPING":
            self._hang_up()  # its response is out
            return
        self.deadline = _NEVER
        self._break_off()
        self._refused = refused
        if self.state != "SERVING":
            self._hang_up(refused)

    # ---- exchanges ----

    def handled(self, exchange: Exchange) -> None:
        """Decide what follows an exchange."""
        self._exchange = self._task = None
        self.limit_stalls(True)
        came = exchange.request.body.is_whole
        exchange.request.close()  # a body that nobody read would hold up the next request
        if self.state != "SERVING":
            return
        if not exchange.response.started and self._refused is not None:
            self._hang_up(self._refused)  # its request broke off
        elif not exchange.response.finished:
            # A reset also destroys earlier responses that are unread. So it is sent only if nothing else shows the cut.
            self.abort() if exchange.response.would_look_whole else self._hang_up()
        elif came and exchange.response.keep_alive and self._refused is not None:
            self._hang_up(self._refused)  # what came in one piece with the end of this request
        elif came and exchange.response.keep_alive and not self.is_ending:
            self._enter("IDLE", self.loop.time() + self.limits.keepalive_timeout)
            if self._reader.pending_bytes:
                self._read_on()
        elif came or self._refused is not None:
            self._hang_up()  # any rest of the body is malformed
        else:
            self._is_last |= not exchange.response.keep_alive
            self._enter("SKIPPING", self.loop.time() + _LINGER_S)

    @property
    def is_ending(self) -> bool:
        return self._is_last and not self._reader.pending_bytes

    # ---- the end ----

    def time_out(self) -> None:
        """The deadline has passed: close in silence if the connection is idle, refuse a request that has begun."""
        if self.state == "HEAD":
            self._refuse(Refusal(f"no whole request head within {self.limits.request_timeout:g} s", *_LATE))
        elif self.state == "SKIPPING":
            self._hang_up()
        elif self.state != "SERVING" or self._receiving is None:
            self.close()
        elif self.is_paused or (self._receiving.response.started and not self._receiving.response.finished):
            self.expect_body()  # a client that is not read cannot send; one that is answered may wait for the rest
        else:
            self._refuse(Refusal(f"nothing more of the request's body for {self.limits.stall_timeout:g} s", *_LATE))

    @property
    def _would_look_whole(self) -> bool:
        """Whether the response would look whole if the connection ended now without a reset."""
        return self._exchange is not None and self._exchange.response.would_look_whole

    def check_end(self) -> None:
        """Notice that the client has left: the loop does not see it while the connection is not read."""
        left = self.has_left()
        if left == "reset" or (left and self._would_look_whole):
            self.abort()
        elif left:
            self._hang_up()
            if self._task is not None:
                self._task.cancel()

    @property
    def is_busy(self) -> bool:
        """Whether a drain waits for it: for the end of an answer, or for its reader, never for the end of a stream."""
        streams = self._exchange is not None and self._exchange.response.streams
        return self.state in ("SERVING", "SKIPPING", "LINGERING") and not streams

    def close_when_idle(self) -> None:
        """Serve what has come, then close."""
        self._is_last = True
        if self.state in ("HANDSHAKE", "IDLE", "HEAD"):
            self.close()

    def end(self) -> "asyncio.Task[None] | None":
        """End it now. Returns its handler, which is cancelled; the handler's end cuts a response under way."""
        if self._would_look_whole:
            self.abort()
        elif self._task is None or not self.is_busy:
            self.close()
        if self._task is not None:
            self._task.cancel()
        return self._task

    def _hang_up(self, refused: Refusal | None = None) -> None:
        """Send a refusal, if there is one, and linger, as nginx does; a transport of TLS waits for the close_notify."""
        if refused is not None:
            write_refusal(self, refused)
        self._enter("LINGERING", self.loop.time() + min(_LINGER_S, self.limits.stall_timeout))
        self._reader.close()
        for exchange in filter(None, (self._receiving, self._exchange)):
            exchange.request.body.drop()  # unread, it may hold up reading
        self._receiving = None
        self._count()
        self.end_writing()


async def _run(connection: ClientConnection, handle: Handle, exchange: Exchange) -> None:
    try:
        await handle(exchange)
    except (asyncio.CancelledError, ClientGone) as ended:
        without_frames(ended)
    except Exception:
        log.exception("a request could not be handled")  # a fault of what handles faults
    connection.handled(exchange)


class Listener:
    """All connections of clients. Those that are not served, and handshakes that fail, are counted by reason."""

    def __init__(
        self, handle: Handle, limits: Limits, buffers: Buffers, heads: HeadCache[Any], refused: _Count, failed: _Count
    ) -> None:
        self.handle = handle
        self.limits = limits
        self.buffers = buffers
        self.heads = heads
        self.connections_max = limits.connections_max  # fewer if there are too few file descriptors
        self._count_refused, self._count_failed = refused, failed
        self._said = LogLimit(asyncio.get_running_loop().time)
        self.connections: set[ClientConnection] = set()
        self.turned_away: set[ClientConnection] = set()  # those of `connections` beyond `connections_max`
        self._check_again = asyncio.Event()

    @property
    def served(self) -> int:
        """How many connections there are, without those beyond `connections_max`."""
        return len(self.connections) - len(self.turned_away)

    def gauges(self) -> dict[str, tuple[str, float]]:
        """The connections that are there now, and their limit: name of the metric to (help, value)."""
        return {
            "connections": ("Connections of clients, without those that are refused.", self.served),
            "connections_max": ("Limit of connections: those that can be kept.", self.connections_max),
        }

    def connection(self) -> ClientConnection:
        """A protocol for one connection: the factory that the event loop's server calls."""
        return ClientConnection(self, asyncio.get_running_loop())

    def opened(self, connection: ClientConnection) -> Refusal | None:
        """A connection has come. Connections beyond `connections_max` get a 503 that they can read."""
        if connection in self.connections:
            return None  # it has counted since its handshake began
        self.connections.add(connection)
        if self.served <= self.connections_max:
            return None
        self.turned_away.add(connection)
        self.refused("connections_max")
        if len(self.turned_away) > TURNED_AWAY_MAX:
            connection.close()
            return None
        return Refusal(f"more than {self.connections_max} connections", 503, b"Service Unavailable")

    def lost(self, connection: ClientConnection) -> None:
        self.connections.discard(connection)
        self.turned_away.discard(connection)
        self._check_again.set()

    def refused(self, why: str) -> None:
        """A connection cannot be served. `why` is "connections_max", or "descriptors" if the system has none left."""
        self._count_refused(why)
        extra = {"why": why, "connections": len(self.connections), "connections_max": self.connections_max}
        self._said.say(log, logging.WARNING, "connections of clients are refused", extra)

    def unreadable(self, connection: ClientConnection, refused: Refusal) -> None:
        extra = {"status": refused.status, "client": connection.address, "why": refused.why}
        self._said.say(log, logging.INFO, "refused a request", extra, refused.why)

    def handshake_failed(self, connection: ClientConnection, reason: str, said: str) -> None:
        """A TLS handshake has failed. `said` is OpenSSL's name of it, empty if it has none."""
        self._count_failed(reason)
        extra = {"client": connection.address, "reason": reason} | ({"openssl": said} if said else {})
        self._said.say(log, logging.INFO, "a TLS handshake failed", extra)

    def sweep(self, now: float) -> None:
        """Time out the connections past their deadline. Notice which clients have left while they were not read."""
        self._said.sweep()
        self._check_again.set()  # at what a drain waits for: an answer may have become a stream
        for connection in list(self.connections):
            if now > connection.deadline:
                connection.time_out()
            elif connection.is_paused:
                connection.check_end()

    async def drain(self, timeout_s: float) -> None:
        """Let requests be answered, and answers be read, for `timeout_s` at most; then close every connection."""
        for connection in list(self.connections):
            connection.close_when_idle()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while any(connection.is_busy for connection in self.connections):
                    self._check_again.clear()
                    await self._check_again.wait()
        tasks = [task for connection in list(self.connections) if (task := connection.end()) is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)
        for connection in list(self.connections):
            connection.close()
        self._said.flush()


def connections_kept(connections_max: int) -> int:
    """Raise the limit of descriptors, two for a client, as allowed. Returns how many clients can be connected."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * connections_max + _RESERVED
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections_max
    kept = max(1, (soft - _RESERVED) // 2)
    extra = {"connections_max": connections_max, "descriptors": soft, "kept": kept}
    too_few = "limits.connections_max cannot be kept: too few file descriptors (ulimit -n, LimitNOFILE)"
    level = logging.INFO if connections_max == Limits().connections_max else logging.WARNING  # nobody asked for it
    logging.getLogger("taskgate").log(level, too_few, extra=extra)
    return kept


def are_exhausted() -> bool:
    """Whether no descriptor is left, so that no connection can be accepted."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return True
    return False
