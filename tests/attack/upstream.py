"""The script of the upstream: it answers requests with the row's bytes.

A request without an answer of its own gets its method and target back.
"""

import asyncio
import socket
from typing import Final

from tests.attack.readers import plain
from tests.attack.rows import Pieces
from tests.peer import Peer, holds_in_time
from tests.relay.http1 import Malformed, Message, Reader
from tests.upstream import Listener

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
HOSTILE: Final = b"/hostile"
_LEAVE_S: Final = 2.0


class Link(Peer):
    def __init__(self, sock: socket.socket, upstream: "Upstream") -> None:
        super().__init__(sock)
        self._upstream = upstream
        self.left = asyncio.get_running_loop().create_future()  # the gateway has closed it
        self._heads = self._read = 0  # requests whose heads have come, and that are whole

    def on_bytes(self, data: bytes) -> None:
        try:
            requests = self.incoming.requests()
        except Malformed:
            self.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
            self.leave()
            return
        for request in requests[self._heads :]:
            self._heads += 1
            if self._upstream.early and request.target == HOSTILE:
                self._upstream.play(self)
            elif b"100-continue" in map(bytes.lower, request.values(b"expect")):
                self.write(CONTINUE)
        for request in self.incoming.done[self._read :]:
            self._read += 1
            self._upstream.arrived(self, plain(request))

    def on_end(self) -> None:
        self.on_close()
        self.leave()

    def on_close(self) -> None:
        if not self.left.done():
            self.left.set_result(None)

    @property
    def is_half(self) -> bool:
        """Whether a request has begun that is not whole."""
        return self.incoming.has_rest

    def forget(self) -> None:
        """Let go of what was received, up to the message under way."""
        if not self.is_half and not self.is_ending:
            self.incoming, self.outgoing = Reader(), Reader()
            self._heads = self._read = 0


class Upstream(Listener):
    """All connections since the last `reset`, and their answers."""

    def __init__(self, listening: socket.socket) -> None:
        super().__init__(listening)
        self.links: list[Link] = []
        self.arrivals: list[tuple[Link, Message]] = []
        self.answers: dict[bytes, bytes] = {}  # by target
        self.hostile: tuple[Pieces, str] | None = None
        self.early = False  # the hostile answer comes before its request is whole
        self._held: dict[bytes, Link | None] = {}
        self._changed = asyncio.Event()
        self._playing: list[asyncio.Task[None]] = []

    def connected(self, sock: socket.socket) -> None:
        self.links.append(Link(sock, self))

    def arrived(self, link: Link, request: Message) -> None:
        self.arrivals.append((link, request))
        target = request.target
        if target in self._held:
            self._held[target] = link
        elif target == HOSTILE and self.hostile is not None:
            if not self.early:
                self.play(link)
        else:
            link.write(self.answers.get(target) or echo(request))
        self._changed.set()

    def play(self, link: Link) -> None:
        assert self.hostile is not None
        self._playing.append(asyncio.get_running_loop().create_task(self._play(link, *self.hostile)))

    async def _play(self, link: Link, pieces: Pieces, then: str) -> None:
        await link.play(pieces, "fin" if then == "fin" else "open")
        if then == "rst":
            await asyncio.sleep(0.002)  # what was sent is read before the reset
            link.cut()

    async def played(self) -> None:
        """Return once every hostile answer is out."""
        await asyncio.gather(*self._playing)
        self._playing.clear()

    def hold(self, target: bytes) -> None:
        """Answer a request for that target when it is released."""
        self._held[target] = None

    async def has(self, target: bytes, wait_s: float) -> bool:
        return await holds_in_time(lambda: self._held[target] is not None, self._changed, wait_s)

    def release(self, target: bytes) -> None:
        link = self._held.pop(target)
        if link is not None:
            link.write(self.answers[target])

    async def settled(self, wait_s: float) -> None:
        """Return once the gateway has left the connections that hold half a request, or after that time."""
        halves = [link.left for link in self.links if link.is_half and not link.left.done()]
        if halves:
            await asyncio.wait(halves, timeout=wait_s)

    async def reset(self) -> None:
        """Leave every connection, once the gateway has left it too, and forget everything."""
        await self.played()
        for link in self.links:
            link.finish()
        if self.links:
            await asyncio.wait([link.left for link in self.links], timeout=_LEAVE_S)
        for link in self.links:
            await link.close()
        self.links, self.arrivals, self.answers, self._held = [], [], {}, {}
        self.hostile, self.early = None, False


def echo(request: Message) -> bytes:
    body = b"you asked " + request.start
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
    return head if request.method == b"HEAD" else head + body
