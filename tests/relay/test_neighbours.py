"""Nothing that one client does reaches a neighbour: buffers, closing, `Connection`, framing, descriptors."""

import asyncio
import gzip
import json
import logging
import resource
import signal
import time
import tracemalloc

import pytest

from gateway.downstream.client_connection import TURNED_AWAY_MAX
from gateway.errors import Overloaded
from gateway.transport.memory_budget import SMALL_BYTES_MAX, Buffers, Reservation
from tests.bench.proc import rss_bytes
from tests.launch import Gateways, eventually, logged
from tests.peer import Client, Peer
from tests.relay.http1 import Message
from tests.relay.messages import answer, call, chunk, filtered, in_pages, page, post, request, response, result, stream
from tests.relay.messages import task as a_task
from tests.relay.rig import Rig, Script, Server, Session, answers, body, final, ids, meant, own, rig_with, says

MIB = 1 << 20
CLOSE_DELIMITED = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n"


ok = says(response(b"ok"))


async def pings_are_answered(rig: Rig) -> None:
    """Of three pings of somebody else one takes less than a second. A busy machine may hold up the others."""
    took_s = []
    for _ in range(3):
        began_at = time.monotonic()
        assert (await rig.ask(rig.post(call("ping")))).status == 200
        took_s.append(time.monotonic() - began_at)
        if took_s[-1] < 1:
            return
    raise AssertionError(f"pings took {took_s} s")


# ---- work in proportion to bytes ----


async def test_requests_behind_a_body_that_nobody_wanted_are_served_in_order(process_rig: Rig) -> None:
    """They were read while the end of that body was: out of order, and a body behind them lost its beginning."""
    rig = process_rig
    rig.serve(answers(lambda asked: response(asked.target + b" %d" % len(asked.body))))
    one = await rig.client(
        request(b"POST", host=b"evil.example", fields=[b"Transfer-Encoding: chunked"]) + chunk(b"unwanted")
    )
    assert (await one.response()).status == 403
    behind = [request(b"PUT", b"/%d" % number, [b"X: " + b"x" * 300], b"b" * 700) for number in range(12)]
    large = request(b"PUT", b"/large", body=b"l" * 9000)
    await one.send(b"0\r\n\r\n" + b"".join(behind) + large + request(target=b"/last"))
    last = await one.response(15)
    expected = [b"/%d 700" % number for number in range(12)]
    assert [m.body for m in one.responses()[1:14]] == [*expected, b"/large 9000"]
    assert last.body == b"/last 0"


# ---- one limit for all buffers ----


async def test_bodies_beyond_the_limit_of_all_buffers_wait_or_get_503(gateways: Gateways) -> None:
    limits = {"held_bytes_max": 4 * MIB, "inspected_body_bytes_max": 4 * MIB, "request_timeout": "1s"}
    async with rig_with(gateways, ok, limits=limits) as rig:
        large = rig.post({**call("tools/call"), "params": {"x": "y" * (3 * MIB)}})
        first, second = await rig.client(large[:-1]), await rig.client(large[:-1])
        answers = {one: asyncio.create_task(one.response()) for one in (first, second)}
        done, waiting = await asyncio.wait(answers.values(), return_when=asyncio.FIRST_COMPLETED)
        refused = done.pop().result()
        assert refused.status == 503
        assert "held_bytes_max" in json.loads(refused.body)["error"]["message"]
        await pings_are_answered(rig)
        (other,) = (one for one, task in answers.items() if task in waiting)
        await other.send(large[-1:])
        assert (await waiting.pop()).status == 200
        await rig.gateway.becomes("held_bytes", 0)


async def test_what_slow_readers_leave_is_counted_and_others_are_served(gateways: Gateways) -> None:
    """Beyond the limit each body is read a little at a time. Memory stays the same, and everybody is served."""
    script = answers(lambda asked: response(b"x" * (8 * MIB) if asked.target == b"/large" else b"ok"))
    async with own(gateways, script, limits={"held_bytes_max": "2MiB", "inspected_body_bytes_max": "1MiB"}) as rig:
        slow = [await rig.client() for _ in range(20)]
        for one in slow:
            one.pause()
            await one.send(request(target=b"/large"))
        await rig.gateway.until(lambda now: now["taskgate_held_bytes", ()] >= 2 * MIB, "the limit is reached")
        await asyncio.sleep(0.3)
        held = await rig.gateway.sample("held_bytes")
        assert held < 2 * MIB + len(slow) * 4 * SMALL_BYTES_MAX
        await pings_are_answered(rig)
        for one in slow:
            one.resume()
        for one in slow:
            assert len((await one.response()).body) == 8 * MIB


