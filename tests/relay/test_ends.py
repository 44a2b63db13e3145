"""What is whole when its sender ends the connection right behind it: each kind of connection, end and pause (3.5).

RFC 9112, 9.8: what has its whole length is complete, whatever the end. What only the end of the connection ends is
complete over TLS if a close_notify came.
"""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path
from threading import Thread
from time import sleep
from typing import Any, Final

import pytest

from tests.launch import Gateways, Json
from tests.peer import WAIT_S
from tests.relay.http1 import End, Message, Reader
from tests.relay.rig import Place, Rig, rig_at
from tests.relay.wire import chunked, request, response
from tests.upstream import length_of

KINDS: Final = ("plain", "tls", "unix")
PLACES: Final = (("plain", "process"), ("tls", "process"), ("tls", "in_process"), ("unix", "in_process"))
ENDS: Final = ("FIN", "close_notify", "close_notify and FIN")
PIECE: Final = bytes(range(256)) * 1024


class Ending:
    """A server in threads: it answers each request with what `answer` makes of its target, and ends the connection."""

    def __init__(self, kind: str, path: str, tls: Json) -> None:
        self.listening = socket.socket(socket.AF_UNIX if kind == "unix" else socket.AF_INET)
        self.listening.bind(path if kind == "unix" else ("127.0.0.1", 0))
        self.listening.listen(128)
        self.port = 1 if kind == "unix" else self.listening.getsockname()[1]
        self._context: ssl.SSLContext | None = None
        if kind == "tls":
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.load_cert_chain(tls["certificate"], tls["key"])
        self.answer: Callable[[bytes], bytes] = lambda _: response()
        self.end = "FIN"
        self.wait_s = 0.0  # until it reads a body
        self.got = b""

    def accept(self) -> None:
        with suppress(OSError):  # it is closed
            while True:
                Thread(target=self._serve, args=(self.listening.accept()[0],), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with closing(sock), suppress(OSError):
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = self._context and self._context.wrap_bio(incoming, outgoing, server_side=True)

            def step(do: Callable[[], bytes | int | None]) -> bytes | int | None:
                while True:
                    try:
                        return do()
                    except ssl.SSLWantReadError:
                        sock.sendall(outgoing.read())
                        if not (got := sock.recv(1 << 16)):
                            raise ConnectionError from None
                        incoming.write(got)

            if tls:
                step(tls.do_handshake)
            head = b""
            while b"\r\n\r\n" not in head:
                got = step(lambda: tls.read(1 << 16)) if tls else sock.recv(1 << 16)
                if not got:
                    return
                assert isinstance(got, bytes)
                head += got
            head, _, body = head.partition(b"\r\n\r\n")
            sleep(self.wait_s)
            while len(body) < length_of(head):
                body += sock.recv(1 << 16)
            self.got = body
            said = self.answer(head)
            if tls:
                tls.write(said)
                if "close_notify" in self.end:
                    with suppress(ssl.SSLWantReadError):
                        tls.unwrap()
                said = outgoing.read()
            sock.sendall(said)
            if "FIN" in self.end:
                sock.shutdown(socket.SHUT_WR)
            while sock.recv(1 << 16):
                pass


@contextmanager
def ending(kind: str, folder: Path, tls: Json) -> Iterator[Ending]:
    server = Ending(kind, str(folder / "up.sock"), tls)
    thread = Thread(target=server.accept, daemon=True)
    thread.start()
    yield server
    with suppress(OSError):
        server.listening.shutdown(socket.SHUT_RDWR)
    server.listening.close()
    thread.join()


def upstream(server: Ending, kind: str, folder: Path, tls: Json) -> Json:
    if kind == "tls":
        return {
            "url": f"https://127.0.0.1:{server.port}/mcp",
            "tls": {"ca": tls["certificate"], "server_name": "localhost"},
        }
    return {"socket": str(folder / "up.sock")} if kind == "unix" else {}


@asynccontextmanager
async def about(gateways: Gateways, server: Ending, where: str, **changed: Any) -> AsyncIterator[Rig]:
    async with AsyncExitStack() as stack:
        if where == "process":
            gateway = stack.enter_context(gateways.process(server.port, **changed))
        else:
            gateway = await stack.enter_async_context(gateways.in_process(server.port, **changed))
        yield await stack.enter_async_context(rig_at(Place(gateway, stack.enter_context(socket.socket()))))


def sized(head: bytes) -> bytes:
    """A body as long as the target says."""
    size = int(head.split(b" ")[1][1:])
    return (PIECE * (size // len(PIECE) + 1))[:size]


INFORMED: Final = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" * 250
FRAMED: Final[dict[str, Callable[[bytes], bytes]]] = {
    "a length": lambda head: response(sized(head), b"Connection: close"),
    "chunks": lambda head: b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(sized(head)),
    "behind 1xx": lambda head: INFORMED + response(sized(head)),
}


MANY: Final = [1000, *(260_000 + 49_157 * number for number in range(12))]  # records end anywhere in a turn
SLOW: Final = [6_000_000]


async def cut(port: int, sizes: list[int], is_slow: bool = False) -> list[int]:
    """The sizes of those answers that were cut."""
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(len(sizes)) as threads:  # the gateway looks up names in the loop's own
        answers = [loop.run_in_executor(threads, asked, port, size, is_slow) for size in sizes]
        pairs = zip(sizes, await asyncio.gather(*answers), strict=True)
        return [size for size, answer in pairs if not answer.whole or answer.body != sized(b"GET /%d " % size)]


def asked(port: int, size: int, is_slow: bool = False) -> Message:
    return exchanged(port, request(target=b"/%d" % size, fields=[b"Connection: close"]), is_slow)


def exchanged(port: int, said: bytes, is_slow: bool = False) -> Message:
    """The answer to a request that is the last of its connection."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << (14 if is_slow else 20))
        sock.settimeout(WAIT_S)
        sock.connect(("127.0.0.1", port))
        sock.sendall(said)
        sleep(0.3 * is_slow)
        read = Reader()
        end: End = "fin"
        try:
            while piece := sock.recv(1 << 16):
                read.feed(piece)
        except ConnectionResetError:
            end = "rst"
        return read.responses([b"GET"], end)[-1]


@pytest.mark.parametrize(("kind", "where"), PLACES)
async def test_an_answer_that_its_servers_end_follows_is_whole(
    gateways: Gateways, tls: Json, tmp_path: Path, kind: str, where: str
) -> None:
    """Reading pauses for other connections, a slow client, 1xx responses, and room in the buffers of all."""
    tight = {"held_bytes_max": "1MiB", "inspected_body_bytes_max": "512KiB"}
    with ending(kind, tmp_path, tls) as server:
        lost = {}
        for limits in ({}, tight):
            async with about(
                gateways, server, where, upstream=upstream(server, kind, tmp_path, tls), limits=limits
            ) as rig:
                for server.end in ENDS if kind == "tls" else ENDS[:1]:
                    for framing, server.answer in FRAMED.items():
                        key = bool(limits), server.end, framing
                        lost[key, "many"] = await cut(rig.gateway.port, MANY)
                        lost[key, "slow"] = await cut(rig.gateway.port, SLOW, True)
        assert not any(lost.values()), {key: value for key, value in lost.items() if value}


@pytest.mark.parametrize("where", ["process", "in_process"])
async def test_what_only_an_end_ends_is_whole_by_a_close_notify_alone(
    gateways: Gateways, tls: Json, tmp_path: Path, where: str
) -> None:
    """Over TLS anybody between the two can send a FIN (RFC 9112, 9.8)."""
    with ending("tls", tmp_path, tls) as server:
        server.answer = lambda head: b"HTTP/1.1 200 OK\r\n\r\n" + sized(head)
        async with about(gateways, server, where, upstream=upstream(server, "tls", tmp_path, tls)) as rig:
            whole = {}
            for server.end in ENDS:
                answer = await asyncio.to_thread(asked, rig.gateway.port, 500_000)
                whole[server.end] = answer.whole
                assert answer.body == sized(b"GET /500000 "), "every byte passes"
    assert whole == {end: end != "FIN" for end in ENDS}


@pytest.mark.parametrize(("kind", "where"), PLACES)
async def test_an_upload_and_an_answer_that_the_gateways_end_follows_are_whole(
    gateways: Gateways, tls: Json, tmp_path: Path, kind: str, where: str
) -> None:
    """The server is slow to take the one, and the client the other."""
    path = str(tmp_path / "down.sock")
    changed: Json = {"tls": tls} if kind == "tls" else {"listen": f"unix:{path}"} if kind == "unix" else {}

    def uploaded(port: int) -> Message:
        with socket.socket(socket.AF_UNIX if kind == "unix" else socket.AF_INET) as plain:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
            plain.settimeout(WAIT_S)
            plain.connect(path if kind == "unix" else ("127.0.0.1", port))
            trusts = ssl.create_default_context(cafile=tls["certificate"])
            with trusts.wrap_socket(plain, server_hostname="localhost") if kind == "tls" else plain as sock:
                sock.sendall(request(b"PUT", b"/%d" % SLOW[0], [b"Connection: close"], PIECE * 20))
                sleep(0.3)
                read = Reader()
                while piece := sock.recv(1 << 16):  # without a close_notify this raises
                    read.feed(piece)
                return read.responses([b"PUT"], "fin")[-1]

    with ending("plain", tmp_path, tls) as server:
        server.answer, server.wait_s = lambda head: response(sized(head)), 0.3
        async with about(gateways, server, where, **changed) as rig:
            answer = await asyncio.to_thread(uploaded, rig.gateway.port)
    assert (answer.whole, answer.body) == (True, sized(b"PUT /%d " % SLOW[0]))
    assert server.got == PIECE * 20
