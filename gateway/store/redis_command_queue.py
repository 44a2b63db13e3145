"""What waits for the store: values, entries and questions; and the commands that carry them.

In: what is to be written, by the names of its keys, and questions. Out: one batch of commands, and the answers to those
who asked. Always: a batch is in order: what is forgotten, then values, then entries, then questions. Each question gets
an answer, None if the store has none. Keys expire.

An entry is a member of a sorted set; its score is its place. Places only grow, also where a set was forgotten: they are
the store's own time, or one more than the last place. The names of keys are ours alone: a write replaces what has
another type, and a question finds nothing there.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Collection, Iterable
from typing import Any, Final, NamedTuple, TypeAlias

from redis.exceptions import MasterDownError, ReadOnlyError, ResponseError

READ_AT_ONCE: Final = 2000  # entries
_OWED_MAX: Final = 10_000  # of each kind
_BYTES_MAX: Final = 4096  # of a value or an entry; of 256 characters each escaped, an entry has half
_PLACE_MAX: Final = 2**53  # microseconds since 1970, until 2255; who else writes there may have infinity
REPLACED: Final = b"REPLACED"

# Of the arguments three are numbers: milliseconds until the key may expire, how many entries it may have, how many of
# the entries that follow are to be taken out. The others are added, unless they are there. A full store refuses an
# adding command only while the script has changed nothing. So an adding command that adds nothing comes first.
_ADD: Final = """
local key, last = KEYS[1], redis.pcall('ZREVRANGE', KEYS[1], 0, 0, 'WITHSCORES')
local replaces = last.err and string.find(last.err, 'WRONGTYPE', 1, true)
if replaces then redis.call('UNLINK', key) end
local time = redis.call('TIME')
local place = math.max((tonumber(last[2]) or 0) + 1, time[1] * 1000000 + time[2])
if #ARGV > 3 + ARGV[3] then redis.call('ZADD', key, 'XX', 0, '') end
for at = 4, 3 + ARGV[3] do redis.call('ZREM', key, ARGV[at]) end
for at = 4 + ARGV[3], #ARGV do
    redis.call('ZADD', key, 'NX', string.format('%.0f', place), ARGV[at])
    place = place + 1
