"""A refused caller holds nothing; and requests that the upstream puts off, with `Retry-After`."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.header_fields import Headers
from gateway.relay.own_requests import retry_after_s
from tests.garbage import kept_garbage, left_in_cycles
from tests.launch import Gateways, eventually
from tests.peer import Peer
from tests.relay.http1 import Message
from tests.relay.messages import Json, call, fault, filtered, in_pages, initialized, notification, page, result, task
from tests.relay.rig import Rig, Script, Server, Session, body, final, gives, ids, meant, replies, rig_with, says
from tests.relay.wire import LAST_CHUNK, answer, chunk, dumps, event, post, request, response

PAGE = b"Origin: http://localhost:6274"
CORS = b"Access-Control-Allow-Origin: http://localhost:6274"


# ---- each way of being refused, and of being told nothing ----


def kept(rig: Rig) -> dict[str, Any]:
    app = rig.app
    sessions = app._sessions
    told = [pool.context.cors for pool in app._pools.of.values()]
    notes = {
        "stored": [session.key for session in sessions.stored.all()],
        "servers": list(sessions.said.all()),
        "drifts": [
            len(pool.context.drift.sessions) for pool in app._pools.of.values() if len(pool.context.drift.sessions)
        ],
        "cors": [client for cors in told for client in (*cors._told.of, *cors._preflights.of)],
    }
    return {name: held for name, held in notes.items() if held}


TASK = task("t-1")
STATUSES = [b"401 Unauthorized", b"403 Forbidden", b"404 Not Found", b"429 Slow"]


def as_json(status: bytes, message: object) -> bytes:
    return answer(message, CORS, b"Mcp-Session-Id: given", status=status)


def as_stream(status: bytes, message: object) -> bytes:
    """The same on an event stream, with a notification in front."""
    fields = [b"Content-Type: text/event-stream", CORS, b"Mcp-Session-Id: given", b"Transfer-Encoding: chunked"]
    head = b"\r\n".join([b"HTTP/1.1 " + status, *fields, b"", b""])
    told = event(notification("notifications/tasks/status", **TASK)) + event(message)
    return head + chunk(told) + LAST_CHUNK


def as_a_secret(status: bytes, message: object) -> bytes:
    """The same, in an encoding that the gateway cannot read."""
    fields = [b"Content-Type: text/event-stream", b"Content-Encoding: secret", CORS]
    return response(event(message), *fields, status=status)


def refusing(how: Callable[[bytes, object], bytes], status: bytes) -> Script:
    """A server whose answers are right, except for their status."""

    async def script(asked: Message, _peer: Peer) -> bytes:
        message = body(asked)
        if not isinstance(message, dict):
            return how(status, [result(1, {"task": TASK})])
        told = {
            "initialize": initialized(),
            "tasks/list": page([TASK]),
            "tasks/get": TASK,
            "tools/call": {"task": TASK},
            "tasks/result": {"content": []},
        }.get(message["method"], {})
        return how(status, result(message["id"], told))

    return script


ASKED: dict[str, bytes] = {
    "a filtered list": post(filtered()), "tasks that are named": post(filtered(taskIds=["t-1"])),
    "initialize": post(call("initialize")), "tasks/get": post(call("tasks/get", taskId="t-1")),
    "tasks/result": post(call("tasks/result", taskId="t-1")), "tasks/list": post(call("tasks/list")),
    "a task": post(call("tools/call", name="x", task={})), "a batch": post([call("tasks/get", taskId="t-1")]),
    "a stream": request(fields=[b"Accept: text/event-stream"]),
    "a stream that goes on": request(fields=[b"Accept: text/event-stream", b"Last-Event-ID: 7"]),
    "the end of the session": request(b"DELETE"),
    "a preflight": request(b"OPTIONS", fields=[b"Access-Control-Request-Method: POST"]),
}  # fmt: skip


def as_a_stranger(asked: bytes) -> bytes:
    return asked.replace(b"\r\n", b"\r\nAuthorization: Bearer guess\r\nMcp-Session-Id: guess\r\n" + PAGE + b"\r\n", 1)


STRANGERS_LIST = as_a_stranger(ASKED["a filtered list"])
BAD_QUERIES = (
    filtered(7, status=7),
    filtered(7, status=["working"], cursor="nobody gave it out"),
    filtered(7, createdAfter="yesterday"),
)


async def resets(_asked: Message, peer: Peer) -> None:
    peer.reset()


DENIES = replies(lambda message: fault(message["id"], -32001, "Unauthorized"))
ENDS = [request(b"DELETE", fields=[b"Mcp-Session-Id: %d" % n, b"Authorization: Bearer %d" % n]) for n in range(20)]
# What the server does, what it is asked, and the status of the answer; the client leaves without one.
TOLD_NOTHING: dict[str, tuple[Script | None, list[bytes], int | None]] = {
    "cut": (resets, [STRANGERS_LIST], 502),
    "too late": (None, [STRANGERS_LIST], 504),
    "left": (None, [STRANGERS_LIST], None),
    "no list of tasks": (gives({"tasks": [7]}), [STRANGERS_LIST], 502),
    "an error": (DENIES, [as_a_stranger(asked) for asked in ASKED.values() if b'\n{"jsonrpc"' in asked], 200),
    "a bad query": (
        refusing(as_json, b"401 Unauthorized"), [as_a_stranger(post(wrong)) for wrong in BAD_QUERIES], 401,
    ),
    "sessions ended that nobody has": (says(b"HTTP/1.1 204 No Content\r\n\r\n"), ENDS, 204),
    **{
        f"{status[:3].decode()}, {how.__name__}": (
            refusing(how, status), [as_a_stranger(asked) for asked in ASKED.values()], int(status[:3]),
        )
        for how in (as_json, as_stream, as_a_secret)
        for status in STATUSES
    },
}  # fmt: skip


@pytest.mark.parametrize("how", TOLD_NOTHING)
async def test_nothing_is_kept_of_who_was_told_nothing(gateways: Gateways, how: str) -> None:
    script, asked, status = TOLD_NOTHING[how]
    async with rig_with(gateways, script, index={"crawl_timeout": "1s"}) as rig:
        with kept_garbage():
            for each in asked:
                if status is None:
                    one, peer = await rig.begin(each)
                    one.reset()
                    await peer.ends()
                else:
                    got = await rig.ask(each)
                    assert (meant(got), got.whole) == (status, True), each
                await eventually(lambda: kept(rig) == {}, f"nothing kept: {kept(rig)}")
            assert not left_in_cycles()


# ---- what a refusal of the gateway's own request makes of the index ----


@pytest.mark.parametrize("how", ["whole", "cut", "large", "slow"])
async def test_a_refusal_counts_whose_body_does_not_come_whole(gateways: Gateways, how: str) -> None:
    refuses = False
    done = [task(f"t-{n}", status="completed") for n in range(3)]

    async def script(asked: Message, peer: Peer) -> bytes | None:
        message = body(asked)
        if not refuses:
            return answer(result(message["id"], page(done)))
        size = {"whole": 2, "cut": 200, "large": 5 << 20, "slow": 200}[how]
        sent = b"x" * (size if how in ("whole", "large") else 2)
        await peer.send(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: %d\r\n\r\n%b" % (size, sent))
        if how == "cut":
            await peer.close()
        return None

    async with rig_with(gateways, script, index={"max_age": "100ms", "crawl_timeout": "2s"}) as rig:
        session = Session(rig)
        assert len(ids(final(await session.ask(filtered(status=["completed"]))))) == 3
        await asyncio.sleep(0.2)
        refuses = True
        refused = await session.ask(filtered(status=["completed"]))
        assert (refused.status, refused.body) == (401, b"xx" if how == "whole" else b"")
        assert (await session.ask(filtered(taskIds=["t-0"]))).status == 401, "the index is dropped"


async def test_a_502_that_breaks_off_is_asked_for_again(gateways: Gateways) -> None:
    async def script(asked: Message, peer: Peer) -> bytes | None:
        if len(rig.upstream.requests) > 1:
            return answer(result(body(asked)["id"], page([task("t-1")])))
        await peer.send(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 200\r\n\r\nxx")
        await peer.close()
        return None

    async with rig_with(gateways, script) as rig:
        assert ids(final(await Session(rig).ask(filtered(status=["working"])))) == ["t-1"]


async def test_a_task_seen_elsewhere_that_is_refused_fails_no_query_whose_session_was_cleared(
    gateways: Gateways,
) -> None:
    going, asked_for = asyncio.Event(), asyncio.Event()
    seen = task("t-1", status="completed")
    refuses = False

    async def script(asked: Message, _peer: Peer) -> bytes:
        message = body(asked)
        if message["method"] == "tasks/list":
            return answer(result(message["id"], page([])))
        if message["method"] == "tasks/get" and not refuses:
            return answer(result(message["id"], seen))
        if message["method"] == "tasks/get":
            asked_for.set()
            await going.wait()
            return answer({}, status=b"403 Forbidden")
        return answer({}, status=b"401 Unauthorized")

    async with rig_with(gateways, script) as rig:
        assert (await Session(rig).ask(call("tasks/get", 1, taskId="t-1"))).status == 200
        refuses, session = True, Session(rig)  # the same token, a new session
        asking = rig.asking(session.request(filtered(status=["completed"])))
        await asked_for.wait()
        assert (await session.ask(call("tools/call", 2, name="x"))).status == 401
        going.set()
        assert ids(final(await asking)) == []


# ---- a query that is wrong ----


@pytest.mark.parametrize("refusal", [b"401 Unauthorized", b"403 Forbidden", b"404 Not Found"])
@pytest.mark.parametrize("passed", ["tools/list", "tasks/list", "tasks/get"])
async def test_a_refusal_goes_before_what_is_wrong_with_a_query_and_who_was_refused_since_is_asked_for_again(
    rig: Rig, refusal: bytes, passed: str
) -> None:
    """The client once saw -32602, and no login began."""
    session, status = Session(rig), [refusal]

    async def moody(asked: Message, _peer: Peer) -> bytes:
        return answer(result(body(asked)["id"], page([])), status=status[-1])

    async def is_refused(query: Json) -> bool:
        got = await session.ask(query)
        assert got.status == int(refusal[:3]) or final(got)["error"]["code"] == -32602
        return got.status != 200

    rig.serve(moody)
    assert await is_refused(BAD_QUERIES[0])
    status.append(b"200 OK")
    assert not await is_refused(BAD_QUERIES[0])
    status.append(refusal)
    assert not await is_refused(BAD_QUERIES[1]), "nobody can know yet"
    assert (await session.ask(call(passed, taskId="t"))).status == int(refusal[:3])
    assert await is_refused(BAD_QUERIES[2])
    status.append(b"200 OK")
    assert not await is_refused(BAD_QUERIES[2])


# ---- requests of the gateway's own that the upstream puts off: 429 and 503 with `Retry-After` (RFC 9110, 10.2.3) ----

LONG_AGO = 1_000_000_000.0
TASKS = [task(f"t-{n}", created=f"2026-01-01T00:00:{n:02}Z") for n in range(6)]
ALL = [f"t-{n}" for n in reversed(range(6))]


SERVER = Server(in_pages(TASKS), {"ping": {}}, lambda task_id: TASKS[int(task_id[2:])])
A_DATE = [f"{name}: {formatdate(at, usegmt=True)}" for name, at in (("Date", LONG_AGO), ("Retry-After", LONG_AGO + 1))]


@dataclass
class Limited:
    """A server that takes two requests in each second, and puts the others off."""

    status: bytes = b"429 Too Many Requests"
    fields: tuple[str, ...] = ("Retry-After: 1",)
    taken: list[float] = field(default_factory=list)
    put_off: list[float] = field(default_factory=list)
    early: int = 0  # requests that came before they should
    at_once: int = 0
    at_once_after: int = 0  # the most, once one was put off

    async def __call__(self, asked: Message, peer: Peer) -> bytes | None:
        now = time.monotonic()
        self.at_once += 1
        if self.put_off and now - self.put_off[0] > 0.9:
            self.early += now - self.put_off[-1] < 0.9
            self.at_once_after = max(self.at_once_after, self.at_once)
        full = len([one for one in self.taken if now - one < 1.0]) >= 2
        (self.put_off if full else self.taken).append(now)
        await asyncio.sleep(0.02)
        self.at_once -= 1
        refused = fault(body(asked)["id"], -32000, "slow down")
        return answer(refused, *map(str.encode, self.fields), status=self.status) if full else await SERVER(asked, peer)


@pytest.mark.parametrize(
    ("how", "criteria"),
    [
        ({"status": b"503 Service Unavailable", "fields": tuple(A_DATE)}, {}),
        ({"fields": ("Retry-After: 0",)}, {}),
        ({}, {"taskIds": [f"t-{n}" for n in range(6)]}),
    ],
    ids=["503 and a date", "zero", "single tasks"],
)
async def test_a_refresh_goes_on_where_the_server_has_put_it_off(rig: Rig, how: Json, criteria: Json) -> None:
    """A 429 threw away the pages that were read. Single tasks are asked for one at a time then, not eight at once."""
    limited = Limited(**how)
    rig.serve(limited)
    listed = final(await rig.ask(rig.post(filtered(orderBy="createdAt", **criteria))))
    assert ids(listed) == ALL
    assert len(limited.taken) == 6
    assert len(limited.put_off) >= 1 and (criteria or len(limited.put_off) <= 5), "it waited as long as it was told to"
    assert limited.early == 0
    assert limited.at_once_after <= 1


@pytest.mark.parametrize("retry_after", [b"10", b"9" * 5000, b"-1", b"1.5", b"soon", b"", None])
async def test_a_wait_beyond_crawl_timeout_or_of_no_length_is_relayed_at_once(
    gateways: Gateways, retry_after: bytes | None
) -> None:
    fields = () if retry_after is None else (b"Retry-After: " + retry_after, b"Date: yesterday")

    async def script(asked: Message, _peer: Peer) -> bytes:
        return answer(fault(body(asked)["id"], -32000, "slow down"), *fields, status=b"429 Too Many Requests")

    async with rig_with(gateways, script, index={"crawl_timeout": "10s"}) as rig:
        began = time.monotonic()
        refused = await rig.ask(rig.post(filtered(7)))
        assert time.monotonic() - began < 8.0
        assert (refused.status, refused.value(b"retry-after")) == (429, retry_after)
        assert refused.body == dumps(fault(7, -32000, "slow down"))
        assert len(rig.asked("tasks/list")) == 1


def once_put_off(seconds: bytes) -> tuple[Script, asyncio.Event]:
    """A server that puts off the first `tasks/list`; the event is set then."""
    was_put_off = asyncio.Event()

    async def script(asked: Message, peer: Peer) -> bytes | None:
        if body(asked)["method"] != "tasks/list" or was_put_off.is_set():
            return await SERVER(asked, peer)
        was_put_off.set()
        refused = fault(body(asked)["id"], 1, "no")
        return answer(refused, b"Retry-After: " + seconds, status=b"429 Slow Down")

    return script, was_put_off


async def test_who_waits_counts_as_under_way_behind_a_reload(gateways: Gateways) -> None:
    """It has no connection meanwhile: its pool was forgotten, and what it asked then was swept no more."""
    script, was_put_off = once_put_off(b"2")
    async with rig_with(gateways, script, log={"level": "info"}) as rig:
        listing = rig.asking(rig.post(filtered(orderBy="createdAt")))
        await was_put_off.wait()
        pools = rig.app._pools
        [old] = pools.of.values()
        await eventually(lambda: not old.active, "the slot is given back")
        rig.gateway.reload(rig.settings(log={"level": "info"}, index={"page_size": 7}))
        pools.sweep(asyncio.get_running_loop().time())
        key = "taskgate_requests_in_flight", (("upstream", "up"),)
        assert (await rig.gateway.metrics())[key] == 1
        assert ids(final(await listing)) == ALL


async def test_who_waits_holds_no_slot_of_the_upstream(gateways: Gateways) -> None:
    script, was_put_off = once_put_off(b"2")
    async with rig_with(gateways, script, upstream={"requests_max": 1, "connect_timeout": "1s"}) as rig:
        listing = rig.asking(post(filtered(orderBy="createdAt"), b"Authorization: Bearer alice"))
        await was_put_off.wait()
        assert (await rig.ask(post(call("ping"), b"Authorization: Bearer bob"))).status == 200
        assert not listing.done()
        assert ids(final(await listing)) == ALL


async def test_who_leaves_while_the_server_has_put_it_off_asks_no_more(rig: Rig) -> None:
    script, was_put_off = once_put_off(b"1")
    rig.serve(script)
    one = await rig.client(rig.post(filtered()))
    await was_put_off.wait()
    await one.close()
    began = time.monotonic()
    await eventually(lambda: time.monotonic() - began > 1.3, "it would have been asked again")
    assert len(rig.asked("tasks/list")) == 1


INSTANTS = st.integers(0, 4_000_000_000)


@given(INSTANTS, st.integers(-(10**6), 10**6), st.sampled_from(["IMF", "RFC 850", "asctime"]))
def test_a_date_counts_from_the_date_of_the_answer(since: int, more_s: int, form: str) -> None:
    """In each form that RFC 9110, 5.6.7 has."""
    patterns = {
        "IMF": "%a, %d %b %Y %H:%M:%S GMT",
        "RFC 850": "%A, %d-%b-%y %H:%M:%S GMT",
        "asctime": "%a %b %e %H:%M:%S %Y",
    }
    until = max(0, since + more_s)
    if form == "RFC 850":
        since, until = since % 10**9, since % 10**9 + abs(more_s)  # its years have two digits
    fields = [
        (b"Retry-After", time.strftime(patterns[form], time.gmtime(until)).encode()),
        (b"Date", formatdate(since, usegmt=True).encode()),
    ]
    assert retry_after_s(Headers(fields)) == max(0, until - since)
