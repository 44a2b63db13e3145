"""The watch over what passes: it observes the messages of each relayed exchange, and tells the sessions.

    the result of `initialize`                    the capability is inserted, the server noted
    messages about tasks, and every stream        observed
    401, 403, 404                                 the caller's index is dropped
    a DELETE that succeeds                        all indexes of the session are dropped
    any status of 400 or above                    the body is not observed
    an authorization document                     addresses are moved (transport/addresses.py)

In: heads and messages, from the byte pump. Out: the messages as the client is to see them.
"""

import logging
from collections.abc import Sequence
from typing import Final

from gateway.errors import DENIALS
from gateway.mcp import jsonrpc, observe
from gateway.mcp.jsonrpc import Message
from gateway.tasks.passing import Passing
from gateway.tasks.sessions import Sessions
from gateway.transport.addresses import DOCUMENT_BYTES_MAX, is_resource_metadata, is_well_known
from gateway.transport.caller import HttpCaller
from gateway.transport.exchange import Exchange
from gateway.transport.relay import EVENT_STREAM, JSON
from gateway.transport.taps import Hold, Watch
from gateway.transport.upstream import Response

log = logging.getLogger("taskgate.request")

# One of these stands in every event of interest. `\u` and `\/`: with escapes a name may be written in many ways.
_MARKS: Final = (b"tasks/status", b'"error"', b"\\u", b"\\/", b"data: [", b"data:[")
_OF_RESPONSES: Final = (b'"result"',)
_OF_ENDPOINTS: Final = (b"endpoint",)
# For a JSON answer to a GET, which may be the metadata of a resource: servers write its head and its body together.
_OFF_CHANCE: Final = Hold(DOCUMENT_BYTES_MAX, 0.5)
_WHOLE: Final = Hold()


def watch_of(exchange: Exchange, caller: HttpCaller, message: Message | None, sessions: Sessions) -> Watch:
    """The watch over the response to a request. `message` is the request's, None if it has none or is unread."""
    if exchange.method == b"GET" and is_well_known(caller.target):
        return DocumentWatch(caller)
    batch = message is None and exchange.taken.lstrip().startswith(b"[")
    return MessageWatch(sessions, caller, exchange, message, batch)


class DocumentWatch:
    """Moves the addresses in an authorization document (transport/addresses.py)."""

    def __init__(self, caller: HttpCaller) -> None:
        self._caller = caller
        self.marks: Sequence[bytes] = ()
        self.hold = Hold(DOCUMENT_BYTES_MAX)
        self.edits_endpoint = False
        self.edits = self.reads_json = caller.move is not None

    def head(self, response: Response) -> None:
        self._caller.note_cors(response)
        response.headers = self._caller.moved(response.status, response.headers)

    def message(self, data: bytes) -> bytes:
        return data if self._caller.move is None else self._caller.move.document(data)

    def endpoint(self, data: bytes) -> bytes:
        return data

    def unread(self) -> None:
        log.warning("an authorization document passed unread")


