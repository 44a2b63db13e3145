"""Whose a task is, where a guard keeps the tasks of callers apart (`guards.own_tasks`, DESIGN 8.15).

In: the answers that make tasks, and to whom they go; what clients ask, and what servers tell. Out: whether a caller
owns a task; the ids that a message names. Always: pure. A task has the owners (seen.py) of the caller to whom the
answer went that made it last, and no others. What cannot be read names a task that is nobody's.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from gateway.config import IndexLimits
from gateway.errors import Ambiguous
from gateway.mcp import jsonrpc, observe
from gateway.mcp.jsonrpc import Message
from gateway.mcp.spelling import doubtful
from gateway.mcp.task import Moment
from gateway.tasks.seen import DENIED, ID_CHARS_MAX, IDS_OF_SESSION, OwnerKey, Owners, SeenIds
from gateway.tasks.stored import Stored

GUARD: Final = "guards.own_tasks"
OF_TASKS: Final = "tasks/"
NO_OWNER: Final = (
    "tasks are for callers with an Mcp-Session-Id, or credentials, over Streamable HTTP; where each request proves "
    "itself, identity_headers must name what tells who asks"
)
_RELATED: Final = "io.modelcontextprotocol/related-task"
_TTL_S_MAX: Final = 365 * 24 * 3600.0  # for so long a task is its owner's at most, if he is not there
_ENDINGS: Final = (b'"completed"', b'"failed"', b'"cancelled"')

_Name: TypeAlias = tuple[str, bytes, str]  # of a task: upstream, target, id


class OwnIds(SeenIds):
    """The ids of the tasks of one owner, in the order in which they were made."""

    id_bytes = 400

    def __init__(self, key: OwnerKey, dropped: Callable[[_Name], None]) -> None:
        """`dropped` is told of each task that is no more this owner's."""
        super().__init__(key)
        self._ids_max = IDS_OF_SESSION
        self._dropped = dropped
        self.ended = set[str]()

    def oldest(self) -> str:
        return next((task_id for task_id in self if task_id in self.ended), super().oldest())

    def drop(self, task_id: str) -> None:
        super().drop(task_id)
        self.ended.discard(task_id)
        self._dropped((*self.key[:2], task_id))

    def deny(self, task_id: str, asked: int, had_it: bool) -> None:
        """Of what is denied no list asks again, until the server gives it. It stays its owner's: it may be another's
        who has the session, or of one session alone.
        """
        if 0 < self.get(task_id, 0) < asked and (had_it or not self.key[-1]):
            self[task_id] = DENIED
            self.ended.add(task_id)


class _Kept(Stored[OwnerKey, SeenIds]):
    """What goes here is nobody's any more."""

    def take_out(self, key: OwnerKey) -> None:
        if (ids := self.get(key)) is not None:
            for task_id in list(ids):
                ids.drop(task_id)
        super().take_out(key)


