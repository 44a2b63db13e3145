"""What replicas know of each other's sessions through the store (DESIGN 12.2, 12.3).

What a replica could have from the server itself proves nothing: so the server's list omits what is looked for.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.certificates import Authority
from tests.launch import ROOT, eventually, held_port, port_of
from tests.redis_process import Store
from tests.relay.messages import filtered
from tests.store.conftest import NATIVE, PATIENCE, Caller, Fleet, Replica, known


async def values(store: Store) -> list[str]:
    found: list[str] = []
    for key in await store.run("KEYS", "*:*:*"):
        is_set = await store.run("TYPE", key) == "zset"
        found += await store.run("ZRANGE", key, 0, -1) if is_set else [await store.run("GET", key)]
    return found


# ---- the way to it ----


@pytest.mark.parametrize("name", ["localhost", "elsewhere"])
async def test_with_tls_the_certificate_of_the_store_is_checked(
    name: str, fleet: Fleet, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name in the URL must be the certificate's, whose authority the system knows."""
    authority = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", authority.ca)
    certificate, key = authority.certificate(name)
    with held_port() as sock:
        settings: dict[str, str | int] = {
            "cert-file": certificate,
            "key-file": key,
            "auth-clients": "no",
            "port": port_of(sock),
        }
        for setting, value in settings.items():
            await store.run("CONFIG", "SET", f"tls-{setting}", value)
        url = f"rediss://tests:any@localhost:{port_of(sock)}/3"
        async with fleet.replica(serves=name == "localhost", store={"url": url, "timeout": PATIENCE}) as one:
            await one.make(await one.open())
            if name == "localhost":
                await eventually(lambda: told(store, 3), "a session and a task in the store's database 3")
            else:
                await eventually(lambda: unreachable(one), "the failure in the metrics")


async def unreachable(replica: Replica) -> bool:
    return await replica.sample("store_failures_total", why="unreachable") > 0


async def told(store: Store, database: int) -> bool:
    """Whether that database has keys of a session and of its tasks."""
    spaces: dict[str, dict[str, int]] = await store.run("INFO", "keyspace")
    return spaces.get(f"db{database}", {}).get("keys") == 3  # the mark too


# ---- what is shared ----


async def test_a_server_that_filters_by_itself_does_so_at_another_replica(fleet: Fleet, store: Store) -> None:
    """Also where the gateway would refuse the query: the server may know more criteria."""
    fleet.server.tasks_capability = NATIVE
    async with fleet.pair() as (one, other):
        caller = await one.open()
        await eventually(lambda: _has_keys(store), "a key in the store")
        for criteria in ({"status": ["working"]}, {"status": "of its own"}):
            await other.ask(caller, filtered(**criteria))
            assert fleet.server.asked[-1]["params"] == criteria


async def _has_keys(store: Store) -> bool:
    return bool(await store.run("KEYS", "*:server"))


async def test_a_session_that_moves_costs_one_crawl_where_the_list_shows_all(fleet: Fleet, store: Store) -> None:
    fleet.server.lists = True
    async with fleet.pair() as (one, other):
        caller = await one.open()
        made = sorted([await one.make(caller) for _ in range(5)])
        await known(store, 5)
        assert await other.ids(caller) == made
        assert (fleet.server.count("tasks/list"), fleet.server.count("tasks/get")) == (1, 0)


# ---- what changes meanwhile ----


async def _tells_of(store: Store, task_id: str) -> bool:
    """Whether the store tells that a task is gone. That it was there stays until a replica is told so itself."""
    told = [json.loads(value) for value in await values(store)]
    return any(each.get("gone") for each in told if each.get("id") == task_id)


async def test_replicas_do_not_go_on_telling_each_other_the_same(fleet: Fleet, store: Store) -> None:
    async with fleet.pair_with_task(index={"max_age": 0}) as (one, other, caller, made):
        [key] = [key for key in await store.run("KEYS", "*") if key.endswith(":tasks")]
        told = await store.run("ZRANGE", key, 0, -1, "WITHSCORES")
        for replica in (other, one, other):
            assert await replica.ids(caller) == [made]
        assert await store.run("ZRANGE", key, 0, -1, "WITHSCORES") == told
        assert fleet.server.count("tasks/list") == 3, "nothing more was asked for than max_age demands"


# ---- isolation, and what the store holds ----


async def test_no_caller_learns_of_the_tasks_of_another_identity(fleet: Fleet) -> None:
    """For a stranger nothing is asked: a careless server would say that they are there. For one who has the session, or
    the token, the server is asked in his own name (7.12).
    """
    async with fleet.pair_with_task() as (one, other, caller, _):
        asked = fleet.server.count("tasks/get")
        for replica in (one, other):
            assert await replica.ids(Caller("another", "another")) == []
        assert fleet.server.count("tasks/get") == asked
        for stranger in (Caller(caller.session, "another"), Caller("another", caller.token)):
            for replica in (one, other):
                assert await replica.ids(stranger) == []


