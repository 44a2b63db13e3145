"""A filtered `tasks/list`, start to end: from the parameters to the bytes of the response.

In: an exchange, its caller, the request message. Out: the response, as JSON; or as an event stream once a message for
this client arrived on a stream of the crawler's (DESIGN 5.7), those messages first and the result last.
Always: a failure is told as one, never as an empty list (DESIGN 5.8).
"""

import asyncio
import logging
from datetime import UTC, datetime
from functools import cached_property
from typing import Final

import msgspec
import orjson

from gateway.asks import Answer
from gateway.core import cursor, jsonrpc, sse
from gateway.core import query as criteria
from gateway.core.cursor import Position
from gateway.core.headers import Headers
from gateway.core.jsonrpc import INVALID_PARAMS, Message
from gateway.core.query import BadQuery, Fault, Params
from gateway.crawler import Caller
from gateway.errors import GatewayError
from gateway.listener import Exchange
from gateway.metrics import Metrics
from gateway.refresh import Refresher
from gateway.sessions import Session, Sessions

log = logging.getLogger("taskgate.answer")

_PROGRESS_INTERVAL_S: Final = 0.2
_TOKEN_STARTS: Final = tuple(b"%c" % c for c in b'"-0123456789')  # a progress token is a string or a number


def read(params: Params) -> Position | None:
    """The page that a `tasks/list` asks for; None if it names no criterion and no cursor of ours. Raises BadQuery."""
    query = criteria.read(params)
    if bytes(params.cursor) in (b"", b"null"):
        return None if query is None else Position(query)
    given = _text(params.cursor)
    position = None if given is None else cursor.decode(given)
    if position is None:
        if query is None:
            return None
        raise BadQuery([criteria.fault("cursor", bytes(params.cursor), cursor.ALLOWED)])
    if query is not None and query != position.query:
        raise BadQuery([Fault("cursor", "a cursor of a list with other criteria", cursor.ALLOWED)])
    return position


def _text(raw: msgspec.Raw) -> str | None:
    try:
        return msgspec.json.decode(raw, type=str)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


class Reply:
    """The response to one filtered `tasks/list`: one JSON message, or a stream that others come first on."""

    def __init__(self, exchange: Exchange, caller: Caller, message: Message) -> None:
        self._exchange = exchange
        self._caller = caller
        self._message = message
        self._progress_due_at = 0.0
        self._progress = 0  # that was told

    @property
    def streaming(self) -> bool:
        return self._exchange.started

    @property
    def is_full(self) -> bool:
        """Whether the client has yet to take so much that sending more waits."""
        return self._exchange.connection.is_full

    @cached_property
    def _progress_token(self) -> bytes:
        """The raw progress token, empty if there is none; looked for at the first progress, not while all is read."""
        token = bytes(jsonrpc.member(jsonrpc.member(self._message.params, "_meta"), "progressToken"))
        return token if token[:1] in _TOKEN_STARTS else b""

    def forward(self, data: bytes) -> None:
        """Send a message that arrived on the crawler's stream, as long as the response has not been sent."""
        if not self._exchange.finished:
            self._event(data)

    async def drain(self) -> None:
        """Wait until the client has taken enough of what was sent."""
        await self._exchange.drain()

    def progress(self, tasks: int) -> None:
        """Send `notifications/progress`, if the requestor asked for it, now and then; nobody waits for its reader."""
        now = self._exchange.connection.loop.time()
        if not self._progress_token or now < self._progress_due_at or tasks <= self._progress or self.is_full:
            return
        self._progress_due_at, self._progress = now + _PROGRESS_INTERVAL_S, tasks
        params = b'{"progressToken":%b,"progress":%d,"message":"tasks read"}' % (self._progress_token, tasks)
        self.forward(b'{"jsonrpc":"2.0","method":"notifications/progress","params":%b}' % params)

    def send(self, data: bytes) -> None:
        """Send the response message, which ends the reply. Raises Overloaded where there is no room to hold it."""
        if not self.streaming:
            self._exchange.connection.buffers.check(len(data))
            self._exchange.respond(200, b"OK", [(b"Content-Type", b"application/json"), *self._caller.cors], data)
        else:
            self._event(data)
            self.end()

    def end(self) -> None:
        """End without a response, as a request that was cancelled does."""
        if not self.streaming:
            self._begin()
        if self._exchange.minor:
            self._exchange.write(b"0\r\n\r\n")
        self._exchange.finish()

    def _event(self, data: bytes) -> None:
        if not self.streaming:
            self._begin()
        raw = sse.event(data)
        self._exchange.write(b"%x\r\n%b\r\n" % (len(raw), raw) if self._exchange.minor else raw)

    def _begin(self) -> None:
        self._exchange.status = 200
        fields = [(b"Content-Type", b"text/event-stream"), (b"Cache-Control", b"no-cache"), *self._caller.cors]
        if self._exchange.minor:
            fields.append((b"Transfer-Encoding", b"chunked"))
        else:
            self._exchange.keep_alive = False
            self._exchange.ends_with_connection = True
        if not self._exchange.keep_alive:
            fields.append((b"Connection", b"close"))
        self._exchange.write(b"HTTP/1.1 200 OK\r\n%b\r\n" % Headers(fields).block())


