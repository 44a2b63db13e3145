"""The byte pump: a request goes up and its response comes down, unchanged, while an `Inspector` may see the messages.

In: an `Exchange`, with the part of its body that was read already, and its caller. Out: the upstream's response,
written to the client as it arrives. Always: bytes, order, case and framing are the sender's (DESIGN 3.2); a body that
broke off is never ended as if it were whole (DESIGN 3.5); an inspector sees every message, decoded, before the client
can act on it, and only one that edits delays anything. It is told of what is too large, too much or not readable, and
passes unread.
"""

import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from gateway.config import Limits
from gateway.downstream.exchange import ClientRequest, Exchange
from gateway.errors import GatewayError, UpstreamBroken, UpstreamTimeout
from gateway.http.content_codings import Decode, Unreadable, decoder
from gateway.http.header_fields import EVENT_STREAM, JSON
from gateway.mcp import sse
from gateway.relay.http_caller import HttpCaller
from gateway.transport.body_stream import Response, chunk
from gateway.transport.memory_budget import SMALL_BYTES_MAX, Reservation
from gateway.upstream.connection_pool import Call

SAFE_METHODS: Final = frozenset({b"GET", b"HEAD", b"OPTIONS", b"TRACE"})
_READ_AT_ONCE: Final = 8 * 1024  # bytes of an edited stream, in a turn of the loop: they may be 500 events


class Inspector(msgspec.Struct, frozen=True):
    """What is done with a body: it is copied, or edited. It is chosen once, when the response's head has come."""

    message: Callable[[bytes], bytes]  # takes one message; returns it as it came, unless `edits`; empty: none of it
    unread: Callable[[bytes], None]  # takes what could be read, perhaps nothing, of what could not be read whole
    marks: Sequence[bytes] = ()  # every event that may hold a message of interest has one of these in it
    edits: bool = False
    reads_all: bool = False  # marked events, however many; capitals count as small letters
    hold_bytes_max: int = sys.maxsize  # of a JSON body that is edited, packed or not; the configured limit too
    hold_s: float | None = None  # for how long it is held until it is whole; others pass unread

    def pass_unread(self, piece: bytes) -> bytes:
        """A piece passes unread. That is told at each one: much time may pass between two."""
        self.unread(piece)
        return piece


def nothing(_: bytes = b"") -> None:
    """Nothing is told of what passes unread; nothing takes long to read."""


class Tap(NamedTuple):
    """What a body passes through on its way to the client."""

    through: Callable[[bytes], bytes] = bytes  # returns a piece as it goes on; `bytes`: as it came
    end: Callable[[], bytes] = bytes  # returns what goes behind the last one
    begun: bytes = b""  # what was read of the body before, perhaps all
    is_edited: bool = False  # other bytes go on than came, or may
    more: Callable[[], bytes | None] = nothing  # returns the next part of what takes long to read; None: there is none
    rest: Callable[[], bytes] = bytes  # returns what has come of an event that has not ended


def inspected_at_once(inspector: Inspector, body: bytes, kind: bytes, limits: Limits) -> bool:
    """Inspect a small body that came whole, and goes on as it is. False if it needs a tap: nothing was inspected."""
    is_stream = kind == EVENT_STREAM
    if len(body) > min(
        SMALL_BYTES_MAX, limits.inspected_event_bytes_max if is_stream else limits.inspected_body_bytes_max
    ):
        return False
    if not is_stream:
        inspector.message(body)
    elif any(map(body.__contains__, inspector.marks)):
        if (data := sse.only_data(body)) is None:
            return False
        inspector.message(data)
    return True


