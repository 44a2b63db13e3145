"""Server-sent events as bytes: fed in any pieces, returned whole, edited one at a time (WHATWG HTML).

In: the bytes of a stream, split anywhere. Out: `Event`s in order, each with the very bytes that came.
Always: the raw bytes of all events and of all taken comments, then `rest()`, are the bytes that were fed. Lines end at
CR, LF or CRLF and nowhere else (U+2028 is text). An event that is too large to read comes in unread pieces, and takes
no memory (DESIGN 7). Work is in proportion to bytes: neighbouring events without a mark stay in one piece.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final

import msgspec

# Blank lines: the end of the line before them, then the end of each. CR LF is one line end.
_BLANK: Final = re.compile(rb"(?:\n[\r\n]|\r\r)[\r\n]*+")
_DATA_LINE: Final = re.compile(rb"data(?<![^\r\n]data)(?::[^\r\n]*+)?(?:\r\n|[\r\n])")
_FIELD: Final = re.compile(rb"[\r\n][^:\r\n]")  # the end of a comment or an empty line, and the beginning of a field
_ONLY: Final = re.compile(rb"(?:(?:event: message|id: [^\r\n]*)(?:\r\n|\n)){0,2}data: ")
_BOM: Final = b"\xef\xbb\xbf"
_RETRY_MS_MAX: Final = 10**15

LINES_MAX: Final = 10_000  # of an event; one with more is not read
EVERY: Final = (b"",)  # the mark that every event has
# The number of marked events that are read in one piece: one for each `_MARKED_BYTES_MIN` bytes and `_MARKED_MIN` more,
# but at most `_MARKED_MAX`, because an unpacked piece can be very large.
_MARKED_BYTES_MIN: Final = 320
_MARKED_MIN: Final = 32
_MARKED_MAX: Final = 250
_SEARCHED_AT_ONCE: Final = 16 * 1024  # bytes of an unfinished event, searched for marks together


class Event(msgspec.Struct):
    """One event: its bytes, with the blank lines that end it.

    `whole` is False for a piece of an event that is too large to read. `marked` is False for a piece with several
    events, all without a mark.
    """

    raw: bytes
    whole: bool = True
    bom: bool = False  # it begins its stream with a byte order mark
    marked: bool = True

    def _text(self) -> bytes:
        return self.raw[len(_BOM) :] if self.bom else self.raw

    def field(self, name: bytes) -> list[bytes]:
        text = b"\n%b\n" % self._text()
        if b"\r" in text:
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return _lines_of(name).findall(text)

    @property
    def data(self) -> bytes | None:
        """The event's data, its lines joined by LF; None if there is none, or the event is too large to read."""
        lines = self.field(b"data") if self.whole and b"data" in self.raw else []
        return b"\n".join(lines) if lines else None

    @property
    def id(self) -> bytes | None:
        values = [v for v in self.field(b"id") if b"\0" not in v] if self.whole else []
        return values[-1] if values else None

    @property
    def is_message(self) -> bool:
        """Whether its type is `message`, the only type that MCP reads."""
        return b"event" not in self.raw or self.field(b"event")[-1:] in ([], [b""], [b"message"])

    @property
    def retry_ms(self) -> int | None:
        """The reconnection time that the event sets, in milliseconds, or None."""
        values = [v for v in self.field(b"retry") if v.isdigit()] if self.whole else []
        return min(int(values[-1].lstrip(b"0")[:18] or b"0"), _RETRY_MS_MAX) if values else None

    def with_data(self, data: bytes) -> bytes:
        """The event's bytes with `data` instead of its data. The lines of all other fields stay."""
        text = self._text()
        lines, others = _DATA_LINE.findall(text), _DATA_LINE.split(text)
        line, before, between, behind = lines[0], others[0], b"".join(others[1:-1]), others[-1]
        if len(lines) > 1 and (between or line).endswith(b"\r") and behind.startswith(b"\n"):
            # Keep a line between the CR and the LF: side by side they would be one line end.
            line, before, between = lines[-1], before + between, b""
        end = line[len(line.rstrip(b"\r\n")) :]
        pieces = data.split(b"\n")
        spaced = line.startswith(b"data: ") or any(piece.startswith(b" ") for piece in pieces)
        new = [(b"data: " if spaced else b"data:") + piece + end for piece in pieces]
        return b"".join([_BOM if self.bom else b"", before, *new, between, behind])


