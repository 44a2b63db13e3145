"""Requests of HTTP/1.x, read by llhttp. A request that could be read in two ways is refused; every other one passes.

In: bytes as they arrive, split anywhere. Out: for each request a `Head`, pieces of the body and an `End`; a `Refusal`
is the last event of a connection.
Always: method, target, names and values are the bytes that came (DESIGN 3.1, 3.2), except that an authority in the
target becomes the `Host`; a message has one framing, and one only (RFC 9112, 6 and 7.1); a head or a trailer has a
limit in bytes; one `read` gives one request, or a few after chunks, however many have arrived.

llhttp refuses most of what is doubtful. This file also refuses: another version or protocol, a request line with more
white space than it needs, a `Transfer-Encoding` other than one plain list that ends with `chunked`, no `Host` or two.
llhttp knows only registered methods and ASCII targets: others get 400 (DESIGN 10).
"""

import enum
import re
from contextlib import suppress
from typing import Any, Final, TypeAlias

import httptools

from gateway.transport.headers import Headers

_ABSOLUTE: Final = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://([^/?#]*)")
_HEAD_END: Final = b"\r\n\r\n"
_EMPTY_LINES: Final = re.compile(rb"[\r\n]*+")
_CODING: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CODINGS_MAX: Final = 10  # of a `Transfer-Encoding`: HTTP has six
_LENGTH_DIGITS_MAX: Final = 18
_HEAD_AT_ONCE: Final = 16 * 1024
_CHUNKS_AT_ONCE: Final = 4 * 1024
_JOINED_FROM: Final = 8  # pieces of a body
_SHOWN_BYTES_MAX: Final = 100
_OF_CONNECTION: Final = (b"connection", b"proxy-connection")  # llhttp obeys both
_NO_TRAILERS: Final = frozenset({*_OF_CONNECTION, b"upgrade"})  # llhttp obeys these in a trailer too
_CHUNKED: Final = -1  # in place of a body's length


