"""What is kept of callers, least recently used first, within limits of bytes, of number and of idle time.

In: things with a key, their size, their use. Out: the same by key, until they must go.
Always: `size_bytes` is the sum of their sizes as last counted. What a query uses stays; what is only held for it is not
counted. A use stands in the way of every answer to `tasks/get`, and costs the same however many there are; so does what
belongs to one session or caller.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

_K = TypeVar("_K", bound=Hashable)
_EXPIRED_AT_ONCE: Final = 200
_TOLD_AGAIN: Final = 4  # times in the time for which what is idle is kept


class Space(NamedTuple):
    bytes_max: int
    number_max: float
    idle_s: float


class Storable(Protocol[_K]):
    key: _K
    queries: int = 0  # that use it
    used_at: float = 0.0  # while it is stored
    told_at: float = float("-inf")
    stored_bytes: int | None = None  # as it was counted last; None if it is not counted

    @property
    def size_bytes(self) -> int:
        """The memory that it takes."""

    def leave(self) -> None:
        """It is no longer stored."""
        return


_V = TypeVar("_V", bound=Storable)  # type: ignore[type-arg]


class Stored(Generic[_K, _V]):
    def __init__(
        self,
        space: Space,
        beside: "Stored[Any, Any] | None" = None,
        groups_of: Callable[[_K], Iterable[Hashable]] = lambda _: (),
    ) -> None:
        """`groups_of` says in which groups a key is."""
        self.size_bytes = self.count = 0
        self.space = space
        self._beside = beside  # what is stored there takes of the same space
        self.tell: Callable[[_V], None] | None = None  # is told of what is stored, and again while it is in use
        self._by_key: OrderedDict[_K, _V] = OrderedDict()
        self.get: Callable[[_K], _V | None] = self._by_key.get
        self._groups_of, self._groups = groups_of, dict[Hashable, dict[_K, None]]()

    def all(self) -> list[_V]:
        """All of them, the least recently used first."""
        return list(self._by_key.values())

    def of_group(self, group: Hashable) -> list[_V]:
        return [self._by_key[key] for key in self._groups.get(group, ())]

    def hold(self, one: _V) -> None:
        """Keep it for a query that uses it."""
        self._by_key[one.key] = one
        for group in self._groups_of(one.key):
            self._groups.setdefault(group, {})[one.key] = None

    def use(self, one: _V, now: float) -> None:
        """Store it, or count its size anew, as used now. Others go for it; it goes itself if it is too large."""
        if self._by_key.get(one.key) is not one:
            self.hold(one)
        size_bytes = one.size_bytes
        self.count += one.stored_bytes is None
        self.size_bytes += size_bytes - (one.stored_bytes or 0)
        one.stored_bytes = size_bytes
        self._by_key.move_to_end(one.key)  # it goes last
        if self._is_full and size_bytes > self.space.bytes_max and not one.queries:
            self.remove(one.key)
        while self._is_full and (oldest := next((o for o in self._by_key.values() if not o.queries), None)) is not None:
            self.remove(oldest.key)
        self.touch(one, now)

    def touch(self, one: _V, now: float) -> None:
        """It is used now, and as large as before."""
        try:
            self._by_key.move_to_end(one.key)
        except KeyError:
            return
        one.used_at = now
        if self.tell is None or one.stored_bytes is None or now - one.told_at < self.space.idle_s / _TOLD_AGAIN:
            return
        one.told_at = now
        self.tell(one)

    @property
    def _is_full(self) -> bool:
        beside_bytes = 0 if self._beside is None else self._beside.size_bytes
        return self.size_bytes + beside_bytes > self.space.bytes_max or self.count > self.space.number_max

    def expire(self, now: float) -> None:
        """Take out what has been idle for too long, some at a time: this stands in the way of every query."""
        for _ in range(min(len(self._by_key), _EXPIRED_AT_ONCE)):
            if now - (oldest := next(iter(self._by_key.values()))).used_at < self.space.idle_s:
                return
            if oldest.queries:
                self.touch(oldest, now)
            else:
                self.remove(oldest.key)

    def remove(self, key: _K) -> None:
        if (one := self._by_key.pop(key, None)) is None:
            return
        for group in self._groups_of(key):
            del self._groups[group][key]
            if not self._groups[group]:
                del self._groups[group]
        if one.stored_bytes is not None:
            self.count, self.size_bytes, one.stored_bytes = self.count - 1, self.size_bytes - one.stored_bytes, None
        one.leave()
