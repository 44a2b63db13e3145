"""A scripted server for each kind of task list that real servers have (DESIGN 2, docs/clients.md).

`KINDS` says all that differs between two servers; `Server` carries it out. Tasks begin in the past, at instants that
are the same in every run, so that sizes are too.
"""

import time
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import Final, Literal
from zlib import crc32

from tests.launch import Gateway, listening, port_of
from tests.peer import Peer
from tests.relay.http1 import Message
from tests.relay.messages import TASKS_CAPABILITY, Json, answer, dumps, fault, result
from tests.relay.rig import Place, Script, body, rig_at

EPOCH: Final = datetime(2026, 11, 1, tzinfo=UTC)
UNFINISHED: Final = ("working", "input_required")
INVALID_PARAMS, NOT_FOUND = -32602, -32002


@dataclass(frozen=True)
class Kind:
    """What is peculiar to the lists of one kind of server. The defaults are those of the TypeScript SDK.

    `page_size`: tasks a page; None if all are on one. `cursors`: "task", an id that must still be there; "behind", the
    place behind an id, there or not; "none". `order` of the list: "any" is another one in each answer. `lists`: which
    tasks it shows. `cut`: no more than so many, and no cursor. `digits` of a second, and `zone`, as its timestamps have
    them. `reads_now`: both timestamps are those of the answer. `ids`: random, growing with time, or those of the
    requests. `missing`: the code of an error that says that a task is not there. `full_names_next`: a full page names a
    next one, even if that is empty. `empty`: its list without tasks. `takes`: a result can be fetched once, and its
    task goes with it. `filters`: by `{"status": STRING}`, without saying so.
    """

    page_size: int | None = 10
    cursors: Literal["task", "behind", "none"] = "task"
    order: Literal["oldest", "newest", "id", "any"] = "oldest"
    lists: Callable[[Json], bool] = lambda task: True
    cut: int | None = None
    digits: int = 3
    zone: str = "Z"
    reads_now: bool = False
    ids: Literal["random", "growing", "requests"] = "random"
    missing: int = INVALID_PARAMS
    full_names_next: bool = False
    empty: tuple[()] | None = ()
    takes: bool = False
    filters: bool = False
    has_list: bool = True


KINDS: Final[dict[str, Kind]] = {
    "TypeScript SDK 1.x": Kind(),
    "Python SDK 1.30": Kind(page_size=None, cursors="none", digits=6),
    "C# SDK 1.x": Kind(page_size=100, cursors="behind", ids="growing", digits=7, zone="+00:00"),
    "mcp-go": Kind(page_size=None, cursors="behind", order="id", digits=0, empty=None),
    "mcp-go, pages of 50": Kind(page_size=50, cursors="behind", order="id", digits=0, empty=None, full_names_next=True),
    "any with the newest first, 50 a page": Kind(page_size=50, order="newest"),
    "Rust SDK (rmcp) to 2.2": Kind(
        page_size=None,
        cursors="none",
        order="any",
        lists=lambda task: task["status"] in UNFINISHED,
        digits=9,
        zone="+00:00",
        reads_now=True,
        ids="requests",
        missing=NOT_FOUND,
        takes=True,
    ),
    "any that filters and does not say so": Kind(page_size=50, filters=True),
    "any that cuts its list at 50 tasks": Kind(page_size=None, cursors="none", order="newest", cut=50),
    "FastMCP 3.4": Kind(cursors="none", lists=lambda task: False, digits=6),
}
MADE_HERE: Final = ("FastMCP 3.4", "Rust SDK (rmcp) to 2.2", "any that cuts its list at 50 tasks")
"""The tasks of these must be seen when they are made: no list shows them all."""


