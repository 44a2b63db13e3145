"""The entry over stdio: what happens to each line between a client and the server that it started.

    from the client   a filtered `tasks/list`                        answered               tasks/answer.py
                      `notifications/cancelled` of one               passed, and the answer ends
                      everything else                                passed
    from the server   a response to a request of the gateway's own   stays here             transport/stdio.py
                      the result of `initialize`                     edited, and passed     tasks/passing.py
                      everything else                                observed, and passed

In: the lines of both sides. Out: the same lines, with answers between them. Always: one process is one session; a line
that is no JSON, or too large to be read, passes as well (DESIGN 11.1, 11.3).
"""

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from time import time
from typing import TYPE_CHECKING, Any, Final

from gateway.config import Address, Config, StdioConfig
from gateway.errors import GatewayError, Internal, Overloaded
from gateway.mcp import jsonrpc, observe
from gateway.mcp.jsonrpc import Id, Message
from gateway.operate import logs
from gateway.tasks import answer
from gateway.tasks.crawler import OWN
from gateway.tasks.criteria import BadQuery
from gateway.tasks.cursor import Position
from gateway.tasks.passing import PLAIN, UNKNOWN, Heard, Pending, begin
from gateway.tasks.refresh import Refresher
from gateway.tasks.sessions import Servers, Sessions
from gateway.transport.buffers import Account, Buffers
from gateway.transport.child import Child, Streams
from gateway.transport.lines import Line, LineParser, Sight
from gateway.transport.pipes import PipeSink, PipeSource
from gateway.transport.stdio import (
    KEY,
    UNANSWERED_MAX,
    Fate,
    LargeLine,
    Outlet,
    Passed,
    Sink,
    Source,
    StdioCaller,
    StdioChannel,
    StdioReply,
    Unanswered,
)

if TYPE_CHECKING:
    from gateway.operate.journal import StdioJournal
    from gateway.operate.metrics import Gauge, Metrics, Spans

log = logging.getLogger("taskgate.request")

_SESSION: Final = b"stdio"  # one process is one session
_LINES_AT_ONCE: Final = 100  # before other tasks get their turn
_SWEEP_S: Final = 1.0
_SILENCE_S: Final = 0.5  # after the server's end: other processes may hold its output open


