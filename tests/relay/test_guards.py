"""Guards on task operations: a rate for each client, what queries take of it, a longest ttl; off unless configured."""

import asyncio
import gzip
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.caller_identity import rate_limit_key
from gateway.config import GuardLimits
from tests.launch import Gateways, eventually
from tests.own_ids import OWN
from tests.peer import Client, Peer
from tests.relay.http1 import Message
from tests.relay.messages import Json, answer, call, dumps, filtered, page, post, request, result, task
from tests.relay.rig import Rig, Script, Server, body, meant, rig_with

ALICE, BOB = b"Authorization: Bearer alice", b"Authorization: Bearer bob"
ASK = call("tasks/get", taskId="t")
ALICES = post(ASK, ALICE)


PAGES = Server({None: page([], "2"), "2": page([], "3"), "3": page([])}, get=lambda i: task(i, "completed"))


async def server(asked: Message, peer: Peer) -> bytes | None:
    """An upstream that knows each task, lists none on three pages, and has an empty result to all else."""
    message = body(asked)
    is_known = isinstance(message, dict) and message.get("method") in ("tasks/list", "tasks/get")
    if is_known and str(message.get("id", "\n")).isprintable():  # else no answer could repeat it
        return await PAGES(asked, peer)
    return answer(result(1, {}))


@asynccontextmanager
async def guarded(
    gateways: Gateways, burst: int = 2, script: Script = server, identities_max: int = 100, **changed: Any
) -> AsyncIterator[Rig]:
    """A rig whose clients have so many operations, and get no others in the time of a test."""
    guards = {"task_operations_per_second": 0.01, "task_operations_burst": burst, "identities_max": identities_max}
    async with rig_with(gateways, script, guards=guards, **changed) as rig:
        yield rig


async def statuses(rig: Rig, *pieces: bytes) -> list[int]:
    """The statuses; 429 too for the error that stands for it in a response of 200."""
    return [meant(await rig.ask(piece)) for piece in pieces]


async def test_a_rate_holds_for_each_identity(gateways: Gateways) -> None:
    async with guarded(gateways) as rig:
        assert await statuses(rig, *[post(ASK, ALICE)] * 3, post(ASK, BOB)) == [200, 200, 429, 200]
        shown = (await rig.gateway.shown())["verdict"]
        assert (shown["level"], shown["text"]) == ("note", "Requests to up beyond a guard's rate: 1")
        got = await rig.ask(post(call("tasks/get", 7, taskId="t"), ALICE))
        assert (got.status, got.value(b"retry-after")) == (200, None), "a status from 400 up would end its session"
        assert (body(got)["id"], body(got)["error"]["code"]) == (7, -32600)
        assert "Too Many Requests: too many task operations" in body(got)["error"]["message"]
        assert 1 <= body(got)["error"]["data"]["retryAfterSeconds"] <= 100
        assert len(rig.asked("tasks/get")) == 3, "nothing of it reaches the upstream"
        counts = await rig.gateway.metrics()
        assert counts["taskgate_failures_total", (("kind", "RateLimited"), ("upstream", "up"))]
        labels = (("kind", "refused"), ("method", "tasks/get"), ("status", "429"), ("upstream", "up"))
        assert counts["taskgate_requests_total", labels] == 2, "an operator sees what was meant"


@asynccontextmanager
async def waiting(gateways: Gateways, per_second: float) -> AsyncIterator[Rig]:
    """A rig at which a client has one operation, and the next ones soon: polls may wait for them."""
    guards = {"task_operations_per_second": per_second, "task_operations_burst": 1}
    async with rig_with(gateways, server, guards=guards) as rig:
        yield rig


async def test_polls_wait_for_their_turn_and_another_operation_goes_before_them(gateways: Gateways) -> None:
    """A poll that a guard refused ended the call of the TypeScript SDK, whose task worked on."""
    async with waiting(gateways, per_second=1) as rig:
        polls = [await rig.client(ALICES) for _ in range(3)]
        polls.append(await rig.client(post(call("tasks/result", taskId="t"), ALICE)))
        await eventually(lambda: len(rig.asked("tasks/get")) == 1, "the first poll, and three that wait")
        cancels = post(call("tasks/cancel", taskId="t"), ALICE)
        assert await statuses(rig, cancels, cancels) == [200, 429], "one goes before them, a second would starve them"
        assert [meant(await one.response()) for one in polls] == [200] * 4


async def test_only_so_many_polls_wait(gateways: Gateways) -> None:
    async with waiting(gateways, per_second=21) as rig:
        polls = [await rig.client() for _ in range(300)]
        await asyncio.gather(*(one.send(ALICES) for one in polls))  # at once, however long connections take
        found = [meant(await one.response()) for one in polls]
        assert found.count(200) + found.count(429) == 300
        assert 101 <= found.count(200) < 300, "what waits is bounded"


