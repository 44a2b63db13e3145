"""Servers that give an id again, let tasks go early, or write odd ids and instants (DESIGN 2.15, 2.16, 6.9)."""

import random
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest

from tests.launch import Gateways, eventually
from tests.peer import Peer
from tests.relay.http1 import Message
from tests.relay.messages import LAST_CHUNK, Json, call, chunk, dumps, notification, stream
from tests.relay.rig import Session, final, rig_with
from tests.rules import plain
from tests.world.servers import KINDS, Kind, Server, shown
from tests.world.test_lists import all_listed, in_front_of, listed

RUST: Final = KINDS["Rust SDK (rmcp) to 2.2"]


async def make(session: Session, request_id: object = 1) -> str:
    made = final(await session.ask(call("tools/call", request_id, name="work", task={})))["result"]["task"]
    return str(made["taskId"])


@pytest.mark.parametrize("max_age", ["0s", "1h"])
@pytest.mark.parametrize("heard", ["by a query", "by tasks/get", "by a query, and fetched", "not at all"])
async def test_a_host_that_gives_every_request_one_id_gets_its_new_task_in_the_list(
    gateways: Gateways, heard: str, max_age: str
) -> None:
    """The task that had this id before has ended. The new one was missing for ever."""
    async with in_front_of(Server(RUST), gateways, max_age=max_age, full_crawl_interval="1h") as (server, session):
        for life in range(3):
            assert await make(session) == "1"
            assert shown(await listed(session, status="working")) == ["1"], life
            assert shown(await listed(session, status=["completed", "failed"])) == []
            server.change("1", ("completed", "failed", "completed")[life])
            if "query" in heard and max_age == "0s":
                assert shown(await listed(session, status=["completed", "failed"])) == ["1"]
            elif heard != "not at all":
                await session.ask(call("tasks/get", taskId="1"))
                assert shown(await listed(session, status=["completed", "failed"])) == ["1"]
            if "fetched" in heard:
                await session.ask(call("tasks/result", taskId="1"))


async def test_a_new_life_that_was_made_unheard_shows_where_its_instants_say_so(gateways: Gateways) -> None:
    """At another replica, or in a response that nobody could read."""
    async with in_front_of(Server(RUST), gateways, max_age="0s", full_crawl_interval="1h") as (server, session):
        await make(session)
        server.change("1", "completed")
        assert shown(await listed(session, status="completed")) == ["1"]
        server.add(task_id="1")
        assert shown(await listed(session, status="working")) == ["1"]


async def test_a_task_whose_result_was_fetched_leaves_the_list(gateways: Gateways) -> None:
    """The result goes with its task there, and the error for it is -32002: the list was an error from then on."""
    async with in_front_of(Server(RUST), gateways, max_age="0s", full_crawl_interval="0s") as (server, session):
        for request_id in ("a", "b"):
            server.change(await make(session, request_id), "completed")
        assert {*shown(await listed(session, order="asc"))} == {"a", "b"}
        await session.ask(call("tasks/result", taskId="a"))
        assert shown(await listed(session, order="asc")) == ["b"]


async def test_a_notification_of_another_sessions_task_brings_nothing_into_the_list(gateways: Gateways) -> None:
    """mcp-go sends it to all sessions. `tasks/get` does not know the task here."""
    async with rig_with(gateways, index={"max_age": "0s", "full_crawl_interval": "1h"}) as rig:
        server = Server(KINDS["mcp-go"])
        session = Session(rig)
        mine = server.add()
        others: Json = {**server.tasks[mine], "taskId": "of another", "status": "failed"}

        async def script(request: Message, peer: Peer) -> bytes:
            said = await server(request, peer)
            if b'"ping"' not in request.body:
                return said
            told = dumps(notification("notifications/tasks/status", **others))
            pong = said.partition(b"\r\n\r\n")[2]
            return stream() + chunk(b"data: " + told + b"\n\n" + b"data: " + pong + b"\n\n") + LAST_CHUNK

        rig.serve(script)
        for _ in range(2):  # before the first list, and after
            await session.ask(call("ping"))
            assert shown(await listed(session, order="asc")) == [mine]


# ---- tasks that go early ----


