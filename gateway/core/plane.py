"""Points of two instants, counted and walked inside any rectangle, in either order.

In: tasks of one group, each a point: when it was created, when it was last updated. Out: how many points lie in a
range of both, and those points in the order of either. Always: exact; an UNKNOWN instant lies in every range.

The points stand in blocks by creation, some thousand in each, and every block knows its points by last update too. A
rectangle then costs two look-ups for each block that lies in the range of creation whole, and for the two at its ends
a look at each point in one of the two ranges: about a millisecond for a million points, whatever the ranges are. What a
query mostly asks, one range at the most in the order of that range, costs two look-ups in all.
"""

import heapq
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from itertools import chain
from operator import itemgetter
from typing import Final, Literal, TypeAlias

from sortedcontainers import SortedList

from gateway.core.task import TOP, UNKNOWN, Instant, Key

Bounds: TypeAlias = tuple[Instant | None, Instant | None]
OPEN: Final[Bounds] = (None, None)
Order: TypeAlias = Literal["createdAt", "lastUpdatedAt"]

_BLOCK_POINTS: Final = 2000  # a block is split at twice as many
_CUT_BLOCKS_MAX: Final = 3  # that lie in a range of creation in part: at its ends, and where UNKNOWN ends
_FREED_AT_ONCE: Final = 2000
_FEW: Final = 8  # so many points are passed over in the time in which one is found by its id
_KNOWN: Final = Key(UNKNOWN, TOP)  # before every instant that is known
_END: Final = Key(float("inf"), TOP)


def within(bounds: Bounds, at: Instant) -> bool:
    """Whether an instant lies in inclusive bounds. One that is UNKNOWN lies in all: no task is lost by it."""
    low, high = bounds
    return at == UNKNOWN or ((low is None or low <= at) and (high is None or at <= high))


_Slices: TypeAlias = tuple[tuple[int, int], tuple[int, int]]
_Keys: TypeAlias = "SortedList[Key] | list[Key] | _Run"


class _Run:
    """Keys in order. Their instants as floats stand side by side, so that a look-up touches few of the keys.

    Those of a million points are all over the memory: without the floats a look-up takes eight times as long.
    """

    __slots__ = ("instants", "keys")

    def __init__(self, keys: list[Key]) -> None:
        self.keys = sorted(keys)
        self.instants = array("d", [key.at for key in self.keys])

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, place: int) -> Key:
        return self.keys[place]

    def bisect_left(self, key: Key) -> int:
        """Where a key stands, or would."""
        at = float(key.at)  # different instants may have the same
        low = bisect_left(self.instants, at)
        high = bisect_right(self.instants, at, low)
        return low if low == high else bisect_left(self.keys, key, low, high)

    def bisect_right(self, key: Key) -> int:
        """Where the keys behind it begin."""
        place = self.bisect_left(key)
        return place + (place < len(self.keys) and self.keys[place] == key)

    def slices(self, wanted: "_Range") -> _Slices:
        """As `_Range.slices`."""
        instants, (first, beyond), (low, high) = self.instants, wanted.ends, wanted.floats
        start, stop = bisect_left(instants, low), bisect_right(instants, high)
        if start < len(instants) and instants[start] == low:
            start = bisect_left(self.keys, first, start, bisect_right(instants, low, start))
        if stop and instants[stop - 1] == high:
            stop = bisect_left(self.keys, beyond, bisect_left(instants, high, 0, stop), stop)
        return (0, bisect_right(instants, UNKNOWN) if instants[0] == UNKNOWN else 0), (min(start, stop), stop)

    def add(self, key: Key) -> None:
        """Put in a key."""
        place = self.bisect_left(key)
        self.keys.insert(place, key)
        self.instants.insert(place, float(key.at))

    def remove(self, key: Key) -> None:
        """Take out a key that is in."""
        place = self.bisect_left(key)
        del self.keys[place], self.instants[place]


