"""The ids of tasks that answers have shown to a caller: he finds them with renewed credentials, or in a new session.

In: ids that an answer to a caller has shown, or that the server denies him. Out: the ids to ask for.
Always: each is asked for in the caller's own name, and what the server denies is not shown (DESIGN 7.12). Two callers
share ids if they are of one owner:

    owner                                                                         keeps the newest
    the callers of one session whose identities differ in credentials alone       10,000
    the callers of one identity, in any session, if they have credentials         1,000

An owner that is full takes in new tasks alone. Some servers give a task to one session alone; in a session other
credentials may be another user's.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Final, TypeAlias

from gateway.caller_identity import Key, ServerKey
from gateway.config import IndexLimits
from gateway.mcp.task import Moment, text_bytes
from gateway.owners.eviction import Space, Storable, Stored

IDS_OF_SESSION: Final = 10_000
IDS_OF_CREDENTIALS: Final = 1000
ID_CHARS_MAX: Final = 256  # of an id that is kept
IDLE_S: Final = 24 * 3600.0  # nobody can be asked for these ids
_SHARE: Final = 4  # of `memory_bytes_max`, at most one part of so many
_OVERHEAD_BYTES: Final = 600  # of an owner beside its ids
_ID_BYTES: Final = 80  # of an id beside its text
_OF_A_SESSION: Final = 2  # owners
DENIED: Final = 0
_DENIALS_MAX: Final = 3

OwnerKey: TypeAlias = tuple[ServerKey, bytes, bytes, bytes, bool]


class SeenIds(dict[str, int], Storable[OwnerKey]):
    """The ids of one owner, oldest first, and in which order each was first seen."""

    size_bytes = _OVERHEAD_BYTES
    id_bytes = _ID_BYTES

    def __init__(self, key: OwnerKey) -> None:
        super().__init__()
        self.key, self.ids_max = key, IDS_OF_SESSION if key[-1] else IDS_OF_CREDENTIALS
        self._denials: Counter[str] = Counter()

    def put(self, task_id: str, order: int) -> None:
        """An id is the newest one from now on. Of too many the oldest goes."""
        self.drop(task_id)
        self[task_id] = order
        self.size_bytes += self.id_bytes + text_bytes(task_id)
        if len(self) > self.ids_max:
            self.drop(next(iter(self)))

    def drop(self, task_id: str) -> None:
        self._denials.pop(task_id, None)
        if self.pop(task_id, None) is not None:
            self.size_bytes -= self.id_bytes + text_bytes(task_id)

    def deny(self, task_id: str, asked: int, had_it: bool) -> None:
        """The server has denied a task to a request of then, in the name of a caller who `had_it` or not."""
        is_news = 0 < self.get(task_id, 0) < asked
        if is_news and not self.key[-1]:
            self[task_id] = DENIED
        elif is_news:
            self._denials[task_id] += 1
            if had_it or self._denials[task_id] == _DENIALS_MAX:
                self.drop(task_id)

    def since(self, at: int) -> list[tuple[str, int]]:
        """The ids that were first seen later than that, oldest first, without those that are denied."""
        later = takewhile(lambda seen: not DENIED < seen[1] <= at, reversed(self.items()))
        return [seen for seen in later if seen[1] > at][::-1]


class Owners:
    """The ids of all owners: the least recently used go first."""

    idle_s = IDLE_S

    def __init__(self, limits: IndexLimits) -> None:
        self.stored: Stored[OwnerKey, SeenIds] = Stored(
            Space(0, 0, 0.0), groups_of=lambda owner: [owner[:3]] if owner[-1] else []
        )
        self.set_limits(limits)

    def set_limits(self, limits: IndexLimits) -> None:
        self.stored.space = Space(limits.memory_bytes_max // _SHARE, _OF_A_SESSION * limits.sessions_max, self.idle_s)
        self._limits = limits

    def owners_of(self, key: Key) -> list[OwnerKey]:
        owners: list[OwnerKey] = []
        if key.session:
            owners.append((*key.of_all, key.kin, True))
        if key.has_credentials and self._limits.find_again == "credentials":
            owners.append((key.server, key.target, b"", key.identity, False))
        return owners

    def note(self, owners: Iterable[OwnerKey], task_ids: Collection[str], now: Moment, made: bool = False) -> None:
        """An answer to a caller has shown tasks, or that he `made` one."""
        fresh = task_ids  # to his session: what was denied to his credentials passes again
        for owner in owners:
            if (seen := self.stored.get(owner)) is None:
                seen = SeenIds(owner)
            again = {i for i in fresh if seen.get(i) == DENIED}
            fresh = [i for i in task_ids if made or i in again or i not in seen]
            is_open = made or len(seen) < seen.ids_max
            new = [i for i in fresh if len(i) <= ID_CHARS_MAX and (is_open or i in again)]
            for task_id in new:
                seen.put(task_id, now.order)
            (self.stored.use if new else self.stored.touch)(seen, now.at)

    def deny(self, owners: Iterable[OwnerKey], task_id: str, asked: int, had_it: bool) -> None:
        for seen in self._of(owners):
            seen.deny(task_id, asked, had_it)

    def of(self, owners: Iterable[OwnerKey], now: Moment) -> Iterator[SeenIds]:
        """The ids of each owner of a caller, who uses them now."""
        self.stored.expire(now.at)
        for seen in self._of(owners):
            self.stored.touch(seen, now.at)
            yield seen

    def _of(self, owners: Iterable[OwnerKey]) -> Iterator[SeenIds]:
        return (seen for owner in owners if (seen := self.stored.get(owner)) is not None)

    def owns(self, owners: Sequence[OwnerKey], *task_ids: object) -> bool:
        return True

    def end_all(self, key: Key) -> None:
        """A session has ended, for every caller."""
        for seen in self.stored.of_group(key.of_all):
            self.stored.remove(seen.key)
