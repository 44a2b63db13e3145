"""Whose requests these are: identities that drift (DESIGN 7.11), and callers who prove each request (DESIGN 5.9)."""

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

import pytest

from tests.fields import OF_ONE
from tests.launch import Gateways, changes, logged
from tests.peer import Peer
from tests.relay.http1 import Message
from tests.relay.messages import Json, call, fault, filtered, initialized, notification, page, result, task
from tests.relay.rig import Rig, Script, Server, body, final, ids, rig_with, says
from tests.relay.wire import answer, chunked, event, post, response, stream

LOG = {"level": "warning"}
UP = "taskgate_drifting_requests_total", (("upstream", "up"),)
DRIFTS = "each request is another caller"
MIN = 10  # gateway/upstream/caller_identity_drift.py, IDENTITIES_MIN


async def warnings(rig: Rig) -> list[Json]:
    return [line for line in rig.gateway.lines() if line["message"] == DRIFTS]


async def seen(rig: Rig) -> tuple[float, str, list[list[str]]]:
    """What the operator sees: the metric, the first line of the page, the fields that each warning names."""
    counted, shown = (await rig.gateway.metrics())[UP], await rig.gateway.shown()
    return counted, shown["verdict"]["text"], [line["fields"] for line in await warnings(rig)]


async def lists(rig: Rig, *callers: Iterable[bytes], token: bytes = b"t", session: bytes | None = None) -> None:
    """A filtered list for each of these callers, one after another, in one session with one credential."""
    who = [session or rig.session, b"Authorization: Bearer " + token]
    for fields in callers:
        assert (await rig.ask(post(filtered(), *who, *fields))).status == 200


def varied(*names: bytes, count: int = 3 * MIN) -> list[list[bytes]]:
    """Callers by the same fields, in each of which the value is another."""
    return [[b"%b: s3cr3t-%d" % (name, number) for name in names] for number in range(count)]


ONE_PAGE = Server({None: page([task("t-1", "completed")])})
LISTS_NONE = Server({None: page([])}, {"tools/call": {"task": task("t-1")}, "tasks/get": task("t-1")})


MADE = {"tools/call": {"task": task("t-2")}, "tasks/get": task("t-1")}
ANSWERS = Server({None: page([task("t-1")])}, MADE)


async def test_a_field_that_makes_each_request_another_caller_is_named_once(gateways: Gateways) -> None:
    async with rig_with(gateways, ONE_PAGE, log=LOG) as rig:
        assert await seen(rig) == (0, "Nothing is wrong: 1 not asked yet", [])
        await lists(rig, *varied(b"X-Odd", b"X-Even"))
        counted, verdict, warned = await seen(rig)
        assert counted == 2 * MIN + 1
        assert verdict == "Each request to up is another caller (x-even, x-odd): see identity_headers"
        assert warned == [["x-even", "x-odd"]]
        assert "s3cr3t" not in rig.gateway.log
        [line] = await warnings(rig)
        assert line["level"] == "warning" and line["upstream"] == "up" and "troubleshooting.md" in line["hint"]
        await lists(rig, *varied(b"X-Third"), session=b"Mcp-Session-Id: another")
        assert (await seen(rig))[2] == [["x-even", "x-odd"], ["x-third"]]


DRIFTING = [filtered(), call("tasks/get", taskId="t-1"), call("tools/call", name="x", task={})]


@pytest.mark.parametrize(
    ("asked", "field"), [*((asked, b"X-Odd: %d") for asked in DRIFTING), (filtered(), b"Cookie: session=s3cr3t-%d")]
)
async def test_whatever_is_asked_of_tasks_drifts(gateways: Gateways, asked: Json, field: bytes) -> None:
    async with rig_with(gateways, ANSWERS, log=LOG) as rig:
        for number in range(MIN):
            await rig.ask(post(asked, rig.session, field % number))
        assert (await seen(rig))[::2] == (1, [[field.partition(b":")[0].decode().lower()]])
        assert "s3cr3t" not in rig.gateway.log


