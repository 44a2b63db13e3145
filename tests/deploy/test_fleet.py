"""Three replicas, HAProxy with its recipe, a Redis: a crowd of sessions while each part fails in turn (DESIGN 12).

300 sessions of 30 identities make and cancel tasks and ask random queries; tasks change by themselves too. Every fifth
session has a second identity, with tasks of its own. Meanwhile a replica is killed and started again; Redis is killed
and started, empty; a replica gets SIGTERM and is started again. In the end `max_age` becomes 0.

The oracle is that of the model, so far as it fits a real clock: it does not judge `taskgate/asOf`, nor what a query
may ask. `max_age` is an hour, so that a crawl is one that a session's way to a gateway has caused. So an answer may
show any state that a task has had, but none older than what its gateway knows; and no task that its gateway knows may
be missing. A gateway knows

- what it has relayed or asked, once the client was answered;
- what was so when its crawl of the session began, if the server lists the session's tasks;
- if not: what the test had seen in the store before the session came to this gateway, or with `max_age` 0 before the
  query.

So a task may be missing that was made at a replica which was killed before the store had the task, if the server does
not list it. Whose answer it is: of the gateway that asked the server for it. If none did, of the one that asked last in
this session; while a replica is down, of any that has asked in this session since then, or asked last before.

What may fail: from the signal on, until HAProxy has found the replica again, a request may get 502, 503, 504 or a
connection that breaks. The client sends only queries again. Nothing else may fail, and nothing while Redis is down.
"""

import asyncio
import json
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Final, cast

import msgspec
import pytest

from tests.bench.httpclient import Client
from tests.bench.processes import BenchFailed
from tests.deploy.balancers import REPLICAS, running
from tests.deploy.legacy_fleet import Caller, FleetServer
from tests.deploy.replicas import Replica
from tests.launch import POLL_S, Gateway, Gateways, Process, eventually, held_port, logged, port_of, ports
from tests.model.history import METHODS, STATUSES, Setting
from tests.model.oracle import Asked, Criteria, Oracle, Outcome, Seen
from tests.model.truth import BEFORE_ALL, Moment, ServerSession, Truth, Violation, instant
from tests.model.upstream import Upstream
from tests.model.virtual import TICK_S
from tests.redis_process import Store, redis
from tests.relay.messages import Json, call, dumps

SESSIONS: Final = 300
IDENTITIES: Final = 30
GUEST_OF: Final = 5  # one session of so many has a second identity
LANES: Final = 16  # requests at once
KEPT_S: Final = 3600
PAGE: Final = 3
FAILURES: Final = (502, 503, 504)
INDEX: Final = {"max_age": f"{KEPT_S}s", "full_crawl_interval": f"{KEPT_S}s", "page_size": PAGE}
SETTING: Final = Setting(
    max_age=round(KEPT_S / TICK_S), full_crawl_interval=round(KEPT_S / TICK_S), page_size=PAGE, methods=len(METHODS)
)
_ENTRIES: Final = """
local found = {}
for _, key in ipairs(redis.call('KEYS', '*:tasks')) do
    for _, value in ipairs(redis.call('ZRANGE', key, 0, -1)) do found[#found + 1] = value end
end
return found"""


class LiveOracle(Oracle):
    """Judges answers by what one gateway must know."""

    def __init__(self, setting: Setting, server: FleetServer) -> None:
        super().__init__(setting, cast(Upstream, server))

    def judge(self, asked: Asked, outcome: Outcome, caller: Caller) -> Seen:
        """An answer of one of the gateways that may have given it. Raises Violation."""
        first: Violation | None = None
        for home in list(dict.fromkeys(caller.seen[::-1])) or caller.homes:
            view = self._view = caller.views[home]
            for truth in caller.truths:
                truth.known = [(BEFORE_ALL, view.known[truth], caller)] if truth in view.known else []
                truth.answered = (BEFORE_ALL, caller) if truth in view.methods else None
            try:
                return self.ended(asked, outcome)
            except Violation as violation:
                first = first or Violation(violation.rule, f"{violation.what}; {asked.criteria}; by {home}, {caller}")
        raise first or Violation("unanswered", f"nobody can have answered {caller}")

    def learn(self, truth: Truth, number: int, at: Moment, session: ServerSession) -> None:
        if number >= 0:
            self._view.known[truth] = max(number, self._view.known.get(truth, 0))

    def _check_failure(self, asked: Asked, outcome: Outcome) -> None:
        raise Violation("failed", str(outcome))

    def _check_as_of(self, *_: Any) -> None:
        """Not judged."""

    def _check_cost(self, asked: Asked, at: Moment) -> None:
        """Not judged."""


