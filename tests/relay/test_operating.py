"""What an operator sees of each request: metrics, the log, the audit (DESIGN 8)."""

import asyncio
import gzip
import hashlib
import json
import re
import signal
from pathlib import Path
from time import monotonic, time
from typing import Any

import aiohttp
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.launch import Gateways, Json, changes, eventually, logged
from tests.peer import Peer
from tests.relay.http1 import Message
from tests.relay.messages import call, fault, filtered, page, result, task
from tests.relay.rig import Rig, Server, answers, body, final, gives, own, replies, rig_with, says
from tests.relay.wire import LAST_CHUNK, answer, event, post, request, response, stream
from tests.relay.wire import chunk as in_chunk

TRACE = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


echo = answers(lambda asked: answer(result(body(asked)["id"], page([]))) if body(asked) else response())


def lines(rig: Rig, message: str) -> list[Json]:
    return [line for line in rig.gateway.lines() if line["message"] == message]


# ---- metrics ----


async def test_each_method_has_durations_and_statuses_of_its_own(gateways: Gateways) -> None:
    """Finer than a millisecond, which the clock of uvloop's loops is not: a relayed ping took 0 s, or 1 ms."""
    async with own(gateways, Server({})) as rig:
        for method in ("ping", "ping", "tools/call", "made/up"):
            await rig.ask(post(call(method)))
        await rig.ask(request(b"DELETE"))
        labels = {"upstream": "up", "kind": "relayed"}
        found = await rig.gateway.becomes("requests_total", 1, **labels, method="DELETE", status="202")
        for method, count in (("ping", 2), ("tools/call", 1), ("other", 1), ("DELETE", 1)):
            durations = tuple(sorted({**labels, "method": method}.items()))
            assert found["taskgate_request_duration_seconds_count", durations] == count
            assert changes({}, found, "taskgate_requests_total", upstream="up", method=method) == count
            took = found["taskgate_request_duration_seconds_sum", durations]
            assert took > 0 and took * 1000 != round(took * 1000)
        took = found["taskgate_upstream_response_seconds_sum", (("upstream", "up"),)]
        assert took > 0 and took * 1000 != round(took * 1000)
        name = "taskgate_request_duration_seconds_bucket"
        bounds = {float(dict(labels)["le"]) for each, labels in found if each == name}
        assert sorted(bounds)[:3] == [0.0001, 0.00025, 0.0005], "smaller than a relayed ping"


def in_the_documents() -> dict[str, str]:
    """The metrics in the table of docs/metrics.md, each with its labels."""
    table = (Path(__file__).parents[2] / "docs/metrics.md").read_text().split("\n| metric |", 1)[1].split("\n\n", 1)[0]
    found = dict[str, str]()
    for row in table.splitlines():
        found |= dict(re.findall(r"`(taskgate_[a-z_]+)({.*?})?`", row))
        limited, has_limits, _ = row.partition("each with `_max`")
        found |= {f"{name}_max": "" for name in re.findall("`(taskgate_[a-z_]+)`", limited) if has_limits}
    return found


COUNTERS = [
    *(
        ("failures", "kind", kind)
        for kind in ("UpstreamUnreachable", "UpstreamTimeout", "UpstreamBroken", "Overloaded")
    ),
    *(("queries", "outcome", outcome) for outcome in ("index", "refreshed", "coalesced", "refused", "failed")),
    *(("connections_refused", "why", why) for why in ("connections_max", "descriptors")),
    ("tls_handshake_failures", "reason", "certificate"),
]
LIMITS = {"connections_max": 77, "held_bytes_max": 8 << 20, "index_bytes_max": 2 << 20, "index_sessions_max": 5}


