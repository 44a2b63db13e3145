"""Each caller has his own tasks alone, whatever the server shows (`guards.own_tasks`, DESIGN 8.16).

In: a server that lists, gives and cancels every task to everybody, and tells everybody of each. Out: what each caller
gets, and what reaches the server. Always: what the gateway cannot read passes nothing by.
"""

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import product
from typing import Any, Final

import pytest

from tests.launch import Gateways, eventually, listening
from tests.peer import Peer
from tests.relay.http1 import Message
from tests.relay.messages import Json, call, dumps, fault, notification, page, result, task
from tests.relay.rig import Place, Rig, Script, body, final, ids, replies, rig_at, rig_with, says, told
from tests.relay.test_callers import ADA, Asks
from tests.relay.test_own_model import UNKNOWN
from tests.relay.wire import answer, chunked, event, post, request, response, stream

RELATED: Final = "io.modelcontextprotocol/related-task"
EVE: Final = Asks(session=b"s-9", token=b"Bearer eve.1")


class Open:
    """A server that hides nothing. What it says instead to some requests is `said`: the result, or the whole answer."""

    def __init__(self, said: Callable[[Json], Any] = lambda _: None) -> None:
        self.tasks: dict[str, Json] = {}
        self._said = said

    def results(self, message: Json) -> Any:
        params, method = message.get("params") or {}, message["method"]
        if "task" in params:
            self.tasks[params["name"]] = task(params["name"], **params["task"])
            return {"task": self.tasks[params["name"]]}
        if method == "tasks/list":
            return page(self.tasks.values())
        if method.startswith("tasks/"):
            return self.tasks.get(params["taskId"]) or fault(message["id"], -32602, "Task not found")
        return {}

    async def script(self, asked: Message, peer: Peer) -> bytes | None:
        message = body(asked) or {"method": asked.method.decode(), "id": None}
        said = self._said(message)
        if isinstance(said, bytes):
            return said
        return await replies(lambda _: self.results(message) if said is None else said)(asked, peer)


@asynccontextmanager
async def guarded(gateways: Gateways, script: Script | None = None, **changed: Any) -> AsyncIterator[Rig]:
    async with rig_with(gateways, script or Open().script, **{"guards": {"own_tasks": True}, **changed}) as rig:
        yield rig


async def make(rig: Rig, who: Asks, *names: str) -> None:
    for name in names:
        made = final(await rig.ask(who.post(call("tools/call", name=name, task={}))))
        assert made["result"]["task"]["taskId"] == name


async def listed(rig: Rig, who: Asks, **criteria: Any) -> list[str]:
    said = final(await rig.ask(who.post(call("tasks/list", **criteria))))
    assert said["result"]["_meta"]["taskgate/total"] == len(said["result"]["tasks"])
    return sorted(ids(said))


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
    "two codings": raw(gzip.compress(G), TYPE, b"Content-Encoding: identity, gzip"),
    "a byte behind it": raw(G + b"\0", TYPE),
    "a number behind it": raw(G + b" 1", TYPE),
    "UTF-32": raw(G.decode().encode("utf-32"), TYPE),
    "UTF-16 without a mark": raw(G.decode().encode("utf-16-le"), TYPE),
    "UTF-16": raw(G.decode().encode("utf-16"), TYPE),
    "UTF-16 by its charset": raw(G.decode().encode("utf-16-be"), TYPE + b"; charset=utf-16be"),
    "UTF-7": raw(b"+AHs-" + G[1:], TYPE + b"; charset=utf-7"),
    "UTF-7 within JSON": raw(G, TYPE + b"; charset=utf-7"),
    "two charsets": raw(G, TYPE + b"; charset=utf-8; charset=utf-7"),
    "large": raw(G.ljust(200_000), TYPE),
    "large in chunks": raw(b"", TYPE, b"Transfer-Encoding: chunked").replace(b"Content-Length: 0\r\n", b"")
    + chunked(G.ljust(200_000)),
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
    "a notification": raw(dumps(notification("tasks/list")), TYPE),
    "a space": raw(G.replace(b"tasks/get", b" tasks/get"), TYPE),
    "what only some Pythons read": raw(G[:-2] + b',"x":' + DEEP + b"}}", TYPE),
}


