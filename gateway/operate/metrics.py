"""What an operator can see on `/metrics`. The values of a label come from a list that cannot grow."""

import platform
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from itertools import accumulate, chain, product
from time import monotonic, time
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from msgspec import Struct
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from gateway.caller_identity import ServerKey
from gateway.errors import GatewayError, printable
from gateway.mcp.client_message import ClientMessage
from gateway.mcp.jsonrpc import CANNOT_ANSWER
from gateway.operate.recent_failures import Recent
from gateway.tasks.lifecycle_counts import DURATIONS, STARTED, UNHEARD, Lives, Series
from gateway.tasks.transport_interfaces import EndedQuery

if TYPE_CHECKING:
    from gateway.downstream.exchange import Exchange
    from gateway.relay.http_caller import HttpCaller

VERSION: Final = version("taskgate")

# The bounds of histograms. A relayed ping takes 0.2 ms, a crawl minutes.
SECONDS: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300,
)  # fmt: skip
REFUSALS: Final = frozenset((*range(300, 400), 401, 403, 404, 429))  # as TaskgateUpstreamRefuses has them
_OUTCOMES: Final = ("index", "refreshed", "coalesced", "refused", "failed")
UNANSWERED: Final = ("refused", "failed")
_WAIT: Final = frozenset({"GET", "tasks/result", "subscriptions/listen"})  # for news: their time says nothing

# By name the help text and the labels.
_COUNTERS: Final[dict[str, tuple[str, str]]] = {
    "requests": ("Requests of clients.", "upstream kind method status"),
    "upstream_requests": ("Requests made upstream.", "upstream method"),
    "queries": (
        "Filtered tasks/list: served from the index, refreshed, coalesced, refused, failed.",
        "upstream outcome",
    ),
    "crawl_pages": ("Pages of tasks/list that crawls read.", "upstream"),
    "spared_requests": ("Requests that paging by hand would have cost beyond those made.", "upstream"),
    "spared_bytes": ("Bytes of task lists that clients did not have to fetch.", "upstream"),
    "drifting_requests": ("Requests of another caller each, in sessions whose Authorization stays.", "upstream"),
    "failures": ("Requests that got an error of the gateway's.", "upstream kind"),
    "jsonrpc_errors": ("JSON-RPC errors that clients got, the gateway's own included.", "upstream code"),
    "connections_refused": ("Connections of clients that were not served.", "why"),
    "tls_handshake_failures": ("TLS handshakes of clients that failed.", "reason"),
    "store_failures": ("Failures of the store, which the gateway works without.", "why"),
}
_HISTOGRAMS: Final[dict[str, tuple[str, str]]] = {
    "request_duration_seconds": ("Time until a response was whole.", "upstream kind method"),
    "upstream_response_seconds": (
        "Time until the head of a response; without GETs of clients and tasks/result, which wait for news.",
        "upstream",
    ),
    "crawl_duration_seconds": ("Time that a crawl took.", "upstream"),
}
_REASONS: Final = "broken certificate cipher client_left not_tls plain_http timeout version"  # of failed handshakes
_OF_ONE: Final = ("drifting_requests", "crawl_pages", "connections_refused", "tls_handshake_failures", "store_failures")
_BY_UPSTREAM: Final = ("crawl_pages", "spared_requests", "spared_bytes", "drifting_requests")

# A client may send any method. Only these become values of the label; all others are `other`.
_METHODS_NAMED: Final = """
initialize ping tools/list tools/call prompts/list prompts/get completion/complete resources/list resources/read
resources/templates/list resources/subscribe resources/unsubscribe logging/setLevel server/discover
subscriptions/listen tasks/list tasks/get tasks/cancel tasks/result notifications/initialized notifications/cancelled
notifications/progress GET POST DELETE HEAD OPTIONS PUT PATCH
"""
_METHODS: Final = frozenset(_METHODS_NAMED.split())

# The codes that JSON-RPC, MCP and the SDKs' servers name, and the gateway's own. All others are `other`.
_CODES: Final = frozenset({-32700, -32000, CANNOT_ANSWER, -32600, -32601, -32602, -32603, -32002, -32042})

_UNTRACED: Final = nullcontext()  # the spans of steps are made in `traces.py`

Gauge: TypeAlias = tuple[str, float | Mapping[str, float]]
"""A help text, and a value; or values by upstream."""
Table: TypeAlias = Mapping[Any, list[float]]
"""How many took how long, by labels: counts by bucket, one for what is beyond all bounds, and the sum in seconds."""


def named(method: str) -> str:
    """The value of the label for a method."""
    return method if method in _METHODS else "other"


