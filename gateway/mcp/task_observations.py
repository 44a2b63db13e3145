"""What a passing message says about tasks.

After `tasks/result` the task has ended, in an unknown state. After an error that may say so it may be gone, after any
other it may have ended: `tasks/result` repeats a task's own error. After an unreadable message all is in doubt.
Source: DESIGN 6.4, 6.5; tasks specification, Protocol Messages and Protocol Errors.
"""

from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec

from gateway.mcp import jsonrpc, task
from gateway.mcp.client_message import ClientMessage
from gateway.mcp.jsonrpc import Message
from gateway.mcp.task import TaskError, Written

STATUS_NOTIFICATION: Final = "notifications/tasks/status"
RELATED: Final = "io.modelcontextprotocol/related-task"  # in `_meta`, as of a response to `tasks/result`
NAMING: Final = ("tasks/get", "tasks/cancel", "tasks/result")  # requests that name a task
_TASKS_READ_MAX: Final = 500  # of one passing page; reading a larger one would delay the relay: a refresh does it
_SMALL_PAGE_BYTES: Final = 64 * 1024  # a page up to this size is read quickly, whatever its items are
_PAGE_OBJECTS_MAX: Final = 100_000  # on a page above `_SMALL_PAGE_BYTES`: each takes time and memory


Shown: TypeAlias = tuple[Written, bytes]
"""A task as it is shown, and its raw JSON; that is empty if only the id is known."""


class Observation(msgspec.Struct):
    """What passed says: tasks in a state; that one was made, has ended, may be gone; that all is in doubt."""

    shown: Sequence[Shown] = ()
    made: str | None = None
    made_as: Shown | None = None  # the task that was made
    tool: str = ""  # that its request called; else the method of its request
    method: str | None = None  # of the request that made it, or was denied it
    ended: str | None = None
    has_failed: bool = False  # its result says that the tool has failed
    denied: str | None = None
    failed: str | None = None  # an error of its request says nothing of whether it is there
    doubt: bool = False
    is_told_to_all: bool = False  # by a notification
    is_listed: bool = False  # by a page
    is_got: bool = False  # by `tasks/get`

    @property
    def shown_ids(self) -> list[str]:
        """The ids of the tasks that are there by what it says."""
        if self.shown:
            return [task.taskId for task, _ in self.shown]
        return [task_id for task_id in (self.made, self.ended) if task_id is not None]

    @property
    def task_id(self) -> str | None:
        """The id of the one task that it shows or says to be made; None if there is none, or several."""
        if self.made is not None:
            return self.made
        return self.shown[0][0].taskId if len(self.shown) == 1 else None


def of_response(request: ClientMessage | None, response: Message) -> Observation | None:
    """What the response to `request` says."""
    if request is not None and not request.is_observed:
        return None
    if response.error:
        return _of_error(request, response)
    try:
        if request is not None and request.method == "tasks/result":
            return _of_result(request.task_id, response)
        return _of_tasks(request, response)
    except TaskError:
        return Observation(doubt=True)


def _of_tasks(request: ClientMessage | None, response: Message) -> Observation | None:
    """What a result says that has a task, or several. Without the request its form tells. Raises TaskError."""
    method = None if request is None else request.method
    is_one = method in ("tasks/get", "tasks/cancel")
    if not is_one and method != "tasks/list" and bytes(made := jsonrpc.member(response.result, "task")):
        shown = _state(made)
        tool = "" if request is None else request.tool
        return Observation(made=shown[0].taskId, made_as=shown, tool=tool, method=method)
    if method == "tasks/list" or (method is None and bytes(jsonrpc.member(response.result, "tasks"))):
        raws, _ = parse_page(response)
        if len(raws) > _TASKS_READ_MAX:
            return Observation(doubt=True)
        return Observation([*map(_state, raws)], is_listed=True)
    if method is None and bytes(related := jsonrpc.member(jsonrpc.member(response.result, "_meta"), RELATED)):
        return _of_result(named(related), response)
    if is_one or method is None:
        return Observation([_state(response.result, is_alone=True)], is_got=method == "tasks/get")
    return None


