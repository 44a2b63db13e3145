"""Upstreams as they are: TLS, Unix sockets, health checks, and when one is up; listeners of every kind (DESIGN 8)."""

import asyncio
import http.client
import json
import os
import socket
import ssl
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path

import pytest

from gateway.config import Config, Url
from gateway.config import Upstream as UpstreamConfig
from gateway.transport.base_connection import Links
from gateway.transport.memory_budget import Buffers
from gateway.transport.repeated_log_lines import LogLimit
from gateway.upstream.upstream_set import Pools, dialers_of
from tests.certificates import Authority
from tests.forked import ran
from tests.launch import Gateway, Gateways, Json, eventually, held_port, listening, logged, port_of, settings
from tests.model.virtual import START_S, VirtualLoop
from tests.peer import Peer
from tests.relay.http1 import Message
from tests.relay.messages import answer, call, chunk, filtered, page, post, request, response, result, stream
from tests.relay.rig import Rig, gives, meant, own, rig_with
from tests.upstream import Cheap, Upstream, fields_of


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


class Seen:
    """An upstream that answers every request, and notes the heads and the names of its clients' certificates."""

    def __init__(self) -> None:
        self.heads: list[bytes] = []
        self.clients: list[str] = []
        self.status = b"200 OK"

    def answer(self, head: bytes, _body: bytes) -> bytes:
        self.heads.append(head)
        return response(status=self.status)


class Noting(Cheap):
    def __init__(self, seen: Seen) -> None:
        super().__init__(seen.answer)
        self._seen = seen

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        subject = (transport.get_extra_info("peercert") or {}).get("subject", ())
        self._seen.clients += [value for [(field, value)] in subject if field == "commonName"]


@asynccontextmanager
async def served(sock: socket.socket | str) -> AsyncIterator[Seen]:
    """An upstream on a socket, or on the path of one."""
    seen, loop = Seen(), asyncio.get_running_loop()
    if isinstance(sock, str):
        server = await loop.create_unix_server(lambda: Noting(seen), sock)
    else:
        server = await loop.create_server(lambda: Noting(seen), sock=sock)
    yield seen
    server.close()


