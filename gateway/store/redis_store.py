"""The store in Redis or Valkey: one connection, and a loop that carries what waits over it, batch by batch.

In: what this replica tells, and its questions. Out: answers, within a bound. Always: nobody waits for what is written,
and a question is answered within `timeout`, by None if need be. While the store is down, questions get None at once.
Nothing is lost by a failure: whenever the store takes something in again, this replica tells everything that it knows.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from enum import Enum
from hashlib import blake2b
from typing import Final

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from gateway import config
from gateway.identity import Key
from gateway.store.waiting import READ_AT_ONCE, Waiting
from gateway.tasks.ports import Read

log = logging.getLogger("taskgate.store")

_DIAL_S: Final = 1.0  # for a new connection to be ready
_PAUSE_S: Final = 0.5  # until the next one is tried
_ANSWER_S: Final = 1.0  # for the answers to one batch
_BEAT_S: Final = 0.5  # a connection that is quiet is tried
_LINGER_S: Final = 0.02  # until what is written goes out, so that it goes out together
_WAITING_MAX: Final = 20_000  # values and entries; of more, all is told again
_CLOSE_S: Final = 1.0  # for all that waits to go out at the end
_TELL_S: Final = 1.0  # until everything is told again to a store that has refused something
_END: Final = object()


class StoreState(Enum):
    """The state of the store, as this replica sees it. Only `RedisStore` changes it.

                a connection   a batch is   a write is   no connection,
                is ready       carried      refused      no answer
    DOWN        READS          -            -            DOWN
    READS       -              READS        READS        DOWN
    UP          -              UP           READS        DOWN

    From READS it becomes UP once everything was told, and nothing of it was refused.
    """

    DOWN = "down"
    UP = "up"
    READS = "reads"  # it answers, and takes nothing in


class RedisStore:
    """A store in Redis, as `tasks/ports.py` describes one."""

    def __init__(self, settings: config.StoreSettings, failed: Callable[[str], None]) -> None:
        """`failed` counts a failure: unreachable (or slow), refused."""
        self.state = StoreState.DOWN
        self._timeout_s = settings.timeout
        self._url = settings.url
        self._failed = failed
        self._waiting = Waiting()
        self._wake = asyncio.Event()
        self._lingering: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._out_since: float | None = None  # when the batch under way was sent
        self._servers: dict[str, bytes] = {}
        self._value_ms = self._entries_ms = 0
        self._stopping = False
        self._tells = False  # everything is being told
        self._must_tell = True  # something was not told
        self._tried = asyncio.Event()
        self._told: StoreState | None = None  # the state that the log tells of
        self._running: asyncio.Task[None] | None = None

    # ---- for the replica ----

    @property
    def is_up(self) -> bool:
        """Whether it answers, and has taken in all that this replica told."""
        return self.state is StoreState.UP

    def serves(self, upstreams: Iterable[config.Upstream], server_s: float, entries_s: float) -> None:
        """The upstreams from now on; how long a session's value, and its entries, are kept when it is not used."""
        # A name may mean another server elsewhere, or after a reload.
        self._servers = {u.name: f"{u.name} {u.url} {u.socket}".encode() for u in upstreams}
        self._value_ms, self._entries_ms = int(server_s * 1000), int(entries_s * 1000)

    def put(self, key: Key, server: bytes) -> None:
        """Keep the value of a session, as `tasks/ports.py` has it."""
        self._waiting.put(self._name("server", *key.of_all), server)
        self._write()

    def add(self, key: Key, new: Iterable[bytes], old: Iterable[bytes] = ()) -> None:
        """Add entries, as `tasks/ports.py` has it."""
        self._waiting.add(self._name("tasks", *key), list(new), list(old))
        self._write()

    def drop(self, key: Key) -> None:
        """Forget all entries."""
        self._waiting.drop(self._name("tasks", *key))
        self._write()

    async def read(self, key: Key, after: int) -> Read | None:
        """What the store has of a session; None if it does not say so within `timeout`, or has failed to of late."""
        late = self._out_since is not None and self._loop.time() - self._out_since >= self._timeout_s
        if self.state is StoreState.DOWN or late:
            return None
        names = self._name("server", *key.of_all), self._name("tasks", *key)
        found: Read | None = None
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timeout_s):
                while True:
                    asked = self._waiting.ask(*names, after)
                    self._wake.set()
                    part = await asyncio.shield(asked)
                    if part is None:
                        break
                    found = part if found is None else Read(part.server, found.tasks + part.tasks, part.place)
                    if len(part.tasks) < READ_AT_ONCE:
                        break
                    after = part.place
        return found

    def _name(self, kind: str, upstream: str, *parts: bytes) -> str:
        """The name of a key: a digest, because nobody who reads the store should learn whose it is."""
        digest = blake2b(digest_size=16)
        for part in (self._servers[upstream], *parts):
            digest.update(b"%d:%b" % (len(part), part))
        return f"taskgate:{digest.hexdigest()}:{kind}"

    def _write(self) -> None:
        """What waits goes out soon. While the store takes nothing in, it is forgotten: all will be told again."""
        if not (self._tells or self.state is StoreState.UP) or self._waiting.size > _WAITING_MAX:
            self._waiting.forget_writes()
            self._must_tell = True
        elif self._lingering is None:
            self._lingering = self._loop.call_later(_LINGER_S, self._wake.set)

    # ---- the loop ----

    async def start(self, tell_all: Callable[[], Iterator[None]]) -> None:
        """Connect, and stay connected; return when the first attempt has ended, well or not.

        `tell_all` tells everything that this replica knows, piece by piece.
        """
        self._running = asyncio.create_task(self._run(tell_all))
        await self._tried.wait()

    async def stop(self) -> None:
        """Send what waits, for a bounded time, and end."""
        self._stopping = True
        self._wake.set()
        if self._running is not None:
            await asyncio.wait({self._running}, timeout=_CLOSE_S)
            self._running.cancel()
            await asyncio.wait({self._running})

    async def _run(self, tell_all: Callable[[], Iterator[None]]) -> None:
        while not self._stopping:
            # A step that failed is never repeated in place, and all its time is bounded here.
            client = Redis.from_url(
                self._url, protocol=2, driver_info=None, retry=Retry(NoBackoff(), 0), socket_timeout=None
            )
            try:
                async with asyncio.timeout(_DIAL_S):
                    await client.ping()
                await self._serve(client, tell_all)
            except Exception as error:  # there are many kinds, and the loop must go on after each of them
                self._fail(error)
            finally:
                with suppress(Exception):
                    async with asyncio.timeout(_DIAL_S):
                        await client.aclose()
            if not self._stopping:
                self._wake.clear()  # what was set while the store was down would end the pause at once
                await self._news(_PAUSE_S)

    async def _serve(self, client: Redis, tell_all: Callable[[], Iterator[None]]) -> None:
        """Carry batches until the connection fails, or all is done at the end. Raises."""
        telling: Iterator[None] | None = tell_all()
        self._become(StoreState.READS)
        self._tried.set()
        tell_at = 0.0
        while telling is not None or self._waiting or not self._stopping:
            self._tells = telling is not None
            told_all = telling is not None and next(telling, _END) is _END
            if telling is None and not self._waiting:
                await self._news(_BEAT_S)
            refused = await self._carry(client)
            if refused:
                self._become(StoreState.READS, str(refused[0]))
                telling, tell_at = None, self._loop.time() + _TELL_S
            elif told_all:
                telling = None
                self._become(StoreState.UP)
            elif telling is None and self._must_tell and self._loop.time() >= tell_at:
                telling, self._must_tell = tell_all(), False

    async def _news(self, within_s: float) -> None:
        """Wait until something waits, but not longer than that."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._wake.wait()

    async def _carry(self, client: Redis) -> list[RedisError]:
        """Carry what waits to the store, and the answers back. Returns why something was refused. Raises."""
        batch, self._waiting = self._waiting, Waiting()
        self._wake.clear()
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None
        pipe = client.pipeline(transaction=False)
        batch.write_to(pipe, self._value_ms, self._entries_ms)
        self._out_since = self._loop.time()
        try:
            async with asyncio.timeout(_ANSWER_S):
                return batch.answer(await pipe.execute(raise_on_error=False))
        finally:
            self._out_since = None
            batch.give_up()

    def _fail(self, error: Exception) -> None:
        slow = isinstance(error, TimeoutError)
        self._become(StoreState.DOWN, "no answer in time" if slow else str(error) or type(error).__name__)
        self._tried.set()

    def _become(self, state: StoreState, why: str = "") -> None:
        """Take a state, and tell the operator of a change: `why` the store fails, empty if it does not."""
        self.state = state
        self._must_tell = state is not StoreState.UP
        self._tells = False
        if state is StoreState.DOWN:
            self._waiting.give_up()
            self._waiting = Waiting()
        if why:
            self._failed("unreachable" if state is StoreState.DOWN else "refused")
        told = state if why or state is StoreState.UP else self._told
        if told is not self._told:
            self._told = told
            if why:
                log.warning("the store fails, and the gateway works without it", extra={"why": why})
            else:
                log.info("the store serves")
