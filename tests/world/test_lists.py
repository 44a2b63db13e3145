"""Filtered lists at servers that are peculiar (DESIGN 2.15, 2.16, 6.9), and at each kind's stated cost.

That a list is right, whatever happens: tests/model; at each kind of server: test_try.py.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import pytest

from tests.launch import ROOT, Gateways
from tests.peer import Peer
from tests.relay.http1 import Message
from tests.relay.messages import LAST_CHUNK, Json, call, chunk, dumps, notification, stream
from tests.relay.rig import Session, body, final, own, rig_with
from tests.world.servers import KINDS, MADE_HERE, Server, pages_by_hand, shown

each = pytest.mark.parametrize("name", KINDS)
RUST: Final = KINDS["Rust SDK (rmcp) to 2.2"]


async def listed(session: Session, request_id: object = 1, **criteria: object) -> Json:
    said = final(await session.ask(call("tasks/list", request_id, **criteria)))
    assert "result" in said, said
    page: Json = said["result"]
    return page


async def all_listed(session: Session, criteria: Json, pages_max: int = 1000) -> list[Json]:
    page = await listed(session, **criteria)
    tasks: list[Json] = page["tasks"]
    while "nextCursor" in page and (pages_max := pages_max - 1):
        page = await listed(session, cursor=page["nextCursor"])
        tasks = tasks + page["tasks"]
    return tasks


@asynccontextmanager
async def in_front_of(server: Server, gateways: Gateways, **index: object) -> AsyncIterator[tuple[Server, Session]]:
    async with rig_with(gateways, index=index) as rig:
        rig.serve(server)
        yield server, Session(rig)


# What docs/clients.md says of lists that are longer than a page: the order, and `max_age`.
ORDERS: Final = [(by, order) for by in ("createdAt", "lastUpdatedAt") for order in ("asc", "desc")]


@pytest.mark.parametrize(("by", "order"), ORDERS)
async def test_tasks_whose_instants_move_at_every_reading_are_on_one_page_each(
    gateways: Gateways, by: str, order: str
) -> None:
    """While pages are read within one `max_age`."""
    async with in_front_of(Server(RUST), gateways, max_age="1h", full_crawl_interval="1h", page_size=7) as (
        server,
        session,
    ):
        server.fill(30, 30)
        tasks = await all_listed(session, {"orderBy": by, "order": order}, pages_max=10)
        assert sorted(task["taskId"] for task in tasks) == sorted(server.tasks)


async def make(session: Session, request_id: object = 1) -> str:
    made = final(await session.ask(call("tools/call", request_id, name="work", task={})))["result"]["task"]
    return str(made["taskId"])


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


# ---- what it costs: the table of docs/clients.md, but for its figures of a minute ----

TASKS: Final = 1_000
LIVE: Final = 10
EACH: Final = 50  # requests on a connection


def rows() -> dict[str, str]:
    """The table of servers in the docs, by server."""
    head = "| server | by hand | first | later | the gateway |"
    _, _, behind = (ROOT / "docs/clients.md").read_text().partition(head)
    lines = behind.partition("\n\n")[0].split("\n")[2:]
    return {line.split("|")[1].strip(): line for line in lines}


def spent(server: Server) -> tuple[int, str]:
    """Requests since the last time, and how the table has them: with the KB of their results."""
    requests, sent_bytes = server.asked.total(), server.sent_bytes
    server.asked.clear()
    server.sent_bytes = 0
    return requests, f"{requests:,}, {sent_bytes / 1000:,.1f}"


def brings(name: str, by_hand: int, later: int) -> str:
    if name in MADE_HERE:
        return "makes the list"
    if later < by_hand:
        return "saves requests"
    return "saves bytes" if later == by_hand else "adds criteria"


@each
async def test_the_cost_in_the_docs_is_what_is_counted(gateways: Gateways, name: str) -> None:
    """Of the list of live tasks: all pages read by hand; and what the server has to answer for it at first, and later.

    Nothing stays fresh there.
    """
    server = Server(KINDS[name])
    async with own(gateways, server, index={"max_age": "0s", "full_crawl_interval": "1h"}) as rig:
        session = Session(rig)
        if name in MADE_HERE:
            for number in range(TASKS):
                if number % EACH == 0:  # the harness looks at all that a connection has had
                    one = await rig.client()
                await one.send(session.request(call("tools/call", f"r{number:08}", name="work", task={})))
                made = await one.response(number % EACH + 1)
                if number % (TASKS // LIVE):
                    server.change(body(made)["result"]["task"]["taskId"], "completed")
        else:
            server.fill(TASKS, LIVE)
        live = {task_id for task_id, task in server.tasks.items() if task["status"] == "working"}
        spent(server)
        criteria = {"status": "working"} if server.kind.filters else {}
        found = live & {i for page in pages_by_hand(server, **criteria) for i in shown(page)}
        by_hand, of_hand = spent(server)
        await listed(session, status="working", order="asc")
        first, _ = spent(server)
        page = await listed(session, status="working", order="asc")
        later, of_later = spent(server)
    assert len(page["tasks"]) == LIVE
    assert 1_750 <= len(dumps(page)) <= 2_050, "2 KB, the table says"
    if found != live:
        of_hand += f": {len(found)} of {LIVE} tasks"
    row = f"| {name} | {of_hand} | {first:,} | {of_later} | {brings(name, by_hand, later)} |"
    assert rows()[name].startswith(row)


def test_the_table_has_these_servers_and_no_others() -> None:
    assert list(rows()) == list(KINDS)
