"""Lines of the client that pass unread, and what the server's responses to them say of tasks (DESIGN 6.4, 11.2)."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import msgspec
import pytest

from gateway.config import StdioConfig
from tests.stdio.harness import Json, Stage, call, line, result, task, through

LARGE: Final = "x" * (StdioConfig().limits.inspected_body_bytes_max + 1)


def large(request_id: object) -> bytes:
    """A call that is too large to be read, its id at the end, as most SDKs have it."""
    params: Json = {"name": "work", "arguments": {"x": LARGE}, "task": {}}
    return line({"method": "tools/call", "params": params, "jsonrpc": "2.0", "id": request_id})


def large_id_first(request_id: object) -> bytes:
    return call(request_id, "tools/call", name="work", arguments={"x": LARGE}, task={})


def illegible(request_id: object) -> bytes:
    """A call that is no UTF-8."""
    return call(request_id, "tools/call", name="work", x="?", task={}).replace(b"?", b"\xe9")


@asynccontextmanager
async def fresh_stage() -> AsyncIterator[Stage]:
    """A stage on which a list was asked for. It stays fresh."""
    config = StdioConfig()
    index = msgspec.structs.replace(config.index, max_age=3600.0, full_crawl_interval=3600.0)
    async with through(msgspec.structs.replace(config, index=index)) as stage:
        await stage.initialize()
        await stage.answered()
        yield stage


async def asked_for(stage: Stage, task_id: str, **criteria: object) -> list[str]:
    await stage.client.send(call("l1", "tasks/list", **(criteria or {"order": "asc"})))
    own = await stage.server.own(2)
    assert (own["method"], own["params"]) == ("tasks/get", {"taskId": task_id})
    await stage.server.send(result(own["id"], task(task_id)))
    await stage.client.hears(b'"id":"l1"')
    return [each["taskId"] for each in json.loads(stage.client.lines()[-1])["result"]["tasks"]]


@pytest.mark.parametrize("unread_first", [False, True])
@pytest.mark.parametrize("unread", [large, large_id_first, illegible])
@pytest.mark.parametrize("request_id", [1, "one"])
async def test_a_task_of_a_request_that_passed_unread_is_heard_though_another_of_its_id_is_out(
    unread: Callable[[object], bytes], unread_first: bool, request_id: object
) -> None:
    """The response was taken for that to a request which makes no task."""
    async with fresh_stage() as stage:
        requests = [unread(request_id), call(request_id, "ping")]
        await stage.client.send(*(requests if unread_first else reversed(requests)))
        await stage.server.until(lambda: stage.server.received.count(b"\n") == 4, "both requests")
        assert stage.gauge("requests_in_flight") == {"stdio": 2}
        await stage.server.send(result(request_id, {"task": task("new")}))
        await stage.client.hears(b'"new"')
        assert await asked_for(stage, "new") == ["new"]
        await stage.server.send(result(request_id, {}))
        await stage.client.hears(b'"result":{}}')
        assert stage.gauge("requests_in_flight") == {"stdio": 0}


async def test_a_large_response_of_the_clients_is_no_request_of_its_id() -> None:
    """The server counts its own requests, so their ids may be those of requests under way."""
    async with fresh_stage() as stage:
        await stage.client.send(call(1, "tools/call", name="work", task={}), result(1, {"text": LARGE}))
        await stage.client.send(line({"jsonrpc": "2.0", "method": "notifications/x", "params": {"x": LARGE, "id": 1}}))
        await stage.server.until(lambda: stage.server.received.count(b"\n") == 5, "the lines")
        assert stage.gauge("requests_in_flight") == {"stdio": 1}
        await stage.server.send(result(1, {"task": task("new")}))
        await stage.client.hears(b'"new"')
        assert await asked_for(stage, "new", methods=["tools/call"]) == ["new"]
        await stage.client.send(call("l2", "tasks/list", methods=["prompts/get"]))
        await stage.client.hears(b'"id":"l2"')
        assert json.loads(stage.client.lines()[-1])["result"]["tasks"] == [], "nothing is asked for"


async def test_a_task_in_a_response_whose_own_id_is_no_utf_8_is_heard() -> None:
    """Nobody can say which request it answers."""
    async with fresh_stage() as stage:
        response = b'{"x":1,"jsonrpc":"2.0","id":"caf\xe9","result":{"task":%b},"y":2}\n'
        await stage.server.send(response % json.dumps(task("new")).encode())
        await stage.client.hears(b'"new"')
        assert await asked_for(stage, "new") == ["new"]