NO_DRIFTS: dict[str, tuple[Script, list[bytes]]] = {
    "a renewed token": (ONE_PAGE, [b"Mcp-Session-Id: s", b"authorization: a %d"]),
    "a balancer's cookie": (ONE_PAGE, [b"Mcp-Session-Id: s", b"Cookie: AWSALB=%d"]),
    "a balancer's cookie beside another": (ONE_PAGE, [b"Mcp-Session-Id: s", b"Cookie: sid=ada; SERVERID=%d"]),
    "no session": (ONE_PAGE, [b"Authorization: Bearer shared", b"X-User: %d"]),  # as many users as requests
    "a refusal": (says(response(b"", status=b"401 Unauthorized")), [b"Mcp-Session-Id: s", b"X-Odd: %d"]),
}


@pytest.mark.parametrize("name", NO_DRIFTS)
async def test_who_is_no_drift_raises_no_warning(gateways: Gateways, name: str) -> None:
    script, fields = NO_DRIFTS[name]
    async with rig_with(gateways, script, log=LOG) as rig:
        for number in range(3 * MIN):
            got = await rig.ask(post(filtered(), *signed(fields, number)))
            assert got.status == (401 if name == "a refusal" else 200)
        counted, _, warned = await seen(rig)
        assert (counted, warned) == (0, [])
        if name == "a refusal":
            left = [len(pool.context.drift.sessions) for pool in rig.app._pools.of.values()]
            assert left == [0], "and leaves nothing"


async def test_a_drift_is_forgotten_when_the_operator_names_who_asks(gateways: Gateways) -> None:
    async with rig_with(gateways, ONE_PAGE, log=LOG) as rig:
        await lists(rig, *varied(b"X-Odd"))
        assert (await seen(rig))[2] == [["x-odd"]]
        rig.gateway.reload(rig.settings(log=LOG, upstream={"identity_headers": ["Authorization", "X-Id"]}))
        asked = len(rig.asked("tasks/list"))
        await lists(rig, *varied(b"X-Odd"))
        assert (await seen(rig))[1] == "Nothing is wrong: 1 up"
        assert len(rig.asked("tasks/list")) == asked + 1
        await lists(rig, *varied(b"X-Id", b"X-Odd"))
        assert (await seen(rig))[2][1:] == [["x-id"]], "what is named may drift too"


# ---- what belongs to one message of the caller's ----


async def test_the_gateways_own_requests_repeat_nothing_of_one_message(rig: Rig) -> None:
    one_task = page([task("t-1")])
    rig.serve(Server({None: {**one_task, "nextCursor": "2"}, "2": one_task}, {"tasks/get": task("t-1")}))
    names = {name.replace(b"*", b"odd") for name in OF_ONE}
    names -= {b"transfer-encoding", b"expect", b"accept", b"accept-encoding", b"mcp-method", b"mcp-name"}
    names |= {b"content-md5", b"content-digest", b"content-language", b"if-none-match", b"if-range"}
    fields = [b"%b: 1" % name.title() for name in names]
    kept = [b"X-Request-Id: 7", b"Accept-Language: de", b"Mcp-Protocol-Version: 2025-11-25", b"Authorization: Bearer t"]
    asked = filtered(taskIds=["t-1"]), filtered(), filtered(1, status=["working"], createdAfter="2020-01-01T00:00:00Z")
    for message in asked:
        assert ids(final(await rig.ask(rig.post(message, *fields, *kept)))) == ["t-1"]
    own = rig.upstream.requests
    assert [body(request)["method"] for request in own] == ["tasks/get", "tasks/list", "tasks/list"]
    for request in own:
        assert not [name for name, _ in request.fields if name.lower() in names]
        assert request.values(b"mcp-method") == request.values(b"mcp-name") == []
        for field in kept:
            assert request.value(field.partition(b":")[0]) == field.partition(b": ")[2]


