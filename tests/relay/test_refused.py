"""A refused caller holds nothing: indexes, places in a store and notes are for callers that were answered."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import pytest

from tests.garbage import kept_garbage, left_in_cycles
from tests.launch import Gateways, eventually
from tests.peer import Peer
from tests.relay.http1 import Message
from tests.relay.messages import call, fault, filtered, initialized, notification, page, result, task
from tests.relay.rig import Rig, Script, Session, body, final, gives, rig_with, says
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


Way: TypeAlias = Callable[[Rig], Awaitable[None]]
STRANGERS_LIST = as_a_stranger(ASKED["a filtered list"])


async def cut(rig: Rig) -> None:
    async def script(_asked: Message, peer: Peer) -> None:
        peer.reset()

    rig.serve(script)
    assert (await rig.ask(STRANGERS_LIST)).status == 502


async def too_late(rig: Rig) -> None:
    assert (await rig.ask(STRANGERS_LIST)).status == 504


async def no_list_of_tasks(rig: Rig) -> None:
    rig.serve(gives({"tasks": [7]}))
    assert (await rig.ask(STRANGERS_LIST)).status == 502


async def an_error(rig: Rig) -> None:
    async def script(asked: Message, _peer: Peer) -> bytes:
        return answer(fault(body(asked)["id"], -32001, "Unauthorized"))

    rig.serve(script)
    for asked in ("a filtered list", "tasks that are named", "initialize", "tasks/get", "a task", "tasks/list"):
        assert final(await rig.ask(as_a_stranger(ASKED[asked])))["error"]["code"] == -32001


async def left(rig: Rig) -> None:
    one, peer = await rig.begin(STRANGERS_LIST)
    one.reset()
    await peer.ends()


BAD_QUERIES = (
    filtered(7, status=7),
    filtered(7, status=["working"], cursor="nobody gave it out"),
    filtered(7, createdAfter="yesterday"),
)


async def a_bad_query(rig: Rig) -> None:
    rig.serve(refusing(as_json, b"401 Unauthorized"))
    for wrong in BAD_QUERIES:
        assert (await rig.ask(as_a_stranger(post(wrong)))).status == 401


async def sessions_ended_that_nobody_has(rig: Rig) -> None:
    rig.serve(says(b"HTTP/1.1 204 No Content\r\n\r\n"))
    for number in range(20):
        ended = request(b"DELETE", fields=[b"Mcp-Session-Id: %d" % number, b"Authorization: Bearer %d" % number])
        assert (await rig.ask(ended)).status == 204


WAYS: list[Way] = [
    cut, too_late, no_list_of_tasks, an_error, left, a_bad_query, sessions_ended_that_nobody_has,
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_nothing_is_kept_of_who_was_told_nothing(gateways: Gateways, way: Way) -> None:
    async with rig_with(gateways, index={"crawl_timeout": "1s"}) as rig:
        with kept_garbage():
            await way(rig)
            await eventually(lambda: kept(rig) == {}, f"nothing kept: {kept(rig)}")
            assert not left_in_cycles()


# ---- a query that is wrong ----

REFUSALS = [b"401 Unauthorized", b"403 Forbidden", b"404 Not Found", b"-32601"]


class Moody:
    """A server that lists no tasks, and refuses every `tasks/list` while `refusal` is not empty."""

    def __init__(self, refusal: bytes = b"") -> None:
        self.refusal = refusal

    async def __call__(self, asked: Message, _peer: Peer) -> bytes:
        message_id = body(asked)["id"]
        if self.refusal == b"-32601" and body(asked)["method"] == "tasks/list":
            return answer(fault(message_id, -32601, "Method not found"))
        return answer(result(message_id, page([])), status=self.refusal if b" " in self.refusal else b"200 OK")


@pytest.mark.parametrize("refusal", REFUSALS)
@pytest.mark.parametrize("field", [b"X: y", b"Mcp-Protocol-Version: 2025-06-18"], ids=["this", "another"])
async def test_a_refusal_goes_before_what_is_wrong_with_a_query(rig: Rig, refusal: bytes, field: bytes) -> None:
    """In this revision and in others. The client once saw -32602, and no login began."""
    server, session = Moody(refusal), Session(rig)
    rig.serve(server)
    await session.ask(call("tools/list"))
    for wrong in BAD_QUERIES:
        got = await rig.ask(post(wrong, *session.fields()[:2], field))
        if refusal == b"-32601":
            assert final(got) == fault(7, -32601, "Method not found")
        else:
            assert got.status == int(refusal[:3])
            assert body(got)["id"] == 7
    server.refusal = b""
    for wrong in BAD_QUERIES:
        assert final(await rig.ask(post(wrong, *session.fields()[:2], field)))["error"]["code"] == -32602


@pytest.mark.parametrize("refusal", REFUSALS[:3])
@pytest.mark.parametrize("passed", ["tools/list", "tasks/list", "tasks/get"])
async def test_who_was_refused_since_is_asked_for_again(rig: Rig, refusal: bytes, passed: str) -> None:
    server, session = Moody(), Session(rig)
    rig.serve(server)
    assert final(await session.ask(BAD_QUERIES[0]))["error"]["code"] == -32602
    server.refusal = refusal
    assert final(await session.ask(BAD_QUERIES[1]))["error"]["code"] == -32602, "nobody can know yet"
    assert (await session.ask(call(passed, taskId="t"))).status == int(refusal[:3])
    assert (await session.ask(BAD_QUERIES[2])).status == int(refusal[:3])
    server.refusal = b""
    assert final(await session.ask(BAD_QUERIES[2]))["error"]["code"] == -32602
