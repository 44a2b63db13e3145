"""Long and odd values in every field that an error can name: what tells of them is small, and costs little (a ratio).

ATTACK_EXAMPLES sets how many random values there are.
"""

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import pytest

from tests.attack.test_generated import EXAMPLES
from tests.forked import fork_of
from tests.launch import Gateways, listening, port_of
from tests.peer import Client, Peer
from tests.relay.http1 import Message
from tests.relay.messages import call, dumps, fault, filtered, page, result, task
from tests.relay.rig import Place, Rig, body, rig_at
from tests.relay.wire import answer, chunked, post, request, response

VALUE_BYTES: Final = 60_000  # a head has 64 KiB at most
ERROR_BYTES_MAX: Final = 64 * 1024  # of a list with a fault in each criterion; of any other it is a few KiB
LINE_BYTES_MAX: Final = 4 * 1024
STATUS_BYTES_MAX: Final = 256 * 1024
COST_MAX: Final = 20.0  # times that of a plain value (docs/performance.md, Hostile streams)
AT_ONCE: Final = 2  # requests of which the cost is measured
TRIES: Final = 3  # of what costs too much: another process may have done it
RANDOM: Final = EXAMPLES // 50
ALL_UNITS: Final = 500  # from so many examples on each value is made of all units; below, of some that are drawn
SOME_UNITS: Final = 8

# C1 controls, quotes and escapes; what splits lists, lines and targets; what is not assigned, or no character.
UNITS: Final = (
    "\x85", "\xff", '"', "\\", "a", "A", "a,", ",", ";", "=", "&", "%", "%85", "\t", "9", ":", "/", "\u2028", "\ufffd",
    "\U0001fffe",
)  # fmt: skip

InFlight: TypeAlias = Callable[[bytes], bytes]
Tell: TypeAlias = Callable[[str], Any]
EVIL: Final = b"Origin: http://evil.example"


def _in_chunks(sent: bytes) -> bytes:
    return request(b"POST", fields=[b"Content-Type: application/json", b"Transfer-Encoding: chunked"]) + sent


IN_HEADS: Final[Mapping[str, InFlight]] = {
    "Connection": lambda v: request(fields=[b"Connection: " + v, EVIL]),
    "a field of MCP in Connection": lambda v: request(fields=[b"Connection: mcp-" + v]),
    "Host": lambda v: request(host=v),
    "a second Host": lambda v: request(fields=[b"Host: " + v]),
    "Origin": lambda v: request(fields=[b"Origin: " + v]),
    "an Origin with a scheme": lambda v: request(fields=[b"Origin: http://" + v]),
    "Transfer-Encoding": lambda v: request(b"POST", fields=[b"Transfer-Encoding: " + v]),
    "Content-Length": lambda v: request(b"POST", fields=[b"Content-Length: x" + v]),
    "the method": lambda v: request(v),
    "the target": lambda v: request(target=b"/" + v, fields=[EVIL]),
    "the authority": lambda v: request(target=b"http://" + v + b"/"),
    "the version": lambda v: request(version=b"HTTP/1.1" + v),
    "the name of a field": lambda v: request(fields=[v + b": x", EVIL]),
    "Mcp-Session-Id": lambda v: request(fields=[b"Mcp-Session-Id: " + v, b"Mcp-Session-Id: x"]),
    "Mcp-Protocol-Version": lambda v: request(fields=[b"Mcp-Protocol-Version: " + v, b"Mcp-Protocol-Version: x"]),
    **{
        name.decode(): lambda v, name=name: request(fields=[name + b": " + v, b"Connection: cookie"])  # type: ignore[misc]
        for name in (b"X-Request-Id", b"Traceparent", b"Expect", b"Upgrade", b"TE", b"Forwarded", b"X-Forwarded-Proto")
    },
    "a trailer": lambda v: _in_chunks(chunked(b"x", trailers=[b"Connection: " + v])),
    "the name of a trailer": lambda v: _in_chunks(chunked(b"x", trailers=[v + b": x", b"Connection: x"])),
    "the size of a chunk": lambda v: _in_chunks(b"z" + v + b"\r\n"),
    "an extension of a chunk": lambda v: _in_chunks(b"1;" + v + b"\r\nx\r\nzz\r\n"),
}


def _list(**params: Tell) -> Tell:
    return lambda v: filtered(**{name: value(v) for name, value in params.items()})


def _split(value: str) -> list[str]:
    """Ten values, of 12 kB together: criteria have a limit of their own."""
    return [value[at : at + 1200] for at in range(0, 12_000, 1200)]


