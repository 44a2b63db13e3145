"""Plays a history: the real gateway, listener and pool included, between clients and an upstream on the virtual loop.

After the events come three queries for everything: at once; when everything must be known; and once more, which may
cost nothing.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from msgspec.structs import replace

import gateway
from gateway import config
from gateway.app import App
from gateway.tasks.lifecycle_counts import UNNAMED_S, Lives
from tests.model import history as h
from tests.model.client import GATEWAY_PORT, Client
from tests.model.oracle import Oracle
from tests.model.seen import judge
from tests.model.truth import Moments, Truth, Violation
from tests.model.upstream import HANG_S, PORT, READ_BYTES_MAX, Upstream
from tests.model.virtual import START_S, TICK_S, WIRE_S, Deadlock, VirtualLoop

_LONG_AGO_S: Final = 5000.0  # that the tasks of a setting were made before the history begins
_LATE_S: Final = 5.0  # until a notification that is late, behind a line that has stalled, has come
_PATIENCE_S: Final = 4000.0  # for what is under way when the events are over
_BASE: Final = config.for_upstream(f"http://127.0.0.1:{PORT}/mcp", f"127.0.0.1:{GATEWAY_PORT}", None)
_OF_HISTORIES: Final = ("the upstream is down", "each request is another caller", "a caller cannot be told apart")
_GATEWAY: Final = str(Path(gateway.__file__).parent)

DRAWN: Final = Counter[tuple[str, str]]()
"""How often each odd server, odd event and fault was met in the histories that were played."""

Notes = list[tuple[float, str, tuple[Any, ...]]]


def play(history: h.History, world: "type[World] | None" = None) -> None:
    """Play a history, over HTTP if no other world is given. Raises Violation."""
    loop = VirtualLoop()
    log = _Log()
    logger = logging.getLogger("taskgate")
    logger.addHandler(log)
    notes: Notes = []
    try:
        with (
            patch("time.time", loop.unix_time),
            patch("gateway.operate.log_format.set_up", lambda _: None),
            patch("gateway.upstream.upstream_set.uniform", max),  # a history is to be the same each time
        ):
            try:
                loop.run_until_complete(_play(history, loop, notes, world or World))
            except Deadlock:
                raise Violation("unanswered", "everything waits, and nothing will ever happen") from None
            finally:
                _close(loop)
        if log.records or loop.unhandled:
            raise Violation("unhandled", f"{log.records} {loop.unhandled}")
    except Violation as violation:
        story = "\n".join(f"{time - START_S:10.6f}  {text.format(*values)}" for time, text, values in notes)
        raise Violation(violation.rule, f"{violation.what}\n\n{history}\n\n{story}") from None
    finally:
        logger.removeHandler(log)


def _close(loop: VirtualLoop) -> None:
    """End the work that a violation left under way."""
    while left := asyncio.all_tasks(loop):
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.sleep(1))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


async def _play(history: h.History, loop: VirtualLoop, notes: Notes, world: "type[World]") -> None:
    played = world(history.setting, loop, notes)
    try:
        await played.run(history.events)
    finally:
        DRAWN.update(played.met(history))


def _is_gateways(task: "asyncio.Task[Any]") -> bool:
    code = getattr(task.get_coro(), "cr_code", None)
    return code is not None and code.co_filename.startswith(_GATEWAY)


class _Log(logging.Handler):
    """What the gateway logs that no upstream or client can be blamed for."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        # What a history did to the store, or to the upstream, or a server that renews its cookie again and again.
        if record.name != "taskgate.store" and record.getMessage() not in _OF_HISTORIES:
            self.records.append(logging.Formatter().format(record))


