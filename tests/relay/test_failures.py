"""Each failure gets its clear error, and breaks nothing else (DESIGN 5.4, 5.8, 6)."""

import asyncio
import base64
import hashlib
import zlib
from collections.abc import AsyncIterator, Callable

import pytest

from gateway.query.criteria import CRITERIA_BYTES_MAX
from gateway.query.values import LIST_ITEMS_MAX
from tests.launch import Gateways, held_port, listening, port_of
from tests.peer import Peer
from tests.relay.http1 import Message
from tests.relay.messages import (
    Json,
    answer,
    call,
    dumps,
    fault,
    filtered,
    initialized,
    page,
    post,
    request,
    response,
    result,
    task,
)
from tests.relay.rig import Place, Rig, Script, Server, Session, body, failed, final, ids, rig_at, says

TASKS = [task(f"t-{n}", created=f"2026-01-01T00:00:{n:02}Z") for n in range(6)]
THREE_PAGES = {None: page(TASKS[:2], "t-1"), "t-1": page(TASKS[2:4], "t-3"), "t-3": page(TASKS[4:])}
ALL = [t["taskId"] for t in reversed(TASKS)]  # by lastUpdatedAt, desc (DESIGN 5.2)
IDS: dict[str, bytes] = {
    "a number": b"1",
    "a string of digits": b'"1"',
    "beyond 64 bits": b"123456789012345678901234567890",
    "an escape": b'"a\\u0062\\/c"',
    "a fraction": b"1.50",
}


def with_id(message: Json, raw_id: bytes) -> bytes:
    """A message with an id that Python would write another way."""
    return dumps({**message, "id": 0}).replace(b'"id":0', b'"id":' + raw_id)


# ---- the request is wrong ----

WRONG: dict[str, tuple[Json, list[str]]] = {
    "an unknown status as a string": ({"status": "sleeping"}, ["status"]),
    "an unknown status": ({"status": ["working", "sleeping"]}, ["status"]),
    "a status that is a number": ({"status": [1]}, ["status"]),
    "a timestamp without an offset": ({"createdAfter": "2026-01-01T00:00:00"}, ["createdAfter"]),
    "a timestamp that is a date": ({"lastUpdatedBefore": "2026-01-01"}, ["lastUpdatedBefore"]),
    "a timestamp that is a number": ({"createdBefore": 1767225600}, ["createdBefore"]),
    "a timestamp of no calendar": ({"lastUpdatedAfter": "2026-02-30T00:00:00Z"}, ["lastUpdatedAfter"]),
    "After later than Before": (
        {"createdAfter": "2026-01-02T00:00:00Z", "createdBefore": "2026-01-01T00:00:00Z"},
        ["createdAfter"],
    ),
    "an unknown orderBy": ({"orderBy": "name"}, ["orderBy"]),
    "an unknown order": ({"order": "up"}, ["order"]),
    "a method with spaces": ({"methods": ["not a method"]}, ["methods"]),
    "task ids that are numbers": ({"taskIds": [1]}, ["taskIds"]),
    "a nested fault": ({"filter": {"status": {"is": "working"}}}, ["status"]),
    "a filter that is no object": ({"filter": "working"}, ["filter"]),
    "the same criterion twice": ({"status": ["working"], "filter": {"status": ["failed"]}}, ["status"]),
    "an alias with another value": ({"methods": ["tools/call"], "requestTypes": ["prompts/get"]}, ["requestTypes"]),
    "a foreign cursor": ({"status": ["working"], "cursor": "t-1"}, ["cursor"]),
    "a cursor that is a number": ({"status": ["working"], "cursor": 7}, ["cursor"]),
    "three faults": ({"status": "x", "order": 1, "createdAfter": "now"}, ["status", "order", "createdAfter"]),
}