end
redis.call('ZREMRANGEBYRANK', key, 0, -ARGV[2] - 1)
if redis.call('PTTL', key) < tonumber(ARGV[1]) then redis.call('PEXPIRE', key, ARGV[1]) end
return redis.status_reply(replaces and 'REPLACED' or 'OK')
"""

# What questions find comes in lines: many small answers take the client long to read. What has several lines, or is
# too large, or of another type, comes as an empty one.
_LINES: Final = """
local lines = {}
local function line(text)
    if type(text) ~= 'string' or #text > BYTES_MAX or string.find(text, '\\n', 1, true) then text = '' end
    lines[#lines + 1] = text
end
""".replace("BYTES_MAX", str(_BYTES_MAX))

# A value, and the entries of a set behind a place, as many as are asked for; before them the place of the last one.
_READ: Final = f"""{_LINES}
local flat = redis.pcall('ZRANGEBYSCORE', KEYS[2], '(' .. ARGV[1], '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[2])
if flat.err and not string.find(flat.err, 'WRONGTYPE', 1, true) then return flat end
line(redis.pcall('GETRANGE', KEYS[1], 0, {_BYTES_MAX}))
line(flat[#flat])
for at = 1, #flat, 2 do line(flat[at]) end
return table.concat(lines, '\\n')
"""

# Sets, each with an entry that may be in other sets, which come last. Of each: its last entry; in how many milliseconds
# it expires; then whether each of the others has that other entry.
_LASTS: Final = f"""{_LINES}
for at = 1, #ARGV do
    line(redis.pcall('ZREVRANGE', KEYS[at], 0, 0)[1])
    line(tostring(redis.call('PTTL', KEYS[at])))
    for other = #ARGV + 1, #KEYS do
        line(type(redis.pcall('ZSCORE', KEYS[other], ARGV[at])) == 'string' and '1')
    end
end
return table.concat(lines, '\\n')
"""


Command: TypeAlias = tuple[Any, ...]


class Read(NamedTuple):
    """What a store has of a session."""

    server: bytes | None  # the value of the session, whatever the identity
    tasks: list[bytes]  # the identity's entries behind the place that was asked for, in order
    place: int  # the place of the last of them
    complete: bool  # whether these are all


def reading(value: str, entries: str, after: int) -> Command:
    """The question for a value, and for entries behind the place `after`."""
    return ("EVAL", _READ, 2, value, entries, after, READ_AT_ONCE)


def read_in(lines: list[bytes], after: int) -> Read:
    """The answer to `reading`."""
    server, place, *tasks = lines
    last = int(min(float(place), _PLACE_MAX)) if place else after
    # Who else writes there may have more entries at one place than are read at once.
    return Read(server or None, tasks, last, len(tasks) < READ_AT_ONCE or last <= after)


def asking_lasts(sets: Collection[str], entries: Iterable[bytes], others: Collection[str]) -> Command:
    """The question for the last entry of each set, when that expires, and which of the others have its entry."""
    return ("EVAL", _LASTS, len(sets) + len(others), *sets, *others, *entries)


class Ending(NamedTuple):
    """Entries that replace others; without `new`, the name is forgotten. `tell_all` does not tell it again."""

    name: str
    new: tuple[bytes, ...] = ()
    old: tuple[bytes, ...] = ()
    kept_ms: int = 0
    most: int = 0


class Owed:
    """What was not written, and must be before all else: names that are forgotten, and entries that replace others.

    Of too many the newest. Any stranger can end sessions of his own, again and again. So names displace no entries.
    """

    def __init__(self) -> None:
        self._kinds: tuple[OrderedDict[Ending, None], ...] = OrderedDict(), OrderedDict()

    def __bool__(self) -> bool:
        return any(self._kinds)

    def keep(self, ends: Iterable[Ending]) -> None:
        for end in ends:
            kept = self._kinds[bool(end.new)]
            kept[end] = None
            if len(kept) > _OWED_MAX:
                kept.popitem(last=False)

    def move_to(self, batch: "Batch", size_max: int) -> None:
        for kept in self._kinds:
            while kept and batch.size < size_max:
                batch.end(kept.popitem(last=False)[0])


class _Set:
    """What is to be done to the entries of one key."""

    def __init__(self) -> None:
        self.old, self.new = set[bytes](), dict[bytes, None]()  # in order
        self.kept_ms = self.most = 0

    def add(self, new: Collection[bytes], old: Collection[bytes]) -> int:
        """Returns how many more entries wait, and one for the key."""
        before = len(self.new) + len(self.old)
        for entry in old:
            self.new.pop(entry, None)
        self.old.update(old)
        self.new.update(dict.fromkeys(new))
        return len(self.new) + len(self.old) - before + 1


class Batch:
    def __init__(self) -> None:
        self.size = 0  # values and entries
        self._ends: dict[Ending, None] = {}  # in order
        self._dropped: set[str] = set()
        self._values: dict[str, bytes] = {}
        self._sets: dict[str, _Set] = {}
        self._asked: dict[Command, asyncio.Future[Any]] = {}

    def __bool__(self) -> bool:
        return bool(self._dropped or self._values or self._sets or self._asked)

    def put(self, name: str, value: bytes) -> None:
        self.size += name not in self._values
        self._values[name] = value

    def add(self, name: str, new: Collection[bytes], old: Collection[bytes], kept_ms: int, most: int) -> None:
        """Entries are to be taken out, then others to be added. The key is in use: it is kept for so long at least."""
        entries = self._sets.setdefault(name, _Set())
        self.size += entries.add(new, old)
        entries.kept_ms, entries.most = max(entries.kept_ms, kept_ms), most

    def end(self, end: Ending) -> None:
        """Entries are to be replaced, or all is to be forgotten under a name."""
        self._ends[end] = None
        if end.new:
            self.add(end.name, end.new, end.old, end.kept_ms, end.most)
            return
        self._values.pop(end.name, None)
        self._sets.pop(end.name, None)
        self.size += end.name not in self._dropped
        self._dropped.add(end.name)

    def forget_writes(self) -> list[Ending]:
        """Nothing is to be written. Returns what `tell_all` does not tell again."""
        ends = list(self._ends)
        for waiting in (self._ends, self._dropped, self._values, self._sets):
            waiting.clear()
        self.size = 0
        return ends

    def ask(self, question: Command) -> "asyncio.Future[Any]":
        """The answer will be the result: lines, or None. Those who ask the same get one answer."""
        if question not in self._asked:
            self._asked[question] = asyncio.get_running_loop().create_future()
        return self._asked[question]

    def take_questions(self) -> "Batch":
        """These questions alone; here they wait no more."""
        taken = Batch()
        taken._asked, self._asked = self._asked, taken._asked
        return taken

    def commands(self, value_ms: int) -> list[Command]:
        found: list[Command] = [("UNLINK", *self._dropped)] if self._dropped else []
        found += [("SET", name, value, "PX", value_ms) for name, value in self._values.items()]
        for name, entries in self._sets.items():
            numbers = entries.kept_ms, entries.most, len(entries.old)
            found.append(("EVAL", _ADD, 1, name, *numbers, *entries.old, *entries.new))
        return [*found, *self._asked]

    def answer(self, results: list[Any]) -> None:
        """Answer the questions from the results of all commands."""
        for asked, found in zip(self._asked.values(), results[len(results) - len(self._asked) :], strict=True):
            if not asked.done():
                asked.set_result(None if isinstance(found, ResponseError) else found.split(b"\n"))

    def give_up(self) -> None:
        for asked in self._asked.values():
            if not asked.done():
                asked.set_result(None)
        self._asked.clear()


def is_of_replica(error: ResponseError) -> bool:
    """Whether only a server answers so that is no primary. The error of a script has the word somewhere."""
    known = isinstance(error, ReadOnlyError | MasterDownError)
    return known or any(word in str(error) for word in ("READONLY", "MASTERDOWN"))
