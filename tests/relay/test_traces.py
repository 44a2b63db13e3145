"""Traces: spans of requests, their parents, and what is in none of them; a collector that is absent or hangs."""

import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from gateway.operate.access_log import AccessLog
from tests.launch import ROOT, Gateways, eventually, held_port, port_of
from tests.peer import Peer
from tests.relay.http1 import Message
from tests.relay.messages import Json, call, fault, filtered, notification, page, post, request, response, task
from tests.relay.rig import Rig, Server, final, own, replies, rig_with, says
from tests.upstream import in_a_thread

METRICS = ROOT / "docs/metrics.md"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = f"traceparent: 00-{TRACE}-{PARENT}-01".encode()
UNSAMPLED = f"traceparent: 00-{TRACE}-{PARENT}-00".encode()
SECRETS = ("5e5510n", "t0ken5ecret", "task5ecret", "query5ecret", "body5ecret", "path5ecret")
SERVER = Server({None: page([task("task5ecret-1")], "2"), "2": page([task("task5ecret-2")])})


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans are sent soon; the default is 5 s."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")


class Collector:
    """A collector, and what it has received. With `hangs` it never answers."""

    def __init__(self, hangs: bool) -> None:
        self.bodies: list[bytes] = []
        self.port = 0
        self._hangs = hangs

    def answered(self, head: bytes, body: bytes) -> bytes:
        assert head.startswith(b"POST /v1/traces ") and b"application/x-protobuf" in head
        self.bodies.append(body)
        return b"" if self._hangs else response(b"")

    @property
    def traces(self) -> dict[str, str]:
        """The configuration that leads here."""
        return {"endpoint": f"http://127.0.0.1:{self.port}"}

    def resources(self) -> Iterator[dict[str, str]]:
        for data in self.bodies:
            for of_process in ExportTraceServiceRequest.FromString(data).resource_spans:
                yield {a.key: a.value.string_value for a in of_process.resource.attributes}

    @property
    def spans(self) -> list[Span]:
        messages = map(ExportTraceServiceRequest.FromString, self.bodies)
        spans = [s for m in messages for r in m.resource_spans for scope in r.scope_spans for s in scope.spans]
        return sorted(spans, key=lambda span: span.start_time_unix_nano)

    async def until(self, count: int) -> list[Span]:
        await eventually(lambda: len(self.spans) >= count, f"{count} spans")
        assert len(self.spans) == count
        return self.spans


@contextmanager
def collecting(hangs: bool = False) -> Iterator[Collector]:
    """One in a thread of its own."""
    collector = Collector(hangs)
    with in_a_thread(collector.answered) as collector.port:
        yield collector


@asynccontextmanager
async def traced(gateways: Gateways, **changed: object) -> AsyncIterator[tuple[Rig, Collector]]:
    with collecting() as collector:
        async with rig_with(gateways, traces=collector.traces, **changed) as rig:
            yield rig, collector


def said(span: Span) -> dict[str, str | int]:
    return {a.key: a.value.string_value or a.value.int_value for a in span.attributes}


