"""What users of such proxies complain about, by name.

In: the traffic of the complaint. Out: the same as from the server itself. Other files prove most of this for many
cases; here it is proved once for each complaint.

Not here, because no socket shows it in a test's time: a client that vanishes without FIN or RST. The kernel's
keep-alive ends such connections. The half-open GET here is one whose client has sent FIN or RST.
"""

import asyncio
import gzip
import itertools
import json
import zlib

import pytest

from tests.launch import Gateways, eventually
from tests.peer import Client, Peer
from tests.relay.conftest import SMALL_EVENT_BYTES
from tests.relay.harness import Case, arrives, client, compare, exchange, upstream
from tests.relay.http1 import Message
from tests.relay.messages import (
    LAST_CHUNK,
    Json,
    answer,
    call,
    chunk,
    dumps,
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
from tests.relay.rig import Rig, Server, Session, body, final, ids, rig_with, says, told

EVENTS = b"text/event-stream"
TASKS = [task("t-1"), task("t-2", "completed", "2026-01-02T00:00:00Z")]
FILTER: Json = {
    "methods": ["tools/call"],
    "taskIds": True,
    "status": True,
    "createdAt": {"before": True, "after": True},
    "lastUpdatedAt": {"before": True, "after": True},
    "order": {"by": ["createdAt", "lastUpdatedAt"], "direction": ["asc", "desc"]},
}


def get(*fields: bytes, target: bytes = b"/mcp") -> bytes:
    """A GET for an event stream."""
    return request(target=target, fields=[b"Accept: text/event-stream", *fields])


async def opened(rig: Rig, number: int = 1, *fields: bytes) -> tuple[Client, Peer]:
    """A GET stream, its head sent and arrived."""
    one, peer = await rig.begin(get(*fields))
    await peer.send(stream())
    await one.hears(b"\r\n\r\n")
    return one, peer


# ---- streams ----


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_sse_is_not_buffered_until_the_end(rig: Rig, method: str) -> None:
    one, peer = await rig.begin(get() if method == "GET" else post(call("tools/call")))
    await peer.send(stream())
    await one.hears(b"text/event-stream\r\n")
    for number in range(20):
        await peer.send(chunk(event(b"%d" % number)))
        await one.hears(event(b"%d" % number))
    for piece in (b"data: ", b"half", b" an event\n", b"\n"):
        await peer.send(chunk(piece))
        await one.hears(piece, 1 + (piece == b"\n"))


async def test_get_streams_are_not_timed_out(hasty_rig: Rig) -> None:
    """Every time limit of that gateway is a second or less; the stream is quiet for longer than all of them."""
    one, peer = await hasty_rig.begin(get())
    await asyncio.sleep(2.2)
    await peer.send(stream())
    await one.hears(b"\r\n\r\n")
    await asyncio.sleep(2.2)
    assert (one.end, peer.end) == ("open", "open")
    await peer.send(chunk(event(b"late")))
    await one.hears(b"late")


async def test_get_is_answered_405_where_the_server_says_405(rig: Rig) -> None:
    refusal = answer(fault(None, -32000, "Method not allowed."), b"Allow: POST", status=b"405 Method Not Allowed")
    assert await rig.exchange(get(), refusal) == Message(
        b"HTTP/1.1 405 Method Not Allowed",
        ((b"Content-Type", b"application/json"), (b"Allow", b"POST"), (b"Content-Length", b"83")),
        "length",
        dumps(fault(None, -32000, "Method not allowed.")),
    )


async def test_messages_are_not_duplicated_on_get_streams(rig: Rig) -> None:
    """Two streams of one session, a POST's stream and a crawl's: each message comes where it was sent, once."""
    session = Session(rig)
    first, to_first = await opened(rig, 1, *session.fields())
    second, to_second = await opened(rig, 2, *session.fields())
    calling = await session.client(call("tools/call"))
    to_call = await rig.upstream.request(3)
    moved = notification("notifications/tasks/status", **TASKS[0])
    for number, (one, peer) in enumerate([(first, to_first), (second, to_second)]):
        await peer.send(chunk(event({**moved, "n": number})))
        await one.hears(b'"n":%d' % number)
    await to_call.send(stream() + chunk(event({**moved, "n": 2}) + event(result(1, {}))) + LAST_CHUNK)
    assert len(told(await calling.response())) == 2
    rig.serve(Server({None: page(TASKS)}))
    assert len(final(await session.ask(filtered()))["result"]["tasks"]) == 1
    assert first.received.count(b"data: ") == second.received.count(b"data: ") == 1


async def test_notifications_are_not_dropped(rig: Rig) -> None:
    """Neither on a POST's stream before its answer, nor on a GET stream, nor those that only look like an answer."""
    notes = [notification("notifications/progress", progressToken=1, progress=n) for n in range(50)]
    notes.append(notification("notifications/message", level="debug", data={"id": 1, "result": {}}))
    assert told(
        await rig.exchange(
            post(call("tools/call", _meta={"progressToken": 1})),
            stream() + chunk(b"".join(map(event, notes))),
            chunk(event(result(1, {}))) + LAST_CHUNK,
        )
    ) == [*notes, result(1, {})]
    listener, to_listener = await opened(rig, 2)
    await to_listener.send(*(chunk(event(note)) for note in notes))
    await listener.hears(b"data: ", len(notes))


@pytest.mark.parametrize("how", ["fin", "rst"])
async def test_a_half_open_get_does_not_pin_its_session(rig: Rig, how: str) -> None:
    """A server that allows one stream a session refuses the next GET until the old one has ended there."""
    one, peer = await opened(rig)
    one.stop(how)
    await peer.ends()
    await rig.gateway.until(lambda now: now["taskgate_connections", ()] == 0, "no connection is left")


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_large_sse_lines_are_not_cut(small_rig: Rig, method: str) -> None:
    """An event a thousand times larger than is inspected, and the small ones about it."""
    big = b"data: " + b"x" * (SMALL_EVENT_BYTES * 1000) + b"\n\n"
    pieces = [big[at : at + 200_000] for at in range(0, len(big), 200_000)]
    asked = get() if method == "GET" else post(call("tools/call"))
    steps = exchange(asked, [stream(), chunk(event(b"1")), *map(chunk, pieces), chunk(event(b"2")), LAST_CHUNK])
    await compare(Case("a large event", steps), small_rig.place.listening, small_rig.gateway.port)


LINE_ENDS_OF_UNICODE = '{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"a\u2028b\u2029c\u0085d"}}'


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_u2028_does_not_split_a_message(rig: Rig, method: str) -> None:
    one, peer = await rig.begin(get() if method == "GET" else post(call("tools/call")))
    await peer.send(stream() + chunk(event(LINE_ENDS_OF_UNICODE.encode())))
    await one.hears(event(LINE_ENDS_OF_UNICODE.encode()))


async def test_u2028_does_not_split_an_edited_message(rig: Rig) -> None:
    given = {**initialized(), "instructions": "a\u2028b\u2029c\u0085d"}
    got = await rig.exchange(
        post(call("initialize")),
        stream() + chunk(event(LINE_ENDS_OF_UNICODE.encode()) + event(result(1, given))) + LAST_CHUNK,
    )
    assert LINE_ENDS_OF_UNICODE.encode() in got.body
    assert final(got)["result"]["instructions"] == given["instructions"]
    assert "a\u2028b\u2029c\u0085d".encode() in got.body


async def test_the_event_field_is_not_lost(rig: Rig) -> None:
    """Nor are id, retry, comments or unknown fields of an edited event (DESIGN 4)."""
    before = b": hi\n\nid: 0\nretry: 3000\ndata:\n\nevent: other\ndata: x\n\n"
    head, data, tail = (
        b"event: message\nid: a/1\nretry: 5\nx-odd: 1\n: c\n",
        dumps(result(1, initialized())),
        b"foo\n\n",
    )
    after = b"event: message\ndata: {}\n\n"
    got = (
        await rig.exchange(
            post(call("initialize")),
            stream() + chunk(before + head + b"data: " + data + b"\n" + tail + after) + LAST_CHUNK,
        )
    ).body
    edited = got.removeprefix(before + head + b"data: ").removesuffix(b"\n" + tail + after)
    assert len(edited) == len(got) - len(before + head + b"data: ") - len(b"\n" + tail + after), got
    assert json.loads(edited)["result"]["capabilities"]["tasks"]["list"] == {"filter": FILTER}


# ---- sessions and authorization ----


@pytest.mark.parametrize(
    "message", [call("tools/list"), filtered(), call("tasks/get", taskId="t")], ids=lambda m: str(m["method"])
)
async def test_an_expired_session_is_relayed_as_404(rig: Rig, message: Json) -> None:
    async def gone(asked: Message, _peer: Peer) -> bytes:
        return answer(fault(body(asked)["id"], -32001, "Session not found"), status=b"404 Not Found")

    rig.serve(gone)
    got = await Session(rig).ask(message)
    assert (got.status, body(got)) == (404, fault(1, -32001, "Session not found"))


@pytest.mark.parametrize("how", ["404 to a message", "404 to a GET", "401 to a message", "403 to a message", "DELETE"])
async def test_a_stale_session_is_not_answered_with_success(gateways: Gateways, how: str) -> None:
    """The index is fresh for a minute here. Only relayed messages can have said that the session is gone."""
    async with rig_with(gateways, index={"max_age": "60s"}) as rig:
        await _goes_stale(rig, how)


async def _goes_stale(rig: Rig, how: str) -> None:
    session = Session(rig)
    gone = False
    status = b"404 Not Found" if how == "DELETE" else how[:3].encode() + b" Gone"
    list_tasks = Server({None: page(TASKS)})

    async def script(asked: Message, peer: Peer) -> bytes | None:
        nonlocal gone
        if asked.method == b"DELETE":
            gone = True
            return response(b"")
        if gone or b"tools/list" in asked.body or asked.method == b"GET":
            return answer(fault(None, -32001, "gone"), status=status)
        return await list_tasks(asked, peer)

    rig.serve(script)
    assert (await session.ask(filtered(1))).status == 200
    assert (await session.ask(filtered(2))).status == 200
    assert len(rig.asked("tasks/list")) == 1
    if how == "DELETE":
        assert (await rig.ask(request(b"DELETE", fields=session.fields()))).status == 200
    elif how.endswith("GET"):
        assert (await rig.ask(get(*session.fields()))).status == 404
        gone = True
    else:
        await session.ask(call("tools/list"))
        gone = True
    got = await session.ask(filtered(3))
    assert got.status == int(status[:3])
    assert b'"tasks"' not in got.body


CHALLENGE = [
    b'WWW-Authenticate: Bearer error="invalid_token", scope="a b", resource_metadata="http://127.0.0.1/.well-known/x"',
    b'WWW-Authenticate: DPoP algs="ES256"',
]


@pytest.mark.parametrize(
    "message",
    [call("initialize"), call("tools/list"), filtered(), None],
    ids=["initialize", "relayed", "filtered", "GET"],
)
async def test_the_401_challenge_is_not_lost(rig: Rig, message: Json | None) -> None:
    rig.serve(says(response(b"", *CHALLENGE, status=b"401 Unauthorized")))
    got = await rig.ask(get() if message is None else post(message))
    assert got.start == b"HTTP/1.1 401 Unauthorized"
    assert [b": ".join(f) for f in got.fields if f[0] == b"WWW-Authenticate"] == CHALLENGE


METADATA = [b"/.well-known/oauth-protected-resource", b"/.well-known/oauth-protected-resource/mcp"]
METADATA += [b"/.well-known/oauth-authorization-server", b"/.well-known/openid-configuration/mcp?x=%2F"]


@pytest.mark.parametrize("target", METADATA)
async def test_the_resource_matches_the_proxys_address_where_host_is_preserved(
    gateways: Gateways, target: bytes
) -> None:
    """A server that derives `resource` from the Host must see the client's Host."""

    async def describe(asked: Message, _peer: Peer) -> bytes:
        return answer({"resource": "http://" + (asked.value(b"host") or b"").decode() + "/mcp"})

    async with rig_with(gateways, upstream={"host": "preserve"}) as rig:
        rig.serve(describe)
        host = b"localhost:%d" % rig.gateway.port
        got = await rig.ask(request(target=target, host=host))
        assert rig.upstream.requests[0].target == target
        assert body(got)["resource"] == f"http://localhost:{rig.gateway.port}/mcp"


async def test_a_host_check_of_the_upstream_is_not_answered_421(rig: Rig) -> None:
    """The SDKs' servers check Host and Origin against DNS rebinding: theirs is the Host that they see."""

    async def check(asked: Message, _peer: Peer) -> bytes:
        mine = asked.value(b"host") == rig.place.authority
        return response(status=b"200 OK" if mine else b"421 Misdirected Request")

    rig.serve(check)
    for asked in (request(), post(call("ping")), request(b"DELETE"), request(host=b"127.0.0.1:1")):
        assert (await rig.ask(asked)).status == 200


async def test_the_door_is_not_bypassed(rig: Rig) -> None:
    for asked in (
        request(host=b"evil.example"),
        post(filtered(), b"Origin: http://evil.example"),
        post(call("ping"), b"Origin: null"),
        get(b"Origin: http://evil.example"),
        request(b"OPTIONS", fields=[b"Origin: http://evil.example", b"Access-Control-Request-Method: POST"]),
    ):
        assert (await rig.ask(asked)).status == 403
    await rig.canary()
    assert len(rig.upstream.requests) == 1


async def test_delete_is_forwarded(rig: Rig) -> None:
    session = Session(rig)
    for status in (b"200 OK", b"202 Accepted", b"204 No Content", b"405 Method Not Allowed", b"404 Not Found"):
        one, peer = await rig.begin(request(b"DELETE", fields=session.fields()))
        assert rig.upstream.requests[-1].value(b"mcp-session-id") == session.session_id.encode()
        end = b"\r\n\r\n" if status.startswith(b"204") else b"\r\nContent-Length: 0\r\n\r\n"
        await peer.send(b"HTTP/1.1 " + status + end)
        assert (await one.response()).start == b"HTTP/1.1 " + status
    assert [r.method for r in rig.upstream.requests] == [b"DELETE"] * 5


async def test_sessions_are_not_leaked_when_nobody_sends_delete(hasty_rig: Rig) -> None:
    """`index.idle_timeout` is a second there."""
    hasty_rig.serve(Server({None: page(TASKS)}))
    for _ in range(5):
        assert (await Session(hasty_rig).ask(filtered())).status == 200

    async def gauge() -> float:
        return (await hasty_rig.gateway.metrics())["taskgate_index_sessions", ()]

    assert await gauge() >= 1

    async def nothing_left() -> bool:
        metrics = await hasty_rig.gateway.metrics()
        return metrics["taskgate_index_sessions", ()] == metrics["taskgate_index_bytes", ()] == 0

    await eventually(nothing_left, "the index of every session is dropped")


async def test_sessions_have_a_limit(gateways: Gateways) -> None:
    async with rig_with(gateways, index={"sessions_max": 3}) as rig:
        rig.serve(Server({None: page(TASKS)}))
        for _ in range(6):
            assert len(final(await Session(rig).ask(filtered()))["result"]["tasks"]) == 1
        assert (await rig.gateway.metrics())["taskgate_index_sessions", ()] <= 3


# ---- messages ----


@pytest.mark.parametrize("encoding", [b"gzip", b"deflate", b"br"])
async def test_gzip_is_not_passed_to_a_parser(rig: Rig, encoding: bytes) -> None:
    """An upstream that always encodes: `initialize` is still answered, edited or unchanged."""
    plain = dumps(result(1, initialized()))
    packed = {
        b"gzip": gzip.compress(plain),
        b"deflate": zlib.compress(plain),
        b"br": b"\x0b\x02\x80" + plain[:5] + b"\x03",
    }
    got = await rig.exchange(
        post(call("initialize"), b"Accept-Encoding: gzip, deflate, br"),
        answer(packed[encoding], b"Content-Encoding: " + encoding),
    )
    assert (got.status, got.whole) == (200, True)
    if encoding == b"br":
        assert (got.body, got.value(b"content-encoding")) == (packed[encoding], encoding)
        return
    unpacked = got.body
    if got.value(b"content-encoding") is not None:
        unpacked = zlib.decompress(got.body, zlib.MAX_WBITS | 32)
    assert json.loads(unpacked)["result"]["capabilities"]["tasks"]["list"] == {"filter": FILTER}


@pytest.mark.parametrize("cuts", [[], [3], [60], [-4]], ids=str)
async def test_every_member_of_a_gzipped_event_stream_is_read(rig: Rig, cuts: list[int]) -> None:
    """A gzip stream may have several members, such as one for each event (RFC 1952, 2.2)."""
    one, peer = await rig.begin(post(call("initialize"), b"Accept-Encoding: gzip"))
    first, second = event(notification("first")), event(result(1, initialized()))
    packed = gzip.compress(first) + gzip.compress(b"") + gzip.compress(second)
    places = [0, *(cut % len(packed) for cut in cuts), len(packed)]
    pieces = [chunk(packed[low:high]) for low, high in itertools.pairwise(places)]
    await peer.send(stream(b"Content-Encoding: gzip"), *pieces, LAST_CHUNK)
    told_first, told_second = told(await one.response())
    assert told_first == notification("first")
    assert told_second["result"]["capabilities"]["tasks"]["list"]["filter"] == FILTER


@pytest.mark.parametrize("missing", [1, 8, 40])
async def test_a_gzipped_event_stream_that_stops_short_does_not_look_whole(rig: Rig, missing: int) -> None:
    """The framing of the upstream's stream was whole, and so was once that of the decoded stream."""
    one, peer = await rig.begin(post(call("initialize"), b"Accept-Encoding: gzip"))
    packed = gzip.compress(event(result(1, initialized())))[:-missing]
    await peer.send(stream(b"Content-Encoding: gzip"), chunk(packed), LAST_CHUNK)
    got = await one.response()  # 502 where all of it came at once, and the head had not gone out
    assert not got.whole or got.status == 502


async def test_gzipped_json_that_stops_short_passes_as_it_came(rig: Rig) -> None:
    """Without its check sum it was once edited, and came out whole."""
    packed = gzip.compress(dumps(result(1, initialized())))[:-4]
    got = await rig.exchange(
        post(call("initialize"), b"Accept-Encoding: gzip"), answer(packed, b"Content-Encoding: gzip")
    )
    assert (got.body, got.value(b"content-encoding")) == (packed, b"gzip")


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("missing", [1, 4, 8, 20])
async def test_a_gzip_body_that_stops_short_puts_all_in_doubt(gateways: Gateways, streamed: bool, missing: int) -> None:
    """What its end would have said is unknown. It was not noticed where the body is only looked at."""
    async with rig_with(gateways, index={"max_age": "60s"}) as rig:
        session = Session(rig)

        async def short(asked: Message, _peer: Peer) -> bytes:
            if body(asked)["method"] == "tasks/list":
                return answer(result(body(asked)["id"], page([task("t-1")])))
            said = dumps(result(1, task("t-1", "completed")))
            packed = gzip.compress(event(said) if streamed else said)[:-missing]
            if streamed:
                return stream(b"Content-Encoding: gzip") + chunk(packed) + LAST_CHUNK
            return answer(packed, b"Content-Encoding: gzip")

        rig.serve(short)
        await session.ask(filtered())
        await session.ask(filtered())
        assert len(rig.asked("tasks/list")) == 1
        got = await rig.ask(post(call("tasks/get", taskId="t-1"), *session.fields(), b"Accept-Encoding: gzip"))
        assert got.whole and got.value(b"content-encoding") == b"gzip", "it passes as it came"
        await session.ask(filtered())
        assert len(rig.asked("tasks/list")) == 2


@pytest.mark.parametrize("kind", ["an answer to initialize", "a resumed GET", "a JSON answer"])
async def test_identity_stays_where_an_event_may_be_edited(rig: Rig, kind: str) -> None:
    """It was taken out as if the body had been decoded. The length goes from a stream: an event may grow."""
    said = dumps(result(1, initialized()))
    if kind == "a resumed GET":
        one = await rig.client(request(fields=[b"Accept: text/event-stream", b"Last-Event-ID: 7"]))
    else:
        one = await rig.client(rig.post(call("initialize")))
    peer = await rig.upstream.request()
    if kind == "a JSON answer":
        await peer.send(answer(said, b"Content-Encoding: identity"))
    else:
        await peer.send(response(event(said), b"Content-Type: text/event-stream", b"Content-Encoding: identity"))
    got = await one.response()
    assert got.value(b"content-encoding") == b"identity"
    assert b'"filter"' in got.body and got.whole
    assert (got.value(b"content-length") is not None) is (kind == "a JSON answer")


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
async def test_a_heartbeat_on_an_edited_stream_waits_for_no_event(rig: Rig, end: bytes) -> None:
    """A comment line without an empty line behind it was once held until an event ended."""
    one, peer = await rig.begin(post(call("initialize")))
    await peer.send(stream() + chunk(b": beat" + end))
    await one.hears(b": beat" + end)
    await peer.send(chunk(event(result(1, initialized()))) + LAST_CHUNK)
    got = await one.response()
    assert b'"filter"' in got.body
    assert got.whole


async def test_a_gzipped_event_stream_is_edited_or_whole(rig: Rig) -> None:
    one, peer = await rig.begin(post(call("initialize"), b"Accept-Encoding: gzip"))
    packed = gzip.compress(event(result(1, initialized()), b"id: 1"))
    await peer.send(stream(b"Content-Encoding: gzip") + chunk(packed[:20]) + chunk(packed[20:]) + LAST_CHUNK)
    got = await one.response()
    unpacked = gzip.decompress(got.body) if got.value(b"content-encoding") else got.body
    assert json.loads(unpacked.partition(b"data: ")[2])["result"]["capabilities"]["tasks"]["list"] == {"filter": FILTER}


@pytest.mark.parametrize("fields", [[b"gzip", b"gzip"], [b"gzip, gzip"], [b"identity", b"gzip"]], ids=str)
@pytest.mark.parametrize("streamed", [True, False])
async def test_what_is_encoded_twice_passes_as_it_came(rig: Rig, fields: list[bytes], streamed: bool) -> None:
    """Of two lines the first was read alone: one coding was taken off, and both lines dropped."""
    plain = event(result(1, initialized())) if streamed else dumps(result(1, initialized()))
    packed = gzip.compress(gzip.compress(plain))
    lines = [b"Content-Encoding: " + value for value in fields]
    one, peer = await rig.begin(post(call("initialize"), b"Accept-Encoding: gzip"))
    if streamed:
        await peer.send(stream(*lines) + chunk(packed) + LAST_CHUNK)
    else:
        await peer.send(response(packed, b"Content-Type: application/json", *lines))
    got = await one.response()
    assert got.whole
    assert got.body == packed
    assert got.values(b"content-encoding") == fields


async def test_an_encoded_answer_to_a_crawl_is_an_error_or_right(rig: Rig) -> None:
    async def encode(asked: Message, _peer: Peer) -> bytes:
        packed = gzip.compress(dumps(result(body(asked)["id"], page(TASKS))))
        return answer(packed, b"Content-Encoding: gzip")

    rig.serve(encode)
    got = await rig.ask(rig.post(filtered(1), b"Accept-Encoding: gzip"))
    assert got.status == 502 or len(final(got)["result"]["tasks"]) == 1
    assert rig.upstream.requests[0].value(b"accept-encoding") == b"identity"


async def test_unknown_capabilities_are_not_stripped(rig: Rig) -> None:
    """Every byte but the member that is put in, at any place of the object, odd numbers and white space included."""
    raw = (
        b'{ "result" : {"protocolVersion":"2025-11-25","capabilities":{"x-unknown":{"n":123456789012345678901234567890,'
        b'"f":1.0e+2,"u":"\\u2028\xe2\x80\xa8","l":[1.50,null]},"tasks":{"later":[],"list":{"x":1},"requests":{"tools":'
        b'{"call":{}}},"cancel":{}},"experimental":{}},"serverInfo":{"name":"\\/","version":""},"_meta":{"a":1E400}},'
        b'\t"id":1,"jsonrpc":"2.0","x-more":0 }\n'
    )
    got = await rig.exchange(post(call("initialize")), answer(raw, b"Mcp-Session-Id: 0f8c", b"X-Odd: 1"))
    assert [name for name, _ in got.fields] == [b"Content-Type", b"Mcp-Session-Id", b"X-Odd", b"Content-Length"]
    before, _, after = raw.partition(b'"list":{"x":1}')
    assert got.body.startswith(before) and got.body.endswith(after)
    put_in = json.loads(got.body[len(before) : -len(after)].partition(b":")[2])
    assert put_in == {"x": 1, "filter": FILTER}


@pytest.mark.parametrize(
    "capabilities",
    [{}, {"tools": {}}, {"tasks": {}}, {"tasks": {"cancel": {}}}, {"tasks": {"list": {"filter": {"status": True}}}}],
    ids=["none", "no tasks", "empty tasks", "no list", "filters natively"],
)
async def test_capabilities_of_other_servers_are_left_alone(rig: Rig, capabilities: Json) -> None:
    raw = dumps(result(1, {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": {}}))
    assert (await rig.exchange(post(call("initialize")), answer(raw))).body == raw


async def test_cursors_are_not_dropped_so_paging_ends(rig: Rig) -> None:
    """The upstream's cursors reach it as they came; the gateway's lead to the end."""
    session = Session(rig)
    pages = {None: page(TASKS[:1], "c/1?\u2028"), "c/1?\u2028": page(TASKS[1:])}
    rig.serve(Server(pages))
    first = final(await session.ask(call("tasks/list", 1)))
    assert first["result"] == pages[None]
    assert (
        final(await session.ask(call("tasks/list", 2, cursor=first["result"]["nextCursor"])))["result"]
        == pages["c/1?\u2028"]
    )
    assert [body(r)["params"].get("cursor") for r in rig.upstream.requests] == [None, "c/1?\u2028"]


async def test_filtered_pages_end(gateways: Gateways) -> None:
    async with rig_with(gateways, index={"page_size": 2}) as rig:
        rig.serve(Server({None: page([task(f"t-{n}") for n in range(7)])}))
        session, seen, params = Session(rig), [], {"status": ["working"]}
        for _ in range(4):
            listed = final(await session.ask(filtered(1, **params)))["result"]
            seen += [t["taskId"] for t in listed["tasks"]]
            params = {**params, "cursor": listed.get("nextCursor")}
        assert "nextCursor" not in listed
        assert sorted(seen) == [f"t-{n}" for n in range(7)]


async def test_ids_are_not_confused_between_conversations_that_all_use_1(rig: Rig) -> None:
    """Ten requests of one session at once, all with id 1 or "1", answered in another order: each gets its own."""
    session = Session(rig)
    asked = [session.request(call("tools/call", 1 if n % 2 else "1", name=f"tool-{n}")) for n in range(10)]
    clients = [await rig.client(one) for one in asked]
    await rig.upstream.request(10)
    for number, request_there in reversed(list(enumerate(rig.upstream.requests, 1))):
        message = body(request_there)
        peer = await rig.upstream.request(number)
        await peer.send(answer(result(message["id"], {"for": message["params"]["name"]})))
    for number, one in enumerate(clients):
        assert final(await one.response()) == result(1 if number % 2 else "1", {"for": f"tool-{number}"})


async def test_filtered_queries_with_the_same_id_each_get_their_own_answer(rig: Rig) -> None:
    rig.serve(Server({None: page(TASKS)}))
    sessions = [Session(rig), Session(rig, token="other")]
    asked = [s.ask(filtered(1, status=[status])) for s in sessions for status in ("working", "completed")]
    answers = [final(got) for got in await asyncio.gather(*asked)]
    assert [ids(a) for a in answers] == [["t-1"], ["t-2"]] * 2
    assert {a["id"] for a in answers} == {1}


@pytest.mark.parametrize("kind", [b"application/json", b"application/octet-stream"])
async def test_there_is_no_body_limit_that_nobody_set(process_rig: Rig, kind: bytes) -> None:
    """Beyond 1 MiB, and beyond what is inspected (4 MiB): up and down, whole, with the server's own status."""
    size = 6 << 20
    data = b'{"jsonrpc":"2.0","id":1,"method":"tasks/list","params":{"status":["working"],"pad":"%b"}}' % (b"x" * size)
    one, peer = await process_rig.begin(request(b"POST", fields=[b"Content-Type: " + kind], body=data))
    assert process_rig.upstream.requests[0].body == data
    await peer.send(response(data, b"Content-Type: " + kind))
    got = await one.response()
    assert (got.status, got.body) == (200, data)


async def test_mcp_headers_are_not_rewritten(rig: Rig) -> None:
    fields = [
        b"mcp-session-id: a-B_c",
        b"MCP-Protocol-Version: 2025-06-18",
        b"Mcp-Method: x",
        b"mcp-NAME: \xe9",
        b"Mcp-Param-Region: eu",
    ]
    for asked in (post(call("ping"), *fields), get(*fields), request(b"DELETE", fields=fields)):
        steps = [client(asked), arrives(), upstream(response(b"ok", *fields))]
        await compare(Case("Mcp-*", steps), rig.place.listening, rig.gateway.port)
