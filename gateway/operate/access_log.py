"""The record of each request that has ended: metrics, a line of the log, a line of the audit, a row of the page.

    a failure of the gateway's             failed, at info: what failed, and why
    an upstream's status of 500 or above   failed, at info
    a redirect, a 404 to `initialize`      failed, at info: that `url` is wrong
    a JSON-RPC error                       failed, at info: its code
    the client left before the answer      failed, at info
    each of these, and anything else       request, at info with `log.access`, else at debug

    a request with `params.task`           audit, at info, as `create`, with `log.audit`
    `tasks/cancel`, `tasks/result`         audit, at info, as `cancel` and as `fetch`, with `log.audit`
    a task that was seen live has ended    audit, at info, as `end`, with `log.audit`

Lines `failed` of one cause are one a second, with a count. No token, query string or body; no id of a session or a
task. In the audit digests stand for the ids, and for the caller: with an id one can find its lines; from a line nobody
learns an id.
"""

import logging
from typing import TYPE_CHECKING, Final, cast

import msgspec

from gateway.caller_identity import STDIO, Key
from gateway.config import Log, StdioLog
from gateway.errors import GatewayError, UpstreamRefused
from gateway.mcp import jsonrpc
from gateway.mcp.jsonrpc import INTERNAL_ERROR, Message
from gateway.mcp.observations import tool_of
from gateway.operate.metrics import EndedRequest, Metrics, coded, named
from gateway.operate.recent_failures import Reason
from gateway.tasks.lifecycles import digest_of
from gateway.transport.log_rate_limit import LogLimit

if TYPE_CHECKING:
    from gateway.downstream.exchange import Exchange
    from gateway.relay.caller import HttpCaller

log = logging.getLogger("taskgate.request")
audit_log = logging.getLogger("taskgate.audit")

CLIENT_LEFT: Final = 499  # the status of a request whose client left before a response began, as nginx has it
_METHOD_CHARS_MAX: Final = 100
_PATH_CHARS_MAX: Final = 200
_ID_CHARS_MAX: Final = 128

_ACTIONS: Final = {"tasks/cancel": "cancel", "tasks/result": "fetch"}

_text: Final = msgspec.json.Decoder(str)


class AccessLog:
    """Records each request that has ended. The lines in `failed` outlive a reload, since their causes do."""

    def __init__(self, metrics: Metrics, config: Log | StdioLog, failed: LogLimit) -> None:
        self.metrics = self._metrics = metrics
        self.failed = failed
        self._level = logging.INFO if config.access else logging.DEBUG
        self._audits = config.audit
        if metrics.lives is not None:
            metrics.lives.on_end = self.task_ended if config.audit else None

    def began(self, message: Message | None, exchange: "Exchange | None") -> None:
        """A query begins. Over stdio it has a task of its own, and no exchange."""

    def ended(
        self,
        exchange: "Exchange",
        caller: "HttpCaller | None",
        kind: str,
        message: Message | None,
        seconds: float,
        error: GatewayError | None,
    ) -> None:
        """A request has ended. `kind` is relayed, answered or refused; `message` is the message in its body."""
        upstream = caller.upstream.name if caller is not None else ""
        if caller is not None and caller.drifts:
            self._metrics.drifted(upstream)
        status, code = exchange.response.status or CLIENT_LEFT, exchange.error_code
        if error is not None:
            code = None if isinstance(error, UpstreamRefused) else error.code
        method = message.method if message is not None else None
        told = why(error, code, status) or _misplaced(exchange, caller, message)
        what, is_whole = method or exchange.request.method.decode(), exchange.response.finished
        cause = self._count(EndedRequest(upstream, kind, what, status, seconds, error, code, is_whole), told)
        did = _action(message) if self._audits and caller is not None else None
        if did is None and not log.isEnabledFor(self._level if cause is None else logging.INFO):
            return
        said = {**_request(exchange, upstream, kind, method), "status": status, "seconds": round(seconds, 6), **told}
        self._write(said, cause)
        if did is not None and caller is not None and message is not None:
            _audit(did, caller.key, _digest_of(exchange.task_id, message), _with_tool(did, message) | said)

    def ended_over_stdio(
        self,
        kind: str,
        message: Message,
        seconds: float,
        code: int | None,
        error: GatewayError | None,
        task_id: str | None,
    ) -> None:
        """A request was answered over stdio: by an error if there is a `code`, or with the task of that id."""
        method = message.method or ""
        status = 200 if error is None else error.status  # as over HTTP: an alert counts the gateway's own 502 and 504
        told = why(error, code, status)
        cause = self._count(EndedRequest(STDIO.upstream, kind, method, status, seconds, error, code, True), told)
        said: dict[str, object] = {"upstream": STDIO.upstream, "kind": kind, "method": method[:_METHOD_CHARS_MAX]}
        said |= {"seconds": round(seconds, 6), **told}
        self._write(said, cause)
        if self._audits and (did := _action(message)) is not None:
            _audit(did, STDIO, _digest_of(task_id, message), _with_tool(did, message) | said)

    def task_ended(self, viewer: Key, tool: str, status: str, digest: str) -> None:
        """A task has ended, as `viewer` was told, or as nobody saw it since."""
        _audit("end", viewer, digest, {"upstream": viewer.upstream, "tool": tool, "task_status": status})

    def _count(self, ended: EndedRequest, told: dict[str, object]) -> Reason | None:
        """Count a request, and show it on the page. Returns the cause if it has failed, as `told` says."""
        metrics, status, cause = self._metrics, ended.status, None
        metrics.request(ended)
        if told:
            is_fault = status >= 500 or ended.code == INTERNAL_ERROR
            cause = Reason(ended.upstream, _failure(told, status), is_fault)
        if told or metrics.recent.is_watched:
            metrics.recent.request(
                cause,
                upstream=ended.upstream,
                kind=ended.kind,
                method=named(ended.method),
                status=status,
                seconds=ended.seconds,
                why=str(told.get("why", "")),
            )
        return cause

    def _write(self, said: dict[str, object], cause: Reason | None) -> None:
        log.log(self._level, "request", extra=said)
        if cause is not None:
            self.failed.say(log, logging.INFO, "failed", said, cause)


