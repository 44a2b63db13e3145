"""Criteria over real sockets: from a client's parameters to its pages (DESIGN 4.2, 5)."""

from typing import Any

from tests.launch import Gateways
from tests.peer import Peer
from tests.relay.http1 import Message
from tests.relay.messages import LAST_CHUNK, call, chunk, dumps, filtered, initialized, page, result, stream, task
from tests.relay.rig import Rig, Server, Session, body, final, ids, own, rig_with
from tests.relay.wire import answer

TASKS = [task(f"t-{n}", "failed" if n % 2 else "completed", f"2026-01-01T00:00:{n:02}Z") for n in range(9)]
FAILED = ["t-7", "t-5", "t-3", "t-1"]


class Tasks(Server):
    """A script: a server with tasks, which also answers `initialize`."""

    async def __call__(self, request: Message, peer: Peer) -> bytes | None:
        message = body(request)
        if message["method"] == "initialize":
            return answer(result(message["id"], initialized()))
        return await super().__call__(request, peer)


async def followed(rig: Rig | Session, **params: Any) -> list[list[str]]:
    """The ids on each page of a list, by following its cursors; in a new session, unless one is given."""
    session, pages = Session(rig) if isinstance(rig, Rig) else rig, list[list[str]]()
    while True:
        response = final(await session.ask(filtered(1, **params)))
        pages.append(ids(response))
        if (cursor := response["result"].get("nextCursor")) is None:
            return pages
        assert params != {"cursor": cursor}, "the page is the one before: it would go on for ever"
        params = {"cursor": cursor}


async def test_a_cursor_that_spells_criteria_is_a_filtered_list(gateways: Gateways) -> None:
    """Any typed client can send it. Ordinary cursors follow. None of it reaches the server."""
    async with rig_with(gateways, Tasks({None: page(TASKS)}), index={"page_size": 3}) as rig:
        for text in (
            "taskgate:?status=failed&createdAfter=2026-01-01T00:00:00Z",
            "taskgate:?status=failed&status=failed,cancelled",
            "taskgate:?st%61tus=%66ailed&orderBy=createdAt",
        ):
            assert await followed(rig, cursor=text) == [FAILED[:3], FAILED[3:]]
        assert await followed(rig, cursor="taskgate:?status=failed&order=asc") == [FAILED[:0:-1], FAILED[:1]]
        assert {str(asked.get("params", {}).get("cursor")) for asked in rig.asked("tasks/list")} == {"None"}


async def test_parameters_that_are_no_criteria_are_named_in_the_answer(rig: Rig) -> None:
    """Beside a criterion."""
    rig.serve(Tasks({None: page(TASKS)}))
    session = Session(rig)
    for params in (
        {"order": "desc", "staus": ["failed"], "limit": 1, "_meta": {"a": 1}},
        {"cursor": "taskgate:?order=desc", "staus": ["failed"], "limit": 1},
    ):
        said = final(await session.ask(call("tasks/list", **params)))["result"]
        assert said["_meta"]["taskgate/ignored"] == ["staus", "limit"]
        assert len(said["tasks"]) == len(TASKS)
    said = final(await session.ask(filtered(1, order="desc")))["result"]
    assert said["_meta"].keys() == {"taskgate/total", "taskgate/asOf"}


async def test_a_misspelt_criterion_is_named_in_the_servers_list_and_every_other_byte_stays(
    gateways: Gateways,
) -> None:
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