@pytest.mark.parametrize("name", WRONG)
async def test_wrong_parameters_get_invalid_params_that_name_them(process_rig: Rig, name: str) -> None:
    criteria, parameters = WRONG[name]
    process_rig.serve(Server({None: page([])}))
    answered = await process_rig.ask(process_rig.post(filtered(7, **criteria)))
    assert answered.status == 200
    told = final(answered)
    assert told["id"] == 7
    assert told["error"]["code"] == -32602
    assert len(told["error"]["data"]["errors"]) == len(parameters)
    for parameter, entry in zip(sorted(parameters), sorted(map(str, told["error"]["data"]["errors"])), strict=True):
        assert parameter in told["error"]["message"]
        assert any(p in entry for p in parameters), (parameter, entry)
    await process_rig.canary()
    (asked,) = process_rig.asked("tasks/list")
    assert asked["params"] == {}, "nothing of it reaches the upstream, which is asked whether it accepts the caller"


async def test_the_error_says_what_was_given_and_what_is_allowed(process_rig: Rig) -> None:
    process_rig.serve(Server({None: page([])}))
    told = final(await process_rig.ask(process_rig.post(filtered(status=["sleeping"]))))
    for text in (told["error"]["message"], str(told["error"]["data"]["errors"][0])):
        assert "sleeping" in text
        for allowed in ("working", "input_required", "completed", "failed", "cancelled"):
            assert allowed in text


async def test_a_cursor_of_ours_with_other_criteria_is_refused(process_rig: Rig) -> None:
    many = [task(f"t-{n:03}") for n in range(150)]
    process_rig.serve(Server({None: page(many)}))
    cursor = final(await process_rig.ask(process_rig.post(filtered(status=["working"]))))["result"]["nextCursor"]
    told = final(await process_rig.ask(process_rig.post(filtered(2, status=["failed"], cursor=cursor))))
    assert told["error"]["code"] == -32602
    assert "cursor" in told["error"]["message"]
    assert len(final(await process_rig.ask(process_rig.post(filtered(3, cursor=cursor))))["result"]["tasks"]) == 50


