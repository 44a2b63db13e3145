"""The load: a process that sends requests over kept-alive connections and times each answer.

    requests    closed loop: each connection sends its next request when the last was answered, for some seconds
                (after a warm-up that is not counted) or for a number of requests; latencies in microseconds
    transfer    one body of many bytes, down or up, timed from the request's first byte to the answer's last
    listen      event streams on which events come at known times: their delays in microseconds, and every event that
                did not come, came twice, out of order or on another stream
    open        event streams, held open once each has had its first event
    close       closes them

An answer that was not what it should be gives `failed`: a proxy that fails quickly must not look fast.
"""

import asyncio
import functools
import itertools
from array import array
from collections.abc import Callable
from time import monotonic_ns, perf_counter_ns
from typing import Any, Final
from urllib.parse import urlsplit

import httptools
import orjson

from tests.bench import child
from tests.bench.upstream import PIECE_BYTES
from tests.parsed import Parsed

WARM_UP_SECONDS: Final = 0.2
PATIENCE_SECONDS: Final = 120.0
_NS: Final = 1_000_000_000


class LoadFailed(Exception):
    """An answer was wrong, or did not come."""


class _Run:
    """What the connections of one `requests` command share. It is done when all of them have their last answer."""

    def __init__(self, connections: int, seconds: float | None, count: int | None) -> None:
        self.measure_from_ns = perf_counter_ns() + (0 if seconds is None else int(WARM_UP_SECONDS * _NS))
        self.ended_ns = 0
        self.until_ns = None if seconds is None else self.measure_from_ns + int(seconds * _NS)
        self.left = count - connections if count is not None else 0  # to be sent after each connection's first
        self.busy = connections
        self.answered = 0
        self.latencies_ns = array("Q")
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def goes_on(self, now_ns: int) -> bool:
        """Whether another request is to be sent."""
        if self.until_ns is not None:
            return now_ns < self.until_ns
        self.left -= 1
        return self.left >= 0

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
        if run.goes_on(now_ns):
            self.send()
        else:
            self.idle = True
            run.end(now_ns)


async def requests(command: dict[str, Any]) -> dict[str, Any]:
    """Send `requests` in turn over `connections` for `seconds`, or `count`. `each`: a list for each connection."""
    parts = urlsplit(command["url"])
    loop = asyncio.get_running_loop()
    run = _Run(command["connections"], command.get("seconds"), command.get("count"))
    if "each" in command:
        nexts = [itertools.cycle([text.encode() for text in texts]).__next__ for texts in command["each"]]
    else:
        nexts = [itertools.cycle([text.encode() for text in command["requests"]]).__next__] * command["connections"]
    made = [
        await loop.create_connection(functools.partial(_Requestor, run, following), parts.hostname, parts.port)
        for following in nexts
    ]
    for _, requestor in made:
        requestor.send()
    try:
        await asyncio.wait_for(run.done, (command.get("seconds") or 0) + PATIENCE_SECONDS)
    finally:
        for transport, requestor in made:
            requestor.idle = True
            transport.close()
    figures = _figures(run)
    if command.get("count") is not None:
        figures["latencies_us"] = [ns / 1000 for ns in run.latencies_ns]
    return figures


def _figures(run: _Run) -> dict[str, Any]:
    if not run.latencies_ns:
        raise LoadFailed("nothing was answered")
    seconds = (run.ended_ns - run.measure_from_ns) / _NS
    figures = {"answered": run.answered, "per_second": len(run.latencies_ns) / seconds}  # answered: the warm-up's too
    return {**figures, **_spread_us(run.latencies_ns)}


