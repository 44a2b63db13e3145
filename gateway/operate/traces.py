"""Traces: spans of requests, sent over OTLP/HTTP. Off unless configured: nothing else knows OpenTelemetry.

    a request, relayed or answered        from its record, when it has ended
    └── plan                              of a query: what must be asked, and why
        └── tasks/list, tasks/get         each request of its refresh

In: what the journal and the metrics are told. Out: spans. The parent of a request is the `traceparent` of its message
(SEP-414), else of its header; it also decides whether the request is sampled. Always: a span has no id of a session, no
token, path, query string or body, and nothing of `tracestate`. A collector that fails, is slow or is absent delays
nobody: spans wait in a queue of limited length for a thread of their own, and are dropped when it is full.
"""

import asyncio
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import version
from threading import Thread
from time import time_ns
from typing import Final

from msgspec import Raw
from opentelemetry import context, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from gateway.config import Log, Url
from gateway.errors import GatewayError, UpstreamRefused
from gateway.mcp import jsonrpc
from gateway.mcp.jsonrpc import Message
from gateway.operate.journal import CLIENT_LEFT, Journal, LoggedCaller, LoggedRequest, why
from gateway.operate.metrics import UNANSWERED, CountedQuery, Metrics, named

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
        own = Resource.create({"service.name": "taskgate", "service.version": version("taskgate")})
        self._provider = TracerProvider(resource=own.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(url)))
        self._tracer = self._provider.get_tracer("taskgate", schema_url=_CONVENTIONS)

    @classmethod
    def check(cls, endpoint: Url) -> None:
        """Raise ValueError unless spans can be sent as the variables say."""
        cls(endpoint)._provider.shutdown()

    def metrics(self) -> Metrics:
        """New metrics."""
        return TracedMetrics(self._tracer)

    def journal(self, metrics: Metrics, config: Log) -> Journal:
        """A new journal."""
        return TracedJournal(metrics, config, self._tracer)

    async def close(self) -> None:
        """Send what waits, for a while. What is then left is lost."""
        sending = Thread(target=self._provider.shutdown, daemon=True)  # a daemon holds up no exit
        sending.start()
        await asyncio.to_thread(sending.join, _FLUSH_S)


class TracedJournal(Journal):
    """A journal that makes a span of each request."""

    def __init__(self, metrics: Metrics, config: Log, tracer: Tracer) -> None:
        super().__init__(metrics, config)
        self._tracer = tracer

    def began(self, request: LoggedRequest, message: Message | None) -> None:
        """A query begins. Its span is the current one, so that steps of the query are its children."""
        context.attach(trace.set_span_in_context(self._begin(request, message, time_ns())))

    def traceparent(self, message: Message) -> str:
        return _traceparent(message)

    def ended(
        self,
        request: LoggedRequest,
        caller: LoggedCaller | None,
        kind: str,
        message: Message | None,
        seconds: float,
        error: GatewayError | None,
    ) -> None:
        try:
            super().ended(request, caller, kind, message, seconds, error)
        finally:
            now = time_ns()
            span = trace.get_current_span()
            if span is trace.INVALID_SPAN:
                span = self._begin(request, message, now - round(seconds * 1e9))
            else:
                context.attach(context.Context())  # the next request of the connection inherits the context of this one
            if span.is_recording():
                self._say(span, request, caller, kind, message, error)
            span.end(now)

    def _begin(self, request: LoggedRequest, message: Message | None, began_ns: int) -> Span:
        own = request.traceparent or (self.traceparent(message) if message is not None else "")
        of_http = (request.headers.get(b"traceparent") or b"").decode("latin-1")
        return _start(self._tracer, (own, of_http), began_ns)

    @staticmethod
    def _say(
        span: Span,
        request: LoggedRequest,
        caller: LoggedCaller | None,
        kind: str,
        message: Message | None,
        error: GatewayError | None,
    ) -> None:
        """Say in a span what the request was, and what came of it."""
        http_method, status = named(request.method.decode("latin-1")), request.status or CLIENT_LEFT
        span.set_attributes({"taskgate.kind": kind, "http.request.method": http_method})
        span.set_attribute("http.response.status_code", status)
        span.update_name(http_method)
        if message is not None:
            _say_message(span, message)
        span.set_attribute("network.transport", "unix" if request.connection.address == "unix" else "tcp")
        revision = request.headers.get(b"mcp-protocol-version")
        if revision is not None and _REVISION.fullmatch(revision):
            span.set_attribute("mcp.protocol.version", revision.decode())
        if caller is not None:
            span.set_attribute("taskgate.upstream", caller.upstream.name)
        code = request.error_code if error is None or isinstance(error, UpstreamRefused) else error.code
        failure = why(error, request.error_code, status).get("failure")
        _say_failure(span, code, None if failure is None else str(failure))


