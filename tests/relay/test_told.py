"""What metrics and logs tell of traffic of every kind, and that they tell no secret (DESIGN 8.10, 8.11)."""

import json
import re
from collections.abc import Iterator, Mapping

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.mcp import jsonrpc
from gateway.mcp.task_observations import has_failed
from tests.launch import Gateway, Gateways, Samples, changes, logged, samples
from tests.peer import Peer
from tests.relay.http1 import Message
from tests.relay.messages import Json, call, fault, filtered, initialized, notification, page, result, task
from tests.relay.rig import Server, body, own, rig_with, sent
from tests.relay.wire import answer, chunk, event, post, request, response, stream
from tests.upstream import in_a_thread

SECRETS = {
    "token": "s3cr3t-t0ken-of-the-caller", "session": "s3cr3t-session-0f8c", "task": "s3cr3t-task-17",
    "cookie": "s3cr3t-cookie", "body": "s3cr3t-in-a-body", "query": "s3cr3t-in-a-query",
    "challenge": "s3cr3t-challenge",
}  # fmt: skip


FIELDS = [
    b"Mcp-Session-Id: " + SECRETS["session"].encode(),
    b"Authorization: Bearer " + SECRETS["token"].encode(),
    b"Cookie: id=" + SECRETS["cookie"].encode(),
]
TARGET = b"/mcp?key=" + SECRETS["query"].encode()
SERVER = Server(
    {None: page([task(SECRETS["task"])], "c"), "c": page([task("t-2")])},
    {"initialize": initialized(), "tasks/get": task(SECRETS["task"])},
)
CHALLENGE = b"WWW-Authenticate: Bearer " + SECRETS["challenge"].encode()


async def script(asked: Message, peer: Peer) -> bytes | None:
    message = body(asked)
    if asked.method != b"POST":
        return response(b"")
    match message.get("method") if isinstance(message, dict) else None:
        case "prompts/get":
            return answer(fault(message["id"], -32001, SECRETS["body"]), CHALLENGE, status=b"401 Unauthorized")
        case "resources/read":
            peer.reset()
            return None
        case "roots/list":  # where it leads stands in the log, but for what may be a secret
            location = "Location: https://u:{body}@other.example/mcp?code={query}".format(**SECRETS).encode()
            return response(b"", location, status=b"307 There")
        case "tools/call":
            return b"garbage " + SECRETS["body"].encode() + b"\r\n\r\n"
    return await SERVER(asked, peer)


MESSAGES: list[tuple[object, int]] = [
    (call("initialize", pad=SECRETS["body"]), 200), (filtered(1), 200), (filtered(2), 200),
    (filtered(3, status=SECRETS["body"]), 200), (filtered(4, status=["working"], cursor=SECRETS["task"]), 200),
    (call("tasks/get", taskId=SECRETS["task"]), 200), (call("prompts/get", name=SECRETS["body"]), 401),
    (call("resources/read", uri=SECRETS["body"]), 502), (call("tools/call", name=SECRETS["body"]), 502),
    (call("unknown/method", pad=SECRETS["body"]), 200), (SECRETS["body"].encode(), 202),
    (call("tasks/cancel", taskId=SECRETS["task"]), 200), (call("roots/list"), 307),
]  # fmt: skip
REQUESTS = [
    *((post(message, *FIELDS, target=TARGET), status) for message, status in MESSAGES),
    *((request(method, TARGET, FIELDS), 200) for method in (b"DELETE", b"GET")),
    (request(fields=FIELDS, host=b"foreign.example"), 403),
    (post(call("x"), *FIELDS, b"Origin: http://foreign.example"), 403),
    ("GET /{query} HTTP/1.1\r\nHost: localhost\r\nAuthorization : {token}\r\n\r\n".format(**SECRETS).encode(), 400),
    ("GET /mcp?token={token} HTTP/1.1 x\r\n\r\n".format(**SECRETS).encode(), 400),  # whose it is may see it
    (request(fields=[*FIELDS, b"X: " + SECRETS["token"].encode() * 5000]), 431),
]


