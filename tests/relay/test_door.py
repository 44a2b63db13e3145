"""What is turned away: foreign hosts and origins, heads too large or too slow; and what heads cost (DESIGN 7).

Requests that could be read in two ways stand in the tables of tests/attack.
"""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

import pytest

from gateway.downstream.client_connection import TURNED_AWAY_MAX
from tests.bench.proc import rss_bytes
from tests.launch import Gateway, Gateways, eventually, held_port, logged, port_of
from tests.peer import Client, Peer
from tests.relay.http1 import Message
from tests.relay.messages import call, filtered, notification, page, result
from tests.relay.rig import Rig, Script, body, gives, meant, own, rig_with, says
from tests.relay.test_handshakes import hello
from tests.relay.wire import LAST_CHUNK, chunk, chunked, event, post, request, response, stream

ok = says(response())


async def test_a_bad_chunk_after_the_answer_has_begun_cuts_it(process_rig: Rig) -> None:
    text = [b"Content-Type: text/plain", b"Transfer-Encoding: chunked"]
    one = await process_rig.client(request(b"POST", fields=text), chunk(b"hello"))
    peer = await process_rig.upstream.head()
    await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(b"half"))
    await one.hears(b"half")
    await one.send(b"zzz\r\n")
    assert not (await one.response()).whole
    await peer.ends()


# ---- what is no HTTP/1.1: the log and the answer say which protocol it is, and quote nothing ----

