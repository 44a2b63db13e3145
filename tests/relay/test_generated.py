"""The table of cases and generated exchanges, directly and through the gateway: they agree but for what DESIGN 3 lists.

What is generated is legal by RFC 9110 and 9112, so there is one right way to relay it. RELAY_EXAMPLES sets how many
there are; the default is 200.
"""

import asyncio
import os
import re
import socket
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.edits import faulty
from tests.launch import Gateways, listening, port_of
from tests.relay.cases import about_the_limit, all_cases, timed_cases
from tests.relay.conftest import SMALL_BODY_BYTES
from tests.relay.harness import Case, Step, begins, client, compare, exchange, upstream, upstream_ends
from tests.relay.messages import call, dumps, event, notification, result, task
from tests.relay.rig import Place

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
EXCHANGES_MAX: Final = 3
CUT_PARTS: Final = 1 << 16  # places where bytes are split are drawn in parts of the whole
SHOWN_CHARS_MAX: Final = 250
EXAMPLES: Final = int(os.environ.get("RELAY_EXAMPLES", "200"))

# What the gateway or HTTP gives a meaning of its own, and what frames a message, is generated on purpose or not at all.
_OF_A_MEANING: Final = frozenset(
    b"host content-length transfer-encoding connection proxy-connection keep-alive te upgrade trailer expect origin "
    b"content-type content-encoding accept-encoding mcp-protocol-version".split()
)
_OF_WHO_ASKS: Final = (
    b"mcp-",
    b"x-forwarded-",
    b"authorization",
    b"proxy-authorization",
    b"cookie",
    b"origin",
    b"forwarded",
)
_RESUMES: Final = re.compile(rb"(?i)\r\nlast-event-id:[^\r\n]*")
_TOKEN: Final = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_TARGET: Final = b"/%2F?&=+;:@!$'()*,~.-_aZ09{}|\\^`\"<>[]"
_VALUE: Final = bytes([9, *range(0x20, 0x7F), *range(0x80, 0x100)])
# How messages are framed: requests, responses, responses that others may follow, responses with a body.
_UP: Final = ("none", "length", "chunked")
_UP_OF_OLD: Final = _UP[:2]  # HTTP/1.0 knows no chunks
_DOWN: Final = ("none", "length", "chunked", "close")
_KEEPING: Final = _DOWN[:3]
_BODIES: Final = _DOWN[1:]


def _of(alphabet: bytes, min_size: int = 0, max_size: int = 20) -> st.SearchStrategy[bytes]:
    """Bytes of an alphabet. To draw any bytes costs half of what it costs to draw from an alphabet."""
    table = bytes(alphabet[at % len(alphabet)] for at in range(256))
    return st.binary(min_size=min_size, max_size=max_size).map(lambda drawn: drawn.translate(table))


def _places(most: int) -> st.SearchStrategy[list[int]]:
    """So many places at most where bytes are split, two bytes for each: a list is drawn in many steps, bytes in one."""
    drawn = st.binary(max_size=2 * most)
    return drawn.map(lambda data: sorted(int.from_bytes(data[at : at + 2]) for at in range(0, len(data) - 1, 2)))


