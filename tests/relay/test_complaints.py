"""What users of such proxies complain about; bodies that are edited; and criteria over real sockets (DESIGN 5).

Streams that are held, cut or split, a 405, 404, 401 or challenge lost, fields rewritten: the table of cases (cases.py).
"""

import asyncio
import gzip
import zlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

import pytest

from tests.launch import Gateways, eventually, listening
from tests.peer import Peer
from tests.relay.http1 import Message
from tests.relay.messages import Json, call, dumps, filtered, initialized, page, result, task
from tests.relay.rig import Place, Rig, Server, Session, body, final, ids, own, rig_at, rig_with, says
from tests.relay.wire import LAST_CHUNK, answer, chunk, chunked, event, post, request, response, stream

EVENTS = b"text/event-stream"
TASKS = [task("t-1"), task("t-2", "completed", "2026-01-02T00:00:00Z")]


# ---- streams ----


async def test_get_streams_are_not_timed_out(hasty_rig: Rig) -> None:
    """Every time limit of that gateway is a second or less; the stream is quiet for longer than all of them."""
    one, peer = await hasty_rig.begin(request(fields=[b"Accept: text/event-stream"]))
    await asyncio.sleep(2.2)
    await peer.send(stream())
    await one.hears(b"\r\n\r\n")
    await asyncio.sleep(2.2)
    assert (one.end, peer.end) == ("open", "open")
    await peer.send(chunk(event(b"late")))
    await one.hears(event(b"late"))


# ---- messages ----


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("missing", [1, 8])
async def test_a_gzip_body_that_stops_short_puts_all_in_doubt(gateways: Gateways, streamed: bool, missing: int) -> None:
    """What its end would have said is unknown. It was not noticed where the body is only looked at."""
    said = dumps(result(1, task("t-1", "completed")))
    packed = gzip.compress(event(said) if streamed else said)[:-missing]
    whole = stream(b"Content-Encoding: gzip") + chunk(packed) + LAST_CHUNK
    server = Server({None: page([task("t-1")])})

    async def short(asked: Message, peer: Peer) -> bytes | None:
        if body(asked)["method"] == "tasks/list":
            return await server(asked, peer)
        return whole if streamed else answer(packed, b"Content-Encoding: gzip")

    async with rig_with(gateways, short, index={"max_age": "60s"}) as rig:
        session = Session(rig)
        for _ in range(2):
            await session.ask(filtered())
        assert len(rig.asked("tasks/list")) == 1
        got = await rig.ask(post(call("tasks/get", taskId="t-1"), *session.fields(), b"Accept-Encoding: gzip"))
        assert got.whole and got.value(b"content-encoding") == b"gzip", "it passes as it came"
        await session.ask(filtered())
        assert len(rig.asked("tasks/list")) == 2


@pytest.mark.parametrize("resumed", [True, False])
@pytest.mark.parametrize("kind", [b"text/event-stream", b"application/json"])
async def test_identity_stays_where_an_event_may_be_edited(rig: Rig, kind: bytes, resumed: bool) -> None:
    """It was taken out as if the body had been decoded. The length goes from a stream: an event may grow."""
    resuming = request(fields=[b"Accept: text/event-stream", b"Last-Event-ID: 7"])
    said, is_stream = dumps(result(1, initialized())), kind == EVENTS
    fields = [b"Content-Type: " + kind, b"Content-Encoding: identity"]
    asked = resuming if resumed and is_stream else rig.post(call("initialize"))
    got = await rig.exchange(asked, response(event(said) if is_stream else said, *fields))
    assert got.value(b"content-encoding") == b"identity"
    assert b'"filter"' in got.body and got.whole
    assert (got.value(b"content-length") is None) is is_stream


@pytest.mark.parametrize("fields", [[b"gzip", b"gzip"], [b"gzip, gzip"], [b"identity", b"gzip"]], ids=str)
async def test_a_stream_that_is_encoded_twice_passes_as_it_came(rig: Rig, fields: list[bytes]) -> None:
    """Of two lines the first was read alone: one coding was taken off, and both lines dropped."""
    packed = gzip.compress(gzip.compress(event(result(1, initialized()))))
    said = stream(*[b"Content-Encoding: " + value for value in fields]) + chunk(packed) + LAST_CHUNK
    got = await rig.exchange(post(call("initialize"), b"Accept-Encoding: gzip"), said)
    assert (got.whole, got.body, got.values(b"content-encoding")) == (True, packed, fields)


# ---- a body that is edited, moved or decoded has no digest of what it was; every other body keeps its digests ----

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
PACKED: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "gzip of several members": lambda data: b"".join(map(gzip.compress, (data[:9], b"", data[9:]))),  # RFC 1952, 2.2
    "deflate": zlib.compress,
}
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
        fields, data = [*fields, b"Content-Encoding: " + framing.split()[0].encode()], PACKED[framing](data)
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


INITIALIZED = dumps(result(1, initialized()))
PLAIN = dumps(result(1, {"protocolVersion": "2025-11-25", "capabilities": {}}))
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
        got = await exchanged(rig, asked, framed(framing, event(data), STREAM, OTHERS))
        check(got, edited=True)
        assert (b'"filter"' in got.body) is (data is INITIALIZED)


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