@asynccontextmanager
async def tls_upstream(
    authority: Authority, name: str, of_clients: Authority | None = None
) -> AsyncIterator[tuple[Seen, int]]:
    """An upstream with a certificate for a name, that wants one of its clients."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=(of_clients or authority).ca)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(*authority.certificate(name))
    seen = Seen()
    server = await asyncio.get_running_loop().create_server(lambda: Noting(seen), "127.0.0.1", 0, ssl=context)
    yield seen, server.sockets[0].getsockname()[1]
    server.close()


# ---- TLS ----


@pytest.mark.parametrize("missing", [(), ("ca",), ("server_name",), ("certificate", "key")], ids=str)
async def test_an_upstream_with_an_authority_of_its_own_that_wants_a_certificate(
    gateways: Gateways, authority: Authority, missing: tuple[str, ...]
) -> None:
    """Without one of them there is no connection."""
    cert, key = authority.certificate("gateway.internal")
    tls = {"ca": authority.ca, "certificate": cert, "key": key, "server_name": "mcp.internal"}
    tls = {name: value for name, value in tls.items() if name not in missing}
    async with tls_upstream(authority, "mcp.internal") as (seen, port):
        with gateways.process(port, upstream={"url": f"https://127.0.0.1:{port}/mcp", "tls": tls}) as gateway:
            assert (await gateway.relayed())[0] == (502 if missing else 200)
            assert [fields_of(head)["host"] for head in seen.heads] == ([] if missing else [f"127.0.0.1:{port}"])
            assert missing or seen.clients == ["gateway.internal"]


# ---- Unix sockets ----


async def test_an_upstream_behind_a_unix_socket(gateways: Gateways, tmp_path: Path) -> None:
    """502 where nobody listens on it."""
    path = str(tmp_path / "up.sock")
    with gateways.process(1, upstream={"url": "http://mcp.internal/mcp", "socket": path}) as gateway:
        assert (await gateway.relayed())[0] == 502
        async with served(path) as seen:
            assert await gateway.relayed() == await gateway.relayed() == (200, "ok")
            assert fields_of(seen.heads[0])["host"] == "mcp.internal"


def over_unix(path: str, target: str) -> tuple[int, bytes]:
    with closing(http.client.HTTPConnection("any.example", timeout=30)) as connection:
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(path)
        connection.request("GET", target, headers={"X-Request-Id": "over-unix"})
        got = connection.getresponse()
        return got.status, got.read()


async def test_listening_on_unix_sockets(gateways: Gateways, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Who reaches the socket is the file system's matter: `Host` is not checked. A file left behind is no hindrance."""
    listen, admin = str(tmp_path / "listen.sock"), str(tmp_path / "admin.sock")
    request.addfinalizer(partial(os.umask, os.umask(0o007)))
    for path in (listen, admin):
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(path)
    with listening() as sock:
        config = settings(1, 2, port_of(sock), {"log": {"level": "info", "access": True}})
        config |= {"listen": f"unix:{listen}", "admin": {"listen": f"unix:{admin}"}}
        async with served(sock):
            with gateways.starting(config, serves=lambda: ready_over(admin)) as gateway:
                gateway.wait()
                assert await asyncio.to_thread(over_unix, listen, "/mcp") == (200, b"ok")
                line = await logged(gateway, "over-unix")
                assert (line["client"], line["status"]) == ("unix", 200)
                assert (await logged(gateway, '"serving"'))["address"] == f"http://unix:{listen}:/mcp"
                assert b"taskgate_requests_total" in (await asyncio.to_thread(over_unix, admin, "/metrics"))[1]
                modes = {stat.S_IMODE(Path(path).stat().st_mode) for path in (listen, admin)}  # noqa: ASYNC240
            assert modes == {0o770}, "all that the umask leaves"


@pytest.mark.parametrize("which", ["listen", "admin"])
def test_a_unix_socket_that_somebody_listens_on_is_not_taken(tmp_path: Path, which: str) -> None:
    path = str(tmp_path / "taken.sock")
    with socket.socket(socket.AF_UNIX) as taken, held_port() as listen, held_port() as admin:
        taken.bind(path)
        taken.listen()
        config = settings(port_of(listen), port_of(admin), 1)
        config |= {"listen": f"unix:{path}"} if which == "listen" else {"admin": {"listen": f"unix:{path}"}}
        file = tmp_path / "gate.yaml"
        file.write_text(json.dumps(config))
        ended = ran("--config", str(file))
    assert ended.returncode == 1
    assert f"cannot listen on unix:{path}: Address already in use" in ended.stderr


def ready_over(path: str) -> bool:
    try:
        return over_unix(path, "/readyz")[0] == 200
    except OSError:
        return False


# ---- addresses ----


@pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6")
async def test_listening_on_both_families(gateways: Gateways) -> None:
    with listening() as sock, held_port() as listen, held_port() as admin:
        config = settings(port_of(listen), port_of(admin), port_of(sock))
        config |= {"listen": f"[::]:{port_of(listen)}", "admin": {"listen": f"[::]:{port_of(admin)}"}}
        listen.close()
        admin.close()
        async with served(sock):
            with gateways.starting(config) as gateway:
                gateway.wait()
                for host in ("127.0.0.1", "::1"):
                    assert await gateway.relayed(host) == (200, "ok")


# ---- the health check ----


CHECK: Json = {"path": "/health?deep=1", "interval": "100ms", "timeout": "1s"}


