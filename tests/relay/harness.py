"""The comparison: one case, run directly and through the gateway, and what may differ between the two recordings.

In: a `Case`, which is a transcript: what the client and the upstream send, byte for byte, in which order, and what each
waits for. Out: a `Recording` of each run: what the upstream received, what the client received, how it ended, how long
each piece took. `differences` compares them; what it permits is what DESIGN 3 lists, and nothing else.

Always: real sockets; every wait is for a condition and has an end; an upstream's piece is sent only when the piece
before it has arrived at the client, so what is held back is seen, and what is late is measured.
"""

import asyncio
import contextlib
import re
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from tests.relay.http1 import End, Fields, Malformed, Message, Reader

WAIT_S: Final = 5.0  # for what must happen: long, because a machine may be busy; a test fails when it is over
LAG_MAX_S: Final = 0.8  # how much later than directly a piece may arrive through the gateway on a busy machine
GAP_S: Final = 0.001  # between two pieces of one sender, so that they arrive as two
RECEIVE_BYTES: Final = 1 << 18


class NotInTime(AssertionError):
    """What had to happen did not, within WAIT_S."""


# ---- the two ends ----


class Peer:
    """One end of a connection: sends the bytes it is told to, records what arrives, when, and how it ended."""

    def __init__(self, sock: socket.socket, news: "Callable[[Peer], None] | None" = None) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.incoming = Reader()
        self.outgoing = Reader()
        self.arrivals: list[tuple[float, int]] = []  # monotonic time, bytes received by then
        self.end: End = "open"
        self.closed = False  # by us
        self.sock = sock
        self._news = news
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.resume()

    @property
    def received(self) -> bytearray:
        """Every byte that has arrived."""
        return self.incoming.data

    @property
    def sent(self) -> bytearray:
        """Every byte that was sent."""
        return self.outgoing.data

    def _receive(self) -> None:
        """Take in all that is there. No task does this: one that is cancelled loses what it has just received."""
        try:
            while data := self.sock.recv(RECEIVE_BYTES):
                self.incoming.feed(data)
                self.arrivals.append((time.monotonic(), len(self.received)))
                self._tell()
            self._end("fin")
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self._end("rst")

    def _end(self, how: End) -> None:
        self.end = how
        self.pause()
        self._tell()

    def _tell(self) -> None:
        if self._news is not None:
            self._news(self)
        self._changed.set()

    async def send(self, *pieces: bytes) -> None:
        """Send the pieces, one segment each. A connection that the other side has cut takes no more: that is all."""
        for at, piece in enumerate(pieces):
            if at:
                await asyncio.sleep(GAP_S)
            self.outgoing.feed(piece)
            with contextlib.suppress(ConnectionError):
                async with asyncio.timeout(WAIT_S):
                    await self._loop.sock_sendall(self.sock, piece)

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Return once `condition` holds, which is looked at whenever something arrives or the connection ends."""
        deadline = time.monotonic() + WAIT_S
        while not condition():
            self._changed.clear()
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    await self._changed.wait()
            except TimeoutError:
                shown = bytes(self.received[-600:])
                raise NotInTime(f"{what}: not within {WAIT_S:g} s; connection {self.end}, received {shown!r}") from None

    async def hears(self, data: bytes, times: int = 1) -> None:
        """Return once `data` has arrived, so many times."""
        await self.until(lambda: self.received.count(data) >= times, f"{data[:200]!r}")

    async def ends(self) -> End:
        """Return once the other side has left: how."""
        await self.until(lambda: self.end != "open", "the end of the connection")
        return self.end

    def pause(self) -> None:
        """Read no more: a slow reader, whose window fills."""
        self._loop.remove_reader(self.sock)

    def resume(self) -> None:
        """Read on."""
        if self.end == "open":
            self._loop.add_reader(self.sock, self._receive)

    def finish(self) -> None:
        """Say that no more will be sent: FIN."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Cut the connection: RST."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._let_go()

    async def close(self) -> None:
        """Let go of the connection."""
        if not self.closed:
            self._let_go()

    def _let_go(self) -> None:
        self.closed = True
        # Else the loop still watches the descriptor, which may be another connection's by then.
        self._loop.remove_reader(self.sock)
        self._loop.remove_writer(self.sock)
        self.sock.close()


