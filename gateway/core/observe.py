"""What a passing message says about tasks.

In: a response with the request that it answers, or a notification. Out: an `Observation`, or None if it says nothing.
Always: an observation is certain. What only hints at a change is told as such: after `tasks/result` a task has ended,
somehow; after an error that may mean several things it is suspect; after what cannot be read all is in doubt.

Source: DESIGN 6, "what is observed in passing"; tasks specification, Protocol Messages and Protocol Errors.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from gateway.core import jsonrpc, task
from gateway.core.jsonrpc import Message
from gateway.core.task import Task, TaskError

STATUS_NOTIFICATION: Final = "notifications/tasks/status"
_TASKS_READ_MAX: Final = 500  # of one passing page; more would hold up the relay, and are left to a refresh
_SMALL_PAGE_BYTES: Final = 64 * 1024  # in which there are not so many items that it matters what they are
_PAGE_OBJECTS_MAX: Final = 100_000  # of a larger page: what they take is in proportion to their number


class Observation(msgspec.Struct):
    """Tasks as they were reported; ids of those that are gone, may be, or have ended; whether all is in doubt."""

    tasks: Sequence[Task] = ()
    gone: Sequence[str] = ()
    suspect: Sequence[str] = ()
    ended: Sequence[str] = ()
    doubt: bool = False

    @property
    def names_a_task(self) -> bool:
        """Whether there is something to keep of it: a doubt alone, or an empty page, is of use to what is known."""
        return bool(self.tasks or self.gone or self.suspect or self.ended)


def is_observed(request: Message) -> bool:
    """Whether the response to `request` may say something about a task."""
    return request.is_request and (
        request.method in ("tasks/get", "tasks/cancel", "tasks/list", "tasks/result") or _makes_task(request)
    )


def of_response(request: Message, response: Message) -> Observation | None:
    """What the response to `request` says."""
    if not is_observed(request):
        return None
    if bytes(response.error):
        return _of_error(request, response)
    if request.method == "tasks/result":
        return _of_result(request)
    try:
        if request.method in ("tasks/get", "tasks/cancel"):
            return Observation([task.parse(jsonrpc.without_meta(bytes(response.result)))])
        if request.method == "tasks/list":
            raws, _ = parse_page(response)
            return Observation(doubt=True) if len(raws) > _TASKS_READ_MAX else Observation([*map(task.parse, raws)])
        if bytes(made := jsonrpc.member(response.result, "task")):
            return Observation([task.parse(made, method=request.method)])
    except TaskError:
        return Observation(doubt=True)
    return None


def of_notification(message: Message) -> Observation | None:
    """What a message on a stream says that is no response."""
    if message.method != STATUS_NOTIFICATION or message.is_request:
        return None
    try:
        return Observation([task.parse(jsonrpc.without_meta(bytes(message.params)))])
    except TaskError:
        return Observation(doubt=True)


def parse_page(response: Message) -> tuple[list[msgspec.Raw], str | None]:
    """The raw tasks and the next cursor in the result of a `tasks/list`. Raises TaskError if it is no such result."""
    data = bytes(response.result)
    if len(data) > _SMALL_PAGE_BYTES and data.count(b"{") > _PAGE_OBJECTS_MAX:
        raise TaskError(f"a page of more than {_PAGE_OBJECTS_MAX} objects")
    try:
        if len(data) > _SMALL_PAGE_BYTES:
            _entries.decode(data)  # ends at the first that is no task, of which there may be millions
        page = _page.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise TaskError(str(error)) from None
    return page.tasks, page.nextCursor or None


class _Page(msgspec.Struct):
    tasks: list[msgspec.Raw]
    nextCursor: str | None = None


class _Entry(msgspec.Struct, gc=False):
    taskId: str


class _Entries(msgspec.Struct):
    tasks: list[_Entry]


_page = msgspec.json.Decoder(_Page)
_entries = msgspec.json.Decoder(_Entries)


def _makes_task(request: Message) -> bool:
    return bool(bytes(jsonrpc.member(request.params, "task")))


def _of_result(request: Message) -> Observation | None:
    """What `tasks/result` brings comes when the task has ended."""
    task_id = _named(request)
    return None if task_id is None else Observation(ended=[task_id])


def _of_error(request: Message, response: Message) -> Observation | None:
    task_id = _named(request)
    if task_id is None or jsonrpc.error_code(response) != jsonrpc.INVALID_PARAMS:
        return None
    # Of the three only `tasks/get` fails so for one reason alone: the task is not there. A terminal task refuses
    # `tasks/cancel` with the same code, and a failed one relays its own error through `tasks/result`.
    return Observation(gone=[task_id]) if request.method == "tasks/get" else Observation(suspect=[task_id])


def _named(request: Message) -> str | None:
    try:
        return msgspec.json.decode(request.params, type=_Named).taskId
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


class _Named(msgspec.Struct):
    taskId: str