async def test_what_is_there_from_the_first_scrape_on(gateways: Gateways) -> None:
    """Every metric of the documents, and no other. A counter that begins at 1 hides its first event from `rate`."""
    elsewhere = {"taskgate_store_up", "taskgate_queries_in_flight", "taskgate_queries_in_flight_max"}  # a store, stdio
    limits = {"connections_max": 77, "held_bytes_max": "8MiB"}
    index = {"memory_bytes_max": "2MiB", "sessions_max": 5}
    async with rig_with(gateways, limits=limits, index=index, upstream={"requests_max": 9}) as rig:
        text = await rig.gateway.exposition()
        found = await rig.gateway.metrics()
    told = set(re.findall("^# TYPE (taskgate_[a-z_]+) ", text, re.MULTILINE))
    assert "_created" not in text
    assert told ^ in_the_documents().keys() == elsewhere
    of_upstream = (("upstream", "up"),)
    for name, labels in in_the_documents().items():
        if name.endswith("_total") and labels == "{upstream}":
            assert found[name, of_upstream] == 0
    for name, label, value in COUNTERS:
        more = of_upstream if name in ("failures", "queries") else ()
        assert found[f"taskgate_{name}_total", ((label, value), *more)] == 0
    assert {name: found[f"taskgate_{name}", ()] for name in LIMITS} == LIMITS
    assert {f"taskgate_{name.removesuffix('_max')}" for name in LIMITS} <= told
    assert found["taskgate_upstream_requests_max", of_upstream] == 9
    names = {name for name, _ in found}
    assert {"process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds"} <= names
    [build] = [dict(labels) for name, labels in found if name == "taskgate_build_info"]
    assert re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+", build["version"]) and build["python"].startswith("3.")


async def test_what_is_in_flight_or_refused_and_what_waits_for_news(gateways: Gateways) -> None:
    """A connection that is refused is none in use; what waits for news is no slow answer."""
    async with rig_with(gateways, limits={"connections_max": 3}) as rig:
        _, peer = await rig.begin(request(fields=[b"Accept: text/event-stream"]))
        await peer.send(stream())
        found = await rig.gateway.becomes("requests_in_flight", 1, upstream="up")
        assert found["taskgate_upstream_requests_in_flight", (("upstream", "up"),)] == 1
        for _ in range(8):
            await rig.client()
        found = await rig.gateway.becomes("connections_refused_total", 6, why="connections_max")
        assert found["taskgate_connections", ()] == 3
        await rig.leave()
        await rig.gateway.becomes("requests_in_flight", 0, upstream="up")
        await rig.gateway.becomes("upstream_requests_in_flight", 0, upstream="up")
        rig.serve(Server({}))
        await rig.ask(post(call("tasks/result", taskId="t-1")))
        await rig.ask(post(call("ping")))
        await rig.gateway.becomes("upstream_response_seconds_count", 1, upstream="up")


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        *((json.dumps(fault("ID", code, "No")).encode(), "refused") for code in (-32600, -32601, -32602)),
        *((json.dumps(fault("ID", code, "No")).encode(), "failed") for code in (-32603, -32000)),
        *((response(status=b"%d No" % status), "refused") for status in (301, 307, 400, 401, 403, 404, 405, 406, 422)),
        *((response(status=b"%d No" % status), "failed") for status in (429, 500, 503)),
    ],
)
async def test_a_list_that_the_server_refuses_has_not_failed(gateways: Gateways, said: bytes, outcome: str) -> None:
    refuse = replies(lambda message: json.loads(said) | {"id": message["id"]}) if b"ID" in said else says(said)
    async with rig_with(gateways, refuse) as rig:
        await rig.ask(post(filtered()))
        found = await rig.gateway.becomes("queries_total", 1, upstream="up", outcome=outcome)
        other = {"refused": "failed", "failed": "refused"}[outcome]
        assert found["taskgate_queries_total", (("outcome", other), ("upstream", "up"))] == 0


@pytest.mark.parametrize(("accepted", "coding"), [("gzip", "gzip"), ("identity", None), ("br", None)])
async def test_metrics_are_compressed_for_a_scraper_that_takes_it(
    gateways: Gateways, accepted: str, coding: str | None
) -> None:
    async with rig_with(gateways) as rig, aiohttp.ClientSession(auto_decompress=False) as http:
        url = f"http://127.0.0.1:{rig.gateway.admin}/metrics"
        fields = {"Accept-Encoding": accepted, "Accept": "application/openmetrics-text;version=1.0.0"}
        async with http.get(url, headers=fields) as scraped:
            data = await scraped.read()
        assert scraped.headers.get("Content-Encoding") == coding
        text = (gzip.decompress(data) if coding else data).decode()
        families = text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
        assert "taskgate_build_info" in {family.name for family in families}


