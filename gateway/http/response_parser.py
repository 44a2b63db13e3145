"""Responses of HTTP/1.x, read by llhttp. One that two readers could read differently is a fault; every other passes.

In: bytes as they arrive, split anywhere. Out: heads, one at a time; behind that of a response, pieces of its body.
Always: status line, names and values are the bytes that came (DESIGN 3.2); a message has one framing (RFC 9112, 6.3); a
head or a trailer has a limit in bytes and in fields; until a head is whole, only its bytes are kept. What a head gives
depends on its bytes alone. A body of known length is counted, chunks are read by `chunks.py`.
"""

import re
from typing import Final, Literal, TypeAlias

import httptools

from gateway.http.chunks import Chunks, whole_body
from gateway.http.fields import FIELD_BYTES_MIN, HEAD_END, OF_CONNECTION, Field, FoundFields, Headers
from gateway.http.head_cache import ConnectionHeads, HeadBytes

Framing: TypeAlias = Literal["length", "chunked", "close", "none"]
"""What ends a body: its `Content-Length`, its last chunk, the connection's end; "none": there is no body."""

_BODILESS: Final = (204, 304)
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
_PERSISTENT: Final = b"persistent-auth"  # MS-NTHT, 2.2.2
_TELLING: Final = frozenset({*_SCHEMES, _PERSISTENT})


class BadResponse(Exception):
    """What came is not a response that can pass: why."""


def authenticates_connection(headers: Headers) -> bool:
    """Whether a request or a response is part of the authentication of its connection."""
    for name, value in headers.named(_TELLING):
        told = value.lower()
        if name == _PERSISTENT:
            return True
        if (b"ntlm" in told or b"negotiate" in told) and _OF_CONNECTIONS.search(told):
            return True
    return False


class ResponseHead:
    """The status line and fields of a response. `minor` is that of HTTP/1.0 or 1.1.

    `framing` is what they say of the body, to any request but HEAD; `body_bytes` is the `Content-Length`, or 0, and
    `kind` its media type. `held_bytes` is the memory of the head, or 0 for the little that most take. `may_name` says
    whether it may name addresses of the upstream's. One that `is_kept` is found when it comes again (head_cache.py),
    perhaps with another `Content-Length`; `passed` has its bytes as clients got them.
    """

    __slots__ = (
        "authenticates", "body_bytes", "framing", "headers", "held_bytes", "is_kept", "kind", "may_name", "minor",
        "passed", "reason", "status",
    )  # fmt: skip

    def __init__(
        self, status: int, reason: bytes, minor: int, headers: Headers, framing: Framing, held_bytes: int
    ) -> None:
        self.status = status
        self.reason = reason
        self.minor = minor
        self.headers = headers
        self.framing = framing
        self.body_bytes = int(headers.get(b"content-length") or 0)
        self.held_bytes = held_bytes
        self.authenticates = authenticates_connection(headers)
        self.kind = headers.media_type()
        self.may_name = status in (401, 403) or not _WITH_ADDRESSES.isdisjoint(headers.by_name)
        self.is_kept = False
        self.passed: HeadBytes | None = None

    @property
    def is_plain(self) -> bool:
        """Whether nothing in it makes its exchange differ from others: it may be remembered."""
        is_usual = self.status >= 200 and self.framing != "close" and not self.held_bytes and not self.authenticates
        return is_usual and self.keeps_alive(self.framing) and self.minor == 1 and self.headers.are_plain(_NOT_PLAIN)

    def keeps_alive(self, framing: Framing) -> bool:
        """Whether the connection may serve again, behind a body that is framed like this."""
        told = [token for name in OF_CONNECTION if name in self.headers for token in self.headers.tokens(name)]
        if framing == "close" or b"close" in told:
            return False
        return self.minor == 1 or (framing == "length" and b"keep-alive" in told)  # RFC 9112, 6.1


