"""The one change to the result of `initialize`: the capability `tasks.list.filter` is put in.

In: the bytes of the response message. Out: the same bytes with one member more, and what a session needs to know of
its server. Always: a server that filters natively, or lists no tasks, is left as it is (DESIGN 4).

Source: SEP-1904, Server capabilities; DESIGN 4.
"""

from typing import Final

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


def advertise(data: bytes, message: jsonrpc.Message) -> tuple[bytes, Server | None]:
    """The response `data` to an `initialize` as the client is to see it, and the server it describes.

    The server is None, and the bytes are as they were, if it lists no tasks or the message is no such result.
    """
    tasks = _inside(message.result, "capabilities", "tasks")
    listing = tasks.get("list", jsonrpc.ABSENT)
    if not bytes(listing).startswith(b"{"):
        return data, None
    methods = _methods(tasks.get("requests", jsonrpc.ABSENT))
    if "filter" in jsonrpc.members(listing):
        return data, Server(False, methods)
    return jsonrpc.insert(data, _LIST, "filter", _filter(methods)), Server(True, methods)


def _inside(value: msgspec.Raw, *path: str) -> dict[str, msgspec.Raw]:
    """The members of the object at `path`; none if there is no such object."""
    found = jsonrpc.members(value)
    for name in path:
        found = jsonrpc.members(found.get(name, jsonrpc.ABSENT))
    return found


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
