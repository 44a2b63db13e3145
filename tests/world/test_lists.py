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
from tests.relay.rig import Session, final, rig_with
from tests.world.costs import HEAD, LIVE, measured
from tests.world.servers import KINDS, Server, shown

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


# ---- what it costs ----


def rows() -> dict[str, str]:
    """The table of servers in the docs, by server."""
    head = HEAD.partition("\n")[0]
    _, _, behind = (ROOT / "docs/clients.md").read_text().partition(head)
    lines = behind.partition("\n\n")[0].split("\n")[2:]
    return {line.split("|")[1].strip(): line for line in lines}


@each
async def test_the_cost_in_the_docs_is_what_is_counted(gateways: Gateways, name: str) -> None:
    cost = await measured(gateways, name)
    assert cost.found[1] == LIVE
    assert 1_750 <= cost.filtered.sent_bytes <= 2_050, "2 KB, the table says"
    assert rows()[name].startswith(cost.row(name)), "python -m tests.world prints the table"


def test_the_table_has_these_servers_and_no_others() -> None:
    assert list(rows()) == list(KINDS)
