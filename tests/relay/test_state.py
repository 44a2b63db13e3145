"""The state of an upstream, seen from outside: what begins a down, and what ends it if nobody asks (DESIGN 8.12)."""

import asyncio
import contextlib
from time import monotonic

import pytest

from gateway.config import Limits, Url
from gateway.config import Upstream as Config
from gateway.http.head_cache import HeadCache
from gateway.transport.base_connection import Links
from gateway.transport.memory_budget import Buffers
from gateway.upstream.connection_pool import Pool, UpstreamContext
from gateway.upstream.dial import Dialer
from gateway.upstream.upstreams import watch
from tests.launch import Gateway, Gateways, Json, eventually, held_port, logged, port_of, settings
from tests.peer import Peer
from tests.relay.http1 import Message
from tests.relay.messages import call, filtered, page, result
from tests.relay.rig import Rig, body, own, rig_with
from tests.relay.wire import answer, chunk, post, request, response, stream
from tests.upstream import Upstream

PROBE_S = 1.25  # the first probe comes so long after a down at the latest


async def up(gateway: Gateway, name: str = "up") -> float | None:
    return (await gateway.metrics()).get(("taskgate_upstream_up", (("upstream", name),)))


async def becomes(gateway: Gateway, value: float | None, name: str = "up") -> None:
    async def there() -> bool:
        return await up(gateway, name) == value

    await eventually(there, f"taskgate_upstream_up of {name} is {value}")


def said(gateway: Gateway) -> list[tuple[str, str]]:
    lines = [line for line in gateway.lines() if str(line["message"]).startswith("the upstream is ")]
    return [(str(line["message"]).removeprefix("the upstream is "), str(line["before"])) for line in lines]


async def pong(asked: Message, peer: Peer) -> bytes:
    message = body(asked)
    return answer(result(message["id"], page([]))) if message else response(status=b"405 Method Not Allowed")


async def test_an_upstream_that_was_never_asked_has_no_sample(gateways: Gateways) -> None:
    async with rig_with(gateways, log={"level": "info"}) as rig:
        assert await up(rig.gateway) is None
        rig.serve(pong)
        await rig.ask(post(call("ping")))
        await becomes(rig.gateway, 1)
        assert said(rig.gateway) == [("up", "not asked yet")]


async def test_a_status_of_500_is_an_answer(gateways: Gateways) -> None:
    async with rig_with(gateways) as rig:
        await rig.answered(post(call("ping")), response(status=b"500 Internal Server Error"))
        await becomes(rig.gateway, 1)


@pytest.mark.parametrize("asked", [call("ping"), filtered()], ids=["relayed", "crawled"])
async def test_a_dead_server_that_is_back_is_up_though_nobody_asks(gateways: Gateways, asked: Json) -> None:
    with held_port() as port:
        url = f"http://127.0.0.1:{port_of(port)}/mcp"
        async with rig_with(gateways, upstream={"url": url}, log={"level": "info"}) as rig:
            assert (await rig.ask(post(asked))).status == 502
            await becomes(rig.gateway, 0)
            line = await logged(rig.gateway, "the upstream is down")
            assert line["level"] == "warning"
            assert "cannot be reached" in line["why"]
            back = Upstream(port)
            back.open()
            await becomes(rig.gateway, 1)
            assert back.requests == [], "a probe of what could not be reached sends nothing"
            assert said(rig.gateway) == [("down", "not asked yet"), ("up", "down")]
            await back.close()


PING, HALF = post(call("ping")), b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab"
UPLOAD = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
# What is asked, what the server sends, and how it ends: by FIN, by RST or not at all, which may be a 504.
FAILS: dict[str, tuple[bytes, bytes, str]] = {
    "reset": (PING, b"", "rst"),
    "late": (PING, b"", "504"),
    "late to a crawl": (post(filtered()), b"", "504"),
    "late to an upload": (UPLOAD + chunk(b"x"), b"", "504"),  # whose end comes when its head has
    "broken off": (PING, HALF, "fin"),
    "a broken stream": (request(fields=[b"Accept: text/event-stream"]), stream() + chunk(b": quiet\n\n"), "rst"),
    "no HTTP": (PING, b"220 mail.example ESMTP\r\n\r\n", "none"),
}


async def fail(rig: Rig, how: str) -> None:
    asked, said, end = FAILS[how]
    one = await rig.client(asked)
    peer = await rig.upstream.head()
    if asked.startswith(UPLOAD):
        await one.send(b"0\r\n\r\n")
    await peer.send(said)
    if end == "504":
        assert (await one.response()).status == 504
    elif end != "none":
        {"rst": peer.reset, "fin": peer.finish}[end]()