names = _of(_TOKEN, 1, 12).filter(lambda name: name.lower() not in _OF_A_MEANING)
values = _of(_VALUE)
# What proxies, browsers, MCP and logins send, and proxies like to touch.
known = st.sampled_from([
    *(b"Accept: */*", b"Authorization: Bearer x", b"Origin: http://localhost:6274", b"Set-Cookie: a=1; Path=/"),
    *(b"Via: 1.1 elsewhere", b"X-Forwarded-For: 192.0.2.1", b"Forwarded: for=192.0.2.1", b"X-Request-Id: 7"),
    *(b"Date: Tue, 15 Nov 1994 08:12:31 GMT", b"Cache-Control: no-cache", b"Pragma: no-cache", b"Last-Event-ID: a/b"),
    *(b"Referer: http://localhost:6274/", b"Cookie: a=1; b=2", b"Sec-Fetch-Mode: cors", b"Accept-Language: de"),
    *(b"MCP-Method: tasks/get", b"Mcp-Name: n", b"Proxy-Authorization: Basic eA==", b"X-Api-Key: k"),
    *(b"set-cookie: a=3; Expires=Wed, 21 Oct 2026", b'www-authenticate: Basic realm="caf\xe9", charset="UTF-8"'),
    b'WWW-Authenticate: Bearer realm="x", scope="a b", resource_metadata="http://127.0.0.1/.well-known/x"',
    *(b"Proxy-Authenticate: Basic", b"Access-Control-Allow-Origin: *", b"Vary: Origin"),
    b"Access-Control-Expose-Headers: Mcp-Session-Id",
])  # fmt: skip
once = st.lists(st.sampled_from([b"mcp-session-id: s", b"Mcp-Protocol-Version: 2025-11-25"]), unique=True)
field = st.tuples(names, values).map(b": ".join)


