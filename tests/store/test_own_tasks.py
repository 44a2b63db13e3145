"""Whose a task is, where replicas share that by a store (DESIGN 12.7).

In: replicas with `guards.own_tasks` before one server that gives every task to everybody, and a real Redis. Out: what
each caller gets. Always: nobody gets another's, and nobody loses his own but where the store fails.
"""

import asyncio
import signal
from typing import Any, Final

import pytest

from tests.launch import eventually
from tests.redis_process import Store
from tests.relay.http1 import Message
from tests.relay.messages import Json, call, chunked, event, request, result, stream
from tests.relay.messages import task as task_of
from tests.relay.rig import body, meant
from tests.store.conftest import Caller, Fleet, Replica

OWN: Final[dict[str, Any]] = {"guards": {"own_tasks": True}}


@pytest.fixture
def guarded(fleet: Fleet) -> Fleet:
    fleet.server.lists = fleet.server.is_open = True
    return fleet


async def got(replica: Replica, caller: Caller, task_id: str) -> bool:
    said: Json = await replica.ask(caller, call("tasks/get", taskId=task_id))
    assert said.get("error", {}).get("code") in (None, -32602), said
    return "result" in said


async def soon(replica: Replica, caller: Caller, task_id: str, is_his: bool = True) -> None:
    """Return once a replica knows whether a task is a caller's."""

    async def knows() -> bool:
        return await got(replica, caller, task_id) == is_his

    await eventually(knows, f"{task_id} of {caller}: {is_his}")


@pytest.mark.parametrize("task", [{}, {"ttl": 0}])
async def test_an_id_that_is_made_again_is_its_last_makers_at_any_replica(guarded: Fleet, task: Json) -> None:
    """Or nobody's, if it is made for nobody."""
    async with guarded.pair(index={"max_age": 0}, **OWN) as (one, other):
        ada, eve, nobody = await one.open("ada"), await one.open("eve"), Caller("", "")
        makers = [(one, ada), (other, eve), (one, ada), (one, eve), (other, ada), (other, nobody), (one, ada)]
        for replica, maker in makers:
            await replica.make(maker, "same", **task)
            for each in (replica, one, other):
                for caller in (ada, eve):
                    is_his = caller is maker
                    if each is not replica:
                        await soon(each, caller, "same", is_his)
                    assert await got(each, caller, "same") == is_his
                    assert await each.ids(caller) == ["same"] * is_his


@pytest.mark.parametrize("lists_first", [True, False])
async def test_an_id_that_is_made_again_while_the_store_was_away_is_not_its_earlier_owners_for_max_age(
    guarded: Fleet, store: Store, lists_first: bool
) -> None:
    """What was heard in the connection before is no reason to ask nothing."""
    async with guarded.pair(index={"max_age": "60s"}, **OWN) as (one, other):
        ada, eve = await one.open("ada"), await one.open("eve")
        await one.make(ada, "same")
        await soon(other, ada, "same")
        if lists_first:
            assert await other.ids(ada) == ["same"]
        await store.run("CLIENT", "KILL", "TYPE", "normal")
        await one.make(eve, "same")
        await soon(other, ada, "same", is_his=False)
        await soon(other, eve, "same")


async def test_while_the_store_fails_what_is_not_known_here_gets_an_error_that_says_so(
    guarded: Fleet, store: Store
) -> None:
    async with guarded.pair(store={"url": store.url, "timeout": "1s"}, **OWN) as (one, other):
        ada, eve = await one.open("ada"), await one.open("eve")
        before = await one.make(ada)
        await soon(other, ada, before)
        store.signal(signal.SIGSTOP)
        during = await one.make(ada)
        assert await got(one, ada, before) and await got(one, ada, during) and await got(other, ada, before)
        for caller in (ada, eve):
            said = await other.exchange(caller, call("tasks/get", taskId=during))
            assert meant(said) == 503
            assert "the store does not answer" in body(said)["error"]["message"]
        assert await one.ids(ada) == sorted([before, during])
        store.signal(signal.SIGCONT)

        async def told() -> bool:
            return "result" in body(await other.exchange(ada, call("tasks/get", taskId=during)))

        await eventually(told, "the task at the other replica")
        assert not await got(other, eve, during)


