"""Dialing: a name with several addresses, some of which are no good, on uvloop and on asyncio's loop (RFC 8305)."""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Any, Final

import pytest
import uvloop

from gateway.config import Limits, NamedFile, Upstream, Url
from gateway.config.settings import UpstreamTls
from gateway.transport.base_connection import Wire
from gateway.transport.memory_budget import Buffers
from gateway.upstream import dial
from gateway.upstream.dial import Dialer
from tests.certificates import Authority
from tests.launch import Gateways, listening, port_of

NAME: Final = "many.example"
DESCRIPTORS: Final = Path("/proc/self/fd")
LOOPS: Final[dict[str, Callable[[], asyncio.AbstractEventLoop]]] = {
    "uvloop": uvloop.new_event_loop,
    "asyncio": asyncio.new_event_loop,
}


def on_each_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Any:
    """A test that runs on a loop of its own, of each kind, with addresses of its own as its first argument."""

    @pytest.mark.parametrize("loop", LOOPS)
    def run(loop: str, **given: Any) -> None:
        with ExitStack() as leaving, asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
            runner.run(asyncio.wait_for(test(Hosts(leaving), **given), 30.0))

    _, *others = signature(test).parameters.values()
    made: Any = run
    made.__signature__ = Signature([*others, Parameter("loop", Parameter.POSITIONAL_OR_KEYWORD)])
    return made


def resolve_to(*addresses: str) -> None:
    loop: Any = asyncio.get_running_loop()
    resolve = type(loop).getaddrinfo

    async def getaddrinfo(host: str, port: int, **how: Any) -> list[Any]:
        return [info for each in addresses for info in await resolve(loop, each if host == NAME else host, port, **how)]

    loop.getaddrinfo = getaddrinfo


class Hosts:
    """Loopback addresses with one port."""

    def __init__(self, leaving: ExitStack) -> None:
        self._leaving = leaving
        self.port = 0
        reserved = self._bound("127.0.0.1")  # nobody listens there
        self.port = port_of(reserved)

    def _bound(self, address: str) -> socket.socket:
        sock = self._leaving.enter_context(socket.socket())
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, self.port))
        return sock

    def serve(self, address: str) -> socket.socket:
        sock = self._bound(address)
        sock.listen(128)
        sock.setblocking(False)
        return sock

    def black_hole(self, address: str) -> None:
        """What is sent to this address gets no answer: its queue of connections is full."""
        sock = self._bound(address)
        sock.listen(0)
        for _ in range(3):
            filling = self._leaving.enter_context(socket.socket())
            filling.setblocking(False)
            filling.connect_ex((address, self.port))

    def dialer(self, timeout_s: float, tls: UpstreamTls | None = None) -> Dialer:
        url = Url("http" if tls is None else "https", NAME, self.port, "/")
        config = Upstream(name="a", url=url, tls=tls or UpstreamTls(), connect_timeout=timeout_s)
        return Dialer(config, asyncio.get_running_loop())


class Noted(asyncio.Protocol):
    def __init__(self) -> None:
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport  # uvloop's is no asyncio.Transport
        self.address: str = transport.get_extra_info("peername")[0]

    def connection_lost(self, _error: Exception | None) -> None:
        self.lost.set()