@pytest.mark.parametrize("of_crawler", [False, True])
async def test_events_that_never_end_are_held_up_to_the_limit(gateways: Gateways, of_crawler: bool) -> None:
    """Beyond it an event is not held to be read: it passes unread, or fails the query on whose stream it is."""
    async with rig_with(gateways, limits={"held_bytes_max": 4 * MIB, "inspected_event_bytes_max": 4 * MIB}) as rig:
        for number in range(6):
            one, peer = await rig.begin(Session(rig).request(filtered(number)) if of_crawler else request())
            await peer.send(stream() + chunk(b"data: " + b"x" * (3 * MIB)))
            if not of_crawler:
                await one.until(lambda one=one: len(one.received) > 3 * MIB, "3 MiB of an event")  # type: ignore[misc]
            elif number:
                assert meant(await one.response()) == 503
            else:
                await rig.gateway.until(lambda now: now["taskgate_held_bytes", ()] >= 3 * MIB, "the event is counted")
        held = await rig.gateway.sample("held_bytes")
        assert 3 * MIB < held < 8 * MIB
        rig.serve(ok)
        await pings_are_answered(rig)


async def test_a_large_list_gets_503_beyond_the_limit_and_a_small_one_its_answer(gateways: Gateways) -> None:
    """Room is reserved first: what is refused was built, at three times its size."""
    tasks = [a_task(f"t-{n}", statusMessage="x" * 100_000) for n in range(30)] + [a_task("small", "failed")]
    server = Server(in_pages(tasks, 5))
    large = list[bytes]()  # what the upstream makes: none of that is the gateway's memory

    async def script(asked: Message, peer: Peer) -> bytes | None:
        if asked.method == b"POST":
            return await server(asked, peer)
        large.append(response(b"x" * (8 * MIB)))
        return large[-1]

    limits = {"held_bytes_max": MIB, "inspected_body_bytes_max": MIB}
    async with rig_with(gateways, script, limits=limits, index={"max_age": "1h"}) as rig:
        session, small = Session(rig), filtered(status=["failed"])
        assert final(await session.ask(small))["result"]["tasks"] == tasks[-1:]
        for _ in range(8):
            slow = await rig.client()
            slow.pause()
            await slow.send(request())
        await rig.gateway.until(lambda now: now["taskgate_held_bytes", ()] >= MIB, "the limit is reached")
        await eventually(lambda: len(large) == 8, "the upstream's last answer")
        await asyncio.sleep(0.3)  # it is written, on a busy machine too
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            refused = await session.ask(filtered(status=["working"]))
            assert tracemalloc.get_traced_memory()[1] - before < MIB, "the answer has 3 MB"
        finally:
            tracemalloc.stop()
        # The answer to a wrong query repeats its id, and is just too large.
        for got in (refused, await session.ask(filtered("i" * 65_300, status=["no status"]))):
            assert meant(got) == 503 and "held_bytes_max" in body(got)["error"]["message"]
        assert final(await session.ask(small))["result"]["tasks"] == tasks[-1:]


async def test_who_waits_for_room_gets_it_when_another_leaves_or_the_limit_grows() -> None:
    buffers = Buffers(100)
    await buffers.reserve(60, 1)
    leaves, waits = (asyncio.create_task(buffers.reserve(size, 5)) for size in (90, 30))
    await asyncio.sleep(0)
    assert not leaves.done() and not waits.done()
    leaves.cancel()
    await waits
    assert buffers.taken == 90
    grows = asyncio.create_task(buffers.reserve(100, 5))
    await asyncio.sleep(0)
    buffers.resize(200)
    await grows
    assert buffers.taken == 190
    with pytest.raises(Overloaded):
        await Reservation(buffers).reserve(50, 0.01)
    buffers.change(-190)
    assert buffers.taken == 0


@pytest.mark.parametrize("method", ["tools/call", "tasks/result"])
async def test_a_body_that_has_gone_up_takes_no_memory_while_its_answer_streams(
    fresh_gateways: Gateways, method: str
) -> None:
    """No limit counts it any more, and a client may have thousands: 40 of these bodies took 120 MiB."""
    body_bytes, count = MIB, 40
    async with own(fresh_gateways) as rig:
        asked = {**call(method), "params": {"taskId": "t", "task": {}, "x": "y" * body_bytes}}
        for number in range(count + 1):
            one, peer = await rig.begin(rig.post(asked))
            await peer.send(stream() + chunk(b": open\n\n"))
            await one.hears(b": open")
            if number == 0:
                before = rss_bytes(rig.gateway.running.popen.pid)
        assert rss_bytes(rig.gateway.running.popen.pid) - before < 10 * body_bytes
        assert await rig.gateway.sample("held_bytes") == 0


