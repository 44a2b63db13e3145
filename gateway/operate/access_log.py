"""The record of each request that has ended: metrics, a line of the log, a line of the audit, a row of the page.

    what fails or is refused (DESIGN 8.10)   failed, at info: what failed, and why
    each request                             request, at info with `log.access`, else at debug
    a request with `params.task`             audit, at info, as `create`, with `log.audit`
    `tasks/cancel`, `tasks/result`           audit, at info, as `cancel` and as `fetch`, with `log.audit`
    a task that was seen live has ended      audit, at info, as `end`, with `log.audit`

Lines `failed` of one cause are one a second, with a count. No token, query string or body; no id of a session or a
task. Digests stand for the ids, and for the caller: with an id one can find its lines; from a line nobody learns an id.
"""

import logging
from typing import TYPE_CHECKING, Final

from gateway.caller_identity import STDIO, Key
from gateway.config import Log, StdioLog
from gateway.errors import GatewayError, UpstreamRefused
from gateway.mcp.client_message import ClientMessage
from gateway.mcp.jsonrpc import INTERNAL_ERROR
from gateway.operate.metrics import REFUSALS, EndedRequest, Metrics, coded, named
from gateway.operate.recent_failures import Reason
from gateway.tasks.lifecycle_counts import digest_of
from gateway.transport.repeated_log_lines import LogLimit

if TYPE_CHECKING:
    from gateway.downstream.exchange import Exchange
    from gateway.relay.http_caller import HttpCaller

log = logging.getLogger("taskgate.request")
audit_log = logging.getLogger("taskgate.audit")

CLIENT_LEFT: Final = 499  # the status of a request whose client left before a response began, as nginx has it
_METHOD_CHARS_MAX: Final = 100
_PATH_CHARS_MAX: Final = 200
_ID_CHARS_MAX: Final = 128

_ACTIONS: Final = {"tasks/cancel": "cancel", "tasks/result": "fetch"}


class AccessLog:
    """Records each request that has ended. The lines in `failed` outlive a reload, since their causes do."""

    def __init__(self, metrics: Metrics, config: Log | StdioLog, failed: LogLimit) -> None:
        self.metrics = metrics
        self.failed = failed
        self._level = logging.INFO if config.access else logging.DEBUG
        self._audits = config.audit
        if metrics.lives is not None:
            metrics.lives.on_end = self.task_ended if config.audit else None

    def began(self, message: ClientMessage | None, exchange: "Exchange | None") -> None:
        """A query begins. Over stdio it has a task of its own, and no exchange."""

    def ended(
        self,
        kind: str,
        message: ClientMessage | None,
        seconds: float,
        error: GatewayError | None,
        exchange: "Exchange | None" = None,
        caller: "HttpCaller | None" = None,
        code: int | None = None,
        made: str | None = None,
    ) -> None:
        """A request has ended. `kind` is relayed, answered or refused; `message` is the message in its body.

        Over stdio there is no exchange that tells the `code` of a JSON-RPC error, and the id of the task that was made.
        """
        upstream, whole = caller.upstream.name if caller is not None else "", True
        if exchange is None:  # a status as over HTTP: an alert counts the gateway's own 502 and 504
            upstream, status = STDIO.upstream, 200 if error is None else error.status
            what = "" if message is None else message.method or ""
        else:
            status, whole = exchange.response.status or CLIENT_LEFT, exchange.response.finished
            what, code, made = exchange.method_of(message), exchange.error_code, exchange.task_id
            if error is not None:
                code = None if isinstance(error, UpstreamRefused) else error.code
            if caller is not None and caller.drifts:
                self.metrics.drifted(upstream)
        ended = EndedRequest(upstream, kind, what, status, seconds, error, code, whole, message, made, exchange, caller)
        self._end(ended)

    def _end(self, ended: EndedRequest) -> None:
        message, caller, code = ended.message, ended.caller, ended.code
        is_fine = ended.status < 300 and code is None and ended.error is None
        told = {} if is_fine else why(ended) or _refusal(ended)
        metrics, cause = self.metrics, None
        metrics.request(ended)
        if told:
            failure, kind = str(told["failure"]), ""  # as the page groups it: what tells kinds apart stands with it
            if failure == "JsonRpcError" and code is not None:
                kind = f" {coded(code)}"
            elif failure in ("UpstreamStatus", "UpstreamRefused"):
                kind = f" {ended.status}"
            is_fault = ended.status >= 500 or (code == INTERNAL_ERROR and not self._asks_for_none(ended))
            cause = Reason(ended.upstream, f"{failure}{kind}", is_fault)
        if told or metrics.recent.is_watched:
            row = {name: getattr(ended, name) for name in ("upstream", "kind", "status", "seconds")}
            metrics.recent.request(cause, **row, method=named(ended.method), why=str(told.get("why", "")))
        did, has_key = None, caller is not None or ended.exchange is None
        if self._audits and has_key and message is not None and message.is_request:
            did = _ACTIONS.get(message.method or "") or ("create" if message.asks_task else None)
        if did is None and not log.isEnabledFor(self._level if cause is None else logging.INFO):
            return
        said = {**_said(ended), "seconds": round(ended.seconds, 6), **told}
        log.log(self._level, "request", extra=said)
        if cause is not None:
            self.failed.say(
                log, logging.INFO, "failed", {**said, **({} if caller is None else _digests(caller.key))}, cause
            )
        if did is not None and message is not None:
            tool = {"tool": message.tool} if did == "create" else {}
            task_id = ended.made or message.task_id
            key = STDIO if caller is None else caller.key
            _audit(did, key, "" if task_id is None else digest_of(task_id), tool | said)

    def _asks_for_none(self, ended: EndedRequest) -> bool:
        """Whether a request is for the result of a cancelled task: the TypeScript SDK answers -32603."""
        lives, message = self.metrics.lives, ended.message
        if lives is None or message is None or message.method != "tasks/result" or message.task_id is None:
            return False
        return lives.was_cancelled(STDIO if ended.caller is None else ended.caller.key, message.task_id)

    def task_ended(self, viewer: Key, tool: str, status: str, digest: str) -> None:
        """A task has ended, as `viewer` was told, or as nobody saw it since."""
        _audit("end", viewer, digest, {"upstream": viewer.upstream, "tool": tool, "task_status": status})


