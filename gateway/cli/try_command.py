"""`taskgate try`: what is asked of a server, in which order, and what is said. Only `--create` changes the server."""

import asyncio
import json
import sys
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any, Final, NamedTuple

from gateway.app import App
from gateway.cli import command_line
from gateway.cli.mcp_client import Client, NotAnswered, Target, declared_list, object_of, one_line, opened, value_of
from gateway.cli.task_table import Json, columns_of, fitted, shown, table
from gateway.cli.temporary_gateway import behind_gateway
from gateway.config import IndexLimits
from gateway.errors import printable
from gateway.mcp.task import STATUSES
from gateway.query.criteria import capability
from gateway.refresh.query_answer import FILTER

UNFINISHED: Final = ("working", "input_required")
_FILTERS: Final = {"declared": "by itself, and says so", "unsaid": "by status, but does not say so"}
CUTS: Final = (50, 100)  # lists of so many tasks, without a cursor, may have been cut
_ENOUGH: Final = (25, 120)  # tasks to make: most servers have ten a page, others a hundred
_UNLISTED: Final = "not in the server's own list"
OPENED: Final = "opened, deleted in the end"
_MAKES: Final = ("optional", "required")  # what a tool says of tasks that can make them
CRITERIA: Final = {"status": list(UNFINISHED)}
SHOWN_MAX: Final = 10  # tasks that `--create` shows
PAGES_MAX: Final = 1_000  # that are read by hand
_BY_HEADER: Final = f"A client that can only set a header sets this one: {FILTER}: status={','.join(UNFINISHED)}"


def parser() -> ArgumentParser:
    flags = command_line.parser(
        "try",
        "Say whether taskgate helps at a server: what its list of tasks is like, what it\n"
        "costs by hand, and with taskgate in front, which runs in this process.\n"
        "Nothing is changed there but by --create, whose session stays open: the tool may\n"
        "work on in it.",
        "Exit status: 0 if it helps, 1 if not, 2 if that cannot be told, 130 if\ninterrupted.",
    )
    an_object = command_line.checked(lambda text: value_of(text.encode()), lambda _: True, "a JSON object")
    flags.add_argument("--create", metavar="TOOL", help="make a task by this tool, to see what a change costs")
    flags.add_argument(
        "--count", type=command_line.COUNT, default=1, metavar="N", help="make so many, to see several pages (1)"
    )
    flags.add_argument("--arguments", type=an_object, default={}, metavar="JSON", help="the tool's arguments")
    flags.add_argument("--json", action="store_true", help="print one JSON object")
    return flags


def run(arguments: Sequence[str]) -> int:
    return command_line.signalled("try", trial(command_line.read(parser(), arguments)))


async def trial(given: Namespace) -> int:
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
        helps, words = verdict(probe.learned)
        if stopped:
            probe.learned["stopped"], words = stopped, f"{stopped[0].upper()}{stopped[1:]}. {words}"
        if given.json:
            print(json.dumps(probe.learned | {"helps": helps, "verdict": words}))
        else:
            shown_tasks = probe.unfinished[:SHOWN_MAX] if given.create else []
            listed = ["", *table(shown_tasks, columns_of(sys.stdout))] if shown_tasks else []
            made = object_of(probe.learned.get("created"))
            how = f"The task that was made has ended, {made.get('status')}: {made.get('message') or 'no message'}"
            ended = [] if probe.unfinished or made.get("status") in (None, *UNFINISHED) else [one_line(how)]
            stay = f"taskgate --upstream {given.url}" if given.url else f"taskgate stdio -- {target.command}"
            hints = [*[_BY_HEADER] * bool(given.url), f"To stay in front of it: {stay}"] if helps else []
            said, ended = ([fitted(printable(each), sys.stdout) for each in some] for some in ([words, *hints], ended))
            print("\n".join([*said, "", *probe.lines, *listed, *ended]))
        return {True: 0, False: 1, None: 2}[helps] if status is None else status


class ByHand(NamedTuple):
    """A list read by hand: its tasks, how many were on each page, the bytes of the results, whether it is whole."""

    tasks: list[Json]
    pages: list[int]
    received_bytes: int
    whole: bool

    @property
    def by_id(self) -> dict[str, Json]:
        return {str(task.get("taskId")): task for task in self.tasks}

    @property
    def states(self) -> dict[str, Any]:
        """What changes where a task is made, goes or changes. Some timestamps move at each reading."""
        return {i: (task.get("status"), task.get("statusMessage")) for i, task in self.by_id.items()}

    @property
    def statuses(self) -> dict[str, int]:
        found = Counter(str(task.get("status")) for task in self.tasks)
        return {status: found[status] for status in STATUSES if found[status]}

    def fact(self) -> Json:
        size = max(self.pages) if len(self.pages) > 1 else None
        cost = {"requests": len(self.pages), "bytes": self.received_bytes, "tasks": len(self.tasks)}
        return {**cost, "page_size": size, "whole": self.whole}


