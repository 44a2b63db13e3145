"""The way of a request to its upstream: which upstream, under which target, with which header fields."""

import re
from typing import Final
from urllib.parse import urlsplit

from gateway.config import Address, Config, ConfigError, Upstream, bracketed
from gateway.downstream.exchange import Exchange
from gateway.downstream.host_origin_check import host_name
from gateway.errors import Ambiguous
from gateway.http.address_rewriting import Addresses
from gateway.http.header_fields import FILTER, Headers

_WELL_KNOWN: Final = re.compile(rb"/\.well-known/[^/?]+")
# `Connection` must not remove the fields that tell who asks, or what: the client would get somebody else's answer.
_TELLS_WHO: Final = frozenset({b"authorization", b"proxy-authorization", b"cookie", b"origin", b"forwarded"})
_TELLS_WHO_BEGIN: Final = (b"mcp-", b"x-forwarded-")
# One value decides whose index answers, or whether any does. The server may read another one than the gateway.
_ONCE: Final = (b"mcp-session-id", b"mcp-protocol-version", FILTER)
_CONNECTION_MAX: Final = 2000  # fields that `Connection` names: each takes time
_OF_ONE_VALUE: Final = (b"X-Forwarded-Proto", b"X-Forwarded-Host")


def address(upstream: Upstream, listen: Address, is_tls: bool) -> str:
    """Where clients find an upstream's MCP endpoint, if nothing stands in front; `listen` has the port really taken."""
    url, match = upstream.url, upstream.match
    if upstream.public_url not in (None, "off"):
        return f"{(upstream.public_url or '').rstrip('/')}{url.path}"
    if listen.path:
        return f"http://{listen}:{match.prefix or ''}{url.path}"  # as nginx writes the address of a Unix socket
    host = match.host or bracketed(listen.here.host)
    port = "" if listen.port == (443 if is_tls else 80) else f":{listen.port}"
    return f"{'https' if is_tls else 'http'}://{host}{port}{match.prefix or ''}{url.path}"


def check(config: Config) -> None:
    """Raise ConfigError if an address that is printed for clients leads to another upstream than it is printed for."""
    routes, printed, faults = routes_of(config), dict[str, Upstream](), []
    for at, upstream in enumerate(config.upstreams):
        shown = address(upstream, config.listen, config.tls is not None)
        has_host = not shown.startswith("http://unix:/")
        # What is in front may map a public address, to the host and the prefix that are matched.
        host = upstream.match.host or (urlsplit(shown).netloc if has_host else "localhost")
        target = f"{upstream.match.prefix or ''}{upstream.url.path}".encode()
        found = next((r.upstream for r in routes if r.target(host, target) is not None), upstream)
        at_host = shown if has_host else f"{host} {shown}"
        other = found if found is not upstream else printed.setdefault(at_host, upstream)
        if other is not upstream:
            faults.append(
                f"upstreams[{at}]: {shown}, the address of {upstream.name}, leads to {other.name} "
                f"(upstreams[{config.upstreams.index(other)}]): give one of them another match, or another public_url"
            )
    if faults:
        raise ConfigError(*faults)


class Route:
    def __init__(self, upstream: Upstream, is_tls: bool) -> None:
        self.upstream = upstream
        self.is_tls = is_tls  # the listener speaks TLS
        self.prefix = (upstream.match.prefix or "").rstrip("/").encode()
        sent = {"upstream": upstream.url.authority, "preserve": None}.get(upstream.host, upstream.host)
        self._sent_host = sent.encode() if sent is not None else None
        public, url = upstream.public_url, upstream.url
        self.addresses = Addresses(url.scheme, url.authority, sent, public, self.prefix.decode())
        # In lower case; none where any field may carry an identity.
        self.identity_headers = frozenset(name.lower().encode() for name in upstream.identity_headers or ())

    def is_at(self, host: str) -> bool:
        """Whether a request with this `Host` may be for it, whatever its path."""
        return self.upstream.match.host in (None, host_name(host))

    def target(self, host: str, target: bytes) -> bytes | None:
        """The request target towards the upstream, None if the request is not for it. Its bytes stay as they came."""
        if self.upstream.match.host is not None and not self.is_at(host):
            return None
        if not self.prefix:
            return target
        # Clients look for authorization documents at the root, with the resource's path behind (RFC 9728, 3.1).
        well_known = _WELL_KNOWN.match(target)
        at = well_known.end() if well_known is not None else 0
        rest = target[at + len(self.prefix) :]
        if not target.startswith(self.prefix, at) or (rest and rest[:1] not in b"/?"):
            return None
        return target[:at] + (rest if at or rest.startswith(b"/") else b"/" + rest)

    def headers(self, exchange: Exchange, host: str) -> Headers:
        """The fields as they go up. Raises Ambiguous where `Connection` hides who asks, or MCP's field stands twice."""
        came = exchange.request.head.headers
        for name in _ONCE:
            if came.repeats(name):
                raise Ambiguous(f"there is more than one {name.decode()}")
        named = came.tokens(b"connection") if b"connection" in came.by_name else ()
        if len(named) > _CONNECTION_MAX:
            raise Ambiguous(f"Connection names more than {_CONNECTION_MAX} fields")
        for name in named:
            if name in _TELLS_WHO or name in self.identity_headers or name.startswith(_TELLS_WHO_BEGIN):
                raise Ambiguous(f"Connection names {name.decode('latin-1')}, which is not of one connection")
        headers = came.end_to_end()
        if self._sent_host is not None:
            headers = headers.with_value(b"host", self._sent_host)
        for name, value in self._added(exchange, host) if self.upstream.add_headers else ():
            is_one = name in _OF_ONE_VALUE  # it replaces what the client says
            headers = headers.with_value(name.lower(), value) if is_one else headers.with_field(name, value)
        return headers

    def _added(self, exchange: Exchange, host: str) -> list[tuple[bytes, bytes]]:
        address, proto = exchange.connection.address, "https" if self.is_tls else "http"
        address = "unknown" if address == "unix" else address
        node = f'"[{address}]"' if ":" in address else address
        quoted = re.sub(r'(["\\])', r"\\\1", host)  # a quoted-string (RFC 9110, 5.6.4) can have every value of a field
        added = {
            "x-forwarded": [("X-Forwarded-For", address), ("X-Forwarded-Proto", proto), ("X-Forwarded-Host", host)],
            "forwarded": [("Forwarded", f'for={node};host="{quoted}";proto={proto}')],
            "via": [("Via", f"1.{exchange.request.head.minor} taskgate")],
        }
        added_by = self.upstream.add_headers
        return [(name.encode(), value.encode("latin-1")) for kind in added_by for name, value in added[kind]]


def routes_of(config: Config) -> list[Route]:
    """The routes in the order in which they are tried: a host goes before none, then the longer prefix first."""
    order = sorted(config.upstreams, key=lambda u: (u.match.host is not None, len(u.match.prefix or "")), reverse=True)
    return [Route(upstream, config.tls is not None) for upstream in order]
