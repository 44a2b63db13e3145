"""Requests of HTTP/1.x, read by llhttp. A request that could be read in two ways is refused; every other one passes.

In: bytes as they arrive, split anywhere. Out: for each request a `Head`, pieces of the body and an `End`; a `Refusal`
is the last event of a connection.
Always: method, target, names and values are the bytes that came (DESIGN 3.1, 3.2), except that an authority in the
target becomes the `Host`; a message has one framing, and one only (RFC 9112, 6 and 7.1); a head or a trailer has a
limit in bytes and in fields; one `read` gives one request at most, however many have arrived; until a head is whole,
only its bytes are kept, and the work is in proportion to them. What a head gives depends on its bytes alone.

llhttp refuses most of what is doubtful. This file also refuses: another version or protocol, a request line with more
white space than it needs, a `Transfer-Encoding` other than one plain list that ends with `chunked`, no `Host` or two.
llhttp knows only registered methods and ASCII targets: others get 400 (DESIGN 10).
"""

import enum
import re
from typing import Any, Final, NamedTuple, TypeAlias

import httptools

from gateway.errors import shown, without_frames
from gateway.http.chunks import BadTrailer, Chunks, Followed, TooMuch
from gateway.http.fields import FIELD_BYTES_MIN, HEAD_END, JSON, OF_CONNECTION, FoundFields, Headers, fields_bytes
from gateway.http.head_cache import ConnectionHeads

_ABSOLUTE: Final = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://([^/?#]*)")
_EMPTY_LINES: Final = re.compile(rb"[\r\n]*+")
_CODING: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CODINGS_MAX: Final = 10  # of a `Transfer-Encoding`: HTTP has six
_LENGTH_DIGITS_MAX: Final = 18
_CHUNKS_AT_ONCE: Final = 4 * 1024
_CHUNKS_FOLLOW: Final = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"  # a head for llhttp
# A place among chunks where the last of them may end, with a request behind it; the first bytes may have come before.
_MAY_END: Final = re.compile(rb"(?:\r\n\r|\A(?:\n?\r)?)\n(?=[\r\n]*+[A-Z])")
_DOUBTS_MAX: Final = 10_000  # such places on one connection: each is read up to for itself
_TOO_LARGE: Final = b"Request Header Fields Too Large"
_SHOWN_BYTES_MAX: Final = 100
_NO_TRAILERS: Final = frozenset({*OF_CONNECTION, b"upgrade"})  # llhttp obeys these in a trailer too
_NOT_PLAIN: Final = frozenset({b"expect", b"upgrade", b"te", b"trailer", b"transfer-encoding", b"proxy-connection"})
_CHUNKED: Final = -1  # in place of a body's length


class Refusal(Exception):
    """What came is not a request that can pass: the status and the words to tell the client."""

    def __init__(self, status: int, reason: bytes, message: str) -> None:
        super().__init__(shown(message))
        self.status = status
        self.reason = reason


