"""Taps: a copy of what is relayed, decoded and split into messages, for a `Watch` to look at.

In: a body in pieces, encoded or not. Out: its messages, each to the watch before the client can act on it; the pieces,
as they came or as the watch edited them. Always: what is too large, too much or not readable passes unread, and the
watch is told so.
"""

import re
import sys
import zlib
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from gateway.errors import UpstreamBroken
from gateway.mcp import sse
from gateway.transport.buffers import SMALL_BYTES_MAX, Account
from gateway.transport.headers import Headers
from gateway.transport.upstream import Response

_GZIP_OR_ZLIB: Final = zlib.MAX_WBITS | 32  # told by the first bytes
_INFLATED_AT_ONCE: Final = 16 * 1024  # few: zlib copies all bytes that follow a gzip member
_BOM: Final = b"\xef\xbb\xbf"
_DATA: Final = re.compile(rb"data(?<![^\r\n]data)[:\r\n]")  # the beginning of a line of data
_LINES: Final = re.compile(rb"(?:(?!data[:\r\n])[^\r\n]*+[\r\n])*+")  # whole ones in front of an event's data
_IS_DATA: Final = re.compile(rb"data[:\r\n]")
_ENDPOINT_BYTES_MAX: Final = 16 * 1024  # of an `endpoint` event that is edited: what has come of it is copied often
_INFLATED_RATIO_MAX: Final = 32  # bytes unpacked from one byte of an endless stream; JSON gives 5 to 20


class Hold(NamedTuple):
    """How much of a JSON body is held until it is whole, packed or not, and for how long; others pass unread."""

    bytes_max: int = sys.maxsize  # the configured limit holds as well
    seconds: float | None = None


class Watch(Protocol):
    """Looks at the messages of one response; of a response of 400 or above, at the head alone."""

    reads_json: bool
    """Whether a JSON body is looked at; event streams always are."""
    hold: Hold
    """What is held of a JSON body that `message` may edit."""
    edits: bool
    """Whether `message` may return other bytes than it was given."""
    edits_endpoint: bool
    """Whether `endpoint` alone may do so, in the first event with data; what follows passes as it comes."""

    @property
    def marks(self) -> Sequence[bytes]:
        """Every event that may hold a message of interest has one of these in it."""

    def head(self, response: Response) -> None:
        """The response's head has come."""

    def message(self, data: bytes) -> bytes:
        """One message; returns it as the client is to see it."""

    def endpoint(self, data: bytes) -> bytes:
        """The address of an `endpoint` event (HTTP+SSE); returns it as the client is to see it."""

    def unread(self) -> None:
        """A message passed that could not be read: too large, or in an encoding that the gateway does not know."""


class Unreadable(Exception):
    """A body cannot be decoded: its encoding is unknown or malformed, or it is too large when unpacked."""


Decode = Callable[[bytes], bytes]


def decoder(headers: Headers, bytes_max: int) -> Decode:
    """A function that decodes a body (`Content-Encoding`) piece by piece; an empty piece marks the end.

    It decodes one coding: `gzip, gzip` is Unreadable, in one header line or in two. A piece gives `bytes_max` at most.
    All pieces together give at most `bytes_max` and `_INFLATED_RATIO_MAX` times their own size. `decoder` and the
    function raise Unreadable; the function also does so at the end of a body that stops short.
    """
    codings = headers.tokens(b"content-encoding") or [b"identity"]
    if codings == [b"identity"]:
        return bytes  # the same object
    if len(codings) > 1 or codings[0] not in (b"gzip", b"x-gzip", b"deflate"):
        raise Unreadable(b", ".join(codings))
    inflate = zlib.decompressobj(_GZIP_OR_ZLIB)
    begun, room = False, bytes_max

    def decode(piece: bytes) -> bytes:
        nonlocal inflate, begun, room
        if not piece and begun and not inflate.eof:
            raise Unreadable("it stops short")
        begun = begun or bool(piece)
        plain = bytearray()
        room += len(piece) * _INFLATED_RATIO_MAX
        most = min(room, bytes_max)
        for start in range(0, len(piece), _INFLATED_AT_ONCE):
            packed = piece[start : start + _INFLATED_AT_ONCE]
            while packed:
                if inflate.eof:  # gzip may have several members (RFC 1952, 2.2)
                    inflate = zlib.decompressobj(_GZIP_OR_ZLIB)
                try:
                    plain += inflate.decompress(packed, most + 1 - len(plain))
                except zlib.error as error:
                    raise Unreadable(str(error)) from None
                if len(plain) > most:
                    raise Unreadable(f"more than {most} bytes unpacked from {len(piece)}")
                packed = inflate.unused_data
        room -= len(plain)
        return bytes(plain)

    return decode


class BodyTap:
    """Looks at a copy of a JSON body: as soon as its last byte has come, before that byte is passed on."""

    def __init__(self, watch: Watch, decode: Decode, bytes_max: int, account: Account, response: Response) -> None:
        self._watch = watch
        self._decode = decode
        self._bytes_max = bytes_max
        self._account = account
        self._copy: bytearray | None = bytearray()
        self._length = int(response.headers.get(b"content-length") or -1)

    def look(self, piece: bytes) -> bytes:
        if self._copy is None:
            self._watch.unread()
            return piece
        self._copy += piece
        if len(self._copy) > self._bytes_max or not self._account.has_room(len(self._copy)):
            self._copy = None
            self._account.close()
            self._watch.unread()
            return piece
        if len(self._copy) > SMALL_BYTES_MAX:
            self._account.set(len(self._copy))
        if len(self._copy) == self._length:
            self.end()
        return piece

    def end(self) -> bytes:
        if self._copy is not None:
            copy, self._copy = bytes(self._copy), None
            try:
                self._watch.message(self._decode(copy))
            except Unreadable:
                self._watch.unread()
        return b""


