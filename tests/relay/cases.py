"""The table: what must be the same through the gateway as directly, but for what DESIGN 3 lists: messages and streams.

Fields and other legal traffic are generated (test_generated.py), who dies in an exchange is drawn (tests/soak); what
is hostile or odd stands in the tables of tests/attack.
"""

import gzip
import zlib
from collections.abc import Iterator
from typing import Final

from tests.relay.harness import Case, arrives, begins, client, exchange, upstream, upstream_ends, upstream_hears
from tests.relay.messages import call, dumps, fault, initialized, notification, result, task
from tests.relay.wire import LAST_CHUNK, answer, chunk, event, post, request, response, stream

OK: Final = response()
TEXT: Final = b"Content-Type: text/plain"
JSON: Final = b"Content-Type: application/json"
CHUNKED: Final = b"Transfer-Encoding: chunked"
GET: Final = request()
SESSION: Final = b"Mcp-Session-Id: 0f8c"
TASK: Final = task("t", "x", "", big=12345678901234567890123, note="\u2028")
GET_TASK: Final = post(call("tasks/get", taskId="t-1"), SESSION)
OPEN: Final = request(fields=[b"Accept: text/event-stream", SESSION])


def _raw(status: bytes, *fields: bytes, body: bytes = b"", version: bytes = b"HTTP/1.1") -> bytes:
    return b"\r\n".join([version + b" " + status, *fields, b"", body])


# ---- bodies ----


def bodies_as_they_come() -> Iterator[Case]:
    both = [
        *(client(request(b"POST", fields=[TEXT, CHUNKED]), chunk(b"ping 1")), begins(), upstream_hears(b"ping 1")),
        *(upstream(_raw(b"200 OK", TEXT, CHUNKED), chunk(b"pong 1")), client(chunk(b"ping 2"))),
        *(upstream_hears(b"ping 2"), upstream(chunk(b"pong 2")), client(LAST_CHUNK), arrives(), upstream(LAST_CHUNK)),
    ]
    yield Case("both bodies at once", both)
    expecting = client(request(b"PUT", fields=[TEXT, CHUNKED, b"Expect: 100-continue"]))
    empty = [expecting, begins(), client(LAST_CHUNK), arrives(), upstream(OK)]  # it was answered 504 at once
    yield Case("Expect: 100-continue, and an empty body without waiting", empty)
    early = [client(request(b"PUT", fields=[TEXT, b"Content-Length: 4"]), b"01"), begins(), upstream_hears(b"01")]
    early += [upstream(response(b"", status=b"202 Accepted")), client(b"2", b"3"), arrives(), *exchange(GET, OK, 2)]
    yield Case("an early answer, which does not end the upload", early)


# ---- messages that are looked at, and streams ----

MESSAGES: Final[dict[str, object]] = {
    "a response": result("srv-1", {"action": "accept"}),
    "a batch": [call("ping", 1), call("ping", "1"), notification("x")],
    "JSON with white space": b'\r\n{ "jsonrpc" : "2.0",\t"id" : 1 , "method" : "ping" }\n',
    "another JSON-RPC": b'{"jsonrpc":"1.0","id":1,"method":"tasks/list","params":{"status":["working"]}}',
    "tasks/list without params": {"jsonrpc": "2.0", "id": 1, "method": "tasks/list"},
    "tasks/list with the upstream's cursor": call("tasks/list", cursor="t-10"),
    "tasks/list with empty criteria": call("tasks/list", status=[], taskIds=[], methods=[], filter={}),
    "tasks/list with parameters nobody knows": call("tasks/list", limit=3, _meta={"progressToken": 1}),
    "tasks/list that is no request": notification("tasks/list", status=["working"]),
}
KINDS: Final = (b"APPLICATION/JSON; charset=utf-8", b"text/json", b"multipart/form-data; boundary=x")


def messages() -> Iterator[Case]:
    for name, message in MESSAGES.items():
        yield Case(f"message: {name}", exchange(post(message, SESSION), answer(result(1, {}), SESSION)))
    codings = b"Accept-Encoding: gzip;q=0.5, br, zstd"
    both = exchange(request(fields=[codings]), OK) + exchange(post(call("ping"), codings), OK, 2)
    yield Case("message: encodings that the gateway cannot read", both)
    asks = post([call("initialize"), call("tasks/list", 2, status=["working"])], SESSION)
    tells = [result(1, initialized()), result(2, {"tasks": [TASK]})]
    for name, batch in (("JSON", answer(tells)), ("an event", stream(SESSION) + chunk(event(tells)) + LAST_CHUNK)):
        yield Case(f"message: a batch of initialize and a filtered list, answered in {name}", exchange(asks, batch))
    later = post(call("tasks/list", status=["x"]), b"Mcp-Protocol-Version: 2026-07-28", b"Mcp-Method: tasks/list")
    yield Case("message: tasks/list of a later era", exchange(later, answer(fault(1, -32601, "?"))))
    for kind in KINDS:
        asked = request(b"POST", fields=[b"Content-Type: " + kind], body=dumps(call("ping")))
        yield Case(f"message: as {kind.decode()}", exchange(asked, answer(result(1, {}))))
    encoded = gzip.compress(dumps(call("tasks/list", status=["working"])), mtime=0)
    yield Case("message: encoded", exchange(post(encoded, b"Content-Encoding: gzip"), answer(result(1, {}))))
    packed = [_raw(b"200 OK", JSON, b"Content-Encoding: gzip", CHUNKED)]
    whole = gzip.compress(dumps(result(1, TASK)))
    packed += [*(chunk(whole[at : at + 3]) for at in range(0, len(whole), 3)), LAST_CHUNK]
    yield Case("tasks/get answered: gzip, in pieces", exchange(GET_TASK, packed) + exchange(GET, OK, 2))


