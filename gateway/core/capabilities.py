"""The one change to the result of `initialize`: the capability `tasks.list.filter` is put in.

In: the bytes of the response message. Out: the same bytes with one member more, and what a session needs to know of
its server. Always: a server that filters natively, or lists no tasks, is left as it is (DESIGN 4).

Source: SEP-1904, Server capabilities; DESIGN 4.
"""

from typing import Any, Final

import msgspec
import orjson

from gateway.core import jsonrpc

_LIST: Final = ("result", "capabilities", "tasks", "list")


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


class _Tasks(msgspec.Struct):
    list: Any = None
    requests: Any = None


class _Capabilities(msgspec.Struct):
    tasks: _Tasks


class _Result(msgspec.Struct):
    capabilities: _Capabilities


_result = msgspec.json.Decoder(_Result)


def advertise(data: bytes, message: jsonrpc.Message) -> tuple[bytes, Server | None]:
    """The response `data` to an `initialize` as the client is to see it, and the server it describes.

    The server is None, and the bytes are as they were, if it lists no tasks or the message is no such result.
    """
    try:
        tasks = _result.decode(message.result).capabilities.tasks
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return data, None
    if not isinstance(tasks.list, dict):
        return data, None
    methods = _methods(tasks.requests)
    if "filter" in tasks.list:
        return data, Server(False, methods)
    return jsonrpc.insert(data, _LIST, "filter", _filter(methods)), Server(True, methods)


def _methods(requests: object) -> tuple[str, ...]:
    """`{"tools": {"call": {}}}` as ("tools/call",)."""
    if not isinstance(requests, dict):
        return ()
    return tuple(f"{group}/{name}" for group, names in requests.items() if isinstance(names, dict) for name in names)


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
