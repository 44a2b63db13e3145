"""`taskgate tasks`: a filtered list as a table or as JSON, by a gateway in this process if the server cannot filter."""

import asyncio
import json
import re
import shutil
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from gateway.cli import command_line, task_table
from gateway.cli.mcp_client import REVISION, Client, NotAnswered, Target, TaskPage, declared_list, object_of, opened
from gateway.cli.task_table import Json
from gateway.cli.temporary_gateway import behind_gateway
from gateway.config import IndexLimits
from gateway.query.criteria import CRITERIA, INSTANT, Criterion, NotAllowed

WATCH_S: Final = 2.0
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def parser() -> ArgumentParser:
    flags = command_line.parser(
        "tasks",
        "List the tasks of a server that meet all criteria. If there is no gateway, one\nruns in this process.",
        "INSTANT: 2026-11-20T00:00:00Z, or how long ago: 90s, 30m, 2h, 3d, 1w.\n"
        "Exit status: 0 if the tasks are listed, 2 if not, 130 if interrupted.",
    )
    group = flags.add_argument_group("criteria")
    for name, criterion in CRITERIA.items():
        kind = criterion.kind
        metavar = "|".join(kind.choices) or ("A,B" if kind.is_list else "INSTANT" if kind is INSTANT else "VALUE")
        words = kind.what or f"({criterion.default})"
        group.add_argument(_flag(name), dest=f"_{name}", metavar=metavar, help=words)
    flags.add_argument("--limit", type=command_line.COUNT, metavar="N", help="list so many, not those of one page")
    flags.add_argument("--all", action="store_const", dest="limit", const=sys.maxsize, help="list them all")
    flags.add_argument("--watch", action="store_true", help="show the list again every two seconds, with what changed")
    flags.add_argument("--json", action="store_true", help="print one task a line, as the server has it")
    return flags


def run(arguments: Sequence[str]) -> int:
    given = command_line.read(flags := parser(), arguments)
    texts = {name: text for name in CRITERIA if (text := getattr(given, f"_{name}")) is not None}
    criteria = {name: _value(flags, CRITERIA[name], text) for name, text in texts.items()}
    return command_line.signalled("tasks", _show(given, criteria))


def _flag(name: str) -> str:
    """`createdAfter` as `--created-after`."""
    return "--" + re.sub("[A-Z]", lambda found: f"-{found[0].lower()}", name)


def _value(flags: ArgumentParser, criterion: Criterion, text: str) -> Any:
    value: Any = text.split(",") if criterion.kind.is_list else text
    if criterion.kind is INSTANT and (ago := re.fullmatch(r"([0-9]{1,6})([smhdw])", text)):
        with suppress(OverflowError):  # before the year 1
            then = datetime.fromtimestamp(time.time(), UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
            value = then.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    try:
        criterion.kind.read(json.dumps(value).encode())
    except NotAllowed as refused:
        also = "; or how long ago, such as 3d or 2h" if criterion.kind is INSTANT else ""
        allowed = refused.allowed.replace("an array of", "comma-separated")
        flags.error(f"{_flag(criterion.name)}: given {text!r}, allowed is {allowed}{also}")
    return value


async def _show(given: Namespace, criteria: Json) -> int:
    """Print the tasks, as the flags have it. Returns the exit status. Raises NotAnswered, ConfigError, StartError."""
    params = {"orderBy": "lastUpdatedAt", **criteria}  # with no criterion at all it would be the server's own list
    async with command_line.server(given) as target:
        try:
            async with AsyncExitStack() as stack, asyncio.timeout(given.seconds) as limit:  # it ends no tidying up
                client, page, hint = await _begun(stack, target, given.session, params)
                before: dict[str, Json] | None = None
                while True:
                    page = page or await client.page(params)
                    tasks = list[Json]()
                    async for each in client.pages(params, page):
                        tasks += each.tasks
                        if len(tasks) >= (given.limit or 0):
                            break
                    tasks = tasks[: given.limit]
                    _print(tasks, page.total, before, given, hint)
                    if not given.watch:
                        return 0
                    before, page = {str(task.get("taskId")): task for task in tasks}, None
                    limit.reschedule(asyncio.get_running_loop().time() + WATCH_S + given.seconds)
                    await asyncio.sleep(WATCH_S)
        except TimeoutError:
            words = f"{target.name} gave no list within {given.seconds:g} s. --seconds N waits longer"
            raise NotAnswered(words) from None


async def _begun(stack: AsyncExitStack, to: Target, session: str, params: Json) -> tuple[Client, TaskPage | None, str]:
    """A client of who filters, the server or a gateway in front; a first page, if there; words for an empty list."""
    # No other revision has tasks. Without it a server takes the client for one of 2025-03-26.
    client = await stack.enter_async_context(Client(to, session, REVISION if session else ""))
    page: TaskPage | None = None
    if session:  # a gateway answers what a server cannot: the total
        page = await client.page(params)
        filters = page.total is not None
        hint = "" if filters or page.tasks else " The server lists none: ask at the gateway that your client uses."
    else:
        said = await opened(client, "tasks")
        if (declared := await declared_list(client, said)) in (None, False):
            raise NotAnswered(f"{client.target.name} cannot list tasks: it declares no tasks/list, and answers none")
        filters = "filter" in object_of(declared)
        hint = command_line.SESSION_ID * bool(client.session_id)
    if not filters:
        client, _ = await stack.enter_async_context(behind_gateway(client, IndexLimits()))
    return client, page if filters else None, hint


def _print(tasks: list[Json], total: int | None, before: dict[str, Json] | None, given: Namespace, hint: str) -> None:
    if given.json:
        sys.stdout.writelines(f"{json.dumps(task)}\n" for task in tasks)
        return
    columns = task_table.columns_of(sys.stdout)
    if tasks:
        seen, now = before or {}, {str(task.get("taskId")): task for task in tasks}
        changed = {i: "CHANGED" if i in seen else "NEW" for i, task in now.items() if task != seen.get(i)}
        lines = [*task_table.table(tasks, columns, None if before is None else changed)]
    else:
        lines = task_table.fitted(f"No such tasks.{hint}", sys.stdout).split("\n")
    if total is not None and total > len(tasks):
        lines += ["", f"{len(tasks):,} of {total:,} tasks; --all shows them all"]
    if not given.watch or columns is None:
        print("\n".join(lines if before is None else ["", *lines]))
        return
    if (rest := len(lines) - shutil.get_terminal_size().lines + 1) > 0:
        lines[-rest - 1 :] = [f"  and {rest + 1:,} more lines"]
    print("\033[2J" * (before is None) + "\033[H" + "".join(f"{line}\033[K\n" for line in lines) + "\033[J", end="")
