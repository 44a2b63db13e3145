"""The watch over each relayed exchange: it chooses what is done with the response, and tells the sessions what passes.

    an authorization document, a resource's metadata   addresses are moved (http/address_rewriting.py)
    an event stream                                     its messages are inspected
    a response of any type to a request that may tell   its message is inspected
    the answer to `initialize`, a resumed stream        the same, and edited
    a list whose request has a misspelt criterion       likewise
    a 401, 403 or 404                                   the session is told; at any status from 400 the body passes
    a DELETE that succeeds                              all indexes of the session are dropped
    all else                                            passes

What the messages tell is decided in `tasks/exchange_observer.py`.
"""

import logging
import sys
from typing import Final

from msgspec import Struct

from gateway.downstream.exchange import Exchange
from gateway.errors import REFUSALS
from gateway.http.address_rewriting import DOCUMENT_BYTES_MAX, is_resource_metadata, is_well_known
from gateway.http.header_fields import EVENT_STREAM, JSON
from gateway.mcp import jsonrpc
from gateway.mcp.capabilities import RESPONSE_BYTES_MAX
from gateway.mcp.client_message import ClientMessage
from gateway.relay.body_pump import Inspector, nothing
from gateway.relay.http_caller import HttpCaller
from gateway.tasks.exchange_observer import PLAIN, RESUMED, Intercepted, Pending, begin
from gateway.tasks.session_indexes import Sessions
from gateway.transport.body_stream import Response

log = logging.getLogger("taskgate.request")

# One of these stands in every event of interest. `\u` and `\/`: with escapes a name may be written in many ways.
_MARKS: Final = (b"tasks/status", b'"error"', b"\\u", b"\\/", b"data: [", b"data:[")
AWAITED: Final = (b'"result"', *_MARKS)


def _passed_unread(_: bytes) -> None:
    log.warning("an authorization document passed unread")


class Interceptor(Struct, eq=False):
    """Watches over the response to one request. `_asked` is its message, None if it has none or is unread."""

    _exchange: Exchange
    _caller: HttpCaller
    _asked: ClientMessage | None
    _sessions: Sessions
    _misspelt: tuple[str, ...] = ()
    _pending: Pending = PLAIN
    _session_id: bytes | None = None  # of the session that `initialize` opens
    _has_warned: bool = False  # that `initialize` was not edited: each piece of its body may be unread

    def __post_init__(self) -> None:
        if self._asked is not None:
            self._pending = begin(self._asked, self._sessions.now, self._misspelt)
        elif (head := self._exchange.request.head).method == b"POST":
            self._pending = Pending("UNREAD", None, self._sessions.now())
        elif head.method == b"GET" and b"last-event-id" in head.headers.by_name:
            # A resumed stream carries responses to requests of earlier exchanges. Those requests are forgotten here.
            self._pending = RESUMED

    def inspector(self, response: Response) -> Inspector | None:
        """Tell of a refusal, and of a session that ends. Choose what is done with the body."""
        caller, pending, method = self._caller, self._pending, self._exchange.request.head.method
        kind, status = response.head.kind, response.head.status
        caller.note_cors(response, method == b"OPTIONS")
        if response.head.may_name:
            self._exchange.location = response.headers.get(b"location") or b""
            response.headers = caller.moved(status, response.headers)
        if status >= 400:
            if status in REFUSALS:
                self._sessions.refuse(self._sessions.find(caller.key))
            return None
        if method == b"DELETE" and 200 <= status < 300 and caller.session_id:
            self._sessions.drop_all(caller.key)
        if method == b"GET" and kind == JSON:  # no revision sends a message so
            if (move := caller.move) is None:
                return None
            if is_well_known(caller.target):
                return Inspector(move.document, _passed_unread, edits=True, hold_bytes_max=DOCUMENT_BYTES_MAX)
            # It may be the metadata of a resource, anywhere; servers write its head and its body together.
            return Inspector(self._metadata, nothing, edits=True, hold_bytes_max=DOCUMENT_BYTES_MAX, hold_s=0.5)
        is_initialize = pending.kind == "INITIALIZE"
        may_tell = pending.kind in ("TASKS", "UNREAD") or (is_initialize and kind == JSON)
        if kind != EVENT_STREAM and not may_tell:
            return None
        if is_initialize:
            self._session_id = response.headers.get(b"mcp-session-id")
        # If the server knows the client by its connection, no header tells who asks: nothing is noted.
        if self._exchange.authenticates:
            return None
        if pending is PLAIN:
            return Inspector(self._message, self._unread, _MARKS)
        hold_max = RESPONSE_BYTES_MAX if is_initialize else sys.maxsize  # a larger one is not edited
        edits = (pending.kind in ("INITIALIZE", "RESUMED") or bool(pending.misspelt)) and not caller.proof
        return Inspector(self._message, self._unread, AWAITED, edits, hold_bytes_max=hold_max)

    def _metadata(self, data: bytes) -> bytes:
        move = self._caller.move
        return move.document(data) if move is not None and is_resource_metadata(data) else data

    def _message(self, data: bytes) -> bytes:
        return self._take_in(self._pending.read(data, jsonrpc.parse(data)))

    def _unread(self, _: bytes) -> None:
        """Something passed unread. It may tell of any change, so the index may be out of date."""
        self._take_in(self._pending.unread())

    def _take_in(self, intercepted: Intercepted) -> bytes:
        """Take in what a message tells, and return it as the client is to see it."""
        caller, task_id = self._caller, intercepted.task_id
        if intercepted.response is not None:
            self._exchange.error_code = jsonrpc.code_of(error) if (error := intercepted.response.error) else None
            self._exchange.task_id = task_id or self._exchange.task_id
        if intercepted.not_advertised and not self._has_warned:
            self._has_warned = True
            log.warning("not advertised", extra={"upstream": caller.upstream.name, "why": intercepted.not_advertised})
        if intercepted.observation is not None or intercepted.server is not None or intercepted.succeeds:
            opened = None if intercepted.server is None else caller.key_with(self._session_id or caller.session_id)
            self._sessions.note(caller.key, intercepted, opened, is_unique := caller.is_unique)
            if (intercepted.succeeds or task_id is not None) and not is_unique:
                caller.accept()
        return intercepted.seen
