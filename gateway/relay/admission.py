"""Who may come in, and for whom: from the head of a request to its caller."""

from collections.abc import Mapping

from gateway.config import Config
from gateway.downstream.exchange import Exchange
from gateway.downstream.host_origin_check import HostCheck
from gateway.errors import Loop
from gateway.http.head_cache import HeadCache
from gateway.relay.caller import HttpCaller
from gateway.relay.routes import Routes
from gateway.transport.base_connection import Links
from gateway.upstream.connection_pool import Pool


class Admission:
    """The callers of one configuration."""

    def __init__(self, config: Config, pools: Mapping[str, Pool], links: Links) -> None:
        self.heads: HeadCache[HttpCaller] = HeadCache()  # of requests that came before, which are not read again
        self._links = links
        self._host_check = HostCheck(config.listen, config)
        self._routes = Routes(config, pools)

    def caller_of(self, exchange: Exchange) -> HttpCaller:
        """The caller of a request that may come in. Raises Loop, Forbidden, NoUpstream or Ambiguous."""
        if self._links.has_other_end_of(exchange.connection):
            raise Loop("this request comes from taskgate itself: the url of an upstream leads back to it")
        head = exchange.request.head
        caller: HttpCaller | None = head.remembered
        if caller is None or caller.table is not self.heads:
            self._host_check.check(head.headers)
            caller = HttpCaller(self.heads, head, exchange.connection.address, *self._routes.lead(exchange))
            exchange.authenticates = caller.authenticates
            if head.raw and not caller.authenticates:
                kept = exchange.connection.cached_heads.keep(self.heads, head.raw, head.body_bytes, caller)
                caller.is_kept = kept
            head.raw = b""
        return caller