async def test_a_poll_whose_client_leaves_keeps_nobody_waiting(gateways: Gateways) -> None:
    async with waiting(gateways, per_second=0.5) as rig:
        assert await statuses(rig, ALICES) == [200]
        polls = [await rig.client(ALICES) for _ in range(2)]
        await rig.gateway.becomes("requests_in_flight", 2, upstream="up")
        for one in polls:
            one.reset()
        await rig.gateway.becomes("requests_in_flight", 0, upstream="up")
        assert await statuses(rig, ALICES) == [200], "it waits 2 s, not 6"
        assert len(rig.asked("tasks/get")) == 2


def raw(data: bytes, *fields: bytes) -> bytes:
    return request(b"POST", b"/mcp", [b"Accept: application/json, text/event-stream", ALICE, *fields], data)


def named(count: int, *fields: bytes) -> bytes:
    return post(filtered(taskIds=[f"t{n}" for n in range(count)]), ALICE, *fields)


GET = dumps(ASK)
JSON_TYPE = b"Content-Type: application/json"
OPERATIONS = [
    *(ASK, call("tasks/cancel", taskId="t"), call("tasks/result", taskId="t")),
    *(call("tasks/list"), filtered(), call("tools/call", name="x", task={})),
]
UNREAD = {
    "deep": raw(GET[:-2] + b',"x":' + b"[" * 2000 + b"]" * 2000 + b"}}", JSON_TYPE),
    "gzip": raw(gzip.compress(GET), JSON_TYPE, b"Content-Encoding: gzip"),
    "identity": raw(GET, JSON_TYPE, b"Content-Encoding: identity"),
    "two types": raw(GET, b"Content-Type: text/plain, application/json"),
    "a batch": raw(b"[%b]" % GET, JSON_TYPE), "large": raw(GET.ljust(200_000), JSON_TYPE),
}  # fmt: skip
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
_ARGUMENTS = b'{"id":1,"ID":2,"Method":"a","method":"b","method":"c","task":{"TTL":9},"Task":{"ttl":9},"ttl":1,"ttl":2'
FREE = [
    *map(dumps, (call("tools/call", name="tasks/get"), call("ping"), call("tools/list"))),
    *(
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":%b,"x":%b},"_meta":%b}}}'
        % (_ARGUMENTS, odd, _ARGUMENTS)
        for odd in (b"1", b"NaN", b'"\\ud83d"')
    ),
]
NO_MCP = [  # they ask for no event stream
    request(b"POST", b"/token", [b"Content-Type: application/x-www-form-urlencoded", ALICE], b"a=b"),
    request(b"POST", b"/register", [JSON_TYPE, b"Accept: application/json", ALICE], b"{}"),
]
BATCH = raw(b"[%b]" % b",".join([GET] * 3), JSON_TYPE)
# What is asked of a client's bucket of so many: the answers, and the server's own `tasks/list` and `tasks/get`.
COSTS: dict[str, tuple[int, list[bytes], list[int], tuple[int, int] | None]] = {
    **{f"{m['method']}{len(m['params'])}": (1, [post(m, ALICE)] * 2, [200, 429], None) for m in OPERATIONS},
    "all else": (1, [post(message, ALICE) for message in FREE * 2], [200] * 2 * len(FREE), None),
    "no MCP": (1, NO_MCP * 2, [200] * 4, None),
    **{f"unread: {name}": (2, [asked] * 4, [200, 200, 429, 429], None) for name, asked in UNREAD.items()},
    "a batch costs each of its messages": (5, [BATCH, BATCH, raw(GET, JSON_TYPE)], [200, 200, 429], None),
    **{f"odd {at}": (1, [post(odd, ALICE)] * 2, [200, 429], None) for at, odd in enumerate(ODD)},
    "a wrong query": (2, [post(filtered(status=7), ALICE)] * 3, [200, 200, 429], (1, 0)),
    **{
        f"{count} tasks": (100, [named(count), *[ALICES] * (101 - count)], [200] * (101 - count) + [429], (0, 100))
        for count in (1, 2, 7, 99)
    },
    "a crawl, and what needs nothing": (3, [post(filtered(), ALICE)] * 4, [200, 200, 200, 429], (3, 0)),
    # A client of an earlier revision: the server is asked as the client does, before its tasks are asked for.
    "asked first": (10, [named(9, b"MCP-Protocol-Version: 2025-06-18"), ALICES], [200, 429], (1, 9)),
}


@pytest.mark.parametrize("name", COSTS)
async def test_what_each_request_costs(gateways: Gateways, name: str) -> None:
    """Some server reads each that passes unread, or that is odd: one token brought any number of operations."""
    burst, asked, expected, own = COSTS[name]
    limits = {"inspected_body_bytes_max": 100_000}
    async with guarded(gateways, burst, limits=limits, index={"max_age": "1h"}) as rig:
        assert await statuses(rig, *asked) == expected
        assert own is None or (len(rig.asked("tasks/list")), len(rig.asked("tasks/get"))) == own
        sent = {each.partition(b"\r\n\r\n")[2] for each in asked}
        assert all(seen.body in sent or OWN.search(seen.body) for seen in rig.upstream.requests), "as it came"


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