# A message, what the server answers, and the code by which that is counted; without one it is no error.
ERRORS: dict[str, tuple[Any, bytes, str]] = {
    "-32601": (call("ping"), answer(fault(1, -32601, "x")), "-32601"),
    "-32002": (call("resources/read"), answer(fault(1, -32002, "x"), status=b"400 Bad Request"), "-32002"),
    "an event": (call("tools/call"), stream() + in_chunk(event(fault(1, -1, "x"))) + LAST_CHUNK, "other"),
    "-32603": (call("tasks/get", taskId="t"), answer(fault(1, -32603, "x")), "-32603"),
    "-32600": (call("initialize"), answer(fault(1, -32600, "x")), "-32600"),
    # A line with such a number could not be written: a traceback stood in its place, and the audit had no line.
    "beyond 64 bits": (call("tasks/cancel", taskId="t"), answer(fault(1, -(10**30), "x")), ""),
    "the gateway's own": (filtered(status=["none"]), answer(result(1, page([]))), "-32602"),
    "an error in a result": (call("tools/call"), answer(result(1, {"error": {"code": 1}})), ""),
    "a tool's error": (call("tools/call"), answer(result(1, {"isError": True, "text": '"error"'})), ""),
}


@pytest.mark.parametrize("name", ERRORS)
async def test_json_rpc_errors_are_counted_by_code_and_logged(gateways: Gateways, name: str) -> None:
    message, said, code = ERRORS[name]
    async with rig_with(gateways, log={"level": "info", "access": True, "audit": True}) as rig:
        rig.serve(says(said) if message["method"] != "tasks/list" else gives(page([])))
        assert (await rig.ask(post(message))).whole
        assert (await logged(rig.gateway, '"request"'))["method"] == message["method"]
        if code:
            await rig.gateway.becomes("jsonrpc_errors_total", 1, upstream="up", code=code)
            line = await logged(rig.gateway, '"failed"')
            assert (line["level"], line["method"]) == ("info", message["method"])
            assert code in ("other", str(line["code"]))
        assert len(lines(rig, "failed")) == bool(code)
        assert [line["action"] for line in lines(rig, "audit")] == ["cancel"] * (message["method"] == "tasks/cancel")


# ---- the log ----


async def test_a_failed_request_is_told_with_all_that_finds_it(gateways: Gateways) -> None:
    async with own(gateways, log={"level": "info"}, upstream={"url": "http://127.0.0.1:1/mcp"}) as rig:
        await rig.ask(
            post(call("tools/call"), b"X-Request-Id: r-17", b"Mcp-Session-Id: s-17", target=b"/mcp?key=s3cr3t")
        )
        line = await logged(rig.gateway, "UpstreamUnreachable")
        assert line.pop("seconds") >= 0
        assert line.pop("time") and line.pop("logger") == "taskgate.request"
        assert re.fullmatch("[0-9a-f]{32}", line.pop("caller"))
        assert line == {
            "level": "info",
            "message": "failed",
            "upstream": "up",
            "kind": "relayed",
            "http_method": "POST",
            "method": "tools/call",
            "path": "/mcp",
            "status": 502,
            "client": "127.0.0.1",
            "request_id": "r-17",
            "session": named("s-17"),
            "failure": "UpstreamUnreachable",
            "why": "the upstream at 127.0.0.1:1 cannot be reached: Connection refused",
            "code": -32603,
            "count": 1,
        }