def of_large(request: ClientMessage | None, response: Message) -> Observation | None:
    """What the response to `request` says that is too large to be read: a success, of the one task that is named."""
    if request is not None and not request.is_observed:
        return None
    method, task_id = (None, None) if request is None else (request.method, request.task_id)
    if task_id is None or len(response.error) or method not in NAMING:
        return Observation(doubt=True)
    if method == "tasks/result":
        return Observation(ended=task_id)
    return Observation([(Written(task_id, "", "", ""), b"")], is_got=method == "tasks/get")


def of_notification(message: Message) -> Observation | None:
    if message.method != STATUS_NOTIFICATION or message.is_request:
        return None
    try:
        return Observation([_state(message.params, is_alone=True)], is_told_to_all=True)
    except TaskError:
        return Observation(doubt=True)


def parse_page(response: Message) -> tuple[list[msgspec.Raw], str | None]:
    """The raw tasks and the next cursor in the result of a `tasks/list`. Raises TaskError if it is no list of tasks."""
    data = bytes(response.result)
    if len(data) > _SMALL_PAGE_BYTES and data.count(b"{") > _PAGE_OBJECTS_MAX:
        raise TaskError(f"a page of more than {_PAGE_OBJECTS_MAX} objects")
    try:
        if len(data) > _SMALL_PAGE_BYTES:
            _entries.decode(data)  # stops at the first item that is no task: there may be millions
        page = _page.decode(data)
    except jsonrpc.UNREADABLE as error:
        raise TaskError(str(error)) from None
    return page.tasks or [], page.nextCursor


class _ListResult(msgspec.Struct):
    tasks: list[msgspec.Raw] | None  # null: an empty list in Go (DESIGN 2.14)
    nextCursor: str | None = None


class _Entry(msgspec.Struct, gc=False):
    taskId: str


class _Entries(msgspec.Struct):
    tasks: list[_Entry]


_page = msgspec.json.Decoder(_ListResult)
_entries = msgspec.json.Decoder(_Entries)
_entry = msgspec.json.Decoder(_Entry)


def has_failed(result: msgspec.Raw) -> bool:
    """Whether the result of a tool says that it has failed. What is structured in it may have any member."""
    return bytes(jsonrpc.member(result, "isError")) == b"true"


def _of_result(task_id: str | None, response: Message) -> Observation | None:
    """A response to `tasks/result` comes when the task has ended. Raises TaskError if its id may be another."""
    if task_id is None:
        return None
    if jsonrpc.REPLACEMENT in task_id:
        raise TaskError("its id may be another")
    return Observation(ended=task_id, has_failed=has_failed(response.result))


def _of_error(request: ClientMessage | None, response: Message) -> Observation | None:
    may_deny = jsonrpc.code_of(response.error) in (jsonrpc.INVALID_PARAMS, jsonrpc.NOT_FOUND)
    if request is None:
        return Observation(doubt=True) if may_deny else None  # a task may be gone
    if (task_id := request.task_id) is None:
        return None
    return Observation(denied=task_id, method=request.method) if may_deny else Observation(failed=task_id)


def _state(raw: msgspec.Raw, is_alone: bool = False) -> Shown:
    """A task, and its raw JSON. Raises TaskError if it is none, or its id may be another.

    `is_alone`: it stands in its message as a result, or as params, whose `_meta` belongs to the message.
    """
    try:
        shown = task.read(raw)
    except jsonrpc.UNREADABLE:
        raise TaskError("no task") from None
    if len(shown.taskId) > task.ID_CHARS_MAX or jsonrpc.REPLACEMENT in shown.taskId:
        raise TaskError("its id may be another")
    return shown, jsonrpc.without_meta(bytes(raw)) if is_alone and shown.meta else bytes(raw)


def named(names: msgspec.Raw) -> str | None:
    """The id of a task in raw JSON that names one, such as the params of a `tasks/get`."""
    found = jsonrpc.decoded(_entry, names)
    return None if found is None else found.taskId
