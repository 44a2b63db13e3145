"""Requests must not be lost or answered twice, also where upstreams break HTTP (RFC 9110, 9.2.2)."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from typing import Final

import pytest

from gateway.config import Limits, Url
from gateway.config import Upstream as Config
from gateway.errors import UpstreamBroken
from gateway.http.header_fields import Headers
from gateway.http.parsed_head_cache import HeadCache
from gateway.http.response_parser import authenticates_connection, may_vary
from gateway.transport.base_connection import Links
from gateway.transport.memory_budget import Buffers
from gateway.transport.repeated_log_lines import LogLimit
from gateway.upstream import connection_pool
from gateway.upstream.connection_pool import Call, Pool, UpstreamContext
from gateway.upstream.dial import Dialer
from tests.launch import Gateways, listening, logged, port_of
from tests.peer import Peer, kernel_bytes_max
from tests.relay.http1 import Message
from tests.relay.messages import call, chunked, filtered, initialized, page, post, request, response, task
from tests.relay.rig import Rig, Server, answers, final, own, rig_with
from tests.upstream import Upstream

TEXT = b"Content-Type: text/plain"


# ---- kept-alive upstream connections ----


async def test_a_get_on_a_dying_connection_is_sent_again(rig: Rig) -> None:
    one, peer = await rig.answered(request(), response(b"first"))
    await one.send(request())
    assert await rig.upstream.request(2) is peer
    peer.reset()
    fresh = await rig.upstream.request(3)
    await fresh.send(response(b"again"))
    assert (await one.response(2)).body == b"again"


async def test_a_get_of_which_an_answer_had_begun_is_not_sent_again(rig: Rig) -> None:
    one, peer = await rig.answered(request(), response(b"first"))
    await one.send(request())
    await rig.upstream.request(2)
    await peer.send(b"HTTP/1.1 200 OK\r\nContent-Le")
    peer.reset()
    assert (await one.response(2)).status == 502
    await rig.begin(request(target=b"/canary"))
    assert [asked.target for asked in rig.upstream.requests] == [b"/mcp", b"/mcp", b"/canary"]


async def test_an_idle_connection_is_closed_in_time(hasty_rig: Rig) -> None:
    """`idle_timeout` is a second there."""
    _, peer = await hasty_rig.answered(request(), response(b"first"))
    assert await peer.ends() == "fin"


# ---- what the client sends, and when ----


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


@pytest.mark.parametrize("is_read", [True, False], ids=["a message", "another body"])
async def test_expect_does_not_go_up_with_a_body_that_the_gateway_asked_for(rig: Rig, is_read: bool) -> None:
    """RFC 9110, 10.1.1: it says 100 as the origin server that it is to clients (3.7), and sends all at once."""
    sent = request(b"PUT", fields=[TEXT], body=b"ok") if not is_read else post(call("ping"))
    head, end, message = sent.partition(b"\r\n\r\n")
    one = await rig.client(head + b"\r\nExpect: 100-continue" + end)
    if not is_read:
        peer = await rig.upstream.head()
        await peer.send(b"HTTP/1.1 100 Continue\r\n\r\n")
    await one.hears(b"HTTP/1.1 100 Continue\r\n\r\n")
    await one.send(message)
    peer = await rig.upstream.request()
    await peer.send(response())
    assert (await one.response()).status == 200
    [asked] = rig.upstream.requests
    assert (asked.value(b"expect"), asked.body) == (None if is_read else b"100-continue", message)


OWN_BYTES: Final = 8 << 20  # of one connection, at most, that the gateway has in its own memory


async def test_a_slow_reader_slows_the_upstream(process_rig: Rig) -> None:
    """DESIGN 3.4: back-pressure reaches the other side; what the gateway holds is bounded."""
    one, peer = await process_rig.begin(request())
    one.pause()
    pieces = (kernel_bytes_max() + OWN_BYTES >> 20) + 16
    piece = b"x" * (1 << 20)
    await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (pieces * len(piece)))
    sent = 0

    async def pour() -> None:
        nonlocal sent
        while sent < pieces:
            await peer.send(piece)
            sent += 1

    pouring = asyncio.create_task(pour())
    stalled_at = -1
    while stalled_at != sent:  # ends when nothing has moved for a while
        stalled_at = sent
        await asyncio.sleep(0.5)
    assert sent < pieces - 16, f"{sent} MB taken from the upstream that the client did not want yet"
    assert (await process_rig.exchange(request(), response(b"other"))).body == b"other"
    one.resume()
    await pouring
    assert (await one.response()).body == piece * pieces


async def test_a_slow_upstream_slows_the_client_who_is_not_to_blame(gateways: Gateways) -> None:
    """While its body is held up by back-pressure, nothing is read of it."""
    async with rig_with(gateways, limits={"stall_timeout": "2s"}) as rig:
        one = await rig.client()
        enough = kernel_bytes_max() + OWN_BYTES
        pieces = [b"x" * (1 << 20)] * ((enough >> 20) + 16)
        total = len(pieces) << 20
        sending = asyncio.create_task(one.send(request(b"PUT", fields=[TEXT, b"Content-Length: %d" % total]), *pieces))
        peer = await rig.upstream.head()
        peer.pause()
        until = time.monotonic() + 4.5
        while time.monotonic() < until:
            await asyncio.sleep(0.02)
            peer.incoming.feed(await asyncio.get_running_loop().sock_recv(peer.sock, 32 << 10))
        assert len(one.sent) < enough + len(peer.received) and one.end == "open"
        peer.resume()
        await sending
        await peer.until(lambda: len(peer.received) > total, "the whole body")
        await peer.send(response())
        assert (await one.response()).status == 200


async def test_a_filtered_answer_to_http_1_0_and_to_close(rig: Rig) -> None:
    rig.serve(Server({None: page([task("t-1")])}))
    for asked in (rig.post(filtered()).replace(b"HTTP/1.1", b"HTTP/1.0"), rig.post(filtered(), b"Connection: close")):
        one = await rig.client(asked)
        got = await one.response()
        assert len(final(got)["result"]["tasks"]) == 1
        assert await one.ends() == "fin"


# ---- what nobody asked for: a connection in doubt serves nobody ----

OK = b"Content-Length: 2\r\n\r\nok"
CLOSE = b"Connection: close"
KEEP = b"Connection: keep-alive"
CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def test_after_what_nobody_asked_for_each_exchange_has_its_own_connection(gateways: Gateways) -> None:
    async with own(gateways) as rig:
        one, peer = await rig.answered(request(), response(b"first"))
        await peer.send(response(b"poison"))
        await peer.ends()
        assert (await logged(rig.gateway, "nobody asked for"))["upstream"] == "up"
        for number in (2, 3, 4):
            await one.send(request())
            peer = await rig.upstream.request(number)
            await peer.send(response(b"mine"))
            assert (await one.response(number)).body == b"mine"
            await peer.ends()
        assert len(rig.upstream.connections) == 4


class Direct:
    """A pool on the test's own loop, so that a connection can be used again without a turn of the loop."""

    def __init__(self, listening: socket.socket) -> None:
        self.upstream = Upstream(listening)
        config = Config(name="up", url=Url("http", "127.0.0.1", port_of(listening), "/"))
        loop = asyncio.get_running_loop()
        context, dialer = UpstreamContext("up", LogLimit(loop.time)), Dialer(config, loop)
        self.pool = Pool(
            config, Limits(), Buffers(1 << 20), Links(), lambda _: None, HeadCache(may_vary), context, dialer
        )

    async def ask(self, said: bytes) -> tuple[Peer, bytes]:
        """One exchange, answered with `said`: the server's side of its connection, and the body."""
        known = len(self.upstream.requests)
        async with Call(self.pool, b"GET") as exchange:
            waiting = asyncio.create_task(exchange.send_all(GET, b"", None, again=False))
            peer = await self.upstream.request(known + 1)
            await peer.send(said)
            return peer, await (await waiting).body.read()


