"""What is remembered of a session besides its tasks: what `initialize` said, and the caller's identity."""

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import pytest

from tests.launch import Gateways, eventually, logged
from tests.own_ids import OWN
from tests.peer import Peer
from tests.relay.http1 import Message
from tests.relay.messages import Json, call, dumps, filtered, in_pages, initialized, notification, page, result, task
from tests.relay.rig import Rig, Script, Server, Session, body, final, ids, rig_with
from tests.relay.wire import LAST_CHUNK, answer, chunk, event, response, stream

NATIVE: Json = {"list": {"filter": {}}, "requests": {"tools": {"call": {}}}}
OURS: Json = {"list": {}, "requests": {"tools": {"call": {}}}}


def serving(tasks_capability: Json, refuses: list[str]) -> Script:
    """A server of one task; the sessions in `refuses` get 401."""

    async def script(asked: Message, _peer: Peer) -> bytes:
        message = body(asked)
        if (asked.value(b"mcp-session-id") or b"").decode() in refuses:
            return b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"
        if message["method"] == "initialize":
            return answer(result(message["id"], {**initialized(), "capabilities": {"tasks": tasks_capability}}))
        return answer(result(message["id"], page([task("t-1")])))

    return script


LOG = {"level": "info"}


@pytest.mark.parametrize("how", ["evicted", "refused", "another token", "reloaded"])
@pytest.mark.parametrize("filters", [True, False])
async def test_what_a_server_said_of_itself_is_known_when_the_index_has_gone(
    gateways: Gateways, how: str, filters: bool
) -> None:
    """That it filters; and where only one request makes tasks, their method, though their making was not seen (5.3)."""
    refuses: list[str] = []
    async with rig_with(
        gateways, serving(NATIVE if filters else OURS, refuses), index={"sessions_max": 1}, log=LOG
    ) as rig:
        session = Session(rig)
        await session.ask(call("initialize"))
        await session.ask(call("tasks/list"))
        assert await rig.gateway.sample("index_sessions") == (not filters)
        if how == "evicted":  # sessions_max is 1
            await Session(rig).ask(filtered())
        elif how == "refused":
            refuses.append(session.session_id)
            assert (await session.ask(call("ping"))).status == 401
            refuses.clear()
        elif how == "another token":
            session.token = "renewed"
        else:
            rig.gateway.reload(rig.settings(index={"sessions_max": 1, "page_size": 7}))
        listed = final(await session.ask(filtered(methods=["prompts/get"])))
        assert rig.asked("tasks/list")[-1]["params"] == ({"methods": ["prompts/get"]} if filters else {})
        assert ids(listed) == (["t-1"] if filters else [])


async def test_the_least_of_every_limit_still_relays_and_answers(gateways: Gateways) -> None:
    """An index may be too large to keep. No accepted limit breaks what is relayed."""
    index = dict.fromkeys(("page_size", "tasks_max", "sessions_max"), 1)
    sizes = dict.fromkeys(("inspected_body_bytes_max", "inspected_event_bytes_max", "header_bytes_max"), "1KiB")
    limits = {**sizes, "connections_max": 1, "keepalive_timeout": 0, "stall_timeout": "1s"}
    least = {"index": {**index, "memory_bytes_max": "1MiB", "max_age": 0}, "limits": limits}
    async with rig_with(gateways, serving(OURS, []), upstream={"requests_max": 1, "idle_timeout": 0}, **least) as rig:
        session = Session(rig)
        one = await rig.client(*(session.request(call(name, 1)) for name in ("initialize", "ping", "tasks/list")))
        for number in (1, 2, 3):
            assert (await one.response(number)).status == 200
        await one.send(session.request(filtered(2)))
        assert len(final(await one.response(4))["result"]["tasks"]) == 1


# ---- who is who (DESIGN 7) ----


async def test_the_order_of_repeated_fields_is_part_of_an_identity_and_that_of_others_is_not(
    gateways: Gateways,
) -> None:
    """A server may take the first of two tokens."""
    one, other, tenant = b"X-Token: one", b"X-Token: other", b"X-Tenant: 1"
    callers = [[one, other], [other, one], [tenant, one, other], [one, tenant, other], [one, other, tenant]]
    async with rig_with(gateways, serving(OURS, []), index={"max_age": "60s"}) as rig:
        for fields, crawls in zip(callers, (1, 2, 3, 3, 3), strict=True):
            assert len(final(await rig.ask(rig.post(filtered(), *fields)))["result"]["tasks"]) == 1
            assert len(rig.asked("tasks/list")) == crawls


async def test_asking_for_unknown_tasks_leaves_nothing(gateways: Gateways) -> None:
    """Anybody can ask for any number of unknown tasks, with ids of any length."""
    async with rig_with(gateways, Server({}, get=lambda _: None)) as rig:
        sizes = set()
        for task_id in ("a", "b" * 256, "c" * 257, "d" * 100_000):
            await rig.ask(rig.post(call("tasks/get", taskId=task_id)))
            sizes.add(await rig.gateway.sample("index_bytes"))
        assert len(sizes) == 1


