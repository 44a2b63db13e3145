"""Server-sent events as bytes: fed in any pieces, given back whole, edited one at a time.

In: the bytes of a stream, split anywhere. Out: `Event`s in order, each with the very bytes it came as.
Always: the raw bytes of all events and the comments taken, then `rest()`, are the bytes that were fed. Lines end at CR,
LF or CRLF and nowhere else (U+2028 is text); comments, unknown fields, ids and `retry` survive, since nobody writes
them anew.
An event larger than `event_bytes_max` comes as unread pieces: it passes, and costs no memory (DESIGN 7).

Source: the WHATWG HTML standard, "Server-sent events", interpretation of an event stream.
"""

import re
from typing import Final

import msgspec

# Atomic groups: CRLF must never be read as CR and then LF, which would be an empty line.
_BLANK: Final = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LINE: Final = re.compile(rb"([^\r\n]*)(\r\n|\n|\r|\Z)")
_COMMENTS: Final = re.compile(rb"(?:(?::[^\r\n]*+)?(?:\r\n|\n|\r))*+")  # and empty lines
_BOM: Final = b"\xef\xbb\xbf"
_RETRY_MS_MAX: Final = 10**15  # longer than anybody waits


class Event(msgspec.Struct):
    """One event: its bytes with the blank line that ends it. `whole` is False for a piece of one too large to read."""

    raw: bytes
    whole: bool = True
    bom: bool = False  # it is the first of its stream, and begins with a byte order mark

    def _text(self) -> bytes:
        return self.raw[len(_BOM) :] if self.bom else self.raw

    def field(self, name: bytes) -> list[bytes]:
        """The values of every line of the field `name`, in order."""
        values = []
        for line, _ in _LINE.findall(self._text()):
            key, _, value = line.partition(b":")
            if key == name:
                values.append(value.removeprefix(b" "))
        return values

    @property
    def data(self) -> bytes | None:
        """The event's data, its lines joined by LF; None if it has none or was too large to read."""
        lines = self.field(b"data") if self.whole and b"data" in self.raw else []
        return b"\n".join(lines) if lines else None

    @property
    def id(self) -> bytes | None:
        """The last event id that the event sets, or None."""
        values = [v for v in self.field(b"id") if b"\0" not in v] if self.whole else []
        return values[-1] if values else None

    @property
    def is_message(self) -> bool:
        """Whether its type is `message`, which a client of MCP reads; other types are not messages of the protocol."""
        return b"event" not in self.raw or self.field(b"event")[-1:] in ([], [b""], [b"message"])

    @property
    def is_endpoint(self) -> bool:
        """Whether it tells where to send messages, as the first event of a stream of HTTP+SSE (2024-11-05) does."""
        return b"endpoint" in self.raw and self.field(b"event")[-1:] == [b"endpoint"]

    @property
    def retry_ms(self) -> int | None:
        """The reconnection time that the event sets, in milliseconds, or None."""
        values = [v for v in self.field(b"retry") if v.isdigit()] if self.whole else []
        return min(int(values[-1].lstrip(b"0")[:18] or b"0"), _RETRY_MS_MAX) if values else None

    def with_data(self, data: bytes) -> bytes:
        """The event's bytes with `data` in place of its data; every line of another field stays as it was."""
        out: list[bytes] = [_BOM] if self.bom else []
        lines = _LINE.findall(self._text())
        places = [at for at, (line, _) in enumerate(lines) if line.partition(b":")[0] == b"data"]
        place, last = places[0], places[-1]
        kept_before = [end for at, (_, end) in enumerate(lines[:last]) if at == place or at not in places]
        if kept_before[-1:] == [b"\r"] and lines[last + 1] == (b"", b"\n"):
            place = last  # without a line there the CR before and the LF behind would be one line end
        for at, (line, end) in enumerate(lines):
            if at not in places:
                out.append(line + end)
            elif at == place:
                pieces = data.split(b"\n")
                spaced = line.startswith(b"data: ") or any(piece.startswith(b" ") for piece in pieces)
                out += [(b"data: " if spaced else b"data:") + piece + end for piece in pieces]
        return b"".join(out)


class Parser:
    """Splits a stream of server-sent events. One parser for one stream."""

    def __init__(self, event_bytes_max: int) -> None:
        self._max = event_bytes_max
        self._pending = bytearray()
        self._searched = 0
        self._cr = False  # there is one in what is pending
        self._line_ended = False  # in what was fed last
        self._skipping = False
        self._first = True  # nothing of the stream was handed out yet

    def feed(self, data: bytes) -> list[Event]:
        """The events that `data` completes, and the pieces of one that is too large to hold."""
        pending = self._pending
        cr = b"\r" in data  # what was looked through before is not looked through again
        self._cr = cr or (self._cr and bool(pending))
        self._line_ended = cr or b"\n" in data
        pending += data
        events, start = [], 0
        # A blank line may have begun in what was searched before: CR LF CR LF is four bytes.
        search_at = max(0, self._searched - 3)
        only_lf = not self._cr  # most streams: then looking is ten times faster
        while True:
            if only_lf:
                found = pending.find(b"\n\n", search_at)
                end = search_at = found + 2
            else:
                blank = _BLANK.search(pending, search_at)
                found = blank.start() if blank else -1
                end = search_at = blank.end() if blank else 0
            if found < 0:
                break
            raw = bytes(pending[start:end])
            whole = not self._skipping and len(raw.lstrip(b"\r\n")) <= self._max
            events.append(Event(raw, whole, self._first and raw.startswith(_BOM)))
            self._skipping = self._first = False
            start = end
        del pending[:start]
        self._searched = len(pending)
        if len(pending) > self._max or (self._skipping and len(pending) > 3):
            self._skipping = True
            self._first = False
            events.append(Event(bytes(pending[:-3]), False))  # the last bytes may begin a blank line
            del pending[:-3]
            self._searched = len(pending)
        return events

    def take_comments(self) -> bytes:
        """The whole comment lines, and empty ones, that an event which has begun starts with; it is not of them.

        An LF behind a CR that was taken reads as an empty line, which means nothing there.
        """
        if self._skipping or not self._line_ended or not (found := _COMMENTS.match(self._pending)):
            return b""
        taken = found[0]
        if taken:
            self._first = False
            del self._pending[: len(taken)]
            self._searched = len(self._pending)
        return bytes(taken)

    def rest(self) -> bytes:
        """The bytes of an event that has begun and not ended."""
        return bytes(self._pending)


def event(data: bytes) -> bytes:
    """The bytes of a `message` event with the one-line `data`."""
    return b"event: message\ndata: %b\n\n" % data
