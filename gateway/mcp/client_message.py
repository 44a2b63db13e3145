"""What a message of a client's says. It is read once, where its body has come: every policy takes this record.

In: the message (jsonrpc.py). Out: a `ClientMessage`; a `tasks/list` is read by query/list_request.py, as one that says
more. Always: it never changes, and has copies of what is short. So it keeps no body in memory, and nobody reads the
JSON again; what is too long to be of use is absent.
"""

from collections.abc import Sequence
from typing import Any, Final, Self

import msgspec
from msgspec import Raw

from gateway.mcp import jsonrpc
from gateway.mcp.jsonrpc import ABSENT, Message, member, text

TOOL_CHARS_MAX: Final = 100  # of a tool's name
_TRACE_CHARS_MAX: Final = 128
_KEPT_BYTES_MAX: Final = 64 * 1024  # of a task's id, of `_meta`, of the id of a cancelled request
_NUMBER_BYTES_MAX: Final = 64
_OBSERVED: Final = ("tasks/get", "tasks/cancel", "tasks/list", "tasks/result")


class ClientMessage(msgspec.Struct, frozen=True, kw_only=True):
    id: bytes = b""  # raw, empty if it has none
    method: str | None = None
    is_response: bool = False
    is_strict: bool = True  # else the lenient reader read it: the bytes that came are not edited
    task_id: str | None = None  # that its params name
    asks_task: bool = False  # it asks for a task
    ttl: bytes = b""  # raw, of the task that it asks for
    ttl_at: int = 0  # where it stands in the body, if a guard asks for that
    ttl_bytes: int = 0
    tool: str = ""  # the first characters of the name of the tool that it calls; else its method
    traceparent: str = ""
    progress_token: bytes = b""  # raw
    cancels: bytes = b""  # the raw id of the request that it cancels
    doubts: frozenset[str] = frozenset()  # names that another reader may find elsewhere, if a guard asks for them
    related: Sequence[object] | None = ()  # ids of related tasks, if a guard asks for them; None: they cannot be read

    @property
    def is_request(self) -> bool:
        return self.method is not None and bool(self.id)

    @property
    def is_observed(self) -> bool:
        """Whether it is a request whose response may say something about a task."""
        return (self.asks_task or self.method in _OBSERVED) and self.is_request

    def passed(self) -> Self:
        """What is still of use when it has been passed on."""
        return self


class _ReadParams(msgspec.Struct):
    taskId: Raw = ABSENT
    task: Raw = ABSENT
    name: Raw = ABSENT
    arguments: Raw = ABSENT
    requestId: Raw = ABSENT
    meta: Raw = msgspec.field(default=ABSENT, name="_meta")


_read_params: Final = msgspec.json.Decoder(_ReadParams)
_NO_PARAMS: Final = _ReadParams()


def fields_of(message: Message) -> tuple[dict[str, Any], Raw, Raw]:
    """The fields of the record of a message, but for those that guards ask for; raw, the arguments and the ttl."""
    method, ttl = message.method, ABSENT
    said = {"id": bytes(message.id), "method": method, "is_strict": message.is_strict}
    said["tool"] = (method or "")[:TOOL_CHARS_MAX]
    if method is None:
        said["is_response"] = message.is_response
    params = jsonrpc.decoded(_read_params, message.params) or _NO_PARAMS
    if params.taskId:
        said["task_id"] = text(_short(params.taskId))
    if params.task:
        said["asks_task"], ttl = True, member(params.task, "ttl")
        # A number of many digits counts as null, which has no end.
        is_long = len(ttl) > _NUMBER_BYTES_MAX and bytes(ttl)[:1].isdigit()
        said["ttl"] = b"null" if is_long else bytes(_short(ttl))
    if method == "tools/call":
        said["tool"] = (text(params.name) or method)[:TOOL_CHARS_MAX]
    if meta := _short(params.meta):
        said["traceparent"] = (text(member(meta, "traceparent")) or "")[:_TRACE_CHARS_MAX]
        said["progress_token"] = bytes(member(meta, "progressToken"))
    if params.requestId:
        said["cancels"] = bytes(_short(params.requestId))
    return said, params.arguments, ttl


def _short(raw: Raw) -> Raw:
    return raw if len(raw) <= _KEPT_BYTES_MAX else ABSENT