class _Range:
    """Inclusive bounds, to be looked up among keys in order; UNKNOWN instants, which come first, lie in all."""

    __slots__ = ("ends", "floats", "is_open")

    def __init__(self, bounds: Bounds) -> None:
        low, high = bounds
        self.is_open = bounds == OPEN
        self._set(Key(low, "") if low is not None else _KNOWN, Key(high, TOP) if high is not None else _END)

    def _set(self, first: Key, beyond: Key) -> None:
        self.ends = (first, beyond)
        self.floats = (float(self.ends[0].at), float(self.ends[1].at))

    def behind(self, descending: bool, after: Key | None) -> "_Range":
        """What of it is behind a place, of instants that are known."""
        if after is None:
            return self
        first, beyond = self.ends
        narrowed = _Range(OPEN)
        if descending:
            narrowed._set(first, min(beyond, after))
        else:
            narrowed._set(max(first, Key(after.at, after.id + "\0")), beyond)
        return narrowed

    def count(self, run: _Run) -> int:
        """How many of some keys lie in it; mostly all of a block, or none."""
        low, high = self.floats
        first, last = run.instants[0], run.instants[-1]
        if first > high or (last < low and first != UNKNOWN):
            return 0
        return len(run) if first > low and last < high else _size(self.slices(run))

    def slices(self, keys: _Keys) -> _Slices:
        """Where those stand that lie in it: those of unknown instant, and the others."""
        if isinstance(keys, _Run):
            return keys.slices(self)
        unknown = _left(keys, _KNOWN) if keys and keys[0].at == UNKNOWN else 0
        first, beyond = self.ends
        stop = _left(keys, beyond)
        return (0, unknown), (min(_left(keys, first), stop), stop)

    def among(self, keys: list[Key]) -> int:
        """How many of some keys in no order lie in it."""
        first, beyond = self.ends
        return len([None for key in keys if (not key < first and key < beyond) or key.at == UNKNOWN])

    def windows(self, keys: _Keys, descending: bool, after: Key | None) -> list[tuple[int, int]]:
        """Where those stand that lie in it and behind `after`, in the order in which they are walked."""
        low, high = 0, len(keys)
        if after is not None and descending:
            high = _left(keys, after)
        elif after is not None:
            low = bisect_right(keys, after) if isinstance(keys, list) else int(keys.bisect_right(after))
        slices = ((0, 0), (0, len(keys))) if self.is_open else self.slices(keys)
        windows = [(max(start, low), min(stop, high)) for start, stop in slices]
        return [(start, stop) for start, stop in (reversed(windows) if descending else windows) if start < stop]


class _Block:
    """Neighbours by creation: their created keys in order, the updated key of each, and those in order too."""

    __slots__ = ("created", "latest", "updated")

    def __init__(self, created: list[Key], latest: list[Key]) -> None:
        self.created = created
        self.latest = latest
        self.updated = _Run(latest)