async def test_each_request_goes_up_with_its_own_ids_though_its_head_is_remembered(gateways: Gateways) -> None:
    """And so do the gateway's requests that it causes, and the lines of the log."""
    log = {"level": "debug"}
    served = Server({None: page([])}, {"ping": {}, "tasks/get": task("t-1")})
    async with rig_with(gateways, served, index={"max_age": 0, "full_crawl_interval": 0}, log=log) as rig:
        for number in range(6):
            given = b"traceparent: 00-%032x-00f067aa0ba902b7-01" % number, b"X-Request-Id: %%b-%d" % number
            for message in (call("ping"), filtered(taskIds=["t-1"]), call("tasks/get", taskId="t-1")):
                before = len(rig.upstream.requests)
                assert "result" in final(await rig.ask(rig.post(message, *given, b"X-Tenant: 100%b")))
                for request in rig.upstream.requests[before:]:
                    for field in (*given, b"X-Tenant: 100%b"):
                        assert request.values(field.partition(b":")[0].lower()) == [field.partition(b": ")[2]]
        assert len(rig.app._proxy.heads.entries) > 0, "none is remembered"
        shown = [line.get("request_id") for line in rig.gateway.lines() if line["message"] == "request"]
        assert shown == [f"%b-{number}" for number in range(6) for _ in range(3)]


async def test_a_field_that_the_operator_names_tells_callers_apart_though_it_may_vary(gateways: Gateways) -> None:
    named = {"identity_headers": ["X-Request-ID"]}
    async with rig_with(gateways, LISTS_NONE, upstream=named, index={"find_again": "session"}) as rig:
        for number in range(8):
            who = b"x-request-id: %d" % (number % 2), b"traceparent: %d" % number
            if number == 4:
                await rig.ask(post(call("tools/call", name="x", task={}), *who))
            else:
                assert ids(final(await rig.ask(post(filtered(), *who)))) == ["t-1"] * (number > 4 and number % 2 == 0)


NAMES = {
    "t-1": b"t-1", "a b": b"a b", "é": b"=?base64?w6k=?=", " t": b"=?base64?IHQ=?=", "a\nb": b"=?base64?YQpi?=",
    "=?base64?eA==?=": b"=?base64?PT9iYXNlNjQ/ZUE9PT89?=", "": b"=?base64??=",
}  # fmt: skip


@pytest.mark.parametrize("given", [[b"Mcp-Method: tasks/list"], [b"MCP-METHOD: tasks/list", b"mcp-name: x"]])
async def test_mcp_method_and_name_say_what_an_own_request_is(rig: Rig, given: list[bytes]) -> None:
    """SEP-2243, SEP-2663: a server may refuse a head that differs from the message, and a balancer goes by it."""
    rig.serve(Server({None: page([])}, get=task))
    await rig.ask(rig.post(filtered(taskIds=list(NAMES)), *given))
    await rig.ask(rig.post(filtered(), *given))
    assert rig.asked("tasks/get") and rig.asked("tasks/list")
    for request in rig.upstream.requests:
        message = body(request)
        assert request.values(b"mcp-method") == [message["method"].encode()]
        named = [NAMES[message["params"]["taskId"]]] if message["method"] == "tasks/get" else []
        assert request.values(b"mcp-name") == named


# ---- callers who prove each request ----

PROOFS = [
    [b"Authorization: DPoP t", b"DPoP: eyJ%d"],
    [b"Authorization: AWS4-HMAC-SHA256 Credential=AKIA/x, SignedHeaders=host, Signature=%d"],
    [b"Authorization: Bearer t", b"Signature-Input: s=()", b"Signature: s=:%d:"],
    [b'Authorization: Digest username="a", nonce="b", nc=%d, response="c"'],
    [b"X-PAYMENT: e%d"],
    [b"authorization: Payment eyJ%d"],
]


def signed(proof: list[bytes], number: int) -> list[bytes]:
    return [line % number if b"%d" in line else line for line in proof]


def refused(message: Message, field: str) -> None:
    error = final(message)["error"]
    assert message.status == 200 and error["code"] == -32017
    assert error["message"].startswith(f"{field} proves one request") and "filter its pages" in error["message"]


