"""What is remembered of a session besides its tasks: what `initialize` said, and the caller's identity."""

import pytest

from tests.launch import Gateways
from tests.peer import Peer
from tests.relay.http1 import Message
from tests.relay.messages import Json, call, filtered, initialized, page, result, task
from tests.relay.rig import Script, Server, Session, body, final, ids, rig_with
from tests.relay.wire import answer

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
        assert (await rig.gateway.metrics())["taskgate_index_sessions", ()] == (not filters)
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


async def crawls_for(gateways: Gateways, *callers: list[bytes]) -> int:
    """How many crawls it takes to answer these callers of one session, each by these fields, at once."""
    async with rig_with(gateways, serving(OURS, []), index={"max_age": "60s"}) as rig:
        for fields in callers:
            assert len(final(await rig.ask(rig.post(filtered(), *fields)))["result"]["tasks"]) == 1
        return len(rig.asked("tasks/list"))


async def test_the_order_of_repeated_fields_is_part_of_an_identity_and_that_of_others_is_not(
    gateways: Gateways,
) -> None:
    """A server may take the first of two tokens."""
    one, other, tenant = b"X-Token: one", b"X-Token: other", b"X-Tenant: 1"
    assert await crawls_for(gateways, [one, other], [other, one]) == 2
    assert await crawls_for(gateways, [tenant, one, other], [one, tenant, other], [one, other, tenant]) == 1


async def test_asking_for_unknown_tasks_leaves_nothing(gateways: Gateways) -> None:
    """Anybody can ask for any number of unknown tasks, with ids of any length."""
    async with rig_with(gateways, Server({}, get=lambda _: None)) as rig:
        sizes = set()
        for task_id in ("a", "b" * 256, "c" * 257, "d" * 100_000):
            await rig.ask(rig.post(call("tasks/get", taskId=task_id)))
            sizes.add((await rig.gateway.metrics())["taskgate_index_bytes", ()])
        assert len(sizes) == 1
