"""What waits for the store: values, entries and questions; and the commands that carry them.

In: what is to be written, or read, by the names of its keys. Out: one batch of commands, and the answers to those who
asked. Always: a batch is in order: what is forgotten, then values, then entries, then questions. Each who asks gets an
answer, None if the store has none. Keys expire.

An entry is a member of a sorted set; its score is its place. Places only grow, also where a set was forgotten: they are
the store's own time, or one more than the last place.
"""

import asyncio
from collections import defaultdict
from typing import Any, Final

from redis.asyncio.client import Pipeline
from redis.exceptions import RedisError

from gateway.tasks.ports import Read

READ_AT_ONCE: Final = 2000  # entries
_ENTRIES_MAX: Final = 100_000  # of one session; the oldest go first

# Of the arguments three are numbers: milliseconds until the key expires, how many entries it may have, how many of the
# entries that follow are to be taken out. The others are added, unless they are there.
_ADD: Final = """
local key, last = KEYS[1], redis.call('ZREVRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2]
local time = redis.call('TIME')
local place = math.max((tonumber(last) or 0) + 1, time[1] * 1000000 + time[2])
for at = 4, 3 + ARGV[3] do redis.call('ZREM', key, ARGV[at]) end
for at = 4 + ARGV[3], #ARGV do
    redis.call('ZADD', key, 'NX', string.format('%.0f', place), ARGV[at])
    place = place + 1
end
redis.call('ZREMRANGEBYRANK', key, 0, -ARGV[2] - 1)
redis.call('PEXPIRE', key, ARGV[1])
"""


class Waiting:
    """What waits to be sent, together."""

    def __init__(self) -> None:
        self.size = 0  # values and entries
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

    def add(self, name: str, new: list[bytes], old: list[bytes]) -> None:
        """Entries are to be taken out, then others to be added. The key is in use."""
        adding = self._new[name]
        for entry in old:
            adding.pop(entry, None)
        self._old[name].update(old)
        adding.update(dict.fromkeys(new))
        self.size += len(new) + len(old) + 1

    def drop(self, name: str) -> None:
        """All entries are to be forgotten."""
        self._old.pop(name, None)
        self._new.pop(name, None)
        self._dropped.add(name)

    def forget_writes(self) -> None:
        """Nothing is to be written."""
        self._dropped.clear()
        self._values.clear()
        self._old.clear()
        self._new.clear()
        self.size = 0

    def ask(self, value: str, entries: str, after: int) -> "asyncio.Future[Read | None]":
        """A question: the answer will be the result. Those who ask the same get one answer."""
        name = (value, entries, after)
        if name not in self._asked:
            self._asked[name] = asyncio.get_running_loop().create_future()
        return self._asked[name]

    def write_to(self, pipe: Pipeline, value_ms: int, entries_ms: int) -> None:
        """Put all commands into a pipeline; if there are none, one that tries the connection."""
        if not self:
            pipe.ping()
        if self._dropped:
            pipe.unlink(*self._dropped)
        for name, value in self._values.items():
            pipe.set(name, value, px=value_ms)
        for name, new in self._new.items():
            old = self._old[name]
            pipe.eval(_ADD, 1, name, entries_ms, _ENTRIES_MAX, len(old), *old, *new)
        for value_name, entries_name, after in self._asked:
            pipe.get(value_name)
            pipe.zrangebyscore(entries_name, f"({after}", "+inf", start=0, num=READ_AT_ONCE, withscores=True)

    def answer(self, results: list[Any]) -> list[RedisError]:
        """Answer the questions from the results of the pipeline. Returns why writes were refused."""
        first = len(results) - 2 * len(self._asked)
        for at, ((_, _, after), asked) in enumerate(self._asked.items()):
            server, entries = results[first + 2 * at : first + 2 * at + 2]
            if not asked.done():
                failed = isinstance(server, RedisError) or isinstance(entries, RedisError)
                asked.set_result(None if failed else _read(server, entries, after))
        return [result for result in results if isinstance(result, RedisError)]

    def give_up(self) -> None:
        """There will be no answer."""
        for asked in self._asked.values():
            if not asked.done():
                asked.set_result(None)


def _read(server: bytes | None, entries: list[tuple[bytes, float]], after: int) -> Read:
    place = int(entries[-1][1]) if entries else after
    return Read(server, [entry for entry, _ in entries], place)
