"""The gateway as a client: JSON-RPC requests of its own over HTTP, in the name of a caller.

In: the bytes of a request, and its id. Out: its response. Always: the request repeats the caller's target and
header fields, but for those of the caller's one message (DESIGN 5.9); every other message on the response's stream goes
to `on_message`, in order, before the response is returned (DESIGN 5.7); streams, bodies and polls have limits. A
response ends the wait; the stream is read on in the background for a while, so that its connection serves again.
"""

import asyncio
import re
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, closing, suppress
from dataclasses import dataclass, field
from datetime import UTC
from email.utils import parsedate_to_datetime
from functools import cached_property
from typing import Final

import msgspec

from gateway.caller_identity import is_of_one_message
from gateway.downstream.exchange import Exchange
from gateway.errors import GatewayError, UpstreamBroken, UpstreamRefused
from gateway.http.header_fields import EVENT_STREAM, JSON, Headers
from gateway.mcp import jsonrpc, sse
from gateway.relay.http_caller import HttpCaller
from gateway.transport.body_stream import Response
from gateway.transport.memory_budget import Reservation
from gateway.upstream.connection_pool import Call

_POLLS_MAX: Final = 100  # of a stream that closes and asks to be polled
_RETRY_DEFAULT_S: Final = 1.0
_OWN: Final = 2  # times as much as of what passes is read of an own answer: a page may have many tasks
_REFUSAL_S: Final = 0.5  # for the body of a refusal
_READ_ON_S: Final = 3.0  # behind the response, for the end of its stream
READ_ON_MAX: Final = 64  # streams at once, of all upstreams
OTHERS_MAX: Final = 10_000  # events besides the response, on the streams of one request
_ID_BYTES_SHOWN: Final = 50
_EVENTS_AT_ONCE: Final = 100  # before other tasks get their turn
_BYTES_AT_ONCE: Final = 4096  # of a stream: so few bytes hold no flood of tiny events
_MARKS: Final = (b"data", b"id", b"retry")  # the fields that are read: comments and empty lines cost nothing
_ACCEPT_BOTH: Final = ((b"Accept", b"application/json, text/event-stream"),)
_MIRRORS: Final = frozenset({b"mcp-method", b"mcp-name"})
_PLAIN: Final = re.compile(rb"[!-~](?:[ -~]*[!-~])?")  # what a field can have for a value as it is
_ENCODED: Final = b"=?base64?%b?="  # ... for any other (SEP-2243)