class Fleet:
    """The replicas, HAProxy, the store and the server."""

    balancer: Process

    def __init__(self, server: FleetServer, store: Store, replicas: list[Replica]) -> None:
        self.server = server
        self.store = store
        self.replicas = replicas
        self.is_failing = False  # requests may
        self.killed = set[str]()  # the gateways that were, by name
        self._count = 0

    def start(self, number: int) -> None:
        """Run a replica, which may not be ready yet. It tells the server which gateway it is."""
        self._count += 1
        self.replicas[number].start(
            # By default `Host`, as the server sees it, would count for the identity.
            upstream={"host": f"replica-{number}-{self._count}", "identity_headers": ["Authorization"]},
            index=INDEX,
            store={"url": self.store.url, "timeout": "20s"},
            limits={"shutdown_delay": "400ms"},
            log={"level": "info"},
        )

    def name(self, number: int) -> str:
        """What the gateway that runs there sends as `Host`."""
        name: str = self.replicas[number].changed["upstream"]["host"]
        return name

    def said(self, number: int, word: str) -> int:
        """How often HAProxy has found that a replica is UP or DOWN."""
        return self.balancer.log.read_text().count(f"taskgate-{number + 1} is {word}")

    async def finds(self, number: int, word: str, before: int) -> None:
        """Return once HAProxy has found it once more."""

        async def found() -> bool:
            return self.said(number, word) > before

        await eventually(found, f"HAProxy finds replica {number} {word}")

    async def lose(self, number: int, how: signal.Signals) -> None:
        """End a replica, and return once HAProxy has left it and it has ended."""
        before, gateway = self.said(number, "DOWN"), self.replicas[number].gateway
        self.is_failing = True
        if how is signal.SIGKILL:
            self.killed.add(self.name(number))
            gateway.kill()
        else:
            gateway.signal(how)
        await self.finds(number, "DOWN", before)
        await gateway.exits()

    async def restart(self, number: int) -> None:
        """Run a replica again, once it has ended, until HAProxy has found it."""
        before = self.said(number, "UP")
        await asyncio.to_thread(self.replicas[number].close)
        self.start(number)
        await self.finds(number, "UP", before)
        self.is_failing = False

    async def serves(self) -> None:
        """Return once the store has all that the replicas know."""
        for replica in self.replicas:

            async def serves(gateway: Gateway = replica.gateway) -> bool:
                return "\ntaskgate_store_up 1" in await gateway.exposition()

            await eventually(serves, "a store that serves")