class StdioProxy:
    """Handles the lines of one client and one server."""

    def __init__(
        self,
        config: StdioConfig,
        client: Sink,
        server: Sink,
        sessions: Sessions,
        buffers: Buffers,
        counts: "Metrics | NoCounts",
        clock: Callable[[], float],
        journal: "StdioJournal | None" = None,
    ) -> None:
        self._limits = config.limits
        self._journal = journal
        self._buffers = buffers
        self._sessions = sessions
        self._counts = counts
        self._clock = clock
        self._to_client = Outlet(client, buffers)
        self._to_server = Outlet(server, buffers)
        self._channel = StdioChannel(self._to_server, OWN)
        self._answerer = answer.Answerer(sessions, Refresher(sessions, config.index, counts, clock), counts, clock)
        self._unanswered = Unanswered()
        self._answering: set[asyncio.Task[None]] = set()
        self._sight: Sight | None = None  # of the client's line that passes in pieces

    async def _lines(self, source: Source, outlet: Outlet) -> AsyncIterator[Line]:
        """The lines of a side, no faster than the other side takes them. The last one may have no end."""
        parser, account = LineParser(self._limits.inspected_body_bytes_max), Account(self._buffers)
        try:
            while piece := await source.read():
                for number, line in enumerate(parser.feed(piece), 1):
                    yield line
                    if number % _LINES_AT_ONCE == 0:
                        await asyncio.sleep(0)
                account.set(parser.pending_bytes)
                await outlet.sink.drain()
        finally:
            account.close()
        if (rest := parser.rest()) is not None:
            yield rest

    # ---- from the client ----

    async def serve_client(self, source: Source) -> None:
        """Carry all of the client's lines to the server, then let the answers under way end."""
        last: Line | None = None
        async for line in self._lines(source, self._to_server):
            if line.whole and not line.ended:
                last = line
            elif not await self._is_answered(line):
                self._to_server.pass_on(line)
        if self._to_server.is_inside:  # a large line: no request of the gateway's own can follow
            self._channel.end("the client has ended inside a line")
        if last is not None and not await self._is_answered(last):
            # Only now: requests of the gateway's own must not stand behind half a line.
            await self._answers()
            self._to_server.pass_on(last)
        await self._answers()

    async def _answers(self) -> None:
        """Wait for the answers under way, `drain_timeout` at most."""
        if self._answering:
            await asyncio.wait(self._answering, timeout=self._limits.drain_timeout)

    async def _is_answered(self, line: Line) -> bool:
        """Whether a line is answered here. What passes is noted."""
        message = jsonrpc.parse(line.raw) if line.whole else None
        if message is None:
            self._pass_unread(line)
            return False
        if message.is_request:
            self._sessions.request_ids.note(_SESSION, jsonrpc.id_of(message.id))
        if (position := self._answerer.position(KEY, message)) is not None:
            await self._begin(message, position, len(line.raw))
            return True
        if message.method == answer.CANCELLED:
            self._answerer.cancel(KEY, _SESSION, message)
            self._unanswered.cancel(jsonrpc.id_of(jsonrpc.member(message.params, "requestId")))
        if message.is_request:
            held = self._sessions.hold(KEY) if observe.is_observed(message) else None
            above = self._counts.spans.traceparent(message) if self._counts.spans is not None else ""
            self._unanswered.note(Passed(observe.essence(message), self._clock(), held, traceparent=above))
            self._counts.upstream_request(KEY.upstream, message.method or "")
        return False

    def _pass_unread(self, line: Line) -> None:
        """A line, or a piece of one, passes unread. It may be a request, whose id can be seen in most."""
        if line.whole and not jsonrpc.looks_like_messages(line.raw):
            return
        if self._sight is None:
            self._sight = Sight(line.raw)
        else:
            self._sight.feed(line.raw)
        if not line.ended:
            return
        request_id, self._sight = self._sight.request_id, None
        self._sessions.request_ids.note(_SESSION, request_id)
        if request_id is not None:
            self._unanswered.note_unread(request_id, self._clock())

    async def _begin(self, message: Message, position: Position | BadQuery, size_bytes: int) -> None:
        """Answer a query in the background. A client that takes no answers is not read beyond its next query."""
        await self._to_client.drain()
        work = asyncio.create_task(self._answer(message, position, size_bytes))
        self._answering.add(work)
        work.add_done_callback(self._answering.discard)
        await asyncio.sleep(0)  # a cancellation that follows finds it under way

    async def _answer(self, message: Message, position: Position | BadQuery, size_bytes: int) -> None:
        account, began_at = Account(self._buffers), self._clock()
        reply = StdioReply(self._to_client, account, size_bytes)
        code: int | None = None
        failed: GatewayError | None = None
        if self._counts.spans is not None:
            self._counts.spans.began(message)
        try:
            if len(self._answering) > self._limits.connections_max:
                raise Overloaded(f"{self._limits.connections_max} queries are under way (limits.connections_max)")
            account.hold(size_bytes)
            code = await self._answerer.answer(reply, StdioCaller(self._channel), message, position)
        except Exception as error:
            failed = error if isinstance(error, GatewayError) else Internal()
            if failed is not error:
                log.exception("a request could not be handled", extra={"method": "tasks/list"})
            reply.fail(failed.message(bytes(message.id)))
            code = failed.code
            error.__traceback__ = error.__context__ = None  # break the reference cycle: its frames hold the error
        finally:
            account.close()
            if self._journal is not None:
                self._journal.ended("answered", message, self._clock() - began_at, "", code, failed, None)

    # ---- from the server ----

    async def serve_server(self, source: Source) -> None:
        """Carry all of the server's lines to the client. Then fail the gateway's requests that are unanswered."""
        large: LargeLine | None = None
        last: Line | None = None
        async for line in self._lines(source, self._to_client):
            if not line.whole:
                large = self._piece(large or LargeLine(line.raw, self._channel, self._buffers), line)
            elif not self._stays(line):
                if line.ended:
                    self._to_client.pass_on(line)
                else:
                    last = line
        for piece in large.close() if large is not None else ():
            self._to_client.pass_on(piece)
        self._channel.end("the server has ended without an answer")
        await self._answers()
        if last is not None:
            self._to_client.pass_on(last)  # only now: the errors must not stand behind half a line

    def _piece(self, large: LargeLine, line: Line) -> LargeLine | None:
        """A large line goes on with this piece. Returns the line; None once it has ended."""
        for piece in large.feed(line):
            self._to_client.pass_on(piece)
        if not line.ended:
            return large
        if large.fate is Fate.PASSES:
            self._large_passed(large.id)
        return None

    def _stays(self, line: Line) -> bool:
        """Whether a line answers a request of the gateway's. What passes is observed."""
        message = jsonrpc.parse(line.raw)
        if message is None or not message.is_response:
            if message is None and (unread_id := Sight(line.raw).id) is not None:
                return self._is_unreadable(unread_id)
            self._hear(PLAIN.message(line.raw))
        elif self._channel.asked(message_id := jsonrpc.id_of(message.id)):
            self._channel.answer(message_id, message)
            return True
        else:
            passed = self._unanswered.take(message_id)
            heard = _pending(passed).message(line.raw)
            self._ended(passed, jsonrpc.error_code(message), heard.task_id)
            self._hear(heard)
            line.raw = heard.seen
        return False

    def _answered(self, message_id: Id | None) -> Pending:
        """What a response of that id answers, which is not read; it is answered now."""
        passed = None if message_id is None else self._unanswered.take(message_id)
        self._ended(passed, None, None)
        return _pending(passed)

    def _ended(self, passed: Passed | None, code: int | None, task_id: str | None) -> None:
        """A request of the client's was answered, by an error if there is a code."""
        if self._journal is not None and passed is not None:
            seconds = self._clock() - passed.at
            self._journal.ended("relayed", passed.request, seconds, passed.traceparent, code, None, task_id)

    def _is_unreadable(self, message_id: Id) -> bool:
        """A response that is no JSON ends the wait for it all the same. Returns whether it stays here."""
        if self._channel.asked(message_id):
            self._channel.answer(message_id, None)
            return True
        self._hear(self._answered(message_id).unread())
        return False

    def _hear(self, heard: Heard) -> None:
        if heard.not_advertised:
            log.warning("not advertised", extra={"upstream": KEY.upstream, "why": heard.not_advertised})
        self._sessions.hear(KEY, heard)

    @property
    def answering(self) -> int:
        """How many filtered lists are under way."""
        return len(self._answering)

    @property
    def waiting(self) -> int:
        """How many requests of the client have yet to be answered."""
        return len(self._unanswered) + len(self._answering)

    @property
    def out(self) -> int:
        """How many requests to the server have yet to be answered."""
        return len(self._unanswered) + len(self._channel)

    def _large_passed(self, message_id: Id | None) -> None:
        """A line too large to be read has passed. `message_id` is the id of the response in it, None if unknown."""
        if (pending := self._answered(message_id)) is not PLAIN:
            self._hear(pending.unread())


