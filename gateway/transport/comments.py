"""Comments in a quiet event stream, for what stands in front and cuts quiet streams (DESIGN 3.4).

In: the pieces of a body, as its client gets them. Out: the same pieces; and a comment after each while without one.
Always: a comment stands between two events. It is one line: to httpx-sse, which the Python SDK reads with, a blank line
behind it would be an empty event, once an event had an id.
"""

import asyncio
import re
from collections.abc import Callable
from typing import Final

from gateway.transport.headers import EVENT_STREAM, Headers
from gateway.transport.response import Framing

COMMENT: Final = b": keepalive\n"
_SHOWN: Final = 3  # the last bytes that show whether an event has ended
_ENDED: Final = re.compile(rb"(?:\A(?:\r?\n|\r)?|\n\r?\n|\n\r|\r\r\n?)\Z")  # an empty line, or nothing was sent yet
_BOM: Final = b"\xef\xbb\xbf"


def may_stand_in(status: int, headers: Headers, framing: Framing) -> bool:
    """Whether comments may stand in a body: an event stream of no known length, and in no way encoded."""
    return (
        status == 200
        and framing in ("chunked", "close")
        and headers.media_type() == EVENT_STREAM
        and headers.tokens(b"content-encoding") in ([], [b"identity"])
        and headers.tokens(b"transfer-encoding") in ([], [b"chunked"])
    )


class Comments:
    """The comments in one body. `write` sends one, and returns whether it did."""

    __slots__ = ("_begun", "_end", "_loop", "_moved_at", "_quiet_s", "_timer", "_write")

    def __init__(self, quiet_s: float, loop: asyncio.AbstractEventLoop, write: Callable[[], bool]) -> None:
        self._quiet_s, self._loop, self._write = quiet_s, loop, write
        self._end = b""  # the last bytes that were sent
        self._begun: bytes | None = None  # if a comment went first: what came behind it and may be a byte order mark
        self._wait()

    def _wait(self) -> None:
        self._moved_at = self._loop.time()
        self._timer = self._loop.call_later(self._quiet_s, self._tick)

    def _tick(self) -> None:
        """Write a comment if the stream was quiet for long enough, and wait on."""
        left_s = self._moved_at + self._quiet_s - self._loop.time()
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._tick)
            return
        if _ENDED.search(self._end) and self._write() and not self._end:
            self._begun = self._begun or b""
        self._wait()

    def passed(self, piece: bytes) -> bytes:
        """What is to be sent of the body now: the piece, without a byte order mark that is no longer at the start."""
        if self._begun is not None:
            self._begun += piece
            if _BOM.startswith(self._begun):
                return b""
            piece, self._begun = self._begun.removeprefix(_BOM), None
        if piece:
            self._end = (self._end + piece[-_SHOWN:])[-_SHOWN:]
            self._moved_at = self._loop.time()
        return piece

    def end(self) -> None:
        """The body is whole, or breaks off: no comment from now on."""
        self._timer.cancel()