class Parser:
    """Splits a stream of server-sent events. One parser for one stream; `event_bytes_max` may change meanwhile.

    `marks` are bytes without a line end. An event of interest has one of them in it. In one piece a limited number of
    marked events is read (see `_MARKED_MAX`), and the rest comes unread. With `reads_all`, or the marks EVERY, all of
    them are read, and capitals count as small letters.
    """

    __slots__ = (
        "_counted", "_first", "_has_cr", "_has_mark", "_line_ended", "_line_ends", "_marks", "_pending", "_reads_all",
        "_skipping", "_unmarked", "event_bytes_max",
    )  # fmt: skip

    def __init__(self, event_bytes_max: int, marks: Sequence[bytes] = EVERY, reads_all: bool = False) -> None:
        self.event_bytes_max = event_bytes_max
        self._marks = marks
        self._reads_all = reads_all or marks is EVERY
        self._pending = bytearray()
        self._has_mark = False  # the pending bytes have a mark
        self._unmarked = 0  # if they have none: the number of them in which no mark begins
        self._has_cr = False  # the pending bytes have a CR
        self._line_ended = False  # the bytes that were fed last have a line end
        self._line_ends = self._counted = 0  # CR and LF in the pending bytes, of which so many were looked at
        self._skipping = False  # the pending bytes belong to an event that is too large to hold
        self._first = True  # nothing of the stream has been returned yet

    def feed(self, data: bytes) -> list[Event]:
        """The events that `data` completes, and the pieces of an event that is too large to hold."""
        if not (self._pending or self._skipping) and (event := self._whole(data)) is not None:
            return [event]
        pending, events = self._pending, []
        searched = max(0, len(pending) - 1)  # a blank line may have begun before
        self._line_ended = b"\n" in data or b"\r" in data
        pending += data
        self._has_cr = self._has_cr or b"\r" in data
        only_lf = not self._has_cr  # true for most streams, and makes the search ten times faster
        if self._skipping and (end := _first_end(pending, searched, only_lf)) >= 0:
            self._skipping, searched = False, 0
            events.append(Event(self._take(end), whole=False))
        if not self._skipping and (end := _last_end(pending, searched, len(pending), only_lf)) >= 0:
            unmarked, has_mark = self._unmarked, self._has_mark
            block = self._take(end)
            events += self._split(block, self._marked(self._folded(block), searched, unmarked, has_mark))
        if len(pending) > 1 and (self._skipping or len(pending) > self.event_bytes_max or self._has_too_many_lines()):
            self._skipping = True
            events.append(Event(self._take(-1), whole=False))  # the last byte may begin a blank line
        self._first &= not events
        self._search_on()
        return events

    def _whole(self, data: bytes) -> Event | None:
        """The only event in a piece that came whole, as servers write them, or several of which none has a mark."""
        if not data.endswith(b"\n\n") or b"\r" in data or len(data) > min(self.event_bytes_max, LINES_MAX):
            return None
        text = self._folded(data)
        is_marked = any(mark in text for mark in self._marks)
        if is_marked and data.find(b"\n\n") != len(data) - 2:
            return None
        has_bom, self._first, self._line_ended = self._first and data.startswith(_BOM), False, True
        return Event(data, True, is_marked and has_bom, is_marked)

    @property
    def pending_bytes(self) -> int:
        return len(self._pending)

    def _search_on(self) -> None:
        """Search the new bytes for marks: to search a large event only at its end would take long."""
        if not self._has_mark and len(self._pending) - self._unmarked > _SEARCHED_AT_ONCE:
            text = self._folded(bytes(self._pending[self._unmarked :]))
            self._has_mark = any(mark in text for mark in self._marks)
            longest = max(map(len, self._marks), default=1)
            self._unmarked = max(0, len(self._pending) + 1 - longest)

    def _folded(self, data: bytes) -> bytes:
        return data.lower() if self._reads_all else data

    def _take(self, end: int) -> bytes:
        taken = bytes(self._pending[:end])
        del self._pending[:end]
        self._unmarked, self._has_mark = 0, False
        self._has_cr = self._has_cr and b"\r" in self._pending
        self._line_ends = self._counted = 0
        return taken

    def _has_too_many_lines(self) -> bool:
        """Whether the pending event is certain to have: it is not held until its end. Comments may be taken."""
        pending = self._pending
        if len(pending) <= 2 * LINES_MAX:  # CR LF ends one line
            return False
        self._line_ends += pending.count(b"\n", self._counted) + pending.count(b"\r", self._counted)
        self._counted = len(pending)
        return self._line_ends > 2 * LINES_MAX and not pending.startswith((b":", b"\r", b"\n"))

    def _split(self, block: bytes, marked: Iterable[tuple[int, int]]) -> list[Event]:
        """The events in a block of whole events. Those at `marked` have a mark."""
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
        """The (start, end) of each event in a block that has a mark.

        No blank line ends before `searched`. No mark begins before `unmarked`, unless `has_mark`.
        """
        size, only_lf, end = len(block), b"\r" not in block, 0
        if has_mark:
            end = _first_end(block, searched, only_lf)
            yield 0, end
        looked = max(end, unmarked)
        offsets = [looked - 1] * len(self._marks)
        while True:
            # If there is no further mark, -1 becomes the size.
            offsets = [
                at if at >= looked else block.find(mark, looked) % (size + 1)
                for at, mark in zip(offsets, self._marks, strict=True)
            ]
            if (at := min(offsets, default=size)) == size:
                return
            start = max(end, _last_end(block, max(end, searched), at, only_lf))
            looked = end = _first_end(block, max(at, searched), only_lf)
            yield start, end

    def _is_readable(self, raw: bytes) -> bool:
        """Whether an event is within the limits. Leading blank lines do not count; one blank line behind it counts."""
        if len(raw) <= min(self.event_bytes_max, LINES_MAX):
            return True
        text = raw.lstrip(b"\r\n")
        blank = _BLANK.search(text, len(text.rstrip(b"\r\n")))
        text = text[: blank.start() + 2] if blank else b""
        lines = text.count(b"\n") + text.count(b"\r") - text.count(b"\r\n")
        return len(text) <= self.event_bytes_max and lines <= LINES_MAX

    def take_comments(self) -> bytes:
        """Take the whole comment lines and blank lines that are pending first. An LF that follows means nothing."""
        pending = self._pending
        if self._skipping or not self._line_ended or not pending.startswith((b":", b"\r", b"\n")):
            return b""
        field = _FIELD.search(pending)
        end = field.end() - 1 if field else max(pending.rfind(b"\n"), pending.rfind(b"\r")) + 1
        self._first &= not end
        return self._take(end) if end else b""

    def rest(self) -> bytes:
        return bytes(self._pending)


