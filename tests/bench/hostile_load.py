"""The clients of section `hostile`: one that attacks, one that pings meanwhile, hundreds that hold what they may.

    attack   one hostile stream, or `plain` bytes, on a connection of its own, until it is answered, cut, or too long
    ping     pings on one connection, one every 2 ms, from now on; they go to an upstream of their own
    pinged   ends that: how many were answered, and how long they took
    connect  connections that have asked for nothing but a ping
    fill     each of them holds as much as it may, of one kind; returns at once
    release  closes them: how many had been refused, or cut

A command (child.py) takes `LIMIT_S` and a little at most.
"""

import asyncio
import functools
from time import perf_counter
from typing import Any, Final
from urllib.parse import urlsplit

import httptools

from tests.bench import attacks, child
from tests.bench.attacks import PIECE_BYTES, pieces, post, request
from tests.bench.httpclient import request_body
from tests.parsed import Parsed

LIMIT_S: Final = 8.0
PERIOD_S: Final = 0.002
PATIENCE_S: Final = 60.0  # with a gateway that is held
_PING: Final = post(b"/ping/mcp", request_body("ping", {}))
_OCTETS: Final = b"Content-Type: application/octet-stream"


class Connection(Parsed):
    """One connection of a client's: it counts what comes, and whole responses."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = asyncio.Event()
        self.sent_bytes = self.received_bytes = self.answered = self.refused = 0
        self.is_cut = False

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_cut = True
        self.writable.set()
        self.changed.set()

    def data_received(self, data: bytes) -> None:
        self.received_bytes += len(data)
        try:
            super().data_received(data)
        except httptools.HttpParserError:
            self.is_cut = True
            self.changed.set()

    def on_message_complete(self) -> None:
        status = self.parser.get_status_code()
        self.answered += status >= 200
        self.refused += status >= 400
        self.changed.set()

    async def send(self, data: bytes, piece_bytes: int = PIECE_BYTES) -> None:
        """Send bytes, no faster than they are taken; a connection that is cut takes none."""
        for piece in pieces(data, piece_bytes):
            await self.writable.wait()
            if self.is_cut:
                return
            self.transport.write(piece)
            self.sent_bytes += len(piece)
            await asyncio.sleep(0)  # else the loop writes small pieces as one

    async def answers(self, count: int) -> None:
        """Return when that many responses have come, or the connection has ended."""
        while self.answered < count and not self.is_cut:
            self.changed.clear()
            await self.changed.wait()


async def _connect(url: str) -> Connection:
    parts = urlsplit(url)
    _, made = await asyncio.get_running_loop().create_connection(Connection, parts.hostname or "", parts.port or 80)
    return made


async def attack(command: dict[str, Any]) -> dict[str, Any]:
    """One attack, by its `number`; or `plain` bytes up or down."""
    number = command.get("number")
    answers, piece_bytes = 1, PIECE_BYTES
    if number is not None:
        data, answers = attacks.asked(number), attacks.ATTACKS[number].answers
        piece_bytes = attacks.ATTACKS[number].piece_bytes
    elif command["side"] == "up":
        length = b"Content-Length: %d" % command["plain"]
        data = request(b"PUT /sink", _OCTETS, length, body=b"x" * command["plain"])
    else:
        data = request(b"GET /plain?%d" % command["plain"])
    one = await _connect(command["url"])
    sending = asyncio.create_task(one.send(data, piece_bytes))
    how = "whole"
    try:
        async with asyncio.timeout(LIMIT_S):
            await one.answers(answers)
    except TimeoutError:
        how = "too long"
    if one.is_cut and one.answered < answers:
        how = "cut"
    unsent = one.transport.get_write_buffer_size() if not one.is_cut else 0
    sending.cancel()
    one.transport.abort()
    figures = {"sent": one.sent_bytes - unsent, "received": one.received_bytes, "answered": one.answered}
    return {**figures, "refused": one.refused, "how": how}


class Pinger:
    def __init__(self) -> None:
        self._pinging: asyncio.Task[None] | None = None
        self._ending = False
        self._took_s: list[float] = []

    async def begin(self, command: dict[str, Any]) -> dict[str, Any]:
        self._took_s, self._ending = [], False
        self._pinging = asyncio.create_task(self._ping(await _connect(command["url"])))
        return {}

    async def _ping(self, one: Connection) -> None:
        while not self._ending:
            began_at = perf_counter()  # the loop's own clock stands still within a turn
            one.transport.write(_PING)
            await one.answers(len(self._took_s) + 1)
            if one.is_cut or one.refused:
                break
            self._took_s.append(perf_counter() - began_at)
            await asyncio.sleep(max(0.0, began_at + PERIOD_S - perf_counter()))
        one.transport.close()

    async def end(self) -> dict[str, Any]:
        """Wait for the ping under way, and tell how long they took."""
        assert self._pinging is not None
        still_pings, self._ending = not self._pinging.done(), True
        await asyncio.wait_for(self._pinging, PATIENCE_S)
        if not still_pings:
            return {"failed": "a ping was refused, or cut"}
        ordered = sorted(self._took_s)
        return {"count": len(ordered), "median_ms": ordered[len(ordered) // 2] * 1e3, "slowest_ms": ordered[-1] * 1e3}


class Holders:
    def __init__(self) -> None:
        self._connections: list[Connection] = []
        self._sending: list[asyncio.Task[None]] = []

    async def connect(self, command: dict[str, Any]) -> dict[str, Any]:
        """Connections that have been answered a ping."""
        for _ in range(command["count"]):
            one = await _connect(command["url"])
            self._connections.append(one)
            one.transport.write(_PING)
        for one in self._connections:
            await asyncio.wait_for(one.answers(1), LIMIT_S)
        return {}

    async def fill(self, command: dict[str, Any]) -> dict[str, Any]:
        """Send what makes the gateway hold `bytes` for each; who is to read nothing does not."""
        data = _filling(command["kind"], command["bytes"])
        for one in self._connections:
            if command["kind"] == "unread":
                one.transport.pause_reading()
            self._sending.append(asyncio.create_task(one.send(data)))
        return {}

    async def release(self) -> dict[str, Any]:
        """Leave them all."""
        cut = sum(one.is_cut or one.refused > 0 for one in self._connections)
        for sending in self._sending:
            sending.cancel()
        for one in self._connections:
            one.transport.abort()
        self._connections, self._sending = [], []
        return {"refused": cut}


@functools.cache
def _filling(kind: str, size_bytes: int) -> bytes:
    """What a client sends so that the gateway has that much of it to hold, as a request or as its response."""
    json = b"Content-Type: application/json"
    match kind:
        case "body":
            start = b'{"jsonrpc":"2.0","id":1,"method":"tasks/get","x":"'
            return request(
                b"POST /quiet", json, b"Content-Length: %d" % size_bytes, body=start.ljust(size_bytes, b"x")
            )[:-1]
        case "pipelined":
            return request(b"GET /quiet") + request(b"GET /quiet") * (size_bytes // 40)
        case "head":
            return request(b"GET /quiet")[:-2] + b"a12:b\r\n" * (size_bytes // 8)
        case "fields":
            return request(b"GET /quiet")[:-2] + _fields(size_bytes)
        case "streamed":
            return request(b"GET /event?1", b"Accept: text/event-stream")[:-2] + _fields(size_bytes) + b"\r\n"
        case "unread":
            return request(b"GET /unread?%d" % size_bytes)
        case "event":
            return request(b"GET /event?%d" % size_bytes, b"Accept: text/event-stream")
        case _:
            return post(b"/result?%d" % size_bytes, attacks.INITIALIZE)


def _fields(size_bytes: int) -> bytes:
    return b"".join((b"x%d:" % number).ljust(size_bytes // 250 - 2, b"v") + b"\r\n" for number in range(250))


async def main() -> None:
    """Answer commands until stdin ends."""
    pinger, holders = Pinger(), Holders()

    async def answer(command: dict[str, Any]) -> dict[str, Any]:
        try:
            match command["do"]:
                case "make":
                    attacks.asked(command["number"])  # before anything is measured
                    return {}
                case "attack":
                    return await attack(command)
                case "ping":
                    return await pinger.begin(command)
                case "pinged":
                    return await pinger.end()
                case "connect":
                    return await holders.connect(command)
                case "fill":
                    return await holders.fill(command)
                case _:
                    return await holders.release()
        except (OSError, TimeoutError) as error:
            return {"failed": f"{type(error).__name__}: {error}"}

    child.without_gc()
    await child.serve({}, answer)


if __name__ == "__main__":
    child.run(main())