fields = st.lists(st.one_of(field, known), max_size=8)
trailers = st.lists(field.map(b"~".__add__), max_size=2)  # no field that may not be a trailer begins so
extensions = st.sampled_from([b"", b";x", b';a="b c"'])
targets = st.tuples(st.sampled_from([b"/", b"//", b"http://localhost:1/"]), _of(_TARGET)).map(b"".join)
_OF_A_BODY: Final = [b"GET", b"POST", b"PUT", b"DELETE", b"PATCH", b"OPTIONS", b"PROPFIND", b"LOCK"]  # in its answer
methods = st.sampled_from([*_OF_A_BODY, b"HEAD"])
versions = st.sampled_from([b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0"])
payloads = st.one_of(
    st.binary(max_size=300),
    st.sampled_from(
        [
            dumps(call("ping")),
            dumps(call("tasks/get", taskId="t")),
            dumps(call("tasks/list")),
            dumps(result(1, task("t"))),
            dumps([call("ping")]),
            event(notification("notifications/tasks/status", **task("t"))),
            event(dumps(result(1, {})), b"id: 1", b"retry: 5"),
        ]
    ),
)
statuses = st.sampled_from([b"200 OK", b"202 ", b"404 Not \xe9", b"500 Oh", b"299 x"])
hints = st.lists(st.sampled_from([b"103 Early Hints", b"102 Processing"]), max_size=2)
counts = st.integers(1, EXCHANGES_MAX)
kinds = st.sampled_from([b"application/json", b"text/event-stream", b"text/plain", b"application/octet-stream"])


cuts = _places(4)
_some_of: Final[dict[tuple[str, ...], st.SearchStrategy[str]]] = {
    framings: st.sampled_from(framings) for framings in (_UP, _UP_OF_OLD, _DOWN, _KEEPING, _BODIES)
}


@st.composite
def chunks(draw: st.DrawFn, payload: bytes) -> bytes:
    extension = draw(extensions)
    written = [b"%x%b\r\n%b\r\n" % (len(piece), extension, piece) for piece in _cut(payload, draw(cuts))]
    return b"\r\n".join([b"".join(written) + b"0", *draw(trailers), b"", b""])


@st.composite
def framed(draw: st.DrawFn, start: bytes, own: list[bytes], framings: tuple[str, ...]) -> tuple[bytes, str]:
    framing = draw(_some_of[framings])
    lines = draw(fields)
    payload = b""
    if framing != "none":
        payload = draw(payloads)
        own = [*own, b"Content-Type: " + draw(kinds)]
    if framing == "length":
        own = [*own, b"Content-Length: %d" % len(payload)]
    if framing == "chunked":
        own = [*own, b"Transfer-Encoding: chunked"]
        payload = draw(chunks(payload))
    if draw(st.booleans()) and lines:
        named = [line.partition(b":")[0].swapcase() for line in draw(st.lists(st.sampled_from(lines), max_size=3))]
        named = [name for name in named if not name.lower().startswith(_OF_WHO_ASKS)]  # with these it is refused
        own = [*own, b"Connection: " + b" ,".join(named)]
    own = [*own, *draw(once)]  # two are refused (DESIGN 10.3)
    for line in own:  # what frames a message stands anywhere among the rest, which was drawn in any order
        lines.insert(draw(st.integers(0, len(lines))), line)
    return b"\r\n".join([start, *lines, b"", payload]), framing


def _cut(data: bytes, places: list[int]) -> list[bytes]:
    """The pieces between these places, which are in CUT_PARTS of the whole; none is empty."""
    ends = [0, *(place * len(data) // CUT_PARTS for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(ends) if start < end]


@st.composite
def cases(draw: st.DrawFn, times: int = 1) -> Case:
    """A few exchanges on one connection, each so many times; one, for a client of HTTP/1.0."""
    steps: list[Step] = []
    transcript = []
    version = draw(versions)
    count = draw(counts) * times if version == b"HTTP/1.1" else 1
    for number in range(1, count + 1):
        if (number - 1) % times == 0:
            method = draw(methods)
            ups = _UP if version == b"HTTP/1.1" else _UP_OF_OLD
            asked, _ = draw(framed(b"%b %b %b" % (method, draw(targets), version), [b"Host: localhost"], ups))
            if method == b"GET":  # an event of a resumed stream is held until it is whole: `initialize` may be in it
                asked = _RESUMES.sub(b"", asked)
            answered, framing = draw(framed(b"HTTP/1.1 " + draw(statuses), [], _DOWN if number == count else _KEEPING))
            drawn = method, asked, answered, framing
        method, asked, answered, framing = drawn
        if framing == "none":
            answered = b"HTTP/1.1 204 No Content\r\n" + answered.partition(b"\r\n")[2]
        if method == b"HEAD":  # which is answered as GET is, but for the body
            answered = answered.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
        for hint in draw(hints):
            answered = b"HTTP/1.1 " + hint + b"\r\nLink: </a>\r\n\r\n" + answered
        head, end, body = asked.partition(b"\r\n\r\n")
        # A message is read before it goes up: the gateway asks for it, in its own time, and not the upstream.
        expects = bool(body) and method != b"POST" and draw(st.booleans())
        if expects:
            head += b"\r\nExpect: 100-continue"
        asked = head + end + body
        if expects and version == b"HTTP/1.1" and draw(st.booleans()):
            steps += [client(*_cut(head + end, draw(cuts))), begins(number), upstream(CONTINUE)]
            transcript.append(f"client {head + end!r}\nupstream {CONTINUE!r}")
            asked = body
        up, down = _cut(asked, draw(cuts)), _cut(answered, draw(cuts))
        steps += exchange(up, down, number)
        transcript.append(f"client {up!r}\nupstream {down!r}")
        if framing == "close":
            steps.append(upstream_ends("fin"))
    return Case("\n".join(transcript), steps)


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as one:
        yield one


@pytest.fixture(scope="module")
def straight() -> Iterator[socket.socket]:
    """Where the upstream of the direct runs listens, so that both runs of a case can be under way at once."""
    with listening() as sock:
        yield sock


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(case=st.one_of(*[cases()] * 7, cases(times=2)), again=st.integers(0, 7).map((0).__eq__))
def test_generated_exchanges(
    plain_place: Place, straight: socket.socket, runner: asyncio.Runner, case: Case, again: bool
) -> None:
    """Some again: their heads came before, on other connections, and on their own."""
    for _ in range(1 + again):
        runner.run(compare(case, straight, plain_place.listening, plain_place.gateway.port))


# ---- what is generated finds faults, and shows them small ----


_BLOCK: Final = r'b""\.join\(\[b"%b: %b\\r\\n" % \(name, value\) for _, name, value in self\._fields\]\)'
_ONCE: Final = r'b"".join([b"%b: %b\\r\\n" % field for field in dict(self).items()])'
# What is put wrong in the gateway (tests/edits.py), and how the comparison tells it. None of it shows in a message that
# is ordinary.
FAULTS: Final[dict[str, tuple[str, ...]]] = {
    "a field that repeats is sent once": ("a request|a response", _BLOCK, _ONCE),
    "a value's bytes beyond ASCII are lost": (
        "a request|a response", _BLOCK, r'\g<0>.decode("ascii", "replace").encode("latin-1", "replace")',
    ),
    "two slashes become one": (
        "a request", r'(?<=HTTP/1\.1\\r\\n%b\\r\\n" % \(method, )target(?=, self)', 'target.replace(b"//", b"/")',
    ),
    "trailers are dropped": ("trailers", r"self\.of\(\[f for f in self\._fields if f\[0\] not in never.*", "Headers()"),
    "1xx responses lose their fields": (
        "a response", r"(self\.connection\.expect_body\(\)\s+.*_head\(status, reason, )headers", r"\1Headers()",
    ),
    "1xx responses go to HTTP/1.0": ("number of responses", r"request\.head\.minor and (?=not self\.r)", ""),
    "what Connection names goes on": ("a re(quest|sponse):", r"_HOP_BY_HOP\.union\(self\.tokens\(.*", "_HOP_BY_HOP"),
    "an absolute target goes up": ("a request", r"(?<=absolute = )_ABSOLUTE\.match\(target\)", "None"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_wilful_fault_is_found(fault: str, gateways: Gateways) -> None:
    """In the real gateway, on the loop of the test; the case that is shown has one exchange and nothing beside it."""
    told, *change = FAULTS[fault]
    with asyncio.Runner() as own, listening() as straight, listening() as sock:
        running = gateways.in_process(port_of(sock))
        place = Place(own.run(running.__aenter__()), sock)

        @settings(
            max_examples=300, deadline=None, database=None, derandomize=True, phases=[Phase.generate, Phase.shrink]
        )
        @given(case=cases())
        def agrees(case: Case) -> None:
            own.run(compare(case, straight, sock, place.gateway.port))

        try:
            with faulty(fault, tuple(change)), pytest.raises(AssertionError, match=told) as failure:
                agrees()
        finally:
            own.run(running.__aexit__(None, None, None))
        transcript = str(failure.value).partition("]:\n")[0]
        assert transcript.count("client [") <= 1 and len(transcript) < SHOWN_CHARS_MAX, transcript


# ---- every case of the table (cases.py) ----


@pytest.fixture(scope="module")
def own_loop(gateways: Gateways) -> Iterator[tuple[asyncio.Runner, Place]]:
    """An App on asyncio's loop for all cases. In the end no task may be left."""
    with asyncio.Runner(debug=True) as runner, listening() as sock:
        running = gateways.in_process(port_of(sock))
        yield runner, Place(runner.run(running.__aenter__()), sock)
        runner.run(running.__aexit__(None, None, None))


@pytest.mark.parametrize("case", all_cases(), ids=lambda case: case.name)
async def test_case(straight: socket.socket, plain_place: Place, case: Case) -> None:
    await compare(case, straight, plain_place.listening, plain_place.gateway.port)


@pytest.mark.parametrize("case", timed_cases(), ids=lambda case: case.name)
def test_case_on_the_loop_of_asyncio(
    straight: socket.socket, own_loop: tuple[asyncio.Runner, Place], case: Case
) -> None:
    """Without uvloop, where connections end differently."""
    runner, place = own_loop
    runner.run(compare(case, straight, place.listening, place.gateway.port))


@pytest.mark.parametrize("case", list(about_the_limit(SMALL_BODY_BYTES)), ids=lambda case: case.name)
async def test_about_the_inspected_size(straight: socket.socket, small_place: Place, case: Case) -> None:
    await compare(case, straight, small_place.listening, small_place.gateway.port)
