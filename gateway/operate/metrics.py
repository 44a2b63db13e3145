"""What an operator can see on `/metrics`. The values of a label come from a list that cannot grow."""

import platform
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from importlib.metadata import version
from itertools import accumulate, chain
from time import monotonic, time
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec import Struct
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from gateway.errors import GatewayError
from gateway.mcp.jsonrpc import Message
from gateway.operate.recent_failures import Recent
from gateway.tasks.interfaces import EndedQuery
from gateway.tasks.lifecycles import Lives

if TYPE_CHECKING:
    from gateway.downstream.exchange import Exchange
    from gateway.relay.caller import HttpCaller

VERSION: Final = version("taskgate")

# The bounds of histograms. A relayed ping takes 0.2 ms, a crawl minutes.
SECONDS: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300,
)  # fmt: skip
_OUTCOMES: Final = ("index", "refreshed", "coalesced", "refused", "failed")
UNANSWERED: Final = ("refused", "failed")
_WAIT: Final = frozenset({"GET", "tasks/result", "subscriptions/listen"})  # for news: their time says nothing
_REFUSALS: Final = ("connections_max", "descriptors")
_HANDSHAKES: Final = ("broken", "certificate", "cipher", "client_left", "not_tls", "plain_http", "timeout", "version")

# A client may send any method. Only these become values of the label; all others are `other`.
_METHODS: Final = frozenset(
    {
        *("initialize", "ping", "tools/list", "tools/call", "prompts/list", "prompts/get", "completion/complete"),
        *("resources/list", "resources/read", "resources/templates/list", "resources/subscribe"),
        *("resources/unsubscribe", "logging/setLevel", "server/discover", "subscriptions/listen"),
        *("tasks/list", "tasks/get", "tasks/cancel", "tasks/result"),
        *("notifications/initialized", "notifications/cancelled", "notifications/progress"),
        *("GET", "POST", "DELETE", "HEAD", "OPTIONS", "PUT", "PATCH"),
    }
)

# The codes that JSON-RPC and MCP name, and -32000, the gateway's own. All others are `other`.
_CODES: Final = frozenset({-32700, -32000, -32600, -32601, -32602, -32603, -32002, -32042})

_UNTRACED: Final = nullcontext()  # the spans of steps are made in `traces.py`

Gauge: TypeAlias = tuple[str, float | Mapping[str, float]]
"""A help text, and a value; or values by upstream."""


def named(method: str) -> str:
    """The value of the label for a method."""
    return method if method in _METHODS else "other"


def coded(code: int) -> str:
    """The value of the label for a code of JSON-RPC."""
    return str(code) if code in _CODES else "other"


class EndedRequest(Struct):
    """A request of a client that has ended, with an answer that may not be whole."""

    upstream: str
    kind: str  # relayed, answered or refused
    method: str  # of its message, else of HTTP
    status: int
    seconds: float
    error: GatewayError | None  # of the gateway's, if it got one
    code: int | None  # of an error of JSON-RPC
    is_whole: bool
    message: Message | None = None
    made: str | None = None  # the id of the task that its answer has
    exchange: "Exchange | None" = None  # over HTTP
    caller: "HttpCaller | None" = None  # over HTTP, if its upstream is known