@pytest.fixture
async def direct() -> AsyncIterator[Direct]:
    with listening() as sock:
        one = Direct(sock)
        yield one
        one.pool.close()
        await one.upstream.close()


async def test_the_socket_is_looked_at_however_short_it_was_idle(direct: Direct) -> None:
    first, _ = await direct.ask(response(b"first"))
    assert (await direct.ask(response(b"second")))[0] is first, "it is used again"
    first.sock.send(response(b"poison"))  # and the loop has had no turn to read it
    other, got = await direct.ask(response(b"mine"))
    assert other is not first
    assert got == b"mine"
    third, _ = await direct.ask(response(b"mine"))
    assert third is not other, "what was in the socket was seen for what it is"


async def test_an_end_of_an_idle_connection_is_nothing_that_nobody_asked_for(direct: Direct) -> None:
    first, _ = await direct.ask(response(b"first"))
    first.finish()  # as Node does after 5 s
    second, _ = await direct.ask(response(b"second"))
    assert second is not first
    assert (await direct.ask(response(b"third")))[0] is second, "its connections are used again"


async def test_an_answer_that_comes_before_the_request_is_none(direct: Direct) -> None:
    first, _ = await direct.ask(response(b"first"))
    async with Call(direct.pool, b"PUT") as exchange:  # it has its connection before anything goes out
        await first.send(response(b"poison"))
        await asyncio.sleep(0.05)
        with pytest.raises(UpstreamBroken):
            await exchange.send_all(GET, b"", None, again=False)