async def tap_for(inspector: Inspector, response: Response, limits: Limits, reservation: Reservation) -> Tap:
    """The tap by which an inspector gets a body. One that is edited is framed anew; JSON is held until it is whole."""
    bytes_max, is_stream = limits.inspected_body_bytes_max, response.head.kind == EVENT_STREAM
    hold_max = bytes_max if is_stream else min(bytes_max, inspector.hold_bytes_max)
    try:
        decode = decoder(response.head.headers, hold_max)
    except Unreadable:
        return Tap(inspector.pass_unread)
    if is_stream:
        events = EventTap(inspector, decode, limits.inspected_event_bytes_max, reservation)
        if inspector.edits:
            _reframe(response, decode, None)
        return Tap(events.through, events.end, is_edited=inspector.edits, more=events.more, rest=events.parser.rest)
    if not inspector.edits:
        copy = BodyTap(inspector, decode, bytes_max, reservation, response.body_bytes)
        return Tap(copy.inspect, copy.end)
    held, is_whole = await _held(response, inspector, decode, hold_max, reservation)
    plain, is_read = _read(decode, held, is_whole)
    if not is_read:
        inspector.unread(plain)
        return Tap(bytes if is_whole else inspector.pass_unread, begun=held)
    edited = inspector.message(plain)
    if edited is plain:
        return Tap(begun=held)
    _reframe(response, decode, len(edited))
    return Tap(begun=edited, is_edited=True)


async def _held(
    response: Response, inspector: Inspector, decode: Decode, bytes_max: int, reservation: Reservation
) -> tuple[bytes, bool]:
    """What comes of a body in its time, and whether it is whole. Raises GatewayError: what has come passes unread."""
    held = bytearray()
    try:
        async with asyncio.timeout(inspector.hold_s):
            while piece := await response.body.read():
                held += piece
                if len(held) > bytes_max:
                    return bytes(held), False
                reservation.hold(len(held))
            return bytes(held), True
    except (TimeoutError, GatewayError):
        if inspector.hold_s is None:
            inspector.unread(_read(decode, bytes(held), False)[0])
            raise
    return bytes(held), False


def _read(decode: Decode, body: bytes, is_whole: bool) -> tuple[bytes, bool]:
    """What can be read of a body, and whether that is all of it."""
    plain = b""
    try:
        plain = decode(body)
        return plain + (decode(b"") if is_whole else b""), is_whole
    except Unreadable as error:
        return plain or error.begun, False


def _reframe(response: Response, decode: Decode, size_bytes: int | None) -> None:
    """Change the fields for a body that is decoded and edited: its size, None if it goes on in chunks."""
    headers = response.headers
    if decode is not bytes:  # `Content-Encoding: identity` still says what is true
        headers = headers.without(b"content-encoding")
    if response.framing == "length" and size_bytes is not None:
        headers = headers.with_value(b"content-length", b"%d" % size_bytes)
    elif response.framing == "length":
        headers = headers.without(b"content-length").with_field(b"Transfer-Encoding", b"chunked")
        response.framing = "chunked"
    response.headers = headers


def _broken(piece: bytes) -> bytes:
    """Decodes what comes behind the place where an encoding broke off."""
    raise Unreadable


@dataclass(eq=False, slots=True)
class BodyTap:
    """Inspects a copy of a JSON body: as soon as its last byte has come, before that byte is passed on."""

    _to: Inspector
    _decode: Decode
    _bytes_max: int
    _reservation: Reservation
    _length: int  # of the body; 0 if it is unknown
    _copy: bytearray | None = field(default_factory=bytearray)

    def inspect(self, piece: bytes) -> bytes:
        if self._copy is not None:
            self._copy += piece
            if len(self._copy) > self._bytes_max or not self._reservation.has_room(len(self._copy)):
                self._copy = None
                self._reservation.close()
        if self._copy is None:
            return self._to.pass_unread(piece)
        if len(self._copy) > SMALL_BYTES_MAX:
            self._reservation.set(len(self._copy))
        if len(self._copy) == self._length:
            self.end()
        return piece

    def end(self) -> bytes:
        if self._copy is not None:
            plain, is_read = _read(self._decode, bytes(self._copy), True)
            self._copy = None
            self._to.message(plain) if is_read else self._to.unread(plain)
        return b""


