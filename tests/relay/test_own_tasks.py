"""Each caller has his own tasks alone, whatever the server shows (`guards.own_tasks`, DESIGN 8.15).

In: a server that lists, gives and cancels every task to everybody, and tells everybody of each. Out: what each caller
gets, and what reaches the server. Always: what the gateway cannot read passes nothing by.
"""

import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from tests.launch import Gateways
from tests.peer import Peer
from tests.relay.http1 import Message
from tests.relay.messages import (
    Json,
    answer,
    call,
    chunked,
    dumps,
    event,
    fault,
    notification,
    page,
    request,
    result,
    stream,
    task,
)
from tests.relay.rig import Rig, Script, body, final, ids, rig_with, told
from tests.relay.test_found_again import ADA, AGAIN, BOB, RENEWED, Asks

RELATED: Final = "io.modelcontextprotocol/related-task"
EVE: Final = Asks(session=b"s-9", token=b"Bearer eve.1")
UNKNOWN: Final = {"code": -32602, "message": "Failed to retrieve task: Task not found"}
BOTH: Final = (b"Accept: application/json, text/event-stream", b"Content-Type: application/json")


class Open:
    """A server that hides nothing."""

    def __init__(self) -> None:
        self.tasks: dict[str, Json] = {}

    async def script(self, asked: Message, peer: Peer) -> bytes | None:
        message = body(asked)
        if not isinstance(message, dict) or "id" not in message:
            return answer(b"", status=b"202 Accepted")
        params, method = message.get("params") or {}, message["method"]
        if "task" in params:
            self.tasks[params["name"]] = task(params["name"])
            return answer(result(message["id"], {"task": self.tasks[params["name"]]}))
        if method == "tasks/list":
            return answer(result(message["id"], page(self.tasks.values())))
        if method.startswith("tasks/"):
            if params["taskId"] not in self.tasks:
                return answer(fault(message["id"], -32602, "Task not found"))
            return answer(result(message["id"], self.tasks[params["taskId"]]))
        return answer(result(message["id"], {}))


@asynccontextmanager
async def guarded(gateways: Gateways, script: Script | None = None, **changed: Any) -> AsyncIterator[Rig]:
    async with rig_with(gateways, guards={"own_tasks": True}, **changed) as rig:
        rig.serve(script or Open().script)
        yield rig


async def make(rig: Rig, who: Asks, *names: str) -> None:
    for name in names:
        made = final(await rig.ask(who.post(call("tools/call", name=name, task={}))))
        assert made["result"]["task"]["taskId"] == name


async def listed(rig: Rig, who: Asks, **criteria: Any) -> list[str]:
    said = final(await rig.ask(who.post(call("tasks/list", **criteria))))
    assert said["result"]["_meta"]["taskgate/total"] == len(said["result"]["tasks"])
    return sorted(ids(said))


async def test_each_caller_lists_gets_and_cancels_his_own(gateways: Gateways) -> None:
    async with guarded(gateways) as rig:
        await make(rig, ADA, "a-1", "a-2")
        await make(rig, EVE, "e-1")
        for criteria in ({}, {"status": ["working"]}, {"taskIds": ["a-1", "a-2", "e-1", "none"]}):
            for who in (ADA, RENEWED, AGAIN):
                assert await listed(rig, who, **criteria) == ["a-1", "a-2"]
            assert await listed(rig, EVE, **criteria) == ["e-1"]
        asked = len(rig.upstream.requests)
        for method in ("tasks/get", "tasks/result", "tasks/cancel"):
            for who, other in ((ADA, "e-1"), (BOB._replace(session=b"s-3"), "a-1"), (EVE, "a-2"), (EVE, "none")):
                assert final(await rig.ask(who.post(call(method, taskId=other))))["error"] == UNKNOWN
        assert len(rig.upstream.requests) == asked, "nothing is asked"
        for who in (ADA, RENEWED, AGAIN):
            assert final(await rig.ask(who.post(call("tasks/get", taskId="a-1"))))["result"]["taskId"] == "a-1"


