"""TLS on the listener, and towards an upstream (DESIGN 8)."""

import asyncio
import signal
import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.certificates import signed
from tests.launch import Gateways, listening, logged, port_of
from tests.relay.http1 import Reader
from tests.relay.messages import Json, call
from tests.relay.rig import Place, Rig, failed, own, rig_at, tls_client
from tests.relay.wire import LAST_CHUNK, chunk, event, post, request, response, stream

pytestmark = pytest.mark.usefixtures("harness_alone")


@pytest.fixture(scope="module")
def place(gateways: Gateways, tls: Json) -> Iterator[Place]:
    """A gateway whose listener has TLS, and adds the fields of a proxy."""
    upstream = {"add_headers": ["x-forwarded", "forwarded", "via"]}
    with listening() as sock, gateways.process(port_of(sock), tls=tls, upstream=upstream) as gateway:
        yield Place(gateway, sock)


async def test_tls_on_the_listener(rig: Rig, tls: Json) -> None:
    """Several requests on a connection, bodies of several records, and the scheme in added fields."""
    async with tls_client(rig, tls["certificate"]) as (reader, writer):
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
            async with asyncio.timeout(20):
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
        async with tls_client(rig, str(old)) as (reader, writer):
            cert.write_text("no certificate")
            gateway.signal(signal.SIGHUP)
            assert (await logged(gateway, "cannot be used"))["level"] == "error"
            async with tls_client(rig, str(old)):
                pass
            signed(cert, key)
            gateway.signal(signal.SIGHUP)
            await logged(gateway, '"reloaded"')
            async with tls_client(rig, str(cert)):
                pass
            with pytest.raises(ssl.SSLError):
                async with tls_client(rig, str(old)):
                    pass
            writer.write(request(host=b"evil.example"))
            assert await reader.readline() == b"HTTP/1.1 403 Forbidden\r\n"


async def test_a_stream_over_tls_and_its_client_leaving(rig: Rig, tls: Json) -> None:
    async with tls_client(rig, tls["certificate"]) as (reader, writer):
        writer.write(request(fields=[b"Accept: text/event-stream"]))
        peer = await rig.upstream.request()
        await peer.send(stream())
        async with asyncio.timeout(20):
            await reader.readuntil(b"\r\n\r\n")
            for number in range(5):
                await peer.send(chunk(event(b"%d" % number)))
                await reader.readuntil(b"data: %d\n\n\r\n" % number)
        writer.close()
        await peer.ends()


async def test_a_stream_over_tls_that_ends_as_its_client_leaves(gateways: Gateways, tls: Json) -> None:
    """The end of the exchange met a connection that was closing: uvloop's TLS has no socket then."""
    async with own(gateways, tls=tls) as rig:
        for number in range(1, 31):
            async with tls_client(rig, tls["certificate"]) as (reader, writer):
                writer.write(request(fields=[b"Accept: text/event-stream"]))
                peer = await rig.upstream.request(number)
                await peer.send(stream())
                async with asyncio.timeout(20):
                    await reader.readuntil(b"\r\n\r\n")
                writer.close()
                if number % 2:
                    await writer.wait_closed()
                await peer.send(LAST_CHUNK)
        # A fault in the log fails the test when the gateway ends.


async def test_a_cut_over_tls_is_a_cut(rig: Rig, tls: Json) -> None:
    async with tls_client(rig, tls["certificate"]) as (reader, writer):
        writer.write(request())
        peer = await rig.upstream.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n01234")
        peer.reset()
        got = b""
        async with asyncio.timeout(20):
            with suppress(ssl.SSLError, ConnectionError):
                while piece := await reader.read(65536):
                    got += piece
        reads = Reader()
        reads.feed(got)
        assert not any(m.whole for m in reads.responses([b"GET"], "fin"))


async def test_an_upstream_whose_certificate_is_not_trusted_is_502(gateways: Gateways, tls: Json) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tls["certificate"], tls["key"])

    async def never(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(never, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    with listening() as unused, gateways.process(port, upstream={"url": f"https://127.0.0.1:{port}/mcp"}) as gateway:
        async with rig_at(Place(gateway, unused)) as rig:
            got = await rig.ask(post(call("ping", 7)))
            assert failed(got) == (502, 7, -32603)
    server.close()
