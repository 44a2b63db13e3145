"""Requests of HTTP/1.x, read by llhttp. A request that could be read in two ways is refused; every other one passes.

In: bytes as they arrive, split anywhere. Out: for each request a `Head`, pieces of the body, and trailers at its end; a
`Refusal` is the last event of a connection.
Always: method, target, names and values are the bytes that came (DESIGN 3.1, 3.2), except that an authority in the
target becomes the `Host`; a message has one framing, and one only (RFC 9112, 6 and 7.1); one `read` gives one request
at most, however many have arrived. What a head gives depends on its bytes alone.

llhttp refuses most of what is doubtful. This file also refuses: another version or protocol, a request line with more
white space than it needs, a `Transfer-Encoding` other than one plain list that ends with `chunked`, no `Host` or two.
llhttp knows only registered methods and ASCII targets: others get 400 (DESIGN 10).
"""

import re
from typing import Any, Final, Literal, TypeAlias

import httptools
import msgspec

from gateway.errors import shown, without_frames
from gateway.http.header_fields import HEAD_END, JSON, NO_FIELDS, OF_CONNECTION, Headers
from gateway.http.message_reader import HeadTooLarge, MessageReader, TooMuch, read_by_llhttp
from gateway.http.parsed_head_cache import Cut, Values

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
_NEVER_TRAILERS: Final = frozenset({*OF_CONNECTION, b"upgrade"})  # llhttp obeys these in a trailer too
_NOT_PLAIN: Final = frozenset({b"expect", b"upgrade", b"te", b"trailer", b"transfer-encoding", b"proxy-connection"})
_CHUNKED: Final = -1  # in place of a body's length
_VERSIONS: Final = "HTTP/1.1 and HTTP/1.0 are supported"
_PROXY: Final = "it is the PROXY protocol, which is not read: turn it off in front (send-proxy, proxy_protocol)"
_OTHERS: Final = {
    b"PROXY ": _PROXY,
    b"\0\r\nQUIT\n": _PROXY,  # version 2, behind its empty lines
    b"PRI * HTTP/2": f"it is HTTP/2: {_VERSIONS}",
    b"\x16\x03": "it is TLS, and this port speaks plain HTTP: use its address with http://",
}


class Refusal(Exception):
    """What came is not a request that can pass: the status and the words to tell the client.

    `why` is the same without the bytes that it sent: these may be a token, and the log has none.
    """

    def __init__(self, why: str, status: int = 400, reason: bytes = b"Bad Request", given: str = "") -> None:
        super().__init__(shown(why + given))
        self.why = why
        self.status = status
        self.reason = reason


class Head(msgspec.Struct, eq=False):
    """A request's line and fields. `minor` is that of HTTP/1.0 or 1.1; `keep_alive`: another request may follow.

    `body_bytes` is the length of its body, or _CHUNKED; `held_bytes` its memory, or 0 for the little that most take.
    `cut` is there if it may be remembered; `values` are those that vary, and `remembered` what was kept when such a
    head came before (parsed_head_cache.py).
    """

    method: bytes
    target: bytes
    minor: int
    _headers: Headers
    body_bytes: int
    held_bytes: int
    keep_alive: bool
    values: Values = ()
    _came: Values = ()  # those of `_headers`
    remembered: Any = None
    cut: Cut | None = None

    def again(self, values: Values, body_bytes: int, remembered: object) -> "Head":
        """The same head, come again with other values, and what was kept of it."""
        same = self.method, self.target, self.minor, self._headers, body_bytes, self.held_bytes, self.keep_alive
        return Head(*same, values, self.values, remembered)

    @property
    def headers(self) -> Headers:
        if self._came != self.values:
            self._headers, self._came = (
                self._headers.with_values(self.remembered.onward.varies.names, self.values),
                self.values,
            )
        return self._headers

    @property
    def may_carry_message(self) -> bool:
        """Whether the body may be a message that the gateway can read."""
        if self.method != b"POST" or self._headers.media_type() != JSON:
            return False
        coding = self._headers.tokens(b"content-encoding") if b"content-encoding" in self._headers.by_name else None
        return coding is None or coding == [b"identity"]


RequestEvent: TypeAlias = Head | bytes | Headers | Refusal  # a head, a piece of the body, its end with the trailers
Reading: TypeAlias = Literal["BETWEEN", "HEAD", "BODY", "OVER"]  # the state of a reader


