"""Whose a task is, where several replicas share that by a store (DESIGN 12.7). It is imported only for that.

In: the answers that make tasks, here; what the store has. Out: what the store is told; whose a task is. Always: each
task has a key of its own in the store, with its makings in order: the last one says whose it is. Each owner has a key
with what he got and lost. What is known here holds for half of `max_age`; what is not known here is not the caller's
before the store has said so.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
from cachetools import LRUCache, TTLCache

from gateway.caller_identity import Key, ServerKey
from gateway.config import IndexLimits
from gateway.errors import Overloaded
from gateway.mcp.jsonrpc import decoded
from gateway.mcp.task import Moment
from gateway.owners.ids_in_messages import GUARD, Made
from gateway.owners.task_ids_seen_by_caller import IDLE_S, OwnerKey
from gateway.owners.task_owners import OwnTasks
from gateway.store.redis_schema import DOUBT, RedisStore, ReplicaUpdate, entry_of, entry_of_gone, updates_in
from gateway.tasks.single_flight import begun

_HEARD_MAX: Final = 20_000  # owners
_NOT_HEARD: Final = (0, 0, float("-inf"))  # epoch, place, when
_USED_MAX: Final = 100_000  # keys
_AT_ONCE: Final = 200  # entries
_EARLIER_MAX: Final = 4  # makings, the last of them this one
_WAITS_S: Final = (0.0, 0.05, 0.2)  # for what another replica has just seen made to be in the store
_WAIT_S: Final = 0.25  # for all of that


class SharedOwn(OwnTasks):
    """The owners of all tasks, here and at other replicas."""

    def __init__(
        self,
        limits: IndexLimits,
        now: Callable[[], Moment],
        lost: Callable[[str, list[OwnerKey]], None],
        store: RedisStore,
    ) -> None:
        super().__init__(limits, now, lost)
        self._store = store
        self._max_age_s = limits.max_age
        self._heard: LRUCache[OwnerKey, tuple[int, int, float]] = LRUCache(_HEARD_MAX)
        self._used: TTLCache[Key, None] = TTLCache(_USED_MAX, IDLE_S / 4)
        self._telling: set[asyncio.Task[None]] = set()

    def make(self, server: ServerKey, owners: Sequence[OwnerKey], made: Made) -> None:
        super().make(server, owners, made)
        if self.owns(owners, made.id) or not owners:
            making = _making(owners)
            self._store.add(_key_of_task(server, made.id), [making], [making])
            for owner in owners:
                self._tell(owner, made.id, entry_of(made.id, None), entry_of_gone(made.id))
            self._begin(self._tell_earlier(server, owners, made.id))

    def claim(self, server: ServerKey, owners: Sequence[OwnerKey], made: Made) -> None:
        self._begin(self._claim(server, owners, made))

    async def _claim(self, server: ServerKey, owners: Sequence[OwnerKey], made: Made) -> None:
        """A task becomes a caller's if the store knows of no making."""
        if await self._makings(server, made.id) == []:
            self.make(server, owners, made)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = begun(work)
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    def _tell(self, owner: OwnerKey, task_id: str, new: bytes, old: bytes) -> None:
        self._store.add(_key_of(owner), [new], [new, old])

    async def _tell_earlier(self, server: ServerKey, owners: Sequence[OwnerKey], task_id: str) -> None:
        """Tell those that another replica knows for a task's owners that they have lost it."""
        for making in (await self._makings(server, task_id) or [])[-_EARLIER_MAX:]:
            for owner in making:
                if owner not in owners:
                    self._tell(owner, task_id, entry_of_gone(task_id), entry_of(task_id, None))

    async def _makings(self, server: ServerKey, task_id: str) -> list[tuple[OwnerKey, ...]] | None:
        """The owners by each making of a task, in order; None if the store does not say."""
        read = await self._store.read(_key_of_task(server, task_id), 0)
        if read is None:
            return None
        makings = (decoded(_owners, value) for value in read.tasks)
        return [tuple((server, *each) for each in making) for making in makings if making is not None]

    async def owns_now(self, owners: Sequence[OwnerKey], task_ids: Collection[object]) -> bool:
        if not task_ids or not owners:
            return not task_ids
        if self.owns(owners, *task_ids):  # another replica may know better
            ids = [str(task_id) for task_id in task_ids]
            await (self.learn(owners) if all(map(self._place, owners)) else self._look(owners, ids))
        began_s = self._now().at
        for wait_s in _WAITS_S:
            if self._now().at + wait_s - began_s > _WAIT_S:
                break
            await asyncio.sleep(wait_s)
            unknown = [i for i in task_ids if isinstance(i, str) and not self.owns(owners, i)]
            has_learnt = not unknown or await self._look(owners, unknown)
            if self.owns(owners, *task_ids):
                self._use(owners, task_ids)
                return True
            if not has_learnt:
                raise Overloaded(f"{GUARD}: the store does not answer, and this task is not known here")
        return False

    async def _look(self, owners: Sequence[OwnerKey], task_ids: Sequence[str]) -> bool:
        """Learn by one question which tasks have any of these owners. Returns whether that could be told."""
        server, count = owners[0][0], 1 + len(owners)
        sets, entries = [_key_of_task(server, i) for i in task_ids], [entry_of(i, None) for i in task_ids]
        if (found := await self._store.lasts(sets, entries, map(_key_of, owners))) is None:
            return False
        for at, task_id in enumerate(task_ids):
            last, *has = found[at * count : (at + 1) * count]
            all_ = tuple((server, *each) for each in decoded(_owners, bytes(last)) or ())
            his = [owner for owner, listed in zip(owners, has, strict=True) if listed and owner in all_]
            if new := [owner for owner in his if not self.owns([owner], task_id)]:
                self.give(server, new, all_, Made(task_id, 0.0))
            for owner in owners:
                if owner not in his and last and self._store.is_up and self.owns([owner], task_id):
                    self.take_away(owner, task_id)
        return True

    def _use(self, owners: Sequence[OwnerKey], task_ids: Collection[object]) -> None:
        """Have the store keep what is in use."""
        keys = [*map(_key_of, owners), *(_key_of_task(owners[0][0], str(task_id)) for task_id in task_ids)]
        for key in keys:
            if key not in self._used:
                self._used[key] = None
                self._store.add(key, ())

    def give(self, server: ServerKey, owners: Iterable[OwnerKey], all_: tuple[OwnerKey, ...], made: Made) -> None:
        for owner in owners:
            if self.stored.get(owner) is None:
                self._heard.pop(owner, None)  # what was heard of it has been forgotten
        super().give(server, owners, all_, made)

    def end_all(self, key: Key) -> None:
        known = [ids.key for ids in self.stored.of_group(key.of_all)]
        for owner in dict.fromkeys([*known, *(owner for owner in self.owners_of(key) if owner[-1])]):
            self._store.drop(_key_of(owner))
            self._store.add(_key_of(owner), [DOUBT], [DOUBT], owed=True)  # so the others hear of it
        super().end_all(key)

    async def learn(self, owners: Sequence[OwnerKey]) -> bool:
        """Learn what other replicas know of these owners, if that is due. Returns whether it could be."""
        asked, epoch = self._now(), self._store.epoch
        behind = [o for o in owners if asked.at - self._heard.get(o, _NOT_HEARD)[2] >= self._max_age_s / 2]
        return await self._learn(behind, asked, epoch) if behind else True

    async def _learn(self, owners: Sequence[OwnerKey], asked: Moment, epoch: int) -> bool:
        reads = await asyncio.gather(*(self._store.read(_key_of(o), self._place(o)) for o in owners))
        new = dict[str, None]()  # that any of these owners may have
        for owner, read in zip(owners, reads, strict=True):
            for start in range(0, 0 if read is None else len(read.tasks), _AT_ONCE):
                await asyncio.sleep(0)
                self._take_updates(owner, updates_in((read.tasks if read else [])[start : start + _AT_ONCE]), new)
        unknown = [task_id for task_id in new if not all(self.owns([owner], task_id) for owner in owners)]
        for start in range(0, len(unknown), _AT_ONCE):
            if not await self._look(owners, unknown[start : start + _AT_ONCE]):
                return False
        for owner, read in zip(owners, reads, strict=True):
            if read is not None:
                self._heard[owner] = epoch, read.place, asked.at
        return all(read is not None and read.complete for read in reads)

    def _place(self, owner: OwnerKey) -> int:
        """The place of the last entry of an owner that was taken in; 0 if what was heard has been forgotten."""
        epoch, place, _ = self._heard.get(owner, _NOT_HEARD)
        return place if epoch == self._store.epoch and self.stored.get(owner) is not None else 0

    def _take_updates(self, owner: OwnerKey, said: Iterable[ReplicaUpdate], new: dict[str, None]) -> None:
        """Take away what is told to be an owner's no more; add to `new` what may be his."""
        for update in said:
            if update.id is None:  # the session has ended
                self.stored.take_out(owner)
            elif not update.gone:
                new[update.id] = None
            elif self.owns([owner], update.id):
                self.take_away(owner, update.id)

    def tell_all(self) -> Iterator[None]:
        """Tell the store again whose each task is, piece by piece. What it has stays in its order."""
        for count, (name, owners) in enumerate(list(self.owners.items()), 1):
            if self.owns(owners, name[1]):
                self._store.add(_key_of_task(*name), [_making(owners)])
                for owner in owners:
                    self._store.add(_key_of(owner), [entry_of(name[1], None)])
            if count % _AT_ONCE == 0:
                yield


_owners: Final = msgspec.json.Decoder(list[tuple[bytes, bytes, bytes, bool]])  # `OwnerKey`s but for the upstream


def _making(owners: Sequence[OwnerKey]) -> bytes:
    return msgspec.json.encode([owner[1:] for owner in owners])


def _key_of(owner: OwnerKey) -> Key:
    return Key(*owner[:3], b"own%d" % owner[4] + owner[3])


def _key_of_task(server: ServerKey, task_id: str) -> Key:
    return Key(server, b"", b"task", task_id.encode())