# ---- what cannot be read passes nothing by ----

GET: Final = call("tasks/get", taskId="a-1")
DEEP: Final = b"[" * 3000 + b"]" * 3000


def raw(data: bytes, *fields: bytes, method: bytes = b"POST", who: Asks = EVE) -> bytes:
    """A request of somebody's with these bytes."""
    named = (b"Mcp-Session-Id: " + who.session, b"Authorization: " + who.token, b"Accept: */*, text/event-stream")
    return request(method, b"/mcp", [*named, *fields], data)


TYPE: Final = b"Content-Type: application/json"
G: Final = dumps(GET)
UNREAD: Final = {
    "a batch": raw(b"[%b]" % G, TYPE),
    "a batch behind white space": raw(b" \n\t[%b]" % G, TYPE),
    "two messages": raw(G + b"\n" + G, TYPE),
    "gzip": raw(gzip.compress(G), TYPE, b"Content-Encoding: gzip"),
    "another coding": raw(G, TYPE, b"Content-Encoding: x-own"),
    "UTF-16": raw(G.decode().encode("utf-16"), TYPE),
    "UTF-16 by its charset": raw(G.decode().encode("utf-16-be"), TYPE + b"; charset=utf-16be"),
    "UTF-7": raw(b"+AHs-" + G[1:], TYPE + b"; charset=utf-7"),
    "UTF-7 within JSON": raw(G, TYPE + b"; charset=utf-7"),
    "two charsets": raw(G, TYPE + b"; charset=utf-8; charset=utf-7"),
    "large": raw(G.ljust(200_000), TYPE),
    "large in chunks": raw(b"", TYPE, b"Transfer-Encoding: chunked").replace(b"Content-Length: 0\r\n", b"")
    + chunked(G.ljust(200_000)),
    "deep": raw(G[:-2] + b',"x":' + DEEP + b"}}", TYPE),
    "a form that calls itself JSON": raw(
        b"jsonrpc=2.0&id=1&method=tasks/get&params[taskId]=a-1",
        b"Content-Type: application/x-www-form-urlencoded; x=application/json",
    ),
    "a message in text": raw(b"[%b]" % G, b"Content-Type: text/plain"),
    "a batch that is put": raw(b"[%b]" % G, TYPE, method=b"PUT"),
    "no version": raw(dumps({"id": 1, "method": "tasks/get", "params": {"taskId": "a-1"}}), TYPE),
    "VERSION": raw(G.replace(b"jsonrpc", b"JSONRPC"), TYPE),
    "METHOD": raw(G.replace(b"method", b"METHOD"), TYPE),
    "a method beside another": raw(G[:-1] + b',"Method":"ping"}', TYPE),
    "the method twice": raw(b'{"method":"ping",' + G[1:], TYPE),
    "the method in escapes, twice": raw(b'{"\\u006dethod":"ping",' + G[1:], TYPE),
    "a long s": raw(b'{"param\xc5\xbf":{"taskId":"a-1"},' + G[1:].replace(b"a-1", b"e-1"), TYPE),
    "params twice": raw(b'{"params":{"taskId":"e-1"},' + G[1:], TYPE),
    "the id of the task twice": raw(G.replace(b'"taskId"', b'"taskId":"e-1","taskId"'), TYPE),
    "the id of the task, and TASKID": raw(G.replace(b'"taskId"', b'"TASKID":"e-1","taskId"'), TYPE),
    "TaskId": raw(G.replace(b'"taskId"', b'"TaskId"'), TYPE),
    "Tasks/Get": raw(G.replace(b"tasks/get", b"Tasks/Get"), TYPE),
    "a space": raw(G.replace(b"tasks/get", b" tasks/get"), TYPE),
}


