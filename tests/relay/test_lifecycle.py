"""The process: how it starts, drains, reloads; what it tells of itself; TLS; several upstreams (DESIGN 8).

In: signals, files, traffic. Out: exit statuses, answers, metrics, lines of the log. Always: the real command, as a
process of its own.
"""

import asyncio
import json
import logging
import re
import signal
import ssl
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway import config as gateway_config
from tests.certificates import signed
from tests.launch import (
    Gateway,
    Gateways,
    Json,
    changes,
    eventually,
    held_port,
    listening,
    logged,
    port_of,
    run,
    samples,
    settings,
)
from tests.peer import Client
from tests.relay.http1 import Message, Reader
from tests.relay.messages import (
    LAST_CHUNK,
    answer,
    call,
    chunk,
    event,
    fault,
    filtered,
    initialized,
    notification,
    page,
    post,
    request,
    response,
    result,
    stream,
    task,
)
from tests.relay.rig import Place, Rig, Server, Session, body, failed, final, ids, own, rig_at, rig_with
from tests.upstream import Upstream

pytestmark = pytest.mark.usefixtures("harness_alone")
TASKS = [task("t-1"), task("t-2", "completed")]


async def refused(gateway: Gateway) -> None:
    """Return once no connection is taken any more."""

    async def nobody_there() -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        except OSError:
            return True
        writer.close()
        return False

    await eventually(nobody_there, "no new connections")


# ---- SIGTERM ----


async def test_sigterm_lets_an_answer_in_flight_finish(gateways: Gateways) -> None:
    async with own(gateways) as rig:
        one, peer = await rig.begin(post(call("tools/call")))
        rig.gateway.signal(signal.SIGTERM)
        await refused(rig.gateway)
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n01234")
        await one.hears(b"01234")
        await peer.send(b"56789")
        got = await one.response()
        assert (got.status, got.body, got.whole) == (200, b"0123456789", True)
        assert await one.ends() == "fin"
        await one.close()
        assert await rig.gateway.exits() == 0


async def test_an_answer_during_a_drain_says_that_the_connection_ends(gateways: Gateways) -> None:
    """Else its client might send another request, and lose it."""
    async with own(gateways) as rig:
        one, peer = await rig.begin(post(call("ping")))
        rig.gateway.signal(signal.SIGTERM)
        await refused(rig.gateway)
        await peer.send(response())
        assert (b"connection", b"close") in [(n.lower(), v) for n, v in (await one.response()).fields]
        await one.close()
        assert await rig.gateway.exits() == 0


async def test_a_streamed_filtered_answer_during_a_drain_says_that_the_connection_ends(gateways: Gateways) -> None:
    """It did not: four places wrote the heads of responses, and one of them had forgotten it."""
    async with own(gateways) as rig:
        one, peer = await rig.begin(post(filtered()))
        rig.gateway.signal(signal.SIGTERM)
        await refused(rig.gateway)
        asked = body(rig.upstream.requests[0])["id"]
        events = event(notification("notifications/message", level="info", data="x")) + event(result(asked, page([])))
        await peer.send(stream() + chunk(events) + LAST_CHUNK)
        got = await one.response()
        assert got.value(b"content-type") == b"text/event-stream"
        assert got.value(b"connection") == b"close"
        await one.close()
        assert await rig.gateway.exits() == 0


async def test_sigterm_lets_a_filtered_answer_finish(gateways: Gateways) -> None:
    async with own(gateways) as rig:
        one, peer = await rig.begin(post(filtered()))
        rig.gateway.signal(signal.SIGTERM)
        await refused(rig.gateway)
        await peer.send(answer(result(body(rig.upstream.requests[0])["id"], page(TASKS[:1], "c"))))
        peer = await rig.upstream.request(2)
        await peer.send(answer(result(body(rig.upstream.requests[1])["id"], page(TASKS[1:]))))
        assert ids(final(await one.response())) == ["t-1"]
        await one.close()
        assert await rig.gateway.exits() == 0


async def test_sigterm_lets_an_answer_that_is_a_stream_finish(gateways: Gateways) -> None:
    """The TypeScript SDK answers every POST with a stream (DESIGN 2): it is an answer in flight, with an end."""
    async with own(gateways) as rig:
        one, peer = await rig.begin(post(call("tools/call")))
        await peer.send(stream() + chunk(event(notification("notifications/progress", progress=1))))
        await one.hears(b"progress")
        rig.gateway.signal(signal.SIGTERM)
        await refused(rig.gateway)
        await peer.send(chunk(event(result(1, {}))) + b"0\r\n\r\n")
        got = await one.response()
        assert got.whole
        assert final(got) == result(1, {})
        await one.close()
        assert await rig.gateway.exits() == 0


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


async def test_sigterm_closes_a_stream_whose_head_has_not_come(gateways: Gateways) -> None:
    async with own(gateways, limits={"drain_timeout": "1s"}) as rig:
        one = await rig.client(request(fields=[b"Accept: text/event-stream"]))
        await rig.upstream.request()
        rig.gateway.signal(signal.SIGTERM)
        await one.ends()
        assert await rig.gateway.exits() == 0


async def test_a_drain_does_not_wait_for_what_has_become_a_stream(gateways: Gateways) -> None:
    """It did, until another connection had ended: a head that comes during a drain says that there is no end."""
    async with own(gateways, limits={"drain_timeout": "1h"}) as rig:
        one, peer = await rig.begin(request(fields=[b"Accept: text/event-stream"]))
        rig.gateway.signal(signal.SIGTERM)
        await refused(rig.gateway)
        await peer.send(stream() + chunk(event(b"1")))
        await one.ends()
        assert await rig.gateway.exits() == 0


