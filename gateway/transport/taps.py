"""Taps: a copy of what is relayed, decoded and split into messages, each given to an `Inspector`.

In: a body in pieces, encoded or not. Out: its messages, each inspected before the client can act on it; the pieces, as
they came or as they were edited. Always: the inspector is told of what is too large, too much or not readable: it
passes unread.
"""

import re
import sys
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from gateway.errors import UpstreamBroken
from gateway.mcp import sse
from gateway.transport.buffers import SMALL_BYTES_MAX, Account
from gateway.transport.codings import Decode, Unreadable
from gateway.transport.upstream import Response

_BOM: Final = b"\xef\xbb\xbf"
_DATA: Final = re.compile(rb"data(?<![^\r\n]data)[:\r\n]")  # the beginning of a line of data
_LINES: Final = re.compile(rb"(?:(?!data[:\r\n])[^\r\n]*+[\r\n])*+")  # whole ones in front of an event's data
_IS_DATA: Final = re.compile(rb"data[:\r\n]")
_ENDPOINT_BYTES_MAX: Final = 16 * 1024  # of an `endpoint` event that is edited: what has come of it is copied often


class Hold(NamedTuple):
    """How much of a JSON body is held until it is whole, packed or not, and for how long; others pass unread."""

    bytes_max: int = sys.maxsize  # the configured limit holds as well
    seconds: float | None = None


class Inspector(msgspec.Struct, frozen=True):
    """What is done with a body: it is copied, or edited. It is chosen once, when the response's head has come."""

    message: Callable[[bytes], bytes]  # takes one message; returns it as it came, unless `edits`
    unread: Callable[[], None]  # is told that something passed that could not be read
    marks: Sequence[bytes] = ()  # every event that may hold a message of interest has one of these in it
    edits: bool = False
    endpoint: Callable[[bytes], bytes] | None = None  # edits the address of an `endpoint` event (HTTP+SSE)
    edits_endpoint: bool = False  # nothing else, and only in the first event with data: what follows passes as it comes
    hold: Hold = Hold()  # what is held of a JSON body that is edited


class Watch(Protocol):
    """Watches over one exchange."""

    def head(self, response: Response, kind: bytes) -> Inspector | None:
        """The response's head has come, of that media type. Returns what is done with its body; None if it passes."""


class BodyTap:
    """Inspects a copy of a JSON body: as soon as its last byte has come, before that byte is passed on."""

    def __init__(
        self, inspector: Inspector, decode: Decode, bytes_max: int, account: Account, response: Response
    ) -> None:
        self._to = inspector
        self._decode = decode
        self._bytes_max = bytes_max
        self._account = account
        self._copy: bytearray | None = bytearray()
        self._length = response.body_bytes or -1

    def inspect(self, piece: bytes) -> bytes:
        if self._copy is None:
            self._to.unread()
            return piece
        self._copy += piece
        if len(self._copy) > self._bytes_max or not self._account.has_room(len(self._copy)):
            self._copy = None
            self._account.close()
            self._to.unread()
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
                self._to.message(self._decode(copy) + self._decode(b""))
            except Unreadable:
                self._to.unread()
        return b""


