"""Heads that came before: what follows from a head alone is worked out once.

A client sends one and the same head with each message, and so does a server for each second of its `Date`, but for the
digits of `Content-Length`. To read a head, to find its upstream and its caller, and to make the bytes that go on, are
pure functions of the head's bytes, of the configuration, and of the way by which it came in. So their results are kept
with these bytes: those of requests in one table (http_caller.py), those of responses in another (response_parser.py).

In: the bytes that arrived, where a message begins. Out: what was kept when a head of these bytes came before, with the
length of this body; None for any other head. Always:

- A head is found by all of its bytes, but for the digits of one `Content-Length`. These are read strictly each time: 1
  to 18 digits, none of them a leading zero, no sign, no space. They follow a CR LF and the field's name, which in an
  accepted head stand nowhere in a target or in another field's value.
- Only a head that was read whole and accepted is kept: so none has a second `Content-Length`, a coding beside it or a
  folded line.
- A table serves one configuration: a reload makes another. `scope` keeps apart heads that came in by different ways,
  where that changes what follows from them: requests by the client's address.
- A head is kept when it comes the second time within a minute: one that has the id of a request takes no memory. It
  ends after a minute without use. It has tokens, and is never logged or shown.
- All entries of a table have a limit in number and in bytes. Of those that one connection has added only the last few
  stay, so that a flood of new heads cannot drive out the others.
"""

import re
from collections import OrderedDict
from typing import Any, Final, Generic, TypeVar

from gateway.http.header_fields import HEAD_END

HEAD_BYTES_MAX: Final = 4096  # a larger head is not kept
ENTRIES_MAX: Final = 2000
BYTES_MAX: Final = 16 << 20  # of all entries, with what is kept in them
OF_ONE_CONNECTION_MAX: Final = 50
IDLE_S: Final = 60.0

_LENGTH: Final = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: ([0-9]+)\r\n")
_DIGITS_MAX: Final = 18
_SLOTS: Final = 1 << 16  # for the heads that came once; a slot takes a byte
_ENTRY_BYTES: Final = 1500  # of memory: the objects of an entry
_FIELD_BYTES: Final = 300  # ... the objects of a field, as it came and as it goes on
_BYTES_FOR_ONE: Final = 5  # ... for each byte of the head: its key, its fields, and what goes on
_ENDED: Final = b"\n"  # no head begins like this

Kept = TypeVar("Kept")


class CachedHead(Generic[Kept]):
    """A head that came before: its bytes in front of the digits (all, if none) and behind; what follows."""

    __slots__ = ("adder", "after", "before", "kept", "turn")

    def __init__(self, before: bytes, after: bytes, kept: Kept, adder: "ConnectionHeads[Kept]", turn: int) -> None:
        self.before = before
        self.after = after
        self.kept = kept
        self.adder = adder  # whose `scope` is that of the head
        self.turn = turn  # of the table, when it was last used

    @property
    def size_bytes(self) -> int:
        lines = self.before.count(b"\n") + self.after.count(b"\n")
        return _ENTRY_BYTES + _FIELD_BYTES * lines + _BYTES_FOR_ONE * (len(self.before) + len(self.after))

    def length_in(self, data: bytes) -> int:
        """The length that the head at the beginning of `data` states, 0 if none is stated; -1 if it is another head."""
        before = self.before
        if not data.startswith(before):
            return -1
        if not self.after:
            return 0
        at = len(before)
        behind = data.find(b"\r", at, at + _DIGITS_MAX + 1)
        if behind <= at or not data.startswith(self.after, behind):
            return -1
        digits = data[at:behind]
        return int(digits) if digits.isdigit() and (digits[0] != 0x30 or len(digits) == 1) else -1


class HeadBytes:
    """A head as it goes on, as bytes: for any length of its body."""

    __slots__ = ("_after", "_before", "_body_bytes", "_whole")

    def __init__(self, head: bytes, body_bytes: int) -> None:
        self._whole, self._body_bytes = head, body_bytes
        self._before, self._after = halves(head, len(head))

    def of(self, body_bytes: int) -> bytes:
        """The head for that length; empty if it states its length in no way that is read here."""
        if body_bytes == self._body_bytes:
            return self._whole
        return b"%b%d%b" % (self._before, body_bytes, self._after) if self._after else b""