class Refusal(Exception):
    """What came is not a request that can pass: the status and the words to tell the client."""

    def __init__(self, status: int, reason: bytes, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class _Over(Exception):
    """Bytes came after the last request. They mean nothing."""


class Head:
    """A request's line and fields. `minor` is that of HTTP/1.0 or 1.1; `keep_alive`: another request may follow."""

    __slots__ = ("headers", "keep_alive", "method", "minor", "target")

    def __init__(self, method: bytes, target: bytes, minor: int, headers: Headers) -> None:
        self.method = method
        self.target = target
        self.minor = minor
        self.headers = headers
        self.keep_alive = minor == 1
        for name in _OF_CONNECTION:
            if name in headers.by_name and b"close" in headers.tokens(name):
                self.keep_alive = False


class End:
    """The request is whole."""

    __slots__ = ("trailers",)

    def __init__(self, trailers: Headers) -> None:
        self.trailers = trailers


_END: Final = End(Headers())  # of a request without trailers, as nearly all are


Event: TypeAlias = Head | bytes | End | Refusal
"""A head, a piece of the body, the end, or a refusal."""


class Reading(enum.Enum):
    """The state of a reader.

    BETWEEN --first byte of a request line--> HEAD --empty line--> BODY --last byte--> BETWEEN, or OVER if the head
    said that it is the last request; any state --Refusal--> OVER. Nothing follows OVER.
    """

    BETWEEN = enum.auto()
    HEAD = enum.auto()
    BODY = enum.auto()
    OVER = enum.auto()


class RequestReader:
    """Reads the requests of one connection: `add` takes the bytes that arrived, `read` gives their events.

    Only llhttp calls the methods that begin with `on_`.
    """

    __slots__ = (
        "_at", "_body_from", "_data", "_events", "_fields", "_foreign_bytes_max", "_idle_bytes", "_keep_alive",
        "_left", "_max", "_muted", "_parser", "_pending", "_raw", "_stops", "_target", "on_body", "state",
    )  # fmt: skip

    def __init__(self, head_bytes_max: int) -> None:
        self._max = head_bytes_max
        self.state = Reading.BETWEEN
        self._pending = b""  # what arrived and was not read yet, from `_at` on
        self._at = 0
        self._events: list[Event] = []
        self.on_body = self._events.append
        self._target = b""
        self._fields: list[tuple[bytes, bytes, bytes]] = []
        self._data = b""  # the bytes that llhttp reads now
        self._raw: bytes | bytearray = b""  # what was read since the head began, perhaps with bytes from before it
        self._foreign_bytes_max = 0  # at most so many bytes of `_raw` came before the head
        self._body_from = 0  # the place among `_events` of the first piece of this body
        self._left = 0  # bytes of the body that are still to be read, or _CHUNKED
        self._idle_bytes = 0  # of chunk sizes, extensions and trailers, since the last byte of a chunk
        self._keep_alive = True
        self._stops = False  # llhttp stops behind this head: it takes what follows for another protocol
        self._muted = False  # llhttp reads a head that `_read_on` made up
        self._parser: Any = httptools.HttpRequestParser(self)

    def close(self) -> None:
        """Read nothing more. Drop the parser, which refers back to the reader."""
        self.state = Reading.OVER
        self._pending, self._at = b"", 0
        self._parser = self.on_body = None  # type: ignore[assignment]

    def add(self, data: bytes) -> None:
        """Take what arrived."""
        if self.state is not Reading.OVER:
            self._pending = self._pending[self._at :] + data if self._at < len(self._pending) else data
            self._at = 0

    @property
    def pending_bytes(self) -> int:
        """How much has arrived and is not read yet."""
        return len(self._pending) - self._at

    def read(self) -> list[Event]:
        """The events of the next bytes: of all that arrived, except what may be further requests."""
        data = self._slice()
        try:
            self._read(data)
        except Refusal as refused:
            refused.__traceback__ = refused.__context__ = None  # break the reference cycle: its frames hold the events
            self._events.append(refused)
            self.state = Reading.OVER
        if self.state is Reading.OVER:
            self._pending, self._at = b"", 0
        events = self._events[:]
        self._events.clear()
        if len(events) > _JOINED_FROM:
            with suppress(TypeError):  # other events are among them
                return [b"".join(events)]  # type: ignore[arg-type]
        return events

    def _slice(self) -> bytes:
        """The next bytes to read: a head, a body, or some chunks. So pipelined requests wait as bytes."""
        data, start = self._pending, self._at
        end = len(data)
        if self.state is Reading.BODY:
            end = min(end, start + (_CHUNKS_AT_ONCE if self._left == _CHUNKED else self._left))
        else:
            begun = start
            if data[start] in b"\r\n" and self.state is Reading.BETWEEN:
                begun = _EMPTY_LINES.match(data, start).end()  # type: ignore[union-attr]  # it always matches
            most = begun + _HEAD_AT_ONCE
            found = data.find(_HEAD_END, begun, most)
            # If there is only one head, what follows it can be read with it.
            is_last = found < 0 or data.find(_HEAD_END, found + len(_HEAD_END), most) < 0
            end = min(end, most if is_last else found + len(_HEAD_END))
        self._at = end
        return data if not start and end == len(data) else data[start:end]

    def _read(self, data: bytes) -> None:
        """Have llhttp read these bytes, and check the limits. Raises Refusal."""
        self._data, self._body_from = data, 0
        if self.state is Reading.HEAD:
            self._raw = bytearray(self._raw) if type(self._raw) is bytes else self._raw
            self._raw += data
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._at -= len(data) - upgrade.args[0]
            self._read_on()
        except httptools.HttpParserCallbackError as error:
            if not isinstance(error.__context__, _Over):
                raise error.__context__ or error from None
        except httptools.HttpParserError as error:
            if self.state is not Reading.OVER:  # llhttp complains of what comes behind `Connection: close`
                raise _fault(error, self._shown()) from None
        if self.state is Reading.HEAD:
            self._check_head(len(self._raw) - self._foreign_bytes_max)
        elif self.state is Reading.BODY and self._left == _CHUNKED:
            self._check_idle(0 if self._events else len(data))
        elif self.state is Reading.BODY:
            self._left -= sum(map(len, self._events[self._body_from :]))  # type: ignore[arg-type]  # pieces of the body

    def _shown(self) -> str:
        """The beginning of a head's first line, for an error to show what was given."""
        if self.state is not Reading.HEAD:
            return ""
        line = bytes(self._raw[:_SHOWN_BYTES_MAX]).splitlines()[:1]
        return f": {line[0].decode('latin-1')!r}" if line else ""

    def _read_on(self) -> None:
        """Read on with a new parser where llhttp stopped. A made-up head tells it how the body is framed."""
        self._stops = False
        self._parser = httptools.HttpRequestParser(self)
        if not self._left:
            self.on_message_complete()
            return
        framing = b"Transfer-Encoding: chunked" if self._left == _CHUNKED else b"Content-Length: %d" % self._left
        self._muted = True
        self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n\r\n" % framing)
        self._muted = False

    def _check_head(self, size_bytes: int) -> None:
        if size_bytes > self._max:
            message = f"the request's head is larger than {self._max} bytes"
            if self._raw.find(b"\r\n", 0, self._max // 2) < 0:
                raise Refusal(414, b"URI Too Long", message)
            raise Refusal(431, b"Request Header Fields Too Large", message)

    def _check_idle(self, size_bytes: int) -> None:
        self._idle_bytes = self._idle_bytes + size_bytes if size_bytes else 0
        if self._idle_bytes > self._max:
            message = f"more than {self._max} bytes of chunk extensions or trailers"
            raise Refusal(431, b"Request Header Fields Too Large", message)

    # ---- llhttp's ----

    def on_message_begin(self) -> None:
        if self.state is Reading.OVER:
            raise _Over
        if not self._muted:
            self._foreign_bytes_max = len(self._data) if self._events or self.state is not Reading.BETWEEN else 0
            self.state = Reading.HEAD
            self._raw = self._data
            self._target = b""
            self._fields = []

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        lower = name.lower()
        if lower in _NO_TRAILERS and self.state is Reading.BODY:
            raise Refusal(400, b"Bad Request", f"{lower.decode()} is not allowed as a trailer (RFC 9110, 6.5.1)")
        self._fields.append((lower, name, value))

    def on_headers_complete(self) -> None:
        if self._muted:
            self._fields = []
            return
        parser = self._parser
        method, version = parser.get_method(), parser.get_http_version()
        self._check_line(method, version)
        minor, headers = int(version[-1]), Headers.of(self._fields)
        if len(self._raw) > self._max:  # `_raw` may hold more than this head
            self._check_head(self._head_bytes(method, headers))
        if (minor == 1 and b"host" not in headers.by_name) or headers.repeats(b"host"):
            raise Refusal(400, b"Bad Request", "a request of HTTP/1.1 has exactly one Host (RFC 9112, 3.2)")
        self._left = _length(headers, minor)
        target = self._target
        if not target.startswith(b"/"):
            target, headers = _in_origin_form(method, target, headers)
        head = Head(method, target, minor, headers)
        self._events.append(head)
        self._fields, self._raw, self._idle_bytes = [], b"", 0
        self._body_from = len(self._events)
        self._keep_alive, self._stops = head.keep_alive, parser.should_upgrade()
        self.state = Reading.BODY

    def _head_bytes(self, method: bytes, headers: Headers) -> int:
        """The size of the head that was just read; a little less if something was read before it."""
        if not self._foreign_bytes_max:
            return len(self._raw) - len(self._raw.partition(_HEAD_END)[2])
        # A field takes its name, a colon, its value and CRLF at least.
        return len(method) + len(self._target) + 14 + headers.size_bytes() - len(self._fields)

    def _check_line(self, method: bytes, version: str) -> None:
        if method == b"CONNECT":
            raise Refusal(501, b"Not Implemented", "CONNECT is not supported: it asks for a tunnel")
        line = b"%b %b HTTP/%b\r\n" % (method, self._target, version.encode())
        if not (line in self._raw if self._foreign_bytes_max else self._raw.lstrip(b"\r\n").startswith(line)):
            message = "a request line is a method, a target and HTTP/1.1, with one space between"
            raise Refusal(400, b"Bad Request", message + self._shown())
        if version not in ("1.1", "1.0"):
            raise Refusal(505, b"HTTP Version Not Supported", "HTTP/1.1 and HTTP/1.0 are supported")

    def on_message_complete(self) -> None:
        if self._stops:
            return  # llhttp stops here; `_read_on` reads the body
        if self._fields:
            trailers, self._fields = Headers.of(self._fields), []
            if trailers.size_bytes() > self._max:
                raise Refusal(431, b"Request Header Fields Too Large", f"trailers larger than {self._max} bytes")
            self._events.append(End(trailers))
        else:
            self._events.append(_END)
        self.state = Reading.BETWEEN if self._keep_alive else Reading.OVER


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


def _fault(error: httptools.HttpParserError, shown: str) -> Refusal:
    """The refusal for an error of llhttp; `shown` is what was given (`_shown`)."""
    if isinstance(error, httptools.HttpParserInvalidMethodError):
        return Refusal(400, b"Bad Request", f"a request line begins with a registered method (RFC 9110, 16.1){shown}")
    if isinstance(error, httptools.HttpParserInvalidURLError):
        return Refusal(400, b"Bad Request", f"a target is in origin or absolute form, in ASCII{shown}")
    if str(error) in ("Invalid HTTP version", "Pause on PRI/Upgrade"):
        return Refusal(505, b"HTTP Version Not Supported", "HTTP/1.1 and HTTP/1.0 are supported")
    return Refusal(400, b"Bad Request", f"not HTTP/1.1: {error}{shown}")


def _in_origin_form(method: bytes, target: bytes, headers: Headers) -> tuple[bytes, Headers]:
    """The target without an authority, and the fields: an authority replaces the `Host` (RFC 9112, 3.2.2).

    Raises Refusal for an authority that is empty or names a user (RFC 9110, 4.2.1 and 4.2.4).
    """
    absolute = _ABSOLUTE.match(target)
    if absolute is None:
        return target, headers
    if not absolute[1] or b"@" in absolute[1]:
        raise Refusal(400, b"Bad Request", "the authority in a target is a host and perhaps a port, without a user")
    rest = target[absolute.end() :]
    if not rest.startswith(b"/"):
        rest = b"*" if method == b"OPTIONS" and not rest else b"/" + rest  # RFC 9112, 3.2.4
    return rest, headers.with_value(b"host", absolute[1])
