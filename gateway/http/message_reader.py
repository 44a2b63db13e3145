"""What requests and responses have in common as they are read: a head, and a body by its length or in chunks.

In: bytes as they arrive, split anywhere. Out: heads as bytes; pieces of a body, and its trailers once it is whole.
Always: until a head is whole, only its bytes are kept, and the work is in proportion to them; a head, and what is no
body (a chunk's extension, a trailer), has a limit in bytes and in fields; the pieces in front of a fault are given.
Chunks (RFC 9112, 7.1) are read by llhttp.
"""

import re
from typing import Any, Final

import httptools

from gateway.errors import without_frames
from gateway.http.header_fields import FIELD_BYTES_MIN, HEAD_END, Field, fields_bytes
from gateway.http.parsed_head_cache import ConnectionHeads

_WHOLE_MAX: Final = 64  # chunks that are read without llhttp: beyond that it is faster
_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,8})\r\n")


class TooMuch(Exception):
    """A head, chunk extensions or trailers are beyond a limit."""


class HeadTooLarge(TooMuch):
    """A head is beyond the limit in bytes."""


def whole_body(data: bytes, at: int) -> bytes | None:
    """The body whose chunks are all that `data` has from `at` on; None if there is anything that llhttp is to judge."""
    pieces: list[bytes] = []
    while len(pieces) < _WHOLE_MAX and (found := _SIZE.match(data, at)) is not None:
        start = found.end()
        end = start + int(found[1], 16)
        if not data.startswith(b"\r\n", end):
            return None
        at = end + 2
        if start == end:
            return b"".join(pieces) if at == len(data) else None
        pieces.append(data[start:end])
    return None


class Found:
    """What llhttp finds in a head."""

    __slots__ = ("fields", "target")

    def __init__(self) -> None:
        self.target = b""  # of a request
        self.fields: list[Field] = []

    def on_url(self, url: bytes) -> None:
        self.target = url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name.lower(), name, value))


def read_by_llhttp(llhttp: Any, head: bytes) -> tuple[Found, Any]:
    """What is in a head, and the parser that has found it. Raises httptools.HttpParserError."""
    found = Found()
    parser = llhttp(found)
    try:  # noqa: SIM105  # suppress() costs more
        parser.feed_data(head)
    except httptools.HttpParserUpgrade:
        pass  # llhttp takes what follows for another protocol (DESIGN 10.4)
    return found, parser


class MessageReader:
    """Reads the messages of one connection. Only llhttp calls the methods that begin with `on_`."""

    __slots__ = (
        "_at", "_bytes_max", "_cached_heads", "_fault", "_fields_max", "_idle_bytes", "_left", "_lines", "_parser",
        "_pending", "_pieces", "_seen", "is_whole", "on_body", "trailers",
    )  # fmt: skip

    def __init__(self, bytes_max: int, fields_max: int, cached_heads: ConnectionHeads[Any] | None = None) -> None:
        self._bytes_max = bytes_max
        self._fields_max = fields_max
        self._cached_heads = cached_heads
        self._parser: Any = None  # llhttp's, of a body in chunks
        self.begin()

    def begin(self) -> None:
        self._pending: bytes | bytearray = b""  # what arrived and was not read yet, from `_at` on
        self._at = 0
        self._seen = self._lines = 0  # of a head that is not whole: bytes looked at, lines in them
        self._left = 0  # bytes of the body that are still to come
        self._fault: BaseException | None = None  # of a body in chunks: it stands behind what was given
        self.is_whole = False  # the end of the body has come
        self.trailers: list[Field] = []
        self.close()

    def close(self) -> None:
        self._parser = None  # it holds methods of this object (9.5)

    def add(self, data: bytes) -> None:
        if self._at == len(self._pending):
            self._pending, self._at = data, 0
        elif isinstance(self._pending, bytearray) and not self._at:
            self._pending += data
        else:
            self._pending, self._at = bytearray(self._pending[self._at :]) + data, 0

    @property
    def held_bytes(self) -> int:
        """The memory of a head, or of trailers, that are not whole."""
        return (fields_bytes(self.trailers) if self.trailers else 0) + self._seen

    @property
    def pending_bytes(self) -> int:
        """How much has come that was not looked at."""
        return len(self._pending) - (self._seen or self._at)

    def _inspect(self, data: bytes | bytearray, at: int, has_bare_lf: bool) -> None:
        """Raise an error if no head begins like this. Only some readers end a line with a bare LF."""
        raise NotImplementedError

    def _raw_head(self) -> bytes | None:
        """The next head, once it is whole. Raises TooMuch, with the words behind "its head", or as `_inspect`."""
        data, at = self._pending, self._at
        seen = max(at, self._seen)
        found = data.find(HEAD_END, max(at, seen - len(HEAD_END) + 1))
        end = found + len(HEAD_END) if found >= 0 else len(data)
        if end - at > self._bytes_max:
            raise HeadTooLarge(f"is larger than {self._bytes_max} bytes")
        if found < 0:
            lines = data.count(b"\n", seen)
            self._inspect(data, at, lines != data.count(b"\r\n", max(at, seen - 1)))
            self._lines += lines
            fields = self._lines - 1
        else:
            fields = data.count(b"\n", at, end) - 2 if end - at > FIELD_BYTES_MIN * self._fields_max else 0
        if fields > self._fields_max:
            raise TooMuch(f"has more than {self._fields_max} fields")
        if found < 0:
            if at or not isinstance(data, bytearray):
                self._pending, self._at = bytearray(data[at:]), 0
            self._seen = len(self._pending)
            return None
        self._at, self._seen, self._lines = end, 0, 0
        return bytes(data[at:end])

    def _counted(self) -> bytes:
        """What has come of a body that has `_left` bytes to come."""
        data, at = self._pending, self._at
        self._at = end = min(len(data), at + self._left)
        self._left -= end - at
        piece = data[at:end]  # of all bytes it is the same object
        return piece if isinstance(piece, bytes) else bytes(piece)

    def _expect_chunks(self, llhttp: Any, head: bytes) -> None:
        """From now on read a body in chunks, with a parser of llhttp's that is told a head which chunks follow."""
        self.is_whole = False
        self._idle_bytes = 0  # of chunk sizes, extensions and trailers, since the last byte of a chunk
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append
        parser = llhttp(self)
        parser.feed_data(head)
        self._parser, self.trailers = parser, []

    def _chunks(self, data: bytes) -> bytes:
        """What `data` has of the body in its chunks."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fault = error.__context__ or error
        piece = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._idle_bytes = 0 if piece or self.is_whole else self._idle_bytes + len(data)
        if self._idle_bytes > self._bytes_max and self._fault is None:
            self._fault = TooMuch(f"more than {self._bytes_max} bytes of chunk extensions or trailers")
        if self._fault is not None:
            without_frames(self._fault)
        if self._fault is not None or self.is_whole:
            self._parser = None
        return piece

    def on_message_begin(self) -> None:
        if self._parser is not None:
            raise httptools.HttpParserError("another message in one piece with the last chunk before it")

    def on_header(self, name: bytes, value: bytes) -> None:
        self.trailers.append((name.lower(), name, value))
        if len(self.trailers) > self._fields_max:
            raise TooMuch(f"more than {self._fields_max} trailers")

    def on_message_complete(self) -> None:
        if sum(len(name) + len(value) + 4 for _, name, value in self.trailers) > self._bytes_max:
            raise TooMuch(f"trailers larger than {self._bytes_max} bytes")
        self.is_whole = True
