"""What one exchange with an upstream could do to another: a connection in doubt serves nobody."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from gateway.config import Address, Limits, Url
from gateway.config import Config as Settings
from gateway.config import Upstream as Config
from gateway.downstream.exchange import Exchange
from gateway.downstream.listener import Listener
from gateway.errors import GatewayError, UpstreamBroken
from gateway.http.fields import Headers
from gateway.http.head_cache import HeadCache
from gateway.http.response_parser import authenticates_connection
from gateway.operate.metrics import Metrics
from gateway.relay.caller import Admission
from gateway.relay.pump import relay
from gateway.transport.base_connection import Links
from gateway.transport.memory_budget import Buffers
from gateway.upstream.connection_pool import Pool, UpstreamContext
from gateway.upstream.dial import Dialer
from tests.launch import Gateways, listening, logged, port_of
from tests.peer import Client, Peer, kernel_bytes_max
from tests.relay.conftest import SMALL_HEADER_BYTES
from tests.relay.http1 import Message
from tests.relay.messages import call, filtered, initialized, page, result, task
from tests.relay.rig import Rig, Server, body, final, own
from tests.relay.wire import answer, chunked, request, response
from tests.upstream import Upstream

TEXT = b"Content-Type: text/plain"
OK = b"Content-Length: 2\r\n\r\nok"
CLOSE = b"Connection: close"
KEEP = b"Connection: keep-alive"
CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def next_is_fresh(rig: Rig, one: Client, peer: Peer, number: int = 2) -> None:
    """The next request of a client goes out on another connection, and gets its own answer."""
    await one.send(request())
    fresh = await rig.upstream.request(number)
    assert fresh is not peer, "the connection serves another exchange"
    await fresh.send(response(b"mine"))
    assert (await one.response(number)).body == b"mine"


async def next_is_same(rig: Rig, one: Client, peer: Peer, number: int = 2) -> None:
    await one.send(request())
    assert await rig.upstream.request(number) is peer
    await peer.send(response(b"mine"))
    assert (await one.response(number)).body == b"mine"


# ---- what nobody asked for ----


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
        context, dialer = UpstreamContext("up"), Dialer(config, asyncio.get_running_loop())
        self.pool = Pool(config, Limits(), Buffers(1 << 20), Links(), lambda _: None, HeadCache(), context, dialer)

    async def ask(self, said: bytes) -> tuple[Peer, bytes]:
        """One exchange, answered with `said`: the server's side of its connection, and the body."""
        known = len(self.upstream.requests)
        async with self.pool.call(b"GET") as exchange:
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
    async with direct.pool.call(b"PUT") as exchange:  # it has its connection before anything goes out
        await first.send(response(b"poison"))
        await asyncio.sleep(0.05)
        with pytest.raises(UpstreamBroken):
            await exchange.send_all(GET, b"", None, again=False)


# ---- who is asked again, and who is not ----

KEPT = {
    "HTTP/1.1": response(),
    "HEAD": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
    "HEAD of chunks": CHUNKS,
    "204": b"HTTP/1.1 204 No Content\r\n\r\n",
    "304 with a length": b"HTTP/1.1 304 Not Modified\r\nContent-Length: 6\r\n\r\n",
    "HTTP/1.0 that keeps": b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok",
    "chunked, and a trailer": CHUNKS + chunked(b"x", trailers=[b"A: b"]),
    "1xx before it": b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * 3 + response(),
    "1xx that has a length": b"HTTP/1.1 102 x\r\nContent-Length: 9\r\n\r\n" + response(),
    "an offer of another protocol": response(b"ok", b"Upgrade: h2c", b"Connection: upgrade"),
}


