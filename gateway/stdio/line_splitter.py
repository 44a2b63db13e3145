"""Lines as bytes: over stdio each message is one line (transports specification, stdio).

In: the bytes of a stream, split anywhere. Out: `Line`s in order. Always: their bytes, one behind the other, are the
bytes that came. A line ends at LF and nowhere else; the last one may have no end. A line that is too large to be
read comes in pieces, and costs no memory; or in one, if it is to be held.
"""

import re
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from gateway.mcp import jsonrpc

SIGHT_BYTES: Final = 1024  # at either end of a large line
_ID: Final = rb'"id"\s*:\s*(-?[0-9.eE+-]{1,100}|"[^"\\]{0,500}")'
_VERSION: Final = rb'"jsonrpc"\s*:\s*"2\.0"'
_METHOD_FIRST: Final = re.compile(rb"\s*\{\s*(?:%b\s*,\s*)?(?:%b\s*,\s*)?\"method\"\s*:" % (_VERSION, _ID))
_ID_FIRST: Final = re.compile(
    rb"\s*\{\s*(?:%b\s*,\s*)?%b\s*,\s*(?:%b\s*,\s*)?\"(?:result|error)\"\s*:" % (_VERSION, _ID, _VERSION)
)
_ID_LAST: Final = re.compile(rb",\s*%b\s*(?:,\s*%b\s*)?\}\s*$" % (_ID, _VERSION))


class Sight:
    """The id in a line, found without reading the line, if it is the first or the last member: then it is certain."""

    def __init__(self, piece: bytes) -> None:
        head = piece[:SIGHT_BYTES]
        method = _METHOD_FIRST.match(head)
        self.may_be_message = jsonrpc.begins_like_messages(head)
        self.may_be_response = method is None and self.may_be_message
        self.first_id = _id_in(_ID_FIRST.match(head) if method is None else method)
        self._tail = piece[-SIGHT_BYTES:]
        self.stays: bool | None = None  # whether the line answers a request of the gateway's, once that is known

    def feed(self, piece: bytes) -> None:
        self._tail = (self._tail + piece[-SIGHT_BYTES:])[-SIGHT_BYTES:]

    @property
    def id(self) -> jsonrpc.Id | None:
        """The id of the response, once the line has ended; None if there is none, or it cannot be told."""
        return self._id if self.may_be_response else None

    @property
    def request_id(self) -> jsonrpc.Id | None:
        """The same of the request, where the line is one for certain."""
        return None if self.may_be_response else self._id

    @property
    def _id(self) -> jsonrpc.Id | None:
        return _id_in(_ID_LAST.search(self._tail)) if self.first_id is None else self.first_id


def _id_in(found: re.Match[bytes] | None) -> jsonrpc.Id | None:
    return None if found is None or found[1] is None else jsonrpc.id_of(found[1])


class Line(msgspec.Struct):
    """A line with its LF, or a piece of one that is too large to be read: then all its pieces have one `sight`."""

    raw: bytes
    ended: bool = True  # False: more of the line follows, or the stream has ended before the line
    sight: Sight | None = None


class LineParser:
    """`holds` is asked whether a large line, of which so much has come, comes in one piece."""

    def __init__(self, line_bytes_max: int, holds: Callable[[bytearray], bool] = lambda _: False) -> None:
        self._line_bytes_max = line_bytes_max
        self._holds = holds
        self.pending = bytearray()  # of a line that has not ended
        self._sight: Sight | None = None  # of the line under way, once a piece of it has gone out

    def feed(self, piece: bytes) -> Iterator[Line]:
        """The lines that a piece completes, and its share of a large one."""
        *lines, rest = piece.split(b"\n")
        for line in lines:
            yield self._take(line + b"\n", ended=True)
        self.pending += rest
        is_large = self._sight is not None or len(self.pending) > self._line_bytes_max
        if rest and is_large and (self._sight is not None or not self._holds(self.pending)):
            yield self._take(b"", ended=False)

    def rest(self) -> Line | None:
        """The last line of a stream that ended without LF; else None."""
        return self._take(b"", ended=False) if self.pending else None

    def _take(self, data: bytes, ended: bool) -> Line:
        raw, sight = bytes(self.pending), self._sight
        self.pending.clear()  # before it is copied once more: a line that was held may be large
        raw += data
        if sight is not None:
            sight.feed(raw)
        elif len(raw) > self._line_bytes_max:
            sight = Sight(raw)
        self._sight = None if ended else sight
        return Line(raw, ended, sight)
