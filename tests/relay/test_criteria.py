"""Criteria over real sockets: from parameters or a header (`Taskgate-Filter`, DESIGN 5.10) to pages (DESIGN 5)."""

from datetime import UTC, datetime, timedelta

import pytest

from tests.launch import Gateways, eventually
from tests.peer import Peer
from tests.relay.http1 import Message
from tests.relay.messages import LAST_CHUNK, Json, call, chunk, dumps, filtered, initialized, page, stream, task
from tests.relay.rig import Rig, Server, Session, body, final, ids, own, rig_with
from tests.relay.wire import answer, post


async def test_a_misspelt_criterion_is_named_in_the_servers_list_and_every_other_byte_stays(gateways: Gateways) -> None:
    """The list was whole, and said nothing. One without such a name passes byte for byte; so does an error."""
    said, form = b"", ""

    async def script(request: Message, _: Peer) -> bytes:
        whole = said.replace(b"ID", dumps(body(request)["id"]))
        return answer(whole) if form == "JSON" else stream() + chunk(b"data: %b\n\n" % whole) + LAST_CHUNK

    async with own(gateways) as rig:
        session = Session(rig)
        rig.serve(script)
        listed, ignored = (
            b'"tasks": [{"taskId":"a", "status":"working"}]',
            b'"taskgate/ignored":["staus","created_after"]',
        )
        for form in ("JSON", "stream"):
            for result_of, edited in (
                (b"{%b}" % listed, b'{"_meta":{%b},%b}' % (ignored, listed)),
                (b'{%b, "_meta": {"a": 1}}' % listed, b'{%b, "_meta": {%b,"a": 1}}' % (listed, ignored)),
                (b'{"_meta": null, %b}' % listed, b'{"_meta": null, %b}' % listed),
            ):
                said = b'{"jsonrpc": "2.0", "id": ID, "result": %b}' % result_of
                misspelt = {"staus": "failed", "created_after": "2026-01-01T00:00:00Z", "limit": 5}
                for params, expected in ((misspelt, edited), ({}, result_of), ({"limit": 5, "state": "x"}, result_of)):
                    got = await session.ask(call("tasks/list", **params))
                    assert expected + b"}" in got.body and (form != "JSON" or got.body.endswith(expected + b"}"))
            said = b'{"jsonrpc": "2.0", "id": ID, "error": {"code": -1, "message": "no"}}'
            assert b'{"code": -1, "message": "no"}' in (await session.ask(call("tasks/list", staus="failed"))).body
        lines = [line for line in rig.gateway.lines() if line["message"] == "a misspelt criterion"]
    assert {line["parameter"]: line["hint"].partition("?")[0] for line in lines} == {
        "staus": "did you mean status",
        "created_after": "did you mean createdAfter",
    }
    assert len(lines) == 2, "once a minute"


# ---- pages of large tasks: each answer has an end in bytes, and cursors lead on ----


async def test_many_large_tasks_whose_ttl_has_passed_are_asked_for_at_once(gateways: Gateways) -> None:
    """Each is a page of its own. Asked for page by page, 150 of them were an error: too many rounds."""
    now, ttl_s = datetime.now(UTC), 3.0
    tasks = [
        task(f"t-{n:03}", "completed", (now + timedelta(milliseconds=n)).isoformat(), ttl=ttl_s * 1000, more="x" * 1000)
        for n in range(150)
    ]
    index = {"page_bytes_max": "1KiB", "page_size": 1000, "max_age": "1h", "full_crawl_interval": "1h"}
    async with rig_with(gateways, Server({None: page(tasks)}, get=lambda _: None), index=index) as rig:
        session = Session(rig)
        first = final(await session.ask(filtered(1, order="asc")))["result"]
        assert (first["tasks"], first["_meta"]["taskgate/total"]) == (tasks[:1], 150)
        await eventually(lambda: datetime.now(UTC) > now + timedelta(seconds=ttl_s + 1), "all have expired")
        answer = final(await session.ask(filtered(1, order="asc")))["result"]
        assert (answer["tasks"], answer["_meta"]["taskgate/total"]) == ([], 0)


# ---- a filter for clients that can only set a header: `Taskgate-Filter` ----

STATUSES = ("working", "completed", "working", "failed")
BY_ID = {f"t-{n}": task(f"t-{n}", status, f"2026-01-01T00:00:0{n}Z") for n, status in enumerate(STATUSES)}
OURS: Json = {"list": {}, "requests": {"tools": {"call": {}}}}
LATER = {"_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}}


def serving(capability: Json = OURS) -> Server:
    """A server of four tasks on one page; it follows any cursor to an empty one."""
    pages = {None: page(BY_ID.values()), "t-1": page([])}
    return Server(pages, {"initialize": {**initialized(), "capabilities": {"tasks": capability}}}, BY_ID.get)


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
    async with rig_with(gateways, serving()) as rig:
        for params in ({}, {"cursor": None}):
            answered = final(await ask(rig, value, call("tasks/list", **params)))
            assert (ids(answered), answered["result"]["_meta"]["taskgate/filter"]) == (shown, value)
        assert not [one for one in rig.upstream.requests if one.value(b"taskgate-filter") is not None]


async def test_criteria_and_cursors_of_the_gateway_go_before_the_header(gateways: Gateways) -> None:
    async with rig_with(gateways, serving(), index={"page_size": 1}) as rig:
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
    async with rig_with(gateways, serving()) as rig:
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
    async with rig_with(gateways, serving(), index={"max_age": "60s"}) as rig:
        session = Session(rig)
        for value in ("status=working", "status=failed", "order=asc"):
            assert ids(final(await ask(rig, value, call("tasks/list"), session)))
        assert len(rig.asked("tasks/list")) == 1
        got = final(await ask(rig, "status=workin", call("tasks/get", taskId="t-1"), session))
        assert got["result"] == BY_ID["t-1"]
        twice = post(call("tasks/list"), *session.fields(), *[b"Taskgate-Filter: status=working"] * 2)
        assert (await rig.ask(twice)).status == 400
