"""Event streams that no server should send: each byte passes, or the stream is cut (DESIGN 3.4, 4)."""

from typing import Final

from tests.attack.rows import CHUNKED, CUT, Got, Pieces, Response, ask, asked, gives, ok, raw
from tests.relay.messages import call, chunked, dumps, event, notification, result, task

_EVENTS: Final = b"Content-Type: text/event-stream"
_STATUS: Final = dumps(notification("notifications/tasks/status", **task("t")))
_STREAMS: Final = {
    "empty": b"", "one-byte": b"d", "bom": b"\xef\xbb\xbf" + event(_STATUS),
    "two-boms": b"\xef\xbb\xbf" * 2 + event(_STATUS), "only-lf": b"\n" * 50_000, "only-cr": b"\r" * 50_000,
    "only-crlf": b"\r\n" * 25_000, "only-comments": b":\n" * 20_000,
    "comment-of-100000-bytes": b":" + b"c" * 100_000 + b"\n\n", "line-without-end": b"data: " + b"x" * 100_000,
    "name-without-end": b"x" * 100_000, "event-beyond-the-limit": event(b"x" * 30_000),
    "event-of-short-lines": b"data:x\n" * 10_000 + b"\n", "event-of-empty-lines-of-data": b"data\n" * 10_000 + b"\n",
    "nuls": b"data: \0\0\nid: a\0b\n\n", "not-utf-8": b"data: \xff\xfe\n\n",
    "line-separator": b"data: a\xe2\x80\xa8b\xc2\x85c\n\n", "vertical-tabs": b"data: a\x0bb\x0cc\x1cd\n\n",
    "unknown-fields": b"foo: bar\nDATA: x\ndata : y\n\n", "id-with-nul": b"id: 1\0\ndata: x\n\n",
    "retry-monster": b"retry: " + b"9" * 5000 + b"\ndata: x\n\n", "retry-negative": b"retry: -1\n\n",
    "mixed-line-ends": b"data: a\rdata: b\ndata: c\r\n\r\ndata: d\n\r\n", "cr-at-the-end": b"data: a\r",
    "half-an-event": event(_STATUS)[:-1], "not-json": event(b"{"), "batch": event(b"[" + _STATUS + b"]"),
    "deep-json": event(b"[" * 5000), "endpoint": b"event: endpoint\ndata: //evil/messages\n\n",
    "ten-thousand-events": b"data:x\n\n" * 10_000,
    "status-monster": event(dumps(notification("notifications/tasks/status", taskId="t" * 10_000))),
    "status-of-nothing": event(dumps(notification("notifications/tasks/status"))),
    "response-to-nobody": event(result("nobody", {})), "a-response": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "a-last-chunk": b"0\r\n\r\n",
}  # fmt: skip
_GET: Final = asked(b"GET")
_ASKS: Final[dict[str, Pieces]] = {
    "get": _GET,
    "initialize": ask(call("initialize")),
    "resumed": (raw(b"GET /hostile HTTP/1.1", b"Last-Event-ID: 1", b"Mcp-Session-Id: s"),),
}
_BRIEF: Final = (
    "bom", "only-cr", "line-without-end", "event-beyond-the-limit", "mixed-line-ends", "cr-at-the-end", "nuls",
)  # fmt: skip

ROWS: Final[list[Response]] = [
    *(
        gives(
            f"{way}-{name}",
            ok(_EVENTS, CHUNKED, body=chunked(body) if body else b"0\r\n\r\n"),
            Got(200, body),
            ask=asks,
        )
        for way, asks in _ASKS.items()
        for name, body in _STREAMS.items()
        if way != "resumed" or name in _BRIEF
    ),
    gives("length", ok(_EVENTS, b"Content-Length: 5", body=b"data:"), Got(200, b"data:")),
    gives("until-the-end", ok(_EVENTS, body=event(_STATUS)), Got(200, event(_STATUS)), then="fin"),
    gives("until-the-end-cut", ok(_EVENTS, body=event(_STATUS)[:-5]), Got(200, event(_STATUS)[:-5]), then="fin"),
    gives("chunked-cut", ok(_EVENTS, CHUNKED, body=b"5\r\ndata:\r\n"), CUT, then="fin"),
    gives("initialize-cut", ok(_EVENTS, CHUNKED, body=b"5\r\ndata:\r\n"), CUT, ask=_ASKS["initialize"], then="fin"),
    gives(
        "bytes-in-chunks-of-one",
        ok(_EVENTS, CHUNKED, body=chunked(*(b"%c" % c for c in event(_STATUS)))),
        Got(200, event(_STATUS)),
    ),
    gives(
        "parameters",
        ok(b"Content-Type: TEXT/EVENT-STREAM ;charset=latin-1;x", CHUNKED, body=chunked(b"data: x\n\n")),
        Got(200, b"data: x\n\n"),
    ),
    gives(
        "two-types", ok(_EVENTS, b"Content-Type: application/json", b"Content-Length: 2", body=b"{}"), Got(200, b"{}")
    ),
]