# ---- sessions that are larger than an index may be ----

TASKS = [task(f"t-{n}", created=f"2026-01-01T00:00:{n:02}Z") for n in range(9)]
PAGES = in_pages(TASKS, 2)
TOO_LARGE = -32017
WHAT: dict[str, Json] = {"index.tasks_max": {"tasks_max": 5}, "index.memory_bytes_max": {"memory_bytes_max": "1MiB"}}


def tasks_on(pages: dict[str | None, Json]) -> Server:
    """A server of these pages, which knows each task on them."""
    server = Server(pages)
    server.get = lambda name: {t["taskId"]: t for each in server.pages.values() for t in each["tasks"]}.get(name)
    return server


def served(rig: Rig, key: str) -> None:
    more = {"x": "x" * 200_000} if key == "index.memory_bytes_max" else {}
    rig.serve(tasks_on({at: {**each, "tasks": [{**t, **more} for t in each["tasks"]]} for at, each in PAGES.items()}))


async def refused(session: Session, key: str, **criteria: Any) -> Json:
    """The error that a filtered list gets."""
    said = await session.ask(filtered(7, **(criteria or {"status": ["working"]})))
    told = final(said)
    assert (said.status, told["id"], told["error"]["code"]) == (200, 7, TOO_LARGE)
    assert key in told["error"]["message"]
    error: Json = told["error"]
    return error


@pytest.mark.parametrize("key", WHAT)
async def test_a_filtered_list_is_refused_and_the_key_is_named(gateways: Gateways, key: str) -> None:
    """1,600 tasks in 1 MiB once showed nowhere for 15 minutes."""
    async with rig_with(gateways, log=LOG, index={"max_age": "0s", **WHAT[key]}) as rig:
        served(rig, key)
        session = Session(rig)
        said = await refused(session, key)
        assert "`taskIds`" in said["message"] and "unfiltered" in said["message"]
        assert (await logged(rig.gateway, key))["upstream"] == "up"
        shown = await rig.gateway.shown()
        [reason], [query] = shown["reasons"], shown["queries"]
        assert (reason["failure"], reason["upstream"], reason["is_fault"]) == ("TooLarge", "up", False)
        assert key in reason["why"] and key in query["reason"] and query["outcome"] == "refused"
        assert await rig.gateway.sample("queries_total", outcome="refused", upstream="up") == 1
        asked = len(rig.asked("tasks/list"))
        for criteria in ({"order": "asc"}, {"createdAfter": "2026-01-01T00:00:00Z"}, {"cursor": "taskgate:?"}):
            await refused(session, key, **criteria)
        assert len(rig.asked("tasks/list")) == asked, "that it is too large is remembered"
        unfiltered = final(await session.ask(call("tasks/list", 8)))["result"]
        assert [t["taskId"] for t in unfiltered["tasks"]] == ["t-0", "t-1"]
        assert unfiltered["nextCursor"] == "2"


@pytest.mark.parametrize("known", [True, False], ids=["known to be too large", "not yet known"])
async def test_a_list_by_task_ids_is_answered(gateways: Gateways, known: bool) -> None:
    """It needs only `tasks/get`. One more task passes, and makes no difference."""
    async with rig_with(gateways, log=LOG, index={"max_age": "0s", "tasks_max": 5}) as rig:
        served(rig, "index.tasks_max")
        session = Session(rig)
        if known:
            await refused(session, "index.tasks_max")
        asked = len(rig.asked("tasks/list"))
        for _ in range(2):
            said = final(await session.ask(filtered(1, taskIds=["t-1", "t-3", "t-7", "nobody"], order="asc")))
            assert ids(said) == ["t-1", "t-3", "t-7"]
            assert said["result"]["_meta"]["taskgate/total"] == 3
            await session.ask(call("tasks/get", 9, taskId="t-8"))
        assert len(rig.asked("tasks/list")) == asked
        if known:  # more ids than there are pages: where it fits an index, reading the pages would be cheaper
            named = [t["taskId"] for t in TASKS[:5]]
            assert sorted(ids(final(await session.ask(filtered(1, taskIds=named))))) == named
            await refused(session, "index.tasks_max", taskIds=[t["taskId"] for t in TASKS])
            assert len(rig.asked("tasks/list")) == asked
            rig.gateway.reload(rig.settings(index={"max_age": "0s", "tasks_max": 9}))  # it holds at once
            assert len(ids(final(await session.ask(filtered(1, order="asc"))))) == 9


async def test_it_is_read_again_after_full_crawl_interval(gateways: Gateways) -> None:
    """The session has fewer tasks by then."""
    async with rig_with(gateways, index={"max_age": "0s", "full_crawl_interval": "500ms", "tasks_max": 5}) as rig:
        server, session = tasks_on(PAGES), Session(rig)
        rig.serve(server)
        await refused(session, "index.tasks_max")
        server.pages = {None: page(TASKS[:4])}
        await refused(session, "index.tasks_max")

        async def is_answered() -> bool:
            said = final(await session.ask(filtered(1, order="asc")))
            return "result" in said and ids(said) == ["t-0", "t-1", "t-2", "t-3"]

        await eventually(is_answered, "a list, once the interval is over")


