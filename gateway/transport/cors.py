"""CORS fields for the gateway's own answers: they repeat what the upstream last told the same page in a browser.

In: responses of the upstream to requests with an `Origin`. Out: the fields for an answer to a request of that origin,
with the same path; the query does not count. Always: an answer has only fields that the upstream sent to that origin on
that path. They are dropped once a response there no longer admits the origin, or refuses (401, 403) the caller that got
them last. No other response of 400 or above counts: any client can bring about refusals, with any `Origin`.

Source: the Fetch standard, "CORS protocol". Fields that only a preflight asks for are not on an answer. A preflight
carries no credentials, so anybody gets it answered. It is noted apart, and displaces no field of an answer.
"""

from typing import Final, TypeAlias, TypeVar

from gateway.transport.headers import Headers

_ALLOW_ORIGIN: Final = b"access-control-allow-origin"
_ON_ANSWERS: Final = frozenset(
    {_ALLOW_ORIGIN, b"access-control-allow-credentials", b"access-control-expose-headers", b"vary"}
)
_ENTRIES_MAX: Final = 1000  # of each kind; the one noted longest ago goes first
_ORIGIN_BYTES_MAX: Final = 300  # of a name of 253 characters, its scheme and its port
_PATH_BYTES_MAX: Final = 2000
_FIELDS_BYTES_MAX: Final = 8000  # of what is noted of one response
_NONE: Final = Headers()
_NOBODY: Final = (b"", _NONE)

_AtOrigin: TypeAlias = tuple[bytes, bytes]  # origin and path


class Cors:
    """What one upstream told the pages of each origin, by path."""

    def __init__(self) -> None:
        self._told: dict[_AtOrigin, tuple[bytes, Headers]] = {}  # the last answer: who got it, and its fields
        self._preflights: dict[_AtOrigin, Headers] = {}

    def note(self, origin: bytes, target: bytes, who: bytes | None, status: int, headers: Headers) -> None:
        """Note a response to a request of `origin` for `target`, of the identity `who`; None stands for a preflight."""
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
            if fields.size_bytes() > _FIELDS_BYTES_MAX:
                fields = _NONE
            if who is None:
                _put(self._preflights, page, fields)
            else:
                _put(self._told, page, (who, fields))

    def fields(self, origin: bytes, target: bytes) -> Headers:
        """The fields for an answer to a request of `origin` for `target`."""
        page = origin, target.partition(b"?")[0]
        # An answer goes before a preflight: only an answer tells which fields a page may read.
        return self._told[page][1] if page in self._told else self._preflights.get(page, _NONE)

    def _forget(self, page: _AtOrigin) -> None:
        self._told.pop(page, None)
        self._preflights.pop(page, None)


_Noted = TypeVar("_Noted")


def _put(notes: dict[_AtOrigin, _Noted], page: _AtOrigin, noted: _Noted) -> None:
    notes.pop(page, None)
    notes[page] = noted
    if len(notes) > _ENTRIES_MAX:
        del notes[next(iter(notes))]