@pytest.mark.parametrize("name", UNREAD)
async def test_what_cannot_be_read_gets_400(gateways: Gateways, name: str) -> None:
    async with guarded(gateways, limits={"inspected_body_bytes_max": 100_000}) as rig:
        await make(rig, ADA, "a-1")
        await make(rig, EVE, "e-1")
        asked = len(rig.upstream.requests)
        got = await rig.ask(UNREAD[name])
        assert got.status == 400, got.body
        assert body(got)["error"]["code"] == -32600
        assert "guards.own_tasks" in body(got)["error"]["message"]
        assert len(rig.upstream.requests) == asked


@pytest.mark.parametrize(
    "asked",
    [
        G.replace(b"taskId", b"task\\u0049d"),
        G.replace(b"tasks/get", b"tasks\\/get"),
        b"\xef\xbb\xbf" + G,
        G.replace(b'"a-1"', b"NaN"),
        G.replace(b'"a-1"', b'["a-1"]'),
        G.replace(b"tasks/get", b"tasks/update"),
        dumps(notification("tasks/cancel", taskId="a-1")),
        dumps(call("tasks/get")),
        dumps(call("ping", _meta={RELATED: {"taskId": "a-1"}})),
        dumps(call("ping", _meta={RELATED: {}})),
        b'{"jsonrpc":"2.0","id":7,"result":{"_meta":{"%b":{"taskId":"e-1","taskId":"a-1"}}}}' % RELATED.encode(),
        dumps(result(7, {"_meta": {RELATED.upper(): {"TASKID": "a-1"}}})),
    ],
)
async def test_however_it_is_written_anothers_task_is_unknown(gateways: Gateways, asked: bytes) -> None:
    async with guarded(gateways) as rig:
        await make(rig, ADA, "a-1")
        await make(rig, EVE, "e-1")
        for kind in (TYPE, b"Content-Type: text/plain", b"Content-Type: application/json; charset=UTF-8"):
            got = await rig.ask(raw(asked, kind))
            assert (got.status, body(got)["error"]) == (200, UNKNOWN)
        assert not rig.asked("tasks/get")


async def test_other_bodies_pass(gateways: Gateways) -> None:
    async def echo(asked: Message, peer: Peer) -> bytes:
        return answer({"got": len(asked.body)})

    arguments = {"Method": "x", "method": ["y"], "taskId": 7, "TASKID": 8, "PARAMS": {}}
    async with guarded(gateways, echo) as rig:
        for sent in (
            raw(b"grant_type=refresh_token&x=1", b"Content-Type: application/x-www-form-urlencoded"),
            raw(dumps({"redirect_uris": ["http://localhost/"], "scope": "a"}), TYPE),
            raw(dumps(call("tools/call", name="x", arguments=arguments)), TYPE),
            raw(b"\x89PNG", b"Content-Type: image/png"),
            raw(dumps(notification("notifications/tasks/status", **task("of the client"))), TYPE),
            request(b"GET", b"/health"),
        ):
            assert (await rig.ask(sent)).status == 200


# ---- what the server tells ----


def status(name: str) -> Json:
    return notification("notifications/tasks/status", **task(name))


def asks_for(name: str) -> Json:
    return call("elicitation/create", 70, message="?", _meta={RELATED: {"taskId": name}})


LEAKS: Final = {
    "a status": status("a-1"),
    "a status of 2026-07-28": notification("notifications/tasks", **task("a-1")),
    "a request": asks_for("a-1"),
    "progress": notification("notifications/progress", progress=1, _meta={RELATED: {"taskId": "a-1"}}),
    "the result of another": result(77, task("a-1")),
    "a list": result(77, page([task("e-1"), task("a-1")])),
    "a task that another made": result(77, {"task": task("a-1")}),
    "what a task of another brought": result(77, {"content": [], "_meta": {RELATED: {"taskId": "a-1"}}}),
    "escapes": dumps(status("a-1")).replace(b"taskId", b"task\\u0049d").replace(b"status", b"st\\u0061tus"),
    "an id that is no text": status("a-1") | {"params": {"taskId": ["a-1"]}},
    "nearly JSON": b"\xef\xbb\xbf" + dumps(status("a-1")).replace(b"null", b"NaN"),
    "a batch": [status("a-1")],
    "no JSON": b'{"method":"notifications/tasks/status","params":{"taskId":"a-1"}',
}
OWN: Final = [status("e-1"), asks_for("e-1"), notification("notifications/message", data="none"), call("ping", 71)]


