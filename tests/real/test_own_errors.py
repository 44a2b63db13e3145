"""Errors of the gateway's own in front of real clients: they end no session and no call (DESIGN 5.8, 8.9)."""

import asyncio
from typing import Any

import pytest
from mcp import McpError, types

from tests.real.conftest import Place, Runner, connected, finish, start

GUARDS = {"task_operations_per_second": 0.01, "task_operations_burst": 3}
FAILS: dict[str, tuple[dict[str, Any], int, str]] = {
    "a refresh": ({"index": {"crawl_timeout": "1ms", "max_age": "0s"}}, -32603, "Gateway Timeout"),
    "a guard": ({"guards": GUARDS}, -32600, "Too Many Requests"),
}


@pytest.mark.parametrize("what", FAILS)
async def test_a_call_under_way_in_the_python_sdk_ends_with_its_result_while_a_list_fails(
    runner: Runner, python_sdk_json: Place, what: str
) -> None:
    """It ended its session, and all calls in it, when the list had a status of 400 or above."""
    more, code, said = FAILS[what]
    upstreams = [{"name": "real", "url": python_sdk_json.direct}]
    with runner.configured(upstreams=upstreams, **more) as gateway:
        async with connected(f"{gateway.wait()}/mcp") as client:
            made = await client.work("released", "works on")
            fetching = asyncio.create_task(client.text_of(made))
            await client.get(made)
            with pytest.raises(McpError, match=said) as failed:
                await client.tasks({"status": "working"})
            assert failed.value.error.code == code
            if what == "a guard":
                data: dict[str, Any] = failed.value.error.data or {}
                assert data["retryAfterSeconds"] > 1
            await client.release(made)
            assert await fetching == "works on: done"
            assert isinstance(await client.session.send_ping(), types.EmptyResult)


def test_a_poll_at_a_guards_limit_ends_no_call_of_the_typescript_sdk(runner: Runner) -> None:
    """The server asks for a poll each 200 ms, and the guard has two a second: the call ended in an error."""
    guards = {"task_operations_per_second": 2, "task_operations_burst": 1}
    with runner.node_server("seen_tasks.mjs") as server:
        upstreams = [{"name": "real", "url": f"{server.wait()}/mcp"}]
        with runner.configured(upstreams=upstreams, guards=guards) as gateway:
            [steps] = finish(start("call_stream", f"{gateway.wait()}/mcp"))
    told = steps["told"]
    assert "error" not in told
    assert told["result"]["content"] == [{"type": "text", "text": "completed"}]
    assert told["polls"] >= 2
