"""The hostile streams of section `hostile`: what a client sends, or an upstream answers, to cost the most.

The load sends the `asked` of an attack to `/attack?N`, N being its place in the table; `answered` comes back.
"""

import functools
import gzip
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import orjson

from gateway.config import Limits
from gateway.query import cursor
from gateway.query.criteria import Query
from gateway.query.cursor import Position
from tests.relay import wire
from tests.relay.wire import LAST_CHUNK, chunk, chunked, request, stream

MIB: Final = 1 << 20
PIECE_BYTES: Final = 64 * 1024
SEGMENTS: Final = 32 * 1024
REQUESTS: Final = 10_000
HEADS: Final = 32
FORGED_IDS: Final = 110_000
_BODY_BYTES: Final = Limits().inspected_body_bytes_max - 4096  # a little less than is inspected

Side: TypeAlias = Literal["up", "down"]


@dataclass(frozen=True)
class Attack:
    """`make` gives the hostile bytes: a whole request, or a whole response.

    `units` says of how many requests, events or chunks they are, where that is what costs; `answers` how many responses
    there are; `piece_bytes` how much is sent at once; `asks` what a client sends to get a hostile response.
    """

    name: str
    side: Side
    make: Callable[[], bytes]
    units: int | None = None
    answers: int = 1
    piece_bytes: int = PIECE_BYTES
    asks: bytes = b""


def post(target: bytes, message: bytes) -> bytes:
    return wire.post(message, b"Authorization: Bearer a", target=target)


def response(body: bytes, kind: bytes = b"application/octet-stream") -> bytes:
    return wire.response(body, b"Content-Type: " + kind)


def in_chunks(body: bytes) -> bytes:
    return b"".join(chunk(bytes(piece)) for piece in pieces(body, PIECE_BYTES))


TARGET: Final = b"/attack?%d"
INITIALIZE: Final = orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}})


# ---- from clients; %d in a request is the attack's place ----


def _members() -> bytes:
    members = b"".join(b',"%x":1' % n for n in range(200_000))
    return post(TARGET, b'{"jsonrpc":"2.0","id":1,"method":"tasks/list","params":{"status":["working"]%b}}' % members)


