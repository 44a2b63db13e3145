"""Responses of HTTP/1.x, read by llhttp. One that two readers could read differently is a fault; every other passes.

In: bytes as they arrive, split anywhere. Out: heads, one at a time; behind that of a response, pieces of its body.
Always: status line, names and values are the bytes that came (DESIGN 3.2); a message has one framing (RFC 9112, 6.3);
what a head gives depends on its bytes alone.
"""

import re
from typing import Final, Literal, TypeAlias

import httptools
import msgspec

from gateway.http.header_fields import OF_CONNECTION, Field, Headers
from gateway.http.message_reader import MessageReader, TooMuch, read_by_llhttp, whole_body
from gateway.http.parsed_head_cache import Cut, Onward, Values

Framing: TypeAlias = Literal["length", "chunked", "close", "none"]
"""What ends a body: its `Content-Length`, its last chunk, the connection's end; "none": there is no body."""

_BODILESS: Final = (204, 304)
_ENDLESS: Final = 1 << 62  # bytes: the connection ends such a body
_PROTOCOL: Final = b"HTTP/1."
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: ([\t\x20-\x7e\x80-\xff]*))?\r\n")  # RFC 9112, 4
_CHUNKS_FOLLOW: Final = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"  # a head for llhttp
_OBEYED: Final = frozenset({*OF_CONNECTION, b"transfer-encoding", b"content-length", b"upgrade"})  # by some readers
_NOT_PLAIN: Final = frozenset({b"upgrade", b"trailer", b"te", b"proxy-connection"})
_WITH_ADDRESSES: Final = frozenset({b"location", b"content-location"})
_CODINGS: Final = frozenset({b"gzip", b"x-gzip", b"deflate", b"compress", b"x-compress"})  # RFC 9112, 7
# Schemes that authenticate a connection, and not a request (RFC 4559, 6), and where they are named.
_OF_CONNECTIONS: Final = re.compile(rb"(?:^|,)\s*+(?:ntlm|negotiate)(?=[\s,]|$)")
_SCHEMES: Final = (b"authorization", b"www-authenticate", b"proxy-authorization", b"proxy-authenticate")
# What the gateway reads in a response, wherever it stands: in heads that are remembered as one it does not vary.
_READ: Final = frozenset(
    b"connection proxy-connection keep-alive upgrade te trailer transfer-encoding content-type content-encoding "
    b"authorization www-authenticate proxy-authorization proxy-authenticate persistent-auth".split()
)
_PERSISTENT: Final = b"persistent-auth"  # MS-NTHT, 2.2.2
_TELLING: Final = frozenset({*_SCHEMES, _PERSISTENT})


def may_vary(name: bytes) -> bool:
    """Whether nothing follows from the value of a field but its own bytes."""
    return name not in _READ


class BadResponse(Exception):
    """What came is not a response that can pass: why."""


def authenticates_connection(headers: Headers) -> bool:
    """Whether a request or a response is part of the authentication of its connection."""
    for name, value in headers.named(_TELLING):
        told = value.lower()
        if name == _PERSISTENT or ((b"ntlm" in told or b"negotiate" in told) and _OF_CONNECTIONS.search(told)):
            return True
    return False


class ResponseHead(msgspec.Struct, eq=False):
    """The status line and fields of a response. `minor` is that of HTTP/1.0 or 1.1.

    `framing` is what they say of the body, to any request but HEAD; `body_bytes` is the `Content-Length`, or 0, and
    `kind` its media type. `held_bytes` is the memory of the head, or 0 for the little that most take. `may_name` says
    whether it may name addresses of the upstream's. One with `passed` is found when it comes again, perhaps with other
    `values` of the fields that vary: as clients got it.
    """

    status: int
    reason: bytes
    minor: int
    headers: Headers
    framing: Framing
    body_bytes: int
    held_bytes: int
    authenticates: bool
    kind: bytes
    may_name: bool
    keeps_alive: bool  # the connection may serve again; behind a HEAD without a length its server may close it
    values: Values = ()  # of `headers`
    passed: Onward | None = None

    def headers_with(self, values: Values) -> Headers:
        """The fields of such a head that has those values."""
        if self.passed is None or values == self.values:
            return self.headers
        return self.headers.with_values(self.passed.varies.names, values)

    @property
    def is_plain(self) -> bool:
        """Whether nothing in it makes its exchange differ from others: it may be remembered."""
        is_usual = self.status >= 200 and not self.held_bytes and not self.authenticates
        return is_usual and self.keeps_alive and self.minor == 1 and self.headers.are_plain(_NOT_PLAIN)


