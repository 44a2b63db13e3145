"""stdio: the caller, channel and reply that `tasks/` needs (tasks/interfaces.py), over a server's standard streams.

In: lines. Out: the same lines, and between them the gateway's own. Always: no line stands inside another; the response
to a request of the gateway's own stays here, and nothing else does (DESIGN 11.2, 11.3).
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from enum import Enum
from typing import Final, NamedTuple, Protocol

from gateway.caller_identity import STDIO
from gateway.errors import Overloaded, UpstreamBroken, UpstreamUnreachable
from gateway.mcp import jsonrpc
from gateway.mcp.jsonrpc import Id, Message
from gateway.mcp.task import Moment
from gateway.stdio.lines import Line, Sight
from gateway.transport.memory_budget import SMALL_BYTES_MAX, Buffers, Reservation

UNANSWERED_MAX: Final = 10_000  # requests of the client; the oldest are forgotten first
CANCELLED_MAX: Final = 100  # requests of the client: hardly any is answered, so the oldest are forgotten first


class Source(Protocol):
    async def read(self) -> bytes:
        """Some bytes; none at the end."""


class Sink(Protocol):
    def write(self, data: bytes) -> None:
        """Send bytes, in order. Nothing happens if the other side takes no more."""

    @property
    def is_full(self) -> bool:
        """Whether the other side has yet to take so much that `drain` waits."""

    async def drain(self) -> None:
        """Wait until the other side has taken enough."""


class Outlet:
    """The lines that go out to one side: those that pass, and the gateway's own between them.

    from               when                       to
    between lines      pass a whole line          between lines
    between lines      pass a piece               inside a line
    inside a line      pass a piece               inside a line
    inside a line      pass the last piece        between lines; what waits goes out
    inside a line      insert                     inside a line; it waits
    """

    def __init__(self, sink: Sink, buffers: Buffers) -> None:
        self.sink = sink
        self._reservation = Reservation(buffers)
        self._waiting: list[bytes] = []
        self._room = asyncio.Event()
        self._room.set()
        self.is_inside = False  # a line that passes has not ended

    async def drain(self) -> None:
        """Wait until the other side has taken enough, and little waits for the end of a line."""
        await self._room.wait()
        await self.sink.drain()

    def pass_on(self, line: Line) -> None:
        self.sink.write(line.raw)
        self.is_inside = not line.ended
        if line.ended and self._waiting:
            waiting, self._waiting = self._waiting, []
            self._hold(0)
            self.sink.write(b"".join(waiting))

    def insert(self, message: bytes) -> None:
        """Send a message of the gateway's as a line of its own. Raises Overloaded where there is no room to hold it."""
        self._reservation.check(self._reservation.held_bytes + len(message) + 1)
        self.insist(message)

    def insist(self, message: bytes) -> None:
        """The same, room or not: for errors, whose senders wait for `drain` before they read on."""
        line = message + b"\n"
        if self.is_inside:
            self._waiting.append(line)
            self._hold(self._reservation.held_bytes + len(line))
        else:
            self.sink.write(line)  # the sink counts what it holds

    def _hold(self, size_bytes: int) -> None:
        self._reservation.set(size_bytes)
        if size_bytes > SMALL_BYTES_MAX:
            self._room.clear()
        else:
            self._room.set()


