"""The one change to the result of `initialize`: the capability `tasks.list.filter` is put in.

In: the bytes of the response message. Out: the same bytes with one member more, and what a session needs to know of
its server. Always: a server that filters natively, or lists no tasks, is left as it is (DESIGN 4); so is a response
that is too large to be edited while others wait.

Source: SEP-1904, Server capabilities; DESIGN 4.
"""

from typing import Final

import msgspec
import orjson

from gateway.core import jsonrpc

_TASKS: Final = ("result", "capabilities", "tasks")
RESPONSE_BYTES_MAX: Final = 1 << 20  # it is read some times over
TASKS_BYTES_MAX: Final = 64 * 1024  # of the capabilities of tasks, whose methods are kept and repeated


class Server(msgspec.Struct, frozen=True):
    """What `initialize` tells about a server: whether the gateway filters for it, and what makes tasks there.

    `methods` are the requests of its `tasks.requests`, such as ["tools/call"]; exhaustive by the specification.
    """

    filtered_here: bool
    methods: tuple[str, ...] = ()

    @property
    def default_method(self) -> str | None:
        """The method of a task that nobody saw being made, where only one can have made it (DESIGN 5.3)."""
        return self.methods[0] if len(self.methods) == 1 else None


class NotAdvertised(Exception):
    """The response is too large to be edited: it says what is, and how large it may be."""


def advertise(data: bytes, message: jsonrpc.Message) -> tuple[bytes, Server | None]:
    """The response `data` to an `initialize` as the client is to see it, and the server it describes.

    The server is None, and the bytes are as they were, if it lists no tasks or the message is no such result.
    Raises NotAdvertised.
    """
    if not bytes(message.result):
        return data, None
    _check(data, "a response to initialize", RESPONSE_BYTES_MAX)
    span = jsonrpc.find(data, *_TASKS)
    if span is None:
        return data, None
    tasks = jsonrpc.legible(data[slice(*span)])
    _check(tasks, "the capability of tasks", TASKS_BYTES_MAX)
    listing = bytes(jsonrpc.member(tasks, "list"))
    if not listing.startswith(b"{"):
        return data, None
    methods = _methods(jsonrpc.member(tasks, "requests"))
    if bytes(jsonrpc.member(listing, "filter")):
        return data, Server(False, methods)
    edited = jsonrpc.insert(data[slice(*span)], ("list",), "filter", _filter(methods))
    return data[: span[0]] + edited + data[span[1] :], Server(True, methods)


def _check(data: bytes, what: str, bytes_max: int) -> None:
    if len(data) > bytes_max:
        raise NotAdvertised(f"{what} has {len(data)} bytes; one of no more than {bytes_max} is edited")


def _methods(requests: msgspec.Raw) -> tuple[str, ...]:
    """`{"tools": {"call": {}}}` as ("tools/call",). What is false or null is not supported."""
    return tuple(
        f"{group}/{name}"
        for group, names in jsonrpc.members(requests).items()
        for name, supported in jsonrpc.members(names).items()
        if bytes(supported) not in (b"false", b"null")
    )


def _filter(methods: tuple[str, ...]) -> bytes:
    return orjson.dumps(
        {
            "methods": methods,
            "taskIds": True,
            "status": True,
            "createdAt": {"before": True, "after": True},
            "lastUpdatedAt": {"before": True, "after": True},
            "order": {"by": ["createdAt", "lastUpdatedAt"], "direction": ["asc", "desc"]},
        }
    )
