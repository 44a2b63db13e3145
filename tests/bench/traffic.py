"""The traffic of real clients: what they send, by kind, and the mix of all kinds, always the same for a seed.

Heads are those that the Python SDK (httpx) and the TypeScript SDK (undici, in Node) send, byte for byte, with a token
of 600 bytes. In the row with new ids a client's tracing adds a `traceparent` to each request, and an ingress behind it
an `x-request-id`. An id that is even asks the server of world.py for an event stream, an odd one for JSON.
"""

import random
from collections.abc import Iterator
from itertools import product
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import orjson

from tests.bench.httpclient import PROTOCOL_VERSION

CALLERS: Final = 16
CONNECTIONS: Final = 32
TASKS: Final = 20  # of each caller
REQUESTS: Final = 60  # of each connection, then again from the first
_TOKEN_BYTES: Final = 600
_SEED: Final = 2025
_HEX: Final = "0123456789abcdef"
_BASE64URL: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

_HTTPX: Final = (
    "POST {path} HTTP/1.1\r\nHost: {host}\r\nAccept-Encoding: gzip, deflate\r\nConnection: keep-alive\r\n"
    "User-Agent: python-httpx/0.28.1\r\nAuthorization: Bearer {token}\r\n"
    "accept: application/json, text/event-stream\r\n"
    "content-type: application/json\r\nmcp-session-id: {session}\r\nmcp-protocol-version: {version}\r\n"
    "Content-Length: {length}\r\n\r\n"
)
_UNDICI: Final = (
    "POST {path} HTTP/1.1\r\nhost: {host}\r\nconnection: keep-alive\r\nmcp-session-id: {session}\r\n"
    "mcp-protocol-version: {version}\r\nAuthorization: Bearer {token}\r\ncontent-type: application/json\r\n"
    "accept: application/json, text/event-stream\r\naccept-language: *\r\nsec-fetch-mode: cors\r\nuser-agent: node\r\n"
    "accept-encoding: gzip, deflate\r\ncontent-length: {length}\r\n\r\n"
)


NEW: Final = "@@@@@@@@"  # in a request: eight hexadecimal digits that are new each time it is sent
NEW_ID: Final = b"\r\nx-request-id: "
_TRACED: Final = "\r\ntraceparent: 00-4bf92f3577b34da6a3ce929d{new}-00f067aa{new}-01"
_NUMBERED: Final = NEW_ID.decode() + "4bf92f3577b34da6a3ce929d{new}\r\n\r\n"


class Kind(NamedTuple):
    """A row of the table: `methods` with their weights, and which ids the requests have: even, odd, or both."""

    name: str
    methods: dict[str, int]
    ids: str
    goal: float | None = None  # times Envoy's CPU time, from sources
    varies: bool = True
    clients: tuple[str, ...] = (_HTTPX,)
    new_ids: bool = False


ONE: Final = Kind("ping, one and the same, JSON", {"ping": 1}, "odd", 0.85, varies=False)
MIX: Final = Kind(
    "the mix",
    {"tasks/get": 4, "tools/call": 3, "ping": 1, "tools/list": 1, "notifications/progress": 1},
    "both",
    clients=(_HTTPX, _UNDICI),
)
MIX_NEW: Final = MIX._replace(name="the mix, with new ids in heads", new_ids=True)
KINDS: Final = (
    MIX_NEW,
    ONE,
    Kind("ping, ids that vary, JSON", {"ping": 1}, "odd", 0.9),
    Kind("tools/call, 10 to 2,000 bytes, JSON", {"tools/call": 1}, "odd", 0.9),
    Kind("notification (202)", {"notifications/progress": 1}, "both", 0.9),
    Kind("tasks/get, JSON", {"tasks/get": 1}, "odd", 1.3),
    Kind("tools/call, event stream", {"tools/call": 1}, "even", 1.1),
    Kind("tasks/get, event stream", {"tasks/get": 1}, "even", 1.5),
    MIX,
)


class _Caller(NamedTuple):
    """A user of the server: a token, a session, and the tasks in it."""

    head: str
    token: str
    session: str
    tasks: list[str]