def _first_end(data: bytes | bytearray, at: int, only_lf: bool) -> int:
    """The end of the first blank lines behind `at`; -1 if there are none."""
    if only_lf and (at := data.find(b"\n\n", at)) < 0:
        return -1
    blank = _BLANK.search(data, at)
    return blank.end() if blank else -1


def _last_end(data: bytes | bytearray, start: int, stop: int, only_lf: bool) -> int:
    """The end of the last blank lines between `start` and `stop`; -1 if there are none."""
    at = data.rfind(b"\n\n", start, stop)
    if not only_lf:
        at = max(at, data.rfind(b"\n\r", start, stop), data.rfind(b"\r\r", start, stop))
    if at < 0:
        return -1
    return at + 3 if data[at + 1 : at + 3] == b"\r\n" else at + 2


def only_data(stream: bytes) -> bytes | None:
    """The data of the one event in a whole stream, a message, as servers write it; None if it is written otherwise."""
    found, end = _ONLY.match(stream), b"\r\n\r\n" if stream.endswith(b"\r\n\r\n") else b"\n\n"
    if found is None or not stream.endswith(end):
        return None
    data = stream[found.end() : -len(end)]  # a pattern would take its bytes one by one
    return None if b"\n" in data or b"\r" in data else data


def event(data: bytes) -> bytes:
    """The bytes of a `message` event with `data`, which may have several lines: JSON may be written so."""
    if b"\n" in data or b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").replace(b"\n", b"\ndata: ")
    return b"event: message\ndata: %b\n\n" % data


@lru_cache
def _lines_of(name: bytes) -> re.Pattern[bytes]:
    """A pattern of a field's values, in a text where every line has an LF before and behind it."""
    return re.compile(rb"\n%b(?::\x20?([^\n]*))?(?=\n)" % re.escape(name))