class EventTap:
    """Inspects the events of a stream, and edits them if its inspector does."""

    __slots__ = ("_decode", "_event_bytes_max", "_reservation", "_to", "_waiting", "parser")

    def __init__(self, inspector: Inspector, decode: Decode, event_bytes_max: int, reservation: Reservation) -> None:
        self._to = inspector
        self._decode = decode
        self.parser = sse.Parser(event_bytes_max, inspector.marks, inspector.reads_all)
        self._waiting = memoryview(b"")  # decoded, for a later turn of the loop
        self._event_bytes_max = event_bytes_max
        self._reservation = reservation

    def through(self, piece: bytes) -> bytes:
        """Inspect every event that the piece completes. Return the piece as it came.

        If they are edited: return them so, and comments, which wait for no event; of much only the beginning, for
        `more` returns the rest. Raises UpstreamBroken.
        """
        try:
            plain = self._decode(piece)
            if self._to.edits:
                plain, self._waiting = plain[:_READ_AT_ONCE], memoryview(plain)[_READ_AT_ONCE:]
            out = self._events(plain)
        except Unreadable as error:
            self._events(error.begun)
            if self._to.edits:
                raise UpstreamBroken(f"the event stream cannot be decoded: {error}") from None
            self._decode = _broken
            self._to.unread(b"")
        return out + self.parser.take_comments() if self._to.edits else piece

    def more(self) -> bytes | None:
        if not (waiting := self._waiting):
            return None
        self._waiting = waiting[_READ_AT_ONCE:]
        return self._events(bytes(waiting[:_READ_AT_ONCE])) + self.parser.take_comments()

    def end(self) -> bytes:
        """The stream is whole. One whose encoding stops short could not be read.

        Returns the beginning of an event that never ended, inspected: some clients read it without its blank line.
        """
        out = b"" if self._decode is bytes else self.through(b"")
        if not self.parser.pending_bytes:
            return out
        rest = self.parser.rest()
        read = self._events(b"\n\n")
        return out + (rest if read.startswith(rest) else read) if self._to.edits else b""

    def _events(self, plain: bytes) -> bytes:
        out, unread, parser = [], b"", self.parser
        bytes_max = self._event_bytes_max
        parser.event_bytes_max = bytes_max if self._reservation.has_room(bytes_max) else SMALL_BYTES_MAX
        events = parser.feed(plain)
        held_bytes = parser.pending_bytes + len(self._waiting)
        if held_bytes > SMALL_BYTES_MAX or self._reservation.held_bytes:
            self._reservation.set(held_bytes)
        for event in events:
            data = event.data if event.whole and event.marked else None
            seen = data
            if not event.whole:
                unread = unread or event.raw  # too much to read
            elif data is not None and event.is_message:
                seen = self._to.message(data)
            if seen is None or seen is data:
                out.append(event.raw)
            elif seen:
                out.append(event.with_data(seen))
        if unread:
            self._to.pass_unread(unread)  # once, however many there were
        return b"".join(out)


# ---- the pump ----

Choose: TypeAlias = Callable[[Response], Inspector | None]  # of a head that has come; None: its body passes


async def relay(exchange: Exchange, caller: HttpCaller, choose: Choose) -> None:
    """Pass the request of an exchange on, and its response back, by way of the inspector that is chosen.

    Raises GatewayError if the upstream fails. If a part of the response was written by then, the exchange stays
    unfinished, which cuts the client's connection.
    """
    request, timeout_s = exchange.request, None if exchange.waits_for_news else caller.upstream.response_timeout
    if request.up_bytes < 0:
        request.refused_trailers = caller.route.identity_headers
    method, head = request.head.method, caller.up(request)
    async with Call(caller.pool, method, exchange) as call:
        if request.body.is_read:
            response = await call.send_all(*request.upward(head), timeout_s, method in SAFE_METHODS)
            head = b""  # it is not to stay for as long as the answer comes
            request.release()
            await _respond(exchange, caller, choose, response)
        else:
            sending, head = asyncio.ensure_future(_send_up(request, head, call)), b""
            await _pass_while_sending(exchange, sending, call, timeout_s, partial(_respond, exchange, caller, choose))


async def _send_up(request: ClientRequest, head: bytes, call: Call) -> None:
    """Send a request as it comes, behind `head`, as long as the upstream reads it."""
    is_chunked = request.up_bytes < 0
    frame = chunk if is_chunked else bytes
    begun, request.taken = request.taken + request.body.take(), b""
    sent_bytes = len(begun)
    await call.send(head + frame(begun))
    begun = head = b""
    request.release()
    while piece := await request.body.read():
        if call.connection.lost:
            return
        sent_bytes += len(piece)
        await call.send(frame(piece))
    if not is_chunked:
        request.check_length(sent_bytes)
    await call.send(request.last_chunk if is_chunked else b"", last=True)


