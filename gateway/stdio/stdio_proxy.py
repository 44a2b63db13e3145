"""`taskgate stdio`: its process, and what happens to each line between a client and the server that it started.

    from the client   a filtered `tasks/list`                        answered               refresh/query_answer.py
                      everything else                                passed
    from the server   a response to a request of the gateway's own   stays here             stdio/line_channel.py
                      the result of `initialize`                     edited, and passed     tasks/exchange_observer.py
                      everything else                                observed, and passed

One process is one session. A line that is no JSON, or too large to be read, passes as well (DESIGN 11.1, 11.3).
"""

import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, closing, nullcontext, suppress
from time import time
from typing import TYPE_CHECKING, Any, Final, Self

from gateway.caller_identity import STDIO, Caller
from gateway.config import Address, Config, StdioConfig
from gateway.errors import GatewayError, Internal, Overloaded, printable, without_frames
from gateway.mcp import jsonrpc
from gateway.mcp.client_message import ClientMessage
from gateway.operate import log_format
from gateway.query import list_request
from gateway.query.criteria import BadQuery
from gateway.query.cursor import Position
from gateway.query.list_request import ListRequest
from gateway.refresh.query_answer import PASSES, Answerer, Passes
from gateway.stdio.child_process import Child, Streams
from gateway.stdio.line_channel import UNANSWERED_MAX, Passed, StdioChannel, StdioReply, Unanswered
from gateway.stdio.line_splitter import SIGHT_BYTES, Line, LineParser, Sight
from gateway.stdio.standard_streams import Outlet, PipeSource
from gateway.tasks.exchange_observer import PLAIN, UNMATCHED, Intercepted, Pending, begin
from gateway.tasks.session_indexes import Sessions
from gateway.transport.memory_budget import Buffers, Reservation

if TYPE_CHECKING:
    from gateway.operate.access_log import AccessLog
    from gateway.operate.metrics import Gauge

log = logging.getLogger("taskgate.request")

_ASKS: Final = Caller(STDIO)
_UNREAD: Final = ClientMessage()  # a request of which nothing but the id is known
_OUT_HELP: Final = "Requests to the server that have not ended."
_LINES_AT_ONCE: Final = 100  # before other tasks get their turn
_SWEEP_S: Final = 1.0
_MEANWHILE: Final = nullcontext()
_SILENCE_S: Final = 0.5  # after the server's end: other processes may hold its output open


