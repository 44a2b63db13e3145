"""Metrics of tasks, and their rows in `status.json`, fed by what passes over HTTP and by refreshes (DESIGN 8.14)."""

import json
from http.client import HTTPConnection
from typing import Any

from tests.launch import Gateway, Gateways, Samples
from tests.relay.messages import Json, answer, call, fault, filtered, page, result, task
from tests.upstream import in_a_thread


class Server:
    """An upstream that answers as the test has it."""

    def __init__(self) -> None:
        self.tasks: dict[str, Json] = {}

    def answered(self, head: bytes, body: bytes) -> bytes:
        message = json.loads(body)
        named = message["params"].get("taskId")
        if message["method"] == "tasks/list":
            said = result(message["id"], page(self.tasks.values()))
        elif message["method"] == "tasks/result" and named in self.tasks:
            said = result(message["id"], {"content": [], "isError": self.tasks[named]["status"] == "failed"})
        elif named is not None:
            there = self.tasks.get(named)
            said = fault(message["id"], -32602, "no such task") if there is None else result(message["id"], there)
        else:
            made = message["params"]["meant"]
            self.tasks[made["taskId"]] = made
            said = result(message["id"], {"task": made})
        return answer(said)


def ask(gateway: Gateway, message: object, who: str = "ann") -> Json:
    connection = HTTPConnection("127.0.0.1", gateway.port, timeout=30)
    fields = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    connection.request("POST", "/mcp", json.dumps(message), {**fields, "Authorization": f"Bearer {who}"})
    said: Json = json.loads(connection.getresponse().read())
    connection.close()
    return said


def make(gateway: Gateway, made: Json, tool: object = "render", who: str = "ann") -> None:
    ask(gateway, call("tools/call", name=tool, task={}, meant=made), who)


def of(tool: str | None = None, status: str | None = None, upstream: str = "up") -> tuple[tuple[str, str], ...]:
    labels = {"upstream": upstream, "tool": tool, "status": status}
    return tuple(sorted((name, value) for name, value in labels.items() if value is not None))


def row(gateway: Gateway, tool: str) -> Any:
    status = json.loads(gateway.get("/page/status.json")[1])
    return next((each for each in status["upstreams"][0]["tasks"] if each["tool"] == tool), None)


async def test_a_task_is_begun_works_and_ends(gateways: Gateways) -> None:
    server = Server()
    with in_a_thread(server.answered) as port, gateways.process(port) as gateway:
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
        shown = row(gateway, "render")
        assert shown["live"]["working"]["count"] == shown["live"]["input_required"]["count"] == 1
        assert shown["started"] == {"1m": 4, "5m": 4, "all": 4}
        assert shown["ended"]["1m"] == shown["ended"]["all"] == {"completed": 1, "failed": 1}
        assert 15 < shown["duration_s"]["p50"] < shown["duration_s"]["p95"] < 60


async def test_a_refresh_tells_of_tasks_that_were_made_elsewhere_and_of_those_that_are_gone(gateways: Gateways) -> None:
    server = Server()
    with in_a_thread(server.answered) as port, gateways.process(port, index={"max_age": "0s"}) as gateway:
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


async def test_without_metrics_of_tasks_there_are_none(gateways: Gateways) -> None:
    server = Server()
    with in_a_thread(server.answered) as port, gateways.process(port, metrics={"tasks": False}) as gateway:
        make(gateway, task("a"))
        ask(gateway, call("tasks/get", taskId="a"))
        assert "taskgate_task" not in await gateway.exposition()
        assert json.loads(gateway.get("/page/status.json")[1])["upstreams"][0]["tasks"] is None
