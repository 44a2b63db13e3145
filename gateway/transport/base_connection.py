"""The base of clients' and upstreams' connections: back-pressure in both directions.

In: bytes as a transport delivers them, and bytes to send. Out: `data_received` for what arrives.
Always: reading is paused as long as anybody asks for that; what a peer has yet to take is counted. A peer that has
vanished, or does not take what is sent to it, loses its connection after `stall_timeout`.

At the end of a connection the TLS layers of both event loops drop what they hold. So they hold nothing then: while they
hold records, the socket is not read, and its end is not seen; of a record that was opened nothing stays with OpenSSL.
"""

import asyncio
import os
import select
import socket
import ssl
import struct
from contextlib import suppress
from random import uniform
from socket import SO_KEEPALIVE, SO_LINGER, SOL_SOCKET
from typing import Any, Final, Literal, TypeAlias
from weakref import WeakValueDictionary

from gateway.config import Limits
from gateway.http.parsed_head_cache import ConnectionHeads
from gateway.transport.memory_budget import READ_BYTES_MIN, Buffers, Reservation

_RESET_SEEN: Final = select.POLLHUP | select.POLLERR
_END_SEEN: Final = getattr(select, "POLLRDHUP", 0)
_KEEPIDLE_MAX_S: Final = 32767  # the most that Linux takes
_OPTION_MAX: Final = 2**31 - 1
_RESET: Final = struct.pack("ii", 1, 0)  # on, for 0 seconds: what is not sent yet is dropped, and RST is sent


Ends: TypeAlias = tuple[tuple[str, int], tuple[str, int]]  # address and port of its own, and of the other side


class Links:
    """The gateway's connections to upstreams by both ends (a port may serve several): one that leads back shows."""

    def __init__(self) -> None:
        self.opened: WeakValueDictionary[Ends | None, Wire] = WeakValueDictionary()
        self.reading_on: set[asyncio.Task[None]] = set()  # streams that are read on behind a response (own_requests.py)

    def has_other_end_of(self, wire: "Wire") -> bool:
        """Whether this accepted connection was opened by the gateway itself. Found out once, at its first request."""
        if wire.is_own is None:
            opened = None if wire.link is None else self.opened.get(wire.link[::-1])
            wire.is_own = opened is not None and opened.transport is not None
        return wire.is_own


