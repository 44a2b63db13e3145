"""The body of one message on its way through, and what ends a body.

In: pieces of bytes as its connection gets them. Out: the same pieces to one reader, in order.
Always: a body holds `HELD_BYTES_MAX` and one read of the socket at most; then its connection is not read until the
reader has caught up. All that is held is counted (buffers.py); at the limit a body holds one small read. A reader gets
every byte that came before a failure, and then the failure.
"""

import asyncio
from collections.abc import Container
from typing import Final, Literal, TypeAlias

from gateway.transport.headers import Headers
from gateway.transport.wire import Wire

HELD_BYTES_MAX: Final = 256 * 1024
UNCOUNTED_BYTES_MAX: Final = 4 * 1024  # of a body: most messages are read at once, and counting has a cost
NO_TRAILERS: Final = Headers()

Framing: TypeAlias = Literal["length", "chunked", "close", "none"]
"""What ends a body: its `Content-Length`, its last chunk, the connection's end; "none": there is no body."""


def chunk(data: bytes) -> bytes:
    """Data as one chunk; nothing for no data, because an empty chunk is the last one."""
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


def last_chunk(trailers: Headers, refused: Container[bytes] = ()) -> bytes:
    """The end of a body in chunks, with those trailers that may pass and are not named in `refused`."""
    return b"0\r\n%b\r\n" % (trailers.passable_trailers(refused).block() if trailers else b"")


class Body:
    """The body of one message, between its connection and its reader."""

    __slots__ = (
        "_counted", "_discarding", "_error", "_held", "_pieces", "_waiter", "_wire", "_wire_held", "began", "complete",
        "trailers",
    )  # fmt: skip

    def __init__(self, wire: Wire) -> None:
        self.began = False  # its first byte has come
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
        self.began = True
        if self._discarding:
            return
        self._pieces.append(data)
        self._held += len(data)
        if self._held > UNCOUNTED_BYTES_MAX:
            self._count()
        if self._waiter is not None:
            self._wake()

    def finish(self, trailers: Headers = NO_TRAILERS) -> None:
        """The body is whole. Nothing happens if it has failed."""
        if self._error is not None:
            return
        self.complete = True
        self.trailers = trailers
        if self._waiter is not None:
            self._wake()

    def fail(self, error: Exception) -> None:
        """The body breaks off here."""
        if not self.complete and self._error is None:
            self._error = error
            self._wake()

    def end(self) -> None:
        """Nobody reads it any more: drop what is held, and what may follow."""
        self._discarding = True
        if self._pieces:
            self.take()
        self._error = None  # break the reference cycle: the error's traceback holds the body

    def take(self) -> bytes:
        """Take all that is held now; it may be empty."""
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
        """Count what is held, and hold reading if that is enough."""
        buffers = self._wire.buffers
        buffers.change(self._held - self._counted)
        self._counted = self._held
        if (buffers.is_full or self._held > HELD_BYTES_MAX) and not self._wire_held:
            self._wire_held = True
            self._wire.hold_reading()

    async def read(self) -> bytes:
        """Wait for more of the body, and take it; empty at the end.

        Raises the error that `fail` was given, once everything before it was read.
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
