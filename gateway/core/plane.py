"""Points of two instants, counted and walked inside any rectangle, in either order.

In: tasks of one group, each a point: when it was created, when it was last updated. Out: how many points lie in a
range of both, and those points in the order of either. Always: exact; an UNKNOWN instant lies in every range.

The points stand in blocks by creation, some thousand in each, and every block knows its points by last update too. A
rectangle then costs two look-ups for each block that lies in the range of creation whole, and a look at each point
of the two at its ends: about a millisecond for a million points, whatever the ranges are. What a query mostly asks,
one range at the most in the order of that range, costs two look-ups in all.
"""

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, islice
from operator import itemgetter
from typing import Final, Literal, TypeAlias

from sortedcontainers import SortedList

from gateway.core.task import TOP, UNKNOWN, Instant, Key

Bounds: TypeAlias = tuple[Instant | None, Instant | None]
OPEN: Final[Bounds] = (None, None)
Order: TypeAlias = Literal["createdAt", "lastUpdatedAt"]

_BLOCK_POINTS: Final = 1500  # a block is split at twice as many
_CUT_BLOCKS_MAX: Final = 3  # that lie in a range of creation in part: at its ends, and where UNKNOWN ends
_FREED_AT_ONCE: Final = 2000
_FOREVER: Final = float("inf")


def within(bounds: Bounds, at: Instant) -> bool:
    """Whether an instant lies in inclusive bounds. One that is UNKNOWN lies in all: no task is lost by it."""
    low, high = bounds
    return at == UNKNOWN or ((low is None or low <= at) and (high is None or at <= high))


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
        if created == OPEN:
            return _count(self._by_updated, updated)
        inside = 0
        for at in self._reach(created):
            block = self._blocks[at]
            slices = self._slices_at(at, created)
            if slices == _all_of(block):
                inside += len(block.created) if updated == OPEN else _count(block.updated, updated)
            elif updated == OPEN:
                inside += sum(stop - start for start, stop in slices)
            else:
                inside += len(_inside(block, slices, updated))
        return inside

    def walk(
        self, by: Order, descending: bool, created: Bounds, updated: Bounds, after: Key | None, limit: int
    ) -> Iterator[Key]:
        """The first `limit` keys or more, of the points in both ranges that stand behind `after`, in order.

        They are the keys of the order that is asked for.
        """
        if by == "createdAt":
            return self._walk_created(descending, created, updated, after)
        if created == OPEN:
            windows = _windows(self._by_updated, updated, descending, after)
            return _over(self._by_updated, windows, descending)
        return self._walk_updated(descending, created, updated, after, limit)

    def _walk_created(self, descending: bool, created: Bounds, updated: Bounds, after: Key | None) -> Iterator[Key]:
        for at in self._reach(created, descending, after):
            block = self._blocks[at]
            if updated != OPEN and not _count(block.updated, updated):
                continue
            keys = _inside(block, self._slices_at(at, created), updated)
            for key in reversed(keys) if descending else keys:
                if after is None or (key < after if descending else key > after):
                    yield key

    def _walk_updated(
        self, descending: bool, created: Bounds, updated: Bounds, after: Key | None, limit: int
    ) -> Iterator[Key]:
        """The first `limit` keys at least. They stand in as many blocks at most: those whose first keys come first."""
        heads: list[tuple[Key, Iterator[Key]]] = []
        for at in self._reach(created):
            block = self._blocks[at]
            windows = _windows(block.updated, updated, descending, after)
            if not windows:
                continue
            head = block.updated[windows[0][1] - 1 if descending else windows[0][0]]
            keys = _over(block.updated, windows, descending)
            slices = self._slices_at(at, created)
            if slices != _all_of(block):
                keys = filter(partial(self._is_created_in, created), keys)
            heads.append((head, keys))
        first = limit + _CUT_BLOCKS_MAX  # what is cut at an end may have none of the keys that it promises
        if len(heads) > first:
            pick = heapq.nlargest if descending else heapq.nsmallest
            heads = pick(first, heads, key=itemgetter(0))
        return heapq.merge(*(keys for _, keys in heads), reverse=descending)

    def _is_created_in(self, created: Bounds, updated: Key) -> bool:
        return within(created, self._created_of(updated.id).at)

    def _reach(self, created: Bounds, descending: bool = False, after: Key | None = None) -> Iterator[int]:
        """Which blocks may have points in the range of creation, and behind `after`, in the order of creation."""
        low, high = created
        first = bisect_left(self._last, Key(low, "")) if low is not None else 0
        stop = bisect_left(self._last, Key(high, TOP)) + 1 if high is not None else len(self._blocks)
        unknown = bisect_left(self._last, Key(UNKNOWN, TOP)) + 1 if self._has_unknown() else 0
        reach = [range(min(unknown, first)), range(first, min(stop, len(self._blocks)))]
        if after is not None:
            edge = bisect_left(self._last, after)
            side = range(edge + 1) if descending else range(edge, len(self._blocks))
            reach = [range(max(r.start, side.start), min(r.stop, side.stop)) for r in reach]
        return chain(*(reversed(r) for r in reversed(reach))) if descending else chain(*reach)

    def _slices_at(self, at: int, created: Bounds) -> "_Slices":
        """Where the points in the range of creation stand in a block."""
        block = self._blocks[at]
        low, high = created
        if (low is None or block.created[0].at >= low) and (high is None or self._last[at].at <= high):
            return _all_of(block)
        return _slices(block.created, created)

    def _has_unknown(self) -> bool:
        return bool(self._blocks) and self._blocks[0].created[0].at == UNKNOWN


