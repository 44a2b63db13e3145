"""Sessions that are larger than an index may be (DESIGN 7.8): their filtered lists are refused, and nothing else is."""

import asyncio
import json
from typing import Any

import pytest

from tests.launch import Gateways, eventually, logged
from tests.relay.messages import Json, call, filtered, page, task
from tests.relay.rig import Rig, Server, Session, final, ids, own, rig_with

TASKS = [task(f"t-{n}", created=f"2026-01-01T00:00:{n:02}Z") for n in range(9)]
PAGES: dict[str | None, Json] = {
    None: page(TASKS[:2], "1"),
    **{str(n): page(TASKS[2 * n : 2 * n + 2], str(n + 1) if n < 4 else None) for n in range(1, 5)},
}
TOO_LARGE = -32000
WHAT: dict[str, Json] = {
    "index.tasks_max": {"tasks_max": 5},
    "index.memory_bytes_max": {"memory_bytes_max": "1MiB"},
}


class Tasks(Server):
    """A server of these pages, which knows each task on them."""

    def __init__(self, pages: dict[str | None, Json]) -> None:
        super().__init__(pages, get=lambda name: self.by_id.get(name))

    @property
    def by_id(self) -> dict[str, Json]:
        return {each["taskId"]: each for page in self.pages.values() for each in page["tasks"]}


def served(rig: Rig, key: str) -> None:
    more = {"x": "x" * 200_000} if key == "index.memory_bytes_max" else {}
    rig.serve(Tasks({at: {**each, "tasks": [{**t, **more} for t in each["tasks"]]} for at, each in PAGES.items()}))


async def refused(session: Session, key: str, **criteria: Any) -> Json:
    """The error that a filtered list gets."""
    said = await session.ask(filtered(7, **(criteria or {"status": ["working"]})))
    told = final(said)
    assert (said.status, told["id"], told["error"]["code"]) == (200, 7, TOO_LARGE)
    assert key in told["error"]["message"]
    error: Json = told["error"]
    return error


@pytest.mark.parametrize("key", WHAT)
async def test_a_filtered_list_is_refused_and_the_key_is_named(gateways: Gateways, key: str) -> None:
    async with rig_with(gateways, index={"max_age": "0s", **WHAT[key]}) as rig:
        served(rig, key)
        session = Session(rig)
        said = await refused(session, key)
        assert "`taskIds`" in said["message"] and "unfiltered" in said["message"]
        asked = len(rig.asked("tasks/list"))
        for criteria in ({"order": "asc"}, {"createdAfter": "2026-01-01T00:00:00Z"}, {"cursor": "taskgate:?"}):
            await refused(session, key, **criteria)
        assert len(rig.asked("tasks/list")) == asked, "that it is too large is remembered"
        unfiltered = final(await session.ask(call("tasks/list", 8)))["result"]
        assert [t["taskId"] for t in unfiltered["tasks"]] == ["t-0", "t-1"]
        assert unfiltered["nextCursor"] == "1"


@pytest.mark.parametrize("known", [True, False], ids=["known to be too large", "not yet known"])
async def test_a_list_by_task_ids_is_answered(gateways: Gateways, known: bool) -> None:
    """It needs only `tasks/get`. One more task passes, and makes no difference."""
    async with rig_with(gateways, index={"max_age": "0s", "tasks_max": 5}) as rig:
        served(rig, "index.tasks_max")
        session = Session(rig)
        if known:
            await refused(session, "index.tasks_max")
        asked = len(rig.asked("tasks/list"))
        for _ in range(2):
            said = final(await session.ask(filtered(1, taskIds=["t-1", "t-3", "t-7", "nobody"], order="asc")))
            assert ids(said) == ["t-1", "t-3", "t-7"]
            assert said["result"]["_meta"]["taskgate/total"] == 3
            await session.ask(call("tasks/get", 9, taskId="t-8"))
        assert len(rig.asked("tasks/list")) == asked


