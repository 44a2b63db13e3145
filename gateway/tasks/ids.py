"""Which ids of requests a session has used once: what a cancel names can then be only that request (DESIGN 5.7).

In: the session and the id of each request. Out: whether no other request of the session had that id, as far as was
seen. Always: pure; memory and time are the same for any traffic. Two ids may share a counter: a count may be too high,
so that a cancel ends nothing, never too low. The last `_NOTED_MAX` requests count at least.
"""

from contextlib import suppress
from typing import Final

from gateway.mcp.jsonrpc import Id

_COUNTERS: Final = 1 << 20  # a power of two; a counter takes a byte
_NOTED_MAX: Final = _COUNTERS // 8
_MANY: Final = 2
_NUMBER_BYTES_MAX: Final = 400  # longer ones are compared as they came


class RequestIds:
    """The ids that sessions have used."""

    def __init__(self) -> None:
        self._counters, self._before = bytearray(_COUNTERS), bytearray(_COUNTERS)
        self._noted = 0

    def note(self, session_id: bytes, request_id: Id | None) -> None:
        """A request has come, with that id; None if it passes unread, and may have any."""
        if self._noted == _NOTED_MAX:
            self._counters, self._before, self._noted = bytearray(_COUNTERS), self._counters, 0
        counter = _counter(session_id, request_id)
        self._counters[counter] = min(self._counters[counter] + 1, _MANY)
        self._noted += 1

    def is_single(self, session_id: bytes, request_id: Id) -> bool:
        """Whether one request has had that id, and none may have had it unread."""
        return self._count(session_id, request_id) == 1 and not self._count(session_id, None)

    def _count(self, session_id: bytes, request_id: Id | None) -> int:
        counter = _counter(session_id, request_id)
        return self._counters[counter] + self._before[counter]


def _counter(session_id: bytes, request_id: Id | None) -> int:
    if not isinstance(request_id, bytes):
        return hash((session_id, request_id)) & (_COUNTERS - 1)
    value: float | bytes = request_id
    if len(request_id) <= _NUMBER_BYTES_MAX:
        with suppress(ValueError):
            value = float(request_id)  # peers that read numbers take `1`, `1.0` and `1e0` for one
    return hash((session_id, value, True)) & (_COUNTERS - 1)  # `1` and `"1"` are two
