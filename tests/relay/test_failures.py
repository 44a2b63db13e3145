"""Each failure gets its clear error, and breaks nothing else (DESIGN 5.4, 5.8, 6); so does a fault of the gateway."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
from msgspec.structs import replace

from gateway.config import Config, GuardLimits
from gateway.transport.body_stream import Body
from tests.launch import Gateways, app_before, changes, held_port, listening, port_of
from tests.peer import Peer
from tests.relay.http1 import Message
from tests.relay.messages import Json, call, dumps, filtered, notification, page, result, task
from tests.relay.rig import Place, Rig, Server, answers, body, failed, final, gives, meant, rig_at
from tests.relay.wire import LAST_CHUNK, answer, chunk, event, post, request, response, stream

TASKS = [task(f"t-{n}", created=f"2026-01-01T00:00:{n:02}Z") for n in range(6)]
THREE_PAGES = {None: page(TASKS[:2], "t-1"), "t-1": page(TASKS[2:4], "t-3"), "t-3": page(TASKS[4:])}
IDS: dict[str, bytes] = {
    "a number": b"1", "a string of digits": b'"1"', "beyond 64 bits": b"123456789012345678901234567890",
    "an escape": b'"a\\u0062\\/c"', "a fraction": b"1.50",
}  # fmt: skip


def with_id(message: Json, raw_id: bytes) -> bytes:
    """A message with an id that Python would write another way."""
    return dumps({**message, "id": 0}).replace(b'"id":0', b'"id":' + raw_id)


# ---- the upstream is not there, or slow ----


async def test_a_cursor_of_ours_with_other_criteria_is_refused(process_rig: Rig) -> None:
    many = [task(f"t-{n:03}") for n in range(150)]
    process_rig.serve(Server({None: page(many)}))
    cursor = final(await process_rig.ask(process_rig.post(filtered(status=["working"]))))["result"]["nextCursor"]
    told = final(await process_rig.ask(process_rig.post(filtered(2, status=["failed"], cursor=cursor))))
    assert told["error"]["code"] == -32602
    assert "cursor" in told["error"]["message"]
    assert len(final(await process_rig.ask(process_rig.post(filtered(3, cursor=cursor))))["result"]["tasks"]) == 50


@pytest.fixture
async def deserted(gateways: Gateways) -> AsyncIterator[Rig]:
    with held_port() as nobody, listening() as unused:
        async with gateways.in_process(port_of(nobody)) as gateway, rig_at(Place(gateway, unused)) as rig:
            yield rig


NO_IDS = [request(), request(b"DELETE"), request(b"PUT", body=b"x"), *map(post, (b"no JSON", [], notification("x")))]


@pytest.mark.parametrize(
    ("asked", "asked_id"),
    [
        *((post(with_id(m, i)), i) for m in (call("ping"), filtered(), call("initialize")) for i in IDS.values()),
        *((asked, b"null") for asked in NO_IDS),
    ],
)
async def test_no_upstream_is_502_with_the_id(deserted: Rig, asked: bytes, asked_id: bytes) -> None:
    answered = await deserted.ask(asked)
    assert (meant(answered), answered.value(b"content-type")) == (502, b"application/json")
    assert answered.status == (200 if b'"tasks/list"' in asked and asked_id != b"null" else 502), "relayed: 502"
    assert b'"id":' + asked_id + b"," in answered.body
    assert body(answered)["error"]["code"] == -32603


@pytest.mark.parametrize(
    ("asked", "rest"),
    [
        (request(b"HEAD"), b""),
        (request(b"PUT", fields=[b"Content-Type: text/plain", b"Content-Length: 100000"]) + b"x", b"x" * 99_999),
    ],
    ids=["HEAD", "a body still on its way"],
)
async def test_no_upstream_is_502_and_the_next_request_is_answered_too(
    deserted: Rig, asked: bytes, rest: bytes
) -> None:
    one = await deserted.client(asked)
    assert (await one.response()).status == 502
    await one.send(rest + request())
    assert (await one.response(2)).status == 502


async def test_a_slow_upload_is_not_a_slow_upstream(hasty_rig: Rig) -> None:
    """`response_timeout` is for the upstream; it has nothing to answer while the client still sends."""
    one = await hasty_rig.client(request(b"PUT", fields=[b"Content-Type: text/plain", b"Content-Length: 30"]))
    peer = await hasty_rig.upstream.head()
    for _ in range(30):
        await asyncio.sleep(0.05)
        await one.send(b"x")
    await hasty_rig.upstream.request()
    assert (await one.response()).status == 504, "but it is one once all has come"
    await peer.ends()


async def test_a_result_and_a_body_may_take_their_time(hasty_rig: Rig) -> None:
    """`tasks/result` waits until the task has ended; of a body more than a second without a byte is a stall here."""
    result_client, result_peer = await hasty_rig.begin(hasty_rig.post(call("tasks/result", taskId="t")))
    one, peer = await hasty_rig.begin(hasty_rig.post(call("tools/call")))
    await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n")
    for _ in range(10):
        await asyncio.sleep(0.25)
        await peer.send(b"1")
    assert (await one.response()).body == b"1" * 10
    await result_peer.send(answer(result(1, {})))
    assert (await result_client.response()).status == 200


# ---- the upstream fails in a crawl ----


ENDLESS: dict[str, dict[str | None, Json]] = {
    "the first page's own cursor": {None: page(TASKS[:2], "a"), "a": page(TASKS[:2], "a")},
    "a cycle": {None: page(TASKS[:2], "a"), "a": page(TASKS[2:4], "b"), "b": page(TASKS[4:], "a")},
    "more than index.pages_max": {str(n or "") or None: page([task(f"t-{n}")], str(n + 1)) for n in range(100)},
    "far too long": {None: page(TASKS[:2], "c" * 100_000)},  # all cursors of a crawl are kept
}


@pytest.mark.parametrize("name", ENDLESS)
async def test_a_list_whose_cursors_do_not_end_is_an_error_and_no_loop(small_rig: Rig, name: str) -> None:
    small_rig.serve(Server(ENDLESS[name]))
    answered = await small_rig.ask(small_rig.post(filtered(7)))
    assert (meant(answered), failed(answered)) == (502, (200, 7, -32603))
    assert len(small_rig.upstream.requests) <= (21 if "pages_max" in name else 6)


# ---- the upstream says no (DESIGN 5.8) ----

CHALLENGE = [
    b'WWW-Authenticate: Bearer realm="mcp", error="invalid_token", scope="tasks:read  x",'
    b' resource_metadata="http://127.0.0.1:1/.well-known/oauth-protected-resource/mcp"',
    b'www-authenticate: Basic realm="caf\xe9"',
    b"Retry-After: 120",
    b"X-Odd:",
    b"Set-Cookie: a=1",
    b"Set-Cookie: b=2",
]
REFUSALS = [b"400 Bad Request", b"401 Unauthorized", b"403 Forbidden", b"404 Not Found", b"429 Slow Down", b"503 \xe9"]


@pytest.mark.parametrize("status", REFUSALS, ids=lambda s: s[:3].decode())
@pytest.mark.parametrize("from_page", [1, 2])
async def test_a_refused_crawl_is_relayed_with_every_header(process_rig: Rig, status: bytes, from_page: int) -> None:
    def told(crawl_id: object) -> bytes:
        return dumps({"jsonrpc": "2.0", "error": {"code": -32001, "message": "no", "data": 10**30}, "id": crawl_id})

    async def script(asked: Message, peer: Peer) -> bytes | None:
        if len(process_rig.asked("tasks/list")) < from_page:
            return await Server(THREE_PAGES)(asked, peer)
        return answer(told(body(asked)["id"]), *CHALLENGE, b"Connection: close", status=status)

    process_rig.serve(script)
    answered = await process_rig.ask(process_rig.post(with_id(filtered(), b'"\\u0061"')))
    assert answered.start == b"HTTP/1.1 " + status
    kept = [b": ".join(f).rstrip() for f in answered.fields if f[0].lower() not in (b"content-length", b"connection")]
    assert kept == [b"Content-Type: application/json", *CHALLENGE]
    assert answered.body == told(0).replace(b'"id":0', b'"id":"\\u0061"')
    is_anew = from_page == 2 and status[:3] not in (b"429", b"503")  # what refuses a cursor may refuse it alone
    assert len(process_rig.asked("tasks/list")) == from_page + is_anew


@pytest.mark.parametrize(
    "raw",
    [
        *(b'{"jsonrpc":"2.0","error":{"code":-32000,"message":"x"},"id":null}', b"nope", b"", b"[1"),
        b'\xef\xbb\xbf{"jsonrpc":"2.0","error":{"code":-32001,"message":"no"},"id":%b}',  # it is only nearly JSON
        bytes(range(256)),  # in an encoding that nobody here can read
    ],
)
async def test_a_refusal_whose_id_is_not_the_crawls_or_cannot_be_changed_is_relayed_as_it_is(
    process_rig: Rig, raw: bytes
) -> None:
    said, encoded = list[bytes](), [b"Content-Encoding: br"] * (len(raw) == 256)

    async def script(asked: Message, _peer: Peer) -> bytes:
        said.append(raw.replace(b"%b", dumps(body(asked)["id"])))
        return answer(said[-1], *encoded, status=b"401 Unauthorized")

    process_rig.serve(script)
    answered = await process_rig.ask(process_rig.post(filtered(7)))
    assert (answered.status, [answered.body], answered.value(b"content-encoding") is None) == (401, said, not encoded)


@pytest.mark.parametrize("code", [-32601, -32602])
@pytest.mark.parametrize("asked_id", IDS.values(), ids=IDS)
async def test_an_error_on_the_first_page_is_relayed_with_the_clients_id(
    process_rig: Rig, asked_id: bytes, code: int
) -> None:
    error = b'{"code":%d,"message":"not found","data":{"n":123456789012345678901234567890,"t":"\\u2028"}}' % code
    said = b'{"jsonrpc":"2.0","id":%b,"error":%b}'
    process_rig.serve(answers(lambda asked: answer(said % (dumps(body(asked)["id"]), error))))
    answered = await process_rig.ask(process_rig.post(with_id(filtered(), asked_id)))
    assert answered.status == 200
    assert b'"id":' + asked_id in answered.body and b'"error":' + error in answered.body


# ---- a fault of the gateway itself, brought about by a configuration that no file can have ----

NO_INSTANT_S: Final = 1e13  # so long ago that no date can say it
NAMED: Final = filtered(7, taskIds=["t-1"])


def fails(good: Config) -> Config:
    """A configuration with which every relayed request fails, and every query for ids."""
    upstream = replace(good.upstreams[0], response_timeout="soon")
    return replace(good, upstreams=(upstream,), index=replace(good.index, max_age=NO_INSTANT_S))


@asynccontextmanager
async def faulty(changed: Callable[[Config], Config] = fails) -> AsyncIterator[Rig]:
    with listening() as sock:
        async with app_before(port_of(sock), {}, changed) as gateway, rig_at(Place(gateway, sock)) as rig:
            yield rig


def check_error(message: Any) -> None:
    assert (message["id"], message["error"]["code"]) == (7, -32603)
    assert message["error"]["message"] == "Internal Server Error: a fault of taskgate itself; its log says more"


async def check_told(rig: Rig, before: Any, caplog: pytest.LogCaptureFixture, exception: type[Exception]) -> None:
    """The fault is counted and logged, with its traceback; nothing says that the client left."""
    after = await rig.gateway.metrics()
    assert changes(before, after, "taskgate_failures_total", kind="Internal", upstream="up") == 1
    assert changes(before, after, "taskgate_requests_total", status="499") == 0
    [told] = [r for r in caplog.records if r.message == "a request could not be handled"]
    assert told.exc_info is not None and told.exc_info[0] is exception
    [failed] = [r for r in caplog.records if r.message == "failed"]
    assert failed.failure == "Internal"  # type: ignore[attr-defined]


@pytest.mark.parametrize(("message", "exception"), [(NAMED, ValueError), (call("ping", 7), TypeError)])
async def test_a_request_that_meets_a_fault_of_ours_gets_an_error(
    caplog: pytest.LogCaptureFixture, message: Any, exception: type[Exception]
) -> None:
    """It got an empty reply, and the log said that the client had left."""
    caplog.set_level("INFO", "taskgate")
    async with faulty() as rig:
        rig.serve(gives(task("t-1")))
        before = await rig.gateway.metrics()
        one = await rig.client(rig.post(message))
        got = await one.response()
        assert (got.status, meant(got), got.whole) == (200, 500, True)
        check_error(body(got))
        await check_told(rig, before, caplog, exception)
        await one.send(rig.post(call("ping", 8)))
        assert meant(await one.response(2)) == 500, "the connection serves on"


async def test_a_query_whose_answer_is_a_stream_already_gets_the_error_on_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "taskgate")
    async with faulty() as rig:
        before = await rig.gateway.metrics()
        one, peer = await rig.begin(rig.post(NAMED))
        asked = body(rig.upstream.requests[0])["id"]
        told = event(notification("notifications/message", level="info", data="first"))
        await peer.send(stream() + chunk(told + event(result(asked, task("t-1")))) + LAST_CHUNK)
        got = await one.response()
        assert (got.status, got.whole, b'"first"' in got.body) == (200, True, True)
        check_error(final(got))
        await check_told(rig, before, caplog, ValueError)


TASK = call("tools/call", 7, name="work", task={"ttl": 9_000_000}, arguments={"text": "x" * 500})
BODIES: dict[str, bytes] = {
    "a message": dumps(TASK),
    "a large message": dumps({**TASK, "more": "x" * 100_000}),
    "no message": b"x" * 500,
}


@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("kind", BODIES)
async def test_a_body_that_lost_bytes_inside_the_gateway_never_goes_up(
    monkeypatch: pytest.MonkeyPatch, kind: str, guarded: bool
) -> None:
    """The server would take the missing bytes from the next client's request (DESIGN 3.5)."""
    feed = Body.feed
    monkeypatch.setattr(Body, "feed", lambda body, piece: feed(body, piece[:-1]))

    def caps(good: Config) -> Config:
        return replace(good, guards=GuardLimits(task_ttl_max=60.0)) if guarded else good

    media = b"text/plain" if kind == "no message" else b"application/json"
    async with faulty(caps) as rig:
        length = b"Content-Length: %d" % len(BODIES[kind])
        asked = request(b"POST", fields=[b"Content-Type: " + media, length]) + BODIES[kind]
        got = await rig.ask(asked)
        assert (got.status, got.whole) == (502, True)
        assert [bytes(peer.received) for peer in rig.upstream.connections if peer.received] == []
        monkeypatch.undo()
        rig.serve(answers(lambda asked: response(asked.body)))
        assert (await rig.ask(asked)).status == 200
