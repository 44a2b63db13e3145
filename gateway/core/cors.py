"""What lets a page in a browser read an answer of the gateway's own: what the upstream last told that page there.

In: responses of the upstream to requests with an `Origin`. Out: the fields for an answer to a request with that one and
the same target, its query apart. Always: nothing that the upstream did not say to that origin of that target, and
nothing once an answer there admits that origin no more, or a refusal (401, 403) of who was told. Nothing else is noted
of a response of 400 or above: anybody may be refused, with any `Origin`, as often as he likes.

Source: the Fetch standard, "CORS protocol". What only a preflight asks for is not on an answer. Preflights carry no
credentials, so that anybody's may be answered: they are noted apart, and push out nothing that an answer has told.
"""

from typing import Final, TypeAlias, TypeVar

from gateway.core.headers import Headers

_ALLOW_ORIGIN: Final = b"access-control-allow-origin"
_ON_ANSWERS: Final = frozenset(
    {_ALLOW_ORIGIN, b"access-control-allow-credentials", b"access-control-expose-headers", b"vary"}
)
_ENTRIES_MAX: Final = 1000  # of each kind; the one that was told something longest ago goes first
_ORIGIN_BYTES_MAX: Final = 300  # of a name of 253 characters, its scheme and its port
_PATH_BYTES_MAX: Final = 2000
_NONE: Final = Headers()
_NOBODY: Final = (b"", _NONE)

_Page: TypeAlias = tuple[bytes, bytes]  # origin and path


class Cors:
    """What one upstream told the pages of each origin, by the path that they asked for."""

    def __init__(self) -> None:
        self._told: dict[_Page, tuple[bytes, Headers]] = {}  # by answers, and to whom last
        self._preflights: dict[_Page, Headers] = {}

    def note(self, origin: bytes, target: bytes, who: bytes | None, status: int, headers: Headers) -> None:
        """A response to a request of that origin for that target, of the identity `who`; None: to a preflight."""
        page = origin, target.partition(b"?")[0]
        admits = _ALLOW_ORIGIN in headers
        if status >= 400:
            if status in (401, 403) and not admits and self._told.get(page, _NOBODY)[0] == who:
                self._forget(page)
        elif not admits:
            if 200 <= status < 300 and who is None:
                self._preflights.pop(page, None)
            elif 200 <= status < 300:
                self._forget(page)
        elif len(origin) <= _ORIGIN_BYTES_MAX and len(page[1]) <= _PATH_BYTES_MAX:
            fields = Headers(field for field in headers if field[0].lower() in _ON_ANSWERS)
            if who is None:
                _put(self._preflights, page, fields)
            else:
                _put(self._told, page, (who, fields))

    def fields(self, origin: bytes, target: bytes) -> Headers:
        """What belongs on an answer to a request of that origin for that target."""
        page = origin, target.partition(b"?")[0]
        # A preflight does not tell which fields may be read.
        return self._told[page][1] if page in self._told else self._preflights.get(page, _NONE)

    def _forget(self, page: _Page) -> None:
        self._told.pop(page, None)
        self._preflights.pop(page, None)


_Noted = TypeVar("_Noted")


def _put(notes: dict[_Page, _Noted], page: _Page, noted: _Noted) -> None:
    notes.pop(page, None)
    notes[page] = noted
    if len(notes) > _ENTRIES_MAX:
        del notes[next(iter(notes))]