class ResponseReader:
    """Reads the responses that come on one connection: `add` takes what arrived, `head` and `body` read it."""

    __slots__ = (
        "_at", "_bytes_max", "_cached_heads", "_chunks", "_fields_max", "_framing", "_left", "_pending", "_seen",
        "fault", "is_followed", "is_whole", "stated_bytes",
    )  # fmt: skip

    def __init__(self, bytes_max: int, fields_max: int, cached_heads: ConnectionHeads[ResponseHead]) -> None:
        self._bytes_max = bytes_max
        self._fields_max = fields_max
        self._cached_heads = cached_heads
        self.stated_bytes = 0  # what the `Content-Length` of the last head says, or 0
        self._chunks: Chunks | None = None
        self.begin()

    def begin(self) -> None:
        self._pending: bytes | bytearray = b""  # what arrived and was not read yet, from `_at` on
        self._at = self._seen = 0  # seen: so much of a head that is not whole
        self._framing: Framing = "none"
        self._left = 0  # bytes of the body that are still to come
        self.is_whole = False  # the body's end has come
        self.is_followed = False  # ... and more than line ends behind it
        self.fault = ""  # of the body
        self.close()

    def close(self) -> None:
        if self._chunks is not None:
            self._chunks.close()
            self._chunks = None

    def add(self, data: bytes) -> None:
        if self._at == len(self._pending):
            self._pending, self._at = data, 0
        elif isinstance(self._pending, bytearray) and not self._at:
            self._pending += data
        else:
            self._pending, self._at = bytearray(self._pending[self._at :]) + data, 0

    @property
    def has_more(self) -> bool:
        """Whether more has come than was read, besides the beginning of a head."""
        return max(self._at, self._seen) < len(self._pending)

    @property
    def begun(self) -> bytes | bytearray:
        """The beginning of a head that is not whole."""
        return self._pending if self._seen else b""

    # ---- heads ----

    def head(self) -> ResponseHead | None:
        """The next head, if it is whole; else its bytes are kept. Raises BadResponse for one that cannot pass."""
        data, at = self._pending, self._at
        if not at and type(data) is bytes and (before := self._cached_heads.find(data)) is not None:
            kept, self._at, self.stated_bytes = before
            return kept
        found = data.find(HEAD_END, max(at, self._seen - len(HEAD_END) + 1))
        end = found + len(HEAD_END) if found >= 0 else len(data)
        if end - at > self._bytes_max:
            raise BadResponse(f"its head is larger than {self._bytes_max} bytes")
        if end - at > FIELD_BYTES_MIN * self._fields_max and data.count(b"\n", at, end) > self._fields_max + 2:
            raise BadResponse(f"its head has more than {self._fields_max} fields")
        if found < 0:
            self._keep_begun(data, at)
            return None
        self._at, self._seen = end, 0
        raw = bytes(data[at:end])
        head = read_head(raw)
        self.stated_bytes = head.body_bytes
        if head.is_plain:
            head.is_kept = self._cached_heads.keep(self._cached_heads.heads, raw, head.body_bytes, head)
        return head

    def _keep_begun(self, data: bytes | bytearray, at: int) -> None:
        """Keep the bytes of a head that may begin like this; it has no bare LF, where only some readers end a line."""
        seen = max(at, self._seen)
        begins = data[at : at + len(_PROTOCOL)]
        if not _PROTOCOL.startswith(begins) or data.count(b"\n", seen) != data.count(b"\r\n", max(at, seen - 1)):
            raise BadResponse("it is not HTTP/1.1")
        if at or not isinstance(data, bytearray):
            self._pending, self._at = bytearray(data[at:]), 0
        self._seen = len(self._pending)

    # ---- bodies ----

    def expect_body(self, framing: Framing) -> None:
        """From now on read the body behind the last head."""
        self._framing, self._left = framing, self.stated_bytes if framing == "length" else 0

    def body(self) -> bytes:
        """What has come of the body. With the last of it `is_whole` is set; if more cannot be read, `fault` is."""
        data, at = self._pending, self._at
        self._pending, self._at = b"", 0  # an open stream would keep it
        if self._framing == "chunked":
            return self._read_chunks(data, at)
        end = len(data) if self._framing == "close" else min(len(data), at + self._left)
        self._left -= end - at
        self.is_whole = self._framing != "close" and not self._left
        self.is_followed = end < len(data) and bool(data[end:].strip(b"\r\n"))
        return bytes(data if not at and end == len(data) else data[at:end])

    def _read_chunks(self, data: bytes | bytearray, at: int) -> bytes:
        if at == len(data):
            return b""
        chunks = self._chunks
        if chunks is None:
            if (whole := whole_body(bytes(data), at)) is not None:
                self.is_whole = True
                return whole
            llhttp = httptools.HttpResponseParser
            self._chunks = chunks = Chunks(llhttp, _CHUNKS_FOLLOW, self._bytes_max, self._fields_max)
        piece = chunks.feed(bytes(data[at:]))
        self.is_whole, self.is_followed = chunks.is_whole, chunks.fault is not None
        if isinstance(chunks.fault, httptools.HttpParserError):
            self.fault = f"it is not HTTP: {chunks.fault}"
        elif chunks.fault is not None:
            self.fault = f"it has {chunks.fault}"
        return piece

    @property
    def trailers(self) -> list[Field]:
        return self._chunks.fields if self._chunks is not None else []


def read_head(data: bytes) -> ResponseHead:
    """The head in `data`, which ends with the first empty line. Raises BadResponse. Nothing else decides it."""
    line = _STATUS_LINE.match(data)
    if line is None:
        raise BadResponse("it is not HTTP/1.1")
    found = FoundFields()
    try:
        httptools.HttpResponseParser(found).feed_data(data)
    except httptools.HttpParserUpgrade:
        pass  # llhttp takes what follows a 101 for another protocol
    except httptools.HttpParserError as error:
        raise BadResponse(f"it is not HTTP: {error}") from None
    status, headers = int(line[2]), Headers.of(found.fields)
    coding = _coding(headers) if b"transfer-encoding" in headers.by_name else ""
    if status == 101 or coding is None:
        raise BadResponse("it is 101" if status == 101 else "readers do not agree on its Transfer-Encoding")
    framing: Framing = coding or ("length" if b"content-length" in headers.by_name else "close")
    if status < 200 or status in _BODILESS:
        framing = "none"
    head = ResponseHead(status, line[3] or b"", int(line[1]), headers, framing, headers.held_bytes(len(data)))
    if status < 200 and not head.keeps_alive(framing):
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
