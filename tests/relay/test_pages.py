"""Pages of large tasks: each answer has an end in bytes, and cursors lead on (DESIGN 5.5)."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tests.launch import Gateways, eventually
from tests.peer import Peer
from tests.relay.http1 import Message
from tests.relay.messages import Json, fault, filtered, page, task
from tests.relay.rig import Server, Session, body, final, rig_with
from tests.relay.wire import answer

KIB = 1024


def served(tasks: list[Json]) -> Server:
    cursors = [None, *map(str, range(1, len(tasks))), None]
    return Server({cursors[n]: page([each], cursors[n + 1]) for n, each in enumerate(tasks)})


async def test_a_page_has_at_most_4_mib_unless_configured(gateways: Gateways) -> None:
    tasks = [task(f"t-{n}", statusMessage="x" * (1500 * KIB)) for n in range(4)]
    async with rig_with(gateways, served(tasks), index={"max_age": "1h"}) as rig:
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
    async with rig_with(gateways, Expiring({None: page(tasks)}), index=index) as rig:
        session = Session(rig)
        first = final(await session.ask(filtered(1, order="asc")))["result"]
        assert (first["tasks"], first["_meta"]["taskgate/total"]) == (tasks[:1], 150)
        await eventually(lambda: datetime.now(UTC) > now + timedelta(seconds=ttl_s + 1), "all have expired")
        answer = final(await session.ask(filtered(1, order="asc")))["result"]
        assert (answer["tasks"], answer["_meta"]["taskgate/total"]) == ([], 0)