async def dialled(dialer: Dialer) -> tuple[str, float]:
    """The address that a dialer has connected to, and how many seconds it took."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    made = await dialer.connect(Noted)
    took_s = loop.time() - began
    made.transport.abort()
    await made.lost.wait()
    return made.address, took_s


@on_each_loop
async def test_a_black_holed_address_delays_the_first_connection_and_that_by_little(at: Hosts) -> None:
    """Each connection waited there for half of `connect_timeout`: 2.5 s."""
    at.black_hole("127.0.0.2")
    at.serve("127.0.0.4")
    resolve_to("127.0.0.2", "127.0.0.4")
    dialer = at.dialer(20.0)
    address, took_s = await dialled(dialer)
    assert (address, took_s < 5.0) == ("127.0.0.4", True)
    times = [await dialled(dialer) for _ in range(10)]
    assert {address for address, _ in times} == {"127.0.0.4"}
    assert sum(took_s for _, took_s in times) < 2.0, "the others did not wait for it"


@on_each_loop
async def test_a_slow_look_up_is_one_for_all_who_wait(at: Hosts) -> None:
    """libuv made two at a time, those that were given up first: at 3 s for one, soon nobody got an address any more."""
    at.serve("127.0.0.4")
    resolve_to("127.0.0.4")
    loop: Any = asyncio.get_running_loop()
    resolve, goes_on, asked = loop.getaddrinfo, asyncio.Event(), 0

    async def slowly(host: str, port: int, **how: Any) -> list[Any]:
        nonlocal asked
        asked += host == NAME
        await goes_on.wait()
        if asked == 1:
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return list(await resolve(host, port, **how))

    loop.getaddrinfo = slowly
    dialer = at.dialer(20.0)
    waiting = [asyncio.create_task(dialer.connect(Noted)) for _ in range(20)]
    await asyncio.sleep(0.05)
    for one in waiting[:10]:
        one.cancel()
    waiting.append(asyncio.create_task(dialer.connect(Noted)))
    await asyncio.sleep(0.05)
    assert asked == 1
    goes_on.set()
    outcomes = [type(each) for each in await asyncio.gather(*waiting, return_exceptions=True)]
    assert outcomes == [asyncio.CancelledError] * 10 + [socket.gaierror] * 11
    assert (await dialled(dialer))[0] == "127.0.0.4", "the next one looks up anew"


@on_each_loop
async def test_a_look_up_that_hangs_is_given_up_in_time(at: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dial, "_LOOK_UP_S", 0.1)
    at.serve("127.0.0.4")
    loop: Any = asyncio.get_running_loop()
    loop.getaddrinfo = lambda *_, **__: asyncio.sleep(1000.0)
    dialer = at.dialer(20.0)
    with pytest.raises(TimeoutError):
        await dialer.connect(Noted)
    del loop.getaddrinfo
    resolve_to("127.0.0.4")
    assert (await dialled(dialer))[0] == "127.0.0.4"


def threads_of(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


@pytest.mark.skipif(not DESCRIPTORS.exists(), reason="no list of threads here")
async def test_a_slow_name_leaves_threads_to_look_up_others(gateways: Gateways) -> None:
    """libuv has four, and looks up in half of them: a store's slow name, asked for again and again, took both."""
    with listening() as sock, gateways.process(port_of(sock), upstream={"url": "http://localhost:1/mcp"}) as gateway:
        await gateway.relayed()
        assert threads_of(gateway.running.popen.pid) > 32


@on_each_loop
async def test_the_next_address_is_tried_where_no_connection_comes_about(at: Hosts) -> None:
    """Some refuse, many do not answer: together they may not take the time of all."""
    silent = [f"127.0.0.{10 + n}" for n in range(12)]
    for address in silent:
        at.black_hole(address)
    at.serve("127.0.0.4")
    resolve_to("127.0.0.3", *silent, "127.0.0.3", "127.0.0.4")
    assert (await dialled(at.dialer(2.0)))[0] == "127.0.0.4"