class Probe:
    """One trial, as the flags have it. `learned` grows, and `lines` with it."""

    def __init__(self, target: Target, given: Namespace) -> None:
        self.learned: Json = {"command" if target.command else "url": target.name}
        self.lines: list[str] = []
        self.unfinished: list[Json] = []  # as the gateway has listed them last
        self._target, self._given = target, given
        self._columns = None if given.json else columns_of(sys.stderr)

    def show(self, progress: str) -> None:
        """Show how far it is, on a terminal, in place of what was shown before."""
        if self._columns is not None:
            print(f"\r\033[K{progress[: self._columns - 1]}", end="\r", file=sys.stderr, flush=True)

    def _learn(self, name: str, value: Any) -> None:
        self.learned[name] = value
        head, words = WORDS[name]
        if said := words(value):
            self.lines.append(shown(f"  {head:<11} {said}"))
            self.show(self.lines[-1])

    async def run(self) -> None:
        """Learn all that can be learned in the time that is given. Raises NotAnswered, TimeoutError."""
        async with AsyncExitStack() as stack, asyncio.timeout(self._given.seconds):  # it ends no tidying up
            fresh = await stack.enter_async_context(Client(self._target))
            await self._meet(fresh)
            if not self.learned["lists"] or self.learned["filters"] == "declared":
                return
            client = fresh
            if self._given.session:
                client = await stack.enter_async_context(Client(fresh.target, self._given.session, fresh.revision))
            first = await self._read(client)
            self._learn("by_hand", first.fact())
            self._learn("statuses", first.statuses)
            if not first.whole:
                return
            index = IndexLimits(pages_max=PAGES_MAX + 1)
            guarded, app = await stack.enter_async_context(behind_gateway(client, index))
            for name in ("first", "again"):
                await self._filtered(name, guarded, app)
            made, given = list[str](), self._given
            if given.create:
                if given.count > 1:  # "later" is after one change, as a client mostly asks
                    made += await created(client, guarded, given, given.count - 1, self.show)
                    await asyncio.sleep(index.max_age)
                    await guarded.page(CRITERIA)
                made += await created(client, guarded, given, 1, self.show)
            await asyncio.sleep(index.max_age)
            await self._filtered("later", guarded, app)
            second = await self._read(client)
            await self._compare(client, first, second, made)
            if client.session_id and not self._target.command:
                other, seen = fresh, list[bool]()
                with suppress(NotAnswered):  # a server may open no second session
                    if client is fresh:
                        other = await stack.enter_async_context(Client(client.target))
                        await other.initialize()
                    seen = [str(task.get("taskId")) in second.by_id for task in (await other.page({})).tasks] or [False]
                some = "none" if not any(seen) else "all" if all(seen) else "some"
                self._learn("others_see", some if seen and second.tasks else None)

    async def _meet(self, client: Client) -> None:
        said = await opened(client, "try")
        about, can = (object_of(said.get(name)) for name in ("serverInfo", "capabilities"))
        self._learn("revision", client.revision)
        self._learn("server", {name: str(about.get(name) or "") for name in ("name", "version")})
        self._learn("tasks", can.get("tasks"))
        declared = await declared_list(client, said)
        self.learned["lists"] = declared not in (None, False)
        self.learned["filters"] = None
        if "filter" in object_of(declared):
            self._learn("filters", "declared")
        words = f"{client.session_id}, which stays open: a tool may work in it" if self._given.create else OPENED
        words = words if client.session_id else "none: the server gives no session id"
        words = "one process is one session" if self._target.command else words
        self._learn("session", "yours, left as it is" if self._given.session else words)

    async def _read(self, client: Client) -> ByHand:
        before, tasks, pages = client.received_bytes, list[Json](), list[int]()
        async for page in client.pages({}):
            tasks += page.tasks
            pages.append(len(page.tasks))
            self.show(f"page {len(pages):,}, {len(tasks):,} tasks")
            if len(pages) == PAGES_MAX:
                break
        if page.cursor is not None and len(pages) < PAGES_MAX:
            raise NotAnswered(f"{client.target.name} repeats a cursor of tasks/list: its pages have no end")
        return ByHand(tasks, pages, client.received_bytes - before, page.cursor is None)

    async def _filtered(self, name: str, client: Client, app: App) -> None:
        before, made = client.received_bytes, app.metrics.made()
        self.unfinished, _, total = await client.page(CRITERIA)
        self._learn(name, {"bytes": client.received_bytes - before, "tasks": total, "asked": app.metrics.made() - made})

    async def _compare(self, client: Client, first: ByHand, second: ByHand, made: list[str]) -> None:
        """What two readings, one before and one after the filtered lists, say together."""
        changed = first.states != second.states
        if made:
            task = Json()
            with suppress(NotAnswered):
                task = await client.ask("tasks/get", {"taskId": made[0]})
            state = {"status": task.get("status"), "message": task.get("statusMessage")}
            listed = set(made) <= second.by_id.keys()
            self._learn("created", {"id": made[0], "count": len(made), "listed": listed, "got": bool(task), **state})
        self._learn("change", changed or bool(made))
        if changed:
            self._learn("by_hand_later", second.fact())
            self._learn("statuses", second.statuses)
        self._learn("may_be_cut", len(second.pages) == 1 and second.pages[0] in CUTS)
        # Whether it filters by status without saying so: only a list of several statuses shows it.
        statuses, unsaid = {str(task.get("status")) for task in second.tasks[: second.pages[0]]}, False
        if len(statuses) > 1:
            with suppress(NotAnswered):  # a strict server refuses parameters that it does not know
                page = await client.page({"status": min(statuses)})
                unsaid = {str(task.get("status")) for task in page.tasks} == {min(statuses)}
        self._learn("filters", "unsaid" if unsaid else None)
        same = not changed and not made
        unfinished = [task for task in second.tasks if task.get("status") in UNFINISHED]
        self._learn("gateway_agrees", self.learned["later"]["tasks"] == len(unfinished) if same else None)


