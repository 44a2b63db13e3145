"""HTTP/1.1 as the harness reads it: the messages in the bytes that one end of a connection received.

Nothing is forgiven: what RFC 9112 forbids is `Malformed`. This reader is no part of the gateway and is stricter than
the gateway's, so that it sees every fault in what the gateway writes.
"""

import contextlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Fields: TypeAlias = tuple[tuple[bytes, bytes], ...]
End: TypeAlias = Literal["open", "fin", "rst"]
"""How the peer left a connection: not yet, in order, or by a reset."""

_TOKEN: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.[01] [1-5][0-9][0-9] [\t\x20-\x7e\x80-\xff]*")
_REQUEST_LINE: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+ [!-\xff]+ HTTP/1\.[01]")
_CHUNK_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})(?:;[\t\x20-\x7e\x80-\xff]*)?")


class Malformed(Exception):
    """Bytes that are no HTTP/1.1."""


@dataclass(frozen=True)
class Message:
    """A request or a response; `framing` is what ends its body: none, length, chunked, close."""

    start: bytes
    fields: Fields
    framing: str
    body: bytes = b""
    trailers: Fields = ()
    whole: bool = True

    @property
    def method(self) -> bytes:
        return self.start.partition(b" ")[0]

    @property
    def target(self) -> bytes:
        return self.start.split(b" ")[1]

    @property
    def status(self) -> int:
        return int(self.start.split(b" ")[1])

    @property
    def is_final(self) -> bool:
        return self.status >= 200

    def values(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.fields if key.lower() == name.lower()]

    def value(self, name: bytes) -> bytes | None:
        """The value of the only field of that name; None if there is none."""
        values = self.values(name)
        assert len(values) <= 1, f"{name!r} is given {len(values)} times"
        return values[0] if values else None


class Reader:
    """The messages of one direction of a connection, read as bytes are fed; those that are whole are read once."""

    def __init__(self, bare: bool = False) -> None:
        """`bare`: line ends in front of a request may be bare, as llhttp has it; else they are CR LF."""
        self.data = bytearray()
        self.done: list[Message] = []  # those that are whole, as far as they were read
        self._empty_lines = re.compile(rb"[\r\n]*" if bare else rb"(?:\r\n)*")
        self._at = 0
        self._asked = 0  # of the methods that responses answer to
        self._whole_at = 0  # how much data there must be before the request under way can be whole

    def feed(self, data: bytes) -> None:
        self.data += data

    @property
    def has_rest(self) -> bool:
        """Whether there are bytes behind the messages that are whole."""
        return self._at < len(self.data)

    def requests(self) -> list[Message]:
        """The requests whose heads have come; the last one may not be whole."""
        while True:
            if ignored := self._empty_lines.match(self.data, self._at):  # before a request line (RFC 9112, 2.2)
                self._at = ignored.end()
            head = _head(self.data, self._at, _REQUEST_LINE)
            if head is None:
                return list(self.done)
            message, after = _with_body(self.data, head[2], Message(*head[:2], _framing(head[1]) or "none"))
            if not message.whole:
                self._whole_at = after if message.framing == "length" else 0
                return [*self.done, message]
            self.done.append(message)
            self._at = after

    def count(self) -> int:
        """How many requests have begun; costs nothing while a large body arrives."""
        return len(self.done) + 1 if len(self.data) < self._whole_at else len(self.requests())

    def methods(self) -> list[bytes]:
        """The methods of the requests, and one more for bytes behind them that are no request: they may be refused."""
        with contextlib.suppress(Malformed):
            heads = self.requests()
            if self._at == len(self.data) or len(heads) > len(self.done):
                return [request.method for request in heads]
        return [*(request.method for request in self.done), b"POST"]

    def responses(self, methods: Sequence[bytes], end: End = "open") -> list[Message]:
        """The responses, 1xx ones included, to requests of these methods on a connection that ended so."""
        while (head := _head(self.data, self._at, _STATUS_LINE)) is not None:
            message = Message(*head[:2], "none")
            if message.is_final:
                if self._asked == len(methods):
                    raise Malformed(f"a response that nobody asked for: {message.start!r}")
                if methods[self._asked] != b"HEAD" and message.status not in (204, 304):
                    message = Message(*head[:2], _framing(head[1]) or "close")
            if message.framing == "close":
                body = bytes(self.data[head[2] :])
                return [*self.done, Message(message.start, message.fields, "close", body, (), end == "fin")]
            message, after = _with_body(self.data, head[2], message)
            if not message.whole:
                return [*self.done, message]
            self.done.append(message)
            self._asked += message.is_final
            self._at = after
        if len(self.data) > self._at and self._asked == len(methods):
            raise Malformed(f"bytes behind the last response: {bytes(self.data[self._at :][:100])!r}")
        return list(self.done)


def _head(data: bytearray, at: int, start_line: re.Pattern[bytes]) -> tuple[bytes, Fields, int] | None:
    end = data.find(b"\r\n\r\n", at)
    if end < 0:
        return None
    start, *lines = bytes(data[at:end]).split(b"\r\n")
    if not start_line.fullmatch(start):
        raise Malformed(f"start line {start!r}")
    return start, _fields(lines), end + 4


def _fields(lines: Iterable[bytes]) -> Fields:
    fields = []
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise Malformed(f"field line {line!r}")
        fields.append((name, value.strip(b" \t")))  # the white space is no part of the value (RFC 9112, 5.1)
    return tuple(fields)


def _framing(fields: Fields) -> str | None:
    codings = [value for name, value in fields if name.lower() == b"transfer-encoding"]
    lengths = [value for name, value in fields if name.lower() == b"content-length"]
    if codings and lengths:
        raise Malformed("both framing fields")
    if len(lengths) > 1 or any(not length.isdigit() for length in lengths):
        raise Malformed(f"Content-Length {lengths!r}")
    if codings:
        return "chunked" if codings[-1].lower().rpartition(b",")[2].strip() == b"chunked" else None
    return "length" if lengths else None


def _with_body(data: bytearray, at: int, message: Message) -> tuple[Message, int]:
    start, fields, framing = message.start, message.fields, message.framing
    if framing == "none":
        return message, at
    if framing == "length":
        end = at + int(message.values(b"content-length")[0])
        return Message(start, fields, framing, bytes(data[at:end]), (), len(data) >= end), end
    body, trailers, after = _chunked(data, at)
    return Message(start, fields, framing, body, trailers, after is not None), after or len(data)


def _chunked(data: bytearray, at: int) -> tuple[bytes, Fields, int | None]:
    """The payload so far, the trailers, and where the message ends, None if it does not yet."""
    pieces: list[bytes] = []
    while True:
        line_end = data.find(b"\r\n", at)
        if line_end < 0:
            return b"".join(pieces), (), None
        size_line = _CHUNK_SIZE.fullmatch(data, at, line_end)
        if not size_line:
            raise Malformed(f"chunk size {data[at:line_end]!r}")
        size, at = int(size_line[1], 16), line_end + 2
        if size == 0:
            break
        pieces.append(bytes(data[at : at + size]))
        at += size
        if not b"\r\n".startswith(bytes(data[at : at + 2])):
            raise Malformed(f"behind a chunk: {data[at : at + 2]!r}")
        at += 2
    if data[at : at + 2] == b"\r\n":
        return b"".join(pieces), (), at + 2
    end = data.find(b"\r\n\r\n", at)
    if end < 0:
        return b"".join(pieces), (), None
    return b"".join(pieces), _fields(bytes(data[at:end]).split(b"\r\n")), end + 4
