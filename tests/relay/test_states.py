"""The states of a client's connection: the table in client_connection.py is what it does, in whatever order.

Time passes by a sweep from the far future.
"""

import ast
import asyncio
import inspect
import random
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import product
from types import ModuleType
from typing import Final, TypeAlias, get_args

import pytest

from gateway.config import Limits
from gateway.downstream import client_connection
from gateway.downstream import tls_handshakes as handshakes
from gateway.downstream.client_connection import State
from gateway.downstream.exchange import Exchange
from gateway.downstream.listener import Listener
from gateway.downstream.tls_handshakes import TlsServer
from gateway.http.fields import Headers
from gateway.http.head_cache import HeadCache
from gateway.operate.metrics import Metrics
from gateway.transport.memory_budget import Buffers
from tests.attack.requests import ROWS
from tests.certificates import signed
from tests.states import (
    EVENTS_OF_A_CONNECTION,
    NEXT,
    STATES_OF_A_CONNECTION,
    STEPS_OF_A_CONNECTION,
    Watch,
    changes,
    in_cell,
)

LATER_S: Final = 1e6
TURNS: Final = 12  # of the loop: all that one event leads to, between sockets of this machine
HISTORIES: Final = 200
DEEDS: Final = 12  # of one history

GET: Final = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
LAST: Final = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
PART, REST_OF_PART = GET[:9], GET[9:]
POST: Final = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n"
LAST_POST: Final = POST.replace(b"Host: a", b"Host: a\r\nConnection: close")
REST_OF_POST: Final = b"3\r\nllo\r\n0\r\n\r\n"
GARBAGE: Final = b"\0\r\n\r\n"
NO_HELLO: Final = b"\x16\x03\x01\x00\x05\x02\x00\x00\x01\x00"
PART_OF_HELLO: Final = NO_HELLO[:3]
TOO_MUCH: Final = (16 << 20) + 1  # bytes

Deed: TypeAlias = Callable[[Exchange], Awaitable[None]]


async def read(exchange: Exchange) -> None:
    while await exchange.request.body.read():
        pass


async def begin(exchange: Exchange) -> None:
    exchange.response.begin(200, b"OK", Headers([(b"Content-Length", b"2")]), "length")
    exchange.response.send(b"o")
    exchange.response.flush()


async def begin_unbounded(exchange: Exchange) -> None:
    """Send a part of a response that ends with the connection: cut, it would look whole."""
    exchange.response.begin(200, b"OK", Headers([]), "close")
    exchange.response.send(b"o")
    exchange.response.flush()


async def answer(exchange: Exchange) -> None:
    if not exchange.response.started:
        await begin(exchange)
    exchange.response.send(b"k")
    exchange.response.end()


@cache
def _counts() -> Metrics:
    """Making one takes longer than a connection lives here."""
    return Metrics()