class Metrics:
    """All metrics of one gateway, in a registry of their own. `tasks/interfaces.py` says what it counts of queries."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._families = _Families()
        self.registry.register(self._families)
        self.recent = Recent(time)
        self.reload_succeeded, self.reloaded_at = True, time()
        self.began_at = self.reloaded_at
        self.lives: Lives | None = None
        """The tasks that were seen, if they are counted."""
        self._counters()
        histogram, whole = self._families.histogram, "Time until a response was whole."
        self._durations = histogram("request_duration_seconds", whole, "upstream", "kind", "method")
        head = "Time until the head of a response; without GETs of clients and tasks/result, which wait for news."
        self._response_seconds = histogram("upstream_response_seconds", head, "upstream")
        self._answers: defaultdict[str, list[int]] = defaultdict(lambda: [0] * (len(SECONDS) + 1))  # for the page
        self._crawl_seconds = histogram("crawl_duration_seconds", "Time that a crawl took.", "upstream")
        self.gauges(self._own_gauges)

    def _counters(self) -> None:
        counter = self._families.counter
        self._requests = counter("requests", "Requests of clients.", "upstream", "kind", "method", "status")
        self._made = counter("upstream_requests", "Requests made upstream.", "upstream", "method")
        queries = "Filtered tasks/list: served from the index, refreshed, coalesced, refused, failed."
        self._queries = counter("queries", queries, "upstream", "outcome")
        self._pages = counter("crawl_pages", "Pages of tasks/list that crawls read.", "upstream")
        spared = "Requests that paging by hand would have cost beyond those made."
        self._spared_requests = counter("spared_requests", spared, "upstream")
        spared = "Bytes of task lists that clients did not have to fetch."
        self._spared_bytes = counter("spared_bytes", spared, "upstream")
        drifting = "Requests of another caller each, in sessions whose credential stays."
        self._drifting = counter("drifting_requests", drifting, "upstream")
        self._failures = counter("failures", "Requests that got an error of the gateway's.", "upstream", "kind")
        errors = "JSON-RPC errors that clients got, the gateway's own included."
        self._rpc_errors = counter("jsonrpc_errors", errors, "upstream", "code")
        refused = "Connections of clients that were not served."
        self.connection_refused = counter("connections_refused", refused, "why", known=_REFUSALS).count
        handshakes = "TLS handshakes of clients that failed."
        self.handshake_failed = counter("tls_handshake_failures", handshakes, "reason", known=_HANDSHAKES).count
        store = "Failures of the store, which the gateway works without."
        self.store_failed = counter("store_failures", store, "why").count
        self.drifted, self.crawl_page = self._drifting.count, self._pages.count

    def serves(self, upstreams: Collection[str], counts_tasks: bool, changed: Collection[str] = ()) -> None:
        """Show these upstreams from now on, with counts of 0; the `changed` ones are other servers."""
        self.lives = (self.lives or Lives(monotonic, time)) if counts_tasks else None
        if self.lives is not None:
            self.lives.keep(upstreams, changed)
        kinds = [kind.__name__ for kind in GatewayError.__subclasses__()]
        for name in upstreams:  # a counter that begins at 1 hides its first event from `rate`
            for counts in (self._pages, self._spared_requests, self._spared_bytes, self._drifting):
                counts.setdefault((name,), 0)
            for outcome in _OUTCOMES:
                self._queries.setdefault((name, outcome), 0)
            for kind in kinds:
                self._failures.setdefault((name, kind), 0)

    def request(self, ended: EndedRequest) -> None:
        upstream, kind, method, seconds = ended.upstream, ended.kind, ended.method, ended.seconds
        method = method if method in _METHODS else "other"  # as `named` has it, without the cost of a call
        self._requests[upstream, kind, method, ended.status] += 1
        durations, at = self._durations[upstream, kind, method], bisect_left(SECONDS, seconds)
        durations.seconds += seconds
        durations.counts[at] += 1
        if ended.is_whole and ended.error is None and method not in _WAIT:
            self._answers[upstream][at] += 1
        if ended.error is not None:
            self._failures[upstream, ended.error.kind] += 1
        if ended.code is not None:
            self._rpc_errors[upstream, coded(ended.code)] += 1

    def upstream_request(self, upstream: str, method: str) -> None:
        """A request goes out; `method` is its JSON-RPC method, or its HTTP method if it carries no message."""
        self._made[upstream, method if method in _METHODS else "other"] += 1

    def made(self) -> int:
        return int(sum(self._made.values()))

    def responses(self, upstream: str) -> Callable[[float], None]:
        """A function that takes the seconds until a response of the upstream's began."""
        return self._response_seconds[(upstream,)].add

    def crawl(self, upstream: str, seconds: float) -> None:
        self._crawl_seconds[(upstream,)].add(seconds)

    def query(self, ended: EndedQuery) -> None:
        self._queries[ended.upstream, ended.outcome] += 1
        if ended.outcome not in UNANSWERED:
            self._spared_requests[(ended.upstream,)] += ended.spared_requests
            self._spared_bytes[(ended.upstream,)] += ended.spared_bytes
        self.recent.query(**asdict(ended))

    def plan(self, upstream: str, reason: str) -> AbstractContextManager[None]:
        return _UNTRACED

    def asking(self, upstream: str, method: str) -> AbstractContextManager[None]:
        self.upstream_request(upstream, method)
        return _UNTRACED

    def saved(self) -> dict[str, int]:
        """What queries have spared, at all upstreams together."""
        answered = dict.fromkeys(_OUTCOMES, 0)
        for (_, outcome), queries in self._queries.items():
            answered[str(outcome)] += queries
        return {
            "requests": sum(self._spared_requests.values()),
            "bytes": sum(self._spared_bytes.values()),
            "queries": sum(answered.values()) - sum(answered[outcome] for outcome in UNANSWERED),
            "at_once": answered["index"],
        }

    def traffic(self) -> tuple[dict[str, int], dict[str, tuple[int, ...]]]:
        """The requests of each upstream since the start, and how many answers were whole within each of `SECONDS`."""
        requests: dict[str, int] = defaultdict(int)
        for labels, count in self._requests.items():
            requests[str(labels[0])] += count
        return requests, {upstream: tuple(counts) for upstream, counts in self._answers.items()}

    def reloaded(self, succeeded: bool) -> None:
        """The configuration was read anew: it is in force, or was refused."""
        self.reload_succeeded = succeeded
        if succeeded:
            self.reloaded_at = time()

    def gauges(self, read: Callable[[], dict[str, Gauge]]) -> None:
        """Add gauges: at each scrape `read` returns them by name."""
        self._families.gauges.append(read)

    def _own_gauges(self) -> dict[str, Gauge]:
        succeeded, at = float(self.reload_succeeded), self.reloaded_at
        return {
            "config_last_reload_successful": ("1 if the last reload is in force, or there was none.", succeeded),
            "config_last_reload_success_timestamp_seconds": ("When the configuration in force was read.", at),
        }