def makings(url: str) -> list[str]:
    """Requests that make the tasks of all kinds."""
    callers = _callers(MIX, random.Random(_SEED))
    return [_request(caller, url, _making(task_id)) for caller in callers for task_id in caller.tasks]


def by_others(url: str, sessions: int, pages: int) -> Iterator[str]:
    """What callers of their own ask, each in his session: for one task, or for so many pages of tasks."""
    for number, (session, page) in enumerate(product(range(sessions), range(max(pages, 1)))):
        method, params = ("tasks/list", {"cursor": f"{page}"}) if pages else ("tasks/get", {"taskId": f"{session}"})
        message = orjson.dumps({"method": method, "jsonrpc": "2.0", "params": params, "id": 2 * number + 1})
        yield _request(_Caller(_HTTPX, f"other-{session}", f"other-{session}", []), url, message)


def _making(task_id: str) -> bytes:
    params = {"name": "query", "arguments": {"taskId": task_id}, "task": {}}
    return orjson.dumps({"method": "tools/call", "jsonrpc": "2.0", "params": params, "id": 1})


def _callers(kind: Kind, chosen: random.Random) -> list[_Caller]:
    heads = [_with_new_ids(head) if kind.new_ids else head for head in kind.clients]
    return [_caller(heads[number % len(heads)], chosen) for number in range(CALLERS)]


def _with_new_ids(head: str) -> str:
    token = "\r\nAuthorization: Bearer {token}"
    traced = head.replace(token, token + _TRACED.format(new=NEW))
    return traced.removesuffix("\r\n\r\n") + _NUMBERED.format(new=NEW)


def requests(kind: Kind, url: str) -> list[list[str]]:
    chosen = random.Random(_SEED)
    callers = _callers(kind, chosen)
    if not kind.varies:
        return [[_request(callers[0], url, _message("ping", 1, callers[0], chosen))]] * CONNECTIONS
    return [_of_connection(kind, url, callers[number % CALLERS], chosen) for number in range(CONNECTIONS)]


def _of_connection(kind: Kind, url: str, caller: _Caller, chosen: random.Random) -> list[str]:
    methods, weights = list(kind.methods), list(kind.methods.values())
    first = chosen.randrange(1, 100_000) * 2 + (kind.ids == "odd")
    ids = range(first, first + 2 * REQUESTS, 1 if kind.ids == "both" else 2)
    picked = chosen.choices(methods, weights, k=REQUESTS)
    return [
        _request(caller, url, _message(method, number, caller, chosen))
        for method, number in zip(picked, ids, strict=False)
    ]


def _caller(head: str, chosen: random.Random) -> _Caller:
    return _Caller(
        head, "".join(chosen.choices(_BASE64URL, k=_TOKEN_BYTES)), _uuid(chosen), [_uuid(chosen) for _ in range(TASKS)]
    )


def _uuid(chosen: random.Random) -> str:
    digits = "".join(chosen.choices(_HEX, k=32))
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _message(method: str, number: int, caller: _Caller, chosen: random.Random) -> bytes:
    params: dict[str, object] | None = None
    if method == "tasks/get":
        params = {"taskId": chosen.choice(caller.tasks)}
    elif method == "tools/call":
        params = {"name": "query", "arguments": {"text": "x" * chosen.randint(10, 2000)}}
    elif method == "notifications/progress":
        params = {"progressToken": number, "progress": chosen.randint(1, 1000), "total": 1000}
    message: dict[str, object] = {"method": method, "jsonrpc": "2.0"}
    if params is not None:
        message["params"] = params
    if not method.startswith("notifications/"):
        message["id"] = number
    return orjson.dumps(message)


def _request(caller: _Caller, url: str, body: bytes) -> str:
    parts = urlsplit(url)
    fields = {"path": parts.path, "host": parts.netloc, "token": caller.token, "session": caller.session}
    return caller.head.format(**fields, version=PROTOCOL_VERSION, length=len(body)) + body.decode()