class Crowd:
    """The callers, and what they do."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.server = fleet.server
        self.rng = random.Random(15)
        self.oracles = {
            lists: LiveOracle(replace(SETTING, order=order), fleet.server)
            for lists, order in ((True, "appends"), (False, "nothing"))
        }
        self._acted = asyncio.Event()  # a third of the callers have

    async def open(self) -> None:
        """Open all sessions."""
        for number in range(SESSIONS):
            token = f"Bearer {number % IDENTITIES}"
            client = await Client.connect(self.fleet.balancer.origin + "/mcp")
            status, _ = await client.exchange(dumps(call("initialize")), Authorization=token)
            client.close()
            assert status == 200
            lists = number // IDENTITIES % 2 == 0
            self.server.add(client.session, token, lists)
            if number % GUEST_OF == 0:
                self.server.add(client.session, f"Bearer {(number + 1) % IDENTITIES}", lists)

    async def each(self, act: Callable[["Lane", Caller], Awaitable[None]]) -> None:
        """Have each caller act once, some at a time."""
        callers = list(self.server.callers.values())
        self.rng.shuffle(callers)
        self._acted.clear()

        async def lane() -> None:
            async with Lane(self) as one:
                while callers:
                    await act(one, callers.pop())
                    if len(callers) < 2 * len(self.server.callers) // 3:
                        self._acted.set()

        async with asyncio.TaskGroup() as group:
            for _ in range(LANES):
                group.create_task(lane())

    async def during(self, *faults: Callable[[], Awaitable[None]]) -> None:
        """Have all act; the faults come one after the other, once a third of the callers have acted."""

        async def happen() -> None:
            await self._acted.wait()
            for fault in faults:
                await fault()

        async with asyncio.TaskGroup() as group:
            group.create_task(self.each(self.live))
            group.create_task(happen())

    async def live(self, lane: "Lane", caller: Caller) -> None:
        """What a caller does in one stage."""
        act = self.rng.random()
        live = [truth for truth in caller.truths if truth.is_live]
        if act < 0.4 or not caller.truths:
            await lane.make(caller)
        elif act < 0.6 and live:
            await lane.cancel(caller, self.rng.choice(live))
        elif act < 0.8 and live:
            self.server.change(caller, self.rng.choice(live), self.rng.choice(STATUSES[1:]))
        await lane.query(caller, *self.criteria(caller))

    def check_crawls(self, failed: set[int]) -> None:
        """Each session has one crawl, and one more for each gateway that it has moved to.

        It has fewer if it never asked there for more than tasks by their ids: these are asked for one by one.
        """
        steady = {self.fleet.name(number) for number in range(REPLICAS) if number not in failed}
        for caller in self.server.callers.values():
            crawls = {name: view.lists for name, view in caller.views.items()}
            assert max(crawls.values()) <= 1, f"{crawls}: {caller}"
            first, *moved = crawls
            assert first not in steady or not moved, f"a session leaves a replica that has not failed: {crawls}"

    async def keep_nothing(self) -> None:
        """Have all replicas read their file anew: `max_age` is 0 from now on."""
        for replica in self.fleet.replicas:
            replica.gateway.reconfigure(replica.settings(**replica.changed | {"index": {**INDEX, "max_age": 0}}))
            replica.gateway.signal(signal.SIGHUP)
        for replica in self.fleet.replicas:
            await logged(replica.gateway, "reloaded")
        self.server.keeps_nothing = True
        for oracle in self.oracles.values():
            oracle.reloaded(replace(oracle.setting, max_age=0))

    async def read_all(self, lane: "Lane", caller: Caller) -> None:
        """Ask for all tasks."""
        await lane.query(caller, Criteria(by_created=True), {"orderBy": "createdAt"})

    def criteria(self, caller: Caller) -> tuple[Criteria, Json]:
        """A random query."""
        rng = self.rng
        one = Criteria(by_created=rng.random() < 0.5, ascending=rng.random() < 0.5)
        given: Json = {
            "order": "asc" if one.ascending else "desc",
            "orderBy": "createdAt" if one.by_created else "lastUpdatedAt",
        }
        kind = rng.randrange(6)
        if kind == 0:
            given["status"] = rng.sample(STATUSES, 2)
            one.status = frozenset(given["status"])
        elif kind == 1:
            given["methods"] = rng.sample(METHODS, rng.randrange(1, 3))
            one.methods = frozenset(given["methods"])
        elif kind == 2 and caller.truths:
            given["taskIds"] = [truth.id for truth in rng.sample(caller.truths, min(2, len(caller.truths)))]
            one.ids = frozenset(given["taskIds"])
        elif kind == 3 and caller.truths:
            one.created = rng.choice(caller.truths).created, None
            given["createdAfter"] = instant(one.created[0] or 0)
        return one, given

    async def all_told(self) -> None:
        """Return once the store has all that it must have. What is there is noted."""
        await self.fleet.serves()

        async def told() -> bool:
            now = self.server.moments.now()
            ids, methods = set[str](), set[str]()
            for value in await self.fleet.store.run("EVAL", _ENTRIES, 0):
                entry = json.loads(value)
                ids.add(entry["id"])
                if entry["method"] is not None:
                    methods.add(entry["id"])
            for task_id in ids:
                told = self.server.told[self.server.by_id[task_id]]
                told.there = told.there or now
                told.method = told.method or (now if task_id in methods else None)
            return ids >= self._must_be_told()

        await eventually(told, "all tasks in the store")

    def _must_be_told(self) -> set[str]:
        """The ids of what gateways knew that were not killed, and the server cannot be asked for."""
        return {
            truth.id
            for caller in self.server.callers.values()
            for name, view in caller.views.items()
            if name not in self.fleet.killed
            for truth in chain(view.methods, () if caller.lists else view.known)
        }


class Said(msgspec.Struct):
    """A response, its result as it came."""

    result: msgspec.Raw = msgspec.Raw(b"null")
    error: Json | None = None

    @property
    def value(self) -> Any:
        """The result."""
        return msgspec.json.decode(self.result)


class Lane:
    """A connection, on which callers take turns."""

    def __init__(self, crowd: Crowd) -> None:
        self._crowd = crowd
        self._fleet = crowd.fleet
        self._moments = crowd.server.moments
        self._client: Client | None = None

    async def __aenter__(self) -> "Lane":
        return self

    async def __aexit__(self, *_: object) -> None:
        self._leave()

    def _leave(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    async def _ask(self, caller: Caller, message: Json) -> Said | None:
        """The response to a message; None if it failed, which only a failing fleet's may."""
        was_failing = self._fleet.is_failing
        caller.begin(self._moments.now())
        try:
            if self._client is None or self._client.transport.is_closing():
                self._client = await Client.connect(self._fleet.balancer.origin + "/mcp")
            status, data = await self._client.exchange(
                dumps(message), Authorization=caller.authorization, Mcp_Session_Id=caller.id
            )
        except (BenchFailed, OSError) as error:
            status, data = 0, str(error).encode()
        if status == 200:
            caller.answered(moving=was_failing or self._fleet.is_failing)
            return msgspec.json.decode(data, type=Said)
        self._leave()
        assert was_failing or self._fleet.is_failing, f"{status} {data!r} for {message}"
        assert status in (0, *FAILURES), f"{status} {data!r} for {message}"
        return None

    async def make(self, caller: Caller) -> None:
        """Make a task."""
        method = self._crowd.rng.choice(METHODS)
        said = await self._ask(caller, call(method, name="work", task={}))
        assert said is None or said.value["task"]["taskId"] == caller.truths[-1].id

    async def cancel(self, caller: Caller, truth: Truth) -> None:
        """Cancel a task."""
        said = await self._ask(caller, call("tasks/cancel", taskId=truth.id))
        assert said is None or said.value["status"] == "cancelled", said

    async def query(self, caller: Caller, criteria: Criteria, given: Json) -> None:
        """Ask for all pages, and judge them."""
        oracle, earlier, after = self._crowd.oracles[caller.lists], set[Truth](), None
        while True:
            deadline = asyncio.get_running_loop().time() + 20
            while (said := await self._ask(caller, call("tasks/list", **given))) is None:
                assert asyncio.get_running_loop().time() < deadline, "not answered in 20 s"
                await asyncio.sleep(POLL_S)
            asked = Asked(caller, criteria, earlier, after)
            oracle.came(asked, caller.came)
            raw = bytes(said.result) if said.error is None else None
            seen = oracle.judge(asked, Outcome(200, self._moments.now(), raw, said.error), caller)
            if seen.cursor is None:
                return
            given, after = {**given, "cursor": seen.cursor}, seen.last