CHANGES: dict[str, Callable[[str], str]] = {
    "a character changed": lambda cursor: cursor[:30] + ("A" if cursor[30] != "A" else "B") + cursor[31:],
    "cut": lambda cursor: cursor[:-1],
    "cut in the middle": lambda cursor: cursor[: len(cursor) // 2],
    "lengthened": lambda cursor: cursor + "=",
    "a line end put in": lambda cursor: cursor[:30] + "\n" + cursor[30:],
    "of another version": lambda cursor: cursor.replace("taskgate4.", "taskgate1."),
}


@pytest.mark.parametrize("name", CHANGES)
async def test_a_cursor_of_ours_that_was_changed_is_refused_with_criteria_and_without(rig: Rig, name: str) -> None:
    """Relayed to the upstream, it once brought the whole list back."""
    rig.serve(Server({None: page([task(f"t-{n:03}") for n in range(150)])}))
    cursor = final(await rig.ask(rig.post(filtered(status=["working"]))))["result"]["nextCursor"]
    asked = len(rig.upstream.requests)
    changed = CHANGES[name](cursor)
    for message in (call("tasks/list", 2, cursor=changed), filtered(3, status=["working"], cursor=changed)):
        told = final(await rig.ask(rig.post(message)))
        assert told["error"]["code"] == -32602
        assert [e["parameter"] for e in told["error"]["data"]["errors"]] == ["cursor"]
    assert len(rig.upstream.requests) == asked
    assert len(final(await rig.ask(rig.post(call("tasks/list", 4, cursor=cursor))))["result"]["tasks"]) == 50


async def test_a_forged_cursor_of_a_huge_bound_is_refused(rig: Rig) -> None:
    """It was once a traceback and a cut connection."""
    said = [{"status": ["working"], "createdAfter": f"{10**40:x}", "orderBy": "createdAt"}, ["1", "a"]]
    body = "taskgate4." + base64.urlsafe_b64encode(zlib.compress(dumps(said))).decode()
    rig.serve(Server({None: page([])}))
    forged = f"{body}.{hashlib.blake2b(body.encode(), digest_size=8).hexdigest()}"
    one = await rig.client(rig.post(call("tasks/list", 1, cursor=forged)))
    told = final(await one.response())
    assert told["error"]["code"] == -32602


async def test_more_task_ids_than_are_looked_up_are_told_so(process_rig: Rig) -> None:
    ids = [f"t-{n}" for n in range(LIST_ITEMS_MAX + 1)]
    process_rig.serve(Server({None: page([])}))
    told = final(await process_rig.ask(process_rig.post(filtered(taskIds=ids))))
    assert told["error"]["code"] == -32602
    assert str(LIST_ITEMS_MAX) in told["error"]["data"]["errors"][0]["allowed"]


async def test_a_list_with_very_many_unknown_members_is_answered(rig: Rig) -> None:
    """They are no errors (DESIGN 5.4), and cost as much as their bytes."""
    rig.serve(Server({None: page(TASKS)}))
    unknown = {f"m{number:06}": 1 for number in range(200_000)}
    assert ids(final(await rig.ask(rig.post(filtered(1, status=["working"], **unknown))))) == ALL


async def test_an_initialize_result_too_large_to_edit_passes_as_it_came(rig: Rig) -> None:
    """Reading it once held up everybody. Nothing is advertised, and the log says so."""
    told = dumps(result(1, {**initialized(), "instructions": ["x"] * 300_000}))
    assert (await rig.exchange(rig.post(call("initialize")), answer(told))).body == told


async def test_criteria_that_are_too_long_are_told_so_at_the_first_request(rig: Rig) -> None:
    """A cursor repeats the criteria, and its length has a limit. Without a cursor the next page would be lost."""
    rig.serve(Server({None: page([task(f"t-{n:03}") for n in range(150)])}))
    longest = [f"t-{n:03}" for n in range(150)] + ["x" * (CRITERIA_BYTES_MAX - 1300)]
    first = final(await rig.ask(rig.post(filtered(1, taskIds=longest))))
    second = final(await rig.ask(rig.post(filtered(2, cursor=first["result"]["nextCursor"]))))
    assert len(first["result"]["tasks"]) + len(second["result"]["tasks"]) == 150
    told = final(await rig.ask(rig.post(filtered(3, taskIds=[*longest, "y" * 1300]))))
    assert told["error"]["code"] == -32602
    assert told["error"]["data"]["errors"][0]["parameter"] == "taskIds"


async def test_a_body_that_is_not_json_is_relayed_as_it_is(process_rig: Rig) -> None:
    raw = b'{"jsonrpc": "2.0", "id": 1, "method": "tasks/list", "params": {"status": ["working"'
    refusal = answer(fault(None, -32700, "Parse error"), status=b"400 Bad Request")
    one, peer = await process_rig.begin(process_rig.post(raw))
    assert process_rig.upstream.requests[0].body == raw
    await peer.send(refusal)
    answered = await one.response()
    assert answered.status == 400
    assert body(answered) == fault(None, -32700, "Parse error")


# ---- the upstream is not there, or slow ----


@pytest.fixture
async def deserted(gateways: Gateways) -> AsyncIterator[Rig]:
    with held_port() as nobody, listening() as unused:
        async with gateways.in_process(port_of(nobody)) as gateway, rig_at(Place(gateway, unused)) as rig:
            yield rig


@pytest.mark.parametrize("name", IDS)
@pytest.mark.parametrize("message", [call("ping"), filtered(), call("initialize")], ids=lambda m: str(m["method"]))
async def test_no_upstream_is_502_with_the_id(deserted: Rig, name: str, message: Json) -> None:
    answered = await deserted.ask(deserted.post(with_id(message, IDS[name])))
    assert answered.status == 502
    assert answered.value(b"content-type") == b"application/json"
    assert b'"id":' + IDS[name] + b"," in answered.body
    assert body(answered)["error"]["code"] == -32603


@pytest.mark.parametrize(
    "asked", [request(), request(b"DELETE"), request(b"PUT", body=b"x"), post(b"no JSON"), post([])]
)
async def test_no_upstream_is_502_where_there_is_no_id(deserted: Rig, asked: bytes) -> None:
    answered = await deserted.ask(asked)
    assert failed(answered) == (502, None, -32603)


async def test_no_upstream_and_a_notification_is_502(deserted: Rig) -> None:
    assert (await deserted.ask(deserted.post({"jsonrpc": "2.0", "method": "notifications/initialized"}))).status == 502


async def test_no_upstream_for_head_is_502_without_a_body(deserted: Rig) -> None:
    one = await deserted.client(request(b"HEAD"), request())
    assert (await one.response()).status == 502
    assert (await one.response(2)).status == 502


async def test_no_upstream_and_a_body_still_on_its_way(deserted: Rig) -> None:
    one = await deserted.client(request(b"PUT", fields=[b"Content-Type: text/plain", b"Content-Length: 100000"]) + b"x")
    assert (await one.response()).status == 502
    await one.send(b"x" * 99_999 + request())
    assert (await one.response(2)).status == 502


async def test_an_upstream_that_is_there_again_answers(gateways: Gateways) -> None:
    with held_port() as sock:
        async with gateways.in_process(port_of(sock)) as gateway, rig_at(Place(gateway, sock)) as rig:
            assert (await rig.ask(rig.post(filtered()))).status == 502
            rig.upstream.open()
            rig.serve(Server(THREE_PAGES))
            assert ids(final(await rig.ask(rig.post(filtered())))) == ALL


@pytest.mark.parametrize("name", IDS)
async def test_a_slow_upstream_is_504_with_the_id(hasty_rig: Rig, name: str) -> None:
    one, peer = await hasty_rig.begin(hasty_rig.post(with_id(call("ping"), IDS[name])))
    answered = await one.response()
    assert answered.status == 504
    assert b'"id":' + IDS[name] + b"," in answered.body
    assert body(answered)["error"]["code"] == -32603
    await peer.ends()


async def test_a_slow_upstream_after_a_streamed_body_is_504(hasty_rig: Rig) -> None:
    one = await hasty_rig.client(
        request(b"PUT", fields=[b"Content-Type: text/plain", b"Content-Length: 4"]), b"ab", b"cd"
    )
    await hasty_rig.upstream.request()
    assert (await one.response()).status == 504


async def test_a_slow_upload_is_not_a_slow_upstream(hasty_rig: Rig) -> None:
    """`response_timeout` is for the upstream; it has nothing to answer while the client still sends."""
    one = await hasty_rig.client(request(b"PUT", fields=[b"Content-Type: text/plain", b"Content-Length: 30"]))
    peer = await hasty_rig.upstream.head()
    for _ in range(30):
        await asyncio.sleep(0.08)
        await one.send(b"x")
    await hasty_rig.upstream.request()
    await peer.send(response())
    assert (await one.response()).status == 200


async def test_a_result_may_take_its_time(hasty_rig: Rig) -> None:
    """`tasks/result` waits until the task has ended; `response_timeout` is not for it (config.example.yaml)."""
    one, peer = await hasty_rig.begin(hasty_rig.post(call("tasks/result", taskId="t")))
    await asyncio.sleep(2.5)
    await peer.send(answer(result(1, {})))
    assert (await one.response()).status == 200


async def test_a_body_may_take_its_time_when_the_head_was_quick(hasty_rig: Rig) -> None:
    """As long as it goes on: more than a second without a byte is a stall here."""
    one, peer = await hasty_rig.begin(hasty_rig.post(call("tools/call")))
    await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n")
    for _ in range(10):
        await asyncio.sleep(0.25)
        await peer.send(b"1")
    assert (await one.response()).body == b"1" * 10


async def test_a_slow_crawl_is_504_with_the_id(hasty_rig: Rig) -> None:
    one, peer = await hasty_rig.begin(hasty_rig.post(filtered(7)))
    answered = await one.response()
    assert failed(answered) == (504, 7, -32603)
    await peer.ends()


# ---- the upstream fails in a crawl ----


class Flaky:
    """A server that fails at some of its requests: `fails` says at which, counted from 1; `how` does it."""

    def __init__(self, how: Callable[[Message, Peer], bytes | None], fails: Callable[[int], bool]) -> None:
        self._server = Server(THREE_PAGES)
        self._how = how
        self._fails = fails
        self.count = 0

    async def __call__(self, asked: Message, peer: Peer) -> bytes | None:
        self.count += 1
        return self._how(asked, peer) if self._fails(self.count) else await self._server(asked, peer)


def closes(_asked: Message, peer: Peer) -> None:
    peer.finish()


async def test_an_upstream_that_goes_away_in_a_crawl_is_502(gateways: Gateways) -> None:
    sock = listening()
    async with gateways.in_process(port_of(sock)) as gateway, rig_at(Place(gateway, sock)) as rig:
        one = await rig.client(rig.post(filtered(7)))
        await rig.upstream.request()
        await rig.upstream.refuse()
        answered = await one.response()
        assert failed(answered) == (502, 7, -32603)


CYCLES: dict[str, dict[str | None, Json]] = {
    "the first page's own cursor": {None: page(TASKS[:2], "a"), "a": page(TASKS[:2], "a")},
    "a cycle": {None: page(TASKS[:2], "a"), "a": page(TASKS[2:4], "b"), "b": page(TASKS[4:], "a")},
}


@pytest.mark.parametrize("name", CYCLES)
async def test_a_cursor_that_repeats_is_an_error_and_no_loop(rig: Rig, name: str) -> None:
    rig.serve(Server(CYCLES[name]))
    answered = await rig.ask(rig.post(filtered(7)))
    assert failed(answered) == (502, 7, -32603)
    assert "cursor" in body(answered)["error"]["message"]
    assert len(rig.upstream.requests) <= 2 * len(CYCLES[name])


async def test_pages_without_end_are_an_error(small_rig: Rig) -> None:
    """`index.pages_max` is 20 there."""

    async def endless(asked: Message, _peer: Peer) -> bytes:
        message = body(asked)
        number = int(message["params"].get("cursor", 0)) + 1
        return answer(result(message["id"], page([task(f"t-{number}")], str(number))))

    small_rig.serve(endless)
    answered = await small_rig.ask(small_rig.post(filtered(7)))
    assert failed(answered) == (502, 7, -32603)
    assert len(small_rig.upstream.requests) <= 21


async def test_an_invalid_cursor_in_the_middle_is_recovered_from(rig: Rig) -> None:
    """DESIGN 2 and 6: the task that a cursor names can expire in the middle of a crawl."""

    def expires(asked: Message, _peer: Peer) -> bytes:
        return answer(fault(body(asked)["id"], -32602, "Invalid cursor: t-3"))

    rig.serve(Flaky(expires, lambda count: count == 3))
    assert ids(final(await rig.ask(rig.post(filtered())))) == ALL


async def test_a_cursor_that_is_always_invalid_is_an_error(rig: Rig) -> None:
    rig.serve(Server({None: page(TASKS[:2], "gone")}))
    told = final(await rig.ask(rig.post(filtered(7))))
    assert told["id"] == 7
    assert told["error"]["code"] in (-32602, -32603)
    assert len(rig.upstream.requests) <= 50


async def test_tasks_that_appear_on_two_pages_are_listed_once(rig: Rig) -> None:
    rig.serve(Server({None: page(TASKS[:4], "a"), "a": page(TASKS[2:])}))
    told = final(await rig.ask(rig.post(filtered())))
    assert ids(told) == ALL
    assert told["result"]["_meta"]["taskgate/total"] == 6


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


def refusing(status: bytes, raw: Callable[[object], bytes], from_page: int = 1) -> Script:
    def how(asked: Message, _peer: Peer) -> bytes:
        return answer(raw(body(asked)["id"]), *CHALLENGE, b"Connection: close", status=status)

    return Flaky(how, lambda count: count >= from_page)


@pytest.mark.parametrize("status", REFUSALS, ids=lambda s: s[:3].decode())
@pytest.mark.parametrize("from_page", [1, 2])
async def test_a_refused_crawl_is_relayed_with_every_header(process_rig: Rig, status: bytes, from_page: int) -> None:
    def told(crawl_id: object) -> bytes:
        return dumps({"jsonrpc": "2.0", "error": {"code": -32001, "message": "no", "data": 10**30}, "id": crawl_id})

    process_rig.serve(refusing(status, told, from_page))
    answered = await process_rig.ask(process_rig.post(with_id(filtered(), b'"\\u0061"')))
    assert answered.start == b"HTTP/1.1 " + status
    kept = [b": ".join(f).rstrip() for f in answered.fields if f[0].lower() not in (b"content-length", b"connection")]
    assert kept == [b"Content-Type: application/json", *CHALLENGE]
    assert answered.body == told(0).replace(b'"id":0', b'"id":"\\u0061"')
    assert len(process_rig.asked("tasks/list")) == from_page


@pytest.mark.parametrize(
    "raw", [b'{"jsonrpc":"2.0","error":{"code":-32000,"message":"x"},"id":null}', b"nope", b"", b"[1"]
)
async def test_a_refusal_without_the_crawls_id_is_relayed_as_it_is(process_rig: Rig, raw: bytes) -> None:
    process_rig.serve(refusing(b"401 Unauthorized", lambda _: raw))
    answered = await process_rig.ask(process_rig.post(filtered(7)))
    assert answered.status == 401
    assert answered.body == raw


async def test_a_refusal_that_is_only_nearly_json_is_relayed_as_it_is(rig: Rig) -> None:
    said = list[bytes]()

    def told(crawl_id: object) -> bytes:
        said.append(b"\xef\xbb\xbf" + dumps(fault(crawl_id, -32001, "no")))
        return said[-1]

    rig.serve(refusing(b"401 Unauthorized", told))
    answered = await rig.ask(rig.post(filtered(7)))
    assert (answered.status, [answered.body]) == (401, said)


async def test_an_encoded_refusal_is_relayed_whole(process_rig: Rig) -> None:
    packed = bytes(range(256))
    told = response(packed, b"Content-Encoding: br", b"Content-Type: application/json", status=b"401 Unauthorized")
    process_rig.serve(says(told))
    answered = await process_rig.ask(process_rig.post(filtered(7)))
    assert (answered.status, answered.value(b"content-encoding"), answered.body) == (401, b"br", packed)


async def test_a_session_that_is_gone_is_404(rig: Rig) -> None:
    def told(crawl_id: object) -> bytes:
        return dumps(fault(crawl_id, -32001, "Session not found"))

    rig.serve(refusing(b"404 Not Found", told))
    answered = await Session(rig).ask(filtered(7))
    assert (answered.status, body(answered)) == (404, fault(7, -32001, "Session not found"))


@pytest.mark.parametrize("code", [-32601, -32602])
@pytest.mark.parametrize("name", IDS)
async def test_an_error_on_the_first_page_is_relayed_with_the_clients_id(
    process_rig: Rig, name: str, code: int
) -> None:
    error = b'{"code":%d,"message":"not found","data":{"n":123456789012345678901234567890,"t":"\\u2028"}}' % code

    async def script(asked: Message, _peer: Peer) -> bytes:
        return answer(b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (dumps(body(asked)["id"]), error))

    process_rig.serve(script)
    answered = await process_rig.ask(process_rig.post(with_id(filtered(), IDS[name])))
    assert answered.status == 200
    assert b'"id":' + IDS[name] in answered.body
    assert b'"error":' + error in answered.body


async def test_after_a_failure_the_next_query_asks_again(rig: Rig) -> None:
    failing = True
    rig.serve(Flaky(closes, lambda _: failing))
    session = Session(rig)
    assert (await session.ask(filtered(1))).status == 502
    failing = False
    assert ids(final(await session.ask(filtered(2)))) == ALL


async def test_a_failure_on_a_later_page_gives_no_half_a_list(rig: Rig) -> None:
    """And leaves none behind for the next query."""
    failing = True
    rig.serve(Flaky(closes, lambda count: failing and count > 1))
    session = Session(rig)
    assert (await session.ask(filtered(1))).status == 502
    failing = False
    assert ids(final(await session.ask(filtered(2)))) == ALL