async def test_sigterm_waits_no_longer_than_its_limit(gateways: Gateways) -> None:
    async with own(gateways, limits={"drain_timeout": "500ms"}) as rig:
        one, peer = await rig.begin(post(call("tools/call")))
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n01234")
        await one.hears(b"01234")
        rig.gateway.signal(signal.SIGTERM)
        assert not (await one.response()).whole
        assert await rig.gateway.exits() == 0


async def test_an_answer_that_sigterm_cuts_does_not_look_whole(gateways: Gateways) -> None:
    """An answer that ends with its connection was once closed by FIN, as if it were whole."""
    async with own(gateways, limits={"drain_timeout": "500ms"}) as rig:
        one, peer = await rig.begin(request())
        await peer.send(b"HTTP/1.1 200 OK\r\n\r\nhalf")
        await one.hears(b"half")
        rig.gateway.signal(signal.SIGTERM)
        assert await one.ends() == "rst"
        assert await rig.gateway.exits() == 0


async def test_sigterm_closes_idle_connections(gateways: Gateways) -> None:
    async with own(gateways) as rig:
        rig.serve(Server({None: page(TASKS)}))
        silent = await rig.client()
        kept = await rig.client(post(filtered()))
        await kept.response()
        rig.gateway.signal(signal.SIGTERM)
        assert await silent.ends() == "fin"
        assert await kept.ends() == "fin"
        assert await rig.gateway.exits() == 0


async def test_a_draining_gateway_is_not_ready(gateways: Gateways) -> None:
    async with own(gateways) as rig:
        assert rig.gateway.get("/healthz")[0] == 200
        assert rig.gateway.get("/readyz")[0] == 200
        one, peer = await rig.begin(post(call("tools/call")))
        rig.gateway.signal(signal.SIGTERM)
        await refused(rig.gateway)
        assert (await asyncio.to_thread(rig.gateway.get, "/readyz"))[0] == 503
        assert (await asyncio.to_thread(rig.gateway.get, "/healthz"))[0] == 200
        await peer.send(response())
        await one.response()
        await one.close()
        assert await rig.gateway.exits() == 0


async def test_a_client_that_stays_behind_its_last_answer_holds_up_the_end_until_the_limit(gateways: Gateways) -> None:
    async with own(gateways, limits={"drain_timeout": "500ms"}) as rig:
        one, peer = await rig.begin(post(call("tools/call")))
        rig.gateway.signal(signal.SIGTERM)
        await refused(rig.gateway)
        await peer.send(response())
        assert await one.ends() == "fin"
        assert await rig.gateway.exits() == 0


async def test_sigint_ends_as_sigterm_does(gateways: Gateways) -> None:
    async with own(gateways) as rig:
        rig.gateway.signal(signal.SIGINT)
        assert await rig.gateway.exits() == 0


# ---- SIGHUP ----


async def test_sighup_takes_over_a_new_configuration(gateways: Gateways) -> None:
    with listening() as other:
        async with own(gateways) as rig:
            elsewhere = Upstream(other)
            stream_client, peer = await rig.begin(request(fields=[b"Accept: text/event-stream"]))
            await peer.send(stream() + chunk(event(b"1")))
            waiting, slow = await rig.begin(post(call("tools/call")))
            kept, third = await rig.begin(request())
            await third.send(response(b"old"))
            assert (await kept.response()).body == b"old"

            gateway = rig.gateway
            gateway.reconfigure(settings(gateway.port, gateway.admin, port_of(other)))
            gateway.signal(signal.SIGHUP)
            await logged(gateway, "reloaded")

            await kept.send(request())
            fresh = await elsewhere.request()
            await fresh.send(response(b"new"))
            assert (await kept.response(2)).body == b"new"
            await slow.send(response(b"still there"))
            assert (await waiting.response()).body == b"still there", "an answer in flight is finished where it began"
            await peer.send(chunk(event(b"2")))
            await stream_client.hears(b"data: 2")
            await elsewhere.close()


BAD: dict[str, tuple[Any, str]] = {
    "an unknown key": (lambda good: {**good, "colour": "red"}, "colour: "),
    "a wrong type": (lambda good: {**good, "index": {"page_size": "many"}}, "index.page_size"),
    "no upstream": (lambda good: {**good, "upstreams": []}, "upstreams: "),
    "another address": (lambda good: {**good, "listen": "127.0.0.1:1"}, "listen cannot change"),
}


async def test_sighup_with_a_bad_file_changes_nothing_and_says_so(gateways: Gateways) -> None:
    async with own(gateways) as rig:
        rig.serve(Server({None: page(TASKS)}))
        gateway = rig.gateway
        assert gateway.file is not None
        good = settings(gateway.port, gateway.admin, port_of(rig.place.listening))
        for change, named in BAD.values():
            gateway.reconfigure(change(good))
            gateway.signal(signal.SIGHUP)
            assert (await logged(gateway, named))["level"] == "error"
            assert (await rig.ask(post(filtered()))).status == 200
        gateway.file.unlink()
        gateway.signal(signal.SIGHUP)
        assert (await logged(gateway, "cannot be read"))["level"] == "error"
        assert (await rig.ask(post(filtered()))).status == 200
        gateway.reconfigure({**good, "index": {"page_size": 1}})
        gateway.signal(signal.SIGHUP)
        await logged(gateway, "reloaded")
        listed = final(await rig.ask(post(filtered(status=["working", "completed"]))))
        assert len(listed["result"]["tasks"]) == 1, "and a good one is taken over afterwards"


async def test_a_query_under_way_survives_a_reload(gateways: Gateways) -> None:
    async with own(gateways) as rig:
        one, peer = await rig.begin(post(filtered()))
        gateway = rig.gateway
        gateway.reconfigure(
            settings(gateway.port, gateway.admin, port_of(rig.place.listening), {"index": {"page_size": 1}})
        )
        gateway.signal(signal.SIGHUP)
        await logged(gateway, "reloaded")
        await peer.send(answer(result(body(rig.upstream.requests[0])["id"], page(TASKS[:1], "c"))))
        peer = await rig.upstream.request(2)
        await peer.send(answer(result(body(rig.upstream.requests[1])["id"], page(TASKS[1:]))))
        assert len(final(await one.response())["result"]["tasks"]) == 1


