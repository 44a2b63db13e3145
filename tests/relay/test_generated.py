"""Traffic that nobody thought of: generated exchanges, directly and through the gateway, compared as the table's are.

In: methods, targets, fields, framings, bodies, informational responses, and where each side's bytes are split. Always:
what is generated is legal by RFC 9110 and 9112, so that there is one right way to pass it on.
"""

import asyncio
import os
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.relay.gateway import eventually
from tests.relay.harness import Case, compare, exchange, upstream_ends
from tests.relay.http1 import End, Reader
from tests.relay.messages import call, chunk, dumps, event, notification, result, task
from tests.relay.rig import Place, rig_at

EXCHANGES_MAX: Final = 3
EXAMPLES: Final = int(os.environ.get("RELAY_EXAMPLES", "200"))

# What the gateway or HTTP gives a meaning of its own, and what frames a message, is generated on purpose or not at all.
_OF_A_MEANING: Final = frozenset(
    b"host content-length transfer-encoding connection proxy-connection keep-alive te upgrade trailer expect origin "
    b"content-type content-encoding accept-encoding mcp-protocol-version".split()
)
_TOKEN: Final = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_TARGET: Final = b"/%2F?&=+;:@!$'()*,~.-_aZ09{}|\\^`\"<>[]"
_VALUE: Final = bytes([9, *range(0x20, 0x7F), *range(0x80, 0x100)])


def _of(alphabet: bytes, min_size: int = 0, max_size: int = 20) -> st.SearchStrategy[bytes]:
    text = st.text(alphabet.decode("latin-1"), min_size=min_size, max_size=max_size)
    return text.map(lambda drawn: drawn.encode("latin-1"))


names = _of(_TOKEN, 1, 12).filter(lambda name: name.lower() not in _OF_A_MEANING)
values = _of(_VALUE)
known = st.sampled_from(
    [b"Accept: */*", b"mcp-session-id: s", b"Authorization: Bearer x", b"Set-Cookie: a=1", b"WWW-Authenticate: Bearer"]
)
fields = st.lists(st.one_of(st.tuples(names, values).map(b": ".join), known), max_size=8)
targets = _of(_TARGET).map(lambda rest: b"/" + rest)
methods = st.sampled_from([b"GET", b"POST", b"PUT", b"DELETE", b"PATCH", b"OPTIONS", b"PROPFIND", b"LOCK"])
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
kinds = st.sampled_from([b"application/json", b"text/event-stream", b"text/plain", b"application/octet-stream"])


@st.composite
def chunks(draw: st.DrawFn, payload: bytes) -> bytes:
    """A payload in chunks of any sizes, with extensions and trailers or without."""
    pieces = _cut(payload, draw(_cuts(len(payload))))
    extension = draw(st.sampled_from([b"", b";x", b';a="b c"']))
    written = [b"%x%b\r\n%b\r\n" % (len(piece), extension, piece) for piece in pieces if piece]
    trailers = draw(st.lists(st.tuples(names, values).map(b": ".join), max_size=2))
    return b"\r\n".join([b"".join(written) + b"0", *trailers, b"", b""])


@st.composite
def framed(draw: st.DrawFn, start: bytes, own: list[bytes], framings: list[str]) -> tuple[bytes, str]:
    """A message, and how it is framed."""
    framing = draw(st.sampled_from(framings))
    lines = own + draw(fields)
    payload = b""
    if framing != "none":
        payload = draw(payloads)
        lines.append(b"Content-Type: " + draw(kinds))
    if framing == "length":
        lines.append(b"Content-Length: %d" % len(payload))
    if framing == "chunked":
        lines.append(b"Transfer-Encoding: chunked")
        payload = draw(chunks(payload))
    lines = draw(st.permutations(lines))
    return b"\r\n".join([start, *lines, b"", payload]), framing


def _cuts(length: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, length), max_size=4).map(sorted)