class Client(Peer):
    """A raw client."""

    @classmethod
    async def connect(cls, port: int) -> "Client":
        """A connection to 127.0.0.1."""
        sock = socket.socket()
        sock.setblocking(False)
        async with asyncio.timeout(WAIT_S):
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        return cls(sock)

    def responses(self) -> list[Message]:
        """What has been answered so far to what was sent, 1xx included; the last one may not be whole."""
        return self.incoming.responses(self.outgoing.methods(), self.end)

    async def response(self, number: int = 1) -> Message:
        """The final response of that number, once it is whole or the connection has ended."""

        def finals() -> list[Message]:
            return [m for m in self.responses() if m.is_final]

        await self.until(
            lambda: self.end != "open" or (len(finals()) >= number and finals()[number - 1].whole),
            f"response {number}",
        )
        if len(finals()) < number:
            raise AssertionError(f"no response {number}; connection {self.end}, received {bytes(self.received)!r}")
        return finals()[number - 1]


class Upstream:
    """A scripted upstream: takes connections on a socket that listens already, and knows every request on them."""

    def __init__(self, listening: socket.socket) -> None:
        self.listening = listening
        self.connections: list[Peer] = []
        self._order: list[tuple[Peer, int]] = []  # connection, and place on it, of each request whose head has come
        self._heads: dict[Peer, int] = {}
        self._changed = asyncio.Event()
        self._forget_backlog()
        self._accepting: asyncio.Task[None] | None = None
        if listening.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            self.open()

    @property
    def port(self) -> int:
        port: int = self.listening.getsockname()[1]
        return port

    def open(self) -> None:
        """Take connections, on a socket that did not listen before or does."""
        self.listening.listen(128)
        self._accepting = asyncio.create_task(self._accept())

    def _forget_backlog(self) -> None:
        self.listening.setblocking(False)
        with contextlib.suppress(OSError):  # nobody is there, or it does not listen yet
            while True:
                self.listening.accept()[0].close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            sock, _ = await loop.sock_accept(self.listening)
            self.connections.append(Peer(sock, self._arrived))
            self._changed.set()

    def _arrived(self, peer: Peer) -> None:
        with contextlib.suppress(Malformed):
            known = self._heads.get(peer, 0)
            self._heads[peer] = peer.incoming.count()
            self._order += [(peer, place) for place in range(known, self._heads[peer])]
        self._changed.set()

    @property
    def requests(self) -> list[Message]:
        """Every request whose head has come, in the order of arrival; the last on a connection may not be whole."""
        return [peer.incoming.requests()[place] for peer, place in self._order]

    def _is_whole(self, number: int) -> bool:
        if len(self._order) < number:
            return False
        peer, place = self._order[number - 1]
        return peer.incoming.requests()[place].whole

    async def until(self, condition: Callable[[], bool], what: str, wait_s: float = WAIT_S) -> None:
        """Return once `condition` holds, which is looked at whenever something happens on any connection."""
        deadline = time.monotonic() + wait_s
        while not condition():
            self._changed.clear()
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    await self._changed.wait()
            except TimeoutError:
                got = [bytes(peer.received[-400:]) for peer in self.connections]
                raise NotInTime(f"{what}: not within {wait_s:g} s; the upstream received {got!r}") from None

    async def head(self, number: int = 1) -> Peer:
        """The connection of the request of that number, once its head has come."""
        await self.until(lambda: len(self._order) >= number, f"the head of request {number} at the upstream")
        return self._order[number - 1][0]

    async def request(self, number: int = 1, wait_s: float = WAIT_S) -> Peer:
        """The connection of the request of that number, once it is whole."""
        await self.until(lambda: self._is_whole(number), f"the whole of request {number} at the upstream", wait_s)
        return self._order[number - 1][0]

    async def refuse(self) -> None:
        """Listen no more, for good, and cut the connections that are there."""
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
        self.listening.close()
        for peer in self.connections:
            if not peer.closed:
                peer.reset()

    async def close(self) -> None:
        """Leave every connection, and see that the other side has too: nothing of one test is left for the next."""
        if self._accepting is not None:
            self._accepting.cancel()
        left = [peer for peer in self.connections if not peer.closed]
        for peer in left:
            peer.finish()
        for peer in left:
            with contextlib.suppress(NotInTime):
                await peer.ends()
            await peer.close()


