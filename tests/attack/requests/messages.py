"""JSON that is none, or too much of it: passed on. Forged cursors and wrong criteria: tests/rules."""

from typing import Final

from tests.attack.rows import Request, Seen, held, passes
from tests.relay.messages import call, dumps

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


ROWS: Final[list[Request]] = [
    passes(name, held(b"Content-Length: %d" % len(b), body=b), Seen(b"POST", body=b)) for name, b in _PASSED.items()
]
