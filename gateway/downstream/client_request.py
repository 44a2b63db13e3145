"""The request of a client, as it came: its head, and its body as it comes or as it was read."""

import logging
from dataclasses import dataclass, field
from typing import Final

from gateway.errors import GatewayError
from gateway.http.header_fields import DIGESTS, EVENT_STREAM
from gateway.http.request_parser import Head
from gateway.transport.base_connection import ClientWire
from gateway.transport.body_stream import Body, chunk, last_chunk
from gateway.transport.memory_budget import SMALL_BYTES_MAX, Reservation

log = logging.getLogger("taskgate.relay")

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class ClientGone(Exception):
    """The client left before its request was whole."""


@dataclass(eq=False, slots=True)
class ClientRequest:
    connection: ClientWire
    head: Head
    body: Body = field(init=False)
    up_bytes: int = field(init=False)  # the length that goes up; below 0 for a body in chunks
    kept_bytes: int = field(init=False)  # of head and body, until the exchange ends, if they are many
    reservation: Reservation | None = None  # of a large head, and of a large body that is read to be inspected
    taken: bytes = b""  # what was read of the body before it goes up
    is_cut: bool = False  # the client left before it was whole
    is_edited: bool = False  # other bytes go up than came
    refused_trailers: frozenset[bytes] = frozenset()  # names in lower case, besides those that never go up
    continued: bool = False  # the client was told to go on and send its body

    def __post_init__(self) -> None:
        self.body = Body(self.connection)
        self.up_bytes, self.kept_bytes = self.head.body_bytes, self.head.held_bytes
        if self.kept_bytes:
            self._reserved().set(self.kept_bytes)

    def _reserved(self) -> Reservation:
        if self.reservation is None:
            self.reservation = Reservation(self.connection.buffers)
        return self.reservation

    async def read_body(self, may_carry: bool, bytes_max: int) -> bytes:
        """The body that may be a message, which is read into `taken`. Empty if it is not read.

        It is read if it may carry one, of `bytes_max` at most; else `taken` is its beginning. Beyond `SMALL_BYTES_MAX`
        there must first be room for the whole body, because half-read bodies would wait for each other for ever. Raises
        Overloaded if no room comes free.
        """
        if self.reservation is not None:  # the head is large
            self.reservation.check(self.kept_bytes)
        if self.head.body_bytes > bytes_max or not may_carry:
            self.taken = self.body.take()
            return b""
        if not self.body.is_whole and not self.continued and self.expects_continue:
            self.continued = True
            self.connection.expect_body()
            self.connection.write(_CONTINUE)
        self.taken = self.body.take() if self.body.is_whole else await self._read_as_it_comes(bytes_max)
        size = len(self.taken)
        if self.reservation is not None or size > SMALL_BYTES_MAX:
            self._reserved().set(self.kept_bytes + size)
        return self.taken if size <= bytes_max else b""

    async def _read_as_it_comes(self, bytes_max: int) -> bytes:
        """The body as far as `bytes_max`, and the piece that goes beyond. Raises Overloaded."""
        pieces, size, has_room = list[bytes](), 0, False
        while piece := await self.body.read():
            pieces.append(piece)
            size += len(piece)
            if size > SMALL_BYTES_MAX and not has_room and not self.body.is_whole:
                has_room = True
                stated = self.head.body_bytes if self.head.body_bytes >= 0 else bytes_max
                whole = self.kept_bytes + max(size, min(bytes_max, stated))
                await self._reserved().reserve(whole, self.connection.limits.request_timeout)
            if size > bytes_max:
                break
        return b"".join(pieces)

    def replace_body(self, body: bytes) -> None:
        """Another body goes up than came, unless it is the same object; it states its own length."""
        if body is not self.taken:
            self.taken, self.is_edited = body, True
            self.up_bytes = len(body) if self.up_bytes >= 0 else self.up_bytes

    def upward(self, head: bytes) -> tuple[bytes, bytes]:
        """The bytes of a request that was read whole, behind `head`: in two parts if joining them would copy much."""
        body, self.taken = self.taken, b""
        if self.up_bytes < 0:
            return head + chunk(body) + self.last_chunk, b""
        self.check_length(len(body))
        return (head, body) if len(body) > SMALL_BYTES_MAX else (head + body, b"")

    @property
    def last_chunk(self) -> bytes:
        refused = self.refused_trailers | DIGESTS if self.is_edited else self.refused_trailers
        return last_chunk(self.body.trailers, refused)

    def check_length(self, sent_bytes: int) -> None:
        """Raise GatewayError for another length than the head says: the next client's request would lose the rest."""
        if sent_bytes != self.up_bytes:
            log.error("a body differs from its length", extra={"bytes": sent_bytes, "content_length": self.up_bytes})
            raise GatewayError(f"the body has {sent_bytes} bytes, its Content-Length says {self.up_bytes}")

    def release(self) -> None:
        """The part of the body that was read has gone up, and is no longer held but for `kept_bytes`."""
        if self.reservation is not None:
            self.reservation.set(self.kept_bytes)

    def hold(self, size_bytes: int) -> None:
        """Hold so many bytes of an answer as well, until nobody handles the exchange any more. Raises Overloaded."""
        if self.connection.transport is None:
            return  # the client has left, and the reservation is closed
        self._reserved().grow(len(self.taken) + size_bytes)

    def close(self) -> None:
        """Nobody handles the exchange any more: it holds nothing."""
        self.body.drop()
        if self.reservation is not None:
            self.reservation.close()

    @property
    def is_post_for_stream(self) -> bool:
        """Whether it may be a message of MCP's, whose client accepts an event stream."""
        return self.head.method == b"POST" and EVENT_STREAM in b",".join(self.head.headers.all(b"accept")).lower()

    @property
    def waits(self) -> bool:
        """Whether the client may be waiting to be told to go on and send its body (RFC 9110, 10.1.1)."""
        return not self.continued and not self.body.began and self.body.state == "ARRIVING" and self.expects_continue

    @property
    def expects_continue(self) -> bool:
        """Whether it says `Expect: 100-continue`. From HTTP/1.0 that does not count (RFC 9110, 10.1.1)."""
        headers = self.head.headers
        return b"expect" in headers.by_name and self.head.minor == 1 and b"100-continue" in headers.tokens(b"expect")
