"""The store in Redis or Valkey, as a replica has it: what it tells goes out in batches, and its questions get answers.

In: what this replica tells, and its questions. Out: answers, within a bound. Always: nobody waits for what is written,
and a question is answered within `timeout`, by None if need be. While the store is down or slow, questions get None at
once.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator

from gateway import config
from gateway.identity import Key
from gateway.store.carrier import Carrier, StoreState
from gateway.store.names import Names
from gateway.store.waiting import Ending
from gateway.tasks.ports import Read


class RedisStore:
    """A store in Redis, as `tasks/ports.py` describes one."""

    def __init__(self, settings: config.StoreSettings, failed: Callable[[str], None]) -> None:
        """`failed` counts a failure: unreachable, slow, refused, unreadable."""
        self._timeout_s = settings.timeout
        self._names = Names()
        self._carrier = Carrier(settings, self._names, failed)

    @property
    def state(self) -> StoreState:
        """The state of the store, as this replica sees it."""
        return self._carrier.state

    @property
    def era(self) -> int:
        """One more with each connection, and whenever the store was emptied."""
        return self._carrier.era

    @property
    def is_up(self) -> bool:
        """Whether it answers in time, and has taken in all that this replica told."""
        return self.state is StoreState.UP

    def serves(self, upstreams: Iterable[config.Upstream], server_s: float, entries_s: float) -> None:
        """The upstreams from now on; how long the value and the entries of an unused session are kept."""
        if self._names.serve(upstreams, server_s, entries_s):
            self._carrier.tell_again()

    def put(self, key: Key, server: bytes) -> None:
        """Keep the value of a session, as `tasks/ports.py` has it."""
        if (name := self._names.of_value(key)) is not None:
            self._carrier.waiting.put(name, server)
            self._carrier.soon()

    def add(self, key: Key, new: Iterable[bytes], old: Iterable[bytes] = (), owed: bool = False) -> None:
        """Add entries, as `tasks/ports.py` has it."""
        if (name := self._names.of_entries(key)) is not None:
            if owed:
                self._carrier.waiting.end(Ending(name, tuple(new), tuple(old)))
            else:
                self._carrier.waiting.add(name, list(new), list(old))
            self._carrier.soon()

    def drop(self, key: Key) -> None:
        """Forget a session, as `tasks/ports.py` has it."""
        for name in filter(None, (self._names.of_value(key), self._names.of_entries(key))):
            self._carrier.waiting.end(Ending(name))
            self._carrier.soon()

    async def read(self, key: Key, after: int) -> Read | None:
        """What the store has of a session; None if it does not say so within `timeout`, or is down or slow."""
        value, entries = self._names.of_value(key), self._names.of_entries(key)
        if self._carrier.answers_late or value is None or entries is None:
            return None
        found: Read | None = None
        try:
            async with asyncio.timeout(self._timeout_s):
                while found is None or not found.complete:
                    asked = self._carrier.waiting.ask(value, entries, after)
                    self._carrier.now()
                    part = await asyncio.shield(asked)
                    if part is None:
                        break
                    found = part if found is None else part._replace(tasks=found.tasks + part.tasks)
                    after = part.place
        except TimeoutError:
            self._carrier.note_late()
        return found

    # ---- its life ----

    async def start(self, tell_all: Callable[[], Iterator[None]]) -> None:
        """Connect, and stay connected; return when the first attempt has ended, well or not.

        `tell_all` tells everything that this replica knows, piece by piece.
        """
        await self._carrier.start(tell_all)

    async def stop(self) -> None:
        """Send what waits, for a bounded time, and end."""
        await self._carrier.stop()
