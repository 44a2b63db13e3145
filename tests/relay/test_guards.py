"""Guards on task operations: a rate for each client, what queries take of it, a longest ttl; off unless configured."""

import asyncio
import gzip
import json
import socket
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.caller_identity import rate_limit_key
from gateway.config import GuardLimits
from tests.launch import Gateways, eventually
from tests.peer import Client, Peer
from tests.relay.http1 import Message
from tests.relay.messages import call, dumps, fault, filtered, page, result, task
from tests.relay.rig import Rig, Script, Server, body, rig_with
from tests.relay.wire import answer, post, request

pytestmark = pytest.mark.usefixtures("harness_alone")

ALICE, BOB = b"Authorization: Bearer alice", b"Authorization: Bearer bob"
ASK = call("tasks/get", taskId="t")
ALICES = post(ASK, ALICE)


async def echo(asked: Message, peer: Peer) -> bytes:
    """An upstream that answers every request, with an empty list."""
    return answer(result(body(asked)["id"], page([])))


@asynccontextmanager
async def guarded(
    gateways: Gateways, burst: int = 2, script: Script = echo, identities_max: int = 100, **changed: Any
) -> AsyncIterator[Rig]:
    """A rig whose clients have so many operations, and get no others in the time of a test."""
    guards = {"task_operations_per_second": 0.01, "task_operations_burst": burst, "identities_max": identities_max}
    async with rig_with(gateways, script, guards=guards, **changed) as rig:
        yield rig


async def statuses(rig: Rig, *pieces: bytes) -> list[int]:
    return [(await rig.ask(piece)).status for piece in pieces]


async def test_a_rate_holds_for_each_identity(gateways: Gateways) -> None:
    async with guarded(gateways) as rig:
        assert await statuses(rig, *[post(ASK, ALICE)] * 3, post(ASK, BOB)) == [200, 200, 429, 200]
        got = await rig.ask(post(call("tasks/get", 7, taskId="t"), ALICE))
        assert got.status == 429
        assert 1 <= int(got.value(b"retry-after") or 0) <= 100
        assert (body(got)["id"], body(got)["error"]["code"]) == (7, -32600)
        assert "too many task operations" in body(got)["error"]["message"]
        assert len(rig.asked("tasks/get")) == 3, "nothing of it reaches the upstream"
        assert (await rig.gateway.metrics())["taskgate_failures_total", (("kind", "RateLimited"), ("upstream", "up"))]


OPERATIONS = [
    *(ASK, call("tasks/cancel", taskId="t"), call("tasks/result", taskId="t")),
    *(call("tasks/list"), filtered(), call("tools/call", name="x", task={})),
]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda m: f"{m['method']}{len(m['params'])}")
async def test_every_operation_on_tasks_counts(gateways: Gateways, operation: object) -> None:
    async with guarded(gateways, burst=1) as rig:
        assert await statuses(rig, post(operation, ALICE), post(operation, ALICE)) == [200, 429]


async def test_nothing_else_counts(gateways: Gateways) -> None:
    async with guarded(gateways, burst=1) as rig:
        others = [call("tools/call", name="tasks/get"), call("ping"), call("tools/list")]
        assert await statuses(rig, *[post(message, ALICE) for message in others * 2]) == [200] * 6


async def echo_all(asked: Message, peer: Peer) -> bytes:
    return answer(result(1, {}))


def raw(data: bytes, *fields: bytes) -> bytes:
    return request(b"POST", b"/mcp", [b"Accept: application/json, text/event-stream", ALICE, *fields], data)


GET = dumps(ASK)
JSON_TYPE = b"Content-Type: application/json"
UNREAD = [
    pytest.param(raw(GET[:-2] + b',"x":' + b"[" * 2000 + b"]" * 2000 + b"}}", JSON_TYPE), id="deep"),
    pytest.param(raw(gzip.compress(GET), JSON_TYPE, b"Content-Encoding: gzip"), id="gzip"),
    pytest.param(raw(GET, JSON_TYPE, b"Content-Encoding: identity"), id="identity"),
    pytest.param(raw(GET, b"Content-Type: text/plain, application/json"), id="two types"),
    pytest.param(raw(b"[%b]" % GET, JSON_TYPE), id="a batch"),
    pytest.param(raw(GET.ljust(200_000), JSON_TYPE), id="large"),
]


