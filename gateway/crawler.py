"""Requests of the gateway's own: as the client would make them, for the client whose query needs them.

In: a `Caller`, whose headers and target every request repeats. Out: JSON-RPC responses, and pages of tasks.
Always: the id of a request is unlike any client's; a message on a stream that is not the response goes to the client
whose query caused the crawl (DESIGN 5.7); a crawl ends: a cursor that repeats is an error, one that expired is
recovered from a bounded number of times, pages have a limit (DESIGN 6).

A response ends the wait for it, not the stream that it came on: that is read on for a while, beside what follows, so
that its connection serves again. What comes there is taken in, and is the client's as long as its answer is open.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from itertools import count
from typing import Any, Final
from uuid import uuid4

import msgspec

from gateway.buffers import Account
from gateway.config import Config, Upstream
from gateway.core import jsonrpc, observe, sse, task
from gateway.core.cors import Cors
from gateway.core.headers import Headers
from gateway.core.jsonrpc import Message
from gateway.core.public import PublicUrl
from gateway.core.task import Task, TaskError
from gateway.errors import GatewayError, UpstreamBroken, UpstreamFailed, UpstreamRefused, UpstreamTimeout
from gateway.metrics import Metrics
from gateway.relay import EVENT_STREAM
from gateway.sessions import Key, identity
from gateway.upstream import Pool, Response

_RECOVERIES_MAX: Final = 10  # of a crawl whose cursors expire under it
_DROPS_MAX: Final = 1  # of connections, while one request is answered
_POLLS_MAX: Final = 100  # of a stream that closes and asks to be polled
_RETRY_DEFAULT_S: Final = 1.0
_READ_ON_S: Final = 3.0  # behind the response, for the end of its stream
_READ_ON_MAX: Final = 8  # streams at once
OTHERS_MAX: Final = 10_000  # other events than the response, on the streams of one request
_EVENTS_AT_ONCE: Final = 100  # before others get their turn
_BYTES_AT_ONCE: Final = 4096  # of a stream, in which very small events are not too many
_MARKS: Final = (b"data", b"id", b"retry")  # the fields that are read: comments and empty lines cost nothing
TASKS_AT_ONCE: Final = 200  # handled before others get their turn

_ids = count()
_PREFIX: Final = f"taskgate-{uuid4().hex}"

# Of the client's request, and not of one that repeats its headers.
_NOT_REPEATED: Final = (
    b"content-length", b"transfer-encoding", b"content-encoding", b"expect", b"trailer", b"accept-encoding",
    b"last-event-id", b"content-type", b"accept",
)  # fmt: skip


class Caller:
    """Whose request it is: the upstream that it goes to, its target there, and its header fields as they go up."""

    def __init__(
        self,
        upstream: Upstream,
        pool: Pool,
        public: PublicUrl | None,
        cors: Cors,
        prefix: bytes,
        target: bytes,
        original: Headers,
        headers: Headers,
    ) -> None:
        self.upstream = upstream
        self.pool = pool
        self.public = public
        self.prefix = prefix  # of the paths that the upstream knows without it
        self._cors = cors
        self.target = target
        self.headers = headers
        self._original = original
        self._key: Key | None = None

    def note_cors(self, response: Response, preflight: bool = False) -> None:
        """A response of the upstream's to this caller: what it says of CORS will be on the gateway's own."""
        if (origin := self._original.get(b"origin")) is not None:
            who = None if preflight else self.key.identity
            self._cors.note(origin, self.target, who, response.status, response.headers)

    @property
    def cors(self) -> Headers:
        """What lets the caller's browser read an answer of the gateway's own."""
        origin = self._original.get(b"origin")
        return Headers() if origin is None else self._cors.fields(origin, self.target)

    @property
    def identity_headers(self) -> frozenset[bytes]:
        """The names, in lower case, of the only fields that tell who asks; none where all may."""
        return frozenset(name.lower().encode() for name in self.upstream.identity_headers or ())

    @property
    def session_id(self) -> bytes:
        return self._original.get(b"mcp-session-id") or b""

    @property
    def key(self) -> Key:
        """The key of the caller's session."""
        if self._key is None:
            self._key = self.key_with(self.session_id)
        return self._key

    def key_with(self, session_id: bytes) -> Key:
        """The key of the caller's session of that id, which `initialize` has just given out."""
        who = identity(self.headers, self.upstream.identity_headers)  # as the upstream sees them
        return Key.of(self.upstream.name, self.target, session_id, who)


class Page(msgspec.Struct):
    """One page of `tasks/list`: its cursor and that of the next, when it was asked for, its size in bytes of JSON."""

    tasks: list[Task]
    cursor: str | None
    following: str | None
    asked_at: float
    size_bytes: int


