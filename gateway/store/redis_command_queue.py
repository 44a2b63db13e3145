"""What waits for the store: values, entries and questions; and the commands that carry them.

In: what is to be written, or read, by the names of its keys. Out: one batch of commands, and the answers to those who
asked. Always: a batch is in order: what is forgotten, then values, then entries, then questions. Each question gets an
answer, None if the store has none. Keys expire.

An entry is a member of a sorted set; its score is its place. Places only grow, also where a set was forgotten: they are
the store's own time, or one more than the last place.
"""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Any, Final, NamedTuple, TypeAlias

from redis.exceptions import MasterDownError, ReadOnlyError, ResponseError

READ_AT_ONCE: Final = 2000  # entries
_BYTES_MAX: Final = 4096  # of a value or an entry; of 256 characters each escaped, an entry has half
_OWED_MAX: Final = 10_000  # of each kind
_ENTRIES_MAX: Final = 100_000  # of one session; the oldest go first
_PLACE_MAX: Final = 2**53  # microseconds since 1970, until 2255; who else writes there may have infinity

# Of the arguments three are numbers: milliseconds until the key expires, how many entries it may have, how many of the
# entries that follow are to be taken out. The others are added, unless they are there. A full store refuses an
# adding command only while the script has changed nothing. So an adding command that adds nothing comes first.
_ADD: Final = """
local key, last = KEYS[1], redis.call('ZREVRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2]
local time = redis.call('TIME')
local place = math.max((tonumber(last) or 0) + 1, time[1] * 1000000 + time[2])
if #ARGV > 3 + ARGV[3] then redis.call('ZADD', key, 'XX', 0, '') end
for at = 4, 3 + ARGV[3] do redis.call('ZREM', key, ARGV[at]) end
for at = 4 + ARGV[3], #ARGV do
    redis.call('ZADD', key, 'NX', string.format('%.0f', place), ARGV[at])
    place = place + 1
end
redis.call('ZREMRANGEBYRANK', key, 0, -ARGV[2] - 1)
redis.call('PEXPIRE', key, ARGV[1])
"""

# The place after which entries are asked for, how many, and their bytes: an entry that is larger comes as an empty one.
_ENTRIES: Final = """
local flat = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. ARGV[1], '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[2])
for at = 1, #flat, 2 do
    if #flat[at] > tonumber(ARGV[3]) then flat[at] = '' end
end
return flat
"""

# Sets, each with an entry that may be in other sets, which come last. Of each: its last entry, empty if there is none
# or it is too large; then whether each of the others has that other entry.
_LASTS: Final = """
local sets, found = #ARGV - 1, {}
for at = 1, sets do
    local last = redis.pcall('ZREVRANGE', KEYS[at], 0, 0)[1]
    found[#found + 1] = (last and #last <= tonumber(ARGV[1])) and last or ''
    for other = sets + 1, #KEYS do
        found[#found + 1] = type(redis.pcall('ZSCORE', KEYS[other], ARGV[at + 1])) == 'string' and 1 or 0
    end
end
return found
"""


Command: TypeAlias = tuple[Any, ...]


class Read(NamedTuple):
    """What a store has of a session."""

    server: bytes | None  # the value of the session, whatever the identity
    tasks: list[bytes]  # the identity's entries behind the place that was asked for, in order
    place: int  # the place of the last of them
    complete: bool  # whether these are all


class Lasts(NamedTuple):
    """A question for the last entries of sets."""

    sets: tuple[str, ...]  # names
    entries: tuple[bytes, ...]  # one for each of them
    others: tuple[str, ...]  # names of sets that may have these entries


class Answers(NamedTuple):
    """What the store has answered. A key of another type is ignored, and harms no other (DESIGN 12.5)."""

    refused: list[ResponseError]  # why it takes nothing in, or says nothing
    wrong: dict[str, ResponseError]  # by the names of keys that are of another type
    written: set[str]  # names of keys


class Ending(NamedTuple):
    """Entries that replace others; without `new`, the name is forgotten. `tell_all` does not tell it again."""

    name: str
    new: tuple[bytes, ...] = ()
    old: tuple[bytes, ...] = ()


class PendingEnds:
    """Ends that a store which fails is yet to hear of; of too many the oldest go first.

    Any stranger can end sessions of his own, again and again. So names that are forgotten displace no others.
    """

    def __init__(self) -> None:
        self._kept: tuple[dict[Ending, None], ...] = {}, {}  # names that are forgotten; others

    def add(self, ends: Iterable[Ending]) -> None:
        for end in ends:
            kept = self._kept[bool(end.new)]
            kept[end] = None
            if len(kept) > _OWED_MAX:
                del kept[next(iter(kept))]

    def take(self) -> list[Ending]:
        """Take them out. What is forgotten comes first: an entry too many costs only requests."""
        ends = [end for kept in self._kept for end in kept]
        self._kept = {}, {}
        return ends


