"""The comparison: one transcript, run directly and through the gateway, and what may differ (DESIGN 11).

A piece is written only when all whole lines of the piece before have arrived, so what is held back is seen. Queries are
written into the transcript of the gateway's run alone: answers to them, and the requests that they cost, must leave no
other trace. What may differ: `filter` in a result of `initialize`; that half a line comes when it is whole.
"""

import asyncio
import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from gateway.config import Limits, StdioConfig
from gateway.query.criteria import capability
from tests.own_ids import OWN
from tests.stdio import harness
from tests.stdio.harness import INITIALIZE, Side, Stage, call, initialized, line, notification, result, task

LINE_BYTES_MAX: Final = 2048
CONFIG: Final = StdioConfig(limits=Limits(inspected_body_bytes_max=LINE_BYTES_MAX))
HALF: Final = b"half a line"  # the last of a transcript
QUERY_ID: Final = b'"query-'
_EDIT: Final = b'"filter":' + capability(("tools/call",))

Step: TypeAlias = tuple[str, bytes]
"""Who writes what: "client", "server", or "query": a filtered list, which the server's own pages answer."""


async def run(steps: Sequence[Step], gateway: bool) -> tuple[bytes, bytes]:
    """Play a transcript: what the client and the server received."""
    async with harness.through(CONFIG) if gateway else harness.directly() as stage:
        sent = {"client": b"", "server": b""}
        queries = 0
        between_lines = asyncio.Event()
        between_lines.set()
        serving = asyncio.create_task(_serve(stage, between_lines))

        async def answered() -> None:
            await stage.client.until(
                lambda: stage.client.received.count(QUERY_ID) == queries, "an answer to each query"
            )

        for who, data in steps:
            if who == "query":
                if sent["server"].endswith(_LARGE):  # it stands in the middle of a line that passes in pieces
                    await stage.client.hears(_LARGE)
                queries += gateway
                await stage.client.send(data * gateway)
                continue
            if data in (HALF, _LARGE):
                await answered()
            sent[who] += data
            if who == "server" and not sent[who].endswith(b"\n"):
                between_lines.clear()
            sender, reader = (stage.client, stage.server) if who == "client" else (stage.server, stage.client)
            await sender.send(data)
            if sent["server"].endswith(b"\n"):
                between_lines.set()
            await _arrived(reader, sent[who])
        await answered()
        serving.cancel()
        stage.client.finish()
        await stage.server.ends()
        stage.exit()
        await stage.client.ends()
        return bytes(stage.client.received), bytes(stage.server.received)


async def _serve(stage: Stage, between_lines: asyncio.Event) -> None:
    """Answer the gateway's own requests, between lines."""
    number = 1
    while True:
        try:
            own = await stage.server.own(number)
        except AssertionError:
            continue  # there is no other yet
        number += 1
        await between_lines.wait()
        value = {"tasks": [task("a")]} if own["method"] == "tasks/list" else task("a")
        await stage.server.send(result(own["id"], value))


def passed(data: bytes) -> bytes:
    """What was received, but for messages that are the gateway's own, and the edit."""
    kept = [each for each in re.findall(rb"[^\n]*\n|[^\n]+", data) if not OWN.search(each) and QUERY_ID not in each]
    return b"".join(kept).replace(_EDIT, b"", 1)


async def _arrived(reader: Side, sent: bytes) -> None:
    """All whole lines have come."""
    whole = len(sent[: sent.rfind(b"\n") + 1])
    await reader.until(lambda: len(passed(bytes(reader.received))) >= whole, f"{whole} bytes of {sent[-300:]!r}")


async def differences(steps: Sequence[Step]) -> list[str]:
    try:
        plain, gateway = await run(steps, False), await run(steps, True)
    except (AssertionError, TimeoutError, OSError) as late:
        return [repr(late)]
    found = []
    for side, one, other in zip(("client", "server"), plain, gateway, strict=True):
        if one != passed(other):
            found.append(f"the {side} received {passed(other)!r}, directly {one!r}")
    if QUERY_ID in gateway[1]:
        found.append("a query reached the server")
    if not _edited(gateway[0]) <= _initializing(plain[1]):
        found.append("the answer to another request than initialize was edited")
    if OWN.search(gateway[0]):
        found.append("a response to the gateway's own reached the client")
    return found


def _edited(received: bytes) -> set[str]:
    return {repr(json.loads(each)["id"]) for each in received.split(b"\n") if _EDIT in each}


def _initializing(received: bytes) -> set[str]:
    return {repr(json.loads(each)["id"]) for each in received.split(b"\n") if b'"initialize"' in each}


# ---- transcripts ----

_LARGE: Final = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"text":"' + b"x" * 3000
_BAD_QUERY: Final = call("query-bad", "tasks/list", status=["x"])
_MCP: Final = "io.modelcontextprotocol"
_HELLO: Final[list[Step]] = [("client", INITIALIZE), ("server", initialized())]

