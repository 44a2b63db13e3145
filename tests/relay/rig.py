"""A gateway, an upstream behind it and clients in front, for tests that say more than that two recordings agree."""

import asyncio
import contextlib
import json
import re
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias
from uuid import uuid4

from gateway.app import App
from tests.launch import Gateway, Gateways, fetched, listening, port_of, settings
from tests.peer import WAIT_S, Client, Peer
from tests.relay.http1 import Message
from tests.relay.messages import Json, answer, fault, post, result
from tests.upstream import Upstream

Script: TypeAlias = Callable[[Message, Peer], Awaitable[bytes | None]]
"""What the upstream does with a request: the bytes it answers with, or None if it does all itself, or nothing."""

FOREVER_S: Final = 3600.0
_DATA: Final = re.compile(rb"(?:^|\n)data: ?([^\n]*)")


@dataclass(frozen=True)
class Place:
    """A gateway, and the listening socket on which each test puts an upstream of its own behind it."""

    gateway: Gateway
    listening: socket.socket

    @property
    def authority(self) -> bytes:
        """What the gateway sends as `Host`."""
        return b"127.0.0.1:%d" % port_of(self.listening)


class Rig:
    def __init__(self, place: Place) -> None:
        self.place = place
        self.upstream = Upstream(place.listening)
        self.session = b"Mcp-Session-Id: " + uuid4().hex.encode()
        self._clients: list[Client] = []
        self._serving: asyncio.Task[None] | None = None
        self._answering: list[asyncio.Task[None]] = []
        self._asking: list[asyncio.Task[Message]] = []

    @property
    def gateway(self) -> Gateway:
        return self.place.gateway

    @property
    def app(self) -> App:
        assert self.gateway.app is not None
        return self.gateway.app

    def settings(self, **changed: Any) -> Json:
        """A configuration of this gateway at its own addresses, which a reload may take over."""
        return settings(self.gateway.port, self.gateway.admin, port_of(self.place.listening), changed)

    def post(self, message: object, *fields: bytes) -> bytes:
        return post(message, self.session, *fields)

    async def client(self, *pieces: bytes) -> Client:
        one = await Client.connect(self.gateway.port)
        self._clients.append(one)
        await one.send(*pieces)
        return one

    async def begin(self, *pieces: bytes) -> tuple[Client, Peer]:
        """A new client that sends a request, and the connection on which it has come to the upstream."""
        number = self.upstream.count + 1
        one = await self.client(*pieces)
        return one, await self.upstream.request(number)

    async def answered(self, asked: bytes, *said: bytes) -> tuple[Client, Peer]:
        """The same, once the upstream has answered with these pieces, and the client has the response."""
        one, peer = await self.begin(asked)
        await peer.send(*said)
        await one.response()
        return one, peer

    async def exchange(self, asked: bytes, *said: bytes) -> Message:
        """The response to a request that the upstream answers with these pieces. The connection stays open."""
        one, peer = await self.begin(asked)
        await peer.send(*said)
        return await one.response()

    async def ask(self, *pieces: bytes) -> Message:
        """The final response to one request on a new connection, whole or as far as it came."""
        one = await self.client(*pieces)
        response = await one.response()
        await one.close()
        return response

    async def succeeds(self, asked: bytes) -> bool:
        return (await self.ask(asked)).status == 200

    def asking(self, data: bytes) -> "asyncio.Task[Message]":
        """The same, as a task, which is ended with the rig."""
        self._asking.append(asyncio.create_task(self.ask(data)))
        return self._asking[-1]

    def serve(self, script: Script) -> None:
        """Have every request that comes from now on answered by `script`, several at a time."""
        assert self._serving is None, "a script serves already, and answers all"
        self._serving = asyncio.create_task(self._serve(script, self.upstream.count))

    async def _serve(self, script: Script, seen: int) -> None:
        while True:
            seen += 1
            peer = await self.upstream.request(seen, FOREVER_S)
            self._answering.append(asyncio.create_task(self._answer(script, self.upstream.message(seen), peer)))

    @staticmethod
    async def _answer(script: Script, request: Message, peer: Peer) -> None:
        said = await script(request, peer)
        if said is not None:
            await peer.send(said)

    def asked(self, method: str) -> list[Json]:
        """The JSON-RPC messages of that method that the upstream has received."""
        return [m for m in map(body, self.upstream.requests) if isinstance(m, dict) and m.get("method") == method]

    async def leave(self) -> None:
        for one in self._clients:
            await one.close()

    async def close(self) -> None:
        """End everything. Raises what a script raised."""
        await self.leave()
        if self._serving is not None:
            self._serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._serving
        await self.upstream.close()
        tasks = [*self._answering, *self._asking]
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended


def answers(said: Callable[[Message], bytes | None]) -> Script:
    """An upstream that answers every request with what this makes of it, if that is anything."""

    async def script(asked: Message, _peer: Peer) -> bytes | None:
        return said(asked)

    return script


def says(data: bytes) -> Script:
    """An upstream that answers every request with these bytes."""
    return answers(lambda _: data)


def replies(said: Callable[[Json], Any], *fields: bytes) -> Script:
    """An upstream that answers every request of JSON-RPC with what this makes of it: a result, or a whole message."""

    def reply(asked: Message) -> bytes:
        message = body(asked)
        value = said(message)
        whole = value if isinstance(value, dict) and "jsonrpc" in value else result(message["id"], value)
        return answer(whole, *fields)

    return answers(reply)


