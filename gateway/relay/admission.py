"""Who may come in, and for whom: from the head of a request to its caller.

In: the head of a request. Out: its caller, with the head that goes up. Always: a head that came before is not read
again (head_cache.py).
"""

from collections.abc import Mapping
from typing import Final

from gateway.config import Config
from gateway.downstream.exchange import Exchange
from gateway.downstream.host_origin_check import HostCheck
from gateway.errors import NoUpstream
from gateway.http.codings import with_readable
from gateway.http.fields import Headers
from gateway.http.head_cache import HeadBytes, HeadCache
from gateway.http.request_parser import Head
from gateway.http.response_parser import authenticates_connection
from gateway.relay.caller import HttpCaller
from gateway.relay.pump import JSON, request_head
from gateway.relay.routes import Route, by_precedence
from gateway.upstream.connection_pool import Pool

_ADDRESSES_TOLD_MAX: Final = 20  # of upstreams, in a 404


class ResolvedRequest:
    """What follows from a request's head that was accepted, for a head that comes again (head_cache.py).

    `table` is that of the configuration which says so; `may_carry` says whether the body may be a message. The bytes
    that go up are kept with it only if it `is_kept` in that table.
    """

    __slots__ = ("_up", "caller", "head", "is_kept", "may_carry", "table")

    def __init__(self, table: object, head: Head, caller: HttpCaller, may_carry: bool) -> None:
        self.table = table
        self.head = head
        self.caller = caller
        self.may_carry = may_carry
        self.is_kept = False
        self._up: HeadBytes | None = None

    def up(self, body_bytes: int, is_edited: bool) -> bytes:
        """The head as it goes up, for a body of that length. One that `is_edited` has other bytes than came."""
        method, target, is_same = self.head.method, self.caller.target, body_bytes == self.head.body_bytes
        if self._up is None and self.is_kept:
            self._up = HeadBytes(request_head(method, target, self._fields), self.head.body_bytes)
        if not is_edited and self._up is not None and (before := self._up.of(body_bytes)):
            return before
        fields = self._fields.without_digests() if is_edited else self._fields
        fields = fields if is_same else fields.with_value(b"content-length", b"%d" % body_bytes)
        return request_head(method, target, fields)

    @property
    def _fields(self) -> Headers:
        headers = self.caller.headers
        return with_readable(headers) if self.head.method in (b"POST", b"GET") else headers


class Admission:
    """The callers of one configuration."""

    def __init__(self, config: Config, pools: Mapping[str, Pool]) -> None:
        self.heads: HeadCache[ResolvedRequest] = HeadCache()  # of requests that came before
        self._host_check = HostCheck(config.listen, config)
        self._routes = [Route(u, pools[u.name], config) for u in by_precedence(config.upstreams)]

    def caller_of(self, exchange: Exchange) -> HttpCaller:
        """The caller of a request that may come in. Raises Forbidden, NoUpstream or Ambiguous."""
        resolved: ResolvedRequest | None = exchange.resolved
        if resolved is None or resolved.table is not self.heads:
            head = exchange.request.head
            self._host_check.check(head.headers)
            caller = self._routed(exchange)
            exchange.authenticates = authenticates_connection(head.headers)
            resolved = exchange.resolved = ResolvedRequest(self.heads, head, caller, _may_carry_message(head))
            if head.raw and not exchange.authenticates:
                kept = exchange.connection.cached_heads.keep(self.heads, head.raw, head.body_bytes, resolved)
                resolved.is_kept = kept
            head.raw = b""
        return resolved.caller

    def _routed(self, exchange: Exchange) -> HttpCaller:
        came = exchange.request.headers
        host = (came.get(b"host") or b"").decode("latin-1")
        for route in self._routes:
            target = route.target(host, exchange.request.target)
            if target is not None:
                return HttpCaller(route, target, came, exchange.connection.address, route.headers(exchange, host))
        raise NoUpstream(self._nothing_at(host, came))

    def _nothing_at(self, host: str, headers: Headers) -> str:
        """The error for a path that leads nowhere: it names the addresses of the `Host` that was asked."""
        bases = [(r.addresses.base(headers, r.is_tls), r.upstream.url.path) for r in self._routes if r.is_at(host)]
        found = [base + path for base, path in bases if base][:_ADDRESSES_TOLD_MAX]
        at = f"; at this host there are {', '.join(found)}" if found else ""
        return f"no upstream is configured for this host and path{at}"


def _may_carry_message(head: Head) -> bool:
    headers = head.headers
    if head.method != b"POST" or headers.media_type() != JSON:
        return False
    return b"content-encoding" not in headers.by_name or headers.tokens(b"content-encoding") == [b"identity"]
