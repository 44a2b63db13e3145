"""Guards on task operations: a rate for each identity, a longest ttl; off unless configured.

In: requests about tasks. Out: what reaches the upstream, byte for byte, and 429.
"""

import json

import pytest
from msgspec.structs import replace

from gateway.config import GuardLimits
from tests.launch import Gateways, eventually
from tests.peer import Peer
from tests.relay.http1 import Message
from tests.relay.messages import answer, call, chunked, filtered, page, post, request, result
from tests.relay.rig import Rig, body, rig_with

pytestmark = pytest.mark.usefixtures("harness_alone")

ALICE, BOB = b"Authorization: Bearer alice", b"Authorization: Bearer bob"
SLOW = {"task_operations_per_second": 0.01, "task_operations_burst": 2}


async def echo(asked: Message, peer: Peer) -> bytes:
    """An upstream that answers every request, with an empty list."""
    return answer(result(body(asked)["id"], page([])))


async def statuses(rig: Rig, *pieces: bytes) -> list[int]:
    return [(await rig.ask(piece)).status for piece in pieces]


async def test_a_rate_holds_for_each_identity(gateways: Gateways) -> None:
    async with rig_with(gateways, guards=SLOW) as rig:
        rig.serve(echo)
        get = call("tasks/get", taskId="t")
        assert await statuses(rig, *[post(get, ALICE)] * 3, post(get, BOB)) == [200, 200, 429, 200]
        got = await rig.ask(post(call("tasks/get", 7, taskId="t"), ALICE))
        assert got.status == 429
        assert 1 <= int(got.value(b"retry-after") or 0) <= 100
        assert (body(got)["id"], body(got)["error"]["code"]) == (7, -32600)
        assert "too many task operations" in body(got)["error"]["message"]
        assert len(rig.asked("tasks/get")) == 3, "nothing of it reaches the upstream"
        assert (await rig.gateway.metrics())["taskgate_failures_total", (("kind", "RateLimited"), ("upstream", "up"))]


OPERATIONS = [
    call("tasks/get", taskId="t"),
    call("tasks/cancel", taskId="t"),
    call("tasks/result", taskId="t"),
    call("tasks/list"),
    filtered(),
    call("tools/call", name="x", task={}),
]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda m: f"{m['method']}{len(m['params'])}")
async def test_every_operation_on_tasks_counts(gateways: Gateways, operation: object) -> None:
    async with rig_with(gateways, guards={**SLOW, "task_operations_burst": 1}) as rig:
        rig.serve(echo)
        assert await statuses(rig, post(operation, ALICE), post(operation, ALICE)) == [200, 429]


async def test_nothing_else_counts(gateways: Gateways) -> None:
    async with rig_with(gateways, guards={**SLOW, "task_operations_burst": 1}) as rig:
        rig.serve(echo)
        others = [call("tools/call", name="tasks/get"), call("ping"), call("tools/list")]
        assert await statuses(rig, *[post(message, ALICE) for message in others * 2]) == [200] * 6


async def test_tokens_come_back(gateways: Gateways) -> None:
    async with rig_with(gateways, guards={"task_operations_per_second": 5, "task_operations_burst": 1}) as rig:
        rig.serve(echo)
        get = post(call("tasks/get", taskId="t"), ALICE)
        await rig.ask(get)

        async def again() -> bool:
            return (await rig.ask(get)).status == 200

        await eventually(again, "another token")


async def test_a_reload_that_leaves_the_guards_as_they_are_fills_no_bucket(gateways: Gateways) -> None:
    async with rig_with(gateways, guards={**SLOW, "task_operations_burst": 1}) as rig:
        rig.serve(echo)
        app, get = rig.gateway.app, post(call("tasks/get", taskId="t"), ALICE)
        assert app is not None
        assert await statuses(rig, get, get) == [200, 429]
        app.reload(lambda running: replace(running, index=replace(running.index, page_size=1)))
        assert await statuses(rig, get) == [429]
        app.reload(lambda running: replace(running, guards=replace(running.guards, task_operations_burst=2)))
        assert await statuses(rig, get, get, get) == [200, 200, 429]
        app.reload(lambda running: replace(running, guards=GuardLimits()))
        assert await statuses(rig, get) == [200]


async def test_only_so_many_identities_are_told_apart(gateways: Gateways) -> None:
    async with rig_with(gateways, guards={**SLOW, "task_operations_burst": 1, "identities_max": 1}) as rig:
        rig.serve(echo)
        get = call("tasks/get", taskId="t")
        assert await statuses(rig, post(get, ALICE), post(get, BOB), post(get, ALICE)) == [200, 200, 200]


TTL = b'{"jsonrpc":"2.0", "id":1,"method":"tools/call","params":{"name":"x","task":{ "ttl" : %b ,"x":1e400}},"y":[ ]}'
LOWERED = [b"60001", b"1e9", b"9" * 400, b"60000.5", b"null"]
KEPT = [b"60000", b"0", b"-1", b"59999.9", b'"90000"', b"{}", b"6e4"]


@pytest.mark.parametrize("given", LOWERED + KEPT)
async def test_a_ttl_that_is_too_long_is_lowered_and_nothing_else(gateways: Gateways, given: bytes) -> None:
    sent = b"60000" if given in LOWERED else given
    async with rig_with(gateways, guards={"task_ttl_max": "60s"}) as rig:
        rig.serve(echo)
        assert (await rig.ask(post(TTL % given))).status == 200
        [seen] = rig.upstream.requests
        assert seen.body == TTL % sent
        assert seen.value(b"content-length") == b"%d" % len(TTL % sent)


async def test_a_ttl_in_a_chunked_body_is_lowered_too(gateways: Gateways) -> None:
    async with rig_with(gateways, guards={"task_ttl_max": "60s"}) as rig:
        rig.serve(echo)
        data = TTL % b"99999999"
        fields = [b"Content-Type: application/json", b"Transfer-Encoding: chunked"]
        assert (await rig.ask(request(b"POST", b"/mcp", fields) + chunked(data[:40], data[40:]))).status == 200
        [seen] = rig.upstream.requests
        assert seen.body == TTL % b"60000"


async def test_without_guards_nothing_is_lowered_or_refused(gateways: Gateways) -> None:
    async with rig_with(gateways) as rig:
        rig.serve(echo)
        data = TTL % b"99999999999"
        assert await statuses(rig, *[post(data, ALICE)] * 30) == [200] * 30
        assert {seen.body for seen in rig.upstream.requests} == {data}
        assert json.loads(data)["params"]["task"]["ttl"] == 99999999999
