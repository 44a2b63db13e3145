"""The identity of a caller, the key of its session (DESIGN 7), and who pays for it (DESIGN 8.9).

In: the header fields of a request, its upstream, target, session and client's address. Out: digests.
Always: two callers share a key only if upstream, target, session and identity are the same. `tasks` and `transport` may
know this file; it knows no package.
"""

import hashlib
from collections.abc import Iterable
from ipaddress import IPv6Address, ip_address
from operator import itemgetter
from typing import Final, NamedTuple

# Fields that cannot carry an identity (DESIGN 7.2). Every other field counts: that is the safe choice.
_NO_IDENTITY: Final = frozenset(
    b"accept accept-charset accept-encoding accept-language content-type content-length content-encoding "
    b"content-language user-agent mcp-protocol-version mcp-session-id mcp-method mcp-name last-event-id "
    b"traceparent tracestate baggage b3 x-b3-traceid x-b3-spanid x-b3-parentspanid x-b3-sampled x-request-id "
    b"x-b3-flags x-amzn-trace-id x-cloud-trace-context sentry-trace uber-trace-id x-datadog-trace-id "
    b"x-datadog-parent-id x-datadog-sampling-priority x-correlation-id "
    b"connection keep-alive proxy-connection te trailer transfer-encoding upgrade expect "
    b"cache-control pragma date priority".split()
)
_CREDENTIALS: Final[tuple[str, ...]] = ("authorization", "cookie")  # the first that is there tells who pays
_OF_ONE_TOKEN: Final = (b"bearer", b"basic")  # schemes: servers read no word behind their token
_NETWORK_BYTES: Final = 8  # of an IPv6 address: one customer has all 2**64 behind them


class Key(NamedTuple):
    """The key of a session. It has digests, because clients and servers choose the length of the values."""

    upstream: str
    target: bytes
    session: bytes  # empty where there is no `Mcp-Session-Id`
    identity: bytes

    @classmethod
    def of(cls, upstream: str, target: bytes, session_id: bytes, identity: bytes) -> "Key":
        """The key of a caller's session. `identity` is a digest already."""
        return cls(upstream, _digest(target), session_id and _digest(session_id), identity)

    @property
    def of_all(self) -> tuple[str, bytes, bytes]:
        """The part of the key that all identities share."""
        return self[:3]


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def identity(headers: Iterable[tuple[bytes, bytes]], only: Iterable[str] | None) -> bytes:
    """A digest of the header fields that can carry an identity: those named in `only`, else all but `_NO_IDENTITY`."""
    if only is not None:
        named = {name.lower().encode() for name in only}
        chosen = [(name.lower(), value) for name, value in headers if name.lower() in named]
    else:
        chosen = [(low, value) for name, value in headers if (low := name.lower()) not in _NO_IDENTITY]
    digest = hashlib.blake2b(digest_size=16)
    for name, value in sorted(chosen, key=itemgetter(0)):  # the order of repeated fields may matter
        digest.update(b"%d:%b%d:%b" % (len(name), name, len(value), value))
    return digest.digest()


def payer(headers: Iterable[tuple[bytes, bytes]], identity_headers: Iterable[str] | None, address: str) -> bytes:
    """A digest of who pays for a request: its identity if the operator says what makes one (DESIGN 8.9).

    Else the first that is there of `Authorization` and `Cookie`. Else its connection's `address`; so for a credential
    that stands there twice: servers read one of them, and a client can invent the other.
    """
    fields = [(low, _as_read(low, value)) for name, value in headers if (low := name.lower())]
    names = [name.decode("latin-1") for name, _ in fields]
    if identity_headers is None:
        only = [name for name in _CREDENTIALS if name in names][:1]
    else:
        only = [name.lower() for name in identity_headers]
    is_doubled = any(name in _CREDENTIALS and names.count(name) > 1 for name in only)
    if is_doubled or (identity_headers is None and not only):
        return _digest(_network(address))
    return identity(fields, only)


def _as_read(name: bytes, value: bytes) -> bytes:
    """A value as all servers read it that take it: with other white space or another case it is the same credential."""
    words = value.split()
    if name == b"authorization" and words:
        words[0] = words[0].lower()
        words = words[:2] if words[0] in _OF_ONE_TOKEN else words
    return b" ".join(words)


def _network(address: str) -> bytes:
    """An IPv4 address, the network of an IPv6 address, or the text itself (a Unix socket)."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address.encode()
    if not isinstance(parsed, IPv6Address):
        return parsed.packed
    return parsed.packed[:_NETWORK_BYTES] if parsed.ipv4_mapped is None else parsed.ipv4_mapped.packed