# However it is written, another's task is unknown.
UNKNOWN_ALL_THE_SAME: Final = [
    G.replace(b"taskId", b"task\\u0049d"), G.replace(b"tasks/get", b"tasks\\/get"), b"\xef\xbb\xbf" + G,
    G.replace(b'"a-1"', b"NaN"), G.replace(b'"a-1"', b'["a-1"]'), G.replace(b"tasks/get", b"tasks/update"),
    dumps(call("tasks/get")), dumps(call("ping", _meta={RELATED: {"taskId": "a-1"}})),
    dumps(call("ping", _meta={RELATED: {}})),
    b'{"jsonrpc":"2.0","id":7,"method":"x","params":{"%b":{"taskId":"e-1","taskId":"a-1"}}}' % RELATED.encode(),
    dumps(call("ping", _meta={RELATED.upper(): {"TASKID": "a-1"}})),
]  # fmt: skip
TYPES: Final = (TYPE, b"Content-Type: text/plain", TYPE + b", text/plain", TYPE + b"; charset=UTF-8")


@pytest.mark.parametrize("name", [*UNREAD, *range(len(UNKNOWN_ALL_THE_SAME))])
async def test_what_cannot_be_read_gets_400_and_anothers_task_is_unknown(gateways: Gateways, name: str | int) -> None:
    async with guarded(gateways, limits={"inspected_body_bytes_max": 100_000}) as rig:
        await make(rig, ADA, "a-1")
        await make(rig, EVE, "e-1")
        asked = len(rig.upstream.requests)
        if isinstance(name, int):
            for kind in TYPES:
                got = await rig.ask(raw(UNKNOWN_ALL_THE_SAME[name], kind))
                assert (got.status, body(got)["error"]) == (200, UNKNOWN)
        else:
            got = await rig.ask(UNREAD[name])
            if got.status == 400 or name != "what only some Pythons read":
                assert (got.status, body(got)["error"]["code"]) == (400, -32600), got.body
                assert "guards.own_tasks" in body(got)["error"]["message"]
        assert len(rig.upstream.requests) == asked


async def test_other_bodies_pass(gateways: Gateways) -> None:
    # Clients have tasks of their own, which servers ask for (2025-11-25): their results name them as related.
    answered = result(7, {"role": "user", "_meta": {RELATED: {"taskId": "of the client"}}})
    arguments = {"Method": "x", "method": ["y"], "taskId": 7, "TASKID": 8, "PARAMS": {}}
    async with guarded(gateways, says(answer({}))) as rig:
        for sent in (
            raw(b"grant_type=refresh_token&x=1", b"Content-Type: application/x-www-form-urlencoded"),
            raw(dumps({"redirect_uris": ["http://localhost/"], "scope": "a"}), TYPE),
            raw(dumps(call("tools/call", name="x", arguments=arguments)), TYPE),
            raw(b"\x89PNG", b"Content-Type: image/png"),
            raw(dumps(notification("notifications/tasks/status", **task("of the client"))), TYPE),
            request(b"GET", b"/health"),
            EVE.post(answered),
        ):
            assert (await rig.ask(sent)).status == 200
        assert body(rig.upstream.requests[-1]) == answered


# ---- what the server tells ----


def status(name: str) -> Json:
    return notification("notifications/tasks/status", **task(name))


def asks_for(name: str) -> Json:
    return call("elicitation/create", 70, message="?", _meta={RELATED: {"taskId": name}})