class MessageWatch:
    """Observes the messages of one exchange, and tells the sessions what they say."""

    __slots__ = (
        "_asked_at", "_awaited", "_caller", "_exchange", "_has_endpoint", "_held", "_initializes", "_may_be_sse",
        "_method", "_request", "_resumed", "_session_id", "_sessions", "edits", "edits_endpoint", "hold", "reads_json",
    )  # fmt: skip

    def __init__(
        self, sessions: Sessions, caller: HttpCaller, exchange: Exchange, message: Message | None, batch: bool
    ) -> None:
        self._sessions = sessions
        self._caller = caller
        self._exchange = exchange
        self._method = exchange.method
        self._request = message if message is not None and message.is_request else None
        self._initializes = self._request is not None and self._request.method == "initialize"
        # A resumed stream carries responses to requests of earlier exchanges. Those requests are forgotten here.
        is_get = exchange.method == b"GET"
        self._resumed = is_get and b"last-event-id" in exchange.headers.by_name
        self._may_be_sse = is_get and not caller.session_id  # of HTTP+SSE (2024-11-05)
        self.edits = self._initializes or self._resumed
        self.edits_endpoint = self._has_endpoint = False
        asks_of_tasks = self._request is not None and observe.is_observed(self._request)
        self.reads_json = self._initializes or asks_of_tasks or batch
        self._held = sessions.hold(caller.key) if asks_of_tasks else None
        self._awaited = self.reads_json or self._resumed
        self.hold = _WHOLE
        self._session_id: bytes | None = None
        self._asked_at = exchange.connection.loop.time()

    @property
    def marks(self) -> Sequence[bytes]:
        """If no response is awaited, only status notifications, errors and batches are of interest."""
        return _MARKS + _OF_RESPONSES * self._awaited + _OF_ENDPOINTS * self._has_endpoint

    @property
    def _passing(self) -> Passing:
        return Passing(self._sessions, self._caller.key)  # made when needed: the key of a caller is a digest

    @property
    def _is_blind(self) -> bool:
        """Whether the server knows the client by its connection. Then no header tells who asks: nothing is noted."""
        return self._caller.pool.knows_by_connection(self._exchange)

    def head(self, response: Response) -> None:
        """Drop the index of a session that the status ends. Note the session that `initialize` opens."""
        self._caller.note_cors(response, self._method == b"OPTIONS")
        response.headers = self._caller.moved(response.status, response.headers)
        if response.status in DENIALS:
            self._sessions.drop(self._caller.key)
        elif self._method == b"DELETE" and 200 <= response.status < 300 and self._caller.session_id:
            self._sessions.drop_all(self._caller.key)
        if self._is_blind:
            self.reads_json = self.edits = False
        if self._may_be_sse and self._begins_with_address(response):
            self.edits, self.edits_endpoint, self._has_endpoint = True, not self._resumed, True
        if self._method == b"GET" and response.headers.media_type() == JSON:
            # No revision sends a message so. It may be the metadata of a resource, which may stand anywhere.
            self.reads_json = self.edits = self._caller.move is not None
            self.hold = _OFF_CHANCE
        if self._initializes:
            self._session_id = response.headers.get(b"mcp-session-id")

    def _begins_with_address(self, response: Response) -> bool:
        """Whether the response may be a stream of HTTP+SSE, whose first event has an address of the upstream's."""
        is_stream = response.headers.media_type() == EVENT_STREAM and response.framing != "length"
        # An encoded stream would be decoded for it, and most have no address (DESIGN 3.3). A prefix makes it necessary.
        is_plain = b"content-encoding" not in response.headers or bool(self._caller.prefix)
        return is_stream and is_plain and self._caller.move is not None

    def message(self, data: bytes) -> bytes:
        """Observe one message. The result of `initialize` is edited."""
        if self.hold is _OFF_CHANCE:
            move = self._caller.move
            return move.document(data) if move is not None and is_resource_metadata(data) else data
        if self._is_blind:
            return data
        message = jsonrpc.parse(data)
        if message is None:
            if data.lstrip().startswith(b"["):
                self.unread()  # a batch (2025-03-26) may have done anything
            return data
        if message.is_response:
            self._exchange.error_code = jsonrpc.error_code(message)
        request = self._request
        if self._resumed and message.is_response:
            self.unread()  # the request is unknown here, so the response may tell of any change
            return self._initialized(data, message)
        if request is None or not message.is_response or not jsonrpc.same_id(message.id, request.id):
            self._passing.notification(message)
        elif self._initializes:
            return self._initialized(data, message)
        else:
            self._exchange.task_id = self._passing.response(request, message, self._asked_at)
        return data

    def endpoint(self, data: bytes) -> bytes:
        """The address for messages, moved as that of a redirect."""
        return data if self._caller.move is None else self._caller.move.address(data)

    def unread(self) -> None:
        """Something passed unread. It may tell of any change, so the index may be out of date."""
        if not self._is_blind and self.hold is not _OFF_CHANCE:
            self._passing.unread()

    def _initialized(self, data: bytes, message: Message) -> bytes:
        opened = self._caller.key_with(self._session_id or self._caller.session_id)
        return self._passing.initialized(data, message, opened, is_certain=self._initializes)