class Server:
    """One server, whose callers all have the same tasks. Tests change `tasks` by its methods."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.tasks: dict[str, Json] = {}  # by id, the oldest first
        self.asked: Counter[str] = Counter()  # requests by method
        self.sent_bytes = 0  # of results
        self._count = 0

    # ---- its tasks ----

    def add(self, status: str = "working", task_id: str | None = None, created: str | None = None) -> str:
        """A task is made, a minute after the one before unless `created` says when. Returns its id."""
        self._count += 1
        at = EPOCH + timedelta(minutes=self._count)
        created = created or self.timestamp(at)
        task_id = self._new_id(at) if task_id is None else task_id
        self.tasks.pop(task_id, None)  # a new life of an id is a new task
        self.tasks[task_id] = {
            "taskId": task_id, "status": status, "createdAt": created, "lastUpdatedAt": created, "ttl": None,
            "pollInterval": 1000,
        }  # fmt: skip
        return task_id

    def change(self, task_id: str, status: str, updated: str | None = None) -> None:
        self._count += 1
        self.tasks[task_id] |= {
            "status": status,
            "lastUpdatedAt": updated or self.timestamp(EPOCH + timedelta(days=10, minutes=self._count)),
        }

    def fill(self, count: int, live: int) -> None:
        """`count` tasks, `live` of them live and spread, the others completed."""
        for number in range(count):
            self.add("working" if number % (count // live) == 0 else "completed")

    def timestamp(self, at: datetime) -> str:
        fraction = f".{at.microsecond:06}000"[: self.kind.digits + 1] if self.kind.digits else ""
        return f"{at:%Y-%m-%dT%H:%M:%S}{fraction}{self.kind.zone}"

    def _new_id(self, at: datetime) -> str:
        if self.kind.ids == "growing":
            return f"{int(at.timestamp()) * 10**7:016x}{self._count:016x}"
        return blake2b(b"%d" % self._count, digest_size=16).hexdigest()

    def read(self, task: Json) -> Json:
        if not self.kind.reads_now:
            return task
        now = self.timestamp(datetime.fromtimestamp(time.time(), UTC))
        return {**task, "createdAt": now, "lastUpdatedAt": now}

    @property
    def listed(self) -> list[Json]:
        """All tasks that its list shows, in order."""
        tasks = [task for task in self.tasks.values() if self.kind.lists(task)]
        if self.kind.order == "newest":
            tasks.reverse()
        elif self.kind.order == "id":
            tasks.sort(key=lambda task: str(task["taskId"]))
        elif self.kind.order == "any":
            tasks.sort(key=lambda task: crc32(f"{self.asked['tasks/list']} {task['taskId']}".encode()))
        return tasks[: self.kind.cut]

    # ---- its answers ----

    async def __call__(self, request: Message, _peer: Peer) -> bytes:
        """Answer a request, as a script of `Rig`."""
        message = body(request)
        if not isinstance(message, dict) or "id" not in message:
            return b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"
        self.asked[message["method"]] += 1
        said = self.said(message)
        self.sent_bytes += len(dumps(said.get("result")))
        return answer(said)

    def said(self, message: Json) -> Json:
        """The response to a message, which is not counted."""
        request_id, params = message["id"], message.get("params", {})
        match message["method"]:
            case "initialize":
                said = {"protocolVersion": "2025-11-25", "capabilities": {"tasks": TASKS_CAPABILITY}, "serverInfo": {}}
                return result(request_id, said)
            case "tasks/list" if self.kind.has_list:
                return self._list(request_id, params)
            case "tasks/get" | "tasks/cancel" | "tasks/result" as method:
                task = self.tasks.get(params["taskId"])
                if task is None:
                    return fault(request_id, self.kind.missing, "Task not found")
                if method == "tasks/cancel":
                    self.change(task["taskId"], "cancelled")
                if method == "tasks/result":
                    if self.kind.takes:
                        del self.tasks[task["taskId"]]
                    return result(request_id, {"content": []})
                return result(request_id, self.read(task))
            case "tools/call" if "task" in params:
                task_id = str(request_id) if self.kind.ids == "requests" else None
                return result(request_id, {"task": self.read(self.tasks[self.add(task_id=task_id)])})
        return fault(request_id, -32601, "Method not found")

    def _list(self, request_id: object, params: Json) -> Json:
        cursor, tasks = params.get("cursor"), self.listed
        if self.kind.filters and isinstance(params.get("status"), str):
            tasks = [task for task in tasks if task["status"] == params["status"]]
        start = 0
        if cursor is not None and self.kind.cursors != "none":
            ids = [task["taskId"] for task in tasks]
            if self.kind.cursors == "behind":
                start = bisect_right(ids, cursor)
            elif cursor in ids:
                start = ids.index(cursor) + 1
            else:
                return fault(request_id, INVALID_PARAMS, f"Invalid cursor: {cursor}")
        page = tasks[start : None if self.kind.page_size is None else start + self.kind.page_size]
        whole: Json = {"tasks": [self.read(task) for task in page] or self.kind.empty}
        if len(tasks) > start + len(page) or (self.kind.full_names_next and len(page) == self.kind.page_size):
            whole["nextCursor"] = page[-1]["taskId"]
        return result(request_id, whole)


@asynccontextmanager
async def at(script: Script) -> AsyncIterator[str]:
    """The URL of an upstream that answers so."""
    with listening() as sock:
        async with rig_at(Place(Gateway(0, 0), sock)) as rig:
            rig.serve(script)
            yield f"http://127.0.0.1:{port_of(sock)}/mcp"


def pages_by_hand(server: Server, **params: object) -> Iterator[Json]:
    """The pages that a client reads who filters for himself."""
    cursor: Json = {}
    while True:
        message = {"jsonrpc": "2.0", "id": 1, "method": "tasks/list", "params": {**params, **cursor}}
        said = server.said(message)
        server.asked["tasks/list"] += 1
        server.sent_bytes += len(dumps(said["result"]))
        yield said["result"]
        if "nextCursor" not in said["result"]:
            return
        cursor = {"cursor": said["result"]["nextCursor"]}


def shown(page: Json) -> list[str]:
    return [task["taskId"] for task in page["tasks"] or ()]
