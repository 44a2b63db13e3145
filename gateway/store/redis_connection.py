"""The loop that carries what waits to the store, batch by batch, and the answers back; and the state of the store.

In: what waits, and a way to tell everything anew. Out: answers, and the state. Always: one connection, and one batch
under way. Nothing is lost by a failure: with each connection, and whenever the store has forgotten or refused
something, this replica tells everything that it knows.

A connection that has ended is never replaced unseen: what the store has forgotten meanwhile would not be told again.
One key is a mark, the same for all replicas. Each batch reads it: a store whose mark has changed was emptied.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from enum import Enum
from time import time
from typing import Any, Final
from uuid import uuid4

from redis.asyncio.connection import Connection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AskError, ClusterDownError, ResponseError

from gateway import config
from gateway.store.redis_command_queue import REPLACED, Batch, Command, Ending, Owed, is_of_replica

log = logging.getLogger("taskgate.store")

_DIAL_S: Final = 1.0  # for a new connection to be ready, and for an old one to close
_PAUSE_S: Final = 0.5  # until the next connection is tried; doubled each time until the store serves
_PAUSE_MAX_S: Final = 2.0
_ANSWER_S: Final = 1.0  # for the answers to one batch
_BEAT_S: Final = 0.5  # a connection that is quiet is tried
_LINGER_S: Final = 0.02  # until what is written goes out, so that it goes out together
_TOGETHER: Final = 2000  # values and entries in a batch, while everything is told
_WAITING_MAX: Final = 20_000  # values and entries; if more wait, everything is told again
_CLOSE_S: Final = 1.0  # for all that waits to go out at the end
_AGAIN_S: Final = 1.0  # until everything is told again to a store that has refused something
_LATE_MAX: Final = 3  # questions in a row without an answer in time: the store is slow
_MARK: Final = "taskgate:mark"
_MARK_BYTES: Final = 32
_NO_MARK: Final = b"-"
_END: Final = object()


async def exchange(connection: Any, commands: list[Command]) -> list[Any]:
    """The answers to these commands; some may be a ResponseError. Raises what redis-py raises, and repeats nothing."""
    await connection.send_packed_command(connection.pack_commands(commands))
    results: list[Any] = []
    for _ in commands:
        try:
            results.append(await connection.read_response())
        except ResponseError as error:
            results.append(error)
    return results


@asynccontextmanager
async def connect(url: str) -> AsyncIterator[Any]:
    """A new connection to a primary, for as long as the context lasts. Raises what redis-py raises.

    ConnectionError: the server takes in nothing, for good. It is a replica, or no store at all.
    """
    given: dict[str, Any] = dict(parse_url(url))
    kind = given.pop("connection_class", Connection)
    connection = kind(protocol=2, driver_info=None, retry=Retry(NoBackoff(), 0), socket_timeout=None, **given)
    try:
        async with asyncio.timeout(_DIAL_S):
            await connection.connect()
            [said] = await exchange(connection, [("HELLO", 2)])
        # Who does not answer it may be a primary.
        told = {} if isinstance(said, ResponseError) else dict(zip(said[::2], said[1::2], strict=False))
        if told.get(b"mode") == b"sentinel":
            raise ConnectionError("it is a Sentinel: store.url must name the primary")
        if told.get(b"role") not in (b"master", b"primary", None):
            raise ConnectionError("it is a replica: store.url must name the primary")
        yield connection
    finally:
        with suppress(Exception):
            async with asyncio.timeout(_DIAL_S):
                await connection.disconnect()


class StoreState(Enum):
    """The state of the store, as this replica sees it. Only `Pipeline` changes it.

                a connection  everything  something     a write     some answers  an answer  no connection,
                is ready      is told     was not told  is refused  are late      is quick   no answer
    DOWN        TELLING       -           DOWN          -           -             -          DOWN
    TELLING     -             UP          TELLING       REFUSED     SLOW          TELLING    DOWN
    UP          -             -           TELLING       REFUSED     SLOW          UP         DOWN
    SLOW        -             SLOW        SLOW          REFUSED     SLOW          TELLING    DOWN
    REFUSED     -             -           TELLING       REFUSED     REFUSED       REFUSED    DOWN

    Not told, or forgotten: too much waited, the store was emptied, a reload has changed keys or how long they are kept.
    Behind a refusal everything is told anew, and not before a second is over.
    """

    DOWN = "down"
    TELLING = "telling"  # it takes in what was told before
    UP = "up"  # it has all that this replica has told
    SLOW = "slow"  # it takes in what it is told, and answers too late: no query waits for it
    REFUSED = "refused"  # it answers, and takes nothing in


class Pipeline:
    def __init__(self, settings: config.StoreSettings, failed: Callable[[str], None]) -> None:
        """`failed` counts a failure: unreachable, slow, refused."""
        self.state = StoreState.DOWN
        self.epoch = 0  # one more with each connection, and whenever the store was emptied
        self.losses = 0  # one more whenever what was to be written may be lost
        self.waiting = Batch()
        self._timeout_s = settings.timeout
        self._pause_s = _PAUSE_S
        self._url = settings.url
        self.value_ms = self.entries_ms = 0  # how long the value and the entries of an unused session are kept
        self._failed = failed
        self._owed = Owed()
        self._wake = asyncio.Event()
        self._lingering: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._out_since: float | None = None  # when the batch under way was sent
        self._late = 0  # questions without an answer in time, since the last quick batch
        self._stopping = False
        self._tell_all: Callable[[], Iterator[None]] = lambda: iter(())
        self._telling: Iterator[None] | None = None  # what is left to tell
        self._lacks = True  # something was not told, or was forgotten: everything is to be told anew
        self._again_at = 0.0  # when a store that refuses is told again
        self._mark: bytes | None = None  # None: not known yet
        self._tried = asyncio.Event()
        self.since, self.why = 0.0, ""  # it fails, in seconds since 1970, and in words
        self._logged: StoreState | None = None  # the state that the log tells of
        self._running: asyncio.Task[None] | None = None

    # ---- what waits ----

    @property
    def answers_late(self) -> bool:
        """Whether a question would get no answer in time."""
        late = self._out_since is not None and self._loop.time() - self._out_since >= self._timeout_s
        return late or self._late >= _LATE_MAX or self.state in (StoreState.DOWN, StoreState.SLOW)

    def soon(self) -> None:
        """What waits goes out soon. While the store takes nothing in, writes are forgotten: all will be told again."""
        if self.state in (StoreState.DOWN, StoreState.REFUSED) or self.waiting.size > _WAITING_MAX:
            self._owe(self.waiting.forget_writes())
        elif self._lingering is None:
            self._lingering = self._loop.call_later(_LINGER_S, self._wake.set)

    def now(self) -> None:
        """What waits goes out as soon as the batch under way is back."""
        self._wake.set()

    def _owe(self, ends: Iterable[Ending]) -> None:
        """What was to be written is lost. Everything is told again, and these ends before it."""
        self._lacks, self.losses = True, self.losses + 1
        self._owed.keep(ends)

    # ---- the loop ----

    async def start(self, tell_all: Callable[[], Iterator[None]]) -> None:
        """Connect, and stay connected; return when the first attempt has ended, well or not.

        `tell_all` tells everything that this replica knows, piece by piece.
        """
        self._tell_all = tell_all
        self._running = asyncio.create_task(self._run())
        await self._tried.wait()

    async def stop(self) -> None:
        """Send what waits, for a bounded time, and end."""
        self._stopping = True
        self._wake.set()
        if self._running is not None:
            await asyncio.wait({self._running}, timeout=_CLOSE_S)
            self._running.cancel()
            await asyncio.wait({self._running})

    async def _run(self) -> None:
        while not self._stopping:
            try:
                async with connect(self._url) as link:
                    await self._serve(link)
            except Exception as error:  # there are many kinds, and the loop must go on after each of them
                why = str(error) or type(error).__name__
                if isinstance(error, TimeoutError):
                    why = f"no answer in time from {self._url.rpartition('@')[2].partition('?')[0]}"
                self._become(StoreState.DOWN, why)
            finally:
                self._tried.set()
            if not self._stopping:
                self._wake.clear()  # what was set while the store was down would end the pause at once
                await self._news(self._pause_s)
                self._pause_s = min(2 * self._pause_s, _PAUSE_MAX_S)

    async def _serve(self, link: Any) -> None:
        """Carry batches until the connection fails, or all is done at the end. Raises."""
        self._late, self._lacks, self.epoch = 0, True, self.epoch + 1
        self._become(StoreState.TELLING)
        self._tried.set()
        while not self._is_done:
            idles = self._telling is None and not self.waiting and self.state is not StoreState.TELLING
            if idles and not self._is_telling_due:
                await self._news(_BEAT_S)
            await self._tell()
            refused = await self._carry(link)
            if refused:
                of_cluster = isinstance(refused[0], ClusterDownError | AskError)
                what = "it is a cluster that is not ready, or has more nodes than one: " * of_cluster
                self._become(StoreState.REFUSED, f"{what}{refused[0]}")
            elif self.state is StoreState.TELLING and self._telling is None and not self._lacks:
                self._become(StoreState.UP)

    @property
    def _is_done(self) -> bool:
        """Whether it is the end, and nothing is left that the store would take in."""
        rests = not (self._lacks or self._telling is not None or self.waiting)
        return self._stopping and (rests or self.state is StoreState.REFUSED)

    @property
    def _is_telling_due(self) -> bool:
        return self._lacks and (self.state is not StoreState.REFUSED or self._loop.time() >= self._again_at)

    async def _tell(self) -> None:
        """Begin to tell everything if that is due; go on telling until enough waits for one batch."""
        if self._is_telling_due:
            self._telling, self._lacks, self._mark = self._tell_all(), False, None
            if self.state is not StoreState.SLOW:
                self._become(StoreState.TELLING)
        while self._telling is not None and not self._owed and self.waiting.size < _TOGETHER:
            if next(self._telling, _END) is _END:
                self._telling = None
            else:
                await asyncio.sleep(0)

    def _next_batch(self) -> Batch:
        """What waits. Before it goes what is owed, which is older, in batches of its own; the questions do not wait."""
        if self._telling is None or not self._owed:
            batch, self.waiting = self.waiting, Batch()
            return batch
        batch = self.waiting.take_questions()
        self._owed.move_to(batch, _TOGETHER)
        return batch

    async def _news(self, within_s: float) -> None:
        """Wait until there is something to carry, for `within_s` at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._wake.wait()

    async def _carry(self, link: Any) -> list[ResponseError]:
        """Carry what waits to the store, and the answers back. Returns why something was refused. Raises."""
        batch = self._next_batch()
        self._wake.clear()
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None
        marks = self._mark is None and self.state is not StoreState.REFUSED
        commands: list[Command] = [("SET", _MARK, uuid4().hex, "NX")] if marks else []
        commands += batch.commands(self.value_ms)
        commands.append(("GETRANGE", _MARK, 0, _MARK_BYTES - 1))
        refused: list[ResponseError] | None = None
        self._out_since = self._loop.time()
        try:
            async with asyncio.timeout(_ANSWER_S):
                results = await exchange(link, commands)
            self._note_pace(self._loop.time() - self._out_since)
            batch.answer(results[marks:-1])
            self._note_mark(results[-1])
            errors = [result for result in results if isinstance(result, ResponseError)]
            wrong = [error for error in errors if error is results[-1] and "WRONGTYPE" in str(error)]
            if wrong or REPLACED in results:
                self.waiting.end(Ending(_MARK))  # so all replicas tell everything again
            refused = [error for error in errors if error not in wrong]
            if demoted := [error for error in errors if is_of_replica(error)]:
                raise ConnectionError(f"it is a replica, no longer the primary: {demoted[0]}")
            return refused
        finally:
            self._out_since = None
            batch.give_up()
            if refused or refused is None:
                self._owe(batch.forget_writes())

    def _note_pace(self, took_s: float) -> None:
        """A batch took that long. Half the timeout is quick: a question may wait for the batch before its own."""
        if took_s <= self._timeout_s / 2:
            self._late = 0
            if self.state is StoreState.SLOW:
                self._become(StoreState.TELLING)

    def note_late(self) -> None:
        self._failed("slow")
        self._late += 1
        if self._late >= _LATE_MAX and self.state in (StoreState.TELLING, StoreState.UP):
            self._become(StoreState.SLOW, "answers come later than store.timeout")

    def _note_mark(self, mark: Any) -> None:
        """The store has that mark, or none. Another one than before: it was emptied."""
        if isinstance(mark, ResponseError):
            mark = _NO_MARK
        if self._mark is None:
            self._mark = mark or None  # emptied since it was set: another is set
        elif mark != self._mark:
            self._owe(())
            self.epoch += 1

    def _become(self, state: StoreState, why: str = "") -> None:
        """Take a state, and tell the operator of a change: `why` the store fails, empty if it does not."""
        self.since = self.since if self.why else time()
        self.state, self.why = state, "" if state is StoreState.UP else why or self.why
        if state is StoreState.UP:
            self._pause_s = _PAUSE_S
        if state in (StoreState.DOWN, StoreState.REFUSED):
            self._failed("unreachable" if state is StoreState.DOWN else "refused")
            self._telling, self._again_at = None, self._loop.time() + _AGAIN_S
            self._owe(self.waiting.forget_writes())
        if state is StoreState.DOWN:
            self.waiting.give_up()
        if state is not StoreState.TELLING and state is not self._logged:
            self._logged = state
            if state is StoreState.UP:
                log.info("the store serves")
            else:
                log.warning("the store fails, and the gateway works without it", extra={"why": why})
