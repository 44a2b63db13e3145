"""Metrics of tasks, and their rows in `status.json`, fed by what passes over HTTP and by refreshes (DESIGN 8.15)."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection
from typing import Any

import msgspec
import pytest

from gateway.mcp import jsonrpc
from gateway.mcp.observations import has_failed
from tests.launch import Gateway, Gateways, Samples, settings
from tests.relay.messages import Json, call, fault, filtered, page, result, task
from tests.relay.wire import answer
from tests.upstream import in_a_thread


class Workshop:
    """An upstream whose tools make the tasks that the test has meant."""

    def __init__(self) -> None:
        self.tasks: dict[str, Json] = {}
        self.port = 0

    def answered(self, _head: bytes, body: bytes) -> bytes:
        message = json.loads(body)
        there, said = self.tasks.get(message["params"].get("taskId")), page(self.tasks.values())
        if (made := message["params"].get("meant")) is not None:
            self.tasks[made["taskId"]], said = made, {"task": made}
        elif message["method"] != "tasks/list":
            if there is None:
                return answer(fault(message["id"], -32602, "no such task"))
            ended = {"content": [], "isError": there["status"] == "failed"}
            said = ended if message["method"] == "tasks/result" else there
        return answer(result(message["id"], said))


@pytest.fixture
def server() -> Iterator[Workshop]:
    one = Workshop()
    with in_a_thread(one.answered) as one.port:
        yield one


def ask(gateway: Gateway, message: object, target: str = "/mcp", more: Mapping[str, str] = {}) -> Json:
    connection = HTTPConnection("127.0.0.1", gateway.port, timeout=30)
    fields = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    connection.request("POST", target, json.dumps(message), {**fields, **more})
    said: Json = json.loads(connection.getresponse().read())
    connection.close()
    return said


def make(
    gateway: Gateway, made: Json, tool: object = "render", target: str = "/mcp", more: Mapping[str, str] = {}
) -> None:
    ask(gateway, call("tools/call", name=tool, task={}, meant=made), target, more)


def of(tool: str | None = None, status: str | None = None, upstream: str = "up") -> tuple[tuple[str, str], ...]:
    labels = {"upstream": upstream, "tool": tool, "status": status}
    return tuple(sorted((name, value) for name, value in labels.items() if value is not None))


def rows(gateway: Gateway) -> Any:
    return json.loads(gateway.get("/page/status.json")[1])["upstreams"][0]["tasks"]


async def test_a_task_is_begun_works_and_ends(gateways: Gateways, server: Workshop) -> None:
    with gateways.process(server.port) as gateway:
        for number in range(4):
            make(gateway, task(f"t{number}", "working"))
        server.tasks["t0"] |= {"status": "completed", "lastUpdatedAt": "2026-01-01T00:00:20Z"}
        server.tasks["t1"] |= {"status": "failed", "lastUpdatedAt": "2026-01-01T00:00:40Z"}
        server.tasks["t2"] |= {"status": "input_required"}
        for _ in range(2):
            for number in range(4):
                ask(gateway, call("tasks/get", taskId=f"t{number}"))
        ask(gateway, call("tasks/get", taskId="unknown"))
        samples = await gateway.metrics()
        assert samples["taskgate_tasks_started_total", of("render")] == 4
        assert samples["taskgate_tasks", of("render", "working")] == 1
        assert samples["taskgate_tasks", of("render", "input_required")] == 1
        assert samples["taskgate_task_oldest_seconds", of("render", "working")] > 0
        assert samples["taskgate_tasks_ended_total", of("render", "completed")] == 1
        assert samples["taskgate_tasks_ended_total", of("render", "failed")] == 1
        assert samples["taskgate_task_duration_seconds_sum", of("render", "failed")] == 40
        assert samples["taskgate_task_lookups_failed_total", (("upstream", "up"),)] == 1
        [shown] = rows(gateway)
        assert shown["live"]["working"]["count"] == shown["live"]["input_required"]["count"] == 1
        assert shown["started"] == {"1m": 4, "5m": 4, "all": 4}
        assert shown["ended"]["1m"] == shown["ended"]["all"] == {"completed": 1, "failed": 1}
        assert 15 < shown["duration_s"]["p50"] < shown["duration_s"]["p95"] < 60


async def test_a_refresh_tells_of_tasks_that_were_made_elsewhere_and_of_those_that_are_gone(
    gateways: Gateways, server: Workshop
) -> None:
    with gateways.process(server.port, index={"max_age": "0s"}) as gateway:
        server.tasks = {name: task(name, "completed" if name == "old" else "working") for name in ("old", "a", "b")}
        ask(gateway, filtered(status=["working"]))
        del server.tasks["a"]
        server.tasks["b"] |= {"status": "cancelled"}
        ask(gateway, filtered(status=["working"]))

        def ended(samples: Samples) -> bool:
            return samples.get(("taskgate_tasks_started_total", of(""))) == 2

        await gateway.until(ended, "two tasks begun")
        samples = await gateway.metrics()
        assert samples["taskgate_tasks_ended_total", of("", "lost")] == 1
        assert samples["taskgate_tasks_ended_total", of("", "cancelled")] == 1


async def test_who_proves_each_request_has_tasks_too(gateways: Gateways, server: Workshop) -> None:
    """Nothing that he is told is kept in an index (DESIGN 5.9)."""
    with gateways.process(server.port) as gateway:
        proof = {"DPoP": "proof"}
        make(gateway, task("a"), more=proof)
        server.tasks["a"] |= {"status": "completed"}
        ask(gateway, call("tasks/get", taskId="a"), more=proof)
        samples = await gateway.metrics()
        assert samples["taskgate_tasks_started_total", of("render")] == 1
        assert samples["taskgate_tasks_ended_total", of("render", "completed")] == 1


async def test_what_a_guard_denies_is_a_lookup_that_failed(gateways: Gateways, server: Workshop) -> None:
    """The server is not asked, and the task is not lost."""
    with gateways.process(server.port, guards={"own_tasks": True}) as gateway:
        ann, bob = ({"Authorization": f"Bearer {who}"} for who in ("ann", "bob"))
        make(gateway, task("a"), more=ann)
        for method in ("tasks/get", "tasks/cancel", "tasks/get"):
            assert ask(gateway, call(method, taskId="a"), more=bob)["error"]["code"] == -32602
        assert "result" in ask(gateway, call("tasks/get", taskId="a"), more=ann)
        samples = await gateway.metrics()
        assert samples["taskgate_task_lookups_failed_total", (("upstream", "up"),)] == 2
        assert samples["taskgate_tasks", of("render", "working")] == 1


HOSTILE: dict[str, object] = {
    'quote " and \\ and \n line': 'quote " and \\ and \n line', 'x"} 1\ntaskgate_up 0\n#': 'x"} 1\ntaskgate_up 0\n#',
    "nul \0 and \x1b[31m": "nul \0 and \x1b[31m", "w" * 100: "w" * 1_000_000,
    "\U0001f600" * 100: "\U0001f600" * 200_000, "half \ufffd": "half \ud83d", "other": "other",
}  # fmt: skip


async def test_a_name_of_a_tool_is_text_whatever_is_in_it(gateways: Gateways, server: Workshop) -> None:
    """Cut to 100 characters; one that is empty, or no text, is as none. Half a character is read leniently."""
    with gateways.process(server.port) as gateway:
        for number, name in enumerate([*HOSTILE.values(), "", None, 7, ["x"]]):
            make(gateway, task(f"t{number}"), tool=name)
        samples = await gateway.metrics()
        started = {dict(labels)["tool"]: n for (name, labels), n in samples.items() if name.endswith("s_started_total")}
        assert started == dict.fromkeys(HOSTILE, 1) | {"tools/call": 4}
        for number in range(100):
            make(gateway, task(f"more{number}"), tool=f"{number}")
        samples = await gateway.metrics()
        started = {dict(labels)["tool"]: n for (name, labels), n in samples.items() if name.endswith("s_started_total")}
        assert len(started) == 16  # `other` has a name of its own here
        assert sum(started.values()) == 111
        assert len(await gateway.exposition()) < 200_000
        assert {row["tool"] for row in rows(gateway)} == started.keys()


@pytest.mark.parametrize(
    ("data", "fails"),
    [
        (b'{"content":[],"structuredContent":{"isError":true}}', False),
        (b'{"content":[],"structuredContent":{"all":[{"isError": true}]},"isError":false}', False),
        (b'{"content":[],"isError"\n:\ttrue}', True),
        (b'{"content":[],"structuredContent":{"n":NaN},"isError":true}', True),
    ],
)
def test_a_result_has_failed_by_its_own_word(data: bytes, fails: bool) -> None:
    """What a tool has structured in its result has any member that it likes."""
    assert has_failed(msgspec.Raw(jsonrpc.rewritten(data) or data)) is fails


async def test_a_reload_takes_the_series_of_an_upstream_away_and_keeps_the_others(
    gateways: Gateways, server: Workshop
) -> None:
    both = [
        {"name": name, "url": f"http://127.0.0.1:{server.port}/mcp", "match": {"prefix": f"/{name}"}} for name in "ab"
    ]
    async with gateways.in_process(server.port, upstreams=both, log={"level": "warning"}) as gateway:
        for name in "ab":
            await asyncio.to_thread(make, gateway, task(name), target=f"/{name}/mcp")
        kept = settings(gateway.port, gateway.admin, server.port, {"upstreams": both[1:]})
        gateway.reload(kept)
        samples = await gateway.metrics()
        assert {dict(labels)["upstream"] for name, labels in samples if name.startswith("taskgate_task")} == {"b"}
        assert samples["taskgate_tasks", of("render", "working", "b")] == 1
        gateway.reload({**kept, "metrics": {"tasks": False}})
        assert "taskgate_task" not in await gateway.exposition()
        assert await asyncio.to_thread(rows, gateway) is None
        await asyncio.to_thread(make, gateway, task("c"), target="/b/mcp")
        gateway.reload(kept)
        assert ("taskgate_tasks_started_total", of("render", None, "b")) not in await gateway.metrics()