@pytest.fixture
async def crowd(tmp_path: Path) -> AsyncIterator[Crowd]:
    """A fleet that runs, with no sessions yet."""
    asyncio.get_running_loop().set_debug(False)  # costs most of the time
    server, gateways = FleetServer(), Gateways(tmp_path)
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(redis(tmp_path))
        port = await server.start()
        stack.push_async_callback(server.stop)
        replicas = [Replica(gateways, port, *stack.enter_context(ports())) for _ in range(REPLICAS)]
        listen = port_of(stack.enter_context(held_port()))
        fleet = Fleet(server, store, replicas)
        for number, replica in enumerate(replicas):
            stack.callback(replica.close)
            fleet.start(number)
        for replica in replicas:
            await asyncio.to_thread(replica.gateway.wait)
        behind = [replica.ports for replica in replicas]
        fleet.balancer = stack.enter_context(running("haproxy", tmp_path, listen, behind))
        await asyncio.to_thread(fleet.balancer.wait)
        await fleet.serves()
        yield Crowd(fleet)
        for replica in replicas:
            replica.gateway.signal(signal.SIGTERM)
        for replica in replicas:
            await replica.gateway.exits()


async def test_a_fleet_answers_like_one_gateway_while_its_parts_fail(crowd: Crowd) -> None:
    fleet, store, server = crowd.fleet, crowd.fleet.store, crowd.server
    await crowd.open()
    await crowd.each(crowd.live)
    await crowd.all_told()
    await crowd.during(lambda: fleet.lose(0, signal.SIGKILL), lambda: fleet.restart(0))
    await crowd.each(crowd.live)
    await crowd.all_told()

    async def lose_store() -> None:
        store.kill()
        server.forget_told()

    await crowd.during(lose_store)
    store.start()
    await crowd.all_told()
    await crowd.during(lambda: fleet.lose(1, signal.SIGTERM), lambda: fleet.restart(1))
    await crowd.each(crowd.live)
    await crowd.all_told()
    assert not server.wrong
    crowd.check_crawls({0, 1})
    await crowd.keep_nothing()
    await crowd.each(crowd.read_all)
    assert not server.wrong
