"""Header fields as they came: ordered pairs of bytes, looked up without regard to case, never rebuilt from a map.

In: pairs of name and value. Out: pairs. Always: what is passed on keeps its order, case and repetition (DESIGN 3.2).
"""

from collections.abc import Iterable
from typing import Final, TypeAlias

Headers: TypeAlias = list[tuple[bytes, bytes]]

# RFC 9110, 7.6.1. Transfer-Encoding is not here: the relay frames each leg as the other is framed, and so keeps it.
_HOP_BY_HOP: Final = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"te", b"upgrade"})
# Never removed because `Connection` names them: a message without these would not be the message that was sent.
_ESSENTIAL: Final = frozenset({b"host", b"content-length", b"transfer-encoding"})


def get(headers: Headers, name: bytes) -> bytes | None:
    """The value of the first field called `name` (in lower case), without the white space around it."""
    for key, value in headers:
        if key.lower() == name:
            return value.strip(b" \t")
    return None


def tokens(headers: Headers, name: bytes) -> list[bytes]:
    """The members, in lower case, of the comma-separated lists in all fields called `name` (in lower case)."""
    return [
        token
        for key, value in headers
        if key.lower() == name
        for part in value.split(b",")
        if (token := part.strip(b" \t").lower())
    ]


def end_to_end(headers: Headers) -> Headers:
    """The fields that go on to the other side: all but the hop-by-hop ones and those that `Connection` names."""
    lowered = [(key.lower(), key, value) for key, value in headers]
    removed: frozenset[bytes] | set[bytes] = _HOP_BY_HOP
    if any(lower == b"connection" for lower, _, _ in lowered):
        removed = (_HOP_BY_HOP | set(tokens(headers, b"connection"))) - _ESSENTIAL
    return [(key, value) for lower, key, value in lowered if lower not in removed]


def without(headers: Headers, *names: bytes) -> Headers:
    """The fields but those called one of `names` (in lower case)."""
    return [(key, value) for key, value in headers if key.lower() not in names]


def with_value(headers: Headers, name: bytes, value: bytes) -> Headers:
    """The fields with the first one called `name` given `value`, its further ones dropped; added if there is none."""
    out: Headers = []
    found = False
    for key, old in headers:
        if key.lower() != name:
            out.append((key, old))
        elif not found:
            out.append((key, value))
            found = True
    if not found:
        out.append((b"-".join(part.capitalize() for part in name.split(b"-")), value))
    return out


def media_type(headers: Headers) -> bytes:
    """The media type of `Content-Type`, in lower case, without its parameters; empty if there is none."""
    value = get(headers, b"content-type")
    return value.partition(b";")[0].strip(b" \t").lower() if value else b""


def block(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The fields as lines, each with its CRLF."""
    return b"".join([b"%b: %b\r\n" % field for field in headers])


# What the gateway can read on its way past (DESIGN 3.3).
_READABLE: Final = frozenset({b"gzip", b"x-gzip", b"deflate", b"identity"})


def readable_encodings(headers: Headers) -> Headers:
    """The fields with `Accept-Encoding` narrowed to what the gateway can read; untouched if it names nothing else."""
    value = get(headers, b"accept-encoding")
    if value is None:
        return headers
    offered = [part.strip(b" \t") for part in value.split(b",")]
    kept = [part for part in offered if part.partition(b";")[0].strip(b" \t").lower() in _READABLE]
    return headers if kept == offered else with_value(headers, b"accept-encoding", b", ".join(kept) or b"identity")
