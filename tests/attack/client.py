"""A raw client of the gateway's: it sends bytes, and keeps what comes and how the connection ended."""

import asyncio
from collections.abc import Callable

from tests import peer
from tests.attack.rows import Pieces


class Client(peer.Client):
    """One connection. Its end is "rst", too, where this side has cut it."""

    def on_close(self) -> None:
        if self.end == "open":
            self.end = "rst"
            self._tell()

    async def play(self, pieces: Pieces, then: str = "open") -> None:
        """Send the pieces, each as a segment of its own, and then FIN or RST."""
        for piece in pieces:
            if isinstance(piece, float):
                await asyncio.sleep(piece)
            else:
                self.write(piece)
        if then == "fin":
            self.finish()
        elif then == "rst":
            self.cut()

    async def within(self, wait_s: float, condition: Callable[[], bool]) -> bool:
        """Whether `condition`, which is looked at whenever something comes, holds in that time."""
        return await peer.holds_in_time(condition, self._changed, wait_s)

    def cut(self) -> None:
        """Cut the connection: a port that is free again at once."""
        if not self.closed:
            self.reset()