class Plane:
    """The points of one group. `created_of` tells the created key of the point of an id."""

    def __init__(self, created_of: Callable[[str], Key]) -> None:
        self._created_of = created_of
        self._blocks: list[_Block] = []
        self._last: list[Key] = []  # the last created key of each block
        self._by_updated: SortedList[Key] = SortedList()

    def __len__(self) -> int:
        return len(self._by_updated)

    def add(self, created: Key, updated: Key) -> None:
        """Put in a point; no other has the same id."""
        self._by_updated.add(updated)
        if not self._blocks:
            self._blocks.append(_Block([created], [updated]))
            self._last.append(created)
            return
        at = min(bisect_left(self._last, created), len(self._blocks) - 1)
        block = self._blocks[at]
        place = bisect_left(block.created, created)
        block.created.insert(place, created)
        block.latest.insert(place, updated)
        block.updated.add(updated)
        self._last[at] = block.created[-1]
        if len(block.created) > 2 * _BLOCK_POINTS:
            self._split(at, block)

    def remove(self, created: Key, updated: Key) -> None:
        """Take out a point that is in."""
        self._by_updated.remove(updated)
        at = bisect_left(self._last, created)
        block = self._blocks[at]
        if len(block.created) == 1:
            del self._blocks[at], self._last[at]
            return
        place = bisect_left(block.created, created)
        del block.created[place], block.latest[place]
        block.updated.remove(updated)
        self._last[at] = block.created[-1]

    def _split(self, at: int, block: _Block) -> None:
        cut = _BLOCK_POINTS
        self._blocks[at : at + 1] = [
            _Block(block.created[:cut], block.latest[:cut]),
            _Block(block.created[cut:], block.latest[cut:]),
        ]
        self._last[at : at + 1] = [block.created[cut - 1], block.created[-1]]

    def dismantle(self) -> Iterator[None]:
        """Free it bit by bit; it is of no use any more."""
        while self._by_updated:
            for _ in range(min(_FREED_AT_ONCE, len(self._by_updated))):
                self._by_updated.pop()
            yield
        while self._blocks:
            self._blocks.pop()
            yield

    def count(self, created: Bounds, updated: Bounds) -> int:
        """How many points lie in both ranges."""
        in_updated, inside = _Range(updated), 0
        if created == OPEN:
            return _size(in_updated.slices(self._by_updated))
        for at in self._reach(created):
            block = self._blocks[at]
            slices = self._cut(at, created)
            if slices is None:
                inside += len(block.created) if in_updated.is_open else in_updated.count(block.updated)
            elif in_updated.is_open:
                inside += _size(slices)
            else:
                inside += _count_cut(block, slices, in_updated)
        return inside

    def walk(
        self, by: Order, descending: bool, created: Bounds, updated: Bounds, after: Key | None, limit: int
    ) -> Iterator[Key]:
        """The first `limit` keys or more, of the points in both ranges that stand behind `after`, in order.

        They are the keys of the order that is asked for.
        """
        in_updated = _Range(updated)
        if by == "createdAt":
            return self._walk_created(descending, created, in_updated, after)
        if created == OPEN:
            return _over(self._by_updated, in_updated.windows(self._by_updated, descending, after), descending)
        return self._walk_updated(descending, created, in_updated, after, limit)

    def _walk_created(self, descending: bool, created: Bounds, in_updated: _Range, after: Key | None) -> Iterator[Key]:
        in_created = _Range(created)
        for at in self._reach(created, descending, after):
            block = self._blocks[at]
            if not in_updated.is_open and not in_updated.count(block.updated):
                continue
            windows = in_created.windows(block.created, descending, after)
            if in_updated.is_open:
                yield from _over(block.created, windows, descending)
            else:
                yield from self._in_both(block, windows, descending, in_updated)

    def _in_both(
        self, block: _Block, windows: list[tuple[int, int]], descending: bool, in_updated: _Range
    ) -> Iterator[Key]:
        """The created keys of a block in some windows, of the points in a range of last update."""
        slices = in_updated.slices(block.updated)
        if _FEW * _size(slices) < len(block.updated):
            found = (self._created_of(key.id) for start, stop in slices for key in block.updated.keys[start:stop])
            ends = [(block.created[start], block.created[stop - 1]) for start, stop in windows]
            inside = [key for key in found if any(first <= key <= last for first, last in ends)]
            yield from sorted(inside, reverse=descending)
            return
        (first, beyond), latest = in_updated.ends, block.latest
        for start, stop in windows:
            places = range(start, stop)
            for place in reversed(places) if descending else places:
                at = latest[place]
                if (not at < first and at < beyond) or at.at == UNKNOWN:
                    yield block.created[place]

    def _walk_updated(
        self, descending: bool, created: Bounds, in_updated: _Range, after: Key | None, limit: int
    ) -> Iterator[Key]:
        """The first `limit` keys at least. They stand in as many blocks at most: those whose first keys come first."""
        heads: list[tuple[Key, int, list[tuple[int, int]]]] = []
        known = in_updated.behind(descending, after)
        for at in self._reach(created):
            keys = self._blocks[at].updated
            if keys.instants[0] == UNKNOWN:
                windows = in_updated.windows(keys, descending, after)
            else:
                _, (start, stop) = keys.slices(known)
                windows = [(start, stop)] if start < stop else []
            if windows:
                heads.append((keys[windows[0][1] - 1 if descending else windows[0][0]], at, windows))
        first = limit + _CUT_BLOCKS_MAX  # what is cut at an end may have none of the keys that it promises
        if len(heads) > first:
            pick = heapq.nlargest if descending else heapq.nsmallest
            heads = pick(first, heads, key=itemgetter(0))
        runs = (self._run(at, windows, descending, created) for _, at, windows in heads)
        return heapq.merge(*runs, reverse=descending)

    def _run(self, at: int, windows: list[tuple[int, int]], descending: bool, created: Bounds) -> Iterator[Key]:
        """The updated keys of a block in some windows, of the points in the range of creation."""
        block, slices = self._blocks[at], self._cut(at, created)
        if slices is None:
            return _over(block.updated.keys, windows, descending)
        if _FEW * _size(slices) < len(block.created):
            ends = [(block.updated[start], block.updated[stop - 1]) for start, stop in windows]
            found = (key for start, stop in slices for key in block.latest[start:stop])
            inside = [key for key in found if any(first <= key <= last for first, last in ends)]
            return iter(sorted(inside, reverse=descending))
        inside, outside = _parted(block.created, slices)
        ids = {key.id for key in (inside if len(inside) < len(outside) else outside)}
        wanted = len(inside) < len(outside)
        return (key for key in _over(block.updated.keys, windows, descending) if (key.id in ids) is wanted)

    def _reach(self, created: Bounds, descending: bool = False, after: Key | None = None) -> Iterator[int]:
        """Which blocks may have points in the range of creation, and behind `after`, in the order of creation."""
        low, high = created
        first = bisect_left(self._last, Key(low, "")) if low is not None else 0
        stop = bisect_left(self._last, Key(high, TOP)) + 1 if high is not None else len(self._blocks)
        unknown = bisect_left(self._last, _KNOWN) + 1 if self._has_unknown() else 0
        reach = [range(min(unknown, first)), range(first, min(stop, len(self._blocks)))]
        if after is not None:
            edge = bisect_left(self._last, after)
            side = range(edge + 1) if descending else range(edge, len(self._blocks))
            reach = [range(max(r.start, side.start), min(r.stop, side.stop)) for r in reach]
        return chain(*(reversed(r) for r in reversed(reach))) if descending else chain(*reach)

    def _cut(self, at: int, created: Bounds) -> _Slices | None:
        """Where the points in the range of creation stand in a block; None if all are in it."""
        keys = self._blocks[at].created
        low, high = created
        if (low is None or keys[0].at >= low) and (high is None or self._last[at].at <= high):
            return None
        return _Range(created).slices(keys)

    def _has_unknown(self) -> bool:
        return bool(self._blocks) and self._blocks[0].created[0].at == UNKNOWN