def _pending(passed: Passed | None) -> Pending:
    return UNKNOWN if passed is None else begin(passed.request, passed.at)


class NoCounts:
    """Nothing is counted: no listener would show it."""

    spans: "Spans | None" = None

    def _nothing(self, *_: object, **__: object) -> None:
        pass

    def _meanwhile(self, *_: object, **__: object) -> AbstractContextManager[None]:
        return nullcontext()

    upstream_request = crawl_page = crawl = query = _nothing
    plan = asking = _meanwhile


class Wrapped:
    """The gateway between two pairs of streams, until the server's process ends."""

    def __init__(
        self, streams: Streams, config: StdioConfig, counts: "Metrics | NoCounts", journal: "StdioJournal | None" = None
    ) -> None:
        loop = asyncio.get_running_loop()
        buffers = self._buffers = Buffers(config.limits.held_bytes_max)
        self._config = config
        self._drain_timeout = config.limits.drain_timeout
        self._sessions = Sessions(config.index, Servers(loop.time), loop.time)
        self._client, self._server = PipeSink(streams.to_client, buffers), PipeSink(streams.to_server, buffers)
        self._from_client, self._from_server = PipeSource(streams.from_client), PipeSource(streams.from_server)
        sinks = self._client, self._server
        self._proxy = StdioProxy(config, *sinks, self._sessions, buffers, counts, loop.time, journal)

    async def run(self, ended: "asyncio.Future[int]") -> int:
        """Serve until the server has ended and the client has all its lines. Returns how the server ended."""
        down = asyncio.create_task(self._down())
        works: set[asyncio.Future[Any]] = {ended, down}
        works |= {asyncio.create_task(work) for work in (self._up(), self._sweep(), *self._breaks())}
        while not ended.done():
            done, works = await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
            for work in done:
                work.result()  # raises: a fault in the gateway ends the gateway
        with suppress(TimeoutError):
            async with asyncio.timeout(self._drain_timeout):
                await self._rest(down)
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)
        return ended.result()

    def gauges(self) -> "dict[str, Gauge]":
        """The gauges: what is in use now, and its limits."""
        config, name = self._config, KEY.upstream
        return {
            **self._sessions.gauges(),
            "index_sessions_max": ("Limit of index_sessions.", config.index.sessions_max),
            "index_bytes_max": ("Limit of index_bytes.", config.index.memory_bytes_max),
            "connections": ("Clients.", 1),
            "queries_in_flight": ("Filtered tasks/list under way.", self._proxy.answering),
            "queries_in_flight_max": ("Limit of queries_in_flight.", config.limits.connections_max),
            "held_bytes": ("Bytes held for the client and the server.", self._buffers.held_bytes),
            "held_bytes_max": ("Limit of held_bytes.", config.limits.held_bytes_max),
            "upstream_up": ("1: the server runs.", {name: 1.0}),
            "requests_in_flight": ("Requests of the client that have not been answered.", {name: self._proxy.waiting}),
            "upstream_requests_in_flight": ("Requests to the server that have not ended.", {name: self._proxy.out}),
            "upstream_requests_max": ("Limit of upstream_requests_in_flight.", {name: float(UNANSWERED_MAX)}),
        }

    async def _up(self) -> None:
        await self._proxy.serve_client(self._from_client)
        await self._server.close()

    async def _down(self) -> None:
        await self._proxy.serve_server(self._from_server)
        await self._client.close()

    async def _rest(self, down: "asyncio.Task[None]") -> None:
        """Wait until the client has all the server's lines. Stop if others hold its output open, and are silent."""
        pieces = -1
        while not down.done() and (self._client.is_full or pieces != self._from_server.pieces):
            pieces = self._from_server.pieces
            await asyncio.wait({down}, timeout=_SILENCE_S)
        self._from_server.stop()
        await asyncio.wait({down})

    def _breaks(self) -> tuple[Coroutine[None, None, None], ...]:
        """If one side takes no more, stop reading the other: its writes then fail, as they would without a gateway."""

        async def carry(broken: asyncio.Event, source: PipeSource) -> None:
            await broken.wait()
            source.stop()

        return carry(self._client.broken, self._from_server), carry(self._server.broken, self._from_client)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            self._sessions.expire()


