"""What a reload changes, and what outlives it (DESIGN 8.6); several upstreams, and which one is chosen (DESIGN 8.4)."""

import json
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.launch import Gateways, Json, eventually, held_port, listening, logged, port_of, settings
from tests.relay.messages import call, filtered, in_pages, notification, page, result, task
from tests.relay.rig import Place, Rig, Server, body, final, ids, meant, own, rig_at, rig_with
from tests.relay.wire import LAST_CHUNK, answer, chunk, event, post, request, response, stream
from tests.upstream import Upstream, in_a_thread

TASKS = [task("t-1"), task("t-2", "completed")]
LOG = {"level": "info"}
PAGE = b"Origin: http://localhost:6274"
CORS = b"Access-Control-Allow-Origin: http://localhost:6274"


def reload(rig: Rig, **upstream: Any) -> None:
    """Take over a configuration whose index is another, and what is given of the upstream."""
    gateway = rig.gateway
    changed = {"log": LOG, "index": {"page_size": 7}, "upstream": upstream}
    gateway.reload(rig.settings(**changed))


@pytest.mark.parametrize("same_callers", [True, False])
async def test_a_browser_may_still_read_an_error_after_a_reload(gateways: Gateways, same_callers: bool) -> None:
    """The notes for CORS went with the old pool. They do go where callers are told apart by other fields."""
    async with rig_with(gateways, log=LOG) as rig:
        await rig.exchange(rig.post(call("ping"), PAGE), response(b"", CORS))
        reload(rig, **({} if same_callers else {"identity_headers": ["X-Who"]}))
        await rig.upstream.refuse()
        wrong = await rig.ask(rig.post(filtered(7), PAGE))
        assert meant(wrong) == 502
        assert (wrong.value(b"access-control-allow-origin") is not None) is same_callers


@pytest.mark.parametrize(("before", "after", "status"), [(1, 1, 503), (1, 3, 200), (3, 1, 503)])
async def test_requests_max_counts_those_from_before_a_reload(
    gateways: Gateways, before: int, after: int, status: int
) -> None:
    """More places are there at once; of fewer, those that are taken are used up first."""
    patience = "300ms" if status == 503 else "20s"
    given = {"requests_max": before, "connect_timeout": patience}
    async with rig_with(gateways, log=LOG, upstream=given) as rig:
        old, peer = await rig.begin(post(call("ping")))
        reload(rig, requests_max=after, connect_timeout=patience)
        one = await rig.client(post(call("ping")))
        if status == 200:
            await (await rig.upstream.request(2)).send(response())
        assert meant(await one.response()) == status
        await peer.send(response(b"old"))
        assert (await old.response()).body == b"old"
        if status == 503:
            assert (await rig.exchange(post(call("ping")), response(b"2"))).body == b"2"


async def test_a_reload_hides_no_recovery(gateways: Gateways) -> None:
    """What was in flight is answered: the upstream counted as down until another request."""
    async with rig_with(gateways, log=LOG, upstream={"idle_timeout": "60s"}) as rig:
        slow, peer = await rig.begin(post(call("tools/call")))
        lost = await rig.client(request())
        (await rig.upstream.request(2)).reset()
        assert (await lost.response()).status == 502
        assert await rig.gateway.sample("upstream_up", upstream="up") == 0
        reload(rig)
        assert await rig.gateway.sample("upstream_up", upstream="up") == 0
        await peer.send(response())
        assert (await slow.response()).status == 200
        assert await rig.gateway.sample("upstream_up", upstream="up") == 1


# ---- what is under way ----


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
            gateway.renew(settings(gateway.port, gateway.admin, port_of(other)))
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


# What is made of the good configuration, or else of its file, and what is said of it.
BAD: list[tuple[Callable[[Json, Path], Json | None], str]] = [
    (lambda good, _: {**good, "colour": "red"}, "colour: "),
    (lambda good, _: {**good, "index": {"page_size": "many"}}, "index.page_size"),
    (lambda good, _: {**good, "upstreams": []}, "upstreams: "),
    (lambda good, _: {**good, "listen": "127.0.0.1:1"}, "listen cannot change"),
    (lambda _, file: os.mkfifo(file), "a pipe cannot be read again"),  # the gateway waited for a writer, for good
    (lambda _, file: None, "cannot be read: No such file"),
]