# ---- transcripts ----


class Run:
    """One run of a case: the client, the upstream, and the connection on which the upstream speaks now."""

    def __init__(self, client: Client, upstream: Upstream) -> None:
        self.client = client
        self.upstream = upstream
        self.speaking: Peer | None = None
        self.lags: list[float] = []
        self.left = False  # the client, before the end

    def _sent(self) -> tuple[int, int]:
        """How many responses the upstream has begun so far, and the bytes of their bodies, all connections counted."""
        heads = payload = 0
        old_client = b"HTTP/1.0\r\n" in self.client.sent
        for peer in self.upstream.connections:
            methods = [request.method for request in peer.incoming.requests()]
            for response in peer.outgoing.responses(methods):
                heads += response.is_final or not old_client  # HTTP/1.0 has no 1xx (RFC 9110, 15.2)
                payload += len(response.body)
        return heads, payload

    def _came(self) -> tuple[int, int]:
        responses = self.client.responses()
        old_client = b"HTTP/1.0\r\n" in self.client.sent
        heads = [r for r in responses if r.is_final or not old_client]
        return len(heads), sum(len(r.body) for r in responses)

    async def in_step(self) -> None:
        """Wait until everything that the upstream has sent so far is at the client, and note how long it took."""
        began = time.monotonic()
        heads, payload = self._sent()

        def arrived() -> bool:
            came = self._came()
            return self.client.end != "open" or (came[0] >= heads and came[1] >= payload)

        await self.client.until(arrived, f"{heads} heads and {payload} bytes of bodies at the client")
        self.lags.append(time.monotonic() - began)


Step: TypeAlias = Callable[[Run], Awaitable[None]]


@dataclass(frozen=True)
class Case:
    """A transcript. `stays_open`: it ends with a response that goes on, or without one."""

    name: str
    steps: Sequence[Step]
    stays_open: bool = False


def client(*pieces: bytes) -> Step:
    """The client sends these pieces."""

    async def step(run: Run) -> None:
        await run.client.send(*pieces)

    return step


def arrives(number: int = 1) -> Step:
    """The request of that number arrives whole; its connection is where the upstream speaks from now on."""

    async def step(run: Run) -> None:
        run.speaking = await run.upstream.request(number)

    return step


def begins(number: int = 1) -> Step:
    """The head of that request arrives; its connection is where the upstream speaks from now on."""

    async def step(run: Run) -> None:
        run.speaking = await run.upstream.head(number)

    return step


def upstream_hears(data: bytes) -> Step:
    """These bytes of the body arrive at the upstream: what the client sends is passed on as it comes."""

    async def step(run: Run) -> None:
        began = time.monotonic()
        await run.upstream.until(
            lambda: any(data in r.body for r in run.upstream.requests), f"{data!r} at the upstream"
        )
        run.lags.append(time.monotonic() - began)

    return step


def upstream(*pieces: bytes) -> Step:
    """The upstream sends these pieces, each when what was before it has reached the client."""

    async def step(run: Run) -> None:
        assert run.speaking is not None
        for piece in pieces:
            await run.speaking.send(piece)
            await run.in_step()

    return step


def upstream_blurts(*pieces: bytes) -> Step:
    """The upstream sends these pieces, whether or not anyone listens."""

    async def step(run: Run) -> None:
        assert run.speaking is not None
        await run.speaking.send(*pieces)

    return step


