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
from typing import Any, Final, NamedTuple

from redis.exceptions import ResponseError

from gateway.store.link import Command, errors
from gateway.tasks.ports import Read

READ_AT_ONCE: Final = 2000  # entries
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


class Ending(NamedTuple):
    """Entries that replace others; without `new`, the name is forgotten. `tell_all` does not tell it again."""

    name: str
    new: tuple[bytes, ...] = ()
    old: tuple[bytes, ...] = ()
    of_caller: bool = False  # all entries of a caller are forgotten, for example because the server refused it


class Owed:
    """Ends that a store which fails is yet to hear of; of too many the oldest go first.

    Any stranger can be refused, again and again. So the ends of callers displace no others.
    """

    def __init__(self) -> None:
        self._of_callers: dict[Ending, None] = {}
        self._others: dict[Ending, None] = {}

    def add(self, ends: Iterable[Ending]) -> None:
        """The store is to hear of these too."""
        for end in ends:
            kept = self._of_callers if end.of_caller else self._others
            kept[end] = None
            if len(kept) > _OWED_MAX:
                del kept[next(iter(kept))]

    def take(self) -> list[Ending]:
        """Take them out. What is forgotten comes first: a hint too many costs only requests."""
        ends = [*self._of_callers, *self._others]
        self._of_callers.clear()
        self._others.clear()
        return ends


class Waiting:
    """What waits to be sent, together."""

    def __init__(self) -> None:
        self.size = 0  # values and entries
        self._ends: dict[Ending, None] = {}  # in order
        self._dropped: set[str] = set()
        self._values: dict[str, bytes] = {}
        self._old: defaultdict[str, set[bytes]] = defaultdict(set)
        self._new: defaultdict[str, dict[bytes, None]] = defaultdict(dict)  # in order
        self._asked: dict[tuple[str, str, int], asyncio.Future[Read | None]] = {}

    def __bool__(self) -> bool:
        return bool(self._dropped or self._values or self._new or self._asked)

    def put(self, name: str, value: bytes) -> None:
        """A value is to be kept."""
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

    def commands(self, value_ms: int, entries_ms: int) -> list[Command]:
        """All commands."""
        found: list[Command] = [("UNLINK", *self._dropped)] if self._dropped else []
        found += [("SET", name, value, "PX", value_ms) for name, value in self._values.items()]
        for name, new in self._new.items():
            old = self._old[name]
            found.append(("EVAL", _ADD, 1, name, entries_ms, _ENTRIES_MAX, len(old), *old, *new))
        for value_name, entries_name, after in self._asked:
            found.append(("GET", value_name))
            limit = ("LIMIT", 0, READ_AT_ONCE)
            found.append(("ZRANGEBYSCORE", entries_name, f"({after}", "+inf", "WITHSCORES", *limit))
        return found

    def answer(self, results: list[Any]) -> tuple[list[ResponseError], list[ResponseError]]:
        """Answer the questions from the results of all commands. Returns why writes were refused, and reads."""
        first = len(results) - 2 * len(self._asked)
        for at, ((_, _, after), asked) in enumerate(self._asked.items()):
            server, entries = results[first + 2 * at : first + 2 * at + 2]
            if not asked.done():
                failed = isinstance(server, ResponseError) or isinstance(entries, ResponseError)
                asked.set_result(None if failed else _read(server, entries, after))
        return errors(results[:first]), errors(results[first:])

    def give_up(self) -> None:
        """There will be no answer."""
        for asked in self._asked.values():
            if not asked.done():
                asked.set_result(None)
        self._asked.clear()


def _read(server: bytes | None, flat: list[bytes], after: int) -> Read:
    """What was read; `flat` has each entry and its place."""
    place = int(min(float(flat[-1]), _PLACE_MAX)) if flat else after
    return Read(server, flat[::2], place, complete=len(flat) < 2 * READ_AT_ONCE)
