"""Traces: spans of requests, sent over OTLP/HTTP. Off unless configured: nothing else knows OpenTelemetry.

    a request, relayed or answered        from its record, when it has ended
    └── plan                              of a query: what must be asked, and why
        └── tasks/list, tasks/get         each request of its refresh

In: what the journal and the metrics are told. Out: spans. The parent of a request is its `traceparent`, which also
decides whether it is sampled. Always: a span has no id of a session or a task, no token, path, query string or body,
and nothing of `tracestate`. A collector that fails, is slow or is absent delays nobody: spans wait in a queue of
limited length for a thread of their own, and are dropped when it is full.
"""

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import version
from threading import Thread
from time import time_ns
from typing import Final

from opentelemetry import context, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from gateway.config import Log, Url
from gateway.errors import GatewayError
from gateway.mcp.jsonrpc import Message
from gateway.operate.journal import CLIENT_LEFT, Journal, LoggedCaller, LoggedRequest, why
from gateway.operate.metrics import CountedQuery, Metrics, named

_PATH: Final = "/v1/traces"  # of a collector, unless its URL has another
_FLUSH_S: Final = 2.0  # for the last spans, at the end of the process

_W3C: Final = TraceContextTextMapPropagator()


class Tracing:
    """The way of spans to the collector at `endpoint`. The variables `OTEL_*` set all else that can be set."""

    def __init__(self, endpoint: Url) -> None:
        """Raises ValueError if a variable has a value that it may not have."""
        url = f"{endpoint.scheme}://{endpoint.authority}{_PATH if endpoint.path == '/' else endpoint.path}"
        own = Resource.create({"service.name": "taskgate", "service.version": version("taskgate")})
        self._provider = TracerProvider(resource=own.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(url)))
        self._tracer = self._provider.get_tracer("taskgate")

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

    def began(self, request: LoggedRequest) -> None:
        """A query begins. Its span is the current one, so that steps of the query are its children."""
        context.attach(trace.set_span_in_context(self._begin(request, time_ns())))

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
                span = self._begin(request, now - round(seconds * 1e9))
            else:
                context.attach(context.Context())  # the next request of the connection inherits the context of this one
            if span.is_recording():
                self._say(span, request, caller, kind, message, error)
            span.end(now)

    def _begin(self, request: LoggedRequest, began_ns: int) -> Span:
        # `tracestate` stays out: what a client writes in it would stand in the span, or in the log if it is malformed.
        given = request.headers.get(b"traceparent")
        carrier = {} if given is None else {"traceparent": given.decode("latin-1")}
        parent = _W3C.extract(carrier, context.Context())
        return self._tracer.start_span("request", parent, SpanKind.SERVER, start_time=began_ns)

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
        if message is not None and message.method is not None:
            span.update_name(named(message.method))
            span.set_attribute("mcp.method.name", named(message.method))
        if caller is not None:
            span.set_attribute("taskgate.upstream", caller.upstream.name)
        failure = why(error, request.error_code, status).get("failure")
        if failure is not None:
            span.set_attribute("error.type", str(failure))
            span.set_status(StatusCode.ERROR)


class TracedMetrics(Metrics):
    """Metrics that make a span of each step of a query, too."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self._tracer = tracer

    def query(self, ended: CountedQuery) -> None:
        super().query(ended)
        span = trace.get_current_span()
        span.set_attribute("taskgate.outcome", ended.outcome)
        if ended.outcome != "failed":  # else the reason is the error's, which may repeat what the upstream said
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
