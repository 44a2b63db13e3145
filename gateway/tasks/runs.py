"""Sorted keys, in runs of about a thousand, and ranges of instants among them.

In: keys to add and to remove, bounds. Out: where a range begins and ends, and the keys in it.
Always: exact; an UNKNOWN instant lies in every range, and stands before all others.

The keys of a million points are scattered in memory. So each run also has their instants as an array of floats, and a
look-up touches few keys. Without the array a look-up takes eight times as long.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import Final, TypeAlias

from gateway.mcp.task import TOP, UNKNOWN, Instant, SortKey

Bounds: TypeAlias = tuple[Instant | None, Instant | None]
OPEN: Final[Bounds] = (None, None)
Slices: TypeAlias = tuple[tuple[int, int], tuple[int, int]]
"""The offsets of the keys in a range, as two slices: those of unknown instant, and the others."""

RUN_KEYS: Final = 1000  # a run is split above twice as many
BEHIND_UNKNOWN: Final = SortKey(UNKNOWN, TOP)  # behind every unknown instant, before every other
_END: Final = SortKey(float("inf"), TOP)


def within(bounds: Bounds, at: Instant) -> bool:
    """Whether an instant lies in inclusive bounds. UNKNOWN lies in all bounds, so that no task is lost."""
    low, high = bounds
    return at == UNKNOWN or ((low is None or low <= at) and (high is None or at <= high))


class Run:
    """A few thousand keys at most, sorted, in one list."""

    __slots__ = ("instants", "keys")

    def __init__(self, keys: list[SortKey]) -> None:
        self.keys = keys
        self.instants = array("d", [key.at for key in keys])

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, offset: int) -> SortKey:
        return self.keys[offset]

    def gaps(self, keys: list[SortKey]) -> Iterator[tuple[int, int, int]]:
        """Where sorted `keys` belong among these: (offset, start, stop) for each part `keys[start:stop]`.

        The last part comes first, so that adding it moves no offset that is still to come.
        """
        stop = len(keys)
        while stop:
            offset = self.bisect_left(keys[stop - 1])
            start = bisect_right(keys, self.keys[offset - 1], 0, stop) if offset else 0
            yield offset, start, stop
            stop = start

    def add_all(self, keys: list[SortKey]) -> None:
        """Add keys."""
        mine, instants = self.keys, self.instants
        for key in keys:
            at = float(key.at)
            offset = bisect_left(instants, at)
            if offset < len(instants) and instants[offset] == at:
                offset = self.bisect_left(key)
            mine.insert(offset, key)
            instants.insert(offset, at)

    def insert(self, offset: int, keys: list[SortKey]) -> None:
        """Add keys, all at one offset."""
        if len(keys) == 1:
            self.keys.insert(offset, keys[0])
            self.instants.insert(offset, keys[0].at)
            return
        self.keys[offset:offset] = keys
        self.instants[offset:offset] = array("d", [key.at for key in keys])

    def drop(self, offset: int) -> None:
        """Remove the key at an offset, or the last key if the offset is behind it."""
        offset = min(offset, len(self.keys) - 1)
        del self.keys[offset], self.instants[offset]

    def remove(self, key: SortKey) -> int:
        """Remove a key that is here. Returns the offset that it had."""
        offset = self.bisect_left(key)
        self.drop(offset)
        return offset

    def bisect_left(self, key: SortKey) -> int:
        """The offset of a key, or the offset at which it would be added."""
        instants, at = self.instants, float(key.at)  # two instants can be the same float
        low = bisect_left(instants, at)
        if low == len(instants) or instants[low] != at:
            return low
        return bisect_left(self.keys, key, low, bisect_right(instants, at, low))

    def bisect_right(self, key: SortKey) -> int:
        """The offset behind a key, or the offset at which it would be added."""
        offset = self.bisect_left(key)
        return offset + (offset < len(self.keys) and self.keys[offset] == key)

    def slices(self, wanted: "Range") -> Slices:
        """The keys in a range."""
        instants, (first, beyond), (low, high) = self.instants, wanted.ends, wanted.floats
        start, stop = bisect_left(instants, low), bisect_right(instants, high)
        if start < len(instants) and instants[start] == low:
            start = bisect_left(self.keys, first, start, bisect_right(instants, low, start))
        if stop and instants[stop - 1] == high:
            stop = bisect_left(self.keys, beyond, bisect_left(instants, high, 0, stop), stop)
        unknown = bisect_right(instants, UNKNOWN) if instants and instants[0] == UNKNOWN else 0
        return (0, unknown), (min(start, stop), stop)

    def head(self, wanted: "Range", descending: bool) -> SortKey | None:
        """The first key of a walk over a range; None if the range is empty. The run has no UNKNOWN instant."""
        instants, (first, beyond), (low, high) = self.instants, wanted.ends, wanted.floats
        if instants[0] > high or instants[-1] < low:
            return None
        if descending:
            offset = len(instants) - 1 if instants[-1] < high else self.bisect_left(beyond) - 1
        else:
            offset = 0 if instants[0] > low else self.bisect_left(first)
        key = self.keys[offset] if 0 <= offset < len(instants) else None
        return None if key is None or key < first or not key < beyond else key

    def walk(self, start: int, stop: int, descending: bool) -> Iterator[SortKey]:
        """The keys from offset `start` to before `stop`, in order."""
        offsets = range(start, stop)
        return map(self.keys.__getitem__, reversed(offsets) if descending else offsets)


class Runs:
    """Any number of keys, sorted. What it has of a `Run` means the same."""

    def __init__(self) -> None:
        self._runs = [Run([])]
        self._ends = Run([])  # of each run but the last: its last key, as it was when the run was split
        self._starts: list[int] | None = None  # the number of keys before each run, then of all; None: not counted yet

    def __len__(self) -> int:
        return self._offsets()[-1]

    def _offsets(self) -> list[int]:
        if self._starts is None:
            self._starts = list(accumulate(map(len, self._runs), initial=0))
        return self._starts

    def add_all(self, keys: list[SortKey]) -> None:
        """Add sorted keys."""
        self._starts = None
        for at, start, stop in self._ends.gaps(keys):
            run = self._runs[at]
            run.add_all(keys[start:stop])
            if len(run) > 2 * RUN_KEYS:
                parts = [run.keys[part] for part in halves(len(run), at == len(self._ends))]
                self._runs[at : at + 1] = map(Run, parts)
                self._ends.insert(at, [part[-1] for part in parts[:-1]])

    def remove(self, key: SortKey) -> None:
        """Remove a key that is here."""
        self._starts = None
        at = self._ends.bisect_left(key)
        self._runs[at].remove(key)
        if not self._runs[at] and self._ends:
            del self._runs[at]
            self._ends.drop(at)

    def dismantle(self) -> Iterator[None]:
        """Free the memory bit by bit. Nothing else works afterwards."""
        while self._runs:
            self._runs.pop()
            yield

    def bisect_left(self, key: SortKey) -> int:
        at = self._ends.bisect_left(key)
        return self._offsets()[at] + self._runs[at].bisect_left(key)

    def bisect_right(self, key: SortKey) -> int:
        at = self._ends.bisect_left(key)
        return self._offsets()[at] + self._runs[at].bisect_right(key)

    def slices(self, wanted: "Range") -> Slices:
        first, beyond = wanted.ends
        unknown = self.bisect_left(BEHIND_UNKNOWN) if self._runs[0] and self._runs[0][0].at == UNKNOWN else 0
        stop = self.bisect_left(beyond)
        return (0, unknown), (min(self.bisect_left(first), stop), stop)

    def walk(self, start: int, stop: int, descending: bool) -> Iterator[SortKey]:
        starts = self._offsets()
        reach = range(bisect_right(starts, start) - 1, bisect_left(starts, stop))
        for at in reversed(reach) if descending else reach:
            run, before = self._runs[at], starts[at]
            yield from run.walk(max(start - before, 0), min(stop - before, len(run)), descending)


Keys: TypeAlias = Run | Runs


def halves(count: int, at_end: bool) -> list[slice]:
    """The parts of a run that is too large: equal ones. At the end, where most new keys come: full ones and a rest."""
    each = 2 * RUN_KEYS if at_end else -(-count // max(2, count // RUN_KEYS))
    return [slice(start, start + each) for start in range(0, count, each)]


class Range:
    """Inclusive bounds, to look up among sorted keys. UNKNOWN instants come first, and lie in every range."""

    __slots__ = ("ends", "floats", "is_open")

    def __init__(self, bounds: Bounds) -> None:
        low, high = bounds
        self.is_open = bounds == OPEN
        self._set(
            SortKey(low, "") if low is not None else BEHIND_UNKNOWN, SortKey(high, TOP) if high is not None else _END
        )

    def _set(self, first: SortKey, beyond: SortKey) -> None:
        self.ends = (first, beyond)
        self.floats = (float(self.ends[0].at), float(self.ends[1].at))

    def behind(self, descending: bool, after: SortKey | None) -> "Range":
        """The part of the range behind `after`, without unknown instants."""
        if after is None:
            return self
        first, beyond = self.ends
        narrowed = Range(OPEN)
        if descending:
            narrowed._set(first, min(beyond, after))
        else:
            narrowed._set(max(first, SortKey(after.at, after.id + "\0")), beyond)
        return narrowed

    def among(self, keys: list[SortKey]) -> int:
        """How many of `keys` lie in the range. They may be in any order."""
        first, beyond = self.ends
        return len([None for key in keys if (not key < first and key < beyond) or key.at == UNKNOWN])

    def count(self, run: Run) -> int:
        """How many keys of a run lie in the range. Mostly all do, or none."""
        low, high = self.floats
        first, last = run.instants[0], run.instants[-1]
        if first > high or (last < low and first != UNKNOWN):
            return 0
        return len(run) if first > low and last < high else size(run.slices(self))

    def windows(self, keys: Keys, descending: bool, after: SortKey | None) -> list[tuple[int, int]]:
        """The slices of the keys in the range and behind `after`, in the order of the walk."""
        low, high = 0, len(keys)
        if after is not None and descending:
            high = keys.bisect_left(after)
        elif after is not None:
            low = keys.bisect_right(after)
        slices = ((0, 0), (0, len(keys))) if self.is_open else keys.slices(self)
        windows = [(max(start, low), min(stop, high)) for start, stop in slices]
        return [(start, stop) for start, stop in (reversed(windows) if descending else windows) if start < stop]


def size(slices: Slices) -> int:
    """How many keys the slices have."""
    return sum([stop - start for start, stop in slices])
