"""The entry: what happens to each request of a client.

    from the gateway itself               508
    `Host` or `Origin` not allowed        403                              downstream/host_check.py
    for no upstream                       404                              relay/routes.py
    too many task operations              429, if configured               tasks/guards.py
    a filtered `tasks/list`               answered                         refresh/answer.py
    everything else                       relayed                          relay/pump.py
                                          and watched on its way           watch.py

A `GatewayError` becomes a response in one place, `_fail`; so does any other exception, as `Internal`.
"""

import asyncio
import logging
import re
from time import perf_counter
from typing import TYPE_CHECKING, Final

from gateway.config import Config
from gateway.downstream.exchange import ClientGone, Exchange
from gateway.downstream.host_check import HostCheck
from gateway.errors import (
    Ambiguous,
    GatewayError,
    Internal,
    Loop,
    NoFilter,
    NoTasks,
    Unclear,
    UnknownTask,
    UpstreamRefused,
    UpstreamTimeout,
    shown,
    without_frames,
)
from gateway.http.fields import DIGESTS, EVENT_STREAM, Headers
from gateway.http.head_cache import HeadCache
from gateway.http.responses import authenticates_connection
from gateway.interceptor import Interceptor, OwnTasksInterceptor
from gateway.mcp import jsonrpc, observe
from gateway.mcp.capabilities import LAST_REVISION
from gateway.mcp.jsonrpc import Message
from gateway.operate.access_log import AccessLog
from gateway.operate.metrics import Metrics
from gateway.owners.named_tasks import GUARD, OF_TASKS, asked_for
from gateway.owners.seen_ids import OwnerKey
from gateway.owners.task_owners import NO_OWNER, OwnTasks
from gateway.query.criteria import BadQuery
from gateway.query.cursor import Position
from gateway.refresh import answer
from gateway.relay.caller import Callers, HttpCaller, HttpReply, ResolvedRequest
from gateway.relay.pump import JSON, relay
from gateway.tasks.guards import Guards
from gateway.tasks.sessions import Sessions
from gateway.transport.memory import SMALL_BYTES_MAX
from gateway.transport.wire import Links
from gateway.upstream.pool import Pool

if TYPE_CHECKING:
    from gateway.store.replicas import SharedSessions

log = logging.getLogger("taskgate.request")

# The message endpoint of HTTP+SSE (2024-11-05) names its session in the query, as every SDK's server writes it.
_HTTP_SSE_SESSION: Final = re.compile(rb"[?&]session_?id=", re.IGNORECASE)


_UTF_8: Final = re.compile(rb"charset\s*=\s*\"?(?:utf-8|us-ascii)\b(?!.*charset)")


