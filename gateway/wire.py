"""What both legs of the gateway share: a transport with back-pressure either way, and a body on its way through.

In: pieces of bytes as a transport delivers them. Out: the same pieces to one reader, in order.
Always: no more than `HELD_BYTES_MAX` and one read of the socket is held for a body; then its transport is not read
until the reader has caught up. What is held for all peers together is counted (buffers.py); when that is at its limit,
a body holds one small read. What was held when the sender failed is still handed out before the failure is raised.
A peer that has vanished, or takes nothing of what is there for it, loses its connection after `stall_timeout`.
"""

import asyncio
import select
import socket
import struct
from socket import SO_KEEPALIVE, SO_LINGER, SOL_SOCKET
from typing import Final, Literal

from gateway.buffers import Account, Buffers
from gateway.core.headers import Headers

_RESET_SEEN: Final = select.POLLHUP | select.POLLERR
_END_SEEN: Final = getattr(select, "POLLRDHUP", 0)
HELD_BYTES_MAX: Final = 256 * 1024
UNCOUNTED_BYTES_MAX: Final = 4 * 1024  # of a body: most messages are taken at once, and counting costs
NO_TRAILERS: Final = Headers()
_KEEPIDLE_MAX_S: Final = 32767  # what Linux takes
_USER_TIMEOUT_MAX_MS: Final = 2**31 - 1
_RESET: Final = struct.pack("ii", 1, 0)  # on, for 0 seconds: what is not sent yet is dropped, and RST is sent