def coded(code: int) -> str:
    """The value of the label for a code of JSON-RPC."""
    return str(code) if code in _CODES else "other"


def family(kind: Callable[..., Any], name: str, text: str, labels: str, rows: Iterable[tuple[Any, ...]]) -> Metric:
    """A metric as it is exposed. Each row has the values of the labels, and what is counted."""
    found = kind(f"taskgate_{name}", text, labels=labels.split())
    for values, *numbers in rows:
        found.add_metric([printable(str(value)) for value in values], *numbers)  # clients choose the names of tools
    return cast(Metric, found)


def histogram(name: str, text: str, labels: str, bounds: Iterable[float], table: Table) -> Metric:
    shown = [*map(floatToGoString, bounds), "+Inf"]
    rows = ((values, [*zip(shown, accumulate(spans[:-1]), strict=True)], spans[-1]) for values, spans in table.items())
    return family(HistogramMetricFamily, name, text, labels, rows)


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
    message: ClientMessage | None = None
    made: str | None = None  # the id of the task that its answer has
    exchange: "Exchange | None" = None  # over HTTP
    caller: "HttpCaller | None" = None  # over HTTP, if its upstream is known


def _add(durations: list[float], seconds: float) -> None:
    durations[bisect_left(SECONDS, seconds)] += 1
    durations[-1] += seconds


