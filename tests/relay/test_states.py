"""The states of a client's connection: the table in client_connection.py is what it does, in whatever order.

Histories are drawn, and what each event of the table leads to is noted. Time passes by a sweep from the far future. The
handshake's column holds in each App of these tests (conftest.py), those of test_handshakes.py among them.
"""

import ast
import asyncio
import inspect
import random
import socket
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cache
from types import ModuleType
from typing import Any, Final, TypeAlias, get_args

import pytest

from gateway.config import Limits
from gateway.downstream import client_connection
from gateway.downstream import tls_handshakes as handshakes
from gateway.downstream.client_connection import Listener, State
from gateway.downstream.exchange import Exchange
from gateway.http.header_fields import Headers
from gateway.http.parsed_head_cache import HeadCache
from gateway.http.response_parser import may_vary
from gateway.operate.metrics import Metrics
from gateway.transport.memory_budget import Buffers
from tests.states import EVENTS_OF_A_CONNECTION, in_cell

LATER_S: Final = 1e6
TURNS: Final = 12  # of the loop: all that one event leads to, between sockets of this machine
HISTORIES: Final = 600
EVENTS_MAX: Final = 12  # of one history
SELDOM: Final = ("it is late", "a drain begins", "a drain ends", "the client leaves")
WEIGHTS: Final = {**dict.fromkeys(SELDOM, 0.15), "the rest of a request comes": 0.5, "the response is whole": 3.0}

GET: Final = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
LAST: Final = GET.replace(b"a\r\n", b"a\r\nConnection: close\r\n")
PART: Final = GET[:9]
POST: Final = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n"
LAST_POST: Final = POST.replace(b"Host: a", b"Host: a\r\nConnection: close")
REST_OF_POST: Final = b"3\r\nllo\r\n0\r\n\r\n"
GARBAGE: Final = b"\0\r\n\r\n"

Deed: TypeAlias = Callable[[Exchange], Awaitable[None]]


async def read(exchange: Exchange) -> None:
    while await exchange.request.body.read():
        pass


def begins(headers: list[tuple[bytes, bytes]], framing: Any) -> Deed:
    """Send a part of a response, unless one has begun."""

    async def begin(exchange: Exchange) -> None:
        if not exchange.response.started:
            exchange.response.begin(200, b"OK", Headers(headers), framing)
            exchange.response.send(b"o")
            exchange.response.flush()

    return begin


begin, begin_unbounded = begins([(b"Content-Length", b"2")], "length"), begins([], "close")  # cut, it would look whole


async def answer(exchange: Exchange) -> None:
    await begin(exchange)
    exchange.response.send(b"k")
    exchange.response.end()


@cache
def _counts() -> Metrics:
    """Making one takes longer than a connection lives here."""
    return Metrics()


