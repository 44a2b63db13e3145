"""The Python SDK's low-level server with tasks, as anybody would build one.

    python -m tests.real.servers.python_sdk --port 3001 [--json] [--auth]

The endpoint is /mcp. Answers are event streams, with --json JSON; with --auth every request needs a bearer token, and
the token's own text is the user. Two tools:

- `work` makes a task that lasts until what its argument `until` says: `now`, `released` (by the other tool), `asked`
  (until an elicitation is answered) or `failed`. Its `label` becomes the task's `statusMessage`, which says
  to whom a task belongs wherever it turns up.
- `release` lets one `released` task finish.
"""

import argparse
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import uvicorn
from anyio.abc import TaskGroup
from mcp import types
from mcp.server.auth.middleware.bearer_auth import BearerAuthBackend, RequireAuthMiddleware
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.routes import create_protected_resource_routes
from mcp.server.experimental.task_context import ServerTaskContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from pydantic import AnyHttpUrl
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

TOOLS = [
    types.Tool(
        name="work",
        description="Works until it may end",
        inputSchema={"type": "object", "required": ["until", "label"]},
        execution=types.ToolExecution(taskSupport="required"),
    ),
    types.Tool(name="release", inputSchema={"type": "object", "required": ["taskId"]}),
]
QUESTION: types.ElicitRequestedSchema = {"type": "object", "properties": {"answer": {"type": "string"}}}


class Work:
    """The two tools, and the task group in which the work goes on."""

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

        async def work(task: ServerTaskContext) -> types.CallToolResult:
            return await self._work(task, arguments["until"], arguments["label"])

        support = self._server.experimental.task_support
        assert support is not None
        # The SDK keeps one task group per server: the newest session replaces it, and the end of any session
        # drops it (TaskSupport.run). With more sessions than one it must be put back each time.
        support._task_group = self._group
        return types.ServerResult(await self._server.request_context.experimental.run_task(work))

    async def _work(self, task: ServerTaskContext, until: str, label: str) -> types.CallToolResult:
        await task.update_status(label)
        match until:
            case "released":
                await self._released[task.task_id].wait()
            case "asked":
                answer = await task.elicit(f"Say something, {label}", QUESTION)
                return text(f"{label}: {answer.action} {answer.content}")
            case "failed":
                raise RuntimeError(label)
        return text(f"{label}: done")


class Tokens:
    """A verifier that believes every token: its text is the user's name."""

    async def verify_token(self, token: str) -> AccessToken:
        return AccessToken(token=token, client_id=token, scopes=[])


def text(words: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=words)])


def application(*, json_response: bool, auth: bool, origin: str) -> Starlette:
    server: Server[object] = Server("python-sdk", version="1", instructions="Work, and release.")
    server.experimental.enable_tasks()
    manager = StreamableHTTPSessionManager(server, json_response=json_response)

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        await manager.handle_request(scope, receive, send)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with manager.run(), anyio.create_task_group() as group:
            work = Work(server, group)
            server.request_handlers[types.ListToolsRequest] = work.list_tools
            server.request_handlers[types.CallToolRequest] = work.call_tool
            yield
            group.cancel_scope.cancel()

    endpoint: ASGIApp = Endpoint(handle)
    routes: list[BaseRoute] = []
    middleware: list[Middleware] = []
    if auth:
        resource = AnyHttpUrl(f"{origin}/mcp")
        metadata = AnyHttpUrl(f"{origin}/.well-known/oauth-protected-resource/mcp")
        endpoint = RequireAuthMiddleware(endpoint, [], metadata)
        routes += create_protected_resource_routes(resource, [AnyHttpUrl("https://login.example")])
        middleware.append(Middleware(AuthenticationMiddleware, backend=BearerAuthBackend(Tokens())))
    routes.append(Route("/mcp", endpoint))
    return Starlette(routes=routes, middleware=middleware, lifespan=lifespan)


class Endpoint:
    """An ASGI application that Starlette's Route takes for one: it wraps plain functions."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--auth", action="store_true")
    options = parser.parse_args()
    origin = f"http://127.0.0.1:{options.port}"
    app = application(json_response=options.json, auth=options.auth, origin=origin)
    # SIGTERM ends open streams, not the other way round.
    uvicorn.run(app, port=options.port, log_level="warning", timeout_graceful_shutdown=1)


if __name__ == "__main__":
    main()