async def test_sighup_with_a_bad_file_changes_nothing_and_says_so(gateways: Gateways) -> None:
    async with own(gateways, Server({None: page(TASKS)})) as rig:
        gateway = rig.gateway
        assert gateway.file is not None
        good = rig.settings()
        for change, words in BAD:
            gateway.file.unlink(missing_ok=True)
            if (bad := change(good, gateway.file)) is not None:
                gateway.reconfigure(bad)
            gateway.signal(signal.SIGHUP)
            assert (await logged(gateway, words))["level"] == "error"
            assert (await rig.ask(post(filtered()))).status == 200
            assert await rig.gateway.sample("config_last_reload_successful") == 0
        gateway.renew({**good, "index": {"page_size": 1}})
        await logged(gateway, "reloaded")
        listed = final(await rig.ask(post(filtered(status=["working", "completed"]))))
        assert len(listed["result"]["tasks"]) == 1, "and a good one is taken over afterwards"
        after = await rig.gateway.metrics()
        assert after["taskgate_config_last_reload_successful", ()] == 1
        assert time.time() - after["taskgate_config_last_reload_success_timestamp_seconds", ()] < 10


async def test_what_a_reload_finds_under_way_keeps_its_time_limit(gateways: Gateways) -> None:
    """The deadlines of the old configuration's upstream connections once went unchecked."""
    async with own(gateways, upstream={"response_timeout": "2s"}) as rig:
        one = await rig.client(post(call("ping", 7)))
        await rig.upstream.request()
        gateway = rig.gateway
        gateway.renew(rig.settings())
        await logged(gateway, "reloaded")
        assert (await one.response()).status == 504


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


async def test_a_reload_frees_the_old_indexes_bit_by_bit(gateways: Gateways) -> None:
    """A million tasks freed at once would hold the loop. Here are 20,000, of some six memory blocks each."""
    pages = in_pages([task(f"t-{number}") for number in range(20_000)], 4000)
    async with rig_with(gateways, Server(pages), log=LOG) as rig:
        assert final(await rig.ask(rig.post(filtered())))["result"]["_meta"]["taskgate/total"] == 20_000
        before = sys.getallocatedblocks()
        rig.gateway.reload(rig.settings(log=LOG, upstream={"url": "http://127.0.0.1:1/mcp"}))
        assert sys.getallocatedblocks() > before - 60_000
        await eventually(lambda: sys.getallocatedblocks() < before - 60_000, "the old index freed")


# ---- several upstreams: which one a request goes to, and what is changed on the way there and back ----


NAMES: dict[str, Json] = {
    "research": {"match": {"prefix": "/research"}},
    "deep": {"match": {"prefix": "/research/deep"}},
    "hosted": {"match": {"host": "mcp.example", "prefix": "/research"}, "host": "preserve"},
    "by-host": {"match": {"host": "mcp.example"}, "host": "fixed.example:81"},
    "rest": {},
}


Several: TypeAlias = tuple[Rig, dict[str, int]]
"""A gateway before these upstreams, and their ports."""


def echo(name: str, head: bytes, body: bytes) -> bytes:
    """What the upstream of that name says: its name and what it was asked, or a list with a task of its own."""
    if body:
        return answer(result(json.loads(body)["id"], page([task(f"of-{name}")])))
    return response(name.encode() + b"\r\n" + head)


@pytest.fixture
async def several(gateways: Gateways) -> AsyncIterator[Several]:
    with ExitStack() as stack:
        ports = {name: stack.enter_context(in_a_thread(partial(echo, name))) for name in NAMES}
        upstreams = [{"name": name, "url": f"http://127.0.0.1:{ports[name]}/mcp", **NAMES[name]} for name in NAMES]
        gateway = stack.enter_context(gateways.process(1, upstreams=upstreams))
        async with rig_at(Place(gateway, stack.enter_context(listening()))) as rig:
            yield rig, ports


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


