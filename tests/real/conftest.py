"""What the proofs share: real processes, the SDK's client with filter parameters, and the plain definition.

- A `Place` is one real server with a gateway before it, whose pages have 5 tasks. They run for the whole session.
- A `Client` is the SDK's own client, unmodified: filter parameters are extra members of its request's params.
  A `Wire` is one bare HTTP exchange at a time, for what the SDK hides (statuses, headers, a foreign session id).
- `selected` is the meaning of the criteria (DESIGN 5.2), written once more and plainly.
"""

import json
import random
import re
import socket
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal, TypeVar

import httpx
import pytest
from mcp import ClientSession, types
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.session import RequestResponder
from pydantic import ConfigDict

import tests.real.clients  # noqa: F401 (it makes httpcore cheaper)
from tests.forked import fork_of
from tests.launch import Gateways, Process, eventually, is_taken, ports, started
from tests.rules.test_capabilities import FILTER
from tests.tools import NODE, node

Json = dict[str, Any]
Steps = dict[str, Json]
T = TypeVar("T")

SDKS = {"1.30": ("--import", (NODE / "sdk_1_30.mjs").as_uri()), "1.32": ()}
"""What Node is given to run a server with a version of the TypeScript SDK."""
EVERYTHING = "node_modules/@modelcontextprotocol/server-everything/dist/index.js"
SCRIPT_SECONDS = 60
WAIT_SECONDS = 10
PAGE_SIZE = 5
NAMES = ("created", "lastUpdated")
EXPERIMENTAL = "The experimental tasks API is deprecated"

FILTER_CAPABILITY: Json = json.loads(FILTER)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The SDK says of its own tasks that they are experimental."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings(f"ignore:{EXPERIMENTAL}:DeprecationWarning"))


# Processes


def free_port(count: int = 1) -> int:
    """The first of `count` free ports in a row, below the range from which the kernel takes ports for clients."""
    while True:
        first = random.randrange(20000, 32000 - count)
        with ExitStack() as probes:
            try:
                for port in range(first, first + count):
                    probes.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
        return first


class Runner:
    """Starts servers and gateways (Python's as forks), logs in one directory. They may still be starting: see wait."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self.gateways = Gateways(logs, fork_of)

    def command(
        self, name: str, command: Sequence[str], port: int, env: Mapping[str, str] | None = None
    ) -> AbstractContextManager[Process]:
        log = self._logs / f"{name}-{port}.log"
        return started(name, command, log, f"http://127.0.0.1:{port}", lambda: is_taken(port), env, start=fork_of)

    def server(self, name: str, *options: str, port: int | None = None) -> AbstractContextManager[Process]:
        port = port or free_port()
        command = [sys.executable, "-m", f"tests.real.servers.{name}", "--port", str(port), *options]
        return self.command(name, command, port)

    def node_server(self, name: str, *mode: str, sdk: str = "1.32") -> AbstractContextManager[Process]:
        """A server of tests/node, or of the path in its packages."""
        port = free_port()
        return self.command(Path(name).stem, [node(), *SDKS[sdk], str(NODE / name), *mode], port, {"PORT": str(port)})

    def everything(self, mode: str = "streamableHttp", sdk: str = "1.32") -> AbstractContextManager[Process]:
        return self.node_server(EVERYTHING, mode, sdk=sdk)

    def gateway(
        self, upstream: Process, index: Json | None = None, port: int | None = None, **more: Any
    ) -> AbstractContextManager[Process]:
        """The gateway before a server's /mcp."""
        real = {"name": "real", "url": f"{upstream.origin}/mcp", **more}
        return self.configured(port, upstreams=[real], index=index or {})

    @contextmanager
    def configured(self, port: int | None = None, /, **settings: Any) -> Iterator[Process]:
        with ports(port) as (listen, admin):
            at = {"listen": f"127.0.0.1:{listen}", "admin": {"listen": f"127.0.0.1:{admin}"}}
            with self.gateways.starting({**at, **settings}) as gateway:
                yield gateway.running
                assert gateway.running.popen.poll() is None, f"the gateway ended:\n{gateway.running.tail()}"

    @contextmanager
    def place(self, name: str, *options: str) -> Iterator["Place"]:
        """One of servers/ and its gateway."""
        with self.server(name, *options) as server, self.gateway(server, {"page_size": PAGE_SIZE}) as gateway:
            yield Place(f"{server.wait()}/mcp", f"{gateway.wait()}/mcp", server)


