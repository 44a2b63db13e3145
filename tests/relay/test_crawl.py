"""The gateway's own requests: in whose name, at what cost, and what arrives on their streams (DESIGN 5.7, 6, 3.7)."""

import asyncio
import contextlib
import re
import sys
from types import FrameType
from typing import Any

import pytest

from gateway.relay import own_requests as channel
from gateway.relay.own_requests import OTHERS_MAX, READ_ON_MAX
from tests.launch import Gateways, eventually
from tests.own_ids import is_own
from tests.peer import Client, Peer
from tests.relay.http1 import Message
from tests.relay.messages import Json, call, dumps, fault, filtered, in_pages, notification, page, result, task
from tests.relay.rig import Rig, Script, Server, Session, answers, body, final, gives, ids, meant, own, rig_with, told
from tests.relay.wire import LAST_CHUNK, answer, chunk, event, post, request, response, stream

TASKS = [task(f"t-{n}", created=f"2026-01-01T00:00:{n:02}Z") for n in range(4)]
TWO_PAGES = {None: page(TASKS[:2], "t-1"), "t-1": page(TASKS[2:])}
ALL = ["t-3", "t-2", "t-1", "t-0"]
LOG = notification("notifications/message", level="info", data="\u2028 crawling")
ACCEPTED = response(b"", status=b"202 Accepted")
ASKS = call("elicitation/create", "srv-1", message="Which?", n=12345678901234567890123)


async def crawl_id(rig: Rig, number: int = 1) -> tuple[Peer, object]:
    peer = await rig.upstream.request(number)
    return peer, body(rig.upstream.requests[number - 1])["id"]


async def crawling(rig: Rig, query: Json, *fields: bytes) -> tuple[Client, Peer, object]:
    one, peer = await rig.begin(rig.post(query, *fields))
    return one, peer, body(rig.upstream.requests[-1])["id"]


class Flood:
    """Large messages on a crawler's stream, until it is `enough`, and then the response."""

    def __init__(self) -> None:
        self.sent = 0
        self.enough = asyncio.Event()

    async def pour(self, peer: Peer, said: Json) -> None:
        await peer.send(stream())
        while not (self.enough.is_set() or peer.closed):
            note = notification("notifications/message", level="info", data=f"n-{self.sent}." + "x" * 60_000)
            await peer.send(chunk(event(note)))
            self.sent += 1
        await peer.send(chunk(event(said)) + LAST_CHUNK)

    async def until_full(self) -> None:
        """Return once nothing more is sent: the connections of the clients and the gateway's buffers are full."""
        quiet, before = 0, -1
        while quiet < 3:
            quiet, before = (quiet + 1, before) if self.sent == before else (0, self.sent)
            await asyncio.sleep(0.3)


# ---- whose requests they are ----


async def test_a_crawl_request_is_the_clients_own(rig: Rig) -> None:
    """Target and every end-to-end field as the client's; the criteria stay here; the id is like no client's."""
    rig.serve(Server(TWO_PAGES))
    fields = [
        *(b"Authorization: Bearer t0ken", b"mcp-session-id: 0f8c", b"Mcp-Protocol-Version: 2025-11-25", b"Cookie: a=1"),
        *(b"Cookie: b=2", b"X-Tenant: \xe9", b"User-Agent: x/1", b"Connection: keep-alive, X-Hop", b"X-Hop: 1"),
        *(b"Expect: 100-continue", b"Accept-Encoding: gzip, br"),
    ]
    one = await rig.client(post(filtered(1, status=["working"], _meta={"a": 1}), *fields, target=b"/a%2Fb//c?x=1&"))
    assert ids(final(await one.response())) == ALL
    first, second = rig.upstream.requests
    for asked in (first, second):
        assert asked.start == b"POST /a%2Fb//c?x=1& HTTP/1.1"
        kept = [b": ".join(f) for f in asked.fields if f[0].lower() in (b"authorization", b"mcp-session-id", b"cookie")]
        assert kept == [b"Authorization: Bearer t0ken", b"mcp-session-id: 0f8c", b"Cookie: a=1", b"Cookie: b=2"]
        for name, value in (
            (b"X-Tenant", b"\xe9"), (b"Mcp-Protocol-Version", b"2025-11-25"), (b"Host", rig.place.authority),
            (b"Content-Type", b"application/json"), (b"Accept", b"application/json, text/event-stream"),
        ):  # fmt: skip
            assert asked.value(name) == value
        assert asked.values(b"accept-encoding") == [b"identity"]
        assert not any(map(asked.values, (b"x-hop", b"expect", b"transfer-encoding", b"te", b"upgrade")))
        message = body(asked)
        assert message["method"] == "tasks/list" and is_own(message["id"])
        assert not {"status", "filter", "_meta"} & message["params"].keys()
    assert body(first)["id"] != body(second)["id"]
    assert [body(asked)["params"].get("cursor") for asked in (first, second)] == [None, "t-1"]