def _integers(beside: bytes = b"") -> Callable[[], bytes]:
    """A call of a tool with as many integers as are read; `beside` its arguments stand other params."""
    start = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"%b,"arguments":{"":[%b1]}}}'
    return lambda: post(TARGET, start % (beside, b"1," * (_BODY_BYTES // 2)))


def _members_called(beside: bytes = b"") -> Callable[[], bytes]:
    members = b"".join(b'"%x":1,' % n for n in range(200_000))
    start = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"%b,"arguments":{%b"":1}}}'
    return lambda: post(TARGET, start % (beside, members))


def _forged() -> bytes:
    """A cursor as an attacker can make it: ours, of as many ids as one may have or a few more."""
    ids = frozenset(f"{n:05x}" for n in range(FORGED_IDS))
    text = cursor.encode(Position(Query(taskIds=ids), (0, "00000"))).encode()
    return post(TARGET, b'{"jsonrpc":"2.0","id":1,"method":"tasks/list","params":{"cursor":"%b"}}' % text)


def _spelled() -> bytes:
    """A cursor that a client writes, all in escapes, refused for its last name."""
    text = b"taskgate:?" + b"&".join([b"%74askIds=%C3%A9" + b"%41" * 11] * 1980) + b"&x=1"
    return post(TARGET, b'{"jsonrpc":"2.0","id":1,"method":"tasks/list","params":{"cursor":"%b"}}' % text)


# ---- from upstreams ----


def _tokens(token: bytes) -> bytes:
    start, end = b'{"jsonrpc":"2.0","id":1,"result":{"x":[', b'],"capabilities":{"tasks":{"list":{}}}}}'
    many = b",".join([token] * (_BODY_BYTES // (len(token) + 1)))
    return response(start + many + end, b"application/json")


def _streamed(body: bytes) -> bytes:
    return stream() + in_chunks(body) + LAST_CHUNK


def _task(token: bytes) -> bytes:
    start = b'{"jsonrpc":"2.0","id":1,"result":{"taskId":"t","status":"working","\\u0061":['
    return response(start + b",".join([token] * (_BODY_BYTES // (len(token) + 1))) + b"]}}", b"application/json")


def _packed(event: bytes) -> bytes:
    """100,000 events in a kilobyte or two."""
    return stream(b"Content-Encoding: gzip") + chunked(gzip.compress(event * 100_000))


def pieces(data: bytes, piece_bytes: int) -> Iterator[memoryview]:
    view = memoryview(data)
    return (view[at : at + piece_bytes] for at in range(0, len(data), piece_bytes))


def _repeated(line: bytes, size_bytes: int) -> Callable[[], bytes]:
    return lambda: _streamed(line * (size_bytes // len(line)))


_INITIALIZE: Final = post(TARGET, INITIALIZE)
_GET: Final = post(TARGET, b'{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"taskId":"t"}}')
_OCTETS: Final = b"Content-Type: application/octet-stream"
_CODING: Final = b"Transfer-Encoding: chunked"
_X: Final = b"x" * SEGMENTS
_HEAD: Final = request(target=TARGET, fields=[b"a:"] * 250)
_CHUNKED: Final = b"HTTP/1.1 200 OK\r\n%b\r\n%b\r\n\r\n" % (_OCTETS, _CODING)
_CHUNKS: Final = b"1\r\nx\r\n" * (2 * MIB // 6) + LAST_CHUNK
_LINES: Final = b"data:\n" * (_BODY_BYTES // 6) + b"data: tasks/status\n\n"
_ESCAPE: Final = b',"\\u0061":1'
NAMING: Final = "tiny events that name tasks, packed"  # each is read where a guard keeps the tasks of callers apart
ATTACKS: Final[Sequence[Attack]] = (
    Attack("CRLFs before a request", "up", lambda: b"\r\n" * (2 * MIB) + request(target=TARGET)),
    Attack("tasks/list of 200,000 members", "up", _members),
    Attack("tools/call of 200,000 members", "up", _members_called()),
    Attack("the same with an escape beside", "up", _members_called(_ESCAPE)),
    Attack("tools/call of 1,000,000 integers", "up", _integers()),
    Attack("the same with an escape beside", "up", _integers(_ESCAPE)),
    Attack("a forged cursor of 110,000 ids", "up", _forged),
    Attack("a spelled cursor of 27,000 escapes", "up", _spelled),
    Attack("pipelined tiny requests", "up", lambda: request(target=TARGET) * REQUESTS, REQUESTS, REQUESTS),
    Attack("pipelined heads of 250 fields", "up", lambda: _HEAD * HEADS, HEADS, HEADS),
    Attack("chunks of one byte, up", "up", lambda: request(b"PUT", TARGET, [_OCTETS, _CODING]) + _CHUNKS, 2 * MIB // 6),
    Attack("segments of one byte, up", "up", lambda: request(b"PUT", TARGET, [_OCTETS], _X), SEGMENTS, piece_bytes=1),
    Attack("initialize of numbers", "down", functools.partial(_tokens, b"0"), asks=_INITIALIZE),
    Attack("initialize of objects", "down", functools.partial(_tokens, b"{}"), asks=_INITIALIZE),
    Attack("initialize of pairs", "down", functools.partial(_tokens, b'{"":""}'), asks=_INITIALIZE),
    Attack("tasks/get answered with numbers", "down", functools.partial(_task, b"0"), asks=_GET),
    Attack("tasks/get answered with objects", "down", functools.partial(_task, b"{}"), asks=_GET),
    Attack("20 MB of LF, as events", "down", _repeated(b"\n", 20 * 10**6)),
    Attack("8 MB of CR, as events", "down", _repeated(b"\r", 8 * 10**6)),
    Attack("8 MB of CRLF, as events", "down", _repeated(b"\r\n", 8 * 10**6)),
    Attack("8 MB of LF, as an initialize", "down", _repeated(b"\n", 8 * 10**6), asks=_INITIALIZE),
    Attack("an event of short lines", "down", lambda: _streamed(_LINES)),
    Attack("the same, as an initialize", "down", lambda: _streamed(_LINES), asks=_INITIALIZE),
    Attack("tiny events", "down", _repeated(b"data:1\n\n", 4 * MIB), 4 * MIB // 8),
    Attack("tiny events, as an initialize", "down", _repeated(b"data:1\n\n", 4 * MIB), 4 * MIB // 8, asks=_INITIALIZE),
    Attack("tiny events, packed", "down", functools.partial(_packed, b"data:{}\n\n"), 100_000),
    Attack(NAMING, "down", functools.partial(_packed, b'data:{"task":1}\n\n'), 100_000),
    Attack("chunks of one byte, down", "down", lambda: _CHUNKED + _CHUNKS, 2 * MIB // 6),
    Attack("segments of one byte, down", "down", lambda: response(_X), SEGMENTS, piece_bytes=1),
)


@functools.cache
def asked(number: int) -> bytes:
    attack = ATTACKS[number]
    default = request(target=TARGET, fields=[b"Accept: text/event-stream"])
    data = attack.make() if attack.side == "up" else (attack.asks or default)
    return data.replace(TARGET, TARGET % number)


@functools.cache
def answered(number: int) -> bytes:
    attack = ATTACKS[number]
    return attack.make() if attack.side == "down" else response(b"ok")
