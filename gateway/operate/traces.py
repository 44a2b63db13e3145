"""Traces: spans of requests, sent over OTLP/HTTP. Off unless configured: nothing else knows OpenTelemetry.

    a request, relayed or answered        from its record, when it has ended
    └── plan                              of a query: what must be asked, and why
        └── tasks/list, tasks/get         each request of its refresh

The parent of a request is the `traceparent` of its message (SEP-414), else of its header; it also decides whether the
request is sampled. A span has no id of a session, no token, path, query string or body, and nothing of `tracestate`.
Spans wait in a queue of limited length for a thread of their own, and are dropped when it is full.
"""

import asyncio
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import Thread
from time import time_ns
from typing import Final

from opentelemetry import context, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from gateway.config import Url
from gateway.downstream.exchange import Exchange
from gateway.errors import GatewayError, UpstreamRefused
from gateway.mcp import jsonrpc
from gateway.mcp.client_message import ClientMessage
from gateway.operate.access_log import AccessLog, why
from gateway.operate.metrics import UNANSWERED, VERSION, EndedRequest, Metrics, named
from gateway.tasks.transport_interfaces import EndedQuery

_PATH: Final = "/v1/traces"  # of a collector, unless its URL has another
_FLUSH_S: Final = 2.0  # for the last spans, at the end of the process

# OpenTelemetry's conventions. Those for MCP are in docs/gen-ai/mcp.md; later versions have moved them elsewhere.
_CONVENTIONS: Final = "https://opentelemetry.io/schemas/1.39.0"
_ID_CHARS_MAX: Final = 128  # of a request's id, and of a traceparent
_REVISION: Final = re.compile(rb"[0-9]{4}-[0-9]{2}-[0-9]{2}")

_W3C: Final = TraceContextTextMapPropagator()


class Tracing:
    """The way of spans to the collector at `endpoint`. The variables `OTEL_*` set all else that can be set."""

    def __init__(self, endpoint: Url) -> None:
        """Raises ValueError if a variable has a value that it may not have."""
        url = f"{endpoint.scheme}://{endpoint.authority}{_PATH if endpoint.path == '/' else endpoint.path}"
        own = Resource.create({"service.name": "taskgate", "service.version": VERSION})
        self._provider = TracerProvider(resource=own.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(url)))
        self.tracer = self._provider.get_tracer("taskgate", schema_url=_CONVENTIONS)

    async def close(self) -> None:
        """Send what waits, for a while. What is then left is lost."""
        sending = Thread(target=self._provider.shutdown, daemon=True)  # a daemon holds up no exit
        sending.start()
        await asyncio.to_thread(sending.join, _FLUSH_S)


class TracedAccessLog(AccessLog):
    metrics: "TracedMetrics"

    def began(self, message: ClientMessage | None, exchange: Exchange | None) -> None:
        """A query begins. Its span is the current one, so that steps of the query are its children."""
        context.attach(trace.set_span_in_context(self._begin(message, exchange, time_ns())))

    def _end(self, ended: EndedRequest) -> None:
        try:
            super()._end(ended)
        finally:
            now = time_ns()
            if (span := trace.get_current_span()) is trace.INVALID_SPAN:
                span = self._begin(ended.message, ended.exchange, now - round(ended.seconds * 1e9))
            else:  # that of a query; the next request of the connection inherits the context of this one
                context.attach(context.Context())
            if span.is_recording():
                _say(span, ended)
            span.end(now)

    def _begin(self, message: ClientMessage | None, exchange: Exchange | None, began_ns: int) -> Span:
        """A span below the first valid `traceparent` of the message and the header; the other is a link."""
        given = ["" if message is None else message.traceparent]
        if exchange is not None:
            given.append((exchange.request.head.headers.get(b"traceparent") or b"").decode("latin-1"))
        parents = [parent for each in given if (parent := _context(each)).is_valid]
        above = trace.set_span_in_context(trace.NonRecordingSpan(parents[0])) if parents else context.Context()
        links = [Link(other) for other in parents[1:] if other != parents[0]]
        return self.metrics.tracer.start_span("request", above, SpanKind.SERVER, links=links, start_time=began_ns)


def _say(span: Span, ended: EndedRequest) -> None:
    message, exchange, code = ended.message, ended.exchange, ended.code
    said, name = {"taskgate.kind": ended.kind, "network.transport": "pipe"}, "request"
    if exchange is not None:
        name = said["http.request.method"] = named(exchange.request.head.method.decode("latin-1"))
        span.set_attribute("http.response.status_code", ended.status)
        said["network.transport"] = "unix" if exchange.connection.address == "unix" else "tcp"
        revision = exchange.request.head.headers.get(b"mcp-protocol-version")
        if revision is not None and _REVISION.fullmatch(revision):
            said["mcp.protocol.version"] = revision.decode()
        if isinstance(ended.error, UpstreamRefused):
            code = exchange.error_code
    if exchange is None or ended.caller is not None:
        said["taskgate.upstream"] = ended.upstream
    if message is not None and message.method is not None:
        name = said["mcp.method.name"] = named(message.method)
        if message.is_request and (message_id := _text(message.id)):
            said["jsonrpc.request.id"] = message_id
    if code is not None:
        said["rpc.response.status_code"] = str(code)
    if failed := why(ended):
        said["error.type"] = str(failed["failure"])
        span.set_status(StatusCode.ERROR)
    span.update_name(name)
    span.set_attributes(said)


def _text(data: bytes) -> str:
    """The text of a raw string or number, not too long; empty for all else."""
    if data[:1] not in b'"-0123456789':
        return ""
    found = jsonrpc.id_of(data)
    return (found if isinstance(found, str) else found.decode("latin-1"))[:_ID_CHARS_MAX]


def _context(traceparent: str) -> SpanContext:
    """The context in a `traceparent`, perhaps not valid, without `tracestate`: that may have anything in it."""
    carrier = {"traceparent": traceparent}
    return trace.get_current_span(_W3C.extract(carrier, context.Context())).get_span_context()


class TracedMetrics(Metrics):
    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self.tracer = tracer

    def query(self, ended: EndedQuery) -> None:
        super().query(ended)
        span = trace.get_current_span()
        span.set_attribute("taskgate.outcome", ended.outcome)
        if ended.outcome not in UNANSWERED:  # else the reason is the error's, which may repeat what the upstream said
            span.set_attribute("taskgate.reason", ended.reason)
            span.set_attribute("taskgate.upstream_requests", ended.requests)
            span.set_attribute("taskgate.spared_requests", ended.spared_requests)
            span.set_attribute("taskgate.tasks", ended.tasks)
            span.set_attribute("taskgate.total", ended.total)

    def plan(self, upstream: str, reason: str) -> AbstractContextManager[None]:
        return self._step("plan", SpanKind.INTERNAL, {"taskgate.upstream": upstream, "taskgate.reason": reason})

    def asking(self, upstream: str, method: str) -> AbstractContextManager[None]:
        self.upstream_request(upstream, method)
        return self._step(method, SpanKind.CLIENT, {"taskgate.upstream": upstream, "mcp.method.name": method})

    @contextmanager
    def _step(self, name: str, kind: SpanKind, said: dict[str, str]) -> Iterator[None]:
        """A span of a step, which lasts as long as the context. Its error is known by its class alone."""
        with self.tracer.start_as_current_span(
            name, kind=kind, attributes=said, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield
            except GatewayError as error:
                span.set_attribute("error.type", error.kind)
                span.set_status(StatusCode.ERROR)
                raise