class StdioProxy:
    def __init__(self, config: StdioConfig, client: Outlet, server: Outlet, to: "AccessLog | NoCounts") -> None:
        self._clock = asyncio.get_running_loop().time
        self._limits = config.limits
        self._buffers = client.buffers
        self._access_log = to
        self._counts = to.metrics
        self._to_client = client
        self._to_server = server
        self.sessions = Sessions(config.index, self._clock)
        self.sessions.lives = self._counts.lives
        self._unanswered = Unanswered()
        self._channel = StdioChannel(server, self._unanswered)
        self._answerer = Answerer(self.sessions, config.index, self._counts)
        self._answering: set[asyncio.Task[None]] = set()

    async def _carry(
        self,
        source: PipeSource,
        to: Outlet,
        take: Callable[[Line], Awaitable[bool]],
        holds: Callable[[Sight], bool] = lambda _: False,
    ) -> Line | None:
        """Carry the lines of a side to the other one, but for those that `take` keeps, no faster than it takes them.

        Where there is room, a large line that `holds` names by its beginning is taken in one piece. Returns the last
        line, which was not carried, if it has no end: the gateway's own must not stand behind it.
        """
        with closing(Reservation(self._buffers)) as reservation:
            parser = LineParser(
                self._limits.inspected_body_bytes_max,
                lambda pending: holds(Sight(bytes(pending[:SIGHT_BYTES]))) and reservation.has_room(len(pending)),
            )
            while piece := await source.read():
                for number, line in enumerate(parser.feed(piece), 1):
                    if not await take(line):
                        to.pass_on(line)
                    if number % _LINES_AT_ONCE == 0:
                        await asyncio.sleep(0)
                reservation.set(len(parser.pending))
                await to.drain()
        return parser.rest()

    async def serve_client(self, source: PipeSource) -> None:
        """Carry all of the client's lines to the server, let the answers under way end, and close its input."""
        last = await self._carry(source, self._to_server, self._is_answered)
        if self._to_server.is_inside:  # a large line: no request of the gateway's own can follow
            self._channel.end("the client has ended inside a line")
        if last is not None and not await self._is_answered(last):
            await self._answers()
            self._to_server.pass_on(last)
        await self._answers()
        await self._to_server.close()

    async def _answers(self) -> None:
        if self._answering:
            await asyncio.wait(self._answering, timeout=self._limits.drain_timeout)

    async def _is_answered(self, line: Line) -> bool:
        """Whether a line is answered here. What passes is noted."""
        message = await list_request.read(line.raw) if line.sight is None else None
        if message is None:
            self._pass_unread(line)
            return False
        position = self._answerer.position(_ASKS, message) if isinstance(message, ListRequest) else PASSES
        if isinstance(message, ListRequest) and not isinstance(position, Passes):
            await self._to_client.drain_own()  # a client that takes no answers is not read beyond its next query
            is_full = len(self._answering) >= self._limits.connections_max
            work = asyncio.create_task(self._answer(message, position, len(line.raw), is_full))
            self._answering.add(work)
            work.add_done_callback(self._answering.discard)
            return True
        if message.method == "notifications/cancelled":
            self._unanswered.cancel(jsonrpc.id_of(message.cancels))
        if message.is_request:
            misspelt = position.misspelt if isinstance(position, Passes) else ()
            passed = Passed(message.passed(), self.sessions.now(), misspelt=misspelt)
            self._unanswered.note(jsonrpc.id_of(message.id), passed)
            self._counts.upstream_request(STDIO.upstream, message.method or "")
        return False

    def _pass_unread(self, line: Line) -> None:
        """A line, or a piece of one, passes unread. It may be a request, whose id can be seen in most."""
        sight = line.sight or Sight(line.raw)
        if line.ended and sight.may_be_message and (request_id := sight.request_id) is not None:
            self._unanswered.note(request_id, Passed(_UNREAD, self.sessions.now(), is_clear=False))

    async def _answer(
        self, message: ListRequest, position: Position | BadQuery, size_bytes: int, is_full: bool
    ) -> None:
        reservation, began_at = Reservation(self._buffers), self._clock()
        reply = StdioReply(self._channel, self._to_client, reservation, size_bytes)
        failed: GatewayError | None = None
        self._access_log.began(message, None)
        try:
            if is_full:
                raise Overloaded(f"{self._limits.connections_max} queries are under way (limits.connections_max)")
            reservation.hold(size_bytes)
            await self._answerer.answer(reply, _ASKS, message, position)
        except Exception as error:
            failed = error if isinstance(error, GatewayError) else Internal()
            if failed is not error:
                log.exception("a request could not be handled", extra={"method": "tasks/list"})
            reply.send(failed.message(message.id), failed.code)
            without_frames(error)
        finally:
            reservation.close()
            seconds, code = self._clock() - began_at, reply.error_code
            self._access_log.ended("answered", message, seconds, failed, code=code)

    async def serve_server(self, source: PipeSource) -> None:
        """Carry all of the server's lines to the client. Then fail the gateway's requests that are unanswered."""
        last = await self._carry(source, self._to_client, self._stays, self._channel.may_be_answered_by)
        if last is not None and await self._stays(last):
            last = None
        self._channel.end("the server has ended without an answer")
        await self._answers()
        if last is not None:
            self._to_client.pass_on(last)
        await self._to_client.close()

    async def _stays(self, line: Line) -> bool:
        """Whether a line is not to be passed on: it answers a request of the gateway's, or is seen to here."""
        if line.sight is not None:
            return self._large_stays(line, line.sight)
        message, message_id = jsonrpc.parse(line.raw), None
        if message is None:
            if not jsonrpc.may_be_messages(line.raw):
                return False  # a line of a log
            message_id = Sight(line.raw).id
        elif message.is_response or (message.method is None and bytes(message.error)):
            message_id = jsonrpc.id_of(message.id) or b"null"
        if message_id is None:
            self._take_in((UNMATCHED if message is None else PLAIN).read(line.raw, message))
        elif self._channel.asked(message_id):
            self._channel.answer(message_id, message)
            return True
        elif message is None:
            self._take_in(self._answered(message_id).unread())  # no JSON, but it ends the wait all the same
        elif self._channel.misplaced(message_id, message):
            return True
        else:
            passed = self._unanswered.take(message_id)
            pending = _pending(passed)
            intercepted = pending.read(line.raw, message)
            self._ended(passed, jsonrpc.code_of(message.error), intercepted.task_id)
            self._take_in(intercepted)
            line.raw = intercepted.seen
        return False

    def _large_stays(self, line: Line, sight: Sight) -> bool:
        """The same of a line that is too large to be read, or of a piece of it: as its first piece, so all."""
        message_id = sight.id if line.ended else sight.first_id
        if sight.stays is None:
            if line.ended and sight.may_be_response:  # it was held, or came at once
                message_id = jsonrpc.id_of(jsonrpc.member(line.raw, "id"))
            sight.stays = sight.may_be_response and self._channel.asked(message_id)
        if line.ended:
            self._channel.answer(message_id, None)
            if sight.may_be_message and not sight.stays and (pending := self._answered(message_id)) is not PLAIN:
                self._take_in(pending.unread())
        return sight.stays

    def _answered(self, message_id: jsonrpc.Id | None) -> Pending:
        """What a response of that id answers, which is not read; it is answered now."""
        passed = None if message_id is None else self._unanswered.take(message_id)
        self._ended(passed, None, None)
        return _pending(passed)

    def _ended(self, passed: Passed | None, code: int | None, task_id: str | None) -> None:
        """A request of the client's was answered, by an error if there is a code."""
        if passed is not None and passed.is_clear:
            seconds = self._clock() - passed.at.at
            self._access_log.ended("relayed", passed.request, seconds, None, code=code, made=task_id)

    def _take_in(self, intercepted: Intercepted) -> None:
        if intercepted.not_advertised:
            log.warning("not advertised", extra={"upstream": STDIO.upstream, "why": intercepted.not_advertised})
        self.sessions.note(STDIO, intercepted)

    def gauges(self) -> "dict[str, Gauge]":
        name, passed, answering = STDIO.upstream, len(self._unanswered), len(self._answering)
        return {
            **self.sessions.gauges(),
            "connections": ("Clients.", 1),
            "queries_in_flight": ("Filtered tasks/list under way.", answering),
            "queries_in_flight_max": ("Limit of queries_in_flight.", self._limits.connections_max),
            **self._buffers.gauges(),
            "upstream_up": ("1: the server runs.", {name: 1.0}),
            "requests_in_flight": ("Requests of the client that have not been answered.", {name: passed + answering}),
            "upstream_requests_in_flight": (_OUT_HELP, {name: passed + len(self._channel.waiting)}),
            "upstream_requests_max": ("Limit of upstream_requests_in_flight.", {name: float(UNANSWERED_MAX)}),
        }