def gives(value: object, *fields: bytes) -> Script:
    """An upstream that answers every request of JSON-RPC with this result."""
    return replies(lambda _: value, *fields)


@asynccontextmanager
async def rig_at(place: Place, script: Script | None = None) -> AsyncIterator[Rig]:
    rig = Rig(place)
    if script is not None:
        rig.serve(script)
    try:
        yield rig
    finally:
        await rig.close()


@asynccontextmanager
async def rig_with(gateways: Gateways, script: Script | None = None, /, **changed: Any) -> AsyncIterator[Rig]:
    """A rig about an App of its own, whose upstream answers by that script."""
    with listening() as sock:
        async with (
            gateways.in_process(port_of(sock), **changed) as gateway,
            rig_at(Place(gateway, sock), script) as rig,
        ):
            yield rig


@asynccontextmanager
async def own(gateways: Gateways, script: Script | None = None, /, **changed: Any) -> AsyncIterator[Rig]:
    """The same about a process of its own. Its end, by SIGTERM at the latest, must be an exit status of 0."""
    with listening() as sock, gateways.process(port_of(sock), **changed) as gateway:
        async with rig_at(Place(gateway, sock), script) as rig:
            yield rig


@asynccontextmanager
async def tls_client(rig: Rig, cert: str | None) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    context = ssl.create_default_context(cafile=cert)
    async with asyncio.timeout(WAIT_S):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", rig.gateway.port, ssl=context, server_hostname="localhost", limit=1 << 20
        )
    try:
        yield reader, writer
    finally:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


def sent(gateway: Gateway, message: Json, target: str = "/mcp", more: Mapping[str, str] = {}) -> tuple[int, Json]:
    """Status and body of the answer to a message, without a loop."""
    accepted = "application/json, text/event-stream"
    status, text = fetched(gateway.port, target, message, Accept=accepted, **more)
    return status, json.loads(text)


def body(message: Message) -> Any:
    try:
        return json.loads(message.body)
    except (ValueError, RecursionError):
        return None


def told(message: Message) -> list[Json]:
    """The JSON-RPC messages of a response, whether it is JSON or an event stream, in order."""
    kind = message.value(b"content-type")
    if kind == b"text/event-stream":
        events = [_DATA.findall(part) for part in message.body.split(b"\n\n")]
        return [json.loads(b"\n".join(lines)) for lines in events if lines]
    assert kind == b"application/json", kind
    return [json.loads(message.body)]


def ids(message: Json) -> list[str]:
    return [task["taskId"] for task in message["result"]["tasks"]]


REASONS: Final = {
    "Too Many Requests": 429, "Internal Server Error": 500, "Bad Gateway": 502, "Service Unavailable": 503,
    "Gateway Timeout": 504,
}  # fmt: skip


def meant(message: Message) -> int:
    """The status of a response; where its body has an error of the gateway's own, the one that its words stand for."""
    if message.status == 200 and b'"error"' in message.body:
        return REASONS.get(final(message)["error"]["message"].partition(":")[0], 200)
    return message.status


def failed(message: Message) -> tuple[int, object, int]:
    told = body(message)
    return message.status, told["id"], told["error"]["code"]


def final(message: Message) -> Json:
    """The JSON-RPC response in a response that is whole: the last message in it."""
    assert message.whole, message
    return told(message)[-1]


@dataclass
class Server:
    """A script: an MCP server with `pages` of tasks by cursor (None: the first), and results of `others` by method.

    `get`: the task of an id, None if there is none.
    """

    pages: Mapping[str | None, Json]
    others: Mapping[str, Json] = field(default_factory=dict)
    get: Callable[[str], Json | None] | None = None

    async def __call__(self, request: Message, peer: Peer) -> bytes | None:
        message = body(request)
        if not isinstance(message, dict) or "id" not in message:
            return b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"
        if message["method"] in self.others:
            return answer(result(message["id"], self.others[message["method"]]))
        if message["method"] == "tasks/get" and self.get is not None:
            found = self.get(message["params"]["taskId"])
            missing = fault(message["id"], -32602, "Task not found")
            return answer(missing if found is None else result(message["id"], found))
        if message["method"] != "tasks/list":
            return answer(fault(message["id"], -32601, "Method not found"))
        cursor = message["params"].get("cursor") if "params" in message else None
        if cursor not in self.pages:
            return answer(fault(message["id"], -32602, f"Invalid cursor: {cursor}"))
        return answer(result(message["id"], self.pages[cursor]))


@dataclass
class Session:
    rig: Rig
    session_id: str = field(default_factory=lambda: uuid4().hex)
    token: str = "t0ken"

    def fields(self) -> list[bytes]:
        return [
            b"Mcp-Session-Id: " + self.session_id.encode(),
            b"Authorization: Bearer " + self.token.encode(),
            b"Mcp-Protocol-Version: 2025-11-25",
        ]

    def request(self, message: object) -> bytes:
        return post(message, *self.fields())

    async def ask(self, message: object) -> Message:
        return await self.rig.ask(self.request(message))

    async def client(self, message: object) -> Client:
        return await self.rig.client(self.request(message))