class RequestReader(MessageReader):
    """Reads the requests of one connection: `add` takes the bytes that arrived, `read` gives their events.

    Each step of its `state` is made by one method: `_head`, `read`, `_read_body`, `close`.

               a part of a head  a head is whole  a body ends  the last body ends  what came is refused  it is closed
    BETWEEN    HEAD              BODY             -            -                   OVER                  OVER
    HEAD       HEAD              BODY             -            -                   OVER                  OVER
    BODY       -                 -                BETWEEN      OVER                OVER                  OVER
    OVER       OVER              OVER             OVER         OVER                OVER                  OVER

    A request without a body has one that ends at once. The last body is that of a request whose head says so.
    """

    __slots__ = ("_doubts", "_keep_alive", "state")

    def begin(self) -> None:
        super().begin()
        self.state: Reading = "BETWEEN"
        self._keep_alive = True
        self._doubts = _DOUBTS_MAX

    def close(self) -> None:
        super().close()
        self.state = "OVER"
        self._pending, self._at, self._seen, self.trailers = b"", 0, 0, []

    def add(self, data: bytes) -> None:
        if self.state != "OVER":
            MessageReader.add(self, data)  # super() costs more

    def read(self) -> list[RequestEvent]:
        """The events of the next bytes: of all that arrived, except what may be further requests."""
        events: list[RequestEvent] = []
        try:
            if self.state != "BODY" and (head := self._head()) is not None:
                events.append(head)
                self.state = "BODY"
                self._keep_alive, self._left = head.keep_alive, head.body_bytes
                if self._left == _CHUNKED:
                    self._expect_chunks(httptools.HttpRequestParser, _CHUNKS_FOLLOW)
            if self.state == "BODY":
                self._read_body(events)
        except Refusal as refused:
            events.append(without_frames(refused))
            self.close()
        if self.state == "OVER":
            self.close()
        elif self._at == len(self._pending):
            self._pending, self._at = b"", 0  # an open stream would keep it
        return events

    def _head(self) -> Head | None:
        """The next head, if it came before, or is whole. Raises Refusal."""
        data, at, heads = self._pending, self._at, self._cached_heads
        found = heads.find(data, self._bytes_max) if not at and type(data) is bytes and heads is not None else None
        if found is not None and not isinstance(found, Cut):
            known, values, self._at, body_bytes = found
            before: Head = known.head
            return before.again(values, body_bytes, known)
        if self.state == "BETWEEN":
            if data[at] in b"\r\n":
                self._at = at = _EMPTY_LINES.match(data, at).end()  # type: ignore[union-attr]  # always matches
                if at == len(data):
                    return None
            self.state = "HEAD"
        try:
            raw = self._raw_head()
        except TooMuch as error:
            said = f"the request's head {error}"
            if isinstance(error, HeadTooLarge) and data.find(b"\r\n", at, at + self._bytes_max // 2) < 0:
                raise Refusal(said, 414, b"URI Too Long") from None
            raise Refusal(said, 431, _TOO_LARGE) from None
        return None if raw is None else read_head(raw, found)

    def _inspect(self, data: bytes | bytearray, at: int, has_bare_lf: bool) -> None:
        """Have llhttp try a head that is not whole each time that it has doubled. Raises Refusal."""
        if (len(data) - at).bit_length() > self._seen.bit_length():
            try:
                httptools.HttpRequestParser(None).feed_data(data[at:])
            except httptools.HttpParserError as error:
                raise _refusal(error, data[at:]) from None
        if has_bare_lf:
            raise Refusal("not HTTP/1.1: a line ends with CR LF", given=_shown(data[at:]))

    def _read_body(self, events: list[RequestEvent]) -> None:
        """Read on in the body: all that has come of it, or some chunks. Raises Refusal."""
        if self._left == _CHUNKED:
            data = self._up_to_a_head(bytes(self._pending[self._at : self._at + _CHUNKS_AT_ONCE]))
            self._at += len(data)
            piece, is_whole = self._chunks(data), self.is_whole
        else:
            piece, is_whole = self._counted(), not self._left
        if piece:
            events.append(piece)
        if is_whole:
            events.append(Headers.of(self.trailers) if self.trailers else NO_FIELDS)
            self.trailers = []
            self.state = "BETWEEN" if self._keep_alive else "OVER"
        if self._fault is not None and self.state != "OVER":  # behind the last request nothing matters
            raise _refusal(self._fault)

    def _up_to_a_head(self, data: bytes) -> bytes:
        """Chunks, but nothing of a request that may begin behind the last one: a head is read from its first byte."""
        if not data or (data.find(HEAD_END) < 0 and data[0] not in b"\r\n") or not self._doubts:
            return data
        found = _MAY_END.search(data)
        if found is None:
            return data
        self._doubts -= 1
        return data[: found.end()]

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() in _NEVER_TRAILERS:
            raise Refusal(f"{name.decode().lower()} is not allowed as a trailer (RFC 9110, 6.5.1)")
        super().on_header(name, value)


def read_head(data: bytes, cut: Cut | None = None) -> Head:
    """The head in `data`, which ends with the first empty line. Raises Refusal. Nothing else decides what it gives.

    It is remembered with the `cut` of its bytes, if it may be.
    """
    try:
        found, parser = read_by_llhttp(httptools.HttpRequestParser, data)
    except httptools.HttpParserError as error:
        raise _refusal(error, data) from None
    method, version, target = parser.get_method(), parser.get_http_version(), found.target
    if method == b"CONNECT":
        raise Refusal("CONNECT is not supported: it asks for a tunnel", 501, b"Not Implemented")
    if not data.startswith(b"%b %b HTTP/%b\r\n" % (method, target, version.encode())):
        why = "a request line is a method, a target and HTTP/1.1, with one space between"
        raise Refusal(why, given=_shown(data))
    if version not in ("1.1", "1.0"):
        raise Refusal(other_protocol(data) or _VERSIONS, 505, b"HTTP Version Not Supported")
    minor, headers = int(version[-1]), Headers.of(found.fields)
    if (minor == 1 and b"host" not in headers.by_name) or headers.repeats(b"host"):
        raise Refusal("a request of HTTP/1.1 has exactly one Host (RFC 9112, 3.2)")
    body_bytes = _length(headers, minor)
    if not target.startswith(b"/"):
        target, headers = _in_origin_form(method, target, headers)
    lasts = minor == 1 and not any(b"close" in headers.tokens(name) for name in OF_CONNECTION)
    head = Head(method, target, minor, headers, body_bytes, headers.held_bytes(len(data)), lasts)
    is_plain = lasts and not head.held_bytes and body_bytes >= 0 and headers.are_plain(_NOT_PLAIN)
    if is_plain and target is found.target and cut is not None and cut.size_bytes == len(data):
        head.cut, head.values, head._came = cut, cut.values, cut.values
    return head


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
            raise Refusal("Transfer-Encoding must be one list that ends with chunked, once, in HTTP/1.1")
        return _CHUNKED
    length = headers.by_name.get(b"content-length")
    if length is None:
        return 0
    length = length.strip(b" \t")
    if not length.isdigit() or len(length) > _LENGTH_DIGITS_MAX:
        raise Refusal(f"Content-Length must be one number of {_LENGTH_DIGITS_MAX} digits at most")
    return int(length)


def other_protocol(begin: bytes | bytearray) -> str:
    """What speaks another protocol, by the first bytes that it sends; empty if none is known."""
    return next((words for sent, words in _OTHERS.items() if begin.startswith(sent)), "")


def _refusal(error: BaseException, head: bytes | bytearray = b"") -> Refusal:
    """The refusal for an error of llhttp in a head, or in a body in chunks."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, TooMuch):
        return Refusal(str(error), 431, _TOO_LARGE)
    other = other_protocol(head)
    if str(error) in ("Invalid HTTP version", "Pause on PRI/Upgrade"):
        return Refusal(other or _VERSIONS, 505, b"HTTP Version Not Supported")
    if isinstance(error, httptools.HttpParserInvalidMethodError):
        return Refusal(other or "a request line begins with a registered method (RFC 9110, 16.1)", given=_shown(head))
    if isinstance(error, httptools.HttpParserInvalidURLError):
        return Refusal("a target is in origin or absolute form, in ASCII", given=_shown(head))
    return Refusal(f"not HTTP/1.1: {error}", given=_shown(head))


def _in_origin_form(method: bytes, target: bytes, headers: Headers) -> tuple[bytes, Headers]:
    """The target without an authority, which becomes the `Host` (RFC 9112, 3.2.2). Raises Refusal (RFC 9110, 4.2)."""
    absolute = _ABSOLUTE.match(target)
    if absolute is None:
        return target, headers
    if not absolute[1] or b"@" in absolute[1]:
        raise Refusal("the authority in a target is a host and perhaps a port, without a user")
    rest = target[absolute.end() :]
    if not rest.startswith(b"/"):
        rest = b"*" if method == b"OPTIONS" and not rest else b"/" + rest  # RFC 9112, 3.2.4
    return rest, headers.with_value(b"host", absolute[1])
