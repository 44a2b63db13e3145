"""A store that fails over: its name leads to another server, and the old one is a replica (DESIGN 12.5)."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, Final

import pytest

from tests.launch import eventually
from tests.redis_process import Store, redis
from tests.relay.test_dial import NAME, resolve_to
from tests.store.conftest import PATIENCE, Fleet, known

OLD: Final = "127.0.0.1"
NEW: Final = "127.0.0.2"


@asynccontextmanager
async def replica_of(store: Store, folder: Path) -> AsyncIterator[Store]:
    """Another server, at the same port of another address, that has all of the first one's."""
    async with redis(folder, NEW, store.port) as other:
        await other.run("CONFIG", "SET", "replica-announce-ip", NEW)
        await other.run("REPLICAOF", OLD, store.port)
        await eventually(lambda: is_online(store), "a replica that is online")
        yield other


async def is_online(store: Store) -> bool:
    found: str = (await store.run("INFO", "replication")).get("slave0", {}).get("state", "")
    return found == "online"


async def replicaof(old: Store, new: Store) -> None:
    await new.run("REPLICAOF", "NO", "ONE")
    await old.run("REPLICAOF", NEW, new.port)


async def failover(old: Store, new: Store) -> None:
    await old.run("FAILOVER")

    async def is_over() -> bool:
        role: list[Any] = await new.run("ROLE")
        return bool(role[0] == "master")

    await eventually(is_over, "the other one is the primary")


async def cut(old: Store, new: Store) -> None:
    """As a proxy and a Sentinel do it: clients lose their connections as well."""
    await replicaof(old, new)
    await old.run("CLIENT", "KILL", "TYPE", "normal")


async def alone(old: Store, new: Store) -> None:
    """The old one answers nobody what is stale."""
    await new.run("REPLICAOF", "NO", "ONE")
    await old.run("CONFIG", "SET", "replica-serve-stale-data", "no")
    await old.run("REPLICAOF", "192.0.2.1", "1")


MOVES: Final[dict[str, Callable[[Store, Store], Awaitable[None]]]] = {
    "REPLICAOF": replicaof, "FAILOVER": failover, "CLIENT KILL": cut, "MASTERDOWN": alone,
}  # fmt: skip


@pytest.mark.parametrize("how", MOVES)
async def test_a_primary_that_moves_is_followed(how: str, fleet: Fleet, store: Store, tmp_path: Path) -> None:
    """The gateway stayed at the old server for good: all that it wrote there was refused."""
    resolve_to(OLD)
    url = f"redis://{NAME}:{store.port}"
    async with replica_of(store, tmp_path) as other, fleet.replica(store={"url": url, "timeout": PATIENCE}) as one:
        caller = await one.open()
        await one.make(caller)
        await known(store, 1)
        await MOVES[how](store, other)
        resolve_to(NEW)
        await one.make(caller)
        await known(other, 2)
        await eventually(one.serves, "a store that serves")


async def connections(store: Store) -> int:
    return int((await store.run("INFO", "stats"))["total_connections_received"])


async def test_a_server_that_is_no_primary_is_tried_again_at_growing_pauses(
    fleet: Fleet, store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The name moves later, or never: the demoted server gets no storm of connections."""
    caplog.set_level(logging.INFO, "taskgate.store")
    resolve_to(OLD)
    url = f"redis://{NAME}:{store.port}"
    async with replica_of(store, tmp_path) as other, fleet.replica(store={"url": url, "timeout": PATIENCE}) as one:
        await replicaof(store, other)
        before, began = await one.sample("store_failures_total", why="unreachable"), time.monotonic()
        came = await connections(store)
        caller = await one.open()
        await one.make(caller)

        async def tried() -> float:
            return await one.sample("store_failures_total", why="unreachable") - before

        while await tried() < 5:
            assert await tried() <= 2 * (time.monotonic() - began) + 2, "two connections a second"
            await asyncio.sleep(0.05)
        took_s = time.monotonic() - began
        assert took_s > 4, "the pauses grow"
        assert await connections(store) - came <= 2 * took_s + 2, "as the server counts them"
        assert not await one.serves()
        resolve_to(NEW)
        await known(other, 1)
    told = [record for record in caplog.records if record.name == "taskgate.store"]  # asyncio tells of slow turns
    whys = [record.__dict__["why"] for record in told if record.levelno == logging.WARNING]
    assert len(whys) == 1 and "it is a replica, no longer the primary" in whys[0]


@pytest.mark.parametrize(
    ("flags", "words", "counted"),
    [
        (("--sentinel",), "it is a Sentinel", "unreachable"),
        (("--replicaof", "192.0.2.1", "1"), "it is a replica: store.url must name the primary", "unreachable"),
        (("--cluster-enabled", "yes"), "it is a cluster that is not ready", "refused"),
    ],
)
async def test_what_is_no_store_is_called_what_it_is(
    flags: tuple[str, ...],
    words: str,
    counted: str,
    fleet: Fleet,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It was unreadable keys, and advice to delete some."""
    (tmp_path / "sentinel.conf").touch()
    given = (str(tmp_path / "sentinel.conf"), *flags) if "--sentinel" in flags else flags
    async with redis(tmp_path, OLD, 0, *given) as other:
        settings = {"url": other.url, "timeout": PATIENCE}
        async with fleet.replica(serves=False, store=settings) as one:
            await one.make(await one.open())

            async def is_counted() -> bool:
                return await one.sample("store_failures_total", why=counted) > 0

            await eventually(is_counted, counted)
    assert words in next(record.__dict__["why"] for record in caplog.records if "why" in record.__dict__)


async def test_a_store_that_still_loads_serves_once_it_has(fleet: Fleet, tmp_path: Path) -> None:
    async with redis(tmp_path) as other:
        await other.run("EVAL", "for i = 1, 3000 do redis.call('SET', 'k' .. i, i) end", 0)
        await other.run("SAVE")
    slowly = "--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024"
    with closing(Store(tmp_path, OLD, 0, *slowly)) as other:
        other.start()
        async with fleet.replica(serves=False, store={"url": other.url, "timeout": PATIENCE}) as one:
            await one.make(await one.open())
            assert not await one.serves()
            await eventually(one.serves, "a store that serves")
            await known(other, 1)


@pytest.mark.parametrize("own", [False, True])
async def test_a_cluster_of_one_node_is_a_store(own: bool, fleet: Fleet, tmp_path: Path) -> None:
    """With guards.own_tasks it refused each question: scripts named keys of several slots."""
    async with redis(tmp_path, OLD, 0, "--cluster-enabled", "yes") as other:
        await other.run("CLUSTER", "ADDSLOTS", *range(16384))
        settings = {"store": {"url": other.url, "timeout": PATIENCE}, "guards": {"own_tasks": own}}
        async with fleet.pair(**settings) as (one, another):
            caller = await one.open()
            made = [await one.make(caller) for _ in range(2)]
            await known(other, 8 if own else 2)
            await other.run("CONFIG", "SET", "cluster-require-full-coverage", "no")
            refused = [await replica.sample("store_failures_total", why="refused") for replica in (one, another)]
            for replica in (one, another):
                assert await replica.ids(caller) == sorted(made)
            assert (await another.delete(caller)).status == 200
            for replica, before in zip((one, another), refused, strict=True):
                await eventually(replica.serves, "a store that serves")
                assert await replica.sample("store_failures_total", why="refused") == before
