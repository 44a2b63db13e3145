"""Who may come in, and for whom: from the head of a request to its caller."""

from collections.abc import Mapping
from typing import Final

from gateway.config import Config
from gateway.downstream.exchange import Exchange
from gateway.downstream.host_origin_check import HostCheck
from gateway.errors import Loop, NoUpstream
from gateway.http.fields import Headers
from gateway.http.head_cache import HeadCache
from gateway.relay.caller import HttpCaller
from gateway.relay.routes import Route, by_precedence
from gateway.transport.base_connection import Links
from gateway.upstream.connection_pool import Pool

_ADDRESSES_TOLD_MAX: Final = 20  # of upstreams, in a 404


class Admission:
    """The callers of one configuration."""

    def __init__(self, config: Config, pools: Mapping[str, Pool], links: Links) -> None:
        self.heads: HeadCache[HttpCaller] = HeadCache()  # of requests that came before, which are not read again
        self._links = links
        self._host_check = HostCheck(config.listen, config)
        self._routes = [Route(u, pools[u.name], config) for u in by_precedence(config.upstreams)]

    def caller_of(self, exchange: Exchange) -> HttpCaller:
        """The caller of a request that may come in. Raises Loop, Forbidden, NoUpstream or Ambiguous."""
        if self._links.has_other_end_of(exchange.connection):
            raise Loop("this request comes from taskgate itself: the url of an upstream leads back to it")
        head = exchange.request.head
        caller: HttpCaller | None = head.remembered
        if caller is None or caller.table is not self.heads:
            self._host_check.check(head.headers)
            caller = HttpCaller(self.heads, head, exchange.connection.address, *self._lead(exchange))
            exchange.authenticates = caller.authenticates
            if head.raw and not caller.authenticates:
                kept = exchange.connection.cached_heads.keep(self.heads, head.raw, head.body_bytes, caller)
                caller.is_kept = kept
            head.raw = b""
        return caller

    def _lead(self, exchange: Exchange) -> tuple[Route, bytes, Headers]:
        """The way of a request, and its target and fields as they go up. Raises NoUpstream or Ambiguous.

        The error names the addresses of the `Host` that was asked.
        """
        came = exchange.request.headers
        host = (came.get(b"host") or b"").decode("latin-1")
        for route in self._routes:
            target = route.target(host, exchange.request.target)
            if target is not None:
                return route, target, route.headers(exchange, host)
        bases = [(r.addresses.base(came, r.is_tls), r.upstream.url.path) for r in self._routes if r.is_at(host)]
        found = [base + path for base, path in bases if base][:_ADDRESSES_TOLD_MAX]
        at = f"; at this host there are {', '.join(found)}" if found else ""
        raise NoUpstream(f"no upstream is configured for this host and path{at}")