@pytest.mark.parametrize(
    ("index", "first", "count", "now"),
    [
        ({"max_age": "1h", "tasks_max": 4}, filtered(1, order="asc"), 4, slice(0, 9)),  # a task passes
        ({"full_crawl_interval": "1h"}, filtered(1, order="asc"), 4, slice(4, 8)),  # a look
        ({"full_crawl_interval": "1ms"}, filtered(1, order="asc"), 4, slice(4, 8)),  # a crawl
        ({}, call("tasks/list", 1), 9, slice(4, 8)),  # they only passed
    ],
)
async def test_it_is_too_large_by_the_tasks_that_are_there_now(
    gateways: Gateways, index: Json, first: Json, count: int, now: slice
) -> None:
    """Those that had gone elsewhere were counted with those that had come, and nothing listed for the interval."""
    async with rig_with(gateways, index={"max_age": "0s", "tasks_max": 5, **index}) as rig:
        server, session = tasks_on({None: page(TASKS[:count])}), Session(rig)
        rig.serve(server)
        assert len(ids(final(await session.ask(first)))) == count
        server.pages = {None: page(TASKS[now])}
        if len(TASKS[now]) > 5:
            assert len(ids(final(await session.ask(call("tasks/list", 2))))) == 9
            await refused(session, "index.tasks_max")
        else:
            assert ids(final(await session.ask(filtered(2, order="asc")))) == ["t-4", "t-5", "t-6", "t-7"]


# ---- responses in odd forms that clients read all the same: what they say of tasks is in the next list ----

Form: TypeAlias = Callable[[bytes], bytes]
"""The response that has a JSON-RPC message in it."""


def of_type(*kinds: bytes) -> Form:
    return lambda data: response(data, *(b"Content-Type: " + kind for kind in kinds))


def cut(missing_bytes: int) -> Form:
    """An event stream whose last event lacks its end."""
    before = chunk(event(notification("notifications/message")))
    return lambda data: stream() + before + chunk(event(data, b"id: 7")[:-missing_bytes]) + LAST_CHUNK


FORMS: Final[dict[str, Form]] = {
    "a type that begins as JSON does": of_type(b"application/json-rpc"),
    "the type twice": of_type(b"application/json, application/json"),
    "the type in two fields": of_type(b"application/json", b"application/json"),
    "no type": of_type(),
    "a type of text": of_type(b"text/plain"),
    "a last event without its blank line": cut(1),
    "a last event without any line end": cut(2),
    "UTF-16": lambda data: answer(data.decode().encode("utf-16")),
    "half an event": cut(22),
    "too large": lambda data: answer(data[:-1] + b" " * 8192 + b"}"),
    "too large, as an event": lambda data: stream() + chunk(event(data[:-1] + b" " * 8192 + b"}")) + LAST_CHUNK,
    "in an unknown encoding": lambda data: answer(data[::-1], b"Content-Encoding: br"),
    "a stream in an unknown encoding": lambda data: stream(b"Content-Encoding: br") + chunk(data) + LAST_CHUNK,
}
UNREADABLE: Final = list(FORMS)[-4:]


@pytest.mark.parametrize("form", FORMS)
async def test_what_a_response_in_an_odd_form_says_is_in_the_list_or_in_the_log(
    gateways: Gateways, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What only some clients can read puts all in doubt. The log says once that `initialize` could not be edited."""
    tasks, pages = list[Json](), dict[str | None, Json]()
    server = Server(pages, {"initialize": initialized()})

    async def odd(asked: Message, peer: Peer) -> bytes | None:
        message = body(asked)
        if OWN.search(asked.body) or (message["method"] == "initialize" and form not in UNREADABLE):
            return await server(asked, peer)
        said = initialized()
        if message["method"] == "tools/call":
            tasks.append(task("t-1"))
            pages[None], said = page(tasks), {"task": tasks[0]}
        return FORMS[form](dumps(result(1, said)))

    limits = {"inspected_body_bytes_max": 4096, "inspected_event_bytes_max": 4096}
    index = {"max_age": "1h", "full_crawl_interval": "1h"}
    pages[None] = page([])
    async with rig_with(gateways, odd, limits=limits, index=index) as rig:
        session = Session(rig)
        assert (await session.ask(call("initialize", 1))).whole
        assert ids(final(await session.ask(filtered()))) == []
        await session.ask(call("tools/call", 1, name="work", task={}))
        assert ids(final(await session.ask(filtered()))) == ["t-1"]
    why = [line.__dict__["why"] for line in caplog.records if line.message == "not advertised"]
    assert why == ["a response to initialize cannot be read: too large, or encoded"] * (form in UNREADABLE)