class EventTap:
    """Looks at the events of a stream, and edits them if its watch does."""

    __slots__ = (
        "_account", "_ahead", "_decode", "_event_bytes_max", "_is_endpoint", "_looked", "_parser", "_passes", "_watch",
    )  # fmt: skip

    def __init__(self, watch: Watch, decode: Decode, event_bytes_max: int, account: Account) -> None:
        self._watch = watch
        self._decode: Decode | None = decode
        self._parser = sse.Parser(event_bytes_max, watch.marks)
        self._event_bytes_max = event_bytes_max
        self._account = account
        self._passes = False  # the watch edits only the first event with data, and that has come
        self._ahead = 0  # bytes sent of an event that has not ended
        self._looked = 0  # bytes of its whole lines in front of its data
        self._is_endpoint = False  # by these lines

    def look(self, piece: bytes) -> bytes:
        """Look at every event that the piece completes; return the piece as it came."""
        if self._decode is None:
            self._watch.unread()
            return piece
        try:
            self._events(self._decode(piece))
        except Unreadable:
            self._decode = None
            self._watch.unread()
        return piece

    def edit(self, piece: bytes) -> bytes:
        """The events that the piece completes, as the watch returns them, and comments, which wait for no event."""
        if self._decode is None:
            raise UpstreamBroken("the event stream's encoding broke off")
        passed = self._passes
        try:
            plain = self._decode(piece)
            seen = self._events(plain) + self._parser.take_comments()
        except Unreadable as error:
            self._decode = None
            raise UpstreamBroken(f"the event stream cannot be decoded: {error}") from None
        if passed:
            return plain
        return self._on_the_way(seen, plain) if self._watch.edits_endpoint else seen

    def _on_the_way(self, seen: bytes, came: bytes) -> bytes:
        """Events as the client is to see them, and what has come of the next: only an endpoint's data waits."""
        begun = self._parser.rest()
        if seen:
            self._looked, self._is_endpoint = 0, False  # another event has begun
        self._look_on(begun, came)
        is_data = _IS_DATA.match(begun, self._looked) is not None
        self._passes |= len(begun) > _ENDPOINT_BYTES_MAX or (is_data and not self._is_endpoint)
        free = begun[: self._looked] if self._is_endpoint and not self._passes else begun
        ahead, self._ahead = self._ahead, len(free)
        return (seen + free)[ahead:]

    def _look_on(self, begun: bytes, came: bytes) -> None:
        """Look at the lines that have ended since: to look at all of them again for each piece would take long."""
        if not self._looked and begun.startswith(_BOM):
            self._looked = len(_BOM)
        if b"\n" not in came and b"\r" not in came:
            return
        start, self._looked = self._looked, _LINES.match(begun, self._looked).end()  # type: ignore[union-attr]
        if types := sse.Event(begun[start : self._looked]).field(b"event"):
            self._is_endpoint = types[-1] == b"endpoint"

    def rest(self) -> bytes:
        """The beginning of an event that never ended. Raises UpstreamBroken if the stream's encoding did not end."""
        return self.edit(b"") + (b"" if self._passes else self._parser.rest()[self._ahead :])

    def _may_edit(self, event: bytes) -> bool:
        """Whether an `endpoint` event may be edited: only the first, while none of its data has gone out."""
        return not self._watch.edits_endpoint or (not self._passes and _is_endpoint(event))

    def _events(self, plain: bytes) -> bytes:
        out, unread, parser = [], False, self._parser
        parser.event_bytes_max = min(self._event_bytes_max, self._account.room_bytes)
        events = parser.feed(plain)
        if parser.pending_bytes > SMALL_BYTES_MAX or self._account.held_bytes:
            self._account.set(parser.pending_bytes)
        for event in events:
            data = event.data if event.whole and event.marked else None
            seen = data
            if not event.whole or (data is not None and data.lstrip().startswith(b"[")):
                unread = True  # too much to read, or a batch (2025-03-26), which may have done anything
            elif data is not None and event.is_message:
                seen = self._watch.message(data)
            elif data is not None and event.is_endpoint and self._may_edit(event.raw):
                seen = self._watch.endpoint(data)
            if self._watch.edits_endpoint and not self._passes:
                self._passes = not event.whole or _has_data(event.raw)
            out.append(event.raw if seen is None or seen is data else event.with_data(seen))
        if unread:
            self._watch.unread()  # once, however many there were
        return b"".join(out)


def _has_data(event: bytes) -> bool:
    """Whether a line of data has begun. The pattern begins with a word, so that blank lines cost next to nothing."""
    return _DATA.search(event.removeprefix(_BOM)) is not None


def _is_endpoint(event: bytes) -> bool:
    """Whether the lines in front of a short event's data make it an `endpoint` event."""
    if len(event) > _ENDPOINT_BYTES_MAX or not (before := _LINES.match(event.removeprefix(_BOM))):
        return False
    return sse.Event(before[0]).is_endpoint