@dataclass(frozen=True)
class Place:
    """The addresses of one server's /mcp: its own, and its gateway's."""

    direct: str
    gateway: str
    server: Process


@pytest.fixture(scope="session")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    return Runner(tmp_path_factory.mktemp("real"))


@pytest.fixture(scope="session")
def python_sdk_json(runner: Runner) -> Iterator[Place]:
    with runner.place("python_sdk", "--json") as place:
        yield place


@pytest.fixture(scope="session")
def python_sdk_stream(runner: Runner) -> Iterator[Place]:
    with runner.place("python_sdk") as place:
        yield place


@pytest.fixture(scope="session", params=["json", "stream"])
def python_sdk(request: pytest.FixtureRequest) -> Place:
    place: Place = request.getfixturevalue(f"python_sdk_{request.param}")
    return place


# Conversations of TypeScript clients


def start(script: str, *arguments: str) -> subprocess.Popen[str]:
    command = [node(), f"{script}.mjs", *arguments]
    return subprocess.Popen(command, cwd=NODE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(*scripts: subprocess.Popen[str]) -> list[Steps]:
    """The steps that each conversation printed, once all of them have ended."""
    said = []
    for script in scripts:
        try:
            out, err = script.communicate(timeout=SCRIPT_SECONDS)
        except subprocess.TimeoutExpired:
            script.kill()
            out, err = script.communicate()
        said.append((out, err))
    for script, (out, err) in zip(scripts, said, strict=True):
        assert script.returncode == 0, f"{out}\n{err}"
    # One object a line; not splitlines, which would split at the U+2028 that a step echoes.
    lines = [[json.loads(line) for line in out.split("\n") if line] for out, _ in said]
    return [{step.pop("step"): step for step in steps} for steps in lines]


def blurred(step: Json) -> str:
    """A step without the ids of tasks and the times, which differ from run to run."""
    text = json.dumps(step, sort_keys=True)
    text = re.sub(r"\b[0-9a-f]{32}\b", "<task id>", text)
    return re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", "<time>", text)


# The plain definition


def instant(timestamp: str) -> datetime:
    return datetime.fromisoformat(timestamp)


def selected(tasks: Sequence[Json], criteria: Json) -> list[str]:
    """The ids of the tasks that these criteria mean, in their order (DESIGN 5.2). All were made by `tools/call`."""
    given = {**criteria, **criteria.get("filter", {})}

    def holds(task: Json) -> bool:
        first, last = [
            [instant(given[name + end]) if name + end in given else instant(task[name + "At"]) for name in NAMES]
            for end in ("After", "Before")
        ]
        at = [instant(task[name + "At"]) for name in NAMES]
        return (
            "tools/call" in (given.get("methods") or given.get("requestTypes") or ["tools/call"])
            and task["taskId"] in (given.get("taskIds") or [task["taskId"]])
            and task["status"] in (given.get("status") or [task["status"]])
            and all(low <= each <= high for low, each, high in zip(first, at, last, strict=True))
        )

    by = given.get("orderBy", "lastUpdatedAt")
    matching = sorted(filter(holds, tasks), key=lambda task: (instant(task[by]), task["taskId"]))
    return ids_of(matching if given.get("order", "desc") == "asc" else matching[::-1])


def ids_of(tasks: Sequence[Json]) -> list[str]:
    return [task["taskId"] for task in tasks]


# Clients


class FilterParams(types.PaginatedRequestParams):
    """Params of tasks/list with members that the SDK does not know."""

    model_config = ConfigDict(extra="allow")


class FilteredListTasksRequest(types.ListTasksRequest):
    params: FilterParams | None = None


class FilteredRequest(types.ClientRequest):
    root: FilteredListTasksRequest


def bare_http() -> httpx.AsyncClient:
    """An HTTP client that spends no 20 ms on reading certificates."""
    timeout = httpx.Timeout(WAIT_SECONDS, read=6 * WAIT_SECONDS)
    return httpx.AsyncClient(timeout=timeout, verify=False)


@dataclass
class Client:
    """The SDK's client in one session, and what it was told of tasks."""

    session: ClientSession
    initialized: types.InitializeResult
    notified: list[tuple[str, str]]  # ids and statuses

    @property
    def listing(self) -> Json | None:
        """What the server has said of its `tasks/list`."""
        tasks = self.initialized.capabilities.tasks
        return tasks.list.model_extra if tasks is not None and tasks.list is not None else None

    async def work(self, until: Literal["now", "released", "asked", "failed"], label: str, ttl: int = 60000) -> str:
        created = await self.session.experimental.call_tool_as_task("work", {"until": until, "label": label}, ttl=ttl)
        return created.task.taskId

    async def release(self, task_id: str) -> None:
        await self.session.call_tool("release", {"taskId": task_id})

    async def page(self, criteria: Json, cursor: str | None = None) -> Json:
        params = FilterParams(**criteria, cursor=cursor)
        request = FilteredRequest(FilteredListTasksRequest(params=params))
        result = await self.session.send_request(request, types.Result)
        return {"_meta": result.meta, **(result.model_extra or {})}

    async def pages(self, criteria: Json) -> list[Json]:
        pages = [await self.page(criteria)]
        while (cursor := pages[-1].get("nextCursor")) is not None:
            pages.append(await self.page(criteria, cursor))
        return pages

    async def tasks(self, criteria: Json) -> list[Json]:
        """The tasks of all pages; without criteria what the server itself lists."""
        return [task for page in await self.pages(criteria) for task in page["tasks"]]

    async def get(self, task_id: str) -> types.GetTaskResult:
        return await self.session.experimental.get_task(task_id)

    async def settled(self, task_id: str, *status: str) -> None:
        """Wait until the task has one of these states, completed if none is given."""

        async def is_settled() -> bool:
            return (await self.get(task_id)).status in (status or ("completed",))

        await eventually(is_settled, f"{task_id} is {status}")

    async def text_of(self, task_id: str) -> str:
        result = await self.session.experimental.get_task_result(task_id, types.CallToolResult)
        [content] = result.content
        assert isinstance(content, types.TextContent)
        return content.text


@asynccontextmanager
async def connected(url: str, http: httpx.AsyncClient | None = None) -> AsyncIterator[Client]:
    """A session of the SDK's client at this address, ended with DELETE."""
    notified: list[tuple[str, str]] = []

    async def on_message(
        message: RequestResponder[types.ServerRequest, types.ClientResult] | types.ServerNotification | Exception,
    ) -> None:
        if isinstance(message, Exception):
            raise message
        if isinstance(told := getattr(message, "root", None), types.TaskStatusNotification):
            notified.append((told.params.taskId, told.params.status))

    try:
        async with (
            http or bare_http() as given,
            streamable_http_client(url, http_client=given) as (read, write, _),
            ClientSession(
                read,
                write,
                read_timeout_seconds=timedelta(seconds=2 * WAIT_SECONDS),
                message_handler=on_message,
            ) as session,
        ):
            yield Client(session, await session.initialize(), notified)
    except BaseExceptionGroup as group:
        # The SDK's task groups wrap what a test raises in their midst.
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        raise error from None


@dataclass(frozen=True)
class Reply:
    """One HTTP answer, and the JSON-RPC messages in its body."""

    status: int
    headers: httpx.Headers
    body: bytes
    messages: list[Json]

    @property
    def result(self) -> Json:
        assert self.status == 200, f"{self.status}: {self.body!r}"
        assert "result" in self.messages[-1], self.messages
        result: Json = self.messages[-1]["result"]
        return result

    @property
    def error(self) -> Json:
        assert "error" in self.messages[-1], self.messages
        error: Json = self.messages[-1]["error"]
        return error


@dataclass(frozen=True)
class Wire:
    """Bare HTTP to one address, with these headers on every request."""

    url: str
    http: httpx.AsyncClient
    headers: Mapping[str, str] = field(default_factory=dict)

    def at(self, url: str | None = None, **headers: str) -> "Wire":
        """The same with another address or more headers (`mcp_session_id` is Mcp-Session-Id)."""
        more = {name.replace("_", "-"): value for name, value in headers.items()}
        return Wire(url or self.url, self.http, {**self.headers, **more})

    async def post(self, method: str, params: Json | None = None, message_id: int | str | None = None) -> Reply:
        """One request, with an id of its own unless told: the Python SDK's server mixes up two of one id."""
        message: Json = {"jsonrpc": "2.0", "id": message_id or uuid.uuid4().hex, "method": method}
        if params is not None:
            message["params"] = params
        headers = {"Accept": "application/json, text/event-stream", **self.headers}
        answer = await self.http.post(self.url, json=message, headers=headers)
        kind = answer.headers.get("content-type", "").partition(";")[0]
        if kind == "text/event-stream":
            lines = re.split(r"\r\n|\r|\n", answer.text)
            messages = [json.loads(line[6:]) for line in lines if line.startswith("data: ") and line[6:]]
        else:
            messages = [answer.json()] if kind == "application/json" else []
        return Reply(answer.status_code, answer.headers, answer.content, messages)

    async def notify(self, method: str, params: Json | None = None) -> None:
        answer = await self.http.post(
            self.url,
            json={"jsonrpc": "2.0", "method": method, "params": params or {}},
            headers={"Accept": "application/json, text/event-stream", **self.headers},
        )
        assert answer.status_code == 202, answer.text

    async def initialize(self, capabilities: Json | None = None) -> tuple["Wire", Json]:
        """Open a session; gives the wire that is in it, and the result."""
        info = {"name": "wire", "version": "1"}
        params = {"protocolVersion": "2025-11-25", "capabilities": capabilities or {}, "clientInfo": info}
        reply = await self.post("initialize", params)
        session = reply.headers.get("mcp-session-id")
        opened = self.at(mcp_protocol_version="2025-11-25", **({"mcp_session_id": session} if session else {}))
        await opened.notify("notifications/initialized")
        return opened, reply.result

    async def work(self, until: str, label: str, ttl: int = 60000) -> str:
        arguments = {"until": until, "label": label}
        reply = await self.post("tools/call", {"name": "work", "arguments": arguments, "task": {"ttl": ttl}})
        task_id: str = reply.result["task"]["taskId"]
        return task_id

    async def reaches(self, task_id: str, status: str) -> Json:
        """The task, once it has this status."""

        async def has() -> bool:
            return bool((await self.post("tasks/get", {"taskId": task_id})).result["status"] == status)

        await eventually(has, f"{task_id} is {status}")
        return (await self.post("tasks/get", {"taskId": task_id})).result

    async def tasks(self, criteria: Json, message_id: int | str | None = None) -> list[Json]:
        """The tasks of all pages of a tasks/list."""
        tasks: list[Json] = []
        params = dict(criteria)
        while True:
            page = (await self.post("tasks/list", params, message_id)).result
            tasks += page["tasks"]
            if "nextCursor" not in page:
                return tasks
            params["cursor"] = page["nextCursor"]


@dataclass(frozen=True)
class Exact:
    """One HTTP answer to the byte, without the fields of its connection or moment."""

    status: int
    reason: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes

    def values(self, name: str) -> list[str]:
        return [value.decode() for field_name, value in self.headers if field_name.decode().lower() == name]


async def exact(
    http: httpx.AsyncClient, url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
) -> Exact:
    """GET, or POST of a JSON body, past all that knows MCP."""
    given = {"Accept": "application/json, text/event-stream", "Accept-Encoding": "identity", **(headers or {})}
    if body is None:
        answer = await http.get(url, headers=given)
    else:
        answer = await http.post(url, content=body, headers={"Content-Type": "application/json", **given})
    passing = {b"connection", b"keep-alive", b"date"}
    fields = [(name, value) for name, value in answer.headers.raw if name.lower() not in passing]
    return Exact(answer.status_code, answer.extensions["reason_phrase"], fields, answer.content)


async def at_both(
    http: httpx.AsyncClient, place: Place, body: bytes, headers: Mapping[str, str] | None = None
) -> tuple[Exact, Exact]:
    direct, through = [await exact(http, url, body, headers) for url in (place.direct, place.gateway)]
    return direct, through


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with bare_http() as client:
        yield client
