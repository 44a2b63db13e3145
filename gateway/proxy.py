"""The entry: every request of a client is relayed, or answered, or refused; here it is decided which.

    not for this door (Host, Origin)          403
    a filtered `tasks/list`                   answered (answer.py)
    everything else                           relayed (relay.py), and looked at on its way past:
        `initialize`                              the capability is put in, the server noted
        what names a task, and every stream       observed
        401, 403, 404, and a DELETE that succeeds     the session's index is dropped
        a status of 400 or above                  nothing of what it says is observed

In: exchanges. Out: responses. Always: what fails becomes a response in one place, `_fail`.
"""

import asyncio
import logging
import re
from collections.abc import Sequence
from typing import Final

import msgspec

from gateway import answer
from gateway.buffers import SMALL_BYTES_MAX
from gateway.config import Config, Upstream
from gateway.core import capabilities, jsonrpc, observe
from gateway.core import query as criteria
from gateway.core.cors import Cors
from gateway.core.cursor import Position
from gateway.core.headers import Headers
from gateway.core.jsonrpc import Message
from gateway.core.public import PublicUrl
from gateway.core.query import BadQuery
from gateway.crawler import Caller
from gateway.door import Door, host_name
from gateway.errors import Ambiguous, GatewayError, NoUpstream, UpstreamRefused
from gateway.listener import Exchange
from gateway.metrics import Metrics
from gateway.refresh import Refresher
from gateway.relay import JSON, Request, Watch, relay
from gateway.sessions import Sessions
from gateway.upstream import Pool, Response, authenticates_connection

log = logging.getLogger("taskgate.request")

# The last revision whose `tasks/list` the gateway answers; later ones have tasks of their own (DESIGN 3.9).
_LAST_REVISION: Final = b"2025-11-25"
# The message endpoint of HTTP+SSE (2024-11-05) names its session in the query, as every SDK's server writes it.
_HTTP_SSE_SESSION: Final = re.compile(rb"[?&]session_?id=", re.IGNORECASE)
_WELL_KNOWN: Final = re.compile(rb"/\.well-known/[^/?]+")
# Who asks, and what is asked, must not go because `Connection` names it: somebody else's answer would come.
_TELLS_WHO: Final = frozenset({b"authorization", b"proxy-authorization", b"cookie", b"origin", b"forwarded"})
_TELLS_WHO_BEGIN: Final = (b"mcp-", b"x-forwarded-")
_CLIENT_LEFT: Final = 499  # in metrics, where a client left before a response began; nginx counts it so
_OF_ONE_VALUE: Final = (b"X-Forwarded-Proto", b"X-Forwarded-Host")
_METHOD_SHOWN_MAX: Final = 100  # characters of a method in the log
_CANCELLED: Final = "notifications/cancelled"
# What stands in an event of interest; with escapes a name may be written in many ways.
_MARKS: Final = (b"tasks/status", b"\\u", b"\\/", b"data: [", b"data:[")
_OF_RESPONSES: Final = (b'"result"', b'"error"')
_OF_ENDPOINTS: Final = (b"endpoint",)