LEAKS: Final = {
    "a status": status("a-1"), "a status of 2026-07-28": notification("notifications/tasks", **task("a-1")),
    "a request": asks_for("a-1"),
    "progress": notification("notifications/progress", progress=1, _meta={RELATED: {"taskId": "a-1"}}),
    "the result of another": result(77, task("a-1")), "a list": result(77, page([task("e-1"), task("a-1")])),
    "a task that another made": result(77, {"task": task("a-1")}),
    "what a task of another brought": result(77, {"content": [], "_meta": {RELATED: {"taskId": "a-1"}}}),
    "escapes": dumps(status("a-1")).replace(b"taskId", b"task\\u0049d").replace(b"status", b"st\\u0061tus"),
    "an id that is no text": status("a-1") | {"params": {"taskId": ["a-1"]}},
    "nearly JSON": b"\xef\xbb\xbf" + dumps(status("a-1")).replace(b"null", b"NaN"), "a batch": [status("a-1")],
    "no JSON": b'{"method":"notifications/tasks/status","params":{"taskId":"a-1"}',
}  # fmt: skip
SOME_LEAKS: Final = ("a status", "a list", "no JSON")
ELSEWHERE: Final = ("POST", "resumed", "a refresh", "asked first", "HTTP+SSE")
OWN: Final = [status("e-1"), asks_for("e-1"), notification("notifications/message", data="none"), call("ping", 71)]


@pytest.mark.parametrize(("name", "where"), [*product(LEAKS, ["GET"]), *product(SOME_LEAKS, ELSEWHERE)])
async def test_no_stream_tells_of_anothers_task(gateways: Gateways, name: str, where: str) -> None:
    def leaking(message: Json) -> bytes | None:
        if message["method"] not in ("GET", "ping", "tasks/list"):
            return None
        answers = [] if message["id"] is None else [event(result(message["id"], page([])))]
        rest = b"".join([*map(event, OWN[1:]), *answers])
        return stream() + chunked(event(OWN[0], b"id: 1"), event(LEAKS[name], b"id: 2"), rest)

    asked = {
        "GET": raw(b"", method=b"GET"), "resumed": raw(b"", b"Last-Event-ID: 1", method=b"GET"),
        "POST": EVE.post(call("ping")), "a refresh": EVE.post(call("tasks/list")),
        "asked first": raw(dumps(call("tasks/list")), TYPE, b"MCP-Protocol-Version: 2025-06-18"),
        "HTTP+SSE": request(b"GET", b"/sse", [b"Authorization: " + EVE.token]),
    }  # fmt: skip
    async with guarded(gateways, Open(leaking).script) as rig:
        await make(rig, ADA, "a-1")
        await make(rig, EVE, "e-1")
        got = await rig.ask(asked[where])
        assert got.whole and b"a-1" not in got.body
        own = OWN if where != "HTTP+SSE" else OWN[2:]  # its stream has no session, and another target
        assert [m for m in told(got) if "method" in m][: len(own)] == own


LEAK: Final = event(status("a-1"))
ENDS: Final[dict[str, tuple[bytes, bytes]]] = {
    "large": (b"", event({**status("a-1"), "x": "x" * 50_000})), "lines": (b"", b"data:\n" * 11_000 + LEAK),
    "coding": (b"Content-Encoding: x-own", LEAK), "broken": (b"Content-Encoding: gzip", LEAK),
    "no line end": (b"X: y", LEAK.rstrip()), "no blank line": (b"X: y", LEAK.rstrip() + b"\n"),
}  # fmt: skip


@pytest.mark.parametrize("how", ENDS)
async def test_a_stream_that_cannot_be_read_breaks_and_a_last_event_counts_without_its_blank_line(
    gateways: Gateways, how: str
) -> None:
    field, said = ENDS[how]
    script = says(stream(*[field] * bool(field)) + chunked(*([event(OWN[2])] if field == b"X: y" else []), said))
    async with guarded(gateways, script, limits={"inspected_event_bytes_max": 20_000}) as rig:
        got = await rig.ask(raw(b"", method=b"GET"))
        assert b"a-1" not in got.body
        if field == b"X: y":
            assert told(got) == OWN[2:3]
        else:
            assert got.status == 502 or not got.whole


# ---- whose a task is ----


