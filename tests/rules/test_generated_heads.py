"""Heads that came before, but for values that vary (parsed_head_cache.py), against a reader without memory.

In: generated requests and responses of a few shapes, of which most differ in values alone, and some in all that a
message could smuggle. Out: what a reader says of them, and the bytes that go on. Always: the same with memory.

HEADS_EXAMPLES says how many are generated; the default is 4,000. HEADS_EXAMPLES=1000000 takes half an hour.
"""

import os
import random
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import pytest

from gateway import caller_identity
from gateway.caller_identity import VARYING
from gateway.http import parsed_head_cache as module
from gateway.http import response_parser
from gateway.http.header_fields import Headers
from gateway.http.parsed_head_cache import ConnectionHeads, HeadCache, Onward
from gateway.http.request_parser import Head, Refusal, RequestReader
from gateway.http.response_parser import BadResponse, ResponseReader, may_vary

EXAMPLES: Final = int(os.environ.get("HEADS_EXAMPLES", "4000"))
BYTES_MAX, FIELDS_MAX = 8000, 50
CONNECTIONS: Final = 6
Fields = list[tuple[bytes, bytes]]

STAYS: Final[Fields] = [
    *((b"Host", b"a.example"), (b"Authorization", b"Bearer t%b%%"), (b"Cookie", b"sid=1"), (b"X-Tenant", b"1")),
    *((b"mcp-session-id", b"s-1"), (b"Accept", b"application/json, text/event-stream"), (b"Connection", b"keep-alive")),
]
NAMES: Final = [
    *(b"traceparent", b"X-Request-Id", b"x-request-id", b"tracestate", b"Mcp-Name", b"CF-Ray", b"Idempotency-Key"),
    *(b"date", b"b3", b"X-Amzn-Trace-Id"),
]
TYPES: Final = [(b"Content-Type", b"application/json"), (b"Content-Type", b"text/event-stream")]
OF_RESPONSES: Final[Fields] = [
    *((b"server", b"uvicorn"), (b"Content-Encoding", b"gzip"), (b"mcp-session-id", b"s-1"), (b"Location", b"/mcp")),
    *((b"Connection", b"keep-alive"), (b"WWW-Authenticate", b"Bearer a"), (b"Cache-Control", b"no-cache")),
]
ODD: Final = [
    *(b"", b" ", b" 1", b"1 ", b"\t1", b"1\t", b"1  2", b"1 2", b"\xe9", b"\0", b"1\x7f", b"\r"),
    *(b"1\r2", b"1\n2", b"%b"),
    *(b"1\nHost: b", b"1\r\nHost: b.example", b"1\r\nAuthorization: Bearer u", b"1\r\nContent-Length: 3", b"%b%d%%"),
    *(b"1\r\nTransfer-Encoding: chunked", b"1\r\n folded", b"1\r\n\r\nGET / HTTP/1.1", b"x" * 3000, b"x" * 9000),
    *(b"1\r\nX-Request-Id: 2", b"1\r\nConnection: close", b"1\r\nContent-Type: text/event-stream", b"1\rHost: b"),
    *(b"a: b", b"1\r\nCookie: sid=2", b"1\r\nMcp-Session-Id: s-2", b"1\r\nWWW-Authenticate: NTLM", b"1\rHost: b"),
    *(b"a: b", b"Negotiate", b"br"),
]
LENGTHS: Final = [
    *(b"+5", b"0x5", b"5 5", b"5, 5", b"05", b"00", b"", b"5 ", b"\t5", b"0" * 19 + b"5", b"9" * 20, b"-5", b"\xb2"),
]


def head(line: bytes, fields: Fields) -> bytes:
    return line + b"\r\n" + b"".join(b"%b: %b\r\n" % field for field in fields) + b"\r\n"


