"""TLS handshakes of clients: those that fail are counted and logged, plain HTTP gets an answer, and all have limits."""

import asyncio
import random
import signal
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeAlias

import pytest

from tests.garbage import kept_garbage, left_in_cycles
from tests.launch import Gateway, Gateways, eventually
from tests.relay.messages import Json, request, response
from tests.relay.rig import Rig, own, rig_with, tls_client

NAME: Final = b"\0\x09localhost"
COUNT: Final = "taskgate_tls_handshake_failures_total"
ABUSES: Final = 150
LATER: Final = {"request_timeout": "4s"}  # some wait for it; the others come before it, on a busy machine too

Way: TypeAlias = Callable[[Rig, Path], Awaitable[None]]


@pytest.fixture(params=["process", "in_process"])
async def rig(request: pytest.FixtureRequest, gateways: Gateways, tls: Json) -> AsyncIterator[Rig]:
    """A gateway with TLS: the process, on uvloop, and the App on asyncio's loop."""
    begun = own if request.param == "process" else rig_with
    async with begun(gateways, tls=tls, limits=LATER, log={"level": "debug"}) as one:
        yield one


def hello(name: str = "localhost", ciphers: str = "", newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> bytes:
    """The first flight of a client."""
    context, out = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.MemoryBIO()  # nobody answers it
    context.maximum_version = newest
    if ciphers:
        context.set_ciphers(ciphers)
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=name).do_handshake()
    return out.read()


def tls_1_0() -> bytes:
    old = hello(newest=ssl.TLSVersion.TLSv1_2)
    return old[:9] + b"\x03\x01" + old[11:]


async def is_served(rig: Rig, tls: Json) -> None:
    """Fail unless a good client is answered."""
    async with tls_client(rig, tls["certificate"]) as (reader, writer):
        writer.write(request(host=b"evil.example"))
        assert await reader.readline() == b"HTTP/1.1 403 Forbidden\r\n"


async def failures(gateway: Gateway) -> dict[str, int]:
    found = await gateway.metrics()
    return {dict(labels)["reason"]: int(count) for (name, labels), count in found.items() if name == COUNT and count}


async def failed(gateway: Gateway, expected: Mapping[str, int]) -> None:
    """Return once so many have failed, and no connection is left."""

    async def so_many() -> bool:
        left = await gateway.sample("connections")
        return left == 0 and await failures(gateway) == expected

    await eventually(so_many, f"failures {expected}")


def lines(gateway: Gateway) -> list[Json]:
    """What the gateway says of handshakes; asyncio, on a busy machine, says the name of the test."""
    said = [line for line in gateway.lines() if line["logger"].startswith("taskgate")]
    return [line for line in said if "handshake" in line["message"]]


# ---- each way to fail ----


def sends(*pieces: bytes, then: str = "") -> Way:
    """A client that sends these bytes, then waits for the gateway's end of the connection unless it leaves."""

    async def way(rig: Rig, _: Path) -> None:
        one = await rig.client(*pieces)
        if then:
            one.stop(then)
        if then != "rst":
            await one.ends()
            await one.close()

    return way


def distrusts(name: str, trusts: bool) -> Way:
    """A client that says why it leaves, as OpenSSL's do; asyncio's would leave without a word."""

    def connect(port: int, cert: Path) -> None:
        context = ssl.create_default_context(cafile=str(cert) if trusts else None)
        with socket.create_connection(("127.0.0.1", port)) as sock, pytest.raises(ssl.SSLCertVerificationError):
            context.wrap_socket(sock, server_hostname=name)

    async def way(rig: Rig, cert: Path) -> None:
        await asyncio.to_thread(connect, rig.gateway.port, cert)

    return way