class Proxy:
    """Handles the requests of all clients."""

    def __init__(self, config: Config, pools: dict[str, Pool], sessions: Sessions, metrics: Metrics) -> None:
        self._config = config
        self._routes = [_Route(u, pools[u.name]) for u in _by_precedence(config.upstreams)]
        self._sessions = sessions
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        refresher = Refresher(sessions, config, metrics, self._loop.time)
        self._answerer = answer.Answerer(sessions, refresher, metrics)
        self._door = Door(config.listen, config)

    async def handle(self, exchange: Exchange) -> None:
        """One request of a client, from its head to the end of its response."""
        began_at = self._loop.time()
        kind, method = "refused", exchange.method.decode()
        caller: Caller | None = None
        message: Message | None = None
        try:
            self._door.check(exchange.headers)
            caller = self._caller(exchange)
            exchange.authenticates = authenticates_connection(exchange.headers)
            if not _may_carry_message(exchange, self._config.limits.inspected_body_bytes_max):
                exchange.taken, whole = exchange.body.take(), exchange.body.complete
            else:
                whole = await exchange.read_body(self._config.limits.inspected_body_bytes_max)
                message = jsonrpc.parse(exchange.taken) if whole else None
                if message is not None and message.method is not None:
                    method = message.method
            request = self._filtered(message, caller, exchange) if message is not None else None
            if request is not None and message is not None:
                kind = "answered"
                await self._answerer.answer(exchange, caller, message, request)
            else:
                kind = "relayed"
                if message is not None and len(exchange.taken) > SMALL_BYTES_MAX and not observe.is_observed(message):
                    message = message.without_params()  # which would keep the whole body for as long as the answer
                await self._relay(exchange, caller, message, method, whole)
        except BadQuery as bad:
            kind = "answered"
            assert message is not None and caller is not None
            exchange.respond(200, b"OK", [(b"Content-Type", JSON), *caller.cors], answer.bad_query(message, bad))
        except GatewayError as error:
            self._fail(exchange, error, caller, message)
            error.__traceback__ = error.__context__ = None  # frames that refer to who still refers to the error
        finally:
            self._note(exchange, caller, kind, method, self._loop.time() - began_at)

    def _note(self, exchange: Exchange, caller: Caller | None, kind: str, method: str, seconds: float) -> None:
        """Count a request that has ended, be it that its client has left."""
        upstream = caller.upstream.name if caller is not None else ""
        status = exchange.status or _CLIENT_LEFT
        self._metrics.request(upstream, kind, status, seconds)
        if log.isEnabledFor(logging.DEBUG):
            shown = method[:_METHOD_SHOWN_MAX]
            extra = {"upstream": upstream, "kind": kind, "method": shown, "status": status, "seconds": seconds}
            log.debug("request", extra=extra)

    def _filtered(self, message: Message, caller: Caller, exchange: Exchange) -> Position | None:
        """The filtered `tasks/list` in a message, if the gateway is to answer it. Raises BadQuery."""
        if caller.pool.knows_by_connection(exchange):
            return None
        if message.method != "tasks/list" or not message.is_request:
            return None
        params = criteria.params(message.params)
        if _of_another_era(caller, params.meta) or self._sessions.servers.filters_natively(caller.key):
            return None
        return answer.read(params)

    async def _relay(
        self, exchange: Exchange, caller: Caller, message: Message | None, method: str, whole: bool
    ) -> None:
        if message is not None and message.method == _CANCELLED and not caller.pool.knows_by_connection(exchange):
            self._cancel(caller, message)
        batch = message is None and exchange.taken.lstrip().startswith(b"[")
        watch: Watch = _Watch(self._sessions, caller, exchange, message, batch)
        if caller.public is not None and caller.public.is_document(caller.target):
            watch = _Moved(caller.public)
        headers = caller.headers
        if message is not None or exchange.method == b"GET":
            headers = headers.with_readable_encodings()
        refused_trailers = caller.identity_headers if b"transfer-encoding" in headers else ()
        request = Request(exchange.method, caller.target, headers, exchange.take(), whole, refused_trailers)
        waits = exchange.method == b"GET" or method == "tasks/result"  # until there is something to say
        self._metrics.upstream_request(caller.upstream.name, method)
        timeout_s = None if waits else caller.upstream.response_timeout
        await relay(exchange, request, caller.pool, timeout_s, watch, self._config.limits)

    def _cancel(self, caller: Caller, message: Message) -> None:
        """End the answer that a client has cancelled, if it is clear which one it is (DESIGN 5.7)."""
        session = self._sessions.find(caller.key)
        request_id = bytes(jsonrpc.member(message.params, "requestId"))
        if session is None or not request_id:
            return
        # Some hosts give every request the same id (DESIGN 2): then nobody can tell whose answer is meant.
        match session.answering.get(request_id):
            case [only] if not only.done():
                only.set_result(None)

    def _caller(self, exchange: Exchange) -> Caller:
        """The upstream that a request is for, and the request's head as it goes there. Raises NoUpstream, Ambiguous."""
        host = (exchange.headers.get(b"host") or b"").decode("latin-1")
        for route in self._routes:
            target = route.target(host, exchange.target)
            if target is not None:
                headers = route.headers(exchange, host)
                return Caller(
                    route.upstream,
                    route.pool,
                    route.public,
                    route.cors,
                    route.prefix,
                    target,
                    exchange.headers,
                    headers,
                )
        raise NoUpstream("no upstream is configured for this host and path")

    def _fail(self, exchange: Exchange, error: GatewayError, caller: Caller | None, message: Message | None) -> None:
        """Make a response of an error; where a response has begun, the connection is cut instead."""
        upstream = caller.upstream.name if caller is not None else ""
        self._metrics.failure(upstream, error.kind)
        log.info("failed", extra={"upstream": upstream, "failure": error.kind, "why": str(error)})
        if exchange.started:
            exchange.status = error.status  # in metrics: whatever its head said, it was no answer
            return
        raw_id = bytes(message.id) if message is not None else b""
        if isinstance(error, UpstreamRefused):
            body = error.body
            answered = jsonrpc.parse(body)
            if answered is not None and bytes(answered.id) == error.crawl_id:
                body = jsonrpc.replace(body, ("id",), raw_id)
            headers = error.headers.end_to_end()
            if caller is not None and caller.public is not None:
                headers = caller.public.challenges(headers)
            headers = headers.without(b"transfer-encoding", b"trailer")
            exchange.respond(error.status, error.reason, headers, body)
        else:
            cors = caller.cors if caller is not None else ()
            exchange.respond(error.status, error.reason, [(b"Content-Type", JSON), *cors], error.message(raw_id))


