"""Points of two instants, counted and walked inside any rectangle, in either order.

In: the tasks of one group. Each is a point: its creation, its last update. Out: how many points lie in a range of
both, and those points in either order. Always: exact; an UNKNOWN instant lies in every range.

Blocks of about a thousand points are sorted by creation, and each block also has its points sorted by last update. A
block that lies wholly in the range of creation costs two look-ups. In the two blocks at the ends of the range, the
points inside it are looked at, or those outside, whichever are fewer. All this takes about a millisecond for a million
points, whatever the ranges. Most queries have no range of creation: they cost two look-ups in all.
"""

from bisect import insort
from collections.abc import Callable, Iterator
from itertools import chain
from operator import itemgetter
from typing import Final, Literal, TypeAlias

from gateway.mcp.task import UNKNOWN, SortKey
from gateway.tasks.runs import BEHIND_UNKNOWN, RUN_KEYS, Bounds, Keys, Range, Run, Runs, Slices, halves, size

OrderBy: TypeAlias = Literal["createdAt", "lastUpdatedAt"]

_FEW: Final = 8  # points that a walk passes in the time of one look-up by id


class _Block:
    """Neighbours by creation: `created` is sorted; `latest` has the updated key of each; `updated` has those sorted."""

    __slots__ = ("created", "latest", "updated")

    def __init__(self, created: list[SortKey], latest: list[SortKey]) -> None:
        self.created = Run(created)
        self.latest = latest
        self.updated = Run(sorted(latest))

    def __len__(self) -> int:
        return len(self.latest)

    def add_all(self, created: list[SortKey], latest: list[SortKey]) -> None:
        """Add points, sorted by creation."""
        for offset, start, stop in self.created.gaps(created):
            self.created.insert(offset, created[start:stop])
            self.latest[offset:offset] = latest[start:stop]
        self.updated.add_all(latest)

    def remove(self, created: SortKey, updated: SortKey) -> None:
        """Remove a point that is here."""
        del self.latest[self.created.remove(created)]
        self.updated.remove(updated)