@pytest.mark.parametrize("asked", UNREAD)
async def test_a_body_that_passes_unread_counts_once(gateways: Gateways, asked: bytes) -> None:
    """Some server reads each of these, so one token brought any number of requests."""
    async with guarded(gateways, script=echo_all, limits={"inspected_body_bytes_max": 100_000}) as rig:
        assert await statuses(rig, *[asked] * 4) == [200, 200, 429, 429]


async def test_a_batch_pays_for_each_of_its_messages(gateways: Gateways) -> None:
    async with guarded(gateways, burst=5, script=echo_all) as rig:
        batch = raw(b"[%b]" % b",".join([GET] * 3), JSON_TYPE)
        assert await statuses(rig, batch, batch, raw(GET, JSON_TYPE)) == [200, 200, 429], "6 were taken"


async def test_what_asks_for_no_event_stream_is_no_mcp_and_does_not_count(gateways: Gateways) -> None:
    async with guarded(gateways, burst=1, script=echo_all) as rig:
        login = request(b"POST", b"/token", [b"Content-Type: application/x-www-form-urlencoded", ALICE], b"a=b")
        registration = request(b"POST", b"/register", [JSON_TYPE, b"Accept: application/json", ALICE], b"{}")
        assert await statuses(rig, *[login, registration] * 2) == [200] * 4


async def test_tokens_come_back(gateways: Gateways) -> None:
    async with rig_with(gateways, echo, guards={"task_operations_per_second": 5, "task_operations_burst": 1}) as rig:
        await rig.ask(ALICES)
        await eventually(lambda: rig.succeeds(ALICES), "another token")


async def test_a_reload_that_leaves_the_guards_as_they_are_fills_no_bucket(gateways: Gateways) -> None:
    async with guarded(gateways, burst=1) as rig:
        app = rig.app
        assert await statuses(rig, ALICES, ALICES) == [200, 429]
        app.reload(lambda running: replace(running, index=replace(running.index, page_size=1)))
        assert await statuses(rig, ALICES) == [429]
        app.reload(lambda running: replace(running, guards=replace(running.guards, task_operations_burst=2)))
        assert await statuses(rig, ALICES, ALICES, ALICES) == [200, 200, 429]
        app.reload(lambda running: replace(running, guards=GuardLimits()))
        assert await statuses(rig, ALICES) == [200]


async def test_only_so_many_identities_are_told_apart(gateways: Gateways) -> None:
    async with guarded(gateways, burst=1, identities_max=1) as rig:
        assert await statuses(rig, post(ASK, ALICE), post(ASK, BOB), post(ASK, ALICE)) == [200, 200, 200]


def named(count: int, *fields: bytes) -> bytes:
    return post(filtered(taskIds=[f"t{n}" for n in range(count)]), *fields)


async def no_such_task(asked: Message, peer: Peer) -> bytes:
    """An upstream that knows no task, and lists none."""
    message = body(asked)
    if message["method"] == "tasks/get":
        return answer(fault(message["id"], -32602, "no such task"))
    return answer(result(message["id"], page([])))


async def test_a_wrong_query_costs_one(gateways: Gateways) -> None:
    async with guarded(gateways) as rig:
        assert await statuses(rig, *[post(filtered(status=7), ALICE)] * 3) == [200, 200, 429]
        assert len(rig.asked("tasks/list")) == 1


@pytest.mark.parametrize("count", [1, 2, 7, 99])
async def test_a_query_pays_for_each_task_that_is_asked_for(gateways: Gateways, count: int) -> None:
    async with guarded(gateways, burst=100, script=no_such_task) as rig:
        assert await statuses(rig, named(count, ALICE)) == [200]
        assert len(rig.asked("tasks/get")) == count
        assert await statuses(rig, *[ALICES] * (100 - count), ALICES) == [200] * (100 - count) + [429]


async def test_a_crawl_costs_one_and_so_does_a_query_that_needs_nothing(gateways: Gateways) -> None:
    pages = {None: page([], "2"), "2": page([], "3"), "3": page([])}

    async with guarded(gateways, burst=3, script=Server(pages), index={"max_age": "1h"}) as rig:
        assert await statuses(rig, *[post(filtered(), ALICE)] * 4) == [200, 200, 200, 429]
        assert len(rig.asked("tasks/list")) == 3, "three pages, once"