@pytest.mark.parametrize("ends_at_first", [True, False])
async def test_a_session_that_ends_at_one_replica_has_no_tasks_at_another(guarded: Fleet, ends_at_first: bool) -> None:
    """The other replica had the owners, and kept them: whoever knew the session got its tasks."""
    async with guarded.pair(index={"max_age": 0}, **OWN) as (one, other):
        ada = await one.open("ada")
        made = [await each.make(ada) for each in (one, other, one)]
        renewed = Caller(ada.session, "renewed")
        for each in (one, other):
            for task_id in made:
                await soon(each, renewed, task_id)
        assert (await (one if ends_at_first else other).delete(ada)).status == 200
        for each in (one, other):
            for task_id in made:
                await soon(each, renewed, task_id, is_his=False)
                assert await got(each, Caller("another", "ada"), task_id)


@pytest.mark.parametrize("own", [True, False])
async def test_ids_that_nobody_has_cost_the_server_nothing_more(guarded: Fleet, own: bool) -> None:
    """A client names 2,000 of them in each list, at a replica that knows of none and at one that has read the list."""
    async with guarded.pair(index={"max_age": "60s"}, guards={"own_tasks": own}) as (one, other):
        ada = await one.open("ada")
        made = await one.make(ada)
        for each in (one, other):
            assert await each.ids(ada, status="working") == [made]
        guarded.server.asked.clear()
        for number, each in enumerate((one, other, one, other)):
            assert await each.ids(ada, taskIds=[f"never-{number}-{other}" for other in range(2000)]) == []
        assert {asked["method"] for asked in guarded.server.asked} <= {"tasks/list"}
        assert await one.ids(ada) == await other.ids(ada) == [made]


async def test_what_a_replica_tells_of_a_task_that_is_anothers_by_now_asks_nothing_in_this_ones_name(
    guarded: Fleet,
) -> None:
    async with guarded.pair(index={"max_age": 0}, **OWN) as (one, other):
        ada, eve = await one.open("ada"), await one.open("eve")
        await one.make(ada, "same")
        assert await one.ids(ada) == ["same"]
        await one.make(eve, "same")
        await soon(other, eve, "same")
        guarded.server.asked.clear()
        for each in (other, one, other):
            assert await each.ids(ada) == []
        assert {asked["method"] for asked in guarded.server.asked} <= {"tasks/list"}, "nothing was asked in Ada's name"


async def evals(store: Store) -> int:
    """How many scripts the store has run, once no more writes wait."""
    counts = [-1, 0]
    while counts[-1] != counts[-2]:
        await asyncio.sleep(0.1)
        counts.append((await store.run("INFO", "commandstats"))["cmdstat_eval"]["calls"])
    return counts[-1]


async def test_a_message_about_a_task_takes_few_questions_and_so_does_a_replica_that_knows_nothing(
    guarded: Fleet, store: Store
) -> None:
    """An unknown id took six answers of the store, one after another; 9,500 tasks took 57,000 commands."""
    async with guarded.pair(index={"max_age": "60s", "page_size": 1000}, **OWN) as (one, other):
        ada, eve = await one.open("ada"), await one.open("eve")
        made = [await one.make(ada) for _ in range(100)]
        await soon(other, ada, made[-1])
        await soon(other, ada, made[0])
        before = await evals(store)
        assert not await got(other, eve, made[0])
        assert await evals(store) - before <= 3, "one question, three times"
        before = await evals(store)
        assert await other.ids(ada) == sorted(made)
        assert await evals(store) - before <= 60, "writes are there, too"


async def test_a_resumed_stream_makes_a_task_his_if_the_store_knows_no_owner(guarded: Fleet, store: Store) -> None:
    """Another replica may know whose it is."""
    server, plain = guarded.server, guarded.server.response

    def resumed(asked: Message) -> bytes:
        if asked.method != b"GET":
            return plain(asked)
        made = [result(number, {"task": task_of(name)}) for number, name in enumerate(("hers", "lost"))]
        server.tasks["lost"] = ("", "", task_of("lost"))
        return stream() + chunked(*map(event, made))

    server.response = resumed  # type: ignore[method-assign]
    async with guarded.pair(**OWN) as (one, other):
        ada, eve = await one.open("ada"), await one.open("eve")
        await one.make(ada, "hers")
        await soon(one, ada, "hers")

        async def has_owners() -> bool:
            return len(await store.run("KEYS", "*:tasks")) >= 3

        await eventually(has_owners, "a task in the store, and its two owners")
        await other._send(request(b"GET", b"/mcp", [*eve.fields(), b"Last-Event-ID: 1"]))
        await soon(other, eve, "lost")
        for replica in (one, other):
            assert not await got(replica, eve, "hers")
            assert await got(replica, ada, "hers")
            assert not await got(replica, ada, "lost")