async def test_an_upstreams_5xx_and_a_client_that_leaves_are_told(gateways: Gateways) -> None:
    """Where a request has no id, its traceparent finds it."""
    async with rig_with(gateways, log={"level": "info"}) as rig:
        await rig.exchange(request(fields=[b"Traceparent: " + TRACE]), response(b"no", status=b"503 Oh"))
        line = await logged(rig.gateway, "UpstreamStatus")
        assert (line["level"], line["status"], line["why"]) == ("info", 503, "the upstream answered 503")
        assert line["request_id"] == TRACE.decode()
        one, _ = await rig.begin(post(call("tools/call")))
        one.reset()
        line = await logged(rig.gateway, "ClientLeft")
        assert (line["status"], line["client"], line["method"]) == (499, "127.0.0.1", "tools/call")
        one = await rig.client(post(call("initialize"))[:-1])
        one.reset()
        assert (await logged(rig.gateway, "before its request was whole"))["failure"] == "RequestCut"


async def test_a_query_that_fails_on_a_stream_is_told_like_any_other(gateways: Gateways) -> None:
    """Its head had said 200: only a line without client, method and path said that it failed."""
    async with rig_with(gateways, log={"level": "info"}) as rig:
        one = await rig.client(rig.post(filtered()))
        note = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}}
        for number in (1, 2):  # one dropped connection is survived
            peer = await rig.upstream.request(number)
            await peer.send(stream() + in_chunk(event(note)))
            await one.hears(b"notifications/message", number)
            peer.reset()
        assert final(await one.response())["error"]["code"] == -32603
        line = await logged(rig.gateway, "UpstreamBroken")
        assert (line["logger"], line["method"], line["client"]) == ("taskgate.request", "tasks/list", "127.0.0.1")
        assert len(lines(rig, "failed")) == 1


async def test_text_lines(gateways: Gateways) -> None:
    async with own(gateways, log={"level": "info", "format": "text"}, upstream={"url": "http://127.0.0.1:1/"}) as rig:
        await rig.ask(post(call("two words"), b'X-Request-Id: a"b'))
        await eventually(lambda: "failed" in rig.gateway.log, "a line")
        [line] = [line for line in rig.gateway.log.splitlines() if " failed " in line]
        assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00 info    failed upstream=up kind=relayed ", line)
        assert ' method="two words" http_method=POST path=/mcp client=127.0.0.1 request_id="a\\"b" status=502 ' in line
        why = ' why="the upstream at 127.0.0.1:1 cannot be reached: Connection refused"'
        assert re.search(re.escape(why) + " caller=[0-9a-f]{32} count=1$", line)


async def verdict(rig: Rig) -> Json:
    """What the page says first."""
    found: Json = (await rig.gateway.shown())["verdict"]
    return found


@pytest.mark.parametrize("status", [307, 401, 403, 404, 429])
async def test_an_upstream_that_refuses_nearly_all_is_no_healthy_one(gateways: Gateways, status: int) -> None:
    """It was "Nothing is wrong", in green, for five minutes of 401s. One failure beside them hides nothing."""
    refused = 0

    async def script(asked: Message, _peer: Peer) -> bytes:
        method = body(asked)["method"]
        fails = b"500 Oh" if method == "ping" else b"200 OK" if method == "tools/list" else b"%d No" % status
        return answer(result(1, {}), b"Location: /login", status=fails)

    async with rig_with(gateways, script, log={"level": "info"}) as rig:
        for level, times in (("note", 19), ("warn", 20)):
            for _ in range(times):
                await rig.ask(rig.post(call("tools/call" if refused % 2 else "initialize")))
                refused += 1
            told = await verdict(rig)
            assert (told["level"], told["text"]) == (level, f"up refused all {refused} requests")
        [fault] = told["faults"]
        assert f"the upstream answered {status}" in fault["why"]
        assert fault["row"] == ["reasons", f"up\nUpstreamStatus {status}\nFalse"]
        assert abs(fault["since"] - time()) < 60
        await rig.ask(rig.post(call("ping")))
        assert (await verdict(rig))["text"] == "up refused 39 of 40 requests. up failed 1 of 40 requests"
        line = await logged(rig.gateway, f"answered {status}")
        assert line["method"] == "initialize" and line["session"] == named(rig.session.partition(b": ")[2].decode())
        for _ in range(2):
            await rig.ask(rig.post(call("tools/list")))
        assert (await verdict(rig))["level"] == "note", "it lets one in twenty in"


