"""As much of Redis as the gateway uses, on the virtual loop. The gateway's script is done here once more, in Python."""

import asyncio
from collections.abc import Callable
from typing import Final, TypeAlias

from tests.model.virtual import Transport, VirtualLoop

STORE_PORT: Final = 6379
_FULL: Final = Exception("OOM command not allowed when used memory > 'maxmemory'.")

Answer: TypeAlias = "bytes | int | list[Answer] | Exception | None"


class Redis:
    """The server. `state` is "well", "stopped", "killed" or "full"."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.state = "well"
        self.well_since = float("-inf")
        self.delay_s = 0.0  # until it answers
        self.command_s = 0.0  # that each command takes besides
        self.commands = 0
        self.values: dict[bytes, bytes] = {}
        self.sets: dict[bytes, dict[bytes, int]] = {}
        self._expires: dict[bytes, float] = {}
        self._connections: list[_Connection] = []

    async def become(self, state: str) -> None:
        """Take a state; "wiped" is "killed", with all forgotten."""
        if state == "wiped":
            self.values.clear()
            self.sets.clear()
            state = "killed"
        before, self.state = self.state, state
        if state == "killed":
            self.loop.stop_listening(STORE_PORT)
            for connection in list(self._connections):
                connection.cut()
        elif before in ("killed", ""):
            await self.loop.create_server(lambda: _Connection(self), port=STORE_PORT)
        if state == "well" and before not in ("well", ""):
            self.well_since = self.loop.time()
        if state != "stopped":
            for connection in list(self._connections):
                connection.go_on()

    def run(self, name: bytes, given: list[bytes]) -> Answer:
        self.commands += 1
        for key in [key for key, at in self._expires.items() if at <= self.loop.time()]:
            del self._expires[key]
            self.values.pop(key, None)
            self.sets.pop(key, None)
        command: Callable[..., Answer] | None = getattr(self, "_" + name.decode().lower(), None)
        if command is None:
            return Exception("ERR unknown command")
        if self.state == "full" and name == b"SET":
            return _FULL
        return command(*given)

    def _getrange(self, key: bytes, _: bytes, last: bytes) -> Answer:
        return self.values.get(key, b"")[: int(last) + 1]

    def _set(self, key: bytes, value: bytes, how: bytes, ms: bytes = b"") -> Answer:
        if how == b"NX":
            self.values.setdefault(key, value)
            return None
        self.values[key] = value
        self._expires[key] = self.loop.time() + int(ms) / 1000
        return b"OK"

    def _unlink(self, *keys: bytes) -> Answer:
        return sum(held.pop(key, None) is not None for key in keys for held in (self.values, self.sets))

    def _read(self, value: bytes, key: bytes, after: bytes, count: bytes) -> Answer:
        places = sorted(self.sets.get(key, {}).items(), key=lambda item: item[1])
        found = [(member, place) for member, place in places if place > int(after)][: int(count)]
        last = b"%d" % found[-1][1] if found else b""
        lines = [self.values.get(value, b""), last, *(member for member, _ in found)]
        return b"\n".join(line if len(line) <= 4096 else b"" for line in lines)

    def _lasts(self, keys: tuple[bytes, ...], asked: tuple[bytes, ...]) -> Answer:
        lines = list[bytes]()
        for key, entry in zip(keys, asked, strict=False):
            entries = self.sets.get(key, {})
            left_ms = round((self._expires[key] - self.loop.time()) * 1000) if entries else -2
            lines += [max(entries, key=entries.__getitem__, default=b""), b"%d" % left_ms]
            lines += [b"1" * (entry in self.sets.get(other, {})) for other in keys[len(asked) :]]
        return b"\n".join(lines)

    def _eval(self, script: bytes, count: bytes, *given: bytes) -> Answer:
        if b"ZSCORE" in script:
            return self._lasts(given[: int(count)], given[int(count) :])
        if b"ZADD" not in script:
            return self._read(*given)
        if self.state == "full":
            return _FULL
        return self._add(*given)

    def _add(self, key: bytes, ms: bytes, most: bytes, old: bytes, *members: bytes) -> Answer:
        """Take the first `old` members out, add the rest, keep `most`."""
        entries = self.sets.get(key, {})
        place = max(max(entries.values(), default=0) + 1, round(self.loop.unix_time() * 1_000_000))
        for member in members[: int(old)]:
            entries.pop(member, None)
        for member in members[int(old) :]:
            entries.setdefault(member, place)
            place += 1
        for member in sorted(entries, key=entries.__getitem__)[: -int(most)]:
            del entries[member]
        if not entries:
            self.sets.pop(key, None)
            self._expires.pop(key, None)
        else:
            self.sets[key] = entries
            self._expires[key] = max(self._expires.get(key, 0.0), self.loop.time() + int(ms) / 1000)
        return b"OK"


class _Connection(asyncio.Protocol):
    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._unread = b""
        self._transport: Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, Transport)
        self._transport = transport
        self._redis._connections.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._redis._connections.remove(self)

    def data_received(self, data: bytes) -> None:
        self._unread += data
        if self._redis.state != "stopped":
            late_s = self._redis.delay_s + self._redis.command_s * data.count(b"\r\n*")
            self._redis.loop.call_later(late_s, self.go_on) if late_s else self.go_on()

    def cut(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def go_on(self) -> None:
        """Answer what has come."""
        while self._transport is not None and (command := self._command()) is not None:
            self._transport.write(_written(self._redis.run(command[0], command[1:])))

    def _command(self) -> list[bytes] | None:
        head, _, rest = self._unread.partition(b"\r\n")
        parts = list[bytes]()
        for _ in range(int(head[1:] or 0)):
            size, found, rest = rest.partition(b"\r\n")
            length = int(size[1:] or 0)
            if not found or len(rest) < length + 2:
                return None
            parts.append(rest[:length])
            rest = rest[length + 2 :]
        if not parts:
            return None
        self._unread = rest
        return parts


def _written(answer: Answer) -> bytes:
    match answer:
        case None:
            return b"$-1\r\n"
        case int():
            return b":%d\r\n" % answer
        case bytes():
            return b"$%d\r\n%b\r\n" % (len(answer), answer)
        case list():
            return b"*%d\r\n%b" % (len(answer), b"".join(map(_written, answer)))
        case Exception():
            return b"-%b\r\n" % str(answer).encode()
