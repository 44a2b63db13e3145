"""The record of each request that has ended: metrics, a line of the log, a line of the audit, a row of the page.

    a failure of the gateway's             failed, at info: what failed, and why
    an upstream's status of 500 or above   failed, at info
    a JSON-RPC error                       failed, at info: its code
    the client left before the answer      failed, at info
    anything else                          request, at info with `log.access`, else at debug

In: a request, its response, its error. Out: one line, with the fields that find the request in other logs.
Always: no token, query string or body; no id of a session or a task.
"""

import logging
from typing import Final, Protocol, cast

from gateway.config import Log, StdioLog
from gateway.errors import GatewayError, UpstreamRefused
from gateway.mcp.jsonrpc import INTERNAL_ERROR, Message
from gateway.operate import audit
from gateway.operate.logs import printable
from gateway.operate.metrics import Metrics, coded, named
from gateway.operate.recent import Reason

log = logging.getLogger("taskgate.request")

CLIENT_LEFT: Final = 499  # the status of a request whose client left before a response began, as nginx has it
_METHOD_CHARS_MAX: Final = 100
_PATH_CHARS_MAX: Final = 200
_ID_CHARS_MAX: Final = 128


class LoggedFields(Protocol):
    """The header fields of a request."""

    def get(self, name: bytes) -> bytes | None:
        """The value of the field of that name, in lower case."""


class LoggedWire(Protocol):
    """The connection of a request."""

    @property
    def address(self) -> str:
        """The client's address."""


class LoggedUpstream(Protocol):
    """The upstream of a request."""

    @property
    def name(self) -> str: ...


class LoggedCaller(audit.AuditedCaller, Protocol):
    """The caller of a request, and its upstream."""

    @property
    def upstream(self) -> LoggedUpstream: ...


class LoggedRequest(Protocol):
    """A client's request. `status`, `error_code` and `task_id` say what came of it, once it has ended."""

    method: bytes
    target: bytes
    status: int
    error_code: int | None
    task_id: str | None
    traceparent: str

    @property
    def headers(self) -> LoggedFields: ...

    @property
    def connection(self) -> LoggedWire: ...


class Journal:
    """Records each request that has ended. It is also told when a query begins."""

    def __init__(self, metrics: Metrics, config: Log) -> None:
        self._metrics = metrics
        self._level = logging.INFO if config.access else logging.DEBUG
        self._audits = config.audit

    def began(self, request: LoggedRequest, message: Message | None) -> None:
        """A query begins. `ended` follows."""

    def traceparent(self, message: Message) -> str:
        """The `traceparent` of a message that is not kept; empty if it has none, or if no span is made."""
        return ""

    def ended(
        self,
        request: LoggedRequest,
        caller: LoggedCaller | None,
        kind: str,
        message: Message | None,
        seconds: float,
        error: GatewayError | None,
    ) -> None:
        """A request has ended. `kind` is relayed, answered or refused; `message` is the message in its body."""
        upstream = caller.upstream.name if caller is not None else ""
        status, code = request.status or CLIENT_LEFT, request.error_code
        if error is not None:
            code = None if isinstance(error, UpstreamRefused) else error.code
        method = message.method if message is not None else None
        told = count(self._metrics, upstream, kind, method or request.method.decode(), status, seconds, error, code)
        level = logging.INFO if told else self._level
        did = audit.action(message) if self._audits and caller is not None else None
        if did is None and not log.isEnabledFor(level):
            return
        said = _said(request, upstream, kind, method, status, seconds)
        said |= told
        log.log(level, "failed" if told else "request", extra=said)
        if did is not None and caller is not None and message is not None:
            audit.write(did, caller, audit.task_of(message, request.task_id), said)


class StdioJournal:
    """The same over stdio: one client, one session, no status; a line of the log does not tell them apart."""

    digests = b"", b""

    def __init__(self, metrics: Metrics, config: StdioLog, upstream: str) -> None:
        self._metrics = metrics
        self._level = logging.INFO if config.access else logging.DEBUG
        self._audits = config.audit
        self._upstream = upstream

    def ended(
        self,
        kind: str,
        message: Message,
        seconds: float,
        traceparent: str,
        code: int | None,
        error: GatewayError | None,
        task_id: str | None,
    ) -> None:
        """A request was answered, by an error if there is a `code`; `task_id` is that of the task in the answer."""
        metrics, upstream, method = self._metrics, self._upstream, message.method or ""
        told = count(metrics, upstream, kind, method, 200, seconds, error, code)
        if metrics.spans is not None:
            metrics.spans.done(kind, message, traceparent, seconds, code, str(told.get("failure", "")))
        said = {"upstream": upstream, "kind": kind, "method": method[:_METHOD_CHARS_MAX], "seconds": round(seconds, 6)}
        said |= told
        log.log(logging.INFO if told else self._level, "failed" if told else "request", extra=said)
        if self._audits and (did := audit.action(message)) is not None:
            audit.write(did, self, audit.task_of(message, task_id), said)


def count(
    metrics: Metrics,
    upstream: str,
    kind: str,
    method: str,
    status: int,
    seconds: float,
    error: GatewayError | None,
    code: int | None,
) -> dict[str, object]:
    """Count a request, and show it on the page; if it failed, with the others that failed so. Returns why it failed."""
    metrics.request(upstream, kind, method, status, seconds)
    if error is not None:
        metrics.failure(upstream, error.kind)
    if code is not None:
        metrics.rpc_error(upstream, code)
    told = why(error, code, status)
    if told or metrics.recent.is_watched:
        metrics.recent.request(
            Reason(upstream, _failure(told, status), status >= 500 or code == INTERNAL_ERROR) if told else None,
            upstream=upstream,
            kind=kind,
            method=named(method),
            status=status,
            seconds=seconds,
            why=printable(str(told.get("why", ""))),
        )
    return told


def why(error: GatewayError | None, code: int | None, status: int) -> dict[str, object]:
    """Why a request failed; empty if it did not."""
    said: dict[str, object] = {} if code is None else {"code": code}
    if error is not None:
        return {**said, "failure": error.kind, "why": str(error)}
    if code is not None:
        return {**said, "failure": "JsonRpcError", "why": f"the answer is the JSON-RPC error {code}"}
    if status == CLIENT_LEFT:
        return {"failure": "ClientLeft", "why": "the client left before a response began"}
    return {"failure": "UpstreamStatus", "why": f"the upstream answered {status}"} if status >= 500 else {}


def _failure(said: dict[str, object], status: int) -> str:
    """What failed, as the page groups it: the name in the log, and the code or status if it tells kinds apart."""
    failure = str(said["failure"])
    if failure == "JsonRpcError":
        return f"{failure} {coded(cast(int, said['code']))}"
    return f"{failure} {status}" if failure in ("UpstreamStatus", "UpstreamRefused") else failure


def _said(
    request: LoggedRequest, upstream: str, kind: str, method: str | None, status: int, seconds: float
) -> dict[str, object]:
    """The fields of a request's line: those that find it in other logs, and its outcome."""
    said: dict[str, object] = {"upstream": upstream, "kind": kind, "http_method": request.method.decode("latin-1")}
    if method is not None:
        said["method"] = method[:_METHOD_CHARS_MAX]
    said["path"] = request.target.partition(b"?")[0].decode("latin-1")[:_PATH_CHARS_MAX]
    said["client"] = request.connection.address
    given = request.headers.get(b"x-request-id") or request.headers.get(b"traceparent")
    if given is not None:
        said["request_id"] = given.decode("latin-1")[:_ID_CHARS_MAX]
    return {**said, "status": status, "seconds": round(seconds, 6)}
