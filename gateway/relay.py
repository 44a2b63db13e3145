"""The byte pump: a request goes up and its response comes down as it is, with a tap for who may look at it.

In: an `Exchange`, the request's head and what of its body was read already. Out: the upstream's response, written to
the client as it arrives. Always: bytes, order, case and framing of what passes are the sender's (DESIGN 3.2); a body
that broke off is never ended as if it were whole (DESIGN 3.5); a `Watch` sees every message before the client can act
on it, and only one that edits holds anything up.
"""

import asyncio
import logging
import zlib
from collections.abc import Callable, Container, Sequence
from typing import Any, Final, Protocol

from gateway.buffers import SMALL_BYTES_MAX, Account
from gateway.config import Limits
from gateway.core import sse
from gateway.core.headers import Headers
from gateway.errors import GatewayError, UpstreamBroken, UpstreamTimeout
from gateway.listener import Exchange
from gateway.upstream import Call, Pool, Response

log = logging.getLogger("taskgate.relay")

SAFE_METHODS: Final = frozenset({b"GET", b"HEAD", b"OPTIONS", b"TRACE"})
EVENT_STREAM: Final = b"text/event-stream"
JSON: Final = b"application/json"
_GZIP_OR_ZLIB: Final = zlib.MAX_WBITS | 32  # told by the first bytes
_INFLATED_AT_ONCE: Final = 16 * 1024  # what is behind a member is copied
_INFLATED_RATIO_MAX: Final = 32  # bytes unpacked from one, of a stream without end; JSON gives 5 to 20


class Watch(Protocol):
    """Who looks at the messages of one response; of one of 400 or above, at its head alone."""

    reads_json: bool
    """Whether a JSON body is of interest; event streams always are."""
    edits: bool
    """Whether `message` may return other bytes than it was given."""
    marks: Sequence[bytes]
    """One of these is in every event of a stream that may hold a message of interest."""

    def head(self, response: Response) -> None:
        """The response's head has come."""

    def message(self, data: bytes) -> bytes:
        """One message; returns it as the client is to see it."""

    def endpoint(self, data: bytes) -> bytes:
        """The address of an `endpoint` event (HTTP+SSE); returns it as the client is to see it."""

    def unread(self) -> None:
        """A message passed that could not be read: too large, or in an encoding that the gateway does not know."""


class Request:
    """A request as it goes up: its target and header fields, and as much of its body as was read already."""

    __slots__ = ("body", "headers", "method", "refused_trailers", "target", "whole")

    def __init__(
        self,
        method: bytes,
        target: bytes,
        headers: Headers,
        body: bytes,
        whole: bool,
        refused_trailers: Container[bytes] = (),
    ) -> None:
        self.method = method
        self.target = target
        self.headers = headers
        self.body = body
        self.whole = whole
        self.refused_trailers = refused_trailers  # in lower case, beside those that never go on

    def head(self) -> bytes:
        """The request line and header fields as bytes."""
        return b"%b %b HTTP/1.1\r\n%b\r\n" % (self.method, self.target, self.headers.block())

    @property
    def chunked(self) -> bool:
        return b"transfer-encoding" in self.headers

    def check_length(self, sent_bytes: int) -> None:
        """Raise GatewayError if a body of so many bytes is not what the head says.

        That would be a fault of this gateway's: a server takes what is missing from the next client's request.
        """
        stated_bytes = int(self.headers.get(b"content-length") or 0)
        if not self.chunked and sent_bytes != stated_bytes:
            log.error("a body is not of its length", extra={"bytes": sent_bytes, "content_length": stated_bytes})
            raise GatewayError(f"the body has {sent_bytes} bytes, its Content-Length says {stated_bytes}")


async def relay(
    exchange: Exchange, request: Request, pool: Pool, timeout_s: float | None, watch: Watch, limits: Limits
) -> None:
    """Pass `request` on and its response back.

    Raises GatewayError if the upstream fails; where something was written to the client by then, the exchange is left
    unfinished, which cuts the client's connection.
    """
    async with pool.call(request.method, exchange) as call:
        if request.whole:
            request.check_length(len(request.body))
            again = request.method in SAFE_METHODS
            response = await call.send_all(*_whole(request, exchange), timeout_s, again)
            request.body = b""
            exchange.release()
            await _respond(exchange, response, watch, limits)
        else:
            await _pass_while_sending(exchange, request, call, timeout_s, watch, limits)


