"""The script of the soak's upstream: it answers as the conversations say, and dies as they say.

It dies as processes do, by FIN or RST, at a byte of a request or a response, or with its listener and all connections
at once. A request that no client sent, or that came twice, is a fault.
"""

import asyncio
import json
import random
import socket
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from typing import Final, Self

from tests.launch import held_port, port_of
from tests.own_ids import is_own
from tests.peer import Peer
from tests.relay.http1 import End, Malformed, Message, Reader
from tests.relay.messages import LAST_CHUNK, Json, answer, chunk, dumps, event, fault, notification, result, stream
from tests.soak.plan import TASKS, Death, Exchange, page_at
from tests.upstream import Listener

DESERTED_S: Final = 10.0
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
SLOW_S: Final = 0.005
REQUESTS_MAX: Final = 2000  # for one exchange: 100 polls of a stream that breaks, twice, for each of three tasks
_PAUSE_MAX_S: Final = 0.001
_PAUSES: Final = 0.25  # before a piece of a response


class Line(Peer):
    def __init__(self, sock: socket.socket, upstream: "Upstream") -> None:
        super().__init__(sock)
        self._upstream = upstream
        self._exchange: Exchange | None = None  # whose request is arriving, or was answered last
        self._death: Death | None = None  # that this request or its response meets
        self._answering: asyncio.Task[None] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way on it."""
        return self._answering is None and not self.received

    def on_end(self) -> None:
        self.leave()

    def on_close(self) -> None:
        self._upstream.lines.discard(self)
        if self._answering is not None:
            self._answering.cancel()

    def on_bytes(self, data: bytes) -> None:
        if self.is_ending:
            return
        if self._answering is not None:
            self._upstream.faults.append(f"{data[:80]!r} on a connection whose response is under way")
            return
        try:
            heads = self.incoming.requests()
        except Malformed as error:
            self._upstream.faults.append(f"malformed: {error}: {bytes(self.received[:200])!r}")
            self.die("rst")
            return
        if len(heads) > 1:
            self._upstream.faults.append("a request before the last one was answered")
        if heads:
            self._request(heads[0])

    def _request(self, request: Message) -> None:
        """A request whose head is there, and perhaps all of it."""
        if self._exchange is None:
            self._exchange = self._upstream.expected(request)
            if self._exchange is None:
                self.die("rst")
                return
            self._death = self._upstream.death_of(self._exchange)
            if request.value(b"expect") and not request.whole:
                self.write(CONTINUE)
            if self._exchange.is_slow:
                self.pause()
                asyncio.get_running_loop().call_later(SLOW_S, self.resume)
        if self._death is not None and self._death.at == "request":
            head_bytes = len(self.received) - len(request.body)
            so_far = len(self.received) - head_bytes
            if request.whole or so_far >= self._death.share * (len(self._exchange.asked) - head_bytes):
                self.die(self._death.how)
                return
        if request.whole:
            self._upstream.came(self._exchange, request)
            is_whole = self._death is None or (self._death.at == "behind" and self._death.how == "fin")
            if is_whole and self._exchange.tasks is None:
                self._upstream.promised.add(self._exchange.number)
            data = self._upstream.response(self._exchange, request)
            self._answering = asyncio.create_task(self._answer(self._exchange, data))

    async def _answer(self, exchange: Exchange, data: bytes) -> None:
        death, dice = self._death, self._upstream.random
        ends = len(data) if death is None or death.at != "response" else int(death.share * len(data))
        cuts = sorted({0, ends, *(dice.randrange(ends + 1) for _ in range(dice.randrange(3)))})
        for start, end in pairwise(cuts):
            await asyncio.sleep(dice.uniform(0, _PAUSE_MAX_S) if dice.random() < _PAUSES else 0)
            self.write(data[start:end])
        if death is not None:
            self.die(death.how)
        elif exchange.is_closing or exchange.is_hostile:
            self.leave()
        elif exchange.stays_open:
            await asyncio.get_running_loop().create_future()  # until the connection ends
        self._answering = self._exchange = self._death = None
        self.incoming = Reader()

    def die(self, how: End) -> None:
        if how == "fin":
            self.leave()
        elif not self.closed:
            self.reset()


class Upstream(Listener):
    """All connections, and the exchanges that are expected."""

    def __init__(self) -> None:
        self._held = held_port()
        super().__init__(self._held)
        self.lines: set[Line] = set()
        self.faults: list[str] = []
        self.came_whole = 0  # requests
        self.random = random.Random(0)
        self._exchanges: dict[int, Exchange] = {}
        self._count: Counter[int] = Counter()  # of requests that came, by exchange
        self.promised: set[int] = set()  # the exchanges whose response is whole, or will be in a moment
        self._gone: set[int] = set()  # exchanges whose client is no more
        self._polls: dict[bytes, Json] = {}  # messages whose response is to be had by polling, by Last-Event-ID

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.go_down("fin")
        self._held.close()

    @property
    def port(self) -> int:
        return port_of(self._held)

    async def start(self) -> None:
        self.listening = held_port(self.port)
        self.open()

    def connected(self, sock: socket.socket) -> None:
        self.lines.add(Line(sock, self))

    def go_down(self, how: End) -> None:
        """End the listener and every connection, as a process that is killed does."""
        self.promised.clear()
        self.shut()
        self.listening.close()
        for line in list(self.lines):
            line.die(how)

    async def deserted(self) -> None:
        """Return when no connection is there any more."""
        quiet = 0
        for _ in range(round(DESERTED_S / _PAUSE_MAX_S)):
            quiet = 0 if self.lines else quiet + 1
            if quiet == 3:  # looks in a row: the other end of the last one is closed too
                return
            await asyncio.sleep(_PAUSE_MAX_S)
        raise AssertionError(f"{len(self.lines)} connections after {DESERTED_S:g} s in which nobody asked anything")

    def expect(self, exchanges: Iterable[Exchange]) -> None:
        self._exchanges.update((e.number, e) for e in exchanges)

    def forget(self, exchanges: Iterable[Exchange]) -> None:
        """Their client is no more: what still comes of them is not answered."""
        for exchange in exchanges:
            self._exchanges.pop(exchange.number)
            self.promised.discard(exchange.number)
            self._gone.add(exchange.number)

    # ---- what comes ----

    def expected(self, request: Message) -> Exchange | None:
        number = request.value(b"x-request-id")
        exchange = self._exchanges.get(int(number)) if number is not None else None
        is_probe = (
            request.start.startswith(b"OPTIONS ") and request.value(b"user-agent") == b"taskgate"
        )  # for its state
        if exchange is None and not is_probe and (number is None or int(number) not in self._gone):
            self.faults.append(f"a request of no exchange: {request.start!r}, {number!r}")
        return exchange

    def death_of(self, exchange: Exchange) -> Death | None:
        """How the next request of an exchange is to end too early."""
        self._count[exchange.number] += 1
        if self._count[exchange.number] == REQUESTS_MAX:
            self.faults.append(f"exchange {exchange.number}, {exchange.kind}, has made {REQUESTS_MAX} requests")
        death = exchange.death
        return death if death is not None and death.hits(self._count[exchange.number]) else None

    def came(self, exchange: Exchange, request: Message) -> None:
        """Check a request that came whole: it is what the client sent, whole, and came once."""
        self.came_whole += 1
        if exchange.tasks is not None:
            return  # the gateway's own requests, of which it knows best
        if exchange.is_cut and not exchange.is_hostile:
            self.faults.append(f"exchange {exchange.number}, {exchange.kind}, was cut, and came whole")
        if self._count[exchange.number] > 1 and not exchange.is_safe:
            self.faults.append(f"exchange {exchange.number}, {exchange.kind}, came twice")
        if exchange.is_hostile:
            return  # perhaps there is no telling what was sent
        reader = Reader()
        reader.feed(exchange.asked)
        [sent] = reader.requests()
        if (request.method, request.target, request.body) != (sent.method, sent.target, sent.body):
            self.faults.append(f"exchange {exchange.number} came as another: {request.start!r}")

    def response(self, exchange: Exchange, request: Message) -> bytes:
        if exchange.tasks is None:
            return exchange.answered
        if request.method == b"GET":
            polled = self._polls[request.value(b"last-event-id") or b""]
            return stream() + chunk(event(self._reply(exchange, polled))) + LAST_CHUNK
        message: Json = json.loads(request.body)
        if not is_own(message["id"]):
            self.faults.append(f"exchange {exchange.number} was relayed, and not answered")
        reply = dumps(self._reply(exchange, message))
        match self.random.choice(["JSON", "JSON", "stream", "poll"]):
            case "stream":
                first = event(notification("notifications/message", data=exchange.number))
                return stream() + chunk(first) + chunk(event(reply)) + LAST_CHUNK
            case "poll":
                at = b"%d-%d" % (exchange.number, len(self._polls))
                self._polls[at] = message
                return stream() + chunk(event(b"", b"id: " + at, b"retry: 1")) + LAST_CHUNK
        return answer(reply)

    @staticmethod
    def _reply(exchange: Exchange, message: Json) -> Json:
        params, session = message.get("params", {}), exchange.session
        if message["method"] == "tasks/list":
            return result(message["id"], page_at(session, params.get("cursor")))
        found = [t for t in TASKS[session] if t["taskId"] == params.get("taskId")]
        return result(message["id"], found[0]) if found else fault(message["id"], -32602, "no such task")