LEFT = {
    "close": response(b"ok", CLOSE),
    "close twice": response(b"ok", CLOSE, CLOSE),
    "close in a list": response(b"ok", b"Connection: keep-alive, Close"),
    "close, then keep": response(b"ok", CLOSE, KEEP),
    "keep, then close": response(b"ok", KEEP, CLOSE),
    "HTTP/1.0": b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
    "HTTP/1.0 that keeps and closes": b"HTTP/1.0 200 OK\r\n" + KEEP + b", close\r\n" + OK,
    "HTTP/1.0 in chunks": b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n"
    + chunked(b"ok"),
    **{
        f"close, and {trailer.decode()} as a trailer": response(b"", CLOSE, b"Transfer-Encoding: chunked").replace(
            b"Content-Length: 0\r\n", b""
        )
        + chunked(b"x", trailers=[trailer])
        for trailer in (KEEP, b"Keep-Alive: timeout=5", b"Upgrade: x")
    },
    "204 of HTTP/1.0": b"HTTP/1.0 204 No Content\r\nConnection: keep-alive\r\n\r\n",
}


@pytest.mark.parametrize("name", [*KEPT, *LEFT])
async def test_a_connection_that_is_whole_is_kept_unless_the_server_will_close_it(rig: Rig, name: str) -> None:
    one, peer = await rig.begin(request(b"HEAD" if name.startswith("HEAD") else b"GET"))
    await peer.send({**KEPT, **LEFT}[name])
    assert (await one.response()).whole
    await (next_is_same if name in KEPT else next_is_fresh)(rig, one, peer)


TRAILERS_THAT_END = [[CLOSE], [b"connection: x, Close"], [b"Proxy-Connection: close"], [b"X: y", CLOSE, KEEP]]


@pytest.mark.parametrize("trailers", TRAILERS_THAT_END)
@pytest.mark.parametrize("closes", [True, False])
async def test_close_as_a_trailer_ends_the_connection(rig: Rig, trailers: list[bytes], closes: bool) -> None:
    """Point 1: 20 tries, and no client gets a connection that the server has closed or will."""
    for _ in range(20):
        one, peer = await rig.begin(request())
        await peer.send(CHUNKS + chunked(b"x", trailers=trailers))
        got = await one.response()
        assert (got.whole, got.body) == (True, b"x")
        assert b"lose" not in b"".join(value for _, value in got.trailers)
        other, fresh = await rig.begin(request(b"PUT", fields=[TEXT], body=b"x"))
        assert fresh is not peer
        if closes:
            peer.finish()
        await fresh.send(response(b"mine", CLOSE))
        assert (await other.response()).body == b"mine"


# ---- answers that are none ----


@pytest.mark.parametrize("begins", [b"0\r\nX: ", b"2;", b"2\r\nok\r\n0\r\nX: "], ids=["trailer", "extension", "behind"])
async def test_a_trailer_or_an_extension_without_end_is_cut(small_rig: Rig, begins: bytes) -> None:
    """llhttp reports no endless field. What is held of one has a limit all the same."""
    one, peer = await small_rig.begin(request())
    await peer.send(CHUNKS + begins)
    sent = 0
    while peer.end == "open" and sent < 200 * SMALL_HEADER_BYTES:
        await peer.send(b"x" * SMALL_HEADER_BYTES)
        await asyncio.sleep(0.005)
        sent += SMALL_HEADER_BYTES
    assert peer.end != "open"
    assert not (await one.response()).whole


async def test_a_flood_of_1xx_is_as_fast_as_its_reader_and_the_answer_behind_it_comes(process_rig: Rig) -> None:
    """What the client has not taken is not read from the upstream: so much does not fit in between."""
    one, peer = await process_rig.begin(request())
    one.pause()
    piece = b"HTTP/1.1 103 Early Hints\r\nLink: %b\r\n\r\n" % (b"x" * 1000) * 1000
    enough, sent = (kernel_bytes_max() >> 20) + 8, 0  # MB

    async def pour() -> None:
        nonlocal sent
        while sent < enough + 16:
            await peer.send(piece)
            sent += 1
        await peer.send(response(b"mine"))

    pouring = asyncio.create_task(pour())
    stalled_at = -1
    while stalled_at != sent:  # ends when nothing has moved for a while
        stalled_at = sent
        await asyncio.sleep(0.5)
    assert sent < enough, f"{sent} MB of 1xx responses taken from the upstream, and none by the client"
    assert (await process_rig.exchange(request(), response(b"other"))).body == b"other"
    one.resume()
    await pouring
    await one.hears(b"\r\n\r\nmine")
    assert one.received.count(b" 103 ") == 1000 * sent