def upstream_ends(how: End) -> Step:
    """The upstream closes the connection that it speaks on, in order or by a reset."""

    async def step(run: Run) -> None:
        assert run.speaking is not None
        run.speaking.finish() if how == "fin" else run.speaking.reset()

    return step


def client_hears(data: bytes, times: int = 1) -> Step:
    """These bytes arrive at the client."""

    async def step(run: Run) -> None:
        await run.client.hears(data, times)

    return step


def client_leaves(how: End) -> Step:
    """The client closes its connection, and the upstream sees the end of its own."""

    async def step(run: Run) -> None:
        assert run.speaking is not None
        run.client.finish() if how == "fin" else run.client.reset()
        began = time.monotonic()
        await run.speaking.ends()
        run.lags.append(time.monotonic() - began)
        run.left = True

    return step


def exchange(request: bytes | Sequence[bytes], response: bytes | Sequence[bytes], number: int = 1) -> list[Step]:
    """The client sends a request in these pieces; when it has arrived whole, the upstream sends a response in these."""
    asked = [request] if isinstance(request, bytes) else request
    answered = [response] if isinstance(response, bytes) else response
    return [client(*asked), arrives(number), upstream(*answered)]


# ---- recordings ----


@dataclass(frozen=True)
class Recording:
    """What happened in one run.

    `outcome` is how the last response ended: whole, cut, open (it goes on), none (there was none), or left (the client
    did not wait for it).
    """

    requests: list[Message]
    responses: list[Message]
    outcome: str
    lags: list[float] = field(default_factory=list)


async def record(case: Case, listening: socket.socket, port: int | None) -> Recording:
    """Run a case, directly or, if a port is given, through the gateway there."""
    upstream_end = Upstream(listening)
    run = Run(await Client.connect(port or upstream_end.port), upstream_end)
    try:
        for step in case.steps:
            await step(run)
        if not (case.stays_open or run.left):
            with contextlib.suppress(NotInTime):
                await run.client.until(lambda: _outcome(run.client) in ("whole", "cut"), "the end of the response")
        outcome = "left" if run.left else _outcome(run.client)
        # Whatever else is on its way comes before the end of a connection that the client has closed.
        run.client.finish()
        if not (case.stays_open or run.left) and run.client.end == "open":
            if port is None:
                for peer in upstream_end.connections:
                    peer.finish()
            await run.client.ends()
        return Recording(upstream_end.requests, run.client.responses(), outcome, run.lags)
    finally:
        await run.client.close()
        await upstream_end.close()


def _outcome(peer: Client) -> str:
    responses = peer.responses()
    if not responses:
        return "open" if peer.end == "open" else "none"
    last = responses[-1]
    if last.whole and last.is_final:
        return "whole"
    return "open" if peer.end == "open" else "cut"


# RFC 9110, 7.6.1. Transfer-Encoding is compared as framing.
_HOP_BY_HOP: Final = frozenset({b"connection", b"proxy-connection", b"keep-alive", b"te", b"upgrade"})
_FRAMING: Final = (b"content-length", b"transfer-encoding")


def differences(direct: Recording, relayed: Recording, authority: bytes) -> list[str]:
    """Where the recording through the gateway is not what DESIGN 3 makes of the direct one; `authority` is for `Host`.

    3.2: hop-by-hop fields are removed, `Host` is changed, framing fields change where framing does.
    3.3: on a request whose response is observed, `Accept-Encoding` may be narrowed.
    RFC 9110, 2.5: a gateway sends its own HTTP version. 15.2: no 1xx to a client of HTTP/1.0.
    RFC 9112, 3.2: an origin server is sent a path, without the authority that a target in absolute form has.
    """
    old_client = any(r.start.endswith(b"1.0") for r in direct.requests)
    answers = [r for r in direct.responses if r.is_final or not old_client]
    found = [
        *_differ("the outcome", direct.outcome, relayed.outcome),
        *_differ("the number of requests", len(direct.requests), len(relayed.requests)),
        *_differ("the number of responses", len(answers), len(relayed.responses)),
    ]
    for sent, came in zip(direct.requests, relayed.requests, strict=False):
        found += _differ("a request", _as_upstream_sees(sent, came, authority), _end_to_end(came))
    for sent, came in zip(answers, relayed.responses, strict=False):
        found += _differ("a response", _as_client_sees(sent, came, old_client), _end_to_end(came))
    found += [
        f"{slow:.2f} s for what takes {quick:.2f} s directly"
        for quick, slow in zip(direct.lags, relayed.lags, strict=False)
        if slow > quick + LAG_MAX_S
    ]
    return found