class Crawler:
    """Asks the upstream on behalf of one caller. `requests` counts what it asked."""

    def __init__(
        self, caller: Caller, config: Config, metrics: Metrics, on_message: Callable[[bytes], Awaitable[None]]
    ) -> None:
        self._caller = caller
        self._config = config
        self._metrics = metrics
        self._on_message = on_message
        self._loop = asyncio.get_running_loop()
        self.requests = 0
        self._reading_on: set[asyncio.Task[None]] = set()

    async def pages(self) -> AsyncGenerator[Page, None]:
        """Every page of the upstream's `tasks/list`, from the first to the last. Raises GatewayError.

        The next page is asked for before this one is handed out, so that the upstream is not idle meanwhile.
        """
        trail: list[str | None] = [None]  # the cursors of the pages read, and at its end that of the next
        seen: set[str] = set()
        recoveries, went_back = 0, False
        asking = self._prefetch(None)
        try:
            for _ in range(self._config.index.pages_max):
                page = await asking
                if page is None:
                    recoveries += 1
                    if recoveries > _RECOVERIES_MAX:
                        raise UpstreamBroken(f"cursors of the upstream's tasks/list expired {recoveries} times")
                    # The task that the cursor names has gone. A page back there is a newer one; else from the start.
                    trail = [None] if went_back else trail[:-1]
                    seen = {following for following in trail if following is not None}
                    went_back = not went_back
                    asking = self._prefetch(trail[-1])
                    continue
                went_back = False
                if page.following in seen:
                    raise UpstreamBroken("the upstream's tasks/list repeats a cursor: its pages have no end")
                if page.following is not None:
                    seen.add(page.following)
                    trail.append(page.following)
                    asking = self._prefetch(page.following)
                yield page
                if page.following is None:
                    return
            raise UpstreamBroken(f"the upstream's tasks/list has more than {self._config.index.pages_max} pages")
        finally:
            asking.cancel()
            del asking  # as in `Ask.join`

    def _prefetch(self, cursor: str | None) -> "asyncio.Task[Page | None]":
        asking = asyncio.ensure_future(self.page(cursor))
        asking.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may be left to ask
        return asking

    async def page(self, cursor: str | None) -> Page | None:
        """The page at `cursor`; None if the cursor is no longer valid. Raises GatewayError."""
        asked_at = self._loop.time()
        response = await self.ask("tasks/list", {} if cursor is None else {"cursor": cursor})
        if bytes(response.error):
            if cursor is not None and jsonrpc.error_code(response) == jsonrpc.INVALID_PARAMS:
                return None
            raise UpstreamFailed(bytes(response.error))
        tasks: list[Task] = []
        try:
            raws, following = observe.parse_page(response)
            for start in range(0, len(raws), TASKS_AT_ONCE):
                tasks += map(task.parse, raws[start : start + TASKS_AT_ONCE])
                await asyncio.sleep(0)
        except TaskError as error:
            raise UpstreamBroken(f"the upstream's tasks/list is no list of tasks: {error}") from None
        self._metrics.crawl_pages.labels(self._caller.upstream.name).inc()
        return Page(tasks, cursor, following, asked_at, len(bytes(response.result)))

    async def ask(self, method: str, params: dict[str, Any]) -> Message:
        """The response to one request. Raises GatewayError; a JSON-RPC error is a response."""
        message_id = f"{_PREFIX}-{next(_ids)}"
        body = jsonrpc.request(message_id, method, params)
        head = self._head(
            b"POST",
            (b"Content-Type", b"application/json"),
            (b"Accept", b"application/json, text/event-stream"),
            (b"Content-Length", b"%d" % len(body)),
        )
        raw_id = b'"%b"' % message_id.encode()
        for attempt in range(_DROPS_MAX + 1):
            self._metrics.upstream_request(self._caller.upstream.name, method)
            self.requests += 1
            try:
                async with asyncio.timeout(self._config.index.crawl_timeout or None):
                    return await self._exchange(head + body, raw_id)
            except TimeoutError:
                raise UpstreamTimeout(
                    f"no answer to {method} from the upstream within {self._config.index.crawl_timeout:g} s"
                ) from None
            except UpstreamBroken:
                if attempt == _DROPS_MAX:
                    raise
        raise AssertionError("unreachable")

    async def _exchange(self, request: bytes, raw_id: bytes) -> Message:
        stream = _Stream(self._config.limits.inspected_event_bytes_max)
        method = b"POST"
        for _ in range(_POLLS_MAX):
            async with AsyncExitStack() as leaving:
                call = await leaving.enter_async_context(self._caller.pool.call(method))
                response = await call.send_all(request, b"", None, again=True)
                self._caller.note_cors(response)
                await self._check(response, raw_id)
                if response.headers.media_type() != EVENT_STREAM:
                    return _matching(await self._whole(response), raw_id)
                stream.begin()
                answer = await self._read_stream(response, raw_id, stream)
                if answer is not None:
                    self._read_on(leaving, response, stream)
                    return answer
            if stream.last_id is None:
                raise UpstreamBroken("the upstream ended the stream before its response")
            # The stream goes on in another connection (transports specification, "poll" the SSE stream).
            await asyncio.sleep(stream.retry_s)
            method = b"GET"
            request = self._head(b"GET", (b"Accept", EVENT_STREAM), (b"Last-Event-ID", stream.last_id))
        raise UpstreamBroken(f"the upstream closed the stream {_POLLS_MAX} times before its response")

    def _head(self, method: bytes, *added: tuple[bytes, bytes]) -> bytes:
        """The head of a request of the caller's, with other fields where they are not about the caller."""
        repeated = self._caller.headers.without(*_NOT_REPEATED)
        headers = Headers([*repeated, *added, (b"Accept-Encoding", b"identity")])
        return b"%b %b HTTP/1.1\r\n%b\r\n" % (method, self._caller.target, headers.block())

    async def _check(self, response: Response, raw_id: bytes) -> None:
        if response.status >= 400:
            body = await self._whole(response)
            raise UpstreamRefused(response.status, response.reason, response.headers, body, raw_id)
        if not 200 <= response.status < 300:
            raise UpstreamBroken(f"the upstream answered {response.status} to a request of the gateway's")
        if response.headers.tokens(b"content-encoding") not in ([], [b"identity"]):
            raise UpstreamBroken("the upstream encodes what was asked for as it is (Accept-Encoding: identity)")

    async def _whole(self, response: Response) -> bytes:
        bytes_max = self._config.limits.inspected_body_bytes_max
        account, body = Account(self._caller.pool.buffers), bytearray()
        try:
            while piece := await response.body.read():
                body += piece
                if len(body) > bytes_max:
                    raise UpstreamBroken(f"a page of the upstream's is larger than {bytes_max} bytes")
                account.hold(len(body))
        finally:
            account.close()
        return bytes(body)

    async def _read_stream(self, response: Response, raw_id: bytes, stream: "_Stream") -> Message | None:
        """The response of that id, once everything that came with it was passed on; None if the stream ends first."""
        answer = None
        while answer is None:
            try:
                piece = await response.body.read()
            except UpstreamBroken:
                if stream.last_id is None:
                    raise  # nothing to resume from
                return None
            if not piece:
                return None
            for data in stream.feed(piece):
                if data is None:
                    await asyncio.sleep(0)
                    continue
                message = jsonrpc.parse(data)
                if message is not None and message.is_response and jsonrpc.same_id(message.id, raw_id):
                    answer = message
                elif message is not None or data.lstrip().startswith(b"["):  # a batch (2025-03-26)
                    await self._on_message(data)
        return answer

    def _read_on(self, leaving: AsyncExitStack, response: Response, stream: "_Stream") -> None:
        """Read a stream to its end behind the response that was waited for."""
        if response.body.complete or len(self._reading_on) >= _READ_ON_MAX or self._caller.pool.is_full:
            return

        async def read_on(call: AsyncExitStack) -> None:
            async with call:
                with suppress(TimeoutError, GatewayError):
                    async with asyncio.timeout(_READ_ON_S):
                        await self._read_stream(response, b"", stream)

        task = asyncio.create_task(read_on(leaving.pop_all()))
        self._reading_on.add(task)
        task.add_done_callback(self._reading_on.discard)


