"""The messages of JSON-RPC that clients and servers send in these tests, written short."""

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from tests.relay.wire import LAST_CHUNK, answer, chunk, chunked, dumps, event, post, request, response, stream

__all__ = [
    "LAST_CHUNK", "TASKS_CAPABILITY", "Json", "answer", "call", "chunk", "chunked", "dumps", "event", "fault",
    "filtered", "in_pages", "initialized", "notification", "page", "post", "request", "response", "result", "stream",
    "task",
]  # fmt: skip  # fmt: skip

Json: TypeAlias = dict[str, Any]

TASKS_CAPABILITY: Json = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}


def call(method: str, request_id: object = 1, **params: Any) -> Json:
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}


def filtered(request_id: object = 1, **criteria: Any) -> Json:
    return call("tasks/list", request_id, **(criteria or {"status": ["working"]}))


def notification(method: str, **params: Any) -> Json:
    return {"jsonrpc": "2.0", "method": method, "params": params}


def result(request_id: object, value: object) -> Json:
    return {"jsonrpc": "2.0", "id": request_id, "result": value}


def fault(request_id: object, code: int, message: str) -> Json:
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}}


def task(task_id: str, status: str = "working", created: str = "2026-01-01T00:00:00Z", **more: Any) -> Json:
    return {"taskId": task_id, "status": status, "createdAt": created, "lastUpdatedAt": created, "ttl": None, **more}


def page(tasks: Iterable[Json], cursor: str | None = None) -> Json:
    return {"tasks": list(tasks), **({"nextCursor": cursor} if cursor is not None else {})}


def in_pages(tasks: list[Json], size: int = 1, named: Callable[[int], str] = str) -> dict[str | None, Json]:
    """Pages of so many tasks each, by their cursors: places in the list, as they are `named`."""
    cursors = [None, *map(named, range(size, len(tasks), size)), None]
    return {cursor: page(tasks[n * size : (n + 1) * size], cursors[n + 1]) for n, cursor in enumerate(cursors[:-1])}


def initialized(**capabilities: Any) -> Json:
    return {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tasks": TASKS_CAPABILITY, **capabilities},
        "serverInfo": {"name": "scripted", "version": "1"},
    }