def _differ(what: str, expected: object, got: object) -> list[str]:
    return [] if expected == got else [f"{what}:\n  expected {expected!r}\n  got      {got!r}"]


def _end_to_end(message: Message) -> Message:
    """Without hop-by-hop fields and those that `Connection` names."""
    named = {part.strip().lower() for value in message.values(b"connection") for part in value.split(b",")}
    removed = (_HOP_BY_HOP | named) - {b"host", *_FRAMING}
    return replace(message, fields=tuple(f for f in message.fields if f[0].lower() not in removed))


def _as_upstream_sees(sent: Message, came: Message, authority: bytes) -> Message:
    fields = _end_to_end(sent).fields
    if sent.values(b"host"):
        fields = tuple((n, authority if n.lower() == b"host" else v) for n, v in fields)
    else:  # RFC 9112, 3.2: a request of HTTP/1.1 has a Host, and the gateway's are of HTTP/1.1
        at = [n.lower() for n, _ in came.fields].index(b"host")
        fields = (*fields[:at], (came.fields[at][0], authority), *fields[at:])
    narrowed = came.values(b"accept-encoding")
    if _is_observed(sent) and narrowed and _members(narrowed) <= _members(sent.values(b"accept-encoding")):
        fields = tuple((n, narrowed[0] if n.lower() == b"accept-encoding" else v) for n, v in fields)
    target = re.sub(rb"^http://[^/?]*", b"", sent.target)
    return replace(sent, start=b"%b %b HTTP/1.1" % (sent.method, target), fields=fields)


def _members(values: Iterable[bytes]) -> set[bytes]:
    return {part.strip() for value in values for part in value.split(b",")} | {b"identity"}


def _is_observed(request: Message) -> bool:
    is_json = any(v.lower().startswith(b"application/json") for v in request.values(b"content-type"))
    return request.method == b"GET" or (request.method == b"POST" and is_json)


def _as_client_sees(sent: Message, came: Message, old_client: bool) -> Message:
    expected = replace(_end_to_end(sent), start=b"HTTP/1.1" + sent.start[8:])
    if old_client:  # RFC 9112, 6.1: no transfer coding to HTTP/1.0
        fields = tuple(f for f in expected.fields if f[0].lower() != b"transfer-encoding")
        expected = replace(expected, fields=fields)
    if old_client and sent.framing == "chunked":
        return replace(expected, framing="close", trailers=())
    if sent.framing == "close" and came.framing == "chunked" and not old_client:
        kept = _without_framing(expected.fields) + _framing_of(came)
        return replace(expected, framing="chunked", fields=kept)
    return expected


def _without_framing(fields: Fields) -> Fields:
    return tuple(f for f in fields if f[0].lower() not in _FRAMING)


def _framing_of(message: Message) -> Fields:
    return tuple(f for f in message.fields if f[0].lower() in _FRAMING)


async def compare(case: Case, listening: socket.socket, port: int, direct: Recording | None = None) -> Recording:
    """Run a case both ways, or only through the gateway if it was run directly before; returns the direct recording.

    Raises AssertionError with every difference.
    """
    if direct is None:
        direct = await record(case, listening, None)
    relayed = await record(case, listening, port)
    found = differences(direct, relayed, b"127.0.0.1:%d" % listening.getsockname()[1])
    assert not found, f"{case.name}:\n" + "\n".join(found)
    return direct
