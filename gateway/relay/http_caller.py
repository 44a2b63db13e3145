"""The caller of a request, if it may come in: its upstream, target and header fields as they go up.

In: the head of a request. Out: what follows from them, worked out when it is first asked for.
Always: a caller is kept for a head that comes again (parsed_head_cache.py), so nothing in it is of one request.
"""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from time import time
from typing import Any, Final

from gateway.caller_identity import VARYING, Caller, Key, network, proof, rate_limit_key, telling, who
from gateway.config import Config, Upstream
from gateway.downstream.exchange import ClientRequest, Exchange
from gateway.downstream.host_origin_check import HostCheck
from gateway.errors import Loop, NoUpstream
from gateway.http.address_rewriting import Move, misplaced
from gateway.http.content_codings import with_readable
from gateway.http.header_fields import EVENT_STREAM, FILTER, JSON, Headers
from gateway.http.parsed_head_cache import HeadCache, Onward
from gateway.http.request_parser import Head
from gateway.http.response_parser import authenticates_connection
from gateway.mcp.capabilities import LAST_REVISION
from gateway.relay.routes import Route, routes_of
from gateway.transport.base_connection import Links
from gateway.transport.body_stream import Response
from gateway.upstream.connection_pool import Pool

log = logging.getLogger("taskgate.identity")

_ADDRESSES_TOLD_MAX: Final = 20  # of upstreams, in a 404
# The message endpoint of HTTP+SSE names its session in the query, as every SDK's server writes it.
_HTTP_SSE_SESSION: Final = re.compile(rb"[?&]session_?id=", re.IGNORECASE)


@dataclass(eq=False)
class HttpCaller:
    """A client of one upstream, as the head of his request shows him. `table` has the callers of one configuration.

    `headers` are the fields as they go up. `may_carry` says whether the body may be a message, `authenticates` whether
    the request is a part of the authentication of its connection. Head and fields are those of his first request: in
    others the values differ that vary.
    """

    table: HeadCache[Any]
    head: Head
    _address: str
    route: Route
    pool: Pool
    target: bytes
    headers: Headers
    may_carry: bool
    authenticates: bool
    onward: Onward | None = None  # if he is kept
    _is_accepted: bool = False
    drifts: bool = False  # the caller is another than those of the requests before (caller_identity_drift.py)

    @cached_property
    def upstream(self) -> Upstream:
        return self.route.upstream

    def headers_of(self, head: Head) -> Headers:
        """The fields of one of his requests as they go up."""
        if self.onward is None or head.values == self.head.values:
            return self.headers
        return self.headers.with_values(self.onward.varies.names, head.values)

    def up(self, request: ClientRequest) -> bytes:
        """The head of one of his requests as it goes up."""
        head, onward = request.head, None if request.is_edited else self.onward
        if onward is not None and (before := onward.of(head.values)):
            return before
        fields = self.headers_of(head)
        fields = with_readable(fields) if head.method in (b"POST", b"GET") else fields
        fields = fields.without_digests() if request.is_edited else fields
        fields = fields.without(b"expect") if request.continued else fields  # it was met here: the body comes
        if request.up_bytes != head.body_bytes:
            fields = fields.with_value(b"content-length", b"%d" % request.up_bytes)
        up = fields.as_head(head.method, self.target)
        if onward is not None:
            onward.learn(up, head.values)
        return up

    @cached_property
    def move(self) -> Move | None:
        """The move of the upstream's addresses to where this client is; None if they stay."""
        return self.route.addresses.move(self.head.headers, self.headers, self.route.is_tls)

    def moved(self, status: int, headers: Headers) -> Headers:
        return headers if self.move is None else self.move.headers(status, headers)

    def misplaced(self, status: int, location: bytes) -> str:
        """What an answer of the upstream's says of the address that was asked, in words; empty if nothing."""
        url = self.upstream.url
        asked = b"%b://%b%b" % (url.scheme.encode(), self.headers.get(b"host") or b"", self.target)
        return misplaced(status, location.decode("latin-1"), asked.decode("latin-1"), url.path)

    @property
    def is_of_http_sse(self) -> bool:
        """Whether the request is one of HTTP+SSE (2024-11-05): its response goes out on another stream."""
        return bool(_HTTP_SSE_SESSION.search(self.target)) and EVENT_STREAM not in self.headers.tokens(b"accept")

    @cached_property
    def asks(self) -> Caller:
        """What must be known of him to answer his lists."""
        version, given = self.headers.get(b"mcp-protocol-version"), self.head.headers.get(FILTER)
        is_later = version is not None and version > LAST_REVISION
        is_served = not (is_later or self.authenticates or self.is_of_http_sse)
        criteria = None if given is None else given.decode("utf-8", "backslashreplace")
        accepted = {member.partition(b";")[0].strip() for member in self.headers.tokens(b"accept")}  # RFC 9110, 12.5.1
        asks_first = b""
        if version not in (None, LAST_REVISION) or not (b"*/*" in accepted or accepted >= {JSON, EVENT_STREAM}):
            asks_first = b"\n".join([version or b"", *self.headers.all(b"accept")]) or b"\n"
        return Caller(self.key, is_served, criteria, asks_first, self.proof)

    def note_cors(self, response: Response, preflight: bool = False) -> None:
        """Note the CORS fields of a response to this caller: the gateway's own answers repeat them."""
        if b"origin" in self.head.headers.by_name and (preflight or not self.is_unique):
            origin = self.head.headers.get(b"origin") or b""
            who = None if preflight else self.key.identity
            cors = self.pool.context.cors
            cors.note(network(self._address), origin, self.target, who, response.head.status, response.headers)

    def accept(self) -> None:
        """The caller was told something of tasks. Warn if each request is another caller (DESIGN 7.11)."""
        if self._is_accepted or not self.key.session or self.proof:
            return
        self._is_accepted = True
        drift, fields = self.pool.context.drift, telling(self.headers, self.upstream.identity_headers)
        session = self.key.of_all, hash(self.headers.get(b"authorization"))
        self.drifts = drift.note(session, self.key.identity, fields, time())
        if self.drifts and drift.news():
            hint = "identity_headers names the fields that tell who asks: see docs/troubleshooting.md"
            said = {"upstream": self.upstream.name, "fields": drift.names, "hint": hint}
            log.warning("each request is another caller", extra=said)

    @cached_property
    def proof(self) -> str:
        """The header field that proves this one request; empty if the gateway may ask in the caller's name (5.9)."""
        return proof(self.headers.by_name, self.headers.all(b"authorization"))

    @cached_property
    def is_unique(self) -> bool:
        """Whether no other request can be of this caller: what proves it is a part of its identity."""
        names = self.route.identity_headers
        return bool(self.proof) and (not names or self.proof.lower().encode() in names)

    @property
    def cors(self) -> Headers:
        """The fields that let the caller's browser read an answer of the gateway's own."""
        origin = self.head.headers.get(b"origin")
        if origin is None:
            return Headers()
        return self.pool.context.cors.fields(origin, self.target, self.key.identity)

    @property
    def session_id(self) -> bytes:
        return self.head.headers.get(b"mcp-session-id") or b""

    @cached_property
    def key(self) -> Key:
        return self.key_with(self.session_id)

    def rate_limit_key(self) -> tuple[str, bytes]:
        """Whose bucket guards take from."""
        return self.upstream.name, rate_limit_key(self.headers, self.upstream.identity_headers, self._address)

    def key_with(self, session_id: bytes) -> Key:
        """The key of the session with that id, which `initialize` has just opened for the caller."""
        asks = who(self.headers, self.upstream.identity_headers)  # of the fields as the upstream sees them
        return Key.of(self.pool.context.server, self.target, session_id, asks)


