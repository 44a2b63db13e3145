"""The tasks that a message names, or makes, where a guard keeps the tasks of callers apart (DESIGN 8.16).

What cannot be read names None, which is nobody's. Readers of JSON take some member names for one another: Go and C#
ignore case, and of two of a name one counts. Only the members of the message, of `params` and of `params.task` count: a
tool's arguments are free.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw

from gateway.mcp import jsonrpc
from gateway.mcp.jsonrpc import Message
from gateway.mcp.task_observations import RELATED, named

OF_TASKS: Final = "tasks/"
TTL_S_MAX: Final = 365 * 24 * 3600.0  # for so long a task is its owner's at most, if he is not there
_WORK_MAX: Final = 60_000  # of reading every name of a message: quotes, commas, brackets, and braces, which cost more
_LEVELS: Final = ("id", "method", "params"), ("_meta", "taskId", "task"), ("ttl",)  # of message, `params`, `task`
_ALL: Final = frozenset(name for names in _LEVELS for name in names)
_FOLDED: Final = tuple((b'"%b"' % name.encode(), b'"%b"' % name.lower().encode()) for name in sorted(_ALL))
FOLDING: Final = tuple(letter.encode() for letter in "\u017f\u212a\u0131")  # long s, Kelvin, dotless i: to s, k, i
# The escapes of letters, of `-`, `.` and `/`, and of what folds.
_ESCAPE: Final = re.compile(rb"\\u(?:00(?:2[def]|[4-7])|017f|212a)")
_READ_BYTES_MAX: Final = 64 * 1024  # beside arguments and results
_PLAIN_BYTES_MAX: Final = 1 << 20  # likewise, of what has no name twice


def related(message: Message, body: bytes) -> Sequence[object] | None:
    """The ids of the tasks to which a client's message is related; None if they cannot be read."""
    return [] if message.is_response else _named(message, body)  # a response may be about a task of the client's


def told_of(message: Message, data: bytes) -> list[object]:
    """The ids of the tasks that a server's message names, None for what cannot be read.

    A request of a server's is about tasks of its client's, but for related ones.
    """
    return [None] if (ids := _named(message, data, related_only=message.is_request)) is None else ids


class Made(NamedTuple):
    """A task that an answer made: its id, and for how many seconds its server keeps it, 0 if that is not known."""

    id: str
    ttl_s: float


def made_by(response: Message, data: bytes, asks: bool) -> Made | None:
    """The task that a result made; None if none. `asks`: its request may have asked for a task (2025-11-25)."""
    if not asks and b'"resultType"' not in data:
        return None
    made = jsonrpc.decoded(_making, response.result) or _NOTHING_MADE
    task = made.task if asks else jsonrpc.ABSENT
    if bytes(made.resultType) == b'"task"':  # 2026-07-28
        task = response.result
    ttl_ms = jsonrpc.decoded(_number, jsonrpc.member(task, "ttl")) or 0.0
    task_id = named(task)
    return None if task_id is None else Made(task_id, min(max(ttl_ms / 1000, 0.0), TTL_S_MAX))


def _named(message: Message, data: bytes, related_only: bool = True) -> list[object] | None:
    """The ids of all tasks, or of all related ones, wherever they stand in a message; None if that cannot be read."""
    if not _may_have(data, b"related-task" if related_only else b"task"):
        return []
    found: list[object] = []

    def note(pairs: list[tuple[str, Any]]) -> tuple[tuple[str, Any], ...]:
        for name, value in pairs:
            if name.casefold() == RELATED and isinstance(value, tuple):
                found.extend([each for name, each in value if name.casefold() == "taskid"] or [None])
            elif name.casefold() == RELATED or (name.casefold() == "taskid" and not related_only):
                found.append(None if name.casefold() == RELATED else value)
        return tuple(pairs)

    read = _read(data if message.is_strict else jsonrpc.rewritten(data) or b"", note)
    return None if read is None else found


def _may_have(data: bytes, name: bytes) -> bool:
    """Whether a name in small letters stands somewhere, in any spelling of it. No encoder escapes its letters."""
    lower = data.lower()
    if name in lower or _ESCAPE.search(lower):
        return True
    return not data.isascii() and any(letter in data for letter in FOLDING)


def _read(data: bytes, hook: Callable[[list[tuple[str, Any]]], Any] = tuple) -> Any:
    """JSON whose objects are pairs, by the hook; None for what cannot be read, or takes long."""
    work = data.count(b",") + data.count(b"[") + data.count(b'"') + 4 * data.count(b"{")
    if work > _WORK_MAX:
        return None
    try:
        return json.loads(data, object_pairs_hook=hook, parse_int=float)
    except (ValueError, RecursionError):
        return None


def is_other_json(body: bytes) -> bool:
    """Whether a body is JSON in which no reader finds a method, such as a client's registration."""
    pairs = _read(body)
    return isinstance(pairs, tuple) and all(name.casefold() != "method" for name, _ in pairs)


def doubtful(message: Message, body: bytes, copy: bytearray, arguments: Raw) -> frozenset[str]:
    """Those of `id`, `method`, `params`, `_meta`, `taskId`, `task`, `ttl` that another reader may find elsewhere.

    `copy`: that of the body in which the message and its `arguments` were found. It is overwritten.
    """
    free = message.result if message.method is None else arguments
    if message.is_strict:
        if len(body) <= _READ_BYTES_MAX and _is_plain(body):
            return frozenset()
        if len(free):
            at = jsonrpc.start_of(memoryview(free), copy)
            body = body[:at] + b"null" + body[at + len(free) :]
        if len(body) <= _PLAIN_BYTES_MAX and _is_plain(body):
            return frozenset()
    found = _doubts(body)
    may_have_ttl = found & {"params", "task", "ttl"} and (b"ttl" in body.lower() or b"\\u" in body)
    return found | {"ttl"} if may_have_ttl else found - {"ttl"}


def _is_plain(body: bytes) -> bool:
    """Whether each of the names stands once at most, wherever, and no other spelling of it does."""
    lower = body.lower()
    if b"\\u" in lower or (not body.isascii() and any(letter in body for letter in FOLDING)):
        return False
    return all(
        (at := lower.find(folded)) < 0 or (body.startswith(quoted, at) and lower.find(folded, at + len(folded)) < 0)
        for quoted, folded in _FOLDED
    )


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


class _MakingResult(msgspec.Struct):
    task: Raw = jsonrpc.ABSENT
    resultType: Raw = jsonrpc.ABSENT


_making: Final = msgspec.json.Decoder(_MakingResult)
_NOTHING_MADE: Final = _MakingResult()
_number: Final = msgspec.json.Decoder(float)
