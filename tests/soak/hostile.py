"""What a storm adds: requests and responses that are no HTTP, or have two readings, and trailers that frame."""

import random
from collections.abc import Callable
from typing import Any, Final

from tests.attack.responses import ROWS
from tests.relay.wire import LAST_CHUNK, chunk, chunked, request, response
from tests.soak.plan import MARK, Dice, Made

_OCTETS: Final = b"Content-Type: application/octet-stream"
_CHUNKED: Final = b"Transfer-Encoding: chunked"
_SMUGGLED: Final = b"GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"
_LENGTH: Final = b"Content-Length: 3"  # llhttp refuses the whole message for it
_CLOSE: Final = b"Connection: close"
_OBEYED: Final = frozenset(
    {_LENGTH, _CLOSE, _CHUNKED}
)  # of a request's trailers: llhttp obeys them, and so they are refused
_FRAMING_TRAILERS: Final = (_LENGTH, _CLOSE, _CHUNKED, b"Authorization: Bearer soak-1")

# Heads and bodies that a reader must refuse, or could read in two ways; %b is for the fields of who asks.
_REQUESTS: Final = (
    b"PUT /mcp HTTP/1.1\r\nHost: localhost\r\n%b\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    + _SMUGGLED,
    b"PUT /mcp HTTP/1.1\r\nHost: localhost\r\n%b\r\nContent-Length: 0\r\nContent-Length: 5\r\n\r\n" + _SMUGGLED,
    b"PUT /mcp HTTP/1.1\r\nHost: localhost\r\n%b\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    b"PUT /mcp HTTP/1.1\r\nHost: localhost\r\n%b\r\nTransfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n",
    b"PUT /mcp HTTP/1.1\r\nHost: localhost\r\n%b\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcdef\r\n0\r\n\r\n",
    b"PUT /mcp HTTP/1.1\r\nHost: localhost\r\n%b\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\nabc\r\n0\r\n\r\n",
    b"PUT /mcp HTTP/1.1\r\nHost: localhost\r\n%b\r\nContent-Length: -3\r\n\r\nabc",
    b"GET /mcp HTTP/1.1\r\nHost: localhost\r\n%b\r\nX-Folded: a\r\n b\r\n\r\n",
    b"GET /mcp HTTP/1.1\nHost: localhost\n%b\n\n",
    b"GET /mcp HTTP/1.1\r\nHost: localhost\r\nHost: elsewhere\r\n%b\r\n\r\n",
    b"GET /mcp HTTP/1.1\r\nHost: localhost\r\n%b\r\nX: a\0b\r\n\r\n",
    b"GET /mcp HTTP/2.0\r\nHost: localhost\r\n%b\r\n\r\n",
    b"GET  /mcp HTTP/1.1\r\nHost: localhost\r\n%b\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\r\n%b\r\n\r\n",
)
# Likewise. plan.py marks them behind the first line.
_RESPONSES: Final = [
    b"".join(piece for piece in row.sent if isinstance(piece, bytes)) for row in ROWS if not row.crawled
]


def _hostile_request(dice: Dice) -> Made:
    asked = dice.random.choice(_REQUESTS) % b"\r\n".join(dice.own)
    return {"asked": asked, "answered": response(b"%d" % dice.number), "is_hostile": True}


def _hostile_response(dice: Dice) -> Made:
    answered = dice.random.choice(_RESPONSES)
    return {"asked": dice.get(), "answered": answered, "is_hostile": True}


def _more_than_asked(dice: Dice) -> Made:
    """A whole response, and unasked bytes behind it."""
    foreign = response(b"behind %d" % dice.number, MARK + b": behind-%d" % dice.number)
    behind = dice.random.choice([foreign, foreign * 3, b"\r\n", b"garbage", dice.random.randbytes(200), foreign[:20]])
    body = dice.payload()
    answered = response(body, _OCTETS)
    if dice.random.random() < 0.5:
        head = response(b"", _OCTETS, _CHUNKED).replace(b"Content-Length: 0\r\n", b"")
        answered = head + chunk(body) + LAST_CHUNK
    return {"asked": dice.get(), "answered": answered, "behind": behind}


def _trailers_down(dice: Dice) -> Made:
    head, trailers = response(b"", _OCTETS, _CHUNKED).replace(b"Content-Length: 0\r\n", b""), _trailers(dice.random)
    answered = head + chunked(dice.payload(), trailers=trailers)
    return {"asked": dice.get(), "answered": answered, "is_hostile": _LENGTH in trailers}


def _trailers_up(dice: Dice) -> Made:
    trailers = _trailers(dice.random)
    asked = request(b"PUT", fields=[*dice.own, _OCTETS, _CHUNKED]) + chunked(dice.payload(), trailers=trailers)
    return {
        "asked": asked,
        "answered": response(b"taken %d" % dice.number),
        "is_hostile": not _OBEYED.isdisjoint(trailers),
    }


def _trailers(source: random.Random) -> list[bytes]:
    return [b"X-Sum: 1", *source.sample(_FRAMING_TRAILERS, source.randint(1, 2))]


def _head(dice: Dice) -> Made:
    return {"asked": request(b"HEAD", fields=dice.own), "answered": _headed(dice)}


def _headed(dice: Dice) -> bytes:
    return b"HTTP/1.1 200 OK\r\nX-Number: %d\r\nContent-Length: %d\r\n\r\n" % (dice.number, dice.random.randrange(9999))


def _much(dice: Dice) -> Made:
    head = response(b"", _OCTETS).replace(b"Content-Length: 0\r\n", b"")
    return {"asked": dice.get(b"Connection: close"), "answered": head + dice.payload(1_500_000)}


def _old_client(dice: Dice) -> Made:
    head = response(b"", _OCTETS, _CHUNKED).replace(b"Content-Length: 0\r\n", b"")
    body = b"".join(map(chunk, dice.pieces(dice.payload(50_000)))) + LAST_CHUNK
    return {"asked": request(fields=dice.own, version=b"HTTP/1.0"), "answered": head + body}


KINDS: Final[dict[str, Callable[[Dice], dict[str, Any]]]] = {
    "hostile request": _hostile_request, "hostile response": _hostile_response, "more than asked": _more_than_asked,
    "trailers down": _trailers_down, "trailers up": _trailers_up, "HEAD": _head, "HTTP/1.0": _old_client,
    "much, until the end": _much,
}  # fmt: skip
BEHIND: Final = (b"garbage\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"GET /half HT", b"\r\n\r\n\r\n")
WHOLE: Final = request(host=b"elsewhere.example")  # which the door refuses, should its turn come