async def test_what_fails_all_has_one_headline_whether_it_is_up_or_down_at_the_moment(gateways: Gateways) -> None:
    """It was "down since" a second ago, then "failed 6 of 6 requests since" the first, each with advice of its own."""
    is_up = True
    script = answers(lambda _: response(status=b"500 Oh") if is_up else None)
    async with rig_with(gateways, script, upstream={"response_timeout": "500ms"}) as rig:
        states, told = list[str](), set[str]()
        for count in range(1, 11):
            is_up = count % 3 > 0
            await rig.ask(rig.post(call("ping")))
            shown = await rig.gateway.shown()
            if count >= 5:
                [fault], [upstream] = shown["verdict"]["faults"], shown["upstreams"]
                assert fault.pop("text") == f"up failed all {count} requests" and upstream["wrong"]["down"]
                states.append(upstream["state"])
                told.add(json.dumps(fault))
        assert {*states} == {"up", "down"} and len(told) == 1, "one first instant, one reason and its advice"


async def test_a_probe_of_other_paths_does_not_overwrite_why_a_server_refuses(gateways: Gateways) -> None:
    async with rig_with(gateways, says(response(status=b"404 No"))) as rig:
        for target, times in ((b"/mcp", 20), (b"/elsewhere", 3)):
            for _ in range(times):
                await rig.ask(post(call("initialize"), target=target))
        [fault] = (await verdict(rig))["faults"]
        assert fault["why"] == "the upstream answered 404: nothing is there: the path of url is wrong"


async def test_the_result_of_a_cancelled_task_is_no_failure_of_the_servers(gateways: Gateways) -> None:
    """The TypeScript SDK answers with an internal error: the page was red after eleven ordinary requests."""
    said = {"tools/call": {"task": task("t-1")}, "tasks/cancel": task("t-1", "cancelled")}
    script = replies(lambda message: said.get(message["method"]) or fault(1, -32603, "no result stored"))
    async with rig_with(gateways, script) as rig:
        for message in (call("tools/call", name="x", task={}), call("tasks/cancel", taskId="t-1")):
            await rig.ask(rig.post(message))
        for _ in range(6):
            await rig.ask(rig.post(call("tasks/result", taskId="t-1")))
        assert (await verdict(rig))["text"] == "Nothing is wrong: 1 up"
        for level in ("note",) * 4 + ("bad",):
            await rig.ask(rig.post(call("tasks/result", taskId="t-2")))
            assert (await verdict(rig))["level"] == level


async def test_a_tools_name_is_printable_in_the_metrics(gateways: Gateways) -> None:
    async with rig_with(gateways, says(answer(result(1, {"task": task("t-1")})))) as rig:
        await rig.ask(rig.post(call("tools/call", name="a\x1b[31m\rb", task={})))
        text = await rig.gateway.exposition()
        assert '"a\\\\u001b[31m\\\\u000db"' in text and "\x1b" not in text and "\r" not in text


# ---- the audit ----


def named(task_id: str) -> str:
    return hashlib.blake2b(task_id.encode(), digest_size=16).hexdigest()


AUDITED = [
    (call("tools/call", name="x", task={}), answer(result(1, {"task": task("t-1")}))),
    (call("tasks/cancel", taskId="t-1"), answer(result(1, task("t-1", "cancelled")))),
    (call("tasks/result", taskId="t-1"), answer(result(1, {}))),
    (call("ping"), answer(result(1, {}))),
    (call("tasks/cancel", taskId="gone"), answer(fault(1, -32602, "no such task"))),
    (call("tools/call", task={"ttl": 1}), b"no HTTP\r\n\r\n"),
]


