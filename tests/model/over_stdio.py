"""The model over stdio: the same histories, the same oracle and upstream, and the real `StdioProxy` between lines.

A session is a process: a proxy with sessions of its own, which ends with it. What only HTTP has is left out
(`as_stdio`): connections, statuses, streams, identities, clients that leave, and a reload.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from gateway.caller_identity import STDIO
from gateway.config import StdioConfig
from gateway.stdio.standard_streams import Outlet, PipeSource
from gateway.stdio.stdio_proxy import NoCounts, StdioProxy
from gateway.tasks.lifecycle_counts import Lives
from gateway.transport.memory_budget import Buffers
from tests.model import history as h
from tests.model.client import RESULT_PATIENCE_TICKS, Client, Exchange, formed, plain
from tests.model.play import World, config_of
from tests.model.truth import ServerSession, Violation
from tests.model.upstream import STALL_S, Connection, Request, Upstream, authorization, wrong
from tests.model.virtual import TICK_S, WIRE_S, VirtualLoop

_FAULTS: Final = (
    "error", "expired", "hang", "large", "illegible", "latin", "nan", "bom", "stall", "empty", "text id", "other id"
)  # fmt: skip


def _is_error(kind: str) -> bool:
    """Whether it is an error of JSON-RPC, with no status."""
    status, code = wrong(kind)
    return code is not None and not status


def as_stdio(history: h.History) -> h.History:
    only_http: dict[str, Any] = {"streams": False, "shared": False, "ids_collide": False, "listening": True}
    setting = replace(history.setting, **only_http, busy=0, lacks=0, balanced=False, renews=False, owns=False)
    events: list[h.Event] = []
    for event in history.events:
        match event:
            case h.Hangup() | h.Stream() | h.Flood() | h.Reload() | h.Renew() | h.Move() | h.Nobody():
                continue
            case h.Other() if event.method.isupper():
                continue
            case h.Fault() if event.kind not in _FAULTS and not _is_error(event.kind):
                continue
            case h.Create() | h.Get() | h.Page():
                event = replace(event, form="large" if event.form else "")
        match event:
            case h.Create() | h.Query():
                event = replace(event, leave=None)
        events.append(event)
    return h.History(setting, tuple(events))


class _Wire(PipeSource):
    """Lines on their way to or from the gateway. They arrive in order: timers of one instant do not."""

    def __init__(self, loop: VirtualLoop, take: Callable[[bytes], None] | None = None) -> None:
        self._loop = loop
        self._coming: deque[bytes] = deque()
        self._arrived: asyncio.Queue[bytes] = asyncio.Queue()
        self._take = take or self._arrived.put_nowait

    def send(self, data: bytes) -> None:
        self._coming.append(data)
        self._loop.call_later(WIRE_S, lambda: self._take(self._coming.popleft()))

    async def read(self) -> bytes:
        return await self._arrived.get()


class _Outlet(Outlet):
    """Lines on their way from the gateway."""

    def __init__(self, loop: VirtualLoop, take: Callable[[bytes], None], buffers: Buffers) -> None:
        super().__init__(-1, buffers, lambda: None)
        self._wire = _Wire(loop, take)

    def write(self, data: bytes) -> None:
        for line in data.splitlines(keepends=True):
            self._wire.send(line)

    async def close(self) -> None:
        pass

    def _run(self) -> None:
        """There is no descriptor, so no thread writes."""


class Process:
    """A server's process with the gateway in front, for one session of one client."""

    def __init__(self, setting: h.Setting, upstream: Upstream, client: "StdioClient", number: int) -> None:
        self._upstream = upstream
        self._client = client
        self._number = number
        self._large = b""
        self._behind: list[bytes] | None = None  # what waits for the end of a line that has stalled
        self.session: ServerSession | None = None
        loop = upstream.loop
        over_http = config_of(setting)
        config = StdioConfig(index=over_http.index, limits=over_http.limits)
        self._from_client, self._from_server = _Wire(loop), _Wire(loop)
        buffers = Buffers(config.limits.held_bytes_max)
        to_client, to_server = _Outlet(loop, self._at_client, buffers), _Outlet(loop, self._at_server, buffers)
        self._proxy = StdioProxy(config, to_client, to_server, NoCounts())
        self._proxy.sessions.lives = client.lives
        self._works = [
            loop.create_task(self._proxy.serve_client(self._from_client)),
            loop.create_task(self._proxy.serve_server(self._from_server)),
        ]

    def ask(self, line: bytes) -> None:
        self._from_client.send(line)

    def say(self, line: bytes) -> None:
        if self._behind is None:
            self._from_server.send(line)
        else:
            self._behind.append(line)

    async def stall(self, line: bytes) -> None:
        """The server writes half of a line, and the rest after a while."""
        if self._behind is not None:
            self.say(line)
            return
        began = self._upstream.moments.now()
        self._from_server.send(line[: len(line) // 2])
        self._behind = [line[len(line) // 2 :]]
        await asyncio.sleep(STALL_S)
        behind, self._behind = self._behind, None
        for each in behind:
            self.say(each)
        for own in self._upstream.own:  # what was answered meanwhile stood behind it
            if own.session is self.session and own.ended is not None and own.ended > began:
                own.ended = self._upstream.moments.now()

    def waits(self, message_id: int) -> bool:
        """Whether the gateway waits for the response to a request of its own."""
        return self._proxy._channel.waiting.get(message_id) is not None

    def end(self) -> None:
        """The process ends, and the host closes its streams."""
        self._from_server.send(b"")
        self._from_client.send(b"")
        self._client.process_ended(self)

    def _at_client(self, line: bytes) -> None:
        self._large += line
        if line.endswith(b"\n"):
            line, self._large = self._large, b""
            self._client.heard(self, line)

    def _at_server(self, line: bytes) -> None:
        headers = {"authorization": authorization(self._number)}
        if self.session is not None:
            headers["mcp-session-id"] = self.session.id
        connection = Line(self._upstream, self)
        work = self._upstream.serve(connection, Request("POST", headers, line))
        connection.work = self._upstream.loop.create_task(work)


class Line(Connection):
    """A request's way back to the gateway. `serve` takes it for a connection."""

    is_shared = True
    work: "asyncio.Task[None]"

    def __init__(self, upstream: Upstream, process: Process) -> None:
        super().__init__(upstream)
        self._process = process

    @property
    def lost(self) -> bool:
        return False

    @property
    def is_left(self) -> bool:
        return self.own is not None and not self._process.waits(self.own.id)

    def send(self, message: bytes, half: bool, event_id: str = "") -> None:
        self.event(message, half)

    async def stall(self, message: bytes) -> None:
        await self._process.stall(message + b"\n")

    def event(self, data: bytes, half: bool = False, event_id: str = "", is_last: bool = False) -> None:
        assert not half
        self._process.say(data + b"\n")

    def respond(self, status: int, body: bytes, half: bool = False) -> None:
        """Nothing: what a status says over HTTP, the end of the process does."""

    def cut(self) -> None:
        self._process.end()


class StdioClient(Client):
    _process: Process
    lives: Lives

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._waiting: dict[int, Exchange] = {}
        self._impatient: set[int] = set()  # ids of requests whose answers may come when nobody waits any more

    async def _write(
        self,
        session: ServerSession | None,
        exchange: Exchange,
        method: bytes,
        body: bytes,
        *,
        form: str = "",
        **_: object,
    ) -> None:
        if method == b"DELETE":
            assert session is not None
            self._upstream.end(session)
            _finish(exchange, 200)
            return
        if method == b"GET":
            return
        message, body = msgspec.json.decode(body), formed(body, form)[0]
        if session is None:
            self._process = Process(self._setting, self._upstream, self, self._number)
        elif session.ended is not None:
            _finish(exchange, 404)
            return
        self._process.ask(body + b"\n")
        if "id" in message:
            self._waiting[message["id"]] = exchange
            if message["method"] == "tasks/result":
                self._impatient.add(message["id"])
                self._loop.call_later(RESULT_PATIENCE_TICKS * TICK_S, self._give_up, message["id"])
            return
        _finish(exchange, 202)

    def heard(self, process: Process, line: bytes) -> None:
        if process is not self._process:
            return  # of a process that has ended
        if b'"jsonrpc"' not in line:
            return  # of a log
        message = msgspec.json.decode(plain(line))
        if "method" in message:
            Exchange(lambda told: self._deliver(self.session, None, told))._read(line.rstrip(b"\n"))
            return
        if not isinstance(message["id"], int):
            return  # nobody knows whose it is
        exchange = self._waiting.pop(message["id"], None)
        if exchange is None and message["id"] in self._impatient:
            return
        if exchange is None:
            raise Violation("unanswered", f"an answer that nobody waits for: {line[:200]!r}")
        if process.session is None and self._number in self._upstream.latest:
            process.session = self._upstream.latest[self._number]
            exchange.headers = {"mcp-session-id": process.session.id}
            self._upstream.streams[process.session].insert(0, Line(self._upstream, process))
        exchange.status = 200
        exchange._read(line.rstrip(b"\n"))
        _finish(exchange, 200)

    def process_ended(self, process: Process) -> None:
        """Whoever waits knows that nothing comes."""
        if process is self._process:
            waiting = list(self._waiting.values())
            self._waiting.clear()
            for exchange in waiting:
                _finish(exchange, 404)

    def hang_up(self) -> None:
        self._process.end()

    def _give_up(self, request_id: int) -> None:
        """Wait for an answer no longer. One to `tasks/result` may come yet."""
        if (exchange := self._waiting.pop(request_id, None)) is not None:
            _finish(exchange, 200)


def _finish(exchange: Exchange, status: int) -> None:
    exchange.status, exchange.complete = status, True
    if not exchange.done.done():
        exchange.done.set_result(None)


class StdioWorld(World):
    client = StdioClient

    @classmethod
    def drawn(cls, seed: int) -> h.History:
        return as_stdio(super().drawn(seed))

    @classmethod
    def can_play(cls, history: h.History) -> bool:
        return as_stdio(history) == history

    async def start(self) -> None:
        """Each client starts its own process. All have one count of tasks, whose ids are unlike."""
        self._lives = Lives(self._loop.time, self._loop.unix_time)
        self._lives.keep([STDIO.server])
        self._upstream.finds_by_exchange = False
        for client in self._clients:
            assert isinstance(client, StdioClient)
            client.lives = self._lives

    async def _happen(self, event: h.Event) -> None:
        if not isinstance(event, h.Log):
            return await super()._happen(event)
        client = self._clients[event.s]
        assert isinstance(client, StdioClient)
        return client._process.say(h.LINES[event.line] + b"\n")

    async def stop(self) -> None:
        """Nothing: each has ended with its client."""
