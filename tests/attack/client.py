"""A raw client of the gateway's: sends bytes, and keeps what comes.

In: bytes. Out: bytes, and how the connection ended. Always: every wait has an end.
"""

import asyncio
import contextlib
from collections.abc import Callable

from tests.attack.rows import Pieces
from tests.attack.upstream import cut


class Client(asyncio.Protocol):
    """One connection. `end` is "open", "fin" or "rst"."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.end = "open"
        self._changed = asyncio.Event()

    @classmethod
    async def connect(cls, port: int) -> "Client":
        """A connection to 127.0.0.1."""
        _, client = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        return client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        self._changed.set()

    def eof_received(self) -> bool:
        self.end = "fin"
        self._changed.set()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        if self.end == "open":
            self.end = "rst"
        self._changed.set()

    async def send(self, pieces: Pieces, then: str = "open") -> None:
        """Send the pieces, each as a segment of its own, and then FIN or RST."""
        for piece in pieces:
            if isinstance(piece, float):
                await asyncio.sleep(piece)
            elif not self.transport.is_closing():
                self.transport.write(piece)
        if then == "fin" and not self.transport.is_closing():
            with contextlib.suppress(OSError):  # the gateway has reset it
                self.transport.write_eof()
        elif then == "rst":
            self.close()

    async def until(self, condition: Callable[[], bool], wait_s: float) -> bool:
        """Whether `condition`, which is looked at whenever something comes, holds in that time."""
        try:
            async with asyncio.timeout(wait_s):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        """Cut the connection: a port that is free again at once."""
        cut(self.transport)