def _whole(request: Request, exchange: Exchange) -> tuple[bytes, bytes]:
    """The bytes of a request, in two parts where joining them would copy much."""
    if request.chunked:
        last = _last_chunk(exchange.body.trailers, request.refused_trailers)
        return request.head() + _chunk(request.body) + last, b""
    if len(request.body) > SMALL_BYTES_MAX:
        return request.head(), request.body
    return request.head() + request.body, b""


async def _pass_while_sending(
    exchange: Exchange, request: Request, call: Call, timeout_s: float | None, watch: Watch, limits: Limits
) -> None:
    """Send a body as it comes from the client; the response may begin, and even end, before that does."""
    sending = asyncio.ensure_future(_send(exchange, request, call))
    head = asyncio.ensure_future(call.head(None))
    tasks: list[asyncio.Future[Any]] = [sending, head]
    try:
        first: float | None = timeout_s if exchange.waits and timeout_s else None
        await asyncio.wait({sending, head}, timeout=first, return_when=asyncio.FIRST_COMPLETED)
        if first and exchange.waits and not head.done():
            raise UpstreamTimeout(f"no word from the upstream within {timeout_s:g} s")
        if not (head.done() or sending.done()):
            await asyncio.wait({sending, head}, return_when=asyncio.FIRST_COMPLETED)
        if not head.done():
            sending.result()
            await asyncio.wait({head}, timeout=timeout_s or None)
            if not head.done():
                raise UpstreamTimeout(f"no answer from the upstream within {timeout_s:g} s")
        response = head.result()
        responding = asyncio.ensure_future(_respond(exchange, response, watch, limits))
        tasks.append(responding)
        await asyncio.wait({sending, responding}, return_when=asyncio.FIRST_COMPLETED)
        if not responding.done():
            sending.result()  # a request that broke off ends its answer too
            await asyncio.wait({responding})
        responding.result()
        while not (sending.done() or call.is_lost):  # it may yet take in the rest of what it has answered already
            await asyncio.wait({sending}, timeout=1.0)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _send(exchange: Exchange, request: Request, call: Call) -> None:
    frame = _chunk if request.chunked else _identity
    begun = request.body + exchange.body.take()
    sent_bytes = len(begun)
    await call.send(request.head() + frame(begun))
    begun = request.body = b""
    exchange.release()
    while piece := await exchange.body.read():
        if call.is_lost:
            return  # whatever it has answered, it wants no more
        sent_bytes += len(piece)
        await call.send(frame(piece))
    request.check_length(sent_bytes)
    last = _last_chunk(exchange.body.trailers, request.refused_trailers) if request.chunked else b""
    await call.send(last, last=True)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


def _last_chunk(trailers: Headers, refused: Container[bytes] = ()) -> bytes:
    return b"0\r\n%b\r\n" % (trailers.passable_trailers(refused).block() if trailers else b"")


def _identity(data: bytes) -> bytes:
    return data


# ---- the response ----


async def _respond(exchange: Exchange, response: Response, watch: Watch, limits: Limits) -> None:
    """Write the response to the client as it comes, by way of `watch`."""
    watch.head(response)
    kind = response.headers.media_type()
    stream = kind == EVENT_STREAM
    exchange.connection.streaming = stream and exchange.method == b"GET"
    if stream:
        exchange.connection.limit_stalls(False)  # no time limit on a stream that is open (DESIGN 3.4)
    looked_at = response.status < 400 and (stream or (watch.reads_json and kind == JSON))
    if not looked_at or response.framing == "none":
        await _pump(exchange, response, _pass)
        return
    try:
        decode = decoder(response.headers, limits.inspected_body_bytes_max)
    except Unreadable:
        await _pump(exchange, response, _unread(watch))
        return
    account = Account(exchange.connection.buffers)
    try:
        if stream:
            tap = _EventTap(watch, decode, limits.inspected_event_bytes_max, account)
            if watch.edits:
                await _pump(exchange, _reframed(response), tap.edit, tap.rest)
            else:
                await _pump(exchange, response, tap.look)
        elif watch.edits:
            await _edit_body(exchange, response, watch, decode, limits.inspected_body_bytes_max, account)
        else:
            copy = _BodyTap(watch, decode, limits.inspected_body_bytes_max, account, response)
            await _pump(exchange, response, copy.look, copy.end)
    finally:
        account.close()