async def _pass_while_sending(
    exchange: Exchange,
    sending: asyncio.Task[None],
    call: Call,
    timeout_s: float | None,
    respond: Callable[[Response], Coroutine[None, None, None]],
) -> None:
    """Send a body as it comes from the client; the response may begin, and even end, before the body has ended."""
    answered: asyncio.Future[Any] = call.connection.head(None)
    tasks: list[asyncio.Future[Any]] = [sending, answered]
    try:
        first: float | None = timeout_s if exchange.request.waits and timeout_s else None
        await asyncio.wait({sending, answered}, timeout=first, return_when=asyncio.FIRST_COMPLETED)
        if first and exchange.request.waits and not answered.done():
            raise UpstreamTimeout(f"no word from the upstream within {timeout_s:g} s")
        if not (answered.done() or sending.done()):
            await asyncio.wait({sending, answered}, return_when=asyncio.FIRST_COMPLETED)
        if not answered.done():
            sending.result()
            await call.connection.head(timeout_s)  # from now on that is the upstream's
        responding = asyncio.ensure_future(respond(call.came(answered.result())))
        tasks.append(responding)
        await asyncio.wait({sending, responding}, return_when=asyncio.FIRST_COMPLETED)
        if not responding.done():
            sending.result()  # raises: a request that broke off ends its answer too
        await responding
        while not (sending.done() or call.connection.lost):  # the upstream may want the rest all the same
            await asyncio.wait({sending}, timeout=1.0)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _respond(exchange: Exchange, caller: HttpCaller, choose: Choose, response: Response) -> None:
    """Write the response to the client as it comes."""
    inspector, kind, is_whole = choose(response), response.head.kind, response.body.is_whole
    exchange.response.streams = kind == EVENT_STREAM and exchange.request.head.method == b"GET"
    if kind == EVENT_STREAM and not is_whole:
        exchange.connection.limit_stalls(False)  # no time limit on a stream that is open (DESIGN 3.4)
    if inspector is None or response.framing == "none":
        through = exchange.note_error if kind == JSON else bytes
        if is_whole:
            return _pass_whole(exchange, response, through(response.body.take()))
        return await _pump(exchange, response, Tap(through))
    begun, limits = b"", caller.pool.limits
    if is_whole and not inspector.edits and b"content-encoding" not in response.head.headers.by_name:
        begun = response.body.take()
        if inspected_at_once(inspector, begun, kind, limits):
            return _pass_whole(exchange, response, begun)
    reservation, tap = Reservation(exchange.connection.buffers), Tap()
    try:
        tap = await tap_for(inspector, response, limits, reservation)
        await _pump(exchange, response, tap._replace(begun=begun) if begun else tap)
    except GatewayError:
        if (rest := tap.rest()) or kind != EVENT_STREAM:
            inspector.unread(rest)  # it was cut short
        raise
    finally:
        reservation.close()


def _pass_whole(exchange: Exchange, response: Response, body: bytes) -> None:
    exchange.response.pass_on(response)
    exchange.response.send(body)
    exchange.response.end(response.body.trailers)


async def _pump(exchange: Exchange, response: Response, tap: Tap) -> None:
    """Send the head, and the body as `tap` returns it."""
    through, end, begun, exchange.response.is_edited, more, _ = tap
    exchange.response.pass_on(response)
    body = response.body
    while True:
        piece = begun or body.take()
        if not piece and not body.is_whole:
            exchange.response.flush()
            await exchange.connection.drain()
            piece = await body.read()
        if not piece:
            break
        begun = b""
        exchange.response.send(through(piece))
        while (part := more()) is not None:
            exchange.response.flush()
            await exchange.connection.drain()
            await asyncio.sleep(0)
            exchange.response.send(part)
    if rest := end():
        exchange.response.send(rest)
    exchange.response.end(body.trailers)
