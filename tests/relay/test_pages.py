"""Pages of large tasks: each answer has an end in bytes, and cursors lead on (DESIGN 5.5)."""

import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from tests.launch import Gateways, eventually
from tests.peer import Peer
from tests.relay.http1 import Message
from tests.relay.messages import Json, answer, dumps, fault, filtered, page, task
from tests.relay.rig import Server, Session, body, final, own, rig_with

KIB = 1024


def large(rng: random.Random, count: int, bytes_max: int) -> list[Json]:
    """Tasks of random sizes up to `bytes_max`, some tiny, all at most half as large as can be read."""
    sizes = [rng.choice((rng.randrange(bytes_max), rng.randrange(100))) for _ in range(count)]
    return [
        task(f"t-{n:03}", "working", f"2026-01-01T00:{n // 60:02}:{n % 60:02}Z", statusMessage="x" * size)
        for n, size in enumerate(sizes)
    ]


def served(tasks: list[Json]) -> Server:
    cursors = [None, *map(str, range(1, len(tasks))), None]
    return Server({cursors[n]: page([each], cursors[n + 1]) for n, each in enumerate(tasks)})


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_a_page_of_large_tasks_ends_and_its_cursor_leads_on_at_another_replica(
    gateways: Gateways, order: str
) -> None:
    """100 tasks of 4 MB were one answer of 410 MB."""
    rng = random.Random(order)
    tasks, bytes_max = large(rng, 60, 100 * KIB), 256 * KIB
    index = {"page_bytes_max": bytes_max, "max_age": "1h", "full_crawl_interval": "1h"}
    async with own(gateways, index=index) as one, own(gateways, index=index) as other:
        sessions = []
        for rig in (one, other):
            rig.serve(served(tasks))
            sessions.append(Session(rig))
        found: list[Json] = []
        asked: Json = {"status": ["working"], "order": order}
        for number in range(len(tasks)):
            said = await sessions[number % 2].ask(filtered(1, **asked))
            result = final(said)["result"]
            assert result["tasks"] and result["_meta"]["taskgate/total"] == len(tasks)
            assert len(said.body) <= bytes_max + KIB
            found += result["tasks"]
            if (cursor := result.get("nextCursor")) is None:
                break
            following = (tasks if order == "asc" else tasks[::-1])[len(found)]
            assert sum(len(dumps(t)) + 1 for t in [*result["tasks"], following]) > bytes_max, "there was room for more"
            asked = {"cursor": cursor}
        assert found == (tasks if order == "asc" else tasks[::-1])


async def test_a_task_that_is_larger_than_a_page_is_a_page(gateways: Gateways) -> None:
    tasks = large(random.Random(1), 9, 50 * KIB)
    async with rig_with(gateways, index={"page_bytes_max": "1KiB", "max_age": "1h"}) as rig:
        rig.serve(served(tasks))
        session, found, asked = Session(rig), list[Json](), {"order": "asc"}
        while asked != {"cursor": None}:
            result = final(await session.ask(filtered(1, **asked)))["result"]
            assert len(result["tasks"]) == 1 or len(dumps(result["tasks"])) <= KIB + 1
            found += result["tasks"]
            asked = {"cursor": result.get("nextCursor")}
        assert found == tasks


async def test_a_page_has_at_most_4_mib_unless_configured(gateways: Gateways) -> None:
    tasks = [task(f"t-{n}", statusMessage="x" * (1500 * KIB)) for n in range(4)]
    async with rig_with(gateways, index={"max_age": "1h"}) as rig:
        rig.serve(served(tasks))
        session = Session(rig)
        first = final(await session.ask(filtered(1, order="asc")))["result"]
        second = final(await session.ask(filtered(1, cursor=first.get("nextCursor"))))["result"]
        assert [each["taskId"] for each in first["tasks"]] == ["t-0", "t-1"]
        assert [each["taskId"] for each in second["tasks"]] == ["t-2", "t-3"]


@dataclass
class Expiring(Server):
    """A server whose tasks have all expired by the time that `tasks/get` names them."""

    async def __call__(self, request: Message, peer: Peer) -> bytes | None:
        message = body(request)
        if message["method"] == "tasks/get":
            return answer(fault(message["id"], -32602, "Task not found"))
        return await super().__call__(request, peer)


async def test_many_large_tasks_whose_ttl_has_passed_are_asked_for_at_once(gateways: Gateways) -> None:
    """Each is a page of its own. Asked for page by page, 150 of them were an error: too many rounds."""
    now, ttl_s = datetime.now(UTC), 3.0
    tasks = [
        task(f"t-{n:03}", "completed", (now + timedelta(milliseconds=n)).isoformat(), ttl=ttl_s * 1000, more="x" * 1000)
        for n in range(150)
    ]
    index = {"page_bytes_max": "1KiB", "page_size": 1000, "max_age": "1h", "full_crawl_interval": "1h"}
    async with rig_with(gateways, index=index) as rig:
        rig.serve(Expiring({None: page(tasks)}))
        session = Session(rig)
        first = final(await session.ask(filtered(1, order="asc")))["result"]
        assert (first["tasks"], first["_meta"]["taskgate/total"]) == (tasks[:1], 150)
        await eventually(lambda: datetime.now(UTC) > now + timedelta(seconds=ttl_s + 1), "all have expired")
        answer = final(await session.ask(filtered(1, order="asc")))["result"]
        assert (answer["tasks"], answer["_meta"]["taskgate/total"]) == ([], 0)