async def test_a_health_check_shows_whether_an_upstream_is_up(gateways: Gateways) -> None:
    with listening() as sock:
        changed: Json = {"upstream": {"health_check": CHECK}, "log": {"level": "info"}}
        async with served(sock) as seen:
            with gateways.process(port_of(sock), **changed) as gateway:
                await eventually(lambda: bool(seen.heads), "a check")
                await gateway.becomes("upstream_up", 1, upstream="up")
                assert seen.heads[0].startswith(b"GET /health?deep=1 HTTP/1.1\r\n")
                seen.status = b"503 Service Unavailable"
                await gateway.becomes("upstream_up", 0, upstream="up")
                assert (await logged(gateway, "the upstream is down"))["why"] == "the health check got status 503"
                seen.status = b"404 Not Found"
                await gateway.becomes("upstream_up", 1, upstream="up")
                await logged(gateway, "the upstream is up")
                gateway.renew(settings(gateway.port, gateway.admin, port_of(sock)))
                await logged(gateway, '"reloaded"')
                count = len(seen.heads)
                await asyncio.sleep(0.5)
                assert len(seen.heads) <= count + 1, "without the key there are no more"


async def test_a_down_lasts_until_a_check_passes_whatever_answers(gateways: Gateways) -> None:
    """Once the answer to a check that fails counted as one: the log said up, then down, and the down began anew."""
    with held_port() as sock:
        upstream = {"url": f"http://127.0.0.1:{port_of(sock)}/mcp", "health_check": CHECK}
        with gateways.process(port_of(sock), upstream=upstream, log={"level": "info"}) as gateway:
            await logged(gateway, "the upstream is down")
            async with served(sock) as seen:
                seen.status = b"500 Internal Server Error"
                await eventually(lambda: len(seen.heads) > 1, "two checks")
                seen.status = b"200 OK"
                await logged(gateway, "the upstream is up")
            changes = [line["message"] for line in gateway.lines() if line["logger"] == "taskgate.upstream"]
            assert changes == ["the upstream is down", "the upstream is up"]


# ---- the state of an upstream, seen from outside: what begins a down, and what ends it if nobody asks ----

PROBE_S = 1.25  # the first probe comes so long after a down at the latest


def said_of(gateway: Gateway) -> list[tuple[str, str]]:
    lines = [line for line in gateway.lines() if str(line["message"]).startswith("the upstream is ")]
    return [(str(line["message"]).removeprefix("the upstream is "), str(line["before"])) for line in lines]


@pytest.mark.parametrize("asked", [call("ping"), filtered()], ids=["relayed", "crawled"])
async def test_a_dead_server_that_is_back_is_up_though_nobody_asks(gateways: Gateways, asked: Json) -> None:
    with held_port() as port:
        url = f"http://127.0.0.1:{port_of(port)}/mcp"
        async with rig_with(gateways, upstream={"url": url}, log={"level": "info"}) as rig:
            assert meant(await rig.ask(post(asked))) == 502
            await rig.gateway.becomes("upstream_up", 0, upstream="up")
            line = await logged(rig.gateway, "the upstream is down")
            assert line["level"] == "warning"
            assert "cannot be reached" in line["why"]
            back = Upstream(port)
            back.open()
            probed, _ = await back.probe()
            assert await rig.gateway.sample("upstream_up", upstream="up") == 0, (
                "what takes connections may answer nobody"
            )
            await probed.send(response(status=b"405 Method Not Allowed"))
            await rig.gateway.becomes("upstream_up", 1, upstream="up")
            assert said_of(rig.gateway) == [("down", "not asked yet"), ("up", "down")]
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
        assert meant(await one.response()) == 504
    elif end != "none":
        peer.stop(end)


@pytest.mark.parametrize("how", FAILS)
async def test_a_missing_answer_begins_a_down_that_only_an_answer_ends(gateways: Gateways, how: str) -> None:
    changed: Json = {"upstream": {"response_timeout": "300ms"}, "index": {"crawl_timeout": "300ms"}}
    async with rig_with(gateways, log={"level": "info"}, **changed) as rig:
        await fail(rig, how)
        await rig.gateway.becomes("upstream_up", 0, upstream="up")
        probed, probe = await rig.upstream.probe(2 * PROBE_S)
        assert (probe.method, probe.target, probe.body) == (b"OPTIONS", b"/mcp", b"")
        assert await rig.gateway.sample("upstream_up", upstream="up") == 0, "a connection does not end it"
        await probed.send(response(status=b"405 Method Not Allowed"))
        await rig.gateway.becomes("upstream_up", 1, upstream="up")
        assert [after for after, _ in said_of(rig.gateway)][-2:] == ["down", "up"]