async def test_a_client_with_a_token_is_answered_and_owes_what_its_query_asks(gateways: Gateways) -> None:
    guards = {"task_operations_per_second": 2, "task_operations_burst": 2}
    async with rig_with(gateways, no_such_task, guards=guards) as rig:
        began_at = asyncio.get_running_loop().time()
        assert await statuses(rig, ALICES, named(6, ALICE)) == [200, 200]
        assert len(rig.asked("tasks/get")) == 7
        owes = await rig.ask(named(1, ALICE))
        assert owes.status == 429
        assert 1 <= int(owes.value(b"retry-after") or 0) <= 3, "5 below zero at most, at 2 a second"
        assert len(rig.asked("tasks/get")) == 7, "who is refused asks nothing, and takes nothing"
        await eventually(lambda: rig.succeeds(ALICES), "the bucket above zero again")
        assert asyncio.get_running_loop().time() - began_at > 2, "6 tokens at 2 a second, less what came back"


async def test_what_a_later_step_of_a_query_asks_is_taken_too(gateways: Gateways) -> None:
    """The ttl of tasks passes while the pages are read: before they are shown, the server is asked for each."""

    ends: list[datetime] = []

    async def expired(asked: Message, peer: Peer) -> bytes:
        message, now = body(asked), datetime.now(UTC)
        if message["method"] == "tasks/get":
            return answer(fault(message["id"], -32602, "no such task"))
        if "cursor" in message["params"]:
            await eventually(lambda: datetime.now(UTC) > ends[0], "the end of the ttl")
            return answer(result(message["id"], page([])))
        ends.append(now + timedelta(milliseconds=20))
        tasks = [task(f"t{n}", created=now.isoformat().replace("+00:00", "Z"), ttl=10) for n in range(5)]
        return answer(result(message["id"], page(tasks, "2")))

    async with guarded(gateways, burst=3, script=expired) as rig:
        assert await statuses(rig, post(filtered(), ALICE)) == [200], "what has begun is finished"
        assert [len(rig.asked("tasks/list")), len(rig.asked("tasks/get"))] == [2, 5]
        refused = await rig.ask(post(call("tasks/list"), ALICE))
        assert refused.status == 429
        assert 350 < int(refused.value(b"retry-after") or 0) <= 400, "3 - 1 - 5 is 3 below zero, at 0.01 a second"


async def test_a_server_that_is_asked_first_costs_one_more(gateways: Gateways) -> None:
    """A client of an earlier revision: the server is asked as the client does, before its tasks are asked for."""
    earlier = b"MCP-Protocol-Version: 2025-06-18"
    async with guarded(gateways, burst=10, script=no_such_task) as rig:
        assert await statuses(rig, named(9, ALICE, earlier)) == [200]
        assert [len(rig.asked("tasks/list")), len(rig.asked("tasks/get"))] == [1, 9]
        assert await statuses(rig, ALICES) == [429]


async def test_who_begins_an_ask_pays_for_it_and_who_joins_it_pays_one(gateways: Gateways) -> None:
    go = asyncio.Event()

    async def held(asked: Message, peer: Peer) -> bytes:
        await go.wait()
        return await no_such_task(asked, peer)

    async with guarded(gateways, burst=8, script=held) as rig:
        first = await rig.client(named(5, ALICE))
        await rig.upstream.until(lambda: len(rig.upstream.requests) == 5, "the first query's asks")
        others = [await rig.client(named(5, ALICE)) for _ in range(3)]
        await rig.gateway.until(
            lambda now: now["taskgate_requests_in_flight", (("upstream", "up"),)] == 4, "the others under way"
        )
        go.set()
        assert [(await one.response()).status for one in (first, *others)] == [200] * 4
        assert len(rig.upstream.requests) == 5
        assert await statuses(rig, ALICES) == [429], "8 were taken"


