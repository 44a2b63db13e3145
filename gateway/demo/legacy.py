"""An MCP server of the 2025-11-25 era, embedded: it lists its tasks ten at a time and cannot filter them.

In: Streamable HTTP on `/mcp` (JSON-RPC in POST, a stream of notifications for GET, DELETE to end a session).
Out: the answers that the official SDKs' servers give with their in-memory task stores; `GET /counts` says
how many messages of each method have come.

Strategy: `store.py` keeps a session's tasks, `simulation.py` gives them a past and moves them, this module
speaks the protocol. A request ends in a JSON-RPC message, or in a `_Refusal` of which `_handle` makes a
response.

Always: sessions do not see each other's tasks (with `sessions=False` all requestors share one set); filter
and ordering parameters of `tasks/list` are ignored; nothing is written for a session that has ended.
"""

import asyncio
import contextlib
import random
import uuid
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
from aiohttp import web

from .simulation import Simulation
from .store import PAGE_SIZE, TTL_MS, StoreError, Task, TaskStore, TerminalTask

PROTOCOL_VERSIONS: Final = ("2025-11-25", "2025-06-18", "2025-03-26")  # the latest first
SESSION_HEADER: Final = "Mcp-Session-Id"
RELATED_TASK: Final = "io.modelcontextprotocol/related-task"

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
SERVER_ERROR: Final = -32000  # what the TypeScript SDK says where HTTP is at fault
SESSION_NOT_FOUND: Final = -32001

SHUTDOWN_SECONDS: Final = 0.1  # for a tasks/result that waits for a task that nobody moves any more
STREAM_EVENTS_MAX: Final = 1_000  # to a GET stream that does not read; further notifications are dropped

_TOOL: Final = {
    "name": "research",
    "title": "Research",
    "description": "Looks into a topic, which takes a while: call it as a task.",
    "inputSchema": {"type": "object", "properties": {"topic": {"type": "string"}}},
    "execution": {"taskSupport": "optional"},
}


class _Refusal(Exception):
    """The request is answered with this HTTP status and a JSON-RPC error without an id."""

    def __init__(self, http_status: int, code: int, message: str, allow: str | None = None) -> None:
        super().__init__(message)
        self.http_status = http_status
        self.code = code
        self.allow = allow


class _RpcError(Exception):
    """The request is answered with a JSON-RPC error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(eq=False)
class _Session:
    """One requestor's session; `session_id` is None for the one that all share without sessions."""

    session_id: str | None
    store: TaskStore
    simulation: Simulation
    streams: set[asyncio.Queue[bytes | None]] = field(default_factory=set)

    def notify(self, task: Task) -> None:
        """Tell the GET streams of a change. A stream that does not keep up misses it: it is optional."""
        event = _event({"jsonrpc": "2.0", "method": "notifications/tasks/status", "params": task})
        for stream in self.streams:
            with contextlib.suppress(asyncio.QueueFull):
                stream.put_nowait(event)

    def close(self) -> None:
        """End the streams, and every tasks/result that waits."""
        for stream in self.streams:
            while stream.full():
                stream.get_nowait()
            stream.put_nowait(None)
        self.store.clear()