async def test_the_audit_has_a_line_for_each_task_that_is_created_cancelled_or_fetched_and_for_its_end(
    gateways: Gateways,
) -> None:
    """And for what failed."""
    async with rig_with(gateways, log={"level": "info", "audit": True}) as rig:
        for message, said in AUDITED:
            await rig.exchange(rig.post(message, b"Authorization: Bearer s3cr3t"), said)
        await eventually(lambda: len(lines(rig, "audit")) == 6, "6 lines of the audit")
        created, ended, cancelled, fetched, denied, failed = told = lines(rig, "audit")
        assert [line["action"] for line in told] == ["create", "end", "cancel", "fetch", "cancel", "create"]
        assert (created["tool"], ended["tool"], ended["task_status"]) == ("x", "x", "cancelled")
        assert all(ended[name] == created[name] for name in ("task", "caller", "session", "upstream"))
        for line in (created, cancelled, fetched):
            assert (line["level"], line["status"], line["client"]) == ("info", 200, "127.0.0.1")
            assert line["task"] == named("t-1")
            assert re.fullmatch("[0-9a-f]{32}", line["session"]) and re.fullmatch("[0-9a-f]{32}", line["caller"])
        assert created["caller"] == cancelled["caller"] and created["session"] == cancelled["session"]
        assert (denied["task"], denied["code"]) == (named("gone"), -32602)
        assert "task" not in failed and failed["failure"] == "UpstreamBroken"
        assert "t-1" not in rig.gateway.log and "s3cr3t" not in rig.gateway.log


UNPRINTABLE = "\x80\x85\x9b31m\x9f\u2028\u202e\ue000"


@pytest.mark.parametrize("form", ["json", "text"])
async def test_what_a_peer_says_stands_in_the_log_as_printable_text(gateways: Gateways, form: str) -> None:
    """C1 controls, NEL among them, stood raw in lines: a terminal obeys them, and some readers end a line there."""
    raw = bytes(range(0x80, 0xFF, 2)) + b"\x85\xff"
    async with own(gateways, echo, log={"level": "debug", "format": form, "access": True, "audit": True}) as rig:
        await rig.ask(request(fields=[b"X-Request-Id: r-" + raw]))
        await rig.ask(post(call(UNPRINTABLE, {"task": {}}), b"X-Request-Id: m"))
        await rig.ask(request(fields=[b"Traceparent: " + raw]))
        assert (await rig.ask(request(fields=[b"Connection: mcp-" + raw]))).status == 400
        await eventually(lambda: rig.gateway.log.count("mcp-") >= 1, "the last line")
        log, shown = rig.gateway.log, await rig.gateway.shown()
        assert "mcp-\\u0080\\u0082" in shown["failures"][0]["why"]
        assert [line for line in log.split("\n") if not line.isprintable()] == []
        assert "\\u0085" in log and "\\u202e" in log and "\xff" in log
        if form == "json":
            assert "r-" + raw.decode("latin-1") in {line.get("request_id") for line in rig.gateway.lines()}


@pytest.mark.parametrize(
    ("sent", "status", "message"),
    [
        (b"nonsense\r\n\r\n", 400, "refused a request"),
        (request(), 503, "connections of clients are refused"),
        (post(call("ping")), 502, "failed"),
    ],
    ids=["no request", "beyond connections_max", "of one cause"],
)
async def test_a_storm_writes_a_line_a_second_with_a_count_to_the_end_of_the_process(
    gateways: Gateways, sent: bytes, status: int, message: str
) -> None:
    """16,829 lines in 90 s, one for each connection; a signal within the second then lost the count."""
    changed: dict[int, Json] = {
        502: {"upstream": {"url": "http://127.0.0.1:1/mcp"}},
        503: {"limits": {"connections_max": 1}},
    }
    given: Json = {"log": {"level": "info", "access": True}, **changed.get(status, {})}
    async with own(gateways, echo, **given) as rig:
        first = await rig.client(*([request()] if status == 503 else []))
        if status == 503:
            assert (await first.response()).status == 200
        began_at, count = monotonic(), 60

        async def told() -> bool:
            return bool(sum(line["count"] for line in lines(rig, message)) == count)

        for _ in range(count):
            assert (await rig.ask(sent)).status == status
        await eventually(told, f"a count of all of them: {lines(rig, message)}")
        assert lines(rig, message)[0]["count"] == 1, "the first at once"
        assert 2 <= len(lines(rig, message)) <= monotonic() - began_at + 1
        if status == 502:
            assert (await rig.ask(request(target=b"/mcp", host=b"evil.example"))).status == 403
            await eventually(lambda: len(lines(rig, "request")) == count + 1, "the access log has each")
            assert [line["failure"] for line in lines(rig, message)][-1] == "Forbidden", "another cause"
        known = sum(line["count"] for line in lines(rig, message))
        for number in range(10):
            assert (await rig.ask(sent)).status == status
            if number == 5 and status != 503:  # what waits for its second goes on behind a reload
                rig.gateway.renew(rig.settings(**given))
                await logged(rig.gateway, '"reloaded"')
        await first.close()
        rig.gateway.signal(signal.SIGTERM)
        assert await rig.gateway.exits() == 0
        assert sum(line["count"] for line in lines(rig, message)) == known + 10
        assert rig.gateway.lines()[-1]["message"] == "stopped"