LABELS = frozenset(
    ("upstream", "kind", "status", "method", "outcome", "code", "why", "reason", "tool", "version", "python", "le")
)


async def test_metrics_say_what_happened_and_neither_they_nor_logs_tell_a_secret(gateways: Gateways) -> None:
    """At debug, where most is said: one line of JSON for everything, and nothing that was said in confidence."""
    async with own(gateways) as rig:
        before = await rig.gateway.metrics()
        rig.serve(script)
        for asked, status in REQUESTS:
            assert (await rig.ask(asked)).status == status
        gone = await rig.client(post(call("tasks/result", taskId=SECRETS["task"]), *FIELDS, target=TARGET))
        gone.reset()
        await rig.gateway.until(
            lambda now: changes(before, now, "taskgate_requests_total", status="403") == 2,
            "the last requests, two refusals, are counted",
        )  # a request is counted when its answer is out
        text, log = await rig.gateway.exposition(), rig.gateway.log
        after = samples(text)
        whole = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        assert len(whole) == len(after), "Prometheus reads the whole of it, and each series once"

        def grown(name: str, **labels: str) -> float:
            return changes(before, after, f"taskgate_{name}", upstream="up", **labels)

        assert grown("requests_total", kind="answered", status="200") == 4
        assert grown("requests_total", kind="relayed", status="401") == 1
        assert grown("requests_total", status="502") == 2
        for method, count in (("tasks/list", 2), ("initialize", 1), ("tasks/get", 1), ("DELETE", 1)):
            assert grown("upstream_requests_total", method=method) == count
        assert len(rig.asked("tasks/list")) == grown("crawl_pages_total") == grown("spared_requests_total") == 2
        assert grown("crawl_duration_seconds_count") == 1
        assert grown("queries_total", outcome="refreshed") == grown("queries_total", outcome="index") == 1
        assert grown("spared_bytes_total") > 0 and grown("failures_total") >= 2
        assert {label for _, pairs in after for label, _ in pairs} <= LABELS
        ours = {name for name, _ in after if not name.startswith(("python_", "process_"))}
        assert all(re.fullmatch(r"taskgate_[a-z_]+", name) for name in ours)
        for name, secret in SECRETS.items():
            assert secret not in text + log, name
        lines = rig.gateway.lines()
        assert all({"time", "level", "logger", "message"} <= set(line) for line in lines)
        assert {line["level"] for line in lines} <= {"debug", "info", "warning", "error"}
        assert "audit" not in {line["message"] for line in lines}, "it has a key of its own"


@pytest.mark.parametrize("edited", [False, True], ids=["passed on", "edited"])
async def test_an_answer_that_the_upstream_broke_off_is_counted_and_logged(gateways: Gateways, edited: bool) -> None:
    """Its head said 200, and it was once counted as a 200."""
    async with rig_with(gateways, log={"level": "debug"}) as rig:
        before = await rig.gateway.metrics()
        one, peer = await rig.begin(post(call("initialize" if edited else "tools/call")))
        await peer.send(stream() + chunk(event(notification("half"))))
        await one.hears(b"half")
        peer.reset()
        assert not (await one.response()).whole
        assert (await logged(rig.gateway, "UpstreamBroken"))["upstream"] == "up"
        after = await rig.gateway.metrics()
        assert changes(before, after, "taskgate_failures_total", kind="UpstreamBroken") == 1
        assert changes(before, after, "taskgate_requests_total", kind="relayed", status="502") == 1
        assert changes(before, after, "taskgate_requests_total", status="200") == 0


# ---- metrics of tasks, and their rows in `status.json`, fed by what passes over HTTP and by refreshes ----


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


def make(gateway: Gateway, made: Json, tool: object = "render", more: Mapping[str, str] = {}) -> None:
    sent(gateway, call("tools/call", name=tool, task={}, meant=made), more=more)