async def test_more_ids_than_pages_are_asked_for_too(gateways: Gateways) -> None:
    """Where it fits an index, reading the pages would be cheaper: here it cannot help."""
    async with rig_with(gateways, Tasks({None: page(TASKS)}), index={"max_age": "0s", "tasks_max": 7}) as rig:
        session = Session(rig)
        await refused(session, "index.tasks_max")
        named = [t["taskId"] for t in TASKS[:6]]
        assert sorted(ids(final(await session.ask(filtered(1, taskIds=named))))) == named
        assert len(rig.asked("tasks/list")) == 1
        await refused(session, "index.tasks_max", taskIds=[t["taskId"] for t in TASKS])


async def test_it_is_read_again_after_full_crawl_interval(gateways: Gateways) -> None:
    """The session has fewer tasks by then."""
    async with rig_with(gateways, index={"max_age": "0s", "full_crawl_interval": "500ms", "tasks_max": 5}) as rig:
        server, session = Tasks(PAGES), Session(rig)
        rig.serve(server)
        await refused(session, "index.tasks_max")
        server.pages = {None: page(TASKS[:4])}
        await refused(session, "index.tasks_max")

        async def is_answered() -> bool:
            said = final(await session.ask(filtered(1, order="asc")))
            return "result" in said and ids(said) == ["t-0", "t-1", "t-2", "t-3"]

        await eventually(is_answered, "a list, once the interval is over")


@pytest.mark.parametrize(
    ("index", "first", "count", "now"),
    [
        ({"max_age": "1h", "tasks_max": 4}, filtered(1, order="asc"), 4, slice(0, 9)),  # a task passes
        ({"full_crawl_interval": "1h"}, filtered(1, order="asc"), 4, slice(4, 8)),  # a look
        ({"full_crawl_interval": "1ms"}, filtered(1, order="asc"), 4, slice(4, 8)),  # a crawl
        ({}, call("tasks/list", 1), 9, slice(4, 8)),  # they only passed
    ],
)
async def test_it_is_too_large_by_the_tasks_that_are_there_now(
    gateways: Gateways, index: Json, first: Json, count: int, now: slice
) -> None:
    """Those that had gone elsewhere were counted with those that had come, and nothing listed for the interval."""
    async with rig_with(gateways, index={"max_age": "0s", "tasks_max": 5, **index}) as rig:
        server, session = Tasks({None: page(TASKS[:count])}), Session(rig)
        rig.serve(server)
        assert len(ids(final(await session.ask(first)))) == count
        server.pages = {None: page(TASKS[now])}
        if len(TASKS[now]) > 5:
            assert len(ids(final(await session.ask(call("tasks/list", 2))))) == 9
            await refused(session, "index.tasks_max")
        else:
            assert ids(final(await session.ask(filtered(2, order="asc")))) == ["t-4", "t-5", "t-6", "t-7"]


async def test_a_reload_that_raises_the_limit_holds_at_once(gateways: Gateways) -> None:
    """The error named a limit that was no longer there, for `full_crawl_interval`."""
    log = {"level": "info"}
    async with rig_with(gateways, log=log, index={"max_age": "0s", "tasks_max": 5}) as rig:
        served(rig, "index.tasks_max")
        session = Session(rig)
        await refused(session, "index.tasks_max")
        rig.gateway.reload(rig.settings(log=log, index={"max_age": "0s", "tasks_max": 9}))
        assert len(ids(final(await session.ask(filtered(1, order="asc"))))) == 9


async def test_log_page_and_counts_name_the_upstream_and_the_key(gateways: Gateways) -> None:
    """1,600 tasks in 1 MiB once showed nowhere for 15 minutes."""
    async with own(gateways, index=WHAT["index.tasks_max"]) as rig:
        served(rig, "index.tasks_max")
        await refused(Session(rig), "index.tasks_max")
        line = await logged(rig.gateway, "index.tasks_max")
        assert line["upstream"] == "up"
        shown = json.loads((await asyncio.to_thread(rig.gateway.get, "/page/status.json"))[1])
        [reason], [query] = shown["reasons"], shown["queries"]
        assert (reason["failure"], reason["upstreams"], reason["is_fault"]) == ("TooLarge", ["up"], False)
        assert "index.tasks_max" in reason["why"] and "index.tasks_max" in query["reason"]
        counted = (await rig.gateway.metrics())["taskgate_queries_total", (("outcome", "refused"), ("upstream", "up"))]
        assert (query["outcome"], counted) == ("refused", 1)