class Bench:
    """A listener, one client of it, and the handler of its exchanges."""

    def __init__(self, limits: Limits) -> None:
        counts = _counts().connection_refused, _counts().handshake_failed
        self.listener = Listener(self._handle, limits, Buffers(limits.held_bytes_max), HeadCache(), *counts)
        self.loop = asyncio.get_running_loop()
        self.client = socket.socket()
        self.client.setblocking(False)
        self.client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.deeds: asyncio.Queue[Deed | None] = asyncio.Queue()  # what handlers do next; None: the handler ends
        self.tls: asyncio.StreamWriter | None = None  # the client's side, behind a handshake
        self._server: asyncio.Server | TlsServer | None = None

    async def open(self, context: ssl.SSLContext | None) -> None:
        """Have the client connect."""
        made = self.listener.connection
        server = await self.loop.create_server(made, "127.0.0.1", 0, start_serving=context is None)
        self._server = server if context is None else TlsServer(server, context, self.listener, 10)
        await self.loop.sock_connect(self.client, server.sockets[0].getsockname())
        await self.until(lambda: bool(self.listener.connections))
        [self.connection] = self.listener.connections

    async def close(self) -> None:
        """End all."""
        if self.tls is not None:
            self.tls.transport.abort()
        self.client.close()
        assert self._server is not None
        self._server.close()
        await self.listener.drain(0)
        await self.until(lambda: not self.listener.connections)

    async def _handle(self, exchange: Exchange) -> None:
        while (deed := await self.deeds.get()) is not None:
            await deed(exchange)
            if exchange.response.finished:
                return

    @property
    def state(self) -> str:
        return self.connection.state

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for something that is bound to happen."""
        async with asyncio.timeout(20):
            while not holds():  # noqa: ASYNC110  # the state of an object has no event
                await asyncio.sleep(0)

    async def settle(self, turns: int = TURNS) -> None:
        """Let all happen that follows from what has happened."""
        for _ in range(turns):
            await asyncio.sleep(0)

    async def send(self, *pieces: bytes, turns: int = TURNS) -> None:
        """The client sends these, and each arrives for itself. Nothing is sent where the gateway has gone."""
        with suppress(ConnectionError):
            for piece in pieces:
                await self.loop.sock_sendall(self.client, piece)
                await self.settle(turns)

    async def do(self, *deeds: Deed | None) -> None:
        """The handler does these."""
        for deed in deeds:
            self.deeds.put_nowait(deed)
            await self.settle()

    async def sweep(self, in_s: float = 0.0) -> None:
        self.listener.sweep(self.loop.time() + in_s)
        await self.settle()

    def close_when_idle(self) -> None:
        """A drain begins."""
        for one in list(self.listener.connections):
            one.close_when_idle()


# ---- ways into a state, and what may happen there ----


@dataclass(frozen=True)
class Start:
    """A connection in some state: what the client has sent, and what the handler has done."""

    sent: tuple[bytes, ...] = ()
    done: tuple[Deed, ...] = ()
    tls: bool = False
    drains: bool = False
    connections_max: int = 10

    @property
    def last(self) -> bytes:
        return self.sent[-1] if self.sent else b""

    @property
    def is_in_head(self) -> bool:
        return self.last == PART

    @property
    def is_in_body(self) -> bool:
        return self.last in (POST, LAST_POST)

    @property
    def is_between(self) -> bool:
        """Whether the next byte is the first of a request."""
        return not self.is_in_head and not self.is_in_body


REQUESTS: Final = (
    (GET,), (LAST,), (GET, PART), (GET, GET), (GET, GET, GET), (GET, GARBAGE), (POST,), (LAST_POST,), (GET, POST),
)  # fmt: skip
STARTS: Final[dict[str, list[Start]]] = {
    "HANDSHAKE": [Start(tls=True), Start((PART_OF_HELLO,), tls=True), Start(tls=True, connections_max=0)],
    "IDLE": [Start(), Start((GET,), (answer,))],
    "HEAD": [Start((PART,)), Start((GET, PART), (answer,))],
    "SERVING": [
        *(Start(sent, done) for sent, done in product(REQUESTS, ((), (begin,), (begin_unbounded,)))),
        *(Start((post,), (read,)) for post in (POST, LAST_POST)),
        *(Start((post,), (begin, read)) for post in (POST, LAST_POST)),
    ],
    "SKIPPING": [Start((POST,), (answer,)), Start((LAST_POST,), (answer,)), Start((POST,), (answer,), drains=True)],
    "LINGERING": [Start((LAST,), (answer,)), Start((GARBAGE,))],
}

Event = Callable[[Bench, Start], Awaitable[None] | None]
"""None: it cannot happen to a connection that was begun like this."""


async def shake_hands(bench: Bench) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, bench.tls = await asyncio.open_connection(sock=bench.client, ssl=context, server_hostname="a")
    await bench.until(lambda: bench.connection.state != "HANDSHAKE")


def sending(*pieces: bytes, to: Callable[[Start], bool] = lambda start: True) -> Event:
    return lambda bench, start: bench.send(*pieces) if to(start) else None


def doing(deed: Deed | None) -> Event:
    """The handler does that."""
    return lambda bench, start: bench.do(deed)


async def leave(bench: Bench, way: str) -> None:
    if way == "reset":
        bench.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    bench.client.close()
    await bench.settle()
    await bench.sweep()


async def send_too_much(bench: Bench) -> None:
    await bench.send(bytes(TOO_MUCH))
    await bench.until(lambda: bench.connection.state == "CLOSED")


async def begin_drain(bench: Bench) -> None:
    bench.close_when_idle()
    await bench.settle()


async def drain(bench: Bench) -> None:
    await bench.listener.drain(0)
    await bench.settle()


EVENTS: Final[dict[str, list[Event]]] = {
    "the handshake is done": [
        lambda bench, start: shake_hands(bench) if not start.sent and start.connections_max else None,
        sending(GET, to=lambda start: not start.sent),  # plain HTTP, which is refused
    ],
    "the handshake fails": [
        sending(NO_HELLO, to=lambda start: not start.sent),
        sending(NO_HELLO[len(PART_OF_HELLO) :], to=lambda start: bool(start.sent)),
    ],
    "a part of a head comes": [
        sending(PART, to=lambda start: start.is_between),
        sending(REST_OF_PART[:1], to=lambda start: start.is_in_head),
    ],
    "a head is whole": [
        sending(GET, to=lambda start: start.is_between),
        sending(REST_OF_PART, to=lambda start: start.is_in_head),
    ],
    "what comes is refused": [sending(GARBAGE)],
    "the rest of a request comes": [
        sending(REST_OF_POST + behind, to=lambda start: start.is_in_body or start.last in (LAST, GARBAGE))
        for behind in (b"", PART, GET, GET + GET, GARBAGE)
    ],
    "the response is whole": [lambda bench, start: bench.do(answer) if start.done[-1:] != (read,) else None],
    "the response is cut": [lambda bench, start: bench.do(None) if start.done[-1:] != (read,) else None],
    "it is late": [lambda bench, start: bench.sweep(LATER_S)],
    "too much comes": [lambda bench, start: send_too_much(bench)],
    "a drain begins": [lambda bench, start: begin_drain(bench)],
    "a drain ends": [lambda bench, start: drain(bench)],
    "the client leaves": [lambda bench, start: leave(bench, "end"), lambda bench, start: leave(bench, "reset")],
}  # fmt: skip

CAN_BE: Final = [
    (state, event) for state, event in product(STARTS, EVENTS) if STATES_OF_A_CONNECTION[state][event] != "-"
]


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    """The listener's, with TLS."""
    folder = tmp_path_factory.mktemp("tls")
    signed(folder / "cert.pem", folder / "key.pem")
    made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    made.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return made


