"""All that `taskgate try` and `taskgate tasks` may print of a server, from what a witness saw (docs/choosing.md)."""

import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, Final

from tests.forked import forked
from tests.launch import Json
from tests.witness import Exchange, Witness

LIVE: Final = ("working", "input_required")
STATUSES: Final = (*LIVE, "completed", "failed", "cancelled")
INSTANTS: Final = ("createdAt", "lastUpdatedAt")
SESSIONS: Final = {True: "opened, deleted in the end", False: "none: the server gives no session id"}
ORDERS: Final = (("oldest first", "newest first"), ("latest change last", "latest change first"))
YOURS: Final = "yours, left as it is"
HEAD: Final = ("TASK", "STATUS", "AGE", "MESSAGE")
AGE: Final = re.compile(r"(?m)(?<=  )( *)\d+[smhd](?=  |$)")
NO_TASKS: Final = "No such tasks."
SESSION_ID: Final = "For your client's tasks: --session ID, the Mcp-Session-Id of its requests."
NO_TASKS_HERE: Final = f"{NO_TASKS} {SESSION_ID}"
LISTS_NONE: Final = f"{NO_TASKS} The server lists none: ask at the gateway that your client uses."
AS_OF: Final = "2026-11-22T21:48:00.000Z"

UNLISTED: Final = "not in the server's own list"
_CREATE: Final = "--create TOOL makes a task, and shows what a change costs."
EMPTY: Final = f"The list is empty, which says little. {_CREATE}"
EMPTY_HERE: Final = f"The list is empty, which says little. {SESSION_ID} {_CREATE}"
MAKES: Final = "taskgate makes the list: this server's own list leaves out tasks that it has; taskgate's has them."
NO_LIST: Final = "taskgate brings you nothing here: this server declares no tasks/list."
BY_HEADER: Final = "A client that can only set a header sets this one: Taskgate-Filter: status=working,input_required\n"
BY_ITSELF: Final = "taskgate brings you nothing here: this server filters its tasks by itself, and says so."
IS_TASKGATE: Final = f"{BY_ITSELF} Is this address taskgate already?"
ONE_PAGE: Final = "taskgate brings you little here: this server lists all in one page. With more than {}, try again."
HELPS: Final = "taskgate helps you here: one request in place of {}. The server gets as many as before."
SAVES: Final = "taskgate saves requests here: {} in place of {}; you send one."

Facts = list[tuple[str, Any]]
"""Facts in the order in which they are learned; a later one replaces one of the same name."""


# ---- what can be learned ----


@dataclass
class _List:
    pages: list[Exchange]

    @cached_property
    def tasks(self) -> list[Json]:
        return [task for page in self.pages for task in page.said.get("tasks") or []]

    @cached_property
    def by_id(self) -> dict[str, Json]:
        return {task["taskId"]: task for task in self.tasks}

    @property
    def is_whole(self) -> bool:
        return self.pages[-1].said.get("nextCursor") is None

    @property
    def cost(self) -> Json:
        sizes = [len(page.said.get("tasks") or []) for page in self.pages]
        return {
            "requests": len(self.pages),
            "bytes": sum(len(page.result.encode()) for page in self.pages),
            "tasks": sum(sizes),
            "page_size": max(sizes) if len(sizes) > 1 else None,
            "whole": self.is_whole,
        }

    @property
    def statuses(self) -> Json:
        count = Counter(task["status"] for task in self.tasks)
        return {status: count[status] for status in STATUSES if count[status]}


def _list(exchanges: Sequence[Exchange], pages_max: int) -> _List:
    pages: list[Exchange] = []
    for page in exchanges[:pages_max]:
        pages.append(page)
        if _List(pages).is_whole:
            break
    return _List(pages)


def live(exchanges: Iterable[Exchange]) -> dict[str, str]:
    """The unfinished tasks, as they were written last, by id."""
    latest: dict[str, str] = {}
    for exchange in exchanges:
        latest |= exchange.tasks
    return {task_id: text for task_id, text in latest.items() if json.loads(text)["status"] in LIVE}


def _filtered(tasks: dict[str, str], asked: int) -> Json:
    meta = f'{{"taskgate/total":{len(tasks)},"taskgate/asOf":"{AS_OF}"}}'
    said = f'{{"tasks":[{",".join(tasks.values())}],"_meta":{meta}}}'
    return {"bytes": len(said.encode()), "tasks": len(tasks), "asked": asked}


