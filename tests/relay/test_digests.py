"""A body that is edited, moved or decoded has no digest of what it was; every other body keeps its digests."""

import gzip
import zlib
from collections.abc import Callable, Sequence

import pytest

from tests.launch import Gateways
from tests.peer import Peer
from tests.relay.http1 import Message
from tests.relay.messages import call, dumps, filtered, initialized, page, result
from tests.relay.rig import Rig, body, final, rig_with, says
from tests.relay.wire import answer, chunked, event, post, request, response

DIGESTS = [
    b"Content-Digest: sha-256=:d435Qo+nKZ+gLcUHn7GQtQ72hiBVAgqoLsZnZPiTGPk=:",
    b"Repr-Digest: sha-256=:d435Qo+nKZ+gLcUHn7GQtQ72hiBVAgqoLsZnZPiTGPk=:",
    b"DIGEST: sha-256=d435Qo",
    b"Content-MD5: Q2hlY2sgSW50ZWdyaXR5IQ==",
    b'etag: W/"1"',
]
NAMES = {line.partition(b":")[0].lower() for line in DIGESTS}
OTHERS = [b"Want-Repr-Digest: sha-256=1", b"X-Digest: 1"]
ANNOUNCED = b"Trailer: Content-Digest, Server-Timing, ETag"
PACKED: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress}
FRAMINGS = ["length", "chunks", "close", *PACKED]


def told(message: Message) -> set[bytes]:
    announced = b",".join(message.values(b"trailer")).lower().replace(b" ", b"").split(b",")
    return {name.lower() for name, _ in (*message.fields, *message.trailers)}.union(announced) & NAMES


def framed(framing: str, data: bytes, kind: bytes, fields: Sequence[bytes], status: bytes = b"200 OK") -> bytes:
    fields = [b"Content-Type: " + kind, *DIGESTS, *fields]
    if framing == "length":
        return response(data, *fields, status=status)
    if framing == "close":
        return b"\r\n".join([b"HTTP/1.1 " + status, *fields, b"", data])
    if framing in PACKED:
        fields, data = [*fields, b"Content-Encoding: " + framing.encode()], PACKED[framing](data)
    head = [b"HTTP/1.1 " + status, *fields, ANNOUNCED, b"Transfer-Encoding: chunked", b"", b""]
    return b"\r\n".join(head) + chunked(data, trailers=[*DIGESTS, b"Server-Timing: x"])


async def exchanged(rig: Rig, asked: bytes, said: bytes) -> Message:
    """The response to a request, answered so; the upstream closes behind a response without a length."""
    one, peer = await rig.begin(asked)
    await peer.send(said)
    if b"Content-Length" not in said and b"Transfer-Encoding" not in said:
        peer.finish()
    return await one.response()


def check(got: Message, edited: bool) -> None:
    assert got.whole
    assert told(got) == (set() if edited else NAMES)
    assert got.values(b"want-repr-digest") == [b"sha-256=1"]
    if got.trailers:
        assert (b"Server-Timing", b"x") in got.trailers
        assert b"server-timing" in (got.value(b"trailer") or b"").lower()


INITIALIZED, PLAIN = (
    dumps(result(1, initialized())),
    dumps(result(1, {"protocolVersion": "2025-11-25", "capabilities": {}})),
)
JSON, STREAM = b"application/json", b"text/event-stream"


@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize(("data", "edited"), [(INITIALIZED, True), (PLAIN, False)], ids=["edited", "as it came"])
async def test_an_initialize(rig: Rig, framing: str, data: bytes, edited: bool) -> None:
    for _ in range(3):  # a head that comes again is remembered
        got = await exchanged(rig, post(call("initialize")), framed(framing, data, JSON, OTHERS))
        check(got, edited)
        assert (b'"filter"' in got.body) is edited or framing in PACKED
    check(await exchanged(rig, post(call("tools/list")), framed(framing, data, JSON, OTHERS)), edited=False)


@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize("data", [INITIALIZED, PLAIN], ids=["edited", "as it came"])
async def test_a_stream_in_which_an_event_may_be_edited(rig: Rig, framing: str, data: bytes) -> None:
    for asked in (post(call("initialize")), request(fields=[b"Last-Event-ID: 7", b"Accept: text/event-stream"])):
        check(await exchanged(rig, asked, framed(framing, event(data), STREAM, OTHERS)), edited=True)


@pytest.mark.parametrize("framing", FRAMINGS)
async def test_a_stream_in_which_none_may(rig: Rig, framing: str) -> None:
    endpoint = b"event: endpoint\ndata: http://%b/m\n\n" % rig.place.authority
    get = request(fields=[b"Accept: text/event-stream"])
    for asked, said in ((post(call("tools/call", name="x")), event(result(1, {}))), (get, endpoint)):
        check(await exchanged(rig, asked, framed(framing, said, STREAM, OTHERS)), edited=False)


@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize("target", [b"/.well-known/oauth-protected-resource", b"/any"])
async def test_a_document_that_is_moved(rig: Rig, framing: str, target: bytes) -> None:
    for origin in (rig.place.authority, b"elsewhere.example"):
        data = dumps({"resource": f"http://{origin.decode()}/mcp", "authorization_servers": ["https://a.example"]})
        got = await exchanged(rig, request(target=target), framed(framing, data, JSON, OTHERS))
        check(got, edited=origin == rig.place.authority)


@pytest.mark.parametrize("named", [True, False])
async def test_a_refusal_of_the_gateways_own_request(rig: Rig, named: bool) -> None:
    """It is relayed with the client's id in place of the gateway's, if it names that."""

    async def script(asked: Message, _peer: Peer) -> bytes:
        said = {"jsonrpc": "2.0", "id": body(asked)["id"] if named else None, "error": {"code": -1, "message": "no"}}
        return framed("chunks", dumps(said), JSON, OTHERS, b"401 Unauthorized")

    rig.serve(script)
    got = await rig.ask(rig.post(filtered(7)))
    assert (got.status, body(got)["id"], told(got)) == (401, 7 if named else None, set() if named else NAMES)


@pytest.mark.parametrize("in_chunks", [False, True])
async def test_a_request_whose_ttl_is_lowered(gateways: Gateways, in_chunks: bool) -> None:
    async with rig_with(gateways, says(answer(result(1, page([])))), guards={"task_ttl_max": "1m"}) as rig:
        for ttl, edited in [(90_000, True), (50_000, False), (90_000, True), (60_001, True), (10_000, False)] * 2:
            data = dumps(call("tools/call", name="x", task={"ttl": ttl}))
            fields = [b"Content-Type: application/json", *DIGESTS, *OTHERS]
            if in_chunks:
                fields += [ANNOUNCED, b"Transfer-Encoding: chunked"]
                asked = request(b"POST", fields=fields) + chunked(data, trailers=[*DIGESTS, b"Server-Timing: x"])
            else:
                asked = request(b"POST", fields=fields, body=data)
            assert final(await rig.ask(asked))
            came = rig.upstream.requests[-1]
            check(came, edited)
            assert (body(came)["params"]["task"]["ttl"] == ttl) is not edited