ONE_CLIENT: dict[str, Callable[[int], bytes]] = {
    "an invented field": lambda n: b"X-Invented: %d" % n,
    "an invented name": lambda n: b"X-Invented-%d: 1" % n,
    "an address": lambda n: b"X-Forwarded-For: 10.0.0.%d" % n,
    "a session": lambda n: b"Mcp-Session-Id: %d" % n,
    "of another proxy": lambda n: b"Proxy-Authorization: %d" % n,
    "a cookie beside Authorization": lambda n: ALICE + b"\r\nCookie: %d" % n,
    "a key beside a cookie": lambda n: b"Cookie: alice\r\nX-Api-Key: %d" % n,
    "white space behind it": lambda n: ALICE + b" " * n,
    "tabs behind it": lambda n: ALICE + b"\t" * n,
    "white space inside": lambda n: b"Authorization: Bearer " + b" " * n + b"alice",
    "case": lambda n: b"Authorization: " + [b"bearer", b"Bearer", b"BEARER", b"beareR"][n] + b" alice",
    "a word behind the token": lambda n: ALICE + b" %d" % n,
    "a second field behind it": lambda n: ALICE + b"\r\nAuthorization: %d" % n,
    "a second field before it": lambda n: b"Authorization: %d\r\n" % n + ALICE,
    "a second cookie field": lambda n: b"Cookie: alice\r\nCookie: %d" % n,
}


NAMED = ["authorization", "Cookie"]
_BOTH_NAMED = "a cookie beside Authorization", NAMED


@pytest.mark.parametrize(("how", "named"), [(h, n) for n in (None, NAMED) for h in ONE_CLIENT if (h, n) != _BOTH_NAMED])
async def test_what_is_invented_or_spelled_otherwise_makes_no_other_client(
    gateways: Gateways, how: str, named: list[str] | None
) -> None:
    """Servers take each spelling for one token. Several fields count by the address: one of them is invented."""
    async with guarded(gateways, upstream={"identity_headers": named}) as rig:
        assert await statuses(rig, *(post(ASK, ONE_CLIENT[how](n)) for n in range(4))) == [200, 200, 429, 429]


async def test_clients_are_told_apart_by_authorization_then_cookie_then_address(gateways: Gateways) -> None:
    async with guarded(gateways, burst=1) as rig:
        asked = [ALICE, BOB, b"Cookie: alice", b"Cookie: bob", b"X-None: of these"]
        assert await statuses(rig, *(post(ASK, field) for field in asked)) == [200] * 5
        assert await statuses(rig, *(post(ASK, field) for field in asked)) == [429] * 5
        sock = socket.create_connection(("127.0.0.1", rig.gateway.port), source_address=("127.0.0.9", 0))
        other = Client(sock)
        await other.send(post(ASK))
        assert (await other.response()).status == 200, "another address"
        await other.close()


async def test_identity_headers_say_whom_guards_count(gateways: Gateways) -> None:
    async with guarded(gateways, burst=1, upstream={"identity_headers": ["X-User"]}) as rig:
        fields = [(b"X-User: a", ALICE), (b"X-User: b", ALICE), (b"X-User: a", BOB), (ALICE,), (BOB,)]
        assert await statuses(rig, *(post(ASK, *each) for each in fields)) == [200, 200, 429, 200, 429]


async def test_over_a_unix_socket_all_without_credentials_are_one_client(gateways: Gateways) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "gateway.sock")
        async with guarded(gateways, burst=1, listen=f"unix:{path}"):
            seen = []
            for field in (b"X-A: 1", b"X-A: 2", ALICE, BOB):
                reader, writer = await asyncio.open_unix_connection(path)
                writer.write(post(ASK, field))
                seen.append(int((await reader.readline()).split()[1]))
                writer.close()
                await writer.wait_closed()
            assert seen == [200, 429, 200, 200]


def test_of_an_ipv6_address_the_network_counts() -> None:
    """One customer has 2**64 addresses there."""

    def whose(address: str) -> bytes:
        return rate_limit_key((), None, address)

    assert whose("2001:db8::1") == whose("2001:db8::ffff:2") != whose("2001:db8:0:1::1")
    assert whose("fe80::1%eth0") == whose("fe80::2%eth1")
    assert whose("::ffff:192.0.2.1") == whose("192.0.2.1") != whose("::ffff:192.0.2.2") != whose("unix")


TTL = b'{"jsonrpc":"2.0", "id":1,"method":"tools/call","params":{"name":"x","task":{ "ttl" : %b ,"x":1e400}},"y":[ ]}'
LOWERED = [b"60001", b"1e9", b"9" * 400, b"60000.5", b"null"]
KEPT = [b"60000", b"0", b"-1", b"59999.9", b'"90000"', b"{}", b"6e4"]


@pytest.mark.parametrize("given", LOWERED + KEPT)
async def test_a_ttl_that_is_too_long_is_lowered_and_nothing_else(gateways: Gateways, given: bytes) -> None:
    sent = b"60000" if given in LOWERED else given
    async with rig_with(gateways, echo, guards={"task_ttl_max": "60s"}) as rig:
        assert (await rig.ask(post(TTL % given))).status == 200
        [seen] = rig.upstream.requests
        assert seen.body == TTL % sent
        assert seen.value(b"content-length") == b"%d" % len(TTL % sent)


