"""Clients that read slowly, send slowly, or leave unseen: they lose nothing that a healthy upstream sent."""

import asyncio

from tests.launch import Gateways
from tests.relay.rig import Rig, rig_with
from tests.relay.wire import LAST_CHUNK, chunk, event, request, response, stream

TEXT = b"Content-Type: text/plain"
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


async def test_a_client_with_another_request_behind_is_seen_to_leave(rig: Rig) -> None:
    """Its connection is not read meanwhile, and the loop sees no end of an unread connection."""
    for _ in range(3):
        one, peer = await rig.begin(request(target=b"/quiet") + request(target=b"/next"))
        await peer.send(stream() + chunk(event(b"1")))
        await one.hears(b"data: 1")
        one.reset()
        await peer.ends()
    await rig.gateway.until(lambda now: now["taskgate_connections", ()] == 0, "no connection of a client's")


async def test_a_client_may_wait_long_to_be_told_to_go_on(gateways: Gateways) -> None:
    """Expect: 100-continue. It sends nothing until then, and is not to blame for it."""
    async with rig_with(gateways, limits={"stall_timeout": f"{STALL_S}s"}) as rig:
        one = await rig.client(request(b"PUT", fields=[TEXT, b"Content-Length: 2", b"Expect: 100-continue"]))
        peer = await rig.upstream.head()
        await asyncio.sleep(2.5 * STALL_S)
        await peer.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        await one.hears(b"100 Continue")
        await one.send(b"ok")
        await rig.upstream.request()
        await peer.send(response())
        assert (await one.response()).status == 200


async def test_a_client_that_is_being_answered_may_pause_its_upload(gateways: Gateways) -> None:
    async with rig_with(gateways, limits={"stall_timeout": f"{STALL_S}s"}) as rig:
        one = await rig.client(request(b"PUT", fields=[TEXT, b"Content-Length: 4"]), b"ab")
        peer = await rig.upstream.head()
        await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(6):
            await asyncio.sleep(STALL_S / 2)
            await peer.send(chunk(b"still here"))
        await one.send(b"cd")
        await rig.upstream.request()
        await peer.send(LAST_CHUNK)
        assert (await one.response()).body == b"still here" * 6


async def test_the_reader_of_a_stream_may_pause(gateways: Gateways) -> None:
    """DESIGN 3.4: no time limit on a stream that is open."""
    async with rig_with(gateways, limits={"stall_timeout": f"{STALL_S}s"}) as rig:
        one, peer = await rig.begin(request())
        await peer.send(stream())
        one.pause()
        events = [event(b"%d" % number + b"x" * 50_000) for number in range(200)]
        sending = asyncio.create_task(peer.send(*map(chunk, events)))
        await asyncio.sleep(2.2 * STALL_S)
        one.resume()
        await sending
        await peer.send(LAST_CHUNK)
        assert (await one.response()).body == b"".join(events)


async def test_an_early_answer_does_not_end_the_upload(rig: Rig) -> None:
    """The upstream answers after the first bytes, and goes on reading: it gets the rest."""
    one = await rig.client(request(b"PUT", fields=[TEXT, b"Content-Length: 20"]), b"01234")
    peer = await rig.upstream.head()
    await peer.hears(b"01234")
    await peer.send(response(b"", status=b"202 Accepted"))
    assert (await one.response()).status == 202
    await one.send(b"56789", b"01234", b"56789")
    await rig.upstream.request()
    assert rig.upstream.requests[0].body == b"01234567890123456789"
    await one.send(request(target=b"/next"))
    await (await rig.upstream.request(2)).send(response())
    assert (await one.response(2)).status == 200


async def test_a_request_that_breaks_behind_its_answer_gets_no_second_one(rig: Rig) -> None:
    one = await rig.client(request(b"PUT", fields=[TEXT, b"Transfer-Encoding: chunked"]), chunk(b"a"))
    peer = await rig.upstream.head()
    await peer.send(response(b"", b"Connection: close"))
    peer.finish()
    assert (await one.response()).status == 200
    await one.send(b"zz\r\n")
    await one.ends()
    assert one.received.count(b"HTTP/1.1 ") == 1