class Shapes:
    """A few shapes of heads, and messages that have them."""

    def __init__(self, seed: int, stays: Fields, lines: list[bytes]) -> None:
        self.rng = random.Random(seed)
        self._lines = lines
        self._shapes = [self._shape(stays) for _ in range(5)]

    def _shape(self, stays: Fields) -> tuple[bytes, Fields]:
        rng = self.rng
        fields = [field for field in stays if rng.random() < 0.7 or field[0] == b"Host"] + [rng.choice(TYPES)]
        fields += [(name, b"1") for name in rng.sample(NAMES, rng.randrange(4))]
        if rng.random() < 0.8:
            fields.append((rng.choice((b"Content-Length", b"content-length")), b"5"))
        rng.shuffle(fields)
        return rng.choice(self._lines), fields

    def message(self) -> bytes:
        rng = self.rng
        line, fields = rng.choice(self._shapes)
        size = rng.choice((0, 5, 5, 9, 10, 123))
        stated = size if any(name.lower() == b"content-length" for name, _ in fields) else 0
        fields = [(name, self._value(name, value, size)) for name, value in fields]
        if rng.random() < 0.25:
            line, fields = self._odd(line, fields)
        written = head(line, fields)
        if rng.random() < 0.03:
            written = written.replace(b": ", rng.choice((b":", b":  ", b" : ", b":\t")), rng.randrange(1, 4))
        return written + b"x" * (stated if rng.random() < 0.97 else 5)

    def _value(self, name: bytes, value: bytes, size: int) -> bytes:
        if name.lower() == b"content-length":
            return b"%d" % size
        return b"%032x" % self.rng.getrandbits(128) if value == b"1" and name in NAMES else value

    def _odd(self, line: bytes, fields: Fields) -> tuple[bytes, Fields]:
        rng, at = self.rng, self.rng.randrange(len(fields))
        name, value = fields[at]
        match rng.randrange(9):
            case 0 | 1 | 2:
                fields[at] = name, rng.choice(LENGTHS if name.lower() == b"content-length" else ODD)
            case 3:
                fields[at] = rng.choice((name.upper(), name.title(), name + b"x")), value
            case 4:
                fields.insert(at, (rng.choice(NAMES), rng.choice((b"1", b"2", value))))
            case 5:
                fields.insert(at, rng.choice([*STAYS, *OF_RESPONSES, (b"Transfer-Encoding", b"chunked"), fields[at]]))
            case 6:
                del fields[at]
            case 7:
                fields[at] = name, value + rng.choice((b"2", b" 2", b";"))
            case 8:
                line = rng.choice(self._lines)
        return line, fields


class Requests:
    """What is said of requests, and the heads that go up; with a table, as the gateway does (http_caller.py)."""

    def __init__(self, table: HeadCache[Any] | None) -> None:
        self.table, self.found = table, 0
        source: Any = SimpleNamespace(heads=table)
        self._own = [None if table is None else ConnectionHeads[Any](source, n % 2) for n in range(CONNECTIONS)]
        self._readers = [RequestReader(BYTES_MAX, FIELDS_MAX, own) for own in self._own]

    def read(self, number: int, data: bytes) -> list[Any]:
        reader, own, said = self._readers[number], self._own[number], list[Any]()
        reader.add(data)
        while reader.pending_bytes:
            for event in reader.read():
                said.append(self._told(event, own, number % 2))
        if reader.state != "BETWEEN":
            self._readers[number] = RequestReader(BYTES_MAX, FIELDS_MAX, own)
        return said

    def _told(self, event: Any, own: ConnectionHeads[Any] | None, scope: int) -> Any:
        if isinstance(event, Refusal):
            return event.status, str(event)
        if not isinstance(event, Head):
            return list(event) if isinstance(event, Headers) else event
        caller = event.remembered
        self.found += caller is not None
        if caller is None:
            caller = SimpleNamespace(head=event, onward=None, who=who_asks(event), scope=scope)
            cut, table = event.cut, self.table
            if cut is not None and table is not None and own is not None:
                kept = own.keep(table, cut, event.headers, event.body_bytes, caller)
                caller.onward = Onward(cut.varies) if kept else None
        up = caller.onward and caller.onward.of(event.values)
        if not up:
            up = event.headers.end_to_end().as_head(event.method, event.target)
            if caller.onward is not None:
                caller.onward.learn(up, event.values)
        line = event.method, event.target, event.minor, event.body_bytes, event.keep_alive, event.held_bytes
        return line, list(event.headers), up, caller.who, caller.scope == scope


