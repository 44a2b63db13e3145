"""Servers on stdio whose lines are odd: no list is read anew for a log, and none waits for an answer in vain."""

import json
from typing import Final

import pytest

from tests.stdio.harness import QUERY_ALL, Stage, call, result, task

LOGS: Final = [
    b"[INFO] listening", b"[12:00:01] working", b"{}", b"[]", b"{ok}", b"{", b"}", b"[1,2]", b"['a']", b"{'level': 1}",
    b'{"level":30,"time":1764288000,"msg":"request","method":"GET","id":7}', b'[{"level":"info"}]',
    b'{"level":"error","error":"no such task","taskId":"t-0"}', b'{"msg":"\\u001b[32mdone","result":"ok"}',
    b'{"msg":"caf\xe9"}', b"\xef\xbb\xbf[INFO] x", b"[" + b"x" * 3000 + b"]", b"{" + b"x" * 3000, b"",
]  # fmt: skip
MAY_TELL: Final = [
    b'{"jsonrpc":"2.0","id":1,"result":{"task":{"taskId":"t-', b'{"result":{"taskId":"t-9","status":', b'{"jsonrpc":2}',
    b'[{"jsonrpc":"2.0","method":"notifications/tasks/status","params":{}}]', b'{"id":9,"error":{"code":-32602}}',
    "{\"jsonrpc\":\"2.0\"}".encode("utf-16"), b'{"jsonrpc":"2.0","result":"' + b"x" * 3000,
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(LOGS + MAY_TELL)))
async def test_a_line_tells_of_tasks_only_if_another_reader_may_take_it_for_a_message(
    small: Stage, number: int
) -> None:
    """All was in doubt for a line of a log, and each list of a server that logs there was read anew."""
    said, may_tell = (LOGS + MAY_TELL)[number] + b"\n", number >= len(LOGS)
    await small.answered(task("t-0", "completed"))
    await small.server.send(said)
    await small.client.hears(said)
    await small.client.send(QUERY_ALL)
    if may_tell:
        await small.lists(task("t-0", "completed"), number=2)
    await small.client.hears(b'"id":"q"', 2)
    assert small.server.received.count(b'"tasks/list"') == 1 + may_tell


async def test_a_line_of_a_log_answers_no_request(stage: Stage) -> None:
    """It has the id of one that is under way: its answer was one to an unknown request then."""
    await stage.answered(task("t-0"))
    await stage.client.send(call(7, "tasks/get", taskId="t-0"))
    await stage.server.hears(b'"id":7')
    await stage.server.send(b'{"level":"info","id":7}\n')
    assert stage.gauge("requests_in_flight") == {"stdio": 1}
    await stage.server.send(result(7, task("t-0")))
    await stage.client.hears(json.dumps(task("t-0"), separators=(",", ":")).encode(), 2)
    assert stage.gauge("requests_in_flight") == {"stdio": 0}


# ---- ids ----


WRONG: Final[dict[str, tuple[object, str]]] = {
    "nothing": (None, "null"), "less": (-1, "-1"), "text": ("server-error", "server-error"),
    "half": (0.5, "0.5"),
}  # fmt: skip


async def test_the_gateways_own_requests_have_integers_for_ids_that_no_client_has_out(stage: Stage) -> None:
    """Some servers read nothing else: the answer to a text had another id, reached the client, and the list failed."""
    await stage.client.send(QUERY_ALL)
    first = await stage.server.own()
    assert type(first["id"]) is int and 2_000_000_000 <= first["id"] < 2**31
    await stage.client.send(call(first["id"] + 1, "tools/call"))
    await stage.server.hears(b'"tools/call"')
    await stage.server.send(result(first["id"], {"tasks": [task("t-0")], "nextCursor": "1"}))
    await stage.server.hears(b'"cursor":"1"')
    ids = [each["id"] for each in stage.server.messages() if each.get("method") != "initialize"]
    assert len({str(each) for each in ids}) == 3, "the id between them is the client's"
    await stage.server.send(result(first["id"] + 1, {"content": []}))
    await stage.client.hears(result(first["id"] + 1, {"content": []}))
    await stage.server.send(result(ids[-1], {"tasks": [task("t-1")]}))
    await stage.client.hears(b'"taskgate/total":2')


@pytest.mark.parametrize("wrong", WRONG)
async def test_an_answer_with_a_wrong_id_is_an_error_that_names_it(stage: Stage, wrong: str) -> None:
    message_id, said = WRONG[wrong]
    await stage.client.send(QUERY_ALL)
    for number in (1, 2):  # what is broken is asked for once more
        await stage.server.own(number)
        await stage.server.send(result(message_id, {"tasks": [task("t-0")]}))
    await stage.client.hears(b'"id":"q"')
    error = stage.client.messages()[-1]["error"]
    assert error["message"].endswith(f"with the id {said}"), error
    assert b"t-0" not in stage.client.received
    await stage.client.send(QUERY_ALL)
    await stage.lists(task("t-0"), number=3)
    await stage.client.hears(b'"taskgate/total":1')


@pytest.mark.parametrize("said", [b'"id":null,', b""])
async def test_an_error_without_an_id_is_that_of_the_request_if_only_the_gateway_has_one_out(
    stage: Stage, said: bytes
) -> None:
    """JSON-RPC 2.0, 5: what cannot be read has null for its id. One without passed, and the list got no answer."""
    await stage.client.send(QUERY_ALL)
    await stage.server.own()
    await stage.server.send(b'{"jsonrpc":"2.0",%b"error":{"code":-32700,"message":"Parse error"}}\n' % said)
    await stage.client.hears(b'"id":"q","error":{"code":-32700,"message":"Parse error"}')


@pytest.mark.parametrize("waits", [False, True])
async def test_an_answer_that_may_be_the_clients_passes(stage: Stage, waits: bool) -> None:
    """One that the client waits for, with another id; or one that it had already, once more."""
    await stage.client.send(call(7, "ping"))
    await stage.server.hears(b'"ping"')
    if not waits:
        await stage.server.send(result(7, {}))
        await stage.client.hears(result(7, {}))
    await stage.client.send(QUERY_ALL)
    own = await stage.server.own()
    odd = result(None if waits else 7, {"odd": True})
    await stage.server.send(odd)
    await stage.client.hears(odd)
    await stage.server.send(result(own["id"], {"tasks": []}))
    await stage.client.hears(b'"taskgate/total":0')