PROXY = "it is the PROXY protocol, which is not read: turn it off"
FOREIGN = {  # as HAProxy sends it with `send-proxy`, `send-proxy-v2`, `proto h2` and `ssl`
    "PROXY 1": (b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n" + request(), PROXY),
    "PROXY 2": (b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c" + b"x" * 12 + request(), PROXY),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\6\4\0\0\0\0\0\0\3\0\0\0d", "it is HTTP/2"),
    "TLS": (hello(), "it is TLS, and this port speaks plain HTTP"),
}


@pytest.mark.parametrize("name", FOREIGN)
async def test_who_speaks_another_protocol_is_told_which(gateways: Gateways, name: str) -> None:
    """The log had a status, and no reason."""
    sent, words = FOREIGN[name]
    async with rig_with(gateways, log={"level": "info"}) as rig:
        answer = await rig.ask(sent)
        assert (answer.status, words.encode() in answer.body) == (505 if name == "HTTP/2" else 400, True)
        assert (await logged(rig.gateway, "refused a request"))["why"].startswith(words)


async def test_a_reason_quotes_nothing_that_was_sent(gateways: Gateways) -> None:
    async with rig_with(gateways, log={"level": "debug"}) as rig:
        for sent in (b"s3cr3t\r\n\r\n", b"GET /s3cr3t\xff HTTP/1.1\r\n\r\n", b"GET /\r\nX: s3cr3t\n\r\n\r\n"):
            answer = await rig.ask(sent)
            assert (answer.status, b"s3cr3t" in answer.body) == (400, not sent.startswith(b"GET /\r"))
        for words in ("a registered method", "in ASCII"):
            await logged(rig.gateway, words)
        assert "s3cr3t" not in rig.gateway.log


# ---- Host and Origin (DESIGN 7) ----


# Python 3.11 took an IPv4 address that is mapped into IPv6 for no loopback address, 3.13 for one.
MAPPED = b"[::1]", b"[::ffff:127.0.0.1]", b"[::ffff:7f00:1]:80"


async def test_what_is_listed_comes_in(gateways: Gateways) -> None:
    listed = {"allowed_hosts": ["mcp.example"], "allowed_origins": ["https://app.example", "http://app.example:3000"]}
    async with rig_with(gateways, ok, **listed) as rig:
        for host in (b"mcp.example", b"MCP.example:8080", b"localhost", *MAPPED):
            assert (await rig.ask(request(host=host))).status == 200
        assert await _admin(rig.gateway, request(target=b"/metrics", host=b"mcp.example")) == 200
        for origin in (b"https://app.example", b"http://app.example:3000", b"http://localhost:1"):
            assert (await rig.ask(request(fields=[b"Origin: " + origin]))).status == 200
        for host in (b"mcp.example.evil", b"[::ffff:10.0.0.1]"):
            assert (await rig.ask(request(host=host))).status == 403
        for origin in (b"http://app.example", b"https://app.example:444", b"https://app.example.evil"):
            assert (await rig.ask(request(fields=[b"Origin: " + origin]))).status == 403


async def _admin(gateway: Gateway, raw: bytes) -> int:
    """The status of the admin listener's answer."""
    one = await Client.connect(gateway.admin)
    await one.send(raw)
    try:
        return (await one.response()).status
    finally:
        await one.close()


@pytest.mark.parametrize("target", [b"/metrics", b"/healthz", b"/readyz", b"/nothing"])
async def test_the_admin_listener_has_the_same_door(process_rig: Rig, target: bytes) -> None:
    """DNS rebinding would let any page read the metrics of its reader's machine."""
    gateway = process_rig.gateway
    own = b"127.0.0.1:%d" % gateway.admin
    for host in (b"evil.example", b"evil.example:%d" % gateway.admin):
        assert await _admin(gateway, request(target=target, host=host)) == 403
    assert await _admin(gateway, request(target=target, host=own, fields=[b"Origin: http://evil.example"])) == 403
    for host in (own, b"localhost"):
        assert await _admin(gateway, request(target=target, host=host)) == (404 if target == b"/nothing" else 200)


async def test_a_host_has_a_limit_on_every_listener(gateways: Gateways) -> None:
    """Beyond loopback it had none, and 60 kB of it went into addresses and fields for the upstream."""
    with held_port() as admin, held_port() as listen:
        everywhere = {"admin": {"listen": f"0.0.0.0:{port_of(admin)}"}, "listen": f"0.0.0.0:{port_of(listen)}"}
        async with rig_with(gateways, ok, **everywhere) as rig:
            gateway = replace(rig.gateway, port=port_of(listen), admin=port_of(admin))
            for host, status in ((b"h" * 300, 200), (b"h" * 301, 403), (b"\xff" * 8000, 403)):
                one = await Client.connect(gateway.port)
                await one.send(request(host=host))
                assert (await one.response()).status == status
                assert len(one.received) < 2500
                await one.close()
                assert await _admin(gateway, request(target=b"/healthz", host=host)) == status


# ---- limits ----


async def test_a_head_that_is_too_slow_gets_408(hasty_rig: Rig) -> None:
    one = await hasty_rig.client(b"GET /mcp HTTP/1.1\r\nHost: loc")
    assert (await one.response()).status == 408
    await one.ends()


@pytest.mark.parametrize("asked", [b"", request()], ids=["says nothing", "idle"])
async def test_a_connection_that_says_nothing_or_has_been_idle_is_closed(hasty_rig: Rig, asked: bytes) -> None:
    hasty_rig.serve(ok)
    one = await hasty_rig.client(asked)
    assert await one.ends() == "fin"
    assert [got.status for got in one.responses()] == [200] * bool(asked)


async def test_who_is_turned_away_and_stays_has_a_limit_too(gateways: Gateways) -> None:
    async with rig_with(gateways, ok, limits={"connections_max": 1, "stall_timeout": "3s"}) as rig:
        held = await rig.client()
        above = [await rig.client() for _ in range(TURNED_AWAY_MAX + 1)]
        await above[-1].ends()
        assert above[-1].received == b""
        await asyncio.gather(*(one.hears(b"HTTP/1.1 503 ") for one in above[:-1]))
        await held.send(request())
        assert (await held.response()).status == 200
        await rig.gateway.becomes("connections", 1)


@pytest.mark.parametrize("name", [b"Mcp-Session-Id", b"Mcp-Protocol-Version"])
async def test_a_field_that_mcp_knows_once_is_refused_twice(gateways: Gateways, name: bytes) -> None:
    """The gateway read the first: a server that reads the last one answered for another session than was looked up."""
    async with rig_with(gateways, ok) as rig:
        for given in ([name + b": a"], [name + b": a", b"x-between: b", name.lower() + b": a"]):
            for asked in (post(filtered(), *given), request(fields=given), post(call("ping"), *given)):
                answered = await rig.ask(asked)
                assert (answered.status == 400) == (len(given) > 1)
                assert answered.status != 400 or name.lower().decode() in body(answered)["error"]["message"]


# ---- answers of the gateway's own say when they were made (RFC 9110, 6.6.1) ----


async def streamed(asked: Message, _peer: Peer) -> bytes:
    """A filtered list whose crawl brings another message."""
    told = event(notification("notifications/message", level="info", data="x"))
    return stream() + chunk(told + event(result(body(asked)["id"], page([])))) + LAST_CHUNK


LISTS = gives(page([]))
OPERATION = post(call("tasks/get"))
OWN: dict[str, tuple[int, Script | None, list[bytes]]] = {
    "a filtered list": (200, LISTS, [post(filtered())]),
    "a filtered list as a stream": (200, streamed, [post(filtered())]),
    "a query that is wrong": (200, LISTS, [post(filtered(status=7))]),
    "a Connection that hides": (400, LISTS, [request(fields=[b"Connection: cookie"])]),
    "no request": (400, LISTS, [b"nonsense\r\n\r\n"]),
    "a foreign Host": (403, LISTS, [request(host=b"evil.example")]),
    "no upstream": (404, LISTS, [request(target=b"/")]),
    "a head too large": (431, LISTS, [request(fields=[b"X: y"] * 300)]),
    "too many operations": (429, LISTS, [OPERATION, OPERATION]),
    "a broken upstream": (502, says(b"nonsense\r\n\r\n"), [request()]),
    "an upstream that is silent": (504, None, [post(call("ping"))]),
}


@pytest.mark.parametrize("name", OWN)
async def test_an_answer_of_the_gateways_own_says_when_it_was_made(gateways: Gateways, name: str) -> None:
    status, script, asked = OWN[name]
    upstream = {404: {"match": {"prefix": "/nowhere"}}, 504: {"response_timeout": "500ms"}}.get(status, {})
    guards = {"task_operations_per_second": 0.01, "task_operations_burst": 1} if status == 429 else {}
    async with rig_with(gateways, script, upstream=upstream, guards=guards) as rig:
        got = [await rig.ask(each) for each in asked][-1]
    assert meant(got) == status
    told = (got.value(b"date") or b"").decode()
    assert timedelta(0) <= datetime.now(UTC) - parsedate_to_datetime(told) < timedelta(seconds=30)
    assert told.endswith(" GMT")


# ---- heads and trailers: how many fields they may have, what they cost in memory, and that all of it is counted ----

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
    await rig.gateway.becomes("held_bytes", 0)
    return growth_bytes / CONNECTIONS, held / CONNECTIONS


async def held_bytes(rig: Rig) -> float:
    """What the gateway counts, once that stands still: all that was sent has been read."""
    seen = [-1.0]

    async def stands() -> bool:
        seen.append(await rig.gateway.sample("held_bytes"))
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
    "of an answer, unfinished": (request(target=b"/unfinished"), {}),
    "of an answer that its client has yet to read": (request(target=b"/large"), {}),
}
OF_ANSWERS_BYTES = 62_500  # of 250 fields


