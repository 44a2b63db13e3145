"""CORS fields for the gateway's own answers: they repeat what the upstream last told the same page in a browser.

In: responses of the upstream to requests with an `Origin`. Out: the fields for an answer to a request of that origin,
with the same path; the query does not count. Always: an answer has only fields that the upstream sent to that origin on
that path, to the same caller; before the caller was told any, those of a preflight, which has no credentials. They are
gone once a response there no longer admits the origin, or refuses the caller (401, 403). No other response of 400 or
above counts: any client can bring about refusals, with any `Origin`. What one address (`network` in caller_identity.py)
invents displaces its own notes, while others have fewer. Source: the Fetch standard, "CORS protocol".
"""

from typing import Final, TypeAlias

from gateway.http.header_fields import NO_FIELDS, Headers

_ALLOW_ORIGIN: Final = b"access-control-allow-origin"
_ON_ANSWERS: Final = frozenset(
    {_ALLOW_ORIGIN, b"access-control-allow-credentials", b"access-control-expose-headers", b"vary"}
)
_ENTRIES_MAX: Final = 1000  # of each kind
_ORIGIN_BYTES_MAX: Final = 300  # of a name of 253 characters, its scheme and its port
_PATH_BYTES_MAX: Final = 2000
_FIELDS_BYTES_MAX: Final = 8000  # of what is noted of one response

# The identity of the caller, empty for preflights; the page's origin; the path of its requests.
_PageOfCaller: TypeAlias = tuple[bytes, bytes, bytes]


class Cors:
    def __init__(self) -> None:
        self._told = _Shares()
        self._preflights = _Shares()

    def note(
        self, client: bytes, origin: bytes, target: bytes, who: bytes | None, status: int, headers: Headers
    ) -> None:
        """Note a response to a request from `client` of `origin` for `target`, by `who` (None: a preflight)."""
        notes = self._preflights if who is None else self._told
        page = who or b"", origin, target.partition(b"?")[0]
        is_success, admits = 200 <= status < 300, _ALLOW_ORIGIN in headers
        if len(origin) > _ORIGIN_BYTES_MAX or len(page[2]) > _PATH_BYTES_MAX:
            return
        if status < 400 and admits:
            fields = Headers(field for field in headers if field[0].lower() in _ON_ANSWERS)
            notes.put(client, page, fields if len(fields.block()) <= _FIELDS_BYTES_MAX else NO_FIELDS)
        elif is_success and who is None:
            notes.drop(page)
        elif not admits and who is not None:
            is_refused = status in (401, 403) and notes.get(page) is not None
            if is_refused or (is_success and self.fields(origin, target, who)):
                notes.put(client, page, NO_FIELDS)  # a preflight says no more what this caller may read

    def fields(self, origin: bytes, target: bytes, who: bytes) -> Headers:
        """The fields for an answer to a request of `origin` for `target`, of the identity `who`."""
        path = target.partition(b"?")[0]
        told = self._told.get((who, origin, path))
        # An answer goes before a preflight: only an answer tells which fields a page may read.
        return told if told is not None else self._preflights.get((b"", origin, path)) or NO_FIELDS


class _Shares:
    """Notes of one kind, by the address that made each first. Of too many, the oldest of the greediest address goes."""

    def __init__(self) -> None:
        self.of: dict[_PageOfCaller, tuple[bytes, Headers]] = {}
        self._pages: dict[bytes, dict[_PageOfCaller, None]] = {}  # by address; the one noted longest ago first

    def get(self, page: _PageOfCaller) -> Headers | None:
        found = self.of.get(page)
        return None if found is None else found[1]

    def put(self, client: bytes, page: _PageOfCaller, fields: Headers) -> None:
        if page in self.of:
            client = self.drop(page)
        pages = self._pages.pop(client, {})
        pages[page] = None
        self._pages[client] = pages
        self.of[page] = client, fields
        if len(self.of) > _ENTRIES_MAX:
            most = max(self._pages.values(), key=len)
            self.drop(next(iter(most)))

    def drop(self, page: _PageOfCaller) -> bytes:
        """Forget a page. Returns the address in whose share it was; empty if it was in none."""
        client, _ = self.of.pop(page, (b"", NO_FIELDS))
        if pages := self._pages.get(client):
            pages.pop(page, None)
            if not pages:
                del self._pages[client]
        return client