no_content = says(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")  # of a server that has nothing to say


async def test_a_relayed_request_has_a_span_below_its_traceparent(gateways: Gateways) -> None:
    async with traced(gateways) as (rig, collector):
        rig.serve(no_content)
        await rig.ask(post(call("tools/call", name="x"), SAMPLED))
        [span] = await collector.until(1)
        assert (span.name, span.kind) == ("tools/call", Span.SPAN_KIND_SERVER)
        assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
        assert said(span) == {
            "taskgate.kind": "relayed",
            "taskgate.upstream": "up",
            "http.request.method": "POST",
            "http.response.status_code": 202,
            "mcp.method.name": "tools/call",
            "jsonrpc.request.id": "1",
            "network.transport": "tcp",
        }
        assert 0 < span.end_time_unix_nano - span.start_time_unix_nano < 60e9
        assert rig.upstream.requests[0].value(b"traceparent") == SAMPLED.partition(b": ")[2], "it goes up as it came"
        [of_process] = collector.resources()
        assert of_process["service.name"] == "taskgate" and of_process["service.version"]
        [message] = map(ExportTraceServiceRequest.FromString, collector.bodies)
        [scope] = message.resource_spans[0].scope_spans
        found = re.search(r"version (1\.[0-9]+\.0) of\s+OpenTelemetry's conventions", METRICS.read_text())
        assert found is not None and scope.schema_url == f"https://opentelemetry.io/schemas/{found[1]}"


OTHER, OTHER_PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
META = {"_meta": {"traceparent": f"00-{OTHER}-{OTHER_PARENT}-01", "tracestate": "a=t0ken5ecret"}}


@pytest.mark.parametrize("fields", [[], [SAMPLED], [UNSAMPLED]], ids=["alone", "beside a header", "unsampled header"])
@pytest.mark.parametrize("pad", [0, 100_000], ids=["small", "large"])
@pytest.mark.parametrize("is_query", [False, True], ids=["relayed", "answered"])
async def test_the_traceparent_of_a_message_goes_before_that_of_the_header(
    gateways: Gateways, fields: list[bytes], pad: int, is_query: bool
) -> None:
    """SEP-414. The context of HTTP, if it is another one, is linked."""
    async with traced(gateways) as (rig, collector):
        rig.serve(SERVER)
        params = {**META, "pad": "x" * pad}
        asked = filtered(**params, status=["working"]) if is_query else call("tools/call", **params)
        await rig.ask(post(asked, *fields))
        [span, *_] = await collector.until(4 if is_query else 1)
        assert (span.trace_id.hex(), span.parent_span_id.hex()) == (OTHER, OTHER_PARENT)
        assert [(link.trace_id.hex(), link.span_id.hex()) for link in span.links] == [(TRACE, PARENT)] * len(fields)
        assert not span.trace_state and not any(link.trace_state for link in span.links)


NO_PARENTS: Final = ["", "00-zero", 7, None, "x" * 10_000, f"00-{'0' * 32}-{OTHER_PARENT}-01"]
IDS: Final = {7: "7", "seven": "seven", "x" * 1000: "x" * 128, None: None, 2**70: str(2**70), 1.5: "1.5"}
REVISIONS: Final = {"2025-11-25": "2025-11-25", "2026-07-28": "2026-07-28", "t0ken5ecret": None}
# A message, its fields, an attribute of its span and the value.
TOLD: Final[list[tuple[Json, list[bytes], str, str | None]]] = [
    *((call("ping", _meta={"traceparent": given}), [], "jsonrpc.request.id", "1") for given in NO_PARENTS),
    *((call("ping", given), [], "jsonrpc.request.id", said) for given, said in IDS.items()),
    (notification("notifications/initialized"), [], "jsonrpc.request.id", None),
    *(
        (call("ping"), [f"MCP-Protocol-Version: {given}".encode()], "mcp.protocol.version", said)
        for given, said in REVISIONS.items()
    ),
]


async def test_what_a_message_says_of_itself_is_in_its_span(gateways: Gateways) -> None:
    """A traceparent in it that is none counts as absent."""
    async with traced(gateways) as (rig, collector):
        rig.serve(no_content)
        for number, (message, fields, name, value) in enumerate(TOLD, 1):
            await rig.ask(post(message, SAMPLED, *fields))
            span = (await collector.until(number))[-1]
            assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT) and not span.links
            assert said(span).get(name) == value, message


async def test_a_request_without_traceparent_begins_a_trace_and_a_client_may_say_that_it_is_not_sampled(
    gateways: Gateways,
) -> None:
    async with traced(gateways) as (rig, collector):
        rig.serve(SERVER)
        await rig.ask(post(filtered(), UNSAMPLED))
        await rig.ask(post(call("ping"), UNSAMPLED))
        await rig.ask(request(fields=[b"traceparent: 00-zero"]))
        await rig.ask(request())
        one, other = await collector.until(2)
        assert {one.name, other.name} == {"GET"} and not one.parent_span_id and not other.parent_span_id
        assert one.trace_id != other.trace_id