SLOW_S = 0.12


@pytest.mark.parametrize("coding", ["length", "chunked", "a list"])
async def test_p95_is_of_whole_answers(gateways: Gateways, coding: str) -> None:
    """Lists that took 165 ms showed 4.8 ms, the time until the head of an answer."""

    async def slow(asked: Message, peer: Peer) -> None:
        """The head at once, the rest later."""
        said = result(body(asked)["id"], page([task("t-1")]))
        whole = stream() + in_chunk(event(said)) + LAST_CHUNK if coding == "chunked" else answer(said)
        head, end, rest = whole.partition(b"\r\n\r\n")
        await peer.send(head + end)
        await asyncio.sleep(SLOW_S)
        await peer.send(rest)

    async with rig_with(gateways, slow) as rig:
        for number in range(5):
            await rig.ask(post(filtered(number) if coding == "a list" else call("tools/call", number)))
        assert await p95(rig) > 0.1


async def test_what_goes_on_does_not_count_for_p95(gateways: Gateways) -> None:
    async with rig_with(gateways) as rig:
        began = [
            request(fields=[b"Accept: text/event-stream"]),
            post(call("tools/call", 2)),
            post(call("subscriptions/listen", 3)),
            post(call("tasks/result", 4, taskId="t")),
        ]
        for number, asked in enumerate(began):
            one, peer = await rig.begin(asked)
            await peer.send(stream() + in_chunk(event({"jsonrpc": "2.0", "method": "notifications/message"})))
            await one.hears(b"notifications/message")
            await asyncio.sleep(SLOW_S)
            if number > 1:
                await peer.send(in_chunk(event(result(number, {}))) + LAST_CHUNK)
                await one.response()
            await one.close()
        found = await rig.gateway.becomes("requests_in_flight", 0, upstream="up")
        assert changes({}, found, "taskgate_requests_total") == 4, "the stream that its client has left, too"
        assert await p95(rig) is None
        rig.serve(echo)
        await rig.ask(post(call("ping")))
        assert await p95(rig) is not None


async def p95(rig: Rig) -> Any:
    """That of the page, of the last minute."""
    return (await rig.gateway.shown())["upstreams"][0].get("p95", [None])[0]


@pytest.mark.parametrize("status", [b"404 No", b"307 There"])
async def test_a_host_that_no_url_can_have_is_no_fault_where_the_server_redirects(
    gateways: Gateways, status: bytes
) -> None:
    """What the answer says of the address is worked out from the client's own Host: 500, and a traceback each time."""
    async with own(gateways, log={"level": "info"}, upstream={"host": "preserve"}) as rig:
        rig.serve(says(response(b"x", b"Location: /mcp/", status=status)))
        for message in (call("initialize"), filtered()):
            sent = post(message).replace(b"Host: localhost", b"Host: [127.0.0.1]")
            assert (await rig.ask(sent)).status == int(status[:3])
        found = await rig.gateway.metrics()
        assert sum(count for (name, _), count in found.items() if name == "taskgate_requests_total") == 2