MADE: Final = {"task": task("x")}
LARGE: Final = {**MADE, "y": "y" * 30_000}
AS_EVENTS: Final = b"Content-Type: text/event-stream"


@pytest.mark.parametrize("field", [b"X: y", AS_EVENTS, b"Content-Encoding: x-own"])
@pytest.mark.parametrize(
    ("asks", "gives", "is_his"),
    [
        ({"task": {}}, MADE, True),
        ({}, {"resultType": "task", **task("x"), "ttl": 10}, True),  # 2026-07-28: the server decides
        ({}, {**MADE, "content": []}, False),  # a tool's own words
        ({"task": {}}, {"task": task("x" * 257)}, False),
        ({"task": {}}, LARGE, False),
    ],
)
async def test_what_makes_a_task_his(gateways: Gateways, asks: Json, gives: Json, is_his: bool, field: bytes) -> None:
    def said(message: Json) -> Any:
        if message["method"] != "tools/call":
            return task("x")
        made = result(message["id"], gives)
        return response(event(made), AS_EVENTS) if field == AS_EVENTS else answer(made, field)

    limits = {"inspected_body_bytes_max": 20_000, "inspected_event_bytes_max": 20_000}
    async with guarded(gateways, Open(said).script, limits=limits) as rig:
        await rig.ask(ADA.post(call("tools/call", name="x", **asks)))
        got = final(await rig.ask(ADA.post(call("tasks/get", taskId="x"))))
        assert ("result" in got) == (is_his and b"x-own" not in field)
        assert final(await rig.ask(EVE.post(call("tasks/get", taskId="x"))))["error"] == UNKNOWN


async def test_an_answer_on_a_resumed_stream_makes_a_task_his_if_it_is_nobodys(gateways: Gateways) -> None:
    server = Open()

    async def script(asked: Message, peer: Peer) -> bytes | None:
        if asked.method == b"GET":
            server.tasks["lost"] = task("lost")
            made = [result(number, {"task": task(name)}) for number, name in enumerate(("a-1", "lost"))]
            return stream() + chunked(*map(event, made))
        return await server.script(asked, peer)

    async with guarded(gateways, script) as rig:
        await make(rig, ADA, "a-1")
        got = await rig.ask(raw(b"", b"Last-Event-ID: 1", method=b"GET"))
        assert [m["result"]["task"]["taskId"] for m in told(got)] == ["lost"]
        assert await listed(rig, EVE) == ["lost"]
        assert await listed(rig, ADA) == ["a-1"]
        assert told(await rig.ask(raw(b"", method=b"GET"))) != [], "his own by now"


async def test_who_cannot_be_told_apart_is_told_why(gateways: Gateways, caplog: pytest.LogCaptureFixture) -> None:
    async with guarded(gateways) as rig:
        for method in ("tasks/get", "tasks/list", "tasks/cancel"):
            error = final(await rig.ask(post(call(method, taskId="n-1"))))["error"]
            assert error["code"] == -32602
            assert "guards.own_tasks" in error["message"] and "credentials" in error["message"]
        over_sse = post(call("tasks/get", taskId="x"), target=b"/messages?sessionId=1")
        got = await rig.ask(over_sse.replace(b", text/event-stream", b""))
        assert (got.status, body(got)["error"]["code"]) == (400, -32602)
        got = await rig.ask(raw(dumps(call("tasks/list")), TYPE, b"MCP-Protocol-Version: 2026-07-28"))
        assert (got.status, body(got)["error"]["code"]) == (200, -32602)
        assert not rig.asked("tasks/get") + rig.asked("tasks/list")
    assert [r.getMessage() for r in caplog.records].count("a caller cannot be told apart") == 1