async def test_what_a_reload_finds_under_way_is_observed_as_ever(gateways: Gateways) -> None:
    """A stream that was open before brings a task's new state, which nothing else tells within `max_age`."""
    async with own(gateways, index={"max_age": "60s"}) as rig:
        gateway = rig.gateway
        watching, peer = await rig.begin(request())
        await peer.send(stream())
        rig.serve(Server({None: page(TASKS)}))
        assert [t["status"] for t in final(await rig.ask(post(filtered())))["result"]["tasks"]].count("failed") == 0
        changed = {"index": {"max_age": "60s", "page_size": 50}}
        gateway.reconfigure(settings(gateway.port, gateway.admin, port_of(rig.place.listening), changed))
        gateway.signal(signal.SIGHUP)
        await logged(gateway, "reloaded")
        failed = {**TASKS[0], "status": "failed", "lastUpdatedAt": "2026-02-01T00:00:00Z"}
        await peer.send(chunk(event(notification("notifications/tasks/status", **failed))))
        await watching.hears(b"2026-02-01")
        assert [t["taskId"] for t in final(await rig.ask(post(filtered(status=["failed"]))))["result"]["tasks"]] == [
            TASKS[0]["taskId"]
        ]


async def test_what_a_reload_finds_under_way_keeps_its_time_limit(gateways: Gateways) -> None:
    """The deadlines of the old configuration's upstream connections once went unchecked."""
    async with own(gateways, upstream={"response_timeout": "2s"}) as rig:
        one = await rig.client(post(call("ping", 7)))
        await rig.upstream.request()
        gateway = rig.gateway
        gateway.reconfigure(settings(gateway.port, gateway.admin, port_of(rig.place.listening)))
        gateway.signal(signal.SIGHUP)
        await logged(gateway, "reloaded")
        assert (await one.response()).status == 504


@pytest.fixture
def same_logging() -> Iterator[None]:
    """What a reload in this process does to its logging is undone."""
    root, ours = logging.getLogger(), logging.getLogger("taskgate")
    kept = root.handlers[:], ours.handlers[:], ours.propagate, ours.level
    yield
    root.handlers[:], ours.handlers[:], ours.propagate, ours.level = kept


async def test_a_stop_closes_what_was_in_flight_at_a_reload_too(gateways: Gateways, same_logging: None) -> None:
    """Its connection has gone back to the old pool, which was once never closed."""
    async with rig_with(gateways, upstream={"idle_timeout": "60s"}) as rig:
        one, peer = await rig.begin(request())
        app = rig.app
        other = settings(rig.gateway.port, rig.gateway.admin, 1)
        app.reload(lambda _: gateway_config.parse(json.dumps(other), "test.yaml"))
        await peer.send(response())
        assert (await one.response()).status == 200
        await app.stop()
        assert await peer.ends() == "fin"


@pytest.mark.parametrize(
    "rest",
    [LAST_CHUNK, chunk(event(notification("notifications/message"))) + LAST_CHUNK, b"1\r\n", b"no chunk\r\n", b""],
    ids=["the end", "an event and the end", "half a chunk", "no chunk", "nothing"],
)
@pytest.mark.parametrize("client_stays", [True, False])
async def test_a_stop_closes_a_connection_that_is_in_use_until_after_it(
    gateways: Gateways, rest: bytes, client_stays: bool
) -> None:
    """A stream is read on behind the response in it. Its connection went back to a pool that nobody closed any more."""
    async with rig_with(gateways) as rig:
        one, peer = await rig.begin(post(filtered()))
        sent = body(rig.upstream.requests[0])
        await peer.send(stream() + chunk(event(result(sent["id"], page(TASKS)))))
        assert ids(final(await one.response())) == ["t-1"]
        if not client_stays:
            await one.close()
        await rig.app.stop()
        await peer.send(rest)
        if rest.endswith(LAST_CHUNK):
            assert await peer.ends() == "fin"
        else:
            peer.finish()
            await peer.ends()


async def test_a_reload_frees_the_old_indexes_bit_by_bit(gateways: Gateways, same_logging: None) -> None:
    """A million tasks freed at once would hold the loop. Here are 20,000, of some six memory blocks each."""
    tasks = [task(f"t-{number}") for number in range(20_000)]
    pages = {str(at) if at else None: page(tasks[at : at + 4000], str(at + 4000)) for at in range(0, 20_000, 4000)}
    pages["16000"] = page(tasks[16_000:])
    async with rig_with(gateways) as rig:
        rig.serve(Server(pages))
        assert final(await rig.ask(rig.post(filtered())))["result"]["_meta"]["taskgate/total"] == 20_000
        app = rig.app
        other = settings(rig.gateway.port, rig.gateway.admin, 1)
        before = sys.getallocatedblocks()
        app.reload(lambda _: gateway_config.parse(json.dumps(other), "test.yaml"))
        assert sys.getallocatedblocks() > before - 60_000

        async def freed() -> bool:
            return sys.getallocatedblocks() < before - 60_000

        await eventually(freed, "the old index freed")


