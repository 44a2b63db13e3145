"""The tasks that `taskgate try --create` makes, and the end of their tool.

In: a tool, its arguments, a session. Out: tasks; what the tool takes, where `tools/list` says so; how the tasks ended.
Always: from the first call until all have ended the session is kept. A tool whose session is deleted may throw what
nobody catches: so ends a server of the TypeScript SDK, and everybody's tasks with it.
"""

import asyncio
from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from gateway.cli.mcp_client import Client, NotAnswered, object_of, one_line
from gateway.cli.task_table import Json
from gateway.mcp.task import TERMINAL

_MAKES: Final = ("optional", "required")
_PAGES_MAX: Final = 20
_POLL_S: Final = (0.1, 1.0, 5.0)  # between two looks at a task: at least, unless it says how long, at most
_SETTLED_S: Final = 0.5  # a tool may have work behind its result


class CreatedTasks:
    """The tasks of one trial, in the session of `client`. `show` shows how far it is."""

    def __init__(self, client: Client, given: Namespace, show: Callable[[str], None]) -> None:
        self._client, self._tool, self._show = client, str(given.create), show
        self._arguments: Json = given.arguments
        self._count: int = given.count
        self.ids: list[str] = []

    async def make(self, through: Client, count: int) -> None:
        """Make them, one after another, until there are so many.

        Raises NotAnswered, which says what the tool takes, if the server does.
        """
        takes = await self._taken()
        call = {"name": self._tool, "arguments": self._arguments, "task": {}}
        while len(self.ids) < count:
            self._show(f"making task {len(self.ids) + 1:,} of {self._count:,}")
            self._client.has_work = True
            try:
                made = await through.ask("tools/call", call)
            except NotAnswered as refused:
                self._client.has_work = bool(self.ids) or not refused.code
                raise NotAnswered(f"{refused}{takes}") from None
            task_id = object_of(made.get("task")).get("taskId")
            if not isinstance(task_id, str):
                self._client.has_work = bool(self.ids)
                said = _list(made.get("content") if made.get("isError") else None)
                words = " ".join(str(object_of(part).get("text", "")) for part in said)
                why = f": {one_line(words)}" if words else ". Does it make tasks? In FastMCP it needs task=True"
                raise NotAnswered(f"the tool {self._tool} made no task: it answered at once{why}{takes}")
            self.ids.append(task_id)

    async def _taken(self) -> str:
        """What the tool takes, in words, if `tools/list` says so. Raises NotAnswered if no call can succeed."""
        name, tools, params = self._tool, dict[str, Json](), Json()
        with suppress(NotAnswered):
            for _ in range(_PAGES_MAX):
                page = await self._client.ask("tools/list", params)
                tools |= {str(tool.get("name")): tool for tool in map(object_of, _list(page.get("tools")))}
                if not (params := {"cursor": page.get("nextCursor")})["cursor"]:
                    break
        makers = [each for each, tool in tools.items() if object_of(tool.get("execution")).get("taskSupport") in _MAKES]
        known = f"These make tasks: {one_line(', '.join(signature(tools[each]) for each in makers))}" if makers else ""
        if tools and name not in tools:
            raise NotAnswered(f"the server has no tool {name}. {known or 'None says that it makes tasks'}")
        if makers and name not in makers:
            raise NotAnswered(f"the tool {name} makes no task. {known}")
        takes = f". It takes: {one_line(signature(tools[name]))}" if name in tools else ""
        if missing := [each for each in _required(tools.get(name, {})) if each not in self._arguments]:
            raise NotAnswered(f"--arguments: the tool {name} needs {one_line(', '.join(missing))}{takes}")
        return takes

    async def end(self, until: float) -> dict[str, int] | None:
        """How many ended in which status. None if one is still at work by that time, has gone, or waits for input."""
        ended, now = Counter[str](), asyncio.get_running_loop().time
        for at, task_id in enumerate(self.ids):
            while (state := await self._state(task_id))[0] not in TERMINAL:
                if state[0] in ("gone", "input_required") or now() + state[1] > until:
                    return None
                self._show(f"waiting for {self._tool} to end: {len(self.ids) - at:,} of {len(self.ids):,} at work")
                await asyncio.sleep(state[1])
            ended[state[0]] += 1
        await asyncio.sleep(_SETTLED_S)
        self._client.has_work = False
        return dict(ended)

    async def _state(self, task_id: str) -> tuple[str, float]:
        """The status of a task, and in how many seconds to ask again."""
        try:
            task = await self._client.ask("tasks/get", {"taskId": task_id})
        except NotAnswered as refused:
            return "gone" if refused.code else "", _POLL_S[1]
        asks, (least, usual, most) = task.get("pollInterval"), _POLL_S
        return str(task.get("status")), min(max(asks / 1000, least), most) if type(asks) is int else usual


def signature(tool: Json) -> str:
    """A tool with the arguments that it takes: `work(topic: string, depth?: number)`."""
    schema, required = object_of(tool.get("inputSchema")), _required(tool)
    kinds = ((name, object_of(kind).get("type")) for name, kind in object_of(schema.get("properties")).items())
    taken = (f"{name}{'?' * (name not in required)}{f': {kind}' * isinstance(kind, str)}" for name, kind in kinds)
    return f"{tool.get('name')}({', '.join(taken)})"


def _required(tool: Json) -> list[str]:
    return [name for name in _list(object_of(tool.get("inputSchema")).get("required")) if isinstance(name, str)]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
