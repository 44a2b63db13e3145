"""The body of one message on its way through, and what ends a body.

In: pieces of bytes as its connection gets them. Out: the same pieces to one reader, in order.
Always: a body holds `HELD_BYTES_MAX` and one read of the socket at most; then its connection is not read until the
reader has caught up. All that is held is counted; at the limit a body holds one small read. A reader gets
every byte that came before a failure, and then the failure; it is told of an end only where the body came whole, and
was read whole (DESIGN 3.5).
"""

import asyncio
from collections.abc import Iterable
from typing import Final, Literal, TypeAlias

import msgspec

from gateway.http.header_fields import NO_FIELDS, Headers
from gateway.http.parsed_head_cache import Values
from gateway.http.response_parser import Framing, ResponseHead
from gateway.transport.base_connection import Wire

HELD_BYTES_MAX: Final = 256 * 1024
UNCOUNTED_BYTES_MAX: Final = 4 * 1024  # of a body: most messages are read at once, and counting has a cost

BodyState: TypeAlias = Literal["ARRIVING", "WHOLE", "FAILED", "DROPPED"]


def chunk(data: bytes) -> bytes:
    """Data as one chunk; nothing for no data, because an empty chunk is the last one."""
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


def last_chunk(trailers: Headers, refused: Iterable[bytes] = ()) -> bytes:
    """The end of a body in chunks, with those trailers that may pass and are not named in `refused`."""
    return b"0\r\n%b\r\n" % (trailers.passable_trailers(refused).block() if trailers else b"")


class Dropped(Exception):
    """The body is read no more: its reader, about to be cancelled, has woken once more."""


class Body:
    """The body of one message. Its `state` is what is known of its end: the table gives the next one, and what its
    reader gets behind what is held.

                `finish`: what ends    `fail`: its sender   `drop`: its        its reader
                its framing has come   has left, or errs    exchange is over   gets
    ARRIVING    WHOLE                  FAILED               DROPPED            nothing yet
    WHOLE       WHOLE                  WHOLE                DROPPED            the end
    FAILED      FAILED                 FAILED               DROPPED            the error
    DROPPED     DROPPED                DROPPED              DROPPED            `Dropped`
    """

    __slots__ = (
        "_counted", "_error", "_has_paused", "_held", "_pieces", "_waiter", "_wire", "began", "state", "trailers",
    )  # fmt: skip

    def __init__(self, wire: Wire) -> None:
        self.began = False  # its first byte has come
        self.state: BodyState = "ARRIVING"
        self.trailers = NO_FIELDS
        self._wire = wire
        self._pieces: list[bytes] = []
        self._held = self._counted = 0
        self._has_paused = False
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def is_whole(self) -> bool:
        """Whether all of it has come, and nothing of it was dropped."""
        return self.state == "WHOLE"

    @property
    def is_read(self) -> bool:
        """Whether all of it has come, and was taken."""
        return self.state == "WHOLE" and not self._pieces

    def feed(self, data: bytes) -> None:
        self.began = True
        if self.state == "DROPPED":
            return
        self._pieces.append(data)
        self._held += len(data)
        if self._held > UNCOUNTED_BYTES_MAX:
            self._count()
        if self._waiter is not None:
            self._wake()

    def finish(self, trailers: Headers = NO_FIELDS) -> None:
        if self.state != "ARRIVING":
            return
        self.state = "WHOLE"
        self.trailers = trailers
        if self._waiter is not None:
            self._wake()

    def fail(self, error: Exception) -> bool:
        """The body breaks off here. Returns whether it does: it may have ended before."""
        if self.state != "ARRIVING":
            return False
        self.state, self._error = "FAILED", error
        self._wake()
        return True

    def drop(self) -> None:
        """Nobody reads it any more: drop what is held, and what may follow."""
        self.state = "DROPPED"
        if self._pieces:
            self.take()
        self._error = None  # its frames hold the body (9.5)

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
        if self._has_paused:
            self._has_paused = False
            self._wire.resume_reading()
        return data

    def _count(self) -> None:
        """Count what is held, and pause reading if that is enough."""
        buffers = self._wire.buffers
        buffers.change(self._held - self._counted)
        self._counted = self._held
        if (buffers.is_full or self._held > HELD_BYTES_MAX) and not self._has_paused:
            self._has_paused = True
            self._wire.pause_reading()

    async def read(self) -> bytes:
        """More of the body; empty at the end of a whole one. Raises what `fail` was given, or Dropped."""
        while not self._pieces:
            if self.state == "WHOLE":
                return b""
            if self.state != "ARRIVING":
                raise self._error or Dropped
            self._waiter = self._wire.loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self.take()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Response(msgspec.Struct, eq=False):
    """The head of an upstream's response, and its body as it comes.

    `head` is shared with those that differ in `values` alone; `body_bytes` is what `Content-Length` says, or 0.
    """

    head: ResponseHead
    values: Values
    body_bytes: int
    framing: Framing
    body: Body
    is_changed: bool = False  # the fields were
    _headers: Headers | None = None

    @property
    def headers(self) -> Headers:
        """The fields, as they came until they are changed."""
        if self._headers is None:
            self._headers = self.head.headers_with(self.values)
        return self._headers

    @headers.setter
    def headers(self, headers: Headers) -> None:
        self.is_changed |= headers is not self._headers
        self._headers = headers
