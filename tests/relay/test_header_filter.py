"""A filter for clients that can only set a header: `Taskgate-Filter` (DESIGN 5.10)."""

import pytest

from tests.launch import Gateways
from tests.peer import Peer
from tests.relay.http1 import Message
from tests.relay.messages import Json, call, filtered, initialized, page, result, task
from tests.relay.rig import Rig, Script, Session, body, final, ids, rig_with
from tests.relay.wire import answer, post

STATUSES = ("working", "completed", "working", "failed")
TASKS = {f"t-{n}": task(f"t-{n}", status, f"2026-01-01T00:00:0{n}Z") for n, status in enumerate(STATUSES)}
OURS: Json = {"list": {}, "requests": {"tools": {"call": {}}}}
LATER = {"_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}}


def serving(capability: Json) -> Script:
    """A server of four tasks on one page; it follows any cursor to an empty one."""

    async def script(asked: Message, _peer: Peer) -> bytes:
        message = body(asked)
        if message["method"] == "initialize":
            return answer(result(message["id"], {**initialized(), "capabilities": {"tasks": capability}}))
        if message["method"] == "tasks/get":
            return answer(result(message["id"], TASKS[message["params"]["taskId"]]))
        return answer(result(message["id"], page([] if "cursor" in message["params"] else TASKS.values())))

    return script


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
    async with rig_with(gateways, serving(OURS)) as rig:
        for params in ({}, {"cursor": None}):
            answered = final(await ask(rig, value, call("tasks/list", **params)))
            assert (ids(answered), answered["result"]["_meta"]["taskgate/filter"]) == (shown, value)
        assert not [one for one in rig.upstream.requests if one.value(b"taskgate-filter") is not None]


async def test_criteria_and_cursors_of_the_gateway_go_before_the_header(gateways: Gateways) -> None:
    async with rig_with(gateways, serving(OURS), index={"page_size": 1}) as rig:
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
    async with rig_with(gateways, serving(OURS)) as rig:
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
        assert (response.status, final(response)["error"]["code"]) == (400, -32602)
        assert rig.asked("tasks/list") == []


async def test_the_header_is_no_part_of_who_asks_and_of_no_other_message(gateways: Gateways) -> None:
    async with rig_with(gateways, serving(OURS), index={"max_age": "60s"}) as rig:
        session = Session(rig)
        for value in ("status=working", "status=failed", "order=asc"):
            assert ids(final(await ask(rig, value, call("tasks/list"), session)))
        assert len(rig.asked("tasks/list")) == 1
        assert (
            final(await ask(rig, "status=workin", call("tasks/get", taskId="t-1"), session))["result"] == TASKS["t-1"]
        )
        twice = post(call("tasks/list"), *session.fields(), *[b"Taskgate-Filter: status=working"] * 2)
        assert (await rig.ask(twice)).status == 400