@pytest.mark.parametrize("proof", PROOFS, ids=lambda proof: proof[-1].decode()[:20])
async def test_nothing_is_asked_for_a_caller_who_proves_each_request_and_all_else_of_his_passes(
    gateways: Gateways, proof: list[bytes]
) -> None:
    """And nothing is noted of it: his tasks could be shown to nobody, and each would displace another's index."""
    index = {"max_age": "1h", "full_crawl_interval": "1h"}
    async with rig_with(gateways, ANSWERS, log={"level": "info"}, index=index) as rig:
        passing = [call("tasks/list"), call("tasks/get", taskId="t-1"), call("tools/call", name="x", task={})]
        for number, message in enumerate(passing):
            assert "error" not in final(await rig.ask(rig.post(message, *signed(proof, number))))
        assert [body(request) for request in rig.upstream.requests] == passing
        for line in signed(proof, len(passing) - 1):
            assert rig.upstream.requests[-1].value(line.partition(b":")[0]) == line.partition(b": ")[2]
        assert await rig.gateway.sample("index_sessions") == 0
        await lists(rig, [])  # another caller's index in this session
        before, asked = await rig.gateway.metrics(), len(rig.upstream.requests)
        field = proof[-1].partition(b":")[0].decode() if b"Signature" not in proof[-1] else "Signature"
        field = "Authorization" if proof[-1].lower().startswith(b"authorization") else field
        wrong = filtered(staus=3, status=["workin"]), filtered(cursor="taskgate:?"), filtered(taskIds=["t-1"])
        for number, message in enumerate((*[filtered()] * 2 * MIN, *wrong)):
            refused(await rig.ask(rig.post(message, *signed(proof, number))), field)
        assert len(rig.upstream.requests) == asked
        after = await rig.gateway.metrics()
        many = 2 * MIN + len(wrong)
        assert changes(before, after, "taskgate_queries_total", outcome="refused") == many
        assert changes(before, after, "taskgate_queries_total") == many
        assert changes(before, after, "taskgate_failures_total", kind="CannotAnswer") == many
        assert changes(before, after, "taskgate_jsonrpc_errors_total", code="-32017") == many
        assert await warnings(rig) == [] and after[UP] == 0
        assert (await logged(rig.gateway, "CannotAnswer"))["why"].startswith(field)
        await lists(rig, [])
        assert len(rig.upstream.requests) == asked, "the other caller's index was dropped"


async def test_a_request_that_is_paid_tells_of_tasks_where_it_is_of_the_same_caller(gateways: Gateways) -> None:
    """Only a call is paid, and a list is not; `identity_headers` leaves the payment out."""
    for names, seen in (["Authorization"], ["t-1"]), (["x-payment", "Authorization"], []):
        async with rig_with(gateways, LISTS_NONE, upstream={"identity_headers": names}) as rig:
            who = b"Authorization: Bearer t"
            assert ids(final(await rig.ask(rig.post(filtered(), who)))) == []
            await rig.ask(rig.post(call("tools/call", name="x", task={}), who, b"X-PAYMENT: e1"))
            assert ids(final(await rig.ask(rig.post(filtered(), who)))) == seen
            refused(await rig.ask(rig.post(filtered(), who, b"X-PAYMENT: e2")), "X-PAYMENT")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("filters", [False, True])
async def test_what_it_cannot_get_is_not_advertised_to_such_a_caller(rig: Rig, stream: bool, filters: bool) -> None:
    """Where the server filters natively, such a caller's lists are the server's."""

    async def script(asked: Message, _peer: Peer) -> bytes:
        message = body(asked)
        if message["method"] != "initialize":
            return answer(fault(message["id"], -32601, "what the server says"))
        tasks = {"list": {"filter": {}} if filters else {}, "requests": {"tools": {"call": {}}}}
        said, given = result(message["id"], {**initialized(), "capabilities": {"tasks": tasks}}), b"Mcp-Session-Id: s-1"
        return response(event(said), b"Content-Type: text/event-stream", given) if stream else answer(said, given)

    rig.serve(script)
    for fields in [[b"DPoP: a"], []]:
        opened = final(await rig.ask(post(call("initialize"), *fields)))
        assert ("filter" in opened["result"]["capabilities"]["tasks"]["list"]) is (filters or not fields)
    got = final(await rig.ask(post(filtered(), b"Mcp-Session-Id: s-1", b"DPoP: b")))
    assert (got["error"]["message"] == "what the server says") is filters


# ---- who finds which tasks again: with a renewed token, in a new session, as another user ----