class EventTap:
    """Inspects the events of a stream, and edits them if its inspector does."""

    __slots__ = (
        "_account", "_ahead", "_decode", "_event_bytes_max", "_inspected", "_is_endpoint", "_parser", "_passes", "_to",
    )  # fmt: skip

    def __init__(self, inspector: Inspector, decode: Decode, event_bytes_max: int, account: Account) -> None:
        self._to = inspector
        self._decode: Decode | None = decode
        self._parser = sse.Parser(event_bytes_max, inspector.marks)
        self._event_bytes_max = event_bytes_max
        self._account = account
        self._passes = False  # only the first event with data is edited, and that has come
        self._ahead = 0  # bytes sent of an event that has not ended
        self._inspected = 0  # bytes of its whole lines in front of its data
        self._is_endpoint = False  # by these lines

    def inspect(self, piece: bytes) -> bytes:
        """Inspect every event that the piece completes; return the piece as it came."""
        if self._decode is None:
            self._to.unread()
            return piece
        try:
            self._events(self._decode(piece))
        except Unreadable:
            self._decode = None
            self._to.unread()
        return piece

    def end(self) -> bytes:
        """The stream is whole. One whose encoding stops short could not be read."""
        if self._decode is not bytes:
            self.inspect(b"")
        if self._parser.pending_bytes:
            self._events(b"\n\n")  # some clients read a last event that lacks its blank line
        return b""

    def edit(self, piece: bytes) -> bytes:
        """The events that the piece completes, as the inspector returns them, and comments, which wait for no event."""
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
        return self._on_the_way(seen, plain) if self._to.edits_endpoint else seen

    def _on_the_way(self, seen: bytes, came: bytes) -> bytes:
        """Events as the client is to see them, and what has come of the next: only an endpoint's data waits."""
        begun = self._parser.rest()
        if seen:
            self._inspected, self._is_endpoint = 0, False  # another event has begun
        self._search_on(begun, came)
        is_data = _IS_DATA.match(begun, self._inspected) is not None
        self._passes |= len(begun) > _ENDPOINT_BYTES_MAX or (is_data and not self._is_endpoint)
        free = begun[: self._inspected] if self._is_endpoint and not self._passes else begun
        ahead, self._ahead = self._ahead, len(free)
        return (seen + free)[ahead:]

    def _search_on(self, begun: bytes, came: bytes) -> None:
        """Inspect the lines that have ended since: to inspect all of them again for each piece would take long."""
        if not self._inspected and begun.startswith(_BOM):
            self._inspected = len(_BOM)
        if b"\n" not in came and b"\r" not in came:
            return
        start, self._inspected = self._inspected, _LINES.match(begun, self._inspected).end()  # type: ignore[union-attr]
        if types := sse.Event(begun[start : self._inspected]).field(b"event"):
            self._is_endpoint = types[-1] == b"endpoint"

    def rest(self) -> bytes:
        """The beginning of an event that never ended, inspected. Raises UpstreamBroken if the encoding did not end."""
        rest = self.edit(b"") + (b"" if self._passes else self._parser.rest()[self._ahead :])
        self._events(b"\n\n")  # as `end`
        return rest

    def _may_edit(self, event: bytes) -> bool:
        """Whether an `endpoint` event may be edited: only the first, while none of its data has gone out."""
        return not self._to.edits_endpoint or (not self._passes and _is_endpoint(event))

    def _events(self, plain: bytes) -> bytes:
        out, unread, parser = [], False, self._parser
        parser.event_bytes_max = min(self._event_bytes_max, self._account.room_bytes)
        events = parser.feed(plain)
        if parser.pending_bytes > SMALL_BYTES_MAX or self._account.held_bytes:
            self._account.set(parser.pending_bytes)
        for event in events:
            data = event.data if event.whole and event.marked else None
            seen = data
            if not event.whole:
                unread = True  # too much to read
            elif data is not None and event.is_message:
                seen = self._to.message(data)
            elif data is not None and self._to.endpoint and event.is_endpoint and self._may_edit(event.raw):
                seen = self._to.endpoint(data)
            if self._to.edits_endpoint and not self._passes:
                self._passes = not event.whole or _has_data(event.raw)
            out.append(event.raw if seen is None or seen is data else event.with_data(seen))
        if unread:
            self._to.unread()  # once, however many there were
        return b"".join(out)


def _has_data(event: bytes) -> bool:
    """Whether a line of data has begun. The pattern begins with a word, so that blank lines cost next to nothing."""
    return _DATA.search(event.removeprefix(_BOM)) is not None


def _is_endpoint(event: bytes) -> bool:
    """Whether the lines in front of a short event's data make it an `endpoint` event."""
    if len(event) > _ENDPOINT_BYTES_MAX or not (before := _LINES.match(event.removeprefix(_BOM))):
        return False
    return sse.Event(before[0]).is_endpoint