async def created(
    client: Client, through: Client, given: Namespace, count: int, show: Callable[[str], None]
) -> list[str]:
    """The ids of so many new tasks in the session of `client`; `show` shows how far it is.

    Raises NotAnswered, which says what the tool takes, if the server does.
    """
    takes, ids = await _taken(client, given), list[str]()
    client.is_left_open = True
    while len(ids) < count:
        show(f"making task {len(ids) + 1:,} of {count:,}")
        try:
            made = await through.ask("tools/call", {"name": given.create, "arguments": given.arguments, "task": {}})
        except NotAnswered as refused:
            raise NotAnswered(f"{refused}{takes}") from None
        task_id = object_of(made.get("task")).get("taskId")
        if not isinstance(task_id, str):
            said = _list(made.get("content") if made.get("isError") else None)
            words = " ".join(str(object_of(part).get("text", "")) for part in said)
            why = f": {one_line(words)}" if words else ". Does it make tasks? In FastMCP it needs task=True"
            raise NotAnswered(f"the tool {given.create} made no task: it answered at once{why}{takes}")
        ids.append(task_id)
    return ids


async def _taken(client: Client, given: Namespace) -> str:
    """What the tool takes, in words, if `tools/list` says so. Raises NotAnswered if no call can succeed."""
    name, page = given.create, Json()
    with suppress(NotAnswered):
        page = await client.ask("tools/list", {})
    tools = {str(tool.get("name")): tool for tool in map(object_of, _list(page.get("tools")))}
    makers = [tool for tool in tools.values() if object_of(tool.get("execution")).get("taskSupport") in _MAKES]
    known = f"These make tasks: {one_line(', '.join(map(_signature, makers)))}" if makers else ""
    if tools and name not in tools and not page.get("nextCursor"):
        raise NotAnswered(f"the server has no tool {name}. {known or 'None says that it makes tasks'}")
    if (tool := tools.get(name)) is None:
        return ""
    if makers and tool not in makers:
        raise NotAnswered(f"the tool {name} makes no task. {known}")
    takes = f". It takes: {one_line(_signature(tool))}"
    if missing := [each for each in _required(tool) if each not in given.arguments]:
        raise NotAnswered(f"--arguments: the tool {name} needs {one_line(', '.join(missing))}{takes}")
    return takes


def _signature(tool: Json) -> str:
    """A tool with the arguments that it takes: `work(topic: string, depth?: number)`."""
    schema, required = object_of(tool.get("inputSchema")), _required(tool)
    kinds = ((name, object_of(kind).get("type")) for name, kind in object_of(schema.get("properties")).items())
    taken = (f"{name}{'?' * (name not in required)}{f': {kind}' * isinstance(kind, str)}" for name, kind in kinds)
    return f"{tool.get('name')}({', '.join(taken)})"


