"""Several upstreams: which one a request goes to, and what is changed on the way there and back (DESIGN 8)."""

import re
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from tests.launch import Gateway, Gateways, Json, eventually, held_port, listening, port_of
from tests.peer import Client
from tests.relay.http1 import Message
from tests.relay.messages import call, filtered, page, result, task
from tests.relay.rig import Place, Server, body, final, ids, rig_at, rig_with
from tests.relay.wire import answer, chunk, post, request, response, stream
from tests.upstream import Upstream

pytestmark = pytest.mark.usefixtures("harness_alone")


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


@pytest.mark.parametrize("is_absolute", [False, True])
async def test_an_upstream_is_chosen_by_host_and_by_prefix(several: Several, is_absolute: bool) -> None:
    """RFC 9112, 3.2.2: every server must take an absolute target, and its authority goes before `Host`."""
    for target, host, name, seen in ROUTES:
        given = (b"http://" + host + target, b"localhost") if is_absolute else (target, host)
        found, asked = await several.asked(*given)
        assert (found, asked.target) == (name, seen), (target, host)
        hosts = {"hosted": host, "by-host": b"fixed.example:81"}
        own_authority = b"127.0.0.1:%d" % several.upstreams[name].port
        assert asked.value(b"host") == hosts.get(name, own_authority)


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