def of(tool: str | None = None, status: str | None = None, upstream: str = "up") -> tuple[tuple[str, str], ...]:
    labels = {"upstream": upstream, "tool": tool, "status": status}
    return tuple(sorted((name, value) for name, value in labels.items() if value is not None))


async def test_a_task_is_begun_works_and_ends(gateways: Gateways, server: Workshop) -> None:
    with gateways.process(server.port) as gateway:
        for number in range(4):
            make(gateway, task(f"t{number}", "working"))
        server.tasks["t0"] |= {"status": "completed", "lastUpdatedAt": "2026-01-01T00:00:20Z"}
        server.tasks["t1"] |= {"status": "failed", "lastUpdatedAt": "2026-01-01T00:00:40Z"}
        server.tasks["t2"] |= {"status": "input_required"}
        for _ in range(2):
            for number in range(4):
                sent(gateway, call("tasks/get", taskId=f"t{number}"))
        sent(gateway, call("tasks/get", taskId="unknown"))
        for number, tool in enumerate(("", None, 7, ["x"])):  # what is no text is as none
            make(gateway, task(f"of none {number}"), tool=tool)
        samples = await gateway.metrics()
        assert samples["taskgate_tasks_started_total", of("tools/call")] == 4
        assert samples["taskgate_tasks_started_total", of("render")] == 4
        assert samples["taskgate_tasks", of("render", "working")] == 1
        assert samples["taskgate_tasks", of("render", "input_required")] == 1
        assert samples["taskgate_task_oldest_seconds", of("render", "working")] > 0
        assert samples["taskgate_tasks_ended_total", of("render", "completed")] == 1
        assert samples["taskgate_tasks_ended_total", of("render", "failed")] == 1
        assert samples["taskgate_task_duration_seconds_sum", of("render", "failed")] == 40
        assert samples["taskgate_task_lookups_failed_total", (("upstream", "up"),)] == 1
        [shown] = [row for row in (await gateway.shown())["upstreams"][0]["tasks"] if row["tool"] == "render"]
        assert shown["live"]["working"]["count"] == shown["live"]["input_required"]["count"] == 1
        assert shown["started"] == {"1m": 4, "5m": 4, "all": 4}
        assert shown["ended"]["1m"] == shown["ended"]["all"] == {"completed": 1, "failed": 1}
        assert 15 < shown["duration_s"]["p50"] < shown["duration_s"]["p95"] < 60


async def test_a_refresh_tells_of_tasks_that_were_made_elsewhere_and_of_those_that_are_gone(
    gateways: Gateways, server: Workshop
) -> None:
    with gateways.process(server.port, index={"max_age": "0s"}) as gateway:
        server.tasks = {name: task(name, "completed" if name == "old" else "working") for name in ("old", "a", "b")}
        sent(gateway, filtered(status=["working"]))
        del server.tasks["a"]
        server.tasks["b"] |= {"status": "cancelled"}
        sent(gateway, filtered(status=["working"]))

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
        sent(gateway, call("tasks/get", taskId="a"), more=proof)
        samples = await gateway.metrics()
        assert samples["taskgate_tasks_started_total", of("render")] == 1
        assert samples["taskgate_tasks_ended_total", of("render", "completed")] == 1


async def test_what_a_guard_denies_is_a_lookup_that_failed(gateways: Gateways, server: Workshop) -> None:
    """The server is not asked, and the task is not lost."""
    with gateways.process(server.port, guards={"own_tasks": True}) as gateway:
        ann, bob = ({"Authorization": f"Bearer {who}"} for who in ("ann", "bob"))
        make(gateway, task("a"), more=ann)
        for method in ("tasks/get", "tasks/cancel", "tasks/get"):
            assert sent(gateway, call(method, taskId="a"), more=bob)[1]["error"]["code"] == -32602
        assert "result" in sent(gateway, call("tasks/get", taskId="a"), more=ann)[1]
        samples = await gateway.metrics()
        assert samples["taskgate_task_lookups_failed_total", (("upstream", "up"),)] == 2
        assert samples["taskgate_tasks", of("render", "working")] == 1


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