async def test_a_query_has_spans_of_its_plan_and_of_each_request(gateways: Gateways) -> None:
    async with traced(gateways, index={"max_age": "1h"}) as (rig, collector):
        rig.serve(SERVER)
        client = await rig.client(rig.post(filtered(), SAMPLED))
        assert final(await client.response())["result"]["_meta"]["taskgate/total"] == 2
        query, plan, first, second = await collector.until(4)
        assert {span.trace_id.hex() for span in collector.spans} == {TRACE}
        assert [span.name for span in collector.spans] == ["tasks/list", "plan", "tasks/list", "tasks/list"]
        assert query.parent_span_id.hex() == PARENT and plan.parent_span_id == query.span_id
        assert first.parent_span_id == second.parent_span_id == plan.span_id
        assert (query.kind, first.kind) == (Span.SPAN_KIND_SERVER, Span.SPAN_KIND_CLIENT)
        reason = "nothing is known yet"
        assert said(plan) == {"taskgate.upstream": "up", "taskgate.reason": reason}
        of_query = said(query)
        assert (of_query["taskgate.kind"], of_query["taskgate.outcome"]) == ("answered", "refreshed")
        assert (of_query["taskgate.reason"], of_query["taskgate.upstream_requests"]) == (reason, 2)
        await client.send(rig.post(filtered()))  # on the same connection: a trace of its own
        await client.response(2)
        again = (await collector.until(5))[-1]
        assert said(again)["taskgate.outcome"] == "index" and not again.parent_span_id


async def test_a_failure_is_known_by_its_class_alone(gateways: Gateways) -> None:
    async with traced(gateways) as (rig, collector):
        rig.serve(replies(lambda message: fault(message["id"], -32603, "body5ecret task5ecret")))
        await rig.ask(post(filtered()))
        await rig.ask(post(call("ping")))
        await rig.ask(post(filtered(status="no")))
        await rig.ask(request(fields=[b"Origin: http://other.example"]))
        query, _, _, ping, bad, _, refused = await collector.until(7)
        assert said(query)["taskgate.outcome"] == "failed"
        codes = ["-32603", None, None, "-32603", "-32603", None, "-32600"]
        assert [said(span).get("rpc.response.status_code") for span in collector.spans] == codes
        failures = ["UpstreamFailed", "UpstreamFailed", None, "JsonRpcError", "UpstreamFailed", None, "Forbidden"]
        assert [said(span).get("error.type") for span in collector.spans] == failures
        assert all(
            (span.status.code == Status.STATUS_CODE_ERROR) == ("error.type" in said(span)) for span in collector.spans
        )
        assert [said(span)["taskgate.kind"] for span in (ping, bad, refused)] == ["relayed", "answered", "refused"]
        assert not any(span.events or span.status.message for span in collector.spans)


async def test_nothing_secret_is_in_a_span(gateways: Gateways) -> None:
    async def refuses(asked: Message, peer: Peer) -> bytes | None:
        return await SERVER(asked, peer) if asked.method == b"POST" else await no_content(asked, peer)

    async with traced(gateways) as (rig, collector):
        rig.serve(refuses)
        who = [b"Mcp-Session-Id: 5e5510n", b"Authorization: Bearer t0ken5ecret"]
        await rig.ask(post(filtered(taskIds=["task5ecret-1", "task5ecret-3"]), *who))
        await rig.ask(post(filtered(status=["working"]), *who))
        await rig.ask(post(call("tasks/get", taskId="task5ecret-1"), *who, target=b"/path5ecret/mcp?key=query5ecret"))
        await rig.ask(post(call("body5ecret", text="body5ecret"), *who))
        await rig.ask(request(b"PUT", b"/path5ecret?query5ecret", who))
        await eventually(
            lambda: any(said(span)["http.request.method"] == "PUT" for span in collector.spans if span.kind == 2),
            "the span of the last request",
        )
        assert len(collector.spans) > 8
        sent = b"".join(collector.bodies).lower()
        assert not [secret for secret in SECRETS if secret.encode() in sent]