@pytest.mark.parametrize("how", FAILS)
async def test_a_missing_answer_begins_a_down_that_only_an_answer_ends(gateways: Gateways, how: str) -> None:
    changed: Json = {"upstream": {"response_timeout": "300ms"}, "index": {"crawl_timeout": "300ms"}}
    async with rig_with(gateways, log={"level": "info"}, **changed) as rig:
        await fail(rig, how)
        await becomes(rig.gateway, 0)
        probed, probe = await rig.upstream.probe(2 * PROBE_S)
        assert (probe.method, probe.target, probe.body) == (b"OPTIONS", b"/mcp", b"")
        assert await up(rig.gateway) == 0, "a connection does not end it"
        await probed.send(response(status=b"405 Method Not Allowed"))
        await becomes(rig.gateway, 1)
        assert [after for after, _ in said(rig.gateway)][-2:] == ["down", "up"]


async def test_the_next_exchange_ends_a_down_too(gateways: Gateways) -> None:
    async with rig_with(gateways) as rig:
        await fail(rig, "reset")
        await becomes(rig.gateway, 0)
        rig.serve(pong)
        assert (await rig.ask(post(call("ping")))).status == 200
        await becomes(rig.gateway, 1)


async def test_an_idle_connection_that_the_server_closes_says_nothing(gateways: Gateways) -> None:
    async with own(gateways, log={"level": "info"}) as rig:
        for _ in range(2):
            one, peer = await rig.begin(post(call("ping")))
            await peer.send(answer(result(1, {})))
            assert (await one.response()).status == 200
            peer.finish()
            await peer.ends()
        assert said(rig.gateway) == [("up", "not asked yet")]


async def test_a_client_that_leaves_says_nothing_of_the_server(gateways: Gateways) -> None:
    async with rig_with(gateways, log={"level": "info"}) as rig:
        for begun in (b"", stream(), HALF):
            one, peer = await rig.begin(post(call("ping")))
            await peer.send(begun)
            one.reset()
            await peer.ends()
        await becomes(rig.gateway, 1)
        assert said(rig.gateway) == [("up", "not asked yet")]


async def test_a_head_for_which_the_gateway_has_no_room_says_nothing_of_the_server(gateways: Gateways) -> None:
    limits = {"held_bytes_max": "1MiB", "inspected_body_bytes_max": "1MiB", "header_bytes_max": "1MiB"}
    async with rig_with(gateways, log={"level": "info"}, limits=limits) as rig:
        assert (
            await rig.exchange(post(call("ping")), b"HTTP/1.1 200 OK\r\nX-Large: " + b"x" * 1_000_000)
        ).status == 503
        rig.serve(pong)
        assert (await rig.ask(post(call("ping")))).status == 200
        assert said(rig.gateway) == [("up", "not asked yet")]


async def test_a_reload_keeps_the_state_unless_the_server_is_another(gateways: Gateways) -> None:
    with held_port() as other:
        async with rig_with(gateways, pong, log={"level": "info"}) as rig:
            await rig.ask(post(call("ping")))
            here = rig.gateway.port, rig.gateway.admin
            for changed, value in (({"requests_max": 9}, 1.0), ({"url": f"http://127.0.0.1:{port_of(other)}/"}, None)):
                rig.gateway.reload(settings(*here, port_of(rig.place.listening), {"upstream": changed}))
                await becomes(rig.gateway, value)


async def test_what_went_down_together_is_probed_spread_and_seldom() -> None:
    """50 servers that take connections and say nothing: each is asked once in the first seconds, not all at once."""
    asked: list[float] = []

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            asked.append(monotonic())
            await reader.read()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    url = Url("http", "127.0.0.1", port, "/mcp")
    configs = [Config(name=f"u{number}", url=url) for number in range(50)]
    limits, buffers, links, loop = Limits(), Buffers(1 << 20), Links(), asyncio.get_running_loop()
    pools = [
        Pool(each, limits, buffers, links, lambda _: None, HeadCache(), UpstreamContext(each.name), Dialer(each, loop))
        for each in configs
    ]
    began_at = monotonic()
    for pool in pools:
        pool.state.silent("no answer")
    probes = [asyncio.create_task(watch(pool)) for pool in pools]
    try:
        await eventually(lambda: len(asked) >= len(pools), "a probe of each")
        await asyncio.sleep(max(0.0, began_at + PROBE_S + 1.0 - monotonic()))
        after = sorted(at - began_at for at in asked)
        assert len(after) == len(pools)
        assert after[0] >= 1.0
        assert after[-1] - after[0] > 0.1
    finally:
        for probe in probes:
            probe.cancel()
        await asyncio.gather(*probes, return_exceptions=True)
        for pool in pools:
            pool.close()
        server.close()
        await server.wait_closed()
