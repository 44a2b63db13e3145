"""Cuts: bodies of every framing and size, and one side of each exchange dies at a byte of its message (DESIGN 3.5).

The seeds go through all shapes in turn, and each shape through all bytes of its message, the whole of it included: then
the client leaves at once. Of a large message it is the places where readers could err.
"""

import gzip
import itertools
import math
import random
from typing import Final, NamedTuple

from tests.relay.http1 import End
from tests.relay.messages import Json, answer, call, chunk, chunked, dumps, event, post, request, result
from tests.soak import census, plan
from tests.soak.plan import Conversation, Death, Departure, Dice, Exchange, Made, identity

INSPECTED_BYTES_MAX: Final = 100_000
SETTINGS: Final[Json] = {**census.SETTINGS, "limits": {"inspected_body_bytes_max": INSPECTED_BYTES_MAX}}
# A message is read before it goes up only in a POST.
_METHODS: Final = (b"POST", b"POST", b"PUT", b"PATCH", b"PROPFIND")
_SMALL_BYTES_MAX: Final = 1500  # a message that is cut at every byte
_BYTES: Final = (90, 90, 5_000, 90_000, 200_000, 200_000, 400_000)  # of bodies; beside small ones
_STEP: Final = 0.618  # of a message: few bytes are spread over it, and in the end it is all of them
_SERIES: Final = 1 << 10  # conversations of a shape whose messages are the same
_LAST_BYTES: Final = 12  # the end of the last chunk, and of trailers
_PRESSED: Final = 0.5  # of large messages: they are sent whole, or cut near their end

_KINDS_OF_BODIES: Final = {
    "octets": b"application/octet-stream",
    "JSON": b"application/json",
    "gzip": b"application/json\r\nContent-Encoding: gzip",
    "events": b"text/event-stream",
}


class Shape(NamedTuple):
    """Who dies, and what the message is that is cut: its framing, its body, its version."""

    side: str
    how: End
    framing: str
    body: str
    version: bytes = b"HTTP/1.1"  # the client's
    expects: bool = False


_HOWS: Final[tuple[End, ...]] = ("fin", "rst")
_UP: Final = [
    Shape("client", how, framing, body, expects=expects)
    for how, framing, body, expects in itertools.product(
        _HOWS, ("length", "chunked"), ("octets", "JSON", "gzip"), (False, True)
    )
]
_OLD: Final = [Shape("client", how, "length", "octets", b"HTTP/1.0") for how in _HOWS]
_DOWN: Final = [
    Shape("upstream", how, framing, body, version)
    for how, framing, body, version in itertools.product(
        _HOWS, ("length", "chunked", "close"), _KINDS_OF_BODIES, (b"HTTP/1.1", b"HTTP/1.0")
    )
]
_OTHERS: Final = [Shape("upstream", how, "as told", body) for how in _HOWS for body in ("initialize", "tasks/get")]
SHAPES: Final = (*_UP, *_OLD, *_UP, *_OLD, *_DOWN, *_OTHERS)  # of requests as many as of responses