class Batch:
    def __init__(self) -> None:
        self.size = 0  # values and entries
        self._ends: dict[Ending, None] = {}  # in order
        self._dropped: set[str] = set()
        self._values: dict[str, bytes] = {}
        self._old: defaultdict[str, set[bytes]] = defaultdict(set)
        self._new: defaultdict[str, dict[bytes, None]] = defaultdict(dict)  # in order
        self._asked: dict[tuple[str, str, int], asyncio.Future[Read | None]] = {}
        self._lasts: dict[Lasts, asyncio.Future[list[bytes | int] | None]] = {}

    def __bool__(self) -> bool:
        return bool(self._dropped or self._values or self._new or self._asked or self._lasts)

    def put(self, name: str, value: bytes) -> None:
        self.size += name not in self._values
        self._values[name] = value

    def add(self, name: str, new: Collection[bytes], old: Collection[bytes]) -> None:
        """Entries are to be taken out, then others to be added. The key is in use."""
        adding, removing = self._new[name], self._old[name]
        before = len(adding) + len(removing)
        for entry in old:
            adding.pop(entry, None)
        removing.update(old)
        adding.update(dict.fromkeys(new))
        self.size += len(adding) + len(removing) - before + 1

    def end(self, end: Ending) -> None:
        """Entries are to be replaced, or all is to be forgotten under a name."""
        self._ends[end] = None
        if end.new:
            self.add(end.name, end.new, end.old)
            return
        self._values.pop(end.name, None)
        self._old.pop(end.name, None)
        self._new.pop(end.name, None)
        self.size += end.name not in self._dropped
        self._dropped.add(end.name)

    def forget_writes(self) -> list[Ending]:
        """Nothing is to be written. Returns what `tell_all` does not tell again."""
        ends = list(self._ends)
        for waiting in (self._ends, self._dropped, self._values, self._old, self._new):
            waiting.clear()
        self.size = 0
        return ends

    def ask(self, value: str, entries: str, after: int) -> "asyncio.Future[Read | None]":
        """A question: the answer will be the result. Those who ask the same get one answer."""
        name = (value, entries, after)
        if name not in self._asked:
            self._asked[name] = asyncio.get_running_loop().create_future()
        return self._asked[name]

    def ask_lasts(self, lasts: Lasts) -> "asyncio.Future[list[bytes | int] | None]":
        """The last entry of each set, and which of the others have its entry, one after another."""
        if lasts not in self._lasts:
            self._lasts[lasts] = asyncio.get_running_loop().create_future()
        return self._lasts[lasts]

    def commands(self, value_ms: int, entries_ms: int) -> list[Command]:
        found: list[Command] = [("UNLINK", *self._dropped)] if self._dropped else []
        found += [("SET", name, value, "PX", value_ms) for name, value in self._values.items()]
        for name, new in self._new.items():
            old = self._old[name]
            found.append(("EVAL", _ADD, 1, name, entries_ms, _ENTRIES_MAX, len(old), *old, *new))
        for value_name, entries_name, after in self._asked:
            found.append(("GETRANGE", value_name, 0, _BYTES_MAX - 1))
            found.append(("EVAL", _ENTRIES, 1, entries_name, after, READ_AT_ONCE, _BYTES_MAX))
        for sets, entries, others in self._lasts:
            found.append(("EVAL", _LASTS, len(sets) + len(others), *sets, *others, _BYTES_MAX, *entries))
        return found

    def answer(self, results: list[Any], last: str) -> Answers:
        """Answer the questions from the results of all commands, and of one more that reads the key `last`."""
        end = len(results) - len(self._lasts) - 1
        for asked_lasts, lasts in zip(self._lasts.values(), results[end:-1], strict=True):
            if not asked_lasts.done():
                asked_lasts.set_result(None if isinstance(lasts, ResponseError) else lasts)
        failed = [error for error in errors(results) if not _is_wrong(error)]
        results = [*results[:end], results[-1]]
        first = len(results) - 2 * len(self._asked) - 1
        for at, ((_, _, after), asked) in enumerate(self._asked.items()):
            pair = results[first + 2 * at : first + 2 * at + 2]
            server, entries = (None if _is_wrong(result) else result for result in pair)
            if not asked.done():
                asked.set_result(_read(server, entries, after))
        written = [*self._values, *self._new]
        names = [*written, *(name for asked in self._asked for name in asked[:2]), last]
        by_name = zip(names, results[bool(self._dropped) :], strict=True)
        wrong = {name: error for name, error in by_name if _is_wrong(error)}
        return Answers(failed, wrong, set(written) - set(wrong))

    def give_up(self) -> None:
        questions: list[asyncio.Future[Any]] = [*self._asked.values(), *self._lasts.values()]
        for asked in questions:
            if not asked.done():
                asked.set_result(None)
        self._asked.clear()
        self._lasts.clear()


def errors(results: Iterable[Any]) -> list[ResponseError]:
    return [result for result in results if isinstance(result, ResponseError)]


def is_of_replica(error: ResponseError) -> bool:
    """Whether only a server answers so that is no primary. The error of a script has the word somewhere."""
    known = isinstance(error, ReadOnlyError | MasterDownError)
    return known or any(word in str(error) for word in ("READONLY", "MASTERDOWN"))


def _is_wrong(result: Any) -> bool:
    """Whether a key holds another type of value. The error of a script has the word somewhere, the first or not."""
    return isinstance(result, ResponseError) and "WRONGTYPE" in str(result)


def _read(server: Any, flat: Any, after: int) -> Read | None:
    """What was read, None if it could not be; `flat` has each entry and its place, or is None."""
    if isinstance(server, ResponseError) or isinstance(flat, ResponseError):
        return None
    place = int(min(float(flat[-1]), _PLACE_MAX)) if flat else after
    # Who else writes there may have more entries at one place than are read at once.
    return Read(server or None, (flat or [])[::2], place, not flat or len(flat) < 2 * READ_AT_ONCE or place <= after)
