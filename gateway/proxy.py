"""The entry: what happens to each request of a client.

    from the gateway itself               508
    `Host` or `Origin` not allowed        403                              downstream/host_origin_check.py
    for no upstream                       404                              relay/routes.py
    too many task operations              429, if configured               tasks/guards.py
    another's task                        an error, if configured          own_tasks.py
    a filtered `tasks/list`               answered                         refresh/answer.py
    everything else                       relayed                          relay/pump.py
                                          and watched on its way           interceptor.py

A `GatewayError` becomes a response in one place, relay/error_response.py; so does any other exception, as `Internal`.
"""

import asyncio
import logging
from time import perf_counter
from typing import TYPE_CHECKING

from gateway.config import Config
from gateway.downstream.exchange import Exchange
from gateway.downstream.request import ClientGone
from gateway.errors import GatewayError, Internal, Loop, NoFilter, NoTasks, shown, without_frames
from gateway.http.fields import DIGESTS, EVENT_STREAM
from gateway.interceptor import Interceptor
from gateway.mcp import jsonrpc, observations
from gateway.mcp.capabilities import LAST_REVISION
from gateway.mcp.jsonrpc import Message
from gateway.operate.access_log import AccessLog
from gateway.operate.metrics import Metrics
from gateway.own_tasks_guard import OwnTasksGuard
from gateway.query.criteria import BadQuery
from gateway.query.cursor import Position
from gateway.refresh import answer
from gateway.relay import error_response
from gateway.relay.admission import Admission
from gateway.relay.caller import HttpCaller, HttpReply
from gateway.relay.pump import relay
from gateway.tasks.guards import Guards
from gateway.tasks.sessions import Sessions
from gateway.transport.base_connection import Links
from gateway.transport.memory_budget import SMALL_BYTES_MAX
from gateway.upstream.connection_pool import Pool

if TYPE_CHECKING:
    from gateway.store.replicas import SharedSessions

log = logging.getLogger("taskgate.request")


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
        self._admission = Admission(config, pools)
        self.heads = self._admission.heads
        self._guards = guards
        self._own: OwnTasksGuard | None = None
        if sessions.own is not None:
            of_all, body_bytes_max = None if shared is None else shared.own, config.limits.inspected_body_bytes_max
            self._own = OwnTasksGuard(sessions.own, sessions, of_all, body_bytes_max)
        self._answerer = answer.Answerer(sessions, config.index, metrics, asyncio.get_running_loop().time)

    async def handle(self, exchange: Exchange) -> None:
        """One request of a client, from its head to the end of its response."""
        began_at, kind = perf_counter(), "refused"  # uvloop's own clock ticks once a millisecond
        caller: HttpCaller | None = None
        message: Message | None = None
        failed: GatewayError | None = None
        try:
            if self._links.has_other_end_of(exchange.connection):
                raise Loop("this request comes from taskgate itself: the url of an upstream leads back to it")
            caller = self._admission.caller_of(exchange)
            caller.pool.clients += 1
            message = await self._read(exchange)
            if self._guards is not None:
                caller = caller.again()  # guards note in it what the request takes
                self._guard(self._guards, exchange, caller, message)
            if self._own is not None:
                await self._own.check(exchange, caller, message)
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
            error_response.respond(exchange, failed, caller, b"" if message is None else bytes(message.id))
            without_frames(error)
        finally:
            if caller is not None:
                caller.pool.clients -= 1
            self._access_log.ended(exchange, caller, kind, message, perf_counter() - began_at, failed)
            failed = None

    async def _read(self, exchange: Exchange) -> Message | None:
        """The message of a request; None if it is not read, or is none. Raises Overloaded."""
        request, bytes_max = exchange.request, self._limits.inspected_body_bytes_max
        if request.reservation is not None:  # the head is large
            request.reservation.check(request.kept_bytes)
        if request.head.body_bytes > bytes_max or not (exchange.resolved.may_carry or self._own is not None):
            request.taken = request.body.take()
            return None
        return jsonrpc.parse(request.taken) if await request.read_body(bytes_max) else None

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
        if not _may_be_answered(exchange, caller):
            if caller.filter is not None:
                raise NoFilter(answer.NO_FILTER)
            if self._own is not None:
                raise NoTasks(answer.NO_LIST)
            return None
        return self._answerer.position(caller.key, message, caller.filter)

    @staticmethod
    def _guard(guards: Guards, exchange: Exchange, caller: HttpCaller, message: Message | None) -> None:
        """Apply the guards to a request. They may change its body. Raises RateLimited."""
        request = exchange.request
        if message is not None:
            request.replace_body(guards.admit(message, request.taken, caller))
        elif request.method == b"POST" and EVENT_STREAM in b",".join(request.headers.all(b"accept")).lower():
            guards.admit_unread(request.taken, caller)  # a server may read what the gateway does not

    def _kept(self, exchange: Exchange, message: Message | None) -> Message | None:
        """What is still needed of a message that is relayed. Its raw members would keep the whole body in memory."""
        if message is None or len(exchange.request.taken) <= SMALL_BYTES_MAX:
            return message
        exchange.traceparent = self._access_log.traceparent(message)
        kept = observations.redacted(message)
        size_bytes = len(bytes(kept.id)) + len(kept.method or "")
        exchange.request.kept_bytes += size_bytes if size_bytes > SMALL_BYTES_MAX else 0
        return kept

    async def _relay(self, exchange: Exchange, caller: HttpCaller, message: Message | None) -> None:
        request, own = exchange.request, self._own
        method = message.method if message is not None and message.method is not None else request.method.decode()
        if request.up_bytes < 0:
            request.refused_trailers = caller.identity_headers | (DIGESTS if request.is_edited else frozenset())
        exchange.waits_for_news = request.method == b"GET" or method == "tasks/result"
        self._metrics.upstream_request(caller.upstream.name, method)
        timeout_s = None if exchange.waits_for_news else caller.upstream.response_timeout
        if own is None:
            misspelt: tuple[str, ...] = ()
            if method == "tasks/list" and message is not None and _may_be_answered(exchange, caller):
                misspelt = self._answerer.misspelt(caller.key, message)
            watch = Interceptor(exchange, caller, message, self._sessions, misspelt)
        else:
            watch = own.interceptor(exchange, caller, message)
        up = exchange.resolved.up  # no name for the head: it is not to stay for as long as the answer comes
        await relay(exchange, up(request.up_bytes, request.is_edited), caller.pool, timeout_s, watch, self._limits)


def _may_be_answered(exchange: Exchange, caller: HttpCaller) -> bool:
    """Whether the gateway may answer a `tasks/list`: not in a later revision, nor over HTTP+SSE (DESIGN 3.9, 3.11)."""
    version = caller.headers.get(b"mcp-protocol-version")
    is_later = version is not None and version > LAST_REVISION
    return not (is_later or exchange.authenticates or caller.is_of_http_sse)


def _internal(exchange: Exchange) -> Internal:
    """The error for the exception that is being handled, a fault of the gateway itself."""
    path = exchange.request.target.partition(b"?")[0]  # a query may hold a token
    log.exception("a request could not be handled", extra={"target": shown(path.decode("latin-1"))})
    return Internal()
