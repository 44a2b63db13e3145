"""Requests must not be lost or answered twice, also where upstreams break HTTP (RFC 9110, 9.2.2)."""

import asyncio
from typing import Final

import pytest

from gateway.transport.body import HELD_BYTES_MAX
from tests.launch import Gateways
from tests.peer import Client, Peer, kernel_bytes_max
from tests.relay.messages import call, dumps, filtered, page, result, task
from tests.relay.rig import Rig, Server, final, rig_with
from tests.relay.wire import answer, post, request, response

JSON = b"Content-Type: application/json"
TEXT = b"Content-Type: text/plain"


async def once(rig: Rig, asked: bytes | None = None) -> tuple[Client, Peer]:
    one, peer = await rig.answered(asked or request(), response(b"first"))
    return one, peer


# ---- kept-alive upstream connections ----


@pytest.mark.parametrize("asked", [post(call("tools/call")), request(), request(b"PUT", body=b"x", fields=[TEXT])])
@pytest.mark.parametrize("how", ["fin", "rst"])
async def test_a_connection_that_the_upstream_closed_while_idle_costs_nothing(rig: Rig, asked: bytes, how: str) -> None:
    """Node and uvicorn close theirs after 5 s (DESIGN 2); the next request knows nothing of it."""
    one, peer = await once(rig)
    peer.stop(how)
    await one.send(asked)
    fresh = await rig.upstream.request(2)
    assert fresh is not peer
    await fresh.send(response(b"second"))
    assert (await one.response(2)).body == b"second"


async def test_a_get_on_a_dying_connection_is_sent_again(rig: Rig) -> None:
    one, peer = await once(rig)
    await one.send(request())
    assert await rig.upstream.request(2) is peer
    peer.reset()
    fresh = await rig.upstream.request(3)
    await fresh.send(response(b"again"))
    assert (await one.response(2)).body == b"again"


async def test_a_get_of_which_an_answer_had_begun_is_not_sent_again(rig: Rig) -> None:
    one, peer = await once(rig)
    await one.send(request())
    await rig.upstream.request(2)
    await peer.send(b"HTTP/1.1 200 OK\r\nContent-Le")
    peer.reset()
    assert (await one.response(2)).status == 502
    await rig.canary()
    assert len(rig.upstream.requests) == 3


async def test_an_idle_connection_is_closed_in_time(hasty_rig: Rig) -> None:
    """`idle_timeout` is a second there."""
    _, peer = await once(hasty_rig)
    assert await peer.ends() == "fin"


# ---- what the client sends, and when ----


async def test_a_message_with_expect_is_asked_for_and_answered(rig: Rig) -> None:
    """The gateway reads a message before it goes up, so it is the gateway that says 100 (RFC 9110, 10.1.1)."""
    data = dumps(call("ping"))
    one = await rig.client(request(b"POST", fields=[JSON, b"Expect: 100-continue", b"Content-Length: %d" % len(data)]))
    await one.hears(b"HTTP/1.1 100 Continue\r\n\r\n")
    await one.send(data)
    peer = await rig.upstream.request()
    assert rig.upstream.requests[0].body == data
    await peer.send(b"HTTP/1.1 100 Continue\r\n\r\n")  # for the request as the upstream saw it
    await peer.send(answer(result(1, {})))
    assert (await one.response()).status == 200
    assert [m.status for m in one.responses()] == [100, 200], "and only once"


@pytest.mark.parametrize("begun", [b"", b"3\r\nabc\r\n"], ids=["at once", "behind a chunk"])
@pytest.mark.parametrize("waits", [True, False], ids=["in its own piece", "with the head"])
async def test_a_malformed_chunk_behind_expect_is_the_clients_fault(rig: Rig, waits: bool, begun: bytes) -> None:
    """Where no piece of the body had come, it was taken for a server that says nothing: 504 at once."""

    async def failures() -> float:
        counted = await rig.gateway.metrics()
        return sum(count for (name, _), count in counted.items() if name == "taskgate_failures_total")

    before = await failures()
    head = request(b"PUT", fields=[TEXT, b"Transfer-Encoding: chunked", b"Expect: 100-continue"])
    one = await rig.client(head if waits else head + begun + b"zz\r\n")
    if waits:
        await rig.upstream.head()
        await one.send(begun + b"zz\r\n")
    assert (await one.response()).status == 400
    assert await failures() == before


