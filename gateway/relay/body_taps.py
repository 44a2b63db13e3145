"""Taps: a copy of what is relayed, decoded and split into messages, each given to an `Inspector`.

In: a body in pieces, encoded or not. Out: its messages, each inspected before the client can act on it; the pieces, as
they came or as they were edited. Always: the inspector is told of what is too large, too much or not readable: it
passes unread.
"""

import asyncio
import sys
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from gateway.config import Limits
from gateway.errors import GatewayError, UpstreamBroken
from gateway.http.content_codings import Decode, Unreadable, decoder
from gateway.http.header_fields import EVENT_STREAM
from gateway.mcp import sse
from gateway.transport.body_stream import Response
from gateway.transport.memory_budget import SMALL_BYTES_MAX, Reservation

_READ_AT_ONCE: Final = 8 * 1024  # bytes of an edited stream, in a turn of the loop: they may be 500 events


class Inspector(msgspec.Struct, frozen=True):
    """What is done with a body: it is copied, or edited. It is chosen once, when the response's head has come."""

    message: Callable[[bytes], bytes]  # takes one message; returns it as it came, unless `edits`; empty: none of it
    unread: Callable[[], None]  # is told that something passed that could not be read
    marks: Sequence[bytes] = ()  # every event that may hold a message of interest has one of these in it
    edits: bool = False
    reads_all: bool = False  # marked events, however many; capitals count as small letters
    hold_bytes_max: int = sys.maxsize  # of a JSON body that is edited, packed or not; the configured limit too
    hold_s: float | None = None  # for how long it is held until it is whole; others pass unread

    def pass_unread(self, piece: bytes) -> bytes:
        """A piece passes unread. That is told at each one: much time may pass between two."""
        self.unread()
        return piece


def _nothing() -> None:
    return None


class Tap(NamedTuple):
    """What a body passes through on its way to the client."""

    through: Callable[[bytes], bytes] = bytes  # returns a piece as it goes on; `bytes`: as it came
    end: Callable[[], bytes] = bytes  # returns what goes behind the last one
    begun: bytes = b""  # what was read of the body before, perhaps all
    is_edited: bool = False  # other bytes go on than came, or may
    more: Callable[[], bytes | None] = _nothing  # returns the next part of what takes long to read; None: there is none


def inspected_at_once(inspector: Inspector, body: bytes, kind: bytes, limits: Limits) -> bool:
    """Inspect a small body that came whole, and goes on as it is. False if it needs a tap: nothing was inspected."""
    is_stream = kind == EVENT_STREAM
    if len(body) > min(
        SMALL_BYTES_MAX, limits.inspected_event_bytes_max if is_stream else limits.inspected_body_bytes_max
    ):
        return False
    if not is_stream:
        inspector.message(body)
    elif any(map(body.__contains__, inspector.marks)):
        if (data := sse.only_data(body)) is None:
            return False
        inspector.message(data)
    return True


async def tap_for(inspector: Inspector, response: Response, limits: Limits, reservation: Reservation) -> Tap:
    """The tap by which an inspector gets a body. One that is edited is framed anew; JSON is held until it is whole."""
    bytes_max, is_stream = limits.inspected_body_bytes_max, response.head.kind == EVENT_STREAM
    hold_max = bytes_max if is_stream else min(bytes_max, inspector.hold_bytes_max)
    try:
        decode = decoder(response.head.headers, hold_max)
    except Unreadable:
        return Tap(inspector.pass_unread)
    if is_stream:
        events = EventTap(inspector, decode, limits.inspected_event_bytes_max, reservation)
        if inspector.edits:
            _reframe(response, decode, None)
        return Tap(events.through, events.end, is_edited=inspector.edits, more=events.more)
    if not inspector.edits:
        copy = BodyTap(inspector, decode, bytes_max, reservation, response.body_bytes)
        return Tap(copy.inspect, copy.end)
    held, is_whole = await _held(response, inspector.hold_s, hold_max, reservation)
    if not is_whole:
        return Tap(inspector.pass_unread, begun=inspector.pass_unread(held))
    try:
        plain = decode(held) + decode(b"")
    except Unreadable:
        inspector.unread()
        return Tap(begun=held)
    edited = inspector.message(plain)
    if edited is plain:
        return Tap(begun=held)
    _reframe(response, decode, len(edited))
    return Tap(begun=edited, is_edited=True)


async def _held(
    response: Response, seconds: float | None, bytes_max: int, reservation: Reservation
) -> tuple[bytes, bool]:
    """What comes of a body in that time, and whether it is whole. Raises Overloaded."""
    held = bytearray()
    try:
        async with asyncio.timeout(seconds):
            while piece := await response.body.read():
                held += piece
                if len(held) > bytes_max:
                    return bytes(held), False
                reservation.hold(len(held))
            return bytes(held), True
    except (TimeoutError, GatewayError):
        if seconds is None:
            raise
    return bytes(held), False


