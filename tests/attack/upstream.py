"""The upstream behind the gateway: a scripted server of raw bytes, which reads requests as Node does.

In: scripts by request target. Out: every byte that each connection received. Always: what llhttp cannot read is
answered with 400 and the end of the connection; what no script names is told its own method and target.
"""

import asyncio
import contextlib
import socket
import struct
from typing import Final

import httptools

from tests.attack.readers import Fields, Llhttp, Message
from tests.attack.rows import Pieces

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
HOSTILE: Final = b"/hostile"
_RESET: Final = struct.pack("ii", 1, 0)
_LEAVE_S: Final = 2.0


def cut(transport: asyncio.BaseTransport) -> None:
    """End a connection with a reset."""
    assert isinstance(transport, asyncio.Transport)
    if not transport.is_closing():
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        transport.abort()


class Link(asyncio.Protocol):
    """One connection of the gateway's."""

    def __init__(self, upstream: "Upstream") -> None:
        self._upstream = upstream
        self.received = bytearray()
        self.left = asyncio.get_running_loop().create_future()  # the gateway has closed it
        self._reader = Llhttp(httptools.HttpRequestParser, self._head)
        self._read = 0
        self._finished = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        # asyncio does it for sockets of a known protocol only; else what comes later would wait for an acknowledgement.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._upstream.links.append(self)

    def data_received(self, data: bytes) -> None:
        self.received += data
        broken = bool(self._reader.reading.fault)
        self._reader.feed(data)
        messages = self._reader.reading.messages
        while self._read < len(messages):
            self._read += 1
            self._upstream.arrived(self, messages[self._read - 1])
        if self._reader.reading.fault and not broken:
            self.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
            self.transport.close()

    def _head(self, fields: Fields) -> None:
        if self._upstream.early and self._reader.url == HOSTILE:
            self._upstream.play(self)
        elif (b"expect", b"100-continue") in [(name, value.lower()) for name, value in fields]:
            self.write(CONTINUE)

    def eof_received(self) -> bool:
        self._gone()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone()

    def _gone(self) -> None:
        if not self.left.done():
            self.left.set_result(None)

    @property
    def is_half(self) -> bool:
        """Whether a request has begun that is not whole."""
        return self._reader.reading.rest

    def forget(self) -> None:
        """Let go of what was received, up to the message under way."""
        if not self._reader.reading.rest and not self._reader.reading.fault:
            self.received.clear()
            self._reader.reading.messages.clear()
            self._read = 0

    def write(self, data: bytes) -> None:
        """Send bytes, unless the connection has ended."""
        if not self._finished and not self.transport.is_closing():
            self.transport.write(data)

    def finish(self) -> None:
        """Send FIN, unless the connection has ended."""
        if not self._finished and not self.transport.is_closing():
            self._finished = True
            with contextlib.suppress(OSError):  # the gateway has reset it
                self.transport.write_eof()


class Upstream:
    """All connections since the last `reset`, and what is to be answered."""

    def __init__(self) -> None:
        self.links: list[Link] = []
        self.arrivals: list[tuple[Link, Message]] = []
        self.answers: dict[bytes, bytes] = {}  # by target
        self.hostile: tuple[Pieces, str] | None = None
        self.early = False  # the hostile answer comes before its request is whole
        self._held: dict[bytes, Link | None] = {}
        self._changed = asyncio.Event()
        self._playing: list[asyncio.Task[None]] = []

    def arrived(self, link: Link, request: Message) -> None:
        """A request is whole."""
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
        """Begin the hostile answer."""
        assert self.hostile is not None
        self._playing.append(asyncio.get_running_loop().create_task(self._play(link, *self.hostile)))

    async def _play(self, link: Link, pieces: Pieces, then: str) -> None:
        for piece in pieces:
            if isinstance(piece, float):
                await asyncio.sleep(piece)
            else:
                link.write(piece)
        if then == "fin":
            link.finish()
        elif then == "rst":
            await asyncio.sleep(0.002)  # what was sent is read before the reset
            cut(link.transport)

    async def played(self) -> None:
        """Return once every hostile answer is out."""
        await asyncio.gather(*self._playing)
        self._playing.clear()

    def hold(self, target: bytes) -> None:
        """Answer a request for that target when it is released."""
        self._held[target] = None

    async def has(self, target: bytes, wait_s: float) -> bool:
        """Whether a held request comes in that time."""
        try:
            async with asyncio.timeout(wait_s):
                while self._held[target] is None:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def release(self, target: bytes) -> None:
        """Answer what is held."""
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
            link.transport.abort()
        self.links, self.arrivals, self.answers, self._held = [], [], {}, {}
        self.hostile, self.early = None, False


def echo(request: Message) -> bytes:
    """The answer that says what was asked."""
    body = b"you asked %b %b" % request.start
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
    return head if request.start[0] == b"HEAD" else head + body