class NoListener(Exception):
    """The admin listener cannot have its address."""


def run(child: Child, config: StdioConfig, admin: Address | None) -> int:
    """Stand between the client and the server until the server ends. Returns how it ended. Raises NoListener."""
    logs.set_up(config.log)
    gc.set_threshold(300, 1_000_000, 1_000_000)  # as in app.run
    return asyncio.run(_serve(child, config, admin))


def _end_of(child: Child) -> "asyncio.Future[int]":
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()

    def told(status: int) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(ended.set_result, status)

    child.on_end(told)
    return ended


async def _serve(child: Child, config: StdioConfig, admin: Address | None) -> int:
    if config.traces is None:
        return await _stand_between(child, config, None, admin)
    from gateway.operate.traces import Tracing

    tracing = Tracing(config.traces.endpoint)
    try:
        return await _stand_between(child, config, tracing.metrics(), admin)
    finally:
        await tracing.close()


async def _stand_between(child: Child, config: StdioConfig, metrics: "Metrics | None", admin: Address | None) -> int:
    """Serve. What only an operator needs is imported here: that takes longer than all else together."""
    if admin is None and metrics is None and not log.isEnabledFor(logging.INFO):
        return await Wrapped(child.streams, config, NoCounts()).run(_end_of(child))
    from gateway.operate.journal import StdioJournal
    from gateway.operate.metrics import Metrics

    metrics = metrics or Metrics()
    metrics.serves([KEY.upstream])
    wrapped = Wrapped(child.streams, config, metrics, StdioJournal(metrics, config.log, KEY.upstream))
    ended = _end_of(child)
    return await (wrapped.run(ended) if admin is None else _show(wrapped, ended, child.name, metrics, admin))


async def _show(wrapped: Wrapped, ended: "asyncio.Future[int]", name: str, metrics: "Metrics", address: Address) -> int:
    """Serve, with an admin listener."""
    from gateway.operate import admin, page
    from gateway.transport.door import Door
    from gateway.transport.headers import Headers

    began_at = time()
    metrics.gauges(wrapped.gauges)
    door = Door(address, Config(upstreams=()))

    def admit(fields: Iterable[tuple[bytes, bytes]]) -> None:
        door.check(Headers(fields))

    def facts() -> page.Facts:
        server = {"name": KEY.upstream, "url": logs.printable(name), "state": "up", "since": began_at, "why": ""}
        return page.Facts(wrapped.gauges(), [server])

    try:
        runner = await admin.serve(address, metrics, lambda: True, admit, facts)
    except OSError as error:
        raise NoListener(admin.why_not("--admin", address, error)) from None
    try:
        return await wrapped.run(ended)
    finally:
        await runner.cleanup()
