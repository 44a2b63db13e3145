"""What every client of the table says to every server: a login, two tasks, and lists of them. As tests/node/table.mjs.

A client script reads addresses from its arguments, and prints one JSON line each: what was seen, or the `error`.
"""

import asyncio
import json
import sys
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

Json = dict[str, Any]
Send = Callable[[str, Json], Awaitable[Json]]
"""Sends a request of this method with these params as they are; gives the result as it came."""

SECONDS = 100  # for all conversations, on a machine that is busy
REDIRECT = "http://127.0.0.1:1/callback"


def lists(done: Json, working: Json) -> list[Json]:
    """Lists by every criterion, of the two tasks that this client made: others are on the same server."""
    both: Json = {"taskIds": [done["taskId"], working["taskId"]]}
    return [
        {**both, "orderBy": "createdAt", "order": "asc"},
        {**both, "methods": ["tools/call"], "createdAfter": working["createdAt"]},
        {**both, "requestTypes": ["prompts/get"]},
        {"filter": {**both, "status": ["completed"], "createdBefore": done["createdAt"]}},
        {**both, "lastUpdatedAfter": done["lastUpdatedAt"], "lastUpdatedBefore": working["lastUpdatedAt"]},
    ]


async def converse(send: Send, list_page: Send | None = None) -> Json:
    """Two tasks, one of which is completed, and what each list of them shows; `list_page` sends a tasks/list."""
    made = []
    for until in ("now", "released"):
        params = {"name": "work", "arguments": {"until": until, "label": until}, "task": {"ttl": 60000}}
        made.append((await send("tools/call", params))["task"]["taskId"])
    done, working = [await send("tasks/get", {"taskId": task_id}) for task_id in made]
    while done["status"] == "working":
        await asyncio.sleep(0.02)
        done = await send("tasks/get", {"taskId": made[0]})
    seen = []
    for params in lists(done, working):
        found, pages, cursor = [], 0, None
        while pages == 0 or cursor is not None:
            page = await (list_page or send)("tasks/list", params if cursor is None else {"cursor": cursor})
            found += page["tasks"]
            cursor = page.get("nextCursor")
            pages += 1
        seen.append({"params": params, "found": [task["taskId"] for task in found], "pages": pages})
    return {"tasks": [done, working], "lists": seen}


class Kept:
    """What a login leaves, in memory. It is a `TokenStorage` of the Python SDK, 1.x and 2.x."""

    def __init__(self) -> None:
        self.tokens: Any = None
        self.client: Any = None

    async def get_tokens(self) -> Any:
        return self.tokens

    async def set_tokens(self, tokens: Any) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> Any:
        return self.client

    async def set_client_info(self, client_info: Any) -> None:
        self.client = client_info


class UserAgent:
    """Goes where a login sends its user, with httpx or httpx2, and these options. Notes all that is asked."""

    def __init__(self, library: Any, **options: Any) -> None:
        self._library = library
        self._options = options
        self._answered: Any = library.URL()
        self.asked: list[str] = []
        self.hooks = {"request": [self._note]}

    @property
    def answered(self) -> Any:
        """The parameters with which the user was sent back."""
        return self._answered.params

    async def _note(self, request: Any) -> None:
        self.asked.append(f"{request.method} {request.url.copy_with(query=None)}")

    async def redirect(self, to: str) -> None:
        """Go there, and note where it leads."""
        async with self._library.AsyncClient(event_hooks=self.hooks, **self._options) as http:
            self._answered = self._library.URL((await http.get(to)).headers["location"])

    async def callback(self) -> tuple[str, str | None]:
        return self.answered["code"], self.answered.get("state")


def run(visit: Callable[[str], Awaitable[Json]]) -> None:
    """Visit all addresses in the arguments at once, and print what was seen at each."""

    async def safely(url: str) -> Json:
        try:
            async with asyncio.timeout(SECONDS):
                return {"url": url, **await visit(url)}
        except BaseException as error:
            return {"url": url, "error": "".join(traceback.format_exception(error))}

    async def all_of_them() -> list[Json]:
        return await asyncio.gather(*map(safely, sys.argv[1:]))

    for seen in asyncio.run(all_of_them()):
        print(json.dumps(seen))