STREAMS: Final[dict[str, list[bytes]]] = {
    "events": [event(b'{"a":1}'), event(b'{"b":2}'), event(b'{"c":3}')],
    "mixed ends of lines": [b"event: a\rid: 1\rdata: x\r\r", b"data: a\r\ndata: b\n\n", b"data: d\n\r\n\n\n"],
    "comments, retry, priming": [b": hello\n\n", b"id: 1\ndata:\n\n", b"retry: 3000\n\n", b":\n:keep-alive\n\n"],
    "what looks like an answer": [event(notification("notifications/message", data={"id": 1, "result": {}}))],
    "status notifications": [event(notification("notifications/tasks/status", **TASK), b"id: 7") for _ in range(3)],
    "an event that never ends": [b"data: x\n\n", b"data: unfinished\nid: 9"],
    "split between CR and LF": [b"data: x\r", b"\n\r", b"\ndata: y\r\n\r", b"\n"],
    "an event of 200 kB": [b"data: " + b"x" * 200_000 + b"\n\n", b"data: y\n\n"],
}


def streams() -> Iterator[Case]:
    for name, events in STREAMS.items():
        head = stream(SESSION, b"Cache-Control: no-cache, no-transform", b"X-Accel-Buffering: no")
        for how, asked in (("GET", OPEN), ("POST", post(call("tools/call", task={}), SESSION))):
            pieces = [head, *map(chunk, events)]
            yield Case(f"stream: {name}, {how}", exchange(asked, [*pieces, LAST_CHUNK]) + exchange(GET, OK, 2))
            yield Case(f"stream: {name}, {how}, left open", exchange(asked, pieces), stays_open=True)
        whole = _raw(b"200 OK", b"Content-Type: text/event-stream")
        yield Case(f"stream: {name}, until the end", [*exchange(OPEN, [whole, *events]), upstream_ends("fin")])
    packed = zlib.compressobj(wbits=31)
    parts = [packed.compress(event(b"%d" % n)) + packed.flush(zlib.Z_SYNC_FLUSH) for n in range(3)]
    for coding, told in ((b"gzip", [*parts, packed.flush()]), (b"gzip", [b"data: x\n\n"]), (b"br", [b"\x0b\x00\x80"])):
        pieces = [stream(b"Content-Encoding: " + coding), *map(chunk, told), LAST_CHUNK]
        yield Case(f"stream: {coding.decode()} of {len(told)} pieces", exchange(OPEN, pieces))
    resumes = request(fields=[b"Accept: text/event-stream", b"Last-Event-ID: 7_a/\xe9", SESSION])
    yield Case("stream: resumed", exchange(resumes, [stream(), chunk(event(b"8", b"id: 8"))]), stays_open=True)
    for end in (b"\n", b"\r", b"\r\n"):  # the comment was held until an event ended
        beats = [stream(), chunk(b": beat" + end), chunk(event(result(1, {}))), LAST_CHUNK]
        yield Case(f"stream: one that may be edited, a comment and {end!r}", exchange(post(call("initialize")), beats))
    endpoint = [stream(), chunk(b"event: endpoint\ndata: /messages/?session_id=1\n\n")]
    yield Case("stream: the HTTP+SSE transport", exchange(request(target=b"/sse"), endpoint), stays_open=True)


def all_cases() -> list[Case]:
    return [*messages(), *timed_cases()]


def timed_cases() -> list[Case]:
    """Those of them where the event loop has a say: when something is sent, and how a connection ends."""
    return [case for part in (bodies_as_they_come, streams) for case in part()]


def about_the_limit(bytes_max: int) -> Iterator[Case]:
    """Messages at and above the size up to which they are looked at, up and down, in one piece and in many."""
    for size in (bytes_max, bytes_max + 1, 3 * bytes_max):
        asked = call("tasks/get", taskId="")
        asked["params"]["taskId"] = "t" * (size - len(dumps(asked)))
        up = dumps(asked)
        down = dumps(result(1, task("t-1", pad="x" * (size - len(dumps(result(1, task("t-1", pad=""))))))))
        assert len(up) == len(down) == size
        halves = up[: size // 2], up[size // 2 :]
        pieces = [down[at : at + 1000] for at in range(0, size, 1000)]
        yield Case(f"{size} bytes: by length", exchange(post(up), answer(down)) + exchange(GET, OK, 2))
        in_chunks = request(b"POST", fields=[JSON, CHUNKED])
        told = [_raw(b"200 OK", JSON, CHUNKED), *map(chunk, pieces), LAST_CHUNK]
        yield Case(f"{size} bytes: in chunks", exchange([in_chunks, *map(chunk, halves), LAST_CHUNK], told))
        big = b"data: " + b"x" * (size - 8) + b"\n\n"
        events = [stream(), chunk(big[: size // 2]), chunk(big[size // 2 :] + event(b"2")), LAST_CHUNK]
        yield Case(f"{size} bytes: an event", exchange(OPEN, events))
