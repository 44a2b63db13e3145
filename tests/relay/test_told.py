"""What metrics and logs tell of traffic of every kind, and that they tell no secret (DESIGN 8.10, 8.11)."""

import re
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.launch import Gateways, changes, logged, samples
from tests.relay.http1 import Message
from tests.relay.messages import call, fault, filtered, initialized, notification, page, result, task
from tests.relay.rig import Rig, Server, body, own, rig_with
from tests.relay.wire import answer, chunk, event, post, request, response, stream

pytestmark = pytest.mark.usefixtures("harness_alone")
TASKS = [task("t-1"), task("t-2", "completed")]


SECRETS = {
    "token": "s3cr3t-t0ken-of-the-caller", "session": "s3cr3t-session-0f8c", "task": "s3cr3t-task-17",
    "cookie": "s3cr3t-cookie", "body": "s3cr3t-in-a-body", "query": "s3cr3t-in-a-query",
    "challenge": "s3cr3t-challenge",
}  # fmt: skip


async def some_traffic(rig: Rig) -> None:
    """Requests of every kind, that succeed and that fail, each with secrets in it."""
    fields = [
        b"Mcp-Session-Id: " + SECRETS["session"].encode(),
        b"Authorization: Bearer " + SECRETS["token"].encode(),
        b"Cookie: id=" + SECRETS["cookie"].encode(),
    ]
    target = b"/mcp?key=" + SECRETS["query"].encode()
    list_tasks = Server({None: page([task(SECRETS["task"])], "c"), "c": page([task("t-2")])})

    async def script(asked: Message, peer: Any) -> bytes | None:
        message = body(asked)
        if asked.method != b"POST":
            return response(b"")
        match message.get("method") if isinstance(message, dict) else None:
            case "initialize":
                return answer(result(message["id"], initialized()), fields[0])
            case "tasks/get":
                return answer(result(message["id"], task(SECRETS["task"])))
            case "prompts/get":
                challenge = b"WWW-Authenticate: Bearer " + SECRETS["challenge"].encode()
                return answer(fault(message["id"], -32001, SECRETS["body"]), challenge, status=b"401 Unauthorized")
            case "resources/read":
                peer.reset()
                return None
            case "tools/call":
                return b"garbage " + SECRETS["body"].encode() + b"\r\n\r\n"
            case _:
                return await list_tasks(asked, peer)

    rig.serve(script)

    async def ask(message: object) -> int:
        return (await rig.ask(post(message, *fields, target=target))).status

    assert await ask(call("initialize", pad=SECRETS["body"])) == 200
    assert await ask(filtered(1)) == 200
    assert await ask(filtered(2)) == 200
    assert await ask(filtered(3, status=SECRETS["body"])) == 200
    assert await ask(filtered(4, status=["working"], cursor=SECRETS["task"])) == 200
    assert await ask(call("tasks/get", taskId=SECRETS["task"])) == 200
    assert await ask(call("prompts/get", name=SECRETS["body"])) == 401
    assert await ask(call("resources/read", uri=SECRETS["body"])) == 502
    assert await ask(call("tools/call", name=SECRETS["body"])) == 502
    assert await ask(call("unknown/method", pad=SECRETS["body"])) == 200
    assert await ask(SECRETS["body"].encode()) == 202
    assert (await rig.ask(request(b"DELETE", target, fields))).status == 200
    assert (await rig.ask(request(b"GET", target, fields))).status == 200
    assert (await rig.ask(request(fields=fields, host=b"foreign.example"))).status == 403
    assert (await rig.ask(post(call("x"), *fields, b"Origin: http://foreign.example"))).status == 403
    malformed = "GET /{query} HTTP/1.1\r\nHost: localhost\r\nAuthorization : {token}\r\n\r\n".format(**SECRETS)
    assert (await rig.ask(malformed.encode())).status == 400
    assert (await rig.ask(request(fields=[*fields, b"X: " + SECRETS["token"].encode() * 5000]))).status == 431
    gone = await rig.client(post(call("tasks/result", taskId=SECRETS["task"]), *fields, target=target))
    gone.reset()


LABELS = frozenset(
    ("upstream", "kind", "status", "method", "outcome", "code", "why", "reason", "tool", "version", "python", "le")
)


async def test_metrics_say_what_happened_and_neither_they_nor_logs_tell_a_secret(gateways: Gateways) -> None:
    """At debug, where most is said: one line of JSON for everything, and nothing that was said in confidence."""
    async with own(gateways) as rig:
        before = await rig.gateway.metrics()
        await some_traffic(rig)
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


async def test_a_stream_that_its_client_has_left_is_counted_as_a_request(gateways: Gateways) -> None:
    """`requests` are those of clients; this is how every GET stream ends."""
    async with rig_with(gateways) as rig:
        one, peer = await rig.begin(request(fields=[b"Accept: text/event-stream"]))
        await peer.send(stream())
        await one.hears(b"\r\n\r\n")
        one.finish()
        await peer.ends()
        await rig.gateway.until(lambda now: changes({}, now, "taskgate_requests_total") == 1, "one request counted")


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


async def test_what_is_refused_is_not_quoted_in_the_log(gateways: Gateways) -> None:
    """The cause of a malformed head may be its first line, which may have a token in it."""
    async with rig_with(gateways, log={"level": "debug"}) as rig:
        answered = await rig.ask(b"GET /mcp?token=%b HTTP/1.1 x\r\n\r\n" % SECRETS["token"].encode())
        assert answered.status == 400
        assert SECRETS["token"] in body(answered)["error"]["message"], "whose it is may see it"
        await logged(rig.gateway, "refused a request")
        assert SECRETS["token"] not in rig.gateway.log