_Slices: TypeAlias = tuple[tuple[int, int], tuple[int, int]]


def _inside(block: _Block, slices: _Slices, updated: Bounds) -> list[Key]:
    """The created keys at `slices` whose last update lies in a range."""
    if updated == OPEN:
        return [key for start, stop in slices for key in block.created[start:stop]]
    low = updated[0] if updated[0] is not None else UNKNOWN
    high = updated[1] if updated[1] is not None else _FOREVER
    return [
        key
        for start, stop in slices
        for key, latest in zip(block.created[start:stop], block.latest[start:stop], strict=True)
        if low <= latest.at <= high or latest.at == UNKNOWN
    ]


def _all_of(block: _Block) -> _Slices:
    return (0, 0), (0, len(block.created))


def _slices(keys: "SortedList[Key] | list[Key]", bounds: Bounds) -> _Slices:
    """Where the keys inside `bounds` stand: those of unknown instant, which come first, and the others."""
    low, high = bounds
    unknown = _left(keys, Key(UNKNOWN, TOP)) if keys and keys[0].at == UNKNOWN else 0
    start = unknown if low is None else max(unknown, _left(keys, Key(low, "")))
    stop = len(keys) if high is None else max(start, _left(keys, Key(high, TOP)))
    if start == stop:
        return (0, unknown), (0, 0)
    return ((0, 0), (0, stop)) if start == unknown else ((0, unknown), (start, stop))


def _left(keys: "SortedList[Key] | list[Key]", key: Key) -> int:
    return bisect_left(keys, key) if isinstance(keys, list) else int(keys.bisect_left(key))


def _count(keys: "SortedList[Key] | list[Key]", bounds: Bounds) -> int:
    return sum(stop - start for start, stop in _slices(keys, bounds))


def _windows(
    keys: "SortedList[Key] | list[Key]", bounds: Bounds, descending: bool, after: Key | None
) -> list[tuple[int, int]]:
    """Where the keys inside `bounds` stand that are behind `after`, in the order in which they are walked."""
    low, high = 0, len(keys)
    if after is not None and descending:
        high = _left(keys, after)
    elif after is not None:
        low = bisect_right(keys, after) if isinstance(keys, list) else int(keys.bisect_right(after))
    slices = ((0, 0), (0, len(keys))) if bounds == OPEN else _slices(keys, bounds)
    windows = [(max(start, low), min(stop, high)) for start, stop in slices]
    return [(start, stop) for start, stop in (reversed(windows) if descending else windows) if start < stop]


def _over(keys: "SortedList[Key] | list[Key]", windows: list[tuple[int, int]], descending: bool) -> Iterator[Key]:
    for start, stop in windows:
        if not isinstance(keys, list):
            yield from keys.islice(start, stop, reverse=descending)
        elif descending:
            yield from map(keys.__getitem__, range(stop - 1, start - 1, -1))
        else:
            yield from islice(keys, start, stop)


__all__ = ["OPEN", "Bounds", "Order", "Plane", "within"]