class StdioChannel:
    """Requests of the gateway's own to the server. Their ids, and no others, begin with `own`."""

    def __init__(self, outlet: Outlet, own: str) -> None:
        self._outlet = outlet
        self._own = own
        self._asked: dict[Id, asyncio.Future[Message]] = {}
        self._ended = ""  # why no request goes out any more
        self.has_asked = False  # then any line may answer a request of the gateway's: late, or twice

    def __len__(self) -> int:
        """How many requests of the gateway's wait for the server's answer."""
        return len(self._asked)

    async def ask(self, request: bytes, raw_id: bytes) -> Message:
        """The response to one JSON-RPC request, whose id is `raw_id`; it may be an error. Raises GatewayError."""
        if self._ended:
            raise UpstreamUnreachable(self._ended)
        self._outlet.insert(request)
        key = jsonrpc.id_of(raw_id)
        answered: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._asked[key] = answered
        self.has_asked = True
        try:
            await self._outlet.sink.drain()
            return await answered
        finally:
            self._asked.pop(key, None)

    def asked(self, message_id: Id) -> bool:
        """Whether a response with that id answers a request of the gateway's, perhaps too late or once more."""
        return isinstance(message_id, str) and message_id.startswith(self._own)

    def answer(self, message_id: Id, response: Message | None) -> None:
        """The server has answered a request of the gateway's; None if the response cannot be read."""
        answered = self._asked.pop(message_id, None)
        if answered is None or answered.done():
            return
        if response is None:
            answered.set_exception(UpstreamBroken("a response of the server's cannot be read: too large, or no JSON"))
        else:
            answered.set_result(response)

    def end(self, why: str) -> None:
        """No request goes out any more, and nobody waits for a response. Late ones stay here."""
        self._ended = why
        for answered in self._asked.values():
            if not answered.done():
                answered.set_exception(UpstreamBroken(why))


class StdioCaller:
    key = STDIO
    asks_first = False  # no field goes with a message, so the server would refuse none
    proof = ""
    filter = None
    is_served = True

    def __init__(self, channel: StdioChannel) -> None:
        self._channel = channel

    def channel(self, on_message: Callable[[bytes], Awaitable[None]], as_it_came: bool = False) -> StdioChannel:
        """The channel to the server. `on_message` gets nothing: all other lines of the server pass as ever."""
        return self._channel


class StdioReply:
    """The way back of one answer of the gateway's own (`tasks/interfaces.py`). `reservation` holds its request too."""

    def __init__(self, outlet: Outlet, reservation: Reservation, request_bytes: int) -> None:
        self._outlet = outlet
        self._reservation = reservation
        self._request_bytes = request_bytes
        self.streaming = False
        self.error_code: int | None = None  # of the error that was sent for an answer
        self._ended = False

    def owe(self, requests: int) -> None:
        """No guard counts over stdio."""

    @property
    def is_full(self) -> bool:
        return self._outlet.sink.is_full

    async def drain(self) -> None:
        await self._outlet.sink.drain()

    def forward(self, data: bytes) -> None:
        if not self._ended:
            with suppress(Overloaded):  # only progress goes this way, and the next is as good
                self._outlet.insert(data)
                self.streaming = True

    def hold(self, size_bytes: int) -> None:
        self._reservation.grow(self._request_bytes + size_bytes)

    def refuse(self, data: bytes, code: int) -> None:
        self.error_code = code
        self.send(data)

    def send(self, data: bytes) -> None:
        """Send the response, or an error: that goes out room or not, for nothing else would tell the client."""
        if not self._ended:
            self._outlet.insist(data)
            self._ended = True


class Fate(Enum):
    """What becomes of a large line of the server's.

                how the line begins                           more of it comes     it ends
    UNKNOWN     the gateway has asked, and the line may be    no room: PASSES      PASSES, or STAYS if its id is
                a response, late or second ones included                           the gateway's
    PASSES      any other line                                PASSES               PASSES
    STAYS       with an id of the gateway's                   STAYS                STAYS
    """

    UNKNOWN = "unknown"
    PASSES = "passes"
    STAYS = "stays"


