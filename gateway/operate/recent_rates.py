"""What the last minutes were like, from counts that are kept anyway: rates, failures and p95."""

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from operator import sub
from time import monotonic
from typing import Any, Final, NamedTuple

from gateway.operate.metrics import SECONDS, Metrics
from gateway.operate.recent_failures import Reason

SLOT_S: Final = 5.0
SLOTS: Final = (12, 60)  # of 1 and 5 minutes

_NONE: Final = (0,) * (len(SECONDS) + 1)


class _Sample(NamedTuple):
    at: float
    requests: Mapping[str, int]
    faults: Mapping[str, int]
    answers: Mapping[str, tuple[int, ...]]
    reasons: Mapping[Reason, int]


class Rates:
    def __init__(self, metrics: Metrics, clock: Callable[[], float] = monotonic) -> None:
        self._metrics, self._clock = metrics, clock
        self._samples = deque([_Sample(clock(), {}, {}, {}, {})], maxlen=SLOTS[-1] + 1)
        self._curves: dict[str, dict[str, list[int]]] = {}

    def sample(self) -> None:
        """Keep the counts of now. To be called once in `SLOT_S`."""
        now, last = self._read(), self._samples[-1]
        answers = {name: last.answers[name] if last.answers.get(name) == n else n for name, n in now.answers.items()}
        self._samples.append(now._replace(answers=answers))
        self._curves = {n: {f: self._curve(f, n) for f in ("requests", "faults")} for n in now.requests}

    def show(self) -> tuple[dict[str, Any], dict[str, dict[str, Any]], dict[Reason, list[int]]]:
        """For 1 and 5 minutes: `rate` a second, `failing` from 0 to 1 or None, `p95` in seconds or None."""
        now = self._read()
        before = [self._samples[-min(slots + 1, len(self._samples))] for slots in SLOTS]

        def window(*names: str) -> dict[str, Any]:
            rate, failing = [], []
            for one in before:
                requests = sum(now.requests[name] - one.requests.get(name, 0) for name in names)
                faults = sum(now.faults[name] - one.faults.get(name, 0) for name in names)
                rate.append(requests / max(now.at - one.at, 1.0))
                failing.append(min(faults / requests, 1.0) if requests else None)
            return {"rate": rate, "failing": failing}

        def p95(name: str) -> list[float | None]:
            counts = [map(sub, now.answers.get(name, _NONE), one.answers.get(name, _NONE)) for one in before]
            return [quantile(0.95, list(each), SECONDS) for each in counts]

        each = {name: {**window(name), "p95": p95(name), "curve": self._curves.get(name)} for name in now.requests}
        reasons = {r: [n - one.reasons.get(r, 0) for one in before] for r, n in now.reasons.items()}
        return window(*now.requests), each, reasons

    def _read(self) -> _Sample:
        reasons = {reason: failures.count for reason, failures in self._metrics.recent.reasons.items()}
        faults: Counter[str] = Counter()
        for reason, count in reasons.items():
            faults[reason.upstream] += count * reason.is_fault
        requests, answers = self._metrics.traffic()
        return _Sample(self._clock(), requests, faults, answers, reasons)

    def _curve(self, field: str, name: str) -> list[int]:
        counts = [getattr(sample, field).get(name, 0) for sample in self._samples]
        return [after - before for before, after in pairwise(counts)]


def quantile(share: float, counts: Sequence[int], bounds: Sequence[float]) -> float | None:
    """What that share stayed below, as Prometheus's histogram_quantile has it; None if there were none."""
    rank = share * sum(counts)
    if not rank:
        return None
    for low, high, count in zip((0.0, *bounds), bounds, counts, strict=False):  # the last count is beyond all bounds
        if rank <= count:
            return low + (high - low) * rank / count
        rank -= count
    return bounds[-1]