def why(ended: EndedRequest) -> dict[str, object]:
    """What failed, and why; empty if nothing did."""
    error, code, status = ended.error, ended.code, ended.status
    said: dict[str, object] = {} if code is None else {"code": code}
    if error is not None:
        return {**said, "failure": error.kind, "why": str(error)}
    if code is not None:
        return {**said, "failure": "JsonRpcError", "why": f"the answer is the JSON-RPC error {code}"}
    if status == CLIENT_LEFT:
        if ended.exchange is not None and ended.exchange.request.is_cut:
            return {"failure": "RequestCut", "why": "the client left before its request was whole"}
        return {"failure": "ClientLeft", "why": "the client left before a response began"}
    return {"failure": "UpstreamStatus", "why": f"the upstream answered {status}"} if status >= 500 else {}


def _refusal(ended: EndedRequest) -> dict[str, object]:
    """That the upstream refused a message, and what that says of the address; empty if it did not."""
    status, message, caller = ended.status, ended.message, ended.caller
    if ended.exchange is None or caller is None or message is None or status not in REFUSALS:
        return {}
    says = status < 400 or message.method == "initialize"
    said = caller.misplaced(status, ended.exchange.location) if says else ""
    is_elsewhere = caller.target.partition(b"?")[0].decode("latin-1") != caller.upstream.url.path
    failure = "OtherPath" if said and is_elsewhere else "UpstreamStatus"
    return {"failure": failure, "why": f"the upstream answered {status}{': ' * bool(said)}{said}"}


def _said(ended: EndedRequest) -> dict[str, object]:
    said: dict[str, object] = {"upstream": ended.upstream, "kind": ended.kind}
    if ended.message is not None and ended.message.method is not None:
        said["method"] = ended.message.method[:_METHOD_CHARS_MAX]
    if ended.exchange is not None:
        head = ended.exchange.request.head
        said["http_method"] = head.method.decode("latin-1")
        said["path"] = head.target.partition(b"?")[0].decode("latin-1")[:_PATH_CHARS_MAX]
        said["client"] = ended.exchange.connection.address
        if (given := head.headers.get(b"x-request-id") or head.headers.get(b"traceparent")) is not None:
            said["request_id"] = given.decode("latin-1")[:_ID_CHARS_MAX]
        said["status"] = ended.status
    return said


def _audit(did: str, key: Key, task: str, said: dict[str, object]) -> None:
    """Write a line of the audit. `said` is what the request's line says."""
    named = {"task": task} if task else {}
    audit_log.info("audit", extra={"action": did, **_digests(key), **named, **said})


def _digests(key: Key) -> dict[str, str]:
    """What stands for the caller and the session, where there are any: over stdio there is neither."""
    digests = {"caller": key.identity.hex(), "session": key.session.hex()}
    return {name: digest for name, digest in digests.items() if digest}