# ---- TLS ----


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for localhost that signs itself, and its key."""
    directory = tmp_path_factory.mktemp("tls")
    cert, key = directory / "cert.pem", directory / "key.pem"
    signed(cert, key)
    return cert, key


@pytest.fixture(scope="module")
def tls_place(gateways: Gateways, certificate: tuple[Path, Path]) -> Iterator[Place]:
    cert, key = certificate
    upstream = {"add_headers": ["x-forwarded", "forwarded", "via"]}
    with (
        listening() as sock,
        gateways.process(port_of(sock), tls={"certificate": str(cert), "key": str(key)}, upstream=upstream) as gateway,
    ):
        yield Place(gateway, sock)


@asynccontextmanager
async def tls_client(place: Place, cert: Path) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    context = ssl.create_default_context(cafile=str(cert))
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", place.gateway.port, ssl=context, server_hostname="localhost"
    )
    try:
        yield reader, writer
    finally:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


async def test_tls_on_the_listener(tls_place: Place, certificate: tuple[Path, Path]) -> None:
    """Several requests on a connection, bodies of several records, and the scheme in added fields."""
    async with rig_at(tls_place) as rig, tls_client(tls_place, certificate[0]) as (reader, writer):
        data = b"x" * 200_000
        reads = Reader()
        for number in (1, 2):
            writer.write(request(b"PUT", fields=[b"Content-Type: text/plain"], body=data))
            peer = await rig.upstream.request(number)
            seen = rig.upstream.requests[number - 1]
            assert seen.body == data
            assert seen.value(b"x-forwarded-proto") == b"https"
            assert b"proto=https" in (seen.value(b"forwarded") or b"")
            await peer.send(response(data))
            async with asyncio.timeout(5):
                while sum(m.whole for m in reads.responses([b"PUT"] * number)) < number:
                    reads.feed(await reader.read(65536))
        assert [m.body for m in reads.responses([b"PUT"] * 2)] == [data, data]


async def test_sighup_takes_over_a_renewed_certificate(gateways: Gateways, tmp_path: Path) -> None:
    """The new files have the old names. A bad certificate changes nothing, and open connections go on."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    signed(cert, key)
    old = tmp_path / "old.pem"
    old.write_bytes(cert.read_bytes())
    async with own(gateways, tls={"certificate": str(cert), "key": str(key)}) as rig:
        gateway = rig.gateway
        async with tls_client(rig.place, old) as (reader, writer):
            cert.write_text("no certificate")
            gateway.signal(signal.SIGHUP)
            assert (await logged(gateway, "cannot be used"))["level"] == "error"
            async with tls_client(rig.place, old):
                pass
            signed(cert, key)
            gateway.signal(signal.SIGHUP)
            await logged(gateway, '"reloaded"')
            async with tls_client(rig.place, cert):
                pass
            with pytest.raises(ssl.SSLError):
                async with tls_client(rig.place, old):
                    pass
            writer.write(request(host=b"evil.example"))
            assert await reader.readline() == b"HTTP/1.1 403 Forbidden\r\n"


async def test_a_stream_over_tls_and_its_client_leaving(tls_place: Place, certificate: tuple[Path, Path]) -> None:
    async with rig_at(tls_place) as rig, tls_client(tls_place, certificate[0]) as (reader, writer):
        writer.write(request(fields=[b"Accept: text/event-stream"]))
        peer = await rig.upstream.request()
        await peer.send(stream())
        async with asyncio.timeout(5):
            await reader.readuntil(b"\r\n\r\n")
            for number in range(5):
                await peer.send(chunk(event(b"%d" % number)))
                await reader.readuntil(b"data: %d\n\n\r\n" % number)
        writer.close()
        await peer.ends()


async def test_a_stream_over_tls_that_ends_as_its_client_leaves(
    gateways: Gateways, certificate: tuple[Path, Path]
) -> None:
    """The end of the exchange met a connection that was closing: uvloop's TLS has no socket then."""
    cert, key = certificate
    async with own(gateways, tls={"certificate": str(cert), "key": str(key)}) as rig:
        for number in range(1, 31):
            async with tls_client(rig.place, cert) as (reader, writer):
                writer.write(request(fields=[b"Accept: text/event-stream"]))
                peer = await rig.upstream.request(number)
                await peer.send(stream())
                async with asyncio.timeout(5):
                    await reader.readuntil(b"\r\n\r\n")
                writer.close()
                if number % 2:
                    await writer.wait_closed()
                await peer.send(LAST_CHUNK)
        # A fault in the log fails the test when the gateway ends.


async def test_a_cut_over_tls_is_a_cut(tls_place: Place, certificate: tuple[Path, Path]) -> None:
    async with rig_at(tls_place) as rig, tls_client(tls_place, certificate[0]) as (reader, writer):
        writer.write(request())
        peer = await rig.upstream.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n01234")
        peer.reset()
        got = b""
        async with asyncio.timeout(5):
            with suppress(ssl.SSLError, ConnectionError):
                while piece := await reader.read(65536):
                    got += piece
        reads = Reader()
        reads.feed(got)
        assert not any(m.whole for m in reads.responses([b"GET"], "fin"))


async def test_a_handshake_that_never_begins_is_given_up(gateways: Gateways, certificate: tuple[Path, Path]) -> None:
    """Once only the event loop's default of 60 s ended it."""
    cert, key = certificate
    async with own(
        gateways, tls={"certificate": str(cert), "key": str(key)}, limits={"request_timeout": "500ms"}
    ) as rig:
        one = await rig.client()
        assert await one.ends() in ("fin", "rst")


async def test_plain_http_to_a_tls_listener_reaches_nobody(tls_place: Place) -> None:
    async with rig_at(tls_place) as rig:
        one = await rig.client(request())
        await one.ends()
        assert rig.upstream.requests == []


