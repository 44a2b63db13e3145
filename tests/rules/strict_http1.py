"""A second opinion on requests of HTTP/1.x, written from RFC 9112 alone: what the gateway's reader is compared with.

In: bytes as they arrive, split anywhere. Out: a `Head`, pieces of the body, an `End`, and so on; a `Refusal` is the
last thing that comes of a connection. It was the gateway's own reader before llhttp.
"""

import re
from collections.abc import Callable
from typing import Final, TypeAlias

from gateway.transport.headers import Headers

_TOKEN: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_REQUEST_LINE: Final = re.compile(rb"(" + _TOKEN + rb") ([^\x00-\x20\x7f]+) HTTP/([0-9])\.([0-9])\r\n")
_ABSOLUTE: Final = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://([^/?#]*)")
_FIELD: Final = re.compile(rb"(" + _TOKEN + rb"):[ \t]*+([^\x00-\x08\x0a-\x1f\x7f]*)\r\n")
_FIELDS: Final = re.compile(rb"(?:" + _TOKEN + rb":[^\x00-\x08\x0a-\x1f\x7f]*\r\n)*+")
_BARE_LF: Final = re.compile(rb"(?<!\r)\n")
_CHUNK_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[^\x00-\x08\x0a-\x1f\x7f]*)?\r\n")
_LENGTH: Final = re.compile(rb"[0-9]{1,18}")
_READ_AT_ONCE: Final = 16 * 1024
_CHUNK_LINE_BYTES_MAX: Final = 4096


