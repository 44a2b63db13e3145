"""The store in Redis or Valkey, as a replica has it: what it tells goes out in batches, and its questions get answers.

In: what this replica tells, and its questions. Out: answers within `timeout`, None if need be. Always: nobody waits for
what is written. While the store is down or slow, questions get None at once.
"""

import asyncio
from collections.abc import Iterable

from gateway import config
from gateway.caller_identity import Key
from gateway.store.batch import Ending
from gateway.store.pipeline import Pipeline, StoreState
from gateway.tasks.interfaces import Read


class RedisStore(Pipeline):
    """A store in Redis, as `tasks/interfaces.py` describes one."""

    @property
    def is_up(self) -> bool:
        """Whether it answers in time, and has taken in all that this replica told."""
        return self.state is StoreState.UP

    def serves(self, upstreams: Iterable[config.Upstream], server_s: float, entries_s: float) -> None:
        """The upstreams from now on; how long the value and the entries of an unused session are kept."""
        if self._names.serve(upstreams, server_s, entries_s):
            self.tell_again()

    def put(self, key: Key, server: bytes) -> None:
        if (name := self._names.of_value(key)) is not None:
            self.waiting.put(name, server)
            self.soon()

    def add(self, key: Key, new: Iterable[bytes], old: Iterable[bytes] = (), owed: bool = False) -> None:
        if (name := self._names.of_entries(key)) is not None:
            if owed:
                self.waiting.end(Ending(name, tuple(new), tuple(old)))
            else:
                self.waiting.add(name, list(new), list(old))
            self.soon()

    def drop(self, key: Key) -> None:
        for name in filter(None, (self._names.of_value(key), self._names.of_entries(key))):
            self.waiting.end(Ending(name))
            self.soon()

    async def read(self, key: Key, after: int) -> Read | None:
        """What the store has of a session; None if it does not say so within `timeout`, or is down or slow."""
        value, entries = self._names.of_value(key), self._names.of_entries(key)
        if self.answers_late or value is None or entries is None:
            return None
        found: Read | None = None
        try:
            async with asyncio.timeout(self._timeout_s):
                while found is None or not found.complete:
                    asked = self.waiting.ask(value, entries, after)
                    self.now()
                    part = await asyncio.shield(asked)
                    if part is None:
                        break
                    found = part if found is None else part._replace(tasks=found.tasks + part.tasks)
                    after = part.place
        except TimeoutError:
            self.note_late()
        return found
