"""Whose a task is, where a guard keeps the tasks of callers apart (`guards.own_tasks`, DESIGN 8.16).

In: the answers that make tasks, and to whom they go; what servers tell. Out: whether a task is a caller's, and whether
he may get a message. Always: a task has the owners of the caller who got the answer that made it last.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final, TypeAlias

from gateway.caller_identity import ServerKey
from gateway.config import IndexLimits
from gateway.mcp import jsonrpc, task_observations
from gateway.mcp.jsonrpc import Message
from gateway.mcp.task import Moment
from gateway.owners.ids_in_messages import OF_TASKS, Made, made_by, told_of
from gateway.owners.task_ids_seen_by_caller import DENIED, ID_CHARS_MAX, IDS_OF_SESSION, OwnerKey, Owners, SeenIds

NO_OWNER: Final = (
    "tasks are for callers with an Mcp-Session-Id, or credentials, over Streamable HTTP; where each request proves "
    "itself, identity_headers must name what tells who asks"
)

_ID_BYTES: Final = 150  # of an id beside its text
_AT_ONCE: Final = 10  # names that are forgotten with each task that is made
_SWEPT_AT_ONCE: Final = 500
_ENDINGS: Final = (b'"completed"', b'"failed"', b'"cancelled"')  # of tasks that seem to have ended the ids go first

_Name: TypeAlias = tuple[ServerKey, str]  # of a task; a server may take many targets for one


class OwnIds(SeenIds):
    """The ids of the tasks of one owner, in the order in which they were made."""

    def __init__(self, key: OwnerKey, dropped: Callable[[_Name], None], left: Callable[["OwnIds"], None]) -> None:
        """`dropped` is told of each task that is no more this owner's, `left` that none is."""
        super().__init__(key)
        self.id_bytes, self.ids_max = _ID_BYTES, IDS_OF_SESSION
        self._dropped, self._left, self.ended = dropped, left, set[str]()

    def oldest(self) -> str:
        return next((task_id for task_id in self if task_id in self.ended), super().oldest())

    def drop(self, task_id: str) -> None:
        super().drop(task_id)
        self.ended.discard(task_id)
        self._dropped((self.key[0], task_id))

    def leave(self) -> None:
        self._left(self)

    def deny(self, task_id: str, asked: int, had_it: bool) -> None:
        """Of what is denied no list asks again, until the server gives it. It stays its owner's: it may be another's
        who has the session, or of one session alone.
        """
        if 0 < self.get(task_id, 0) < asked and (had_it or not self.key[-1]):
            self[task_id] = DENIED
            self.ended.add(task_id)


class OwnTasks(Owners):
    """The owners of all tasks. A task that was made elsewhere, or before the gateway began, has none."""

    apart = True

    def __init__(
        self, limits: IndexLimits, now: Callable[[], Moment], lost: Callable[[str, list[OwnerKey]], None]
    ) -> None:
        """`lost` is told of each task that was another's until now, and of its owners who are none any more."""
        super().__init__(limits)
        self._now, self._lost = now, lost
        self.owners: dict[_Name, tuple[OwnerKey, ...]] = {}  # of tasks that owners here have, or had
        self._left: list[OwnIds] = []  # their names are forgotten bit by bit

    def make(self, server: ServerKey, owners: Sequence[OwnerKey], made: Made) -> None:
        """An answer to a caller has made a task: nobody else has it from now on. It is nobody's if he has no owners."""
        if len(made.id) <= ID_CHARS_MAX:
            self.give(server, owners, tuple(owners), made)

    claim = make  # a resumed stream shows a caller that a task was made which has no owner here

    def give(self, server: ServerKey, owners: Iterable[OwnerKey], all_: tuple[OwnerKey, ...], made: Made) -> None:
        """These owners have a task, of `all_` who have it from its last making. Those of earlier ones lose it."""
        self._forget_some(_AT_ONCE)
        name, now = (server, made.id), self._now()
        before = self.owners.get(name, ())
        if lost := [ids for ids in self._of(before) if ids.key not in all_]:
            for ids in lost:
                ids.drop(made.id)
            self._lost(made.id, [ids.key for ids in lost])
        for owner in owners:
            had = self.stored.get(owner)
            his = OwnIds(owner, self._forget, self._left.append) if had is None else had
            his.put(made.id, now.order)
            his.kept_until = max(his.kept_until, now.at + made.ttl_s)
            self.owners[name] = all_
            self.stored.use(his, now.at)

    def take_away(self, owner: OwnerKey, task_id: str) -> None:
        for ids in self._of([owner]):
            ids.drop(task_id)
            self._lost(task_id, [owner])

    def sweep(self) -> None:
        """To be called once a second."""
        self.stored.expire(self._now().at)
        self._forget_some(_SWEPT_AT_ONCE)

    def _forget_some(self, count: int) -> None:
        """Forget tasks of owners that have left: each is nobody's already."""
        while self._left and count > 0:
            count -= 1
            if ids := self._left[-1]:
                ids.drop(next(reversed(ids)))
            else:
                self._left.pop()

    def _forget(self, name: _Name) -> None:
        if not self.owns(self.owners.get(name, ()), name[1]):
            self.owners.pop(name, None)

    def note(self, owners: Iterable[OwnerKey], task_ids: Collection[str], now: Moment, made: bool = False) -> None:
        for ids in self._of(owners):
            for task_id in task_ids:
                if ids.get(task_id) == DENIED:
                    del ids[task_id]
                    ids[task_id] = now.order
            self.stored.touch(ids, now.at)

    async def owns_now(self, owners: Sequence[OwnerKey], task_ids: Collection[object]) -> bool:
        """As `owns`, by what any replica knows. Raises Overloaded if that cannot be told."""
        return self.owns(owners, *task_ids)

    def owns(self, owners: Sequence[OwnerKey], *task_ids: object) -> bool:
        return all(isinstance(i, str) and any(i in ids for ids in self._of(owners)) for i in task_ids)

    def may_pass(
        self,
        server: ServerKey,
        owners: Sequence[OwnerKey],
        data: bytes,
        request: Message | None = None,
        resumed: bool = False,
    ) -> bool:
        """Whether a caller may get a message of his server's. What makes a task makes it his.

        `request`: what the exchange asked. On a stream that was `resumed` stand answers to earlier requests: they make
        a task his if it is nobody's.
        """
        if (message := jsonrpc.parse(data)) is None:
            return not jsonrpc.looks_like_messages(data)
        answers = request is not None and message.is_response and jsonrpc.same_id(message.id, request.id)
        if request is None or not answers:
            made = made_by(message, asks=True) if resumed and message.is_response else None
            if made is not None and owners and not self.owns(self.owners.get((server, made.id), ()), made.id):
                self.claim(server, owners, made)
                return True
        elif (request.method or "").startswith(OF_TASKS):
            if (task_id := task_observations.named(request.params)) is not None:
                if not self.owns(owners, task_id):
                    return False  # it changed hands meanwhile
                if any(status in data for status in _ENDINGS):
                    self.end_task(owners, task_id)
        elif (made := made_by(message, asks=request.is_observed)) is not None:
            self.make(server, owners, made)
        return answers or self.owns(owners, *told_of(message, data))

    def end_task(self, owners: Iterable[OwnerKey], task_id: str) -> None:
        for ids in self._of(owners):
            if task_id in ids:
                ids.ended.add(task_id)

    def _of(self, owners: Iterable[OwnerKey]) -> Iterator[OwnIds]:
        return (ids for owner in owners if isinstance(ids := self.stored.get(owner), OwnIds))
