"""Heads and trailers: how many fields they may have, what they cost in memory, and that all of it is counted."""

import asyncio

import pytest

from tests.bench.proc import rss_bytes
from tests.launch import Gateways, eventually
from tests.peer import Peer
from tests.relay.http1 import Message
from tests.relay.rig import Rig, own
from tests.relay.wire import chunk, chunked, request, response, stream

FIELDS_MAX = 256  # by default
CONNECTIONS = 120
PROMISED_BYTES = 250_000  # for each connection


def fields(count: int, size_bytes: int) -> bytes:
    return b"".join((b"x%d:" % number).ljust(size_bytes - 2, b"v") + b"\r\n" for number in range(count))


def begun(lines: bytes) -> bytes:
    return request().removesuffix(b"\r\n") + lines


async def grown(rig: Rig, sent: bytes, answered: bytes) -> tuple[float, float]:
    """What the process has grown by for each connection that sends this, and what it counts for each."""
    clients = [await rig.client(request(target=b"/ping")) for _ in range(CONNECTIONS)]
    for one in clients:
        await one.response()
    pid = rig.gateway.running.popen.pid
    before_bytes = rss_bytes(pid)
    for one in clients:
        await one.send(sent)
        if answered:
            await one.hears(answered)
    held = await held_bytes(rig)
    growth_bytes = rss_bytes(pid) - before_bytes
    for one in clients:
        await one.close()
    await rig.gateway.until(lambda now: now["taskgate_held_bytes", ()] == 0, "nothing is held once they have left")
    return growth_bytes / CONNECTIONS, held / CONNECTIONS


async def held_bytes(rig: Rig) -> float:
    """What the gateway counts, once that stands still: all that was sent has been read."""
    seen = [-1.0]

    async def stands() -> bool:
        seen.append((await rig.gateway.metrics())["taskgate_held_bytes", ()])
        await asyncio.sleep(0.1)
        return len(set(seen[-5:])) == 1

    await eventually(stands, "what is held stands still")
    return seen[-1]


MANY = {"header_fields_max": 20_000}
SSE = b"Accept: text/event-stream\r\n\r\n"
BASE_BYTES = 24_000  # of an open stream, whatever its head
HEADS: dict[str, tuple[bytes, dict[str, int]]] = {
    "unfinished, 15,000 tiny fields": (begun(b"a:\r\n" * 15_000), MANY),
    "unfinished, 250 large fields": (begun(fields(250, 250)), {}),
    "behind chunks, unfinished": (
        request(b"PUT", target=b"/ping", fields=[b"Transfer-Encoding: chunked"])
        + chunked(b"x")
        + begun(fields(250, 250)),
        {},
    ),
    "trailers, unfinished": (
        request(b"PUT", fields=[b"Transfer-Encoding: chunked"]) + chunk(b"x") + b"0\r\n" + fields(250, 250),
        {},
    ),
    "finished, 250 tiny fields": (begun(fields(250, 8)) + SSE, {}),
    "finished, one large field": (begun(fields(1, 60_000)) + SSE, {}),
    "finished, 1,000 fields": (begun(fields(1000, 60)) + SSE, MANY),
}


async def serve(asked: Message, peer: Peer) -> bytes:
    if asked.target != b"/ping":
        await peer.send(stream())
        await asyncio.Event().wait()
    return response(b"ok")


@pytest.mark.parametrize("kind", HEADS)
async def test_what_heads_cost_in_memory_is_counted(fresh_gateways: Gateways, kind: str) -> None:
    """1,300 unfinished heads of 64 KB in tiny fields took 2.4 GB, and nothing of it was counted."""
    sent, limits = HEADS[kind]
    async with own(fresh_gateways, limits=limits) as rig:
        rig.serve(serve)
        growth_bytes, held = await grown(rig, sent, b"event-stream" if "unfinished" not in kind else b"")
    assert growth_bytes <= 1.15 * held + BASE_BYTES
    assert held <= 1.15 * growth_bytes + BASE_BYTES
    if not limits:
        assert growth_bytes <= PROMISED_BYTES


@pytest.mark.parametrize("begins_stream", [True, False])
async def test_what_heads_of_answers_cost_is_counted(fresh_gateways: Gateways, begins_stream: bool) -> None:
    async def large(asked: Message, peer: Peer) -> bytes:
        if asked.target != b"/ping":
            lines = fields(250, 250)
            whole = b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n" if begins_stream else b""
            await peer.send(b"HTTP/1.1 200 OK\r\n" + lines + whole)
            await asyncio.Event().wait()
        return response(b"ok")

    async with own(fresh_gateways) as rig:
        rig.serve(large)
        growth_bytes, held = await grown(rig, request(), b"event-stream" if begins_stream else b"")
    assert growth_bytes <= 1.15 * held + BASE_BYTES + 62_500 * begins_stream  # what the client has yet to read
    assert held <= 1.15 * growth_bytes + BASE_BYTES
    assert held >= 62_500


@pytest.mark.parametrize("count", [FIELDS_MAX, FIELDS_MAX + 1])
async def test_a_response_has_so_many_fields_and_trailers(rig: Rig, count: int) -> None:
    whole = b"Content-Length: 0\r\n" + b"a:\r\n" * (count - 1)
    informed = b"HTTP/1.1 103 Early Hints\r\n" + b"a:\r\n" * count + b"\r\n"
    chunks = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(b"x") + b"0\r\n" + b"a:\r\n" * count
    passes, pieces = count == FIELDS_MAX, list[bytes]()

    async def answering(_: Message, peer: Peer) -> bytes:
        await peer.send(pieces[0])
        await peer.send(pieces[1])
        return b""

    rig.serve(answering)
    for sent, status in (
        (b"HTTP/1.1 200 OK\r\n" + whole + b"\r\n", 200 if passes else 502),
        (informed + response(b"ok"), 200 if passes else 502),
        (chunks + b"\r\n", 200),
    ):
        for cut in (len(sent) - 1, len(sent) - 3, 60):
            pieces[:] = sent[:cut], sent[cut:]
            got = await rig.ask(request())
            assert (got.status, got.whole) == (status, passes or status == 502)


async def test_heads_beyond_the_limit_of_all_buffers_get_503(fresh_gateways: Gateways) -> None:
    """Small ones are served all the same (DESIGN 7.6)."""
    limits = {
        "held_bytes_max": "1MiB",
        "inspected_body_bytes_max": "1MiB",
        "header_bytes_max": "512KiB",
        "header_fields_max": 20_000,
    }
    async with own(fresh_gateways, limits=limits) as rig:
        rig.serve(serve)
        holding = [await rig.client(begun(fields(1000, 400))) for _ in range(3)]
        await asyncio.gather(*(one.send(b"b:\r\n") for one in holding))
        await eventually(lambda: any(b" 503 " in one.received for one in holding), "no room for the third")
        assert (await rig.ask(request(target=b"/ping"))).status == 200
        whole = await rig.client(begun(fields(1000, 100)) + b"\r\n")
        assert (await whole.response()).status == 503