async def test_keys_are_digests_and_values_have_no_secret(fleet: Fleet, store: Store) -> None:
    async with fleet.replica() as one:
        caller = await one.open("s3cret")
        made = await one.make(caller)
        await known(store, 1)
    keys = await store.run("KEYS", "*")
    keys.remove("taskgate:mark")
    assert all(re.fullmatch(r"taskgate:\{1\}:[0-9a-f]{32}:(server|tasks)", key) for key in keys)
    found = await values(store)
    assert sorted(map(json.loads, found), key=len) == [
        {"filtered_here": True},
        {"id": made, "method": "tools/call"},
    ]


async def test_what_the_store_makes_up_is_shown_to_nobody(fleet: Fleet, store: Store) -> None:
    """A value that cannot be read says nothing. Any other is a reason to ask the server."""
    async with fleet.pair_with_task() as (_, other, caller, made):
        for key in await store.run("KEYS", "*:*:*"):
            if key.endswith(":server"):
                await store.run("SET", key, '{"filtered_here":2,"methods":[]}')
                continue
            for number, value in enumerate(
                ('{"id":"made up","method":null,"gone":false}', '{"id":"x","method":7,"gone":false}',
                 '{"id":7}', "no JSON", '{"id":"' + "x" * 300 + '","method":null,"gone":false}',
                 json.dumps({"id": made, "method": None, "gone": True}), "\x00\x7f")
            ):  # fmt: skip
                await store.run("ZADD", key, 2e15 + number, value)
        assert await other.ids(caller) == [made]
        assert {m["params"]["taskId"] for m in fleet.server.asked if m["method"] == "tasks/get"} == {made, "made up"}


@pytest.mark.parametrize("knew", [True, False])
async def test_a_session_that_its_client_ended_is_forgotten(knew: bool, fleet: Fleet, store: Store) -> None:
    """At the replica that had it, or at one that never did."""
    async with fleet.pair_with_task() as (one, other, caller, _):
        assert (await (one if knew else other).delete(caller)).status == 200
        await known(store, 0)
        assert not await _has_keys(store)


async def test_what_is_not_used_expires_with_its_session(fleet: Fleet, store: Store) -> None:
    async with fleet.replica(index={"idle_timeout": "10s"}) as one:
        caller = await one.open()
        await one.make(caller)
        await known(store, 1)
        [server] = await store.run("KEYS", "*:server")
        assert 0 < await store.run("TTL", server) <= 24 * 3600
        [entries] = await store.run("KEYS", "*:tasks")
        assert await store.run("PTTL", entries) <= 10_000
        assert await store.run("PEXPIRE", entries, 1) == 1
        await known(store, 0)


async def test_another_upstream_of_the_same_name_shares_nothing(fleet: Fleet, store: Store) -> None:
    elsewhere = {"url": f"http://localhost:{fleet.port}/mcp"}
    async with fleet.replica() as one, fleet.replica(upstream=elsewhere) as other:
        caller = await one.open()
        await one.make(caller)
        await known(store, 1)
        assert await other.ids(caller) == []


async def test_the_rights_that_the_handbook_names_suffice(fleet: Fleet, store: Store) -> None:
    handbook = (ROOT / "docs/operating.md").read_text()
    [rights] = re.findall(r"\*\*Rights\*\* that it needs: `([^`]*)`", handbook)
    await store.run("ACL", "SETUSER", "gateway", "on", ">s3cret", *rights.split())
    url = f"redis://gateway:s3cret@127.0.0.1:{store.port}/0"
    async with fleet.pair(store={"url": url, "timeout": PATIENCE}, index={"max_age": 0}) as (one, other):
        caller = await one.open()
        made = [await one.make(caller) for _ in range(2)]
        await known(store, 2)
        del fleet.server.tasks[made[0]]
        assert await other.ids(caller) == [made[1]]
        await eventually(lambda: _tells_of(store, made[0]), "the end of the task in the store")
        assert (await other.delete(caller)).status == 200
        await known(store, 0)
        assert (await one.sample("store_failures_total", why="refused")) == 0


# ---- without a store ----


def test_without_a_store_nothing_of_redis_or_replicas_is_imported() -> None:
    program = """
import asyncio, sys
from gateway import config
from gateway.app import App
async def main():
    app = App(config.for_upstream("http://127.0.0.1:9/mcp", "127.0.0.1:0", "127.0.0.1:0"))
    await app.start()
    await app.stop()
asyncio.run(main())
OURS = ("gateway.store", "gateway.store.shared_tasks", "gateway.store.redis_schema")
print([name for name in sys.modules if name.partition(".")[0] == "redis" or name.startswith(OURS)])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=20)
    assert done.stdout == "[]\n"


async def test_replicas_of_two_versions_do_not_read_each_other(
    fleet: Fleet, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fleet.replica() as one:
        caller = await one.open()
        made = await one.make(caller)
        await known(store, 1)
    with monkeypatch.context() as later:
        later.setattr("gateway.store.redis_schema._VERSION", b"another")
        async with fleet.replica() as newer:
            assert await newer.ids(caller) == []
    async with fleet.replica() as rolled_back:
        assert await rolled_back.ids(caller) == [made]