class Asks(NamedTuple):
    session: bytes = b"s-1"
    token: bytes = b""
    user: bytes = b""
    cookie: bytes = b""

    def post(self, message: Json) -> bytes:
        names = (b"Mcp-Session-Id", b"Authorization", b"X-User", b"Cookie")
        return post(message, *(b"%b: %b" % field for field in zip(names, self, strict=True) if field[1]))

    @classmethod
    def of(cls, asked: Message) -> "Asks":
        names = (b"mcp-session-id", b"authorization", b"x-user", b"cookie")
        return cls(*(asked.value(name) or b"" for name in names))


Gives: TypeAlias = Callable[[Asks, Asks], bool]
ADA = Asks(token=b"Bearer ada.1")
RENEWED, AGAIN = ADA._replace(token=b"Bearer ada.2"), ADA._replace(session=b"s-2")
BOB = ADA._replace(token=b"Bearer bob.1")
HOST = Asks(token=b"Bearer host")  # it speaks for many users with one token
NAMED, OTHER_NAME = HOST._replace(user=b"ada"), HOST._replace(user=b"bob")
BROWSER = Asks(cookie=b"sid=ada")
BALANCED = Asks(cookie=b"lb=1; sid=ada")
NOBODY = Asks()


def by_user(maker: Asks, asks: Asks) -> bool:
    """A server that knows its users by their tokens, renewed or not, by `X-User`, or by a cookie."""
    one, other = ((who.token.partition(b".")[0], who.user, who.cookie) for who in (maker, asks))
    return one == other


def by_session(maker: Asks, asks: Asks) -> bool:
    """The TypeScript SDK from 1.32 on."""
    return maker.session == asks.session


def by_id(_maker: Asks, _asks: Asks) -> bool:
    return True


def serving(gives: Gives, instead: Callable[[Json, Asks], bytes | None] = lambda _message, _who: None) -> Script:
    """Each `tools/call` makes a task; the list is empty. `instead`: what it answers in place of that."""
    made: dict[str, Asks] = {}

    async def script(asked: Message, peer: Peer) -> bytes | None:
        message, who = body(asked), Asks.of(asked)
        if (said := instead(message, who)) is not None:
            return said
        if message["method"] == "tools/call":
            made[message["params"]["name"]] = who
            return answer(result(message["id"], {"task": task(message["params"]["name"])}))
        given = Server(
            {None: page([])}, get=lambda name: task(name) if name in made and gives(made[name], who) else None
        )
        return await given(asked, peer)

    return script


async def listed(rig: Rig, who: Asks) -> list[str]:
    return ids(final(await rig.ask(who.post(filtered()))))


