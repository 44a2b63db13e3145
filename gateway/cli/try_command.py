"""`taskgate try`: what is asked of a server, in which order, and what is said. Only `--create` changes the server."""

import asyncio
import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any, Final

from gateway.app import App
from gateway.cli import command_line, verdict
from gateway.cli.command_line import checked
from gateway.cli.mcp_client import Client, NotAnswered, Target, object_of, one_line, opened, value_of
from gateway.cli.stdio_bridge import behind_gateway
from gateway.cli.table import Json, columns_of, fitted, shown, table
from gateway.cli.verdict import UNFINISHED, ByHand
from gateway.config import IndexLimits
from gateway.errors import printable
from gateway.http.addresses import misplaced
from gateway.refresh.answer import FILTER

CRITERIA: Final = {"status": list(UNFINISHED)}
SHOWN_MAX: Final = 10  # tasks that `--create` shows
_BY_HEADER: Final = f"A client that can only set a header sets this one: {FILTER}: status={','.join(UNFINISHED)}"


def run(arguments: Sequence[str]) -> int:
    flags = command_line.parser(
        "try",
        "Say whether taskgate helps at a server: what its list of tasks is like, what it\n"
        "costs by hand, and with taskgate in front, which runs in this process.\n"
        "Nothing is changed there but by --create.",
        "Exit status: 0 if it helps, 1 if not, 2 if that cannot be told, 130 if\ninterrupted.",
    )
    an_object = checked(lambda text: value_of(text.encode()), lambda _: True, "a JSON object")
    count = checked(int, lambda count: count >= 1, "a whole number of 1 or more")
    flags.add_argument("--create", metavar="TOOL", help="make one task by this tool, to see what a change costs")
    flags.add_argument("--arguments", type=an_object, default={}, metavar="JSON", help="the tool's arguments")
    flags.add_argument("--pages", type=count, default=1_000, metavar="N", help="read no more pages by hand (1000)")
    flags.add_argument("--json", action="store_true", help="print one JSON object")
    return command_line.signalled("try", _trial(command_line.read(flags, arguments)))


async def _trial(given: Namespace) -> int:
    """Try a server; print the verdict, then the facts. Returns the exit status. Raises NotAnswered."""
    async with command_line.server(given) as target:
        probe = Probe(target, given)
        stopped, status = "", None
        try:
            await probe.run()
        except TimeoutError:
            stopped = f"stopped after {given.seconds:g} s"
        except asyncio.CancelledError:
            stopped, status = "interrupted", command_line.INTERRUPTED
        except NotAnswered:
            probe.show("")
            print("".join(f"{line}\n" for line in probe.lines if not given.json), end="")
            raise
        probe.show("")
        helps, words = verdict.verdict(probe.learned)
        if stopped:
            probe.learned["stopped"], words = stopped, f"{stopped[0].upper()}{stopped[1:]}. {words}"
        if given.json:
            print(json.dumps(probe.learned | {"helps": helps, "verdict": words}))
        else:
            listed = ["", *table(probe.unfinished[:SHOWN_MAX], columns_of(sys.stdout))] if given.create else []
            made = object_of(probe.learned.get("created"))
            how = f"The task that was made has ended, {made.get('status')}: {made.get('message') or 'no message'}"
            ended = [] if probe.unfinished or made.get("status") in (None, *UNFINISHED) else [one_line(how)]
            stay = f"taskgate --upstream {given.url}" if given.url else f"taskgate stdio -- {target.command}"
            hints = [*[_BY_HEADER] * bool(given.url), f"To stay in front of it: {stay}"] if helps else []
            said = fitted(printable(words), sys.stdout, bool(helps))
            hints, ended = ([fitted(printable(each), sys.stdout) for each in some] for some in (hints, ended))
            print("\n".join([said, *hints, "", *probe.lines, *listed, *ended]))
        return {True: 0, False: 1, None: 2}[helps] if status is None else status


