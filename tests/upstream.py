"""The scripted upstream: it takes connections on a socket, reads requests, and answers in raw bytes.

`Upstream` is for tests that answer request by request. `Served` costs little: it is for requests with a length. `Cheap`
answers them at once; tests/model answers them on a virtual clock.
"""

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.peer import WAIT_S, NotInTime, Peer, holds_in_time
from tests.relay.http1 import Malformed, Message


class Listener:
    """Takes connections on a socket. A subclass says what becomes of them."""

    def __init__(self, listening: socket.socket) -> None:
        self.listening = listening
        self._loop: asyncio.AbstractEventLoop | None = None

    def open(self) -> None:
        """Take connections, whether or not the socket listens already."""
        self.listening.setblocking(False)
        self.listening.listen(128)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self.listening.fileno(), self._accept)

    def shut(self) -> None:
        """Take no more connections. The socket listens on."""
        if self._loop is not None:
            self._loop.remove_reader(self.listening.fileno())
            self._loop = None

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):  # nobody is there any more
            while True:
                self.connected(self.listening.accept()[0])

    def connected(self, sock: socket.socket) -> None:
        raise NotImplementedError


class Upstream(Listener):
    """The upstream of a test: it knows every request on its connections, and the test answers them."""

    def __init__(self, listening: socket.socket) -> None:
        super().__init__(listening)
        self.connections: list[Peer] = []
        self._order: list[tuple[Peer, int]] = []  # connection, and place on it, of each request whose head has come
        # Likewise the gateway's probes of a server that is down (DESIGN 8.12).
        self._probes: list[tuple[Peer, int]] = []
        self._heads: dict[Peer, int] = {}
        self._changed = asyncio.Event()
        self._forget_backlog()
        if listening.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            self.open()

    @property
    def port(self) -> int:
        port: int = self.listening.getsockname()[1]
        return port

    def _forget_backlog(self) -> None:
        self.listening.setblocking(False)
        with contextlib.suppress(OSError):  # nobody is there, or it does not listen yet
            while True:
                self.listening.accept()[0].close()

    def connected(self, sock: socket.socket) -> None:
        self.connections.append(Peer(sock, self._arrived))
        self._changed.set()

    def _arrived(self, peer: Peer) -> None:
        with contextlib.suppress(Malformed):
            known = self._heads.get(peer, 0)
            self._heads[peer] = peer.incoming.count()
            come = [(peer, place) for place in range(known, self._heads[peer])]
            for each in come:
                (self._probes if self._is_probe(*each) else self._order).append(each)
        self._changed.set()

    @staticmethod
    def _is_probe(peer: Peer, place: int) -> bool:
        """Whether it is a probe of the gateway; it may mean an earlier upstream at this address, which has died."""
        asked = peer.incoming.requests()[place]
        return asked.start.startswith(b"OPTIONS ") and asked.value(b"user-agent") == b"taskgate"

    @property
    def requests(self) -> list[Message]:
        return [peer.incoming.requests()[place] for peer, place in self._order]

    @property
    def count(self) -> int:
        """How many there are; `requests` takes long where there are many."""
        return len(self._order)

    def message(self, number: int) -> Message:
        """The request of that number, whose head has come."""
        peer, place = self._order[number - 1]
        return peer.incoming.requests()[place]

    def _is_whole(self, number: int) -> bool:
        return len(self._order) >= number and self.message(number).whole

    async def until(self, condition: Callable[[], bool], what: str, wait_s: float = WAIT_S) -> None:
        """Return once `condition` holds, which is looked at whenever something happens on any connection."""
        if not await holds_in_time(condition, self._changed, wait_s):
            got = [bytes(peer.received[-400:]) for peer in self.connections]
            raise NotInTime(f"{what}: not within {wait_s:g} s; the upstream received {got!r}")

    async def head(self, number: int = 1) -> Peer:
        """The connection of the request of that number, once its head has come."""
        await self.until(lambda: len(self._order) >= number, f"the head of request {number} at the upstream")
        return self._order[number - 1][0]

    async def request(self, number: int = 1, wait_s: float = WAIT_S) -> Peer:
        """The connection of the request of that number, once it is whole."""
        await self.until(lambda: self._is_whole(number), f"the whole of request {number} at the upstream", wait_s)
        return self._order[number - 1][0]

    async def probe(self, wait_s: float = WAIT_S) -> tuple[Peer, Message]:
        """The connection and the request of the gateway's first probe, once it has come."""
        await self.until(lambda: bool(self._probes), "a probe of the upstream", wait_s)
        peer, place = self._probes[0]
        return peer, peer.incoming.requests()[place]

    async def refuse(self) -> None:
        """Listen no more, and cut the connections that are there."""
        self.shut()
        self.listening.close()
        for peer in self.connections:
            if not peer.closed:
                peer.reset()

    async def close(self) -> None:
        """Leave every connection, and see that the other side has too: nothing of one test is left for the next."""
        self.shut()
        left = [peer for peer in self.connections if not peer.closed]
        for peer in left:
            peer.resume()  # else its end would not be seen
            peer.finish()
        for peer in left:
            with contextlib.suppress(NotInTime):
                await peer.ends()
            await peer.close()


class Served(asyncio.Protocol):
    """One connection to a server, which is handed the head and the body of each request that has a length or none."""

    def __init__(self) -> None:
        self._held = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._held += data
        while b"\r\n\r\n" in self._held:
            head, _, rest = self._held.partition(b"\r\n\r\n")
            length = length_of(head)
            if len(rest) < length:
                return
            self._held = rest[length:]
            self.asked(head, rest[:length])

    def asked(self, head: bytes, body: bytes) -> None:
        """A request is whole."""
        raise NotImplementedError


class Cheap(Served):
    """One connection to a server that is one function: of the head and the body of a request, to a response."""

    def __init__(self, answer: Callable[[bytes, bytes], bytes]) -> None:
        super().__init__()
        self._answer = answer

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"\x16"):  # of TLS: it is answered in HTTP, as by most servers
            self.transport.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        super().data_received(data)

    def asked(self, head: bytes, body: bytes) -> None:
        self.transport.write(self._answer(head, body))


def length_of(head: bytes) -> int:
    return int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)


def fields_of(head: bytes) -> dict[str, str]:
    lines = (line.partition(": ") for line in head.decode().split("\r\n")[1:])
    return {name.lower(): value for name, _, value in lines}


@contextmanager
def in_a_thread(answer: Callable[[bytes, bytes], bytes], tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """The port of such a server on a loop of its own, for tests that have none."""
    loop, connections = asyncio.new_event_loop(), list[Cheap]()

    def connection() -> Cheap:
        connections.append(Cheap(answer))
        return connections[-1]

    def end() -> None:
        server.close()
        for one in connections:
            if hasattr(one, "transport"):  # a handshake may have failed
                one.transport.abort()
        loop.call_later(0, loop.stop)

    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(loop.create_server(connection, "127.0.0.1", 0, ssl=tls), loop).result()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        loop.call_soon_threadsafe(end)
        thread.join()
        loop.close()
