"""What is kept of callers, least recently used first, within limits of bytes, of number and of idle time.

In: things with a key, their size, their use. Out: the same by key, until they must go.
Always: `size_bytes` is the sum of their sizes as last counted. What a query uses stays. A use stands in the way of
every answer to `tasks/get`, and costs the same however many there are; so does what belongs to one session or caller.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from gateway.mcp.task import text_bytes

_K = TypeVar("_K", bound=Hashable)


_EXPIRED_AT_ONCE: Final = 200


class Space(NamedTuple):
    bytes_max: int
    number_max: float
    idle_s: float


class Storable(Protocol[_K]):
    key: _K
    queries: int = 0  # that use it
    used_at: float = 0.0  # while it is stored
    stored_bytes: int = 0  # as it was counted last

    @property
    def size_bytes(self) -> int:
        """The memory that it takes."""

    def leave(self) -> None:
        """It is no longer stored."""
        return


_V = TypeVar("_V", bound=Storable)  # type: ignore[type-arg]
_T = TypeVar("_T")


class CountedIds(dict[str, _T]):
    """Values by the ids of tasks, the oldest first. `size_bytes` is their memory: of an id its text, and `id_bytes`."""

    size_bytes: int = 0

    def __init__(self, id_bytes: int, ids_max: float = float("inf")) -> None:
        super().__init__()
        self.id_bytes, self.ids_max = id_bytes, ids_max

    def put(self, task_id: str, value: _T) -> None:
        """Set a value, as the newest one. Of too many the oldest goes."""
        if task_id in self:
            self.drop(task_id)
        self[task_id] = value
        self.size_bytes += self.id_bytes + text_bytes(task_id)
        if len(self) > self.ids_max:
            self.drop(self.oldest())

    def oldest(self) -> str:
        return next(iter(self))

    def drop(self, task_id: str) -> None:
        if self.pop(task_id, None) is not None:
            self.size_bytes -= self.id_bytes + text_bytes(task_id)


class Grouped(OrderedDict[_K, _V]):
    """Values by key, and by the groups that `groups_of` says a key is in. What goes, goes by `take`."""

    def __init__(self, groups_of: Callable[[_K], Iterable[Hashable]]) -> None:
        super().__init__()
        self._groups_of, self._groups = groups_of, dict[Hashable, dict[_K, None]]()

    def __setitem__(self, key: _K, value: _V) -> None:
        if key not in self:
            for group in self._groups_of(key):
                self._groups.setdefault(group, {})[key] = None
        super().__setitem__(key, value)

    def take(self, key: _K) -> _V | None:
        if (value := self.get(key)) is not None:
            del self[key]
            for group in self._groups_of(key):
                keys = self._groups[group]
                del keys[key]
                if not keys:
                    del self._groups[group]
        return value

    def of_group(self, group: Hashable) -> list[_V]:
        return [self[key] for key in self._groups.get(group, ())]


class Stored(Generic[_K, _V]):
    def __init__(
        self,
        space: Space,
        beside: "Stored[Any, Any] | None" = None,
        groups_of: Callable[[_K], Iterable[Hashable]] = lambda _: (),
    ) -> None:
        self.size_bytes, self.space = 0, space
        self._beside = beside  # what is stored there takes of the same space
        self.on_use: Callable[[_V, float], None] | None = None  # is told of each use of what is stored: when
        self._by_key: Grouped[_K, _V] = Grouped(groups_of)
        self.of_group = self._by_key.of_group

    def get(self, key: _K) -> _V | None:
        return self._by_key.get(key)

    def all(self) -> list[_V]:
        """All of them, the least recently used first."""
        return list(self._by_key.values())

    def use(self, one: _V, now: float) -> None:
        """Store it, or count its size anew, as used now. Others go for it; it goes itself if it is too large."""
        if self._by_key.get(one.key) is not one:
            self._by_key[one.key] = one
        self._by_key.move_to_end(one.key)
        size_bytes = one.size_bytes
        self.size_bytes += size_bytes - one.stored_bytes
        one.stored_bytes = size_bytes
        if self._is_full and size_bytes > self.space.bytes_max and not one.queries:
            self.take_out(one.key)
        while self._is_full and (oldest := next((o for o in self._by_key.values() if not o.queries), None)) is not None:
            self.take_out(oldest.key)
        self.touch(one, now)

    def touch(self, one: _V, now: float) -> None:
        """It is used now, and as large as before."""
        if one.key in self._by_key:
            self._by_key.move_to_end(one.key)
            one.used_at = now
            if self.on_use is not None:
                self.on_use(one, now)

    @property
    def _is_full(self) -> bool:
        beside_bytes = 0 if self._beside is None else self._beside.size_bytes
        return self.size_bytes + beside_bytes > self.space.bytes_max or len(self._by_key) > self.space.number_max

    def expire(self, now: float) -> None:
        """Take out what has been idle for too long, some at a time: this stands in the way of every query."""
        for _ in range(min(len(self._by_key), _EXPIRED_AT_ONCE)):
            if now - (oldest := next(iter(self._by_key.values()))).used_at < self.space.idle_s:
                return
            if oldest.queries:
                self.use(oldest, now)
            else:
                self.take_out(oldest.key)

    def take_out(self, key: _K) -> None:
        if (one := self._by_key.take(key)) is not None:
            self.size_bytes -= one.stored_bytes
            one.stored_bytes = 0
            one.leave()