@pytest.mark.parametrize("is_absolute", [False, True])
async def test_an_upstream_is_chosen_by_host_and_by_prefix(several: Several, is_absolute: bool) -> None:
    """RFC 9112, 3.2.2: every server must take an absolute target, and its authority goes before `Host`."""
    rig, ports = several
    for target, host, name, seen in ROUTES:
        given = (b"http://" + host + target, b"localhost") if is_absolute else (target, host)
        asked = (await rig.ask(request(target=given[0], host=given[1]))).body.split(b"\r\n")
        own_authority = b"127.0.0.1:%d" % ports[name]
        expected = {"hosted": host, "by-host": b"fixed.example:81"}.get(name, own_authority)
        assert asked[:2] == [name.encode(), b"GET %b HTTP/1.1" % seen] and b"Host: " + expected in asked, (target, host)


async def test_tasks_of_several_upstreams_are_kept_apart(several: Several) -> None:
    """The same session id and token at two upstreams are two sessions (DESIGN 7)."""
    for name, prefix in (("research", b"/research"), ("rest", b"")):
        got = await several[0].ask(post(filtered(), b"Mcp-Session-Id: same", target=prefix + b"/mcp"))
        assert ids(final(got)) == [f"of-{name}"]


async def test_what_is_added_only_when_configured(gateways: Gateways) -> None:
    given = [b"X-Forwarded-For: 192.0.2.1", b"Forwarded: for=192.0.2.1", b"Via: 1.1 other"]
    async with rig_with(gateways, Server({}), upstream={"add_headers": ["x-forwarded", "forwarded", "via"]}) as rig:
        await rig.ask(post(call("x"), *given, b"X-Forwarded-Proto: https", b"X-Forwarded-Host: evil"))
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


# What a `Location` or an `endpoint` event says, and what a client of a `Location` is to read.
SAID = {
    "/messages/?session_id=0f8c": "{path}/messages/?session_id=0f8c", "http://{own}/messages": "{base}/messages",
    "//{own}/messages": "{base}/messages", "messages?sessionId=1": "messages?sessionId=1",
    "//elsewhere/messages": "//elsewhere/messages", "https://elsewhere/messages": "https://elsewhere/messages",
}  # fmt: skip
# How an upstream is found, the path in front of its own on the way there, and where its clients are told that it is.
PLACES: dict[str, tuple[Json, str, str]] = {
    "root": ({}, "", "http://{host}"),
    "host": ({"match": {"host": "localhost"}}, "", "http://{host}"),
    "prefix": ({"match": {"prefix": "/research"}}, "/research", "http://{host}/research"),
    "public": ({"match": {"prefix": "/p"}, "public_url": "https://x.example/y"}, "/p", "https://x.example/y"),
}


@pytest.mark.parametrize("place", PLACES)
async def test_a_location_moves_and_an_endpoint_event_passes(gateways: Gateways, place: str) -> None:
    """The events of a stream are edited only where they answer `initialize` (DESIGN 3.10)."""
    upstream, target, base = PLACES[place]
    asked = request(target=f"{target}/sse".encode(), fields=[b"Accept: text/event-stream"])
    async with rig_with(gateways, upstream=upstream) as rig:
        base = base.format(host="localhost")
        path = "/".join(["", *base.split("/")[3:]])
        for told, expected in SAID.items():
            said = told.format(own=rig.place.authority.decode()).encode()
            one, peer = await rig.begin(asked)
            raw = b"event: endpoint\r\ndata: %b\r\n\r\n" % said
            await peer.send(stream() + chunk(raw))
            await one.hears(raw)
            assert one.responses()[0].body == raw
            for name in (b"location", b"content-location"):
                moved = await rig.exchange(asked, response(b"", name + b": " + said, status=b"307 Moved"))
                assert moved.value(name) == expected.format(base=base, path=path).encode()
