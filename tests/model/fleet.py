"""The model with two replicas and a store: the same histories and upstream; only Redis is `resp.py`.

The promise of a fleet (DESIGN 12): an answer reflects every state from not longer than `max_age` ago, as that of one
gateway does. What passed through any replica counts `max_age` later, if the store has served all the time. A batch
takes its time, which matters where `max_age` is shorter. 2 s after the store serves again it has everything that the
replicas know: one that has not heard of a task forgets that it is gone. While it fails, nothing that passed elsewhere
counts. While it serves, a refusal makes only the queries forget that are under way at that replica. What is asked
twice, or in vain, is not judged: each replica asks alone.
"""

import random
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from gateway.app import App
from gateway.config import Address, StoreSettings
from tests.model import history as h
from tests.model.client import GATEWAY_PORT
from tests.model.oracle import Asked, Oracle
from tests.model.play import World, config_of
from tests.model.resp import STORE_PORT, Redis
from tests.model.truth import ABSENT, BEFORE_ALL, GONE, Moment, ServerSession, State, Truth
from tests.model.upstream import Own, Upstream
from tests.model.virtual import TICK_S, WIRE_S

REPLICAS: Final = 2
_TOLD_S: Final = 0.02 + 16 * WIRE_S  # until what passed is in the store
_BACK_S: Final = 2.0  # until a store that is back has everything
_STATES: Final = ("stopped", "killed", "wiped", "full")


def as_fleet(history: h.History, seed: int) -> h.History:
    """The history in a fleet: clients go from replica to replica, replicas are replaced, the store fails."""
    rng = random.Random(-seed)
    changed = h.ROOMY | {"ids_again": None, "renews": False, "owns": False}
    setting = replace(history.setting, **changed, full_crawl_interval=min(history.setting.full_crawl_interval, 640))
    events: list[h.Event] = []
    for event in history.events:
        if isinstance(event, h.Flood | h.Renew | h.Move | h.Nobody):
            continue
        if isinstance(event, h.Reload):
            event = replace(event, tasks_max=setting.tasks_max)
        events.append(event)
        if rng.random() < 0.3:
            events.append(h.Switch(rng.randrange(2)))
        if rng.random() < 0.05:
            events += [h.Store(rng.choice(_STATES)), h.Wait(rng.choice((1, 16, 64, 200)))]
        if rng.random() < 0.1:
            events += [h.Store("well"), h.Wait(rng.choice((1, 64, 200, 200)))]
        if rng.random() < 0.03:
            events.append(h.Replace(rng.randrange(REPLICAS)))
    return h.History(setting, tuple(events))


