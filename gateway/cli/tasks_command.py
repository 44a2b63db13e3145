"""`taskgate tasks`: a filtered list as a table or as JSON, by a gateway in this process if the server cannot filter."""

import asyncio
import json
import shutil
import sys
from argparse import Namespace
from contextlib import AsyncExitStack
from typing import Any, Final

from gateway.cli import table
from gateway.cli.diagnosis import opened
from gateway.cli.mcp_client import REVISION, Client, NotAnswered, Target, TaskPage, object_of
from gateway.cli.stdio_bridge import behind_gateway
from gateway.cli.table import TaskFields
from gateway.cli.verdict import SESSION_ID
from gateway.config import IndexLimits

WATCH_S: Final = 2.0


async def show(target: Target, criteria: dict[str, Any], form: Namespace) -> None:
    """Print the tasks, as the flags in `form` have it. Raises NotAnswered, ConfigError, StartError."""
    params = {"orderBy": "lastUpdatedAt", **criteria}  # with no criterion at all it would be the server's own list
    loop = asyncio.get_running_loop()
    try:
        async with AsyncExitStack() as stack, asyncio.timeout(form.seconds) as limit:  # it ends no tidying up
            client, page, hint = await _begun(stack, target, form.session, params)
            before: dict[str, TaskFields] | None = None
            while True:
                page = page or await client.page(params)
                tasks = page.tasks
                if form.all:
                    tasks = [task async for each in client.pages(params, page) for task in each.tasks]
                _print(tasks, page.total, before, form, hint)
                if not form.watch:
                    return
                before, page = {str(task.get("taskId")): task for task in tasks}, None
                limit.reschedule(loop.time() + WATCH_S + form.seconds)
                await asyncio.sleep(WATCH_S)
    except TimeoutError:
        words = f"{target.name} gave no list within {form.seconds:g} s. --seconds N waits longer"
        raise NotAnswered(words) from None


async def _begun(
    stack: AsyncExitStack, target: Target, session_id: str, params: dict[str, Any]
) -> tuple[Client, TaskPage | None, str]:
    """A client of who filters, the server or a gateway in front; a first page, if there; words for an empty list."""
    # No other revision has tasks. Without it a server takes the client for one of 2025-03-26.
    client = await stack.enter_async_context(Client(target, session_id, REVISION if session_id else ""))
    page: TaskPage | None = None
    if session_id:  # a gateway answers what a server cannot: the total
        page = await client.page(params)
        filters = page.total is not None
        hint = "" if filters or page.tasks else " The server lists none: ask at the gateway that your client uses."
    else:
        said = await opened(client, "tasks")
        declared = object_of(object_of(said.get("capabilities")).get("tasks")).get("list")
        if declared in (None, False):
            raise NotAnswered(f"{client.target.name} cannot list tasks: it does not declare tasks.list")
        filters = "filter" in object_of(declared)
        hint = SESSION_ID * bool(client.session_id)
    if not filters:
        client, _ = await stack.enter_async_context(behind_gateway(client, IndexLimits()))
        page = None
    return client, page, hint


def _print(
    tasks: list[TaskFields], total: int | None, before: dict[str, TaskFields] | None, form: Namespace, hint: str
) -> None:
    if form.json:
        for task in tasks:
            print(json.dumps(task))
        return
    columns = table.columns_of(sys.stdout)
    if tasks:
        lines = [*table.table(tasks, columns, _changes(tasks, before))]
    else:
        lines = table.fitted(f"No such tasks.{hint}", sys.stdout).split("\n")
    if total is not None and total > len(tasks):
        lines += ["", f"{len(tasks):,} of {total:,} tasks; --all shows them all"]
    if not form.watch or columns is None:
        print("\n".join(lines if before is None else ["", *lines]))
        return
    if (rest := len(lines) - shutil.get_terminal_size().lines + 1) > 0:
        lines[-rest - 1 :] = [f"  and {rest + 1:,} more lines"]
    print("\033[2J" * (before is None) + "\033[H" + "".join(f"{line}\033[K\n" for line in lines) + "\033[J", end="")


def _changes(tasks: list[TaskFields], before: dict[str, TaskFields] | None) -> dict[str, str]:
    if before is None:
        return {}
    by_id = {str(task.get("taskId")): task for task in tasks}
    return {i: "CHANGED" if i in before else "NEW" for i, task in by_id.items() if task != before.get(i)}
