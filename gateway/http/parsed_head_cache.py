"""Heads that came before, but for values that vary: what follows from the rest of a head is worked out once.

A client sends one and the same head with each message, but for its `Content-Length` and the ids of requests and traces;
and so does a server, but for its `Date` and the like. To read a head, to find its upstream and its caller, and to make
the bytes that go on, are pure functions of what stays, of the configuration, and of the way by which it came in. So
their results are kept with what stays: those of requests in one table (http_caller.py), those of responses in another
(response_parser.py).

In: the bytes that arrived, where a message begins. Out: what was kept when a head came before that differs in values
that vary alone, with these values and the length of this body. Always:

- A head is found by all of its bytes but those of values that vary: of fields from which nothing follows but their own
  bytes, and that had two values in this table. A value stands between the `: ` of its name and CR LF. It is visible
  ASCII with single spaces, so no CR, LF or NUL; a `Content-Length` 1 to 18 digits without a leading zero.
- Only a head that was read whole and accepted is kept, if each field that varies could be cut: so none has a second
  `Content-Length`, a coding beside it or a folded line. One that is found stays below the limits in bytes.
- A table serves one configuration: a reload makes another. `scope` keeps apart heads that came in by different ways,
  where that changes what follows from them: requests by the client's address.
- A head is kept when it comes the second time within a minute: what never comes again takes no memory. It ends after a
  minute without use. It has tokens, and is never logged or shown.
- All entries of a table have a limit in number and in bytes. Of those that one connection has added only the last few
  stay, so that a flood of new heads cannot drive out the others.
"""

import re
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from gateway.http.header_fields import HEAD_END, Headers

HEAD_BYTES_MAX: Final = 4096  # a larger head is not kept
ENTRIES_MAX: Final = 2000
BYTES_MAX: Final = 16 << 20  # of all entries, with what is kept in them
OF_ONE_CONNECTION_MAX: Final = 50
IDLE_S: Final = 60.0

_VALUE: Final = re.compile(rb"[!-~]+(?: [!-~]+)*")
_DIGITS_MAX: Final = 18
_ALWAYS_VARY: Final = frozenset({b"content-length"})
_NAMES_MAX: Final = 100  # of fields of which it is known whether they vary
_IS_LENGTH: Final = re.compile(rb"\r\ncontent-length: \Z", re.IGNORECASE)
_SLOTS: Final = 1 << 16  # for the heads that came once; a slot takes a byte
_LONGER_MAX: Final = 1024  # bytes by which a head may be larger than the one that was kept
_ENTRY_BYTES: Final = 1500 + _LONGER_MAX  # of memory: the objects of an entry, and the values read last
_FIELD_BYTES: Final = 300  # ... the objects of a field, as it came and as it goes on
_BYTES_FOR_ONE: Final = 5  # ... for each byte of the head: its key, its fields, and what goes on

Kept = TypeVar("Kept")
Values: TypeAlias = tuple[bytes, ...]


class Cut(NamedTuple):
    """A head of that size: the bytes in front of each value that varies, and those behind the last; the values."""

    varies: "Varying"
    pieces: Values
    values: Values
    size_bytes: int


class Varying:
    """The names, in lower case, of the fields whose values vary, and the knife by which these values are cut out."""

    def __init__(self, names: frozenset[bytes]) -> None:
        self.names = names
        any_of = b"|".join(map(re.escape, sorted(names)))
        self._parts = re.compile(rb"(\r\n(?i:%b): )(%b)(?=\r\n)" % (any_of, _VALUE.pattern)).split

    def cut(self, head: bytes) -> Cut:
        parts = self._parts(head)
        pieces = (*map(bytes.__add__, parts[:-1:3], parts[1::3]), parts[-1])
        return Cut(self, pieces, tuple(parts[2::3]), len(head))


