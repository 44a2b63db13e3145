"""Keys in order, in runs of some thousand, and ranges of instants among them.

In: keys to put in and to take out, bounds. Out: where a range of them begins and ends, and the keys there.
Always: exact; an UNKNOWN instant lies in every range, and stands before all that are known.

The keys of a million points are all over the memory. Beside the keys of a run their instants stand as floats, side by
side, so that a look-up touches few of the keys; without them it takes eight times as long.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import Final, Protocol, TypeAlias

from gateway.core.task import TOP, UNKNOWN, Instant, Key

Bounds: TypeAlias = tuple[Instant | None, Instant | None]
OPEN: Final[Bounds] = (None, None)
Slices: TypeAlias = tuple[tuple[int, int], tuple[int, int]]
"""Where the keys stand that lie in a range: those of unknown instant, and the others."""

RUN_KEYS: Final = 1000  # a run is split at twice as many
KNOWN: Final = Key(UNKNOWN, TOP)  # before every instant that is known
_END: Final = Key(float("inf"), TOP)


def within(bounds: Bounds, at: Instant) -> bool:
    """Whether an instant lies in inclusive bounds. One that is UNKNOWN lies in all: no task is lost by it."""
    low, high = bounds
    return at == UNKNOWN or ((low is None or low <= at) and (high is None or at <= high))


class Keys(Protocol):
    """Keys in order, by their places."""

    def __len__(self) -> int: ...

    def bisect_left(self, key: Key) -> int:
        """Where a key stands, or would."""

    def bisect_right(self, key: Key) -> int:
        """Where the keys behind it begin."""

    def slices(self, wanted: "Range") -> Slices:
        """Where those stand that lie in a range."""

    def walk(self, start: int, stop: int, descending: bool) -> Iterator[Key]:
        """Those at the places from `start` to before `stop`, in order."""


class Run:
    """Some thousand keys at most."""

    __slots__ = ("instants", "keys")

    def __init__(self, keys: list[Key]) -> None:
        self.keys = keys
        self.instants = array("d", [key.at for key in keys])

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, place: int) -> Key:
        return self.keys[place]

    def gaps(self, keys: list[Key]) -> Iterator[tuple[int, int, int]]:
        """How some keys, which are in order, go among these: a place, and from where to where they go there.

        From behind, so that what is put in at one place moves no other.
        """
        stop = len(keys)
        while stop:
            place = self.bisect_left(keys[stop - 1])
            start = bisect_right(keys, self.keys[place - 1], 0, stop) if place else 0
            yield place, start, stop
            stop = start

    def add_all(self, keys: list[Key]) -> None:
        """Put in some keys."""
        mine, instants = self.keys, self.instants
        for key in keys:
            at = float(key.at)
            place = bisect_left(instants, at)
            if place < len(instants) and instants[place] == at:
                place = self.bisect_left(key)
            mine.insert(place, key)
            instants.insert(place, at)

    def insert(self, place: int, keys: list[Key]) -> None:
        """Put in some keys, all at one place."""
        if len(keys) == 1:
            self.keys.insert(place, keys[0])
            self.instants.insert(place, keys[0].at)
            return
        self.keys[place:place] = keys
        self.instants[place:place] = array("d", [key.at for key in keys])

    def drop(self, place: int) -> None:
        """Take out the key of a place, or the last one if none stands there."""
        place = min(place, len(self.keys) - 1)
        del self.keys[place], self.instants[place]

    def remove(self, key: Key) -> int:
        """Take out a key that is in; returns where it was."""
        place = self.bisect_left(key)
        self.drop(place)
        return place

    def bisect_left(self, key: Key) -> int:
        """As `Keys.bisect_left`."""
        instants, at = self.instants, float(key.at)  # different instants may have the same
        low = bisect_left(instants, at)
        if low == len(instants) or instants[low] != at:
            return low
        return bisect_left(self.keys, key, low, bisect_right(instants, at, low))

    def bisect_right(self, key: Key) -> int:
        """As `Keys.bisect_right`."""
        place = self.bisect_left(key)
        return place + (place < len(self.keys) and self.keys[place] == key)

    def slices(self, wanted: "Range") -> Slices:
        """As `Keys.slices`."""
        instants, (first, beyond), (low, high) = self.instants, wanted.ends, wanted.floats
        start, stop = bisect_left(instants, low), bisect_right(instants, high)
        if start < len(instants) and instants[start] == low:
            start = bisect_left(self.keys, first, start, bisect_right(instants, low, start))
        if stop and instants[stop - 1] == high:
            stop = bisect_left(self.keys, beyond, bisect_left(instants, high, 0, stop), stop)
        unknown = bisect_right(instants, UNKNOWN) if instants and instants[0] == UNKNOWN else 0
        return (0, unknown), (min(start, stop), stop)

    def head(self, wanted: "Range", descending: bool) -> Key | None:
        """Of keys of known instants, the one in a range where a walk begins; None if none is there."""
        instants, (first, beyond), (low, high) = self.instants, wanted.ends, wanted.floats
        if instants[0] > high or instants[-1] < low:
            return None
        if descending:
            place = len(instants) - 1 if instants[-1] < high else self.bisect_left(beyond) - 1
        else:
            place = 0 if instants[0] > low else self.bisect_left(first)
        key = self.keys[place] if 0 <= place < len(instants) else None
        return None if key is None or key < first or not key < beyond else key

    def walk(self, start: int, stop: int, descending: bool) -> Iterator[Key]:
        """As `Keys.walk`."""
        places = range(start, stop)
        return map(self.keys.__getitem__, reversed(places) if descending else places)


class Runs:
    """Any number of keys."""

    def __init__(self) -> None:
        self._runs = [Run([])]
        self._ends = Run([])  # between every two, where the first one ends: no key of it is greater, all others are
        self._starts: list[int] | None = None  # how many keys stand before each, and in all

    def __len__(self) -> int:
        return self._places()[-1]

    def _places(self) -> list[int]:
        if self._starts is None:
            self._starts = list(accumulate(map(len, self._runs), initial=0))
        return self._starts

    def add_all(self, keys: list[Key]) -> None:
        """Put in some keys, which are in order."""
        self._starts = None
        for at, start, stop in self._ends.gaps(keys):
            run = self._runs[at]
            run.add_all(keys[start:stop])
            if len(run) > 2 * RUN_KEYS:
                parts = [run.keys[part] for part in halves(len(run), at == len(self._ends))]
                self._runs[at : at + 1] = map(Run, parts)
                self._ends.insert(at, [part[-1] for part in parts[:-1]])

    def remove(self, key: Key) -> None:
        """Take out a key that is in."""
        self._starts = None
        at = self._ends.bisect_left(key)
        self._runs[at].remove(key)
        if not self._runs[at] and self._ends:
            del self._runs[at]
            self._ends.drop(at)

    def dismantle(self) -> Iterator[None]:
        """Free it bit by bit; it is of no use any more."""
        while self._runs:
            self._runs.pop()
            yield

    def bisect_left(self, key: Key) -> int:
        """As `Keys.bisect_left`."""
        at = self._ends.bisect_left(key)
        return self._places()[at] + self._runs[at].bisect_left(key)

    def bisect_right(self, key: Key) -> int:
        """As `Keys.bisect_right`."""
        at = self._ends.bisect_left(key)
        return self._places()[at] + self._runs[at].bisect_right(key)

    def slices(self, wanted: "Range") -> Slices:
        """As `Keys.slices`."""
        first, beyond = wanted.ends
        unknown = self.bisect_left(KNOWN) if self._runs[0] and self._runs[0][0].at == UNKNOWN else 0
        stop = self.bisect_left(beyond)
        return (0, unknown), (min(self.bisect_left(first), stop), stop)

    def walk(self, start: int, stop: int, descending: bool) -> Iterator[Key]:
        """As `Keys.walk`."""
        starts = self._places()
        reach = range(bisect_right(starts, start) - 1, bisect_left(starts, stop))
        for at in reversed(reach) if descending else reach:
            run, before = self._runs[at], starts[at]
            yield from run.walk(max(start - before, 0), min(stop - before, len(run)), descending)


def halves(count: int, at_end: bool) -> list[slice]:
    """How a run that has become too large is split: at the end, where most keys come, into full ones and a rest."""
    each = 2 * RUN_KEYS if at_end else -(-count // max(2, count // RUN_KEYS))
    return [slice(start, start + each) for start in range(0, count, each)]


class Range:
    """Inclusive bounds, to be looked up among keys in order; UNKNOWN instants, which come first, lie in all."""

    __slots__ = ("ends", "floats", "is_open")

    def __init__(self, bounds: Bounds) -> None:
        low, high = bounds
        self.is_open = bounds == OPEN
        self._set(Key(low, "") if low is not None else KNOWN, Key(high, TOP) if high is not None else _END)

    def _set(self, first: Key, beyond: Key) -> None:
        self.ends = (first, beyond)
        self.floats = (float(self.ends[0].at), float(self.ends[1].at))

    def behind(self, descending: bool, after: Key | None) -> "Range":
        """What of it is behind a place, of instants that are known."""
        if after is None:
            return self
        first, beyond = self.ends
        narrowed = Range(OPEN)
        if descending:
            narrowed._set(first, min(beyond, after))
        else:
            narrowed._set(max(first, Key(after.at, after.id + "\0")), beyond)
        return narrowed

    def among(self, keys: list[Key]) -> int:
        """How many of some keys in no order lie in it."""
        first, beyond = self.ends
        return len([None for key in keys if (not key < first and key < beyond) or key.at == UNKNOWN])

    def count(self, run: Run) -> int:
        """How many of a run's keys lie in it; mostly all of them, or none."""
        low, high = self.floats
        first, last = run.instants[0], run.instants[-1]
        if first > high or (last < low and first != UNKNOWN):
            return 0
        return len(run) if first > low and last < high else size(run.slices(self))

    def windows(self, keys: Keys, descending: bool, after: Key | None) -> list[tuple[int, int]]:
        """Where those stand that lie in it and behind `after`, in the order in which they are walked."""
        low, high = 0, len(keys)
        if after is not None and descending:
            high = keys.bisect_left(after)
        elif after is not None:
            low = keys.bisect_right(after)
        slices = ((0, 0), (0, len(keys))) if self.is_open else keys.slices(self)
        windows = [(max(start, low), min(stop, high)) for start, stop in slices]
        return [(start, stop) for start, stop in (reversed(windows) if descending else windows) if start < stop]


def size(slices: Slices) -> int:
    """How many keys stand there."""
    (start, stop), (start_known, stop_known) = slices
    return stop - start + stop_known - start_known
