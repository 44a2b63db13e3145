"""`taskgate tasks`: a filtered list as a table or as JSON, by a gateway in this process if the server cannot filter."""

import asyncio
import json
import sys
from contextlib import AsyncExitStack
from typing import Any, Final, NamedTuple

from gateway.client import text
from gateway.client.bridge import behind_gateway
from gateway.client.link import REVISION, Client, NotAnswered, Target, TaskPage, object_of
from gateway.client.mistake import opened
from gateway.client.text import TaskFields
from gateway.config import IndexLimits

WATCH_S: Final = 2.0
_CLEAR: Final = "\033[H\033[J"


class Form(NamedTuple):
    """How a list is shown: all of its pages, again and again, as JSON; and how long one may take."""

    all: bool
    watch: bool
    json: bool
    seconds: float


async def show(target: Target, session_id: str, criteria: dict[str, Any], form: Form) -> None:
    """Print the tasks. Raises NotAnswered, ConfigError, StartError."""
    params = {"orderBy": "lastUpdatedAt", **criteria}  # with no criterion at all it would be the server's own list
    loop = asyncio.get_running_loop()
    try:
        async with AsyncExitStack() as stack, asyncio.timeout(form.seconds) as limit:  # it ends no tidying up
            client, page = await _begun(stack, target, session_id, params)
            before: dict[str, TaskFields] | None = None
            while True:
                page = page or await client.page(params)
                tasks = page.tasks
                if form.all:
                    tasks = [task async for each in client.pages(params, page) for task in each.tasks]
                _print(tasks, page.total, before, form, bool(session_id))
                if not form.watch:
                    return
                before, page = {str(task.get("taskId")): task for task in tasks}, None
                limit.reschedule(loop.time() + WATCH_S + form.seconds)
                await asyncio.sleep(WATCH_S)
    except TimeoutError:
        words = f"{target.url} gave no list within {form.seconds:g} s. --seconds N waits longer"
        raise NotAnswered(words) from None


async def _begun(
    stack: AsyncExitStack, target: Target, session_id: str, params: dict[str, Any]
) -> tuple[Client, TaskPage | None]:
    """A client of who filters, the server or a gateway in front of it; and the first page, if it is there already."""
    # No other revision has tasks. Without it a server takes the client for one of 2025-03-26.
    client = await stack.enter_async_context(Client(target, session_id, REVISION if session_id else ""))
    page: TaskPage | None = None
    if session_id:  # a gateway answers what a server cannot: the total
        page = await client.page(params)
        filters = page.total is not None
    else:
        said = await opened(client, "tasks")
        declared = object_of(object_of(said.get("capabilities")).get("tasks")).get("list")
        if declared in (None, False):
            raise NotAnswered(f"{client.target.url} cannot list tasks: it does not declare tasks.list")
        filters = "filter" in object_of(declared)
    if not filters:
        client, _ = await stack.enter_async_context(behind_gateway(client, IndexLimits()))
        page = None
    return client, page


def _print(
    tasks: list[TaskFields], total: int | None, before: dict[str, TaskFields] | None, form: Form, in_session: bool
) -> None:
    if form.json:
        for task in tasks:
            print(json.dumps(task))
        return
    if form.watch and sys.stdout.isatty():
        print(_CLEAR, end="")
    elif before is not None:
        print()
    if not tasks:
        hint = "" if in_session else " Many servers show a session its own tasks alone: --session ID"
        print(f"No such tasks.{hint}")
        return
    for line in text.table(tasks, True, _changes(tasks, before)):
        print(line)
    if total is not None and total > len(tasks):
        print(f"\n{len(tasks):,} of {total:,} tasks; --all shows them all")


def _changes(tasks: list[TaskFields], before: dict[str, TaskFields] | None) -> dict[str, str]:
    if before is None:
        return {}
    by_id = {str(task.get("taskId")): task for task in tasks}
    return {i: "CHANGED" if i in before else "NEW" for i, task in by_id.items() if task != before.get(i)}