def learned(
    exchanges: Sequence[Exchange], is_process: bool = False, session: str = "", pages_max: int = 1_000
) -> Facts:
    """The facts, from all that was said in one trial: by hand, and by the gateway in its midst."""
    opening, *rest = exchanges
    said, about = opening.said, opening.said["serverInfo"]
    can = said["capabilities"].get("tasks")
    declared = (can or {}).get("list")
    facts: Facts = [
        ("revision", said["protocolVersion"]),
        ("server", {name: about.get(name, "") for name in ("name", "version")}),
        ("tasks", can),
    ]
    if "filter" in (declared or {}):
        facts.append(("filters", "declared"))
    kept = YOURS if session else SESSIONS[bool(opening.session)]
    facts.append(("session", "one process is one session" if is_process else kept))
    if declared is None or "filter" in declared:
        return facts
    mine = session or opening.session
    own = [exchange for exchange in rest if exchange.session == mine]
    starts = [at for at, e in enumerate(own) if e.method == "tasks/list" and not {"cursor", "status"} & set(e.params)]
    one = _list(own[starts[0] :], pages_max)
    facts += [("by_hand", one.cost), ("statuses", one.statuses)]
    if not one.is_whole:
        return facts
    two = _list(own[starts[-1] :], pages_max)
    between, behind = own[starts[1] : starts[-1]], own[starts[-1] + len(two.pages) :]
    assert starts[:2] == [0, len(one.pages)], "the gateway reads the whole list before it says what is in it"
    crawl = _list(between, pages_max).pages
    calls = [exchange for exchange in between if exchange.method == "tools/call"]
    asked = len(between) - len(crawl) - len(calls)
    facts.append(("criteria", {"status": list(LIVE)}))
    facts += [(name, _filtered(live(crawl), len(crawl) * (name == "first"))) for name in ("first", "again")]
    facts.append(("later", _filtered(live(own[: starts[-1]]), asked)))
    return facts + _compared(one, two, calls, behind) + _others(two, rest, mine)


def _compared(one: _List, two: _List, calls: Sequence[Exchange], behind: Sequence[Exchange]) -> Facts:
    """What two readings of the list say, a call between them, and what was asked behind them."""
    facts: Facts = []
    if calls:
        [made] = calls[0].tasks
        state = {"status": behind[0].said.get("status"), "message": behind[0].said.get("statusMessage")}
        facts.append(("created", {"id": made, "listed": made in two.by_id, "got": bool(behind[0].result), **state}))
        behind = behind[1:]
    moving = _moving(one, two)
    names = ("status", "statusMessage", *INSTANTS[: 0 if moving else 2])
    states = [{i: [task.get(name) for name in names] for i, task in each.by_id.items()} for each in (one, two)]
    changed = states[0] != states[1]
    facts.append(("change", changed or bool(calls)))
    if changed:
        facts += [("by_hand_later", two.cost), ("statuses", two.statuses)]
    facts.append(("order", _order(one, two)))
    facts.append(("may_be_cut", len(two.pages) == 1 and len(two.tasks) in (50, 100)))
    facts.append(("instants_move", moving))
    gets = [exchange for exchange in behind if exchange.method == "tasks/get"]
    assert len(gets) == min(3, len([t for t in two.tasks if t["status"] not in LIVE] or two.tasks))
    apart = {"_meta", *(INSTANTS if moving else ())}
    agreed = [_plain(e.said, apart) == _plain(two.by_id[e.params["taskId"]], apart) for e in gets]
    facts.append(("get_agrees", all(agreed) if agreed else None))
    filtered = [exchange for exchange in behind if "status" in exchange.params]
    unsaid = [{task["status"] for task in e.said.get("tasks") or []} == {e.params["status"]} for e in filtered]
    facts.append(("filters", "unsaid" if any(unsaid) else None))
    facts.append(("gateway_agrees", None if changed or calls else True))
    return facts


def _plain(task: Json, apart: set[str]) -> Json:
    return {name: value for name, value in task.items() if value is not None and name not in apart}


def _moving(one: _List, two: _List) -> bool | None:
    """Whether timestamps are others at the second reading, of tasks that are finished, or that they were made."""
    both = [(one.by_id[i], task) for i, task in two.by_id.items() if i in one.by_id]
    over = [(a, b) for a, b in both if a["status"] == b["status"] not in LIVE]
    if not both:
        return None
    return any(a["createdAt"] != b["createdAt"] for a, b in both) or any(
        a["lastUpdatedAt"] != b["lastUpdatedAt"] for a, b in over
    )