class Plane:
    """The points of one group. `created_of` gives the created key for an id."""

    def __init__(self, created_of: Callable[[str], SortKey]) -> None:
        self._created_of = created_of
        self._blocks = [_Block([], [])]
        self._ends = Run([])  # as in `Runs`
        self._by_updated = Runs()

    @property
    def is_empty(self) -> bool:
        """Whether there is no point."""
        return not self._ends and not self._blocks[0]

    def add_all(self, points: list[tuple[SortKey, SortKey]]) -> None:
        """Add points, each its created and its updated key. No two points have one id."""
        points.sort(key=itemgetter(0))
        created, latest = [key for key, _ in points], [key for _, key in points]
        self._by_updated.add_all(sorted(latest))
        for at, start, stop in self._ends.gaps(created):
            block = self._blocks[at]
            block.add_all(created[start:stop], latest[start:stop])
            if len(block) > 2 * RUN_KEYS:
                parts = halves(len(block), at == len(self._ends))
                self._blocks[at : at + 1] = [_Block(block.created.keys[part], block.latest[part]) for part in parts]
                self._ends.insert(at, [block.created[part.stop - 1] for part in parts[:-1]])

    def remove(self, created: SortKey, updated: SortKey) -> None:
        """Remove a point that is here."""
        self._by_updated.remove(updated)
        at = self._ends.bisect_left(created)
        self._blocks[at].remove(created, updated)
        if not self._blocks[at] and self._ends:
            del self._blocks[at]
            self._ends.drop(at)

    def dismantle(self) -> Iterator[None]:
        """Free the memory bit by bit. Nothing else works afterwards."""
        yield from self._by_updated.dismantle()
        while self._blocks:
            self._blocks.pop()
            yield

    def count(self, created: Bounds, updated: Bounds) -> int:
        """How many points lie in both ranges."""
        in_created, in_updated, inside = Range(created), Range(updated), 0
        if in_created.is_open:
            return len(self._by_updated) if in_updated.is_open else size(self._by_updated.slices(in_updated))
        for at in self._reach(in_created):
            block = self._blocks[at]
            slices = self._cut(at, in_created)
            if slices is None:
                inside += len(block) if in_updated.is_open else in_updated.count(block.updated)
            elif in_updated.is_open:
                inside += size(slices)
            else:
                inside += _count_cut(block, slices, in_updated)
        return inside

    def walk(
        self, by: OrderBy, descending: bool, created: Bounds, updated: Bounds, after: SortKey | None
    ) -> Iterator[SortKey]:
        """The keys behind `after` of the points in both ranges: created or updated keys, as `by` says."""
        in_created, in_updated = Range(created), Range(updated)
        if by == "createdAt":
            return chain.from_iterable(self._walk_created(descending, in_created, in_updated, after))
        if in_created.is_open:
            return _over(self._by_updated, in_updated.windows(self._by_updated, descending, after), descending)
        return self._walk_updated(descending, in_created, in_updated, after)

    def _walk_created(
        self, descending: bool, in_created: Range, in_updated: Range, after: SortKey | None
    ) -> Iterator[Iterator[SortKey]]:
        """The created keys, block by block."""
        for at in self._reach(in_created, descending, after):
            block = self._blocks[at]
            if not in_updated.is_open and not in_updated.count(block.updated):
                continue
            windows = in_created.windows(block.created, descending, after)
            if in_updated.is_open:
                yield _over(block.created, windows, descending)
            else:
                yield self._in_both(block, windows, descending, in_updated)

    def _in_both(
        self, block: _Block, windows: list[tuple[int, int]], descending: bool, in_updated: Range
    ) -> Iterator[SortKey]:
        """The created keys at `windows` of a block, of those points that lie in a range of last update."""
        slices = block.updated.slices(in_updated)
        if _FEW * size(slices) < len(block.updated):
            found = (self._created_of(key.id) for start, stop in slices for key in block.updated.keys[start:stop])
            ends = [(block.created[start], block.created[stop - 1]) for start, stop in windows]
            inside = [key for key in found if any(first <= key <= last for first, last in ends)]
            yield from sorted(inside, reverse=descending)
            return
        (first, beyond), latest = in_updated.ends, block.latest
        for start, stop in windows:
            offsets = range(start, stop)
            for offset in reversed(offsets) if descending else offsets:
                at = latest[offset]
                if (not at < first and at < beyond) or at.at == UNKNOWN:
                    yield block.created[offset]

    def _walk_updated(
        self, descending: bool, in_created: Range, in_updated: Range, after: SortKey | None
    ) -> Iterator[SortKey]:
        """The updated keys. A block is opened when the walk comes to the first key that it may have."""
        ahead = in_updated.behind(descending, after)
        waiting: list[tuple[SortKey, int, Iterator[SortKey] | None]] = []
        for at in self._reach(in_created):
            keys = self._blocks[at].updated
            if keys.instants[0] == UNKNOWN:
                windows = in_updated.windows(keys, descending, after)
                head = next(_over(keys, windows, descending), None)
            else:
                head = keys.head(ahead, descending)
            if head is not None:
                waiting.append((head, at, None))
        waiting.sort()
        while waiting:
            key, at, run = waiting.pop(-1 if descending else 0)
            if run is not None:
                yield key
            else:
                keys = self._blocks[at].updated
                run = self._run(at, in_updated.windows(keys, descending, after), descending, in_created)
            following = next(run, None)
            if following is not None:
                insort(waiting, (following, at, run))

    def _run(self, at: int, windows: list[tuple[int, int]], descending: bool, in_created: Range) -> Iterator[SortKey]:
        """The updated keys at `windows` of a block, of those points that lie in the range of creation."""
        block, slices = self._blocks[at], self._cut(at, in_created)
        if slices is None:
            return _over(block.updated, windows, descending)
        if _FEW * size(slices) < len(block):
            ends = [(block.updated[start], block.updated[stop - 1]) for start, stop in windows]
            found = (key for start, stop in slices for key in block.latest[start:stop])
            inside = [key for key in found if any(first <= key <= last for first, last in ends)]
            return iter(sorted(inside, reverse=descending))
        inside, outside = _parted(block.created.keys, slices)
        ids = {key.id for key in (inside if len(inside) < len(outside) else outside)}
        wanted = len(inside) < len(outside)
        return (key for key in _over(block.updated, windows, descending) if (key.id in ids) is wanted)

    def _reach(self, in_created: Range, descending: bool = False, after: SortKey | None = None) -> Iterator[int]:
        """The blocks that may have points in the range of creation and behind `after`, in order of creation."""
        first, stop = map(self._ends.bisect_left, in_created.ends)
        has_unknown = self._blocks[0].created[0].at == UNKNOWN
        unknown = self._ends.bisect_left(BEHIND_UNKNOWN) + 1 if has_unknown else 0
        reach = [range(min(unknown, first)), range(first, min(stop + 1, len(self._blocks)))]
        if after is not None:
            edge = self._ends.bisect_left(after)
            side = range(edge + 1) if descending else range(edge, len(self._blocks))
            reach = [range(max(r.start, side.start), min(r.stop, side.stop)) for r in reach]
        return chain(*(reversed(r) for r in reversed(reach))) if descending else chain(*reach)

    def _cut(self, at: int, in_created: Range) -> Slices | None:
        """The points of a block in the range of creation; None if surely all are."""
        keys = self._blocks[at].created
        low, high = in_created.floats
        if keys.instants[0] > low and keys.instants[-1] < high:
            return None
        return keys.slices(in_created)


def _count_cut(block: _Block, slices: Slices, in_updated: Range) -> int:
    """How many points at `slices` of a block lie in a range of last update. Looks at these points or at the others,
    whichever are fewer.
    """
    inside, outside = _parted(block.latest, slices)
    if len(outside) < len(inside):
        return in_updated.count(block.updated) - in_updated.among(outside)
    return in_updated.among(inside)


def _parted(keys: list[SortKey], slices: Slices) -> tuple[list[SortKey], list[SortKey]]:
    """The keys at `slices`, and the others."""
    (_, unknown), (start, stop) = slices
    return keys[:unknown] + keys[start:stop], keys[unknown:start] + keys[stop:]


def _over(keys: Keys, windows: list[tuple[int, int]], descending: bool) -> Iterator[SortKey]:
    return chain.from_iterable(keys.walk(start, stop, descending) for start, stop in windows)