def _required(tool: Json) -> list[str]:
    return [name for name in _list(object_of(tool.get("inputSchema")).get("required")) if isinstance(name, str)]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def verdict(learned: Json) -> tuple[bool | None, str]:
    """Whether taskgate helps at this server, None if that is not known, and why, in one line."""
    if not learned.get("lists", True):
        return False, "taskgate brings you nothing here: this server declares no tasks/list, and answers none."
    if learned.get("filters") == "declared":
        is_ours = object_of(learned["tasks"]["list"]["filter"]) | {"methods": []} == json.loads(capability(()))
        if is_ours:
            return False, "This address filters its tasks already: it is taskgate, or declares the same filter."
        return False, "taskgate brings you nothing here: this server filters its tasks by itself, and says so."
    hand = learned.get("by_hand_later") or learned.get("by_hand")
    made, later = learned.get("created"), learned.get("later")
    if hand is None:
        return None, "Too little is known to say."
    pages, one = hand["requests"], "this server lists all in one page"
    if not hand["whole"]:
        return True, f"taskgate helps here: this server's list has more than {pages:,} pages."
    if made and made["got"] and not made["listed"]:
        words = "this server's own list leaves out tasks that it has; taskgate's has them."
        return True, f"taskgate makes the list: {words}"
    if made and not made["got"] and not made["listed"]:
        words = "the task just made is gone. Does a bridge start a process for each request? Let it keep one a session."
        return False, f"taskgate brings you nothing here: {words}"
    if learned.get("gateway_agrees") is False:
        return None, "That cannot be told: taskgate's list is another than that by hand. Please report it."
    if not hand["tasks"]:
        named = command_line.SESSION_ID * (learned.get("session") == OPENED)
        makes = "--create TOOL makes a task, and shows what a change costs."
        return None, f"The list is empty, which says little.{named} {makes}"
    if learned.get("may_be_cut"):
        return True, f"taskgate may help here: {one}, and may cut it at {hand['tasks']} tasks."
    if learned["filters"] == "unsaid":
        return False, "taskgate brings you little here: this server filters by status. You get the other criteria."
    if pages == 1 and hand["tasks"] < CUTS[0]:
        more = f"--create TOOL --count {_ENOUGH[0] if hand['tasks'] < _ENOUGH[0] else _ENOUGH[1]}"
        few = f"{one}, of {_count(hand['tasks'], 'task')}"
        return None, f"That cannot be told yet: {few}. Try again with more: {more} makes them."
    if pages == 1:
        return False, f"taskgate brings you little here: {one}. You get order, criteria and fewer bytes."
    if later is None:
        return True, f"taskgate may save you requests here: a list by hand takes {pages:,}. More is not known."
    if later["asked"] < pages:
        return True, f"taskgate saves requests here: {later['asked']:,} in place of {pages:,}; you send one."
    return True, f"taskgate helps you here: one request in place of {pages:,}. The server gets as many as before."


def _said(value: Any, yes: str, no: str) -> str:
    return "" if value is None else yes if value else no


def _tasks(capability: Any) -> str:
    if not isinstance(capability, dict):
        return "none declared"
    requests = object_of(capability.get("requests"))
    made = ", ".join(f"{kind}/{name}" for kind, names in requests.items() for name in object_of(names))
    can = ", ".join(name for name in capability if name != "requests") or "declared"
    return f"{can}; made by {made}" if made else can


def _by_hand(fact: Json) -> str:
    size = f", {fact['page_size']} a page" if fact["page_size"] else ""
    more = "" if fact["whole"] else "; there are more"
    words = f"{_count(fact['requests'], 'request')}, {fact['bytes']:,} bytes, {_count(fact['tasks'], 'task')}"
    return f"{words}{size}{more}"


def _filtered(fact: Json) -> str:
    asked = _count(fact["asked"], "request")
    return f"1 request, {fact['bytes']:,} bytes, {_count(fact['tasks'], 'task')}; the server gets {asked}"


def _made(fact: Json) -> str:
    more = f" and {fact['count'] - 1:,} more" * (fact["count"] > 1)
    return f"{fact['id']}{more}, {_said(fact['listed'], 'listed', _UNLISTED)}"


def _count(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


WORDS: Final[dict[str, tuple[str, Callable[[Any], str]]]] = {
    "revision": ("revision", str),
    "server": ("server", lambda fact: " ".join(filter(None, [fact["name"], fact["version"]])) or "it has no name"),
    "tasks": ("tasks", _tasks),
    "session": ("session", str),
    "by_hand": ("by hand", _by_hand),
    "statuses": ("statuses", lambda fact: ", ".join(f"{n:,} {status}" for status, n in fact.items()) or "none"),
    "may_be_cut": ("cut", lambda fact: _said(fact, "perhaps: a round number, and no cursor", "no sign of it")),
    "filters": ("filters", lambda fact: _FILTERS.get(fact, "no")),
    "first": ("filtered", _filtered),
    "again": ("again", _filtered),
    "created": ("created", _made),
    "later": ("later", _filtered),
    "change": ("change", lambda fact: _said(fact, 'seen: "later" is after it', "not seen")),
    "by_hand_later": ("by hand", _by_hand),
    "others_see": ("others", lambda fact: f"another session sees {fact} of these tasks" if fact else ""),
    "gateway_agrees": ("checked", lambda fact: _said(fact, "taskgate's list is that by hand", "taskgate's differs")),
}
"""For each fact the head of its line, and its words: "" if it is not known. What is not here has none."""
