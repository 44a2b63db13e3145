"""What replicas tell each other of a session, as values of the store: what the server cannot be asked for again."""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from gateway.mcp.capabilities import Server
from gateway.mcp.jsonrpc import decoded
from gateway.mcp.task import Task, apart
from gateway.tasks.index import METHOD_CHARS_MAX
from gateway.tasks.marks import MARKED_ID_CHARS_MAX


class ReplicaUpdate(msgspec.Struct, frozen=True):
    """What a replica has seen of one task: that it is there, and its method if that is known; or that it is gone.

    The id None stands for all tasks: anything may have changed.
    """

    id: str | None
    method: str | None
    gone: bool


_told = msgspec.json.Decoder(ReplicaUpdate)
_server = msgspec.json.Decoder(Server)


def of_task(task_id: str, method: str | None) -> bytes:
    short = method if method is None or len(method) <= METHOD_CHARS_MAX else None
    return msgspec.json.encode(ReplicaUpdate(apart(task_id), short, False))


def of_gone(task_id: str) -> bytes:
    return msgspec.json.encode(ReplicaUpdate(apart(task_id), None, True))


DOUBT: Final = msgspec.json.encode(ReplicaUpdate(None, None, False))


def may_be_told(task_id: str) -> bool:
    """Whether an id is short enough for replicas to tell each other of its task."""
    return len(task_id) <= MARKED_ID_CHARS_MAX


def of_tasks(tasks: Iterable[Task]) -> list[bytes]:
    return [of_task(task.id, task.method) for task in tasks if may_be_told(task.id)]


def of_server(server: Server) -> bytes:
    return msgspec.json.encode(server)


def server_in(value: bytes | None) -> Server | None:
    """What `initialize` said, by a value; None if it does not say."""
    if value is None or (told := decoded(_server, value)) is None:
        return None
    readable = len(told.methods) <= 1 and all(len(m) <= METHOD_CHARS_MAX for m in told.methods)
    return told if readable else None


def tasks_in(values: Iterable[bytes]) -> Iterator[ReplicaUpdate]:
    for value in values:
        if (told := decoded(_told, value)) is None:
            continue
        if len(told.id or "") <= MARKED_ID_CHARS_MAX and len(told.method or "") <= METHOD_CHARS_MAX:
            yield told
