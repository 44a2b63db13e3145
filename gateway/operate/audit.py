"""The audit log: one line for each operation on tasks that changes something.

    create   a request with `params.task`
    cancel   `tasks/cancel`

In: a request that has ended, with its outcome. Out: a line at info.
Always: digests stand for the ids of task and session, and for the caller. With an id one can find its lines; from a
line nobody learns an id.
"""

import hashlib
import logging
from typing import Protocol

import msgspec

from gateway.mcp import jsonrpc
from gateway.mcp.jsonrpc import Message

log = logging.getLogger("taskgate.audit")


class AuditedCaller(Protocol):
    """The caller of a request."""

    @property
    def digests(self) -> tuple[bytes, bytes]:
        """The digest of the session, empty if there is none; and that of the identity: over stdio both are empty."""


def action(message: Message | None) -> str | None:
    """What a request does to tasks; None if it changes none."""
    if message is None or not message.is_request:
        return None
    if message.method == "tasks/cancel":
        return "cancel"
    return "create" if bytes(jsonrpc.member(message.params, "task")) else None


def digest(text: str) -> str:
    """The digest that stands for an id, in hexadecimal."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def task_of(message: Message, created: str | None) -> str | None:
    """The id of the task that a request is about: `created`, or the id in its params; None if there is neither."""
    try:
        return created or msgspec.json.decode(jsonrpc.member(message.params, "taskId"), type=str)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def write(did: str, caller: AuditedCaller, task_id: str | None, said: dict[str, object]) -> None:
    """Write one line. `said` is what the request's own line says."""
    session, identity = caller.digests
    extra: dict[str, object] = {"action": did}
    if identity:
        extra["caller"] = identity.hex()
    if session:
        extra["session"] = session.hex()
    if task_id is not None:
        extra["task"] = digest(task_id)
    log.info("audit", extra=extra | said)
