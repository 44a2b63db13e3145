"""What the last minutes were like, from counts that are kept anyway: rates, failures and p95; tasks by tool."""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from operator import sub
from time import monotonic
from typing import Any, Final, NamedTuple

from gateway.operate.metrics import SECONDS, Metrics
from gateway.operate.recent_failures import Reason
from gateway.tasks.lifecycle_counts import ENDS, OTHER, STARTED, UNHEARD, Lives, Series

SLOT_S: Final = 5.0
SLOTS: Final = (12, 60)  # of 1 and 5 minutes

_FIELDS: Final = ("faults", "requests", "asked", "refused")  # behind them whole answers within each of `SECONDS`
_LIVE: Final = ("working", "input_required", OTHER, UNHEARD)
_NONE: Final = (0,) * (len(_FIELDS) + len(SECONDS) + 1)


class _Sample(NamedTuple):
    at: float
    counts: Mapping[str, tuple[int, ...]]  # by upstream, since the start
    reasons: Mapping[Reason, int]
    tasks: Mapping[Series, int]  # the counts, and how many work


class Rates:
    def __init__(self, metrics: Metrics, clock: Callable[[], float] = monotonic) -> None:
        self._metrics, self._clock = metrics, clock
        self._samples = deque([_Sample(clock(), {}, {}, {})], maxlen=SLOTS[-1] + 1)

    def sample(self) -> None:
        """Keep the counts of now. To be called once in `SLOT_S`."""
        now, last = self._read(), self._samples[-1].tasks
        self._samples.append(now._replace(tasks=last) if now.tasks == last else now)  # they share what stays

    def show(self) -> tuple[dict[str, Any], dict[str, dict[str, Any]], dict[Reason, list[int]]]:
        """At all and by upstream, for 1 and 5 minutes: `rate` a second, `failing` from 0 to 1 or None, counts; `p95` in
        seconds or None. And the counts of each reason.
        """
        now, before = self._read(), self._before()
        grown = {
            name: [tuple(map(sub, counts, one.counts.get(name, _NONE))) for one in before]
            for name, counts in now.counts.items()
        }

        def window(counts: Sequence[tuple[int, ...]]) -> dict[str, Any]:
            fields = dict(zip(_FIELDS, zip(*counts, strict=True), strict=False))
            rate = [n / max(now.at - one.at, 1.0) for n, one in zip(fields["requests"], before, strict=True)]
            failing = [min(bad / n, 1.0) if n else None for bad, _, n, *_ in counts]
            return {"rate": rate, "failing": failing, **fields}

        each = {
            name: {
                **window(counts),
                "p95": [quantile(0.95, one[len(_FIELDS) :], SECONDS) for one in counts],
                "curve": {field: self._curve(field, name) for field in ("requests", "faults")},
            }
            for name, counts in grown.items()
        }
        every = [tuple(map(sum, zip(_NONE, *counts, strict=True))) for counts in zip(*grown.values(), strict=True)]
        reasons = {r: [n - one.reasons.get(r, 0) for one in before] for r, n in now.reasons.items()}
        return window(every or [_NONE] * len(SLOTS)), each, reasons

    def tasks(self) -> dict[str, list[dict[str, Any]]] | None:
        """By upstream a row for each tool: live ones, begun and ended in 1 and 5 minutes and at all, durations, a curve
        of working ones. Spans are in seconds. None if tasks are not counted.
        """
        if (lives := self._metrics.lives) is None:
            return None
        now, rows = self._read().tasks, defaultdict[str, list[dict[str, Any]]](list)
        before = dict(zip(("1m", "5m"), (one.tasks for one in self._before()), strict=True))
        some = (series for series, found in (*now.items(), *lives.live.items()) if found)
        for upstream, tool in dict.fromkeys(series[:2] for series in some):
            rows[upstream].append(self._row(lives, now, {**before, "all": {}}, upstream, tool))
        return rows

    def _row(
        self, lives: Lives, now: Mapping[Series, int], before: dict[str, Mapping[Series, int]], upstream: str, tool: str
    ) -> dict[str, Any]:
        def grown(status: str, since: Mapping[Series, int]) -> int:
            before, after = (counts.get((upstream, tool, status), 0) for counts in (since, now))
            return after - before if after >= before else after  # a reload took its counts away

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
            "curve": [sample.tasks.get((upstream, tool, "working"), 0) for sample in self._samples][1:],
        }

    def _before(self) -> list[_Sample]:
        return [self._samples[-min(slots + 1, len(self._samples))] for slots in SLOTS]

    def _read(self) -> _Sample:
        reasons = {reason: failures.count for reason, failures in self._metrics.recent.reasons.items()}
        faults: Counter[str] = Counter()
        for reason, count in reasons.items():
            faults[reason.upstream] += count * reason.is_fault
        counts = {name: (faults[name], *counts) for name, counts in self._metrics.traffic().items()}
        tasks = dict[Series, int]()
        if (lives := self._metrics.lives) is not None:
            working = {series: len(began) for series, began in lives.live.items() if series[2] == "working"}
            tasks = lives.counts | working
        return _Sample(self._clock(), counts, reasons, tasks)

    def _curve(self, field: str, name: str) -> list[int]:
        at = _FIELDS.index(field)
        counts = [sample.counts.get(name, _NONE)[at] for sample in self._samples]
        return [after - before for before, after in pairwise(counts)]


def quantile(share: float, counts: Sequence[int], bounds: Sequence[float]) -> float | None:
    """The bound within which that share stayed, the last one and a second if it did not; None if there were none."""
    rank = share * sum(counts)
    if not rank:
        return None
    return next(bound for bound, n in zip((*bounds, bounds[-1] + 1), accumulate(counts), strict=True) if rank <= n)