PAGE = b"Origin: http://localhost:6274"
CORS = [b"Access-Control-Allow-Origin: http://localhost:6274", b"Access-Control-Expose-Headers: *", b"Vary: Origin"]
PREFLIGHT = request(b"OPTIONS", fields=[PAGE, b"Access-Control-Request-Method: POST"])


def cors_of(message: Message) -> list[bytes]:
    return [line for line in (b": ".join(f) for f in message.fields) if line in CORS]


async def test_streams_that_are_read_on_behind_their_response_are_counted_for_the_gateway(
    gateways: Gateways, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each refresh counted its own. Beyond the limit the connection is closed at once."""
    monkeypatch.setattr(channel, "_READ_ON_S", 3600.0)
    begun = list[Peer]()

    async def endless(asked: Message, peer: Peer) -> None:
        begun.append(peer)
        await peer.send(stream() + chunk(event(result(body(asked)["id"], page([])))))

    async with rig_with(gateways, endless) as rig:
        clients = [await rig.client(Session(rig).request(filtered())) for _ in range(READ_ON_MAX + 6)]
        for one in clients:
            assert (await one.response()).status == 200
        await eventually(lambda: sum(peer.end != "open" for peer in begun) >= 6, "the ends beyond the limit")
        assert sum(peer.end == "open" for peer in begun) == READ_ON_MAX


def _streamed(data: bytes, *fields: bytes) -> Script:
    said = stream(*fields) + b"%b" + LAST_CHUNK
    return answers(lambda asked: said % chunk(data + event(result(body(asked)["id"], page(TASKS)))))


@pytest.mark.parametrize("script", [_streamed(event(LOG), *CORS), gives(page(TASKS), *CORS)], ids=["streamed", "whole"])
async def test_a_browser_may_read_a_filtered_answer_as_it_may_the_servers(rig: Rig, script: Script) -> None:
    """What the upstream says of CORS is on the answer that the gateway gives in its place, from the index as well."""
    rig.serve(script)
    for number in (1, 2):
        assert cors_of(await rig.ask(rig.post(filtered(number), PAGE))) == CORS
    assert len(rig.asked("tasks/list")) == 1


@pytest.mark.parametrize("asked_before", ["preflight", "ping"])
async def test_a_browser_may_read_what_is_wrong(gateways: Gateways, asked_before: str) -> None:
    """Errors have the CORS fields that the upstream last gave that page: a -32602, and the 502 after it has gone."""
    async with rig_with(gateways, index={"max_age": 0}) as rig:
        asked = rig.post(call("ping"), PAGE) if asked_before == "ping" else PREFLIGHT
        await rig.exchange(asked, response(b"", *CORS, b"Access-Control-Max-Age: 5"))
        if asked_before == "preflight":  # a request that is proved gets no list: no answer to one with another proof
            assert cors_of(await rig.ask(rig.post(filtered(), PAGE, b"DPoP: 1"))) == CORS
        one, peer, own_id = await crawling(rig, filtered(7), PAGE)
        await peer.send(answer(result(own_id, page([])), *CORS))
        await one.response()  # from now on what is wrong is said without asking
        wrong = await rig.ask(rig.post(filtered(7, status=7), PAGE))
        assert (body(wrong)["error"]["code"], cors_of(wrong)) == (-32602, CORS)
        assert wrong.values(b"access-control-max-age") == []
        rig.serve(gives(page([])))
        assert cors_of(await rig.ask(rig.post(filtered(7, status=7), b"Origin: http://localhost:1"))) == []
        await rig.upstream.refuse()
        for message in (call("ping"), filtered(7)):
            broken = await rig.ask(rig.post(message, PAGE))
            assert (meant(broken), cors_of(broken)) == (502, CORS)


QUERIES: dict[str, Json] = {"a list": {}, "a task by its id": {"taskIds": ["t-0"]}}


@pytest.mark.parametrize(("asked", "leaves"), [("a list", False), ("a task by its id", True)])
async def test_a_refresh_whose_clients_do_not_read_holds_up_no_later_query(
    gateways: Gateways, asked: str, leaves: bool
) -> None:
    """With `max_age: 0` it comes too late to share the refresh. It waited for `index.crawl_timeout`.

    The slow client gets every message once, and the newer list.
    """
    async with rig_with(gateways, index={"max_age": 0, "full_crawl_interval": 0}) as rig:
        session, query = Session(rig), QUERIES[asked]
        slow = await session.client(filtered(1, **query))
        peer, own_id = await crawl_id(rig)
        slow.pause()
        flood = Flood()
        was, now = task("t-0"), {**task("t-0"), "lastUpdatedAt": "2026-02-01T00:00:00Z"}

        def answered(message_id: object, found: Json) -> Json:
            return result(message_id, found if "taskIds" in query else page([found]))

        answering = asyncio.create_task(flood.pour(peer, answered(own_id, was)))
        await flood.until_full()
        later = await session.client(filtered(2, **query))
        other, other_id = await crawl_id(rig, 2)
        await other.send(answer(answered(other_id, now)))
        assert final(await later.response())["result"]["tasks"] == [now]
        rig.serve(Server({None: page([now])}) if "taskIds" not in query else gives(now))
        flood.enough.set()
        if leaves:
            slow.reset()
            with contextlib.suppress(ConnectionError):
                await answering
        else:
            slow.resume()
            got = await slow.response()
            await answering
            assert sorted(map(int, re.findall(rb"n-(\d+)\.", got.body))) == list(range(flood.sent))
            assert told(got)[-1]["result"]["tasks"] == [now], "never backwards"


@pytest.mark.parametrize(
    ("asked_id", "params", "passes"),
    [
        (b'"a"', b'{"taskIds":["\\ud83d"]}', False),  # it went up unread, and the whole list came back
        (b'"a"', b'{"status":["completed"],"x":"\\ud83d"}', False),
        (b'"\\udc00"', b'{"status":["completed"]}', True),  # no answer could repeat its id
    ],
)
async def test_half_of_a_surrogate_pair_in_a_query(rig: Rig, asked_id: bytes, params: bytes, passes: bool) -> None:
    rig.serve(answers(lambda _: answer(result(1, {}))) if passes else Server(TWO_PAGES, get=lambda _: None))
    asked = b'{"jsonrpc":"2.0","id":%b,"method":"tasks/list","params":%b}' % (asked_id, params)
    got = await rig.ask(post(asked))
    assert passes == ([seen.body for seen in rig.upstream.requests] == [asked])
    assert passes or (final(got)["id"], ids(final(got))) == ("a", [])


# ---- what arrives on the crawler's streams (DESIGN 5.7) ----


async def test_messages_on_the_crawlers_stream_come_first_in_order_and_once(rig: Rig) -> None:
    one, peer, first_id = await crawling(rig, filtered(7))
    await peer.send(stream() + chunk(event(LOG, b"event: message", b"id: 1")))
    await one.hears(dumps(LOG))  # before there is any result
    await peer.send(chunk(event(ASKS, b"id: 2")))
    await one.hears(dumps(ASKS))
    answered = rig.post(result("srv-1", {"action": "accept"}))  # the client answers while its query waits
    assert (await rig.exchange(answered, ACCEPTED)).status == 202
    assert body(rig.upstream.requests[1]) == result("srv-1", {"action": "accept"})
    await peer.send(chunk(event(result(first_id, page(TASKS[:2], "t-1")))) + LAST_CHUNK)
    peer, second_id = await crawl_id(rig, 3)
    await peer.send(stream() + chunk(event(LOG) + event(result(second_id, page(TASKS[2:]))) + event(LOG)) + LAST_CHUNK)
    got = await one.response()
    assert got.whole
    assert got.status == 200
    assert got.value(b"content-type") == b"text/event-stream"
    *before, last = told(got)
    assert before == [LOG, ASKS, LOG, LOG], "what comes in one piece with the response, but behind it, was once dropped"
    assert dumps(ASKS) in got.body and dumps(LOG) in got.body, "byte for byte"
    assert (last["id"], ids(last)) == (7, ALL)


async def test_a_look_at_more_than_it_may_hold_becomes_a_crawl(
    gateways: Gateways, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it had read was held until its end, and counted nowhere."""
    monkeypatch.setattr("gateway.refresh.plan_execution._TAIL_BYTES_MAX", 1000)
    old = [task(f"o-{n}", "completed", f"2026-01-01T00:00:{n:02}Z") for n in range(12)]
    pages = in_pages(old)
    async with rig_with(gateways, Server(pages), index={"max_age": 0}) as rig:
        session = Session(rig)
        assert ids(final(await session.ask(filtered(status=["failed"])))) == []
        large = [task(f"t-{n}", "failed", f"2026-01-01T00:01:{n:02}Z", x="x" * 300) for n in range(7)]
        pages |= in_pages([*old, *large])
        before = len(rig.asked("tasks/list"))
        assert len(ids(final(await session.ask(filtered(status=["failed"]))))) == len(large)
        cursors = [asked["params"].get("cursor") for asked in rig.asked("tasks/list")[before:]]
        assert 0 < cursors.index(None) < 8, "a crawl, after a look that stopped"


async def test_a_response_to_the_gateway_that_comes_once_more_stays_here(rig: Rig) -> None:
    """With the first one, behind it, and on the stream of another request; so does one that nobody asked for."""
    one, peer, first_id = await crawling(rig, filtered(7))
    again = event(result(first_id, page(TASKS[:2], "t-1")))
    await peer.send(stream() + chunk(again + again + event(result(7, page([])))))
    second, second_id = await crawl_id(rig, 2)
    await peer.send(chunk(again + event(LOG)))
    await one.hears(dumps(LOG))
    await second.send(stream() + chunk(again + event(fault(first_id, -32603, "?"))))
    await second.send(chunk(event(result(second_id, page(TASKS[2:])))) + LAST_CHUNK)
    before, last = told(await one.response())
    assert (before, ids(last)) == (LOG, ALL)


async def test_an_answer_does_not_wait_for_the_end_of_the_crawlers_stream(rig: Rig) -> None:
    """Whoever never ends it is not listened to for ever. If it ends, its connection serves on."""
    for ends in (False, True):
        one, peer, first_id = await crawling(rig, filtered(7, createdAfter=f"2026-01-0{1 + ends}T00:00:00Z"))
        await peer.send(stream() + chunk(event(result(first_id, page(TASKS)))))
        assert len(ids(final(await one.response()))) == (0 if ends else 4)
        if not ends:
            assert await peer.ends() in ("fin", "rst")
    await peer.send(LAST_CHUNK)
    for number in range(3, 50):  # until the end has been read there
        await one.send(request())
        asked = await rig.upstream.request(number)
        await asked.send(response(b"", b"Connection: close"))
        await one.response(number - 1)
        if asked is peer:
            return
    raise AssertionError("another connection each time")


@pytest.mark.parametrize(
    ("data", "forwarded"),
    [
        (b": hello\n\nretry: 5\n\nid: 1\ndata:\n\n", False),
        (b"data:1\n\nid:\n\n: idle\n\n" * 1000, False),
        (b": beat\n\n\n" * (2 * OTHERS_MAX), False),
        (event([LOG, LOG]), True),
        (b"data:1\n\n" * (OTHERS_MAX + 2), None),
    ],
    ids=["comments, priming, retry", "no JSON-RPC", "comments and empty events", "a batch", "more than anybody sends"],
)
async def test_only_messages_are_forwarded(rig: Rig, data: bytes, forwarded: bool | None) -> None:
    """All else is the crawler's own affair; of a stream without end it is an error."""
    rig.serve(_streamed(data))
    got = await rig.ask(rig.post(filtered(7)))
    if forwarded is None:
        assert meant(got) == 502
        return
    assert got.value(b"content-type") == (b"text/event-stream" if forwarded else b"application/json")
    assert ids(final(got)) == ALL
    assert (dumps([LOG, LOG]) in got.body) is forwarded


@pytest.mark.parametrize("place", ["in_process"], indirect=True)
async def test_others_get_their_turn_while_a_crawlers_stream_is_read(rig: Rig) -> None:
    """All events of a piece were read in one: neighbours waited 0.9 s. Lines of Python are counted."""
    rig.serve(_streamed(b"data:1\n\n" * 8000))
    turns, before = [0], sys.gettrace()  # the lines of each turn of the loop

    def trace(frame: FrameType, kind: str, _arg: object) -> Any:
        if "gateway" not in frame.f_code.co_filename:
            return None
        turns[-1] += kind == "line"
        return trace

    async def tick() -> None:
        while True:
            await asyncio.sleep(0)
            turns.append(0)

    ticking = asyncio.create_task(tick())
    sys.settrace(trace)
    try:
        got = await rig.ask(rig.post(filtered(7)))
    finally:
        sys.settrace(before)
        ticking.cancel()
    assert ids(final(got)) == ALL
    assert 100 < max(turns) < 30_000


async def test_a_message_goes_to_one_of_two_queries_and_the_second_outlives_the_first(rig: Rig) -> None:
    """One refresh serves both. When the first client has left, the second gets the messages and the list."""
    session = Session(rig)
    first = await session.client(filtered(1))
    peer, first_id = await crawl_id(rig)
    second = await session.client(filtered(2))
    await _joined(rig, session)
    await peer.send(stream() + chunk(event(LOG)))
    await first.hears(dumps(LOG))
    first.reset()
    await rig.gateway.becomes("connections", 1)
    await peer.send(chunk(event(ASKS)))
    await second.hears(dumps(ASKS))
    await peer.send(chunk(event(result(first_id, page(TASKS[:2], "t-1")))) + LAST_CHUNK)
    peer, second_id = await crawl_id(rig, 3)
    await peer.send(answer(result(second_id, page(TASKS[2:]))))
    *before, last = told(await second.response())
    assert before == [ASKS], "none lost, none sent twice"
    assert (last["id"], ids(last)) == (2, ALL)
    assert len(rig.asked("tasks/list")) == 2, "and no second crawl"


@pytest.mark.parametrize("joins_first", [True, False])
async def test_a_client_that_reads_nothing_holds_up_nobody(gateways: Gateways, joins_first: bool) -> None:
    """Where all clients were full, a stream waited for the first, though another began to read again, or came."""
    query = {"taskIds": ["t-0", "t-1"]}
    async with rig_with(gateways, index={"max_age": "60s"}) as rig:
        session, flood = Session(rig), Flood()
        slow = await session.client(filtered(1, **query))
        asked = [await crawl_id(rig, number) for number in (1, 2)]
        slow.pause()
        if joins_first:
            other = await session.client(filtered(2, **query))
            other.pause()
            await _joined(rig, session)
        sending = []
        for (peer, asked_id), request in zip(asked, rig.upstream.requests[:2], strict=True):
            found = TASKS[int(body(request)["params"]["taskId"][-1])]
            sending.append(asyncio.create_task(flood.pour(peer, result(asked_id, found))))
        await flood.until_full()
        flood.enough.set()
        if not joins_first:
            other = await session.client(filtered(2, **query))
        other.resume()
        assert ids(told(await other.response())[-1]) == ["t-1", "t-0"]
        await asyncio.gather(*sending)


async def _joined(rig: Rig, session: Session) -> None:
    """What was sent before has been taken in: a request of the same session has gone through since."""
    one, _ = await rig.answered(session.request(call("ping", "joined")), answer(result("joined", {})))
    await one.close()


# ---- streams that close and go on ----


async def test_a_stream_that_asks_to_be_polled_is(rig: Rig) -> None:
    """DESIGN 6: closes after its priming event, `retry`, then GET with `Last-Event-ID`; so is one that breaks."""
    session = Session(rig)
    one = await rig.client(post(filtered(7), *session.fields(), b"Mcp-Method: tasks/list", b"Idempotency-Key: 1"))
    peer, first_id = await crawl_id(rig)
    await peer.send(stream(b"Mcp-Session-Id: x") + chunk(b"id: 41_a\nretry: 20\ndata:\n\n") + LAST_CHUNK)
    peer = await rig.upstream.request(2)
    asked = rig.upstream.requests[1]
    assert asked.start == b"GET /mcp HTTP/1.1"
    assert asked.value(b"last-event-id") == b"41_a"
    assert asked.value(b"accept") == b"text/event-stream"
    assert asked.value(b"mcp-session-id") == session.session_id.encode()
    assert not any(map(asked.values, (b"mcp-method", b"idempotency-key", b"content-type", b"content-length")))
    await peer.send(stream() + chunk(event(LOG, b"id: 42", b"retry: 20")))
    await one.hears(dumps(LOG))
    peer.reset()
    peer = await rig.upstream.request(3)
    assert rig.upstream.requests[2].value(b"last-event-id") == b"42"
    await peer.send(stream() + chunk(event(result(first_id, page(TASKS)), b"id: 43")) + LAST_CHUNK)
    before, last = told(await one.response())
    assert before == LOG
    assert ids(last) == ALL
    assert len(rig.asked("tasks/list")) == 1


# ---- who waits for what ----


async def test_a_query_does_not_wait_for_what_only_others_need(gateways: Gateways) -> None:
    """Two tasks are asked for, and one is answered. A query that names only that one asks for it, and has it."""
    async with rig_with(gateways, index={"max_age": "0s"}) as rig:
        both = await rig.client(rig.post(filtered(taskIds=["t-1", "t-2"])))
        asked = {}
        for number in (1, 2):
            peer, asked_id = await crawl_id(rig, number)
            asked[body(rig.upstream.requests[number - 1])["params"]["taskId"]] = peer, asked_id
        peer, asked_id = asked["t-1"]
        await peer.send(answer(result(asked_id, task("t-1"))))
        await rig.exchange(rig.post(call("ping")), answer(result(1, {})))  # so it has come
        one = await rig.client(rig.post(filtered(taskIds=["t-1"])))
        peer, asked_id = await crawl_id(rig, 4)
        await peer.send(answer(result(asked_id, task("t-1"))))
        assert ids(final(await one.response())) == ["t-1"]
        peer, asked_id = asked["t-2"]
        await peer.send(answer(result(asked_id, task("t-2"))))
        await both.close()


async def test_progress_never_goes_back(gateways: Gateways) -> None:
    """Basic protocol, Progress: "The progress value MUST increase with each notification". A crawl may begin anew."""
    pages = {None: page(TASKS[:2], "t-1"), "t-1": page(TASKS[2:], "t-3"), "t-3": page([task("t-5")])}
    server = Server(pages)

    async def slowly(asked: Message, peer: Peer) -> bytes | None:
        await asyncio.sleep(0.25)  # longer than progress is not told again
        if len(rig.asked("tasks/list")) == 3:
            return answer(fault(body(asked)["id"], -32602, "this cursor has expired"))
        return await server(asked, peer)

    async with rig_with(gateways, slowly) as rig:
        said = told(await rig.ask(rig.post(filtered(order="desc", _meta={"progressToken": "p"}))))
    progress = [message["params"]["progress"] for message in said[:-1]]
    assert progress == sorted(set(progress)) and progress[-1] == 4
    assert len(said[-1]["result"]["tasks"]) == 5
    assert len(rig.asked("tasks/list")) > len(pages)


async def test_without_an_age_each_query_asks_however_soon_it_follows(gateways: Gateways) -> None:
    """In one millisecond of uvloop's clock an answer was as new as the next query: it was given again."""
    async with own(gateways, gives(page([task("t-0")])), index={"max_age": "0s"}) as rig:
        queries = [rig.post(filtered(number)) for number in range(8)]
        for count in range(1, 76):
            client = await rig.client(*queries)
            assert ids(final(await client.response(len(queries)))) == ["t-0"]
            assert len(rig.upstream.requests) == count * len(queries)


@pytest.mark.parametrize(("accept", "more"), [(b"*/*", 0), (b"text/plain, */*;q=0.1", 0), (b"application/json", 1)])
async def test_what_a_client_accepts_costs_one_request_at_most(gateways: Gateways, accept: bytes, more: int) -> None:
    """curl's `Accept: */*` accepts both types (RFC 9110, 12.5.1). The server was asked as the client does each time."""
    async with rig_with(gateways, gives(page(TASKS)), index={"max_age": "1h"}) as rig:
        asked = rig.post(filtered(7)).replace(b"application/json, text/event-stream", accept)
        earlier = rig.post(filtered(7), b"Mcp-Protocol-Version: 2025-06-18")
        for each, count in ((asked, 1 + more), (asked, 1 + more), (earlier, 2 + more), (earlier, 2 + more)):
            assert ids(final(await rig.ask(each))) == ALL
            assert len(rig.asked("tasks/list")) == count


async def test_what_comes_on_the_stream_of_a_request_like_the_clients_is_observed(gateways: Gateways) -> None:
    """Before a query of an earlier revision the server is asked as the client asks. What it told marked nothing."""
    tasks = [task("t-1")]

    async def server(asked: Message, _: Peer) -> bytes:
        said = [result(body(asked)["id"], page(tasks))]
        if asked.value(b"mcp-protocol-version") and tasks[0]["status"] == "working":
            tasks[0] = task("t-1", "completed")
            said.insert(0, notification("notifications/tasks/status", **tasks[0]))
        return stream() + b"".join(chunk(event(each)) for each in said) + LAST_CHUNK

    async with rig_with(gateways, server, index={"max_age": "1h"}) as rig:
        assert ids(final(await rig.ask(rig.post(filtered(7))))) == ["t-1"]
        earlier = rig.post(filtered(7, status="completed"), b"Mcp-Protocol-Version: 2025-06-18")
        assert ids(final(await rig.ask(earlier))) == ["t-1"]
