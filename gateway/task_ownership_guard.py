"""`guards.own_tasks` over HTTP: what may pass of a request, and of its response (DESIGN 8.16).

In: a request, with its caller; then each message of its response. Out: an error, or nothing; the message, or nothing.
Always: what cannot be read passes nothing by.
"""

import logging
import re
from typing import Final

from msgspec import Raw

from gateway.downstream.exchange import Exchange
from gateway.errors import Ambiguous, NoTasks, Unclear, UnknownTask, UpstreamBroken
from gateway.http.header_fields import EVENT_STREAM
from gateway.mcp import ids_in_messages, jsonrpc
from gateway.mcp.client_message import ClientMessage
from gateway.mcp.ids_in_messages import OF_TASKS, Made, is_other_json
from gateway.owners.task_ids_seen_by_caller import OwnerKey
from gateway.owners.task_owners import GUARD, NO_OWNER, OwnTasks
from gateway.relay.body_pump import Inspector, nothing
from gateway.relay.http_caller import HttpCaller
from gateway.response_inspection import AWAITED, Interceptor
from gateway.tasks.exchange_observer import READ_BYTES_MAX, RESUMED
from gateway.tasks.session_indexes import Sessions
from gateway.transport.body_stream import Response

log = logging.getLogger("taskgate.request")

_MADE: Final = re.compile(rb'"task"\s*:\s*\{[^{}]*?"taskId"\s*:\s*("(?:[^"\\]|\\.)*")')
MAY_NAME: Final = (*AWAITED, b"task", *ids_in_messages.FOLDING)  # one of these stands in what names a task
_UTF_8: Final = re.compile(rb"charset\s*=\s*\"?(?:utf-8|us-ascii)\b(?!.*charset)")


def asked_for(message: ClientMessage | None, body: bytes) -> list[object]:
    """The ids of the tasks that a client's message is about, None for one that is no text.

    Raises Ambiguous where another reader may find other ones, or a message in what is none here.
    """
    if message is None:
        if jsonrpc.looks_like_messages(body) and not is_other_json(body):
            raise Ambiguous(f"{GUARD}: a batch, or what only some readers take for a message, does not pass")
        return []
    if message.doubts:
        names = ", ".join(sorted(message.doubts))
        raise Ambiguous(f"{GUARD}: which counts? Name it once, in its own letters: {names}")
    method = message.method or ""
    is_of_tasks = method.startswith(OF_TASKS)
    if method.strip().casefold().startswith(OF_TASKS) and not (is_of_tasks and message.is_request):
        raise Ambiguous(f"{GUARD}: {method!r} is no method of MCP, or needs an id")
    if message.related is None:
        raise Ambiguous(f"{GUARD}: a message that names a related task must be JSON, and not huge")
    return [*message.related, message.task_id] if is_of_tasks and method != "tasks/list" else [*message.related]


class OwnTasksGuard:
    def __init__(self, own: OwnTasks, sessions: Sessions, body_bytes_max: int) -> None:
        self.own, self._sessions, self._body_bytes_max = own, sessions, body_bytes_max
        self._has_warned = False  # of callers who cannot be told apart

    async def check(self, exchange: Exchange, caller: HttpCaller, message: ClientMessage | None) -> list[OwnerKey]:
        """The owners of the caller's tasks. Raises GatewayError for a request that may be about another's task."""
        request, headers = exchange.request, exchange.request.head.headers
        kind = b",".join(headers.all(b"content-type")).lower()
        if max(request.head.body_bytes, len(request.taken)) > self._body_bytes_max or not request.body.is_read:
            raise Ambiguous(f"{GUARD}: the body is larger than limits.inspected_body_bytes_max, and cannot be read")
        if request.taken and (
            headers.tokens(b"content-encoding") not in ([], [b"identity"])
            or (b"charset" in kind and not _UTF_8.search(kind))
            or (message is None and b"json" in kind and not jsonrpc.looks_like_messages(request.taken))
        ):
            raise Ambiguous(f"{GUARD}: the body is encoded, or in another charset than UTF-8, and cannot be read")
        asked, owners = asked_for(message, request.taken), list[OwnerKey]()
        if not (exchange.authenticates or caller.is_unique or caller.is_of_http_sse):  # else he is like any other
            owners = self.own.owners_of(caller.key)
        if message is not None and message.is_observed and caller.is_of_http_sse:
            raise NoTasks(f"{GUARD}: {NO_OWNER}")
        if message is not None and (message.method or "").startswith(OF_TASKS) and not owners:
            if not self._has_warned:
                self._has_warned = True
                log.warning("a caller cannot be told apart", extra={"upstream": caller.upstream.name, "hint": NO_OWNER})
            raise Unclear(f"{GUARD}: {NO_OWNER}")
        if not await self.own.owns_now(owners, asked):
            if (lives := self._sessions.lives) is not None and message is not None and message.method == "tasks/get":
                lives.lookups_failed[caller.upstream.name,] += 1
            raise UnknownTask
        return owners


class OwnTasksInterceptor(Interceptor, eq=False, kw_only=True):
    """The interceptor of a caller who is kept apart: no event passes that names another's task, or is unread."""

    own: OwnTasks
    owners: list[OwnerKey]  # of the caller's tasks

    @property
    def _request(self) -> ClientMessage | None:
        return self._asked if self._asked is not None and self._asked.is_request else None

    def inspector(self, response: Response) -> Inspector | None:
        chosen, task_id = super().inspector(response), self._pending.task_id
        if task_id is not None and response.head.status < 400 and not self.own.owns(self.owners, task_id):
            raise UnknownTask  # it changed hands meanwhile
        request = self._request
        if request is not None and request.asks_task and response.head.status < 400:
            return Inspector(self._message, self._unread, MAY_NAME, True, True, hold_bytes_max=READ_BYTES_MAX)
        if response.head.kind == EVENT_STREAM:
            return Inspector(self._message, self._unread, MAY_NAME, edits=True, reads_all=True)
        if chosen is None and request is not None and response.head.status < 400:
            return Inspector(self._message, nothing)  # it may make a task
        return chosen

    def _message(self, data: bytes) -> bytes:
        message, server = jsonrpc.parse(data), self._caller.key.server
        if message is None:
            self._lose(data)
        if not self.own.may_pass(server, self.owners, data, message, self._request, self._pending is RESUMED):
            return b""
        if self._exchange.authenticates:
            return data
        seen = self._take_in(self._pending.read(data, message))
        return data if self._caller.proof else seen

    def _unread(self, begun: bytes) -> None:
        self._lose(begun)
        raise UpstreamBroken(f"{GUARD}: what may name tasks is too large, cut short, or in an unknown encoding")

    def _lose(self, begun: bytes) -> None:
        """Of an answer to a request for a task no more can be read: the task that it has made is nobody's."""
        asks = self._request is not None and self._request.asks_task
        if asks and (found := _MADE.search(begun)) and (task_id := jsonrpc.text(Raw(found[1]))) is not None:
            self.own.make(self._caller.key.server, (), Made(task_id, 0.0))