class HeadCache(Generic[Kept]):
    """The heads of requests, or of responses, that came before in one configuration."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self.turn = 0
        self._next_turn_at = 0.0
        self._has_ended = False
        self._came = bytearray(_SLOTS)  # in which turn a head came that is not kept; heads may share a slot
        self.entries: OrderedDict[tuple[object, bytes, bytes], CachedHead[Kept]] = OrderedDict()

    def __len__(self) -> int:
        return len(self.entries)

    def has_come(self, key: tuple[object, bytes, bytes]) -> bool:
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
        self.entries[adder.scope, entry.before, entry.after] = entry
        adder.added[entry] = None
        self.size_bytes += entry.size_bytes
        while len(self.entries) > ENTRIES_MAX or self.size_bytes > BYTES_MAX:
            self._end(self._first)
        return True

    def sweep(self, now: float) -> None:
        """End what was not used for `IDLE_S`, or a third less."""
        if now < self._next_turn_at:
            return
        self._next_turn_at = now + IDLE_S / 3
        self.turn += 1
        while self.entries and self._first.turn < self.turn - 2:
            self._end(self._first)

    def end(self) -> None:
        """End all entries: the configuration has gone."""
        self._has_ended = True
        while self.entries:
            self._end(self._first)

    @property
    def _first(self) -> CachedHead[Kept]:
        return next(iter(self.entries.values()))

    def _end(self, entry: CachedHead[Kept]) -> None:
        del self.entries[entry.adder.scope, entry.before, entry.after]
        del entry.adder.added[entry]
        self.size_bytes -= entry.size_bytes
        entry.before = entry.after = _ENDED  # forgotten, for whoever still has the entry
        del entry.kept, entry.adder  # the adder may have it as its last head, which would be a cycle


class ConnectionHeads(Generic[Kept]):
    """What one connection has of a table: its last head, which most often comes again, and those that it has added."""

    __slots__ = ("_last", "added", "owner", "scope")

    def __init__(self, owner: Any, scope: object = None) -> None:
        self.owner = owner  # its `heads` is the table of the configuration that holds now
        self._last: CachedHead[Kept] | None = None
        self.scope = scope
        self.added: dict[CachedHead[Kept], None] = {}  # the oldest first

    def find(self, data: bytes) -> tuple[Kept, int, int] | None:
        """What was kept of the head at the beginning of `data`, if it came before; its size, and that of its body."""
        heads: HeadCache[Kept]
        heads, entry = self.owner.heads, self._last
        length = -1 if entry is None else entry.length_in(data)
        if length < 0:
            end = data.find(HEAD_END, 0, HEAD_BYTES_MAX) + len(HEAD_END)
            if end < len(HEAD_END):
                return None
            entry = heads.entries.get((self.scope, *halves(data, end)))
            length = -1 if entry is None else entry.length_in(data)
            if length < 0:
                return None
            self._last = entry
        assert entry is not None
        if entry.turn != heads.turn:
            entry.turn = heads.turn
            heads.entries.move_to_end((entry.adder.scope, entry.before, entry.after))
        digits = len(str(length)) if entry.after else 0
        return entry.kept, len(entry.before) + digits + len(entry.after), length

    def keep(self, heads: HeadCache[Kept], head: bytes, length: int, kept: Kept) -> bool:
        """Keep what follows from an accepted head that came before, with a body of that `length`. True if kept."""
        if len(head) > HEAD_BYTES_MAX:
            return False
        key = self.scope, *halves(head, len(head))
        if not heads.has_come(key) or key in heads.entries:
            return False
        entry = CachedHead(*key[1:], kept, self, heads.turn)
        return entry.length_in(head) == length and heads.keep(entry)


def halves(data: bytes, end: int) -> tuple[bytes, bytes]:
    """The head that ends at `end`, in front of the digits of its first `Content-Length` and behind them."""
    found = _LENGTH.search(data, 0, end)
    return (data[:end], b"") if found is None else (data[: found.start(1)], data[found.end(1) : end])
