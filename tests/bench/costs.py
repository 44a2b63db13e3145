"""Section `costs`: what a server is asked a minute for a list that a client keeps reading, against a given commit.

How: the gateway, a server of each kind (tests/world/servers.py) and clients share an event loop with a virtual clock
(tests/model/virtual.py). The server has `TASKS` tasks, the newest, `LIVE` of them working; it answers after `ANSWER_S`.
`LIVE` clients have a task each: they poll it, fetch its result when it has ended, and make another. One more reads the
list of what works. Only requests of the gateway's own are counted. "By hand" is a client that reads all pages instead.

More than `LIMIT` times the commit's, and one get for each task that a client's answer showed changed between two lists
("changed"), fails the bench. Each tree counts in a process of its own.
"""

import asyncio
import json
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from math import inf
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import msgspec

from gateway import config
from gateway.app import App
from tests.bench import child as inside
from tests.bench.guard import check_out
from tests.bench.processes import BenchFailed, Child, child
from tests.bench.report import Column, Options, Table, progress
from tests.model.virtual import VirtualLoop
from tests.own_ids import is_own
from tests.relay.messages import Json, answer, call, post
from tests.upstream import Served, length_of
from tests.world.servers import KINDS, MADE_HERE, Server, pages_by_hand

LIMIT: Final = 1.05
MINUTES: Final = 10
TASKS: Final = 1_000
LIVE: Final = 10
ANSWER_S: Final = 2**-9  # after which a server answers
INTERVALS_S: Final = (60, 300)  # `index.full_crawl_interval`: its default was a minute


@dataclass(frozen=True)
class Work:
    """The list is read, each client polls its task, and some task ends: every so many seconds."""

    name: str
    list_s: float
    poll_s: float = inf
    end_s: float = inf


WORKS: Final = (
    Work("a list every second, clients poll their tasks every second, 10 tasks end a minute", 1, 1, 6),
    Work("a list every 10 s, clients poll their tasks every second, 100 tasks end a minute", 10, 1, 0.6),
    Work("a list every 10 s, clients poll no task, none ends", 10),
)


class Counts(msgspec.Struct):
    """Of a minute: pages by hand, the gateway's own requests, and tasks that clients saw change between two lists."""

    by_hand: float = 0
    own: float = 0
    changed: float = 0


class _Connection(Served):
    def __init__(self, world: "_World") -> None:
        super().__init__()
        self._world = world

    def asked(self, head: bytes, body: bytes) -> None:
        self._world.loop.call_later(ANSWER_S, self._answer, json.loads(body))

    def _answer(self, message: Json) -> None:
        counts, server = self._world.counts, self._world.server
        counts.own += is_own(message["id"]) or str(message["id"]).startswith("taskgate-")
        server.asked[message["method"]] += 1
        self.transport.write(answer(server.said(message)))


