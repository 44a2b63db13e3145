"""Criteria over real sockets: from a client's parameters to its pages (DESIGN 4.2, 5)."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from gateway.mcp.task import Task
from tests.launch import Gateways
from tests.peer import Peer
from tests.relay.http1 import Message
from tests.relay.messages import answer, call, filtered, initialized, page, result, task
from tests.relay.rig import Rig, Server, Session, body, final, ids, rig_with
from tests.rules import new_criterion

TASKS = [
    task(
        f"t-{n}",
        "failed" if n % 2 else "completed",
        f"2026-01-01T00:00:{n:02}Z",
        statusMessage=f"{n % 2} of {n}",
        ttl=n % 2,
    )
    for n in range(9)
]
FAILED = ["t-7", "t-5", "t-3", "t-1"]


class Tasks(Server):
    """A script: a server with tasks, which also answers `initialize`."""

    async def __call__(self, request: Message, peer: Peer) -> bytes | None:
        message = body(request)
        if message["method"] == "initialize":
            return answer(result(message["id"], initialized()))
        return await super().__call__(request, peer)


async def followed(rig: Rig | Session, **params: Any) -> list[list[str]]:
    """The ids on each page of a list, by following its cursors; in a new session, unless one is given."""
    session, pages = Session(rig) if isinstance(rig, Rig) else rig, list[list[str]]()
    while True:
        response = final(await session.ask(filtered(1, **params)))
        pages.append(ids(response))
        if (cursor := response["result"].get("nextCursor")) is None:
            return pages
        params = {"cursor": cursor}


async def test_a_criterion_that_is_declared_is_found_by_a_client(gateways: Gateways) -> None:
    """It takes one declaration, and nothing else."""
    with new_criterion.declared():
        async with rig_with(gateways, index={"page_size": 3}) as rig:
            rig.serve(Tasks({None: page(TASKS)}))
            said = final(await Session(rig).ask(call("initialize")))
            advertised = said["result"]["capabilities"]["tasks"]["list"]["filter"]
            assert advertised["statusMessage"] == {"contains": True}
            assert await followed(rig, statusMessageContains="1 of") == [FAILED[:3], FAILED[3:]]
            assert await followed(rig, filter={"statusNot": ["completed"]}) == [FAILED[:3], FAILED[3:]]
            assert advertised["ttl"]["below"] is True
            below = [[f"t-{n}" for n in some] for some in ((8, 6, 4), (2, 0))]
            for params in ({"ttlBelow": 1}, {"filter": {"ttlBelow": "1"}}, {"cursor": "taskgate:?ttlBelow=1"}):
                assert await followed(rig, **params) == below
            wrong = final(await Session(rig).ask(filtered(1, statusMessageContains=1)))
            assert wrong["error"]["code"] == -32602
            (fault,) = wrong["error"]["data"]["errors"]
            assert (fault["parameter"], fault["given"]) == ("statusMessageContains", "1")


async def test_a_cursor_that_spells_criteria_is_a_filtered_list(gateways: Gateways) -> None:
    """Any typed client can send it. Ordinary cursors follow. None of it reaches the server."""
    async with rig_with(gateways, index={"page_size": 3}) as rig:
        rig.serve(Tasks({None: page(TASKS)}))
        for text in (
            "taskgate:?status=failed&createdAfter=2026-01-01T00:00:00Z",
            "taskgate:?status=failed&status=failed,cancelled",
            "taskgate:?st%61tus=%66ailed&orderBy=createdAt",
        ):
            assert await followed(rig, cursor=text) == [FAILED[:3], FAILED[3:]]
        assert await followed(rig, cursor="taskgate:?status=failed&order=asc") == [FAILED[:0:-1], FAILED[:1]]
        assert {str(asked.get("params", {}).get("cursor")) for asked in rig.asked("tasks/list")} == {"None"}


@pytest.mark.parametrize(
    ("cursor", "parameter", "given", "allowed"),
    [
        ("taskgate:?staus=failed", "cursor.staus", '"failed"', "did you mean `status`?"),
        ("taskgate:?status=workin", "cursor.status", '"workin"', "working"),
        ("taskgate:?createdAfter=yesterday", "cursor.createdAfter", '"yesterday"', "RFC 3339"),
        ("taskgate:status=failed", "cursor", "taskgate:status=failed", "taskgate:?"),
        ("taskgate3.AAAA.0123456789abcdef", "cursor", "taskgate3.AAAA.0123456789abcdef", "unchanged"),
        ("taskgate1.AAAA", "cursor", "taskgate1.AAAA", "of this version"),
    ],
)
async def test_a_cursor_of_ours_that_cannot_be_read_never_reaches_the_server(
    rig: Rig, cursor: str, parameter: str, given: str, allowed: str
) -> None:
    """With criteria beside it, or without."""
    rig.serve(Server({None: page(TASKS)}))
    for beside in ({}, {"status": ["failed"]}):
        error = final(await Session(rig).ask(call("tasks/list", cursor=cursor, **beside)))["error"]
        assert error["code"] == -32602
        (fault,) = error["data"]["errors"]
        assert (fault["parameter"], fault["given"]) == (parameter, given)
        assert allowed in fault["allowed"] and allowed in error["message"]
    await rig.canary()
    assert all(asked["params"] == {} for asked in rig.asked("tasks/list"))


async def test_a_member_of_filter_that_is_no_criterion_is_an_error(rig: Rig) -> None:
    """It never brings an unfiltered list."""
    rig.serve(Server({None: page(TASKS)}))
    error = final(await Session(rig).ask(call("tasks/list", filter={"staus": ["failed"]})))["error"]
    assert error["code"] == -32602
    assert error["data"]["errors"] == [
        {
            "parameter": "filter.staus",
            "given": '["failed"]',
            "allowed": "the name of a criterion: did you mean `status`?",
        }
    ]
    await rig.canary()
    assert all(asked["params"] == {} for asked in rig.asked("tasks/list"))


async def test_parameters_that_are_no_criteria_are_named_in_the_answer(rig: Rig) -> None:
    """Beside a criterion. Without one the server answers the request."""
    rig.serve(Tasks({None: page(TASKS)}))
    session = Session(rig)
    for params in (
        {"order": "desc", "staus": ["failed"], "limit": 1, "_meta": {"a": 1}},
        {"cursor": "taskgate:?order=desc", "staus": ["failed"], "limit": 1},
    ):
        said = final(await session.ask(call("tasks/list", **params)))["result"]
        assert said["_meta"]["taskgate/ignored"] == ["staus", "limit"]
        assert len(said["tasks"]) == len(TASKS)
    said = final(await session.ask(filtered(1, order="desc")))["result"]
    assert said["_meta"].keys() == {"taskgate/total", "taskgate/asOf"}
    assert "_meta" not in final(await session.ask(call("tasks/list", staus=["failed"])))["result"]


MANY = [task(f"m-{n:05}", created=f"2026-01-01T00:{n // 60 % 60:02}:{n % 60:02}Z", ttl=n % 3) for n in range(3_000)]
IN_A_TURN = 200


class Watched:
    """The criterion `ttlBelow`, and how many tasks were asked for it in each turn of the loop."""

    def __init__(self) -> None:
        self.turn = self.asked = 0
        self.in_turns = Counter[int]()
        self.when: dict[int, Callable[[], object]] = {}  # by the number of tasks that were asked
        self.criterion = msgspec.structs.replace(
            new_criterion.TTL_BELOW, name="ttlBelowWatched", capability=("watched",), matches=self._holds
        )

    def _holds(self, value: float, candidate: Task) -> bool:
        if not self.in_turns[self.turn]:
            asyncio.get_running_loop().call_soon(self._turned)
        self.in_turns[self.turn] += 1
        self.asked += 1
        self.when.pop(self.asked, lambda: None)()
        return new_criterion.TTL_BELOW.matches(value, candidate)

    def _turned(self) -> None:
        self.turn += 1


class Changing(Tasks):
    """Refuses its caller once it is told to. A task has ended when it is asked for."""

    refuses = False

    async def __call__(self, request: Message, peer: Peer) -> bytes | None:
        message = body(request)
        if self.refuses:
            return b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"
        if message["method"] == "tasks/get":
            return answer(result(message["id"], {**MANY[-3], "status": "completed"}))
        return await super().__call__(request, peer)


@asynccontextmanager
async def watched(gateways: Gateways) -> AsyncIterator[tuple[Session, Changing, Watched]]:
    """A session whose many tasks are known, its server, and a criterion that is watched."""
    each, server = Watched(), Changing({None: page(MANY[:1500], "next"), "next": page(MANY[1500:])})
    with new_criterion.declared(each.criterion):
        async with rig_with(gateways, index={"page_size": 50, "max_age": "1h"}) as rig:
            rig.serve(server)
            session = Session(rig)
            assert await followed(session, status=["completed"]) == [[]]
            yield session, server, each


async def test_a_criterion_on_tasks_leaves_others_their_turn(gateways: Gateways) -> None:
    """100,000 tasks held up everybody for 150 ms. Five such queries look at no more tasks in a turn than one."""
    async with watched(gateways) as (session, _, each):
        want = [one["taskId"] for one in MANY if one["ttl"] < 1]
        asked = {"ttlBelowWatched": 1, "orderBy": "createdAt", "order": "asc"}
        for pages in await asyncio.gather(*(followed(session, **asked) for _ in range(5))):
            assert [one for some in pages for one in some] == want
        assert each.asked == 5 * len(pages) * len(MANY)
        assert max(each.in_turns.values()) <= IN_A_TURN
        each.asked = 0
        few = {"createdBefore": "2026-01-01T00:00:08Z", "taskIds": ["m-00003", "m-00004"]}
        assert await followed(session, ttlBelowWatched=1, **few) == [["m-00003"]]
        assert each.asked == 2


@pytest.mark.parametrize("method", ["tasks/get", "tools/call"])
async def test_a_caller_who_is_refused_while_a_page_is_gathered_does_not_get_it(
    gateways: Gateways, method: str
) -> None:
    """No request of the gateway's own would tell: it knew enough for the page (DESIGN 7.4)."""
    async with watched(gateways) as (session, server, each):

        def refused() -> None:
            server.refuses = True
            session.rig.asking(session.request(call(method, 9, taskId="m-00001", name="a")))

        each.when[1] = refused
        assert (await session.ask(filtered(1, ttlBelowWatched=1))).status == 403


async def test_a_task_that_changes_while_a_page_is_gathered_is_looked_at_once(gateways: Gateways) -> None:
    """From then on it is of another group of the index, whose tasks may have been looked at before."""
    async with watched(gateways) as (session, _, each):
        task_id = MANY[-3]["taskId"]
        each.when[1] = lambda: session.rig.asking(session.request(call("tasks/get", 9, taskId=task_id)))
        said = final(await session.ask(filtered(1, ttlBelowWatched=1)))["result"]
        assert (said["_meta"]["taskgate/total"], each.asked) == (1_000, len(MANY))
        assert [task_id] == ids(final(await session.ask(filtered(1, status=["completed"]))))