TABLE: Final[dict[str, list[Step]]] = {
    "initialize": _HELLO,
    "initialize, its ids 1 and text, in escapes, with CR LF": [
        ("client", call("1", "initialize")),
        ("server", initialized(1)),
        (
            "server",
            b" " + initialized("1").replace(b'"1"', b'"\\u0031"').replace(b"{}", b'{},"n":1e400', 1)[:-1] + b"\r\n",
        ),
    ],
    "a server that filters by itself": [
        ("client", INITIALIZE),
        ("server", result(0, {"capabilities": {"tasks": {"list": {"filter": {}}}}})),
        ("client", harness.QUERY_ALL),
    ],
    "a query of a later revision": [
        *_HELLO,
        ("client", call("q", "tasks/list", order="asc", _meta={f"{_MCP}/protocolVersion": "2026-07-28"})),
    ],
    "an answer between the pieces of a large line": [
        *_HELLO,
        ("query", call("query-first", "tasks/list", status=["x"])),  # the server has accepted the caller by its answer
        ("server", _LARGE),
        ("query", _BAD_QUERY),
        ("client", call(1, "ping")),  # behind the query
        ("server", b'"}}\n'),
    ],
    "an answer from a crawl between two lines": [
        *_HELLO,
        ("query", call("query-1", "tasks/list", order="asc")),
        ("server", notification("a") + notification("b")),
    ],
    "lines that end with CR LF": [("client", call(1, "ping")[:-1] + b"\r\n"), ("server", result(1, {})[:-1] + b"\r\n")],
    "queries of another JSON-RPC, and in a batch": [
        ("client", b'{"jsonrpc":"1.0","id":1,"method":"tasks/list","params":{"order":"asc"}}\n'),
        ("client", b'[{"jsonrpc":"2.0","id":1,"method":"tasks/list","params":{"order":"asc"}}]\n'),
    ],
    "a very large line, and one behind it": [("server", b"y" * 300_000 + b"\n" + b"z\n")],
    "lines that are no JSON": [("server", b"listening\n\n\xff\n"), ("client", b"hello\n")],
    "a batch": [("client", line([{"jsonrpc": "2.0", "id": 1, "method": "ping"}])), ("server", line([{"id": 1}]))],
    "a large line in pieces": [("client", _LARGE), ("client", b'"}}\n'), ("server", _LARGE), ("server", b'"}}\n')],
    "half a line at the end of the client's": [*_HELLO, ("client", b'{"half":')],
    "half a line at the end of the server's": [*_HELLO, ("server", b'{"half":')],
    "white space and numbers as they came": [
        ("client", b' { "jsonrpc" : "2.0", "id":1e0 , "method":"ping" } \n'),
        ("server", b'{"id":1e0, "jsonrpc":"2.0","result":{"n":123456789012345678901234567890.10}}\t\n'),
    ],
}

_ENDS: Final = (b"\n", b"\n", b"\n", b"\r\n", b" \n")
_IDS: Final[tuple[object, ...]] = (1, "1", 2, "x", None, "taskgate-1", 10**20, "\u00e9")


def _of_client(rng: random.Random, number: int) -> bytes:
    message_id = rng.choice(_IDS)
    said = (
        call(message_id, "tools/call", name="work", task={}),
        call(message_id, "tasks/get", taskId="a"),
        call(message_id, "tasks/list"),
        call(message_id, "tasks/list", cursor="theirs"),
        call(number, "ping"),
        notification("notifications/cancelled", requestId=message_id),
        result(message_id, {"action": "accept"}),
    )
    return rng.choice(said)


def _of_server(rng: random.Random, number: int) -> bytes:
    message_id = rng.choice(_IDS)
    said = (
        result(message_id, {"task": task(f"t{number}")}),
        result(message_id, task("a", "completed", 5)),
        result(message_id, {"tasks": [task("a")]}),
        line({"result": {"x": "y" * rng.choice((1, 5000))}, "jsonrpc": "2.0", "id": message_id}),
        line({"jsonrpc": "2.0", "id": message_id, "error": {"code": -32602, "message": "no"}}),
        notification("notifications/tasks/status", **task("a", "working", 1)),
        call(message_id, "elicitation/create", message="?"),
        call(message_id, "sampling/createMessage", text="z" * rng.choice((1, 3000))),
    )
    return rng.choice(said)


def _odd(rng: random.Random) -> bytes:
    said = (
        b"\n",
        b"\r\n",
        b"no JSON\n",
        b'{"jsonrpc":"2.0","id":1\n',
        b"\xff\x00\xfe\n",
        '"\u2028\u2029\x85"\n'.encode(),
        line([{"jsonrpc": "2.0", "id": 1, "method": "ping"}]),
        b"x" * rng.choice((2047, 2048, 2049, 9000)) + b"\n",
        b'{"jsonrpc":"2.0","method":"' + b"m" * 3000 + b'"}\n',
    )
    return rng.choice(said)


def _query(rng: random.Random, message_id: str) -> Step:
    criteria: dict[str, Any] = rng.choice(({"order": "asc"}, {"status": ["working"]}, {"status": ["x"]}))
    return "query", call(message_id, "tasks/list", **criteria)


def generated(seed: int) -> list[Step]:
    """A transcript."""
    rng = random.Random(seed)
    # All ids were the client's: one that nobody had may be a wrong one of an answer to the gateway (DESIGN 11.2).
    steps: list[Step] = [
        ("client", b"".join(call(each, "ping") for each in _IDS)),
        ("server", b"".join(result(each, {}) for each in _IDS)),
    ]
    if rng.random() < 0.7:
        steps += [("client", INITIALIZE), ("server", initialized())]
    for number in range(rng.randint(2, 8)):
        who = rng.choice(("client", "server", "query"))
        if who == "query":
            steps.append(_query(rng, f"query-{number}"))
            continue
        make: Callable[[random.Random, int], bytes] = _of_client if who == "client" else _of_server
        data = b"".join(
            (_odd(rng) if rng.random() < 0.25 else make(rng, number)).removesuffix(b"\n") + rng.choice(_ENDS)
            for _ in range(rng.choice((1, 1, 2, 5)))
        )
        cuts = sorted(rng.randrange(len(data)) for _ in range(rng.choice((0, 0, 1, 3))))
        for at, to in zip([0, *cuts], [*cuts, len(data)], strict=True):
            steps.append((who, data[at:to]))
            if who == "server" and rng.random() < 0.2:
                steps.append(_query(rng, f"query-{number}-{at}"))
    if rng.random() < 0.2:
        steps.append((rng.choice(("client", "server")), HALF))
    return steps
