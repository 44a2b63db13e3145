"""The tasks that a message names, or makes, where a guard keeps the tasks of callers apart (DESIGN 8.16).

What cannot be read names None, which is nobody's. Readers of JSON take some member names for one another: Go and C#
ignore case, and of two of a name one counts. Only the members of the message, of `params` and of `params.task` count: a
tool's arguments are free.
"""

import json
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from gateway.errors import Ambiguous
from gateway.mcp import jsonrpc
from gateway.mcp.jsonrpc import Message
from gateway.mcp.task_observations import named

GUARD: Final = "guards.own_tasks"
OF_TASKS: Final = "tasks/"
_RELATED: Final = "io.modelcontextprotocol/related-task"
TTL_S_MAX: Final = 365 * 24 * 3600.0  # for so long a task is its owner's at most, if he is not there
_OBJECTS_MAX: Final = 100_000  # and arrays, of a message whose every name is read: each takes time
_LEVELS: Final = ("id", "method", "params"), ("_meta", "taskId", "task"), ("ttl",)  # of message, `params`, `task`
_ALL: Final = frozenset(name for names in _LEVELS for name in names)
_FOLDED: Final = tuple((b'"%b"' % name.encode(), b'"%b"' % name.lower().encode()) for name in sorted(_ALL))
_FOLDING: Final = tuple(letter.encode() for letter in "\u017f\u212a\u0131")  # long s, Kelvin, dotless i: to s, k, i
_READ_BYTES_MAX: Final = 64 * 1024  # beside arguments and results


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
    if message.is_response:
        return []  # to what the server asked of him, maybe about a task of the client's
    method = message.method or ""
    is_of_tasks = method.startswith(OF_TASKS)
    if method.strip().casefold().startswith(OF_TASKS) and not (is_of_tasks and message.is_request):
        raise Ambiguous(f"{GUARD}: {method!r} is no method of MCP, or needs an id")
    if (ids := _named(message, body)) is None:
        raise Ambiguous(f"{GUARD}: a message that names {_RELATED} must be JSON, and not huge")
    return [*ids, named(message.params)] if is_of_tasks and method != "tasks/list" else ids


def told_of(message: Message, data: bytes) -> list[object]:
    """The ids of the tasks that a server's message names, None for what cannot be read.

    A request of a server's is about tasks of its client's, but for related ones.
    """
    return [None] if (ids := _named(message, data, related_only=message.is_request)) is None else ids


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
    task_id = named(task)
    return None if task_id is None else Made(task_id, min(max(ttl_ms / 1000, 0.0), TTL_S_MAX))


def _named(message: Message, data: bytes, related_only: bool = True) -> list[object] | None:
    """The ids of all tasks, or of all related ones, wherever they stand in a message; None if that cannot be read."""
    if b"\\u" not in data and (b"related-task" if related_only else b"task") not in data.lower():
        return []
    found: list[object] = []

    def note(pairs: list[tuple[str, Any]]) -> tuple[tuple[str, Any], ...]:
        for name, value in pairs:
            if name.casefold() == _RELATED and isinstance(value, tuple):
                found.extend([each for name, each in value if name.casefold() == "taskid"] or [None])
            elif name.casefold() == _RELATED or (name.casefold() == "taskid" and not related_only):
                found.append(None if name.casefold() == _RELATED else value)
        return tuple(pairs)

    read = _read(data if message.is_strict else jsonrpc.rewritten(data) or b"", note)
    return None if read is None else found


def _read(data: bytes, hook: Callable[[list[tuple[str, Any]]], Any] = tuple) -> Any:
    """JSON whose objects are pairs, by the hook; None for what cannot be read, or has too many of them."""
    if data.count(b"{") + data.count(b"[") > _OBJECTS_MAX:
        return None
    try:
        return json.loads(data, object_pairs_hook=hook, parse_int=float)
    except (ValueError, RecursionError):
        return None


def _is_other_json(body: bytes) -> bool:
    """Whether a body is JSON in which no reader finds a method, such as a client's registration."""
    pairs = _read(body)
    return isinstance(pairs, tuple) and all(name.casefold() != "method" for name, _ in pairs)


def doubtful(message: Message, body: bytes) -> frozenset[str]:
    """Those of `id`, `method`, `params`, `_meta`, `taskId`, `task`, `ttl` that another reader may find elsewhere."""
    if message.is_strict and _is_plain(body):
        return frozenset()
    path = ("result",) if message.method is None else ("params", "arguments")
    if span := jsonrpc.find(body, *path):
        body = body[: span[0]] + b"null" + body[span[1] :]
        if _is_plain(body):
            return frozenset()
    found = _doubts(body)
    may_have_ttl = found & {"params", "task", "ttl"} and (b"ttl" in body.lower() or b"\\u" in body)
    return found | {"ttl"} if may_have_ttl else found - {"ttl"}


def _is_plain(body: bytes) -> bool:
    """Whether each of the names stands once at most, wherever, and no other spelling of it does."""
    lower = body.lower()
    if b"\\u" in lower or (not body.isascii() and any(letter in body for letter in _FOLDING)):
        return False
    return all(lower.count(folded) <= (quoted in body) for quoted, folded in _FOLDED)


def _doubts(body: bytes) -> frozenset[str]:
    """The names that stand twice, or are spelled otherwise, where they count. All of them, if that takes long."""
    if len(body) > _READ_BYTES_MAX or (level := _read(body)) is None:
        return _ALL
    doubts = set[str]()
    for names in _LEVELS:
        spelled = [name for name, _ in level]
        for name in names:
            if [s for s in spelled if s.upper().casefold() == name.casefold()] not in ([], [name]):
                doubts.add(name)
        level = next((value for name, value in level[::-1] if name == names[-1] and isinstance(value, tuple)), ())
    return frozenset(doubts)


_number: Final = msgspec.json.Decoder(float)