class Head:
    """A request's line and fields. `minor` is that of HTTP/1.0 or 1.1; `keep_alive`: another request may follow.

    `body_bytes` is the length of its body, or _CHUNKED; `held_bytes` its memory, or 0 for the little that most take.
    `raw` has its bytes if it may be remembered; `remembered` what was kept when it came before (head_cache.py).
    """

    __slots__ = (
        "_headers", "_stated_bytes", "body_bytes", "held_bytes", "keep_alive", "method", "minor", "raw",
        "remembered", "target",
    )  # fmt: skip

    def __init__(
        self,
        method: bytes,
        target: bytes,
        minor: int,
        headers: Headers,
        body_bytes: int = 0,
        held_bytes: int = 0,
        keep_alive: bool | None = None,
    ) -> None:
        self.method = method
        self.target = target
        self.minor = minor
        self._headers = headers
        self.body_bytes = self._stated_bytes = body_bytes
        self.held_bytes = held_bytes
        self.raw = b""
        self.remembered: Any = None
        self.keep_alive = _keeps_alive(minor, headers) if keep_alive is None else keep_alive

    def again(self, body_bytes: int, remembered: object) -> "Head":
        """The same head, come again with another `Content-Length`, and what was kept of it."""
        head = Head(self.method, self.target, self.minor, self._headers, body_bytes, self.held_bytes, self.keep_alive)
        head._stated_bytes, head.remembered = self._stated_bytes, remembered
        return head

    @property
    def headers(self) -> Headers:
        if self._stated_bytes != self.body_bytes:
            self._headers = self._headers.with_value(b"content-length", b"%d" % self.body_bytes)
            self._stated_bytes = self.body_bytes
        return self._headers

    @property
    def may_carry_message(self) -> bool:
        """Whether the body may be a message that the gateway can read."""
        if self.method != b"POST" or self._headers.media_type() != JSON:
            return False
        coding = self._headers.tokens(b"content-encoding") if b"content-encoding" in self._headers.by_name else None
        return coding is None or coding == [b"identity"]


class End(NamedTuple):
    trailers: Headers


_END: Final = End(Headers())  # of a request without trailers, as nearly all are


RequestEvent: TypeAlias = Head | bytes | End | Refusal
"""A head, a piece of the body, the end, or a refusal."""


class Reading(enum.Enum):
    """The state of a reader. Each step is made by one method: `_whole_head`, `_begin_body`, `_end`, `close`.

               a part of a head  a head is whole  a body ends  the last body ends  what came is refused  it is closed
    BETWEEN    HEAD              BODY             -            -                   OVER                  OVER
    HEAD       HEAD              BODY             -            -                   OVER                  OVER
    BODY       -                 -                BETWEEN      OVER                OVER                  OVER
    OVER       OVER              OVER             OVER         OVER                OVER                  OVER

    A request without a body has one that ends at once. The last body is that of a request whose head says so.
    """

    BETWEEN = enum.auto()
    HEAD = enum.auto()
    BODY = enum.auto()
    OVER = enum.auto()


# To get a member from its class costs a call of a function.
_BETWEEN: Final = Reading.BETWEEN
_BODY: Final = Reading.BODY
_OVER: Final = Reading.OVER