async def test_at_a_server_that_filters_by_itself_too(gateways: Gateways) -> None:
    native = {"capabilities": {"tasks": {"list": {"filter": {"own": True}}}}, "protocolVersion": "2025-11-25"}

    def said(message: Json) -> bytes | None:
        opens = message["method"] == "initialize"
        return answer(result(message["id"], native), b"Mcp-Session-Id: " + EVE.session) if opens else None

    async with guarded(gateways, Open(said).script) as rig:
        opened = final(await rig.ask(EVE._replace(session=b"").post(call("initialize"))))
        assert opened["result"]["capabilities"]["tasks"]["list"] == {"filter": {"own": True}}
        await make(rig, ADA, "a-1")
        await make(rig, EVE, "e-1")
        assert await listed(rig, EVE) == await listed(rig, EVE, status=["working"]) == ["e-1"]


async def test_where_the_server_lacks_tasks_get_pages_show_his_own(gateways: Gateways) -> None:
    def said(message: Json) -> Json | None:
        if message["method"] == "tasks/get":
            return fault(message["id"], -32601, "no")
        if message["method"] != "tasks/list":
            return None
        some, at = list(server.tasks.values()), int(message.get("params", {}).get("cursor", 0))
        return page(some[at : at + 1], str(at + 1) if at + 1 < len(some) else None)

    server = Open(said)
    async with guarded(gateways, server.script, index={"max_age": 0}) as rig:
        await make(rig, ADA, "a-1")
        await make(rig, EVE, "e-1", "e-2")
        for _ in range(2):
            assert (await listed(rig, EVE), await listed(rig, ADA)) == (["e-1", "e-2"], ["a-1"])


async def test_it_costs_the_server_what_it_must(gateways: Gateways) -> None:
    """One page, for access, and one request for each own task: however many others there are."""
    async with guarded(gateways, index={"max_age": "60s"}) as rig:
        await make(rig, ADA, *(f"a-{number}" for number in range(20)))
        await make(rig, EVE, "e-1", "e-2")
        for _ in range(3):
            assert await listed(rig, EVE) == ["e-1", "e-2"]
        assert (len(rig.asked("tasks/list")), len(rig.asked("tasks/get"))) == (1, 2)


@pytest.mark.parametrize("who", [EVE, Asks(session=b"")])
async def test_an_id_that_a_cancelled_call_makes_again_is_its_earlier_owners_no_more(
    gateways: Gateways, who: Asks
) -> None:
    """Its server answers all the same. Who has left gets no answer, and nobody loses anything."""
    server, goes_on = Open(), asyncio.Event()

    async def script(asked: Message, peer: Peer) -> bytes | None:
        message = body(asked)
        if "id" not in message:
            return response(b"", status=b"202 Accepted")
        if "late" in message["params"]:
            await goes_on.wait()
        return await server.script(asked, peer)

    async with guarded(gateways, script) as rig:
        await make(rig, ADA, "1")
        late = call("tools/call", name="1", task={}, late=True)
        left, _ = await rig.begin(who.post(late))
        await left.close()
        client, _ = await rig.begin(who.post(late))
        assert "result" in final(await rig.ask(ADA.post(call("tasks/get", taskId="1"))))
        await rig.ask(who.post(notification("notifications/cancelled", requestId=late["id"])))
        goes_on.set()
        assert "result" in final(await client.response())
        assert final(await rig.ask(ADA.post(call("tasks/get", taskId="1"))))["error"] == UNKNOWN
        assert await listed(rig, ADA) == []


@pytest.mark.parametrize("method", ["tasks/get", "tasks/result"])
@pytest.mark.parametrize("as_events", [True, False])
async def test_an_answer_under_way_when_its_task_changes_hands_does_not_pass(
    gateways: Gateways, method: str, as_events: bool
) -> None:
    """A `tasks/result` waits for hours. A server that gives the id again may answer it with the new task's."""
    server, asked_for_it, goes_on = Open(), asyncio.Event(), asyncio.Event()

    async def script(asked: Message, peer: Peer) -> bytes | None:
        message = body(asked)
        if message["method"] != method:
            return await server.script(asked, peer)
        asked_for_it.set()
        await goes_on.wait()
        said = result(message["id"], task("1", statusMessage="ada's"))
        return stream() + chunked(event(said)) if as_events else answer(said)

    async with guarded(gateways, script) as rig:
        await make(rig, EVE, "1")
        asking = rig.asking(EVE.post(call(method, taskId="1")))
        await asked_for_it.wait()
        await make(rig, ADA, "1")
        goes_on.set()
        got = await asking
        assert b"ada's" not in got.body
        if not as_events:
            assert final(got)["error"] == UNKNOWN