async def test_a_client_with_a_token_is_answered_and_owes_what_its_query_asks(gateways: Gateways) -> None:
    guards = {"task_operations_per_second": 2, "task_operations_burst": 2}
    async with rig_with(gateways, server, guards=guards) as rig:
        began_at = asyncio.get_running_loop().time()
        assert await statuses(rig, ALICES, named(6)) == [200, 200]
        assert len(rig.asked("tasks/get")) == 7
        owes = await rig.ask(named(1))
        assert 1 <= body(owes)["error"]["data"]["retryAfterSeconds"] <= 3, "5 below zero at most, at 2 a second"
        assert len(rig.asked("tasks/get")) == 7, "who is refused asks nothing, and takes nothing"
        await eventually(lambda: rig.succeeds(ALICES), "the bucket above zero again")
        assert asyncio.get_running_loop().time() - began_at > 2, "6 tokens at 2 a second, less what came back"


async def test_what_a_later_step_of_a_query_asks_is_taken_too(gateways: Gateways) -> None:
    """The ttl of tasks passes while the pages are read: before they are shown, the server is asked for each."""
    pages: dict[str | None, Json] = {"2": page([])}

    async def expired(asked: Message, peer: Peer) -> bytes | None:
        if None in pages:
            await asyncio.sleep(0.02)  # the ttl ends before the second page comes
        else:
            now = datetime.now(UTC).isoformat()
            pages[None] = page([task(f"t{n}", created=now, ttl=10) for n in range(5)], "2")
        return await Server(pages, get=lambda _: None)(asked, peer)

    async with guarded(gateways, burst=3, script=expired) as rig:
        assert await statuses(rig, post(filtered(), ALICE)) == [200], "what has begun is finished"
        assert [len(rig.asked("tasks/list")), len(rig.asked("tasks/get"))] == [2, 10], "each is denied twice"
        refused = await rig.ask(post(call("tasks/list"), ALICE))
        assert 350 < body(refused)["error"]["data"]["retryAfterSeconds"] <= 400, (
            "3 - 1 - 5 is 3 below zero, at 0.01 a second"
        )


async def test_who_begins_an_ask_pays_for_it_and_who_joins_it_pays_one(gateways: Gateways) -> None:
    go = asyncio.Event()

    async def held(asked: Message, peer: Peer) -> bytes | None:
        await go.wait()
        return await server(asked, peer)

    async with guarded(gateways, burst=8, script=held) as rig:
        first = await rig.client(named(5))
        await rig.upstream.until(lambda: len(rig.upstream.requests) == 5, "the first query's asks")
        others = [await rig.client(named(5)) for _ in range(3)]
        await rig.gateway.becomes("requests_in_flight", 4, upstream="up")
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
def test_what_is_invented_or_spelled_otherwise_makes_no_other_client(how: str, named: list[str] | None) -> None:
    """Servers take each spelling for one token. Several fields count by the address: one of them is invented."""
    asked = [[line.partition(b": ")[::2] for line in ONE_CLIENT[how](n).split(b"\r\n")] for n in range(4)]
    assert len({rate_limit_key(fields, named, "192.0.2.1") for fields in asked}) == 1


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
    async with rig_with(gateways, server, guards={"task_ttl_max": "60s"}) as rig:
        assert (await rig.ask(post(TTL % given))).status == 200
        [seen] = rig.upstream.requests
        assert seen.body == TTL % sent
        assert seen.value(b"content-length") == b"%d" % len(TTL % sent)


async def test_without_guards_nothing_is_lowered_or_refused(gateways: Gateways) -> None:
    async with rig_with(gateways, server) as rig:
        assert await statuses(rig, *[post(TTL % b"99999999999", ALICE)] * 30) == [200] * 30
        assert {seen.body for seen in rig.upstream.requests} == {TTL % b"99999999999"}


UNCLEAR = [
    b'"task":{"TTL":99999999}', b'"task":{"ttl":1,"ttl":99999999}', b'"task":{"ttl":99999999,"ttl":1}',
    b'"task":{"ttl":1,"T\\u0074L":99999999}', b'"Task":{"ttl":99999999}', b'"task":{"ttl":99999999},"task":{}',
    b'"task":{"ttl":1}},"PARAMS":{"task":{"ttl":99999999}', b'"task":{"ttl":99999999,"x":NaN}',
    b'"task":{"ttl":99999999},"y":"\\ud83d"', b'"task":{"ttl":NaN}', b'"ta\xffsk":{"ttl":99999999}',
]  # fmt: skip


@pytest.mark.parametrize("params", UNCLEAR)
async def test_a_ttl_that_cannot_be_told_is_refused(gateways: Gateways, params: bytes) -> None:
    """A server in Go kept such a task for as long as the client wanted."""
    async with rig_with(gateways, server, guards={"task_ttl_max": "60s"}) as rig:
        data = b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"x",%b}}'
        refused = await rig.ask(post(data % params))
        error = body(refused)["error"]
        assert (refused.status, body(refused)["id"], error["code"]) == (200, 7, -32602)
        assert "ttl" in error["message"]
        told = data.replace(b'"method"', b'"METHOD":"a","method"') % b'"task":{"ttl":99999999}'
        assert (await rig.ask(post(told))).status == 200
        assert [seen.body for seen in rig.upstream.requests] == [told.replace(b"99999999", b"60000")], "it can be told"
