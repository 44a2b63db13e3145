"""Counts what a gateway holds, by Python's and Linux's own counts. After an exchange nothing of it may be left."""

import asyncio
import gc
import logging
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gateway.app import App
from gateway.query import list_request
from gateway.refresh import query_answer
from tests.bench.proc import rss_bytes
from tests.launch import Gateway, Gateways, app_before
from tests.relay.messages import Json
from tests.soak.upstream import Upstream

# Hardly more places than clients, so that those that are not given back are missed; a list is never fresh, so that
# every query asks.
SETTINGS: Final[Json] = {
    "upstream": {"requests_max": 70, "idle_timeout": "300ms", "response_timeout": "20s"},
    "index": {"max_age": "0s", "find_again": "session"},  # ids that are found by credentials outlive sessions (7.12)
    "log": {"level": "info"},
}
BEGIN_S: Final = 0.2
SEEN_S: Final = 0.005  # until the gateway sees that a client has closed, for which it waits
_STEPS: Final = 1000
_OURS: Final = "gateway."
# Kept when a session's index goes: what `initialize` said and of whom; what requests were like, by upstream; hashes of
# the callers of 200 sessions (DESIGN 7.11).
_STAYS: Final = (
    *("gateway.mcp.capabilities.Server", "gateway.caller_identity.Key", "gateway.upstream.caller_identity_drift._Seen"),
    *("gateway.operate.recent_rates._Sample", "gateway.operate.recent_failures.Failures"),
    "gateway.operate.recent_failures.Reason",
)


@dataclass(frozen=True)
class Census:
    """Counts: open descriptors, objects by class, bytes."""

    descriptors: int
    objects: dict[str, int]
    memory_bytes: int

    def check(self, before: "Census", growth_bytes_max: int) -> None:
        """Raises AssertionError if more is held than before. Memory may grow by `growth_bytes_max`."""
        more = {k: (before.objects.get(k, 0), n) for k, n in self.objects.items() if n != before.objects.get(k, 0)}
        assert not more, f"objects before and after: {more}"
        assert self.descriptors == before.descriptors, f"descriptors: {before.descriptors}, then {self.descriptors}"
        growth_bytes = self.memory_bytes - before.memory_bytes
        assert growth_bytes <= growth_bytes_max, f"memory has grown by {growth_bytes} bytes"


def _descriptors(process: Path) -> int:
    return len(list((process / "fd").iterdir()))


class InProcess:
    """The App on the running loop."""

    def __init__(self, app: App, port: int, upstream: Upstream) -> None:
        self.port = port
        self._app = app
        self._upstream = upstream
        self._tasks: set[asyncio.Task[Any]] = set()
        self.unhandled: list[str] = []  # what nobody caught

    def note_tasks(self) -> None:
        """The tasks that run now are those that may."""
        self._tasks = asyncio.all_tasks()

    async def left(self) -> str:
        if self.unhandled:
            return f"unhandled: {self.unhandled}"
        tasks = asyncio.all_tasks() - self._tasks - {asyncio.current_task()}
        if tasks:
            return f"tasks: {tasks}"
        clients, pools = self._app._listener.connections, self._app._pools.of.values()
        active, slots = [p.active for p in pools], [p.context.slots.taken for p in pools]
        left = clients or any(active) or any(slots)
        return f"clients {clients}, exchanges {active}, slots {slots}" if left else ""

    @staticmethod
    def objects() -> dict[str, int]:
        """How many objects there are of each class of the gateway's."""
        gc.collect()
        kinds = Counter(f"{type(one).__module__}.{type(one).__qualname__}" for one in gc.get_objects())
        return {k: n for k, n in kinds.items() if k.startswith(_OURS) and k not in _STAYS}

    async def count(self) -> Census:
        """What is held once the idle connections to the upstream are closed."""
        await self._upstream.deserted()
        recent = self._app.metrics.recent
        for rows in (recent.requests, recent.failures, recent.queries):
            rows.clear()  # a fixed number, which the rounds fill
        for heads in (self._app._proxy.heads, self._app._pools.heads) * 10:
            heads.sweep(heads._next_turn_at)  # those that are remembered are bounded too
        list_request.small_list.cache_clear()  # and these
        query_answer.small_filter.cache_clear()
        gc.collect()
        for _ in range(_STEPS):  # indexes are freed bit by bit
            await asyncio.sleep(0)
        objects = self.objects()
        memory_bytes = 0
        if tracemalloc.is_tracing():
            ours = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/gateway/*")])
            memory_bytes = sum(s.size for s in ours.statistics("filename"))
        return Census(_descriptors(Path("/proc/self")), objects, memory_bytes)


class _Errors(logging.Handler):
    def __init__(self, kept: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._kept = kept

    def emit(self, record: logging.LogRecord) -> None:
        self._kept.append(f"{record.getMessage()} {record.exc_info}")


@asynccontextmanager
async def in_process(upstream: Upstream, changed: Json = SETTINGS) -> AsyncIterator[InProcess]:
    async with app_before(upstream.port, changed) as gateway:
        assert gateway.app is not None
        gate = InProcess(gateway.app, gateway.port, upstream)
        gate.note_tasks()
        asyncio.get_running_loop().set_exception_handler(lambda _, context: gate.unhandled.append(str(context)))
        logged = _Errors(gate.unhandled)
        logging.getLogger().addHandler(logged)
        of_states = logging.getLogger("taskgate.upstream")
        of_states.setLevel(logging.ERROR)  # pytest would keep a line for each time that the upstream goes or comes back
        try:
            yield gate
        finally:
            of_states.setLevel(logging.NOTSET)
            logging.getLogger().removeHandler(logged)
            tracemalloc.stop()


class Process:
    def __init__(self, gateway: Gateway, upstream: Upstream) -> None:
        self.port = gateway.port
        self._gateway = gateway
        self._upstream = upstream
        self._proc = Path("/proc", str(gateway.running.popen.pid))
        self._idle = 0

    @property
    def log(self) -> str:
        return self._gateway.log

    async def begin(self) -> None:
        """Note the descriptors that may be open: those of now, when the readiness check has left."""
        await asyncio.sleep(BEGIN_S)
        self._idle = _descriptors(self._proc)

    async def left(self) -> str:
        await self._turn()
        more = _descriptors(self._proc) - self._idle - len(self._upstream.lines)
        return f"{more} descriptors more than the connections to the upstream" if more else ""

    async def _turn(self) -> None:
        """Return when the gateway has taken every earlier connection, even if its client has gone."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: elsewhere.example\r\nConnection: close\r\n\r\n")
        assert b" 403 " in await reader.read()
        writer.close()
        await writer.wait_closed()
        await asyncio.sleep(SEEN_S)

    async def count(self) -> Census:
        """What is held once the idle connections to the upstream are closed."""
        await self._upstream.deserted()
        samples = await self._gateway.metrics()
        await asyncio.sleep(BEGIN_S)  # until that connection is closed too
        objects = {n: int(samples[f"taskgate_{n}", ()]) for n in ("connections", "index_sessions", "index_bytes")}
        return Census(_descriptors(self._proc), objects, rss_bytes(self._gateway.running.popen.pid))


@asynccontextmanager
async def process(gateways: Gateways, upstream: Upstream, changed: Json = SETTINGS) -> AsyncIterator[Process]:
    with gateways.process(upstream.port, **changed) as gateway:
        gate = Process(gateway, upstream)
        await gate.begin()
        yield gate
