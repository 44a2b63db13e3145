"""The entry: what happens to each request of a client.

    from the gateway itself               508                              relay/http_caller.py
    `Host` or `Origin` not allowed        403                              downstream/host_origin_check.py
    for no upstream                       404                              relay/routes.py
    too many task operations              an error, if configured          tasks/rate_and_ttl_guards.py
    another's task                        an error, if configured          task_ownership_guard.py
    a filtered `tasks/list`               answered                         refresh/query_answer.py
    everything else                       relayed                          relay/body_pump.py
                                          and watched on its way           response_inspection.py

A `GatewayError` becomes a response in one place, relay/error_response.py; so does any other exception, as `Internal`.
"""

import asyncio
from time import perf_counter

from gateway.config import Config
from gateway.downstream.exchange import ClientGone, Exchange
from gateway.errors import GatewayError, without_frames
from gateway.mcp.client_message import ClientMessage
from gateway.operate.access_log import AccessLog
from gateway.operate.metrics import Metrics
from gateway.query.list_request import ListRequest, read
from gateway.refresh.query_answer import PASSES, Answerer, Passes
from gateway.relay import error_response
from gateway.relay.body_pump import relay
from gateway.relay.http_caller import Admission, HttpCaller
from gateway.relay.own_requests import HttpReply
from gateway.response_inspection import Interceptor
from gateway.task_ownership_guard import OwnTasksGuard, OwnTasksInterceptor
from gateway.tasks.rate_and_ttl_guards import Guards
from gateway.tasks.session_indexes import Sessions
from gateway.transport.base_connection import Links
from gateway.upstream.connection_pool import Pool


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
        own, bytes_max = sessions.own, config.limits.inspected_body_bytes_max
        self._own = None if own is None else OwnTasksGuard(own, sessions, bytes_max)
        self._reads = guards is not None or own is not None, own is not None  # what is read of messages
        self._answerer = Answerer(sessions, config.index, metrics, asyncio.get_running_loop().time)

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
                unread = exchange.request.taken if message is None and exchange.request.is_post_for_stream else None
                exchange.cost = cost = self._guards.admit(message, unread, caller.rate_limit_key)
                exchange.request.replace_body(self._guards.lowered(message, exchange.request.taken))
                if cost is not None:
                    await cost.turn()
            owners = [] if self._own is None else await self._own.check(exchange, caller, message)
            position = PASSES if message is None else self._answerer.position(caller, message)
            if isinstance(message, ListRequest) and not isinstance(position, Passes):
                kind = "answered"
                self._access_log.began(message, exchange)
                if await self._answerer.answer(HttpReply(exchange, caller), caller, message, position):
                    return
            kind, message = "relayed", exchange.relayed(message)
            self._metrics.upstream_request(caller.upstream.name, exchange.method_of(message))
            if self._own is None:
                misspelt = position.misspelt if isinstance(position, Passes) else ()
                watch = Interceptor(exchange, caller, message, self._sessions, misspelt)
            else:
                watch = OwnTasksInterceptor(exchange, caller, message, self._sessions, owners)
            await relay(exchange, caller, watch.inspector)
        except ClientGone:
            raise
        except Exception as error:
            failed = error_response.respond(exchange, error, caller, message, kind == "relayed")
            without_frames(error)
        finally:
            if caller is not None:
                caller.pool.clients -= 1
            self._access_log.ended(kind, message, perf_counter() - began_at, failed, exchange, caller)
            failed = None