def _pending(passed: Passed | None) -> Pending:
    if passed is None or not passed.is_clear:
        return UNMATCHED if passed is None else Pending("UNREAD", None, passed.at)
    return begin(passed.request, lambda: passed.at, passed.misspelt)


class NoCounts:
    """Nothing is counted, and nothing logged: nobody would see it."""

    def _nothing(self, *_: object, **__: object) -> Any:
        return _MEANWHILE

    lives = None
    upstream_request = crawl_page = crawl = query = began = ended = flush = sweep = plan = asking = _nothing

    @property
    def metrics(self) -> Self:
        return self

    failed = metrics


class StdioApp:
    """Serves two pairs of streams until the server has ended and the client has its lines (DESIGN 11.4)."""

    def __init__(self, streams: Streams, config: StdioConfig, access_log: "AccessLog | NoCounts") -> None:
        buffers = Buffers(config.limits.held_bytes_max)
        self._drain_timeout_s = config.limits.drain_timeout
        self._failed = access_log.failed
        self._from_client, self._from_server = PipeSource(streams.from_client), PipeSource(streams.from_server)
        # If one side takes no more, the other one's writes fail, as they would without a gateway.
        self._client = Outlet(streams.to_client, buffers, self._from_server.stop)
        server = Outlet(streams.to_server, buffers, self._from_client.stop)
        self._proxy = StdioProxy(config, self._client, server, access_log)
        self.gauges = self._proxy.gauges

    async def run(self, ended: "asyncio.Future[int]") -> int:
        """Serve until the server has ended and the client has all its lines. Returns how the server ended."""
        async with asyncio.TaskGroup() as group:  # a fault in the gateway ends the gateway
            down = group.create_task(self._proxy.serve_server(self._from_server))
            works = [down, *map(group.create_task, (self._proxy.serve_client(self._from_client), self._sweep()))]
            await asyncio.shield(ended)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._drain_timeout_s):
                    await self._rest(down)
            for work in works:
                work.cancel()
        self._failed.flush()
        return ended.result()

    async def _rest(self, down: "asyncio.Task[None]") -> None:
        """Wait until the client has all the server's lines. Stop if others hold its output open, and are silent."""
        pieces = -1
        while not down.done() and (self._client.is_full or pieces != self._from_server.pieces):
            pieces = self._from_server.pieces
            await asyncio.wait({down}, timeout=_SILENCE_S)
        self._from_server.stop()
        await asyncio.wait({down})

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            self._proxy.sessions.expire()
            if self._proxy.sessions.lives is not None:
                self._proxy.sessions.lives.sweep()
            self._failed.sweep()