IN_MESSAGES: Final[Mapping[str, Tell]] = {
    "the id": lambda v: filtered(v, status=7),
    "the method": lambda v: call(v),
    "a member's name": lambda v: filtered(**{v: 1, "status": 7}),
    "the name of a criterion": lambda v: filtered(filter={v: 1}),
    "a criterion that is an object": _list(status=lambda v: {v: v}),
    "status": _list(status=lambda v: v),
    "methods": _list(methods=lambda v: v),
    "createdAfter": _list(createdAfter=lambda v: v),
    "orderBy": _list(orderBy=lambda v: v),
    "filter": _list(filter=lambda v: v),
    "every criterion": _list(
        methods=_split,
        requestTypes=_split,
        status=_split,
        createdAfter=lambda v: v[:12_000],
        filter=lambda v: {"methods": _split(v), "status": _split(v), **{v[:at]: 1 for at in range(100, 110)}},
    ),
    "a cursor": _list(status=lambda _: ["working"], cursor=lambda v: v),
    **{
        f"a cursor behind {begun}": _list(cursor=lambda v, begun=begun: begun + v)  # type: ignore[misc]
        for begun in ("taskgate1.", "taskgate4.", "taskgate:", "taskgate:?", "taskgate:?status=", "taskgate:?order=")
    },
}

# From an upstream, as the answer to a request that is relayed, and to one of the gateway's own.
IN_ANSWERS: Final[Mapping[str, InFlight]] = {
    "the status": lambda v: b"HTTP/1.1 " + v + b"\r\n\r\n",
    "the version": lambda v: b"HTTP/" + v + b" 200 OK\r\n\r\n",
    "no HTTP": lambda v: v + b"\r\n\r\n",
    "the reason": lambda v: response(b"", status=b"500 " + v),
    "the name of a field": lambda v: response(b"", v + b": x", b" : x"),
    "a field": lambda v: response(b"", b"X: " + v, b" : x"),
    "Transfer-Encoding": lambda v: b"HTTP/1.1 200 OK\r\nTransfer-Encoding: " + v + b"\r\n\r\n",
    "Content-Length": lambda v: b"HTTP/1.1 200 OK\r\nContent-Length: " + v + b"\r\n\r\n",
    "Content-Encoding": lambda v: answer(b"{}", b"Content-Encoding: " + v),
    "Content-Type": lambda v: response(b"{}", b"Content-Type: " + v),
    "WWW-Authenticate": lambda v: response(b"", b"WWW-Authenticate: " + v, status=b"401 Unauthorized"),
    "the body": lambda v: answer(v),
    "the size of a chunk": lambda v: b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nz" + v + b"\r\n",
}

# ... and in the JSON of its answer to a `tasks/list` of the gateway's own.
IN_LISTS: Final[Mapping[str, Tell]] = {
    "the tasks": lambda v: result(0, {"tasks": v}),
    "a member": lambda v: result(0, {v: v}),
    "a member of a task": lambda v: result(0, {"tasks": [{**task("t"), v: v, "createdAt": 7}]}),
    "a task's id": lambda v: result(0, {"tasks": [{**task("t"), "taskId": {v: v}}]}),
    "an instant": lambda v: result(0, {"tasks": [{"taskId": "t", "status": v, "createdAt": v}]}),
    "a cursor": lambda v: result(0, page([], v)),
    "an error": lambda v: fault(0, -32603, v),
    "the code of an error": lambda v: {**fault(0, 0, v), "error": {"code": v}},
}


Json: TypeAlias = dict[str, Any]


class Hostile:
    """An upstream that answers with what is set, and to the rest as a server of tasks does."""

    def __init__(self) -> None:
        self.said: bytes | Json = b""

    async def __call__(self, asked: Message, _peer: Peer) -> bytes:
        message = body(asked)
        if asked.target == b"/last" or not self.said:
            return answer(result(message["id"], page([]))) if isinstance(message, dict) else response()
        if isinstance(self.said, bytes):
            return self.said
        return answer({**self.said, "id": message["id"]})


