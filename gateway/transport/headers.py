"""Header fields as they came: ordered pairs of bytes, looked up without regard to case, never rebuilt from a map.

In: pairs of name and value. Out: pairs. Always: fields that pass keep their order, case and repetition (DESIGN 3.2). A
look-up takes the name in lower case. `add` alone changes an object; every other method makes a new one.
"""

from collections.abc import Container, Iterable, Iterator
from typing import Final, Self

# RFC 9110, 7.6.1. Transfer-Encoding is not here: the relay frames each leg as the other is framed, and so keeps it.
_HOP_BY_HOP: Final = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"te", b"upgrade"})
# These stay even if `Connection` names them: without them it would be another message.
_ESSENTIAL: Final = frozenset({b"host", b"content-length", b"transfer-encoding"})
# These never pass as a trailer (RFC 9110, 6.5.1): they frame, route, authenticate, modify the request or describe the
# content. A reader that merges trailers with the header fields would obey them: llhttp obeys `Connection: close`.
_NEVER_TRAILERS: Final = frozenset(
    b"content-length transfer-encoding trailer te connection keep-alive proxy-connection upgrade "
    b"host location content-location forwarded via max-forwards origin referer "
    b"authorization proxy-authorization www-authenticate proxy-authenticate cookie set-cookie "
    b"expect range cache-control pragma if-match if-none-match if-modified-since if-unmodified-since if-range "
    b"prefer accept accept-charset accept-encoding accept-language last-event-id "
    b"content-encoding content-type content-range content-language content-disposition "
    b"age date expires vary retry-after warning allow accept-ranges".split()
)
_NEVER_TRAILERS_BEGIN: Final = (b"mcp-", b"x-forwarded-", b"sec-", b"access-control-")
# The encodings that the gateway can read in passing (DESIGN 3.3).
_READABLE: Final = frozenset({b"gzip", b"x-gzip", b"deflate", b"identity"})


class Headers:
    """The header fields, or the trailer fields, of one message."""

    __slots__ = ("_fields", "_first")

    def __init__(self, pairs: Iterable[tuple[bytes, bytes]] = ()) -> None:
        self._fields = [(name.lower(), name, value) for name, value in pairs]
        self._first: dict[bytes, bytes] | None = None

    @classmethod
    def of(cls, fields: list[tuple[bytes, bytes, bytes]]) -> Self:
        """The fields in a list of (name in lower case, name, value). The object keeps the list as its own."""
        headers = cls.__new__(cls)
        headers._fields, headers._first = fields, None
        return headers

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        return ((name, value) for _, name, value in self._fields)

    def __contains__(self, name: bytes) -> bool:
        first = self._first
        return name in (self._lookup() if first is None else first)

    def __bool__(self) -> bool:
        return bool(self._fields)

    def add(self, name: bytes, value: bytes) -> None:
        """Add a field at the end."""
        self._fields.append((name.lower(), name, value))
        self._first = None

    def _lookup(self) -> dict[bytes, bytes]:
        if self._first is None:
            self._first = {lower: value for lower, _, value in reversed(self._fields)}
        return self._first

    def get(self, name: bytes) -> bytes | None:
        """The value of the first field called `name`, without the white space around it; or None."""
        value = self._lookup().get(name)
        return None if value is None else value.strip(b" \t")

    def all(self, name: bytes) -> list[bytes]:
        """The values of all fields called `name`."""
        return [value for lower, _, value in self._fields if lower == name]

    def repeats(self, name: bytes) -> bool:
        """Whether there is more than one field called `name`."""
        return len(self._lookup()) < len(self._fields) and len(self.all(name)) > 1

    def named(self, names: frozenset[bytes]) -> list[tuple[bytes, bytes]]:
        """The fields called one of `names`, in order: lower-case name and value."""
        if names.isdisjoint(self._lookup()):
            return []
        return [(lower, value) for lower, _, value in self._fields if lower in names]

    def tokens(self, name: bytes) -> list[bytes]:
        """The members, in lower case, of the comma-separated lists in all fields called `name`."""
        if name not in self:
            return []
        return [t for value in self.all(name) for part in value.split(b",") if (t := part.strip(b" \t").lower())]

    def media_type(self) -> bytes:
        """The media type of `Content-Type`, in lower case, without its parameters; empty if there is none."""
        value = self._lookup().get(b"content-type")
        return value.partition(b";")[0].strip(b" \t").lower() if value else b""

    def size_bytes(self) -> int:
        """The size of the fields as lines."""
        return sum([len(name) + len(value) + 4 for _, name, value in self._fields])

    def block(self) -> bytes:
        """The fields as lines, each with its CRLF."""
        return b"".join([b"%b: %b\r\n" % (name, value) for _, name, value in self._fields])

    def end_to_end(self) -> "Headers":
        """The fields that pass to the other side: all but the hop-by-hop ones and those that `Connection` names."""
        removed: frozenset[bytes] | set[bytes] = _HOP_BY_HOP
        if b"connection" in self:
            removed = (_HOP_BY_HOP | set(self.tokens(b"connection"))) - _ESSENTIAL
        return self.of([field for field in self._fields if field[0] not in removed])

    def passable_trailers(self, refused: Container[bytes] = ()) -> "Headers":
        """The trailer fields that may pass as trailers (RFC 9110, 6.5.1), without those named in `refused`."""
        return self.of(
            [
                field
                for field in self._fields
                if field[0] not in _NEVER_TRAILERS
                and not field[0].startswith(_NEVER_TRAILERS_BEGIN)
                and field[0] not in refused
            ]
        )

    def without(self, *names: bytes) -> "Headers":
        """The fields without those called one of `names`."""
        return self.of([field for field in self._fields if field[0] not in names])

    def with_value(self, name: bytes, value: bytes) -> "Headers":
        """The fields, with `value` in the first one called `name`, and without further ones of that name.

        If there is none, one is added at the end.
        """
        out: list[tuple[bytes, bytes, bytes]] = []
        found = False
        for field in self._fields:
            if field[0] != name:
                out.append(field)
            elif not found:
                out.append((name, field[1], value))
                found = True
        if not found:
            out.append((name, b"-".join(part.capitalize() for part in name.split(b"-")), value))
        return self.of(out)

    def with_readable_encodings(self) -> "Headers":
        """The fields with `Accept-Encoding` narrowed to what the gateway can read; itself if all is readable."""
        if b"accept-encoding" not in self:
            return self
        parts = [part.strip(b" \t") for value in self.all(b"accept-encoding") for part in value.split(b",")]
        offered = [part for part in parts if part]
        kept = [part for part in offered if part.partition(b";")[0].strip(b" \t").lower() in _READABLE]
        return self if kept == offered else self.with_value(b"accept-encoding", b", ".join(kept) or b"identity")
