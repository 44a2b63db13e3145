"""Whose a task is, where several replicas share that by a store (DESIGN 12.7). It is imported only for that.

In: the answers that make tasks, here; what the store has. Out: what the store is told; whose a task is. Always: each
task has a key of its own in the store, with its makings in order: the last one says whose it is, and how long the key
is kept. Each owner has a key with what he got and lost, which is kept as long as the longest of these. What is known
here holds for half of `max_age`; what is not known here is not the caller's before the store has said so.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from typing import Annotated, Any, Final

import msgspec
from cachetools import LRUCache

from gateway.caller_identity import Key, ServerKey
from gateway.config import IndexLimits
from gateway.errors import Overloaded
from gateway.mcp.ids_in_messages import TTL_S_MAX, Made
from gateway.mcp.jsonrpc import decoded
from gateway.mcp.task import Moment
from gateway.owners.task_ids_seen_by_caller import IDLE_S, IDS_OF_SESSION, OwnerKey
from gateway.owners.task_owners import GUARD, Lost, Ownership, OwnTasks
from gateway.store.redis_command_queue import Read
from gateway.store.redis_schema import DOUBT, Heard, RedisStore, entry_of, entry_of_gone, slices, updates_in
from gateway.tasks.single_flight import begun

_HEARD_MAX: Final = 20_000  # owners
_IN_A_TURN: Final = 50  # tasks that are learnt
_UNTOLD_MAX: Final = 1000  # makings, while the store fails
_ASKED_AGAIN_S: Final = 1.0  # whether it has one; up to twice as long, so that not all ask at once
_MAKINGS_MAX: Final = 4  # of one task, the last of them that which counts
_LONGER: Final = 1.5  # the store keeps a task than a replica
_RENEWED_AT: Final = 1.25  # of that time are left
_WAITS_S: Final = (0.0, 0.05, 0.2)  # for what another replica has just seen made to be in the store
_WAIT_S: Final = 0.25  # for all of that


class SharedOwn(OwnTasks):
    """The owners of all tasks, here and at other replicas."""

    def __init__(self, limits: IndexLimits, now: Callable[[], Moment], lost: Lost, store: RedisStore) -> None:
        super().__init__(limits, now, lost)
        self._store = store
        self._heard: LRUCache[OwnerKey, Heard] = LRUCache(_HEARD_MAX)
        self._telling: set[asyncio.Task[None]] = set()
        self._untold: dict[tuple[ServerKey, str], Ownership] = {}  # makings that the store may not have

    def make(self, server: ServerKey, owners: Sequence[OwnerKey], made: Made) -> None:
        super().make(server, owners, made)
        if self.owns(owners, made.id) or not owners:
            making = self.makings.get((server, made.id)) or Ownership((), made.ttl_s)
            self._untold.pop((server, made.id), None)
            if len(self._untold) < _UNTOLD_MAX:
                self._untold[server, made.id] = making
            self._tell(server, made.id, making, is_new=True)
            self._begin(self._tell_made((server, made.id), making))

    def claim(self, server: ServerKey, owners: Sequence[OwnerKey], made: Made) -> None:
        self._begin(self._claim(server, owners, made))

    async def _claim(self, server: ServerKey, owners: Sequence[OwnerKey], made: Made) -> None:
        """A task becomes a caller's if the store knows of no making."""
        if await self._store.lasts([_key_of_task(server, made.id)], [b""], []) == [b"", b"-2"]:
            self.make(server, owners, made)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = begun(work)
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    def _tell(self, server: ServerKey, task_id: str, making: Ownership, is_new: bool) -> None:
        """Tell whose a task is. What the store has stays in its order, unless the making `is_new`."""
        kept_s, entry = _LONGER * making.kept_s, msgspec.json.encode((making.ttl_s, [o[1:] for o in making.owners]))
        old, making.told_until = [entry] if is_new else [], self._now().at + kept_s
        self._store.add(_key_of_task(server, task_id), [entry], old, kept_s=kept_s, most=_MAKINGS_MAX)
        for owner in making.owners:
            self._tell_owner(owner, entry_of(task_id, None), [entry_of_gone(task_id)] if is_new else [], kept_s)

    def _tell_owner(self, owner: OwnerKey, entry: bytes, old: list[bytes], kept_s: float) -> None:
        old = [entry, *old] if old else []
        self._store.add(_key_of(owner), [entry], old, kept_s=kept_s, most=IDS_OF_SESSION)

    async def _tell_made(self, name: tuple[ServerKey, str], making: Ownership) -> None:
        """Tell those who had a task that they have lost it, once the store has the making.

        Until then `tell_all` tells it as new, and what the store says of the task is not believed.
        """
        task, wait_s = _key_of_task(*name), _ASKED_AGAIN_S * (1 + len(self._untold) / _UNTOLD_MAX)
        try:
            while (read := await self._read_in_full(task)) is None:
                await asyncio.sleep(wait_s)
                if self._store.name_of_entries(task) is None or self._untold.get(name) is not making:
                    return
                known = self.makings.get(name)  # none is kept of what is nobody's
                if (known is not making and (known or making.owners)) or making.until <= self._now().at:
                    return
        finally:
            if self._untold.get(name) is making:
                del self._untold[name]
        server, task_id = name
        for earlier in (_making_in(server, entry) for entry in read.tasks):
            if (earlier.owners, earlier.ttl_s) == (making.owners, making.ttl_s):
                return  # those behind it are later
            for owner in earlier.owners:
                if owner not in making.owners:
                    self._tell_owner(owner, entry_of_gone(task_id), [entry_of(task_id, None)], 2 * IDLE_S)

    async def _read_in_full(self, key: Key) -> Read | None:
        """What a store has that has all that this replica has told; None if it lacks something."""
        losses = self._store.losses
        read = await self._store.read(key) if self._store.is_up else None
        return read if self._store.is_up and losses == self._store.losses else None

    async def owns_now(self, owners: Sequence[OwnerKey], task_ids: Collection[object]) -> bool:
        if not task_ids or not owners:
            return not task_ids
        if self.owns(owners, *task_ids):  # another replica may know better
            ids = [str(task_id) for task_id in task_ids]
            heard = [self._heard.get(owner, Heard()) for owner in owners]
            is_in_place = all(one.place and one.epoch == self._store.epoch for one in heard)  # else some may be untold
            await (self.learn(owners) if is_in_place else self._look(owners, ids))
        began_s = self._now().at
        for wait_s in _WAITS_S:
            if self._now().at + wait_s - began_s > _WAIT_S:
                break
            await asyncio.sleep(wait_s)
            unknown = [i for i in task_ids if isinstance(i, str) and not self.owns(owners, i)]
            has_learnt = not unknown or await self._look(owners, unknown)
            if self.owns(owners, *task_ids):
                return True
            if not has_learnt:
                raise Overloaded(f"{GUARD}: the store does not answer, and this task is not known here")
        return False

    async def _look(self, owners: Sequence[OwnerKey], task_ids: Sequence[str]) -> bool:
        """Learn by one question which tasks have any of these owners. Returns whether that could be told."""
        server, count, now = owners[0][0], 2 + len(owners), self._now().at
        before = [self.makings.get((server, i)) for i in task_ids]
        sets, entries = [_key_of_task(server, i) for i in task_ids], [entry_of(i, None) for i in task_ids]
        if (found := await self._store.lasts(sets, entries, map(_key_of, owners))) is None:
            return False
        for at, task_id in enumerate(task_ids):
            if at % _IN_A_TURN == _IN_A_TURN - 1:
                await asyncio.sleep(0)
            if (known := self.makings.get((server, task_id))) is not before[at]:
                continue  # it was made again meanwhile
            last, left_ms, *has = found[at * count : (at + 1) * count]
            making = _making_in(server, last)
            is_other = known is not None and known.owners != making.owners
            if (server, task_id) in self._untold or (is_other and not self._store.is_up):
                continue  # the store may not know of it yet that it was made again here
            his = [owner for owner, listed in zip(owners, has, strict=True) if listed and owner in making.owners]
            if new := [owner for owner in his if not self.owns([owner], task_id)]:
                self.give(server, task_id, making, new)
                making.told_until = now + int(left_ms) / 1000
                making.until = min(making.until, now + (making.told_until - now) / _LONGER)
            for owner in owners:
                if owner not in his and last and self._store.is_up and self.owns([owner], task_id):
                    self.take_away(owner, task_id)
        return True

    def _use(self, making: Ownership, task_id: str, now: Moment) -> None:
        super()._use(making, task_id, now)
        if making.told_until < now.at + _RENEWED_AT * making.kept_s:
            making.told_until = now.at + (kept_s := _LONGER * making.kept_s)
            for key in (_key_of_task(making.owners[0][0], task_id), *map(_key_of, making.owners)):
                self._store.add(key, (), kept_s=kept_s)

    def forget_heard(self, owner: OwnerKey) -> None:
        self._heard.pop(owner, None)

    def end_all(self, key: Key) -> None:
        known = [ids.key for ids in self.stored.of_group(key.of_all)]
        for owner in dict.fromkeys([*known, *(owner for owner in self.owners_of(key) if owner[-1])]):
            self._store.drop(_key_of(owner))
            # So the others hear of it, for as long as they may know the owner.
            self._store.add(_key_of(owner), [DOUBT], [DOUBT], owed=True, kept_s=2 * IDLE_S)
        super().end_all(key)

    async def learn(self, owners: Sequence[OwnerKey]) -> None:
        """Learn what other replicas know of these owners, where that is due."""
        asked, epoch = self._now(), self._store.epoch
        owners = [o for o in owners if asked.at - self._heard.get(o, Heard()).at >= self._limits.max_age / 2]
        if not owners:
            return
        reads = await asyncio.gather(*(self._store.read(_key_of(o), self._heard.get(o)) for o in owners))
        new = dict[str, None]()  # that any of these owners may have
        for owner, read in zip(owners, reads, strict=True):
            for some in slices([] if read is None else read.tasks):
                await asyncio.sleep(0)
                self._hear(owner, some, new)
        for ids in slices(list(new)):
            await asyncio.sleep(0)
            unknown = [i for i in ids if not all(self.owns([owner], i) for owner in owners)]
            if unknown and not await self._look(owners, unknown):
                return
        for owner, read in zip(owners, reads, strict=True):
            if read is not None:
                self._heard[owner] = Heard(epoch, read.place, asked.at)

    def _hear(self, owner: OwnerKey, entries: Iterable[bytes], new: dict[str, None]) -> None:
        """Take away what is told to be an owner's no more; add to `new` what may be his."""
        for update in updates_in(entries):
            if update.id is None:  # the session has ended
                self.stored.remove(owner)
            elif not update.gone:
                new[update.id] = None
            elif self.owns([owner], update.id):
                self.take_away(owner, update.id)

    def tell_all(self) -> Iterator[None]:
        """Tell the store again whose each task is, piece by piece. What it surely has stays in its order."""
        for some in slices(list((self.makings | self._untold).items())):
            for (server, task_id), making in some:
                is_new = self._untold.get((server, task_id)) is making
                if self.owns(making.owners, task_id) or (is_new and not making.owners):
                    self._tell(server, task_id, making, is_new)
            yield


_Seconds = Annotated[float, msgspec.Meta(ge=0, le=TTL_S_MAX)]
# The `ttl`, and the `OwnerKey`s but for the upstream.
_making: Final = msgspec.json.Decoder(tuple[_Seconds, list[tuple[bytes, bytes, bytes, bool]]])


def _making_in(server: ServerKey, entry: bytes) -> Ownership:
    ttl_s, owners = decoded(_making, entry) or (0.0, [])
    return Ownership(tuple((server, *each) for each in owners), ttl_s)


def _key_of(owner: OwnerKey) -> Key:
    return Key(*owner[:3], b"own%d" % owner[4] + owner[3])


def _key_of_task(server: ServerKey, task_id: str) -> Key:
    return Key(server, b"", b"task", task_id.encode())
