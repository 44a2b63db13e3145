"""`taskgate try`: what is asked of a server, in which order, and what is said. Only `--create` changes the server."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from typing import Any, Final

from gateway.app import App
from gateway.cli import verdict
from gateway.cli.diagnosis import opened
from gateway.cli.mcp_client import Client, NotAnswered, Target, object_of, one_line
from gateway.cli.stdio_bridge import behind_gateway
from gateway.cli.table import TaskFields, shown
from gateway.cli.verdict import ByHand, ServerFacts
from gateway.config import IndexLimits
from gateway.http.addresses import misplaced

CRITERIA: Final = {"status": list(verdict.UNFINISHED)}


class Probe:
    """One trial. `learned` grows, and `lines` with it; `progress` gets each, and how far a list is read."""

    def __init__(self, target: Target, pages_max: int, progress: Callable[[str], None]) -> None:
        self.learned: ServerFacts = {"command" if target.command else "url": target.name}
        self.lines: list[str] = []
        self.unfinished: list[TaskFields] = []  # as the gateway has listed them last
        self._target = target
        self._pages_max = pages_max
        self._progress = progress

    def _learn(self, name: str, value: Any) -> None:
        self.learned[name] = value
        head, words = verdict.WORDS[name]
        if said := words(value):
            self.lines.append(shown(f"  {head:<11} {said}"))
            self._progress(self.lines[-1])

    async def run(self, seconds: float, session_id: str, create: str | None, arguments: dict[str, Any]) -> None:
        """Learn all that can be learned in so many seconds. Raises NotAnswered, TimeoutError."""
        async with AsyncExitStack() as stack, asyncio.timeout(seconds):  # it ends no tidying up
            fresh = await stack.enter_async_context(Client(self._target))
            await self._meet(fresh, session_id)
            if not self.learned["lists"] or self.learned["filters"] == "declared":
                return
            client = fresh
            if session_id:
                client = await stack.enter_async_context(Client(fresh.target, session_id, fresh.revision))
            first = await self._read(client)
            self._learn("by_hand", first.fact())
            self._learn("statuses", first.statuses)
            if not first.whole:
                return
            index = IndexLimits(pages_max=self._pages_max + 1)
            self._learn("criteria", CRITERIA)
            guarded, app = await stack.enter_async_context(behind_gateway(client, index))
            for name in ("first", "again"):
                await self._filtered(name, guarded, app)
            made = await self._create(guarded, create, arguments) if create else None
            await asyncio.sleep(index.max_age)
            await self._filtered("later", guarded, app)
            second = await self._read(client)
            await self._compare(client, first, second, made)
            if client.session_id and not self._target.command:
                another = await stack.enter_async_context(Client(client.target))
                await self._others(client, fresh, another, second)

    async def _meet(self, client: Client, session_id: str) -> None:
        said = await opened(client, "try")
        if client.target.url != self._target.url:
            self._learn("redirect", misplaced(307, client.target.url, self._target.url, ""))
        about, can = (object_of(said.get(name)) for name in ("serverInfo", "capabilities"))
        self._learn("revision", client.revision)
        self._learn("server", {name: str(about.get(name) or "") for name in ("name", "version")})
        self._learn("tasks", can.get("tasks"))
        declared = object_of(can.get("tasks")).get("list")
        self.learned["lists"] = declared not in (None, False)
        self.learned["filters"] = None
        if "filter" in object_of(declared):
            self._learn("filters", "declared")
        words = verdict.OPENED if client.session_id else "none: the server gives no session id"
        words = "one process is one session" if self._target.command else words
        self._learn("session", "yours, left as it is" if session_id else words)

    async def _read(self, client: Client) -> ByHand:
        before, tasks, pages = client.received_bytes, list[TaskFields](), list[int]()
        try:
            async for page in client.pages({}):
                tasks += page.tasks
                pages.append(len(page.tasks))
                self._progress(f"page {len(pages):,}, {len(tasks):,} tasks")
                if len(pages) == self._pages_max:
                    break
        finally:
            self._progress("")
        if page.cursor is not None and len(pages) < self._pages_max:
            raise NotAnswered(f"{client.target.name} repeats a cursor of tasks/list: its pages have no end")
        return ByHand(tasks, pages, client.received_bytes - before, page.cursor is None)

    async def _filtered(self, name: str, client: Client, app: App) -> None:
        before, asked = client.received_bytes, app.asked
        self.unfinished, _, total = await client.page(CRITERIA)
        self._learn(name, {"bytes": client.received_bytes - before, "tasks": total, "asked": app.asked - asked})

    async def _create(self, client: Client, tool: str, arguments: dict[str, Any]) -> str:
        made = await client.ask("tools/call", {"name": tool, "arguments": arguments, "task": {}})
        task_id = object_of(made.get("task")).get("taskId")
        if not isinstance(task_id, str):
            said = made.get("content") if made.get("isError") else None
            words = " ".join(str(object_of(part).get("text", "")) for part in (said if isinstance(said, list) else ()))
            why = f": {one_line(words)}" if words else ". Does it make tasks? In FastMCP it needs task=True"
            raise NotAnswered(f"the tool {tool} made no task: it answered at once{why}")
        return task_id

    async def _compare(self, client: Client, first: ByHand, second: ByHand, made: str | None) -> None:
        """What two readings, one before and one after the filtered lists, say together."""
        changed = verdict.has_changed(first, second)
        if made is not None:
            task: TaskFields = {}
            with suppress(NotAnswered):
                task = await client.ask("tasks/get", {"taskId": made})
            state = {"status": task.get("status"), "message": task.get("statusMessage")}
            self._learn("created", {"id": made, "listed": made in second.by_id, "got": bool(task), **state})
        self._learn("change", changed or made is not None)
        if changed:
            self._learn("by_hand_later", second.fact())
            self._learn("statuses", second.statuses)
        self._learn("order", verdict.order(first, second))
        self._learn("may_be_cut", len(second.pages) == 1 and second.pages[0] in verdict.CUTS)
        self._learn("instants_move", verdict.instants_move(first, second))
        found = [await self._agrees(client, task) for task in verdict.samples(second)]
        self._learn("get_agrees", all(found) if found else None)
        await self._filters(client, second)
        same = not changed and made is None
        self._learn("gateway_agrees", self.learned["later"]["tasks"] == len(second.unfinished) if same else None)

    async def _agrees(self, client: Client, task: TaskFields) -> bool:
        try:
            got = await client.ask("tasks/get", {"taskId": task.get("taskId")})
        except NotAnswered:
            return False
        return verdict.agree(task, got, bool(self.learned["instants_move"]))

    async def _filters(self, client: Client, listing: ByHand) -> None:
        """Whether the server filters by status without saying so: only a list of several statuses shows it."""
        statuses = {str(task.get("status")) for task in listing.tasks[: listing.pages[0]]}
        unsaid = False
        if len(statuses) > 1:
            status = min(statuses)
            with suppress(NotAnswered):  # a strict server refuses parameters that it does not know
                page = await client.page({"status": status})
                unsaid = {str(task.get("status")) for task in page.tasks} == {status}
        self._learn("filters", "unsaid" if unsaid else None)

    async def _others(self, client: Client, fresh: Client, another: Client, listing: ByHand) -> None:
        seen = None
        with suppress(NotAnswered):  # a server may open no second session
            if client is fresh:
                await another.initialize()
            page = await (another if client is fresh else fresh).page({})
            seen = verdict.seen_by_others(listing, page.tasks)
        self._learn("others_see", seen)
