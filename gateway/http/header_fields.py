"""Header fields as they came: ordered pairs of bytes that never change, never rebuilt from a map (DESIGN 3.2)."""

from collections.abc import Iterable, Iterator
from typing import Final, Self, TypeAlias

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
    b"content-encoding content-type content-range content-language content-disposition taskgate-filter "
    b"age date expires vary retry-after warning allow accept-ranges".split()
)
_NEVER_TRAILERS_BEGIN: Final = (b"mcp-", b"x-forwarded-", b"sec-", b"access-control-")
# What a body's bytes are told by: of an edited body it would be wrong, in a head and in trailers.
DIGESTS: Final = frozenset({b"content-digest", b"repr-digest", b"digest", b"content-md5", b"etag"})
UNCOUNTED_BYTES_MAX: Final = 16 * 1024  # of the memory of a head: counting has a cost, and most heads take a third
# The memory of a field besides the bytes of its value, and twice those of its name: four objects, in up to four lists
# and maps (as it came, as it goes up).
_FIELD_BYTES: Final = 250
FIELD_BYTES_MIN: Final = 4  # as it comes: one letter, a colon, and CR LF
HEAD_END: Final = b"\r\n\r\n"
OF_CONNECTION: Final = (b"connection", b"proxy-connection")  # readers obey both, llhttp too
EVENT_STREAM: Final = b"text/event-stream"
JSON: Final = b"application/json"
FILTER: Final = b"taskgate-filter"  # criteria of a list (DESIGN 5.10)

Field: TypeAlias = tuple[bytes, bytes, bytes]  # the name in lower case, the name, the value


def fields_bytes(fields: "list[Field]") -> int:
    return sum([2 * len(name) + len(value) + _FIELD_BYTES for _, name, value in fields])