async def test_what_says_nothing_of_the_server(gateways: Gateways) -> None:
    """The end of an idle connection, a client that leaves, and a head for which the gateway has no room."""
    limits = {"held_bytes_max": "1MiB", "inspected_body_bytes_max": "1MiB", "header_bytes_max": "2MiB"}
    async with rig_with(gateways, log={"level": "info"}, limits=limits) as rig:
        for said in (answer(result(1, {})), HALF, stream(), b""):
            one, peer = await rig.begin(post(call("ping")))
            await peer.send(said)
            if said.endswith(b"}"):
                assert (await one.response()).status == 200
                peer.finish()
            else:
                one.reset()
            await peer.ends()
        large = b"HTTP/1.1 200 OK\r\nX-Large: " + b"x" * 1_100_000
        assert meant(await rig.exchange(post(call("ping")), large)) == 503
        assert await rig.gateway.sample("upstream_up", upstream="up") == 1
        assert said_of(rig.gateway) == [("up", "not asked yet")]


async def test_a_reload_keeps_the_state_unless_the_server_is_another(gateways: Gateways) -> None:
    with held_port() as other:
        async with rig_with(gateways, gives(page([])), log={"level": "info"}) as rig:
            await rig.ask(post(call("ping")))
            here = rig.gateway.port, rig.gateway.admin
            for changed, value in (({"requests_max": 9}, 1.0), ({"url": f"http://127.0.0.1:{port_of(other)}/"}, None)):
                rig.gateway.reload(settings(*here, port_of(rig.place.listening), {"upstream": changed}))
                await rig.gateway.becomes("upstream_up", value, upstream="up")


def test_what_went_down_together_is_probed_spread_and_seldom() -> None:
    """50 servers that take connections and say nothing, on a virtual clock: each is probed after a second, not all at
    once, and then every ten seconds.
    """
    loop, asked = VirtualLoop(), list[float]()

    class Silent(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            asked.append(loop.time() - START_S)

    async def play() -> None:
        await loop.create_server(Silent, port=3001)
        url = Url("http", "127.0.0.1", 3001, "/mcp")
        config = Config(upstreams=tuple(UpstreamConfig(name=f"u{number}", url=url) for number in range(50)))
        pools = Pools(Buffers(1 << 20), Links(), lambda _: lambda _: None, LogLimit(loop.time))
        pools.serve(config, config, dialers_of(config))
        for pool in pools.of.values():
            pool.state.silent("no answer")
        pools.probe()
        await asyncio.sleep(15)
        assert len(asked) == 50
        assert min(asked) >= 1.0 and 0.1 < max(asked) - min(asked) < PROBE_S
        await asyncio.sleep(9)
        again = asked[50:]
        assert len(again) == 50 and min(again) >= 11.0 and max(again) - min(again) > 1.0
        pools.stop()
        await asyncio.gather(*pools.probes, return_exceptions=True)

    loop.run_until_complete(play())
    loop.close()


async def test_a_server_that_cuts_each_answer_is_down_and_stays_it(gateways: Gateways) -> None:
    """It was up with each head, and down with each cut: 574 lines a minute, and an alert that was a toss."""

    async def cut(_asked: Message, peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n01234")
        peer.finish()

    async with own(gateways, cut, log={"level": "info"}) as rig:
        for _ in range(50):
            assert not (await rig.ask(request())).whole
        assert await rig.gateway.sample("upstream_up", upstream="up") == 0
        assert [after for after, _ in said_of(rig.gateway)] == ["down"]