async def test_a_body_that_nobody_read_does_not_hold_up_the_next_request(gateways: Gateways) -> None:
    """The body has arrived whole and has paused reading when the gateway answers the request itself."""
    async with rig_with(gateways, upstream={"requests_max": 1, "connect_timeout": "1s"}) as rig:
        first, peer = await rig.begin(post(call("tools/call")))
        size = HELD_BYTES_MAX + 1
        one = await rig.client(request(b"PUT", fields=[TEXT, b"Content-Length: %d" % size]))
        await asyncio.sleep(0.1)  # the head is read; of the body nothing is until there is a place
        await one.send(b"x" * size)
        assert (await one.response()).status == 503
        await peer.send(response())
        await first.response()
        await one.send(request())
        await (await rig.upstream.request(2)).send(response(b"next"))
        assert (await one.response(2)).body == b"next"


OWN_BYTES: Final = 8 << 20  # of one connection, at most, that the gateway has in its own memory


@pytest.mark.parametrize("what", ["a body", "1xx responses"])
async def test_a_slow_reader_slows_the_upstream(process_rig: Rig, what: str) -> None:
    """DESIGN 3.4: back-pressure reaches the other side; what the gateway holds is bounded."""
    one, peer = await process_rig.begin(request())
    one.pause()
    pieces = (kernel_bytes_max() + OWN_BYTES >> 20) + 16
    piece, last = b"x" * (1 << 20), b""
    if what == "a body":
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (pieces * len(piece)))
    else:
        piece, last = b"HTTP/1.1 103 Early Hints\r\nLink: %b\r\n\r\n" % (b"x" * 1000) * 1000, response(b"mine")
    sent = 0

    async def pour() -> None:
        nonlocal sent
        while sent < pieces:
            await peer.send(piece)
            sent += 1
        await peer.send(last)

    pouring = asyncio.create_task(pour())
    stalled_at = -1
    while stalled_at != sent:  # ends when nothing has moved for a while
        stalled_at = sent
        await asyncio.sleep(0.5)
    assert sent < pieces - 16, f"{sent} MB taken from the upstream that the client did not want yet"
    assert (await process_rig.exchange(request(), response(b"other"))).body == b"other"
    one.resume()
    await pouring
    assert (await one.response()).body == (last[-4:] or piece * pieces)
    assert one.received.count(b" 103 ") == (1000 * pieces if last else 0)


async def test_a_slow_upstream_slows_the_client(process_rig: Rig) -> None:
    one = await process_rig.client()
    enough = kernel_bytes_max() + OWN_BYTES
    pieces = [b"x" * (1 << 20)] * ((enough >> 20) + 16)
    total = len(pieces) << 20
    sending = asyncio.create_task(one.send(request(b"PUT", fields=[TEXT, b"Content-Length: %d" % total]), *pieces))
    peer = await process_rig.upstream.head()
    peer.pause()
    before = -1
    while before != len(one.sent):
        before = len(one.sent)
        await asyncio.sleep(0.4)
    assert len(one.sent) < enough
    peer.resume()
    await sending
    await peer.until(lambda: len(peer.received) > total, "the whole body")
    await peer.send(response())
    assert (await one.response()).status == 200


# ---- initialize, as it passes ----


async def test_a_filtered_answer_to_http_1_0_and_to_close(rig: Rig) -> None:
    rig.serve(Server({None: page([task("t-1")])}))
    for asked in (
        rig.post(filtered()).replace(b"HTTP/1.1", b"HTTP/1.0"),
        rig.post(filtered(), b"Connection: close"),
    ):
        one = await rig.client(asked)
        got = await one.response()
        assert len(final(got)["result"]["tasks"]) == 1
        assert await one.ends() == "fin"