async def test_without_guards_nothing_is_lowered_or_refused(gateways: Gateways) -> None:
    async with rig_with(gateways, echo) as rig:
        data = TTL % b"99999999999"
        assert await statuses(rig, *[post(data, ALICE)] * 30) == [200] * 30
        assert {seen.body for seen in rig.upstream.requests} == {data}
        assert json.loads(data)["params"]["task"]["ttl"] == 99999999999


# Each of these is an operation to a reader that ignores case, or takes the first of two members, or reads escapes.
ODD = [
    b'{"jsonrpc":"2.0","id":1,"METHOD":"tasks/get","params":{"taskId":"t"}}',
    b'{"jsonrpc":"2.0","id":1,"method":"tasks/get","method":"ping","params":{"taskId":"t"}}',
    b'{"jsonrpc":"2.0","id":1,"method":"ping","\\u006dethod":"ping","Method":"tasks/get"}',
    b'{"jsonrpc":"2.0","ID":1,"method":"tasks/get","params":{"taskId":"t"}}',
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","Task":{}}}',
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","Params":{"name":"x","task":{}}}',
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"task":{}},"params":{"name":"x"}}',
    '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","ta\u017fk":{}}}'.encode(),
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","ta\xffsk":{}}}',
    b'{"jsonrpc":"2.0","id":"\\ud83d","method":"tasks/get","params":{"taskId":NaN}}',
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","tas\\u212A":{}}}',
]


@pytest.mark.parametrize("odd", ODD)
async def test_what_another_reader_takes_for_an_operation_counts(gateways: Gateways, odd: bytes) -> None:
    """Servers in Go and C# ignore the case of names: one token brought any number of operations."""
    async with guarded(gateways, burst=1, script=echo_all) as rig:
        assert await statuses(rig, post(odd, ALICE), post(odd, ALICE)) == [200, 429]
        assert [seen.body for seen in rig.upstream.requests] == [odd], "it passes as it came"


async def test_arguments_of_tools_are_free(gateways: Gateways) -> None:
    arguments = (
        b'{"id":1,"ID":2,"Method":"a","method":"b","method":"c","task":{"TTL":9},"Task":{"ttl":9},"ttl":1,"ttl":2}'
    )
    data = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":%b,"_meta":%b}}'
    async with guarded(gateways, burst=1, script=echo_all) as rig:
        for odd in (b"1", b"NaN", b'"\\ud83d"'):
            asked = post(data % (arguments[:-1] + b',"x":%b}' % odd, arguments), ALICE)
            assert await statuses(rig, asked, asked) == [200] * 2


UNCLEAR = [
    b'"task":{"TTL":99999999}', b'"task":{"ttl":1,"ttl":99999999}', b'"task":{"ttl":99999999,"ttl":1}',
    b'"task":{"ttl":1,"T\\u0074L":99999999}', b'"Task":{"ttl":99999999}', b'"task":{"ttl":99999999},"task":{}',
    b'"task":{"ttl":1}},"PARAMS":{"task":{"ttl":99999999}', b'"task":{"ttl":99999999,"x":NaN}',
    b'"task":{"ttl":99999999},"y":"\\ud83d"', b'"task":{"ttl":NaN}', b'"ta\xffsk":{"ttl":99999999}',
]  # fmt: skip


@pytest.mark.parametrize("params", UNCLEAR)
async def test_a_ttl_that_cannot_be_told_is_refused(gateways: Gateways, params: bytes) -> None:
    """A server in Go kept such a task for as long as the client wanted."""
    async with rig_with(gateways, echo, guards={"task_ttl_max": "60s"}) as rig:
        data = b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"x",%b}}'
        refused = await rig.ask(post(data % params))
        error = body(refused)["error"]
        assert (refused.status, body(refused)["id"], error["code"]) == (200, 7, -32602)
        assert "ttl" in error["message"]
        told = data.replace(b'"method"', b'"METHOD":"a","method"') % b'"task":{"ttl":99999999}'
        assert (await rig.ask(post(told))).status == 200
        assert [seen.body for seen in rig.upstream.requests] == [told.replace(b"99999999", b"60000")], "it can be told"