class Proxy:
    def __init__(
        self,
        config: Config,
        pools: dict[str, Pool],
        links: Links,
        sessions: Sessions,
        guards: Guards | None,
        metrics: Metrics,
        access_log: AccessLog,
        shared: "SharedSessions | None" = None,
    ) -> None:
        """`shared`: the same sessions, if other replicas share them."""
        self._limits = config.limits
        self._links = links
        self._sessions = sessions
        self._shared = shared
        self._metrics = metrics
        self._access_log = access_log
        clock = asyncio.get_running_loop().time
        self.heads: HeadCache[ResolvedRequest] = HeadCache()  # of requests that came before
        self._host_check = HostCheck(config.listen, config)
        self._callers = Callers(config, pools)
        self._guards = guards
        self._own = sessions.own
        self._has_warned = False  # of callers who cannot be told apart
        self._answerer = answer.Answerer(sessions, config.index, metrics, clock)

    async def handle(self, exchange: Exchange) -> None:
        """One request of a client, from its head to the end of its response."""
        began_at, kind = perf_counter(), "refused"  # uvloop's own clock ticks once a millisecond
        caller: HttpCaller | None = None
        message: Message | None = None
        failed: GatewayError | None = None
        try:
            if self._links.has_other_end_of(exchange.connection):
                raise Loop("this request comes from taskgate itself: the url of an upstream leads back to it")
            caller = self._admit(exchange)
            caller.pool.clients += 1
            message = await self._read(exchange)
            if self._guards is not None:
                self._guard(self._guards, exchange, caller, message)
            if self._own is not None:
                await self._keep_apart(self._own, exchange, caller, message)
            position = self._position(message, caller, exchange) if message is not None else None
            if position is not None and message is not None:
                kind = "answered"
                position = await self._answer(exchange, caller, message, position)
            if position is None:
                kind, message = "relayed", self._kept(exchange, message)
                await self._relay(exchange, caller, message)
        except ClientGone:
            raise
        except Exception as error:
            failed = error if isinstance(error, GatewayError) else _internal(exchange)
            self._fail(exchange, failed, caller, message)
            without_frames(error)
        finally:
            if caller is not None:
                caller.pool.clients -= 1
            self._access_log.ended(exchange, caller, kind, message, perf_counter() - began_at, failed)
            failed = None

    def _admit(self, exchange: Exchange) -> HttpCaller:
        """The caller of a request that may come in. Raises Forbidden, NoUpstream, Ambiguous or Overloaded."""
        head = exchange.head
        way: ResolvedRequest | None = exchange.way
        if way is None or way.table is not self.heads:
            self._host_check.check(exchange.headers)
            caller = self._callers.of(exchange)
            exchange.authenticates = authenticates_connection(exchange.headers)
            way = exchange.way = ResolvedRequest(self.heads, head, caller, _may_carry_message(exchange))
            if head.raw and not exchange.authenticates:
                way.is_kept = exchange.connection.cached_heads.keep(self.heads, head.raw, head.body_bytes, way)
            head.raw = b""
        return way.caller if self._guards is None else way.caller.again()  # guards note in it what the request takes

    async def _read(self, exchange: Exchange) -> Message | None:
        """The message of a request; None if it is not read, or is none. Raises Overloaded."""
        if exchange.reservation is not None:  # the head is large
            exchange.reservation.check(exchange.kept_bytes)
        bytes_max = self._limits.inspected_body_bytes_max
        message: Message | None = None
        if (exchange.way.may_carry or self._own is not None) and exchange.head.body_bytes <= bytes_max:
            if await exchange.read_body(bytes_max):
                message = jsonrpc.parse(exchange.taken)
        else:
            exchange.taken = exchange.body.take()
        return message

    async def _answer(
        self, exchange: Exchange, caller: HttpCaller, message: Message, position: Position | BadQuery
    ) -> Position | BadQuery | None:
        """Answer a filtered list. Returns None if it is to be relayed: another replica knows more of the server."""
        with self._sessions.using(caller.key) as session:
            if self._shared is not None and not caller.proof:
                await self._shared.learn(session)
                if self._position(message, caller, exchange) is None:
                    return None
            self._access_log.began(message, exchange)
            reply = HttpReply(exchange, caller)
            exchange.error_code = await self._answerer.answer(session, reply, caller, message, position)
            return position

    def _position(self, message: Message, caller: HttpCaller, exchange: Exchange) -> Position | BadQuery | None:
        """The page that a filtered `tasks/list` asks for, or what is wrong; None if the message is relayed."""
        if message.method != "tasks/list":
            return None
        if not _may_be_answered(caller, exchange):
            if caller.filter is not None:
                raise NoFilter(answer.NO_FILTER)
            if self._own is not None:
                raise NoTasks(answer.NO_LIST)
            return None
        return self._answerer.position(caller.key, message, caller.filter)

    @staticmethod
    def _guard(guards: Guards, exchange: Exchange, caller: HttpCaller, message: Message | None) -> None:
        """Apply the guards to a request. They may change its body. Raises RateLimited."""
        if message is None:
            if exchange.method == b"POST" and EVENT_STREAM in b",".join(exchange.headers.all(b"accept")).lower():
                guards.admit_unread(exchange.taken, caller)  # a server may read what the gateway does not
            return
        exchange.replace_body(guards.admit(message, exchange.taken, caller))

    async def _keep_apart(self, own: OwnTasks, exchange: Exchange, caller: HttpCaller, message: Message | None) -> None:
        """Let no request pass that may be about another's task (owners/task_owners.py). Raises GatewayError."""
        headers = exchange.headers
        kind = b",".join(headers.all(b"content-type")).lower()
        size_bytes = max(exchange.head.body_bytes, len(exchange.taken))
        if size_bytes > self._limits.inspected_body_bytes_max or not exchange.body.is_read:
            raise Ambiguous(f"{GUARD}: the body is larger than limits.inspected_body_bytes_max, and cannot be read")
        if exchange.taken and (
            headers.tokens(b"content-encoding") not in ([], [b"identity"])
            or (b"charset" in kind and not _UTF_8.search(kind))
            or (message is None and b"json" in kind and not jsonrpc.looks_like_messages(exchange.taken))
        ):
            raise Ambiguous(f"{GUARD}: the body is encoded, or in another charset than UTF-8, and cannot be read")
        asked, owners = asked_for(message, exchange.taken), self._owners(exchange, caller)
        if message is not None and observe.is_observed(message) and _is_of_http_sse(caller):
            raise NoTasks(f"{GUARD}: {NO_OWNER}")
        if message is not None and (message.method or "").startswith(OF_TASKS) and not owners:
            if not self._has_warned:
                self._has_warned = True
                log.warning("a caller cannot be told apart", extra={"upstream": caller.upstream.name, "hint": NO_OWNER})
            raise Unclear(f"{GUARD}: {NO_OWNER}")
        shared = None if self._shared is None else self._shared.own
        if not (own.owns_all(owners, asked) if shared is None else await shared.owns_now(owners, asked)):
            if (lives := self._metrics.lives) is not None and message is not None and message.method == "tasks/get":
                lives.lookups_failed[caller.upstream.name] += 1
            raise UnknownTask

    def _owners(self, exchange: Exchange, caller: HttpCaller) -> list[OwnerKey]:
        """The owners of a caller's tasks; none if nothing tells him from others."""
        if self._own is None or exchange.authenticates or caller.is_unique or _is_of_http_sse(caller):
            return []
        return self._own.owners_of(caller.key)

    def _kept(self, exchange: Exchange, message: Message | None) -> Message | None:
        """What is still needed of a message that is relayed. Its raw members would keep the whole body in memory."""
        if message is None:
            return None
        if len(exchange.taken) <= SMALL_BYTES_MAX:
            return message
        exchange.traceparent = self._access_log.traceparent(message)
        kept = observe.redacted(message)
        size_bytes = len(bytes(kept.id)) + len(kept.method or "")
        exchange.kept_bytes += size_bytes if size_bytes > SMALL_BYTES_MAX else 0
        return kept

    async def _relay(self, exchange: Exchange, caller: HttpCaller, message: Message | None) -> None:
        method = message.method if message is not None and message.method is not None else exchange.method.decode()
        parts, own = (exchange, caller, message, self._sessions), self._own
        watch = Interceptor(*parts) if own is None else OwnTasksInterceptor(*parts, own, self._owners(exchange, caller))
        if exchange.up_bytes < 0:
            exchange.refused_trailers = caller.identity_headers | (DIGESTS if exchange.edits_up else frozenset())
        exchange.waits_for_news = exchange.method == b"GET" or method == "tasks/result"
        self._metrics.upstream_request(caller.upstream.name, method)
        timeout_s = None if exchange.waits_for_news else caller.upstream.response_timeout
        up = exchange.way.up  # no name for the head: it is not to stay for as long as the answer comes
        await relay(exchange, up(exchange.up_bytes, exchange.edits_up), caller.pool, timeout_s, watch, self._limits)

    def _fail(
        self, exchange: Exchange, error: GatewayError, caller: HttpCaller | None, message: Message | None
    ) -> None:
        """Make a response of an error. Where a response has begun, cut the connection instead."""
        if caller is not None and isinstance(error, UpstreamTimeout):
            caller.pool.state.silent(str(error))  # the connection does not see the limits of a crawl and of an upload
        if exchange.started:
            exchange.status = error.status  # for the metrics: the status that went out promised a whole answer
            return
        raw_id = bytes(message.id) if message is not None else b""
        if isinstance(error, UpstreamRefused):
            body = error.body
            answered = jsonrpc.parse(body)
            if answered is not None and answered.is_strict and bytes(answered.id) == error.crawl_id:
                body, exchange.edits_down = jsonrpc.replace(body, ("id",), raw_id), True
            headers = Headers(error.headers).end_to_end()
            if caller is not None:
                headers = caller.moved(error.status, headers)
            headers = headers.without(b"transfer-encoding", b"trailer")
            headers = headers.with_value(b"content-length", b"%d" % len(body))
            exchange.begin(error.status, error.reason, headers, "length")  # it is the upstream's, and gains no `Date`
            exchange.send(body)
            exchange.end()
        else:
            cors = caller.cors if caller is not None else ()
            fields = [(b"Content-Type", JSON), *error.fields, *cors]
            exchange.respond(error.status, error.reason, fields, error.message(raw_id))


def _internal(exchange: Exchange) -> Internal:
    """The error for the exception that is being handled, a fault of the gateway itself."""
    path = exchange.target.partition(b"?")[0]  # a query may hold a token
    log.exception("a request could not be handled", extra={"target": shown(path.decode("latin-1"))})
    return Internal()


def _may_carry_message(exchange: Exchange) -> bool:
    headers = exchange.headers
    if exchange.method != b"POST" or headers.media_type() != JSON:
        return False
    return b"content-encoding" not in headers.by_name or headers.tokens(b"content-encoding") == [b"identity"]


def _is_of_http_sse(caller: HttpCaller) -> bool:
    return bool(_HTTP_SSE_SESSION.search(caller.target)) and EVENT_STREAM not in caller.headers.tokens(b"accept")


def _may_be_answered(caller: HttpCaller, exchange: Exchange) -> bool:
    """Whether the gateway may answer a `tasks/list`: not in a later revision, nor over HTTP+SSE (DESIGN 3.9, 3.11)."""
    if exchange.authenticates:
        return False
    if _is_of_http_sse(caller):
        return False  # its response goes out on a stream that the client opened before
    version = caller.headers.get(b"mcp-protocol-version")
    return version is None or version <= LAST_REVISION
