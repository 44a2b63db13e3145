"""Identities that drift: in one session, with one `Authorization`, each request is another caller (DESIGN 7.11).

In: the callers whom an upstream has answered below 400, and the time. Out: the names of the header fields that differ.
Always: no value of a field is kept, only hashes; `_SESSIONS_MAX` sessions, and `_FIELDS_MAX` fields of each. A session
that is followed makes room after `_IDLE_S` without a request, so many sessions cannot hide one that drifts.
"""

from collections import OrderedDict
from typing import Final

from msgspec import Struct

IDENTITIES_MIN: Final = 10  # in a row, and none of them twice: users who share a session come again
_SESSIONS_MAX: Final = 200
_FIELDS_MAX: Final = 100  # a head with more is not looked at
_IDLE_S: Final = 60.0
_NAMES_MAX: Final = 20  # of fields, that are told
_NAME_CHARS_MAX: Final = 64


class _Seen(Struct):
    """The last identities of a session in a row that had not come before, and hashes of the fields of the last one."""

    seen: dict[bytes, None] = {}
    fields: frozenset[int] = frozenset()
    at: float = 0.0


class IdentityDrift:
    """What drifts at one upstream. Times are in seconds since 1970."""

    def __init__(self) -> None:
        self.names: list[str] = []  # that differed last
        self.at = float("-inf")
        self._told: set[str] = set()
        self.sessions: OrderedDict[object, _Seen] = OrderedDict()  # the one that came longest ago first

    def note(self, session: object, identity: bytes, fields: list[tuple[bytes, bytes]], now: float) -> bool:
        """Note a request of a session. Returns whether it drifts; `names` says in which fields."""
        if len(fields) > _FIELDS_MAX:
            return False
        last = self.sessions.get(session)
        if last is None:
            if len(self.sessions) >= _SESSIONS_MAX:
                oldest = next(iter(self.sessions))
                if now - self.sessions[oldest].at < _IDLE_S:
                    return False
                del self.sessions[oldest]
            last = self.sessions[session] = _Seen()
        self.sessions.move_to_end(session)
        last.at = now
        if identity in last.seen:
            last.seen.clear()
        before, last.fields = last.fields, frozenset(map(hash, fields))
        last.seen[identity] = None
        if len(last.seen) < IDENTITIES_MIN:
            return False
        del last.seen[next(iter(last.seen))]
        differing = {name.decode("latin-1") for name, value in fields if hash((name, value)) not in before}
        if differing:
            self.names, self.at = [name[:_NAME_CHARS_MAX] for name in sorted(differing)[:_NAMES_MAX]], now
        return bool(differing)

    def news(self) -> bool:
        """Whether `names` has one that was not told before; now it was."""
        new = set(self.names) - self._told if len(self._told) < _NAMES_MAX else None
        self._told |= new or set()
        return bool(new)