class Metrics(Collector):
    """All metrics of one gateway, in a registry of their own. `Counts` says what it counts of queries."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.registry.register(self)
        self.recent = Recent(time)
        self.reload_refused, self.reloaded_at = "", time()  # why the last one was
        self.began_at = self.refused_at = self.reloaded_at
        self.lives: Lives | None = None  # of the tasks that were seen, if they are counted
        self.gauges: list[Callable[[], dict[str, Gauge]]] = []  # at each scrape each returns gauges by name
        self._answers: defaultdict[str, list[int]] = defaultdict(lambda: [0] * (len(SECONDS) + 1))  # for the page
        self._spans = {name: defaultdict[Any, list[float]](lambda: [0] * (len(SECONDS) + 2)) for name in _HISTOGRAMS}
        self._durations = self._spans["request_duration_seconds"]
        self._counts = counts = {name: defaultdict[tuple[Any, ...], int](int) for name in _COUNTERS}
        # What is known before it happens: a counter that begins at 1 hides its first event from `rate`.
        counts["connections_refused"].update({(why,): 0 for why in ("connections_max", "descriptors")})
        counts["tls_handshake_failures"].update({(reason,): 0 for reason in _REASONS.split()})
        self._requests, self._made, self._queries = (counts[n] for n in ("requests", "upstream_requests", "queries"))
        self._failures, self._rpc_errors = counts["failures"], counts["jsonrpc_errors"]
        self.drifted, self.crawl_page, self.connection_refused, self.handshake_failed, self.store_failed = (
            partial(self._count, counter) for counter in _OF_ONE
        )

    def _count(self, counter: str, value: str) -> None:
        self._counts[counter][(value,)] += 1

    def serves(self, servers: Collection[ServerKey], counts_tasks: bool) -> None:
        """Show the upstreams of these servers from now on, with counts of 0."""
        upstreams = [server.upstream for server in servers]
        self.lives = (self.lives or Lives(monotonic, time)) if counts_tasks else None
        if self.lives is not None:
            self.lives.keep(servers)
        kinds = [kind.__name__ for kind in GatewayError.__subclasses__()]
        queries, failures = product(["queries"], upstreams, _OUTCOMES), product(["failures"], upstreams, kinds)
        for counter, *values in chain(product(_BY_UPSTREAM, upstreams), queries, failures):
            self._counts[counter].setdefault(tuple(values), 0)

    def request(self, ended: EndedRequest) -> None:
        upstream, kind, method, seconds = ended.upstream, ended.kind, ended.method, ended.seconds
        method = method if method in _METHODS else "other"  # as `named` has it, without the cost of a call
        self._requests[upstream, kind, method, ended.status] += 1
        durations, at = self._durations[upstream, kind, method], bisect_left(SECONDS, seconds)
        durations[at] += 1
        durations[-1] += seconds
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
        return partial(_add, self._spans["upstream_response_seconds"][(upstream,)])

    def crawl(self, upstream: str, seconds: float) -> None:
        _add(self._spans["crawl_duration_seconds"][(upstream,)], seconds)

    def query(self, ended: EndedQuery) -> None:
        self._queries[ended.upstream, ended.outcome] += 1
        if ended.outcome not in UNANSWERED:
            self._counts["spared_requests"][(ended.upstream,)] += ended.spared_requests
            self._counts["spared_bytes"][(ended.upstream,)] += ended.spared_bytes
        self.recent.query(**asdict(ended))

    def plan(self, upstream: str, reason: str) -> AbstractContextManager[None]:
        return _UNTRACED

    def asking(self, upstream: str, method: str) -> AbstractContextManager[None]:
        self.upstream_request(upstream, method)
        return _UNTRACED

    def saved(self) -> dict[str, int]:
        """What queries have spared, at all upstreams together."""
        answered = [(outcome, count) for (_, outcome), count in self._queries.items() if outcome not in UNANSWERED]
        return {
            "requests": sum(self._counts["spared_requests"].values()),
            "bytes": sum(self._counts["spared_bytes"].values()),
            "queries": sum(count for _, count in answered),
            "at_once": sum(count for outcome, count in answered if outcome == "index"),
        }

    def traffic(self) -> dict[str, tuple[int, ...]]:
        """By upstream since the start: all requests; those that clients asked rightly; of these those that it refused;
        answers that were whole within each of `SECONDS`.
        """
        requests = defaultdict[str, list[int]](lambda: [0, 0, 0])
        for (upstream, kind, _, status), count in self._requests.items():
            counts = requests[upstream]
            counts[0] += count
            if kind != "refused" or status >= 500:  # else the gateway said no
                counts[1] += count
                counts[2] += count * (status in REFUSALS)
        return {upstream: (*counts, *self._answers[upstream]) for upstream, counts in requests.items()}

    def reloaded(self, refused: str = "") -> None:
        """The configuration was read anew: it is in force, or was refused, in words."""
        self.refused_at = self.refused_at if self.reload_refused else time()
        self.reload_refused, self.reloaded_at = refused, self.reloaded_at if refused else time()

    def collect(self) -> Iterator[Metric]:
        for name, (text, labels) in _COUNTERS.items():
            yield family(CounterMetricFamily, name, text, labels, self._counts[name].items())
        for name, (text, labels) in _HISTOGRAMS.items():
            yield histogram(name, text, labels, SECONDS, self._spans[name])
        reloaded = "1 if the last reload is in force, or there was none."
        yield GaugeMetricFamily("taskgate_config_last_reload_successful", reloaded, float(not self.reload_refused))
        read = "When the configuration in force was read."
        yield GaugeMetricFamily("taskgate_config_last_reload_success_timestamp_seconds", read, self.reloaded_at)
        runs = (VERSION, platform.python_version()), 1.0
        yield family(GaugeMetricFamily, "build_info", "What runs; always 1.", "version python", [runs])
        for name, (text, value) in chain.from_iterable(read().items() for read in self.gauges):
            gauges = (
                [((key,), number) for key, number in value.items()] if isinstance(value, Mapping) else [((), value)]
            )
            yield family(GaugeMetricFamily, name, text, "upstream" if isinstance(value, Mapping) else "", gauges)
        yield from () if self.lives is None else _tasks(self.lives)


def age_s(lives: Lives, series: Series) -> float:
    return max(0.0, lives.unix_time() - min(lives.live[series].values()))


def _tasks(lives: Lives) -> Iterator[Metric]:
    counts, of_tool, labels = lives.counts.items(), "upstream tool", "upstream tool status"
    live = [each for each in lives.live.items() if each[0][2] != UNHEARD]
    tasks = "Tasks that were seen, and have not ended."
    yield family(GaugeMetricFamily, "tasks", tasks, labels, ((series, len(began)) for series, began in live))
    oldest = ((series, age_s(lives, series)) for series, began in live if began)
    age = "Since createdAt, or since it waits for input, of the oldest."
    yield family(GaugeMetricFamily, "task_oldest_seconds", age, labels, oldest)
    unheard = ((series[:2], len(heard)) for series, heard in lives.live.items() if series[2] == UNHEARD)
    text = "Tasks that have not ended as far as is known, and of which nothing was heard for 5 minutes."
    yield family(GaugeMetricFamily, "tasks_unheard", text, of_tool, unheard)
    started = ((series[:2], count) for series, count in counts if series[2] == STARTED)
    yield family(CounterMetricFamily, "tasks_started", "Tasks that were seen live.", of_tool, started)
    ended = (each for each in counts if each[0][2] != STARTED)
    yield family(CounterMetricFamily, "tasks_ended", "Tasks that were seen live and have ended.", labels, ended)
    took = "lastUpdatedAt less createdAt."
    yield histogram("task_duration_seconds", took, labels, DURATIONS, lives.durations)
    failed = lives.lookups_failed.items()
    yield family(CounterMetricFamily, "task_lookups_failed", "tasks/get of an unknown id.", "upstream", failed)