class Onward:
    """A head as it goes on, as bytes: for any values of the fields that vary."""

    __slots__ = ("_first", "_format", "varies")

    def __init__(self, varies: Varying) -> None:
        self.varies = varies
        self._format = b""
        self._first: tuple[Values, bytes] = (), b""  # the values and the head that were learnt

    def of(self, values: Values) -> bytes:
        """The head for those values; empty if it is not known yet, or has others."""
        first, head = self._first
        return head if values == first else self._format and self._format % values

    def learn(self, head: bytes, values: Values) -> None:
        cut = self.varies.cut(head)
        if cut.values == values:
            self._format = b"%b".join(piece.replace(b"%", b"%%") for piece in cut.pieces)
            self._first = values, head


class CachedHead(Generic[Kept]):
    """A head that came before, cut; what follows."""

    __slots__ = (
        "_has_others", "_last", "_length_at", "_steps", "adder", "bytes_max", "kept", "pieces", "size_bytes", "turn",
    )  # fmt: skip

    def __init__(self, cut: Cut, bytes_max: int, kept: Kept, adder: "ConnectionHeads[Kept]", turn: int) -> None:
        self.pieces = pieces = cut.pieces
        self.bytes_max = min(HEAD_BYTES_MAX, bytes_max, cut.size_bytes + _LONGER_MAX)  # of a head that is found
        self.kept = kept
        self.adder = adder  # whose `scope` is that of the head
        self.turn = turn  # of the table, when it was last used
        self._steps = [(piece, len(piece)) for piece in pieces[:-1]]
        self._length_at = next((at for at, piece in enumerate(pieces) if _IS_LENGTH.search(piece)), -1)
        self._has_others = len(self._steps) > (self._length_at >= 0)  # values besides that of `Content-Length`
        self._last: tuple[Values, int] = (), 0  # values that were read, and the length that they state
        lines = sum(piece.count(b"\n") for piece in pieces)
        self.size_bytes = _ENTRY_BYTES + _FIELD_BYTES * lines + _BYTES_FOR_ONE * cut.size_bytes

    def read(self, data: bytes) -> tuple[Kept, Values, int, int] | None:
        """What was kept of the head at the beginning of `data`, its values, its size, and that of its body.

        None if it is another head.
        """
        found: list[bytes] = []  # list[bytes]() costs more
        at, last = 0, self.pieces[-1]
        for piece, size_bytes in self._steps:
            end = at + size_bytes
            if data[at:end] != piece or (at := data.find(b"\r", end)) < 0:  # startswith() costs more
                return None
            found.append(data[end:at])
        end, values = at + len(last), tuple(found)
        if end > self.bytes_max or data[at:end] != last:
            return None
        if values != self._last[0]:
            if self._has_others and not _VALUE.fullmatch(b" ".join(values)):  # one is empty, or has what no value has
                return None
            if (length := self.length(values)) < 0:
                return None
            self._last = values, length
        return self.kept, values, end, self._last[1]

    def length(self, values: Values) -> int:
        """The length that these values state, 0 if none is stated; -1 if it is none that is read here."""
        if self._length_at < 0:
            return 0
        digits = values[self._length_at]
        is_plain = digits.isdigit() and len(digits) <= _DIGITS_MAX and (len(digits) == 1 or digits[0] != 0x30)
        return int(digits) if is_plain else -1


