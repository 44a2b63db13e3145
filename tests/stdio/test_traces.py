"""Traces over stdio: each request is a span, below the `traceparent` of its message. No header can say it there."""

import os
import subprocess
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.launch import ROOT
from tests.relay.test_traces import META, OTHER, OTHER_PARENT, Collector, collecting, said
from tests.stdio.harness import INITIALIZE, call, notification
from tests.stdio.process import configured, gateway, ran
from tests.stdio.test_logs import SERVER


def spans_of(collector: Collector, folder: Path, *lines: bytes, flags: tuple[str, ...] = ()) -> list[Span]:
    flags = (*configured(folder, traces=collector.traces, index={"max_age": "1h"}), *flags)
    ended = ran("python3", "-c", SERVER, data=b"".join((INITIALIZE, *lines)), flags=flags)
    assert ended.returncode == 0, ended.stderr
    return [span for span in collector.spans if span.name != "initialize"]


@pytest.mark.parametrize("pad", ["", "x" * 100_000], ids=["small", "large"])
@pytest.mark.parametrize("flags", [(), ("--admin", "127.0.0.1:0")], ids=["alone", "with a page"])
def test_each_request_is_below_the_traceparent_of_its_message(tmp_path: Path, pad: str, flags: tuple[str, ...]) -> None:
    with collecting() as collector:
        relayed = call(1, "prompts/get", **META, pad=pad)
        query = call("two", "tasks/list", **META, pad=pad, status=["working"])
        bad = call(3, "tasks/list", **META, status=["no"])
        spans = spans_of(collector, tmp_path, relayed, notification("notifications/x"), query, bad, flags=flags)
        assert {span.trace_id.hex() for span in spans} == {OTHER}
        [passed] = [span for span in spans if span.name == "prompts/get"]
        assert passed.parent_span_id.hex() == OTHER_PARENT
        assert said(passed) == {
            "taskgate.kind": "relayed",
            "taskgate.upstream": "stdio",
            "network.transport": "pipe",
            "mcp.method.name": "prompts/get",
            "jsonrpc.request.id": "1",
            "rpc.response.status_code": "-32603",
            "error.type": "JsonRpcError",
        }
        by_id = {said(span)["jsonrpc.request.id"]: span for span in spans if "jsonrpc.request.id" in said(span)}
        answered, refused = by_id["two"], by_id["3"]
        assert answered.parent_span_id.hex() == refused.parent_span_id.hex() == OTHER_PARENT
        assert said(answered)["taskgate.outcome"] == "refreshed" and "error.type" not in said(answered)
        assert (said(refused)["rpc.response.status_code"], said(refused)["taskgate.kind"]) == ("-32602", "answered")
        [plan] = [span for span in spans if span.name == "plan"]
        asked = [span for span in spans if span.parent_span_id == plan.span_id]
        assert plan.parent_span_id == answered.span_id and [span.name for span in asked] == ["tasks/list"]
        assert len(spans) == 5
        assert b"5ecret" not in b"".join(collector.bodies)


def test_a_variable_that_opentelemetry_refuses_ends_the_server_too(tmp_path: Path) -> None:
    line = gateway("sleep", "600", flags=configured(tmp_path, traces={"endpoint": "http://127.0.0.1:4318"}))
    environment = {**os.environ, "OTEL_BSP_MAX_QUEUE_SIZE": "100"}
    done = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("taskgate: traces: OpenTelemetry refuses a variable OTEL_*: ")