class StdioSpans:
    """Makes a span of each request over stdio. There a message alone says what its trace is."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def traceparent(self, message: Message) -> str:
        """The `traceparent` of a message that is not kept; empty if it has none."""
        return _traceparent(message)

    def began(self, message: Message) -> None:
        """A query begins, in a task of its own. Its span is the current one there."""
        span = _start(self._tracer, (_traceparent(message),), time_ns())
        context.attach(trace.set_span_in_context(span))

    def done(
        self, kind: str, message: Message, traceparent: str, seconds: float, code: int | None, failure: str
    ) -> None:
        """A request was answered; if there is a `code`, by an error."""
        now, span = time_ns(), trace.get_current_span()
        if span is trace.INVALID_SPAN:
            span = _start(self._tracer, (traceparent or _traceparent(message),), now - round(seconds * 1e9))
        if span.is_recording():
            span.set_attributes({"taskgate.kind": kind, "taskgate.upstream": "stdio", "network.transport": "pipe"})
            _say_message(span, message)
            _say_failure(span, code, None if code is None else failure)
        span.end(now)


def _start(tracer: Tracer, traceparents: tuple[str, ...], began_ns: int) -> Span:
    """A span below the first valid one of `traceparents`, with links to others."""
    parents = [parent for given in traceparents if (parent := _context(given)).is_valid]
    above = trace.set_span_in_context(trace.NonRecordingSpan(parents[0])) if parents else context.Context()
    links = [Link(other) for other in parents[1:] if other != parents[0]]
    return tracer.start_span("request", above, SpanKind.SERVER, links=links, start_time=began_ns)


def _say_message(span: Span, message: Message) -> None:
    if message.method is None:
        return
    span.update_name(named(message.method))
    span.set_attribute("mcp.method.name", named(message.method))
    if message.is_request and (message_id := _text(message.id)):
        span.set_attribute("jsonrpc.request.id", message_id)


def _say_failure(span: Span, code: int | None, failure: str | None) -> None:
    if code is not None:
        span.set_attribute("rpc.response.status_code", str(code))
    if failure is not None:
        span.set_attribute("error.type", failure)
        span.set_status(StatusCode.ERROR)


def _traceparent(message: Message) -> str:
    return _text(jsonrpc.member(jsonrpc.member(message.params, "_meta"), "traceparent"))


def _text(raw: Raw) -> str:
    """The text of a raw string or number, not too long; empty for all else."""
    data = bytes(raw)
    if data[:1] not in b'"-0123456789':
        return ""
    found = jsonrpc.id_of(raw)
    return (found if isinstance(found, str) else found.decode("latin-1"))[:_ID_CHARS_MAX]


def _context(traceparent: str) -> SpanContext:
    """The context in a `traceparent`; one that is not valid if there is none.

    `tracestate` stays out: what a client writes in it would stand in the span, or in the log if it is malformed.
    """
    carrier = {"traceparent": traceparent} if traceparent else {}
    return trace.get_current_span(_W3C.extract(carrier, context.Context())).get_span_context()


class TracedMetrics(Metrics):
    """Metrics that make a span of each step of a query, too."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self._tracer = tracer
        self.spans = StdioSpans(tracer)

    def query(self, ended: CountedQuery) -> None:
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
        with self._tracer.start_as_current_span(
            name, kind=kind, attributes=said, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield
            except GatewayError as error:
                span.set_attribute("error.type", error.kind)
                span.set_status(StatusCode.ERROR)
                raise