class _World:
    """One kind of server, the gateway, and clients."""

    def __init__(self, loop: VirtualLoop, kind: str, interval_s: float) -> None:
        self.loop, self.server, self.counts = loop, Server(KINDS[kind]), Counts()
        self._made_here = kind in MADE_HERE
        self._numbers = count()
        self._shown = set[str]()  # the tasks that answers to clients showed changed since the last list
        plain = config.for_upstream("http://127.0.0.1:3001/mcp", "127.0.0.1:8080", None)
        index = config.IndexLimits(full_crawl_interval=interval_s)
        self._app = App(msgspec.structs.replace(plain, admin=None, index=index))

    async def run(self, work: Work) -> Counts:
        await self.loop.create_server(lambda: _Connection(self), port=3001)
        await self._app.start()
        if self._made_here:
            for number in range(TASKS):
                made = await self._make()
                if number % (TASKS // LIVE):
                    self.server.change(made["taskId"], "completed")
        else:
            self.server.fill(TASKS, LIVE)
        await asyncio.sleep(60)  # nothing is fresh
        criteria = {"status": "working"} if self.server.kind.filters else {}
        by_hand = len(list(pages_by_hand(self.server, **criteria))) * 60 / work.list_s
        self.counts = Counts()
        with suppress(TimeoutError):
            async with asyncio.timeout(60 * MINUTES), asyncio.TaskGroup() as clients:
                clients.create_task(self._read(work.list_s))
                clients.create_task(self._end(work.end_s))
                for number, task_id in enumerate(self._working()):
                    clients.create_task(self._poll(dict(self.server.tasks[task_id]), work.poll_s, number / LIVE))
        await self._app.stop()
        return Counts(by_hand, self.counts.own / MINUTES, self.counts.changed / MINUTES)

    def _working(self) -> list[str]:
        return [task_id for task_id, task in self.server.tasks.items() if task["status"] == "working"]

    async def _read(self, every_s: float) -> None:
        """A client that reads the list of what works."""
        while True:
            before = set(self._working())
            self.counts.changed += len(self._shown)
            self._shown.clear()
            found = {task["taskId"] for task in (await self._ask("tasks/list", status=["working"]))["tasks"]}
            if missing := before & set(self._working()) - found:
                raise BenchFailed(f"the list lacks {missing}")
            await asyncio.sleep(every_s)

    async def _poll(self, task: Json, every_s: float, begins_s: float) -> None:
        """A client that polls its task, fetches its result, and makes the next one."""
        await asyncio.sleep(begins_s)
        while True:
            await asyncio.sleep(every_s)
            before, task = task, await self._ask("tasks/get", taskId=task["taskId"])
            if task != before:
                self._shown.add(task["taskId"])
            if task["status"] != "working":
                await self._ask("tasks/result", taskId=task["taskId"])
                task = await self._make()
                self._shown.add(task["taskId"])

    async def _end(self, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            self.server.change(self._working()[0], "completed")

    async def _make(self) -> Json:
        """A client makes a task; the server forgets the oldest that has ended."""
        made: Json = (await self._ask("tools/call", name="work", task={}))["task"]
        tasks = self.server.tasks
        if len(tasks) > TASKS:
            del tasks[next(task_id for task_id, task in tasks.items() if task["status"] != "working")]
        return made

    async def _ask(self, method: str, **params: object) -> Json:
        """The result that a client gets, on a connection of its own."""
        reader, writer = await asyncio.open_connection("127.0.0.1", 8080)
        writer.write(post(call(method, f"r{next(self._numbers):08}", **params), b"Mcp-Session-Id: s"))
        head = await reader.readuntil(b"\r\n\r\n")
        said = json.loads(await reader.readexactly(length_of(head)))
        writer.close()
        result: Json = said["result"]
        return result


def measured(kind: str, work: Work, interval_s: float) -> Counts:
    loop = VirtualLoop()

    async def run() -> Counts:
        return await _World(loop, kind, interval_s).run(work)

    with patch("time.time", loop.unix_time), patch("gateway.upstream.upstream_set.uniform", max):
        return loop.run_until_complete(run())


async def run(options: Options) -> list[Table]:
    """Count, and make the tables. Raises BenchFailed where a server is asked more than is allowed."""
    of_trees = [Column(f"{i} s, {tree}") for i in INTERVALS_S for tree in (options.against, "this tree")]
    columns = [Column("by hand"), *of_trees, Column("changed")]
    tables, worse = list[Table](), list[str]()
    with tempfile.TemporaryDirectory(prefix="taskgate-costs-") as folder:
        await asyncio.to_thread(check_out, options.against, Path(folder))
        async with child("costs", is_measured=True, tree=Path(folder)) as before, child("costs") as now:
            for number, work in enumerate(WORKS):
                progress(f"costs: {MINUTES} virtual minutes for each figure: {work.name}")
                table = Table(f"requests a minute: {work.name}", "server", columns)
                for kind in KINDS:
                    counts = await asyncio.gather(*(_counted(one, number, kind) for one in (before, now)))
                    pairs = list(zip(*counts, strict=True))
                    new = pairs[0][1]
                    table.add(kind, new.by_hand, *(one.own for pair in pairs for one in pair), new.changed)
                    if any(one.own > LIMIT * other.own + one.changed for other, one in pairs):
                        worse.append(f"more than is allowed: {kind}, {work.name}")
                tables.append(table)
    if worse:
        raise BenchFailed("\n".join([*(line for table in tables for line in table.lines()), *worse]))
    return tables


async def _counted(tree: Child, work: int, kind: str) -> list[Counts]:
    """What the gateway of a tree asks, by interval."""
    return msgspec.convert((await tree.ask("count", work=work, kind=kind))["counts"], list[Counts])


async def count_for(command: dict[str, Any]) -> dict[str, Any]:
    """The same, in threads: the virtual loop is one more."""
    work, kind = WORKS[command["work"]], command["kind"]
    return {"counts": [msgspec.to_builtins(await asyncio.to_thread(measured, kind, work, i)) for i in INTERVALS_S]}


if __name__ == "__main__":
    inside.run(inside.serve({}, count_for))
