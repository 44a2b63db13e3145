"""What an exchange tells of tasks: decided here, for every transport, message by message.

    the request                     its response                                                  `RequestKind`
    `initialize`                    edited: the capability goes in; its server is noted           INITIALIZE
    `tasks/*`; one for a task       the tasks that it names, or a doubt (mcp/task_observations.py)     TASKS
    not read, or of another id      a task in it, of unknown method; else a doubt                 UNREAD
    of a resumed stream             both of `initialize` and of what is not read                  RESUMED
    any other                       nothing                                                       PLAIN

    of every kind                   a status notification names its task; what cannot be read, or a batch, is a doubt
    of more than 1 MiB              only its id is read, and whether it is a result: of the task that its request names

No message is changed but the result of `initialize` (DESIGN 4), and of a `tasks/list` with a misspelt criterion (5.4).
"""

from collections.abc import Callable
from typing import Final, Literal, TypeAlias

import msgspec

from gateway.mcp import capabilities, jsonrpc, task_observations
from gateway.mcp.capabilities import Server
from gateway.mcp.client_message import ClientMessage
from gateway.mcp.jsonrpc import Message
from gateway.mcp.task import Moment
from gateway.mcp.task_observations import Observation
from gateway.query import criteria


class Intercepted(msgspec.Struct):
    """What a message says. `seen`: the message as the client is to see it."""

    seen: bytes
    observation: Observation | None = None
    asked: Moment | None = None  # when its request was made; None if it answers none, or an unknown one
    server: Server | None = None  # that `initialize` described
    response: Message | None = None  # None if it is none
    succeeds: bool = False  # it is the result of a `tasks/*`
    not_advertised: str = ""  # why the result of `initialize` stays as it was

    @property
    def task_id(self) -> str | None:
        """The id of the one task that it shows; None if it shows none, or several."""
        return None if self.observation is None else self.observation.task_id


RequestKind: TypeAlias = Literal["INITIALIZE", "TASKS", "UNREAD", "RESUMED", "PLAIN"]


class Pending(msgspec.Struct, frozen=True):
    """A request that passed at the moment `asked`, until it is answered. A resumed stream answers several."""

    kind: RequestKind
    request: ClientMessage | None = None
    asked: Moment | None = None
    task_id: str | None = None  # that a `tasks/get`, `tasks/cancel` or `tasks/result` names
    misspelt: tuple[str, ...] = ()  # names of a `tasks/list` that are nearly criteria

    def read(self, data: bytes, message: Message | None) -> Intercepted:
        """What a message says that comes while the request is pending; None: there is none in the data."""
        is_large = len(data) > READ_BYTES_MAX
        if message is None:
            may_be = jsonrpc.looks_like_messages if is_large else jsonrpc.may_be_messages
            return Intercepted(data, Observation(doubt=True) if may_be(data) else None)
        if not message.is_response:
            is_told = message.method == task_observations.STATUS_NOTIFICATION
            said = Observation(doubt=True) if is_large and is_told else task_observations.of_notification(message)
            return Intercepted(data, said)
        if self.kind == "PLAIN":
            return Intercepted(data, response=message)
        if self.request is not None and not jsonrpc.same_id(message.id, self.request.id):
            # A client may take it for its own all the same: `"1"` or `1.0` for `1`.
            return UNMATCHED.read(data, message)
        observation, succeeds = None, False
        if self.kind != "INITIALIZE":
            of_response = task_observations.of_large if is_large else task_observations.of_response
            observation = of_response(self.request, message)
            method = None if self.request is None else self.request.method
            succeeds = not message.error and method is not None and method.startswith("tasks/")
        intercepted = Intercepted(data, observation, self.asked, None, message, succeeds)
        if self.misspelt:
            intercepted.seen = _naming(data, message, self.misspelt)
        elif self.kind in ("INITIALIZE", "RESUMED"):
            _advertise(intercepted, message, is_certain=self.kind == "INITIALIZE")
        return intercepted

    def unread(self) -> Intercepted:
        """What a message says that cannot be read, and comes while the request is pending."""
        why = "a response to initialize cannot be read: too large, or encoded"
        is_initialize = self.kind == "INITIALIZE"
        return Intercepted(b"", Observation(doubt=True), not_advertised=why if is_initialize else "")


PLAIN: Final = Pending("PLAIN")
RESUMED: Final = Pending("RESUMED")
UNMATCHED: Final = Pending("UNREAD")  # which request a response answers
READ_BYTES_MAX: Final = 1 << 20  # of a larger message only the id is read, and whether it is a result


def begin(request: ClientMessage, now: Callable[[], Moment], misspelt: tuple[str, ...] = ()) -> Pending:
    """A message of the client's that was read passes now."""
    if request.is_observed:
        task_id = request.task_id if request.method in task_observations.NAMING else None
        if task_id is not None and jsonrpc.REPLACEMENT in task_id:
            return Pending("UNREAD", None, now())  # the id may be another
        return Pending("TASKS", request, now(), task_id, misspelt)
    if request.method == "initialize" and request.is_request:
        return Pending("INITIALIZE", request, now())
    return PLAIN


def _naming(data: bytes, message: Message, misspelt: tuple[str, ...]) -> bytes:
    """The result of a `tasks/list` with the names of parameters that nobody has read."""
    if not message.is_strict or len(data) > capabilities.RESPONSE_BYTES_MAX or bytes(message.result)[:1] != b"{":
        return data
    meta, names = bytes(jsonrpc.member(message.result, "_meta")), msgspec.json.encode(misspelt)
    if not meta:
        return jsonrpc.insert(data, ("result",), "_meta", b'{"taskgate/ignored":%b}' % names)
    return jsonrpc.insert(data, ("result", "_meta"), "taskgate/ignored", names) if meta[:1] == b"{" else data


def _advertise(intercepted: Intercepted, message: Message, is_certain: bool) -> None:
    try:
        intercepted.seen, intercepted.server = capabilities.advertise(intercepted.seen, message, criteria.capability)
    except capabilities.NotAdvertised as why:
        intercepted.not_advertised = str(why) if is_certain else ""