class _Stream:
    """What must be known of an event stream to go on with it in another connection."""

    def __init__(self, event_bytes_max: int) -> None:
        self._event_bytes_max = event_bytes_max
        self._events = 0
        self.last_id: bytes | None = None
        self.retry_s = _RETRY_DEFAULT_S

    def begin(self) -> None:
        """Its events come from the beginning of another response."""
        self._parser = sse.Parser(self._event_bytes_max, _MARKS, reads_all=True)

    def feed(self, piece: bytes) -> Iterator[bytes | None]:
        """The data that a piece completes; None where others should get their turn.

        Raises UpstreamBroken at an event that is too large, and when there were more than `OTHERS_MAX`.
        """
        for start in range(0, len(piece), _BYTES_AT_ONCE):
            for event in self._parser.feed(piece[start : start + _BYTES_AT_ONCE]):
                if not event.marked:
                    continue
                data = self._note(event)
                if data is not None:
                    yield data
                self._events += 1
                if self._events % _EVENTS_AT_ONCE == 0:
                    yield None

    def _note(self, event: sse.Event) -> bytes | None:
        """The event's data, if it carries a message."""
        if not event.whole:
            what = f"is larger than {self._event_bytes_max} bytes, or has more than {sse.LINES_MAX} lines"
            raise UpstreamBroken(f"an event of the upstream's {what}")
        if self._events > OTHERS_MAX:
            raise UpstreamBroken(f"more than {OTHERS_MAX} events of the upstream's that are no response")
        if event.id is not None:
            self.last_id = event.id or None
        if event.retry_ms is not None:
            self.retry_s = event.retry_ms / 1000
        return event.data or None if event.is_message else None


def _matching(body: bytes, raw_id: bytes) -> Message:
    message = jsonrpc.parse(body)
    if message is None or not message.is_response or not jsonrpc.same_id(message.id, raw_id):
        raise UpstreamBroken("the upstream's answer is no JSON-RPC response to what was asked")
    return message