class RequestReader:
    """Reads the requests of one connection: `add` takes the bytes that arrived, `read` gives their events."""

    __slots__ = (
        "_at", "_cached_heads", "_chunks", "_doubts", "_fields_max", "_keep_alive", "_left", "_lines", "_max",
        "_pending", "_seen", "_tried", "_waits", "state",
    )  # fmt: skip

    def __init__(self, head_bytes_max: int, fields_max: int, cached_heads: ConnectionHeads[Any] | None = None) -> None:
        self._cached_heads = cached_heads
        self._max = head_bytes_max
        self._fields_max = fields_max
        self.state: Reading = _BETWEEN
        self._pending: bytes | bytearray = b""  # what arrived and was not read yet, from `_at` on
        self._at = 0
        self._waits = False  # `_pending` is a head that is not whole, and all of it was looked at
        self._seen = self._tried = self._lines = 0  # of that head: bytes looked at, bytes tried, lines
        self._left = 0  # bytes of the body that are still to be read, or _CHUNKED
        self._keep_alive = True
        self._chunks: Chunks | None = None  # of a body
        self._doubts = _DOUBTS_MAX

    def close(self) -> None:
        self.state = _OVER
        self._pending, self._at, self._waits = b"", 0, False
        if self._chunks is not None:
            self._chunks.close()
            self._chunks = None

    def add(self, data: bytes) -> None:
        if self._waits:
            self._pending += data
            self._waits = False
        elif self.state is not _OVER:
            self._pending = self._pending[self._at :] + data if self._at < len(self._pending) else data
            self._at = 0

    @property
    def pending_bytes(self) -> int:
        return 0 if self._waits else len(self._pending) - self._at

    @property
    def held_bytes(self) -> int:
        """The memory of a head, or of trailers, that are not whole."""
        trailers = 0 if self._chunks is None else fields_bytes(self._chunks.fields)
        return trailers + (len(self._pending) if self._waits else 0)

    def read(self) -> list[RequestEvent]:
        """The events of the next bytes: of all that arrived, except what may be further requests."""
        events: list[RequestEvent] = []
        try:
            if self.state is not _BODY:
                head = self._remembered_head()
                if head is None and (data := self._whole_head()) is not None:
                    head = read_head(data)
                if head is not None:
                    events.append(head)
                    self._begin_body(head)
            if self.state is _BODY:
                self._read_body(events)
        except Refusal as refused:
            events.append(without_frames(refused))
            self.close()
        if self.state is _OVER:
            self.close()
        elif self._at == len(self._pending):
            self._pending, self._at = b"", 0  # an open stream would keep it
        return events

    # ---- heads ----

    def _remembered_head(self) -> Head | None:
        """The next head, if all that is pending begins with one that came before."""
        data = self._pending
        if self._at or self._cached_heads is None or self.state is not _BETWEEN or type(data) is not bytes:
            return None
        if (found := self._cached_heads.find(data)) is None:
            return None
        known, self._at, body_bytes = found
        head: Head = known.head
        return head.again(body_bytes, known)

    def _whole_head(self) -> bytes | None:
        """The next head, once it is whole; until then its bytes are kept, and nothing else. Raises Refusal."""
        data, start = self._pending, self._at
        if self.state is _BETWEEN:
            if data[start] in b"\r\n":
                start = self._at = _EMPTY_LINES.match(data, start).end()  # type: ignore[union-attr]  # always matches
                if start == len(data):
                    return None
            self.state = Reading.HEAD
            self._seen, self._tried, self._lines = start, 0, 0
        found = data.find(HEAD_END, max(start, self._seen - len(HEAD_END) + 1))
        if found < 0:
            self._inspect(data, start)
            return None
        end = found + len(HEAD_END)
        self._check_size(data, start, end)
        if end - start > FIELD_BYTES_MIN * self._fields_max:
            self._check_fields(data.count(b"\n", start, end) - 2)
        if type(data) is bytearray:
            self._pending = bytes(data[end:])
            self._at = 0
        else:
            self._at = end
        return bytes(data[start:end])

    def _inspect(self, data: bytes | bytearray, start: int) -> None:
        """Keep a head that is not whole, and have llhttp try it each time that it has doubled. Raises Refusal."""
        seen, size = self._seen, len(data) - start
        self._check_size(data, start, len(data))
        if size >= 2 * self._tried:
            self._tried = size
            try:
                httptools.HttpRequestParser(None).feed_data(data[start:])
            except httptools.HttpParserError as error:
                raise _fault(error, _shown(data[start:])) from None
        lines = data.count(b"\n", seen)
        if lines != data.count(b"\r\n", max(start, seen - 1)):
            raise Refusal(400, b"Bad Request", f"not HTTP/1.1: a line ends with CR LF{_shown(data[start:])}")
        self._lines += lines
        self._check_fields(self._lines - 1)
        if type(data) is bytes or start:
            self._pending, self._at = bytearray(data[start:]), 0
        self._seen, self._waits = size, True

    def _check_size(self, data: bytes | bytearray, start: int, end: int) -> None:
        if end - start > self._max:
            message = f"the request's head is larger than {self._max} bytes"
            if data.find(b"\r\n", start, start + self._max // 2) < 0:
                raise Refusal(414, b"URI Too Long", message)
            raise Refusal(431, _TOO_LARGE, message)

    def _check_fields(self, count: int) -> None:
        if count > self._fields_max:
            raise Refusal(431, _TOO_LARGE, f"more than {self._fields_max} fields in the request's head")

    # ---- bodies ----

    def _begin_body(self, head: Head) -> None:
        self.state = _BODY
        self._keep_alive, self._left = head.keep_alive, head.body_bytes
        if self._left == _CHUNKED:
            llhttp = httptools.HttpRequestParser
            self._chunks = Chunks(llhttp, _CHUNKS_FOLLOW, self._max, self._fields_max, _NO_TRAILERS)

    def _read_body(self, events: list[RequestEvent]) -> None:
        """Read on in the body: all that has come of it, or some chunks. Raises Refusal."""
        if self._left == _CHUNKED:
            self._read_chunks(events)
            return
        data, start = self._pending, self._at
        end = min(len(data), start + self._left)
        if end > start:
            events.append(data if not start and end == len(data) else data[start:end])  # type: ignore[arg-type]
            self._at = end
            self._left -= end - start
        if not self._left:
            self._end(events, _END)

    def _end(self, events: list[RequestEvent], end: End) -> None:
        events.append(end)
        self._chunks = None
        self.state = _BETWEEN if self._keep_alive else _OVER

    def _read_chunks(self, events: list[RequestEvent]) -> None:
        chunks = self._chunks
        data = self._up_to_a_head(bytes(self._pending[self._at : self._at + _CHUNKS_AT_ONCE]))
        assert chunks is not None
        self._at += len(data)
        if piece := chunks.feed(data):
            events.append(piece)
        if chunks.is_whole:
            self._end(events, End(Headers.of(chunks.fields)) if chunks.fields else _END)
        if chunks.fault is not None and self.state is not _OVER:  # behind the last request nothing matters
            raise _fault(chunks.fault, "")

    def _up_to_a_head(self, data: bytes) -> bytes:
        """Chunks, but nothing of a request that may begin behind the last one: a head is read from its first byte."""
        if not data or (data.find(HEAD_END) < 0 and data[0] not in b"\r\n") or not self._doubts:
            return data
        found = _MAY_END.search(data)
        if found is None:
            return data
        self._doubts -= 1
        return data[: found.end()]


class _Found(FoundFields):
    """What llhttp finds in a request's head: its target and fields."""

    __slots__ = ("target",)

    def __init__(self) -> None:
        super().__init__()
        self.target = b""

    def on_url(self, url: bytes) -> None:
        self.target = url


def read_head(data: bytes) -> Head:
    """The head in `data`, which ends with the first empty line. Raises Refusal. Nothing else decides what it gives."""
    found = _Found()
    parser: Any = httptools.HttpRequestParser(found)
    try:
        parser.feed_data(data)
    except httptools.HttpParserUpgrade:
        pass  # llhttp takes what follows for another protocol; here `Upgrade` is only a field (DESIGN 10.4)
    except httptools.HttpParserError as error:
        raise _fault(error, _shown(data)) from None
    method, version, target = parser.get_method(), parser.get_http_version(), found.target
    if method == b"CONNECT":
        raise Refusal(501, b"Not Implemented", "CONNECT is not supported: it asks for a tunnel")
    if not data.startswith(b"%b %b HTTP/%b\r\n" % (method, target, version.encode())):
        message = "a request line is a method, a target and HTTP/1.1, with one space between"
        raise Refusal(400, b"Bad Request", message + _shown(data))
    if version not in ("1.1", "1.0"):
        raise Refusal(505, b"HTTP Version Not Supported", "HTTP/1.1 and HTTP/1.0 are supported")
    minor, headers = int(version[-1]), Headers.of(found.fields)
    if (minor == 1 and b"host" not in headers.by_name) or headers.repeats(b"host"):
        raise Refusal(400, b"Bad Request", "a request of HTTP/1.1 has exactly one Host (RFC 9112, 3.2)")
    body_bytes = _length(headers, minor)
    if not target.startswith(b"/"):
        target, headers = _in_origin_form(method, target, headers)
    head = Head(method, target, minor, headers, body_bytes, headers.held_bytes(len(data)))
    is_small = not head.held_bytes
    if is_small and head.keep_alive and target is found.target and body_bytes >= 0 and headers.are_plain(_NOT_PLAIN):
        head.raw = data
    return head


def _keeps_alive(minor: int, headers: Headers) -> bool:
    closes = (name in headers.by_name and b"close" in headers.tokens(name) for name in OF_CONNECTION)
    return minor == 1 and not any(closes)


def _shown(head: bytes | bytearray) -> str:
    """The beginning of a head's first line, for an error to show what was given."""
    line = bytes(head[:_SHOWN_BYTES_MAX]).splitlines()[:1]
    return f": {line[0].decode('latin-1')!r}" if line else ""


def _length(headers: Headers, minor: int) -> int:
    """The length of the body, or _CHUNKED. Raises Refusal for a framing that two readers could read differently."""
    if b"transfer-encoding" in headers.by_name:
        codings = headers.all(b"transfer-encoding")
        names = [name.strip(b" \t").lower() for name in codings[0].split(b",")]
        plain = len(codings) == 1 and len(names) <= _CODINGS_MAX and codings[0] == codings[0].strip(b" \t")
        plain = plain and all(map(_CODING.fullmatch, names)) and b"identity" not in names
        if not minor or not plain or names[-1] != b"chunked" or names.count(b"chunked") > 1:
            message = "Transfer-Encoding must be one list that ends with chunked, once, in HTTP/1.1"
            raise Refusal(400, b"Bad Request", message)
        return _CHUNKED
    length = headers.by_name.get(b"content-length")
    if length is None:
        return 0
    length = length.strip(b" \t")
    if not length.isdigit() or len(length) > _LENGTH_DIGITS_MAX:
        raise Refusal(400, b"Bad Request", f"Content-Length must be one number of {_LENGTH_DIGITS_MAX} digits at most")
    return int(length)


def _fault(error: Exception, shown: str) -> Refusal:
    """The refusal for an error of llhttp, or of a body in chunks; `shown` is what was given (`_shown`)."""
    if isinstance(error, TooMuch):
        return Refusal(431, _TOO_LARGE, str(error))
    if isinstance(error, BadTrailer):
        return Refusal(400, b"Bad Request", f"{error} is not allowed as a trailer (RFC 9110, 6.5.1)")
    if isinstance(error, Followed):  # behind more than _DOUBTS_MAX places that looked like this one
        return Refusal(400, b"Bad Request", "a request in one piece with the last chunk before it")
    if isinstance(error, httptools.HttpParserInvalidMethodError):
        return Refusal(400, b"Bad Request", f"a request line begins with a registered method (RFC 9110, 16.1){shown}")
    if isinstance(error, httptools.HttpParserInvalidURLError):
        return Refusal(400, b"Bad Request", f"a target is in origin or absolute form, in ASCII{shown}")
    if str(error) in ("Invalid HTTP version", "Pause on PRI/Upgrade"):
        return Refusal(505, b"HTTP Version Not Supported", "HTTP/1.1 and HTTP/1.0 are supported")
    return Refusal(400, b"Bad Request", f"not HTTP/1.1: {error}{shown}")


def _in_origin_form(method: bytes, target: bytes, headers: Headers) -> tuple[bytes, Headers]:
    """The target without an authority, which becomes the `Host` (RFC 9112, 3.2.2). Raises Refusal (RFC 9110, 4.2)."""
    absolute = _ABSOLUTE.match(target)
    if absolute is None:
        return target, headers
    if not absolute[1] or b"@" in absolute[1]:
        raise Refusal(400, b"Bad Request", "the authority in a target is a host and perhaps a port, without a user")
    rest = target[absolute.end() :]
    if not rest.startswith(b"/"):
        rest = b"*" if method == b"OPTIONS" and not rest else b"/" + rest  # RFC 9112, 3.2.4
    return rest, headers.with_value(b"host", absolute[1])