def _reframe(response: Response, decode: Decode, size_bytes: int | None) -> None:
    """Change the fields for a body that is decoded and edited: its size, None if it goes on in chunks."""
    headers = response.headers
    if decode is not bytes:  # `Content-Encoding: identity` still says what is true
        headers = headers.without(b"content-encoding")
    if response.framing == "length" and size_bytes is not None:
        headers = headers.with_value(b"content-length", b"%d" % size_bytes)
    elif response.framing == "length":
        headers = headers.without(b"content-length").with_field(b"Transfer-Encoding", b"chunked")
        response.framing = "chunked"
    response.headers = headers


def _broken(piece: bytes) -> bytes:
    """Decodes what comes behind the place where an encoding broke off."""
    raise Unreadable


class BodyTap:
    """Inspects a copy of a JSON body: as soon as its last byte has come, before that byte is passed on."""

    def __init__(self, inspector: Inspector, decode: Decode, bytes_max: int, reservation: Reservation, length: int):
        self._to = inspector
        self._decode = decode
        self._bytes_max = bytes_max
        self._reservation = reservation
        self._copy: bytearray | None = bytearray()
        self._length = length  # of the body; 0 if it is unknown

    def inspect(self, piece: bytes) -> bytes:
        if self._copy is not None:
            self._copy += piece
            if len(self._copy) > self._bytes_max or not self._reservation.has_room(len(self._copy)):
                self._copy = None
                self._reservation.close()
        if self._copy is None:
            return self._to.pass_unread(piece)
        if len(self._copy) > SMALL_BYTES_MAX:
            self._reservation.set(len(self._copy))
        if len(self._copy) == self._length:
            self.end()
        return piece

    def end(self) -> bytes:
        if self._copy is not None:
            copy, self._copy = bytes(self._copy), None
            try:
                self._to.message(self._decode(copy) + self._decode(b""))
            except Unreadable:
                self._to.unread()
        return b""


class EventTap:
    """Inspects the events of a stream, and edits them if its inspector does."""

    __slots__ = ("_decode", "_event_bytes_max", "_parser", "_reservation", "_to", "_waiting")

    def __init__(self, inspector: Inspector, decode: Decode, event_bytes_max: int, reservation: Reservation) -> None:
        self._to = inspector
        self._decode = decode
        self._parser = sse.Parser(event_bytes_max, inspector.marks, inspector.reads_all)
        self._waiting = memoryview(b"")  # decoded, for a later turn of the loop
        self._event_bytes_max = event_bytes_max
        self._reservation = reservation

    def through(self, piece: bytes) -> bytes:
        """Inspect every event that the piece completes. Return the piece as it came.

        If they are edited: return them so, and comments, which wait for no event; of much only the beginning, for
        `more` returns the rest. Raises UpstreamBroken.
        """
        try:
            plain = self._decode(piece)
            if self._to.edits:
                plain, self._waiting = plain[:_READ_AT_ONCE], memoryview(plain)[_READ_AT_ONCE:]
            out = self._events(plain)
        except Unreadable as error:
            if self._to.edits:
                raise UpstreamBroken(f"the event stream cannot be decoded: {error}") from None
            self._decode = _broken
            self._to.unread()
        return out + self._parser.take_comments() if self._to.edits else piece

    def more(self) -> bytes | None:
        if not (waiting := self._waiting):
            return None
        self._waiting = waiting[_READ_AT_ONCE:]
        return self._events(bytes(waiting[:_READ_AT_ONCE])) + self._parser.take_comments()

    def end(self) -> bytes:
        """The stream is whole. One whose encoding stops short could not be read.

        Returns the beginning of an event that never ended, inspected: some clients read it without its blank line.
        """
        out = b"" if self._decode is bytes else self.through(b"")
        if not self._parser.pending_bytes:
            return out
        rest = self._parser.rest()
        read = self._events(b"\n\n")
        return out + (rest if read.startswith(rest) else read) if self._to.edits else b""

    def _events(self, plain: bytes) -> bytes:
        out, unread, parser = [], b"", self._parser
        bytes_max = self._event_bytes_max
        parser.event_bytes_max = bytes_max if self._reservation.has_room(bytes_max) else SMALL_BYTES_MAX
        events = parser.feed(plain)
        held_bytes = parser.pending_bytes + len(self._waiting)
        if held_bytes > SMALL_BYTES_MAX or self._reservation.held_bytes:
            self._reservation.set(held_bytes)
        for event in events:
            data = event.data if event.whole and event.marked else None
            seen = data
            if not event.whole:
                unread = unread or event.raw  # too much to read
            elif data is not None and event.is_message:
                seen = self._to.message(data)
            if seen is None or seen is data:
                out.append(event.raw)
            elif seen:
                out.append(event.with_data(seen))
        if unread:
            self._to.pass_unread(unread)  # once, however many there were
        return b"".join(out)