def config_of(setting: h.Setting, place: int = 0) -> config.Config:
    """The configuration, with the server of that place."""
    index = config.IndexLimits(
        page_size=setting.page_size,
        page_bytes_max=setting.page_bytes_max,
        max_age=setting.max_age * TICK_S,
        full_crawl_interval=setting.full_crawl_interval * TICK_S,
        tasks_max=setting.tasks_max,
        sessions_max=setting.sessions_max,
        memory_bytes_max=setting.memory_bytes_max,
        idle_timeout=setting.idle_timeout * TICK_S,
    )
    limits = config.Limits(inspected_body_bytes_max=READ_BYTES_MAX, inspected_event_bytes_max=READ_BYTES_MAX)
    guards = config.GuardLimits(own_tasks=setting.owns)
    upstreams = tuple(replace(of, url=replace(of.url, port=PORT + place)) for of in _BASE.upstreams)
    return replace(_BASE, admin=None, index=index, limits=limits, guards=guards, upstreams=upstreams)


class World:
    """The parts of one history, over HTTP."""

    client: type[Client] = Client
    oracle: type[Oracle] = Oracle

    @classmethod
    def drawn(cls, seed: int) -> h.History:
        return h.drawn(seed)

    @classmethod
    def can_play(cls, history: h.History) -> bool:
        return True

    def __init__(self, setting: h.Setting, loop: VirtualLoop, notes: Notes) -> None:
        self._setting = setting
        self._loop = loop
        self._notes = notes
        self._failed: asyncio.Future[None] = loop.create_future()
        self._under_way: set[asyncio.Task[None]] = set()
        moments = Moments(loop)
        self._upstream = Upstream(setting, loop, moments, self._note, self._fail)
        self._oracle = self.oracle(setting, self._upstream)
        self._clients = [
            self.client(number, setting, self._upstream, self._oracle, moments, self._note, self._spawn)
            for number in (0, 1)
        ]
        self._app: App
        self._lives: Lives | None = None  # if they are judged
        self._old: set[Truth] = set()  # tasks that had ended before all

    def met(self, history: h.History) -> Counter[tuple[str, str]]:
        """What was odd in the history, and what has gone wrong with whose request."""
        odd = {name: value for name in h.ODD_SETTINGS if (value := getattr(history.setting, name))}
        events = [str(replace(e, s=0)) for e in history.events if isinstance(e, h.Other | h.Log | h.Renew)]
        events += [type(e).__name__ for e in history.events if isinstance(e, h.Move | h.Nobody)]
        return self._upstream.met + Counter(
            [*((f"{n} {v}", "a server") for n, v in odd.items()), *((e, "") for e in events)]
        )

    async def start(self) -> None:
        await self._loop.create_server(self._upstream.connection, port=PORT)
        self._app = App(config_of(self._setting))
        self._lives = self._app.metrics.lives
        assert self._lives is not None
        self._lives._clock, self._lives.unix_time = self._loop.time, self._loop.unix_time
        await self._app.start()

    async def stop(self) -> None:
        """End it."""
        await self._app.stop()

    def _note(self, text: str, *values: object) -> None:
        self._notes.append((self._loop.time(), text, values))

    def _fail(self, error: Exception) -> None:
        if not self._failed.done():
            self._failed.set_exception(error)

    async def run(self, events: tuple[h.Event, ...]) -> None:
        """Play the events. Raises Violation."""
        await self.start()
        script = self._loop.create_task(self._play(events))
        await asyncio.wait({script, self._failed}, return_when=asyncio.FIRST_COMPLETED)
        if self._failed.done():
            self._failed.result()
        script.result()
        for client in self._clients:
            client.hang_up()
        await asyncio.sleep(1)
        await self.stop()
        await asyncio.sleep(1)
        if left := [task for task in asyncio.all_tasks() if _is_gateways(task)]:
            raise Violation("unanswered", f"still under way after all is closed: {left}")

    async def _play(self, events: tuple[h.Event, ...]) -> None:
        for client in self._clients:
            await client.initialize()
            if self._setting.listening:
                client.toggle_stream()
        self._populate()
        for event in events:
            self._note("{}", event)
            await self._happen(event)
        await self._settle()
        await self._read_all()
        await asyncio.sleep((max(self._setting.max_age, self._setting.full_crawl_interval) + 1) * TICK_S)
        await self._read_all()
        await self._read_all()
        if self._lives is not None:
            await asyncio.sleep(UNNAMED_S + _LATE_S)
            self._lives.sweep()
            truths = {truth: None for session in self._upstream.sessions.values() for truth in session.truths}
            judge(self._lives, truths, self._old, self._loop.time())

    def _populate(self) -> None:
        session = self._clients[0].session
        for number, letter in enumerate(self._setting.tasks):
            ago_s = _LONG_AGO_S - number
            truth = self._upstream.create(session, h.METHODS[number % self._setting.methods], ago_s=ago_s)
            status = next((s for s in h.STATUSES if s.startswith(letter)), "cancelled")
            if status != "working":
                self._upstream.update(session, truth, status, ago_s - 0.5)
            if not truth.is_live:
                self._old.add(truth)

    async def _read_all(self) -> None:
        self._note("everything is asked for")
        for s in (0, 1):
            self._spawn(self._clients[s].act(h.Query(s, pages=50)))
        await self._settle()

    async def _settle(self) -> None:
        """Wait until nothing is under way."""
        self._upstream.faults.clear()
        if self._under_way:
            _, late = await asyncio.wait(set(self._under_way), timeout=_PATIENCE_S + HANG_S)
            if late:
                raise Violation("unanswered", f"{late} after {_PATIENCE_S:g} s")

    async def _happen(self, event: h.Event) -> None:
        match event:
            case h.Wait():
                await asyncio.sleep(event.ticks * TICK_S)
            case h.Blink():
                await asyncio.sleep(event.count * WIRE_S)
            case h.Hangup():
                for connection in [c for c in self._upstream.connections if c.is_idle]:
                    connection.close()
            case h.Fault():
                self._upstream.faults.append((self._clients[event.s].session, event))
            case h.Clock():
                self._upstream.set_clock(event.by_s)
            case h.Stream():
                self._clients[event.s].toggle_stream()
            case h.Create(elsewhere=True):
                session = self._clients[event.s].session
                self._upstream.create(session, h.METHODS[event.method % self._setting.methods], event.ttl)
            case h.Update():
                self._update(event)
            case h.Delete():
                session = self._clients[event.s].session
                if truth := session.pick(event.which, list(session.alive())):
                    self._upstream.remove(truth, "deleted")
            case h.Restart(by_client=False):
                self._upstream.end(self._clients[event.s].session)
            case h.Reload():
                changed = {name: getattr(event, name) for name in event.__struct_fields__}
                self._setting = h.sensible(replace(self._setting, **changed))
                await self._reload()
            case h.Move():
                await self._move()
            case h.Switch() | h.Replace() | h.Store() | h.Log():
                pass  # only a fleet has replicas and a store, only a process an output
            case _:
                self._spawn(self._clients[event.s].act(event))

    async def _move(self) -> None:
        """The gateway goes to another server, and clients go on there."""
        place = self._upstream.place + 1
        await self._loop.create_server(partial(self._upstream.connection, place), port=PORT + place)
        await self._reload(self._upstream.move)
        for client in self._clients:
            client.session = self._upstream.stand_in(client.session)

    async def _reload(self, before: Callable[[], None] = lambda: None) -> None:
        await asyncio.sleep(WIRE_S / 4)  # when nothing arrives
        before()
        self._take_over()
        self._oracle.reloaded(self._setting)
        for session in self._upstream.sessions.values():
            session.disturb(self._loop.time())
        await asyncio.sleep(WIRE_S * 3 / 4)

    def _take_over(self) -> None:
        self._app.reload(lambda _: config_of(self._setting, self._upstream.place))

    def _update(self, event: h.Update) -> None:
        session = self._clients[event.s].session
        truth = session.pick(event.which, [t for t in session.truths if t.is_live])
        if truth is None:
            return
        state = self._upstream.update(session, truth, h.STATUSES[event.status])
        if event.notify and event.late:
            self._loop.call_later(event.late * TICK_S, self._upstream.notify, session, state, event.lie_s)
        elif event.notify:
            self._upstream.notify(session, state, event.lie_s)

    def _spawn(self, work: Coroutine[Any, Any, object]) -> None:
        async def run() -> None:
            try:
                await work
            except Exception as error:
                self._fail(error)

        task = self._loop.create_task(run())
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)


class RaceWorld(World):
    @classmethod
    def drawn(cls, seed: int) -> h.History:
        return h.raced(seed)