class OwnTasks(Owners):
    """The owners of all tasks. A task that was made elsewhere, or before the gateway began, has none."""

    apart = True

    def __init__(self, limits: IndexLimits, now: Callable[[], Moment], lost: Callable[[str], None]) -> None:
        """`lost` is told of each task that was another's until now."""
        super().__init__(limits)
        self._now = now
        self._lost = lost
        self.stored = _Kept(self.stored.space)
        self.owners: dict[_Name, tuple[OwnerKey, ...]] = {}  # of the tasks that any owner here has

    def make(self, owners: Sequence[OwnerKey], made: "Made") -> None:
        """An answer to a caller has made a task: nobody else has it from now on."""
        if owners and len(made.id) <= ID_CHARS_MAX:
            self.give(owners, tuple(owners), made)

    def give(self, owners: Iterable[OwnerKey], all_: tuple[OwnerKey, ...], made: "Made") -> None:
        """These owners have a task, of `all_` who have it from its last making. Those of earlier ones lose it."""
        name, now = (*all_[0][:2], made.id), self._now()
        before = self.owners.get(name, ())
        if lost := [ids for ids in self._of(before) if ids.key not in all_]:
            for ids in lost:
                ids.drop(made.id)
            self._lost(made.id)
        for owner in owners:
            had = self.stored.get(owner)
            his = OwnIds(owner, self._forget) if had is None else had
            his.note(made.id, now.order)
            his.kept_until = max(his.kept_until, now.at + made.ttl_s)
            self.owners[name] = all_
            self.stored.use(his, now.at)

    def take_away(self, owner: OwnerKey, task_id: str) -> None:
        """An owner has a task no more."""
        for ids in self._of([owner]):
            ids.drop(task_id)
            self._lost(task_id)

    def _forget(self, name: _Name) -> None:
        """An owner has lost a task."""
        if not self.owns(self.owners.get(name, ()), name[2]):
            self.owners.pop(name, None)

    def note(self, owners: Iterable[OwnerKey], task_ids: Collection[str], now: Moment, made: bool = False) -> None:
        for ids in self._of(owners):
            for task_id in task_ids:
                if ids.get(task_id) == DENIED:
                    del ids[task_id]
                    ids[task_id] = now.order
            self.stored.touch(ids, now.at)

    def owns(self, owners: Iterable[OwnerKey], task_id: object) -> bool:
        return isinstance(task_id, str) and any(task_id in ids for ids in self._of(owners))

    def may_pass(
        self, owners: Sequence[OwnerKey], data: bytes, request: Message | None = None, resumed: bool = False
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
            if made is not None and owners and (*owners[0][:2], made.id) not in self.owners:
                self.make(owners, made)
        elif (request.method or "").startswith(OF_TASKS):
            if (task_id := observe.named(request)) is not None and ends(data):
                self.end_task(owners, task_id)
        elif (made := made_by(message, asks=observe.is_observed(request))) is not None:
            self.make(owners, made)
        return all(self.owns(owners, task_id) for task_id in told_of(message, data, answers))

    def end_task(self, owners: Iterable[OwnerKey], task_id: str) -> None:
        for ids in self._of(owners):
            if task_id in ids:
                ids.ended.add(task_id)

    async def owns_now(self, owners: Sequence[OwnerKey], task_ids: Collection[object]) -> bool:
        """Whether a caller has all these tasks. Raises Overloaded where that cannot be told."""
        return all(self.owns(owners, task_id) for task_id in task_ids)

    async def learn(self, owners: Sequence[OwnerKey]) -> bool:
        """Learn what other replicas know of these owners. Returns whether that could be learnt."""
        return True

    def _of(self, owners: Iterable[OwnerKey]) -> Iterator[OwnIds]:
        return (ids for owner in owners if isinstance(ids := self.stored.get(owner), OwnIds))


# ---- what messages name ----


def asked_for(message: Message | None, body: bytes) -> list[object]:
    """The ids of the tasks that a client's message is about, None for one that is no text.

    Raises Ambiguous where another reader may find other ones, or a message in what is none here.
    """
    if message is None:
        if jsonrpc.looks_like_messages(body) and not _is_other_json(body):
            raise Ambiguous(f"{GUARD}: a batch, or what only some readers take for a message, does not pass")
        return []
    if doubts := doubtful(message, body):
        raise Ambiguous(f"{GUARD}: which counts? Name it once, in its own letters: {', '.join(sorted(doubts))}")
    method = message.method or ""
    is_of_tasks = method.startswith(OF_TASKS)
    if not is_of_tasks and method.strip().casefold().startswith(OF_TASKS):
        raise Ambiguous(f"{GUARD}: no method of MCP is spelled {method!r}")
    if (ids := _related(message, body)) is None:
        raise Ambiguous(f"{GUARD}: a message that names {_RELATED} must be JSON")
    return [*ids, _id_in(message.params)] if is_of_tasks and method != "tasks/list" else ids


def told_of(message: Message, data: bytes, answers: bool) -> list[object]:
    """The ids of the tasks that a server's message names, None for what cannot be read.

    `answers`: it is the response to a request that could pass, so its result is the caller's, but for related tasks.
    """
    ids = _related(message, data)
    part = bytes(message.params if message.method is not None else message.result)
    if ids is None or answers or message.is_request or not part.startswith(b"{"):
        return [None] if ids is None else ids  # a request of a server's is about tasks of its client's
    if (found := jsonrpc.decoded(_named, part)) is None:
        return [None]
    listed = found.tasks if isinstance(found.tasks, list) else []
    named = [{"taskId": found.taskId}] * (found.taskId is not None)
    named += [each for each in (*listed, found.task) if isinstance(each, dict) and "taskId" in each]
    return [*ids, *(each["taskId"] for each in named)]


class _Named(msgspec.Struct):
    taskId: Any = None
    task: Any = None
    tasks: Any = None


class Made(NamedTuple):
    """A task that an answer made: its id, and for how many seconds its server keeps it, 0 if that is not known."""

    id: str
    ttl_s: float


def made_by(response: Message, asks: bool) -> Made | None:
    """The task that a result made; None if none. `asks`: its request may have asked for a task (2025-11-25)."""
    task = jsonrpc.member(response.result, "task") if asks else jsonrpc.ABSENT
    if bytes(jsonrpc.member(response.result, "resultType")) == b'"task"':  # 2026-07-28
        task = response.result
    ttl_ms = jsonrpc.decoded(_number, jsonrpc.member(task, "ttl")) or 0.0
    task_id = _id_in(task)
    return None if task_id is None else Made(task_id, min(ttl_ms / 1000, _TTL_S_MAX))


def ends(data: bytes) -> bool:
    """Whether an answer about one task seems to say that it has ended. Of too many such ids go first, and no more."""
    return any(status in data for status in _ENDINGS)


def _id_in(names: msgspec.Raw) -> str | None:
    return jsonrpc.decoded(_text, jsonrpc.member(names, "taskId"))


def _related(message: Message, data: bytes) -> list[object] | None:
    """The ids of all related tasks, wherever they stand; None if that cannot be read."""
    if b"related-task" not in data.lower() and b"\\u" not in data:
        return []
    read = data if message.is_strict else jsonrpc.rewritten(data) or b""
    found: list[object] = []

    def note(pairs: list[tuple[str, Any]]) -> tuple[tuple[str, Any], ...]:
        for name, value in pairs:
            if name.casefold() == _RELATED:
                inner = value if isinstance(value, tuple) else ()
                found.extend([each for name, each in inner if name.casefold() == "taskid"] or [None])
        return tuple(pairs)

    try:
        json.loads(read, object_pairs_hook=note)
    except (ValueError, RecursionError):
        return None
    return found


def _is_other_json(body: bytes) -> bool:
    """Whether a body is JSON in which no reader finds a method, such as a client's registration."""
    try:
        pairs = json.loads(body, object_pairs_hook=tuple)
    except (ValueError, RecursionError):
        return False
    return isinstance(pairs, tuple) and all(name.casefold() != "method" for name, _ in pairs)


_named: Final = msgspec.json.Decoder(_Named)
_text: Final = msgspec.json.Decoder(str)
_number: Final = msgspec.json.Decoder(float)