class LargeLine:
    """A line of the server's that is too large to be read, on its way. It must be closed."""

    def __init__(self, first: bytes, channel: StdioChannel, buffers: Buffers) -> None:
        self._channel = channel
        self._sight = Sight(first)
        self._held: list[Line] = []
        self._reservation = Reservation(buffers)
        self.fate = Fate.PASSES
        if channel.has_asked and self._sight.may_be_response:
            first_id = self._sight.first_id
            self.fate = Fate.UNKNOWN if first_id is None else Fate.STAYS if channel.asked(first_id) else Fate.PASSES

    @property
    def id(self) -> Id | None:
        """The id of the response, once the line has ended; None if the line is no response, or it cannot be told."""
        return self._sight.id

    def feed(self, line: Line) -> list[Line]:
        """The line goes on with this piece. Returns the pieces to be passed now."""
        self._sight.feed(line.raw)
        pieces = [line]
        if self.fate is Fate.UNKNOWN:
            self._held.append(line)
            pieces = self._decide(line.ended)
        if line.ended and (message_id := self.id) is not None and self._channel.asked(message_id):
            self._channel.answer(message_id, None)
        return pieces if self.fate is Fate.PASSES else []

    def _decide(self, ended: bool) -> list[Line]:
        """Hold what has come, if there is room and the line goes on. Returns the pieces to be passed now."""
        size_bytes = self._reservation.held_bytes + len(self._held[-1].raw)
        if not self._reservation.has_room(size_bytes):
            self.fate = Fate.PASSES
        elif ended:
            data = b"".join([each.raw for each in self._held])
            message_id = jsonrpc.id_of(jsonrpc.member(data, "id"))
            self.fate = Fate.STAYS if self._channel.asked(message_id) else Fate.PASSES
            if self.fate is Fate.STAYS:
                self._channel.answer(message_id, None)
        else:
            self._reservation.set(size_bytes)
            return []
        return self.close()

    def close(self) -> list[Line]:
        """No more of it comes, or no more is held. Returns the pieces that were held."""
        held, self._held = self._held, []
        self._reservation.close()
        return held


class Passed(NamedTuple):
    """A request of the client's that went to the server."""

    request: Message
    at: Moment  # of the first of this id that the server has yet to answer
    times: int = 1  # requests of this id that the server has yet to answer
    cancelled: int = 0  # cancelled ones besides, which the server need not answer
    is_clear: bool = True  # a response of this id can only be to this request
    misspelt: tuple[str, ...] = ()  # names in a `tasks/list` that are nearly criteria


class Unanswered:
    """The requests of the client that the server has yet to answer, by id.

    A client may use an id again before the server has answered. Until all requests of that id are answered, nobody
    knows which of them a response is for. A cancelled one is hardly ever answered: its id is remembered for a while.
    """

    def __init__(self) -> None:
        self._passed: OrderedDict[Id, Passed] = OrderedDict()
        self._cancelled: OrderedDict[Id, Passed] = OrderedDict()

    def __len__(self) -> int:
        """How many there are, without cancelled ones."""
        return sum(passed.times for passed in self._passed.values())

    def note(self, message_id: Id, passed: Passed) -> None:
        if (earlier := self._pop(message_id)) is not None:
            passed = earlier._replace(times=earlier.times + 1, is_clear=False)
        self._keep(message_id, passed)

    def cancel(self, message_id: Id) -> None:
        """The client no longer waits for the answer. A late response is not believed."""
        if (passed := self._pop(message_id)) is not None:
            cancelled = passed.cancelled + passed.times
            self._keep(message_id, passed._replace(times=0, cancelled=cancelled, is_clear=False))

    def take(self, message_id: Id) -> Passed | None:
        """The request that a response with that id answers; None if none waits."""
        passed = self._pop(message_id)
        if passed is not None and passed.times + passed.cancelled > 1:
            if passed.times:  # those that were not cancelled are answered first
                left = passed._replace(times=passed.times - 1)
            else:
                left = passed._replace(cancelled=passed.cancelled - 1)
            self._keep(message_id, left)
        return passed

    def _keep(self, message_id: Id, passed: Passed) -> None:
        kept, most = (self._passed, UNANSWERED_MAX) if passed.times else (self._cancelled, CANCELLED_MAX)
        kept[message_id] = passed
        while len(kept) > most:
            kept.popitem(last=False)

    def _pop(self, message_id: Id) -> Passed | None:
        return self._passed.pop(message_id, None) or self._cancelled.pop(message_id, None)