async def serve(asked: Message, peer: Peer) -> bytes:
    if asked.target != b"/ping":
        large = b"HTTP/1.1 200 OK\r\n" + fields(250, 250) if asked.target != b"/mcp" else b""
        rest = stream() if asked.target != b"/unfinished" else b""
        await peer.send(large + rest.removeprefix(large[:17]))
        await asyncio.Event().wait()
    return response(b"ok")


@pytest.mark.parametrize("kind", HEADS)
async def test_what_heads_cost_in_memory_is_counted(fresh_gateways: Gateways, kind: str) -> None:
    """1,300 unfinished heads of 64 KB in tiny fields took 2.4 GB, and nothing of it was counted."""
    sent, limits = HEADS[kind]
    async with own(fresh_gateways, limits=limits) as rig:
        rig.serve(serve)
        growth_bytes, held = await grown(rig, sent, b"event-stream" if "unfinished" not in kind else b"")
    assert growth_bytes <= 1.15 * held + BASE_BYTES + OF_ANSWERS_BYTES * ("yet to read" in kind)
    assert held <= 1.15 * growth_bytes + BASE_BYTES
    assert held >= OF_ANSWERS_BYTES * ("of an answer" in kind)
    if not limits:
        assert growth_bytes <= PROMISED_BYTES


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