def draw(seed: int) -> Conversation:
    member, place = divmod(seed, len(SHAPES))
    shape, drawn = SHAPES[place], random.Random(seed)
    source = random.Random(place + member // _SERIES * len(SHAPES))  # of the message: it is the same for a series
    dice = Dice(source, seed * 100)
    cut = Exchange(dice.number, f"{shape}", dice.session, **_made(shape, dice))
    cut.answered = plan.marked(cut.answered, cut.number)
    message = cut.asked if shape.side == "client" else cut.answered
    at = _place(message, member, drawn)
    cut.is_slow = drawn.random() < 0.1
    exchanges = [cut]
    if shape.version == b"HTTP/1.1" and drawn.random() < 0.2:
        exchanges.insert(0, _first(dice))
    departure = None
    if shape.side == "client":
        before, total = sum(len(e.asked) for e in exchanges) - len(message), sum(len(e.asked) for e in exchanges)
        departure = Departure("asking", (before + at + 0.5) / total if at < len(message) else 1.0, shape.how)
    elif at < len(message):
        cut.death = Death("response", (at + 0.5) / len(message), shape.how, persists=True)
    else:
        cut.death = Death("request", drawn.random(), shape.how, persists=True)
    cuts = sorted(drawn.random() for _ in range(drawn.randrange(3)))
    made = Conversation(exchanges, drawn.random() < 0.5, cuts, departure, is_slow=drawn.random() < 0.1)
    plan.mark_cut(made)
    return made


def _place(message: bytes, member: int, drawn: random.Random) -> int:
    places = len(message) + 1
    if len(message) <= _SMALL_BYTES_MAX:
        step = round(places * _STEP)
        while math.gcd(step, places) > 1:
            step += 1
        return member * step % places
    if drawn.random() < _PRESSED:
        return len(message) - max(0, drawn.randrange(-2, _LAST_BYTES))
    edges = [0, message.index(b"\r\n\r\n") + 4, len(message) - _LAST_BYTES, message.rindex(b"\r\n")]
    edge = drawn.choice([*edges, drawn.randrange(places), drawn.randrange(places)])
    return min(max(edge + drawn.randint(-3, 3), 0), len(message))


def _first(dice: Dice) -> Exchange:
    """An exchange before the one that is cut, on the same connection."""
    number = dice.number + 1
    own = [*identity(dice.session), b"X-Request-Id: %d" % number]
    asked = post(call("tools/call", number, name="x"), *own)
    return Exchange(number, "JSON", dice.session, asked, plan.marked(answer(dumps(result(number, {}))), number))


def _made(shape: Shape, dice: Dice) -> Made:
    if shape.framing == "as told":
        return plan.KINDS[shape.body](dice)
    if shape.side == "client":
        fields = [*dice.own, b"Expect: 100-continue"] if shape.expects else dice.own
        asked = _message(shape, dice, request(dice.random.choice(_METHODS), fields=fields, version=shape.version))
        answered = answer(dumps(result(dice.number, {})))
    else:
        asked = request(fields=dice.own, version=shape.version)
        answered = _message(shape, dice, b"HTTP/1.1 200 OK\r\n\r\n")
    return {"asked": asked, "answered": answered}


def _message(shape: Shape, dice: Dice, head: bytes) -> bytes:
    body = _body(shape, dice)
    fields = b"Content-Type: " + _KINDS_OF_BODIES[shape.body]
    if shape.framing == "length":
        fields += b"\r\nContent-Length: %d" % len(body)
    elif shape.framing == "chunked":
        fields += b"\r\nTransfer-Encoding: chunked"
        pieces = list(filter(None, dice.pieces(body)))
        extended = dice.random.random() < 0.5
        has_trailers = shape.version == b"HTTP/1.1" and dice.random.random() < 0.5  # HTTP/1.0 has none
        end = chunked(trailers=[b"X-Sum: 7", b"X-Further: 8"] if has_trailers else [])
        body = b"".join(_extended(piece) if extended else chunk(piece) for piece in pieces) + end
    return head.removesuffix(b"\r\n") + fields + b"\r\n\r\n" + body


def _extended(piece: bytes) -> bytes:
    return b'%x;name="a value";x\r\n%b\r\n' % (len(piece), piece)


def _body(shape: Shape, dice: Dice) -> bytes:
    size = dice.random.choice(_BYTES) + dice.random.randrange(60)
    noise = dice.random.randbytes(size)
    if shape.body == "octets":
        return noise
    if shape.body == "events":
        events = [event(dumps(result(f"{n}-{dice.number}", {"x": "y" * 40}))) for n in range(size // 150 + 1)]
        return b"".join(events)
    text = noise.hex()[:size]
    message = dumps(call("tools/call", dice.number, name=text) if shape.side == "client" else result(dice.number, text))
    return gzip.compress(message, 1, mtime=0) if shape.body == "gzip" else message