@pytest.mark.parametrize("where", ["GET", "POST", "resumed", "a refresh", "asked first", "HTTP+SSE"])
@pytest.mark.parametrize("name", LEAKS)
async def test_no_stream_tells_of_anothers_task(gateways: Gateways, name: str, where: str) -> None:
    server = Open()

    async def script(asked: Message, peer: Peer) -> bytes | None:
        message = body(asked)
        is_list = message is not None and message["method"] == "tasks/list"
        if message is None or message["method"] == "ping" or is_list:
            answers = [] if message is None else [result(message["id"], page([]))]
            events = [event(OWN[0], b"id: 1"), event(LEAKS[name], b"id: 2"), *map(event, [*OWN[1:], *answers])]
            return stream() + chunked(*events[:2], b"".join(events[2:]))
        return await server.script(asked, peer)

    fields = {"resumed": [b"Last-Event-ID: 1"]}.get(where, [])
    async with guarded(gateways, script) as rig:
        await make(rig, ADA, "a-1")
        await make(rig, EVE, "e-1")
        if where == "POST":
            got = await rig.ask(EVE.post(call("ping")))
        elif where == "a refresh":
            got = await rig.ask(EVE.post(call("tasks/list")))
        elif where == "asked first":
            got = await rig.ask(raw(dumps(call("tasks/list")), TYPE, b"MCP-Protocol-Version: 2025-06-18"))
        elif where == "HTTP+SSE":
            got = await rig.ask(request(b"GET", b"/sse", [b"Authorization: " + EVE.token]))
        else:
            got = await rig.ask(raw(b"", *fields, method=b"GET"))
        assert b"a-1" not in got.body
        assert got.whole
        said = told(got)
        own = OWN if where != "HTTP+SSE" else OWN[2:]  # its stream has no session, and another target
        assert [m for m in said if "method" in m][: len(own)] == own


@pytest.mark.parametrize("end", [b"", b"\n"])
async def test_the_last_event_counts_without_its_blank_line(gateways: Gateways, end: bytes) -> None:
    async def script(asked: Message, peer: Peer) -> bytes | None:
        return stream() + chunked(event(OWN[2]), event(status("a-1")).rstrip() + end)

    async with guarded(gateways, script) as rig:
        got = await rig.ask(raw(b"", method=b"GET"))
        assert b"a-1" not in got.body
        assert told(got) == OWN[2:3]


@pytest.mark.parametrize("how", ["large", "lines", "coding", "broken"])
async def test_a_stream_that_cannot_be_read_breaks(gateways: Gateways, how: str) -> None:
    said = {
        "large": event({**status("a-1"), "x": "x" * 50_000}),
        "lines": b"data:\n" * 11_000 + event(status("a-1")),
        "coding": event(status("a-1")),
        "broken": event(status("a-1")),
    }[how]
    coding = {"coding": [b"Content-Encoding: x-own"], "broken": [b"Content-Encoding: gzip"]}.get(how, [])

    async def script(asked: Message, peer: Peer) -> bytes | None:
        return stream(*coding) + chunked(said, event(status("a-2")))

    async with guarded(gateways, script, limits={"inspected_event_bytes_max": 20_000}) as rig:
        got = await rig.ask(raw(b"", method=b"GET"))
        assert b"a-1" not in got.body
        assert got.status == 502 or not got.whole
