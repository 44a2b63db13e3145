"""A refused caller holds nothing: indexes, places in a store and notes are for callers that were answered."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.garbage import kept_garbage, left_in_cycles
from tests.launch import Gateways, eventually
from tests.peer import Peer
from tests.relay.http1 import Message
from tests.relay.messages import Json, call, fault, filtered, initialized, notification, page, result, task
from tests.relay.rig import Rig, Script, Session, body, final, gives, replies, rig_with, says
from tests.relay.wire import LAST_CHUNK, answer, chunk, event, post, request, response

PAGE = b"Origin: http://localhost:6274"
CORS = b"Access-Control-Allow-Origin: http://localhost:6274"


# ---- each way of being refused, and of being told nothing ----


def kept(rig: Rig) -> dict[str, Any]:
    """What the gateway keeps of its callers."""
    app = rig.app
    sessions = app._sessions
    told = [pool.context.cors for pool in app._pools.of.values()]
    notes = {
        "stored": [session.key for session in sessions._stored.all()],
        "in use": list(sessions._unaccepted),
        "servers": list(sessions.servers._servers),
        "drifts": [len(pool.context.drift) for pool in app._pools.of.values() if len(pool.context.drift)],
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


@pytest.mark.parametrize("how", [as_json, as_stream, as_a_secret], ids=lambda how: how.__name__)
async def test_nothing_is_kept_of_what_was_refused(gateways: Gateways, how: Callable[[bytes, object], bytes]) -> None:
    for status in STATUSES:
        async with rig_with(gateways, refusing(how, status)) as rig:
            with kept_garbage():
                for name, asked in ASKED.items():
                    got = await rig.ask(as_a_stranger(asked))
                    assert got.status == int(status[:3]), (name, got)
                    assert got.whole
                    assert kept(rig) == {}, (name, status)
                assert not left_in_cycles()


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
                    assert (await rig.ask(each)).status == status
            await eventually(lambda: kept(rig) == {}, f"nothing kept: {kept(rig)}")
            assert not left_in_cycles()


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
