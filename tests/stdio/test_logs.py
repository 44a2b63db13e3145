"""What a server on stdio leaves in the log and on the page: requests, tasks created or cancelled, failures."""

import hashlib
import json
from pathlib import Path
from typing import Any, Final

import pytest

from tests.attack.test_long_values import ERROR_BYTES_MAX, IN_MESSAGES, LINE_BYTES_MAX, UNITS
from tests.relay.messages import dumps
from tests.stdio.harness import INITIALIZE, call
from tests.stdio.process import configured, ran, with_admin

# A server that makes and cancels tasks, fails `prompts/get`, and ends with its input.
SERVER: Final = """
import json, sys
at = {"createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:00Z", "ttl": None}
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    params = asked.get("params", {})
    said = {"result": {}}
    if asked["method"] == "initialize":
        said = {"result": {"protocolVersion": "2025-11-25", "serverInfo": {"name": "s", "version": "1"},
                           "capabilities": {"tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}}}}
    elif asked["method"] == "tasks/list":
        said = {"result": {"tasks": []}}
    elif asked["method"] == "prompts/get":
        said = {"error": {"code": -32603, "message": "body5ecret"}}
    elif asked["method"] == "tasks/cancel" and params["taskId"] != "t-5ecret":
        said = {"error": {"code": -32602, "message": "body5ecret"}}
    elif asked["method"] == "tasks/cancel":
        said = {"result": {"taskId": params["taskId"], "status": "cancelled", **at}}
    elif "task" in params:
        said = {"result": {"task": {"taskId": "t-5ecret", "status": "working", **at}}}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **said}), flush=True)
"""
ASKED: Final = (
    INITIALIZE,
    call(1, "tools/call", name="param5ecret"),
    call(2, "tools/call", name="x", task={"ttl": 60000}, pad="x" * 200_000),
    call(3, "tasks/cancel", taskId="t-5ecret"),
    call(4, "tasks/cancel", taskId="gone"),
    call(5, "prompts/get", name="x"),
    call(6, "tasks/list", status=["working"]),
    call(7, "tasks/list", status=["nonsense"]),
)


def told(folder: Path, log: dict[str, Any]) -> list[dict[str, Any]]:
    ended = ran("python3", "-c", SERVER, data=b"".join(ASKED), flags=configured(folder, log=log))
    assert ended.returncode == 0, ended.stderr
    assert {json.loads(line)["id"] for line in ended.stdout.splitlines()} == set(range(8))
    text = (folder / log["file"]).read_text() if "file" in log else ended.stderr
    assert "5ecret" not in text and "gone" not in text
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("file", [{}, {"file": "taskgate.log"}])
def test_the_access_log_has_a_line_for_each_request(tmp_path: Path, file: dict[str, str]) -> None:
    lines = told(tmp_path, {"access": True, **file})
    assert all(line["level"] == "info" and line["seconds"] >= 0 and line["upstream"] == "stdio" for line in lines)
    seen = sorted(
        (line["method"], line["kind"], line.get("code") or 0) for line in lines if line["message"] == "request"
    )
    assert seen == [
        ("initialize", "relayed", 0),
        ("prompts/get", "relayed", -32603),
        ("tasks/cancel", "relayed", -32602),
        ("tasks/cancel", "relayed", 0),
        ("tasks/list", "answered", -32602),
        ("tasks/list", "answered", 0),
        ("tools/call", "relayed", 0),
        ("tools/call", "relayed", 0),
    ]
    assert {line["failure"] for line in lines if line["message"] == "failed"} == {"JsonRpcError"}


def test_the_audit_has_a_line_for_each_task_that_is_created_cancelled_or_ends(tmp_path: Path) -> None:
    lines = [line for line in told(tmp_path, {"audit": True}) if line["message"] == "audit"]
    digests = [hashlib.blake2b(name.encode(), digest_size=16).hexdigest() for name in ("t-5ecret", "gone")]
    assert [(line["action"], line["task"], line.get("code")) for line in lines] == [
        ("create", digests[0], None),
        ("cancel", digests[0], None),
        ("end", digests[0], None),
        ("cancel", digests[1], -32602),
    ]


@pytest.mark.parametrize(
    ("log", "messages"),
    [
        ({}, set()),
        ({"level": "info"}, {"failed"}),
        ({"level": "debug"}, {"failed", "request", "query"}),
        ({"audit": True}, {"failed", "audit"}),
        ({"access": True, "audit": True, "level": "error"}, set()),
    ],
)
def test_a_level_that_is_named_holds(tmp_path: Path, log: dict[str, Any], messages: set[str]) -> None:
    """Without one it is `warning`; with `access` or `audit` it is `info`, as over HTTP."""
    lines = told(tmp_path, log)
    assert {line["message"] for line in lines if line["logger"] != "asyncio"} == messages


def test_the_page_shows_failures_and_requests_and_tasks_are_counted() -> None:
    """Once it showed none over stdio."""
    with with_admin("python3", "-c", SERVER) as (talk, get):
        talk.say(call(8, "ping"))
        get("/page/status.json")  # from now on it counts as open
        talk.say(*ASKED)
        shown = json.loads(get("/page/status.json"))
        assert {one["failure"] for one in shown["reasons"]} == {"JsonRpcError -32602", "JsonRpcError -32603"}
        assert len(shown["failures"]) == 3 and len(shown["requests"]) == len(ASKED)
        assert "5ecret" not in json.dumps(shown)
        metrics = get("/metrics")
        assert 'taskgate_jsonrpc_errors_total{code="-32603",upstream="stdio"} 1.0' in metrics
        # The request that makes the task is larger than what is kept of one.
        assert 'taskgate_tasks_started_total{tool="x",upstream="stdio"} 1.0' in metrics
        assert 'taskgate_tasks_ended_total{status="cancelled",tool="x",upstream="stdio"} 1.0' in metrics
        assert talk.finish() == 0


def test_tasks_are_not_counted_where_it_is_configured_so(tmp_path: Path) -> None:
    with with_admin("python3", "-c", SERVER, flags=configured(tmp_path, metrics={"tasks": False})) as (talk, get):
        talk.say(*ASKED)
        assert "taskgate_task" not in get("/metrics")
        assert talk.finish() == 0


def test_a_list_that_is_not_answered_in_time_counts_for_the_alert(tmp_path: Path) -> None:
    """The alert TaskgateUpstreamFailing counts the statuses from 500 on, and over stdio all were 200."""
    flags = configured(tmp_path, index={"crawl_timeout": "100ms"})
    with with_admin("sh", "-c", "cat > /dev/null", flags=flags) as (talk, get):
        talk.say(call(1, "tasks/list", status=["working"]))
        said = 'kind="answered",method="tasks/list",status="504",upstream="stdio"} 1.0'
        assert said in get("/metrics")
        assert talk.finish() == 0


def test_long_and_odd_values_make_no_long_lines(tmp_path: Path) -> None:
    """As over HTTP (tests/attack/test_long_values.py)."""
    flags = configured(tmp_path, log={"access": True, "level": "debug"})
    made = [make(unit * (20_000 // len(unit.encode()))) for unit in UNITS for make in IN_MESSAGES.values()]
    asked = [dumps({**message, "id": number}) + b"\n" for number, message in enumerate(made)]
    ended = ran("python3", "-c", SERVER, data=ASKED[0] + b"".join(asked), flags=flags)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert ended.stdout.count("\n") == 1 + len(asked)
    assert max(map(len, ended.stdout.encode().splitlines())) <= ERROR_BYTES_MAX
    assert max(map(len, ended.stderr.encode().splitlines())) <= LINE_BYTES_MAX
