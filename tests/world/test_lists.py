"""Filtered lists at every kind of server: right, whatever happens there and whoever saw it; and at the stated cost."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, TypeVar

import pytest

from tests.launch import ROOT, Gateways
from tests.real.conftest import selected
from tests.relay.messages import Json, call
from tests.relay.rig import Session, final, rig_with
from tests.world.costs import HEAD, LIVE, measured
from tests.world.servers import KINDS, Server, shown

STATUSES: Final = ("working", "input_required", "completed", "failed", "cancelled")
ACTS: Final = 36
SEEDS: Final = 2

each = pytest.mark.parametrize("name", KINDS)


async def listed(session: Session, request_id: object = 1, **criteria: object) -> Json:
    said = final(await session.ask(call("tasks/list", request_id, **criteria)))
    assert "result" in said, said
    page: Json = said["result"]
    return page


async def all_listed(session: Session, criteria: Json, again: Json | None = None, pages_max: int = 1000) -> list[Json]:
    page = await listed(session, **criteria)
    tasks: list[Json] = page["tasks"]
    while "nextCursor" in page and (pages_max := pages_max - 1):
        page = await listed(session, **(again or {}), cursor=page["nextCursor"])
        tasks = tasks + page["tasks"]
    return tasks


T = TypeVar("T", bound=Server)


@asynccontextmanager
async def in_front_of(server: T, gateways: Gateways, **index: object) -> AsyncIterator[tuple[T, Session]]:
    async with rig_with(gateways, index=index) as rig:
        rig.serve(server)
        yield server, Session(rig)


class Play:
    """A random history at a server. A list must have all tasks that passed and that the server has (DESIGN 6.8)."""

    def __init__(self, server: Server, session: Session, rng: random.Random) -> None:
        self.server = server
        self.session = session
        self.rng = rng
        self.known: set[str] = set()
        self._count = 0

    async def act(self) -> None:
        """Anything happens."""
        ids = list(self.server.tasks)
        task_id = self.rng.choice(ids or [""])
        kinds = ["made here", "made here", "made elsewhere", "changes", "changes", "goes", "read", "page"]
        match self.rng.choice(kinds if ids else kinds[:3]):
            case "made here":
                self._count += 1
                made = await self.session.ask(call("tools/call", f"r{self._count}", name="work", task={}))
                self.known.add(final(made)["result"]["task"]["taskId"])
            case "made elsewhere":
                self._count += 1
                self.server.add(self.rng.choice(STATUSES), f"r{self._count}" if self._by_request else None)
            case "changes" if self.server.tasks[task_id]["status"] in STATUSES[:2]:
                self.server.change(task_id, self.rng.choice(STATUSES))
            case "goes":
                del self.server.tasks[task_id]
            case "read":
                await self.session.ask(call("tasks/get", 1, taskId=task_id))
                self.known.add(task_id)
            case "page":
                self.known |= {*shown(final(await self.session.ask(call("tasks/list")))["result"])}

    @property
    def _by_request(self) -> bool:
        return self.server.kind.ids == "requests"

    async def check(self) -> None:
        """Every query has the tasks that it should have, in their order, on pages that follow each other."""
        self.known |= {task["taskId"] for task in self.server.listed}
        for criteria in self._queries():
            expected = selected([t for i, t in self.server.tasks.items() if i in self.known], criteria)
            got = await all_listed(self.session, criteria, again=criteria)
            ids = [task["taskId"] for task in got]
            if self.server.kind.reads_now:
                assert sorted(ids) == sorted(expected), criteria
                assert all(task["status"] == self.server.tasks[task["taskId"]]["status"] for task in got)
            else:
                assert ids == expected, criteria
                assert got == [self.server.tasks[task_id] for task_id in ids]

    def _queries(self) -> list[Json]:
        status = self.rng.choice(STATUSES)
        some = self.rng.sample([*self.server.tasks, "nobody"], min(3, len(self.server.tasks)))
        return [
            {"orderBy": "createdAt", "order": self.rng.choice(("asc", "desc"))},
            {"status": self.rng.choice(([status], status))},
            {"taskIds": [i for i in some if i in self.known] or "nobody", "order": "asc"},
        ]


@pytest.mark.parametrize("seed", range(SEEDS))
@each
async def test_a_list_has_all_that_the_server_shows_and_all_that_was_seen(
    gateways: Gateways, name: str, seed: int
) -> None:
    kind = KINDS[name]
    index: Json = {"max_age": "0s", "full_crawl_interval": "0s", "page_size": 100 if kind.reads_now else 7}
    async with in_front_of(Server(kind), gateways, **index) as (server, session):
        play = Play(server, session, random.Random(seed))
        if seed == 0:
            await play.check()  # a server without tasks
        server.fill(30, 5)
        for number in range(ACTS):
            await play.act()
            if number % 6 == 5:
                await play.check()


# What docs/clients.md says of lists that are longer than a page: the order, and `max_age`.
ORDERS: Final = [(by, order) for by in ("createdAt", "lastUpdatedAt") for order in ("asc", "desc")]


@pytest.mark.parametrize(("by", "order"), ORDERS)
async def test_tasks_whose_instants_move_at_every_reading_are_on_one_page_each(
    gateways: Gateways, by: str, order: str
) -> None:
    """While pages are read within one `max_age`."""
    rust = Server(KINDS["Rust SDK (rmcp) to 2.2"])
    async with in_front_of(rust, gateways, max_age="1h", full_crawl_interval="1h", page_size=7) as (server, session):
        server.fill(30, 30)
        tasks = await all_listed(session, {"orderBy": by, "order": order}, pages_max=10)
        assert sorted(task["taskId"] for task in tasks) == sorted(server.tasks)


# ---- what it costs ----


def rows() -> dict[str, str]:
    """The table of servers in the docs, by server."""
    head = HEAD.partition("\n")[0]
    _, _, behind = (ROOT / "docs/clients.md").read_text().partition(head)
    lines = behind.partition("\n\n")[0].split("\n")[2:]
    return {line.split("|")[1].strip(): line for line in lines}


@each
@pytest.mark.usefixtures("harness_alone")
async def test_the_cost_in_the_docs_is_what_is_counted(gateways: Gateways, name: str) -> None:
    cost = await measured(gateways, name)
    assert cost.found[1] == LIVE
    assert 1_750 <= cost.filtered.sent_bytes <= 2_050, "2 KB, the table says"
    assert rows()[name].startswith(cost.row(name)), "python -m tests.world prints the table"


def test_the_table_has_these_servers_and_no_others() -> None:
    assert list(rows()) == list(KINDS)


@each
async def test_within_max_age_a_query_costs_nothing(gateways: Gateways, name: str) -> None:
    async with in_front_of(Server(KINDS[name]), gateways, max_age="1h", full_crawl_interval="1h") as (server, session):
        server.fill(100, 10)
        await listed(session, status="working")
        before = server.asked.copy()
        await listed(session, status="completed", order="asc")
        assert server.asked == before
