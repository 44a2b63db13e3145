"""What lets a page in a browser read an answer of the gateway's own: what the upstream last told that page.

In: responses of the upstream to requests with an `Origin`. Out: the fields for an answer to a request with that one.
Always: nothing that the upstream did not say to that origin, and nothing to an origin that it admits no more.

Source: the Fetch standard, "CORS protocol". What only a preflight asks for is not on an answer.
"""

from typing import Final

from gateway.core.headers import Headers

_ALLOW_ORIGIN: Final = b"access-control-allow-origin"
_ON_ANSWERS: Final = frozenset(
    {_ALLOW_ORIGIN, b"access-control-allow-credentials", b"access-control-expose-headers", b"vary"}
)
_ORIGINS_MAX: Final = 1000  # the one that was told something longest ago goes first
_ORIGIN_BYTES_MAX: Final = 300  # of a name of 253 characters, its scheme and its port
_NONE: Final = Headers()


class Cors:
    """What one upstream told the pages of each origin."""

    def __init__(self) -> None:
        self._told: dict[bytes, Headers] = {}

    def note(self, origin: bytes, status: int, headers: Headers, preflight: bool) -> None:
        """A response to a request of that origin."""
        if _ALLOW_ORIGIN not in headers:
            if 200 <= status < 300:
                self._told.pop(origin, None)
            return
        if len(origin) > _ORIGIN_BYTES_MAX or (preflight and origin in self._told):
            return  # a preflight does not tell which fields may be read
        self._told.pop(origin, None)
        self._told[origin] = Headers(field for field in headers if field[0].lower() in _ON_ANSWERS)
        if len(self._told) > _ORIGINS_MAX:
            del self._told[next(iter(self._told))]

    def fields(self, origin: bytes) -> Headers:
        """What belongs on an answer to a request of that origin."""
        return self._told.get(origin, _NONE)