def who_asks(head: Head) -> Any:
    """What the gateway works out once for a head."""
    read = head.headers.get(b"mcp-session-id"), head.headers.tokens(b"accept"), head.may_carry_message
    return caller_identity.who(head.headers, None), read, response_parser.authenticates_connection(head.headers)


class Responses:
    def __init__(self, table: HeadCache[Any] | None) -> None:
        self.table, self.found = table, 0
        source: Any = SimpleNamespace(heads=table)
        own = [None if table is None else ConnectionHeads[Any](source) for _ in range(CONNECTIONS)]
        self._readers = [ResponseReader(BYTES_MAX, FIELDS_MAX, each) for each in own]

    def read(self, number: int, data: bytes) -> Any:
        reader = self._readers[number]
        reader.begin()
        reader.add(data)
        try:
            head = reader.head()
        except BadResponse as fault:
            return str(fault)
        if head is None:
            return None
        headers, passed = head.headers_with(reader.values), head.passed
        down = passed.of(reader.values) if passed is not None else b""
        self.found += bool(down)
        if not down:
            down = b"%d\r\n%b\r\n" % (head.status, headers.end_to_end().block())
            if passed is not None:
                passed.learn(down, reader.values)
        reader.expect_body(head.framing)
        body = reader.body()
        coding = head.headers.tokens(b"content-encoding")  # as body_pump.py reads it
        read = coding, head.framing, head.kind, head.authenticates, head.may_name, head.held_bytes, head.minor
        state = body, reader.is_whole, reader.is_followed, reader.fault, reader.stated_bytes
        return head.status, head.reason, list(headers), down, read, head.keeps_alive, state


REQUEST_LINES: Final = [
    b"POST /mcp HTTP/1.1",
    b"POST /mcp?Content-Length:%205 HTTP/1.1",
    b"GET / HTTP/1.1",
    b"POST /%b HTTP/1.0",
]
STATUS_LINES: Final = [b"HTTP/1.1 200 OK", b"HTTP/1.1 202 Content-Length: 5", b"HTTP/1.1 401 No", b"HTTP/1.0 200 %b"]
KINDS: Final[dict[str, tuple[Any, Callable[[bytes], bool], Fields, list[bytes]]]] = {
    "requests": (Requests, VARYING.__contains__, STAYS, REQUEST_LINES),
    "responses": (Responses, may_vary, OF_RESPONSES, STATUS_LINES),
}


def differing(kind: str, count: int, may: Callable[[bytes], bool] | None = None) -> list[bytes]:
    """The first message of so many of which a reader with memory says another thing than one without; or none."""
    made, may_vary_, stays, lines = KINDS[kind]
    found = 0
    for first in range(0, count, 500):
        with_memory, without = made(HeadCache(may or may_vary_)), made(None)
        shapes = Shapes(first, stays, lines)
        for _ in range(min(500, count - first)):
            number, data = shapes.rng.randrange(CONNECTIONS), shapes.message()
            if with_memory.read(number, data) != without.read(number, data):
                return [data]
        found += with_memory.found
    assert may is not None or found > 0.3 * count, "few heads came before"
    return []


@pytest.mark.parametrize("kind", KINDS)
def test_generated_heads_are_read_alike_with_and_without_memory(kind: str) -> None:
    assert differing(kind, EXAMPLES) == []


FAULTS: Final = {  # what must not vary, of requests and of responses
    "requests": [b"host", b"authorization", b"cookie", b"mcp-session-id", b"x-tenant", b"content-type", b"accept"],
    "responses": [b"content-type", b"content-encoding", b"www-authenticate"],
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in FAULTS for name in FAULTS[kind]])
def test_a_field_that_is_read_and_varies_is_found_out(kind: str, name: bytes) -> None:
    """A wilful fault."""
    right = KINDS[kind][1]
    assert differing(kind, 60_000, lambda low: low == name or right(low))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [rb"[^\r\n]+", rb"[^\r]+", rb"[!-~]*(?: [!-~]*)*", rb"[!-~ \t]+"])
def test_a_value_that_is_read_loosely_is_found_out(kind: str, value: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wilful fault."""
    monkeypatch.setattr(module, "_VALUE", re.compile(value))
    assert differing(kind, 60_000)