WAYS: Final[dict[str, tuple[str, Way]]] = {
    "nothing, FIN": ("client_left", sends(then="fin")),
    "nothing, RST": ("client_left", sends(then="rst")),
    "half a hello, FIN": ("client_left", sends(hello()[:50], then="fin")),
    "half a hello, RST": ("client_left", sends(hello()[:1], hello()[1:50], then="rst")),
    "a hello, FIN": ("client_left", sends(hello(), then="fin")),
    "a hello, RST": ("client_left", sends(hello(), then="rst")),
    "nothing at all": ("timeout", sends()),
    "half a hello": ("timeout", sends(hello()[:50])),
    "one byte of a hello": ("timeout", sends(hello()[:1])),
    "a hello and nothing more": ("timeout", sends(hello())),
    "a name that nobody has": ("timeout", sends(hello(name="a." * 60 + "example"))),
    "the same, FIN": ("client_left", sends(hello(name="other.example"), then="fin")),
    "zeros": ("not_tls", sends(b"\0" * 100)),
    "SSH": ("not_tls", sends(b"SSH-2.0-OpenSSH_9.6\r\n")),
    "SSL 2": ("not_tls", sends(b"\x80\x2e\x01\0\x02\0\x15\0\0\0\x10" + b"\1" * 40)),
    "lower case": ("not_tls", sends(b"get / http/1.1\r\n\r\n")),
    "a record too long": ("broken", sends(b"\x16\x03\x01" + b"\xff" * 200)),
    "empty records": ("broken", sends(b"\x16\x03\x01\0\0" * 40)),
    "an alert": ("broken", sends(b"\x15\x03\x01\0\x02\x02\x28")),
    "a name with a NUL": ("broken", sends(hello().replace(NAME, b"\0\x09local\0ost"))),
    "a name longer than its hello": ("broken", sends(hello().replace(NAME, b"\xff\xfflocalhost"))),
    "a hello, then garbage": ("broken", sends(hello() + b"\x17\x03\x03\0\x10" + b"A" * 16)),
    "TLS 1.0": ("version", sends(tls_1_0())),
    "SSL 3": ("version", sends(tls_1_0().replace(b"\x03\x01", b"\x03\0", 2))),
    "no common cipher": ("cipher", sends(hello(ciphers="ECDHE-RSA-AES128-GCM-SHA256", newest=ssl.TLSVersion.TLSv1_2))),
    "an unknown authority": ("certificate", distrusts("localhost", trusts=False)),
    "another name": ("certificate", distrusts("other.example", trusts=True)),
    "plain HTTP": ("plain_http", sends(request())),
    "a method in pieces": ("plain_http", sends(b"O", b"PTIONS / HTTP/1.1\r\nHost: localhost\r\n\r\n")),
    "HTTP/2 in plain": ("plain_http", sends(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")),
}


async def test_handshakes_that_fail_are_counted_and_logged_by_their_reason(rig: Rig, tls: Json) -> None:
    """Once the event loop's server failed them in silence. What is left behind is in no cycle."""
    reasons = Counter(reason for reason, _ in WAYS.values())
    with kept_garbage():
        await asyncio.gather(*(way(rig, Path(tls["certificate"])) for _, way in WAYS.values()))
        await failed(rig.gateway, reasons)
        assert not left_in_cycles()
    await is_served(rig, tls)
    await failed(rig.gateway, reasons)
    await eventually(lambda: sum(line["count"] for line in lines(rig.gateway)) == len(WAYS), "each in the log")
    told = lines(rig.gateway)
    assert {(line["level"], line["client"]) for line in told} == {("info", "127.0.0.1")}
    assert {line["reason"] for line in told} <= set(reasons)
    assert rig.upstream.requests == []


@pytest.mark.parametrize("size", [0, 10, 300_000])
async def test_plain_http_on_the_tls_port_is_told_so(rig: Rig, size: int) -> None:
    """Also one that sends more than anybody reads: no reset destroys the answer."""
    one = await rig.client(request(b"POST", body=b"x" * size))
    got = await one.response()
    assert got.status == 400
    assert b"https://" in got.body and b"TLS" in got.body and got.value(b"date")
    assert await one.ends() == "fin"
    assert rig.upstream.requests == []


async def test_handshakes_that_are_abused_are_each_counted_once(rig: Rig, tls: Json) -> None:
    """Bytes of a hello are changed, cut, repeated and sent in pieces; clients leave in each way."""
    chance = random.Random(24)
    hellos = [hello(), tls_1_0(), hello(name="other.example"), request()]
    clients = []
    for number in range(ABUSES):
        data = bytearray(chance.choice(hellos))
        for _ in range(chance.choice([0, 0, 1, 5])):
            data[chance.randrange(len(data))] = chance.randrange(256)
        data = data[: chance.choice([len(data), chance.randrange(len(data) + 1)])] * chance.choice([1, 1, 2])
        at = chance.randrange(len(data) + 1)
        one = await rig.client(*(bytes(piece) for piece in (data[:at], data[at:]) if piece))
        leaves: list[Callable[[], None]] = [one.finish, one.reset, one.leave, one.resume]
        chance.choice(leaves)()
        if number % 20 == 0:
            await is_served(rig, tls)
        clients.append(one)
    for one in clients:
        await one.close()

    async def each_once() -> bool:
        left = await rig.gateway.sample("connections")
        return sum((await failures(rig.gateway)).values()) == ABUSES and left == 0

    await eventually(each_once, f"{ABUSES} failures")


# ---- limits, drain, the rest ----


async def test_a_connection_in_its_handshake_counts(gateways: Gateways, tls: Json) -> None:
    """They hold memory and descriptors. Those beyond the limit get a 503 once they can read it."""
    limits = {"connections_max": 3, "request_timeout": "1h"}
    for begun in (own, rig_with):
        async with begun(gateways, tls=tls, limits=limits) as rig:
            silent = [await rig.client(), await rig.client(hello()[:9]), await rig.client(hello())]
            await rig.gateway.becomes("connections", 3)
            async with tls_client(rig, tls["certificate"]) as (reader, _):
                assert await reader.readline() == b"HTTP/1.1 503 Service Unavailable\r\n"
            plain = await rig.client(request())
            assert (await plain.response()).status == 503
            for one in silent:
                one.reset()
            await failed(rig.gateway, {"client_left": 3, "plain_http": 1})
            await is_served(rig, tls)


async def test_sigterm_ends_handshakes_at_once_and_answers_in_time(gateways: Gateways, tls: Json) -> None:
    async with own(gateways, tls=tls, limits={"request_timeout": "1h", "drain_timeout": "1h"}) as rig:
        async with tls_client(rig, tls["certificate"]) as (reader, writer):
            writer.write(request())
            peer = await rig.upstream.request()
            silent = [await rig.client(), await rig.client(hello()[:9]), await rig.client(hello())]
            await rig.gateway.becomes("connections", 4)
            rig.gateway.signal(signal.SIGTERM)
            for one in silent:
                await one.ends()
            await peer.send(response(b"in time"))
            assert (await reader.read()).endswith(b"in time")
        assert await rig.gateway.exits() == 0
        assert not lines(rig.gateway)  # the gateway ended them


async def test_a_reload_changes_the_limits_of_handshakes_to_come(gateways: Gateways, tls: Json) -> None:
    async with own(gateways, tls=tls, limits={"request_timeout": "1h"}) as rig:
        before = await rig.client(hello()[:9])
        rig.gateway.renew(rig.settings(tls=tls, limits={"request_timeout": "500ms"}))

        async def gives_up() -> bool:
            one = await rig.client()
            with suppress(TimeoutError):
                async with asyncio.timeout(3):
                    await one.ends()
            return one.end != "open"

        await eventually(gives_up, "a handshake given up after 500 ms")
        assert before.end == "open"
        await is_served(rig, tls)


async def test_tls_on_a_unix_socket(gateways: Gateways, tls: Json, tmp_path: Path) -> None:
    """One after another on the same path, as after a crash."""
    path = tmp_path / "gate.sock"
    for _ in range(2):
        async with rig_with(gateways, tls=tls, listen=f"unix:{path}", log={"level": "info"}) as rig:
            context = ssl.create_default_context(cafile=tls["certificate"])
            reader, writer = await asyncio.open_unix_connection(path, ssl=context, server_hostname="localhost")
            writer.write(request(b"BREW"))
            assert await reader.readline() == b"HTTP/1.1 400 Bad Request\r\n"
            plain, out = await asyncio.open_unix_connection(path)
            out.write(request())
            assert await plain.readline() == b"HTTP/1.1 400 Bad Request\r\n"
            for each in (writer, out):
                each.close()
                await asyncio.gather(each.wait_closed(), return_exceptions=True)
            await failed(rig.gateway, {"plain_http": 1})
            assert lines(rig.gateway)[0]["client"] == "unix"