def _cut(data: bytes, cuts: list[int]) -> list[bytes]:
    ends = [0, *cuts, len(data)]
    return [data[start:end] for start, end in pairwise(ends)]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A few exchanges on one connection."""
    steps = []
    transcript = []
    count = draw(st.integers(1, EXCHANGES_MAX))
    for number in range(1, count + 1):
        method = draw(methods)
        asked, _ = draw(framed(method + b" " + draw(targets) + b" HTTP/1.1", [b"Host: localhost"], _UP))
        status = draw(st.sampled_from([b"200 OK", b"202 ", b"404 Not \xe9", b"500 Oh", b"299 x"]))
        answered, framing = draw(framed(b"HTTP/1.1 " + status, [], _DOWN if number == count else _DOWN[:3]))
        if framing == "none":
            answered = b"HTTP/1.1 204 No Content\r\n" + answered.partition(b"\r\n")[2]
        hints = draw(st.lists(st.sampled_from([b"103 Early Hints", b"102 Processing"]), max_size=2))
        for hint in hints:
            answered = b"HTTP/1.1 " + hint + b"\r\nLink: </a>\r\n\r\n" + answered
        up = [piece for piece in _cut(asked, draw(_cuts(len(asked)))) if piece]
        down = [piece for piece in _cut(answered, draw(_cuts(len(answered)))) if piece]
        steps += exchange(up, down, number)
        transcript.append(f"client {up!r}\nupstream {down!r}")
        if framing == "close":
            steps.append(upstream_ends("fin"))
    return Case("\n".join(transcript), steps)


_UP: Final = ["none", "length", "chunked"]
_DOWN: Final = ["none", "length", "chunked", "close"]


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as one:
        yield one


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(case=cases())
def test_generated_exchanges(plain_place: Place, runner: asyncio.Runner, case: Case) -> None:
    runner.run(compare(case, plain_place.listening, plain_place.gateway.port))


@settings(max_examples=EXAMPLES // 2, deadline=None)
@given(cuts=st.lists(st.integers(0, 140), max_size=6).map(sorted))
def test_a_stream_split_anywhere(plain_place: Place, runner: asyncio.Runner, cuts: list[int]) -> None:
    """Chunks, and pieces of chunks, split where they will: the same events, each as soon as its bytes are there."""
    events = (
        b": c\r\n\r\n"
        + event(notification("notifications/tasks/status", **task("t")))
        + b"id: 1\rdata: \xe2\x80\xa8\r\r"
    )
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = b"".join(chunk(piece) for piece in _cut(events, cuts) if piece) + b"0\r\n\r\n"
    pieces = [piece for piece in _cut(body, cuts) if piece]
    ask = b"GET /mcp HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
    case = Case("a stream", exchange(ask, [head, *pieces]))
    runner.run(compare(case, plain_place.listening, plain_place.gateway.port))


# ---- exchanges that end too early ----


@st.composite
def dying(draw: st.DrawFn) -> tuple[bytes, bytes, End]:
    """A request, as much as comes of its answer, and how the upstream ends then."""
    asked, _ = draw(framed(draw(methods) + b" /mcp HTTP/1.1", [b"Host: localhost"], _UP))
    answered, _ = draw(framed(b"HTTP/1.1 200 OK", [], _DOWN[1:]))
    return asked, answered[: draw(st.integers(0, len(answered)))], draw(st.sampled_from(["fin", "rst"]))


@settings(max_examples=EXAMPLES // 2, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(death=dying())
def test_an_upstream_that_dies_anywhere_leaves_no_answer_that_is_whole_and_wrong(
    plain_place: Place, runner: asyncio.Runner, death: tuple[bytes, bytes, End]
) -> None:
    runner.run(_dies(plain_place, *death))


async def _dies(place: Place, asked: bytes, answered: bytes, how: End) -> None:
    direct = Reader()
    direct.feed(answered)
    expected = [m for m in direct.responses([b"ANY"], how) if m.is_final]
    async with rig_at(place) as rig:
        one = await rig.client(asked)
        peer = await rig.upstream.request()
        await peer.send(answered)
        peer.finish() if how == "fin" else peer.reset()
        got = await one.response()
        if got.whole and got.status != 502:
            assert expected and expected[0].whole, "ended as if it were whole"
            assert (got.status, got.body, got.trailers) == (200, expected[0].body, expected[0].trailers)
        elif got.status == 502:
            assert how == "rst" or not expected, "an answer was there"
        else:
            assert how == "rst" or (expected and not expected[0].whole), "a whole answer was cut"
            assert expected and expected[0].body.startswith(got.body)


@settings(max_examples=EXAMPLES // 3, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(exchanged=dying(), sent=st.floats(0, 1))
def test_a_client_that_leaves_anywhere_leaves_nothing_behind(
    plain_place: Place, runner: asyncio.Runner, exchanged: tuple[bytes, bytes, End], sent: float
) -> None:
    runner.run(_leaves(plain_place, *exchanged, sent))


async def _leaves(place: Place, asked: bytes, answered: bytes, how: End, sent: float) -> None:
    """The client leaves when so much of its request is sent, and so much of an answer has come."""
    part = asked[: round(len(asked) * sent)] if sent < 1 else asked
    async with rig_at(place) as rig:
        one = await rig.client(part)
        if sent == 1:
            peer = await rig.upstream.request()
            await peer.send(answered)
        one.finish() if how == "fin" else one.reset()

        async def nobody_left() -> bool:
            return (await rig.gateway.metrics())["taskgate_connections", ()] == 0

        await eventually(nobody_left, "no connection of a client's is left")
        await rig.canary()
        for peer in rig.upstream.connections:
            if peer.incoming.requests() and not peer.incoming.requests()[0].whole:
                assert await peer.ends() in ("fin", "rst"), "half a request is kept open"
