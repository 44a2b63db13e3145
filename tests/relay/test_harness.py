"""The harness finds what it must: a plain byte proxy passes the comparison, and with one wilful fault fails it."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from tests.launch import listening, port_of
from tests.relay.harness import Case, Step, client_leaves, compare, exchange, upstream_ends
from tests.relay.messages import call
from tests.relay.wire import LAST_CHUNK, chunk, event, post, request, response, stream


@dataclass(frozen=True)
class Faults:
    """What the proxy does wrong."""

    up: tuple[bytes, bytes] = (b"", b"")  # what is replaced, and by what
    down: tuple[bytes, bytes] = (b"", b"")
    delay_s: float = 0.0  # of what carries a second event
    holds_stream: bool = False  # until it ends
    ends_cleanly: bool = False  # with a last chunk what was cut, and by a FIN what was reset
    stays: bool = False  # when the client has left
    asks_twice: bool = False


def changed(data: bytes, old: bytes, new: bytes) -> bytes:
    return data.replace(old, new) if old else data


@asynccontextmanager
async def byte_proxy(upstream_port: int, faults: Faults) -> AsyncIterator[int]:
    """A proxy that copies bytes both ways, and so connections one to one; gives its port."""
    tasks: list[asyncio.Task[None]] = []
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", upstream_port)
        writers.extend((writer, up_writer))
        down = asyncio.create_task(copy_down(up_reader, writer))
        tasks.append(down)
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                data = changed(data.replace(b"Host: localhost", b"Host: 127.0.0.1:%d" % upstream_port), *faults.up)
                up_writer.write(data * 2 if faults.asks_twice else data)
        if not faults.stays:
            up_writer.close()

    async def copy_down(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held = b""
        try:
            while data := await reader.read(65536):
                if faults.delay_s and b"two" in data:
                    await asyncio.sleep(faults.delay_s)
                if faults.holds_stream and b"data: " in data:
                    held += data
                else:
                    writer.write(changed(data, *faults.down))
            writer.write(held + (LAST_CHUNK if faults.ends_cleanly else b""))
        except OSError:
            if not faults.ends_cleanly:
                linger = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield port_of(server.sockets[0])
    finally:
        server.close()
        for writer in writers:
            writer.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


ASK = post(call("tools/call"), b"Mcp-Session-Id: 0f8c", b"X-Order: 1", b"X-Order: 2", target=b"/a%2Fb//c?")
ONE = chunk(event(b'"one"', b"id: 1"))
EVENTS = [stream(b"Mcp-Session-Id: 0f8c"), ONE, chunk(event(b'"two"', b"id: 2"))]

EXCHANGE = Case("an exchange", exchange(ASK, response(b"answer", b"Mcp-Session-Id: 0f8c", b"Set-Cookie: a, b")))
STREAM = Case("a stream", exchange(ASK, [*EVENTS, LAST_CHUNK]))
CUT = Case("a cut", [*exchange(ASK, EVENTS), upstream_ends("fin")])
_UNTIL: list[Step] = exchange(request(), [b"HTTP/1.1 200 OK\r\n\r\n", b"half"])
RESET = Case("a reset", [*_UNTIL, upstream_ends("rst")])
LEAVING = Case("a client that leaves", [*exchange(ASK, EVENTS), client_leaves("fin")])


@pytest.mark.parametrize("case", (EXCHANGE, STREAM, CUT, RESET, LEAVING), ids=lambda case: case.name)
async def test_no_fault_no_difference(case: Case) -> None:
    with listening() as straight, listening() as sock:
        async with byte_proxy(port_of(sock), Faults()) as port:
            await compare(case, straight, sock, port)


SWAPPED = b"X-Order: 2\r\nX-Order: 1"
FAULTY: dict[str, tuple[Case, Faults, str]] = {
    "a header lower-cased": (EXCHANGE, Faults(down=(b"Set-Cookie", b"set-cookie")), "a response"),
    "a session id dropped": (EXCHANGE, Faults(up=(b"Mcp-Session-Id: 0f8c\r\n", b"")), "a request"),
    "a session id dropped from the answer": (EXCHANGE, Faults(down=(b"Mcp-Session-Id: 0f8c\r\n", b"")), "a response"),
    "headers reordered": (EXCHANGE, Faults(up=(b"X-Order: 1\r\nX-Order: 2", SWAPPED)), "a request"),
    "repeated headers joined": (EXCHANGE, Faults(up=(b"X-Order: 1\r\nX-Order: 2", b"X-Order: 1, 2")), "a request"),
    "a header added": (EXCHANGE, Faults(up=(b"\r\nX-Order: 1", b"\r\nVia: 1\r\nX-Order: 1")), "a request"),
    "a target decoded": (EXCHANGE, Faults(up=(b"%2F", b"/")), "a request"),
    "an empty query dropped": (EXCHANGE, Faults(up=(b"? HTTP", b" HTTP")), "a request"),
    "a status line changed": (EXCHANGE, Faults(down=(b"200 OK", b"200 Ok")), "a response"),
    "a byte changed": (EXCHANGE, Faults(down=(b"answer", b"Answer")), "a response"),
    "another Host": (EXCHANGE, Faults(up=(b"Host: 127", b"Host: 128")), "a request"),
    "a request sent twice": (EXCHANGE, Faults(asks_twice=True), "the number of requests"),
    "one chunk delayed by a second": (STREAM, Faults(delay_s=1.0), "for what takes"),
    "a stream held until its end": (STREAM, Faults(holds_stream=True), "not within"),
    "an event twice": (STREAM, Faults(down=(ONE, 2 * ONE)), "a response"),
    "an event's id dropped": (STREAM, Faults(down=(b"id: 1\n", b"id:\nx:")), "a response"),
    "a truncated body ended cleanly": (CUT, Faults(ends_cleanly=True), "the outcome"),
    "a reset passed on as an end": (RESET, Faults(ends_cleanly=True), "the outcome"),
    "an upstream kept when the client has left": (LEAVING, Faults(stays=True), "the end of the connection"),
}


@pytest.mark.parametrize("fault", FAULTY)
async def test_a_wilful_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, faults, found = FAULTY[fault]
    monkeypatch.setattr("tests.peer.WAIT_S", 1.5)  # what never comes need not be waited for at length
    with listening() as straight, listening() as sock:
        async with byte_proxy(port_of(sock), faults) as port:
            with pytest.raises(AssertionError, match=found):
                await compare(replace(case, name=fault), straight, sock, port)