async def test_an_upstream_whose_certificate_is_not_trusted_is_502(
    gateways: Gateways, certificate: tuple[Path, Path]
) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)

    async def never(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(never, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    with listening() as unused, gateways.process(port, upstream={"url": f"https://127.0.0.1:{port}/mcp"}) as gateway:
        async with rig_at(Place(gateway, unused)) as rig:
            got = await rig.ask(post(call("ping", 7)))
            assert failed(got) == (502, 7, -32603)
    server.close()


# ---- several upstreams ----


class Several:
    """A gateway before four upstreams: by prefix, by a longer prefix, by host and prefix, and for the rest."""

    def __init__(self, gateway: Gateway, upstreams: dict[str, Upstream]) -> None:
        self.gateway = gateway
        self.upstreams = upstreams

    async def asked(self, target: bytes, host: bytes = b"localhost") -> tuple[str, Message]:
        """The name of the upstream that a request went to, and the request as it came there."""
        one = await Client.connect(self.gateway.port)
        await one.send(request(target=target, host=host, fields=[b"Connection: close"]))
        before = {name: len(up.requests) for name, up in self.upstreams.items()}
        found: list[str] = []

        async def arrived() -> bool:
            found[:] = [name for name, up in self.upstreams.items() if len(up.requests) > before[name]]
            return bool(found) or bool(one.received)

        await eventually(arrived, "a request at one of the upstreams")
        assert len(found) == 1, bytes(one.received)
        up = self.upstreams[found[0]]
        peer = await up.request(len(up.requests))
        await peer.send(response(found[0].encode()))
        assert (await one.response()).body == found[0].encode()
        await one.close()
        return found[0], up.requests[-1]


NAMES: dict[str, Json] = {
    "research": {"match": {"prefix": "/research"}},
    "deep": {"match": {"prefix": "/research/deep"}},
    "hosted": {"match": {"host": "mcp.example", "prefix": "/research"}, "host": "preserve"},
    "by-host": {"match": {"host": "mcp.example"}, "host": "fixed.example:81"},
    "rest": {},
}


@pytest.fixture
async def several(gateways: Gateways) -> AsyncIterator[Several]:
    sockets = {name: listening() for name in NAMES}
    upstreams = [
        {"name": name, "url": f"http://127.0.0.1:{port_of(sockets[name])}/mcp", **more} for name, more in NAMES.items()
    ]
    with gateways.process(1, upstreams=upstreams) as gateway:
        ends = {name: Upstream(sock) for name, sock in sockets.items()}
        yield Several(gateway, ends)
        for one in ends.values():
            await one.close()
    for sock in sockets.values():
        sock.close()


ROUTES = [
    (b"/research/mcp?x=%2F", b"localhost", "research", b"/mcp?x=%2F"),
    (b"/research", b"localhost", "research", b"/"),
    (b"/research/", b"localhost", "research", b"/"),
    (b"/research?x", b"localhost", "research", b"/?x"),
    (b"/research//a/../b?", b"localhost", "research", b"//a/../b?"),
    (b"/research/deep/mcp", b"localhost", "deep", b"/mcp"),
    (b"/research/deeper", b"localhost", "research", b"/deeper"),
    (b"/researchers/mcp", b"localhost", "rest", b"/researchers/mcp"),
    (b"/Research/mcp", b"localhost", "rest", b"/Research/mcp"),
    (b"/%72esearch/mcp", b"localhost", "rest", b"/%72esearch/mcp"),
    (b"/mcp", b"localhost", "rest", b"/mcp"),
    (b"/mcp", b"MCP.Example:8080", "by-host", b"/mcp"),
    (b"/research/mcp", b"mcp.example", "hosted", b"/mcp"),
    (b"/.well-known/oauth-protected-resource", b"mcp.example", "by-host", b"/.well-known/oauth-protected-resource"),
]


async def test_an_upstream_is_chosen_by_host_and_by_prefix(several: Several) -> None:
    for target, host, name, seen in ROUTES:
        found, asked = await several.asked(target, host)
        assert (found, asked.target) == (name, seen), (target, host)
        hosts = {"hosted": host, "by-host": b"fixed.example:81"}
        own_authority = b"127.0.0.1:%d" % several.upstreams[name].port
        assert asked.value(b"host") == hosts.get(name, own_authority)


async def test_an_absolute_target_is_routed_as_its_path_at_its_host(several: Several) -> None:
    """RFC 9112, 3.2.2: every server must take one, and its authority goes before `Host`."""
    for target, host, name, seen in ROUTES:
        found, asked = await several.asked(b"http://" + host + target, b"localhost")
        assert (found, asked.target) == (name, seen), (target, host)
        assert name != "hosted" or asked.value(b"host") == host


async def test_no_upstream_for_a_path_is_404(gateways: Gateways) -> None:
    async with rig_with(gateways, upstream={"match": {"prefix": "/research"}}) as rig:
        for asked in (request(), post(call("ping", 7)), request(target=b"/researchers"), request(b"OPTIONS", b"*")):
            got = await rig.ask(asked)
            assert got.status == 404
            assert body(got)["error"]["code"] == -32600


async def test_tasks_of_several_upstreams_are_kept_apart(several: Several) -> None:
    """The same session id and token at two upstreams are two sessions (DESIGN 7)."""
    for name, prefix in (("research", b"/research"), ("rest", b"")):
        one = await Client.connect(several.gateway.port)
        await one.send(post(filtered(), b"Mcp-Session-Id: same", target=prefix + b"/mcp"))
        up = several.upstreams[name]
        peer = await up.request(len(up.requests) + 1)
        await peer.send(answer(result(body(up.requests[-1])["id"], page([task(f"of-{name}")]))))
        assert ids(final(await one.response())) == [f"of-{name}"]
        await one.close()


async def test_what_is_added_only_when_configured(gateways: Gateways) -> None:
    given = [b"X-Forwarded-For: 192.0.2.1", b"Forwarded: for=192.0.2.1", b"Via: 1.1 other"]
    async with rig_with(gateways, upstream={"add_headers": ["x-forwarded", "forwarded", "via"]}) as rig:
        rig.serve(Server({}))
        await rig.ask(post(call("x"), *given))
        asked = rig.upstream.requests[0]
        added = [b": ".join(f) for f in asked.fields if f[0].lower() in (b"x-forwarded-for", b"forwarded", b"via")]
        assert added[:3] == given, "what came stays, and comes first: each hop appends"
        joined = b" | ".join(added[3:])
        for text in (b"X-Forwarded-For: 127.0.0.1", b"for=127.0.0.1", b"1.1 taskgate"):
            assert text in joined
        assert asked.value(b"x-forwarded-proto") == b"http"
        assert asked.value(b"x-forwarded-host") == b"localhost"


HOSTS = [b'a"b', b"a\\b", b'a";for=evil;host="b', b"a, b;c", b"\xe9", b"localhost:80"]


@pytest.mark.parametrize("host", HOSTS)
async def test_the_clients_host_is_quoted_in_forwarded(gateways: Gateways, host: bytes) -> None:
    """A listener beyond loopback takes any Host. A Host must not add parameters to `Forwarded` (RFC 7239, 4)."""
    with listening() as sock, held_port() as listen:
        changed = {"listen": f"0.0.0.0:{port_of(listen)}", "upstream": {"add_headers": ["forwarded"]}}
        async with (
            gateways.in_process(port_of(sock), **changed) as gateway,
            rig_at(Place(replace(gateway, port=port_of(listen)), sock)) as rig,
        ):
            await rig.answered(request(host=host), response())
            forwarded = rig.upstream.requests[0].value(b"forwarded")
    assert forwarded is not None
    quoted = re.fullmatch(rb'for=127\.0\.0\.1;host="((?:[^"\\]|\\.)*)";proto=http', forwarded)
    assert quoted is not None, forwarded
    assert re.sub(rb"\\(.)", rb"\1", quoted[1]) == host


# What an `endpoint` event says, and what its client is to read.
ENDPOINTS = {
    "/messages/?session_id=0f8c": "{path}/messages/?session_id=0f8c",
    "http://{own}/messages": "{base}/messages",
    "//{own}/messages": "{base}/messages",
    "messages?sessionId=1": "messages?sessionId=1",
    "//elsewhere/messages": "//elsewhere/messages",
    "https://elsewhere/messages": "https://elsewhere/messages",
}
# How an upstream is found, the path in front of its own on the way there, and where its clients are told that it is.
ENDPOINT_PLACES: dict[str, tuple[Json, str, str]] = {
    "root": ({}, "", "http://{host}"),
    "host": ({"match": {"host": "localhost"}}, "", "http://{host}"),
    "prefix": ({"match": {"prefix": "/research"}}, "/research", "http://{host}/research"),
    "public": ({"match": {"prefix": "/p"}, "public_url": "https://x.example/y"}, "/p", "https://x.example/y"),
}


async def _told(rig: Rig, target: str, said: str) -> tuple[bytes, bytes]:
    """The address of an `endpoint` event as the client gets it, and that of a `Location`."""
    one, peer = await rig.begin(request(target=f"{target}/sse".encode(), fields=[b"Accept: text/event-stream"]))
    follows = event(notification("endpoint", of=said))
    before, after = b"event: endpoint\r\ndata: ", b"\r\n\r\n" + follows
    await peer.send(stream() + chunk(before + said.encode() + b"\r\n\r\n"), chunk(follows))
    await one.hears(follows)
    got = one.responses()[0].body
    assert got.startswith(before) and got.endswith(after)
    location = (
        await rig.exchange(
            request(target=f"{target}/sse".encode()), response(b"", b"Location: " + said.encode(), status=b"307 Moved")
        )
    ).value(b"location")
    return got.removeprefix(before).removesuffix(after), location or b""


@pytest.mark.parametrize("place", ENDPOINT_PLACES)
async def test_the_endpoint_of_http_sse_moves_as_a_location_does(gateways: Gateways, place: str) -> None:
    """The client resolves the event's address against the gateway's (2024-11-05, HTTP with SSE)."""
    upstream, target, base = ENDPOINT_PLACES[place]
    async with rig_with(gateways, upstream=upstream) as rig:
        own = rig.place.authority.decode()
        base = base.format(host="localhost")
        path = "/".join(["", *base.split("/")[3:]])
        for said, expected in ENDPOINTS.items():
            moved = expected.format(base=base, path=path).encode()
            assert await _told(rig, target, said.format(own=own)) == (moved, moved)


@pytest.mark.parametrize("before", [b"", b": hello\n\n", b"\n", b"retry: 3000\n\n", b"id: 1\n"])
async def test_an_endpoint_that_comes_in_pieces_is_moved_and_nothing_behind_it_waits(rig: Rig, before: bytes) -> None:
    """A half event behind it reaches the client as it comes (DESIGN 3.4)."""
    said = b"event: endpoint\ndata: http://%b/m\n\n" % rig.place.authority
    one, peer = await rig.begin(request(target=b"/sse"))
    pieces = [before, *(said[at : at + 1] for at in range(len(said)))]
    await peer.send(stream(), *(chunk(piece) for piece in pieces if piece))
    await one.hears(b"/m")
    await peer.send(chunk(b"event: endpoint\ndata: ha"))
    await one.hears(b"data: ha")
    await peer.send(chunk(b"lf\n\n") + LAST_CHUNK)
    body = (await one.response()).body
    assert body == before + b"event: endpoint\ndata: http://localhost/m\n\nevent: endpoint\ndata: half\n\n"


async def test_where_addresses_stay_and_in_sessions_an_endpoint_is_as_it_came(gateways: Gateways) -> None:
    async with rig_with(gateways, upstream={"match": {"prefix": "/research"}, "public_url": "off"}) as rig:
        assert await _told(rig, "/research", "/messages") == (b"/messages", b"/messages")
    raw = b"event: endpoint\ndata: /messages\n\n"
    async with rig_with(gateways, upstream={"match": {"prefix": "/research"}}) as rig:
        one, peer = await rig.begin(request(target=b"/research/mcp", fields=[rig.session]))
        await peer.send(stream() + chunk(raw))
        await one.hears(raw)


# ---- metrics and logs ----

SECRETS = {
    "token": "s3cr3t-t0ken-of-the-caller",
    "session": "s3cr3t-session-0f8c",
    "task": "s3cr3t-task-17",
    "cookie": "s3cr3t-cookie",
    "body": "s3cr3t-in-a-body",
    "query": "s3cr3t-in-a-query",
    "challenge": "s3cr3t-challenge",
}


async def some_traffic(rig: Rig) -> None:
    """Requests of every kind, that succeed and that fail, each with secrets in it."""
    fields = [
        b"Mcp-Session-Id: " + SECRETS["session"].encode(),
        b"Authorization: Bearer " + SECRETS["token"].encode(),
        b"Cookie: id=" + SECRETS["cookie"].encode(),
    ]
    target = b"/mcp?key=" + SECRETS["query"].encode()
    list_tasks = Server({None: page([task(SECRETS["task"])], "c"), "c": page([task("t-2")])})

    async def script(asked: Message, peer: Any) -> bytes | None:
        message = body(asked)
        if asked.method != b"POST":
            return response(b"")
        match message.get("method") if isinstance(message, dict) else None:
            case "initialize":
                return answer(result(message["id"], initialized()), fields[0])
            case "tasks/get":
                return answer(result(message["id"], task(SECRETS["task"])))
            case "prompts/get":
                challenge = b"WWW-Authenticate: Bearer " + SECRETS["challenge"].encode()
                return answer(fault(message["id"], -32001, SECRETS["body"]), challenge, status=b"401 Unauthorized")
            case "resources/read":
                peer.reset()
                return None
            case "tools/call":
                return b"garbage " + SECRETS["body"].encode() + b"\r\n\r\n"
            case _:
                return await list_tasks(asked, peer)

    rig.serve(script)

    async def ask(message: object) -> int:
        return (await rig.ask(post(message, *fields, target=target))).status

    assert await ask(call("initialize", pad=SECRETS["body"])) == 200
    assert await ask(filtered(1)) == 200
    assert await ask(filtered(2)) == 200
    assert await ask(filtered(3, status=SECRETS["body"])) == 200
    assert await ask(filtered(4, status=["working"], cursor=SECRETS["task"])) == 200
    assert await ask(call("tasks/get", taskId=SECRETS["task"])) == 200
    assert await ask(call("prompts/get", name=SECRETS["body"])) == 401
    assert await ask(call("resources/read", uri=SECRETS["body"])) == 502
    assert await ask(call("tools/call", name=SECRETS["body"])) == 502
    assert await ask(call("unknown/method", pad=SECRETS["body"])) == 200
    assert await ask(SECRETS["body"].encode()) == 202
    assert (await rig.ask(request(b"DELETE", target, fields))).status == 200
    assert (await rig.ask(request(b"GET", target, fields))).status == 200
    assert (await rig.ask(request(fields=fields, host=b"foreign.example"))).status == 403
    assert (await rig.ask(post(call("x"), *fields, b"Origin: http://foreign.example"))).status == 403
    malformed = "GET /{query} HTTP/1.1\r\nHost: localhost\r\nAuthorization : {token}\r\n\r\n".format(**SECRETS)
    assert (await rig.ask(malformed.encode())).status == 400
    assert (await rig.ask(request(fields=[*fields, b"X: " + SECRETS["token"].encode() * 5000]))).status == 431
    gone = await rig.client(post(call("tasks/result", taskId=SECRETS["task"]), *fields, target=target))
    gone.reset()


async def test_metrics_say_what_happened_and_to_whom_nothing(gateways: Gateways) -> None:
    async with rig_with(gateways) as rig:
        before = await rig.gateway.metrics()
        await some_traffic(rig)
        await rig.gateway.until(
            lambda now: changes(before, now, "taskgate_requests_total", status="403") == 2,
            "the last requests, two refusals, are counted",
        )  # a request is counted when its answer is out
        text = await rig.gateway.exposition()
        after = samples(text)
        whole = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        assert len(whole) == len(after), "Prometheus reads the whole of it, and each series once"

        def grown(name: str, **labels: str) -> float:
            return changes(before, after, f"taskgate_{name}", upstream="up", **labels)

        assert grown("requests_total", kind="answered", status="200") == 4
        assert grown("requests_total", kind="relayed", status="401") == 1
        assert grown("requests_total", status="502") == 2
        assert grown("request_duration_seconds_count", kind="answered") >= 2
        assert grown("request_duration_seconds_count", kind="relayed") >= 4
        lists = len(rig.asked("tasks/list"))
        assert grown("upstream_requests_total", method="tasks/list") == lists == 2
        assert grown("upstream_requests_total", method="initialize") == 1
        assert grown("upstream_requests_total", method="tasks/get") == 1
        assert grown("upstream_requests_total", method="DELETE") == 1
        assert grown("crawl_pages_total") == 2
        assert grown("crawl_duration_seconds_count") == 1
        assert grown("queries_total", outcome="refreshed") == 1
        assert grown("queries_total", outcome="index") == 1
        assert grown("spared_requests_total") == 2
        assert grown("spared_bytes_total") > 0
        assert grown("failures_total") >= 2
        assert changes(before, after, "taskgate_requests_total", status="403") == 2
        for name in ("index_sessions", "index_tasks", "index_bytes", "connections"):
            assert (f"taskgate_{name}", ()) in after

        for secret in SECRETS.values():
            assert secret not in text
        labels = {label for _, pairs in after for label, _ in pairs}
        assert labels <= {
            "upstream",
            "kind",
            "status",
            "method",
            "outcome",
            "code",
            "why",
            "reason",
            "version",
            "python",
            "le",
        }
        ours = {name for name, _ in after if not name.startswith(("python_", "process_"))}
        assert all(re.fullmatch(r"taskgate_[a-z_]+", name) for name in ours)


async def test_gauges_go_back_when_everything_has_ended(gateways: Gateways) -> None:
    async with rig_with(gateways) as rig:
        rig.serve(Server({None: page(TASKS)}))
        session = Session(rig)
        clients = [await session.client(filtered(n)) for n in range(5)]
        for one in clients:
            await one.response()
        metrics = await rig.gateway.metrics()
        assert metrics["taskgate_connections", ()] == 5
        assert metrics["taskgate_index_sessions", ()] == 1
        assert metrics["taskgate_index_tasks", ()] == 2
        for one in clients:
            await one.close()
        assert (await rig.ask(request(b"DELETE", fields=session.fields()))).status == 202

        async def nothing_left() -> bool:
            now = await rig.gateway.metrics()
            return all(
                now[f"taskgate_{name}", ()] == 0
                for name in ("connections", "index_sessions", "index_tasks", "index_bytes")
            )

        await eventually(nothing_left, "every gauge at 0")


async def test_a_stream_that_its_client_has_left_is_counted_as_a_request(gateways: Gateways) -> None:
    """`requests` are those of clients; this is how every GET stream ends."""
    async with rig_with(gateways) as rig:
        before = await rig.gateway.metrics()
        one, peer = await rig.begin(request(fields=[b"Accept: text/event-stream"]))
        await peer.send(stream())
        await one.hears(b"\r\n\r\n")
        one.finish()
        await peer.ends()

        async def counted() -> bool:
            return changes(before, await rig.gateway.metrics(), "taskgate_requests_total") == 1

        await eventually(counted, "one request counted")


@pytest.mark.parametrize("edited", [False, True], ids=["passed on", "edited"])
async def test_an_answer_that_the_upstream_broke_off_is_counted_and_logged(gateways: Gateways, edited: bool) -> None:
    """Its head said 200, and it was once counted as a 200."""
    async with rig_with(gateways, log={"level": "debug"}) as rig:
        before = await rig.gateway.metrics()
        one, peer = await rig.begin(post(call("initialize" if edited else "tools/call")))
        await peer.send(stream() + chunk(event(notification("half"))))
        await one.hears(b"half")
        peer.reset()
        assert not (await one.response()).whole
        assert (await logged(rig.gateway, "UpstreamBroken"))["upstream"] == "up"
        after = await rig.gateway.metrics()
        assert changes(before, after, "taskgate_failures_total", kind="UpstreamBroken") == 1
        assert changes(before, after, "taskgate_requests_total", kind="relayed", status="502") == 1
        assert changes(before, after, "taskgate_requests_total", status="200") == 0


async def test_logs_hold_no_token_and_no_body(gateways: Gateways) -> None:
    """At debug, where most is said: one line of JSON for everything, and nothing that was said in confidence."""
    async with own(gateways) as rig:
        await some_traffic(rig)
        text = rig.gateway.log
        for name, secret in SECRETS.items():
            assert secret not in text, name
        lines = rig.gateway.lines()
        assert all({"time", "level", "logger", "message"} <= set(line) for line in lines)
        assert {line["level"] for line in lines} <= {"debug", "info", "warning", "error"}


async def test_what_is_refused_is_not_quoted_in_the_log(gateways: Gateways) -> None:
    """The cause of a malformed head may be its first line, which may have a token in it."""
    async with rig_with(gateways, log={"level": "debug"}) as rig:
        answered = await rig.ask(b"GET /mcp?token=%b HTTP/1.1 x\r\n\r\n" % SECRETS["token"].encode())
        assert answered.status == 400
        assert SECRETS["token"] in body(answered)["error"]["message"], "whose it is may see it"
        await logged(rig.gateway, "refused a request")
        assert SECRETS["token"] not in rig.gateway.log


async def test_a_method_of_a_clients_own_making_is_not_logged_at_any_length(gateways: Gateways) -> None:
    """`method` is any string in the body. The log shows a limited part of it."""
    async with rig_with(gateways, log={"level": "debug"}) as rig:
        rig.serve(Server({}))
        await rig.ask(post(call("x" * 100_000)))
        await logged(rig.gateway, '"message": "failed"')
        assert max(map(len, rig.gateway.log.splitlines())) < 2000


async def test_one_line_for_a_request_at_debug_and_none_at_info(gateways: Gateways) -> None:
    for level, expected in (("debug", 3), ("info", 0)):
        async with own(gateways, log={"level": level}) as rig:
            rig.serve(Server({None: page(TASKS)}))
            for asked in (request(), post(filtered()), request()):
                assert (await rig.ask(asked)).status in (200, 202)
            rig.gateway.signal(signal.SIGTERM)
            assert await rig.gateway.exits() == 0  # and all that it had to say is said
            lines = [line for line in rig.gateway.lines() if line["message"] == "request"]
            assert len(lines) == expected, lines
            told = [(line["level"], line["kind"], line["upstream"], line["status"]) for line in lines]
            relayed, answered = ("debug", "relayed", "up", 202), ("debug", "answered", "up", 200)
            assert told == [relayed, answered, relayed][:expected]


# ---- starting ----


def test_a_certificate_that_is_not_there_is_said_and_exits_2(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(json.dumps(settings(1, 2, 3, {"tls": {"certificate": "no.pem", "key": "no.key"}})))
    ended = run("--config", str(file))
    assert ended.returncode == 2
    assert "no.pem" in ended.stderr
    assert "Traceback" not in ended.stderr