def run(child: Child, config: StdioConfig, admin: Address | None) -> int:
    """Stand between client and server until the server ends. Returns how it ended. Raises StartError, ConfigError."""
    log_format.set_up(config.log)
    gc.set_threshold(300, 1_000_000, 1_000_000)  # as in app.run
    return asyncio.run(_serve(child, config, admin))


async def _serve(child: Child, config: StdioConfig, admin: Address | None) -> int:
    """Serve. What only an operator needs is imported here: that takes longer than all else together."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()

    def told(status: int) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(ended.set_result, status)

    child.on_end(told)
    if admin is None and config.traces is None and not log.isEnabledFor(logging.INFO):
        return await StdioApp(child.streams, config, NoCounts()).run(ended)
    from gateway.operate import observers
    from gateway.transport.repeated_log_lines import LogLimit

    async with AsyncExitStack() as stack:
        metrics, make_log = observers(config, stack)
        metrics.serves([STDIO.server], config.metrics.tasks)
        app = StdioApp(child.streams, config, make_log(metrics, config.log, LogLimit(loop.time)))
        if admin is not None:
            from gateway.operate import admin_listener, status_page

            metrics.gauges.append(app.gauges)
            server = {"name": STDIO.upstream, "url": printable(child.name), "state": "up", "since": time(), "why": ""}
            page = status_page.Page(metrics, lambda: status_page.Facts(app.gauges(), [server]))
            await admin_listener.serve("--admin", admin, stack, page, lambda: Config(upstreams=()))
        return await app.run(ended)