# ---- a body that is not as long as its head says ----


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(("stated", "sent"), [(10, b"abc"), (2, b"abc"), (0, b"abc")])
async def test_a_body_that_is_not_of_its_length_leaves_nothing_to_the_next_client(
    direct: Direct, whole: bool, stated: int, sent: bytes
) -> None:
    """A second guard: the server would read the next client's request as the rest of the body."""
    failed = asyncio.get_running_loop().create_future()

    async def handle(exchange: Exchange) -> None:
        settings = Settings(listen=Address("127.0.0.1", 0), upstreams=(direct.pool.config,))
        caller = Admission(settings, {"up": direct.pool}, Links()).caller_of(exchange)
        got = await exchange.request.body.read()
        exchange.request.up_bytes = stated
        if whole:
            exchange.request.taken = got
        else:
            exchange.request.body.feed(got)
        try:
            await relay(exchange, caller, lambda response: None)
        except GatewayError as error:
            failed.set_result(error)
            exchange.response.respond(error.status, error.reason, [], b"")

    metrics = Metrics()
    counts = metrics.connection_refused, metrics.handshake_failed
    listener = Listener(handle, Limits(), Buffers(1 << 20), HeadCache(), *counts)
    with listening() as sock:
        server = await asyncio.get_running_loop().create_server(listener.connection, sock=sock)
        one = await Client.connect(port_of(sock))
        await one.send(b"PUT / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(sent), sent))
        async with asyncio.timeout(20):
            assert "Content-Length" in str(await failed)
        assert (await one.response()).status == 502
        assert direct.pool.is_empty
        await asyncio.gather(*(peer.ends() for peer in direct.upstream.connections))
        await one.close()
        server.close()
        await server.wait_closed()


# ---- connections that a server authenticates ----


async def test_a_head_that_came_before_is_framed_for_each_client(rig: Rig) -> None:
    async def answering(asked: Message, peer: Peer) -> bytes:
        return CHUNKS + (b"" if asked.method == b"HEAD" else chunked(b"ok"))

    rig.serve(answering)
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

    async def serve(asked: Message, _peer: Peer) -> bytes:
        message = body(asked)
        lists = message["method"] == "tasks/list"
        return answer(result(message["id"], page([task("t-1")]) if lists else initialized()))

    rig.serve(serve)
    scheme = b"Authorization: Negotiate abc"
    assert "_meta" not in final(await rig.ask(rig.post(filtered(1), scheme)))["result"]
    offered = final(await rig.ask(rig.post(call("initialize", 2), scheme)))["result"]["capabilities"]["tasks"]["list"]
    assert "filter" not in offered, "what is not answered is not offered"
    assert len(rig.upstream.requests) == 2


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


async def test_another_clients_index_stays_when_one_is_authenticated_by_connection(rig: Rig) -> None:
    server = Server({None: page([task("t-1")])})
    rig.serve(server)
    token = b"Authorization: Bearer a"
    assert len(final(await rig.ask(rig.post(filtered(), token)))["result"]["tasks"]) == 1
    one = await rig.client(rig.post(filtered(2), b"Authorization: Negotiate abc"))
    assert "_meta" not in final(await one.response())["result"], "the server's own answer"
    asked = len(rig.upstream.requests)
    got = final(await rig.ask(rig.post(filtered(3), token)))["result"]
    assert got["_meta"]["taskgate/total"] == 1
    assert len(rig.upstream.requests) - asked <= 1


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        (b"Authorization", b"Bearer NTLM", False),
        (b"Authorization", b"NTLMv3 a", False),
        (b"Authorization", b"Bearer abc", False),
        (b"WWW-Authenticate", b'Bearer realm="negotiate"', False),
        (b"WWW-Authenticate", b"Digest negotiate=1", False),
        (b"X-Authenticate", b"NTLM", False),
        (b"WWW-AUTHENTICATE", b",,NEGOTIATE", True),
        (b"Authorization", b"negotiate\tabc", True),
    ],
)
def test_which_schemes_authenticate_a_connection(name: bytes, value: bytes, expected: bool) -> None:
    assert authenticates_connection(Headers([(name, value)])) is expected