@dataclass(eq=False)
class HttpChannel:
    _caller: HttpCaller
    _headers: Headers  # of the request of his that causes these
    _accept: Sequence[tuple[bytes, bytes]]
    _on_message: Callable[[bytes], Awaitable[None]]

    def is_free(self, _message_id: int) -> bool:
        """An exchange has one answer."""
        return True

    async def ask(self, request: bytes, message_id: int) -> jsonrpc.Message:
        """The response to one JSON-RPC request of that id; it may be an error. Raises GatewayError."""
        before, behind = self._post
        said = b"" if _MIRRORS.isdisjoint(self._headers.by_name) else _mirrored(request)
        return await self._exchange(b"%b%d%b%b%b" % (before, len(request), said, behind, request), message_id)

    @cached_property
    def _post(self) -> tuple[bytes, bytes]:
        """The head of a POST, before and behind the value of `Content-Length`: pages differ in nothing else."""
        head = self._head(b"POST", (b"Content-Type", b"application/json"), *self._accept, (b"Content-Length", b""))
        before, name, behind = head.rpartition(b"\r\nContent-Length: ")
        return before + name, behind

    async def _exchange(self, request: bytes, message_id: int) -> jsonrpc.Message:
        stream, method = _Stream(), b"POST"
        for _ in range(_POLLS_MAX):
            async with AsyncExitStack() as leaving:
                call = await leaving.enter_async_context(Call(self._caller.pool, method))
                response = await call.send_all(request, b"", None, again=True)
                self._caller.note_cors(response)
                await self._check(response, message_id)
                if response.headers.media_type() != EVENT_STREAM:
                    return _matching(await self._whole(response), message_id)
                limits = self._caller.pool.limits
                stream.parser = sse.Parser(_OWN * limits.inspected_event_bytes_max, _MARKS, reads_all=True)
                answer = await self._read_stream(response, message_id, stream)
                if answer is not None:
                    others = self._caller.pool.links.reading_on
                    has_room = len(others) < READ_ON_MAX and not self._caller.pool.context.slots.is_full
                    if has_room and not response.body.is_whole:
                        task = asyncio.create_task(self._read_rest(leaving.pop_all(), response, stream))
                        others.add(task)
                        task.add_done_callback(others.discard)
                    return answer
            if stream.last_id is None:
                raise UpstreamBroken(f"the upstream ended the stream before its response{_instead(stream.other_id)}")
            # The stream goes on in another connection (transports specification, "poll" the SSE stream).
            await asyncio.sleep(stream.retry_s)
            method = b"GET"
            request = self._head(b"GET", (b"Accept", EVENT_STREAM), (b"Last-Event-ID", stream.last_id))
        raise UpstreamBroken(f"the upstream closed the stream {_POLLS_MAX} times before its response")

    def _head(self, method: bytes, *added: tuple[bytes, bytes]) -> bytes:
        """The head of a request: the caller's target and fields, without those of the caller's one message (5.9)."""
        repeated = [field for field in self._headers if not is_of_one_message(field[0].lower())]
        headers = Headers([*repeated, *added, (b"Accept-Encoding", b"identity")])
        return headers.as_head(method, self._caller.target)

    async def _check(self, response: Response, message_id: int) -> None:
        if not 200 <= response.head.status < 300:
            status, headers = response.head.status, response.headers
            body = await (self._refusal if status in (401, 403, 404) else self._whole)(response)
            location, said = headers.get(b"location") or b"", ""
            if status != 404 or b"mcp-session-id" not in self._headers:  # else the session has ended
                said = self._caller.misplaced(status, location)
            wait_s = retry_after_s(headers) if status in (429, 503) else None
            raise UpstreamRefused(status, response.head.reason, headers, body, message_id, said, wait_s)
        if response.headers.tokens(b"content-encoding") not in ([], [b"identity"]):
            raise UpstreamBroken("the upstream's answer is encoded: the request said Accept-Encoding: identity")

    async def _refusal(self, response: Response) -> bytes:
        """The body of a refusal. Empty if it breaks off, is too large or too slow: the status counts (DESIGN 7.4)."""
        with suppress(GatewayError, TimeoutError):
            async with asyncio.timeout(_REFUSAL_S):
                return await self._whole(response)
        return b""

    async def _whole(self, response: Response) -> bytes:
        bytes_max = _OWN * self._caller.pool.limits.inspected_body_bytes_max
        body = bytearray()
        with closing(Reservation(self._caller.pool.buffers)) as reservation:
            while piece := await response.body.read():
                body += piece
                if len(body) > bytes_max:
                    raise UpstreamBroken(f"a page of the upstream's is larger than {bytes_max} bytes")
                reservation.hold(len(body))
        return bytes(body)

    async def _read_stream(self, response: Response, message_id: int, stream: "_Stream") -> jsonrpc.Message | None:
        """The response with that id, once each message before it has been passed on; None if the stream ends first."""
        with closing(Reservation(self._caller.pool.buffers)) as reservation:
            while True:
                try:
                    piece = await response.body.read()
                except UpstreamBroken:
                    if stream.last_id is None:
                        raise  # nothing to resume from
                    return None
                if not piece:
                    return None
                answer = await self._read_piece(piece, message_id, stream)
                if answer is not None:
                    return answer
                reservation.hold(stream.parser.pending_bytes)

    async def _read_piece(self, piece: bytes, message_id: int, stream: "_Stream") -> jsonrpc.Message | None:
        """The response with that id, if this piece completes it. Requests and notifications are passed on."""
        answer = None
        for start in range(0, len(piece), _BYTES_AT_ONCE):
            for event in stream.parser.feed(piece[start : start + _BYTES_AT_ONCE]):
                data = stream.note(event) if event.marked else b""
                message = jsonrpc.parse(data) if data else None
                if message is not None and message.answers(message_id):
                    answer = message
                elif message is not None and message.is_response:
                    stream.other_id = bytes(message.id)  # late, or a second one: only the gateway asks on this stream
                elif message is not None or jsonrpc.looks_like_messages(data):
                    await self._on_message(data)
                if stream.events % _EVENTS_AT_ONCE == 0:
                    await asyncio.sleep(0)
        return answer

    async def _read_rest(self, call: AsyncExitStack, response: Response, stream: "_Stream") -> None:
        async with call:
            with suppress(TimeoutError, GatewayError):
                async with asyncio.timeout(_READ_ON_S):
                    await self._read_stream(response, -1, stream)


