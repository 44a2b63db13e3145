"""Answers that are no JSON, or the wrong JSON: the bytes pass unchanged. A filtered list reports a failure as one."""

import gzip
from typing import Final

from tests.attack.rows import JSON, Got, Pieces, Response, answer, ask, gives, ok
from tests.relay.messages import call, dumps, fault, filtered, initialized, notification, page, result, task
from tests.relay.wire import chunked, event

_STREAM: Final = (b"Content-Type: text/event-stream", b"Transfer-Encoding: chunked")
_BODIES: Final = {
    "empty": b"",
    "null": b"null",
    "not-json": b"{",
    "html": b"<html>",
    "open-brackets": b"[" * 15_000,
    "open-braces": b'{"result":' * 1400,
    "deep-result": b'{"jsonrpc":"2.0","id":1,"result":' + b"[" * 5000 + b"]" * 5000 + b"}",
    "not-utf-8": b'{"jsonrpc":"2.0","id":1,"result":{"a":"\xff"}}',
    "bom": b"\xef\xbb\xbf" + dumps(result(1, {})),
    "lone-surrogate": b'{"jsonrpc":"2.0","id":1,"result":{"a":"\\ud800"}}',
    "nan": b'{"jsonrpc":"2.0","id":1,"result":{"a":NaN,"b":1e999}}',
    "number-of-10000-digits": b'{"jsonrpc":"2.0","id":1,"result":{"ttl":' + b"9" * 10_000 + b"}}",
    "result-a-list": b'{"jsonrpc":"2.0","id":1,"result":[]}',
    "result-a-number": b'{"jsonrpc":"2.0","id":1,"result":1}',
    "two-results": b'{"jsonrpc":"2.0","id":1,"result":{},"result":{"capabilities":1}}',
    "result-and-error": b'{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1,"message":""}}',
    "capabilities-a-list": dumps(result(1, {"capabilities": [1]})),
    "tasks-a-string": dumps(result(1, {"capabilities": {"tasks": "x"}})),
    "list-is-null": dumps(result(1, {"capabilities": {"tasks": {"list": None}}})),
    "filter-already": dumps(result(1, {"capabilities": {"tasks": {"list": {"filter": 1}}}})),
    "other-id": dumps(result(2, initialized())),
    "string-id": dumps(result("1", initialized())),
    "two-messages": dumps(result(1, {})) * 2,
    "batch": b"[" + dumps(result(1, {})) + b"]",
    "many-members": b'{"jsonrpc":"2.0","id":1,"result":{' + b",".join(b'"a%d":1' % n for n in range(1500)) + b"}}",
    "beyond-the-limit": dumps(result(1, {"a": "x" * 30_000})),
    "a-request": dumps(call("ping")),
}
_ASKS: Final[dict[str, Pieces]] = {
    "initialize": ask(call("initialize")),
    "get": ask(call("tasks/get", taskId="t")),
    "list": ask(call("tasks/list")),
    "call": ask(call("tools/call", name="x")),
}
_BRIEF: Final = (
    "not-json", "open-brackets", "deep-result", "not-utf-8", "number-of-10000-digits", "result-a-list", "batch",
)  # fmt: skip
_RESULTS: Final = {
    "tasks-a-number": {"tasks": 1}, "tasks-of-numbers": {"tasks": [1, 2]}, "tasks-an-object": {"tasks": {}},
    "task-whose-id-is-a-number": {"tasks": [{"taskId": 1, "status": "working"}]}, "tasks-missing": {},
    "task-without-id": {"tasks": [{"status": "working"}]}, "cursor-a-number": {"tasks": [], "nextCursor": 1},
    "task-with-a-bad-time": page([task("a", created="yesterday")]), "cursor-without-end": page([], "again"),
    "result-a-list": [],
}  # fmt: skip
_TASKS: Final = {name: dumps(result(1, value)) for name, value in _RESULTS.items()} | {
    "no-id": dumps(result(None, page([]))), "neither-result-nor-error": dumps({"jsonrpc": "2.0", "id": 1}),
    "a-batch": dumps([result(1, page([]))]), "html": b"<html>It works!</html>", "not-json": b"{", "empty": b"",
    "task-of-deep-json": dumps(result(1, page([task("a")])))[:-3] + b',{"a":' + b"[" * 3000 + b"]" * 3000 + b"}]}}",
    "other-id": dumps(result("nobody", page([]))),
}  # fmt: skip
_PACKED: Final = gzip.compress(dumps(result(1, page([]))), mtime=0)  # to who takes none
_BROKEN: Final = Got(200, error=True)  # a status from 400 up would end the session of some clients


def _body(body: bytes) -> bytes:
    return ok(JSON, b"Content-Length: %d" % len(body), body=body)


def _filtered(name: str, sent: bytes, *may: Got, then: str = "open") -> Response:
    """A row that answers the crawl of a filtered list, in a session of its own."""
    return gives(f"filtered-{name}", sent, *may, ask=ask(filtered(), f"filtered-{name}"), then=then, crawled=True)


ROWS: Final[list[Response]] = [
    *(
        gives(f"{way}-{name}", _body(body), Got(200, body), ask=asks)
        for way, asks in _ASKS.items()
        for name, body in _BODIES.items()
        if way == "initialize" or name in _BRIEF
    ),
    *(_filtered(name, _body(body), _BROKEN) for name, body in _TASKS.items()),
    _filtered("error", _body(dumps(fault(1, -32000, "no"))), _BROKEN),
    _filtered("401", answer(b"HTTP/1.1 401 No", b"Content-Length: 2", body=b"no"), Got(401, b"no")),
    _filtered("stream-without-an-answer", ok(*_STREAM, body=chunked(event(notification("x")))), _BROKEN),
    _filtered("stream-of-nothing", ok(*_STREAM, body=chunked()), _BROKEN),
    _filtered("gzip", ok(JSON, b"Content-Encoding: gzip", body=_PACKED), _BROKEN, then="fin"),
    _filtered("204", answer(b"HTTP/1.1 204 None"), _BROKEN),
    _filtered("202", answer(b"HTTP/1.1 202 Accepted", b"Content-Length: 0"), _BROKEN),
    _filtered("cut", ok(JSON, b"Content-Length: 99", body=b"{"), _BROKEN, then="fin"),
    _filtered("bad-chunk", ok(JSON, b"Transfer-Encoding: chunked", body=b"x\r\n"), _BROKEN),
    _filtered("no-http", b"garbage\r\n\r\n", _BROKEN),
    _filtered("extra", _body(dumps(result(1, page([task("a")])))) * 2, Got(200), _BROKEN),
]