class Answerer:
    """Answers filtered `tasks/list` requests."""

    def __init__(self, sessions: Sessions, refresher: Refresher, metrics: Metrics) -> None:
        self._sessions = sessions
        self._refresher = refresher
        self._metrics = metrics

    async def answer(self, exchange: Exchange, caller: Caller, message: Message, position: Position) -> None:
        """Answer with the page at `position`. Raises GatewayError if nothing was sent to the client yet."""
        session = self._sessions.open(caller.key)
        reply, raw_id = Reply(exchange, caller, message), bytes(message.id)
        answer = self._refresher.at_once(session, position)
        if answer is None:
            try:
                answer = await self._answer_unless_cancelled(session, caller, reply, raw_id, position)
            except GatewayError as error:
                self._metrics.queries.labels(caller.upstream.name, "failed").inc()
                if not reply.streaming:
                    raise
                log.info("failed", extra={"upstream": caller.upstream.name, "failure": error.kind, "why": str(error)})
                reply.send(error.message(raw_id))
                return
        if answer is None:
            reply.end()
            return
        self._note(session, caller, answer)
        reply.send(jsonrpc.result(raw_id, _result(answer, position)))

    async def _answer_unless_cancelled(
        self, session: Session, caller: Caller, reply: Reply, raw_id: bytes, position: Position
    ) -> Answer | None:
        """The answer, or None once `notifications/cancelled` has named the request."""
        cancelled = asyncio.get_running_loop().create_future()
        session.answering.setdefault(raw_id, []).append(cancelled)
        work = asyncio.ensure_future(self._refresher.answer(session, caller, reply, position))
        try:
            await asyncio.wait({work, cancelled}, return_when=asyncio.FIRST_COMPLETED)
            return work.result() if work.done() else None
        finally:
            work.cancel()
            session.answering[raw_id].remove(cancelled)
            if not session.answering[raw_id]:
                del session.answering[raw_id]
            del work  # as in `Ask.join`

    def _note(self, session: Session, caller: Caller, answer: Answer) -> None:
        """Count what an answer cost, and what it saved its requestor."""
        name, metrics = caller.upstream.name, self._metrics
        answered_bytes = sum(len(t.raw) for t in answer.page.tasks)
        spared_requests = max(0, session.known.pages - answer.requests)
        metrics.queries.labels(name, answer.outcome).inc()
        metrics.spared_requests.labels(name).inc(spared_requests)
        metrics.spared_bytes.labels(name).inc(max(0, session.list_bytes - answered_bytes))
        log.debug(
            "query",
            extra={
                "upstream": name,
                "outcome": answer.outcome,
                "reason": answer.reason,
                "upstream_requests": answer.requests,
                "spared_requests": spared_requests,
                "tasks": len(answer.page.tasks),
                "total": answer.page.total,
            },
        )


def _result(answer: Answer, position: Position) -> bytes:
    """The raw `ListTasksResult`."""
    page = answer.page
    as_of = datetime.fromtimestamp(answer.as_of_unix_s, UTC).isoformat(timespec="milliseconds")
    following = b""
    if page.more:
        following = b'"nextCursor":%b,' % orjson.dumps(cursor.encode(cursor.following(position, page.tasks)))
    return b'{"tasks":[%b],%b"_meta":{"taskgate/total":%d,"taskgate/asOf":"%b"}}' % (
        b",".join([t.raw for t in page.tasks]),
        following,
        page.total,
        as_of.replace("+00:00", "Z").encode(),
    )


def bad_query(message: Message, error: BadQuery) -> bytes:
    """The error response to a request whose parameters are wrong (DESIGN 5.4)."""
    faults = [{"parameter": f.parameter, "given": f.given, "allowed": f.allowed} for f in error.faults]
    return jsonrpc.error(bytes(message.id), INVALID_PARAMS, str(error), {"errors": faults})
