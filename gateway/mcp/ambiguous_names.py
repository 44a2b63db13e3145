"""Member names that readers of JSON take for one another: Go and C# ignore case, and of two of a name one counts.

Only the members of the message, of `params` and of `params.task` count: a tool's arguments are free.
"""

import json
from typing import Final

from gateway.mcp import jsonrpc
from gateway.mcp.jsonrpc import Message

_LEVELS: Final = (
    ("id", "method", "params"),
    ("_meta", "taskId", "task"),
    ("ttl",),
)  # of the message, of `params`, of `task`
_ALL: Final = frozenset(name for names in _LEVELS for name in names)
_QUOTED: Final = tuple(b'"%b"' % name.encode() for name in sorted(_ALL))
_FOLDED: Final = tuple((quoted, quoted.lower()) for quoted in _QUOTED)
_FOLDING: Final = tuple(letter.encode() for letter in "\u017f\u212a\u0131")  # long s, Kelvin, dotless i: to s, k, i
_READ_BYTES_MAX: Final = 64 * 1024  # beside arguments and results


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
    if len(body) > _READ_BYTES_MAX:
        return _ALL
    try:
        level = json.loads(body, object_pairs_hook=tuple, parse_int=float)
    except (ValueError, RecursionError):
        return _ALL
    doubts = set[str]()
    for names in _LEVELS:
        spelled = [name for name, _ in level]
        for name in names:
            if [s for s in spelled if s.upper().casefold() == name.casefold()] not in ([], [name]):
                doubts.add(name)
        level = next((value for name, value in level[::-1] if name == names[-1] and isinstance(value, tuple)), ())
    return frozenset(doubts)