class Refusal(Exception):
    """What came is no request that can be passed on."""

    def __init__(self, status: int, reason: bytes, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class Head:
    """A request's line and fields. `minor` is that of HTTP/1.0 or 1.1."""

    __slots__ = ("headers", "method", "minor", "target")

    def __init__(self, method: bytes, target: bytes, minor: int, headers: Headers) -> None:
        self.method = method
        self.target = target
        self.minor = minor
        self.headers = headers


class End:
    """The request is whole."""

    __slots__ = ("trailers",)

    def __init__(self, trailers: list[tuple[bytes, bytes]]) -> None:
        self.trailers = trailers


Event: TypeAlias = Head | bytes | End | Refusal
"""A head, a piece of the body, or the end."""

_State: TypeAlias = Callable[["RequestParser", list[Event]], bool]


class RequestParser:
    """Reads the requests of one connection."""

    def __init__(self, head_bytes_max: int) -> None:
        self._max = head_bytes_max
        self._pending = b""
        self._state: _State = RequestParser._head  # a function, not a method: no cycle
        self._searched = 0  # bytes of `_pending` in which the end was looked for
        self._left = 0  # bytes of the body, or of the chunk, that are still to come
        self._trailers: list[tuple[bytes, bytes]] = []

    @property
    def in_head(self) -> bool:
        """Whether a request has begun whose head is not whole."""
        return bool(self._pending) and self._state is RequestParser._head

    def feed(self, data: bytes) -> list[Event]:
        """The events that `data` completes."""
        events: list[Event] = []
        try:
            for start in range(0, len(data), _READ_AT_ONCE):  # what is small costs a copy of what is behind it
                self._pending += data[start : start + _READ_AT_ONCE]
                while self._state(self, events):
                    pass
        except Refusal as refused:
            events.append(refused.with_traceback(None))  # whose frames hold the events
            self._state = RequestParser._refused
        return events

    def _refused(self, _: list[Event]) -> bool:
        self._pending = b""
        return False

    # Each state takes what it can from `_pending`, and says whether the next one may have something to do.

    def _head(self, events: list[Event]) -> bool:
        data = self._pending
        data = data.lstrip(b"\r\n")  # RFC 9112, 2.2, as llhttp reads it: a bare LF in front means nothing either
        self._pending = data
        end = data.find(b"\r\n\r\n", max(0, self._searched - 3))
        if end < 0:
            self._check_partial(data)
            return False
        self._searched = 0
        if end + 4 > self._max:
            self._refuse_size(data)
        line = _REQUEST_LINE.match(data)
        if line is None:
            raise Refusal(400, b"Bad Request", _line_fault(data))
        method, target, major, minor = line.groups()
        if major != b"1" or minor not in b"01":
            raise Refusal(505, b"HTTP Version Not Supported", "HTTP/1.1 and HTTP/1.0 are supported")
        if method == b"CONNECT":
            raise Refusal(501, b"Not Implemented", "CONNECT asks for a tunnel, and this is a gateway")
        headers = _fields(data, line.end(), end + 2)
        if len(headers.all(b"host")) > 1 or (minor == b"1" and b"host" not in headers):
            raise Refusal(400, b"Bad Request", "HTTP/1.1 wants one Host (RFC 9112, 3.2)")
        self._state = self._framing(headers, int(minor))
        self._pending = data[end + 4 :]
        target, headers = _in_origin_form(method, target, headers)
        events.append(Head(method, target, int(minor), headers))
        return True

    def _check_partial(self, data: bytes) -> None:
        if _BARE_LF.search(data, self._searched):
            raise Refusal(400, b"Bad Request", "a line that does not end with CRLF")
        self._searched = len(data)
        if len(data) > self._max:
            self._refuse_size(data)

    def _refuse_size(self, data: bytes) -> None:
        message = f"the request's head is larger than {self._max} bytes"
        if data.find(b"\r\n", 0, self._max // 2) < 0:
            raise Refusal(414, b"URI Too Long", message)
        raise Refusal(431, b"Request Header Fields Too Large", message)

    def _framing(self, headers: Headers, minor: int) -> _State:
        lengths = headers.all(b"content-length")
        if b"transfer-encoding" in headers:
            codings = headers.tokens(b"transfer-encoding")
            if lengths:
                raise Refusal(400, b"Bad Request", "both Transfer-Encoding and Content-Length")
            if not minor or codings[-1:] != [b"chunked"] or codings.count(b"chunked") != 1:
                raise Refusal(400, b"Bad Request", "Transfer-Encoding must end with chunked, once, in HTTP/1.1")
            return RequestParser._chunk_size
        if not lengths:
            return RequestParser._end
        if len(lengths) > 1 or not _LENGTH.fullmatch(lengths[0].strip(b" \t")):
            raise Refusal(400, b"Bad Request", "Content-Length must be one number")
        self._left = int(lengths[0])
        return RequestParser._body if self._left else RequestParser._end

    def _body(self, events: list[Event]) -> bool:
        if not self._take(events):
            return False
        if not self._left:
            self._state = RequestParser._end
        return not self._left

    def _take(self, events: list[Event]) -> bool:
        """Hand out the part of a body or chunk that has come."""
        data = self._pending
        if not data:
            return False
        piece = data if len(data) <= self._left else data[: self._left]
        self._pending = data[len(piece) :]
        self._left -= len(piece)
        events.append(piece)
        return True

    def _end(self, events: list[Event]) -> bool:
        events.append(End(self._trailers))
        self._trailers = []
        self._state = RequestParser._head
        return bool(self._pending)

    def _take_chunks(self, events: list[Event]) -> None:
        """Hand out the whole chunks as one piece, since each alone would copy everything behind it."""
        data, at, pieces = self._pending, 0, []
        while (line := _CHUNK_SIZE.match(data, at)) is not None and (size := int(line[1], 16)):
            end = line.end() + size
            if data[end : end + 2] != b"\r\n" or line.end() - at > _CHUNK_LINE_BYTES_MAX:
                break
            pieces.append(data[line.end() : end])
            at = end + 2
        if pieces:
            events.append(b"".join(pieces))
            self._pending = data[at:]

    def _chunk_size(self, events: list[Event]) -> bool:
        self._take_chunks(events)
        end = self._pending.find(b"\n")
        if (len(self._pending) if end < 0 else end) >= _CHUNK_LINE_BYTES_MAX:
            raise Refusal(400, b"Bad Request", f"a chunk's size line is larger than {_CHUNK_LINE_BYTES_MAX} bytes")
        if end < 0:
            return False
        line = _CHUNK_SIZE.fullmatch(self._pending, 0, end + 1)
        if line is None:
            raise Refusal(400, b"Bad Request", "a malformed chunk size")
        self._pending = self._pending[end + 1 :]
        self._left = int(line[1], 16)
        self._state = RequestParser._chunk if self._left else RequestParser._trailer
        return True

    def _chunk(self, events: list[Event]) -> bool:
        if not self._take(events):
            return False
        if not self._left:
            self._state = RequestParser._chunk_end
        return not self._left

    def _chunk_end(self, events: list[Event]) -> bool:
        if len(self._pending) < 2:
            if self._pending not in (b"", b"\r"):
                raise Refusal(400, b"Bad Request", "a chunk that does not end where its size says")
            return False
        if not self._pending.startswith(b"\r\n"):
            raise Refusal(400, b"Bad Request", "a chunk that does not end where its size says")
        self._pending = self._pending[2:]
        self._state = RequestParser._chunk_size
        return True

    def _trailer(self, events: list[Event]) -> bool:
        data = self._pending
        end = 0 if data.startswith(b"\r\n") else data.find(b"\r\n\r\n", max(0, self._searched - 3)) + 2
        if end < 2 and not data.startswith(b"\r\n"):
            self._check_partial(data)
            return False
        self._searched = 0
        if end > self._max:
            self._refuse_size(data)
        self._trailers = list(_fields(data, 0, end))
        self._pending = data[end + 2 :]
        self._state = RequestParser._end
        return True


def _in_origin_form(method: bytes, target: bytes, headers: Headers) -> tuple[bytes, Headers]:
    """A target without its authority, which goes before `Host` wherever there is one (RFC 9112, 3.2.2).

    Raises Refusal where it is none, or names a user (RFC 9110, 4.2.1 and 4.2.4).
    """
    absolute = _ABSOLUTE.match(target)
    if absolute is None:
        return target, headers
    if not absolute[1] or b"@" in absolute[1]:
        raise Refusal(400, b"Bad Request", "a target whose authority is no host")
    rest = target[absolute.end() :]
    if not rest.startswith(b"/"):
        rest = b"*" if method == b"OPTIONS" and not rest else b"/" + rest  # RFC 9112, 3.2.4
    return rest, headers.with_value(b"host", absolute[1])


def _fields(data: bytes, start: int, end: int) -> Headers:
    """The fields in the lines from `start` to `end`. Raises Refusal."""
    if _FIELDS.fullmatch(data, start, end) is None:
        raise Refusal(400, b"Bad Request", _field_fault(data[start:end]))
    return Headers(_FIELD.findall(data, start, end))


def _line_fault(data: bytes) -> str:
    shown = data[: data.find(b"\r\n")][:100].decode("latin-1")
    return f"{shown!r} is no request line (method, target and HTTP/1.1, one space between)"


def _field_fault(block: bytes) -> str:
    for line in block.split(b"\r\n"):
        if _FIELDS.fullmatch(line + b"\r\n") is None:
            name = line.partition(b":")[0][:40].decode("latin-1")
            return f"the field that begins with {name!r} is malformed"
    return "malformed fields"