@dataclass(eq=False)
class HttpReply:
    """The response to one filtered `tasks/list`: a JSON message; or a stream, if other messages came ahead (5.7)."""

    _exchange: Exchange
    _caller: HttpCaller

    def channel(self, on_message: Callable[[bytes], Awaitable[None]], as_it_came: bool = False) -> HttpChannel:
        headers = self._caller.headers_of(self._exchange.request.head)
        accept = [(b"Accept", value) for value in headers.all(b"accept")] if as_it_came else _ACCEPT_BOTH
        return HttpChannel(self._caller, headers, accept, on_message)

    def owe(self, requests: int) -> None:
        if self._exchange.cost is not None:
            self._exchange.cost.owe(requests)

    @property
    def streaming(self) -> bool:
        return self._exchange.response.started

    @property
    def is_full(self) -> bool:
        return self._exchange.connection.is_full

    def hold(self, size_bytes: int) -> None:
        self._exchange.request.hold(size_bytes)

    def forward(self, data: bytes) -> None:
        if not self._exchange.response.finished:
            self._event(data)

    async def drain(self) -> None:
        await self._exchange.connection.drain()

    def send(self, data: bytes, code: int | None = None) -> None:
        self._exchange.error_code = code
        self._caller.accept()
        if not self.streaming:
            self._exchange.response.respond(200, b"OK", [(b"Content-Type", JSON), *self._caller.cors], data)
        else:
            self._event(data)
            self._exchange.response.end()

    def _event(self, data: bytes) -> None:
        if not self.streaming:
            fields = [(b"Content-Type", EVENT_STREAM), (b"Cache-Control", b"no-cache"), *self._caller.cors]
            self._exchange.response.begin_own(200, b"OK", fields)
        self._exchange.response.send(sse.event(data))
        self._exchange.response.flush()


@dataclass(eq=False)
class _Stream:
    """What is read of a response's stream, and of those that go on from it."""

    parser: sse.Parser = field(init=False)
    last_id: bytes | None = None
    retry_s: float = _RETRY_DEFAULT_S
    other_id: bytes = b""  # of a response that is no answer
    events: int = 0

    def note(self, event: sse.Event) -> bytes:
        """Count an event. Returns the message in it, or nothing. Raises UpstreamBroken."""
        if not event.whole:
            what = f"is larger than {self.parser.event_bytes_max} bytes, or has more than {sse.LINES_MAX} lines"
            raise UpstreamBroken(f"an event of the upstream's {what}")
        if self.events > OTHERS_MAX:
            raise UpstreamBroken(f"more than {OTHERS_MAX} events of the upstream's that are no response")
        self.events += 1
        if event.id is not None:
            self.last_id = event.id or None
        if event.retry_ms is not None:
            self.retry_s = event.retry_ms / 1000
        return event.data or b"" if event.is_message else b""


def _mirrored(request: bytes) -> bytes:
    """The lines that say in the head what a request is (SEP-2243, SEP-2663), each behind its line end."""
    message = jsonrpc.parse(request)
    assert message is not None and message.method is not None
    lines = b"\r\nMcp-Method: %b" % message.method.encode()
    if bytes(task_id := jsonrpc.member(message.params, "taskId")):
        name = msgspec.json.decode(task_id, type=str).encode()
        is_plain = _PLAIN.fullmatch(name) is not None and not name.startswith(b"=?base64?")
        lines += b"\r\nMcp-Name: %b" % (name if is_plain else _ENCODED % b64encode(name))
    return lines


def retry_after_s(headers: Headers) -> float | None:
    """The seconds of `Retry-After` by the answer's clock, 0 at least; None if unreadable (RFC 9110, 10.2.3)."""
    given = headers.get(b"retry-after") or b""
    if given.isdigit():
        return float(given)
    until, since = _date_unix_s(given), _date_unix_s(headers.get(b"date") or b"")
    return None if until is None else max(0.0, until - (time.time() if since is None else since))


def _date_unix_s(given: bytes) -> float | None:
    try:
        return parsedate_to_datetime(given.decode("latin-1")).replace(tzinfo=UTC).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):  # of any text
        return None


def _matching(body: bytes, message_id: int) -> jsonrpc.Message:
    message = jsonrpc.parse(body)
    if message is None or not message.answers(message_id):
        other_id = b"" if message is None else bytes(message.id)
        said = f"no JSON-RPC response to the gateway's request{_instead(other_id)}"
        raise UpstreamBroken(f"the upstream's answer is {said}")
    return message


def _instead(other_id: bytes) -> str:
    return f": its id is {other_id[:_ID_BYTES_SHOWN].decode(errors='replace')}" if other_id else ""