@pytest.fixture(scope="module")
def long_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A process whose log has a line for each request, and which asks the upstream for each list."""
    gateways = Gateways(tmp_path_factory.mktemp("long"), fork_of)
    with listening() as sock, gateways.process(port_of(sock), index={"max_age": 0}) as gateway:
        yield Place(gateway, sock)


async def _cost(rig: Rig, asked: bytes) -> tuple[float, Message]:
    """The CPU of a request in the gateway, in seconds, and the answer."""
    clock = (~rig.gateway.running.popen.pid << 3) | 2  # as clock_getcpuclockid(3) has it
    began_s = time.clock_gettime(clock)
    for _ in range(AT_ONCE):
        got = await rig.ask(asked)
    await rig.ask(request(target=b"/last"))  # behind all that is left to do
    return (time.clock_gettime(clock) - began_s) / AT_ONCE, got


def _values(name: str) -> Iterator[str]:
    chosen = random.Random(name)
    units = UNITS if EXAMPLES >= ALL_UNITS else chosen.sample(UNITS, SOME_UNITS)
    for unit in (*units, *("".join(chosen.choices(UNITS, k=chosen.randint(2, 50))) for _ in range(RANDOM))):
        yield unit * (VALUE_BYTES // len(unit.encode()))


def _bytes(value: str) -> bytes:
    """As it stands in a head: a byte for a character, if that can be."""
    return value.encode("latin-1") if max(value) < "\u0100" else value.encode()


def _error_bytes(got: Message) -> int:
    """The size of the gateway's own error; 0 where the upstream's passes."""
    said = body(got) if got.status in (400, 403, 414, 431, 502, 505) or b'"code":-32602' in got.body else None
    return len(dumps(said["error"])) if isinstance(said, dict) and "error" in said else 0


async def _play(place: Place, name: str, make: Callable[[str], tuple[bytes, bytes | Json]]) -> None:
    """Ask with each value, and have it answered so. `make` gives the request and the answer."""
    found, server, logged = [], Hostile(), len(place.gateway.log)
    async with rig_at(place) as rig:
        rig.serve(server)
        await asyncio.to_thread(rig.gateway.get, "/page/status.json")  # from now on it keeps every request
        refused = request(fields=[EVIL, b"X: " + b"x" * VALUE_BYTES])
        plain = min([(await _cost(rig, refused))[0] for _ in range(TRIES)])
        for value in _values(name):
            asked, server.said = make(value)
            cost, got = await _cost(rig, asked)
            for _ in range(TRIES if cost > COST_MAX * plain else 0):
                cost = min(cost, (await _cost(rig, asked))[0])
            if _error_bytes(got) > ERROR_BYTES_MAX or cost > COST_MAX * plain:
                found.append(f"{value[:20]!r}: {_error_bytes(got)} bytes, {cost / plain:.1f} times the CPU")
        _, status = await asyncio.to_thread(rig.gateway.get, "/page/status.json")
        line_bytes = max(map(len, rig.gateway.log[logged:].encode().split(b"\n")))
        if len(status.encode()) > STATUS_BYTES_MAX or line_bytes > LINE_BYTES_MAX:
            found.append(f"a page of {len(status.encode())} bytes, a line of {line_bytes}")
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", IN_HEADS)
async def test_in_a_clients_head(long_place: Place, name: str) -> None:
    """A `Connection` of 60 kB of NEL held the loop for 165 ms; its line had 360 kB, and the page 21 MB."""
    await _play(long_place, name, lambda value: (IN_HEADS[name](_bytes(value)), b""))


@pytest.mark.parametrize("name", IN_MESSAGES)
async def test_in_a_clients_message(long_place: Place, name: str) -> None:
    await _play(long_place, name, lambda value: (post(IN_MESSAGES[name](value)), b""))


@pytest.mark.parametrize("own", [False, True], ids=["relayed", "own"])
@pytest.mark.parametrize("name", IN_ANSWERS)
async def test_in_an_upstreams_answer(long_place: Place, name: str, own: bool) -> None:
    asked = post(filtered()) if own else request()
    await _play(long_place, name, lambda value: (asked, IN_ANSWERS[name](_bytes(value))))


@pytest.mark.parametrize("name", IN_LISTS)
async def test_in_an_upstreams_list(long_place: Place, name: str) -> None:
    await _play(long_place, name, lambda value: (post(filtered()), IN_LISTS[name](value)))


@pytest.mark.slow
async def test_at_the_admin_listener(long_place: Place) -> None:
    """What cannot be read stood in the log with all that is in it: 40 kB a line, and a query with its token."""
    gateway, logged = long_place.gateway, len(long_place.gateway.log)
    for make in (lambda v: request(target=b"/?token=secret", version=b"HTTP/" + v), *IN_HEADS.values()):
        for unit in UNITS:
            one = await Client.connect(gateway.admin)
            await one.send(make(_bytes(unit * 4000)))
            await one.until(lambda one=one: bool(one.received) or one.end != "open", "an answer")  # type: ignore[misc]
            await one.close()
    said = gateway.log[logged:]
    assert "secret" not in said
    assert max(map(len, said.encode().split(b"\n"))) <= LINE_BYTES_MAX
