"""An MCP server as the SDKs of 2025-11-25 make it: it lists a session's tasks ten at a time, and cannot filter them."""

import asyncio
import random
import time
import uuid
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

import orjson
from aiohttp import web

from gateway.cli.task_table import Json

HISTORY_DAYS: Final = 5
UNFINISHED: Final = ("working", "input_required")
_SESSION: Final = "Mcp-Session-Id"
_MESSAGES: Final = {
    "working": (None, "Reading sources", "Comparing 14 papers", "Writing the summary"),
    "input_required": ("Which region?", "May I use the paid archive?", "Two topics match: which one?"),
    "completed": (None, "Report ready", "Report ready, 3 sources left out"),
    "failed": ("The archive did not answer", "Not enough sources"),
    "cancelled": ("The task was cancelled by request.",),
}


def timestamp(instant_ms: int) -> str:
    """The instant as JavaScript's `toISOString` writes it: three digits of a second, and `Z`."""
    instant = datetime(1970, 1, 1) + timedelta(milliseconds=instant_ms)  # exact, as a float of seconds is not
    return f"{instant.isoformat(timespec='milliseconds')}Z"


def history(rng: random.Random, count: int, until_ms: int) -> Iterator[Json]:
    """`count` tasks of the last `HISTORY_DAYS` before `until_ms`, in the order of their creation."""
    span_ms = HISTORY_DAYS * 86_400_000
    step_ms = span_ms / max(count, 1)
    for number in range(count):
        created_ms = until_ms - span_ms + int((number + rng.random()) * step_ms)
        updated_ms = created_ms + int(rng.random() * (until_ms - created_ms) * 0.5)
        status = rng.choices(tuple(_MESSAGES), (2, 1, 79, 10, 8))[0]
        task: Json = {
            "taskId": f"{rng.getrandbits(128):032x}",
            "status": status,
            "ttl": 14 * 86_400_000,
            "createdAt": timestamp(created_ms),
            "lastUpdatedAt": timestamp(updated_ms),
            "pollInterval": rng.choice((500, 1_000, 2_000, 5_000)),
        }
        message = rng.choice(_MESSAGES[status])
        yield task if message is None else {**task, "statusMessage": message}


class Tasks:
    """Those of one session, in the order of their creation."""

    def __init__(self) -> None:
        self.all: list[Json] = []
        self._offsets: dict[str, int] = {}

    def add(self, task: Json) -> None:
        self._offsets[task["taskId"]] = len(self.all)
        self.all.append(task)

    def update(self, task_id: str, status: str, message: str) -> None:
        now = timestamp(time.time_ns() // 1_000_000)
        self.all[self._offsets[task_id]].update(status=status, lastUpdatedAt=now, statusMessage=message)

    def result(self, method: str, params: Json, page_size: int) -> Json:
        """The result of a request. Raises LookupError if there is none."""
        match method:
            case "initialize":
                about = {"name": "legacy-research", "version": "1.0.0"}
                return {"protocolVersion": "2025-11-25", "capabilities": {"tasks": {"list": {}}}, "serverInfo": about}
            case "ping":
                return {}
            case "tasks/list":
                start = self._offsets[params["cursor"]] + 1 if "cursor" in params else 0
                tasks = self.all[start : start + page_size]
                more = start + page_size < len(self.all)
                return {"tasks": tasks, "nextCursor": tasks[-1]["taskId"]} if more else {"tasks": tasks}
            case "tasks/get":
                return self.all[self._offsets[params["taskId"]]]
        raise LookupError(method)


class LegacyServer:
    """The server: make it, `start` it, `stop` it. `tasks` is the number of tasks in a new session."""

    page_size = 10  # tasks, as in both SDKs

    def __init__(self, tasks: int = 240) -> None:
        self.sessions: dict[str, Tasks] = {}  # the oldest first
        self.tasks = tasks
        self._rng = random.Random(32)
        # With cancellation an answer ends when its client leaves.
        server = web.Server(self.handle, handler_cancellation=True, access_log=None)
        self._runner = web.ServerRunner(server, shutdown_timeout=0.1)
        self.stop = self._runner.cleanup

    async def start(self) -> str:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}/mcp"

    def load(self, count: int) -> None:
        """Give the session opened last a history."""
        for task in history(self._rng, count, time.time_ns() // 1_000_000):
            next(reversed(self.sessions.values())).add(task)

    async def keep_changing(self, every_s: float) -> None:
        """Change one task of each session, again and again."""
        while True:
            await asyncio.sleep(every_s)
            for tasks in self.sessions.values():
                if unfinished := [task for task in tasks.all if task["status"] in UNFINISHED]:
                    task = self._rng.choice(unfinished)
                    status = "working" if task["status"] == "input_required" else "input_required"
                    tasks.update(task["taskId"], status, self._rng.choice(_MESSAGES[status]) or "Starting again")

    async def handle(self, request: web.BaseRequest) -> web.Response:
        session_id = request.headers.get(_SESSION, "")
        if request.path != "/mcp":
            return web.Response(status=404)
        if request.method == "DELETE":
            return web.Response(status=200 if self.sessions.pop(session_id, None) else 404)
        if request.method != "POST":
            return web.Response(status=405)
        message = orjson.loads(await request.read())
        if (method := message["method"]) == "initialize":
            session_id = uuid.uuid4().hex
            self.sessions[session_id] = Tasks()
            self.load(self.tasks)
        if session_id not in self.sessions:
            return web.Response(status=404 if session_id else 400, text="this session does not exist")
        headers = {_SESSION: session_id}
        if "id" not in message:
            return web.Response(status=202, headers=headers)
        answer = {"jsonrpc": "2.0", "id": message["id"]}
        try:
            answer["result"] = self.sessions[session_id].result(method, message.get("params", {}), self.page_size)
        except LookupError:
            answer["error"] = {"code": -32602, "message": f"{method}: not found"}
        return web.Response(body=orjson.dumps(answer), content_type="application/json", headers=headers)