def _spread_us(times_ns: "array[int]") -> dict[str, float]:
    ordered = sorted(times_ns)
    return {
        "median_us": ordered[len(ordered) // 2] / 1000,
        "p99_us": ordered[len(ordered) * 99 // 100] / 1000,
        "max_us": ordered[-1] / 1000,
    }


class _Transfer(Parsed):
    """One request with a large body, or with a large answer."""

    def __init__(self) -> None:
        super().__init__()
        self.received_bytes = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_lost(self, exc: Exception | None) -> None:
        self.writable.set()
        if not self.done.done():
            self.done.set_exception(LoadFailed(f"cut after {self.received_bytes} bytes: {exc}"))

    def on_body(self, data: bytes) -> None:
        self.received_bytes += len(data)

    def on_message_complete(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    async def send(self, head: bytes, size: int) -> None:
        """Send a request whose body has `size` bytes, and wait for the answer's end."""
        piece = b" " * PIECE_BYTES
        self.transport.write(head)
        for at in range(0, size, PIECE_BYTES):
            await self.writable.wait()
            if self.done.done():
                break
            self.transport.write(piece if at + PIECE_BYTES <= size else piece[: size - at])
        await self.done
        if (status := self.parser.get_status_code()) != 200:
            raise LoadFailed(f"answered {status}")


async def transfer(command: dict[str, Any]) -> dict[str, Any]:
    """One transfer of `size` bytes: up with a POST of a `type`, else down with a GET."""
    parts, size = urlsplit(command["url"]), command["size"]
    kind = command.get("type")
    head = f"Host: {parts.netloc}\r\nAccept: */*\r\n"
    if kind is None:
        head, up = f"GET {parts.path}?{size} HTTP/1.1\r\n{head}\r\n", 0
    else:
        head, up = f"POST {parts.path} HTTP/1.1\r\n{head}Content-Type: {kind}\r\nContent-Length: {size}\r\n\r\n", size
    transport, protocol = await asyncio.get_running_loop().create_connection(_Transfer, parts.hostname, parts.port)
    began_ns = perf_counter_ns()
    try:
        await asyncio.wait_for(protocol.send(head.encode(), up), PATIENCE_SECONDS)
    finally:
        transport.abort()
    if kind is None and protocol.received_bytes < size:
        raise LoadFailed(f"{protocol.received_bytes} bytes came, not {size}")
    return {"seconds": (perf_counter_ns() - began_ns) / _NS, "received_bytes": protocol.received_bytes}


class _Listener(Parsed):
    """One event stream whose events are numbered and say when they were sent."""

    def __init__(self, stream: int, events: int, delays_ns: "array[int]") -> None:
        super().__init__()
        self._stream = stream
        self._events = events
        self._delays_ns = delays_ns
        self._came = 0
        self._now_ns = 0
        self._rest = b""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"was closed after {self._came} events: {exc}")

    def _fail(self, why: str) -> None:
        if not self.done.done():
            self.done.set_exception(LoadFailed(f"stream {self._stream} {why}"))

    def data_received(self, data: bytes) -> None:
        self._now_ns = monotonic_ns()
        super().data_received(data)

    def on_body(self, data: bytes) -> None:
        *events, self._rest = (self._rest + data).split(b"\n\n")
        for event in events:
            tick = orjson.loads(event.partition(b"data: ")[2])["params"]
            if (tick["progressToken"], tick["progress"]) != (self._stream, self._came):
                self._fail(f"got event {tick} and not its number {self._came}")
            self._came += 1
            self._delays_ns.append(self._now_ns - tick["sentNs"])

    def on_message_complete(self) -> None:
        if self._came != self._events or self._rest:
            self._fail(f"ended after {self._came} events and {self._rest!r}")
        elif not self.done.done():
            self.done.set_result(None)


async def listen(command: dict[str, Any]) -> dict[str, Any]:
    """Hold `count` streams open at once, each with `events`, one every `period_ms`, spread evenly over that time."""
    parts, loop = urlsplit(command["url"]), asyncio.get_running_loop()
    count, events, period_ms = command["count"], command["events"], command["period_ms"]
    delays_ns = array("q")
    made = [
        await loop.create_connection(
            functools.partial(_Listener, number, events, delays_ns), parts.hostname, parts.port
        )
        for number in range(count)
    ]
    try:
        for number, (transport, _) in enumerate(made):
            target = f"/ticks?{number},{events},{period_ms},{number * period_ms // count}"
            head = f"GET {target} HTTP/1.1\r\nHost: {parts.netloc}\r\nAccept: text/event-stream\r\n\r\n"
            transport.write(head.encode())
        done = asyncio.gather(*(listener.done for _, listener in made))
        await asyncio.wait_for(done, events * period_ms / 1000 + PATIENCE_SECONDS)
    finally:
        for transport, listener in made:
            listener.done.cancel()
            transport.abort()
    return {"events": len(delays_ns), **_spread_us(delays_ns)}


class _Stream(asyncio.Protocol):
    def __init__(self) -> None:
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._head = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.begun.done():
            self.begun.set_exception(LoadFailed(f"a stream was closed before its first event: {exc}"))

    def data_received(self, data: bytes) -> None:
        if not self.begun.done():
            self._head += data
            if b"\ndata: " in self._head and self._head.endswith(b"\n\n\r\n"):
                self.begun.set_result(None)


class Streams:
    def __init__(self) -> None:
        self._open: list[_Stream] = []

    async def open(self, command: dict[str, Any]) -> dict[str, Any]:
        """Open `count` more, and wait for the first event of each."""
        parts = urlsplit(command["url"])
        head = f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nAccept: text/event-stream\r\n\r\n"
        for _ in range(command["count"]):
            transport, stream = await asyncio.get_running_loop().create_connection(_Stream, parts.hostname, parts.port)
            transport.write(head.encode())
            self._open.append(stream)
            await asyncio.wait_for(stream.begun, PATIENCE_SECONDS)
        return {"open": sum(not s.transport.is_closing() for s in self._open)}

    async def close(self) -> dict[str, Any]:
        """Leave them all."""
        for stream in self._open:
            stream.transport.close()
        self._open.clear()
        return {"open": 0}


async def main() -> None:
    """Answer commands until stdin ends."""
    streams = Streams()

    async def answer(command: dict[str, Any]) -> dict[str, Any]:
        try:
            match command["do"]:
                case "requests":
                    return await requests(command)
                case "transfer":
                    return await transfer(command)
                case "listen":
                    return await listen(command)
                case "open":
                    return await streams.open(command)
                case _:
                    return await streams.close()
        except (LoadFailed, OSError, TimeoutError, httptools.HttpParserError) as error:
            return {"failed": f"{type(error).__name__}: {error}"}

    child.without_gc()
    await child.serve({}, answer)


if __name__ == "__main__":
    child.run(main())