class LegacyServer:
    """The server. Make it, `await start()`, and look or meddle through `counts`, `store` and `load`.

    `page_size`      tasks on a page of `tasks/list`
    `sessions`       False: no Mcp-Session-Id, all requestors share one set of tasks
    `sse`            True: a POST is answered with `text/event-stream`, as the TypeScript SDK does by default
    `simulate`       False: tasks change only when a requestor or `store` changes them; may be set at any time
    `step_seconds`   time between two steps of the simulation
    `initial_tasks`  tasks that a session has from the start
    `seed`           the same seed gives the n-th session the same history, relative to the time it is opened
    `notify`         False: no `notifications/tasks/status`, and GET is answered 405
    `sessions_max`   sessions at once; `initialize` is answered 503 above
    """

    def __init__(
        self,
        *,
        page_size: int = PAGE_SIZE,
        sessions: bool = True,
        sse: bool = False,
        simulate: bool = True,
        step_seconds: float = 0.3,
        initial_tasks: int = 240,
        seed: int = 1904,
        notify: bool = True,
        sessions_max: int = 1_000,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.simulate = simulate
        self._page_size = page_size
        self._sse = sse
        self._step_seconds = step_seconds
        self._initial_tasks = initial_tasks
        self._seed = seed
        self._notify = notify
        self._sessions_max = sessions_max
        self._opened = 0
        self._sessions: dict[str, _Session] = {}
        self._shared = None if sessions else self._new_session(None)
        self._runner: web.ServerRunner | None = None
        self._stepping: asyncio.Task[None] | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Listen, on a free port for 0, and begin the simulation. The URL of the MCP endpoint."""
        # Cancellation: a requestor that goes away must not leave its tasks/result or its stream behind.
        server = web.Server(self._handle, handler_cancellation=True, access_log=None)
        self._runner = web.ServerRunner(server, shutdown_timeout=SHUTDOWN_SECONDS)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        self._stepping = asyncio.create_task(self._step_forever())
        name = f"[{host}]" if ":" in host else host
        return f"http://{name}:{self._runner.addresses[0][1]}/mcp"

    async def stop(self) -> None:
        """Stop listening and end all sessions; their tasks are forgotten, as in-memory stores do."""
        if self._stepping is not None:
            self._stepping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._stepping
        for session in self._all_sessions():
            session.close()
        self._sessions.clear()
        if self._runner is not None:
            await self._runner.cleanup()

    # Behind the requestors' backs

    @property
    def session_ids(self) -> list[str]:
        """The open sessions, in the order in which they were opened."""
        return list(self._sessions)

    def store(self, session_id: str | None = None) -> TaskStore:
        """A session's tasks, to read and to change. None: the shared set, or that of the only session."""
        return self._session(session_id).store

    def load(self, count: int, session_id: str | None = None) -> None:
        """Add a history of `count` tasks, 100,000 in about a second; the simulation moves up to 1,000."""
        self._session(session_id).simulation.load(count)

    def _session(self, session_id: str | None) -> _Session:
        if session_id is not None:
            return self._sessions[session_id]
        found = self._all_sessions()
        if len(found) != 1:
            raise LookupError(f"{len(found)} sessions are open: say which one is meant")
        return found[0]

    def _all_sessions(self) -> list[_Session]:
        return [self._shared] if self._shared is not None else list(self._sessions.values())

    def _new_session(self, session_id: str | None) -> _Session:
        store = TaskStore(self._page_size)
        simulation = Simulation(store, random.Random(f"{self._seed}/{self._opened}"))
        simulation.load(self._initial_tasks)
        session = _Session(session_id, store, simulation)
        store.on_change = session.notify
        self._opened += 1
        return session

    async def _step_forever(self) -> None:
        while True:
            await asyncio.sleep(self._step_seconds)
            for session in self._all_sessions() if self.simulate else ():
                session.simulation.step()

    # HTTP

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            match request.path, request.method:
                case "/mcp", "POST":
                    return await self._post(request)
                case "/mcp", "GET" if self._notify:
                    return await self._get(request)
                case "/mcp", "DELETE" if self._shared is None:
                    return self._delete(request)
                case "/mcp", _:
                    raise _Refusal(405, SERVER_ERROR, "Method not allowed.", allow=self._methods_allowed())
                case "/counts", "GET":
                    return _json_response(200, dict(self.counts))
                case _:
                    raise _Refusal(404, SERVER_ERROR, "Not found")
        except _Refusal as refusal:
            error = {"code": refusal.code, "message": str(refusal)}
            response = _json_response(refusal.http_status, {"jsonrpc": "2.0", "error": error, "id": None})
            if refusal.allow is not None:
                response.headers["Allow"] = refusal.allow
            return response

    def _methods_allowed(self) -> str:
        return ", ".join(
            ["GET"] * self._notify + ["POST"] + ["DELETE"] * (self._shared is None),
        )

    async def _post(self, request: web.BaseRequest) -> web.StreamResponse:
        _require_accept(request, "application/json", *["text/event-stream"] * self._sse)
        message = _message(request, await request.read())
        method = message.get("method")
        if isinstance(method, str):
            self.counts[method] += 1
        session = self._open(request) if method == "initialize" else self._session_of(request)
        if not isinstance(method, str) or "id" not in message:
            return web.Response(status=202, headers=_session_headers(session))
        if not self._sse:
            return _json_response(200, await self._answer(session, message), _session_headers(session))
        # As the TypeScript SDK: the stream is open before the answer is known, and ends with it.
        response = await _open_stream(request, session)
        await response.write(_event(await self._answer(session, message)))
        await response.write_eof()
        return response

    async def _get(self, request: web.BaseRequest) -> web.StreamResponse:
        _require_accept(request, "text/event-stream")
        session = self._session_of(request)
        if session.streams and session is not self._shared:
            raise _Refusal(409, SERVER_ERROR, "Conflict: Only one SSE stream is allowed per session")
        stream: asyncio.Queue[bytes | None] = asyncio.Queue(STREAM_EVENTS_MAX)
        session.streams.add(stream)
        try:
            response = await _open_stream(request, session)
            while (event := await stream.get()) is not None:
                await response.write(event)
            await response.write_eof()
        finally:
            session.streams.discard(stream)
        return response

    def _delete(self, request: web.BaseRequest) -> web.StreamResponse:
        session = self._session_of(request)
        if session.session_id is not None:
            del self._sessions[session.session_id]
        session.close()
        return web.Response(status=200)

    def _open(self, request: web.BaseRequest) -> _Session:
        """The session that an `initialize` opens."""
        if self._shared is not None:
            return self._shared
        if SESSION_HEADER in request.headers:
            self._session_of(request)
            raise _Refusal(400, INVALID_REQUEST, "Invalid Request: Server already initialized")
        if len(self._sessions) >= self._sessions_max:
            raise _Refusal(503, SERVER_ERROR, f"{self._sessions_max} sessions are open already")
        session_id = str(uuid.uuid4())
        self._sessions[session_id] = session = self._new_session(session_id)
        return session

    def _session_of(self, request: web.BaseRequest) -> _Session:
        """The session that any other request belongs to."""
        version = request.headers.get("Mcp-Protocol-Version", PROTOCOL_VERSIONS[0])
        if version not in PROTOCOL_VERSIONS:
            supported = ", ".join(PROTOCOL_VERSIONS)
            raise _Refusal(
                400,
                SERVER_ERROR,
                f"Bad Request: Unsupported protocol version: {version} (supported versions: {supported})",
            )
        if self._shared is not None:
            return self._shared
        session_id = request.headers.get(SESSION_HEADER)
        if session_id is None:
            raise _Refusal(400, SERVER_ERROR, f"Bad Request: {SESSION_HEADER} header is required")
        if session_id not in self._sessions:
            raise _Refusal(404, SESSION_NOT_FOUND, "Session not found")
        return self._sessions[session_id]

    # JSON-RPC

    async def _answer(self, session: _Session, message: dict[str, Any]) -> dict[str, Any]:
        """The JSON-RPC response to a request."""
        params = message.get("params", {})
        try:
            if not isinstance(params, dict):
                raise _RpcError(INVALID_PARAMS, "params must be an object")
            result = await self._result(session, message["method"], params)
        except _RpcError as error:
            return _error(message["id"], error.code, str(error))
        except StoreError as error:
            return _error(message["id"], INVALID_PARAMS, str(error))
        return {"jsonrpc": "2.0", "id": message["id"], "result": result}

    async def _result(self, session: _Session, method: str, params: dict[str, Any]) -> object:
        match method:
            case "initialize":
                return _initialize(params)
            case "ping":
                return {}
            case "tools/list":
                return {"tools": [_TOOL]}
            case "tools/call":
                return _call_tool(session, params)
            case "tasks/list":
                tasks, cursor = session.store.page(_string(params, "cursor") if "cursor" in params else None)
                return {"tasks": tasks, "nextCursor": cursor} if cursor is not None else {"tasks": tasks}
            case "tasks/get":
                return session.store.get(_string(params, "taskId"))
            case "tasks/cancel":
                return _cancel(session.store, _string(params, "taskId"))
            case "tasks/result":
                return _payload(await session.store.terminal(_string(params, "taskId")))
            case _:
                raise _RpcError(METHOD_NOT_FOUND, "Method not found")


def _initialize(params: dict[str, Any]) -> dict[str, Any]:
    requested = params.get("protocolVersion")
    return {
        "protocolVersion": requested if requested in PROTOCOL_VERSIONS else PROTOCOL_VERSIONS[0],
        "capabilities": {
            "tools": {},
            "tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}},
        },
        "serverInfo": {"name": "legacy-research", "version": "1.0.0"},
    }


def _call_tool(session: _Session, params: dict[str, Any]) -> dict[str, Any]:
    if params.get("name") != _TOOL["name"]:
        raise _RpcError(INVALID_PARAMS, f"Tool {params.get('name')} not found")
    if "task" not in params:
        return {"content": [{"type": "text", "text": "A short answer; call me as a task for a long one."}]}
    metadata = params["task"]
    ttl_ms = metadata.get("ttl", TTL_MS) if isinstance(metadata, dict) else None
    if not isinstance(ttl_ms, int) or not 0 < ttl_ms < 2**53:
        raise _RpcError(INVALID_PARAMS, "task must be an object whose ttl, if present, is in milliseconds")
    task = session.store.add(ttl_ms=ttl_ms)
    session.simulation.adopt(task["taskId"])
    return {"task": task}


def _cancel(store: TaskStore, task_id: str) -> Task:
    try:
        return store.update(task_id, "cancelled", "The task was cancelled by request.")
    except TerminalTask:
        status = store.get(task_id)["status"]
        raise _RpcError(INVALID_PARAMS, f"Cannot cancel task in terminal status: {status}") from None


def _payload(task: Task) -> dict[str, Any]:
    """What `tasks/result` gives for a task that has ended."""
    if task["status"] == "cancelled":
        raise _RpcError(INVALID_REQUEST, f"Task {task['taskId']} has no result: it was cancelled")
    return {
        "content": [{"type": "text", "text": task.get("statusMessage", "Done.")}],
        "isError": task["status"] == "failed",
        "_meta": {RELATED_TASK: {"taskId": task["taskId"]}},
    }


def _string(params: dict[str, Any], name: str) -> str:
    value = params.get(name)
    if not isinstance(value, str):
        raise _RpcError(INVALID_PARAMS, f"{name} must be a string")
    return value


def _error(request_id: object, code: int, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}}