class Wire(asyncio.BufferedProtocol):
    """A connection: reading can be held up for several reasons at once, writing waits while the peer is slow."""

    def __init__(self, loop: asyncio.AbstractEventLoop, buffers: Buffers, stall_timeout_s: float) -> None:
        self.loop = loop
        self.buffers = buffers
        self.stall_timeout_s = stall_timeout_s
        self._unsent = Account(buffers)  # what the transport holds, as long as that is too much
        self.transport: asyncio.Transport | None = None
        self._reading_held = 0
        self._stalls_limited = True
        self._drained: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self.transport = transport  # type: ignore[assignment]  # uvloop's are no asyncio.Transport
        _end_stalls(transport.get_extra_info("socket"), self.stall_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.resume_writing()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.buffers.to_read_into

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self.buffers.to_read_into[:nbytes]))

    def data_received(self, data: bytes) -> None:
        """Take in what arrived."""
        raise NotImplementedError

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
        """Whether the peer has yet to take so much that `drain` waits."""
        return self._drained is not None

    async def drain(self) -> None:
        """Wait until the peer has taken enough of what was written."""
        if self._drained is not None:
            await asyncio.shield(self._drained)

    def write(self, data: bytes) -> None:
        """Send bytes; nothing happens if the connection has ended. Its reader is told of that, not its writer."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)
            if self._drained is not None:
                self._unsent.set(self.transport.get_write_buffer_size())

    @property
    def is_held(self) -> bool:
        """Whether somebody has yet to take what arrived before more is read."""
        return self._reading_held > 0

    def hold_reading(self) -> None:
        self._reading_held += 1
        if self._reading_held == 1 and self.transport is not None:
            self.transport.pause_reading()

    def release_reading(self) -> None:
        self._reading_held -= 1
        if self._reading_held == 0 and self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def has_left(self) -> "Literal['', 'end', 'reset']":
        """How the peer has left, if it has: the loop does not see that of a connection that is not read."""
        if self.transport is None:
            return "reset"
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), _RESET_SEEN | _END_SEEN)
        seen = poll.poll(0)
        return "" if not seen else "reset" if seen[0][1] & _RESET_SEEN else "end"

    def limit_stalls(self, limited: bool) -> None:
        """Whether a peer that leaves no room for what is sent loses the connection after `stall_timeout`."""
        if self.transport is not None and limited != self._stalls_limited:
            self._stalls_limited = limited
            _end_stalls(self.transport.get_extra_info("socket"), self.stall_timeout_s, limited)

    def abort(self) -> None:
        """Cut the connection with a reset, which no peer can take for the end of a message."""
        if self.transport is not None:
            sock = self.transport.get_extra_info("socket")
            if sock is not None and not self.transport.is_closing():
                sock.setsockopt(SOL_SOCKET, SO_LINGER, _RESET)
            self.transport.abort()

    def close(self) -> None:
        """Close the connection when what was written has gone out."""
        if self.transport is not None:
            self.transport.close()


def _end_stalls(sock: socket.socket, timeout_s: float, limited: bool = True) -> None:
    """Have the kernel end a connection whose peer does not answer it, or leaves no room for what is sent, for so long.

    The kernel alone sees a peer that takes a little now and then: the transport's own buffer moves by megabytes. The
    peer of a quiet connection is asked three times whether it is there.
    """
    sock.setsockopt(SOL_SOCKET, SO_KEEPALIVE, 1)
    options = {
        "TCP_KEEPIDLE": min(max(1, int(timeout_s / 2)), _KEEPIDLE_MAX_S),
        "TCP_KEEPINTVL": min(max(1, int(timeout_s / 6)), _KEEPIDLE_MAX_S),
        "TCP_KEEPCNT": 3,
        "TCP_USER_TIMEOUT": min(int(timeout_s * 1000), _USER_TIMEOUT_MAX_MS) if limited else 0,
    }
    for name, value in options.items():
        if (option := getattr(socket, name, None)) is not None:  # Linux has all of them
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


class Body:
    """The body of one message between the wire that it comes from and the one who reads it."""

    __slots__ = (
        "_counted", "_discarding", "_error", "_held", "_pieces", "_waiter", "_wire", "_wire_held", "complete",
        "trailers",
    )  # fmt: skip

    def __init__(self, wire: Wire) -> None:
        self.complete = False
        self.trailers = NO_TRAILERS
        self._wire = wire
        self._pieces: list[bytes] = []
        self._held = self._counted = 0
        self._wire_held = False
        self._discarding = False
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def feed(self, data: bytes) -> None:
        """Take in what arrived."""
        if self._discarding:
            return
        self._pieces.append(data)
        self._held += len(data)
        if self._held > UNCOUNTED_BYTES_MAX:
            self._count()
        self._wake()

    def finish(self, trailers: Headers = NO_TRAILERS) -> None:
        """All has arrived, unless `fail` said otherwise before."""
        if self._error is not None:
            return
        self.complete = True
        self.trailers = trailers
        self._wake()

    def fail(self, error: Exception) -> None:
        """No more will arrive, and it was not all."""
        if not self.complete and self._error is None:
            self._error = error
            self._wake()

    def end(self) -> None:
        """Nobody will read it any more: what is held and what may follow is forgotten, and it refers to no one."""
        self._discarding = True
        self.take()
        self._error = None  # the frames that it was raised through refer to the body

    def take(self) -> bytes:
        """What is held now; empty if that is nothing."""
        if not self._pieces:
            return b""
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._held = 0
        if self._counted:
            self._wire.buffers.change(-self._counted)
            self._counted = 0
        if self._wire_held:
            self._wire_held = False
            self._wire.release_reading()
        return data

    def _count(self) -> None:
        """Count what is held, and hold up reading where that is enough."""
        buffers = self._wire.buffers
        buffers.change(self._held - self._counted)
        self._counted = self._held
        if (buffers.is_full or self._held > HELD_BYTES_MAX) and not self._wire_held:
            self._wire_held = True
            self._wire.hold_reading()

    async def read(self) -> bytes:
        """What has arrived since the last call, as soon as that is something; empty at the end.

        Raises what `fail` was given, once everything before it was read.
        """
        while not self._pieces:
            if self.complete:
                return b""
            if self._error is not None:
                raise self._error
            self._waiter = self._wire.loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self.take()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
