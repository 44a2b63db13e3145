"""The Python SDK's low-level server with tasks, as anybody would build one.

    python -m tests.real.servers.python_sdk --port 3001 [--json] [--polling] [--stateless]
    python -m tests.real.servers.python_sdk --stdio

The endpoint is /mcp. Three tools:

- `work` makes a task that lasts until what its argument `until` says: `now`, `released` (by the other tool), `asked`
  (until an elicitation is answered) or `failed`. Its `label` becomes the task's `statusMessage`, which says
  to whom a task belongs wherever it turns up.
- `release` lets one `released` task finish.
- `delete` deletes a task, as a server may at any time after its time to live.

With --polling, tasks/list closes its event stream at once and has its answer fetched with GET and Last-Event-ID.
"""

import argparse
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import uvicorn
from anyio.abc import TaskGroup
from mcp import types
from mcp.server.experimental.task_context import ServerTaskContext
from mcp.server.fastmcp.server import StreamableHTTPASGIApp
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.experimental.tasks.helpers import is_terminal
from starlette.applications import Starlette
from starlette.routing import Route

TOOLS = [
    types.Tool(
        name="work",
        description="Works until it may end",
        inputSchema={"type": "object", "required": ["until", "label"]},
        execution=types.ToolExecution(taskSupport="required"),
    ),
    types.Tool(name="release", inputSchema={"type": "object", "required": ["taskId"]}),
    types.Tool(name="delete", inputSchema={"type": "object", "required": ["taskId"]}),
]
QUESTION: types.ElicitRequestedSchema = {"type": "object", "properties": {"answer": {"type": "string"}}}
RETRY_MS = 100

Handler = Callable[[types.ListTasksRequest], Awaitable[types.ServerResult]]


class Work:
    """The tools, and the task group in which the work goes on."""

    def __init__(self, server: Server[object], group: TaskGroup) -> None:
        self._server = server
        self._group = group
        self._released: defaultdict[str, anyio.Event] = defaultdict(anyio.Event)

    async def list_tools(self, _: types.ListToolsRequest) -> types.ServerResult:
        return types.ServerResult(types.ListToolsResult(tools=TOOLS))

    async def call_tool(self, request: types.CallToolRequest) -> types.ServerResult:
        arguments = request.params.arguments or {}
        if request.params.name == "release":
            self._released[arguments["taskId"]].set()
            return types.ServerResult(text("released"))
        support = self._server.experimental.task_support
        assert support is not None
        if request.params.name == "delete":
            assert await support.store.delete_task(arguments["taskId"])
            return types.ServerResult(text("deleted"))

        async def work(task: ServerTaskContext) -> types.CallToolResult:
            return await self._work(task, arguments["until"], arguments["label"])

        # The SDK keeps one task group per server: the newest session replaces it, and the end of any session
        # drops it (TaskSupport.run). With more sessions than one it must be put back each time.
        support._task_group = self._group
        created = await self._server.request_context.experimental.run_task(work)
        # Before the work begins: the very first that anybody hears of the task has its label.
        task = await support.store.update_task(created.task.taskId, status_message=arguments["label"])
        return types.ServerResult(types.CreateTaskResult(task=task))

    async def _work(self, task: ServerTaskContext, until: str, label: str) -> types.CallToolResult:
        match until:
            case "released":
                await self._released[task.task_id].wait()
                await self._unless_over(task)
            case "asked":
                answer = await task.elicit(f"Say something, {label}", QUESTION)
                return text(f"{label}: {answer.action} {answer.content}")
            case "failed":
                raise RuntimeError(label)
        return text(f"{label}: done")

    async def _unless_over(self, task: ServerTaskContext) -> None:
        """Return if the task still works: one that was cancelled or has expired the SDK refuses to complete."""
        support = self._server.experimental.task_support
        assert support is not None
        known = await support.store.get_task(task.task_id)
        if known is None or is_terminal(known.status):
            await anyio.sleep_forever()


def polling(server: Server[object], handler: Handler) -> Handler:
    """The handler, its answer to be fetched: the stream of the request ends before there is one."""

    async def handle(request: types.ListTasksRequest) -> types.ServerResult:
        close = server.request_context.close_sse_stream
        assert close is not None, "the requestor's protocol is too old"
        await anyio.sleep(0.05)  # the priming event goes first
        await close()
        await anyio.sleep(2 * RETRY_MS / 1000)
        return await handler(request)

    return handle


def text(words: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=words)])


def with_tasks() -> Server[object]:
    server: Server[object] = Server("python-sdk", version="1", instructions="Work, and release.")
    server.experimental.enable_tasks()
    return server


def add_tools(server: Server[object], group: TaskGroup) -> None:
    work = Work(server, group)
    server.request_handlers[types.ListToolsRequest] = work.list_tools
    server.request_handlers[types.CallToolRequest] = work.call_tool


async def over_stdio() -> None:
    server = with_tasks()
    async with stdio_server() as (read, write), anyio.create_task_group() as group:
        add_tools(server, group)
        await server.run(read, write, server.create_initialization_options())
        group.cancel_scope.cancel()


def application(options: argparse.Namespace) -> Starlette:
    server = with_tasks()
    list_tasks = server.request_handlers[types.ListTasksRequest]
    events, retry_ms = None, None
    if options.polling:
        from fastmcp.server.event_store import EventStore  # two seconds, and nothing else needs it

        server.request_handlers[types.ListTasksRequest] = polling(server, list_tasks)
        events, retry_ms = EventStore(), RETRY_MS
    manager = StreamableHTTPSessionManager(server, events, options.json, options.stateless, retry_interval=retry_ms)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with manager.run(), anyio.create_task_group() as group:
            add_tools(server, group)
            yield
            group.cancel_scope.cancel()

    return Starlette(routes=[Route("/mcp", StreamableHTTPASGIApp(manager))], lifespan=lifespan)


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser()
    options.add_argument("--port", type=int)
    for flag in ("--stdio", "--json", "--polling", "--stateless"):
        options.add_argument(flag, action="store_true")
    return options


def main() -> None:
    options = parser().parse_args()
    if options.stdio:
        anyio.run(over_stdio)
        return
    app = application(options)
    # SIGTERM ends open streams, not the other way round.
    uvicorn.run(app, port=options.port, log_level="warning", timeout_graceful_shutdown=1)


if __name__ == "__main__":
    main()