@pytest.mark.parametrize("state", ["a=t0ken5ecret", "t0ken5ecret"], ids=["well-formed", "malformed"])
async def test_a_tracestate_is_in_no_span_and_no_log_and_goes_up_as_it_came(gateways: Gateways, state: str) -> None:
    """OpenTelemetry logs a malformed one as it came."""
    with collecting() as collector:
        async with own(gateways, no_content, traces=collector.traces) as rig:
            await rig.ask(post(call("ping"), SAMPLED, f"tracestate: {state}".encode()))
            [span] = await collector.until(1)
            assert (span.trace_id.hex(), span.trace_state) == (TRACE, "")
            assert rig.upstream.requests[0].value(b"tracestate") == state.encode()
            assert "t0ken5ecret" not in rig.gateway.log


async def test_a_record_that_fails_ends_its_span_and_leaves_none_to_the_next_request(
    gateways: Gateways, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = AccessLog._end

    def failing(self: Any, ended: Any) -> None:
        if ended.kind == "answered":
            raise ValueError
        end(self, ended)

    monkeypatch.setattr(AccessLog, "_end", failing)
    async with traced(gateways) as (rig, collector):
        rig.serve(SERVER)
        one = await rig.client(rig.post(filtered()), rig.post(call("ping")))
        await one.response(2)
        query, *_, ping = await collector.until(5)
        assert (query.name, ping.name) == ("tasks/list", "ping")
        assert not ping.parent_span_id and ping.trace_id != query.trace_id


@pytest.mark.parametrize("hangs", [False, True], ids=["absent", "hangs"])
async def test_a_collector_delays_nobody(gateways: Gateways, monkeypatch: pytest.MonkeyPatch, hangs: bool) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "3600")
    with collecting(hangs=True) as collector, held_port() as nobody:
        traces = collector.traces if hangs else {"endpoint": f"http://127.0.0.1:{port_of(nobody)}"}
        async with own(gateways, no_content, traces=traces) as rig:
            for _ in range(3):
                assert (await rig.ask(post(call("ping")))).status == 202
            rig.gateway.signal(signal.SIGTERM)
            assert await rig.gateway.exits() == 0, "in the time that every process gets"
        assert len(collector.bodies) == hangs


@pytest.mark.parametrize("is_on", [False, True], ids=["off", "on"])
async def test_opentelemetry_is_imported_only_if_configured(
    fresh_gateways: Gateways, monkeypatch: pytest.MonkeyPatch, is_on: bool
) -> None:
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    with collecting() as collector:
        async with own(fresh_gateways, **({"traces": collector.traces} if is_on else {})) as rig:
            rig.serve(SERVER)
            await rig.ask(post(filtered()))
            await rig.ask(post(call("ping")))
            assert ("opentelemetry" in rig.gateway.log) is is_on
    assert len(collector.spans) == 5 * is_on, "the last spans are sent when the process ends"


@pytest.mark.parametrize(
    ("setup", "words"),
    [
        (
            "sys.modules['opentelemetry.sdk.trace'] = None",
            "traces: its packages are missing; install taskgate with the extra otel: ",
        ),
        ("os.environ['OTEL_BSP_MAX_QUEUE_SIZE'] = '100'", "traces: OpenTelemetry refuses a variable OTEL_*: "),
        ("sys.modules['redis'] = None", "store: its client is not installed; install taskgate with the extra redis\n"),
    ],
)
def test_check_says_which_packages_are_missing_and_which_variable_is_refused(setup: str, words: str) -> None:
    """A queue of 100 is smaller than what is sent at once: it was found at the start, by a traceback."""
    code = f"import os, sys; {setup}; from gateway.__main__ import main; main()"
    key = "store: {url: 'redis://127.0.0.1'}" if "redis" in setup else "traces: {endpoint: 'http://127.0.0.1:4318'}"
    config = f"upstreams: [{{name: a, url: 'http://127.0.0.1:1'}}]\n{key}"
    line = [sys.executable, "-W", "error", "-c", code, "--check", "--config", "-"]
    done = subprocess.run(line, cwd=ROOT, input=config, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith(f"taskgate: {words}")
    assert "Traceback" not in done.stderr and done.stderr.count("\n") == 1
