"""Peers that stop in the middle: clients that send half a request, peers that read nothing or have vanished."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from gateway.transport.base_connection import Wire
from tests.launch import Gateways
from tests.relay.messages import LAST_CHUNK, call, chunk, event, filtered, in_pages, request, response, stream, task
from tests.relay.rig import Rig, Server, failed, meant, rig_with

JSON = b"Content-Type: application/json"
TEXT = b"Content-Type: text/plain"


IMPATIENT = {"stall_timeout": "1s"}


@pytest.fixture
async def impatient(gateways: Gateways) -> AsyncIterator[Rig]:
    """With peers that stop in the middle."""
    async with rig_with(gateways, limits=IMPATIENT) as rig:
        yield rig


# ---- a client that sends half ----


HALVES = [(b"Content-Length: 100", b"0123456789"), (b"Transfer-Encoding: chunked", chunk(b"0123456789"))]


async def test_half_a_body_does_not_hold_its_connection_for_ever(impatient: Rig) -> None:
    """A body's arrival once had no deadline. Messages and text, by length and in chunks, wait at once."""
    for one in [
        await impatient.client(request(b"POST", fields=[kind, how]), half)
        for kind in (JSON, TEXT)
        for how, half in HALVES
    ]:
        assert (await one.response()).status == 408
        assert await one.ends() == "fin"
    await impatient.gateway.becomes("connections", 0)
    for peer in impatient.upstream.connections:
        await peer.ends()


# ---- an upstream that takes nothing ----


async def test_an_upload_that_the_upstream_stops_reading_is_504(impatient: Rig) -> None:
    """The wait for the upstream to read more once had no end."""
    one = await impatient.client()
    pieces = [b"x" * (1 << 20)] * 64
    head = request(b"PUT", fields=[TEXT, b"Content-Length: %d" % (64 << 20)])
    sending = asyncio.create_task(one.send(head, *pieces))
    peer = await impatient.upstream.head()
    peer.pause()
    assert (await one.response()).status == 504
    sending.cancel()
    one.reset()
    await impatient.gateway.becomes("connections", 0)


# ---- a client that takes nothing ----


@pytest.mark.parametrize("last", [b"", b"Connection: close"], ids=["keep-alive", "close"])
async def test_a_client_that_never_reads_its_finished_answer_is_cut(impatient: Rig, last: bytes) -> None:
    """Its connection once waited for ever for the answer to go out, whether closing or not."""
    impatient.serve(Server(in_pages([task(f"t-{at}", statusMessage="x" * (3 << 20)) for at in range(6)])))
    one = await impatient.client()
    one.pause()
    await one.send(impatient.post(filtered(), *[last] * bool(last)))
    await impatient.gateway.until(
        lambda now: any(name == "taskgate_requests_total" for name, _ in now), "the answer is counted"
    )
    await impatient.gateway.becomes("connections", 0)


async def test_a_client_that_stops_reading_in_the_middle_is_cut(impatient: Rig) -> None:
    """And so is the upstream that it kept waiting."""
    one, peer = await impatient.begin(request())
    one.pause()
    size = 64 << 20
    pouring = asyncio.create_task(peer.send(response(bytes(size))))
    await peer.ends()
    await impatient.gateway.becomes("connections", 0)
    await asyncio.gather(pouring, return_exceptions=True)


# ---- an upstream that stops in the middle of its answer ----

LENGTH, CHUNKED = b"Content-Length: 100000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n"
HEADS = {"by length": LENGTH + b"{", "in chunks": CHUNKED + chunk(b"{"), "to the end": b"Connection: close\r\n\r\n{"}


@pytest.mark.parametrize("method", ["ping", "tasks/get", "tasks/result"])
async def test_an_upstream_that_stops_in_the_middle_of_a_body_is_cut(impatient: Rig, method: str) -> None:
    """It held its client, and one of `requests_max` places, for ever. Bodies of all framings wait at once."""
    waiting = [(name, *await impatient.begin(impatient.post(call(method, taskId="t")))) for name in HEADS]
    for name, _, peer in waiting:
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n" + HEADS[name])
    for name, one, peer in waiting:
        assert not (await one.response()).whole, name
        await peer.ends()
    await impatient.gateway.becomes("connections", 0)


PART = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n" + LENGTH + b'{"jsonrpc"'
HALF_ANSWERS = {
    "held to be edited": (call("initialize", 7), PART),
    "a head": (call("tasks/result", 7, taskId="t"), PART[:30]),  # it may wait for ever, but not for the rest of a head
    "a page of a crawl": (filtered(7), PART),  # long before `index.crawl_timeout`
}


@pytest.mark.parametrize("what", HALF_ANSWERS)
async def test_what_the_gateway_holds_of_an_answer_that_stops_is_504(gateways: Gateways, what: str) -> None:
    message, said = HALF_ANSWERS[what]
    async with rig_with(gateways, limits=IMPATIENT, index={"crawl_timeout": "1h"}) as rig:
        one, peer = await rig.begin(rig.post(message))
        await peer.send(said)
        got = await one.response()
        assert (meant(got), *failed(got)[1:]) == (504, 7, -32603)
        await peer.ends()


