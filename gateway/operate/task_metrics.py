"""The tasks that were seen: their metrics, and what they were like in the last minutes, for the page."""

from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.operate.metrics import Metrics, family, histogram
from gateway.operate.recent_rates import SLOTS
from gateway.tasks.lifecycle_counts import DURATIONS, ENDS, OTHER, STARTED, UNHEARD, Lives, Series

_LIVE: Final = ("working", "input_required", OTHER, UNHEARD)
_LABELS: Final = "upstream tool status"


class SeenTasks(Collector):
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._samples: deque[dict[Series, int]] = deque([{}], maxlen=SLOTS[-1] + 1)  # they share what stays

    def collect(self) -> Iterator[Metric]:
        return iter(()) if self._metrics.lives is None else _families(self._metrics.lives)

    def sample(self) -> None:
        """Keep the counts of now. To be called once in `SLOT_S`."""
        last, now = self._samples[-1], {} if self._metrics.lives is None else _read(self._metrics.lives)
        gone = {series[0] for series, n in last.items() if series[2] != "working" and now.get(series, 0) < n}
        if gone:  # a reload took its counts away
            kept = ({series: n for series, n in sample.items() if series[0] not in gone} for sample in self._samples)
            self._samples = deque(kept, self._samples.maxlen)
        self._samples.append(last if last == now else now)

    def show(self) -> dict[str, list[dict[str, Any]]] | None:
        """By upstream a row for each tool: live ones, begun and ended in 1 and 5 minutes and at all, durations, a curve
        of working ones. Spans are in seconds. None if tasks are not counted.
        """
        if (lives := self._metrics.lives) is None:
            return None
        now, rows = _read(lives), defaultdict[str, list[dict[str, Any]]](list)
        before = {f"{slots // SLOTS[0]}m": self._samples[-min(slots + 1, len(self._samples))] for slots in SLOTS}
        some = (series for series, found in (*now.items(), *lives.live.items()) if found)
        for upstream, tool in dict.fromkeys(series[:2] for series in some):
            rows[upstream].append(self._row(lives, now, {**before, "all": {}}, upstream, tool))
        return rows

    def _row(
        self, lives: Lives, now: dict[Series, int], before: dict[str, dict[Series, int]], upstream: str, tool: str
    ) -> dict[str, Any]:
        def grown(status: str, since: dict[Series, int]) -> int:
            before, after = (counts.get((upstream, tool, status), 0) for counts in (since, now))
            return after - before if after >= before else after

        live = {status: at.values() for status in _LIVE if (at := lives.live.get((upstream, tool, status)))}
        # Since when the oldest is in its status; since when nothing was heard of any of those of which nothing was.
        since = {status: (max if status == UNHEARD else min)(at) for status, at in live.items()}
        took = sorted(lives.last.get((upstream, tool), ()))
        return {
            "tool": tool,
            "live": {status: {"count": len(at), "since": since[status]} for status, at in live.items()},
            "started": {span: grown(STARTED, counts) for span, counts in before.items()},
            "ended": {span: {s: n for s in ENDS if (n := grown(s, counts))} for span, counts in before.items()},
            "duration_s": {f"p{p}": took[(len(took) * p - 1) // 100] for p in (50, 95)} if took else None,
            "curve": [sample.get((upstream, tool, "working"), 0) for sample in self._samples][1:],
        }


def _read(lives: Lives) -> dict[Series, int]:
    """The counts, and how many work."""
    return lives.counts | {series: len(began) for series, began in lives.live.items() if series[2] == "working"}


def age_s(lives: Lives, series: Series) -> float:
    return max(0.0, lives.unix_time() - min(lives.live[series].values()))


def _families(lives: Lives) -> Iterator[Metric]:
    counts = lives.counts.items()
    live = [each for each in lives.live.items() if each[0][2] != UNHEARD]
    tasks = "Tasks that were seen, and have not ended."
    yield family(GaugeMetricFamily, "tasks", tasks, _LABELS, ((series, len(began)) for series, began in live))
    oldest = ((series, age_s(lives, series)) for series, began in live if began)
    age = "Since createdAt, or since it waits for input, of the oldest."
    yield family(GaugeMetricFamily, "task_oldest_seconds", age, _LABELS, oldest)
    unheard = ((series[:2], len(heard)) for series, heard in lives.live.items() if series[2] == UNHEARD)
    text = "Tasks that have not ended as far as is known, and of which nothing was heard for 5 minutes."
    yield family(GaugeMetricFamily, "tasks_unheard", text, "upstream tool", unheard)
    started = (((upstream, tool), count) for (upstream, tool, status), count in counts if status == STARTED)
    yield family(CounterMetricFamily, "tasks_started", "Tasks that were seen live.", "upstream tool", started)
    ended = (each for each in counts if each[0][2] != STARTED)
    yield family(CounterMetricFamily, "tasks_ended", "Tasks that were seen live and have ended.", _LABELS, ended)
    took = "lastUpdatedAt less createdAt."
    yield histogram("task_duration_seconds", took, _LABELS, DURATIONS, lives.durations)
    failed = lives.lookups_failed.items()
    yield family(CounterMetricFamily, "task_lookups_failed", "tasks/get of an unknown id.", "upstream", failed)
