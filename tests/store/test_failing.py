"""A real Redis that fails loses nothing and stops nobody (DESIGN 12.4, 12.5). How long anybody waits: tests/model."""

import asyncio
import logging
import shlex
import signal
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import pytest

from tests.launch import eventually
from tests.redis_process import Store
from tests.relay.messages import call
from tests.store.conftest import Caller, Fleet, Replica, known

Do = Callable[[Store], Awaitable[None] | None]


def told(*commands: str) -> Do:
    async def do(store: Store) -> None:
        for command in commands:
            await store.run(*shlex.split(command))

    return do


async def done(do: Do, store: Store) -> None:
    if (doing := do(store)) is not None:
        await doing


# How it fails, and how it is well again. Read-only is the old primary after a failover; locked, it wants a password of
# every new connection.
FAILURES: Final[dict[str, tuple[Do, Do]]] = {
    "stopped": (lambda store: store.signal(signal.SIGSTOP), lambda store: store.signal(signal.SIGCONT)),
    "dead, then empty": (Store.kill, Store.start),
    "full": (told("CONFIG SET maxmemory 1"), told("CONFIG SET maxmemory 0")),
    "read-only": (told("REPLICAOF 127.0.0.1 1"), told("REPLICAOF NO ONE")),
    "refusing": (told("ACL SETUSER default -@all +acl"), told("ACL SETUSER default +@all")),
    "locked": (told("CONFIG SET requirepass another", "CLIENT KILL USER default"), told("CONFIG SET requirepass ''")),
}


async def shows(replica: Replica, caller: Caller, tasks: list[str]) -> bool:
    return await replica.ids(caller) == sorted(tasks)


async def fails(replica: Replica) -> bool:
    failures = [await replica.sample("store_failures_total", why=why) for why in ("unreachable", "refused")]
    return sum(failures) > 0 and not await replica.serves()


# By the type of a key: the command that makes one.
WRONG: Final[dict[str, Callable[[str], list[str]]]] = {
    "string": lambda name: ["SET", name, "no entries"],
    "list": lambda name: ["RPUSH", name, "no entry"],
}


async def sent_bytes(store: Store) -> int:
    found: int = (await store.run("INFO", "stats"))["total_net_output_bytes"]
    return found


@pytest.mark.parametrize("name", FAILURES)
async def test_a_store_that_fails_loses_nothing_and_stops_nobody(
    name: str, fleet: Fleet, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    fail, mend = FAILURES[name]
    caplog.set_level(logging.INFO, "taskgate.store")
    async with fleet.pair() as (one, other):
        caller = await one.open()
        before = await one.make(caller)
        await known(store, 1)
        await done(fail, store)
        during = await one.make(caller)
        assert await one.ids(caller) == sorted([before, during])
        await eventually(lambda: fails(one), "the failure in the metrics")
        assert (await asyncio.to_thread(one.gateway.get, "/readyz"))[0] == 200
        assert "result" in await other.ask(caller, call("tools/list"))
        assert await other.ids(caller) in ([], [before])
        await done(mend, store)
        await known(store, 2)
        for replica in (one, other):
            await eventually(replica.serves, "a store that serves again")
            await eventually(partial(shows, replica, caller, [before, during]), "both tasks in an answer")
    said = [r.getMessage() for r in caplog.records if r.name == "taskgate.store"]
    assert set(said) == {"the store serves", "the store fails, and the gateway works without it"}


async def test_a_store_that_takes_nothing_in_is_still_read(fleet: Fleet, store: Store) -> None:
    fail, mend = FAILURES["full"]
    async with fleet.pair_with_task() as (one, other, caller, made):
        await done(fail, store)
        for replica in (one, other):
            await replica.make(await replica.open("another"))
            await eventually(partial(fails, replica), "the failure in the metrics")
        assert await other.ids(caller) == [made]
        await done(mend, store)


@pytest.mark.parametrize("kind", WRONG)
async def test_a_key_of_a_wrong_type_is_replaced_and_harms_no_other_session(
    kind: str, fleet: Fleet, store: Store
) -> None:
    """It stopped the store for all: nothing was taken in any more."""
    async with fleet.pair() as (one, other):
        victim, caller = await one.open(), await one.open("another")
        made = [await one.make(victim)]
        await known(store, 1)
        [name] = await store.run("KEYS", "*:tasks")
        await store.run("DEL", name)
        await store.run(*WRONG[kind](name))
        assert await other.ids(victim) == [], "what cannot be read is not there"
        others = await one.make(caller)
        await eventually(lambda: shows(other, caller, [others]), "the other session's task")
        made.append(await one.make(victim))
        await eventually(lambda: shows(other, victim, made), "all that was told before, too")
        assert await store.run("TYPE", name) == "zset"
        for replica in (one, other):
            await eventually(replica.serves, "a store that serves")
            assert await replica.sample("store_failures_total", why="refused") == 0


async def test_a_mark_of_a_wrong_type_is_replaced_and_an_emptied_store_is_told_again(
    fleet: Fleet, store: Store
) -> None:
    """Nobody noticed that the store had been emptied."""
    await store.run("RPUSH", "taskgate:mark", "no mark")
    async with fleet.replica() as one:
        await one.make(await one.open())
        await known(store, 1)

        async def is_mark() -> bool:
            return bool(await store.run("TYPE", "taskgate:mark") == "string")

        await eventually(is_mark, "the mark")
        await eventually(one.serves, "a store that serves")
        await store.run("FLUSHALL")
        await known(store, 1)
        assert await is_mark()


@pytest.mark.parametrize("which", ["the mark", "a value", "an entry"])
async def test_a_value_of_a_huge_size_is_not_read(which: str, fleet: Fleet, store: Store) -> None:
    """One of 512 MB was read by each replica, for longer than a second: the store was down for all."""
    async with fleet.pair_with_task() as (one, other, caller, made):
        [value], [entries] = [await store.run("KEYS", f"*:{kind}") for kind in ("server", "tasks")]
        if which == "an entry":
            await store.run("EVAL", "redis.call('ZADD', KEYS[1], 1, string.rep('[', 5e6))", 1, entries)
        else:
            await store.run("SETRANGE", {"the mark": "taskgate:mark"}.get(which, value), 5_000_000, "x")
        for replica in (one, other):
            await eventually(replica.serves, "a store that serves again: to make the value took it long")
        before = await sent_bytes(store)
        await eventually(lambda: shows(other, caller, [made]), "the task in an answer")
        assert await sent_bytes(store) - before < 1_000_000
        for replica in (one, other):
            await eventually(replica.serves, "a store that serves both")


@pytest.mark.parametrize("place", ["+inf", "1e300", "1e17", "5.5"])
async def test_more_entries_at_one_place_than_are_read_at_once_are_read_once(
    place: str, fleet: Fleet, store: Store
) -> None:
    """A replica read the same ones, again and again, for as long as `store.timeout`; or took the store for dead."""
    async with fleet.pair_with_task() as (_, other, caller, made):
        [name] = await store.run("KEYS", "*:tasks")
        await store.run("ZADD", name, *(word for n in range(3000) for word in (place, f"no entry {n}")))
        await eventually(lambda: shows(other, caller, [made] if float(place) > 1e10 else []), "an answer")
        assert [await other.sample("store_failures_total", why=why) for why in ("slow", "unreachable")] == [0, 0]
        assert await other.serves()
