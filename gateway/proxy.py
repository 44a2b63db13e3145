"""The entry: what happens to each request of a client.

    from the gateway itself               508                              relay/http_caller.py
    `Host` or `Origin` not allowed        403                              downstream/host_origin_check.py
    for no upstream                       404                              relay/routes.py
    too many task operations              an error, if configured          tasks/rate_and_ttl_guards.py
    another's task                        an error, if configured          task_ownership_guard.py
    a filtered `tasks/list`               answered                         refresh/query_answer.py
    everything else                       relayed                          relay/body_pump.py
                                          and watched on its way           response_inspection.py

A `GatewayError` becomes a response in one place; so does any other exception, as `Internal`.
"""

import logging
from http import HTTPStatus
from time import perf_counter

from gateway.config import Config
from gateway.downstream.exchange import ClientGone, Exchange
from gateway.errors import Ambiguous, GatewayError, Internal, UpstreamRefused, UpstreamTimeout, shown, without_frames
from gateway.http.header_fields import EVENT_STREAM, JSON, Headers
from gateway.mcp import jsonrpc
from gateway.mcp.client_message import ClientMessage
from gateway.operate.access_log import AccessLog
from gateway.operate.metrics import Metrics
from gateway.query.list_request import ListRequest, read
from gateway.refresh.query_answer import PASSES, Answerer, Passes
from gateway.relay.body_pump import relay
from gateway.relay.http_caller import Admission, HttpCaller
from gateway.relay.own_requests import HttpReply
from gateway.response_inspection import Interceptor
from gateway.task_ownership_guard import OwnTasksGuard, OwnTasksInterceptor
from gateway.tasks.rate_and_ttl_guards import Guards
from gateway.tasks.session_indexes import Sessions
from gateway.transport.base_connection import Links
from gateway.upstream.connection_pool import Pool

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
    ) -> None:
        self._limits, self._sessions, self._guards = config.limits, sessions, guards
        self._metrics, self._access_log = metrics, access_log
        self._admission = Admission(config, pools, links)
        self.heads = self._admission.heads
        own, bytes_max = sessions.own_tasks, config.limits.inspected_body_bytes_max
        self._own = None if own is None else OwnTasksGuard(own, sessions, bytes_max)
        self._reads = guards is not None or own is not None, own is not None  # what is read of messages
        self._answerer = Answerer(sessions, config.index, metrics)

    async def handle(self, exchange: Exchange) -> None:
        """One request of a client, from its head to the end of its response."""
        began_at, kind = perf_counter(), "refused"  # uvloop's own clock ticks once a millisecond
        caller: HttpCaller | None = None
        message: ClientMessage | None = None
        failed: GatewayError | None = None
        try:
            caller = self._admission.caller_of(exchange)
            caller.pool.clients += 1
            may_carry = caller.may_carry or self._own is not None
            bytes_max = self._limits.inspected_body_bytes_max  # no name holds the body, which is large perhaps
            message = await read(await exchange.request.read_body(may_carry, bytes_max), *self._reads)
            if self._guards is not None:
                unread = exchange.request.taken if message is None and _accepts_stream(exchange) else None
                exchange.cost = cost = self._guards.admit(message, unread, caller.rate_limit_key)
                exchange.request.replace_body(self._guards.lowered(message, exchange.request.taken))
                if cost is not None:
                    await cost.turn()
            owners = [] if self._own is None else await self._own.check(exchange, caller, message)
            position = self._answerer.position(caller.asks, message) if isinstance(message, ListRequest) else PASSES
            if isinstance(message, ListRequest) and not isinstance(position, Passes):
                kind = "answered"
                self._access_log.began(message, exchange)
                if await self._answerer.answer(HttpReply(exchange, caller), caller.asks, message, position):
                    return
            kind, message = "relayed", exchange.relayed(message)
            self._metrics.upstream_request(caller.upstream.name, exchange.method_of(message))
            parts = exchange, caller, message, self._sessions
            if self._own is None:
                watch = Interceptor(*parts, position.misspelt if isinstance(position, Passes) else ())
            else:
                watch = OwnTasksInterceptor(*parts, own=self._own.own, owners=owners)
            await relay(exchange, caller, watch.inspector)
        except ClientGone:
            raise
        except Exception as error:
            failed = _respond(exchange, error, caller, message, kind == "relayed")
            without_frames(error)
        finally:
            if caller is not None:
                caller.pool.clients -= 1
            self._access_log.ended(kind, message, perf_counter() - began_at, failed, exchange, caller)
            failed = None


def _accepts_stream(exchange: Exchange) -> bool:
    """Whether a request that was not read may be a message of MCP's, whose client accepts an event stream."""
    head = exchange.request.head
    return head.method == b"POST" and EVENT_STREAM in b",".join(head.headers.all(b"accept")).lower()


def _respond(
    exchange: Exchange, raised: Exception, caller: HttpCaller | None, message: ClientMessage | None, is_relayed: bool
) -> GatewayError:
    """Make a response of an error, and return it. Where a response has begun, cut the connection instead.

    It is called where `raised` is handled: an exception that is no GatewayError is a fault of the gateway itself.
    """
    response, raw_id = exchange.response, b"" if message is None else message.id
    error = raised if isinstance(raised, GatewayError) else Internal()
    if error is not raised:
        path = exchange.request.head.target.partition(b"?")[0]  # a query may hold a token
        log.exception("a request could not be handled", extra={"target": shown(path.decode("latin-1"))})
    if caller is not None and isinstance(error, UpstreamTimeout):
        caller.pool.state.silent(str(error))  # the connection does not see the limit of a crawl, nor of the first word
    if response.started:
        response.status = error.status  # for the metrics: the status that went out promised a whole answer
    elif isinstance(error, UpstreamRefused):
        headers = Headers(error.headers).end_to_end()
        if caller is not None:
            headers = caller.moved(error.status, headers)
        body, answered = error.body, jsonrpc.parse(error.body)
        if answered is not None and answered.is_strict and bytes(answered.id) == b"%d" % error.crawl_id:
            body, response.is_edited = jsonrpc.replace(body, ("id",), raw_id), True
        headers = headers.without(b"transfer-encoding", b"trailer").with_value(b"content-length", b"%d" % len(body))
        response.begin(error.status, error.reason, headers, "length")  # it is the upstream's, and gains no `Date`
        response.send(body)
        response.end()
    else:
        fields = [(b"Content-Type", JSON), *(() if caller is None else caller.cors)]
        status = error.status
        if caller is not None and message is not None and _is_for_reader(error, exchange, caller, message, is_relayed):
            status = 200
        elif error.retry_after_s is not None:
            fields.append((b"Retry-After", b"%d" % error.retry_after_s))
        response.respond(status, HTTPStatus(status).phrase.encode(), fields, error.message(raw_id))
        response.status = error.status  # for log and metrics
    return error


def _is_for_reader(
    error: GatewayError, exchange: Exchange, caller: HttpCaller, message: ClientMessage, is_relayed: bool
) -> bool:
    """Whether who posted the request reads the error as its response, and the transport is whole.

    He gets it with status 200: a client takes 400 or above for a broken transport, and may end its session (5.8).
    Nobody reads the body of a 200 over HTTP+SSE. What two readers read differently may be no request.
    """
    if isinstance(error, Ambiguous) or (is_relayed and error.status in (502, 504)) or caller.is_of_http_sse:
        return False
    return exchange.request.head.method == b"POST" and message.is_request and message.id != b"null"