class Bench:
    """A listener, one client of it, and the handler of its exchanges."""

    def __init__(self) -> None:
        counts, limits = (_counts().connection_refused, _counts().handshake_failed), Limits()
        self.listener = Listener(self._handle, limits, Buffers(limits.held_bytes_max), HeadCache(may_vary), *counts)
        self.loop = asyncio.get_running_loop()
        self.client = socket.socket()
        self.client.setblocking(False)
        self.client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.deeds: asyncio.Queue[Deed | None] = asyncio.Queue()  # what handlers do next; None: the handler ends
        self.head_rest = self.body_rest = b""  # of the request under way
        self.reads = self.is_unbounded = False  # the handler waits for the rest of a body; what it cuts looks whole

    async def open(self) -> None:
        self._server = await self.loop.create_server(self.listener.connection, "127.0.0.1", 0)
        await self.loop.sock_connect(self.client, self._server.sockets[0].getsockname())
        await self.until(lambda: bool(self.listener.connections))
        [self.connection] = self.listener.connections

    async def close(self) -> None:
        self.client.close()
        self._server.close()
        await self.listener.drain(0)
        await self.until(lambda: not self.listener.connections)

    async def _handle(self, exchange: Exchange) -> None:
        while (deed := await self.deeds.get()) is not None:
            await deed(exchange)
            if exchange.response.finished:
                return

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not holds():  # noqa: ASYNC110  # the state of an object has no event
                await asyncio.sleep(0)

    async def settle(self, turns: int = TURNS) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)

    async def send(self, *pieces: bytes, turns: int = TURNS) -> None:
        """The client sends these, and each arrives for itself. Nothing is sent where the gateway has gone."""
        with suppress(ConnectionError):
            for piece in pieces:
                await self.loop.sock_sendall(self.client, piece)
                await self.settle(turns)

    async def do(self, *deeds: Deed | None) -> None:
        for deed in deeds:
            self.deeds.put_nowait(deed)
            await self.settle()

    async def happen(self, event: str, chance: random.Random) -> None:
        match event:
            case "a part of a head comes":
                piece, self.head_rest = (self.head_rest or GET)[:9], (self.head_rest or GET)[9:]
                await self.send(piece)
            case "a head is whole":
                whole = self.head_rest or chance.choice((GET, LAST, POST, LAST_POST))
                self.head_rest, self.body_rest = b"", REST_OF_POST if whole.startswith(b"POST") else b""
                await self.send(whole)
            case "what comes is refused":
                await self.send(GARBAGE)
            case "the rest of a request comes":
                behind = chance.choice((b"", PART, GET, GET + GET, GARBAGE))
                rest, self.body_rest, self.reads = self.body_rest, b"", False
                self.head_rest = GET[9:] if behind == PART else b""
                await self.send(rest + behind)
            case "the response is whole":
                await self.do(answer)
            case "the response is cut":
                await self.do(None)
            case "it is late":
                self.listener.sweep(self.loop.time() + LATER_S)
            case "a drain begins":
                self.connection.close_when_idle()
            case "a drain ends":
                await self.listener.drain(0)
            case "the client leaves":
                if chance.random() < 0.5:
                    self.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                self.client.close()
                await self.settle()
                self.listener.sweep(self.loop.time())
        await self.settle()

    def can(self, event: str) -> bool:
        """Whether it can happen to a connection that was sent what this one was."""
        match event:
            case "a part of a head comes":
                return not self.body_rest and len(self.head_rest) != len(GET) - 18
            case "a head is whole":
                return not self.body_rest
            case "the rest of a request comes":
                return bool(self.body_rest)
            case "the response is whole" | "the response is cut":
                return not self.reads
            case "what comes is refused":  # where the handler fails for it, and its response is cut
                return not (self.reads and self.is_unbounded)
        return True


def test_the_table_names_every_state() -> None:
    for cells in EVENTS_OF_A_CONNECTION.values():
        assert list(cells) == [state for state in get_args(State) if state != "CLOSED"]


@pytest.mark.parametrize("module", [client_connection, handshakes])
def test_one_method_enters_every_state(module: ModuleType) -> None:
    tree = ast.parse(inspect.getsource(module))
    entering = {
        method.name
        for method in ast.walk(tree)
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(method)
        if isinstance(node, ast.Attribute) and node.attr == "state" and isinstance(node.ctx, ast.Store)
    }
    assert entering == ({"_enter"} if module is client_connection else set())


async def test_the_table_is_what_happens_in_whatever_order() -> None:
    found = defaultdict[tuple[str, str], set[str]](set)
    for seed in range(HISTORIES):
        chance, bench = random.Random(seed), Bench()
        await bench.open()
        if seed % 4 == 0:  # SKIPPING, where few histories come by chance
            bench.body_rest = REST_OF_POST
            await bench.send(POST)
            await bench.do(answer)
        for _ in range(EVENTS_MAX):
            before = bench.connection.state
            if before == "CLOSED" or bench.client.fileno() < 0:
                break
            if before == "SERVING" and not bench.reads and chance.random() < 0.5:
                deed = chance.choice((begin, begin_unbounded, read))
                bench.reads = deed is read and bool(bench.body_rest)
                bench.is_unbounded |= deed is begin_unbounded
                await bench.do(deed)
                continue
            cells = {event: cells[before] for event, cells in EVENTS_OF_A_CONNECTION.items()}
            may = [event for event, cell in cells.items() if cell != "-" and bench.can(event)]
            event = chance.choices(may, [WEIGHTS.get(event, 1.0) for event in may])[0]
            await bench.happen(event, chance)
            found[before, event].add(bench.connection.state)
        await bench.close()
    table = {
        (state, event): in_cell(cell)
        for event, cells in EVENTS_OF_A_CONNECTION.items()
        for state, cell in cells.items()
        if state != "HANDSHAKE" and cell != "-"
    }
    assert {at: (found[at], leads) for at, leads in table.items() if found[at] != leads} == {}
