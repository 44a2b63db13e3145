"""Whose a task is, where a guard keeps the tasks of callers apart (`guards.own_tasks`, DESIGN 8.16).

In: the answers that make tasks, and to whom they go; what servers tell. Out: whether a task is a caller's, and whether
he may get a message. Always: a task has the owners of the caller who got the answer that made it last.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, TypeAlias

from msgspec import Struct

from gateway.caller_identity import ServerKey
from gateway.config import IndexLimits
from gateway.mcp import jsonrpc
from gateway.mcp.client_message import ClientMessage
from gateway.mcp.ids_in_messages import OF_TASKS, Made, made_by, told_of
from gateway.mcp.task import Moment
from gateway.owners.task_ids_seen_by_caller import DENIED, ID_CHARS_MAX, IDS_OF_SESSION, OwnerKey, Owners, SeenIds

GUARD: Final = "guards.own_tasks"
NO_OWNER: Final = (
    "tasks are for callers with an Mcp-Session-Id, or credentials, over Streamable HTTP; where each request proves "
    "itself, identity_headers must name what tells who asks"
)

_ID_BYTES: Final = 150  # of an id beside its text
_GRACE_S: Final = 3600.0
_VISITED_WITH_A_MAKING: Final = 3  # names
_VISITED_AT_ONCE: Final = 250

Lost: TypeAlias = Callable[[str, list[OwnerKey]], None]
"""Is told of each task that was another's until now, and of its owners who are none any more."""
_Name: TypeAlias = tuple[ServerKey, str]  # of a task; a server may take many targets for one


class Ownership(Struct):
    """The last making of a task: whose it is, and for how many seconds its server keeps it, 0 if that is not known."""

    owners: tuple[OwnerKey, ...]
    ttl_s: float
    until: float = 0.0  # it is theirs
    told_until: float = 0.0  # a store keeps it

    @property
    def kept_s(self) -> float:
        """For how long it is theirs from its last use. Some servers begin its `ttl` anew when it has ended."""
        return 2 * self.ttl_s + _GRACE_S if self.ttl_s else Owners.idle_s


class OwnIds(SeenIds):
    """The ids of the tasks of one owner, in the order in which they were made."""

    id_bytes = _ID_BYTES

    def __init__(self, key: OwnerKey, left: Callable[[OwnerKey], object]) -> None:
        """`left` is told when the owner is forgotten."""
        super().__init__(key)
        self._left, self.ids_max = left, IDS_OF_SESSION

    def leave(self) -> None:
        self._left(self.key)

    def deny(self, task_id: str, asked: int, had_it: bool) -> None:
        """Of what is denied no list asks again, until the server gives it. It stays its owner's: it may be another's
        who has the session, or of one session alone.
        """
        if 0 < self.get(task_id, 0) < asked and (had_it or not self.key[-1]):
            self[task_id] = DENIED


class OwnTasks(Owners):
    """The owners of all tasks. A task that was made elsewhere, or before the gateway began, has none."""

    idle_s = float("inf")  # an owner goes with the last of his tasks

    def __init__(self, limits: IndexLimits, now: Callable[[], Moment], lost: Lost) -> None:
        super().__init__(limits)
        self._now, self._lost = now, lost
        self.makings: dict[_Name, Ownership] = {}  # of tasks that owners here have, or had
        self._turn: Iterator[_Name] = iter(())  # of those that are yet to be visited

    def make(self, server: ServerKey, owners: Sequence[OwnerKey], made: Made) -> None:
        """An answer to a caller has made a task: nobody else has it from now on. It is nobody's if he has no owners."""
        if len(made.id) <= ID_CHARS_MAX:
            self.give(server, made.id, Ownership(tuple(owners), made.ttl_s), owners)

    claim = make  # a resumed stream shows a caller that a task was made which has no owner here

    def give(self, server: ServerKey, task_id: str, making: Ownership, owners: Iterable[OwnerKey]) -> None:
        """Owners have a task, of all who have it by its last making. Those of earlier ones lose it."""
        self.sweep(_VISITED_WITH_A_MAKING)
        now = self._now()
        making.until = now.at + making.kept_s
        for owner in self._owners_of(server, task_id):
            if owner not in making.owners:
                self.take_away(owner, task_id)
        self.makings[server, task_id] = making
        for owner in owners:
            his = self.stored.get(owner) or OwnIds(owner, self.forget_heard)
            his.put(task_id, now.order)
            self.stored.use(his, now.at)

    def _owners_of(self, server: ServerKey, task_id: str) -> tuple[OwnerKey, ...]:
        making = self.makings.get((server, task_id))
        return () if making is None else making.owners

    def take_away(self, owner: OwnerKey, task_id: str) -> None:
        for ids in self._of([owner]):
            ids.drop(task_id)
            if not ids:
                self.stored.remove(owner)
            self._lost(task_id, [owner])

    def sweep(self, count: int = _VISITED_AT_ONCE) -> None:
        """Forget tasks that have had their time, or whose owners have gone. Some are visited, each in its turn.

        To be called once a second.
        """
        now, names = self._now().at, list(islice(self._turn, count))
        for server, task_id in names:
            making = self.makings.get((server, task_id))
            if making is not None and making.until <= now:
                for ids in list(self._of(making.owners)):
                    if ids.get(task_id) != DENIED:
                        self.forget_heard(ids.key)
                    self.take_away(ids.key, task_id)
            if making is not None and not self.owns(making.owners, task_id):
                del self.makings[server, task_id]
        if len(names) < count:
            self._turn = iter(list(self.makings))

    def forget_heard(self, owner: OwnerKey) -> None:
        """Less is known of an owner than there was."""

    def note(self, owners: Iterable[OwnerKey], task_ids: Collection[str], now: Moment, made: bool = False) -> None:
        for ids in self._of(owners):
            for task_id in filter(ids.__contains__, task_ids):
                if ids[task_id] == DENIED:
                    del ids[task_id]
                    ids[task_id] = now.order
                if (making := self.makings.get((ids.key[0], task_id))) is not None:
                    self._use(making, task_id, now)
            self.stored.touch(ids, now.at)

    def _use(self, making: Ownership, task_id: str, now: Moment) -> None:
        making.until = now.at + making.kept_s

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
        message: jsonrpc.Message | None,
        request: ClientMessage | None = None,
        resumed: bool = False,
    ) -> bool:
        """Whether a caller may get a message of his server's. What makes a task makes it his.

        `message`: that in `data`, None if it is none. `request`: what the exchange asked. On a stream that was
        `resumed` stand answers to earlier requests: they make a task his if it is nobody's.
        """
        if message is None:
            return not jsonrpc.looks_like_messages(data)
        answers = request is not None and message.is_response and jsonrpc.same_id(message.id, request.id)
        if request is None or not answers:
            made = made_by(message, data, asks=True) if resumed and message.is_response else None
            if made is not None and owners and not self.owns(self._owners_of(server, made.id), made.id):
                self.claim(server, owners, made)
                return True
        elif (request.method or "").startswith(OF_TASKS):
            if request.task_id is not None and not self.owns(owners, request.task_id):
                return False  # it changed hands meanwhile
        elif (made := made_by(message, data, asks=request.is_observed)) is not None:
            self.make(server, owners, made)
        return answers or self.owns(owners, *told_of(message, data))
