"""How a process ends: what it lets finish, what it closes, and when (DESIGN 8)."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.launch import Gateways, eventually
from tests.relay.messages import call, filtered, notification, page, result, task
from tests.relay.rig import Rig, body, final, ids, own
from tests.relay.wire import LAST_CHUNK, answer, chunk, event, post, request, stream

pytestmark = pytest.mark.usefixtures("harness_alone")
TASKS = [task("t-1"), task("t-2", "completed")]


@pytest.fixture(scope="module")
def gateways(fresh_gateways: Gateways) -> Gateways:
    return fresh_gateways


@asynccontextmanager
async def until_exit(gateways: Gateways) -> AsyncIterator[Rig]:
    """A rig whose process ends with 0 by itself, once its clients have left."""
    async with own(gateways) as rig:
        yield rig
        await rig.leave()
        assert await rig.gateway.exits() == 0


async def draining(rig: Rig) -> None:
    """Send SIGTERM, and return once no connection is taken any more."""

    async def nobody_there() -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", rig.gateway.port)
        except OSError:
            return True
        writer.close()
        return False

    rig.gateway.signal(signal.SIGTERM)
    await eventually(nobody_there, "no new connections")


async def test_sigterm_lets_an_answer_in_flight_finish(gateways: Gateways) -> None:
    """It says that the connection ends: else its client might send another request, and lose it."""
    async with until_exit(gateways) as rig:
        paths = ("/readyz", "/healthz")
        assert [rig.gateway.get(path)[0] for path in paths] == [200, 200]
        one, peer = await rig.begin(post(call("tools/call")))
        await draining(rig)
        assert [(await asyncio.to_thread(rig.gateway.get, path))[0] for path in paths] == [503, 200]
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n01234")
        await one.hears(b"01234")
        await peer.send(b"56789")
        got = await one.response()
        assert (got.status, got.body, got.whole) == (200, b"0123456789", True)
        assert got.value(b"connection") == b"close"
        assert await one.ends() == "fin"


async def test_sigterm_lets_a_filtered_answer_finish(gateways: Gateways) -> None:
    """Streamed, it says that the connection ends: one of four places that wrote heads had forgotten it."""
    async with until_exit(gateways) as rig:
        one, peer = await rig.begin(post(filtered()))
        await draining(rig)
        told = event(notification("notifications/message", level="info", data="x"))
        listed = event(result(body(rig.upstream.requests[0])["id"], page(TASKS[:1], "c")))
        await peer.send(stream() + chunk(told + listed) + LAST_CHUNK)
        peer = await rig.upstream.request(2)
        await peer.send(answer(result(body(rig.upstream.requests[1])["id"], page(TASKS[1:]))))
        got = await one.response()
        assert ids(final(got)) == ["t-1"]
        assert got.value(b"content-type") == b"text/event-stream"
        assert got.value(b"connection") == b"close"


async def test_sigterm_lets_an_answer_that_is_a_stream_finish(gateways: Gateways) -> None:
    """The TypeScript SDK answers every POST with a stream (DESIGN 2): it is an answer in flight, with an end."""
    async with until_exit(gateways) as rig:
        one, peer = await rig.begin(post(call("tools/call")))
        await peer.send(stream() + chunk(event(notification("notifications/progress", progress=1))))
        await one.hears(b"progress")
        await draining(rig)
        await peer.send(chunk(event(result(1, {}))) + b"0\r\n\r\n")
        got = await one.response()
        assert got.whole
        assert final(got) == result(1, {})


async def test_sigterm_closes_open_streams(gateways: Gateways) -> None:
    """At once: a GET stream has no end to wait for. And not as if it had ended by itself."""
    async with own(gateways, limits={"drain_timeout": "1h"}) as rig:
        streams = []
        for _ in range(3):
            one, peer = await rig.begin(request(fields=[b"Accept: text/event-stream"]))
            await peer.send(stream() + chunk(event(b"1")))
            await one.hears(b"data: 1")
            streams.append((one, peer))
        rig.gateway.signal(signal.SIGTERM)
        for one, peer in streams:
            await one.ends()
            await peer.ends()
        assert await rig.gateway.exits() == 0


async def test_a_drain_does_not_wait_for_what_has_become_a_stream(gateways: Gateways) -> None:
    """It did, until another connection had ended: a head that comes during a drain says that there is no end."""
    async with own(gateways, limits={"drain_timeout": "1h"}) as rig:
        one, peer = await rig.begin(request(fields=[b"Accept: text/event-stream"]))
        await draining(rig)
        await peer.send(stream() + chunk(event(b"1")))
        await one.ends()
        assert await rig.gateway.exits() == 0


@pytest.mark.parametrize("framing", [b"Content-Length: 10\r\n", b""], ids=["by its length", "by its end"])
async def test_sigterm_waits_no_longer_than_its_limit_and_what_it_cuts_does_not_look_whole(
    gateways: Gateways, framing: bytes
) -> None:
    """An answer that ends with its connection was once closed by FIN, as if it were whole."""
    async with own(gateways, limits={"drain_timeout": "500ms"}) as rig:
        one, peer = await rig.begin(post(call("tools/call")))
        await peer.send(b"HTTP/1.1 200 OK\r\n" + framing + b"\r\nhalf")
        await one.hears(b"half")
        rig.gateway.signal(signal.SIGTERM)
        assert not (await one.response()).whole
        assert framing or one.end == "rst"
        assert await rig.gateway.exits() == 0


async def test_sigint_ends_as_sigterm_does(gateways: Gateways) -> None:
    async with own(gateways) as rig:
        rig.gateway.signal(signal.SIGINT)
        assert await rig.gateway.exits() == 0