def _order(one: _List, two: _List) -> str | None:
    ids, again = ([i for i in each.by_id if i in one.by_id and i in two.by_id] for each in (one, two))
    if ids != again:
        return "another at each reading"
    for name, words in zip(INSTANTS, ORDERS, strict=True):
        instants = [datetime.fromisoformat(task[name]) for task in two.tasks]
        if len(set(instants)) > 1 and sorted(instants) in (instants, instants[::-1]):
            return words[sorted(instants) != instants]
    if len(two.tasks) < 2:
        return None
    return "by id" if sorted(two.by_id) == list(two.by_id) else "none to be seen"


def _others(two: _List, rest: Sequence[Exchange], mine: str) -> Facts:
    """What another session saw, where there are sessions."""
    if not mine:
        return []
    theirs = [exchange.said for exchange in rest if exchange.session != mine and exchange.method == "tasks/list"]
    if not two.tasks or not theirs:
        return [("others_see", None)]
    seen = [task["taskId"] in two.by_id for task in theirs[0]["tasks"]]
    return [("others_see", "none" if not any(seen) else "all" if all(seen) else "some")]


# ---- and how it is printed ----


def _count(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _hand(cost: Json) -> str:
    size = f", {cost['page_size']} a page" if cost["page_size"] else ""
    counts = f"{_count(cost['requests'], 'request')}, {cost['bytes']:,} bytes, {_count(cost['tasks'], 'task')}"
    return f"{counts}{size}{'' if cost['whole'] else '; there are more'}"


def _through(cost: Json) -> str:
    sent = f"1 request, {cost['bytes']:,} bytes, {_count(cost['tasks'], 'task')}"
    return f"{sent}; the server gets {_count(cost['asked'], 'request')}"


def _can(capability: Json | None) -> str:
    if capability is None:
        return "none declared"
    made = [f"{kind}/{name}" for kind, names in capability.get("requests", {}).items() for name in names]
    can = ", ".join(name for name in capability if name != "requests")
    return f"{can}; made by {', '.join(made)}" if made else can


LINES: Final[dict[str, tuple[str, Callable[[Any], str]]]] = {
    "redirect": ("address", str),
    "revision": ("revision", str),
    "server": ("server", lambda server: f"{server['name']} {server['version']}".strip() or "it has no name"),
    "tasks": ("tasks", _can),
    "session": ("session", str),
    "by_hand": ("by hand", _hand),
    "by_hand_later": ("by hand", _hand),
    "statuses": ("statuses", lambda found: ", ".join(f"{n} {status}" for status, n in found.items()) or "none"),
    "criteria": ("criteria", lambda criteria: f"status={','.join(criteria['status'])}"),
    "first": ("filtered", _through),
    "again": ("again", _through),
    "later": ("later", _through),
    "created": ("created", lambda made: made["id"] + (", listed" if made["listed"] else f", {UNLISTED}")),
    "change": ("change", {True: 'seen: "later" is after it', False: "not seen"}.__getitem__),
    "order": ("order", lambda order: order or ""),
    "may_be_cut": ("cut", {True: "perhaps: a round number, and no cursor", False: "no sign of it"}.__getitem__),
    "instants_move": (
        "timestamps",
        {True: "move between two readings", False: "stay between two readings", None: ""}.__getitem__,
    ),
    "get_agrees": (
        "tasks/get",
        {True: "agrees with the list", False: "does not agree with the list", None: ""}.__getitem__,
    ),
    "filters": (
        "filters",
        {"declared": "by itself, and says so", "unsaid": "by status, but does not say so", None: "no"}.__getitem__,
    ),
    "gateway_agrees": ("checked", {True: "taskgate's list is that by hand", None: ""}.__getitem__),
    "others_see": ("others", lambda seen: f"another session sees {seen} of these tasks" if seen else ""),
}


def table(tasks: Iterable[Json]) -> str:
    """The tasks as they are printed in a pipe, none older than a second."""
    rows = [HEAD, *((task["taskId"], task["status"], "0s", task.get("statusMessage") or "") for task in tasks)]
    width = max(len(row[0]) for row in rows)
    lines = [f"  {i:<{width}}  {status:<14}  {age:>4}  {words}" for i, status, age, words in rows]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def without_ages(text: str) -> str:
    """A table whose tasks are none older than a second."""
    return AGE.sub(lambda found: "0s".rjust(len(found[0])), text)


def sorted_by(name: str, tasks: Iterable[Json]) -> list[Json]:
    """In the order of an instant; of equal ones in that of ids."""
    return sorted(tasks, key=lambda task: (datetime.fromisoformat(task[name]), task["taskId"]))


def facts_of(facts: Facts, server: str, verdict: str, helps: bool | None) -> Json:
    """`server` is its URL, or the command that starts it."""
    where = "url" if server.startswith("http") else "command"
    known = {where: server, "filters": None, "helps": helps, "verdict": verdict} | dict(facts)
    return known | {"lists": "list" in (known["tasks"] or {})}


def text_of(facts: Facts) -> str:
    """Without what is not known."""
    return "".join(f"  {LINES[name][0]:<11} {said}\n" for name, fact in facts if (said := LINES[name][1](fact)))


async def judged(
    witness: Witness, *flags: str, verdict: str, helps: bool = False, forms: str = "JSON, text", redirect: str = ""
) -> Json:
    """`taskgate try`, as JSON and as text: all that it prints is what the witness has learned. Returns the facts.

    `redirect` is what it says of one, of which a witness knows nothing. A fact that was not learned, or a line, fails;
    so does anything that could have changed the server.
    """
    session, pages_max = _value(flags, "--session", ""), int(_value(flags, "--pages", "1000"))
    calls = int("--create" in flags)
    for form in forms.split(", "):
        witness.forget()
        ended = await forked("try", *["--json"] * (form == "JSON"), *flags, *witness.here)
        said = await witness.heard()
        facts = [("redirect", redirect)] if redirect else []
        facts += learned(said, witness.folder is not None, session, pages_max)
        known = facts_of(facts, witness.url or shlex.join(witness.here[1:]), verdict, helps)
        if form == "JSON":
            printed: Json = json.loads(ended.stdout or "{}")
            apart = {name for name in printed.keys() | known.keys() if printed.get(name, "?") != known.get(name, "?")}
            assert not apart, {name: (printed.get(name), known.get(name)) for name in apart} | {"": ended.stderr}
        else:
            lines = text_of(facts)
            unfinished = [json.loads(text) for text in live(said).values()]
            shown = f"\n{table(sorted_by(INSTANTS[1], unfinished)[::-1])}" if calls else ""
            made: Any = dict(facts).get("created", {})
            if not unfinished and made.get("status"):
                shown += f"The task that was made has ended, {made['status']}: {made['message'] or 'no message'}\n"
            stay = "stdio -- " + known["command"] if witness.folder else f"--upstream {witness.url}"
            hints = f"{'' if witness.folder else BY_HEADER}To stay in front of it: taskgate {stay}\n" if helps else ""
            expected = f"{verdict}\n{hints}\n{lines}{shown}"
            assert without_ages(ended.stdout) == expected, f"{ended.stdout}{ended.stderr}, not:\n{expected}"
        assert ended.returncode == (0 if helps else 1)
        _check_that_nothing_changed(said, witness.deleted(), calls)
    return known


def _check_that_nothing_changed(said: Sequence[Exchange], deleted: list[str], calls: int) -> None:
    """Nothing was asked but to read, and to make so many tasks; and each session that was opened is deleted."""
    asked = Counter(exchange.method for exchange in said)
    assert asked.pop("tools/call", 0) == calls
    assert set(asked) <= {"initialize", "tasks/list", "tasks/get"}, asked
    assert sorted(deleted) == sorted({exchange.session for exchange in said if exchange.method == "initialize"} - {""})


def _value(flags: Sequence[str], name: str, default: str) -> str:
    return flags[flags.index(name) + 1] if name in flags else default


async def listed(witness: Witness, *flags: str, forms: str = "JSON, text") -> list[Json]:
    """`taskgate tasks`, as JSON and as a table: its rows are the tasks that the server listed, as flags choose them."""
    statuses = _value(flags, "--status", ",".join(STATUSES)).split(",")
    by, is_asc = _value(flags, "--order-by", INSTANTS[1]), _value(flags, "--order", "desc") == "asc"
    for form in forms.split(", "):
        witness.forget()
        ended = await forked("tasks", "--all", *["--json"] * (form == "JSON"), *flags, *witness.here)
        assert ended.returncode == 0, ended.stderr
        said = await witness.heard()
        pages = [exchange for exchange in said if exchange.method == "tasks/list"]
        there = {task["taskId"]: task for task in _List(pages).tasks if task["status"] in statuses}
        tasks = sorted_by(by, there.values())[:: 1 if is_asc else -1]
        if form == "JSON":
            assert [json.loads(line) for line in ended.stdout.splitlines()] == tasks
        else:
            none = NO_TASKS_HERE if said[0].session else NO_TASKS
            if "--session" in flags:
                none = NO_TASKS if pages[0].tasks else LISTS_NONE
            assert without_ages(ended.stdout) == (table(tasks) if tasks else f"{none}\n")
        _check_that_nothing_changed(said, witness.deleted(), 0)
    return tasks