class ResponseReader(MessageReader):
    """Reads the responses that come on one connection: `add` takes what arrived, `head` and `body` read it."""

    __slots__ = ("_framing", "is_followed", "stated_bytes", "values")

    def begin(self) -> None:
        MessageReader.begin(self)  # super() costs more
        self._framing: Framing = "none"
        self.stated_bytes = 0  # what the `Content-Length` of the last head says, or 0
        self.values: Values = ()  # of its fields that vary
        self.is_followed = False  # behind the body's end more than line ends have come

    def head(self) -> ResponseHead | None:
        """The next head, if it is whole; else its bytes are kept. Raises BadResponse for one that cannot pass."""
        data, at, heads = self._pending, self._at, self._cached_heads
        found = heads.find(data, self._bytes_max) if not at and type(data) is bytes and heads is not None else None
        if found is not None and not isinstance(found, Cut):
            kept: ResponseHead
            kept, self.values, self._at, self.stated_bytes = found
            return kept
        try:
            raw = self._raw_head()
        except TooMuch as error:
            raise BadResponse(f"its head {error}") from None
        if raw is None:
            return None
        head = read_head(raw)
        self.stated_bytes, self.values = head.body_bytes, ()
        if heads is not None and found is not None and found.size_bytes == len(raw) and head.is_plain:
            self.values = head.values = found.values
            if heads.keep(heads.owner.heads, found, head.headers, head.body_bytes, head):
                head.passed = Onward(found.varies)
        return head

    def _inspect(self, data: bytes | bytearray, at: int, has_bare_lf: bool) -> None:
        if has_bare_lf or not _PROTOCOL.startswith(data[at : at + len(_PROTOCOL)]):
            raise BadResponse("it is not HTTP/1.1")

    def expect_body(self, framing: Framing) -> None:
        """From now on read the body behind the last head."""
        self._framing = framing
        self._left = self.stated_bytes if framing == "length" else _ENDLESS if framing == "close" else 0

    def body(self) -> bytes:
        """What has come of the body. With the last of it `is_whole` is set; if more cannot be read, `fault` is."""
        if self._framing == "chunked":
            piece = self._whole_or_chunks(bytes(self._pending), self._at)
            self.is_followed = self._fault is not None
        else:
            piece = self._counted()
            self.is_whole = not self._left
            self.is_followed = self._at < len(self._pending) and bool(self._pending[self._at :].strip(b"\r\n"))
        self._pending, self._at = b"", 0  # an open stream would keep it
        return piece

    def _whole_or_chunks(self, data: bytes, at: int) -> bytes:
        if at == len(data):
            return b""
        if self._parser is None:
            if (whole := whole_body(data, at)) is not None:
                self.is_whole = True
                return whole
            self._expect_chunks(httptools.HttpResponseParser, _CHUNKS_FOLLOW)
        return self._chunks(data[at:])

    @property
    def fault(self) -> str:
        """Why the body cannot be read on; empty if it can."""
        if isinstance(self._fault, httptools.HttpParserError):
            return f"it is not HTTP: {self._fault}"
        return "" if self._fault is None else f"it has {self._fault}"


def read_head(data: bytes) -> ResponseHead:
    """The head in `data`, which ends with the first empty line. Raises BadResponse. Nothing else decides it."""
    line = _STATUS_LINE.match(data)
    if line is None:
        raise BadResponse("it is not HTTP/1.1")
    try:
        found, _ = read_by_llhttp(httptools.HttpResponseParser, data)
    except httptools.HttpParserError as error:
        raise BadResponse(f"it is not HTTP: {error}") from None
    status, headers = int(line[2]), Headers.of(found.fields)
    coding = _coding(headers) if b"transfer-encoding" in headers.by_name else ""
    if status == 101 or coding is None:
        raise BadResponse("it is 101" if status == 101 else "readers do not agree on its Transfer-Encoding")
    framing: Framing = coding or ("length" if b"content-length" in headers.by_name else "close")
    if status < 200 or status in _BODILESS:
        framing = "none"
    minor, told = int(line[1]), [token for name in OF_CONNECTION for token in headers.tokens(name)]
    lasts = minor == 1 or (framing == "length" and b"keep-alive" in told)  # RFC 9112, 6.1
    head = ResponseHead(
        status,
        line[3] or b"",
        minor,
        headers,
        framing,
        body_bytes=int(headers.get(b"content-length") or 0),
        held_bytes=headers.held_bytes(len(data)),
        authenticates=authenticates_connection(headers),
        kind=headers.media_type(),
        may_name=status in (401, 403) or not _WITH_ADDRESSES.isdisjoint(headers.by_name),
        keeps_alive=lasts and framing != "close" and b"close" not in told,
    )
    if status < 200 and not head.keeps_alive:
        raise BadResponse("it is 1xx, and ends its connection")
    return head


def ends_connection(trailers: list[Field]) -> bool:
    """Whether a connection serves no more behind these: a reader could obey one of them."""
    return not _OBEYED.isdisjoint([lower for lower, _, _ in trailers])


def _coding(headers: Headers) -> Framing | None:
    """The framing that `Transfer-Encoding` says: "chunked" or "close"; None where readers could differ."""
    codings = [c.strip(b" ").lower() for value in headers.all(b"transfer-encoding") for c in value.split(b",")]
    if codings[-1] == b"chunked":
        return "chunked" if _CODINGS.issuperset(codings[:-1]) else None
    return "close" if _CODINGS.issuperset(codings) else None
