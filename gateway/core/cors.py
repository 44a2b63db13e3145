"""What lets a page in a browser read an answer of the gateway's own: what the upstream last told that page there.

In: responses of the upstream to requests with an `Origin`. Out: the fields for an answer to a request with that one and
the same target, its query apart. Always: nothing that the upstream did not say to that origin of that target, and
nothing once an answer there, or a refusal of who asks (401, 403), admits that origin no more.

Source: the Fetch standard, "CORS protocol". What only a preflight asks for is not on an answer.
"""

from typing import Final

from gateway.core.headers import Headers

_ALLOW_ORIGIN: Final = b"access-control-allow-origin"
_ON_ANSWERS: Final = frozenset(
    {_ALLOW_ORIGIN, b"access-control-allow-credentials", b"access-control-expose-headers", b"vary"}
)
_ENTRIES_MAX: Final = 1000  # the one that was told something longest ago goes first
_ORIGIN_BYTES_MAX: Final = 300  # of a name of 253 characters, its scheme and its port
_PATH_BYTES_MAX: Final = 2000
_NONE: Final = Headers()


class Cors:
    """What one upstream told the pages of each origin, by the path that they asked for."""

    def __init__(self) -> None:
        self._told: dict[tuple[bytes, bytes], Headers] = {}

    def note(self, origin: bytes, target: bytes, status: int, headers: Headers, preflight: bool) -> None:
        """A response to a request of that origin for that target."""
        key = origin, target.partition(b"?")[0]
        if _ALLOW_ORIGIN not in headers:
            if 200 <= status < 300 or status in (401, 403):
                self._told.pop(key, None)
            return
        if len(origin) > _ORIGIN_BYTES_MAX or len(key[1]) > _PATH_BYTES_MAX:
            return
        if preflight and key in self._told:
            return  # a preflight does not tell which fields may be read
        self._told.pop(key, None)
        self._told[key] = Headers(field for field in headers if field[0].lower() in _ON_ANSWERS)
        if len(self._told) > _ENTRIES_MAX:
            del self._told[next(iter(self._told))]

    def fields(self, origin: bytes, target: bytes) -> Headers:
        """What belongs on an answer to a request of that origin for that target."""
        return self._told.get((origin, target.partition(b"?")[0]), _NONE)