async def test_a_connection_serves_an_hour_at_most(direct: Direct, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was never idle for long never ended: its clients stayed at an address that the name had left."""
    first, _ = await direct.ask(response(b"first"))
    assert (await direct.ask(response(b"second")))[0] is first
    monkeypatch.setattr(connection_pool, "_AGE_MAX_S", 0.0)
    assert (await direct.ask(response(b"third")))[0] is first
    assert await first.ends() == "fin"
    assert (await direct.ask(response(b"fourth")))[0] is not first


async def test_an_early_answer_is_read_though_its_servers_end_lets_the_upload_fail(direct: Direct) -> None:
    """A third of the 413s of a server that closes behind them were 502s, and it was said to be down."""
    for has_turn in (True, False):
        async with Call(direct.pool, b"PUT") as upload:
            await upload.send(GET)
            peer = await direct.upstream.request(direct.upstream.count + 1)
            peer.sock.send(response(b"no", status=b"413 Content Too Large"))
            peer.reset()
            if has_turn:
                await upload.send(b"more")
                assert upload.connection.head(None).done(), "it was read before the write"
            else:
                upload.connection.write(b"more")
            answered = await upload.connection.head(None)
            assert (answered.head.status, await answered.body.read()) == (413, b"no")
    assert not direct.pool.state.is_down


# ---- who is asked again, and who is not ----

KEPT = {
    "HTTP/1.1": response(),
    "HEAD": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
    "HEAD of chunks": CHUNKS,
    "HTTP/1.0 that keeps": b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok",
    "chunked, and a trailer": CHUNKS + chunked(b"x", trailers=[b"A: b"]),
    "1xx before it": b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * 3 + response(),
}


LEFT = {
    "close": response(b"ok", CLOSE),
    "close in a list": response(b"ok", b"Connection: keep-alive, Close"),
    "close, then keep": response(b"ok", CLOSE, KEEP),
    "keep, then close": response(b"ok", KEEP, CLOSE),
    "HEAD without a length": b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n",  # its server may close now
    "HTTP/1.0": b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
    "HTTP/1.0 that keeps and closes": b"HTTP/1.0 200 OK\r\n" + KEEP + b", close\r\n" + OK,
    "HTTP/1.0 in chunks": b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n"
    + chunked(b"ok"),
    **{
        f"close, and {trailer.decode()} as a trailer": CHUNKS.replace(b"OK\r\n", b"OK\r\n%b\r\n" % CLOSE)
        + chunked(b"x", trailers=[trailer])
        for trailer in (KEEP, b"Keep-Alive: timeout=5", b"Upgrade: x")
    },
    **{
        f"trailers {trailers}": CHUNKS + chunked(b"x", trailers=trailers)
        for trailers in ([CLOSE], [b"connection: x, Close"], [b"Proxy-Connection: close"], [b"X: y", CLOSE, KEEP])
    },
    "204 of HTTP/1.0": b"HTTP/1.0 204 No Content\r\nConnection: keep-alive\r\n\r\n",
}


@pytest.mark.parametrize("name", [*KEPT, *LEFT])
async def test_a_connection_that_is_whole_is_kept_unless_the_server_will_close_it(rig: Rig, name: str) -> None:
    one, peer = await rig.begin(request(b"HEAD" if name.startswith("HEAD") else b"GET"))
    await peer.send({**KEPT, **LEFT}[name])
    got = await one.response()
    assert got.whole and b"lose" not in b"".join(value for _, value in got.trailers)
    await one.send(request())
    other = await rig.upstream.request(2)
    assert (other is peer) is (name in KEPT)
    await other.send(response(b"mine"))
    assert (await one.response(2)).body == b"mine"


# ---- connections that a server authenticates ----


async def test_a_head_that_came_before_is_framed_for_each_client(rig: Rig) -> None:
    rig.serve(answers(lambda asked: CHUNKS + (b"" if asked.method == b"HEAD" else chunked(b"ok"))))
    for _ in range(4):
        assert (await rig.ask(GET)).body == b"ok"
        old = await rig.client(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
        got = await old.response()
        assert (got.body, got.values(b"transfer-encoding"), got.values(b"connection")) == (b"ok", [], [b"close"])
        head = await rig.ask(b"HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (head.body, head.values(b"transfer-encoding")) == (b"", [b"chunked"])
        last = await rig.ask(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert (last.body, last.values(b"connection")) == (b"ok", [b"close"])


async def test_what_comes_with_credentials_of_a_connection_is_the_servers_own(rig: Rig) -> None:
    """Header fields do not tell such clients apart, so indexes neither answer them nor learn from them."""
    rig.serve(Server({None: page([task("t-1")])}, {"initialize": initialized()}))
    token, scheme = b"Authorization: Bearer a", b"Authorization: Negotiate abc"
    assert len(final(await rig.ask(rig.post(filtered(), token)))["result"]["tasks"]) == 1
    assert "_meta" not in final(await rig.ask(rig.post(filtered(2), scheme)))["result"], "the server's own answer"
    offered = final(await rig.ask(rig.post(call("initialize", 3), scheme)))["result"]["capabilities"]["tasks"]["list"]
    assert "filter" not in offered, "what is not answered is not offered"
    asked = len(rig.upstream.requests)
    assert final(await rig.ask(rig.post(filtered(4), token)))["result"]["_meta"]["taskgate/total"] == 1
    assert len(rig.upstream.requests) - asked <= 1, "the other caller's index stays"


async def test_a_crawl_never_uses_a_connection_that_was_challenged(rig: Rig) -> None:
    """Neither one on which a client was challenged, nor one on which a crawl was challenged itself."""
    challenged: list[Peer] = []

    async def challenge(asked: Message, peer: Peer) -> bytes:
        assert peer not in challenged, "a connection that was challenged serves another exchange"
        challenged.append(peer)
        return response(b"who?", b"WWW-Authenticate: Negotiate", status=b"401 Unauthorized")

    rig.serve(challenge)
    assert (await rig.ask(request())).status == 401
    for _ in range(3):
        got = await rig.ask(rig.post(filtered()))
        assert (got.status, got.value(b"www-authenticate")) == (401, b"Negotiate")
    assert len(challenged) == 4
    await asyncio.gather(*(peer.ends() for peer in challenged))


def test_which_schemes_authenticate_a_connection() -> None:
    """The others stand in the tables of attacks."""
    for value in (b"Bearer NTLM", b"NTLMv3 a", b"Bearer abc", b'Bearer realm="negotiate"', b"Digest negotiate=1"):
        for name in (b"Authorization", b"WWW-Authenticate"):
            assert not authenticates_connection(Headers([(name, value)]))
    assert not authenticates_connection(Headers([(b"X-Authenticate", b"NTLM")]))
    for name, value in ((b"WWW-AUTHENTICATE", b",,NEGOTIATE"), (b"Authorization", b"negotiate\tabc")):
        assert authenticates_connection(Headers([(name, value)]))