async def test_an_answer_to_what_he_asked_passes_whatever_task_it_names(gateways: Gateways) -> None:
    """As an event as in JSON: a tool that made a task for its own use names it, and its client waits for the answer."""
    named = event(result(1, {"content": [], "_meta": {RELATED: {"taskId": "of the tool"}}}))
    async with guarded(gateways, says(stream() + chunked(named))) as rig:
        assert "result" in final(await rig.ask(EVE.post(call("tools/call", 1, name="x"))))


# ---- a reload to another server ----


class Late(Open):
    """A server whose answers to some methods wait."""

    def __init__(self, *waiting: str) -> None:
        super().__init__()
        self._waiting, self.goes_on = waiting, asyncio.Event()
        self.asked: asyncio.Queue[None] = asyncio.Queue()

    async def script(self, asked: Message, peer: Peer) -> bytes | None:
        if (body(asked) or {}).get("method") in self._waiting:
            self.asked.put_nowait(None)
            await self.goes_on.wait()
        return await super().script(asked, peer)


@asynccontextmanager
async def reloaded(rig: Rig, script: Script, **changed: Any) -> AsyncIterator[Rig]:
    """The same gateway, whose upstream is another server from now on."""
    with listening() as sock:
        async with rig_at(Place(rig.gateway, sock), script) as elsewhere:
            rig.gateway.reload(elsewhere.settings(**changed))
            yield elsewhere


LOG: Final[Json] = {"level": "info"}
OWN_TASKS: Final[Json] = {"log": LOG, "guards": {"own_tasks": True}, "index": {"max_age": "60s"}}


async def test_what_is_under_way_over_a_reload_ends_at_the_server_where_it_began(gateways: Gateways) -> None:
    """Its tasks were forgotten at once: a waiting `tasks/result` heard that there is no such task, a list was empty."""
    old = Late("tasks/result", "tasks/get")
    async with guarded(gateways, old.script, log=LOG) as rig:
        await make(rig, ADA, "1")
        waiting = rig.asking(ADA.post(call("tasks/result", taskId="1")))
        listing = rig.asking(ADA.post(call("tasks/list")))
        for _ in range(2):
            await old.asked.get()
        async with reloaded(rig, Open().script, **OWN_TASKS) as new:
            assert await listed(new, ADA) == []
            old.goes_on.set()
            assert final(await waiting)["result"]["taskId"] == "1"
            assert ids(final(await listing)) == ["1"]
            assert await listed(new, ADA) == []
            await eventually(lambda: not rig.app._pools._retired, "the old server forgotten")
            assert [o for o in rig.app._sessions._seen.stored.all() if "1" in o] == []


async def test_another_choice_of_identity_headers_shares_no_task(gateways: Gateways) -> None:
    """Who has the same fields under another choice of them may be somebody else."""
    team, ann = b"X-Team: t", b"X-User: ann"
    made, asked = call("tools/call", name="1", task={}), call("tasks/get", taskId="1")
    old = Late("tools/call")
    async with guarded(gateways, old.script, log=LOG, upstream={"identity_headers": ["X-Team"]}) as rig:
        making = rig.asking(post(made, team, ann))
        await old.asked.get()
        rig.gateway.reload(rig.settings(**OWN_TASKS, upstream={"identity_headers": ["X-Team", "X-User"]}))
        old.goes_on.set()
        assert "result" in final(await making)
        for fields in ([team], [team, b"X-User: bob"]):
            assert final(await rig.ask(post(asked, *fields)))["error"] == UNKNOWN