async def _pump(
    exchange: Exchange,
    response: Response,
    through: Callable[[bytes], bytes],
    end: Callable[[], bytes] = bytes,
    begun: bytes = b"",
) -> None:
    """Send the head, then each piece of the body the moment it comes, as `through` returns it, then what `end` does."""
    ready, frame = _head(exchange, response)  # ready: what can be written, in as few writes as can be
    body = response.body
    while True:
        piece = begun or body.take()
        if not piece and not body.complete:
            exchange.write(ready)
            ready = b""
            await exchange.drain()
            piece = await body.read()
        if not piece:
            break
        begun = b""
        if passed := through(piece):
            ready += frame(passed)
        if ready and not body.complete:
            exchange.write(ready)
            ready = b""
            await exchange.drain()
    if rest := end():
        ready += frame(rest)
    if frame is _chunk:
        ready += _last_chunk(body.trailers)
    if ready:
        exchange.write(ready)
    exchange.finish()


def _head(exchange: Exchange, response: Response) -> tuple[bytes, Callable[[bytes], bytes]]:
    """The response's head as bytes, and how its body is to be framed."""
    exchange.status = response.status
    exchange.keep_alive &= not exchange.connection.is_ending
    headers = response.headers.end_to_end()
    if not exchange.minor:
        headers = headers.without(b"transfer-encoding")  # HTTP/1.0 knows none (RFC 9112, 6.1)
    frame = _identity
    if response.framing == "chunked" and exchange.minor:
        frame = _chunk
    elif response.framing in ("chunked", "close"):
        exchange.keep_alive = False
        exchange.ends_with_connection = True
    if not exchange.keep_alive:
        headers.add(b"Connection", b"close")
    return b"HTTP/1.1 %d %b\r\n%b\r\n" % (response.status, response.reason, headers.block()), frame


async def _edit_body(
    exchange: Exchange, response: Response, watch: Watch, decode: "Decode", bytes_max: int, account: Account
) -> None:
    """Hold a JSON body until it is whole, and send it as `watch` returns it; one that is too large passes unread.

    Raises Overloaded where there is no room to hold it.
    """
    held = bytearray()
    while piece := await response.body.read():
        held += piece
        if len(held) > bytes_max:
            await _pump(exchange, response, _unread(watch), begun=bytes(held))
            return
        account.hold(len(held))
    await _send_edited(exchange, response, watch, decode, bytes(held))


async def _send_edited(exchange: Exchange, response: Response, watch: Watch, decode: "Decode", held: bytes) -> None:
    try:
        plain = decode(held) + decode(b"")
    except Unreadable:
        watch.unread()
        plain = edited = held
    else:
        edited = watch.message(plain)
    if edited is not plain:
        held = edited
        response.headers = response.headers.without(b"content-encoding")
        if response.framing == "length":
            response.headers = response.headers.with_value(b"content-length", b"%d" % len(held))
    await _pump(exchange, response, _pass, begun=held)


def _reframed(response: Response) -> Response:
    """The response framed for a body that is edited on its way, and is not encoded when it has been."""
    response.headers = response.headers.without(b"content-encoding")
    if response.framing == "length":
        response.headers = response.headers.without(b"content-length")
        response.headers.add(b"Transfer-Encoding", b"chunked")
        response.framing = "chunked"
    return response


# ---- taps ----


def _pass(piece: bytes) -> bytes:
    return piece


def _unread(watch: Watch) -> Callable[[bytes], bytes]:
    """Passes what cannot be read; each piece of it may say something, however long after the one before."""

    def through(piece: bytes) -> bytes:
        watch.unread()
        return piece

    return through


class Unreadable(Exception):
    """A body in an encoding that the gateway does not know, or that is not what it says, or is too large unpacked."""


Decode = Callable[[bytes], bytes]


