"""The tasks that were seen: their metrics, and what they were like in the last minutes, for the page.

In: `tasks/lives.py`. Out: Prometheus metrics, at each scrape; rows for the page, by upstream and tool.
Always: 61 samples, which share what has not changed.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from gateway.mcp.task import TERMINAL
from gateway.operate.metrics import Metrics
from gateway.operate.rates import SLOTS, quantile
from gateway.tasks.lives import DURATIONS, LOST, OTHER, Group, Lives, Tool

_BOUNDS: Final = [*map(floatToGoString, DURATIONS), "+Inf"]
_WINDOWS: Final = ("1m", "5m")


class TaskMetrics(Collector):
    """The metrics of tasks."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return iter(()) if self._metrics.lives is None else _families(self._metrics.lives)


def _families(lives: Lives) -> Iterator[Metric]:
    labels = ["upstream", "tool", "status"]
    known = GaugeMetricFamily("taskgate_tasks", "Tasks that were seen, and have not ended.", labels=labels)
    oldest = GaugeMetricFamily("taskgate_task_oldest_seconds", "Now less createdAt, of the oldest.", labels=labels)
    for group, begun in lives.groups.items():
        known.add_metric(group, len(begun))
        if begun:
            oldest.add_metric(group, lives.age_s(begun))
    yield from (known, oldest)
    started = CounterMetricFamily("taskgate_tasks_started", "Tasks that were seen live.", labels=labels[:2])
    for tool, count in lives.started.items():
        started.add_metric(tool, count)
    yield started
    ended = CounterMetricFamily("taskgate_tasks_ended", "Tasks that were seen live and have ended.", labels=labels)
    for group, count in lives.ended.items():
        ended.add_metric(group, count)
    yield ended
    took = HistogramMetricFamily("taskgate_task_duration_seconds", "lastUpdatedAt less createdAt.", labels=labels)
    for group, each in lives.durations.items():
        took.add_metric(group, list(zip(_BOUNDS, accumulate(each.counts), strict=True)), each.seconds)
    yield took
    failed = CounterMetricFamily("taskgate_task_lookups_failed", "tasks/get of an unknown id.", labels=labels[:1])
    for name, count in lives.lookups_failed.items():
        failed.add_metric([name], count)
    yield failed


class _Sample(NamedTuple):
    """The counts since the start, and how many work."""

    started: dict[Tool, int]
    ended: dict[Group, int]
    working: dict[Tool, int]


class TaskRates:
    """The tasks of the last five minutes."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._samples = deque([_Sample({}, {}, {})], maxlen=SLOTS[-1] + 1)

    def sample(self) -> None:
        """Keep the counts of now. To be called once in `SLOT_S`."""
        if (lives := self._metrics.lives) is None:
            self._samples.clear()
            self._samples.append(_Sample({}, {}, {}))
            return
        last, now = self._samples[-1], _read(lives)
        self._samples.append(last if last == now else now)

    def show(self, upstream: str) -> list[dict[str, Any]] | None:
        """A row for each tool: live ones, begun and ended in 1 and 5 minutes and at all, durations, a curve of working
        ones. Spans are in seconds. None if tasks are not counted.
        """
        if (lives := self._metrics.lives) is None:
            return None
        now = _read(lives)
        before = [self._samples[-min(slots + 1, len(self._samples))] for slots in SLOTS]
        tools = dict.fromkeys(g[:2] for table in (now.started, lives.groups) for g in table if g[0] == upstream)
        return [self._row(lives, now, before, tool) for tool in tools]

    def _row(self, lives: Lives, now: _Sample, before: Sequence[_Sample], tool: Tool) -> dict[str, Any]:
        live = {group[2]: begun for group, begun in lives.groups.items() if group[:2] == tool and begun}
        began = now.started.get(tool, 0)
        started = [began - one.started.get(tool, 0) for one in before]
        ends = {status: now.ended.get((*tool, status), 0) for status in (*TERMINAL, OTHER, LOST)}
        ended = [{s: grew for s, n in ends.items() if (grew := n - one.ended.get((*tool, s), 0))} for one in before]
        took = [each.counts for group, each in lives.durations.items() if group[:2] == tool]
        counts = [sum(column) for column in zip(*took, strict=True)]
        return {
            "tool": tool[1],
            "live": {s: {"count": len(begun), "oldest_s": lives.age_s(begun)} for s, begun in live.items()},
            "started": {**dict(zip(_WINDOWS, started, strict=True)), "all": began},
            "ended": {**dict(zip(_WINDOWS, ended, strict=True)), "all": {s: n for s, n in ends.items() if n}},
            "duration_s": {f"p{p}": quantile(p / 100, counts, DURATIONS) for p in (50, 95)} if counts else None,
            "curve": [sample.working.get(tool, 0) for sample in self._samples][1:],
        }


def _read(lives: Lives) -> _Sample:
    working = {group[:2]: len(begun) for group, begun in lives.groups.items() if group[2] == "working"}
    return _Sample(dict(lives.started), dict(lives.ended), working)
