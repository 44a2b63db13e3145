"""The load: a process that sends requests, attacks, pings and holds, as a section says, and times what it gets.

    requests    closed loop over kept-alive connections: each sends its next request when the last was answered, for
                some seconds, after a warm-up that is not counted; the median latency in microseconds
    one         one request on a connection of its own, until it is answered, cut, or too long: an attack, by its
                `number`, or a body of `size` bytes, down, or up as a `type`
    ping        pings on one connection, one every 2 ms, from now on
    pinged      ends that: how many were answered, and how long they took
    hold        more connections, held open once each has had a part of its answer, to a ping or as an event stream
    fill        each of them holds as much as it may, of one kind; returns at once
    release     closes them: how many had been refused, or cut

An answer that was not what it should be gives `failed`: a proxy that fails quickly must not look fast.
"""

import asyncio
import functools
import itertools
from array import array
from collections.abc import Callable, Iterator
from time import perf_counter, perf_counter_ns
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import httptools

from tests.bench import attacks, child, traffic
from tests.bench.attacks import PIECE_BYTES, post
from tests.bench.httpclient import Connection, request_body
from tests.parsed import Parsed
from tests.relay.wire import request

WARM_UP_SECONDS: Final = 0.2
PATIENCE_SECONDS: Final = 120.0
LIMIT_S: Final = 8.0  # of an attack
PERIOD_S: Final = 0.002
_NS: Final = 1_000_000_000
_NEW: Final = traffic.NEW.encode()
_NEWS: Final = itertools.count(1)
_PING: Final = post(b"/ping/mcp", request_body("ping", {}))
_STREAM: Final = request(fields=[b"Accept: text/event-stream"])
Protocol = TypeVar("Protocol", bound=Parsed)


class LoadFailed(Exception):
    """An answer was wrong, or did not come."""


async def _connect(url: str, made: Callable[[], Protocol]) -> Protocol:
    parts = urlsplit(url)
    _, one = await asyncio.get_running_loop().create_connection(made, parts.hostname or "", parts.port or 80)
    return one


class _Run:
    """What the connections of one `requests` command share. It is done when all of them have their last answer."""

    def __init__(self, connections: int, seconds: float) -> None:
        self.measure_from_ns = perf_counter_ns() + int(WARM_UP_SECONDS * _NS)
        self.ended_ns = 0
        self.until_ns = self.measure_from_ns + int(seconds * _NS)
        self.busy = connections
        self.answered = 0
        self.latencies_ns = array("Q")
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end(self, now_ns: int) -> None:
        """A connection has its last answer."""
        self.busy -= 1
        if not self.busy and not self.done.done():
            self.ended_ns = now_ns
            self.done.set_result(None)

    def fail(self, why: str) -> None:
        if not self.done.done():
            self.done.set_exception(LoadFailed(why))


class _Requestor(Parsed):
    """One connection of a run."""

    def __init__(self, run: _Run, next_request: Callable[[], bytes]) -> None:
        super().__init__()
        self._run = run
        self._next_request = next_request
        self._sent_ns = 0
        self.idle = False

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.idle:
            self._run.fail(f"a connection was closed before the answer: {exc}")

    def send(self) -> None:
        self._sent_ns = perf_counter_ns()
        self.transport.write(self._next_request())

    def on_message_complete(self) -> None:
        run, now_ns = self._run, perf_counter_ns()
        if (status := self.parser.get_status_code()) not in (200, 202):
            run.fail(f"answered {status}")
        run.answered += 1
        if self._sent_ns >= run.measure_from_ns:
            run.latencies_ns.append(now_ns - self._sent_ns)
        if now_ns < run.until_ns:
            self.send()
        else:
            self.idle = True
            run.end(now_ns)


def _cycle(texts: list[str]) -> Iterator[bytes]:
    """The requests again and again, each time with other new ids."""
    for text in itertools.cycle([text.encode() for text in texts]):
        yield text.replace(_NEW, b"%08x" % next(_NEWS)) if _NEW in text else text