class Probe:
    """One trial, as the flags have it. `learned` grows, and `lines` with it."""

    def __init__(self, target: Target, given: Namespace) -> None:
        self.learned: Json = {"command" if target.command else "url": target.name}
        self.lines: list[str] = []
        self.unfinished: list[Json] = []  # as the gateway has listed them last
        self._target = target
        self._given = given
        self._columns = None if given.json else columns_of(sys.stderr)

    def show(self, progress: str) -> None:
        """Show how far it is, on a terminal, in place of what was shown before."""
        if self._columns is not None:
            print(f"\r\033[K{progress[: self._columns - 1]}", end="\r", file=sys.stderr, flush=True)

    def _learn(self, name: str, value: Any) -> None:
        self.learned[name] = value
        head, words = verdict.WORDS[name]
        if said := words(value):
            self.lines.append(shown(f"  {head:<11} {said}"))
            self.show(self.lines[-1])

    async def run(self) -> None:
        """Learn all that can be learned in the time that is given. Raises NotAnswered, TimeoutError."""
        session_id = self._given.session
        async with AsyncExitStack() as stack, asyncio.timeout(self._given.seconds):  # it ends no tidying up
            fresh = await stack.enter_async_context(Client(self._target))
            await self._meet(fresh)
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
            index = IndexLimits(pages_max=self._given.pages + 1)
            self._learn("criteria", CRITERIA)
            guarded, app = await stack.enter_async_context(behind_gateway(client, index))
            for name in ("first", "again"):
                await self._filtered(name, guarded, app)
            made = await self._create(guarded) if self._given.create else None
            await asyncio.sleep(index.max_age)
            await self._filtered("later", guarded, app)
            second = await self._read(client)
            await self._compare(client, first, second, made)
            if client.session_id and not self._target.command:
                seen, other = None, fresh
                with suppress(NotAnswered):  # a server may open no second session
                    if client is fresh:
                        other = await stack.enter_async_context(Client(client.target))
                        await other.initialize()
                    seen = verdict.seen_by_others(second, (await other.page({})).tasks)
                self._learn("others_see", seen)

    async def _meet(self, client: Client) -> None:
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
        self._learn("session", "yours, left as it is" if self._given.session else words)

    async def _read(self, client: Client) -> ByHand:
        before, tasks, pages = client.received_bytes, list[Json](), list[int]()
        async for page in client.pages({}):
            tasks += page.tasks
            pages.append(len(page.tasks))
            self.show(f"page {len(pages):,}, {len(tasks):,} tasks")
            if len(pages) == self._given.pages:
                break
        if page.cursor is not None and len(pages) < self._given.pages:
            raise NotAnswered(f"{client.target.name} repeats a cursor of tasks/list: its pages have no end")
        return ByHand(tasks, pages, client.received_bytes - before, page.cursor is None)

    async def _filtered(self, name: str, client: Client, app: App) -> None:
        before, asked = client.received_bytes, app.asked
        self.unfinished, _, total = await client.page(CRITERIA)
        self._learn(name, {"bytes": client.received_bytes - before, "tasks": total, "asked": app.asked - asked})

    async def _create(self, client: Client) -> str:
        tool = self._given.create
        made = await client.ask("tools/call", {"name": tool, "arguments": self._given.arguments, "task": {}})
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
            task = await self._got(client, made)
            state = {"status": task.get("status"), "message": task.get("statusMessage")}
            self._learn("created", {"id": made, "listed": made in second.by_id, "got": bool(task), **state})
        self._learn("change", changed or made is not None)
        if changed:
            self._learn("by_hand_later", second.fact())
            self._learn("statuses", second.statuses)
        self._learn("order", verdict.order(first, second))
        self._learn("may_be_cut", len(second.pages) == 1 and second.pages[0] in verdict.CUTS)
        self._learn("instants_move", verdict.instants_move(first, second))
        is_moving, samples = bool(self.learned["instants_move"]), verdict.samples(second)
        found = [verdict.agree(task, await self._got(client, task.get("taskId")), is_moving) for task in samples]
        self._learn("get_agrees", all(found) if found else None)
        # Whether it filters by status without saying so: only a list of several statuses shows it.
        statuses, unsaid = {str(task.get("status")) for task in second.tasks[: second.pages[0]]}, False
        if len(statuses) > 1:
            with suppress(NotAnswered):  # a strict server refuses parameters that it does not know
                page = await client.page({"status": min(statuses)})
                unsaid = {str(task.get("status")) for task in page.tasks} == {min(statuses)}
        self._learn("filters", "unsaid" if unsaid else None)
        same = not changed and made is None
        unfinished = [task for task in second.tasks if task.get("status") in UNFINISHED]
        self._learn("gateway_agrees", self.learned["later"]["tasks"] == len(unfinished) if same else None)

    async def _got(self, client: Client, task_id: object) -> Json:
        """What `tasks/get` says of a task; nothing if it refuses."""
        with suppress(NotAnswered):
            return await client.ask("tasks/get", {"taskId": task_id})
        return {}