class Headers:
    """The header fields, or the trailer fields, of one message. `by_name`, the first value of each name in lower case,
    is a plain dict, because a relayed request looks up some twenty names.
    """

    __slots__ = ("_fields", "by_name")

    def __init__(self, pairs: Iterable[tuple[bytes, bytes]] = ()) -> None:
        self._fields = [(name.lower(), name, value) for name, value in pairs]
        self.by_name = {lower: value for lower, _, value in reversed(self._fields)}

    @classmethod
    def of(cls, fields: list[Field]) -> Self:
        """The fields in a list of (name in lower case, name, value). The object keeps the list as its own."""
        return cls._made(fields, {lower: value for lower, _, value in reversed(fields)})

    @classmethod
    def _made(cls, fields: list[Field], by_name: dict[bytes, bytes]) -> Self:
        headers = cls.__new__(cls)
        headers._fields, headers.by_name = fields, by_name
        return headers

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        return ((name, value) for _, name, value in self._fields)

    def __contains__(self, name: bytes) -> bool:
        return name in self.by_name

    def __bool__(self) -> bool:
        return bool(self._fields)

    def get(self, name: bytes) -> bytes | None:
        """The value of the first field called `name`, without the white space around it; or None."""
        value = self.by_name.get(name)
        return None if value is None else value.strip(b" \t")

    def all(self, name: bytes) -> list[bytes]:
        if len(self.by_name) == len(self._fields):
            return [self.by_name[name]] if name in self.by_name else []
        return [value for lower, _, value in self._fields if lower == name]

    def repeats(self, name: bytes) -> bool:
        return len(self.by_name) < len(self._fields) and len(self.all(name)) > 1

    def named(self, names: frozenset[bytes]) -> list[tuple[bytes, bytes]]:
        """The fields called one of `names`, in order: lower-case name and value."""
        if names.isdisjoint(self.by_name):
            return []
        return [(lower, value) for lower, _, value in self._fields if lower in names]

    def tokens(self, name: bytes) -> list[bytes]:
        """The members, in lower case, of the comma-separated lists in all fields called `name`."""
        value = self.by_name.get(name)
        if value is None:
            return []
        if len(self.by_name) < len(self._fields):
            value = b",".join(self.all(name))  # the same list (RFC 9110, 5.3)
        return [t for part in value.lower().split(b",") if (t := part.strip(b" \t"))]

    def are_plain(self, names: frozenset[bytes]) -> bool:
        """Whether none is called one of `names`, and `Connection` says nothing but `keep-alive`."""
        if not names.isdisjoint(self.by_name):
            return False
        return b"connection" not in self.by_name or self.tokens(b"connection") == [b"keep-alive"]

    def media_type(self) -> bytes:
        """The media type of `Content-Type`, in lower case, without its parameters; empty if there is none."""
        return self.by_name.get(b"content-type", b"").partition(b";")[0].strip(b" \t").lower()

    @property
    def uncounted_bytes(self) -> int:
        """The size of a head with so many fields up to which their memory is not counted."""
        return (UNCOUNTED_BYTES_MAX - _FIELD_BYTES * len(self._fields)) // 2

    def held_bytes(self, head_bytes: int) -> int:
        """The memory of the fields of a head of that size; 0 if it is not counted."""
        return 0 if head_bytes <= self.uncounted_bytes else fields_bytes(self._fields)

    def block(self) -> bytes:
        return b"".join([b"%b: %b\r\n" % (name, value) for _, name, value in self._fields])

    def as_head(self, method: bytes, target: bytes) -> bytes:
        return b"%b %b HTTP/1.1\r\n%b\r\n" % (method, target, self.block())

    def end_to_end(self) -> "Headers":
        """The fields that pass to the other side: all but the hop-by-hop ones and those that `Connection` names."""
        if _HOP_BY_HOP.isdisjoint(self.by_name):
            return self
        removed = _HOP_BY_HOP
        if b"connection" in self.by_name:
            removed = _HOP_BY_HOP.union(self.tokens(b"connection")) - _ESSENTIAL
        return self.of([field for field in self._fields if field[0] not in removed])

    def with_values(self, names: frozenset[bytes], values: Iterable[bytes]) -> "Headers":
        """The fields, with other values in those called one of `names`, in their order."""
        each = iter(values)
        return self.of([(low, name, next(each) if low in names else value) for low, name, value in self._fields])

    def passable_trailers(self, refused: Iterable[bytes] = ()) -> "Headers":
        """The trailer fields that may pass as trailers (RFC 9110, 6.5.1), without those named in `refused`."""
        never = _NEVER_TRAILERS.union(refused)
        return self.of([f for f in self._fields if f[0] not in never and not f[0].startswith(_NEVER_TRAILERS_BEGIN)])

    def without(self, *names: bytes) -> "Headers":
        """The fields without those called one of `names`; this object where there are none: a copy costs memory."""
        if self.by_name.keys().isdisjoint(names):
            return self
        return self.of([field for field in self._fields if field[0] not in names])

    def without_digests(self) -> "Headers":
        """The fields for a body whose bytes are not those that came, without `DIGESTS` and their announcement."""
        headers, announced = self.without(*DIGESTS), self.tokens(b"trailer")
        if DIGESTS.isdisjoint(announced):
            return headers
        left = b", ".join([name for name in announced if name not in DIGESTS])
        return headers.with_value(b"trailer", left) if left else headers.without(b"trailer")

    def with_field(self, name: bytes, value: bytes) -> "Headers":
        return self.of([*self._fields, (name.lower(), name, value)])

    def with_value(self, name: bytes, value: bytes) -> "Headers":
        """The fields, with `value` in the first one called `name` or at the end, and no other of that name."""
        if name not in self.by_name:
            return self.with_field(b"-".join(part.capitalize() for part in name.split(b"-")), value)
        first = next(at for at, field in enumerate(self._fields) if field[0] == name)
        fields = self._fields.copy()
        fields[first] = (name, fields[first][1], value)
        if self.repeats(name):
            fields = [field for at, field in enumerate(fields) if field[0] != name or at == first]
        return self._made(fields, {**self.by_name, name: value})


NO_FIELDS: Final = Headers()
