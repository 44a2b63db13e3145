"""Each caller has his own tasks alone in front of a server that shows all tasks to all (DESIGN 8.16).

In: the TypeScript SDK 1.30 (tests/node/shared_store.mjs), 200 callers with sessions and tokens, each of whom knows all
ids; replicas with `guards.own_tasks` and a real Redis. Out: what each gets. Always: no attempt at another's task
succeeds, and nobody loses his own.

OWN_ATTEMPTS sets how often somebody tries; the default is 400, of 40 callers. From 20,000 on there are 200, and all
look for their tasks each time.
"""

import asyncio
import json
import os
import random
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.launch import Process
from tests.real.conftest import Json, Runner, Wire, ids_of
from tests.redis_process import Store, redis

ATTEMPTS: Final = int(os.environ.get("OWN_ATTEMPTS", "400"))
CALLERS: Final = 200 if ATTEMPTS >= 20_000 else 40
AT_ONCE: Final = 32
EACH: Final = 1 if ATTEMPTS >= 20_000 else 5  # so many callers there are for one who looks for his tasks each time
UNKNOWN: Final = -32602
RELATED: Final = "io.modelcontextprotocol/related-task"
JSON: Final = {"Content-Type": "application/json"}


@dataclass
class One:
    """A caller, and the tasks that were made for him."""

    wire: Wire
    token: str
    own: list[str] = field(default_factory=list)

    def at(self, url: str) -> "One":
        return One(self.wire.at(url), self.token, self.own)


Try = tuple[bytes, dict[str, str], str]
"""The body of an attempt, its header fields, and what stands behind the address."""


def message(method: str, params: Json) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 7, "method": method, "params": params}).encode()


def attempt(mine: str, theirs: str, rng: random.Random) -> Try:
    """One way to get at another's task that can be read: the others get no further (tests/relay/test_own_tasks.py)."""
    method = rng.choice(("tasks/get", "tasks/cancel", "tasks/result", "tasks/update"))
    plain, listed, headers = message(method, {"taskId": theirs}), message("tasks/list", {}), dict(JSON)
    related = {"_meta": {RELATED: {"taskId": theirs}}}
    ways: list[Try] = [
        (plain, headers, rng.choice(("", "/", "?a=b", "//"))),
        (plain, headers | {"MCP-Protocol-Version": rng.choice(("2026-07-28", "2025-06-18", "2024-11-05"))}, ""),
        (b"[%b]" % rng.choice((plain, listed)), headers, ""),
        (message("ping", related), headers, ""),
        (message("tools/call", {"name": "x", **related, "task": {}}), headers, ""),
        (message("tasks/list", {"taskIds": [theirs, mine]}), headers, ""),
        (message("tasks/list", {"cursor": rng.choice((theirs, f"taskgate:?taskIds={theirs}"))}), headers, ""),
        (listed, headers | {"Taskgate-Filter": f"taskIds={theirs}"}, ""),
        (listed, headers, rng.choice(("", "?a=b"))),
        (listed, headers | {"MCP-Protocol-Version": "2026-07-28"}, ""),
    ]
    return rng.choice(ways)


@contextmanager
def gateway(runner: Runner, server: Process, store: Store) -> Iterator[Process]:
    with runner.configured(
        upstreams=[{"name": "real", "url": f"{server.wait()}/mcp"}],
        guards={"own_tasks": True},
        store={"url": store.url, "timeout": "5s"},
        limits={"inspected_body_bytes_max": 60_000, "request_timeout": "60s"},
    ) as process:
        process.wait()
        yield process


def url_of(process: Process) -> str:
    return f"{process.origin}/mcp"


async def each(ones: list[Any], do: Callable[[Any], Any]) -> None:
    rest = iter(ones)

    async def worker() -> None:
        for one in rest:
            await do(one)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(worker())


async def opened(number: int, url: str, http: httpx.AsyncClient) -> One:
    token = f"token-{number}"
    return One((await Wire(url, http).at(authorization=f"Bearer {token}").initialize())[0], token)


async def make(one: One) -> None:
    for _ in range(2):
        made = await one.wire.post("tools/call", {"name": "work", "arguments": {}, "task": {"ttl": 3_600_000}})
        one.own.append(made.result["task"]["taskId"])


