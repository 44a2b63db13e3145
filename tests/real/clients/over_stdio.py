"""What a client says to a server on stdio, directly and through the gateway. In JavaScript: tests/node/stdio.mjs."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from mcp import McpError

Json = dict[str, Any]
Send = Callable[[str, Json], Awaitable[Json]]
"""Sends a request of this method with these params as they are; gives the result as it came."""
TRIES_MAX: Final = 100  # of a result, a tenth of a second apart


async def pages(send: Send, params: Json) -> list[Json]:
    found = [await send("tasks/list", params)]
    while (cursor := found[-1].get("nextCursor")) is not None:
        found.append(await send("tasks/list", {**params, "cursor": cursor}))
    return found


def lists(tasks: Sequence[Json]) -> list[Json]:
    created = sorted(task["createdAt"] for task in tasks)
    updated = sorted(task["lastUpdatedAt"] for task in tasks)
    return [
        {"order": "asc"},
        {"orderBy": "createdAt"},
        {"status": ["completed", "failed"]},
        {"filter": {"status": ["cancelled"]}},
        {"taskIds": [tasks[0]["taskId"], "nobody"]},
        {"methods": ["tools/call"], "orderBy": "createdAt", "order": "asc"},
        {"createdAfter": created[1]},
        {"createdBefore": created[1]},
        {"lastUpdatedAfter": updated[1], "lastUpdatedBefore": updated[-1]},
    ]


async def converse(send: Send, capabilities: Json, calls: Sequence[tuple[str, Json]], filtered: bool) -> Json:
    """The steps, the tasks as they were at last, and what each list has shown."""

    async def caught(method: str, params: Json) -> Json:
        try:
            return await send(method, params)
        except McpError as error:
            return error.error.model_dump()

    async def result(task_id: str) -> Json:
        """The result. FastMCP refuses it until the task has ended; the other servers wait."""
        for _ in range(TRIES_MAX):
            got = await caught("tasks/result", {"taskId": task_id})
            if "not completed yet" not in str(got.get("message")):
                break
            await asyncio.sleep(0.1)
        return got

    steps: list[Any] = [capabilities, await send("tools/list", {})]
    ids = []
    for name, arguments in calls:
        made = await send("tools/call", {"name": name, "arguments": arguments, "task": {"ttl": 60000}})
        ids.append(made["task"]["taskId"])
    steps.append(await send("tasks/cancel", {"taskId": ids[-1]}))
    steps += [await result(task_id) for task_id in ids[:-1]]
    tasks = [await send("tasks/get", {"taskId": task_id}) for task_id in ids]
    steps += [*tasks, *await pages(send, {})]
    steps += [await caught("tasks/get", {"taskId": "nobody"}), await caught("no/such", {})]
    found = []
    for params in lists(tasks) if filtered else ():
        shown = [task["taskId"] for page in await pages(send, params) for task in page["tasks"]]
        found.append({"params": params, "found": shown})
    return {"steps": steps, "tasks": tasks, "found": found}