@pytest.mark.parametrize(
    ("gives", "maker", "asks", "find_again", "shown", "is_asked"),
    [
        (by_user, ADA, RENEWED, "credentials", True, True),  # a renewed token
        (by_user, ADA, RENEWED, "session", True, True),
        (by_user, ADA, AGAIN, "credentials", True, True),  # the client was started again
        (by_user, ADA, AGAIN, "session", False, False),
        (by_user, ADA, RENEWED._replace(session=b"s-2"), "credentials", False, False),  # both: nothing tells who
        (by_user, ADA, BOB, "credentials", False, True),  # another user in the session: the server denies it
        (by_user, ADA, BOB._replace(session=b"s-2"), "credentials", False, False),
        (by_user, NAMED, OTHER_NAME, "credentials", False, False),  # a field names the user
        (by_user, NAMED, NAMED._replace(session=b"s-2"), "credentials", True, True),
        (by_user, HOST, HOST._replace(session=b"s-2"), "credentials", True, True),  # one token for all users
        (by_user, HOST, HOST._replace(session=b"s-2"), "session", False, False),
        (by_user, BROWSER, BROWSER._replace(session=b"s-2"), "credentials", True, True),
        (by_user, BROWSER, BROWSER._replace(session=b"s-2"), "session", False, False),
        (by_session, BROWSER, BROWSER._replace(cookie=b"sid=ada.2"), "session", True, True),  # the server renews it
        (by_user, BROWSER, BROWSER._replace(cookie=b"sid=bob"), "credentials", False, True),
        (by_user, NOBODY, NOBODY._replace(session=b"s-2"), "credentials", False, False),  # no credentials
        (by_session, ADA, RENEWED, "credentials", True, True),
        (by_session, ADA, AGAIN, "credentials", False, True),
        (by_id, ADA, BOB, "credentials", True, True),  # as his own `tasks/get` gives it
        (by_id, ADA, BOB._replace(session=b"s-2"), "credentials", False, False),
        (by_id, NAMED, OTHER_NAME, "credentials", False, False),
        (by_id, BALANCED, BALANCED._replace(cookie=b"sid=ada; lb=2", session=b"s-2"), "credentials", True, True),
        (by_id, NOBODY, NOBODY._replace(cookie=b"GCLB=2", session=b"s-2"), "credentials", False, False),
    ],
)
async def test_who_sees_what(
    gateways: Gateways, gives: Gives, maker: Asks, asks: Asks, find_again: str, shown: bool, is_asked: bool
) -> None:
    async with rig_with(gateways, serving(gives), index={"max_age": 0, "find_again": find_again}) as rig:
        await rig.ask(maker.post(call("tools/call", name="t-1", task={})))
        for _ in range(2):  # what is denied twice is not asked for again
            assert await listed(rig, asks) == ["t-1"] * shown
            assert len(rig.asked("tasks/get")) <= 2 if shown else len(rig.asked("tasks/get")) == 2 * is_asked
        given = final(await rig.ask(asks.post(call("tasks/get", taskId="t-1"))))
        assert "result" in given or not shown
        assert await listed(rig, asks) == ["t-1"] * ("result" in given)
        assert await listed(rig, maker) == ["t-1"]


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_a_refusal_forgets_no_id(gateways: Gateways, status: int) -> None:
    def refuses(message: Json, _who: Asks) -> bytes | None:
        return answer(b"", status=b"%d No" % status) if message["method"] == "ping" else None

    async with rig_with(gateways, serving(by_user, refuses)) as rig:
        await rig.ask(ADA.post(call("tools/call", name="t-1", task={})))
        assert await listed(rig, ADA) == ["t-1"]
        assert (await rig.ask(ADA.post(call("ping")))).status == status
        assert await listed(rig, RENEWED) == await listed(rig, AGAIN) == ["t-1"]


@pytest.mark.parametrize("said", [b"400", b"403", b"404", b"500", -32603])
async def test_no_list_fails_for_an_id_that_is_found_again(gateways: Gateways, said: bytes | int) -> None:
    """Some servers deny a task by a status, or by another error. It is asked for again after the next crawl."""
    denying = [True]

    def denies(message: Json, who: Asks) -> bytes | None:
        if message["method"] != "tasks/get" or who == ADA or not denying:
            return None
        if isinstance(said, int):
            return answer(fault(message["id"], said, "Internal error"))
        return response(b"no", status=said + b" No")

    script = serving(by_user, denies)
    async with rig_with(gateways, script, index={"max_age": 0, "full_crawl_interval": 0}) as rig:
        for number in range(12):
            await rig.ask(ADA.post(call("tools/call", name=f"t-{number}", task={})))
        for asks in (RENEWED, AGAIN):
            for _ in range(3):
                assert await listed(rig, asks) == []
        assert len(await listed(rig, ADA)) == 12
        denying.clear()
        for asks in (RENEWED, AGAIN):
            await listed(rig, asks)
            assert len(await listed(rig, asks)) == 12


async def test_a_notification_makes_no_id_seen_for_others(gateways: Gateways) -> None:
    """Only an answer to a caller shows that a task is his: some servers tell every session of every task."""
    told = event(notification("notifications/tasks/status", **task("t-1")))

    def notifies(message: Json, _who: Asks) -> bytes | None:
        said = stream() + chunked(told, event(result(message["id"], {})))
        return said if message["method"] == "ping" else None

    async with rig_with(gateways, serving(by_id, notifies)) as rig:
        await rig.ask(ADA.post(call("ping")))
        assert await listed(rig, RENEWED) == []
        assert rig.asked("tasks/get") == []
