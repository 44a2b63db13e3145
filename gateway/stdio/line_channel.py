"""stdio: the channel and reply of tasks/transport_interfaces.py, over a server's standard streams.

In: lines. Out: the same lines, and between them the gateway's own. Always: no line stands inside another; the response
to a request of the gateway's own stays here, and nothing else does (DESIGN 11.2, 11.3).
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

from gateway.errors import Overloaded, UpstreamBroken, UpstreamUnreachable, shown
from gateway.mcp import jsonrpc
from gateway.mcp.client_message import ClientMessage
from gateway.mcp.jsonrpc import Id, Message
from gateway.mcp.task import Moment
from gateway.refresh.retrying_crawler import REQUEST_IDS
from gateway.stdio.line_splitter import Sight
from gateway.stdio.standard_streams import Outlet
from gateway.transport.memory_budget import Reservation

_UNREADABLE: Final = "a response of the server's cannot be read: too large, or no JSON"
UNANSWERED_MAX: Final = 10_000  # requests of the client; the oldest are forgotten first
_ID_CHARS_SHOWN: Final = 50
ANSWERED_MAX: Final = 100  # whose answer may come once more
CANCELLED_MAX: Final = 100  # requests of the client: hardly any is answered, so the oldest are forgotten first


class StdioChannel:
    """The channel for requests in the client's name, whose ids the client has not out."""

    def __init__(self, outlet: Outlet, unanswered: "Unanswered") -> None:
        self._outlet = outlet
        self._unanswered = unanswered
        self.waiting: dict[int, asyncio.Future[Message]] = {}  # for the server's answers
        self._ended = ""  # why no request goes out any more
        self.has_asked = False  # then any line may answer a request of the gateway's: late, or twice

    def is_free(self, message_id: int) -> bool:
        return not self._unanswered.knows(b"%d" % message_id)

    async def ask(self, request: bytes, message_id: int) -> Message:
        """The response to one JSON-RPC request of that id; it may be an error. Raises GatewayError."""
        if self._ended:
            raise UpstreamUnreachable(self._ended)
        self._outlet.insert(request)
        answered: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self.waiting[message_id] = answered
        self.has_asked = True
        try:
            return await answered
        finally:
            self.waiting.pop(message_id, None)

    def asked(self, message_id: Id | None) -> bool:
        """Whether a response with that id answers a request of the gateway's, perhaps too late or once more."""
        if message_id is None or self._unanswered.knows(message_id):
            return False
        return REQUEST_IDS.has(jsonrpc.number_of(message_id))

    def may_be_answered_by(self, sight: Sight) -> bool:
        """Whether a line of which the beginning tells no id may be a response to a request of the gateway's."""
        return self.has_asked and sight.may_be_response and sight.first_id is None

    def answer(self, message_id: Id | None, response: Message | None, why: str = _UNREADABLE) -> None:
        """The server has answered a request of the gateway's; None if the response cannot be read, or none comes."""
        number = None if message_id is None else jsonrpc.number_of(message_id)
        answered = None if number is None else self.waiting.pop(number, None)
        if answered is None or answered.done():
            return
        if response is None:
            answered.set_exception(UpstreamBroken(why))
        else:
            answered.set_result(response)

    def misplaced(self, message_id: Id, response: Message) -> bool:
        """Whether a response with an id that nobody has out answers the oldest request of the gateway's, wrongly.

        It does if the client waits for none. An error without an id is that of the request (JSON-RPC 2.0, 5).
        """
        if not self.waiting or len(self._unanswered) or self._unanswered.knows(message_id):
            return False
        number = next(iter(self.waiting))
        is_error = message_id == b"null" and bool(bytes(response.error))
        what = message_id if isinstance(message_id, str) else message_id.decode(errors="replace")
        why = f"the server has answered the request {number} with the id {shown(what, _ID_CHARS_SHOWN)}"
        self.answer(b"%d" % number, response if is_error else None, why)
        return True

    def end(self, why: str) -> None:
        """No request goes out any more, and nobody waits for a response. Late ones stay here."""
        self._ended = why
        for message_id in list(self.waiting):
            self.answer(b"%d" % message_id, None, why)


@dataclass
class StdioReply:
    """The way back of one answer of the gateway's own (`Reply`). `reservation` holds its request too."""

    to_server: StdioChannel
    outlet: Outlet
    reservation: Reservation
    request_bytes: int
    streaming: bool = False
    error_code: int | None = None  # of the error that was sent for an answer
    _ended: bool = False

    def channel(self, on_message: Callable[[bytes], Awaitable[None]], as_it_came: bool = False) -> StdioChannel:
        """The way to the server. `on_message` gets nothing: all other lines of the server pass as ever."""
        return self.to_server

    def owe(self, requests: int) -> None:
        """No guard counts over stdio."""

    @property
    def is_full(self) -> bool:
        return self.outlet.is_full

    async def drain(self) -> None:
        await self.outlet.drain()

    def forward(self, data: bytes) -> None:
        if not self._ended:
            with suppress(Overloaded):  # only progress goes this way, and the next is as good
                self.outlet.insert(data)
                self.streaming = True

    def hold(self, size_bytes: int) -> None:
        self.reservation.grow(self.request_bytes + size_bytes)

    def send(self, data: bytes, code: int | None = None) -> None:
        """Send the response, or an error: that goes out room or not, for nothing else would tell the client."""
        self.error_code = code
        if not self._ended:
            self.outlet.insist(data)
            self._ended = True


class Passed(NamedTuple):
    """A request of the client's that went to the server."""

    request: ClientMessage
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
        self._answered: OrderedDict[Id, None] = OrderedDict()

    def __len__(self) -> int:
        """How many there are, without cancelled ones."""
        return sum(passed.times for passed in self._passed.values())

    def knows(self, message_id: Id) -> bool:
        """Whether a request of that id was passed on, and is not answered, or only lately."""
        return message_id in self._passed or message_id in self._cancelled or message_id in self._answered

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
        if (passed := self._pop(message_id)) is not None:
            self._answered[message_id] = None
            if len(self._answered) > ANSWERED_MAX:
                self._answered.popitem(last=False)
        if passed is not None and passed.times + passed.cancelled > 1:
            live = passed.times > 0  # those that were not cancelled are answered first
            self._keep(message_id, passed._replace(times=passed.times - live, cancelled=passed.cancelled - (not live)))
        return passed

    def _keep(self, message_id: Id, passed: Passed) -> None:
        kept, most = (self._passed, UNANSWERED_MAX) if passed.times else (self._cancelled, CANCELLED_MAX)
        kept[message_id] = passed
        while len(kept) > most:
            kept.popitem(last=False)

    def _pop(self, message_id: Id) -> Passed | None:
        return self._passed.pop(message_id, None) or self._cancelled.pop(message_id, None)
