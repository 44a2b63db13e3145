"""The tasks that `taskgate try --create` makes, and what its tool takes.

In: a tool, its arguments, a session. Out: tasks; what the tool takes, where `tools/list` says so.
Always: from the first call on the session is kept. A tool whose session is deleted may throw what nobody catches: so
ends a server of the TypeScript SDK, and everybody's tasks with it.
"""

from argparse import Namespace
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from gateway.cli.mcp_client import Client, NotAnswered, object_of, one_line
from gateway.cli.task_table import Json

_MAKES: Final = ("optional", "required")


async def make(client: Client, through: Client, given: Namespace, count: int, show: Callable[[str], None]) -> list[str]:
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
