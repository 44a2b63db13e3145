"""Replicas of one gateway before one server, with a real Redis, and clients of each."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest

from tests.launch import Gateway, Gateways, eventually, listening, port_of
from tests.peer import Client, Peer
from tests.redis_process import Store, redis
from tests.relay.http1 import Message
from tests.relay.messages import Json, answer, call, fault, filtered, initialized, page, post, request, response, result
from tests.relay.messages import task as task_of
from tests.relay.rig import Place, body, final, rig_at

NATIVE: Final[Json] = {"list": {"filter": {}}, "requests": {"tools": {"call": {}}}}
THREE: Final[Json] = {
    "list": {},
    "requests": {"tools": {"call": {}}, "prompts": {"get": {}}, "resources": {"read": {}}},
}
PATIENCE: Final = "20s"  # of a query for the store: on a busy machine a store that serves may be slow


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with redis(tmp_path) as one:
        yield one


# ---- the server ----


@dataclass
class Server:
    """An MCP server whose list omits its tasks, or shows them.

    A task belongs to a session and a token, but where the server `is_open`: then it gives all to all. A request for a
    task may name its id.
    """

    tasks_capability: Json = field(default_factory=lambda: THREE)
    lists: bool = False
    is_open: bool = False
    tasks: dict[str, tuple[str, str, Json]] = field(default_factory=dict)  # by id: session, token, task
    asked: list[Json] = field(default_factory=list)

    def response(self, asked: Message) -> bytes:
        if asked.method == b"DELETE":
            return response(b"")
        message = body(asked)
        self.asked.append(message)
        if "id" not in message:
            return response(b"", status=b"202 Accepted")
        session = (asked.value(b"mcp-session-id") or b"").decode()
        owner = (session, (asked.value(b"authorization") or b"").decode())
        if message["method"] == "initialize":
            said = {**initialized(), "capabilities": {"tasks": self.tasks_capability}}
            return answer(result(message["id"], said), b"Mcp-Session-Id: " + uuid4().hex.encode())
        params = message["params"]
        if "task" in params:
            made = task_of(params.get("id") or uuid4().hex, **params["task"])
            self.tasks[made["taskId"]] = (*owner, made)
            return answer(result(message["id"], {"task": made}))
        if message["method"] == "tasks/list":
            listed = [t for *who, t in self.tasks.values() if self.lists and (self.is_open or tuple(who) == owner)]
            return answer(result(message["id"], page(listed)))
        if message["method"] != "tasks/get":
            return answer(result(message["id"], {}))
        found = self.tasks.get(params["taskId"])
        if found is None or not (self.is_open or found[:2] == owner):
            return answer(fault(message["id"], -32602, "no such task"))
        return answer(result(message["id"], found[2]))

    def count(self, method: str) -> int:
        return sum(message["method"] == method for message in self.asked)


# ---- the replicas ----


@dataclass(frozen=True)
class Replica:
    """One gateway, and what a client asks of it."""

    gateway: Gateway

    async def open(self, token: str = "t0ken") -> "Caller":
        """A client with a session of its own."""
        client = await Client.connect(self.gateway.port)
        await client.send(post(call("initialize"), b"Authorization: Bearer " + token.encode()))
        response = await client.response()
        await client.close()
        return Caller((response.value(b"mcp-session-id") or b"").decode(), token)

    async def ask(self, caller: "Caller", message: Json) -> Json:
        return final(await self.exchange(caller, message))

    async def exchange(self, caller: "Caller", message: Json) -> Message:
        return await self._send(post(message, *caller.fields()))

    async def delete(self, caller: "Caller") -> Message:
        """End the session of a client."""
        return await self._send(request(b"DELETE", b"/mcp", caller.fields()))

    async def _send(self, data: bytes) -> Message:
        client = await Client.connect(self.gateway.port)
        await client.send(data)
        response = await client.response()
        await client.close()
        return response

    async def make(self, caller: "Caller", task_id: str | None = None, **task: Any) -> str:
        said = await self.ask(caller, call("tools/call", name="work", task=task, id=task_id))
        made: str = said["result"]["task"]["taskId"]
        return made

    async def ids(self, caller: "Caller", **criteria: Any) -> list[str]:
        said = await self.ask(caller, filtered(**criteria))
        return sorted(task["taskId"] for task in said["result"]["tasks"])

    async def sample(self, name: str, **labels: str) -> float:
        found = await self.gateway.metrics()
        return found.get((f"taskgate_{name}", tuple(sorted(labels.items()))), 0.0)

    async def serves(self) -> bool:
        return await self.sample("store_up") == 1


@dataclass(frozen=True)
class Caller:
    """A client's session and token."""

    session: str
    token: str = "t0ken"

    def fields(self) -> list[bytes]:
        return [b"Mcp-Session-Id: " + self.session.encode(), b"Authorization: Bearer " + self.token.encode()]


class Fleet:
    """Replicas of one gateway before one server, with one store or none."""

    def __init__(self, gateways: Gateways, port: int, store: Store) -> None:
        self._gateways = gateways
        self._store = store
        self._settings: Json = {"store": {"url": store.url, "timeout": PATIENCE}}
        self.port = port  # of the server
        self.server = Server()

    @asynccontextmanager
    async def replica(self, serves: bool = True, **changed: Any) -> AsyncIterator[Replica]:
        """One more replica, on the running loop; with a store that serves it, unless told otherwise."""
        async with self._gateways.in_process(self.port, **{**self._settings, **changed}) as gateway:
            one = Replica(gateway)
            if serves:
                await eventually(one.serves, "a store that serves")
            yield one

    @asynccontextmanager
    async def pair(self, **changed: Any) -> AsyncIterator[tuple[Replica, Replica]]:
        async with self.replica(**changed) as one, self.replica(**changed) as other:
            yield one, other

    @asynccontextmanager
    async def pair_with_task(self, **changed: Any) -> AsyncIterator[tuple[Replica, Replica, Caller, str]]:
        """Two replicas, a client of the first, and the id of a task that he made, of which the store knows."""
        async with self.pair(**changed) as (one, other):
            caller = await one.open()
            made = await one.make(caller)
            await known(self._store, 1)
            yield one, other, caller, made


@pytest.fixture
async def fleet(tmp_path: Path, store: Store) -> AsyncIterator[Fleet]:
    """Gateways that share the store, before a server whose list omits all tasks."""
    with listening() as sock:
        one = Fleet(Gateways(tmp_path), port_of(sock), store)

        async def script(asked: Message, _peer: Peer) -> bytes:
            return one.server.response(asked)

        async with rig_at(Place(Gateway(0, 0), sock), script):
            yield one


async def known(store: Store, entries: int) -> None:
    """Return once the store has that many entries, in all sessions together."""

    async def there() -> bool:
        keys = [key for key in await store.run("KEYS", "taskgate:*") if key.endswith(":tasks")]
        found: int = sum([await store.run("ZCARD", key) for key in keys])
        return found == entries

    await eventually(there, f"{entries} entries in the store")
