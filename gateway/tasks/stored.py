"""What is stored by key, least recently used first, within limits of bytes, of number and of idle time.

In: a key and what it leads to, each time that it is used. Out: each that goes, to `retire`. Always: `size_bytes` is the
sum of the sizes as they were last counted, and within its limit; a use costs the same however many there are. It stands
in the way of every answer to `tasks/get`, so it keeps order, time and size at once.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from gateway.identity import Key


class Sized(Protocol):
    """What may be stored."""

    @property
    def size_bytes(self) -> int:
        """The memory that it takes now."""


_Kept = TypeVar("_Kept", bound=Sized)


class _Place(Generic[_Kept]):
    __slots__ = ("kept", "size_bytes", "used_at")

    def __init__(self, kept: _Kept) -> None:
        self.kept: Final = kept
        self.size_bytes = 0
        self.used_at = 0.0


class Stored(Generic[_Kept]):
    """Things by key. `retire` gets each that is evicted, expires, or is too large; not one that is taken out."""

    def __init__(self, bytes_max: int, count_max: int, idle_s: float, retire: Callable[[_Kept], None]) -> None:
        self.size_bytes = 0
        self._bytes_max, self._count_max, self._idle_s = bytes_max, count_max, idle_s
        self._retire = retire
        self._entries: OrderedDict[Key, _Place[_Kept]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def get(self, key: Key) -> _Kept | None:
        """What is stored at a key; it does not count as used."""
        entry = self._entries.get(key)
        return None if entry is None else entry.kept

    def all(self) -> list[tuple[Key, _Kept]]:
        """All that is stored, the least recently used first."""
        return [(key, entry.kept) for key, entry in self._entries.items()]

    def use(self, key: Key, kept: _Kept, now: float) -> bool:
        """Store it, or count its size anew, as used now. Others go for it. False if it is itself too large: it goes."""
        entry = self._entries.get(key)
        if entry is None or entry.kept is not kept:
            self.take_out(key)
            entry = self._entries[key] = _Place(kept)
        size_bytes = kept.size_bytes
        self.size_bytes += size_bytes - entry.size_bytes
        entry.size_bytes, entry.used_at = size_bytes, now
        self._entries.move_to_end(key)
        if size_bytes > self._bytes_max:
            self._retire_at(key)
            return False
        while self.size_bytes > self._bytes_max or len(self._entries) > self._count_max:
            self._retire_at(next(iter(self._entries)))
        return True

    def expire(self, now: float) -> None:
        """Take out what has been idle for too long."""
        while self._entries and now - next(iter(self._entries.values())).used_at >= self._idle_s:
            self._retire_at(next(iter(self._entries)))

    def take_out(self, key: Key) -> _Kept | None:
        """Take out what is stored at a key."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        self.size_bytes -= entry.size_bytes
        return entry.kept

    def _retire_at(self, key: Key) -> None:
        gone = self.take_out(key)
        assert gone is not None
        self._retire(gone)
