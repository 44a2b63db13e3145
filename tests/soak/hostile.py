"""What a storm adds: requests and responses that are no HTTP, or have two readings (tests/attack has them all)."""

from collections.abc import Callable
from typing import Final

from tests.attack.responses import ROWS
from tests.relay.wire import request, response
from tests.soak.plan import Dice, Made

_SMUGGLED: Final = b"GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"
_START: Final = b" /mcp HTTP/1.1\r\nHost: localhost\r\n%b\r\n"

# Heads and bodies that a reader must refuse, or could read in two ways; %b is for the fields of who asks.
_REQUESTS: Final = (
    b"PUT" + _START + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + _SMUGGLED,
    b"PUT" + _START + b"Content-Length: 0\r\nContent-Length: 5\r\n\r\n" + _SMUGGLED,
    b"PUT" + _START + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcdef\r\n0\r\n\r\n",
    b"PUT" + _START + b"Transfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 3\r\n\r\n",
    b"GET" + _START + b"X: a\0b\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\r\n%b\r\n\r\n",
)
# plan.py marks them behind the first line.
_RESPONSES: Final = [
    b"".join(piece for piece in row.sent if isinstance(piece, bytes)) for row in ROWS if not row.crawled
]


def _hostile_request(dice: Dice) -> Made:
    asked = dice.random.choice(_REQUESTS) % b"\r\n".join(dice.own)
    return {"asked": asked, "answered": response(b"%d" % dice.number), "is_hostile": True}


def _hostile_response(dice: Dice) -> Made:
    return {"asked": dice.get(), "answered": dice.random.choice(_RESPONSES), "is_hostile": True}


KINDS: Final[dict[str, Callable[[Dice], Made]]] = {
    "hostile request": _hostile_request, "hostile response": _hostile_response,
}  # fmt: skip
BEHIND: Final = (b"garbage\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"GET /half HT", b"\r\n\r\n\r\n")
WHOLE: Final = request(host=b"elsewhere.example")  # which the door refuses, should its turn come
