"""Errors of the gateway's own in front of a real client: they end no call (DESIGN 5.8, 8.9)."""

from tests.real.conftest import Runner, finish, start


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
