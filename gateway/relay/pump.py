"""The byte pump: a request goes up and its response comes down, unchanged, while a `Watch` may inspect the messages.

In: an `Exchange`, with the part of its body that was read already, and the head that goes up. Out: the upstream's
response, written to the client as it arrives. Always: bytes, order, case and framing are the sender's (DESIGN 3.2); a
body that broke off is never ended as if it were whole (DESIGN 3.5); a watch sees every message before the client can
act on it, and only a watch that edits delays anything.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from gateway.config import Limits
from gateway.downstream.exchange import Exchange
from gateway.downstream.request import ClientRequest
from gateway.errors import GatewayError, UpstreamTimeout
from gateway.http.codings import Decode, Unreadable, decoder
from gateway.http.fields import EVENT_STREAM, Headers
from gateway.http.head_cache import HeadBytes
from gateway.relay.taps import BodyTap, EventTap, Inspector, Watch
from gateway.transport.body import chunk, last_chunk
from gateway.transport.memory_budget import SMALL_BYTES_MAX, Reservation
from gateway.upstream.connection_pool import Call, Pool
from gateway.upstream.server_connection import Response

log = logging.getLogger("taskgate.relay")

SAFE_METHODS: Final = frozenset({b"GET", b"HEAD", b"OPTIONS", b"TRACE"})
JSON: Final = b"application/json"


def request_head(method: bytes, target: bytes, headers: Headers) -> bytes:
    return b"%b %b HTTP/1.1\r\n%b\r\n" % (method, target, headers.block())


async def relay(
    exchange: Exchange, head: bytes, pool: Pool, timeout_s: float | None, watch: Watch, limits: Limits
) -> None:
    """Pass the request of an exchange on, behind `head`, and its response back.

    Raises GatewayError if the upstream fails. If a part of the response was written by then, the exchange stays
    unfinished, which cuts the client's connection.
    """
    async with pool.call(exchange.request.method, exchange) as call:
        if exchange.request.body.is_read:
            again = exchange.request.method in SAFE_METHODS
            response = await call.send_all(*_whole(exchange.request, head), timeout_s, again)
            head = b""
            exchange.request.release()
            await _respond(exchange, response, watch, limits)
        else:
            sending = asyncio.ensure_future(_send(exchange.request, head, call))
            head = b""
            await _pass_while_sending(exchange, sending, call, timeout_s, watch, limits)


def _whole(request: ClientRequest, head: bytes) -> tuple[bytes, bytes]:
    """The bytes of a request, in two parts if joining them would copy much."""
    body = request.take()
    if request.up_bytes < 0:
        return head + chunk(body) + last_chunk(request.body.trailers, request.refused_trailers), b""
    _check_length(request, len(body))
    if len(body) > SMALL_BYTES_MAX:
        return head, body
    return head + body, b""


def _check_length(request: ClientRequest, sent_bytes: int) -> None:
    """Raise GatewayError if the body is not as long as its head says: the next client's request would lose the rest."""
    if sent_bytes != request.up_bytes:
        log.error("a body differs from its length", extra={"bytes": sent_bytes, "content_length": request.up_bytes})
        raise GatewayError(f"the body has {sent_bytes} bytes, its Content-Length says {request.up_bytes}")


async def _pass_while_sending(
    exchange: Exchange, sending: asyncio.Task[None], call: Call, timeout_s: float | None, watch: Watch, limits: Limits
) -> None:
    """Send a body as it comes from the client; the response may begin, and even end, before the body has ended."""
    answered = asyncio.ensure_future(call.head(None))
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
            await asyncio.wait({answered}, timeout=timeout_s or None)
            if not answered.done():
                raise UpstreamTimeout(f"no answer from the upstream within {timeout_s:g} s")
        response = answered.result()
        responding = asyncio.ensure_future(_respond(exchange, response, watch, limits))
        tasks.append(responding)
        await asyncio.wait({sending, responding}, return_when=asyncio.FIRST_COMPLETED)
        if not responding.done():
            sending.result()  # raises: a request that broke off ends its answer too
            await asyncio.wait({responding})
        responding.result()
        while not (sending.done() or call.is_lost):  # the upstream may want the rest all the same
            await asyncio.wait({sending}, timeout=1.0)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _send(request: ClientRequest, head: bytes, call: Call) -> None:
    is_chunked = request.up_bytes < 0
    frame = chunk if is_chunked else bytes
    begun = request.take() + request.body.take()
    sent_bytes = len(begun)
    await call.send(head + frame(begun))
    begun = head = b""
    request.release()
    while piece := await request.body.read():
        if call.is_lost:
            return  # the upstream reads no more, whatever it has answered
        sent_bytes += len(piece)
        await call.send(frame(piece))
    last = b""
    if is_chunked:
        last = last_chunk(request.body.trailers, request.refused_trailers)
    else:
        _check_length(request, sent_bytes)
    await call.send(last, last=True)


# ---- the response ----


