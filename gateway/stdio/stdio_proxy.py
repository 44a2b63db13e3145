"""The entry over stdio: what happens to each line between a client and the server that it started.

    from the client   a filtered `tasks/list`                        answered               refresh/answer.py
                      everything else                                passed
    from the server   a response to a request of the gateway's own   stays here             stdio/messages.py
                      the result of `initialize`                     edited, and passed     tasks/observer.py
                      everything else                                observed, and passed

One process is one session. A line that is no JSON, or too large to be read, passes as well (DESIGN 11.1, 11.3).
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Final

from gateway.caller_identity import STDIO
from gateway.config import StdioConfig
from gateway.errors import GatewayError, Internal, Overloaded, without_frames
from gateway.mcp import jsonrpc, observations
from gateway.mcp.jsonrpc import Id, Message
from gateway.query.criteria import BadQuery
from gateway.query.cursor import Position
from gateway.refresh import answer
from gateway.refresh.crawler import OWN
from gateway.stdio.lines import Line, LineParser, Sight
from gateway.stdio.messages import (
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
from gateway.tasks.observer import PLAIN, UNMATCHED, Intercepted, Pending, begin
from gateway.tasks.sessions import Sessions
from gateway.transport.memory_budget import Buffers, Reservation

if TYPE_CHECKING:
    from gateway.operate.access_log import AccessLog
    from gateway.operate.metrics import Metrics

log = logging.getLogger("taskgate.request")

_UNREAD: Final = Message("2.0")  # a request of which nothing but the id is known
_LINES_AT_ONCE: Final = 100  # before other tasks get their turn


class StdioProxy:
    def __init__(
        self,
        config: StdioConfig,
        client: Sink,
        server: Sink,
        sessions: Sessions,
        buffers: Buffers,
        counts: "Metrics | NoCounts",
        clock: Callable[[], float],
        access_log: "AccessLog | None" = None,
    ) -> None:
        self._limits = config.limits
        self._access_log = access_log
        self._buffers = buffers
        self._sessions = sessions
        self._counts = counts
        self._clock = clock
        self._to_client = Outlet(client, buffers)
        self._to_server = Outlet(server, buffers)
        self._channel = StdioChannel(self._to_server, OWN)
        self._caller = StdioCaller(self._channel)
        self._answerer = answer.Answerer(sessions, config.index, counts, clock)
        self._unanswered = Unanswered()
        self._answering: set[asyncio.Task[None]] = set()
        self._sight: Sight | None = None  # of the client's line that passes in pieces

    # ---- from the client ----

    async def serve_client(self, source: Source) -> None:
        """Carry all of the client's lines to the server, then let the answers under way end."""
        last: Line | None = None
        lines = _lines(source, self._to_server, self._limits.inspected_body_bytes_max, self._buffers)
        async for line in lines:
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
        if self._answering:
            await asyncio.wait(self._answering, timeout=self._limits.drain_timeout)

    async def _is_answered(self, line: Line) -> bool:
        """Whether a line is answered here. What passes is noted."""
        message = jsonrpc.parse(line.raw) if line.whole else None
        if message is None:
            self._pass_unread(line)
            return False
        if (position := self._answerer.position(self._caller, message)) is not None:
            await self._begin(message, position, len(line.raw))
            return True
        if message.method == "notifications/cancelled":
            self._unanswered.cancel(jsonrpc.id_of(jsonrpc.member(message.params, "requestId")))
        if message.is_request:
            misspelt = self._answerer.misspelt(self._caller, message)
            passed = Passed(observations.redacted(message), self._sessions.now(), misspelt=misspelt)
            self._unanswered.note(jsonrpc.id_of(message.id), passed)
            self._counts.upstream_request(STDIO.upstream, message.method or "")
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
        if request_id is not None:
            self._unanswered.note(request_id, Passed(_UNREAD, self._sessions.now(), is_clear=False))

    async def _begin(self, message: Message, position: Position | BadQuery, size_bytes: int) -> None:
        """Answer a query in the background. A client that takes no answers is not read beyond its next query."""
        await self._to_client.drain()
        is_full = len(self._answering) >= self._limits.connections_max
        work = asyncio.create_task(self._answer(message, position, size_bytes, is_full))
        self._answering.add(work)
        work.add_done_callback(self._answering.discard)

    async def _answer(self, message: Message, position: Position | BadQuery, size_bytes: int, is_full: bool) -> None:
        reservation, began_at = Reservation(self._buffers), self._clock()
        reply = StdioReply(self._to_client, reservation, size_bytes)
        code: int | None = None
        failed: GatewayError | None = None
        if self._access_log is not None:
            self._access_log.began(message, None)
        try:
            if is_full:
                raise Overloaded(f"{self._limits.connections_max} queries are under way (limits.connections_max)")
            reservation.hold(size_bytes)
            await self._answerer.answer(reply, self._caller, message, position)
            code = reply.error_code
        except Exception as error:
            failed = error if isinstance(error, GatewayError) else Internal()
            if failed is not error:
                log.exception("a request could not be handled", extra={"method": "tasks/list"})
            reply.send(failed.message(bytes(message.id)))
            code = failed.code
            without_frames(error)
        finally:
            reservation.close()
            if self._access_log is not None:
                self._access_log.ended("answered", message, self._clock() - began_at, failed, code=code)

    # ---- from the server ----

    async def serve_server(self, source: Source) -> None:
        """Carry all of the server's lines to the client. Then fail the gateway's requests that are unanswered."""
        large: LargeLine | None = None
        last: Line | None = None
        lines = _lines(source, self._to_client, self._limits.inspected_body_bytes_max, self._buffers)
        async for line in lines:
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
        if large.fate is Fate.PASSES and (pending := self._answered(large.id)) is not PLAIN:
            self._take_in(pending.unread())
        return None

    def _stays(self, line: Line) -> bool:
        """Whether a line answers a request of the gateway's. What passes is observed."""
        message = jsonrpc.parse(line.raw)
        if message is None or not message.is_response:
            if message is None and (unread_id := Sight(line.raw).id) is not None:
                if self._channel.asked(unread_id):
                    self._channel.answer(unread_id, None)
                    return True
                self._take_in(self._answered(unread_id).unread())  # no JSON, but it ends the wait all the same
                return False
            self._take_in((UNMATCHED if message is None else PLAIN).message(line.raw))
        elif self._channel.asked(message_id := jsonrpc.id_of(message.id)):
            self._channel.answer(message_id, message)
            return True
        else:
            passed = self._unanswered.take(message_id)
            pending = _pending(passed)
            if pending.is_success(line.raw):
                self._ended(passed, None, pending.task_id)
                self._sessions.name(STDIO, pending, line.raw)
                return False
            intercepted = pending.message(line.raw)
            self._ended(passed, jsonrpc.error_code(message), intercepted.task_id)
            self._take_in(intercepted)
            line.raw = intercepted.seen
        return False

    def _answered(self, message_id: Id | None) -> Pending:
        """What a response of that id answers, which is not read; it is answered now."""
        passed = None if message_id is None else self._unanswered.take(message_id)
        self._ended(passed, None, None)
        return _pending(passed)

    def _ended(self, passed: Passed | None, code: int | None, task_id: str | None) -> None:
        """A request of the client's was answered, by an error if there is a code."""
        if self._access_log is not None and passed is not None and passed.is_clear:
            seconds = self._clock() - passed.at.at
            self._access_log.ended("relayed", passed.request, seconds, None, code=code, made=task_id)

    def _take_in(self, intercepted: Intercepted) -> None:
        if intercepted.not_advertised:
            log.warning("not advertised", extra={"upstream": STDIO.upstream, "why": intercepted.not_advertised})
        self._sessions.take_in(STDIO, intercepted)

    @property
    def answering(self) -> int:
        return len(self._answering)

    @property
    def waiting(self) -> int:
        """How many requests of the client have yet to be answered."""
        return len(self._unanswered) + len(self._answering)

    @property
    def out(self) -> int:
        """How many requests to the server have yet to be answered."""
        return len(self._unanswered) + len(self._channel)


async def _lines(source: Source, outlet: Outlet, bytes_max: int, buffers: Buffers) -> AsyncIterator[Line]:
    """The lines of a side, no faster than the other side takes them. The last one may have no end."""
    parser, reservation = LineParser(bytes_max), Reservation(buffers)
    try:
        while piece := await source.read():
            for number, line in enumerate(parser.feed(piece), 1):
                yield line
                if number % _LINES_AT_ONCE == 0:
                    await asyncio.sleep(0)
            reservation.set(parser.pending_bytes)
            await outlet.sink.drain()
    finally:
        reservation.close()
    if (rest := parser.rest()) is not None:
        yield rest


def _pending(passed: Passed | None) -> Pending:
    if passed is None or not passed.is_clear:
        return UNMATCHED if passed is None else UNMATCHED._replace(asked=passed.at)
    return begin(passed.request, passed.at, passed.misspelt)


class NoCounts:
    """Nothing is counted: no listener would show it."""

    def _nothing(self, *_: object, **__: object) -> None:
        pass

    def _meanwhile(self, *_: object, **__: object) -> AbstractContextManager[None]:
        return nullcontext()

    lives = None
    upstream_request = crawl_page = crawl = query = _nothing
    plan = asking = _meanwhile
