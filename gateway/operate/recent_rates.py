"""What the last minutes were like, from counts that are kept anyway: rates, failures and p95."""

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from operator import sub
from time import monotonic
from typing import Any, Final, NamedTuple

from gateway.operate.metrics import SECONDS, Metrics
from gateway.operate.recent_failures import Reason

SLOT_S: Final = 5.0
SLOTS: Final = (12, 60)  # of 1 and 5 minutes

_FIELDS: Final = ("faults", "requests", "asked", "refused")  # behind them whole answers within each of `SECONDS`
_NONE: Final = (0,) * (len(_FIELDS) + len(SECONDS) + 1)


class _Sample(NamedTuple):
    at: float
    counts: Mapping[str, tuple[int, ...]]  # by upstream, since the start
    reasons: Mapping[Reason, int]


class Rates:
    def __init__(self, metrics: Metrics, clock: Callable[[], float] = monotonic) -> None:
        self._metrics, self._clock = metrics, clock
        self._samples = deque([_Sample(clock(), {}, {})], maxlen=SLOTS[-1] + 1)

    def sample(self) -> None:
        """Keep the counts of now. To be called once in `SLOT_S`."""
        self._samples.append(self._read())

    def show(self) -> tuple[dict[str, Any], dict[str, dict[str, Any]], dict[Reason, list[int]]]:
        """At all and by upstream, for 1 and 5 minutes: `rate` a second, `failing` from 0 to 1 or None, counts; `p95` in
        seconds or None. And the counts of each reason.
        """
        now = self._read()
        before = [self._samples[-min(slots + 1, len(self._samples))] for slots in SLOTS]
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

    def _read(self) -> _Sample:
        reasons = {reason: failures.count for reason, failures in self._metrics.recent.reasons.items()}
        faults: Counter[str] = Counter()
        for reason, count in reasons.items():
            faults[reason.upstream] += count * reason.is_fault
        counts = {name: (faults[name], *counts) for name, counts in self._metrics.traffic().items()}
        return _Sample(self._clock(), counts, reasons)

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