async def _respond(exchange: Exchange, response: Response, watch: Watch, limits: Limits) -> None:
    """Write the response to the client as it comes, by way of `watch`."""
    kind = response.head.kind
    inspector = watch.head(response, kind)
    stream = kind == EVENT_STREAM
    exchange.response.streams = stream and exchange.request.method == b"GET"
    if stream and not response.body.is_whole:
        exchange.connection.limit_stalls(False)  # no time limit on a stream that is open (DESIGN 3.4)
    if inspector is None or response.framing == "none":
        await _pump(exchange, response, exchange.note_error if kind == JSON else bytes)
        return
    try:
        bytes_max = limits.inspected_body_bytes_max
        decode = decoder(response.head.headers, bytes_max if stream else min(bytes_max, inspector.hold.bytes_max))
    except Unreadable:
        await _pump(exchange, response, _unread(inspector))
        return
    reservation = Reservation(exchange.connection.buffers)
    try:
        if stream:
            tap = EventTap(inspector, decode, limits.inspected_event_bytes_max, reservation)
            if inspector.edits:
                exchange.response.is_edited = True
                await _pump(exchange, _reframed(response, decode), tap.edit, tap.rest)
            else:
                await _pump(exchange, response, tap.inspect, tap.end)
        elif inspector.edits:
            await _edit_body(exchange, response, inspector, decode, limits.inspected_body_bytes_max, reservation)
        else:
            copy = BodyTap(inspector, decode, limits.inspected_body_bytes_max, reservation, response)
            await _pump(exchange, response, copy.inspect, copy.end)
    except GatewayError:
        if not stream:
            inspector.unread()  # it was cut short
        raise
    finally:
        reservation.close()


async def _pump(
    exchange: Exchange,
    response: Response,
    through: Callable[[bytes], bytes],
    end: Callable[[], bytes] = bytes,
    begun: bytes = b"",
) -> None:
    """Send the head, each piece of the body as `through` returns it (`bytes`: as it came), and what `end` returns."""
    _begin(exchange, response)
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
        if not body.is_whole:
            exchange.response.flush()
            await exchange.connection.drain()
    if rest := end():
        exchange.response.send(rest)
    exchange.response.end(body.trailers)


def _begin(exchange: Exchange, response: Response) -> None:
    """Prepare the head for the client: one that came before goes out as it did then."""
    head = response.head
    is_usual = head.is_kept and not response.is_changed and exchange.response.is_usual
    if is_usual and head.passed is not None and (before := head.passed.of(response.body_bytes)):
        exchange.response.begin_as(response.status, response.framing, before)
        return
    written = exchange.response.begin(response.status, response.reason, response.headers.end_to_end(), response.framing)
    if is_usual:
        head.passed = HeadBytes(written, response.body_bytes)


async def _edit_body(
    exchange: Exchange,
    response: Response,
    inspector: Inspector,
    decode: Decode,
    bytes_max: int,
    reservation: Reservation,
) -> None:
    """Hold a JSON body until it is whole, and send it as `inspector` returns it, or unread. Raises Overloaded."""
    held, whole = bytearray(), False
    try:
        async with asyncio.timeout(inspector.hold.seconds):
            while piece := await response.body.read():
                held += piece
                if len(held) > min(bytes_max, inspector.hold.bytes_max):
                    break
                reservation.hold(len(held))
            else:
                whole = True
    except (TimeoutError, GatewayError):
        if inspector.hold.seconds is None:
            raise
    if whole:
        await _send_edited(exchange, response, inspector, decode, bytes(held))
    else:
        await _pump(exchange, response, _unread(inspector), begun=bytes(held))


async def _send_edited(
    exchange: Exchange, response: Response, inspector: Inspector, decode: Decode, held: bytes
) -> None:
    try:
        plain = decode(held) + decode(b"")
    except Unreadable:
        inspector.unread()
        plain = edited = held
    else:
        edited = inspector.message(plain)
    if edited is not plain:
        held, exchange.response.is_edited = edited, True
        response.headers = _decoded(response.headers, decode)
        if response.framing == "length":
            response.headers = response.headers.with_value(b"content-length", b"%d" % len(held))
    await _pump(exchange, response, bytes, begun=held)


def _decoded(headers: Headers, decode: Decode) -> Headers:
    """The fields for a body that `decode` has decoded. `Content-Encoding: identity` still says what is true."""
    return headers if decode is bytes else headers.without(b"content-encoding")


def _reframed(response: Response, decode: Decode) -> Response:
    """The response, framed for a body that is decoded and edited on its way."""
    response.headers = _decoded(response.headers, decode)
    if response.framing == "length":
        framed = response.headers.without(b"content-length")
        response.headers = framed.with_field(b"Transfer-Encoding", b"chunked")
        response.framing = "chunked"
    return response


def _unread(inspector: Inspector) -> Callable[[bytes], bytes]:
    """A function that passes pieces unread. The inspector is told at each one: much time may pass between two."""

    def through(piece: bytes) -> bytes:
        inspector.unread()
        return piece

    return through