class _Moved:
    """An authorization document on its way, whose addresses are moved (core/public.py)."""

    edits = reads_json = True
    marks: Sequence[bytes] = ()

    def __init__(self, public: PublicUrl) -> None:
        self._public = public

    def head(self, response: Response) -> None:
        response.headers = self._public.challenges(response.headers)

    def message(self, data: bytes) -> bytes:
        return self._public.document(data)

    def endpoint(self, data: bytes) -> bytes:
        return data

    def unread(self) -> None:
        log.warning("an authorization document passed unread")


class _Watch:
    """What passes of one exchange, on its way to the sessions."""

    def __init__(
        self, sessions: Sessions, caller: Caller, exchange: Exchange, message: Message | None, batch: bool
    ) -> None:
        self._sessions = sessions
        self._caller = caller
        self._exchange = exchange
        self._method = exchange.method
        self._request = message if message is not None and message.is_request else None
        self._initializes = self._request is not None and self._request.method == "initialize"
        # A stream that goes on from another one carries responses to requests that nobody here remembers.
        self._resumed = exchange.method == b"GET" and b"last-event-id" in exchange.headers
        # A stream of HTTP+SSE (2024-11-05) begins with a path of the upstream's; those of sessions are of later ones.
        self._moves = exchange.method == b"GET" and bool(caller.prefix) and not caller.session_id
        self.edits = self._initializes or self._resumed or self._moves
        asks_of_tasks = self._request is not None and observe.is_observed(self._request)
        self.reads_json = self._initializes or asks_of_tasks or batch
        self._held = sessions.hold(caller.key) if asks_of_tasks else None
        # Where nobody waits for a response here, only status notifications and batches are of interest.
        awaited = self.reads_json or self._resumed
        self.marks: Sequence[bytes] = _MARKS + _OF_RESPONSES * awaited + _OF_ENDPOINTS * self._moves
        self._session_id: bytes | None = None
        self._asked_at = exchange.connection.loop.time()

    @property
    def _is_blind(self) -> bool:
        """Whether the server knows the client by its connection: what is said to it is noted for nobody."""
        return self._caller.pool.knows_by_connection(self._exchange)

    def head(self, response: Response) -> None:
        """Drop what the response's status says is no more; note the session that `initialize` opens."""
        self._caller.note_cors(response, self._method == b"OPTIONS")
        if response.status in (401, 403, 404):
            self._sessions.drop(self._caller.key)
            if self._caller.public is not None:
                response.headers = self._caller.public.challenges(response.headers)
        elif self._method == b"DELETE" and 200 <= response.status < 300 and self._caller.session_id:
            self._sessions.drop_all(self._caller.key)
        if self._is_blind:
            self.reads_json, self.edits = False, self._moves
        if self._initializes:
            self._session_id = response.headers.get(b"mcp-session-id")

    def message(self, data: bytes) -> bytes:
        """Look at one message; the result of `initialize` is edited."""
        if self._is_blind:
            return data
        message = jsonrpc.parse(data)
        if message is None:
            if data.lstrip().startswith(b"["):
                self.unread()  # a batch (2025-03-26) may have done anything
            return data
        request = self._request
        if self._resumed and message.is_response:
            self.unread()  # of what it is the result is not known, only that it may have changed something
            return self._initialized(data, message)
        if request is None or not message.is_response or not jsonrpc.same_id(message.id, request.id):
            if observation := observe.of_notification(message):
                self._sessions.observe(self._caller.key, observation)
        elif self._initializes:
            return self._initialized(data, message)
        elif observation := observe.of_response(request, message):
            self._sessions.observe(self._caller.key, observation, self._asked_at)
        return data

    def endpoint(self, data: bytes) -> bytes:
        """Where to send messages: a path of the upstream's is found behind the prefix."""
        if self._caller.public is not None:
            data = self._caller.public.document(data)
        own_path = data.startswith(b"/") and not data.startswith(b"//")
        return self._caller.prefix + data if own_path else data

    def unread(self) -> None:
        """Something passed that may have said anything: what is indexed may be old."""
        if not self._is_blind:
            self._sessions.observe(self._caller.key, observe.Observation(doubt=True))

    def _initialized(self, data: bytes, message: Message) -> bytes:
        try:
            edited, server = capabilities.advertise(data, message)
        except capabilities.NotAdvertised as why:
            if self._initializes:  # of a stream that is resumed nobody knows which response it is
                log.warning("not advertised", extra={"upstream": self._caller.upstream.name, "why": str(why)})
            return data
        if server is not None:
            session_id = self._session_id or self._caller.session_id
            self._sessions.servers.note(self._caller.key_with(session_id), server)
        return edited