def _message(request: web.BaseRequest, body: bytes) -> dict[str, Any]:
    """The one JSON-RPC message in a POST; batches went out with 2025-06-18."""
    if request.content_type != "application/json":
        raise _Refusal(415, SERVER_ERROR, "Unsupported Media Type: Content-Type must be application/json")
    try:
        message = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise _Refusal(400, PARSE_ERROR, "Parse error: Invalid JSON") from None
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        raise _Refusal(400, INVALID_REQUEST, "Invalid Request: not one JSON-RPC 2.0 message")
    return message


def _require_accept(request: web.BaseRequest, *media_types: str) -> None:
    accept = ",".join(request.headers.getall("Accept", []))
    missing = [one for one in media_types if one not in accept and "*/*" not in accept]
    if missing:
        raise _Refusal(406, SERVER_ERROR, f"Not Acceptable: Client must accept {' and '.join(media_types)}")


def _session_headers(session: _Session) -> dict[str, str]:
    return {} if session.session_id is None else {SESSION_HEADER: session.session_id}


def _json_response(http_status: int, value: object, headers: dict[str, str] | None = None) -> web.Response:
    body = orjson.dumps(value)
    return web.Response(status=http_status, body=body, content_type="application/json", headers=headers)


async def _open_stream(request: web.BaseRequest, session: _Session) -> web.StreamResponse:
    headers = {"Cache-Control": "no-cache, no-transform", **_session_headers(session)}
    response = web.StreamResponse(headers=headers)
    response.content_type = "text/event-stream"
    await response.prepare(request)
    return response


def _event(message: dict[str, Any]) -> bytes:
    return b"event: message\ndata: " + orjson.dumps(message) + b"\n\n"