async def begun(start: Start, context: ssl.SSLContext) -> Bench:
    bench = Bench(Limits())
    bench.listener.connections_max = start.connections_max
    await bench.open(context if start.tls else None)
    await bench.settle()
    sent = list(start.sent)
    if start.done == (answer,) and len(sent) > 1:
        await bench.send(sent.pop(0))
        await bench.do(*start.done)
        await bench.send(*sent)
    else:
        await bench.send(*sent)
        await bench.do(*start.done)
    if start.drains:
        bench.close_when_idle()
    return bench


def test_the_table_names_every_state_and_event() -> None:
    assert list(STATES_OF_A_CONNECTION) == list(STARTS) == [state for state in get_args(State) if state != "CLOSED"]
    assert list(EVENTS_OF_A_CONNECTION) == list(EVENTS)


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


@pytest.mark.parametrize(("state", "event"), CAN_BE)
async def test_the_table_is_what_happens(state: str, event: str, context: ssl.SSLContext) -> None:
    asyncio.get_running_loop().set_debug(False)
    found = set()
    for start, happens in product(STARTS[state], EVENTS[event]):
        bench = await begun(start, context)
        try:
            assert bench.state == state, start
            if (happening := happens(bench, start)) is not None:
                await happening
                await bench.settle()
                found.add(bench.state)
        finally:
            await bench.close()
    assert found == in_cell(STATES_OF_A_CONNECTION[state][event], "(next)", NEXT)


async def test_whatever_hostile_clients_send_leads_only_where_the_table_says() -> None:
    asyncio.get_running_loop().set_debug(False)
    for number, row in enumerate(ROWS):
        bench = Bench(Limits())
        await bench.open(None)
        await bench.send(*(piece for piece in row.sent if isinstance(piece, bytes)), turns=2)
        await bench.settle()
        await bench.do(*((), (read,), (begin,), (begin_unbounded,))[number % 4], answer)
        await bench.close()


async def test_whatever_happens_in_whatever_order_leads_only_where_the_table_says(
    context: ssl.SSLContext, connection_steps: Watch
) -> None:
    asyncio.get_running_loop().set_debug(False)
    once = ("too much comes", "the handshake is done")
    happenings = [event for name, events in EVENTS.items() if name not in once for event in events]
    rests = [REST_OF_POST + behind for behind in (b"", PART, GET)]
    happenings += 3 * [sending(each) for each in (GET, LAST, PART, REST_OF_PART, POST, LAST_POST, *rests)]
    happenings += 2 * [doing(each) for each in (answer, begin, begin_unbounded, read, None)]
    for seed in range(HISTORIES):
        chance = random.Random(seed)
        start = chance.choice(STARTS[chance.choice(list(STARTS))])
        bench = await begun(start, context)
        for happens in chance.choices(happenings, k=DEEDS):
            if bench.state == "CLOSED" or bench.client.fileno() < 0:
                break
            if (happening := happens(bench, start)) is not None:
                await happening
        await bench.close()
    assert len(changes(connection_steps.steps)) > 0.75 * len(changes(STEPS_OF_A_CONNECTION)), (
        "they go almost everywhere"
    )