class Admission:
    """The callers of one configuration."""

    def __init__(self, config: Config, pools: Mapping[str, Pool], links: Links) -> None:
        named = {name.lower().encode() for u in config.upstreams for name in u.identity_headers or ()}
        self.heads: HeadCache[HttpCaller] = HeadCache((VARYING - named).__contains__)  # of requests that came before
        self._links = links
        self._host_check = HostCheck(config.listen, config)
        self._routes, self._pools = routes_of(config), pools

    def caller_of(self, exchange: Exchange) -> HttpCaller:
        """The caller of a request that may come in. Raises Loop, Forbidden, NoUpstream or Ambiguous."""
        if self._links.has_other_end_of(exchange.connection):
            raise Loop("this request comes from taskgate itself: the url of an upstream leads back to it")
        head = exchange.request.head
        caller: HttpCaller | None = head.remembered
        if caller is None or caller.table is not self.heads:
            self._host_check.check(head.headers)
            route, target, headers = self._lead(exchange)
            pool, is_login = self._pools[route.upstream.name], authenticates_connection(head.headers)
            way = exchange.connection.address, route, pool, target
            caller = HttpCaller(self.heads, head, *way, headers, head.may_carry_message, is_login)
            exchange.authenticates = caller.authenticates
            if head.cut is not None and not caller.authenticates:
                own = exchange.connection.cached_heads
                if own.keep(self.heads, head.cut, head.headers, head.body_bytes, caller):
                    caller.onward = Onward(head.cut.varies)
            head.cut = None
        return caller

    def _lead(self, exchange: Exchange) -> tuple[Route, bytes, Headers]:
        """The way of a request, and its target and fields as they go up. Raises NoUpstream or Ambiguous.

        The error names the addresses of the `Host` that was asked.
        """
        came = exchange.request.head.headers
        host = (came.get(b"host") or b"").decode("latin-1")
        for route in self._routes:
            target = route.target(host, exchange.request.head.target)
            if target is not None:
                return route, target, route.headers(exchange, host)
        bases = [(r.addresses.base(came, r.is_tls), r.upstream.url.path) for r in self._routes if r.is_at(host)]
        found = [base + path for base, path in bases if base][:_ADDRESSES_TOLD_MAX]
        at = f"; at this host there are {', '.join(found)}" if found else ""
        raise NoUpstream(f"no upstream is configured for this host and path{at}")
