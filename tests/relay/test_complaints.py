"""What users of such proxies complain about, by name. Each complaint is proved once, here or where many like it are:

    streams buffered until their end, large or odd lines of them cut or split, notifications dropped, a 405, 404 or 401
    and its challenge lost, DELETE not forwarded, `Mcp-*` fields rewritten, a Host that the server refuses, a half-open
    GET that pins its session, capabilities of other servers edited: the table of comparisons (cases.py)
    the 401 and 404 of a filtered list: test_failures.py; the door: tests/attack/requests/host.py, test_door.py

The half-open GET here is one whose client has sent FIN or RST: no socket shows a client that vanishes without either in
a test's time.
"""

import asyncio
import gzip
import itertools

import pytest

from tests.launch import Gateways, eventually
from tests.peer import Peer
from tests.relay.http1 import Message
from tests.relay.messages import Json, call, dumps, fault, filtered, initialized, notification, page, result, task
from tests.relay.rig import Rig, Server, Session, body, final, rig_with, told
from tests.relay.wire import LAST_CHUNK, answer, chunk, event, post, request, response, stream

EVENTS = b"text/event-stream"
TASKS = [task("t-1"), task("t-2", "completed", "2026-01-02T00:00:00Z")]
FILTER: Json = {
    "methods": ["tools/call"], "taskIds": True, "status": True, "createdAt": {"before": True, "after": True},
    "lastUpdatedAt": {"before": True, "after": True},
    "order": {"by": ["createdAt", "lastUpdatedAt"], "direction": ["asc", "desc"]},
}  # fmt: skip


def get(*fields: bytes, target: bytes = b"/mcp") -> bytes:
    return request(target=target, fields=[b"Accept: text/event-stream", *fields])


# ---- streams ----


async def test_get_streams_are_not_timed_out(hasty_rig: Rig) -> None:
    """Every time limit of that gateway is a second or less; the stream is quiet for longer than all of them."""
    one, peer = await hasty_rig.begin(get())
    await asyncio.sleep(2.2)
    await peer.send(stream())
    await one.hears(b"\r\n\r\n")
    await asyncio.sleep(2.2)
    assert (one.end, peer.end) == ("open", "open")
    await peer.send(chunk(event(b"late")))
    await one.hears(event(b"late"))
    await asyncio.sleep(1.2)
    await peer.send(chunk(event(b"later")))
    await one.hears(event(b"later"))


# ---- sessions and authorization ----


async def test_a_session_that_its_client_has_ended_is_not_answered_from_what_is_known(gateways: Gateways) -> None:
    """The index is fresh for a minute here."""
    list_tasks, gone = Server({None: page(TASKS)}), asyncio.Event()

    async def script(asked: Message, peer: Peer) -> bytes | None:
        if asked.method == b"DELETE":
            gone.set()
            return response(b"")
        return answer(fault(None, -32001, "gone"), status=b"404 No") if gone.is_set() else await list_tasks(asked, peer)

    async with rig_with(gateways, script, index={"max_age": "60s"}) as rig:
        session = Session(rig)
        assert (await session.ask(filtered(1))).status == 200
        assert (await rig.ask(request(b"DELETE", fields=session.fields()))).status == 200
        assert (await session.ask(filtered(2))).status == 404


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
        # The ids that these callers have seen stay for a day (7.12).
        return metrics["taskgate_index_sessions", ()] == 0 and metrics["taskgate_index_bytes", ()] < 2000 * 5

    await eventually(nothing_left, "the index of every session is dropped")


# ---- messages ----


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


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("missing", [1, 8])
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


@pytest.mark.parametrize("fields", [[b"gzip", b"gzip"], [b"gzip, gzip"], [b"identity", b"gzip"]], ids=str)
async def test_a_stream_that_is_encoded_twice_passes_as_it_came(rig: Rig, fields: list[bytes]) -> None:
    """Of two lines the first was read alone: one coding was taken off, and both lines dropped."""
    packed = gzip.compress(gzip.compress(event(result(1, initialized()))))
    said = stream(*[b"Content-Encoding: " + value for value in fields]) + chunk(packed) + LAST_CHUNK
    got = await rig.exchange(post(call("initialize"), b"Accept-Encoding: gzip"), said)
    assert (got.whole, got.body, got.values(b"content-encoding")) == (True, packed, fields)


async def test_an_encoded_answer_to_a_crawl_is_an_error_or_right(rig: Rig) -> None:
    async def encode(asked: Message, _peer: Peer) -> bytes:
        packed = gzip.compress(dumps(result(body(asked)["id"], page(TASKS))))
        return answer(packed, b"Content-Encoding: gzip")

    rig.serve(encode)
    got = await rig.ask(rig.post(filtered(1), b"Accept-Encoding: gzip"))
    assert got.status == 502 or len(final(got)["result"]["tasks"]) == 1
    assert rig.upstream.requests[0].value(b"accept-encoding") == b"identity"


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