class _Durations:
    """How many took how long: counts by bucket, the last one for what is beyond all buckets, and the sum in seconds."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(SECONDS) + 1)
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        self.seconds += seconds
        self.counts[bisect_left(SECONDS, seconds)] += 1


class _ByLabels(defaultdict[tuple[str | int, ...], int]):
    """The values of a counter, by those of its labels."""

    def count(self, value: str) -> None:
        """Count one more, where there is one label."""
        self[(value,)] += 1


_Histogram: TypeAlias = defaultdict[tuple[str, ...], _Durations]


class _Families(Collector):
    """Counters and histograms, as tables by the values of their labels; and gauges, which are read at each scrape."""

    def __init__(self) -> None:
        self._counters: list[tuple[str, str, tuple[str, ...], _ByLabels]] = []
        self._histograms: list[tuple[str, str, tuple[str, ...], _Histogram]] = []
        self.gauges: list[Callable[[], dict[str, Gauge]]] = []

    def counter(self, name: str, text: str, *labels: str, known: Iterable[str] = ()) -> _ByLabels:
        """A new counter: the table to count in. The `known` values of its one label are shown from the start."""
        counts: _ByLabels = _ByLabels(int, {(value,): 0 for value in known})
        self._counters.append((name, text, labels, counts))
        return counts

    def histogram(self, name: str, text: str, *labels: str) -> _Histogram:
        durations: _Histogram = defaultdict(_Durations)
        self._histograms.append((name, text, labels, durations))
        return durations

    def collect(self) -> Iterator[Metric]:
        for name, text, labels, counts in self._counters:
            counter = CounterMetricFamily(f"taskgate_{name}", text, labels=labels)
            for values, count in counts.items():
                counter.add_metric([str(value) for value in values], count)
            yield counter
        bounds = [*map(floatToGoString, SECONDS), "+Inf"]
        for name, text, labels, durations in self._histograms:
            histogram = HistogramMetricFamily(f"taskgate_{name}", text, labels=labels)
            for given, each in durations.items():
                histogram.add_metric(given, list(zip(bounds, accumulate(each.counts), strict=True)), each.seconds)
            yield histogram
        build = GaugeMetricFamily("taskgate_build_info", "What runs; always 1.", labels=["version", "python"])
        build.add_metric([VERSION, platform.python_version()], 1.0)
        yield build
        for name, (text, value) in chain.from_iterable(read().items() for read in self.gauges):
            if not isinstance(value, Mapping):
                yield GaugeMetricFamily(f"taskgate_{name}", text, value)
                continue
            gauge = GaugeMetricFamily(f"taskgate_{name}", text, labels=["upstream"])
            for upstream, number in value.items():
                gauge.add_metric([upstream], number)
            yield gauge
