"""The one change to the result of `initialize`: the capability `tasks.list.filter` is inserted (DESIGN 4, SEP-1904)."""

from collections.abc import Callable
from typing import Final

import msgspec

from gateway.mcp import jsonrpc

LAST_REVISION: Final = b"2025-11-25"  # later revisions have tasks of their own (DESIGN 3.9)
_TASKS: Final = ("result", "capabilities", "tasks")
_NOT_SUPPORTED: Final = (b"false", b"null")  # in place of `{}`
RESPONSE_BYTES_MAX: Final = 1 << 20  # of a response that is edited: it is read several times
TASKS_BYTES_MAX: Final = 64 * 1024  # of its capability `tasks`: the methods in it are repeated in `filter`


class Server(msgspec.Struct, frozen=True, omit_defaults=True):
    """What `initialize` tells: who filters (another taskgate?), and which methods ("tools/call") make tasks."""

    filtered_here: bool
    methods: tuple[str, ...] = ()
    is_taskgate: bool = False

    @property
    def default_method(self) -> str | None:
        """The method of a task whose request did not pass here, if there is only one method (DESIGN 5.3)."""
        return self.methods[0] if len(self.methods) == 1 else None


class NotAdvertised(Exception):
    """Something is not edited. The text says what, and why."""


def advertise(
    data: bytes, message: jsonrpc.Message, capability: Callable[[tuple[str, ...]], bytes]
) -> tuple[bytes, Server | None]:
    """The response `data` to an `initialize` as the client gets it, and the server that it describes.

    If the server lists no tasks, or the message is no result: the bytes as they came, and None. Raises NotAdvertised.
    """
    if not bytes(message.result):
        return data, None
    _check(data, "a response to initialize", RESPONSE_BYTES_MAX)
    tasks = bytes(jsonrpc.member(jsonrpc.member(message.result, "capabilities"), "tasks"))
    _check(tasks, "the capability of tasks", TASKS_BYTES_MAX)
    listing = bytes(jsonrpc.member(tasks, "list"))
    if not listing.startswith(b"{"):
        return data, None
    methods = _methods(jsonrpc.member(tasks, "requests"))
    native = bytes(jsonrpc.member(listing, "filter"))
    if native and native not in _NOT_SUPPORTED:
        return data, Server(False, methods, is_taskgate=native == capability(methods))
    if not message.is_strict:
        raise NotAdvertised("the response to initialize is only nearly JSON: NaN, half a surrogate pair, no UTF-8")
    if native:
        edited = jsonrpc.replace(tasks, ("list", "filter"), capability(methods))
    else:
        edited = jsonrpc.insert(tasks, ("list",), "filter", capability(methods))
    return jsonrpc.replace(data, _TASKS, edited), Server(True, methods)


def _check(data: bytes, what: str, bytes_max: int) -> None:
    if len(data) > bytes_max:
        raise NotAdvertised(f"{what} has {len(data)} bytes; no more than {bytes_max} are edited")


def _methods(requests: msgspec.Raw) -> tuple[str, ...]:
    """`{"tools": {"call": {}}}` as ("tools/call",)."""
    return tuple(
        f"{group}/{name}"
        for group, names in jsonrpc.members(requests).items()
        for name, supported in jsonrpc.members(names).items()
        if bytes(supported) not in _NOT_SUPPORTED
    )