def decoder(headers: Headers, bytes_max: int) -> Decode:
    """What takes the `Content-Encoding` off a body, piece by piece; an empty piece says that this was all.

    One coding is taken off, and no more: `gzip, gzip` is Unreadable, in one header line or in two.
    A piece gives `bytes_max` at most, and all of them that and `_INFLATED_RATIO_MAX` times their own bytes.
    It and its result raise Unreadable, at the end too if what was encoded stops short.
    """
    codings = headers.tokens(b"content-encoding") or [b"identity"]
    if codings == [b"identity"]:
        return _pass
    if len(codings) > 1 or codings[0] not in (b"gzip", b"x-gzip", b"deflate"):
        raise Unreadable(b", ".join(codings))
    inflate = zlib.decompressobj(_GZIP_OR_ZLIB)
    begun, room = False, bytes_max

    def decode(piece: bytes) -> bytes:
        nonlocal inflate, begun, room
        if not piece and begun and not inflate.eof:
            raise Unreadable("it stops short")
        begun = begun or bool(piece)
        plain = bytearray()
        room += len(piece) * _INFLATED_RATIO_MAX
        most = min(room, bytes_max)
        for start in range(0, len(piece), _INFLATED_AT_ONCE):
            packed = piece[start : start + _INFLATED_AT_ONCE]
            while packed:
                if inflate.eof:  # a stream may be of several members (RFC 1952, 2.2)
                    inflate = zlib.decompressobj(_GZIP_OR_ZLIB)
                try:
                    plain += inflate.decompress(packed, most + 1 - len(plain))
                except zlib.error as error:
                    raise Unreadable(str(error)) from None
                if len(plain) > most:
                    raise Unreadable(f"more than {most} bytes unpacked from {len(piece)}")
                packed = inflate.unused_data
        room -= len(plain)
        return bytes(plain)

    return decode


class _BodyTap:
    """Looks at a copy of a JSON body: as soon as its last byte has come, before that byte is passed on."""

    def __init__(self, watch: Watch, decode: Decode, bytes_max: int, account: Account, response: Response) -> None:
        self._watch = watch
        self._decode = decode
        self._bytes_max = bytes_max
        self._account = account
        self._copy: bytearray | None = bytearray()
        self._length = int(response.headers.get(b"content-length") or -1)

    def look(self, piece: bytes) -> bytes:
        if self._copy is None:
            self._watch.unread()
            return piece
        self._copy += piece
        if len(self._copy) > self._bytes_max or not self._account.has_room(len(self._copy)):
            self._copy = None
            self._account.close()
            self._watch.unread()
            return piece
        if len(self._copy) > SMALL_BYTES_MAX:
            self._account.set(len(self._copy))
        if len(self._copy) == self._length:
            self.end()
        return piece

    def end(self) -> bytes:
        if self._copy is not None:
            copy, self._copy = bytes(self._copy), None
            try:
                self._watch.message(self._decode(copy))
            except Unreadable:
                self._watch.unread()
        return b""


class _EventTap:
    """Looks at the events of a stream, and edits them if its watch does."""

    def __init__(self, watch: Watch, decode: Decode, event_bytes_max: int, account: Account) -> None:
        self._watch = watch
        self._decode: Decode | None = decode
        self._parser = sse.Parser(event_bytes_max, watch.marks)
        self._event_bytes_max = event_bytes_max
        self._account = account

    def look(self, piece: bytes) -> bytes:
        """The piece as it came, once every event that it completes was looked at."""
        if self._decode is None:
            self._watch.unread()
            return piece
        try:
            self._events(self._decode(piece))
        except Unreadable:
            self._decode = None
            self._watch.unread()
        return piece

    def edit(self, piece: bytes) -> bytes:
        """The events that the piece completes, as the watch returns them, and comments that no event holds up."""
        if self._decode is None:
            raise UpstreamBroken("the event stream's encoding broke off")
        try:
            return self._events(self._decode(piece)) + self._parser.take_comments()
        except Unreadable as error:
            self._decode = None
            raise UpstreamBroken(f"the event stream cannot be decoded: {error}") from None

    def rest(self) -> bytes:
        """What came of an event that never ended. Raises UpstreamBroken if the stream's encoding did not end."""
        return self.edit(b"") + self._parser.rest()

    def _events(self, plain: bytes) -> bytes:
        out, unread, parser = [], False, self._parser
        parser.event_bytes_max = min(self._event_bytes_max, self._account.room_bytes)
        events = parser.feed(plain)
        if parser.pending_bytes > SMALL_BYTES_MAX or self._account.held_bytes:
            self._account.set(parser.pending_bytes)
        for event in events:
            data = event.data if event.whole and event.marked else None
            seen = data
            if not event.whole or (data is not None and data.lstrip().startswith(b"[")):
                unread = True  # too much to read, or a batch (2025-03-26), which may have done anything
            elif data is not None and event.is_message:
                seen = self._watch.message(data)
            elif data is not None and event.is_endpoint:
                seen = self._watch.endpoint(data)
            out.append(event.raw if seen is None or seen is data else event.with_data(seen))
        if unread:
            self._watch.unread()  # once, however many there were
        return b"".join(out)