# ---- criteria over real sockets: from parameters or a header (`Taskgate-Filter`, DESIGN 5.10) to pages ----


async def test_a_misspelt_criterion_is_named_in_the_servers_list_and_every_other_byte_stays(gateways: Gateways) -> None:
    """The list was whole, and said nothing. One without such a name passes byte for byte; so does an error."""
    said, form = b"", ""

    async def script(request: Message, _: Peer) -> bytes:
        whole = b'{"jsonrpc": "2.0", "id": %b, %b}' % (dumps(body(request)["id"]), said)
        return answer(whole) if form == "JSON" else stream() + chunk(b"data: %b\n\n" % whole) + LAST_CHUNK

    listed, ignored = b'"tasks": [{"taskId":"a", "status":"working"}]', b'"taskgate/ignored":["staus","created_after"]'
    misspelt = {"staus": "failed", "created_after": "2026-01-01T00:00:00Z", "limit": 5}
    told = (
        (b'"result": {%b}' % listed, b'"result": {"_meta":{%b},%b}' % (ignored, listed)),
        (b'"result": {%b, "_meta": {"a": 1}}' % listed, b'"result": {%b, "_meta": {%b,"a": 1}}' % (listed, ignored)),
        *(
            (same, same)
            for same in (b'"result": {"_meta": null, %b}' % listed, b'"error": {"code": -1, "message": "no"}')
        ),
    )
    async with own(gateways, script) as rig:
        session = Session(rig)
        for form in ("JSON", "stream"):
            for said, edited in told:
                for params, expected in ((misspelt, edited), ({}, said), ({"limit": 5, "state": "x"}, said)):
                    got = await session.ask(call("tasks/list", **params))
                    assert expected + b"}" in got.body and (form != "JSON" or got.body.endswith(expected + b"}"))
        lines = [line for line in rig.gateway.lines() if line["message"] == "a misspelt criterion"]
    assert {line["parameter"]: line["hint"].partition("?")[0] for line in lines} == {
        "staus": "did you mean status",
        "created_after": "did you mean createdAfter",
    }
    assert len(lines) == 2, "once a minute"


# ---- pages of large tasks: each answer has an end in bytes, and cursors lead on ----


async def test_many_large_tasks_whose_ttl_has_passed_are_asked_for_at_once(gateways: Gateways) -> None:
    """Each is a page of its own. Asked for page by page, 150 of them were an error: too many rounds."""
    now, ttl_s = datetime.now(UTC), 3.0
    tasks = [
        task(f"t-{n:03}", "completed", (now + timedelta(milliseconds=n)).isoformat(), ttl=ttl_s * 1000, more="x" * 1000)
        for n in range(150)
    ]
    index = {"page_bytes_max": "1KiB", "page_size": 1000, "max_age": "1h", "full_crawl_interval": "1h"}
    async with rig_with(gateways, Server({None: page(tasks)}, get=lambda _: None), index=index) as rig:
        session = Session(rig)
        first = final(await session.ask(filtered(1, order="asc")))["result"]
        assert (first["tasks"], first["_meta"]["taskgate/total"]) == (tasks[:1], 150)
        await eventually(lambda: datetime.now(UTC) > now + timedelta(seconds=ttl_s + 1), "all have expired")
        answer = final(await session.ask(filtered(1, order="asc")))["result"]
        assert (answer["tasks"], answer["_meta"]["taskgate/total"]) == ([], 0)


# ---- a filter for clients that can only set a header: `Taskgate-Filter` ----

STATUSES = ("working", "completed", "working", "failed")
BY_ID = {f"t-{n}": task(f"t-{n}", status, f"2026-01-01T00:00:0{n}Z") for n, status in enumerate(STATUSES)}
OURS: Json = {"list": {}, "requests": {"tools": {"call": {}}}}
LATER = {"_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}}


def serving(capability: Json = OURS) -> Server:
    """A server of four tasks on one page; it follows any cursor to an empty one."""
    pages = {None: page(BY_ID.values()), "t-1": page([])}
    return Server(pages, {"initialize": {**initialized(), "capabilities": {"tasks": capability}}}, BY_ID.get)


async def ask(rig: Rig, value: str, message: Json, session: Session | None = None, target: bytes = b"/mcp") -> Message:
    fields = (session or Session(rig)).fields()
    return await rig.ask(post(message, *fields, b"taskgate-filter: " + value.encode(), target=target))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("status=working,input_required&order=asc", ["t-0", "t-2"]),
        ("status=failed&status=completed", ["t-3", "t-1"]),
        ("createdAfter=2026-01-01T00:00:02Z", ["t-3", "t-2"]),
        ("taskIds=t%2D1", ["t-1"]),
        ("", ["t-3", "t-2", "t-1", "t-0"]),
    ],
)
async def test_a_header_filters_a_list_that_has_no_criteria(gateways: Gateways, value: str, shown: list[str]) -> None:
    async with rig_with(gateways, serving()) as rig:
        for params in ({}, {"cursor": None}):
            answered = final(await ask(rig, value, call("tasks/list", **params)))
            assert (ids(answered), answered["result"]["_meta"]["taskgate/filter"]) == (shown, value)
        assert not [one for one in rig.upstream.requests if one.value(b"taskgate-filter") is not None]