class Wire(asyncio.BufferedProtocol):
    """A connection. Reading may be paused for several reasons at once; writing waits for a slow peer."""

    __slots__ = (
        "__weakref__", "_drained", "_input", "_pauses", "_stalls_limited", "_tls", "_unsent",
        "buffers", "is_own", "limits", "link", "loop", "transport",
    )  # fmt: skip

    def __init__(self, loop: asyncio.AbstractEventLoop, buffers: Buffers, limits: Limits) -> None:
        self.loop = loop
        self.buffers = buffers
        self.limits = limits
        self._unsent = Reservation(buffers)  # in the transport's buffer, while that is over its limit
        self.transport: asyncio.Transport | None = None
        self._tls: ssl.SSLObject | None = None
        self.link: Ends | None = None
        self.is_own: bool | None = None  # of an accepted connection: the gateway opened it; None before it was asked
        self._pauses = 0
        self._input: select.poll | None = None
        self._stalls_limited = True
        self._drained: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # uvloop's are no asyncio.Transport
        self._tls = transport.get_extra_info("ssl_object")
        if self._tls is not None:
            transport.set_read_buffer_limits(high=1, low=0)  # type: ignore[attr-defined]
        ends = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
        if isinstance(ends[0], tuple) and isinstance(ends[1], tuple):
            self.link = ends[0][:2], ends[1][:2]
        _end_stalls(transport.get_extra_info("socket"), self.limits.stall_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.resume_writing()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.buffers.to_read_into

    def buffer_updated(self, nbytes: int) -> None:
        came = self.buffers.scratch
        if self._tls is not None and (rest := self._tls.pending()):
            nbytes += self._tls.read(rest, came[nbytes:])  # type: ignore[operator]  # it returns a count
        data = bytes(came[:nbytes])
        if nbytes >= READ_BYTES_MIN and self.buffers.took(nbytes, self.resume_reading):
            self.pause_reading()
        self.data_received(data)

    def data_received(self, data: bytes) -> None:
        raise NotImplementedError

    def is_ended_by_peer(self) -> bool:
        """At an end: whether the peer has said it, over TLS by a close_notify. FIN alone can come from anybody."""
        try:
            return self._tls is None or not self._tls.read(1)
        except ssl.SSLWantReadError:
            return False

    def pause_writing(self) -> None:
        self._drained = self.loop.create_future()
        assert self.transport is not None
        self._unsent.set(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._unsent.close()
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._drained = None

    @property
    def is_full(self) -> bool:
        """Whether so much is unsent that `drain` waits."""
        return self._drained is not None

    async def drain(self) -> None:
        """Wait until the peer has taken enough of what was written."""
        if self._drained is not None:
            await asyncio.shield(self._drained)

    def write(self, data: bytes) -> None:
        """Send bytes. They are dropped if the connection has ended: only its reader is told that it has."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)
            if self._drained is not None:
                self._unsent.set(self.transport.get_write_buffer_size())

    @property
    def is_paused(self) -> bool:
        """Whether reading waits, for example until somebody has taken what arrived."""
        return self._pauses > 0

    def pause_reading(self) -> None:
        self._pauses += 1
        if self._pauses == 1 and self.transport is not None:
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        self._pauses -= 1
        if self._pauses == 0 and self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def has_left(self) -> "Literal['', 'end', 'reset']":
        """How the peer has left; "" if it has not. The loop does not notice it while reading is paused."""
        sock = self.transport.get_extra_info("socket") if self.transport is not None else None
        if sock is None:  # uvloop's TLS has no socket any more once it closes
            return "reset"
        poll = select.poll()
        poll.register(sock.fileno(), _RESET_SEEN | _END_SEEN)
        seen = poll.poll(0)
        return "" if not seen else "reset" if seen[0][1] & _RESET_SEEN else "end"

    def has_input(self) -> bool:
        """Whether unread bytes, or the end, have arrived; the loop may not have come round to them yet."""
        assert self.transport is not None
        if self._input is None:
            self._input = select.poll()
            self._input.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN | select.POLLHUP)
        return bool(self._input.poll(0))

    def unread(self) -> bytes:
        """What has arrived on a connection that has just ended: the loop does not read it. Of TLS nothing."""
        if self._tls is None and self.transport is not None and self.has_input():
            with suppress(OSError):
                return os.read(self.transport.get_extra_info("socket").fileno(), len(self.buffers.scratch))
        return b""

    def limit_stalls(self, limited: bool) -> None:
        """Set whether a peer that takes nothing of what is sent loses the connection after `stall_timeout`."""
        if self.transport is not None and limited != self._stalls_limited:
            self._stalls_limited = limited
            if (sock := self.transport.get_extra_info("socket")) is not None and sock.family != socket.AF_UNIX:
                _set(sock, TCP_USER_TIMEOUT=int(self.limits.stall_timeout * 1000) * limited)

    def abort(self) -> None:
        """Cut the connection with a reset, which no peer can take for the end of a message."""
        if self.transport is not None:
            sock = self.transport.get_extra_info("socket")
            if sock is not None and not self.transport.is_closing():
                sock.setsockopt(SOL_SOCKET, SO_LINGER, _RESET)
            self.transport.abort()

    def end_writing(self) -> None:
        """Tell the peer that nothing more comes. Where only a close can tell it, the connection is closed."""
        if self.transport is not None and not self.transport.is_closing():
            try:
                self.transport.write_eof()
            except (NotImplementedError, OSError):  # TLS, or the peer has left
                self.close()

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()


class ClientWire(Wire):
    """A client's connection, as its exchanges know it."""

    address: str  # the client's, without its port; "unix" for a Unix socket
    cached_heads: ConnectionHeads[Any]  # the heads that the client sent before

    def name_client(self, peer: object) -> None:
        self.address = self.cached_heads.scope = str(peer[0]) if isinstance(peer, tuple) else "unix"

    @property
    def is_ending(self) -> bool:
        """Whether the connection closes after the response in flight."""
        raise NotImplementedError

    def expect_body(self) -> None:
        """From now on more of the request's body must come in time, unless the client waits to be told to go on."""
        raise NotImplementedError


def _end_stalls(sock: socket.socket, timeout_s: float) -> None:
    """Have the kernel end a connection whose peer answers nothing, or takes nothing of what is sent, for `timeout_s`.

    Only the kernel sees that a peer takes a little now and then: the transport's own buffer moves by megabytes. On a
    quiet connection the kernel asks the peer three times whether it is there. It knows when that of a Unix socket goes.

    Each connection has its own times: Linux sends the probes of all that fell quiet together at once, and drops what is
    beyond `net.core.netdev_max_backlog` (1000) on a loopback, so their peers would seem gone (DESIGN 7.9).
    """
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(SOL_SOCKET, SO_KEEPALIVE, 1)
        first_s = timeout_s * uniform(0.25, 0.5)
        times_s = first_s, (timeout_s - first_s) / 3
        idle_s, interval_s = (min(max(1, int(time_s)), _KEEPIDLE_MAX_S) for time_s in times_s)
        _set(sock, TCP_KEEPIDLE=idle_s, TCP_KEEPINTVL=interval_s, TCP_KEEPCNT=3, TCP_USER_TIMEOUT=int(timeout_s * 1000))


def _set(sock: socket.socket, **options: int) -> None:
    for name, value in options.items():
        if (option := getattr(socket, name, None)) is not None:  # Linux has all of them
            sock.setsockopt(socket.IPPROTO_TCP, option, min(value, _OPTION_MAX))