async def has_his_own(one: One) -> None:
    """He lists his own tasks and no other, and gets each."""
    assert sorted(ids_of(await one.wire.tasks({}))) == sorted(one.own)
    assert sorted(ids_of(await one.wire.tasks({"status": ["working"], "order": "asc"}))) == sorted(one.own)
    for task_id in one.own:
        task = (await one.wire.post("tasks/get", {"taskId": task_id})).result
        assert (task["taskId"], task["status"]) == (task_id, "working")


@asynccontextmanager
async def heard(ones: list[One]) -> AsyncIterator[bytearray]:
    """What these callers hear meanwhile on streams of their own."""
    said = bytearray()

    async def listen(one: One) -> None:
        headers = {"Accept": "text/event-stream", **one.wire.headers}
        async with one.wire.http.stream("GET", one.wire.url, headers=headers) as stream:
            assert stream.status_code == 200
            async for piece in stream.aiter_raw():
                said.extend(piece)

    listening = [asyncio.create_task(listen(one)) for one in ones]
    try:
        yield said
    finally:
        for task in listening:
            task.cancel()
        await asyncio.wait(listening)


@pytest.mark.slow
async def test_nobody_gets_at_anothers_task_and_nobody_loses_his_own(
    runner: Runner, tmp_path: Path, http: httpx.AsyncClient
) -> None:
    rng = random.Random(1)
    async with redis(tmp_path) as store:
        with runner.node_server("shared_store.mjs", sdk="1.30") as server:
            with gateway(runner, server, store) as first:
                ones = [await opened(number, url_of(first), http) for number in range(CALLERS)]
                await each(ones, make)
                owner = {task_id: one for one in ones for task_id in one.own}
                assert len(owner) == 2 * CALLERS
                direct = await ones[0].wire.at(f"{server.origin}/mcp").tasks({})
                assert {*ids_of(direct)} == {*owner}, "the server shows all of them to him"

                async def tries(number: int) -> None:
                    one = rng.choice(ones)
                    theirs = rng.choice([i for i in owner if i not in one.own])
                    body, headers, behind = attempt(one.own[0], theirs, rng)
                    sent = {"Accept": "application/json, text/event-stream", **one.wire.headers, **headers}
                    answer = await http.post(one.wire.url + behind, content=body, headers=sent)
                    what = f"{number}: {body[:300]!r} {headers} {behind} -> {answer.status_code} {answer.text[:500]}"
                    for line in answer.text.splitlines():
                        data = json.loads(line.removeprefix("data:")) if line[:1] in "{[d" and "{" in line else {}
                        assert isinstance(data, dict), what
                        result = data.get("result", {})
                        result.get("_meta", {}).pop("taskgate/filter", None)  # his own words
                        shown = json.dumps(result)
                        assert not any(task_id in shown for task_id in owner if task_id not in one.own), what
                    assert answer.status_code in (200, 400, 404, 406, 415), what
                    if answer.status_code == 400:
                        assert answer.json()["error"]["code"] in (-32600, UNKNOWN, -32000), what

                async with heard(ones[:20]) as said:
                    await each(list(range(ATTEMPTS)), tries)
                strangers = [i for i in owner if i.encode() in said and owner[i] not in ones[:20]]
                assert not strangers
                await each(ones, has_his_own)
                first.popen.send_signal(signal.SIGHUP)
                await each(ones[::EACH], has_his_own)
                with gateway(runner, server, store) as other:
                    await each([one.at(url_of(other)) for one in ones[1::EACH]], has_his_own)
            with gateway(runner, server, store) as again:
                restarted = [one.at(url_of(again)) for one in ones[2 % EACH :: EACH]]
                await each(restarted, has_his_own)
                renewed = [
                    One(one.wire.at(authorization=f"Bearer {one.token}-2"), one.token, one.own) for one in restarted
                ]
                await each(renewed, has_his_own)
                for number in range(0, CALLERS, 10):
                    anew = await opened(number, url_of(again), http)
                    anew.own = ones[number].own
                    await has_his_own(anew)
                stranger = await opened(CALLERS, url_of(again), http)
                await has_his_own(stranger)
                for task_id in owner:
                    assert (await stranger.wire.post("tasks/get", {"taskId": task_id})).error["code"] == UNKNOWN
