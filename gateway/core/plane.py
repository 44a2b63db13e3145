"""Points of two instants, counted and walked inside any rectangle, in either order.

In: tasks of one group, each a point: when it was created, when it was last updated. Out: how many points lie in a
range of both, and those points in the order of either. Always: exact; an UNKNOWN instant lies in every range.

The points stand in blocks by creation, some thousand in each, and every block knows its points by last update too. A
rectangle then costs two look-ups for each block that lies in the range of creation whole, and for the two at its ends
a look at each point in one of the two ranges: about a millisecond for a million points, whatever the ranges are. What a
query mostly asks, one range at the most in the order of that range, costs two look-ups in all.
"""

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Final, Literal, TypeAlias

from sortedcontainers import SortedList

from gateway.core.task import TOP, UNKNOWN, Instant, Key

Bounds: TypeAlias = tuple[Instant | None, Instant | None]
OPEN: Final[Bounds] = (None, None)
Order: TypeAlias = Literal["createdAt", "lastUpdatedAt"]

_BLOCK_POINTS: Final = 4000  # a block is split at twice as many
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
_Keys: TypeAlias = "SortedList[Key] | list[Key]"


class _Range:
    """Inclusive bounds, to be looked up among keys in order; UNKNOWN instants, which come first, lie in all."""

    __slots__ = ("ends", "is_open")

    def __init__(self, bounds: Bounds) -> None:
        low, high = bounds
        self.is_open = bounds == OPEN
        self.ends = (Key(low, "") if low is not None else _KNOWN, Key(high, TOP) if high is not None else _END)

    def count(self, keys: _Keys) -> int:
        """How many lie in it."""
        return _size(self.slices(keys))

    def slices(self, keys: _Keys) -> _Slices:
        """Where those stand that lie in it: those of unknown instant, and the others."""
        unknown = _left(keys, _KNOWN) if keys and keys[0].at == UNKNOWN else 0
        first, beyond = self.ends
        stop = _left(keys, beyond)
        return (0, unknown), (min(_left(keys, first), stop), stop)

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
        self.updated = sorted(latest)


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
        insort(block.updated, updated)
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
        del block.updated[bisect_left(block.updated, updated)]
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
            return in_updated.count(self._by_updated)
        for at in self._reach(created):
            block = self._blocks[at]
            slices = self._cut(at, created)
            if slices is None:
                inside += len(block.created) if in_updated.is_open else in_updated.count(block.updated)
            elif in_updated.is_open:
                inside += _size(slices)
            else:
                inside += len(self._inside(block, slices, created, in_updated))
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
        for at in self._reach(created, descending, after):
            keys = self._inside(self._blocks[at], self._cut(at, created), created, in_updated)
            for key in reversed(keys) if descending else keys:
                if after is None or (key < after if descending else key > after):
                    yield key

    def _walk_updated(
        self, descending: bool, created: Bounds, in_updated: _Range, after: Key | None, limit: int
    ) -> Iterator[Key]:
        """The first `limit` keys at least. They stand in as many blocks at most: those whose first keys come first."""
        heads: list[tuple[Key, int, list[tuple[int, int]]]] = []
        for at in self._reach(created):
            keys = self._blocks[at].updated
            windows = in_updated.windows(keys, descending, after)
            if windows:
                heads.append((keys[windows[0][1] - 1 if descending else windows[0][0]], at, windows))
        first = limit + _CUT_BLOCKS_MAX  # what is cut at an end may have none of the keys that it promises
        if len(heads) > first:
            pick = heapq.nlargest if descending else heapq.nsmallest
            heads = pick(first, heads, key=itemgetter(0))
        runs = (self._run(at, windows, descending, created, limit) for _, at, windows in heads)
        return heapq.merge(*runs, reverse=descending)

    def _run(
        self, at: int, windows: list[tuple[int, int]], descending: bool, created: Bounds, limit: int
    ) -> Iterator[Key]:
        """The updated keys of a block in some windows, of the points in the range of creation; the first `limit`."""
        block, slices = self._blocks[at], self._cut(at, created)
        if slices is None:
            return _over(block.updated, windows, descending)
        if 2 * _size(slices) > len(block.updated):
            return filter(partial(self._is_created_in, created), _over(block.updated, windows, descending))
        keys = []
        for start, stop in windows:
            first, last = block.updated[start], block.updated[stop - 1]
            keys += [k for a, b in slices for k in block.latest[a:b] if not k < first and not last < k]
        return iter((heapq.nlargest if descending else heapq.nsmallest)(limit, keys))

    def _is_created_in(self, created: Bounds, updated: Key) -> bool:
        return within(created, self._created_of(updated.id).at)

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

    def _inside(self, block: _Block, slices: _Slices | None, created: Bounds, in_updated: _Range) -> list[Key]:
        """The created keys of a block at `slices`, or all, whose last update lies in a range; in order."""
        parts = slices if slices is not None else ((0, 0), (0, len(block.created)))
        if in_updated.is_open:
            return [key for start, stop in parts for key in block.created[start:stop]]
        windows = in_updated.slices(block.updated)
        if _FEW * _size(windows) < _size(parts):
            keys = [self._created_of(key.id) for start, stop in windows for key in block.updated[start:stop]]
            return sorted(keys if slices is None else [key for key in keys if within(created, key.at)])
        first, beyond = in_updated.ends
        return [
            key
            for start, stop in parts
            for key, latest in zip(block.created[start:stop], block.latest[start:stop], strict=True)
            if (not latest < first and latest < beyond) or latest.at == UNKNOWN
        ]

    def _has_unknown(self) -> bool:
        return bool(self._blocks) and self._blocks[0].created[0].at == UNKNOWN


def _size(slices: _Slices) -> int:
    (start, stop), (start_known, stop_known) = slices
    return stop - start + stop_known - start_known


def _left(keys: _Keys, key: Key) -> int:
    return bisect_left(keys, key) if isinstance(keys, list) else int(keys.bisect_left(key))


def _over(keys: _Keys, windows: list[tuple[int, int]], descending: bool) -> Iterator[Key]:
    for start, stop in windows:
        if not isinstance(keys, list):
            yield from keys.islice(start, stop, reverse=descending)
        else:
            places = range(start, stop)
            yield from map(keys.__getitem__, reversed(places) if descending else places)


__all__ = ["OPEN", "Bounds", "Order", "Plane", "within"]
