"""The byte pump: a request goes up and its response comes down, unchanged, while an `Inspector` may see the messages.

In: an `Exchange`, with the part of its body that was read already, and its caller. Out: the upstream's response,
written to the client as it arrives. Always: bytes, order, case and framing are the sender's (DESIGN 3.2); a body that
broke off is never ended as if it were whole (DESIGN 3.5); an inspector sees every message before the client can act on
it, and only one that edits delays anything.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, TypeAlias

from gateway.downstream.exchange import ClientRequest, Exchange
from gateway.errors import GatewayError, UpstreamTimeout
from gateway.http.header_fields import EVENT_STREAM, JSON
from gateway.relay.body_taps import Inspector, Tap, inspected_at_once, tap_for
from gateway.relay.http_caller import HttpCaller
from gateway.transport.body_stream import Response, chunk
from gateway.transport.memory_budget import Reservation
from gateway.upstream.connection_pool import Call

SAFE_METHODS: Final = frozenset({b"GET", b"HEAD", b"OPTIONS", b"TRACE"})


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
    async with caller.pool.call(method, exchange) as call:
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
        if call.is_lost:
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
        responding = asyncio.ensure_future(respond(answered.result()))
        tasks.append(responding)
        await asyncio.wait({sending, responding}, return_when=asyncio.FIRST_COMPLETED)
        if not responding.done():
            sending.result()  # raises: a request that broke off ends its answer too
        await responding
        while not (sending.done() or call.is_lost):  # the upstream may want the rest all the same
            await asyncio.wait({sending}, timeout=1.0)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _respond(exchange: Exchange, caller: HttpCaller, choose: Choose, response: Response) -> None:
    """Write the response to the client as it comes."""
    inspector, kind = choose(response), response.head.kind
    exchange.response.streams = kind == EVENT_STREAM and exchange.request.head.method == b"GET"
    if kind == EVENT_STREAM and not response.body.is_whole:
        exchange.connection.limit_stalls(False)  # no time limit on a stream that is open (DESIGN 3.4)
    if inspector is None or response.framing == "none":
        await _pump(exchange, response, Tap(exchange.note_error if kind == JSON else bytes))
        return
    begun, limits = b"", caller.pool.limits
    if response.body.is_whole and not inspector.edits and b"content-encoding" not in response.head.headers.by_name:
        begun = response.body.take()
        if inspected_at_once(inspector, begun, kind, limits):
            await _pump(exchange, response, Tap(begun=begun))
            return
    reservation = Reservation(exchange.connection.buffers)
    try:
        tap = await tap_for(inspector, response, limits, reservation)
        await _pump(exchange, response, tap._replace(begun=begun) if begun else tap)
    except GatewayError:
        if kind != EVENT_STREAM:
            inspector.unread()  # it was cut short
        raise
    finally:
        reservation.close()


async def _pump(exchange: Exchange, response: Response, tap: Tap) -> None:
    """Send the head, and the body as `tap` returns it."""
    through, end, begun, exchange.response.is_edited, more = tap
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