def why(error: GatewayError | None, code: int | None, status: int) -> dict[str, object]:
    said: dict[str, object] = {} if code is None else {"code": code}
    if error is not None:
        return {**said, "failure": error.kind, "why": str(error)}
    if code is not None:
        return {**said, "failure": "JsonRpcError", "why": f"the answer is the JSON-RPC error {code}"}
    if status == CLIENT_LEFT:
        return {"failure": "ClientLeft", "why": "the client left before a response began"}
    return {"failure": "UpstreamStatus", "why": f"the upstream answered {status}"} if status >= 500 else {}


def _misplaced(exchange: "Exchange", caller: "HttpCaller | None", message: Message | None) -> dict[str, object]:
    """Why a message that was relayed is no use at this address; empty if the answer does not say so."""
    status = exchange.response.status
    if caller is None or message is None or not 300 <= status <= 404:
        return {}
    said = "" if status == 404 and message.method != "initialize" else caller.misplaced(status, exchange.location)
    return {"failure": "UpstreamStatus", "why": f"the upstream answered {status}: {said}"} if said else {}


def _failure(said: dict[str, object], status: int) -> str:
    """What failed, as the page groups it: the name in the log, and the code or status if it tells kinds apart."""
    failure = str(said["failure"])
    if failure == "JsonRpcError":
        return f"{failure} {coded(cast(int, said['code']))}"
    return f"{failure} {status}" if failure in ("UpstreamStatus", "UpstreamRefused") else failure


def _request(exchange: "Exchange", upstream: str, kind: str, method: str | None) -> dict[str, object]:
    request = exchange.request
    said: dict[str, object] = {"upstream": upstream, "kind": kind, "http_method": request.method.decode("latin-1")}
    if method is not None:
        said["method"] = method[:_METHOD_CHARS_MAX]
    said["path"] = request.target.partition(b"?")[0].decode("latin-1")[:_PATH_CHARS_MAX]
    said["client"] = exchange.connection.address
    given = request.headers.get(b"x-request-id") or request.headers.get(b"traceparent")
    if given is not None:
        said["request_id"] = given.decode("latin-1")[:_ID_CHARS_MAX]
    return said


def _action(message: Message | None) -> str | None:
    if message is None or not message.is_request:
        return None
    if message.method in _ACTIONS:
        return _ACTIONS[message.method]
    return "create" if bytes(message.task) else None


def _with_tool(did: str, message: Message) -> dict[str, object]:
    return {"tool": tool_of(message)} if did == "create" else {}


def _digest_of(task_id: str | None, message: Message) -> str:
    """The digest of the id of a task: as the answer has it, else the params of the request; empty if neither does."""
    named = task_id or jsonrpc.decoded(_text, jsonrpc.member(message.params, "taskId"))
    return "" if named is None else digest_of(named)


def _audit(did: str, key: Key, task: str, said: dict[str, object]) -> None:
    """Write a line of the audit. The digests in `key` are empty over stdio. `said` is what the request's line says."""
    extra: dict[str, object] = {"action": did}
    if key.identity:
        extra["caller"] = key.identity.hex()
    if key.session:
        extra["session"] = key.session.hex()
    if task:
        extra["task"] = task
    audit_log.info("audit", extra=extra | said)