async def test_a_body_that_its_last_piece_makes_large_counts_and_an_id_as_long_as_it_is_kept(
    gateways: Gateways,
) -> None:
    """As many bytes as a read gives were held beyond the limit, for each connection."""
    async with rig_with(gateways) as rig:
        one, _ = await rig.begin(rig.post(call("tools/call", x="y" * (SMALL_BYTES_MAX * 3 // 2))))
        assert await rig.gateway.sample("held_bytes") >= SMALL_BYTES_MAX
        one.reset()
        one, peer = await rig.begin(rig.post(call("tools/call", "i" * MIB)))
        await peer.send(stream() + chunk(b": open\n\n"))
        await one.hears(b": open")
        assert await rig.gateway.sample("held_bytes") >= MIB


async def test_a_packed_document_is_no_larger_than_a_plain_one(rig: Rig) -> None:
    """4 KB unpacked to 4 MiB, and the loop was held for 0.9 s to look for addresses in them."""

    async def script(asked: Message, _peer: Peer) -> bytes:
        metadata = {"resource": "http://" + rig.place.authority.decode(), "authorization_servers": []}
        padded = json.dumps({**metadata, "x": "y" * (MIB if b"large" in asked.target else 1)})
        fields = (b"Content-Type: application/json", b"Content-Encoding: gzip")
        return response(gzip.compress(padded.encode()), *fields)

    rig.serve(script)
    for target, moves in ((b"/large", False), (b"/.well-known/oauth-protected-resource/large", False), (b"/", True)):
        got = await rig.ask(request(target=target))
        packed = got.value(b"content-encoding") is not None
        said = json.loads(gzip.decompress(got.body) if packed else got.body)
        assert (said["resource"] != "http://" + rig.place.authority.decode()) is moves


# ---- a cut that looks whole ----


@pytest.mark.parametrize(
    ("version", "begins"),
    [(b"HTTP/1.1", CLOSE_DELIMITED + b"first half"), (b"HTTP/1.0", stream() + chunk(b"first half"))],
)
async def test_a_half_close_during_an_answer_that_ends_with_its_connection_is_a_cut(
    rig: Rig, version: bytes, begins: bytes
) -> None:
    """The client got the first half and a clean end. HTTP/1.0 knows no chunks."""
    one, peer = await rig.begin(request(version=version))
    await peer.send(begins)
    await one.hears(b"first half")
    one.finish()
    assert await one.ends() == "rst"


# ---- a whole answer destroyed ----


async def ends_with_its_connection(_request: Message, peer: Peer) -> None:
    await peer.send(CLOSE_DELIMITED + b"w" * MIB)
    peer.finish()


WHOLE = says(response(b"w" * MIB, b"Connection: close"))


async def behind(rig: Rig) -> Client:
    """A client that reads nothing yet, with requests behind its last one."""
    one = await rig.client()
    one.pause()
    await one.send(request(fields=[b"Connection: close"]), request(target=b"/behind") * 20)
    return one


@pytest.mark.parametrize("script", [WHOLE, ends_with_its_connection])
async def test_a_request_behind_the_last_answer_does_not_destroy_it(rig: Rig, script: Script) -> None:
    """A close with unread bytes resets the connection, and the answer on its way is lost: 16 of 20 were."""
    rig.serve(script)
    for _ in range(10):
        one = await behind(rig)
        await asyncio.sleep(0.02)
        one.resume()
        assert await one.ends() == "fin"
        assert (await one.response()).body == b"w" * MIB
        await one.close()


async def test_a_drain_waits_for_who_still_reads_a_whole_answer(gateways: Gateways) -> None:
    async with own(gateways, WHOLE) as rig:
        one = await behind(rig)
        await rig.upstream.request()
        await asyncio.sleep(0.2)
        rig.gateway.signal(signal.SIGTERM)
        await asyncio.sleep(0.3)
        one.resume()
        assert (await one.response()).body == b"w" * MIB
        await one.close()
        assert await rig.gateway.exits() == 0


# ---- `Connection` that names who asks ----


async def test_a_stripped_field_does_not_poison_the_index_of_who_sends_it(rig: Rig) -> None:
    """The identity is the one that the server sees. A caller with `Connection: x-tenant` has no tenant there."""

    async def by_tenant(asked: Message, _peer: Peer) -> bytes:
        tenant = (asked.value(b"x-tenant") or b"nobody").decode()
        return answer(result(body(asked)["id"], page([a_task(f"of-{tenant}")])))

    rig.serve(by_tenant)
    session = Session(rig)
    poisoned = post(filtered(), *session.fields(), b"X-Tenant: acme", b"Connection: X-Tenant")
    assert ids(final(await rig.ask(poisoned))) == ["of-nobody"]
    honest = post(filtered(), *session.fields(), b"X-Tenant: acme")
    assert ids(final(await rig.ask(honest))) == ["of-acme"]


# ---- file descriptors ----


def test_descriptors_are_raised_as_far_as_they_go(caplog: pytest.LogCaptureFixture) -> None:
    from gateway.downstream.client_connection import connections_kept

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        assert connections_kept(500) == 500
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 1000
        with caplog.at_level(logging.WARNING):
            kept = connections_kept(10 * hard)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == hard
        assert kept == (hard - 64 - TURNED_AWAY_MAX) // 2
        assert "connections_max cannot be kept" in caplog.text
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_more_clients_than_descriptors_get_a_503_and_are_counted(gateways: Gateways) -> None:
    async with own(gateways, ok, descriptors=220) as rig:
        held: list[Client] = []
        for _ in range(28):
            one = await rig.client(request())
            assert (await one.response()).status == 200
            held.append(one)
        assert (await rig.ask(request())).status == 503
        await logged(rig.gateway, "connections of clients are refused")
        samples = await rig.gateway.metrics()
        assert samples["taskgate_connections_refused_total", (("why", "connections_max"),)] >= 1
        await held[0].close()
        await eventually(lambda: rig.succeeds(request()), "somebody is served again")