class FleetOracle(Oracle):
    hears_all = False  # replicas do not tell each other of it before the server has shown the task
    redis: Redis

    def __init__(self, setting: h.Setting, upstream: Upstream) -> None:
        super().__init__(setting, upstream)
        self.replaced: dict[int, Moment] = {}  # the ports of replicas, and when these began
        self.finds_again = False  # each replica knows what it has seen itself

    def denied(self, truth: Truth, at: Moment, session: ServerSession, port: int, is_read: bool) -> None:
        """What it cannot read no replica tells; what it has not heard of it tells once, if the store serves."""
        serves = self.redis.state == "well" and at.time >= self.redis.well_since + _BACK_S
        if is_read and (serves or self._has_heard(port, truth, session, at)):
            super().denied(truth, at, session, port, is_read)

    def knew(self, asked: Asked) -> Moment:
        max_age_s = asked.setting.max_age * TICK_S
        now, since = asked.came.time, self.redis.well_since
        if self.redis.state != "well" or now < since + _BACK_S + max_age_s / 2:
            return BEFORE_ALL
        return Moment(now - max(max_age_s, max_age_s / 2 + _TOLD_S), 0)

    def learn(self, truth: Truth, number: int, at: Moment, session: ServerSession) -> None:
        """A replica that has never heard of a task does not know that it is gone, and tells nobody (DESIGN 6.2)."""
        if number != GONE:
            super().learn(truth, number, at, session)

    @property
    def hidden_after_s(self) -> float:
        """Another replica has not seen the refusal, and need not ask meanwhile (DESIGN 12.1)."""
        return max(self.setting.max_age, self.setting.full_crawl_interval) * TICK_S

    def _options(self, asked: Asked, at: Moment, truth: Truth, oldest: float) -> list[State | int]:
        """A task may slip past what a replica reads. Replicas do not tell each other of listed tasks (DESIGN 12.1)."""
        options = super()._options(asked, at, truth, oldest)
        return [ABSENT, *options] if ABSENT not in options and self._has_slipped(asked, truth) else options

    def _may_repeat(self, asked: Asked, truth: Truth, state: State) -> bool:
        """Another replica may still know a task where it was before it moved."""
        moved = not asked.criteria.by_created and state is not truth.states[-1]
        return moved or super()._may_repeat(asked, truth, state)

    def _has_slipped(self, asked: Asked, truth: Truth) -> bool:
        """Whether a task may be unknown to a replica: as that read pages, it moved, or others ahead of it went.

        What was made at one, and answered, all know from the store, if that has served since.
        """
        told_from = Moment(self.redis.well_since, 0)
        told = truth.answered is not None and told_from < truth.answered[0] < self.knew(asked)
        if told or self._has_heard(asked.port, truth, asked.session, asked.came):
            return False
        moved = [state.since for state in truth.states] if self.setting.order == "updated" else []
        if by_offset := self.setting.cursors == "offset":
            moved += [other.gone for other in asked.session.truths if other.gone is not None]
        oldest_s = asked.came.time - max(self._interval_s, asked.setting.max_age * TICK_S)
        readings: defaultdict[str, list[Moment]] = defaultdict(list)
        for own in self._own_of(asked.port, truth, asked.session):
            readings[own.crawl].append(own.read)
        pages = [reads for reads in readings.values() if reads[-1].time >= oldest_s]
        has_moved = any(reads[0] < at < reads[-1] for reads in pages for at in moved)
        return has_moved or (by_offset and truth.born.time >= oldest_s)

    def _has_heard(self, port: int, truth: Truth, session: ServerSession, by: Moment) -> bool:
        """Whether an answer to a replica had shown it a task by then."""
        answered = (own for own in self._own_of(port, truth, session) if own.ended is not None and own.ended < by)
        return any(truth in own.shown for own in answered)

    def _own_of(self, port: int, truth: Truth, session: ServerSession) -> Iterator[Own]:
        """The requests of a replica since a task was made, and the replica was there."""
        since = max(truth.born, self.replaced.get(port, BEFORE_ALL))
        return (own for own in self._upstream.own if own.session is session and own.by == port and own.at > since)

    def _check_cost(self, asked: Asked, at: Moment) -> None:
        """Not judged."""


class FleetWorld(World):
    oracle = FleetOracle
    _oracle: FleetOracle
    _has_replaced = False

    @classmethod
    def drawn(cls, seed: int) -> h.History:
        """The history of a seed in a fleet. Every second server has a list that omits all tasks."""
        drawn = super().drawn(seed)
        setting = replace(drawn.setting, order="nothing", max_age=64) if seed % 2 else drawn.setting
        return as_fleet(h.History(h.sensible(setting), drawn.events), seed)

    async def start(self) -> None:
        self._redis = self._oracle.redis = Redis(self._loop)
        self._redis.state = ""
        await self._redis.become("well")
        self._upstream.asks_once = False
        await self._loop.create_server(self._upstream.connection, port=3001)
        self._apps = [await self._replica(number) for number in range(REPLICAS)]

    async def _replica(self, number: int) -> App:
        config = replace(
            config_of(self._setting),
            listen=Address("127.0.0.1", GATEWAY_PORT + number),
            store=StoreSettings(url=f"redis://127.0.0.1:{STORE_PORT}"),
        )
        app = App(config)
        await app.start()
        return app

    async def stop(self) -> None:
        """End all."""
        for app in self._apps:
            await app.stop()

    def _take_over(self) -> None:
        for app in self._apps:
            app.reload(lambda old: replace(config_of(self._setting), listen=old.listen, store=old.store))

    async def _happen(self, event: h.Event) -> None:
        match event:
            case h.Switch():
                client = self._clients[event.s]
                client.port = GATEWAY_PORT + (client.port + 1 - GATEWAY_PORT) % REPLICAS
            case h.Store():
                # What only the store knows, because its replica has gone, is lost with what the store holds.
                await self._redis.become("killed" if event.state == "wiped" and self._has_replaced else event.state)
            case h.Replace():
                await self._replace(event.which)
            case _:
                await super()._happen(event)

    async def _replace(self, which: int) -> None:
        """A replica hands over, if there is a store to hand over to."""
        await self._settle()
        if self._redis.state == "well" and self._loop.time() > self._redis.well_since + _BACK_S:
            self._has_replaced = True
            await self._apps[which].stop()
            self._apps[which] = await self._replica(which)
            self._oracle.replaced[GATEWAY_PORT + which] = self._upstream.moments.now()

    async def _read_all(self) -> None:
        """At each replica, with a store that has had the time to learn everything."""
        if self._redis.state != "well":
            await self._redis.become("well")
        for client in self._clients * REPLICAS:
            await self._happen(h.Switch(self._clients.index(client)))
            await super()._read_all()