def _by_precedence(upstreams: Sequence[Upstream]) -> list[Upstream]:
    """The more a match says, the earlier it is tried: host and prefix, prefix (the longer first), host, neither."""
    return sorted(upstreams, key=lambda u: (u.match.host is not None, len(u.match.prefix or "")), reverse=True)


class _Route:
    """The way to one upstream."""

    def __init__(self, upstream: Upstream, pool: Pool) -> None:
        self.upstream = upstream
        self.pool = pool
        public, url = upstream.public_url, upstream.url
        self.public = PublicUrl(f"{url.scheme}://{url.authority}", public) if public is not None else None
        self.cors = Cors()
        self._host = upstream.match.host
        self.prefix = (upstream.match.prefix or "").rstrip("/").encode()
        sent = {"upstream": upstream.url.authority, "preserve": None}.get(upstream.host, upstream.host)
        self._sent_host = sent.encode() if sent is not None else None
        self._tells_who = _TELLS_WHO | {name.lower().encode() for name in upstream.identity_headers or ()}

    def target(self, host: str, target: bytes) -> bytes | None:
        """The request target towards the upstream, None if the request is not for it. Its bytes stay as they came."""
        if self._host is not None and self._host != host_name(host):
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
        """The header fields as they go to the upstream. Raises Ambiguous where `Connection` would hide who asks."""
        for name in exchange.headers.tokens(b"connection"):
            if name in self._tells_who or name.startswith(_TELLS_WHO_BEGIN):
                raise Ambiguous(f"Connection names {name.decode('latin-1')}, which is not of one connection")
        headers = exchange.headers.end_to_end()
        if self._sent_host is not None:
            headers = headers.with_value(b"host", self._sent_host)
        if self.upstream.add_headers:
            for name, value in _added(exchange, self.upstream, host):
                if name in _OF_ONE_VALUE:  # what a client says of it is not to be believed
                    headers = headers.with_value(name.lower(), value)
                else:
                    headers.add(name, value)
        return headers


def _added(exchange: Exchange, upstream: Upstream, host: str) -> list[tuple[bytes, bytes]]:
    transport = exchange.connection.transport
    peer = transport.get_extra_info("peername") if transport is not None else None
    address = str(peer[0]) if isinstance(peer, tuple) else "unknown"
    proto = "https" if transport is not None and transport.get_extra_info("sslcontext") else "http"
    node = f'"[{address}]"' if ":" in address else address
    added = {
        "x-forwarded": [("X-Forwarded-For", address), ("X-Forwarded-Proto", proto), ("X-Forwarded-Host", host)],
        "forwarded": [("Forwarded", f"for={node};host={_quoted(host)};proto={proto}")],
        "via": [("Via", f"1.{exchange.minor} taskgate")],
    }
    return [(name.encode(), value.encode("latin-1")) for kind in upstream.add_headers for name, value in added[kind]]


def _quoted(text: str) -> str:
    """A quoted-string (RFC 9110, 5.6.4), in which every value that a field may have can be written."""
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'


def _may_carry_message(exchange: Exchange, bytes_max: int) -> bool:
    headers = exchange.headers
    if exchange.method != b"POST" or headers.media_type() != JSON or b"content-encoding" in headers:
        return False
    return int(headers.get(b"content-length") or 0) <= bytes_max


def _of_another_era(caller: Caller, meta: msgspec.Raw) -> bool:
    """Whether a `tasks/list` is of a revision that is not answered here, or of another transport (DESIGN 3.9)."""
    if _HTTP_SSE_SESSION.search(caller.target) and b"text/event-stream" not in caller.headers.tokens(b"accept"):
        return True  # its response goes out on a stream that the client opened before
    version = caller.headers.get(b"mcp-protocol-version")
    if version is not None and version > _LAST_REVISION:
        return True
    stated = bytes(jsonrpc.member(meta, "io.modelcontextprotocol/protocolVersion"))
    return stated.strip(b'"') > _LAST_REVISION