@pytest.mark.parametrize("knows", [True, False], ids=["initialize passed", "it did not"])
async def test_of_two_gateways_in_a_row_one_answers_what_the_header_asks_for(gateways: Gateways, knows: bool) -> None:
    """The outer one refused each list with the header, and said to leave it out."""
    with listening() as unused:
        async with (
            rig_with(gateways, serving()) as inner,
            gateways.in_process(inner.gateway.port) as gateway,
            rig_at(Place(gateway, unused)) as outer,
        ):
            session = Session(outer)
            if knows:
                said = final(await session.ask(call("initialize")))["result"]["capabilities"]["tasks"]["list"]
                assert "filter" in said
            answered = final(await ask(outer, "status=working", call("tasks/list"), session))
            assert ids(answered) == ["t-2", "t-0"]
            assert answered["result"]["_meta"]["taskgate/filter"] == "status=working"


async def test_criteria_and_cursors_of_the_gateway_go_before_the_header(gateways: Gateways) -> None:
    async with rig_with(gateways, serving(), index={"page_size": 1}) as rig:
        session = Session(rig)
        own = final(await ask(rig, "status=working", filtered(status=["failed"]), session))
        assert ids(own) == ["t-3"]
        assert "taskgate/filter" not in own["result"]["_meta"]
        shown, cursor = list[str](), None
        for _ in range(2):
            params: Json = {} if cursor is None else {"cursor": cursor}
            one = final(await ask(rig, "status=working", call("tasks/list", **params), session))
            shown, cursor = shown + ids(one), one["result"].get("nextCursor")
        assert (shown, cursor) == (["t-2", "t-0"], None)
        assert len(rig.asked("tasks/list")) == 1


@pytest.mark.parametrize(
    ("value", "params", "parameter"),
    [
        ("status=workin", {}, "Taskgate-Filter.status"),
        ("staus=working", {}, "Taskgate-Filter.staus"),
        ("status=%zz", {}, "Taskgate-Filter"),
        ("status=ж&status=\u2028", {}, "Taskgate-Filter.status"),
        ("order=asc&order=desc", {}, "Taskgate-Filter.order"),
        ("&" * 30_000, {}, "Taskgate-Filter"),
        ("status=working", {"cursor": "t-1"}, "cursor"),  # the server's own: it would show all
    ],
)
async def test_a_value_that_is_wrong_is_an_error_that_says_where(
    gateways: Gateways, value: str, params: Json, parameter: str
) -> None:
    async with rig_with(gateways, serving()) as rig:
        response = await ask(rig, value, call("tasks/list", **params))
        error = final(response)["error"]
        assert (response.status, error["code"]) == (200, -32602)
        assert parameter in [one["parameter"] for one in error["data"]["errors"]]


@pytest.mark.parametrize("where", ["another revision", "revision in params", "HTTP+SSE", "filters natively"])
async def test_where_the_gateway_answers_no_list_the_header_is_an_error(gateways: Gateways, where: str) -> None:
    """It would show all tasks, and nobody would know."""
    native = {**OURS, "list": {"filter": {}}}
    async with rig_with(gateways, serving(native if where == "filters natively" else OURS)) as rig:
        session = Session(rig)
        await session.ask(call("initialize"))
        fields = session.fields()[: 2 if where == "another revision" else 3]
        fields += [b"Mcp-Protocol-Version: 2026-07-28"] * (where == "another revision")
        accept = [b"Accept: application/json"] * (where == "HTTP+SSE")
        message = call("tasks/list", **(LATER if where == "revision in params" else {}))
        target = b"/messages?session_id=7" if where == "HTTP+SSE" else b"/mcp"
        asked = post(message, *fields, *accept, b"Taskgate-Filter: status=working", target=target)
        if accept:
            asked = asked.replace(b"Accept: application/json, text/event-stream\r\n", b"")
        response = await rig.ask(asked)
        status = 400 if where == "HTTP+SSE" else 200  # there nobody reads the body of a 200
        assert (response.status, final(response)["error"]["code"]) == (status, -32602)
        assert rig.asked("tasks/list") == []


async def test_the_header_is_no_part_of_who_asks_and_of_no_other_message(gateways: Gateways) -> None:
    async with rig_with(gateways, serving(), index={"max_age": "60s"}) as rig:
        session = Session(rig)
        for value in ("status=working", "status=failed", "order=asc"):
            assert ids(final(await ask(rig, value, call("tasks/list"), session)))
        assert len(rig.asked("tasks/list")) == 1
        got = final(await ask(rig, "status=workin", call("tasks/get", taskId="t-1"), session))
        assert got["result"] == BY_ID["t-1"]
        twice = post(call("tasks/list"), *session.fields(), *[b"Taskgate-Filter: status=working"] * 2)
        assert (await rig.ask(twice)).status == 400