@on_each_loop
async def test_what_failed_goes_last_for_a_while_and_is_never_left_out(
    at: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = at.serve("127.0.0.4")
    resolve_to("127.0.0.2", "127.0.0.4")
    dialer = at.dialer(20.0)
    assert (await dialled(dialer))[0] == "127.0.0.4", "the first one refuses"
    at.serve("127.0.0.2")
    assert (await dialled(dialer))[0] == "127.0.0.4", "that is remembered"
    second.close()
    assert (await dialled(dialer))[0] == "127.0.0.2", "it goes last, and is tried"
    second = at.serve("127.0.0.4")
    assert (await dialled(dialer))[0] == "127.0.0.2", "the other one has failed since"
    resolve_to("127.0.0.4")
    assert (await dialled(dialer))[0] == "127.0.0.4", "there is no other"
    resolve_to("127.0.0.2")
    assert (await dialled(dialer))[0] == "127.0.0.2"
    resolve_to("127.0.0.4", "127.0.0.2")
    assert (await dialled(dialer))[0] == "127.0.0.4", "what the name no longer had is forgotten"
    second.close()
    assert (await dialled(dialer))[0] == "127.0.0.2"
    at.serve("127.0.0.4")
    monkeypatch.setattr(dial, "_LAST_S", 0.0)
    assert (await dialled(dialer))[0] == "127.0.0.4", "the while is over"


def open_sockets() -> int:
    return sum("socket:" in os.path.realpath(link) for link in DESCRIPTORS.iterdir())


class Silent(asyncio.Protocol):
    """Says nothing, or what is no TLS."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(self._answer)


def serving_tls(folder: Path) -> tuple[ssl.SSLContext, UpstreamTls]:
    """What a server presents, and what a dialer trusts."""
    authority, served = Authority(folder), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(*authority.certificate(NAME))
    return served, UpstreamTls(ca=NamedFile.read(Path(authority.ca)))


async def serving(sock: socket.socket, answer: bytes) -> asyncio.Server:
    return await asyncio.get_running_loop().create_server(lambda: Silent(answer), sock=sock)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
@on_each_loop
async def test_where_tls_fails_the_next_address_is_tried(at: Hosts, tmp_path: Path, answer: bytes) -> None:
    """Or where nothing answers in it. That is remembered as well."""
    served, tls = serving_tls(tmp_path)
    good = await asyncio.get_running_loop().create_server(asyncio.Protocol, sock=at.serve("127.0.0.4"), ssl=served)
    bad = await serving(at.serve("127.0.0.2"), answer)
    at.black_hole("127.0.0.5")
    resolve_to("127.0.0.2", "127.0.0.5", "127.0.0.4")
    dialer = at.dialer(4.0, tls)
    assert (await dialled(dialer))[0] == "127.0.0.4"
    address, took_s = await dialled(dialer)
    assert (address, took_s < 1.0) == ("127.0.0.4", True)
    for server in (good, bad):
        server.close()
        await server.wait_closed()


@on_each_loop
async def test_many_addresses_leave_a_slow_handshake_its_time(at: Hosts, tmp_path: Path) -> None:
    """Each address had an equal share of the limit: of eight, none had time for TLS that takes a while."""
    served, tls = serving_tls(tmp_path)
    addresses = [f"127.0.0.{n}" for n in range(2, 10)]

    async def slow(sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            taken, _ = await loop.sock_accept(sock)
            loop.call_later(0.6, lambda taken: loop.create_task(answering(taken)), taken)

    async def answering(taken: socket.socket) -> None:
        await asyncio.get_running_loop().connect_accepted_socket(asyncio.Protocol, taken, ssl=served)

    servers = [asyncio.create_task(slow(at.serve(address))) for address in addresses]
    resolve_to(*addresses)
    assert (await dialled(at.dialer(4.0, tls)))[0] == addresses[0]
    for server in servers:
        server.cancel()
    await asyncio.gather(*servers, return_exceptions=True)


@pytest.mark.skipif(not DESCRIPTORS.exists(), reason="no list of open descriptors here")
@on_each_loop
async def test_whoever_leaves_while_addresses_are_tried_leaves_nothing_open(at: Hosts, tmp_path: Path) -> None:
    """At each moment: while one is tried, while several are, while TLS is; or at the end of the time."""
    tls = UpstreamTls(ca=NamedFile.read(Path(Authority(tmp_path).ca)))
    silent = await serving(at.serve("127.0.0.4"), b"")
    at.black_hole("127.0.0.2")
    resolve_to("127.0.0.2", "127.0.0.3", "127.0.0.4")
    outcomes, before = set(), open_sockets()
    for moment in range(30):
        dialing = asyncio.create_task(at.dialer(0.3, tls).connect(Noted))
        await asyncio.wait({dialing}, timeout=0.4 if moment == 29 else moment * 0.005)
        dialing.cancel()
        outcomes |= {type(error) for error in await asyncio.gather(dialing, return_exceptions=True)}
    assert outcomes == {asyncio.CancelledError, TimeoutError}
    assert open_sockets() <= before
    silent.close()
    await silent.wait_closed()


@pytest.mark.parametrize("addresses", [("127.0.0.4",), ("127.0.0.4", "127.0.0.3"), ("127.0.0.3", "127.0.0.4")])
@on_each_loop
async def test_a_turn_of_the_loop_begins_few_connections(at: Hosts, addresses: tuple[str, ...]) -> None:
    """500 clients that came at once held the loop three times for 20 ms."""
    turn, ready_in = 0, list[int]()

    async def count() -> None:
        nonlocal turn
        while True:
            await asyncio.sleep(0)
            turn += 1

    def noted() -> Noted:
        ready_in.append(turn)
        return Noted()

    at.serve("127.0.0.4")
    resolve_to(*addresses)
    counting = asyncio.create_task(count())
    dialer = at.dialer(20.0)
    many = [asyncio.create_task(dialer.connect(noted)) for _ in range(100)]
    many[50].cancel()
    made = await asyncio.gather(*many, return_exceptions=True)
    counting.cancel()
    connected = [one for one in made if isinstance(one, Noted)]
    for one in connected:
        one.transport.abort()
        await one.lost.wait()
    assert len(connected) == 99
    assert max(ready_in.count(each) for each in ready_in) <= 50


def test_a_unix_socket_whose_queue_is_full_is_tried_again(tmp_path: Path) -> None:
    """Of 500 clients that came at once to a server with a queue of 100, 135 got 502."""

    async def connects() -> None:
        config = Upstream(name="a", url=Url("http", "localhost", 80, "/"), socket=str(tmp_path / "up"))
        with ExitStack() as leaving:
            server, filling = [leaving.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2)]
            server.bind(config.socket or "")
            server.listen(0)
            filling.connect(config.socket or "")
            dialing = asyncio.create_task(Dialer(config, asyncio.get_running_loop()).connect(Noted))
            await asyncio.sleep(0.1)
            server.accept()[0].close()
            (await dialing).transport.abort()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(connects())


# ---- connections that send much are read in turns (memory_budget.py), whatever loop it is ----

CONNECTIONS: Final = 40
SENT_BYTES: Final = 1 << 20  # by each at most: what its socket takes
TURN_BYTES_MAX: Final = 1 << 20  # 320 KiB in turn, one read more, and a little of each connection


class Counting(Wire):
    def __init__(self, buffers: Buffers, made: "list[Counting]") -> None:
        super().__init__(asyncio.get_running_loop(), buffers, Limits())
        self.received_bytes = 0
        made.append(self)

    def data_received(self, data: bytes) -> None:
        self.received_bytes += len(data)


@contextmanager
def senders(*address: Any) -> Iterator[int]:
    """Connections, and how many bytes they have sent, which nobody has read yet."""
    with ExitStack() as leaving:
        socks = [leaving.enter_context(socket.create_connection(address)) for _ in range(CONNECTIONS)]
        for sock in socks:
            sock.setblocking(False)
        yield sum(sock.send(b"x" * SENT_BYTES) for sock in socks)


@on_each_loop
async def test_a_turn_of_the_loop_reads_no_more_than_its_share(at: Hosts) -> None:
    """uvloop read up to 2 MiB of each connection in one turn: 500 of them held the loop for half a second."""
    buffers, wires = Buffers(1 << 30), list[Counting]()
    loop, sock = asyncio.get_running_loop(), at.serve("127.0.0.4")
    server: Any = await loop.create_server(lambda: Counting(buffers, wires), sock=sock, backlog=CONNECTIONS)
    with senders("127.0.0.4", at.port) as sent_bytes:
        turns, got_bytes = list[int](), 0
        while got_bytes < sent_bytes:
            await asyncio.sleep(0)  # one turn
            now_bytes = sum(wire.received_bytes for wire in wires)
            turns.append(now_bytes - got_bytes)
            got_bytes = now_bytes
        for wire in wires:
            wire.close()
        server.close()
        await server.wait_closed()
    assert got_bytes == sent_bytes > 2 * TURN_BYTES_MAX
    assert max(turns) <= TURN_BYTES_MAX