def _count_cut(block: _Block, slices: _Slices, in_updated: _Range) -> int:
    """How many points at `slices` of a block by creation lie in a range of last update: the fewer are looked at."""
    inside, outside = _parted(block.latest, slices)
    if len(outside) < len(inside):
        return in_updated.count(block.updated) - in_updated.among(outside)
    return in_updated.among(inside)


def _parted(keys: list[Key], slices: _Slices) -> tuple[list[Key], list[Key]]:
    """What stands at `slices`, and what does not."""
    (_, unknown), (start, stop) = slices
    return keys[:unknown] + keys[start:stop], keys[unknown:start] + keys[stop:]


def _size(slices: _Slices) -> int:
    (start, stop), (start_known, stop_known) = slices
    return stop - start + stop_known - start_known


def _left(keys: _Keys, key: Key) -> int:
    return bisect_left(keys, key) if isinstance(keys, list) else int(keys.bisect_left(key))


def _over(keys: _Keys, windows: list[tuple[int, int]], descending: bool) -> Iterator[Key]:
    for start, stop in windows:
        if isinstance(keys, SortedList):
            yield from keys.islice(start, stop, reverse=descending)
        else:
            places = range(start, stop)
            yield from map(keys.__getitem__, reversed(places) if descending else places)


__all__ = ["OPEN", "Bounds", "Order", "Plane", "within"]
