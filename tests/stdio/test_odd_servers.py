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


async def asks(stage: Stage) -> int:
    """How often the server was asked for its list by two lists, one before and one after what it has said."""
    await stage.client.send(QUERY_ALL)
    await stage.client.hears(b'"id":"q"', 2)
    return stage.server.received.count(b'"tasks/list"')


@pytest.mark.parametrize("said", LOGS, ids=range(len(LOGS)))
async def test_a_line_of_a_log_tells_of_no_task(small: Stage, said: bytes) -> None:
    """All was in doubt for it, and each list of a server that logs there was read anew."""
    await small.answered(task("t-0", "completed"))
    await small.server.send(said + b"\n")
    await small.client.hears(said + b"\n")
    assert await asks(small) == 1


@pytest.mark.parametrize("said", MAY_TELL, ids=range(len(MAY_TELL)))
async def test_a_line_that_another_reader_may_take_for_a_message_puts_all_in_doubt(small: Stage, said: bytes) -> None:
    await small.answered(task("t-0", "completed"))
    await small.server.send(said + b"\n")
    await small.client.hears(said + b"\n")
    await small.client.send(QUERY_ALL)
    await small.lists(task("t-0", "completed"), number=2)
    await small.client.hears(b'"id":"q"', 2)


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
