"""What `taskgate try` and `taskgate tasks` print: facts as JSON, and the same facts in words (docs/choosing.md)."""

import json
import re
import shlex
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

from tests.forked import forked
from tests.launch import Json

Server: TypeAlias = str | list[str]
"""A URL, or the command that starts it."""

HEAD: Final = ("TASK", "STATUS", "AGE", "CHANGED", "MESSAGE")
AGE: Final = re.compile(r"(?m)(?<=  )( *)\d+[smhd](?=  |$)")
NO_TASKS: Final = "No such tasks."
SESSION_ID: Final = "For your client's tasks: --session ID, the Mcp-Session-Id of its requests."
NO_TASKS_HERE: Final = f"{NO_TASKS} {SESSION_ID}"
LISTS_NONE: Final = f"{NO_TASKS} The server lists none: ask at the gateway that your client uses."

UNLISTED: Final = "not in the server's own list"
_CREATE: Final = "--create TOOL makes a task, and shows what a change costs."
EMPTY: Final = f"The list is empty, which says little. {_CREATE}"
EMPTY_HERE: Final = f"The list is empty, which says little. {SESSION_ID} {_CREATE}"
MAKES: Final = "taskgate makes the list: this server's own list leaves out tasks that it has; taskgate's has them."
NO_LIST: Final = "taskgate brings you nothing here: this server declares no tasks/list, and answers none."
BY_HEADER: Final = "A client that can only set a header sets this one: Taskgate-Filter: status=working,input_required\n"
IS_TASKGATE: Final = "This address filters its tasks already: it is taskgate, or declares the same filter."
FEW: Final = "That cannot be told yet: this server lists all in one page, of {}. Try again with more: {}"
MORE: Final = "--create TOOL --count 25 makes them."
ONE_PAGE: Final = FEW.format("{}", MORE)
CANNOT_TELL: Final = ("That cannot be told", "The list is empty")
SAVES: Final = "taskgate saves requests here: {} in place of {}; you send one."


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


def _statuses(found: Json) -> str:
    return ", ".join(f"{n} {status}" for status, n in found.items()) or "none"


def _made(made: Json) -> str:
    more = f" and {made['count'] - 1} more" if made["count"] > 1 else ""
    return f"{made['id']}{more}, {'listed' if made['listed'] else UNLISTED}"


LINES: Final[dict[str, tuple[str, Callable[[Any], str]]]] = {
    "revision": ("revision", str),
    "server": ("server", lambda server: f"{server['name']} {server['version']}".strip() or "it has no name"),
    "tasks": ("tasks", _can),
    "session": ("session", str),
    "by_hand": ("by hand", _hand),
    "by_hand_later": ("by hand", _hand),
    "statuses": ("statuses", _statuses),
    "first": ("filtered", _through),
    "again": ("again", _through),
    "later": ("later", _through),
    "created": ("created", _made),
    "change": ("change", {True: 'seen: "later" is after it', False: "not seen"}.__getitem__),
    "may_be_cut": ("cut", {True: "perhaps: a round number, and no cursor", False: "no sign of it"}.__getitem__),
    "filters": (
        "filters",
        {"declared": "by itself, and says so", "unsaid": "by status, but does not say so", None: "no"}.__getitem__,
    ),
    "gateway_agrees": ("checked", {True: "taskgate's list is that by hand", None: ""}.__getitem__),
    "others_see": ("others", lambda seen: f"another session sees {seen} of these tasks" if seen else ""),
}


def table(tasks: Iterable[Json]) -> str:
    """The tasks as they are printed in a pipe, none older than a second."""
    rows = [HEAD, *((task["taskId"], task["status"], "0s", "0s", task.get("statusMessage") or "") for task in tasks)]
    width = max(len(row[0]) for row in rows)
    lines = [
        f"  {i:<{width}}  {status:<14}  {age:>4}  {changed:>7}  {words}" for i, status, age, changed, words in rows
    ]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def without_ages(text: str) -> str:
    """A table whose tasks are none older than a second."""
    return AGE.sub(lambda found: "0s".rjust(len(found[0])), text)


def text_of(facts: Json) -> list[str]:
    known = facts if "change" in facts or facts["filters"] else {k: v for k, v in facts.items() if k != "filters"}
    said = [(head, words(known[name])) for name, (head, words) in LINES.items() if name in known]
    return [f"  {head:<11} {words}" for head, words in said if words]


async def judged(server: Server, *flags: str, verdict: str, helps: bool = False, forms: str = "JSON, text") -> Json:
    """The facts of `taskgate try`. Its text has a line for each that is known, and no other."""
    judgement = None if verdict.startswith(CANNOT_TELL) else helps
    command, here = ("", [server]) if isinstance(server, str) else (shlex.join(server), ["--", *server])
    ended = await forked("try", "--json", *flags, *here)
    assert ended.returncode == {True: 0, False: 1, None: 2}[judgement], ended
    facts: Json = json.loads(ended.stdout)
    assert facts.pop("command" if command else "url") == (command or server)
    assert (facts["verdict"], facts["helps"]) == (verdict, judgement)
    assert facts["lists"] == (verdict != NO_LIST)
    if forms != "JSON":
        told = await forked("try", *flags, *here)
        assert told.returncode == ended.returncode
        hints = ["" if command else BY_HEADER.strip()]
        hints.append(f"To stay in front of it: taskgate {f'stdio -- {command}' if command else f'--upstream {server}'}")
        expected = [verdict, *hints * helps, *text_of(facts)]
        assert sorted(filter(None, told.stdout.splitlines())) == sorted(filter(None, expected)), told.stdout
        assert told.stdout.startswith(verdict)
    return facts


async def listed(server: Server, *flags: str, forms: str = "JSON, text", none: str = NO_TASKS) -> list[Json]:
    """The rows of `taskgate tasks`, whose table is the same; `none` is what it says if there are none."""
    here = [server] if isinstance(server, str) else ["--", *server]
    ended = await forked("tasks", "--all", "--json", *flags, *here)
    assert ended.returncode == 0, ended.stderr
    tasks = [json.loads(line) for line in ended.stdout.splitlines()]
    if forms != "JSON":
        told = await forked("tasks", "--all", *flags, *here)
        expected = table(tasks) if tasks else f"{none}\n"
        assert told.returncode == 0
        assert sorted(without_ages(told.stdout).splitlines()) == sorted(expected.splitlines()), "in any order"
    return tasks
