"""A body in chunks (RFC 9112, 7.1), as llhttp reads it: those of requests and those of responses.

In: bytes as they arrive, split anywhere. Out: pieces of the body, and the trailers once it is whole. Always: what is no
body, a chunk's extension or a trailer, has a limit in bytes and in fields; the pieces in front of a fault are given.
"""

import re
from collections.abc import Container
from typing import Any, Final

import httptools

from gateway.errors import without_frames

_WHOLE_MAX: Final = 64  # chunks that are read without llhttp: beyond that it is faster
_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,8})\r\n")


class TooMuch(Exception):
    """Chunk extensions or trailers are beyond a limit."""


class BadTrailer(Exception):
    """This field is not allowed as a trailer."""


class Followed(Exception):
    """Another message begins behind the last chunk, in one piece with it."""


def whole_body(data: bytes, at: int) -> bytes | None:
    """The body whose chunks are all that `data` has from `at` on; None if there is anything that llhttp is to judge."""
    pieces = list[bytes]()
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


class Chunks:
    """One body. `parser` is llhttp's, `head` one that chunks follow; a trailer named in `refused` is a fault.

    `fault` says what is wrong, once something is; it stands behind what `feed` gave. Only llhttp calls the methods that
    begin with `on_`.
    """

    __slots__ = (
        "_begun", "_bytes_max", "_fields_max", "_idle_bytes", "_parser", "_pieces", "_refused", "fault", "fields",
        "is_whole", "on_body",
    )  # fmt: skip

    def __init__(
        self, parser: Any, head: bytes, bytes_max: int, fields_max: int, refused: Container[bytes] = ()
    ) -> None:
        self._bytes_max = bytes_max
        self._fields_max = fields_max
        self._refused: Container[bytes] = ()
        self._begun = False
        self._idle_bytes = 0  # of chunk sizes, extensions and trailers, since the last byte of a chunk
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append
        self.fields: list[tuple[bytes, bytes, bytes]] = []  # trailers, once the head was read
        self.is_whole = False
        self.fault: Exception | None = None
        self._parser = parser(self)
        self._parser.feed_data(head)
        self.fields.clear()
        self._refused = refused

    def feed(self, data: bytes) -> bytes:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            self.fault = error.__context__ if isinstance(error.__context__, Exception) else error
        except httptools.HttpParserError as error:
            self.fault = error
        piece = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._idle_bytes = 0 if piece or self.is_whole else self._idle_bytes + len(data)
        if self._idle_bytes > self._bytes_max and self.fault is None:
            self.fault = TooMuch(f"more than {self._bytes_max} bytes of chunk extensions or trailers")
        if self.fault is not None:
            without_frames(self.fault)
        if self.fault is not None or self.is_whole:
            self.close()
        return piece

    def close(self) -> None:
        self._parser = None  # it holds methods of this object (9.5)

    def on_message_begin(self) -> None:
        if self._begun:
            raise Followed
        self._begun = True

    def on_header(self, name: bytes, value: bytes) -> None:
        lower = name.lower()
        if lower in self._refused:
            raise BadTrailer(lower.decode())
        self.fields.append((lower, name, value))
        if len(self.fields) > self._fields_max:
            raise TooMuch(f"more than {self._fields_max} trailers")

    def on_message_complete(self) -> None:
        if sum(len(name) + len(value) + 4 for _, name, value in self.fields) > self._bytes_max:
            raise TooMuch(f"trailers larger than {self._bytes_max} bytes")
        self.is_whole = True
