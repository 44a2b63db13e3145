"""What an operator can see on `/metrics`.

In: what happened. Out: Prometheus metrics, `taskgate_<noun>_<unit>`. Always: a label's values are few and known
beforehand; no session id, no task id, no token is ever one.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)

# A client names the method; only these become a label.
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


class Metrics:
    """All metrics of one gateway, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._tallies = _Tallies()
        self.registry.register(self._tallies)
        self.queries = self._counter(
            "queries",
            "Filtered tasks/list: served from the index, refreshed, coalesced, scanned.",
            "upstream",
            "outcome",
        )
        self.crawl_pages = self._counter("crawl_pages", "Pages of tasks/list that crawls read.", "upstream")
        self.crawl_seconds = self._histogram("crawl_duration_seconds", "Time that a crawl took.", "upstream")
        self.spared_requests = self._counter(
            "spared_requests", "Requests that paging by hand would have cost beyond those made.", "upstream"
        )
        self.spared_bytes = self._counter(
            "spared_bytes", "Bytes of task lists that clients did not have to fetch.", "upstream"
        )
        self._failures = self._counter("failures", "Requests that got an error of the gateway's.", "upstream", "kind")
        self._refused = self._counter("connections_refused", "Connections of clients that were not served.", "why")

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"taskgate_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(f"taskgate_{name}", text, labels, buckets=_SECONDS, registry=self.registry)

    def request(self, upstream: str, kind: str, status: int, seconds: float) -> None:
        """A client's request has ended; `kind` is relayed, answered or refused."""
        self._tallies.requests[upstream, kind, status] += 1
        durations = self._tallies.durations[upstream, kind]
        durations.seconds += seconds
        durations.counts[bisect_left(_SECONDS, seconds)] += 1

    def upstream_request(self, upstream: str, method: str) -> None:
        """A request goes out; `method` is its JSON-RPC method, or its HTTP method if it carries no message."""
        self._tallies.upstream_requests[upstream, method if method in _METHODS else "other"] += 1

    def failure(self, upstream: str, kind: str) -> None:
        """A request got an error of the gateway's; `kind` is the error's class."""
        self._failures.labels(upstream, kind).inc()

    def connection_refused(self, why: str) -> None:
        """Connections of clients are not served: `connections_max` is reached, or no file descriptors are left."""
        self._refused.labels(why).inc()

    def gauges(self, read: Callable[[], dict[str, tuple[str, float]]]) -> None:
        """Gauges that `read` gives when they are asked for: name to (help, value)."""
        self.registry.register(_Gauges(read))

    def exposition(self) -> bytes:
        """The text that Prometheus scrapes."""
        return generate_latest(self.registry)


class _Durations:
    """How many took how long: counts by bucket, the last one beyond them all, and the sum in seconds."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(_SECONDS) + 1)
        self.seconds = 0.0


class _Tallies(Collector):
    """What every request counts, as plain numbers: they become metrics when they are scraped."""

    def __init__(self) -> None:
        self.requests: defaultdict[tuple[str, str, int], int] = defaultdict(int)
        self.durations: defaultdict[tuple[str, str], _Durations] = defaultdict(_Durations)
        self.upstream_requests: defaultdict[tuple[str, str], int] = defaultdict(int)

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "taskgate_requests", "Requests of clients.", labels=["upstream", "kind", "status"]
        )
        for (upstream, kind, status), count in self.requests.items():
            requests.add_metric([upstream, kind, str(status)], count)
        yield requests
        seconds = HistogramMetricFamily(
            "taskgate_request_duration_seconds", "Time until a response was whole.", labels=["upstream", "kind"]
        )
        for labels, durations in self.durations.items():
            bounds = [*map(floatToGoString, _SECONDS), "+Inf"]
            buckets = list(zip(bounds, accumulate(durations.counts), strict=True))
            seconds.add_metric(labels, buckets, durations.seconds)
        yield seconds
        made = CounterMetricFamily(
            "taskgate_upstream_requests", "Requests made upstream.", labels=["upstream", "method"]
        )
        for labels, count in self.upstream_requests.items():
            made.add_metric(labels, count)
        yield made


class _Gauges(Collector):
    def __init__(self, read: Callable[[], dict[str, tuple[str, float]]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        for name, (text, value) in self._read().items():
            yield GaugeMetricFamily(f"taskgate_{name}", text, value)