async def requests(command: dict[str, Any]) -> dict[str, Any]:
    """Send requests in turn for `seconds`. `each`: a list of them for each connection."""
    run = _Run(len(command["each"]), command["seconds"])
    nexts = [_cycle(texts).__next__ for texts in command["each"]]
    made = [await _connect(command["url"], functools.partial(_Requestor, run, following)) for following in nexts]
    for requestor in made:
        requestor.send()
    try:
        await asyncio.wait_for(run.done, command["seconds"] + PATIENCE_SECONDS)
    finally:
        for requestor in made:
            requestor.idle = True
            requestor.transport.close()
    if not run.latencies_ns:
        raise LoadFailed("nothing was answered")
    seconds = (run.ended_ns - run.measure_from_ns) / _NS
    figures = {"answered": run.answered, "per_second": len(run.latencies_ns) / seconds}  # answered: the warm-up's too
    return {**figures, "median_us": sorted(run.latencies_ns)[len(run.latencies_ns) // 2] / 1000}


async def one(command: dict[str, Any]) -> dict[str, Any]:
    """An attack, or a body; what was sent and received of it, and how it ended."""
    size, answers, piece_bytes = command.get("size", 0), 1, PIECE_BYTES
    if "number" in command:
        hostile = attacks.ATTACKS[command["number"]]
        data, answers, piece_bytes = attacks.asked(command["number"]), hostile.answers, hostile.piece_bytes
    elif "type" in command:
        data = request(b"POST", b"/sink", [f"Content-Type: {command['type']}".encode()], b" " * size)
    else:
        data = request(target=f"{command['path']}?{size}".encode())
    made, how = await _connect(command["url"], Connection), "whole"
    sending = asyncio.create_task(made.send(data, piece_bytes))
    try:
        async with asyncio.timeout(LIMIT_S if "number" in command else PATIENCE_SECONDS):
            await made.answers(answers)
    except TimeoutError:
        how = "too long"
    if made.is_cut and made.answered < answers:
        how = "cut"
    unsent = made.transport.get_write_buffer_size() if not made.is_cut else 0
    sending.cancel()
    made.transport.abort()
    figures = {"sent": made.sent_bytes - unsent, "received": made.received_bytes}
    return {**figures, "refused": made.refused, "how": how}


class Pinger:
    def __init__(self) -> None:
        self._pinging: asyncio.Task[None] | None = None
        self._ending = False
        self._took_s: list[float] = []

    async def begin(self, command: dict[str, Any]) -> dict[str, Any]:
        self._took_s, self._ending = [], False
        self._pinging = asyncio.create_task(self._ping(await _connect(command["url"], Connection)))
        return {}

    async def _ping(self, one: Connection) -> None:
        while not self._ending:
            began_at = perf_counter()  # the loop's own clock stands still within a turn
            one.transport.write(_PING)
            await one.answers(len(self._took_s) + 1)
            if one.is_cut or one.refused:
                raise LoadFailed("a ping was refused, or cut")
            self._took_s.append(perf_counter() - began_at)
            await asyncio.sleep(max(0.0, began_at + PERIOD_S - perf_counter()))
        one.transport.close()

    async def end(self, _: dict[str, Any]) -> dict[str, Any]:
        """Wait for the ping under way, and tell how long they took."""
        assert self._pinging is not None
        self._ending = True
        await asyncio.wait_for(self._pinging, PATIENCE_SECONDS)
        ordered = sorted(self._took_s)
        return {"count": len(ordered), "median_ms": ordered[len(ordered) // 2] * 1e3, "slowest_ms": ordered[-1] * 1e3}


class Holders:
    def __init__(self) -> None:
        self._connections: list[Connection] = []
        self._sending: list[asyncio.Task[None]] = []

    async def hold(self, command: dict[str, Any]) -> dict[str, Any]:
        """More connections that have been answered a ping, or have had the first event of a stream."""
        for _ in range(command["count"]):
            one = await _connect(command["url"], Connection)
            one.transport.write(_STREAM if command["streams"] else _PING)
            self._connections.append(one)
            await asyncio.wait_for(one.begins(), LIMIT_S)
        return {"open": sum(not one.is_cut for one in self._connections)}

    async def fill(self, command: dict[str, Any]) -> dict[str, Any]:
        """Send what makes the gateway hold `bytes` for each; who is to read nothing does not."""
        data = _filling(command["kind"], command["bytes"])
        for one in self._connections:
            if command["kind"] == "unread":
                one.transport.pause_reading()
            self._sending.append(asyncio.create_task(one.send(data)))
        return {}

    async def release(self, _: dict[str, Any]) -> dict[str, Any]:
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
    quiet, events = request(target=b"/quiet"), [b"Accept: text/event-stream"]
    fields = b"".join((b"x%d:" % number).ljust(size_bytes // 250 - 2, b"v") + b"\r\n" for number in range(250))
    match kind:
        case "body":
            start = b'{"jsonrpc":"2.0","id":1,"method":"tasks/get","x":"'
            return post(b"/quiet", start.ljust(size_bytes, b"x"))[:-1]
        case "pipelined":
            return quiet * (1 + size_bytes // 40)
        case "head":
            return quiet[:-2] + b"a12:b\r\n" * (size_bytes // 8)
        case "fields":
            return quiet[:-2] + fields
        case "streamed":
            return request(target=b"/event?1", fields=events)[:-2] + fields + b"\r\n"
        case "unread":
            return request(target=b"/bytes?%d" % size_bytes)
        case "event":
            return request(target=b"/event?%d" % size_bytes, fields=events)
    return post(b"/result?%d" % size_bytes, attacks.INITIALIZE)


async def main() -> None:
    """Answer commands until stdin ends."""
    pinger, holders = Pinger(), Holders()

    async def make(command: dict[str, Any]) -> dict[str, Any]:
        attacks.asked(command["number"])  # before anything is measured
        return {}

    does = {"requests": requests, "one": one, "make": make, "ping": pinger.begin, "pinged": pinger.end}
    does |= {"hold": holders.hold, "fill": holders.fill, "release": holders.release}

    async def answer(command: dict[str, Any]) -> dict[str, Any]:
        try:
            return await does[command["do"]](command)
        except (LoadFailed, OSError, TimeoutError, httptools.HttpParserError) as error:
            return {"failed": f"{type(error).__name__}: {error}"}

    child.without_gc()
    await child.serve({}, answer)


if __name__ == "__main__":
    child.run(main())