class HeadCache(Generic[Kept]):
    """The heads of requests, or of responses, that came before in one configuration."""

    def __init__(self, may_vary: Callable[[bytes], bool]) -> None:
        """`may_vary` says of a name in lower case whether nothing follows from the field's value but its own bytes."""
        self._may_vary = may_vary
        self._first: dict[bytes, int] = {}  # hashes of the values in the first heads that had such fields
        self.varies = Varying(_ALWAYS_VARY)
        self.size_bytes = 0
        self.turn = 0
        self._next_turn_at = 0.0
        self._has_ended = False
        self._came = bytearray(_SLOTS)  # in which turn a head came that is not kept; heads may share a slot
        self.entries: OrderedDict[tuple[object, Values], CachedHead[Kept]] = OrderedDict()

    def learn(self, headers: Headers) -> None:
        """From now on those fields vary that may, and of which these have another value than the first that came."""
        first, new = self._first, set[bytes]()
        for name, value in headers.by_name.items():
            may = name not in self.varies.names and self._may_vary(name) and (name in first or len(first) < _NAMES_MAX)
            if may and first.setdefault(name, hash(value)) != hash(value):
                new.add(name)
        if new:
            self.varies = Varying(self.varies.names | new)

    def has_come(self, key: tuple[object, Values]) -> bool:
        """Whether a head came before, in this turn or the last two. From now on it did."""
        slot, turn = hash(key) & (_SLOTS - 1), self.turn % 255
        came, self._came[slot] = self._came[slot], turn + 1
        return came != 0 and (turn + 1 - came) % 255 <= 2

    def keep(self, entry: CachedHead[Kept]) -> bool:
        """Keep another entry. Those that were not used for the longest time go. False if the configuration has gone."""
        if self._has_ended:
            return False
        adder = entry.adder
        if len(adder.added) >= OF_ONE_CONNECTION_MAX:
            self._end(next(iter(adder.added)))
        self.entries[adder.scope, entry.pieces] = entry
        adder.added[entry] = None
        self.size_bytes += entry.size_bytes
        while len(self.entries) > ENTRIES_MAX or self.size_bytes > BYTES_MAX:
            self._end(self._oldest)
        return True

    def sweep(self, now: float) -> None:
        """End what was not used for `IDLE_S`, or a third less."""
        if now < self._next_turn_at:
            return
        self._next_turn_at = now + IDLE_S / 3
        self.turn += 1
        while self.entries and self._oldest.turn < self.turn - 2:
            self._end(self._oldest)

    def end(self) -> None:
        """End all entries: the configuration has gone."""
        self._has_ended = True
        while self.entries:
            self._end(self._oldest)

    @property
    def _oldest(self) -> CachedHead[Kept]:
        return next(iter(self.entries.values()))

    def _end(self, entry: CachedHead[Kept]) -> None:
        del self.entries[entry.adder.scope, entry.pieces]
        del entry.adder.added[entry]
        self.size_bytes -= entry.size_bytes
        entry.bytes_max = 0  # forgotten, for whoever still has the entry
        del entry.kept, entry.adder  # the adder may have it as its last head, which would be a cycle


class ConnectionHeads(Generic[Kept]):
    """What one connection has of a table: its last head, which most often comes again, and those that it has added."""

    __slots__ = ("_last", "added", "owner", "scope")

    def __init__(self, owner: Any, scope: object = None) -> None:
        self.owner = owner  # its `heads` is the table of the configuration that holds now
        self._last: CachedHead[Kept] | None = None
        self.scope = scope
        self.added: dict[CachedHead[Kept], None] = {}  # the oldest first

    def find(self, data: bytes, bytes_max: int) -> tuple[Kept, Values, int, int] | Cut | None:
        """What was kept of the head at the beginning of `data`, its values, its size, and that of its body.

        If it did not come before, the head, cut; None if that takes too much, has not all come, or exceeds `bytes_max`.
        """
        heads: HeadCache[Kept]
        heads, entry = self.owner.heads, self._last
        found = None if entry is None else entry.read(data)
        if found is None:
            end = data.find(HEAD_END, 0, HEAD_BYTES_MAX) + len(HEAD_END)
            if end < len(HEAD_END):
                return None
            cut = heads.varies.cut(data[:end])
            entry = heads.entries.get((self.scope, cut.pieces))
            found = None if entry is None else entry.read(data)
            if found is None:
                return cut
            self._last = entry
        if entry is None or found[2] > bytes_max:
            return None
        if entry.turn != heads.turn:
            entry.turn = heads.turn
            heads.entries.move_to_end((entry.adder.scope, entry.pieces))
        return found

    def keep(self, heads: HeadCache[Kept], cut: Cut, headers: Headers, length: int, kept: Kept) -> bool:
        """Keep what follows from an accepted head that came before: `find` has cut it, and these are its fields.

        Its body had that `length`. True if it is kept.
        """
        key = self.scope, cut.pieces
        heads.learn(headers)
        if cut.varies is not heads.varies or not heads.has_come(key) or key in heads.entries:
            return False
        if len(headers.named(cut.varies.names)) != len(cut.values):
            return False
        entry = CachedHead(cut, headers.uncounted_bytes, kept, self, heads.turn)
        return entry.length(cut.values) == length and heads.keep(entry)
