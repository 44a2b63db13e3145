"""Server-sent events as bytes: fed in any pieces, given back whole, edited one at a time.

In: the bytes of a stream, split anywhere. Out: `Event`s in order, each with the very bytes it came as.
Always: the raw bytes of all events and the comments taken, then `rest()`, are the bytes that were fed. Lines end at CR,
LF or CRLF and nowhere else (U+2028 is text); comments, unknown fields, ids and `retry` survive, since nobody writes
them anew.
What is too much to read comes as unread pieces: it passes, and costs no memory (DESIGN 7). Work is in proportion to
bytes, however small the events are: those without a mark of interest are never split.

Source: the WHATWG HTML standard, "Server-sent events", interpretation of an event stream.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final

import msgspec

# An empty line, seen by the end of the line before it, and all line ends behind, whose lines are empty too. A CR LF is
# one line end, and no blank line.
_BLANK: Final = re.compile(rb"(?:\n[\r\n]|\r\r)[\r\n]*+")
_DATA_LINE: Final = re.compile(rb"data(?<![^\r\n]data)(?::[^\r\n]*+)?+(?:\r\n|[\r\n])")
_COMMENTS: Final = re.compile(rb"(?:(?::[^\r\n]*+)?(?:\r\n|\n|\r))*+")  # and empty lines
_BOM: Final = b"\xef\xbb\xbf"
_RETRY_MS_MAX: Final = 10**15  # longer than anybody waits

LINES_MAX: Final = 10_000  # of an event that is read
EVERY: Final = (b"",)  # what every event has in it
_MARKED_BYTES_MIN: Final = 320  # a marked event for each so many bytes of a piece is read, and
_MARKED_MIN: Final = 32  # so many of a small one, but
_MARKED_MAX: Final = 250  # no more of one that is very large, as what was unpacked may be
_LOOKED_AT_ONCE: Final = 16 * 1024  # bytes of an event that has not ended


class Event(msgspec.Struct):
    """One event: its bytes with the blank lines that end it.

    `whole` is False for a piece of what is too much to read. `marked` is False for any number of events that have none
    of the marks that were asked for; they are not told apart.
    """

    raw: bytes
    whole: bool = True
    bom: bool = False  # it is the first of its stream, and begins with a byte order mark
    marked: bool = True

    def _text(self) -> bytes:
        return self.raw[len(_BOM) :] if self.bom else self.raw

    def field(self, name: bytes) -> list[bytes]:
        """The values of every line of the field `name`, in order."""
        text = b"\n%b\n" % self._text()
        if b"\r" in text:
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return _lines_of(name).findall(text)

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
        text = self._text()
        lines, others = _DATA_LINE.findall(text), _DATA_LINE.split(text)
        line, before, between, behind = lines[0], others[0], b"".join(others[1:-1]), others[-1]
        if len(lines) > 1 and (between or line).endswith(b"\r") and behind.startswith(b"\n"):
            # Without a line there the CR before and the LF behind would be one line end.
            line, before, between = lines[-1], before + between, b""
        end = line[len(line.rstrip(b"\r\n")) :]
        pieces = data.split(b"\n")
        spaced = line.startswith(b"data: ") or any(piece.startswith(b" ") for piece in pieces)
        new = [(b"data: " if spaced else b"data:") + piece + end for piece in pieces]
        return b"".join([_BOM if self.bom else b"", before, *new, between, behind])


class Parser:
    """Splits a stream of server-sent events. One parser for one stream; `event_bytes_max` may change on the way.

    `marks` are bytes without a line end, one of which an event of interest has in it. Where they are not EVERY, and not
    all are to be read, so many marked events of one piece are as it has room for of the size that messages have, and no
    more than `_MARKED_MAX`; the rest comes unread.
    """

    def __init__(self, event_bytes_max: int, marks: Sequence[bytes] = EVERY, reads_all: bool = False) -> None:
        self.event_bytes_max: float = event_bytes_max
        self._marks = marks
        self._reads_all = reads_all or marks is EVERY
        self._pending = bytearray()
        self._unmarked = 0  # bytes of what is pending in which no mark begins, unless
        self._has_mark = False
        self._has_cr = False  # in what is pending
        self._line_ended = False  # in what was fed last
        self._skipping = False
        self._first = True  # nothing of the stream was handed out yet

    def feed(self, data: bytes) -> list[Event]:
        """The events that `data` completes, and the pieces of one that is too large to hold."""
        pending, events = self._pending, []
        searched = max(0, len(pending) - 1)  # a blank line may have begun before
        self._line_ended = b"\n" in data or b"\r" in data
        pending += data
        self._has_cr = self._has_cr or b"\r" in data
        only_lf = not self._has_cr  # most streams: then looking is ten times faster
        if self._skipping and (end := _first_end(pending, searched, only_lf)) >= 0:
            self._skipping, searched = False, 0
            events.append(Event(self._take(end), whole=False))
        if not self._skipping and (end := _last_end(pending, searched, len(pending), only_lf)) >= 0:
            unmarked, has_mark = self._unmarked, self._has_mark
            block = self._take(end)
            events += self._split(block, self._marked(block, searched, unmarked, has_mark))
        if len(pending) > 1 and (self._skipping or len(pending) > self.event_bytes_max):
            self._skipping = True
            events.append(Event(self._take(-1), whole=False))  # the last byte may begin a blank line
        self._first &= not events
        self._look_on()
        return events

    @property
    def pending_bytes(self) -> int:
        """What is held of an event that has begun and not ended."""
        return len(self._pending)

    def _look_on(self) -> None:
        """Look for marks in what is new, so that a large event need not be looked through at once when it ends."""
        if not self._has_mark and len(self._pending) - self._unmarked > _LOOKED_AT_ONCE:
            self._has_mark = any(self._pending.find(mark, self._unmarked) >= 0 for mark in self._marks)
            longest = max(map(len, self._marks), default=1)
            self._unmarked = max(0, len(self._pending) + 1 - longest)

    def _take(self, end: int) -> bytes:
        taken = bytes(self._pending[:end])
        del self._pending[:end]
        self._unmarked, self._has_mark = 0, False
        self._has_cr = self._has_cr and b"\r" in self._pending
        return taken

    def _split(self, block: bytes, marked: Iterable[tuple[int, int]]) -> list[Event]:
        """The events in a block of whole ones, of which those at `marked` have a mark."""
        events: list[Event] = []
        room = len(block) if self._reads_all else min(_MARKED_MAX, _MARKED_MIN + len(block) // _MARKED_BYTES_MIN)
        behind = 0
        for start, end in marked:
            if start > behind:
                events.append(Event(block[behind:start], marked=False))
            if not room:
                return [*events, Event(block[start:], whole=False)]
            room -= 1
            raw, behind = block[start:end], end
            events.append(Event(raw, self._is_readable(raw), self._first and not events and raw.startswith(_BOM)))
        if behind < len(block):
            events.append(Event(block[behind:], marked=False))
        return events

    def _marked(self, block: bytes, searched: int, unmarked: int, has_mark: bool) -> Iterator[tuple[int, int]]:
        """Where in a block those events stand that have a mark in them.

        No blank line ends before `searched`; no mark begins before `unmarked`, unless what was pending has one.
        """
        size, only_lf, end = len(block), b"\r" not in block, 0
        if has_mark:
            end = _first_end(block, searched, only_lf)
            yield 0, end
        looked = max(end, unmarked)
        places = [looked - 1] * len(self._marks)
        while True:
            # Where there is no mark any more, -1 becomes the size.
            places = [
                at if at >= looked else block.find(mark, looked) % (size + 1)
                for at, mark in zip(places, self._marks, strict=True)
            ]
            if (at := min(places, default=size)) == size:
                return
            start = max(end, _last_end(block, max(end, searched), at, only_lf))
            looked = end = _first_end(block, max(at, searched), only_lf)
            yield start, end

    def _is_readable(self, raw: bytes) -> bool:
        """Whether an event is within the limits, with the first blank line behind it and without any before it."""
        if len(raw) <= min(self.event_bytes_max, LINES_MAX):
            return True
        text = raw.lstrip(b"\r\n")
        blank = _BLANK.search(text, len(text.rstrip(b"\r\n")))
        text = text[: blank.start() + 2] if blank else b""
        lines = text.count(b"\n") + text.count(b"\r") - text.count(b"\r\n")
        return len(text) <= self.event_bytes_max and lines <= LINES_MAX

    def take_comments(self) -> bytes:
        """The whole comment lines, and empty ones, that an event which has begun starts with; it is not of them.

        An LF behind a CR that was taken reads as an empty line, which means nothing there.
        """
        if self._skipping or not self._line_ended or not (found := _COMMENTS.match(self._pending)):
            return b""
        self._first &= not found.end()
        return self._take(found.end()) if found.end() else b""

    def rest(self) -> bytes:
        """The bytes of an event that has begun and not ended."""
        return bytes(self._pending)


def _first_end(data: bytes | bytearray, at: int, only_lf: bool) -> int:
    """Where the first blank lines behind `at` end; -1 if there are none."""
    if only_lf and (at := data.find(b"\n\n", at)) < 0:
        return -1
    blank = _BLANK.search(data, at)
    return blank.end() if blank else -1


def _last_end(data: bytes | bytearray, start: int, stop: int, only_lf: bool) -> int:
    """Where the last blank lines between `start` and `stop` end; -1 if there are none."""
    at = data.rfind(b"\n\n", start, stop)
    if not only_lf:
        at = max(at, data.rfind(b"\n\r", start, stop), data.rfind(b"\r\r", start, stop))
    if at < 0:
        return -1
    return at + 3 if data[at + 1 : at + 3] == b"\r\n" else at + 2


def event(data: bytes) -> bytes:
    """The bytes of a `message` event with the one-line `data`."""
    return b"event: message\ndata: %b\n\n" % data


@lru_cache
def _lines_of(name: bytes) -> re.Pattern[bytes]:
    """What finds the values of a field, where every line has an LF on either side."""
    return re.compile(rb"\n%b(?::\x20?([^\n]*))?(?=\n)" % re.escape(name))