class Hasty(Server):
    """Results live for a while, and no task longer than `ttl_ms_max`, whatever is asked for; at once, by its clock."""

    def __init__(self, kind: Kind, result_s: float, ttl_ms_max: int) -> None:
        super().__init__(kind)
        self._result = timedelta(seconds=result_s)
        self._ttl_ms_max = ttl_ms_max

    def at(self, ago_s: float, status: str) -> str:
        then = self.timestamp(datetime.now(UTC) - timedelta(seconds=ago_s))
        task_id = self.add(status, created=then)
        self.tasks[task_id]["ttl"] = self._ttl_ms_max
        return task_id

    def leave(self) -> None:
        """What is over goes."""
        now = datetime.now(UTC)
        for task_id, task in list(self.tasks.items()):
            ends = datetime.fromisoformat(task["createdAt"]) + timedelta(milliseconds=self._ttl_ms_max)
            if task["status"] not in ("working", "input_required"):
                ends = min(ends, datetime.fromisoformat(task["lastUpdatedAt"]) + self._result)
            if ends <= now:
                del self.tasks[task_id]

    def said(self, message: Json) -> Json:
        self.leave()
        return super().said(message)


@pytest.mark.parametrize("kind", ["TypeScript SDK 1.x", "C# SDK 1.x", "FastMCP 3.4"])
async def test_tasks_that_go_after_five_or_ten_minutes_leave_the_list(gateways: Gateways, kind: str) -> None:
    """A result lives for 5 minutes: that goes unsaid. The longest ttl is 10: each task says so."""
    hasty = Hasty(KINDS[kind], 300, 600_000)
    async with in_front_of(hasty, gateways, max_age="0s", full_crawl_interval="500ms") as (server, session):
        going = [server.at(299.2, "completed"), server.at(599.2, "working")]
        staying = [server.at(200, "completed"), server.at(400, "working")]
        for task_id in (*going, *staying):
            await session.ask(call("tasks/get", taskId=task_id))
        page = await listed(session, order="asc")
        assert {*shown(page)} - {*going} == {*staying}

        async def gone() -> bool:
            return {*shown(await listed(session, order="asc"))} == {*staying}

        await eventually(gone, "the list without what is over")


# ---- odd ids, equal instants, instants far away ----

ODD_IDS: Final = [
    "", " ", "a b", "a/b?c#d", "\u00e9", "e\u0301", "\ufdfa", "\u202eid", "\u2028", "\x00", "\x7f", '"\\', "\U0001f600",
    "\U0001d518", "\ufeff", "\uffff", "0", "00", "1e400", "null", "\u0663", "a" * 256, "b" * 257, "\u00df", "SS",
    "\u0130", "z\u0301\u0327", "\U0010ffff", "\ud7ff",
]  # fmt: skip
FAR: Final = [
    "0000-01-01T00:00:00Z", "0001-01-01T00:00:00+23:59", "1969-12-31T23:59:59.999999999Z", "1970-01-01T00:00:00Z",
    "2016-12-31T23:59:60Z", "2026-11-01T00:00:00.0000001Z", "2026-11-01T00:00:00.00000010-00:00",
    "2026-11-01t00:00:00z", "9999-12-31T23:59:59.9Z", "9999-12-31T23:59:59-23:59",
]  # fmt: skip


@pytest.mark.parametrize(
    "name", ["TypeScript SDK 1.x", "C# SDK 1.x", "any with the newest first, 50 a page", "FastMCP 3.4"]
)
@pytest.mark.parametrize("seed", range(2))
async def test_odd_ids_equal_instants_and_instants_far_away(gateways: Gateways, name: str, seed: int) -> None:
    rng = random.Random(seed)
    async with in_front_of(Server(KINDS[name]), gateways, max_age="0s", full_crawl_interval="1h", page_size=3) as (
        server,
        session,
    ):
        for task_id in rng.sample(ODD_IDS, len(ODD_IDS)):
            server.add(rng.choice(("working", "completed")), task_id, rng.choice(FAR))
            await session.ask(call("tasks/get", taskId=task_id))
        for order in ("asc", "desc"):
            got = await all_listed(session, {"orderBy": "createdAt", "order": order})
            assert got == [server.tasks[i] for i in _in_order(server, order)]
        some = rng.sample(ODD_IDS, 3)
        assert {*shown(await listed(session, taskIds=some))} == {*some}
        assert shown(await listed(session, taskIds=some[0])) == some[:1]


def _in_order(server: Server, order: str) -> list[str]:
    key = {task_id: (plain.instant(task["createdAt"]), task_id) for task_id, task in server.tasks.items()}
    return sorted(server.tasks, key=key.__getitem__, reverse=order == "desc")
