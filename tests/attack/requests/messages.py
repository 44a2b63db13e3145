"""JSON that is none, or too much of it, and forged cursors: passed on, or answered as an error (DESIGN 5.4)."""

from base64 import urlsafe_b64encode
from hashlib import blake2b
from typing import Any, Final

import msgspec

from tests.attack.rows import Outcome, Request, Seen, held, passes
from tests.relay.messages import call, dumps
from tests.rules.plain import TIMES

_INVALID_PARAMS: Final = -32602
_PASSED: Final = {
    "nothing": b"",
    "a-word": b"null",
    "a-number": b"1e999999",
    "not-json": b'{"jsonrpc":"2.0","id":1,"method":',
    "open-brackets": b"[" * 15_000,
    "open-braces": b'{"a":' * 3000,
    "deep-params": b'{"jsonrpc":"2.0","id":1,"method":"ping","params":' + b"[" * 5000 + b"]" * 5000 + b"}",
    "not-utf-8": b'{"jsonrpc":"2.0","id":1,"method":"\xff\xfe"}',
    "byte-order-mark": b"\xef\xbb\xbf" + dumps(call("ping")),
    "utf-16": '{"jsonrpc":"2.0","id":1,"method":"ping"}'.encode("utf-16"),
    "lone-surrogate": b'{"jsonrpc":"2.0","id":1,"method":"\\ud800"}',
    "nul-in-a-string": b'{"jsonrpc":"2.0","id":1,"method":"a\\u0000b"}',
    "bare-nul": b'{"jsonrpc":"2.0","id":1,"method":"a\0b"}',
    "two-methods": b'{"jsonrpc":"2.0","id":1,"method":"tasks/list","method":"ping","params":{"status":["x"]}}',
    "number-of-10000-digits": b'{"jsonrpc":"2.0","id":' + b"9" * 10_000 + b',"method":"ping"}',
    "id-of-an-object": b'{"jsonrpc":"2.0","id":{"a":1},"method":"ping"}',
    "nan": b'{"jsonrpc":"2.0","id":NaN,"method":"ping"}',
    "method-of-10000-bytes": dumps(call("x" * 10_000)),
    "method-with-lines": dumps(call("a\r\nb\n")),
    "method-is-a-list": b'{"jsonrpc":"2.0","id":1,"method":["tasks/list"]}',
    "two-messages": dumps(call("ping")) + dumps(call("ping")),
    "message-and-garbage": dumps(call("ping")) + b"}",
    "batch-of-2000": b"[" + b",".join([b"{}"] * 2000) + b"]",
    "unknown-members": b'{"jsonrpc":"2.0","id":1,"method":"tasks/list","params":{'
    + b",".join(b'"a%d":1' % n for n in range(1500))
    + b"}}",
    "cancels-a-monster": dumps(
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "x" * 5000}}
    ),
}


def _list(**params: Any) -> bytes:
    body = dumps(call("tasks/list", **params))
    accept = b"Accept: application/json, text/event-stream"
    return held(accept, b"Mcp-Session-Id: s", b"Content-Length: %d" % len(body), body=body)


def _forged(*values: Any) -> str:
    """A cursor of today's form whose checksum is right, whatever it says."""
    body = "taskgate4." + urlsafe_b64encode(msgspec.json.encode(values)).decode()
    return f"{body}.{blake2b(body.encode(), digest_size=8).hexdigest()}"


_WORKING: Final = {"status": ["working"]}
_PLACE: Final = ("0", "a")
_HUGE: Final = "f" * 900
_BOUNDS: Final = dict.fromkeys(TIMES, _HUGE)
_CURSORS: Final = {
    "only-the-prefix": "taskgate4.", "garbage": "taskgate4.AAAA", "not-base64": "taskgate4.\u00e9\u00e9",
    "of-another-version": "taskgate3.AAAA", "bad-checksum": _forged(_WORKING, _PLACE)[:-4] + "AAAA",
    "cut": _forged(_WORKING, _PLACE)[:-1], "too-few-members": _forged({}), "no-list": _forged(),
    "no-criterion": _forged({"staus": ["working"]}, _PLACE), "huge-bounds": _forged(_BOUNDS, (_HUGE, "a")),
    "huge-place": _forged(_WORKING, (_HUGE, "a")), "no-number": _forged(_WORKING, ("-", "a")),
    "division-by-zero": _forged(_WORKING, ("1/0", "a")),
    "too-many-ids": _forged({"taskIds": ["a"] * 2500}, _PLACE),
    "unknown-order": _forged({"orderBy": "x"}, _PLACE), "of-three-members": _forged(_WORKING, _PLACE, ""),
}  # fmt: skip
_CRITERIA: Final[dict[str, dict[str, Any]]] = {
    "status-unknown": {"status": ["x"]}, "status-of-3000": {"status": ["x"] * 3000}, "status-a-number": {"status": 1},
    "ids-of-numbers": {"taskIds": list(range(2000))}, "timestamp-of-10000-digits": {"createdAfter": "9" * 10_000},
    "timestamp-with-10000-fractions": {"createdAfter": "2026-01-01T00:00:00." + "x" * 10_000 + "Z"},
    "bounds-crossed": {"createdAfter": "2026-01-02T00:00:00Z", "createdBefore": "2026-01-01T00:00:00Z"},
    "order-unknown": {"order": "sideways"}, "filter-a-list": {"filter": [1]},
    "method-with-lines": {"methods": ["a\r\nb"]},
}  # fmt: skip


def _error(name: str, data: bytes) -> Request:
    """A row that the gateway answers with an error of its own; the connection goes on."""
    outcome = Outcome(refused=frozenset({200, 400}), keeps=True, code=_INVALID_PARAMS)
    return Request(name, (data,), (outcome,))


IN_SESSION: Final = _list(status=["working"])
"""A query of these rows' caller. The server has listed its tasks to it before: what is wrong asks nothing."""

ROWS: Final[list[Request]] = [
    *(passes(name, held(b"Content-Length: %d" % len(b), body=b), Seen(b"POST", body=b)) for name, b in _PASSED.items()),
    *(_error(f"cursor-{name}", _list(cursor=cursor)) for name, cursor in _CURSORS.items()),
    *(
        _error(f"cursor-{name}-and-criteria", _list(cursor=_CURSORS[name], status=["working"]))
        for name in ("garbage", "cut", "huge-bounds")
    ),
    *(_error(f"criteria-{name}", _list(**params)) for name, params in _CRITERIA.items()),
]