async def test_a_client_that_does_not_read_makes_no_upstream_look_stalled(impatient: Rig) -> None:
    """The client takes a little now and then, so it keeps its own connection; the upstream cannot send meanwhile."""
    size = 16 << 20
    one = await impatient.client(impatient.post(call("ping")))
    one.pause()
    peer = await impatient.upstream.request()
    await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
    sending = asyncio.create_task(peer.send(b"x" * size))
    for _ in range(10):  # longer than two stalls
        await asyncio.sleep(0.25)
        one.resume()
        await asyncio.sleep(0.01)
        one.pause()
    one.resume()
    got = await one.response()
    await sending
    assert (got.whole, len(got.body)) == (True, size)


# ---- who has vanished ----


OPTIONS = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")


def probes(wire: Wire) -> list[int]:
    """How the kernel asks whether the other end of a connection of the gateway's is there."""
    assert wire.transport is not None
    sock = wire.transport.get_extra_info("socket")
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    return [sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in OPTIONS]


async def test_quiet_connections_are_asked_whether_their_peer_is_there_but_not_all_at_once(gateways: Gateways) -> None:
    """On both sides; nothing else shows that a peer has vanished without FIN. The options are the real sockets'.

    Linux drops the probes of more than 1,000 connections that are asked at one moment: their peers seem gone.
    """
    async with rig_with(gateways, limits={"stall_timeout": "60s"}) as rig:
        begun = [await rig.begin(request()) for _ in range(20)]
        [pool] = rig.app._pools.of.values()
        for wires in (rig.app._listener.connections, pool.active):
            first, then, counts, users_ms = zip(*map(probes, wires), strict=True)
            assert len(first) == 20 and {*users_ms} == {60_000}
            assert {*first} <= {*range(15, 31)} and len({*first}) > 3
            assert {*then} <= {*range(10, 16)} and len({*then}) > 2
            assert all(55 < idle + count * pause <= 60 for idle, pause, count in zip(first, then, counts, strict=True))
        for one, peer in begun:
            await peer.send(response())
            await one.response()


# ---- who is slow, or leaves unseen, loses nothing that a healthy upstream sent ----

STALL_S = 1


async def test_what_came_before_the_upstreams_end_reaches_a_slow_client(rig: Rig) -> None:
    """The upstream ends a stream without its last chunk: the client gets every event of it, and sees the cut."""
    events = [event(b"%d" % number + b"x" * 10_000) for number in range(150)]
    one = await rig.client(request())
    one.pause()
    peer = await rig.upstream.request()
    sending = asyncio.create_task(peer.send(stream(), *map(chunk, events)))
    await asyncio.sleep(0.5)
    one.resume()
    await sending
    one.pause()
    peer.finish()
    await asyncio.sleep(0.5)
    one.resume()
    assert await one.ends() in ("fin", "rst")
    got = await one.response()
    assert (got.body, got.whole) == (b"".join(events), False)


@pytest.mark.parametrize(("version", "is_told"), [(b"HTTP/1.0", False), (b"HTTP/1.1", False), (b"HTTP/1.1", True)])
async def test_a_client_may_wait_long_to_be_told_to_go_on_but_not_behind_its_answer(
    impatient: Rig, version: bytes, is_told: bool
) -> None:
    """HTTP/1.0 is told nothing (RFC 9110, 10.1.1); HTTP/1.1 may have its answer already, and never send its body."""
    fields = [TEXT, b"Content-Length: 2", b"Expect: 100-continue"]
    one = await impatient.client(request(b"PUT", fields=fields, version=version))
    peer = await impatient.upstream.head()
    if is_told:
        await asyncio.sleep(2.5 * STALL_S)
        await peer.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        await one.hears(b"100 Continue")
        await one.send(b"ok")
        await impatient.upstream.request()
    await peer.send(response())
    assert (await one.response()).status == 200
    assert is_told or await one.ends() == "fin"


async def test_a_client_that_is_being_answered_may_pause_its_upload(impatient: Rig) -> None:
    one = await impatient.client(request(b"PUT", fields=[TEXT, b"Content-Length: 4"]), b"ab")
    peer = await impatient.upstream.head()
    await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(6):
        await asyncio.sleep(STALL_S / 2)
        await peer.send(chunk(b"still here"))
    await one.send(b"cd")
    await impatient.upstream.request()
    await peer.send(LAST_CHUNK)
    assert (await one.response()).body == b"still here" * 6


async def test_the_reader_of_a_stream_may_pause(impatient: Rig) -> None:
    """DESIGN 3.4: no time limit on a stream that is open."""
    one, peer = await impatient.begin(request())
    await peer.send(stream())
    one.pause()
    events = [event(b"%d" % number + b"x" * 50_000) for number in range(200)]
    sending = asyncio.create_task(peer.send(*map(chunk, events)))
    await asyncio.sleep(2.2 * STALL_S)
    one.resume()
    await sending
    await peer.send(LAST_CHUNK)
    assert (await one.response()).body == b"".join(events)
